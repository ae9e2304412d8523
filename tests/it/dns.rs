//! Workers that names stand for, with a name service of the test's own.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fathom_router::logic::dns_set::DnsName;
use fathom_router::router::Router;
use fathom_router::sim::SimEngine;
use serde_json::json;

use crate::support::{RunningRouter, engine, eventually, fast_config, start_router};

/// What the name service says next; `None` where it fails.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<Option<Vec<IpAddr>>>>);

impl Names {
    fn say(&self, addresses: Option<&[&str]>) {
        let parse = |text: &&str| text.parse().expect("an address");
        *self.0.lock().unwrap() = addresses.map(|addresses| addresses.iter().map(parse).collect());
    }

    async fn router(&self, names: Vec<DnsName>) -> RunningRouter {
        let mut config = fast_config(&[]);
        config.discovery.dns_names = names;
        config.discovery.dns_interval = Duration::from_secs(1);
        let says = self.0.clone();
        let resolver = move |_: &DnsName| -> fathom_router::actors::Lookup {
            let answer = says.lock().unwrap().clone().ok_or_else(|| io::Error::other("the name service is away"));
            Box::pin(async move { answer })
        };
        start_router(Router::builder().config(config).resolver(resolver)).await
    }
}

fn name_of(engine: &SimEngine) -> DnsName {
    DnsName::parse(&format!("engines.test:{}", engine.port())).expect("a name")
}

fn kind(kind: &str) -> String {
    format!("fathom_discovery_updates_total{{kind=\"dns_{kind}\"}}")
}

#[actix::test]
async fn a_name_is_followed_and_a_name_service_that_is_away_or_empty_for_a_moment_takes_nobody_away() {
    let engine = engine("named").await;
    let names = Names::default();
    let router = names.router(vec![name_of(&engine)]).await;
    router.wait_for_metric(&kind("failed"), 1.0).await;
    assert!(router.shown_workers().await.is_empty());

    names.say(Some(&["127.0.0.1", "169.254.169.254", "::1"]));
    router.wait_until_serving(1).await;
    assert_eq!(router.shown_workers().await.len(), 1, "one family, and no metadata service");
    let shown = router.shown(&engine.url()).await;
    assert_eq!(shown["sources"], json!(["dns"]));
    assert_eq!(router.chat().await.header("x-sim-engine"), "named");
    let host = engine.stats().recent.pop().expect("a request").header("host").map(<[u8]>::to_vec);
    assert_eq!(host, Some(engine.address().to_string().into_bytes()), "the worker is called by its address");

    let failed = router.metric(&kind("failed")).await.expect("a count");
    names.say(None);
    router.wait_for_metric(&kind("failed"), failed + 3.0).await;
    assert_eq!(router.shown(&engine.url()).await["id"], shown["id"]);

    names.say(Some(&[]));
    router.wait_for_metric(&kind("empty"), 1.0).await;
    assert_eq!(router.shown(&engine.url()).await["id"], shown["id"]);
    eventually("it is gone", || async { router.shown_workers().await.is_empty().then_some(()) }).await;
    assert_eq!(router.metric(&kind("empty")).await, Some(2.0), "the third empty answer in a row counts");
    router.stop_and_check().await;
}

#[actix::test]
async fn the_name_service_of_the_system_is_asked_by_default() {
    let engine = engine("local").await;
    let mut config = fast_config(&[]);
    config.discovery.dns_names = vec![DnsName::parse(&format!("localhost:{}", engine.port())).expect("a name")];
    let router = start_router(Router::builder().config(config)).await;
    router.wait_until_serving(1).await;
    assert_eq!(router.shown(&engine.url()).await["sources"], json!(["dns"]));
    router.stop_and_check().await;
}
