//! What the router shows of itself: its workers, its metrics, and that nothing of it is left.

use std::future::Future;
use std::time::Duration;

use fathom_router::logic::endpoint::{Endpoint, WorkerUrl};
use fathom_router::messages::EndpointsChanged;
use serde_json::Value;

use super::{Answer, Client, RunningRouter, chat_body, eventually};

impl RunningRouter {
    /// Returns what `GET /workers` shows.
    pub(crate) async fn shown_workers(&self) -> Vec<Value> {
        let answer = Client::new().get(&format!("{}/workers", self.url)).await;
        answer.json()["workers"].as_array().expect("a list of workers").clone()
    }

    /// Returns what `GET /workers` shows of the worker at the URL; null where there is none.
    pub(crate) async fn shown(&self, url: &str) -> Value {
        self.shown_workers().await.into_iter().find(|worker| worker["url"] == url).unwrap_or_default()
    }

    /// Waits until `GET /workers` shows the worker as `check` wants it, and returns that.
    pub(crate) async fn wait_until_shown(&self, url: &str, sentence: &str, check: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{url}: {sentence}"), || async { Some(self.shown(url).await).filter(&check) }).await
    }

    /// Returns the exposition of the metrics.
    pub(crate) async fn metrics(&self) -> String {
        let answer = Client::new().get(&format!("{}/metrics", self.url)).await;
        String::from_utf8(answer.body.to_vec()).unwrap()
    }

    /// Waits until the series has at least this value.
    pub(crate) async fn wait_for_metric(&self, series: &str, at_least: f64) {
        eventually(&format!("{series} is at least {at_least}"), || async {
            self.metric(series).await.filter(|value| *value >= at_least)
        })
        .await;
    }

    /// Waits until the series has exactly this value.
    pub(crate) async fn wait_until_metric_is(&self, series: &str, wanted: f64) {
        eventually(&format!("{series} is {wanted}"), || async {
            self.metric(series).await.filter(|value| *value == wanted)
        })
        .await;
    }

    /// Sends one small chat request for the model that simulated engines serve.
    pub(crate) async fn chat(&self) -> Answer {
        Client::new().post(&format!("{}/v1/chat/completions", self.url), chat_body(1, false)).await
    }

    /// Sends one small chat request for the model.
    pub(crate) async fn chat_with(&self, model: &str) -> Answer {
        let body = serde_json::json!({"model": model, "messages": [], "max_tokens": 1}).to_string();
        Client::new().post(&format!("{}/v1/chat/completions", self.url), body).await
    }

    /// Sends so many small chat requests, one after the other.
    pub(crate) async fn chat_times(&self, count: usize) -> Vec<Answer> {
        let client = Client::new();
        let mut answers = Vec::new();
        for _ in 0..count {
            answers.push(client.post(&format!("{}/v1/chat/completions", self.url), chat_body(1, false)).await);
        }
        answers
    }

    /// Tells the router the full set of a source.
    pub(crate) async fn announce(&self, source: &str, urls: &[&str]) {
        let endpoints = urls.iter().map(|url| Endpoint::new(WorkerUrl::parse(url).unwrap())).collect();
        self.wants(source, endpoints).await;
    }

    /// Tells the router the full set of endpoints of a source.
    pub(crate) async fn wants(&self, source: &str, endpoints: Vec<Endpoint>) {
        self.handle.endpoints().send(EndpointsChanged { source: source.into(), endpoints }).await.expect("a registry");
    }

    /// Stops the router and checks that no actor of it is left.
    pub(crate) async fn stop_and_check(self) {
        let (registry, selector) = (self.handle.endpoints(), self.handle.selector());
        self.stop().await;
        eventually("no actor of the router is left", || async {
            (!registry.connected() && !selector.connected()).then_some(())
        })
        .await;
    }
}

/// Asserts that every answer is a success.
pub(crate) fn assert_all_succeeded(answers: &[Answer]) {
    for (number, answer) in answers.iter().enumerate() {
        assert_eq!(answer.status, 200, "answer {number}: {}", String::from_utf8_lossy(&answer.body));
    }
}

/// Awaits something that must come by itself, and fails with the sentence if it does not.
pub(crate) async fn within_reason<T>(sentence: &str, awaited: impl Future<Output = T>) -> T {
    match actix::clock::timeout(Duration::from_secs(20), awaited).await {
        Ok(value) => value,
        Err(_) => panic!("this never happened: {sentence}"),
    }
}

pub(crate) fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}
