//! Load that stays until a test lets it go: decisions that are not acted on, and streams that are not read.

use std::collections::BTreeMap;

use fathom_router::RequestFacts;
use fathom_router::messages::{Decision, SelectWorker};
use futures::future::join_all;
use tokio::task::JoinHandle;

use super::{Client, RunningRouter, chat_body};

/// Decisions whose places at their workers are held until the drop.
pub(crate) struct Hold {
    pub(crate) decisions: Vec<Decision>,
}

impl Hold {
    /// Asks for so many decisions, one after the other.
    pub(crate) async fn decisions(router: &RunningRouter, count: usize) -> Self {
        let mut decisions = Vec::new();
        for _ in 0..count {
            decisions.push(select(router).await);
        }
        Self { decisions }
    }

    /// Asks for so many decisions at once.
    pub(crate) async fn decisions_at_once(router: &RunningRouter, count: usize) -> Self {
        Self { decisions: join_all((0..count).map(|_| select(router))).await }
    }

    /// Returns where the requests would go, in order.
    pub(crate) fn urls(&self) -> Vec<&str> {
        self.decisions.iter().map(|decision| decision.worker.url.as_str()).collect()
    }

    /// Returns how many there are per worker.
    pub(crate) fn counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for url in self.urls() {
            *counts.entry(url).or_insert(0) += 1;
        }
        counts
    }

    /// Returns how many are held at the worker.
    pub(crate) fn count_at(&self, url: &str) -> usize {
        self.counts().get(url).copied().unwrap_or(0)
    }
}

async fn select(router: &RunningRouter) -> Decision {
    let asked = router.handle.selector().send(SelectWorker { request: RequestFacts::default() }).await;
    asked.expect("a selector").expect("a worker")
}

/// Long streams that nobody reads. Dropping them ends them.
pub(crate) struct Streams {
    tasks: Vec<JoinHandle<()>>,
}

impl Streams {
    /// Opens so many at the URL, without waiting until they have begun.
    pub(crate) fn open(url: &str, count: usize) -> Self {
        let client = Client::new();
        let url = format!("{url}/v1/chat/completions");
        let body = chat_body(100_000, true);
        let open = |_| {
            let (client, url, body) = (client.clone(), url.clone(), body.clone());
            actix::spawn(async move {
                let _unread = client.open(&url, body).await;
                std::future::pending().await
            })
        };
        Self { tasks: (0..count).map(open).collect() }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
