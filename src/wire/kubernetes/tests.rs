use serde_json::{Value, json};

use crate::logic::kubernetes::{AddressType, Object, PodFacts, Resource, SliceEndpoint, SliceFacts};
use crate::wire::kubernetes::{WatchLine, page, status, watch_line};

fn pod_json() -> Value {
    json!({
        "metadata": {"name": "a", "namespace": "llm", "uid": "u1", "resourceVersion": "5",
                     "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{"manager": "kubelet"}]},
        "spec": {"containers": [{"name": "engine", "ports": [{"name": "http", "containerPort": 30000}]}]},
        "status": {
            "phase": "Running", "podIP": "10.0.0.5", "podIPs": [{"ip": "10.0.0.5"}, {"ip": "fd00::5"}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "engine", "restartCount": 2}],
        },
    })
}

fn pod(json: &Value) -> PodFacts {
    let line = json!({"type": "MODIFIED", "object": json}).to_string();
    match watch_line(line.as_bytes(), Resource::Pods) {
        Some(WatchLine::Put { object: Object::Pod(pod), .. }) => pod,
        other => panic!("{other:?}"),
    }
}

fn slice(endpoint: &Value) -> SliceFacts {
    let object = json!({"metadata": {"name": "s", "namespace": "llm", "uid": "u"}, "addressType": "IPv4",
                        "ports": [{"name": "http", "port": 30000, "protocol": "TCP"}], "endpoints": [endpoint]});
    let line = json!({"type": "ADDED", "object": object}).to_string();
    match watch_line(line.as_bytes(), Resource::EndpointSlices) {
        Some(WatchLine::Put { object: Object::Slice(slice), .. }) => slice,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pod_is_read_as_the_api_writes_it() {
    let facts = pod(&pod_json());
    assert_eq!((&*facts.name.namespace, &*facts.name.name, &*facts.uid), ("llm", "a", "u1"));
    assert!(facts.is_ready && !facts.has_ended && !facts.is_deleting);
    assert_eq!(facts.addresses, ["10.0.0.5".parse::<std::net::IpAddr>().unwrap(), "fd00::5".parse().unwrap()]);
    assert_eq!((facts.containers[0].restarts, facts.containers[0].ports[0].number), (2, 30_000));
}

/// Seen in vllm-project/production-stack#601.
#[test]
fn a_pod_is_ready_only_with_its_phase_its_condition_and_every_gate() {
    let edited = |edit: fn(&mut Value)| {
        let mut json = pod_json();
        edit(&mut json);
        pod(&json)
    };
    let not_ready = [
        edited(|pod| pod["status"]["conditions"][0]["status"] = json!("False")),
        edited(|pod| pod["status"]["conditions"] = json!([])),
        edited(|pod| pod["status"]["conditions"] = json!(null)),
        edited(|pod| pod["status"]["phase"] = json!("Pending")),
        edited(|pod| pod["spec"]["readinessGates"] = json!([{"conditionType": "example.com/warm"}])),
    ];
    for pod in not_ready {
        assert!(!pod.is_ready, "{pod:?}");
    }
    let gated = edited(|pod| {
        pod["spec"]["readinessGates"] = json!([{"conditionType": "example.com/warm"}]);
        pod["status"]["conditions"] =
            json!([{"type": "Ready", "status": "True"}, {"type": "example.com/warm", "status": "True"}]);
    });
    assert!(gated.is_ready);
    assert!(edited(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z")).is_deleting);
    for phase in ["Failed", "Succeeded"] {
        let mut json = pod_json();
        json["status"]["phase"] = json!(phase);
        assert!(pod(&json).has_ended, "{phase}");
    }
    let blank = edited(|pod| pod["status"] = json!({"phase": "Failed", "podIP": ""}));
    assert!(blank.addresses.is_empty() && blank.has_ended);
}

#[test]
fn an_endpoint_of_a_slice_is_ready_by_its_three_conditions_of_which_each_may_be_left_out() {
    let rows = [
        (json!({}), true),
        (json!({"ready": true, "serving": true, "terminating": false}), true),
        (json!({"ready": null, "serving": null}), true),
        (json!({"ready": false, "serving": true, "terminating": true}), false),
        (json!({"ready": true, "serving": true, "terminating": true}), false),
        (json!({"ready": true, "serving": false}), false),
        (json!({"ready": false}), false),
    ];
    for (conditions, expected) in rows {
        let endpoint =
            json!({"addresses": ["10.0.0.5"], "conditions": conditions, "targetRef": {"kind": "Pod", "uid": "p"}});
        let slice = slice(&endpoint);
        assert_eq!(slice.address_type, AddressType::V4);
        let expected =
            SliceEndpoint { address: "10.0.0.5".parse().unwrap(), pod_uid: Some("p".into()), is_ready: expected };
        assert_eq!(slice.endpoints, [expected], "{conditions}");
    }
    assert_eq!(
        slice(&json!({"addresses": ["10.0.0.5"], "targetRef": {"kind": "Node", "uid": "n"}})).endpoints[0].pod_uid,
        None
    );
    assert!(slice(&json!({"addresses": []})).endpoints.is_empty());
}

#[test]
fn a_page_keeps_what_can_be_read_and_counts_what_cannot() {
    let list = json!({"metadata": {"resourceVersion": "9", "continue": "more"},
                      "items": [pod_json(), {"metadata": {"name": "no-uid"}}, "text", {"metadata": {"name": "b", "uid": "u2"}}]});
    let page = page(list.to_string().as_bytes(), Resource::Pods).unwrap();
    assert_eq!((page.version.as_str(), page.next.as_deref()), ("9", Some("more")));
    assert_eq!((page.objects.len(), page.num_unreadable), (2, 2));
    let last =
        super::page(br#"{"metadata":{"resourceVersion":"9","continue":""},"items":null}"#, Resource::Pods).unwrap();
    assert_eq!((last.next, last.objects.len()), (None, 0));
    assert!(super::page(b"[]", Resource::Pods).is_err());
}

#[test]
fn each_kind_of_watch_line_is_read_and_any_other_is_refused() {
    let read = |line: &Value| watch_line(line.to_string().as_bytes(), Resource::Pods);
    let deleted = read(&json!({"type": "DELETED", "object": pod_json()}));
    assert!(
        matches!(deleted, Some(WatchLine::Removed { ref version, ref uid, .. }) if version == "5" && &**uid == "u1")
    );
    let bookmark = read(&json!({"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "12"}}}));
    assert_eq!(bookmark, Some(WatchLine::Bookmark { version: "12".to_owned() }));
    let expired = read(&json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}));
    assert!(matches!(expired, Some(WatchLine::Error(ref status)) if status.code == 410));
    for refused in [json!({"type": "RENAMED", "object": pod_json()}), json!({"type": "ADDED"}), json!(7)] {
        assert_eq!(read(&refused), None, "{refused}");
    }
    assert_eq!(watch_line(b"{\"type\":\"ADD", Resource::Pods), None);
    assert_eq!(status(b"<html>").message, "");
}
