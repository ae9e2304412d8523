//! The life of the `fathom` process: it serves until it is told to stop, lets running requests end, and obeys what it is told in
//! between.
//!
//! Told to stop, it goes through these steps:
//!
//! 1. `/readyz` answers 503. New requests are still taken for the drain delay, so that whatever sends them can notice.
//! 2. New requests are refused with 503, and each answer closes its connection. Streams go on at their own pace.
//! 3. Once nothing runs any more, or the drain timeout is over, connections are closed; what still runs then is cut, at the
//!    client and at the engine.
//! 4. Workers and their sockets are closed, and the process ends with code 0.
//!
//! Told a second time, it ends at once, with code 1.

use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use futures::{Stream, StreamExt, stream};
use tokio::signal::unix::{SignalKind, signal};

use crate::error::StartError;
use crate::router::RouterHandle;
use crate::server::Listener;

mod descriptors;
mod reload;

pub use descriptors::fit_descriptors;
pub use reload::{ReloadError, Reloader, changes_of};

/// What a process may be told while it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Stop; a second one means at once.
    Stop,
    /// Read the configuration again.
    Reload,
}

/// How a process came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Requests had the time that the configuration gives them.
    Drained,
    /// It was told twice to stop, and cut what ran.
    AtOnce,
}

/// Returns what signals tell this process: SIGTERM and SIGINT to stop, SIGHUP to read its configuration again. From here on the
/// process does not end by them.
///
/// # Errors
/// Where the system does not let signals be handled.
pub fn signals() -> std::io::Result<impl Stream<Item = Order> + Unpin> {
    let of = |kind, order| -> std::io::Result<_> {
        let mut signal = signal(kind)?;
        Ok(stream::poll_fn(move |context| signal.poll_recv(context)).map(move |()| order))
    };
    let stops = stream::select(of(SignalKind::terminate(), Order::Stop)?, of(SignalKind::interrupt(), Order::Stop)?);
    Ok(stream::select(stops, of(SignalKind::hangup(), Order::Reload)?))
}

/// Serves until it is told to stop, then stops listener and router as the module's documentation says. `reload` is called for
/// each [`Order::Reload`]. An end of `orders` means nothing.
///
/// # Errors
/// Where the server ends by itself.
pub async fn serve(
    router: RouterHandle,
    listener: Listener,
    orders: impl Stream<Item = Order> + Unpin,
    mut reload: impl FnMut(),
) -> Result<End, StartError> {
    let mut orders = orders.chain(stream::pending());
    let connections = listener.server.handle();
    let mut server = actix::spawn(listener.server);
    loop {
        match select(&mut server, orders.next()).await {
            Either::Left((ended, _)) => {
                router.stop().await;
                let ended = ended.unwrap_or_else(|error| Err(std::io::Error::other(error)));
                return ended.map_err(StartError::Serve).map(|()| End::Drained);
            }
            Either::Right((Some(Order::Stop), _)) => break,
            Either::Right((_, _)) => reload(),
        }
    }
    let told_again = pin!(orders.filter(|order| std::future::ready(*order == Order::Stop)));
    let mut told_again = told_again.into_future();
    let drained = pin!(drained(&router));
    let (is_idle, told_again) = match select(drained, &mut told_again).await {
        Either::Left((is_idle, told_again)) => (is_idle, told_again),
        Either::Right(_) => return Ok(at_once(&router)),
    };
    let ended = pin!(async {
        // Last bytes may still be on their way where nothing was cut.
        connections.stop(is_idle).await;
        router.clone().stop().await;
    });
    match select(ended, told_again).await {
        Either::Left(_) => Ok(End::Drained),
        Either::Right(_) => Ok(at_once(&router)),
    }
}

fn at_once(router: &RouterHandle) -> End {
    tracing::warn!(num_cut = router.num_open_requests(), "told to stop again, ending at once");
    End::AtOnce
}

/// Refuses new requests after the drain delay and waits for the running ones. Returns whether all of them ended.
async fn drained(router: &RouterHandle) -> bool {
    router.leave();
    let delay = router.drain_delay();
    tracing::info!(?delay, num_open = router.num_open_requests(), "told to stop");
    if delay > Duration::ZERO {
        tokio::time::sleep(delay).await;
    }
    router.drained().await
}
