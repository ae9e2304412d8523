//! Clients of HTTP/2 that leave.
//!
//! With HTTP/1 the connection is the request: actix-web drops the handler, or the body, when the client closes it. With HTTP/2 it
//! lets both go on, and says nothing, until the next bytes are to be written; an engine would work on for nobody. The end of a
//! stream shows in its request body, which can be asked even after it has been read whole.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::http::Version;
use actix_web::web::{Bytes, Payload};
use futures::Stream;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often a stream is looked at: it cannot wake anybody.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The watch over one HTTP/2 request whose body has been read.
pub(super) struct Departure {
    payload: Payload,
    interval: Interval,
}

impl Departure {
    /// Returns a watch where the request needs one.
    pub(super) fn of(request: &HttpRequest, payload: Payload) -> Option<Self> {
        if request.version() != Version::HTTP_2 {
            return None;
        }
        let mut interval = interval(LOOK_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Some(Self { payload, interval })
    }

    /// Is ready once the client has left.
    pub(super) fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.interval.poll_tick(context).is_ready() {
            if let Poll::Ready(Some(Err(_))) = Pin::new(&mut self.payload).poll_next(context) {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

/// A body that ends when its client has left, and is dropped then.
pub(super) struct WatchedBody {
    body: BoxBody,
    departure: Departure,
}

impl WatchedBody {
    pub(super) fn new(body: BoxBody, departure: Departure) -> Self {
        Self { body, departure }
    }
}

impl MessageBody for WatchedBody {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        if self.departure.poll_gone(context).is_ready() {
            // The stream is closed in both directions; nobody takes this for the end of the answer.
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_next(context)
    }
}
