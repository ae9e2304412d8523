//! Keys: what is open without one, what one opens, and that none is seen where it does not belong.

use std::net::SocketAddr;

use actix_web::test::{TestRequest, call_service, init_service};
use actix_web::{App, http::StatusCode};
use fathom_router::config::RouterConfig;
use fathom_router::logic::endpoint::{Endpoint, Secret, WorkerUrl};
use fathom_router::router::Router;
use fathom_router::sim::SimEngine;
use hyper::Request;

use crate::support::{
    Answer, Client, RunningRouter, TemporaryFile, chat_body, engine, fast_config, in_own_process, start_router, whole,
};

const CHAT: &str = "/v1/chat/completions";
const CLIENT_PATHS: [&str; 4] = [CHAT, "/v1/completions", "/generate", "/v1/anything/else"];
const ADMIN_PATHS: [&str; 3] = ["/metrics", "/workers", "/workers/w1/kv_blocks"];

/// Asks with these headers: a POST with a body where there is one, else a GET.
async fn ask(url: &str, path: &str, headers: &[(&str, &str)], body: Option<String>) -> Answer {
    let mut request = Request::builder().uri(format!("{url}{path}"));
    request = if body.is_some() { request.method("POST") } else { request };
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    whole(Client::new().send(request.body(body.unwrap_or_default().into()).unwrap()).await).await
}

fn code_of(answer: &Answer) -> (u16, &str) {
    (answer.status, answer.header("x-fathom-error-code"))
}

#[actix::test]
async fn with_a_file_of_keys_only_their_holders_reach_engines_and_the_list_of_models() {
    let engine = engine("a").await;
    let keys = TemporaryFile::new("only-holders", "# team a\nsk-one\n# team b\nsk-two\n");
    let mut config = fast_config(&[engine.url()]);
    config.access.api_keys_file = Some(keys.path().to_owned());
    let router = RunningRouter::with(config).await;
    let asked: Vec<(&str, Option<String>)> = CLIENT_PATHS.map(|path| (path, Some(chat_body(1, false)))).into();
    for (path, body) in asked.into_iter().chain([("/v1/models", None)]) {
        let before = engine.stats().recent.len();
        let refused: [&[(&str, &str)]; 4] =
            [&[], &[("authorization", "Bearer sk-three")], &[("authorization", "sk-one")], &[("x-api-key", "sk-on")]];
        for headers in refused {
            let answer = ask(&router.url, path, headers, body.clone()).await;
            assert_eq!(code_of(&answer), (401, "invalid_api_key"), "{path} {headers:?}");
            assert_eq!(answer.header("www-authenticate"), "Bearer");
            let error = &answer.json()["error"];
            assert_eq!((&error["type"], &error["code"]), (&"invalid_request_error".into(), &"invalid_api_key".into()));
        }
        assert_eq!(engine.stats().recent.len(), before, "{path}: no engine was touched");
        for headers in [("authorization", "Bearer sk-one"), ("x-api-key", "sk-two")] {
            assert_eq!(ask(&router.url, path, &[headers], body.clone()).await.status, 200, "{path} {headers:?}");
        }
    }
    for seen in engine.stats().recent {
        assert_eq!((seen.header("authorization"), seen.header("x-api-key")), (None, None), "{}", seen.path_and_query);
    }
    for path in ["/healthz", "/readyz", "/health"] {
        assert_eq!(ask(&router.url, path, &[], None).await.status, 200, "{path} is open");
    }
    assert_eq!(router.metric("fathom_router_errors_total{kind=\"invalid_api_key\"}").await, Some(20.0));
    router.stop().await;
}

