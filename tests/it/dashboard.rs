//! The operator's page: self-contained, guarded, fed with true numbers, and bounded however many look at it.

use std::collections::BTreeMap;

use fathom_router::router::Router;
use fathom_router::sim::SimEngine;
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::Incoming;
use serde_json::Value;

use crate::support::{
    Answer, Client, Hold, RunningRouter, TemporaryFile, assert_all_succeeded, engine, eventually, fast_config, soon,
    start_router, whole,
};

/// The limit on pages, as documented.
const MAX_PAGES: usize = 32;

/// An open page.
struct Page {
    body: Incoming,
    unread: Vec<u8>,
}

impl Page {
    async fn open(url: &str, key: Option<&str>) -> Result<Self, Answer> {
        let mut request = Request::get(format!("{url}/dashboard/events"));
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let response = Client::new().send(request.body(String::new().into()).unwrap()).await;
        if response.status() != 200 {
            return Err(whole(response).await);
        }
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["cache-control"], "no-store");
        Ok(Self { body: response.into_body(), unread: Vec::new() })
    }

    /// Reads the next event as it came; `None` where the stream has ended.
    async fn event(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|window| window == b"\n\n") {
                let rest = self.unread.split_off(end + 2);
                return Some(std::mem::replace(&mut self.unread, rest));
            }
            let frame = soon("the page is fed", self.body.frame()).await?;
            self.unread.extend_from_slice(&frame.expect("a whole stream").into_data().unwrap());
        }
    }

    async fn frame(&mut self) -> Value {
        let event = self.event().await.expect("a frame");
        serde_json::from_slice(event.strip_prefix(b"data: ").expect("an event")).expect("JSON")
    }
}

async fn two_workers() -> (SimEngine, SimEngine, RunningRouter) {
    let (first, second) = (engine("a").await, engine("b").await);
    let router = RunningRouter::over(&[&first, &second]).await;
    router.wait_until_trusted(2).await;
    (first, second, router)
}

#[actix::test]
async fn the_page_holds_all_it_needs_and_may_do_nothing_else() {
    let router = start_router(Router::builder().config(fast_config(&[]))).await;
    let answer = Client::new().get(&format!("{}/dashboard", router.url)).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/html; charset=utf-8"));
    let policy = answer.header("content-security-policy").to_owned();
    for rule in ["default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'"] {
        assert!(policy.contains(rule), "{rule} in {policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"), "{policy}");
    let page = String::from_utf8(answer.body.to_vec()).unwrap();
    let without_names = page.replace("http://www.w3.org/2000/svg", "").replace("https?:", "");
    for outside in ["http:", "https:", "//cdn", "src=", "@import", "url(", "innerHTML", "document.write", "eval("] {
        assert!(!without_names.contains(outside), "the page has {outside}");
    }
    for (element, count) in [("<script", 1), ("<style", 1), ("<main", 1), ("aria-live=", 1), ("style=\"", 0)] {
        assert_eq!(page.matches(element).count(), count, "{element}");
    }
    router.stop().await;
}

