//! Requests without a pause: chats and conversations by token ids, every other one as a stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{Answer, Client, Failure};

pub(crate) const CHATS: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";

/// One request each so long.
const PAUSE: Duration = Duration::from_millis(12);
/// Where the tour stands still, this ends it.
const MAX_REQUESTS: usize = 10_000;
const NUM_CONVERSATIONS: usize = 24;
/// Tokens that each turn of a conversation adds.
const TURN: usize = 64;
const MAX_TURNS: usize = 8;

pub(crate) struct Traffic {
    is_over: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Vec<Result<Answer, Failure>>>,
}

impl Traffic {
    pub(crate) fn start(router_url: &str) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let task = actix::spawn(send_all(router_url.to_owned(), Arc::clone(&is_over)));
        Self { is_over, task }
    }

    /// Sends nothing any more. Returns how many requests were sent, and how many of them were answered to the end.
    pub(crate) async fn end(self) -> Result<(usize, usize), Failure> {
        self.is_over.store(true, Ordering::Relaxed);
        let answers = self.task.await?;
        let mut num_ok = 0;
        for answer in &answers {
            match answer {
                Ok(answer) if is_whole(answer) => num_ok += 1,
                Ok(answer) => println!("lost: {} {}", answer.status, String::from_utf8_lossy(&answer.body)),
                Err(error) => println!("lost: {error}"),
            }
        }
        Ok((answers.len(), num_ok))
    }
}

async fn send_all(router_url: String, is_over: Arc<AtomicBool>) -> Vec<Result<Answer, Failure>> {
    let client = Client::new();
    let mut open = Vec::new();
    while open.len() < MAX_REQUESTS && !is_over.load(Ordering::Relaxed) {
        let (client, (path, body)) = (client.clone(), request(open.len()));
        let url = format!("{router_url}{path}");
        open.push(actix::spawn(async move { client.send("POST", &url, &body).await }));
        actix::clock::sleep(PAUSE).await;
    }
    let mut answers = Vec::new();
    for answer in open {
        answers.push(answer.await.unwrap_or_else(|error| Err(error.into())));
    }
    answers
}

/// Two of three requests are turns of conversations, of which an engine that had the turn before holds the most.
fn request(number: usize) -> (&'static str, String) {
    let stream = number.is_multiple_of(2);
    if number.is_multiple_of(3) {
        let messages = serde_json::json!([{ "role": "user", "content": "hello, how are you?" }]);
        let body = serde_json::json!({ "model": "tiny", "messages": messages, "max_tokens": 16, "stream": stream });
        return (CHATS, body.to_string());
    }
    let (conversation, turn) = (number % NUM_CONVERSATIONS, number / NUM_CONVERSATIONS % MAX_TURNS + 1);
    let prompt: Vec<usize> = (0..turn * TURN).map(|position| 1_000 * (conversation + 1) + position).collect();
    let body = serde_json::json!({ "model": "tiny", "prompt": prompt, "max_tokens": 16, "stream": stream });
    (COMPLETIONS, body.to_string())
}

fn is_whole(answer: &Answer) -> bool {
    let is_stream = answer.header("content-type").starts_with("text/event-stream");
    answer.status == 200 && (!is_stream || answer.body.ends_with(b"data: [DONE]\n\n"))
}
