//! What the router says of its fleet in three places at once.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use crate::support::{Client, Failure};

/// How long a statement may take to become true.
const PATIENCE: Duration = Duration::from_secs(20);

/// `/workers`, `/metrics` and a frame of the operator's page. Each question is asked of all places that can answer it, and answered
/// where they agree only.
pub(crate) struct Picture {
    workers: Vec<Value>,
    metrics: String,
    page: Value,
}

impl Picture {
    pub(crate) fn num_in(&self, state: &str) -> usize {
        let num_in = |workers: &[Value]| workers.iter().filter(|worker| worker["state"] == state).count();
        let (listed, on_page) = (num_in(&self.workers), self.page["workers"].as_array().map_or(0, |all| num_in(all)));
        let metric = self.metric(&format!("fathom_workers{{state=\"{state}\"}}"));
        // A number that none of them has.
        if listed == on_page && metric == Some(listed as f64) { listed } else { usize::MAX }
    }

    pub(crate) fn state(&self, url: &str) -> Option<&str> {
        agreed(self.listed(url)?["state"].as_str()?, self.on_page(url)?["state"].as_str()?)
    }

    pub(crate) fn is_trusted(&self, url: &str) -> bool {
        let metric = self.metric(&format!("fathom_worker_load_trusted{{worker=\"{url}\"}}"));
        let listed = self.listed(url).map(|worker| worker["load"]["trust"] == "trusted");
        let on_page = self.on_page(url).map(|worker| worker["trust"] == "trusted");
        metric == Some(1.0) && listed == Some(true) && on_page == Some(true)
    }

    pub(crate) fn in_flight(&self, url: &str) -> Option<u64> {
        let metric = self.metric(&format!("fathom_worker_in_flight{{worker=\"{url}\"}}"))?;
        let listed = agreed(self.listed(url)?["in_flight"].as_u64()?, self.on_page(url)?["in_flight"].as_u64()?)?;
        (metric == listed as f64).then_some(listed)
    }

    /// Requests in the engine's queues, as it reports them.
    pub(crate) fn depth(&self, url: &str) -> Option<u64> {
        let reported = |worker: &Value, ranks: &Value| {
            let rank = |rank: &Value| Some(rank["running"].as_u64()? + rank["waiting"].as_u64()?);
            worker.is_object().then(|| ranks.as_array()?.iter().map(rank).sum::<Option<u64>>())?
        };
        let (listed, on_page) = (self.listed(url)?, self.on_page(url)?);
        agreed(reported(listed, &listed["load"]["ranks"])?, reported(on_page, &on_page["ranks"])?)
    }

    pub(crate) fn bad_frames(&self, url: &str) -> Option<u64> {
        self.listed(url)?["load"]["bad_frames"].as_u64()
    }

    pub(crate) fn num_blocks(&self, url: &str) -> Option<u64> {
        agreed(self.listed(url)?["kv"]["blocks"].as_u64()?, self.on_page(url)?["kv_blocks"].as_u64()?)
    }

    pub(crate) fn is_on_fallback(&self) -> bool {
        self.metric("fathom_fleet_on_fallback") == Some(1.0) && self.page["is_on_fallback"] == true
    }

    pub(crate) fn is_gone(&self, url: &str) -> bool {
        self.listed(url).is_none() && self.on_page(url).is_none() && !self.metrics.contains(url)
    }

    pub(crate) fn num_answered(&self) -> Option<u64> {
        let metric = self.metric("fathom_client_requests_total{source=\"worker\",outcome=\"answered\"}")?;
        let of_page = |end: &Value| end[0] == "worker" && end[1] == "answered";
        let on_page = self.page["ends"].as_array()?.iter().find(|end| of_page(end))?[2].as_u64()?;
        (metric == on_page as f64).then_some(on_page)
    }

    fn listed(&self, url: &str) -> Option<&Value> {
        self.workers.iter().find(|worker| worker["url"] == url)
    }

    fn on_page(&self, url: &str) -> Option<&Value> {
        self.page["workers"].as_array()?.iter().find(|worker| worker["url"] == url)
    }

    fn metric(&self, series: &str) -> Option<f64> {
        let value = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
        self.metrics.lines().find_map(value)
    }
}

fn agreed<T: PartialEq>(one: T, other: T) -> Option<T> {
    (one == other).then_some(one)
}

/// Looks at all three places again and again.
pub(crate) struct Watch {
    pub(crate) client: Client,
    url: String,
    page: Page,
}

impl Watch {
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        let client = Client::new();
        let page = Page::open(client.clone(), format!("{url}/dashboard/events")).await?;
        Ok(Self { client, url: url.to_owned(), page })
    }

    /// Waits until a statement holds.
    pub(crate) async fn until(&mut self, statement: &str, is_true: impl Fn(&Picture) -> bool) -> Result<(), Failure> {
        let attempts = async {
            loop {
                let picture = self.look().await?;
                if is_true(&picture) {
                    return Ok::<_, Failure>(());
                }
            }
        };
        match tokio::time::timeout(PATIENCE, attempts).await {
            Ok(result) => result,
            Err(_) => {
                let picture = self.look().await?;
                println!("{}\n{}\n{}", Value::from(picture.workers), picture.page, picture.metrics);
                Err(format!("not true within {PATIENCE:?}: {statement}").into())
            }
        }
    }

    /// The next frame of the page, and what the other places say right then.
    async fn look(&mut self) -> Result<Picture, Failure> {
        let page = self.page.frame().await?;
        let workers = self.client.expect(200, "GET", &format!("{}/workers", self.url), "").await?;
        let metrics = self.client.expect(200, "GET", &format!("{}/metrics", self.url), "").await?;
        let mut workers: Value = serde_json::from_slice(&workers)?;
        let Value::Array(workers) = workers["workers"].take() else { return Err("no list of workers".into()) };
        Ok(Picture { workers, metrics: String::from_utf8(metrics.to_vec())?, page })
    }
}

/// The stream of server-sent events behind `/dashboard`, one a second.
struct Page {
    client: Client,
    url: String,
    body: Incoming,
    unread: Vec<u8>,
}

impl Page {
    async fn open(client: Client, url: String) -> Result<Self, Failure> {
        let body = client.open(&url).await?;
        Ok(Self { client, url, body, unread: Vec::new() })
    }

    async fn frame(&mut self) -> Result<Value, Failure> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|window| window == b"\n\n") {
                let rest = self.unread.split_off(end + 2);
                let event = std::mem::replace(&mut self.unread, rest);
                return Ok(serde_json::from_slice(event.strip_prefix(b"data: ").ok_or("no event")?)?);
            }
            match self.body.frame().await {
                Some(chunk) => self.unread.extend_from_slice(&chunk?.into_data().unwrap_or_else(|_| Bytes::new())),
                // As browsers do: a stream ends now and then, so that a router can stop.
                None => *self = Self::open(self.client.clone(), self.url.clone()).await?,
            }
        }
    }
}
