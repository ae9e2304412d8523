//! Set-up that the integration tests share: a router with its server, engines, a client, and bounded waiting.

mod client;
mod events;
mod eventually;
mod fake_worker;
mod frames;
mod hold;
#[cfg(feature = "kubernetes")]
mod kube_api;
mod kv_engine;
mod own_process;
mod publisher;
mod raw_client;
mod raw_engine;
mod router;
mod shown;
mod soon;
mod stub;
mod temporary;
mod wire;

pub(crate) use client::{Answer, Client, chat_body, whole};
pub(crate) use events::Events;
pub(crate) use eventually::eventually;
pub(crate) use fake_worker::{FakeWorker, Switch, first_worker_at};
pub(crate) use frames::{msgpack, stat};
pub(crate) use hold::{Hold, Streams};
#[cfg(feature = "kubernetes")]
pub(crate) use kube_api::{KubeApi, pod, slice};
pub(crate) use kv_engine::{Chain, KvEngine, Layout};
pub(crate) use own_process::in_own_process;
pub(crate) use publisher::Publisher;
pub(crate) use raw_client::{RawClient, post, post_head, stream_through};
pub(crate) use raw_engine::{RawEngine, RawRequest};
pub(crate) use router::{RunningRouter, engine, fast_config, names_of, start_listening, start_router};
pub(crate) use shown::{assert_all_succeeded, millis, within_reason};
pub(crate) use soon::soon;
pub(crate) use stub::{Stub, StubAnswer, StubRequest, chat_answer, engine_like, not_found};
pub(crate) use temporary::TemporaryFile;
