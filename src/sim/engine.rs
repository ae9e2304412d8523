//! The handle of a running engine: start, controls, end.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};

use actix_web::dev::ServerHandle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::clock;
use super::config::{SimConfig, SimPart};
use super::error::SimError;
use super::fault::{FeedStop, ResponseMode, ServerInfoMode};
use super::http::{self, Serving};
use super::kv_cache::KvCache;
use super::load_frame::Reported;
use super::lock::lock;
use super::meeting::{Door, Rooms};
use super::publisher::{self, LoadPublisher};
use super::scheduler::{RankLimits, Scheduler};
use super::server_info::Ports;
use super::slot::SlotPool;
use super::state::EngineState;
use super::stats::SimStats;

/// A simulated engine that serves until it is stopped, killed or dropped.
///
/// All controls act at once and can be used while requests are running. Dropping the engine is a [`kill`](Self::kill)
/// that does not wait.
pub struct SimEngine {
    state: Arc<EngineState>,
    load: Option<Arc<Mutex<LoadPublisher>>>,
    door: Option<Door>,
    address: SocketAddr,
    server: Option<RunningServer>,
}

impl SimEngine {
    /// Starts an engine. When this returns, all its sockets are bound and it answers.
    ///
    /// It needs a tokio runtime that runs for as long as the engine does, be it that of an actix system.
    ///
    /// # Errors
    /// When the configuration cannot run, or when a socket or a thread is refused.
    pub async fn start(config: SimConfig) -> Result<Self, SimError> {
        let name_header = config.validate()?;
        let cache = Arc::new(KvCache::open(&config)?);
        let load = LoadPublisher::open(&config)?;
        let (kv, replay) = cache.port_bases();
        let rooms = Arc::new(Rooms::new(config.pair_patience));
        let door = match config.part {
            SimPart::Prefill => {
                Some(Door::open(Arc::clone(&rooms)).await.map_err(|source| SimError::Http { port: 0, source })?)
            }
            SimPart::Whole | SimPart::Decode => None,
        };
        let bootstrap = door.as_ref().map(|door| door.port);
        let ports = Ports { load: load.as_ref().map(LoadPublisher::port_base), kv, replay, bootstrap };

        let limits = RankLimits { max_running: config.max_running, max_total_tokens: config.max_total_tokens };
        let (changed, on_change) = sync_channel(1);
        let pool = Arc::new(SlotPool::new(Scheduler::new(config.dp_size, limits), changed));
        let created = clock::wall_seconds() as u64;
        let state = Arc::new(EngineState::new(config, name_header, ports, pool, cache, rooms, created));

        let Serving { address, server, ended } = http::serve(Arc::clone(&state))?;
        let server = RunningServer { handle: server.handle(), task: tokio::spawn(server), ended };
        let load = load.map(|load| Arc::new(Mutex::new(load)));
        let engine = Self { state, load, door, address, server: Some(server) };
        // Last, since from here on a failure is cleaned up by dropping the engine.
        engine.start_publishing(on_change)?;
        Ok(engine)
    }

