//! The composition root: which actors there are, how they are wired, in which order they start and stop.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix::prelude::{Actor, Addr, Arbiter, ArbiterHandle, AsyncContext, Context, Recipient};
use actix_web::web::ServiceConfig;

use crate::actors::{
    AdminDiscovery, AdminPorts, DnsDiscovery, FileDiscovery, FirstLook, LoadPolling, Lookup, Observers, RegistryActor,
    RegistrySettings, Resolver, SelectorActor, SelectorSettings, SetSelector, StaticDiscovery, WorkerContext,
    WorkerFactory, WorkerSettings, system_resolver,
};
use crate::clock;
use crate::config::{
    ConfigError, DiscoverySettings, LoadPollingMode, PolicyKind, RouterConfig, process_environment, read_admin_workers,
};
use crate::error::{ReconfigureError, StartError};
use crate::http::{Access, EdgePorts, Gate, add_metrics_routes, add_routes};
use crate::logic::admin_set::AdminWorker;
use crate::logic::dns_set::DnsName;
use crate::logic::endpoint::Endpoint;
use crate::logic::ids::WorkerId;
use crate::logic::policy::Policy;
use crate::logic::price::PriceRules;
use crate::logic::rank_choice::RankRules;
use crate::logic::rng::Rng;
use crate::logic::rooms::OpenRooms;
use crate::logic::variant_board::VariantBoard;
use crate::messages::{
    ChangeWorkers, EndpointsChanged, FleetMember, RouterEvent, SelectWorker, ShowFleet, Shutdown, WorkerPorts,
};
use crate::prompt::Prompts;
use crate::telemetry::Telemetry;
use crate::upstream::EngineClient;

#[cfg_attr(not(feature = "kubernetes"), path = "router/no_kubernetes.rs")]
mod kubernetes;
#[cfg_attr(not(feature = "otel"), path = "router/no_otel.rs")]
mod otel;
mod ports;

pub use ports::SelectorPorts;
use ports::SpanPorts;

/// How often a draining router looks whether its requests have ended.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// How long the registry may take to stop its workers.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// How long an engine may take to tell its load, at most; a late answer would be too old to be used.
const MAX_POLL_TIMEOUT: Duration = Duration::from_secs(10);

type DiscoveryStart = Box<dyn FnOnce(Recipient<EndpointsChanged>) + Send>;

/// Entry point: [`Router::builder`].
#[derive(Debug)]
pub struct Router;

impl Router {
    /// Returns a builder with the default configuration.
    pub fn builder() -> RouterBuilder {
        RouterBuilder::default()
    }
}

/// Collects what a router is made of, and starts it.
#[derive(Default)]
pub struct RouterBuilder {
    config: RouterConfig,
    policy: Option<Arc<dyn Policy>>,
    selector: Option<SelectorPorts>,
    worker_factory: Option<WorkerFactory>,
    discovery: Vec<DiscoveryStart>,
    resolver: Option<Resolver>,
    observers: Vec<Recipient<RouterEvent>>,
}

impl fmt::Debug for RouterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouterBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl RouterBuilder {
    /// Sets the configuration. Its workers become the first discovery source.
    #[must_use]
    pub fn config(mut self, config: RouterConfig) -> Self {
        self.config = config;
        self
    }

    /// Uses a policy of your own in place of the configured one.
    #[must_use]
    pub fn policy(mut self, policy: impl Policy + 'static) -> Self {
        self.policy = Some(Arc::new(policy));
        self
    }

    /// Uses an actor of your own in place of the built-in selector.
    #[must_use]
    pub fn selector(mut self, ports: SelectorPorts) -> Self {
        self.selector = Some(ports);
        self
    }

    /// Builds workers by a function of your own, called on the registry's thread.
    #[must_use]
    pub fn worker_factory(
        mut self,
        factory: impl Fn(WorkerId, &Endpoint, WorkerContext) -> WorkerPorts + Send + Sync + 'static,
    ) -> Self {
        self.worker_factory = Some(Arc::new(factory));
        self
    }

