//! Set-up that the integration tests share: a router with its server, engines, a client, and bounded waiting.

mod client;
mod eventually;
mod router;

pub(crate) use client::{Answer, Client, chat_body};
pub(crate) use eventually::eventually;
pub(crate) use router::{RunningRouter, engine, fast_config, names_of, start_router};