    /// Returns the name that the engine puts into `x-sim-engine`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.state.config.name
    }

    /// Returns the base URL, without a slash at its end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// Returns the address on which HTTP is served.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the HTTP port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the load port of rank 0, unless the engine was started without load publishing.
    #[must_use]
    pub fn load_port_base(&self) -> Option<u16> {
        self.state.ports.load
    }

    /// Returns the KV event port of rank 0, unless the engine was started without KV events.
    #[must_use]
    pub fn kv_port_base(&self) -> Option<u16> {
        self.state.ports.kv
    }

    /// Returns the replay port of rank 0, unless the engine was started without replays.
    #[must_use]
    pub fn kv_replay_port_base(&self) -> Option<u16> {
        self.state.ports.replay
    }

    /// Returns the ids of all blocks that a rank has cached, as unsigned numbers; `None` where there is no such rank.
    ///
    /// Once somebody has an answer, the blocks of its request are in here and their events are on their way.
    #[must_use]
    pub fn cached_blocks(&self, rank: u32) -> Option<BTreeSet<u64>> {
        self.state.kv.keys(rank)
    }

    /// Returns how many batches of KV events a rank has published, lost ones included: the sequence number of its next one.
    /// `None` where nothing is published.
    #[must_use]
    pub fn num_kv_batches(&self, rank: u32) -> Option<u64> {
        self.state.kv.num_batches(rank)
    }

    /// Lets the next batches of KV events of a rank get lost on the way to its subscribers. They use up their sequence
    /// numbers and can be replayed. A later call replaces what is left of this one.
    ///
    /// # Errors
    /// When the rank publishes no KV events.
    pub fn drop_next_kv_batches(&self, rank: u32, num_batches: u64) -> Result<(), SimError> {
        self.state.kv.drop_next_batches(rank, num_batches)
    }

    /// Evicts so many blocks of a rank, those that were unused for longest first, and publishes that. Returns how many
    /// went: blocks of running requests stay.
    pub fn evict_cached_blocks(&self, rank: u32, num_blocks: usize) -> usize {
        self.state.kv.evict(rank, num_blocks)
    }

    /// Empties the caches of all ranks and publishes that, like `POST /flush_cache`. As in SGLang, nothing happens while a
    /// running request uses a cache. Tells whether it was done.
    pub fn flush_cache(&self) -> bool {
        self.state.kv.flush()
    }

    /// Returns what the engine has seen so far and holds now.
    #[must_use]
    pub fn stats(&self) -> SimStats {
        self.state.stats()
    }

    /// Sets how `/server_info` answers from now on.
    pub fn set_server_info(&self, mode: ServerInfoMode) {
        self.state.set_server_info_mode(mode);
    }

    /// Sets how requests that arrive from now on are answered.
    pub fn set_response_mode(&self, mode: ResponseMode) {
        self.state.set_response_mode(mode);
    }

    /// Stops the load reports. After [`FeedStop::Close`], the ports refuse connections when this returns.
    pub fn stop_publishing(&self, kind: FeedStop) {
        if let Some(load) = &self.load {
            lock(load).stop(kind);
        }
    }

    /// Reports again, all ranks at once, on the same ports and with the sequence numbers going on: the engine was out
    /// of reach, it has not been restarted.
    ///
    /// # Errors
    /// When the sockets were closed and somebody else has taken their ports meanwhile.
    pub fn resume_publishing(&self) -> Result<(), SimError> {
        self.steer(|load| load.resume())
    }

    /// Lets these ranks report and no other, until the next call. All ranks report at the start.
    pub fn publish_only_ranks(&self, ranks: &[u32]) {
        if let Some(load) = &self.load {
            lock(load).publish_only(ranks);
            self.state.pool.ring();
        }
    }

    /// Makes a rank report these numbers instead of its own, or its own again. Its queue is not affected.
    ///
    /// # Errors
    /// When the engine has no such rank or does not publish load.
    pub fn set_reported_load(&self, rank: u32, load: Option<Reported>) -> Result<(), SimError> {
        self.steer_rank(rank, |publisher| publisher.report(rank, load))
    }

    /// Sends frames as they are over the load socket of a rank, without using up a sequence number.
    ///
    /// # Errors
    /// When the rank has no open load socket.
    pub fn publish_raw(&self, rank: u32, frames: Vec<Vec<u8>>) -> Result<(), SimError> {
        self.steer_rank(rank, |publisher| publisher.send_raw(rank, frames))
    }

    /// Stops like a terminated engine: no new connections, then up to three seconds for the running requests, then the
    /// end of all sockets. All ports are free when it returns.
    pub async fn stop(mut self) {
        if let Some(server) = self.server.take() {
            server.stop(StopKind::Graceful).await;
        }
        self.close_sockets();
    }

    /// Ends like a killed process: all connections break. All ports are free when it returns.
    pub async fn kill(mut self) {
        self.close_sockets();
        if let Some(server) = self.server.take() {
            server.stop(StopKind::Immediate).await;
        }
    }

    fn start_publishing(&self, on_change: Receiver<()>) -> Result<(), SimError> {
        let Some(load) = &self.load else { return Ok(()) };
        publisher::spawn(Arc::clone(load), Arc::clone(&self.state.pool), on_change)
    }

    fn steer_rank(
        &self,
        rank: u32,
        action: impl FnOnce(&mut LoadPublisher) -> Result<(), SimError>,
    ) -> Result<(), SimError> {
        if self.load.is_none() {
            return Err(SimError::NoSocket { rank });
        }
        self.steer(action)
    }

    fn steer(&self, action: impl FnOnce(&mut LoadPublisher) -> Result<(), SimError>) -> Result<(), SimError> {
        let Some(load) = &self.load else { return Ok(()) };
        action(&mut lock(load))?;
        self.state.pool.ring();
        Ok(())
    }

    fn close_sockets(&mut self) {
        self.door = None;
        self.state.kv.close();
        if let Some(load) = &self.load {
            lock(load).end();
            self.state.pool.ring();
        }
    }
}

impl fmt::Debug for SimEngine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SimEngine")
            .field("name", &self.name())
            .field("address", &self.address)
            .field("ports", &self.state.ports)
            .finish_non_exhaustive()
    }
}

impl Drop for SimEngine {
    fn drop(&mut self) {
        self.close_sockets();
        if let Some(server) = &self.server {
            // The command is sent when the future is made; nobody is left to wait for its end.
            drop(server.handle.stop(false));
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopKind {
    Graceful,
    Immediate,
}

struct RunningServer {
    handle: ServerHandle,
    task: JoinHandle<io::Result<()>>,
    ended: mpsc::Receiver<()>,
}

impl RunningServer {
    async fn stop(mut self, kind: StopKind) {
        self.handle.stop(kind == StopKind::Graceful).await;
        match self.task.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "simulated engine did not stop cleanly"),
            Err(error) => tracing::warn!(%error, "simulated engine did not stop cleanly"),
        }
        // The server gave up its own end of this channel with its task; the thread that serves has the other one.
        while self.ended.recv().await.is_some() {}
    }
}