    /// Adds a discovery source: `start` is called on the router's thread with the recipient to which the source sends its full
    /// sets. An actor that it starts there lives until the router stops.
    #[must_use]
    pub fn discovery(mut self, start: impl FnOnce(Recipient<EndpointsChanged>) + Send + 'static) -> Self {
        self.discovery.push(Box::new(start));
        self
    }

    /// Looks the names of `dns_names` up by a function of your own, in place of the operating system's. It must not block.
    #[must_use]
    pub fn resolver(mut self, resolver: impl Fn(&DnsName) -> Lookup + Send + Sync + 'static) -> Self {
        self.resolver = Some(Arc::new(resolver));
        self
    }

    /// Sends what happens to an observer, as long as it has room. The router keeps the observer alive; one that has seen enough
    /// stops itself.
    #[must_use]
    pub fn subscribe(mut self, observer: Recipient<RouterEvent>) -> Self {
        self.observers.push(observer);
        self
    }

    /// Starts the actors on a thread of their own. Must be called inside an actix system.
    ///
    /// # Errors
    /// Where the configuration is refused, or an actor ended before it had started.
    pub async fn start(self) -> Result<RouterHandle, StartError> {
        self.config.check()?;
        let access = Access::open(&self.config.access)?;
        let files = WorkerFiles::read(&self.config.discovery)?;
        let telemetry = Telemetry::new();
        let variants = VariantBoard::default();
        let observers = Observers::new(self.observers);
        let seed = self.config.seed.unwrap_or_else(clock::start_seed);
        note_start(&self.config, seed);
        let arbiter = Arbiter::new();
        let registry = start_registry(&arbiter, &self.config, self.worker_factory, &observers, &telemetry, &variants);
        // A selector of the embedder's own may look at everything.
        let wants_prompts = Arc::new(AtomicBool::new(true));
        let policy_name = Arc::new(Mutex::new("custom_selector"));
        let mut settings_port = None;
        let own_policy = self.policy.clone();
        let selector = if let Some(ports) = self.selector {
            ports
        } else {
            let settings = selector_settings(&self.config, own_policy.as_ref(), seed);
            wants_prompts.store(settings.wants_prompts(), Ordering::Relaxed);
            *policy_name.lock().unwrap_or_else(PoisonError::into_inner) = settings.policy.name();
            let selector = start_selector(&arbiter, settings, &registry, &observers, &telemetry);
            settings_port = Some(selector.clone().recipient());
            SelectorPorts::new(selector.clone().recipient()).with_workers(selector.recipient())
        };
        if let Some(workers_changed) = selector.workers_changed {
            registry.send(SetSelector(workers_changed)).await.map_err(|_| StartError::Actor("registry"))?;
        }
        start_discovery(&arbiter, self.config.workers.clone(), self.discovery, &registry);
        start_names(&arbiter, &self.config.discovery, self.resolver, seed, &registry, &telemetry);
        start_load_polling(&arbiter, &self.config, &registry, &telemetry);
        let change_workers = start_files(&arbiter, &self.config.discovery, files, &registry, &telemetry);
        let kubernetes = match &self.config.kubernetes {
            Some(settings) => Some(kubernetes::start(settings, &registry, &telemetry, seed).await?),
            None => None,
        };
        let spans = otel::start(self.config.otlp_endpoint.as_deref(), &telemetry)?;
        let ports = EdgePorts {
            tracer: spans.as_ref().map(SpanPorts::tracer),
            selector: selector.select,
            fleet: registry.clone().recipient(),
            change_workers,
            gate: Arc::new(Gate::new(self.config.http.max_concurrent_requests, telemetry.open_requests.clone())),
            telemetry,
            settings: self.config.http,
            access,
            freshness: self.config.load.freshness,
            stream_idle_timeout: self.config.upstream.stream_idle_timeout,
            wants_prompts,
            prompts: Prompts::start(self.config.prompts.clone(), clock::wall_now),
            variants,
            retry_budget: Arc::default(),
            rooms: OpenRooms::default(),
            policy: policy_name,
            board: Arc::default(),
        };
        let reload = Reload { selector: settings_port, own_policy, seed };
        let arbiters = std::iter::once(arbiter.handle()).chain(kubernetes).collect();
        Ok(RouterHandle { config: Arc::new(self.config), ports, registry, reload, spans, arbiters })
    }
}

