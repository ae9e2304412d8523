//! Subscriptions to what engines publish over ZMQ. This module moves bytes: it knows no message's meaning.

mod context;
mod monitor;
mod socket;
mod subscription;

pub(crate) use subscription::{FeedEvent, Frame, SubscribeError, SubscriptionSpec, subscribe};
