//! Subscriptions to what engines publish over ZMQ. This module moves bytes: it knows no message's meaning.

mod context;
mod subscription;

pub(crate) use subscription::{Frame, SubscribeError, SubscriptionSpec, subscribe};
