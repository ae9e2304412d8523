//! The manifests in examples/kubernetes: that they are YAML, and that the settings, rights, paths, ports, names and metrics in them
//! exist.

use std::collections::BTreeSet;
use std::path::Path;

use fathom_router::config::RawConfig;
use fathom_router::logic::kubernetes::{Resource, Verb};
use serde_json::{Value, json};

use crate::support::{Client, engine, fast_config, start_router};

fn text(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/kubernetes");
    std::fs::read_to_string(folder.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn documents(file: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&text(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn files() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/kubernetes");
    let entries = std::fs::read_dir(folder).expect("the folder");
    let files: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(files.len() >= 5, "{files:?}");
    files
}

fn of_kind(file: &str, kind: &str) -> Value {
    let mut found: Vec<Value> = documents(file).into_iter().filter(|document| document["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "{file}: {kind}");
    found.remove(0)
}

fn router_container() -> Value {
    of_kind("router.yaml", "Deployment")["spec"]["template"]["spec"]["containers"][0].clone()
}

fn variable(name: &str) -> String {
    let container = router_container();
    let all = container["env"].as_array().expect("variables");
    let found = all.iter().find(|variable| variable["name"] == name).unwrap_or_else(|| panic!("{name}"));
    found["value"].as_str().expect("a text").to_owned()
}

#[test]
fn every_manifest_is_a_list_of_named_objects_in_one_namespace() {
    for file in files() {
        let documents = documents(&file);
        assert!(!documents.is_empty(), "{file}");
        for document in documents {
            for field in ["apiVersion", "kind"] {
                assert!(document[field].is_string(), "{file}: {field}");
            }
            assert!(document["metadata"]["name"].is_string(), "{file}");
            assert_eq!(document["metadata"]["namespace"], "llm", "{file}");
        }
    }
}

#[test]
fn every_variable_and_flag_for_the_router_is_a_setting_with_a_value_that_it_takes() {
    let settings = RawConfig::reference();
    let mut file = String::new();
    for variable in router_container()["env"].as_array().expect("variables") {
        let (name, value) = (variable["name"].as_str().unwrap(), variable["value"].as_str().expect("a text"));
        let setting = settings.iter().find(|setting| setting.environment == name);
        let key = &setting.unwrap_or_else(|| panic!("{name} is no setting")).key;
        let is_list = key == "kubernetes_namespaces";
        // As the environment does, give numbers as numbers to the settings that want them.
        let written = [format!("{key} = {value}"), format!("{key} = {value:?}"), format!("{key} = [{value:?}]")];
        let fits = written.iter().find(|line| RawConfig::from_toml(line).is_ok());
        let line = fits.unwrap_or_else(|| panic!("{name} = {value}"));
        assert_eq!(is_list, line.contains('['), "{name}");
        file.push_str(line);
        file.push('\n');
    }
    let (router, server) = RawConfig::from_toml(&file).unwrap().validate(|_| None).expect("a configuration");
    assert!(router.kubernetes.is_some() && server.port == 30_000);
    let flags = router_container()["args"].as_array().expect("arguments").clone();
    for flag in flags.iter().filter_map(Value::as_str).filter_map(|argument| argument.strip_prefix("--")) {
        let key = flag.split('=').next().unwrap_or_default().replace('-', "_");
        assert!(settings.iter().any(|setting| setting.key == key), "--{flag}");
    }
    for file in files() {
        let words = text(&file);
        let words = words.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        for word in words
            .filter(|word| word.starts_with("FATHOM_") || word.starts_with("kubernetes_") || word.starts_with("drain_"))
        {
            let is_setting = settings.iter().any(|setting| setting.environment == word || setting.key == word);
            assert!(is_setting, "{file}: {word}");
        }
    }
}

#[test]
fn the_role_grants_the_verbs_that_are_used_on_the_resources_that_are_read_and_nothing_more() {
    let role = of_kind("rbac.yaml", "Role");
    let verbs: BTreeSet<&str> = Verb::ALL.iter().map(|verb| verb.name()).collect();
    let mut granted = BTreeSet::new();
    for rule in role["rules"].as_array().expect("rules") {
        let list = |key: &str| {
            rule[key].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect::<BTreeSet<_>>()
        };
        assert_eq!(list("verbs"), verbs);
        for group in list("apiGroups") {
            granted.extend(list("resources").into_iter().map(|resource| (group.to_owned(), resource.to_owned())));
        }
    }
    let read = [Resource::Pods, Resource::EndpointSlices];
    let read: BTreeSet<_> =
        read.iter().map(|resource| (resource.group().to_owned(), resource.name().to_owned())).collect();
    assert_eq!(granted, read);
    let binding = of_kind("rbac.yaml", "RoleBinding");
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let account = &of_kind("rbac.yaml", "ServiceAccount")["metadata"]["name"];
    assert_eq!(&binding["subjects"][0]["name"], account);
    assert_eq!(&of_kind("router.yaml", "Deployment")["spec"]["template"]["spec"]["serviceAccountName"], account);
}

#[test]
fn the_router_has_time_to_stop_and_no_more_rights_than_it_needs() {
    let pod = of_kind("router.yaml", "Deployment")["spec"]["template"]["spec"].clone();
    let seconds = |name: &str| variable(name).parse::<u64>().expect("a number");
    let needed = seconds("FATHOM_DRAIN_DELAY_SECS") + seconds("FATHOM_DRAIN_TIMEOUT_SECS");
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > needed);
    assert_eq!(pod["enableServiceLinks"], false);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let container = router_container();
    let security = &container["securityContext"];
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
    let probe = &container["readinessProbe"];
    let notices_within = probe["periodSeconds"].as_u64().unwrap() * probe["failureThreshold"].as_u64().unwrap();
    assert!(notices_within < seconds("FATHOM_DRAIN_DELAY_SECS"), "the platform notices before requests are refused");
}

#[test]
fn services_select_the_pods_that_are_there_and_ports_are_named_where_they_are_declared() {
    let engines = variable("FATHOM_KUBERNETES_SERVICE");
    for file in ["router.yaml", "engines.yaml", "engines-pd.yaml"] {
        let service = of_kind(file, "Service");
        let deployments: Vec<_> =
            documents(file).into_iter().filter(|document| document["kind"] == "Deployment").collect();
        assert_eq!(deployments.len(), if file == "engines-pd.yaml" { 2 } else { 1 });
        for deployment in &deployments {
            let template = &deployment["spec"]["template"];
            let labels = &template["metadata"]["labels"];
            for selector in [&service["spec"]["selector"], &deployment["spec"]["selector"]["matchLabels"]] {
                let all = selector.as_object().unwrap();
                assert!(all.iter().all(|(key, value)| &labels[key] == value), "{file}");
            }
            let port = &template["spec"]["containers"][0]["ports"][0];
            assert_eq!(port["name"], service["spec"]["ports"][0]["targetPort"], "{file}");
            if file != "router.yaml" {
                assert_eq!(service["metadata"]["name"], engines, "{file}");
                assert_eq!(service["spec"]["clusterIP"], "None", "{file}");
                assert_eq!(service["spec"]["ports"][0]["name"], variable("FATHOM_KUBERNETES_PORT"), "{file}");
                let (label, value) = labels.as_object().unwrap().iter().next().unwrap();
                assert_eq!(format!("{label}={}", value.as_str().unwrap()), variable("FATHOM_KUBERNETES_SELECTOR"));
            }
        }
    }
    assert_eq!(router_container()["ports"][0]["containerPort"].to_string(), variable("FATHOM_PORT"));
}

#[actix::test]
async fn the_probed_paths_answer_and_the_scaled_metric_is_shown() {
    let engine = engine("scaled").await;
    let router = start_router(fathom_router::router::Router::builder().config(fast_config(&[engine.url()]))).await;
    router.wait_until_serving(1).await;
    for probe in ["readinessProbe", "livenessProbe"] {
        let path = router_container()[probe]["httpGet"]["path"].as_str().expect("a path").to_owned();
        assert_eq!(Client::new().get(&format!("{}{path}", router.url)).await.status, 200, "{path}");
    }
    let scaler = of_kind("autoscaling.yaml", "HorizontalPodAutoscaler");
    let metric = scaler["spec"]["metrics"][0]["external"]["metric"]["name"].as_str().expect("a name").to_owned();
    assert_eq!(router.metric(&metric).await, Some(0.0), "{metric}");
    let scaled = &scaler["spec"]["scaleTargetRef"]["name"];
    assert_eq!(scaled, &of_kind("engines.yaml", "Deployment")["metadata"]["name"]);
    router.stop_and_check().await;
}