fn note_start(config: &RouterConfig, seed: u64) {
    let (policy, num_workers) = (config.policy.name(), config.workers.len());
    tracing::info!(seed, policy, num_workers, "router starts");
}

/// What is read before anything is started, so that a bad file leaves nothing behind.
struct WorkerFiles {
    added: Vec<AdminWorker>,
    listed: Option<FirstLook>,
}

impl WorkerFiles {
    fn read(settings: &DiscoverySettings) -> Result<Self, ConfigError> {
        let added = match &settings.admin_workers_file {
            Some(path) => read_admin_workers(path, &process_environment)?,
            None => Vec::new(),
        };
        let listed = settings.workers_file.as_deref().map(FirstLook::new).transpose()?;
        Ok(Self { added, listed })
    }
}

fn start_registry(
    arbiter: &Arbiter,
    config: &RouterConfig,
    worker_factory: Option<WorkerFactory>,
    observers: &Observers,
    telemetry: &Telemetry,
    variants: &VariantBoard,
) -> Addr<RegistryActor> {
    let settings = RegistrySettings {
        introspection: config.introspection,
        probes: config.probes.clone(),
        upstream: config.upstream.clone(),
        round_deadline: config.round_deadline,
        worker_factory: worker_factory.unwrap_or_else(RegistrySettings::built_in_workers),
    };
    let worker_settings = WorkerSettings { load: config.load, kv: config.kv, health: config.health };
    let (observers, telemetry, variants) = (observers.clone(), telemetry.clone(), variants.clone());
    RegistryActor::start_in_arbiter(&arbiter.handle(), move |ctx: &mut Context<RegistryActor>| {
        let context = WorkerContext::new(worker_settings, ctx.address().recipient(), observers, telemetry, variants);
        RegistryActor::new(settings, context)
    })
}

fn selector_settings(config: &RouterConfig, own_policy: Option<&Arc<dyn Policy>>, seed: u64) -> SelectorSettings {
    let policy = own_policy.cloned().unwrap_or_else(|| config.policy.build(config.cache_aware));
    let leg =
        |kind: Option<PolicyKind>| kind.map_or_else(|| Arc::clone(&policy), |kind| kind.build(config.cache_aware));
    SelectorSettings {
        price: PriceRules { basis: config.basis, freshness: config.load.freshness, ramp_up: config.load.ramp_up },
        prefill_policy: leg(config.prefill_policy),
        decode_policy: leg(config.decode_policy),
        policy,
        caps: config.caps,
        ranks: RankRules { freshness: config.load.freshness, cache: config.cache_aware },
        queue: config.queue,
        round_deadline: config.round_deadline,
        seed,
    }
}

fn start_selector(
    arbiter: &Arbiter,
    settings: SelectorSettings,
    registry: &Addr<RegistryActor>,
    observers: &Observers,
    telemetry: &Telemetry,
) -> Addr<SelectorActor> {
    let (registry, observers, telemetry) = (registry.clone().recipient(), observers.clone(), telemetry.clone());
    SelectorActor::start_in_arbiter(&arbiter.handle(), move |_| {
        SelectorActor::new(settings, registry, observers, telemetry)
    })
}

fn start_discovery(
    arbiter: &Arbiter,
    workers: Vec<Endpoint>,
    sources: Vec<DiscoveryStart>,
    registry: &Addr<RegistryActor>,
) {
    let recipient: Recipient<EndpointsChanged> = registry.clone().recipient();
    arbiter.spawn_fn(move || {
        StaticDiscovery::new(workers, recipient.clone()).start();
        for start in sources {
            start(recipient.clone());
        }
    });
}

