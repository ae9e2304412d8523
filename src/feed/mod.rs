//! Subscriptions to what engines publish over ZMQ. This module moves bytes: it knows no message's meaning.

mod context;
mod monitor;
mod replay;
mod socket;
mod subscription;

pub(crate) use context::limit_descriptors;
pub(crate) use replay::{ReplaySpec, replay};
pub(crate) use subscription::{FeedEvent, Frame, Payload, SubscribeError, SubscriptionSpec, subscribe};
