//! Where a prefill engine hands the results of its prompts to decode engines: rooms behind a TCP port of its own, as in SGLang.
//!
//! A decode engine sends the number of a room as one line, and gets `ready` as soon as the prompt of that room has been computed.
//! The prefill engine answers its own request when the result has been fetched. Either side waits for the other for a while only.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::lock::lock;

/// The longest line: a room and its end.
const MAX_LINE_BYTES: u64 = 32;
const READY: &str = "ready\n";

/// How far a room is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Waiting,
    Computed,
    Fetched,
}

/// The rooms of one prefill engine.
#[derive(Debug)]
pub(super) struct Rooms {
    open: Mutex<HashMap<u64, watch::Sender<Stage>>>,
    /// Counts the rooms that were ever opened.
    arrivals: watch::Sender<u64>,
    patience: Duration,
}

/// The rooms of one request; closed when it is dropped.
pub(super) struct RoomsOfRequest {
    rooms: Arc<Rooms>,
    numbers: Vec<u64>,
}

impl Rooms {
    pub(super) fn new(patience: Duration) -> Self {
        Self { open: Mutex::default(), arrivals: watch::Sender::new(0), patience }
    }

    /// Opens the rooms; `None` where one of them is open already.
    pub(super) fn enter(self: &Arc<Self>, numbers: &[u64]) -> Option<RoomsOfRequest> {
        let mut open = lock(&self.open);
        if numbers.iter().any(|number| open.contains_key(number)) {
            return None;
        }
        open.extend(numbers.iter().map(|number| (*number, watch::Sender::new(Stage::Waiting))));
        drop(open);
        self.arrivals.send_modify(|count| *count += 1);
        Some(RoomsOfRequest { rooms: Arc::clone(self), numbers: numbers.to_vec() })
    }

    async fn stage(&self, number: u64) -> watch::Receiver<Stage> {
        let mut arrivals = self.arrivals.subscribe();
        loop {
            if let Some(room) = lock(&self.open).get(&number) {
                return room.subscribe();
            }
            // The sender lives as long as this does.
            let _ = arrivals.changed().await;
        }
    }

    fn set(&self, number: u64, stage: Stage) {
        if let Some(room) = lock(&self.open).get(&number) {
            room.send_replace(stage);
        }
    }

    /// Hands out the room's result; `false` where it is gone.
    async fn hand_out(&self, number: u64) -> bool {
        let mut stage = self.stage(number).await;
        stage.wait_for(|stage| *stage >= Stage::Computed).await.is_ok()
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        (&mut stream).take(MAX_LINE_BYTES).read_line(&mut line).await?;
        let Ok(number) = line.trim().parse() else { return Ok(()) };
        let mut unexpected = [0; 1];
        let handed_out = {
            let handing = std::pin::pin!(timeout(self.patience, self.hand_out(number)));
            let left = std::pin::pin!(stream.read(&mut unexpected));
            match futures::future::select(handing, left).await {
                futures::future::Either::Left((Ok(true), _)) => true,
                // Time is up, the room is gone, or the decode engine is.
                _ => false,
            }
        };
        if handed_out {
            stream.get_mut().write_all(READY.as_bytes()).await?;
            self.set(number, Stage::Fetched);
        }
        Ok(())
    }
}

impl RoomsOfRequest {
    /// Tells that the prompts have been computed, and waits until all results were fetched; `false` where nobody came.
    pub(super) async fn hand_over(&self) -> bool {
        let mut stages = Vec::new();
        for number in &self.numbers {
            self.rooms.set(*number, Stage::Computed);
            stages.extend(lock(&self.rooms.open).get(number).map(watch::Sender::subscribe));
        }
        let all_fetched = async {
            for stage in &mut stages {
                if stage.wait_for(|stage| *stage == Stage::Fetched).await.is_err() {
                    return false;
                }
            }
            true
        };
        timeout(self.rooms.patience, all_fetched).await.unwrap_or(false)
    }
}

impl Drop for RoomsOfRequest {
    fn drop(&mut self) {
        let mut open = lock(&self.rooms.open);
        for number in &self.numbers {
            open.remove(number);
        }
    }
}

/// The port of a prefill engine; closed when it is dropped.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) port: u16,
    serving: JoinHandle<()>,
}

impl Door {
    pub(super) async fn open(rooms: Arc<Rooms>) -> io::Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        let port = listener.local_addr()?.port();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A decode engine that breaks off is its own affair.
                tokio::spawn(Arc::clone(&rooms).serve(stream));
            }
        });
        Ok(Self { port, serving })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Waits at a prefill engine's door until the room's result is there; `false` where it never comes.
pub(super) async fn fetch(host: &str, port: u16, room: u64, patience: Duration) -> bool {
    let fetched = async {
        let mut stream = TcpStream::connect(format!("{host}:{port}")).await?;
        stream.write_all(format!("{room}\n").as_bytes()).await?;
        let mut answer = String::new();
        BufReader::new(stream).take(MAX_LINE_BYTES).read_line(&mut answer).await?;
        io::Result::Ok(answer == READY)
    };
    timeout(patience, fetched).await.is_ok_and(|fetched| fetched.unwrap_or(false))
}
