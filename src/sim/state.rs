//! What the HTTP routes and the handle of an engine share.

use std::sync::{Arc, Mutex};

use actix_web::HttpRequest;
use actix_web::http::header::HeaderValue;
use bytes::Bytes;

use super::config::SimConfig;
use super::fault::{ResponseMode, ServerInfoMode};
use super::kv_cache::KvCache;
use super::lock::lock;
use super::meeting::Rooms;
use super::server_info::Ports;
use super::slot::SlotPool;
use super::stats::{Recorder, SimStats};

/// One engine, seen from its routes.
pub(super) struct EngineState {
    pub(super) config: SimConfig,
    /// The name of the engine as the value of its header.
    pub(super) name_header: HeaderValue,
    pub(super) ports: Ports,
    pub(super) pool: Arc<SlotPool>,
    pub(super) kv: Arc<KvCache>,
    /// Where a prefill engine hands its results over.
    pub(super) rooms: Arc<Rooms>,
    /// When the engine was started, in whole seconds since 1970.
    pub(super) created: u64,
    recorder: Mutex<Recorder>,
    server_info_mode: Mutex<ServerInfoMode>,
    response_mode: Mutex<ResponseMode>,
}

impl EngineState {
    pub(super) fn new(
        config: SimConfig,
        name_header: HeaderValue,
        ports: Ports,
        pool: Arc<SlotPool>,
        kv: Arc<KvCache>,
        rooms: Arc<Rooms>,
        created: u64,
    ) -> Self {
        Self {
            rooms,
            config,
            name_header,
            ports,
            pool,
            kv,
            created,
            recorder: Mutex::default(),
            server_info_mode: Mutex::default(),
            response_mode: Mutex::default(),
        }
    }

    pub(super) fn count_request(&self, path: &str) {
        lock(&self.recorder).count(path);
    }

    pub(super) fn keep_request(&self, request: &HttpRequest, body: &Bytes) {
        lock(&self.recorder).keep(request, body);
    }

    pub(super) fn server_info_mode(&self) -> ServerInfoMode {
        lock(&self.server_info_mode).clone()
    }

    pub(super) fn set_server_info_mode(&self, mode: ServerInfoMode) {
        *lock(&self.server_info_mode) = mode;
    }

    pub(super) fn response_mode(&self) -> ResponseMode {
        lock(&self.response_mode).clone()
    }

    pub(super) fn set_response_mode(&self, mode: ResponseMode) {
        *lock(&self.response_mode) = mode;
    }

    pub(super) fn stats(&self) -> SimStats {
        SimStats::new(&lock(&self.recorder), self.pool.rank_stats(), self.pool.recent_aborts())
    }
}