fn start_names(
    arbiter: &Arbiter,
    settings: &DiscoverySettings,
    resolver: Option<Resolver>,
    seed: u64,
    registry: &Addr<RegistryActor>,
    telemetry: &Telemetry,
) {
    if settings.dns_names.is_empty() {
        return;
    }
    let resolver = resolver.unwrap_or_else(system_resolver);
    let (names, interval, rng) = (settings.dns_names.clone(), settings.dns_interval, Rng::from_seed(seed));
    let source = DnsDiscovery::new(names, interval, resolver, rng, registry.clone().recipient(), telemetry.clone());
    DnsDiscovery::start_in_arbiter(&arbiter.handle(), move |_| source);
}

fn start_load_polling(arbiter: &Arbiter, config: &RouterConfig, registry: &Addr<RegistryActor>, telemetry: &Telemetry) {
    if config.load_polling.mode == LoadPollingMode::Off {
        return;
    }
    let (interval, timeout) = (config.load_polling.interval, config.load.freshness.min(MAX_POLL_TIMEOUT));
    let (fleet, upstream, telemetry) = (registry.clone().recipient(), config.upstream.clone(), telemetry.clone());
    LoadPolling::start_in_arbiter(&arbiter.handle(), move |_| {
        LoadPolling::new(interval, timeout, fleet, EngineClient::new(&upstream), telemetry)
    });
}

/// The sources that are kept in files: what is listed there, and what the operator adds.
fn start_files(
    arbiter: &Arbiter,
    settings: &DiscoverySettings,
    files: WorkerFiles,
    registry: &Addr<RegistryActor>,
    telemetry: &Telemetry,
) -> Recipient<ChangeWorkers> {
    if let Some(listed) = files.listed {
        let source = FileDiscovery::new(listed, registry.clone().recipient(), telemetry.clone());
        FileDiscovery::start_in_arbiter(&arbiter.handle(), move |_| source);
    }
    let registry = AdminPorts {
        endpoints: registry.clone().recipient(),
        hold: registry.clone().recipient(),
        fleet: registry.clone().recipient(),
    };
    let source = AdminDiscovery::new(files.added, settings.admin_workers_file.clone(), registry);
    AdminDiscovery::start_in_arbiter(&arbiter.handle(), move |_| source).recipient()
}

/// A running router. Cheap to clone; the router runs until [`RouterHandle::stop`].
#[derive(Clone)]
pub struct RouterHandle {
    config: Arc<RouterConfig>,
    ports: EdgePorts,
    registry: Addr<RegistryActor>,
    reload: Reload,
    spans: Option<SpanPorts>,
    /// The router's own, and that of a source that must not delay it.
    arbiters: Arc<[ArbiterHandle]>,
}

/// Where a changed configuration goes.
#[derive(Clone)]
struct Reload {
    /// `None` with a selector of the embedder's own.
    selector: Option<Recipient<SelectorSettings>>,
    own_policy: Option<Arc<dyn Policy>>,
    seed: u64,
}

impl fmt::Debug for RouterHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouterHandle").field("config", &self.config).finish_non_exhaustive()
    }
}