#[actix::test]
async fn a_frame_has_every_worker_with_its_true_numbers_and_each_decision() {
    let (first, second, router) = two_workers().await;
    assert_all_succeeded(&router.chat_times(10).await);
    router.wait_until_idle().await;
    for engine in [&first, &second] {
        let is_idle = |worker: &Value| worker["load"]["ranks"][0]["running"] == 0;
        router.wait_until_shown(&engine.url(), "its engine says that it is idle", is_idle).await;
    }
    let held = Hold::decisions(&router, 3).await;
    let mut page = Page::open(&router.url, None).await.expect("a page");
    let frame = page.frame().await;
    let workers: BTreeMap<&str, &Value> =
        frame["workers"].as_array().unwrap().iter().map(|worker| (worker["url"].as_str().unwrap(), worker)).collect();
    assert_eq!(workers.len(), 2);
    for engine in [&first, &second] {
        let url = engine.url();
        let worker = workers[url.as_str()];
        assert_eq!((&worker["state"], &worker["trust"]), (&"serving".into(), &"trusted".into()));
        assert_eq!(worker["in_flight"], held.count_at(&url));
        assert_eq!(worker["models"][0], "tiny");
        let rank = &worker["ranks"][0];
        assert_eq!((&rank["running"], &rank["waiting"]), (&0.into(), &0.into()));
        assert!(rank["age_ms"].is_u64() && rank["capacity"].is_u64(), "{rank}");
    }
    let decisions = &frame["decisions"];
    assert_eq!((&decisions["num_ever"], &decisions["in_window"]), (&13.into(), &13.into()));
    let newest = &decisions["last"][0];
    assert_eq!(newest["id"], held.decisions[2].id.to_string());
    assert_eq!(newest["worker"], held.decisions[2].worker.id.to_string());
    assert_eq!(newest["reason"], held.decisions[2].reason);
    let ends = frame["ends"].as_array().unwrap();
    assert!(ends.contains(&serde_json::json!(["worker", "answered", 10])), "{ends:?}");
    drop(held);
    let later = page.frame().await;
    assert!(later["number"].as_u64() > frame["number"].as_u64());
    assert!(later["workers"].as_array().unwrap().iter().all(|worker| worker["in_flight"] == 0), "{later}");
    router.stop().await;
}

#[actix::test]
async fn the_stream_is_guarded_and_the_page_that_asks_for_the_key_is_not() {
    let admin = TemporaryFile::new("dashboard-admin", "sk-admin");
    let mut config = fast_config(&[]);
    config.access.admin_key_file = Some(admin.path().to_owned());
    let router = start_router(Router::builder().config(config)).await;
    assert_eq!(Client::new().get(&format!("{}/dashboard", router.url)).await.status, 200);
    for key in [None, Some("sk-wrong")] {
        let refused = Page::open(&router.url, key).await.err().expect("no stream");
        assert_eq!((refused.status, refused.header("x-fathom-error-code")), (401, "invalid_admin_key"));
    }
    let mut page = Page::open(&router.url, Some("sk-admin")).await.expect("a page");
    assert_eq!(page.frame().await["workers"], serde_json::json!([]));
    router.stop().await;

    let router = start_router(Router::builder().config(fast_config(&[]))).await;
    for path in ["/dashboard", "/dashboard/events"] {
        let request = Request::get(format!("{}{path}", router.url)).header("x-forwarded-for", "10.0.0.1");
        let answer = whole(Client::new().send(request.body(String::new().into()).unwrap()).await).await;
        assert_eq!((answer.status, answer.header("x-fathom-error-code")), (403, "admin_key_required"), "{path}");
    }
    router.stop().await;
}

#[actix::test]
async fn many_pages_share_one_frame_a_second_and_there_are_only_so_many() {
    let (_first, _second, router) = two_workers().await;
    let mut pages = Vec::new();
    for _ in 0..MAX_PAGES {
        pages.push(Page::open(&router.url, None).await.expect("a page"));
    }
    let refused = Page::open(&router.url, None).await.err().expect("no more pages");
    assert_eq!((refused.status, refused.header("x-fathom-error-code")), (503, "too_many_pages"));
    let mut by_number: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
    // The pages that are not read here are slow ones: nobody waits for them.
    for page in pages.iter_mut().take(MAX_PAGES / 2) {
        for _ in 0..2 {
            let event = page.event().await.expect("a frame");
            let frame: Value = serde_json::from_slice(event.strip_prefix(b"data: ").unwrap()).unwrap();
            by_number.entry(frame["number"].as_u64().unwrap()).or_default().push(event);
        }
    }
    assert!(by_number.len() <= 5, "{} frames were made for {} readings", by_number.len(), MAX_PAGES);
    for (number, events) in by_number {
        assert!(events.iter().all(|event| *event == events[0]), "frame {number} was made more than once");
    }
    pages.clear();
    eventually("a page that was closed makes room", || async { Page::open(&router.url, None).await.ok().map(drop) })
        .await;
    router.stop().await;
}