#[actix::test]
async fn an_admin_key_opens_the_admin_paths_and_nothing_else_and_no_clients_key_opens_them() {
    let engine = engine("a").await;
    let keys = TemporaryFile::new("admin-clients", "sk-client");
    let admin = TemporaryFile::new("admin-admin", "sk-admin");
    let mut config = fast_config(&[engine.url()]);
    config.access.api_keys_file = Some(keys.path().to_owned());
    config.access.admin_key_file = Some(admin.path().to_owned());
    let router = RunningRouter::with(config).await;
    for path in ADMIN_PATHS {
        for headers in [&[][..], &[("authorization", "Bearer sk-client")], &[("x-api-key", "sk-admi")]] {
            let answer = ask(&router.url, path, headers, None).await;
            assert_eq!(code_of(&answer), (401, "invalid_admin_key"), "{path} {headers:?}");
            assert_eq!(answer.header("www-authenticate"), "Bearer");
        }
        let answer = ask(&router.url, path, &[("authorization", "Bearer sk-admin")], None).await;
        assert!([(200, ""), (404, "worker_not_found")].contains(&code_of(&answer)), "{path}: {answer:?}");
    }
    let answer = ask(&router.url, CHAT, &[("authorization", "Bearer sk-admin")], Some(chat_body(1, false))).await;
    assert_eq!(code_of(&answer), (401, "invalid_api_key"));
    assert!(engine.stats().recent.is_empty());
    router.stop().await;
}

#[actix::test]
async fn without_an_admin_key_the_admin_paths_answer_this_machine_only_unless_they_are_opened() {
    let peers: [(&str, Option<&str>, bool); 6] = [
        ("127.0.0.1:40000", None, true),
        ("[::1]:40000", None, true),
        ("10.0.0.7:40000", None, false),
        ("[2001:db8::7]:40000", None, false),
        ("127.0.0.1:40000", Some("x-forwarded-for"), false),
        ("127.0.0.1:40000", Some("forwarded"), false),
    ];
    for is_open in [false, true] {
        let mut config = fast_config(&[]);
        config.access.open_admin = is_open;
        let router = Router::builder().config(config).start().await.unwrap();
        let service = init_service(App::new().configure(router.configure())).await;
        for (peer, forwarded, is_this_machine) in peers {
            for path in ["/metrics", "/workers"] {
                let mut request = TestRequest::get().uri(path).peer_addr(peer.parse::<SocketAddr>().unwrap());
                if let Some(name) = forwarded {
                    request = request.insert_header((name, "127.0.0.1"));
                }
                let response = call_service(&service, request.to_request()).await;
                let served = is_open || is_this_machine;
                let expected = if served { StatusCode::OK } else { StatusCode::FORBIDDEN };
                assert_eq!(response.status(), expected, "{path} from {peer} {forwarded:?}, open: {is_open}");
                let code = response.headers().get("x-fathom-error-code").map(|code| code.to_str().unwrap().to_owned());
                assert_eq!(code.as_deref(), (!served).then_some("admin_key_required"));
            }
        }
        router.stop().await;
    }
}

#[actix::test]
async fn a_file_without_a_usable_key_stops_the_start_with_a_sentence_that_names_it() {
    let empty = TemporaryFile::new("start-empty", "# later\n");
    let spaced = TemporaryFile::new("start-spaced", "sk-one\nsk two-secret\n");
    let rows = [
        (empty.path(), "holds no key"),
        (spaced.path(), "line 2: a key must consist of visible ASCII characters"),
        (std::path::Path::new("/nonexistent/keys"), "No such file"),
    ];
    for (path, reason) in rows {
        for (setting, is_admin) in [("api_keys_file", false), ("admin_key_file", true)] {
            let mut config = RouterConfig::default();
            let field = if is_admin { &mut config.access.admin_key_file } else { &mut config.access.api_keys_file };
            *field = Some(path.to_owned());
            let refused = Router::builder().config(config).start().await.expect_err("no keys").to_string();
            assert!(refused.starts_with(&format!("{setting} = {path:?}: {reason}")), "{refused}");
            assert!(!refused.contains("secret"), "{refused}");
        }
    }
}

fn with_key(engine: &SimEngine, key: Option<&str>) -> Endpoint {
    let mut endpoint = Endpoint::new(WorkerUrl::parse(&engine.url()).unwrap());
    endpoint.overrides.api_key = key.map(Secret::new);
    endpoint
}

