//! A router with a server in front, and the engines behind it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::{App, HttpServer};
use fathom_router::config::{RouterConfig, ServerConfig};
use fathom_router::logic::endpoint::{Endpoint, WorkerUrl};
use fathom_router::logic::health::WorkerState;
use fathom_router::logic::snapshot::WorkerSnapshot;
use fathom_router::messages::{FleetMember, Outcome};
use fathom_router::router::{Router, RouterBuilder, RouterHandle};
use fathom_router::server::listen;
use fathom_router::sim::{SimConfig, SimEngine};
use fathom_router::telemetry::Kind;

use super::{Answer, Client, eventually};

/// A router that serves on a loopback port of its own.
pub(crate) struct RunningRouter {
    pub(crate) handle: RouterHandle,
    pub(crate) url: String,
    server: ServerHandle,
}

/// Short pauses, so that tests wait for events and not for intervals. Windows that a test is about are set by the test.
pub(crate) fn fast_config(engine_urls: &[String]) -> RouterConfig {
    let mut config = RouterConfig::default();
    config.workers = engine_urls.iter().map(|url| Endpoint::new(WorkerUrl::parse(url).unwrap())).collect();
    config.introspection.pending_interval = Duration::from_millis(100);
    config.load.ramp_up = Duration::ZERO;
    config.http.expose_decision = true;
    config.drain_timeout = Duration::from_secs(5);
    config.seed = Some(7);
    // Five milliseconds are a promise about a machine that is not running other builds.
    config.round_deadline = Duration::from_millis(500);
    config
}

/// Starts the router and a server with two HTTP threads.
pub(crate) async fn start_router(builder: RouterBuilder) -> RunningRouter {
    let handle = builder.start().await.expect("a router");
    let routes = handle.configure();
    let server = HttpServer::new(move || App::new().configure(routes.clone()))
        .workers(2)
        .h1_allow_half_closed(false)
        .tcp_nodelay(true)
        .disable_signals()
        .bind(("127.0.0.1", 0))
        .expect("a free port");
    let url = format!("http://{}", server.addrs()[0]);
    let server = server.run();
    let server_handle = server.handle();
    actix::spawn(server);
    RunningRouter { handle, url, server: server_handle }
}

/// Starts the router behind the binary's own listener, on a port that the system gives.
pub(crate) async fn start_listening(builder: RouterBuilder, mut config: ServerConfig) -> RunningRouter {
    (config.port, config.http_threads) = (0, 1);
    let handle = builder.start().await.expect("a router");
    let listener = listen(&handle, &config).expect("a listener");
    let url = format!("{}://{}", listener.scheme, listener.addresses[0]);
    let server = listener.server.handle();
    actix::spawn(listener.server);
    RunningRouter { handle, url, server }
}

impl RunningRouter {
    /// Starts a router over the engines, waits until they all serve.
    pub(crate) async fn over(engines: &[&SimEngine]) -> Self {
        let urls: Vec<String> = engines.iter().map(|engine| engine.url()).collect();
        Self::with(fast_config(&urls)).await
    }

    /// Starts a router with this configuration, waits until all its workers serve.
    pub(crate) async fn with(config: RouterConfig) -> Self {
        let num_workers = config.workers.len();
        let router = start_router(Router::builder().config(config)).await;
        router.wait_until_serving(num_workers).await;
        router
    }

    /// Waits until so many workers take traffic.
    pub(crate) async fn wait_until_serving(&self, num_workers: usize) {
        eventually(&format!("{num_workers} workers serve"), || async {
            let serving = self.fleet().await.into_iter().filter(|worker| worker.state == WorkerState::Serving);
            (serving.count() == num_workers).then_some(())
        })
        .await;
    }

    /// Waits until the load of so many workers is trusted at a freshness of five seconds.
    pub(crate) async fn wait_until_trusted(&self, num_workers: usize) {
        eventually(&format!("{num_workers} workers are trusted"), || async {
            let now = fathom_router::clock::now();
            let trusted = self
                .fleet()
                .await
                .into_iter()
                .filter(|worker| worker.load.trust(now, Duration::from_secs(5)).is_trusted());
            (trusted.count() == num_workers).then_some(())
        })
        .await;
    }

    /// Returns the snapshots of all workers that answered.
    pub(crate) async fn fleet(&self) -> Vec<Arc<WorkerSnapshot>> {
        self.members().await.into_iter().filter_map(|member| member.snapshot).collect()
    }

    pub(crate) async fn members(&self) -> Vec<FleetMember> {
        self.handle.fleet().await
    }

    /// Returns the snapshot of the worker at the URL.
    pub(crate) async fn worker(&self, url: &str) -> Option<Arc<WorkerSnapshot>> {
        self.fleet().await.into_iter().find(|worker| worker.url.as_str() == url)
    }

    /// Waits until no worker has a request in flight.
    pub(crate) async fn wait_until_idle(&self) {
        eventually("no request is in flight", || async {
            self.fleet().await.iter().all(|worker| worker.in_flight == 0).then_some(())
        })
        .await;
    }

    /// Returns the value of a metric series, written as in the exposition.
    pub(crate) async fn metric(&self, series: &str) -> Option<f64> {
        let text = Client::new().get(&format!("{}/metrics", self.url)).await.body;
        let text = String::from_utf8(text.to_vec()).unwrap();
        text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    /// Returns how many requests have ended at workers with the outcome.
    pub(crate) fn num_ended(&self, outcome: Outcome) -> u64 {
        self.handle.telemetry().requests.get_or_create(&Kind { kind: outcome.name() }).get()
    }

    /// Waits until so many requests have ended with the outcome.
    pub(crate) async fn wait_until_ended(&self, outcome: Outcome, num_requests: u64) {
        eventually(&format!("{num_requests} requests have ended as {}", outcome.name()), || async {
            (self.num_ended(outcome) == num_requests).then_some(())
        })
        .await;
    }

    /// Waits until the server handles so many requests.
    pub(crate) async fn wait_until_open(&self, num_requests: i64) {
        eventually(&format!("{num_requests} requests are open"), || async {
            (self.handle.telemetry().open_requests.get() == num_requests).then_some(())
        })
        .await;
    }

    /// Ends the server with all its connections; the router behind it goes on.
    pub(crate) async fn stop_server(&self) {
        self.server.stop(false).await;
    }

    /// Stops server and router.
    pub(crate) async fn stop(self) {
        self.server.stop(false).await;
        self.handle.stop().await;
    }
}

/// Starts an engine of that name.
pub(crate) async fn engine(name: &str) -> SimEngine {
    SimEngine::start(SimConfig { name: name.to_owned(), ..SimConfig::default() }).await.expect("an engine")
}

/// Counts which engines gave the answers.
pub(crate) fn names_of(answers: &[Answer]) -> BTreeMap<String, usize> {
    let mut names = BTreeMap::new();
    for answer in answers {
        *names.entry(answer.header("x-sim-engine").to_owned()).or_insert(0) += 1;
    }
    names
}
