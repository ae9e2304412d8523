//! An engine of a few lines, for what the simulated one does not play: other addresses, other paths, other models. It answers as
//! a function of the request says, and keeps what it was asked.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// One request as it came.
#[derive(Debug, Clone)]
pub(crate) struct StubRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    headers: Vec<(String, String)>,
}

impl StubRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// What the engine does with a request.
#[derive(Debug, Clone)]
pub(crate) enum StubAnswer {
    /// This status and body.
    Json(u16, Value),
    /// Nothing, for ever.
    Hang,
}

/// A running stub. Its end is its drop.
pub(crate) struct Stub {
    address: SocketAddr,
    seen: Rc<RefCell<Vec<StubRequest>>>,
    task: JoinHandle<()>,
}

impl Stub {
    /// Starts an engine on 127.0.0.1.
    pub(crate) async fn start(answer: impl Fn(&StubRequest) -> StubAnswer + 'static) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), answer).await.expect("a free port")
    }

    /// Starts an engine on the address, where this machine has it.
    pub(crate) async fn start_at(
        host: IpAddr,
        answer: impl Fn(&StubRequest) -> StubAnswer + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((host, 0)).await?;
        let address = listener.local_addr()?;
        let seen: Rc<RefCell<Vec<StubRequest>>> = Rc::default();
        let task = actix::spawn(serve(listener, Rc::clone(&seen), Rc::new(answer)));
        Ok(Self { address, seen, task })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the requests to a path, oldest first.
    pub(crate) fn requests_to(&self, path: &str) -> Vec<StubRequest> {
        self.seen.borrow().iter().filter(|request| request.path == path).cloned().collect()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers like an engine that serves one model: it describes itself with `info`, lists `model`, and completes every chat.
pub(crate) fn engine_like(info: Value, model: &'static str) -> impl Fn(&StubRequest) -> StubAnswer {
    move |request| match request.path.as_str() {
        "/server_info" => StubAnswer::Json(200, info.clone()),
        "/v1/models" => StubAnswer::Json(200, json!({"object": "list", "data": [{"id": model, "object": "model"}]})),
        "/v1/chat/completions" => chat_answer(),
        _ => not_found(),
    }
}

pub(crate) fn chat_answer() -> StubAnswer {
    StubAnswer::Json(200, json!({"object": "chat.completion", "choices": []}))
}

pub(crate) fn not_found() -> StubAnswer {
    StubAnswer::Json(404, json!({"detail": "Not Found"}))
}

async fn serve<F: Fn(&StubRequest) -> StubAnswer + 'static>(
    listener: TcpListener,
    seen: Rc<RefCell<Vec<StubRequest>>>,
    answer: Rc<F>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        let (seen, answer) = (Rc::clone(&seen), Rc::clone(&answer));
        actix::spawn(async move {
            // A client that leaves ends its connection; nobody else is affected.
            drop(converse(stream, &seen, &*answer).await);
        });
    }
}

async fn converse(
    mut stream: TcpStream,
    seen: &RefCell<Vec<StubRequest>>,
    answer: &impl Fn(&StubRequest) -> StubAnswer,
) -> io::Result<()> {
    let Some(request) = read_request(&mut stream).await? else { return Ok(()) };
    let answer = answer(&request);
    seen.borrow_mut().push(request);
    match answer {
        StubAnswer::Hang => std::future::pending().await,
        StubAnswer::Json(status, body) => {
            let body = body.to_string();
            let head = format!(
                "HTTP/1.1 {status} Stub\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(body.as_bytes()).await?;
            stream.shutdown().await
        }
    }
}

/// Reads one request with its whole body, so that closing afterwards does not reset the connection.
async fn read_request(stream: &mut TcpStream) -> io::Result<Option<StubRequest>> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let mut lines = head.split("\r\n");
    let mut first = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
    let (method, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let header =
        |line: &str| line.split_once(':').map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
    let request = StubRequest { method, path, headers: lines.filter_map(header).collect() };
    let body_bytes: usize = request.header("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    while bytes.len() < head_end + 4 + body_bytes {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(request))
}