#[actix::test]
async fn a_clients_header_is_passed_on_in_place_of_the_engines_key_only_where_that_is_wanted() {
    for is_forwarded in [false, true] {
        let engine = engine("a").await;
        let mut config = fast_config(&[]);
        config.workers = vec![with_key(&engine, Some("sk-engine"))];
        config.http.forward_authorization = is_forwarded;
        let router = RunningRouter::with(config).await;
        let client = [("authorization", "Bearer sk-client")];
        for (headers, expected) in [(&client[..], is_forwarded), (&[], false)] {
            assert_eq!(ask(&router.url, CHAT, headers, Some(chat_body(1, false))).await.status, 200);
            let seen = engine.stats().recent.pop().expect("a request");
            let expected = if expected { &b"Bearer sk-client"[..] } else { b"Bearer sk-engine" };
            assert_eq!(seen.header("authorization"), Some(expected), "forwarded: {is_forwarded}");
        }
        router.stop().await;
    }
}

/// Seen in sgl-project/sglang#30166 and vllm-project/production-stack#1040.
#[actix::test]
async fn no_key_and_nothing_forged_appears_in_the_finest_log_in_answers_or_at_another_engine() {
    const KEYS: [&str; 6] =
        ["MARKER-engine-a", "MARKER-engine-b", "MARKER-client", "MARKER-admin", "MARKER-guess", "MARKER-guessed-admin"];
    let name = "access::no_key_and_nothing_forged_appears_in_the_finest_log_in_answers_or_at_another_engine";
    if let Some(log) = in_own_process(name) {
        assert!(log.contains("TRACE") && log.contains("worker started"), "the log was not captured");
        for marker in KEYS {
            assert_eq!(log.lines().find(|line| line.contains(marker)), None, "{marker} is in the log");
        }
        assert!(!log.contains('\u{1b}'), "no escape code reaches a terminal");
        assert_eq!(log.lines().find(|line| line.trim_start().starts_with("FORGED")), None, "one record, one line");
        assert!(log.lines().all(|line| line.len() < 16_384), "no client writes long lines");
        return;
    }
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    let [a, b] = [engine("a").await, engine("b").await];
    let (clients, admin) = (TemporaryFile::new("log-clients", KEYS[2]), TemporaryFile::new("log-admin", KEYS[3]));
    let mut config = fast_config(&[]);
    config.workers = vec![with_key(&a, Some(KEYS[0])), with_key(&b, Some(KEYS[1]))];
    config.access.api_keys_file = Some(clients.path().to_owned());
    config.access.admin_key_file = Some(admin.path().to_owned());
    let mut shown = format!("{config:?}");
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_serving(2).await;
    shown += &format!("{:?}{:?}", router.handle, router.members().await);

    let (client, operator) = (format!("Bearer {}", KEYS[2]), format!("Bearer {}", KEYS[3]));
    let long = "y".repeat(64 * 1024);
    let forged = r#"{"model":"x\nFORGED\r\nFORGED\u001b[31m"}"#.to_owned();
    let asked = [
        (
            CHAT,
            vec![("authorization", &*client), ("x-request-id", "%0aFORGED"), ("user-agent", &long)],
            Some(chat_body(1, false)),
        ),
        (CHAT, vec![("authorization", &*client)], Some(forged)),
        ("/v1/%0d%0aFORGED%1b[31m", vec![("authorization", &*client)], Some("{}".to_owned())),
        (CHAT, vec![("x-api-key", KEYS[4])], Some(chat_body(1, false))),
        ("/metrics", vec![("authorization", &*operator)], None),
        ("/workers", vec![("authorization", &*operator)], None),
        ("/workers", vec![("x-api-key", KEYS[5])], None),
        ("/v1/models", vec![("authorization", &*client)], None),
    ];
    for _ in 0..6 {
        for (path, headers, body) in &asked {
            shown += &format!("{:?}\n", ask(&router.url, path, headers, body.clone()).await);
        }
    }
    for (engine, key) in [(a, KEYS[0]), (b, KEYS[1])] {
        let sent = engine.stats().recent;
        assert!(!sent.is_empty(), "{} was used", engine.name());
        for request in sent {
            assert_eq!(request.header("authorization"), Some(format!("Bearer {key}").as_bytes()), "{}", engine.name());
        }
        engine.kill().await;
    }
    for (path, headers, body) in &asked {
        shown += &format!("{:?}\n", ask(&router.url, path, headers, body.clone()).await);
    }
    for marker in KEYS {
        assert!(!shown.contains(marker), "{marker} is shown");
    }
    router.stop().await;
}