impl RouterHandle {
    /// Returns what `App::configure` takes: it adds the router's routes at that scope. Each HTTP thread that runs it gets an
    /// engine client of its own.
    ///
    /// The server must be built with `h1_allow_half_closed(false)`, so that a client that leaves ends the engine's work at once,
    /// and with `tcp_nodelay(true)`, so that the first chunk of a stream leaves at once.
    pub fn configure(&self) -> impl Fn(&mut ServiceConfig) + Clone + Send + 'static {
        let (ports, upstream) = (self.ports.clone(), self.config.upstream.clone());
        move |services: &mut ServiceConfig| add_routes(services, ports.clone(), EngineClient::new(&upstream))
    }

    /// Returns what `App::configure` takes to serve `/metrics`, `/healthz`, `/readyz` and `/health` only, for a listener of their own.
    pub fn configure_metrics(&self) -> impl Fn(&mut ServiceConfig) + Clone + Send + 'static {
        let (ports, upstream) = (self.ports.clone(), self.config.upstream.clone());
        move |services: &mut ServiceConfig| add_metrics_routes(services, ports.clone(), EngineClient::new(&upstream))
    }

    /// Returns where to send full sets of endpoints under a source name of your own.
    pub fn endpoints(&self) -> Recipient<EndpointsChanged> {
        self.registry.clone().recipient()
    }

    /// Obeys another configuration from now on: its workers in place of the configured ones, and what decides (`policy` and
    /// `cache_aware`, unless the policy is your own, `basis`, `caps`, `queue`, `round_deadline`). Workers that are in both go on
    /// with all they know.
    ///
    /// # Errors
    /// Changes nothing and says why, where the configuration is refused or differs from that of the start in anything else.
    pub async fn reconfigure(&self, config: RouterConfig) -> Result<(), ReconfigureError> {
        config.check()?;
        if !self.config.differs_only_in_what_can_change(&config) {
            return Err(ReconfigureError::NeedsRestart);
        }
        let settings = selector_settings(&config, self.reload.own_policy.as_ref(), self.reload.seed);
        let (wants_prompts, policy_name) = (settings.wants_prompts(), settings.policy.name());
        if let Some(selector) = &self.reload.selector {
            selector.send(settings).await.map_err(|_| ReconfigureError::Stopped)?;
            self.ports.wants_prompts.store(wants_prompts, Ordering::Relaxed);
            *self.ports.policy.lock().unwrap_or_else(PoisonError::into_inner) = policy_name;
        }
        let workers = StaticDiscovery::set(config.workers);
        self.registry.send(workers).await.map_err(|_| ReconfigureError::Stopped)
    }

    /// Returns where to ask for decisions without the HTTP edge.
    pub fn selector(&self) -> Recipient<SelectWorker> {
        self.ports.selector.clone()
    }

    /// Returns the fleet, frozen now. Empty where the router has stopped.
    pub async fn fleet(&self) -> Vec<FleetMember> {
        self.registry.send(ShowFleet).await.unwrap_or_default()
    }

    /// Returns the router's counters.
    pub fn telemetry(&self) -> &Telemetry {
        &self.ports.telemetry
    }

    /// Returns how long a client may stand still in the middle of a request.
    pub(crate) fn client_timeout(&self) -> Duration {
        self.config.http.client_timeout
    }

    /// Returns how long new requests are still taken after [`RouterHandle::leave`].
    pub(crate) fn drain_delay(&self) -> Duration {
        self.config.drain_delay
    }

    /// Returns how many requests may be open, as it was set at start.
    pub(crate) fn max_concurrent_requests(&self) -> usize {
        self.config.http.max_concurrent_requests
    }

    /// Returns how many requests are open.
    pub fn num_open_requests(&self) -> usize {
        self.ports.gate.num_open()
    }

    /// Lets balancers know that the router is about to stop: `/readyz` answers 503 from now on. Requests are served as before.
    pub fn leave(&self) {
        self.ports.gate.leave();
    }

    /// Lets no new request in: `/readyz` answers 503 and forwarded paths answer 503 from now on, and each answer closes its
    /// connection.
    pub fn drain(&self) {
        self.ports.gate.drain();
    }

    /// Drains, and waits for open requests until the drain timeout. Returns whether all of them ended.
    pub async fn drained(&self) -> bool {
        self.drain();
        let deadline = clock::now() + self.config.drain_timeout;
        while self.num_open_requests() > 0 && clock::now() < deadline {
            tokio::time::sleep(DRAIN_POLL).await;
        }
        let num_cut = self.num_open_requests();
        if num_cut > 0 {
            tracing::warn!(num_cut, "requests still run at the end of the drain timeout");
        }
        num_cut == 0
    }

    /// Drains, waits for open requests until the drain timeout, then stops discovery, workers and selector.
    pub async fn stop(self) {
        self.drained().await;
        if tokio::time::timeout(STOP_TIMEOUT, self.registry.send(Shutdown)).await.is_err() {
            tracing::warn!("the registry did not stop in time");
        }
        if let Some(spans) = self.spans {
            spans.stop().await;
        }
        for arbiter in self.arbiters.iter() {
            arbiter.stop();
        }
        tracing::info!("router stopped");
    }
}
