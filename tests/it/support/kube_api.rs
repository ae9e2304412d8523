//! A Kubernetes API server of a few hundred lines: lists in pages, watches in lines, and the faults that real ones have.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// One request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiRequest {
    /// `list` or `watch`.
    pub(crate) verb: &'static str,
    pub(crate) resource: String,
    pub(crate) namespace: String,
    pub(crate) query: BTreeMap<String, String>,
}

/// A running server. Its end is its drop.
pub(crate) struct KubeApi {
    address: SocketAddr,
    state: Rc<RefCell<State>>,
    changed: watch::Sender<u64>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Key, Value>,
    version: u64,
    log: Vec<Change>,
    /// A watch from an older version has expired.
    oldest: u64,
    /// Watches of an older generation are ended.
    generation: u64,
    is_silent: bool,
    most_per_page: usize,
    /// Verb, resource and namespace.
    forbidden: Vec<(&'static str, &'static str, &'static str)>,
    requests: Vec<ApiRequest>,
}

/// Resource, namespace and name.
type Key = (String, String, String);

#[derive(Clone)]
struct Change {
    version: u64,
    key: Option<Key>,
    old: Option<Value>,
    new: Option<Value>,
}

impl KubeApi {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().unwrap();
        let state = Rc::new(RefCell::new(State { version: 100, most_per_page: usize::MAX, ..State::default() }));
        let (changed, changes) = watch::channel(0);
        let task = actix::spawn(serve(listener, Rc::clone(&state), changes));
        Self { address, state, changed, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Puts an object in the place of whatever has its name.
    pub(crate) fn put(&self, resource: &str, mut object: Value) {
        let mut state = self.state.borrow_mut();
        state.version += 1;
        let version = state.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let key = key(resource, &object);
        let old = state.objects.insert(key.clone(), object.clone());
        state.log.push(Change { version, key: Some(key), old, new: Some(object) });
        drop(state);
        self.wake();
    }

    /// Changes the object of that name in the namespace `llm`.
    pub(crate) fn edit(&self, resource: &str, name: &str, edit: impl FnOnce(&mut Value)) {
        let key = (resource.to_owned(), "llm".to_owned(), name.to_owned());
        let mut object = self.state.borrow().objects[&key].clone();
        edit(&mut object);
        self.put(resource, object);
    }

    /// Deletes the object of that name in the namespace `llm`.
    pub(crate) fn delete(&self, resource: &str, name: &str) {
        let key = (resource.to_owned(), "llm".to_owned(), name.to_owned());
        let mut state = self.state.borrow_mut();
        state.version += 1;
        let version = state.version;
        let old = state.objects.remove(&key);
        state.log.push(Change { version, key: Some(key), old, new: None });
        drop(state);
        self.wake();
    }

    /// Tells every watch that nothing has changed up to now.
    pub(crate) fn bookmark(&self) -> String {
        let mut state = self.state.borrow_mut();
        state.version += 1;
        let version = state.version;
        state.log.push(Change { version, key: None, old: None, new: None });
        drop(state);
        self.wake();
        version.to_string()
    }

    /// Ends every watch, as a server does that thinks it was long enough.
    pub(crate) fn close_watches(&self) {
        self.state.borrow_mut().generation += 1;
        self.wake();
    }

    /// Forgets all changes: watches that run end with an error in their stream, and no version known so far can be watched from.
    pub(crate) fn expire(&self) {
        let mut state = self.state.borrow_mut();
        state.version += 1;
        state.oldest = state.version;
        drop(state);
        self.wake();
    }

    /// Whether watches stay open and say nothing.
    pub(crate) fn silence(&self, is_silent: bool) {
        self.state.borrow_mut().is_silent = is_silent;
        self.wake();
    }

    /// The most objects per page, whatever is asked for.
    pub(crate) fn page(&self, most: usize) {
        self.state.borrow_mut().most_per_page = most;
    }

    /// Answers 403 to the verb on the resource in the namespace.
    pub(crate) fn forbid(&self, verb: &'static str, resource: &'static str, namespace: &'static str) {
        self.state.borrow_mut().forbidden.push((verb, resource, namespace));
    }

    /// Returns the requests of that verb, oldest first.
    pub(crate) fn requests(&self, verb: &str) -> Vec<ApiRequest> {
        self.state.borrow().requests.iter().filter(|request| request.verb == verb).cloned().collect()
    }

    fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

impl Drop for KubeApi {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A pod in the namespace `llm` with the label `app=engine` that runs and is ready at 127.0.0.1 and the port.
pub(crate) fn pod(name: &str, port: u16) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "llm", "uid": format!("uid-{name}"), "labels": {"app": "engine"},
                     "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "engine", "ports": [{"name": "http", "containerPort": port}]}]},
        "status": {
            "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "engine", "restartCount": 0}],
        },
    })
}

/// A slice in the namespace `llm` of the service `engines`, whose endpoints stand for these pods at 127.0.0.1 and the port.
pub(crate) fn slice(name: &str, port: u16, pods: &[&str]) -> Value {
    let endpoint = |pod: &&str| {
        json!({"addresses": ["127.0.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false},
               "targetRef": {"kind": "Pod", "name": pod, "uid": format!("uid-{pod}")}})
    };
    json!({
        "metadata": {"name": name, "namespace": "llm", "uid": format!("uid-{name}"),
                     "labels": {"kubernetes.io/service-name": "engines"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

fn key(resource: &str, object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().expect("a text").to_owned();
    (resource.to_owned(), text("namespace"), text("name"))
}

fn matches(object: &Value, selector: &str) -> bool {
    selector.split(',').filter(|part| !part.is_empty()).all(|part| {
        let (label, value) = part.split_once('=').expect("a selector of equalities");
        object["metadata"]["labels"][label] == value
    })
}

async fn serve(listener: TcpListener, state: Rc<RefCell<State>>, changes: watch::Receiver<u64>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (state, changes) = (Rc::clone(&state), changes.clone());
        actix::spawn(async move {
            // A client that leaves ends its connection; nobody else is affected.
            drop(converse(stream, &state, changes).await);
        });
    }
}

async fn converse(mut stream: TcpStream, state: &RefCell<State>, changes: watch::Receiver<u64>) -> io::Result<()> {
    let Some(request) = read_request(&mut stream).await? else { return Ok(()) };
    let is_forbidden = {
        let mut state = state.borrow_mut();
        state.requests.push(request.clone());
        state.forbidden.iter().any(|(verb, resource, namespace)| {
            (*verb, *resource, *namespace) == (request.verb, &request.resource, &request.namespace)
        })
    };
    if is_forbidden {
        return answer(&mut stream, 403, &status(403, "pods is forbidden: User \"fathom\" cannot do this")).await;
    }
    if request.verb == "watch" {
        return stream_changes(&mut stream, state, changes, &request).await;
    }
    let page = state.borrow().list(&request);
    answer(&mut stream, 200, &page).await
}

impl State {
    fn list(&self, request: &ApiRequest) -> Value {
        let query = |key: &str| request.query.get(key).map(String::as_str).unwrap_or_default();
        let of_scope =
            |key: &&Key| key.0 == request.resource && (request.namespace.is_empty() || key.1 == request.namespace);
        let all = self.objects.iter().filter(|(key, object)| of_scope(key) && matches(object, query("labelSelector")));
        let from: usize = query("continue").parse().unwrap_or(0);
        let limit = query("limit").parse().unwrap_or(usize::MAX).min(self.most_per_page);
        let all: Vec<&Value> = all.map(|(_, object)| object).skip(from).collect();
        let next = if all.len() > limit { (from + limit).to_string() } else { String::new() };
        let items: Vec<&Value> = all.into_iter().take(limit).collect();
        json!({"kind": "List", "metadata": {"resourceVersion": self.version.to_string(), "continue": next}, "items": items})
    }

    fn line(&self, change: &Change, request: &ApiRequest) -> Option<Value> {
        let Some(key) = &change.key else {
            let metadata = json!({"resourceVersion": change.version.to_string()});
            return Some(json!({"type": "BOOKMARK", "object": {"metadata": metadata}}));
        };
        if key.0 != request.resource || (!request.namespace.is_empty() && key.1 != request.namespace) {
            return None;
        }
        let selector = request.query.get("labelSelector").map(String::as_str).unwrap_or_default();
        let old = change.old.as_ref().filter(|object| matches(object, selector));
        let new = change.new.as_ref().filter(|object| matches(object, selector));
        let (kind, object) = match (old, new) {
            (None, None) => return None,
            (None, Some(new)) => ("ADDED", new.clone()),
            (Some(_), Some(new)) => ("MODIFIED", new.clone()),
            (Some(old), None) => {
                let mut object = change.new.clone().unwrap_or_else(|| old.clone());
                object["metadata"]["resourceVersion"] = json!(change.version.to_string());
                ("DELETED", object)
            }
        };
        Some(json!({"type": kind, "object": object}))
    }
}

async fn stream_changes(
    stream: &mut TcpStream,
    state: &RefCell<State>,
    mut changes: watch::Receiver<u64>,
    request: &ApiRequest,
) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let generation = state.borrow().generation;
    let mut version: u64 = request.query["resourceVersion"].parse().expect("a version");
    loop {
        changes.borrow_and_update();
        let (lines, is_over) = {
            let state = state.borrow();
            if version < state.oldest {
                let error = json!({"type": "ERROR", "object": status(410, "too old resource version")});
                (vec![error], true)
            } else if state.is_silent {
                (Vec::new(), state.generation != generation)
            } else {
                let new = state.log.iter().filter(|change| change.version > version);
                let lines = new.clone().filter_map(|change| state.line(change, request)).collect();
                version = new.map(|change| change.version).max().unwrap_or(version);
                (lines, state.generation != generation)
            }
        };
        for line in lines {
            // Lines are cut where it suits the network.
            let text = format!("{line}\n");
            let (front, back) = text.split_at(text.len() / 2);
            for part in [front, back] {
                stream.write_all(format!("{:x}\r\n{part}\r\n", part.len()).as_bytes()).await?;
            }
        }
        if is_over {
            stream.write_all(b"0\r\n\r\n").await?;
            return stream.shutdown().await;
        }
        if changes.changed().await.is_err() {
            return Ok(());
        }
    }
}

fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message})
}

async fn answer(stream: &mut TcpStream, code: u16, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {code} Fake\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

async fn read_request(stream: &mut TcpStream) -> io::Result<Option<ApiRequest>> {
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|window| window == b"\r\n\r\n") {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
    let head = String::from_utf8_lossy(&bytes).into_owned();
    let target = head.split(' ').nth(1).unwrap_or_default();
    let url = url::Url::parse(&format!("http://api{target}")).expect("a request target");
    let query: BTreeMap<String, String> = url.query_pairs().into_owned().collect();
    let parts: Vec<&str> = url.path().split('/').collect();
    let namespace = parts.iter().position(|part| *part == "namespaces").and_then(|at| parts.get(at + 1));
    Ok(Some(ApiRequest {
        verb: if query.contains_key("watch") { "watch" } else { "list" },
        resource: parts.last().copied().unwrap_or_default().to_owned(),
        namespace: namespace.copied().unwrap_or_default().to_owned(),
        query,
    }))
}
