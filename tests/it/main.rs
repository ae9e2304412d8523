//! The integration tests, in one binary because linking dominates. Everything runs on loopback, on ports that the system gives.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;

mod access;
mod actors;
mod admin_workers;
mod admission;
mod binary;
mod churn;
mod cli;
mod dashboard;
mod descriptors;
mod disconnect;
mod discovery;
mod discovery_feeds;
mod discovery_keys;
mod discovery_members;
mod discovery_models;
mod dns;
mod dp_ranks;
mod edge;
mod embedding;
mod extension;
mod failures;
mod health;
mod health_probes;
mod http2;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod kubernetes_manifests;
#[cfg(feature = "kubernetes")]
mod kubernetes_rights;
#[cfg(feature = "kubernetes")]
mod kubernetes_watch;
mod kv_cache;
mod kv_events;
mod lifecycle;
mod listener;
mod load;
mod load_polling;
mod load_stream;
mod monitoring;
#[cfg(feature = "otel")]
mod otel;
mod pd;
mod prompts;
mod proxying;
mod request_log;
mod retries;
mod shutdown;
mod slow_clients;
mod smuggling;
mod streaming;
mod telemetry;
mod workers_file;
