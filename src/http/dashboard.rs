//! The operator's page: one self-contained file, and the stream of snapshots that feeds it.
//!
//! Nobody samples while no page is open. While some are, whichever page first wants a newer frame than there is makes it, once for
//! all of them; a page that reads slowly is not asked and so skips frames. A stream ends by itself after a while and the page asks
//! for the next one, so that a key that was withdrawn soon opens nothing, and a page does not hold up a server that stops.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use actix_web::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY};
use actix_web::{HttpResponse, web};
use bytes::Bytes;
use futures::stream;
use sha2::{Digest, Sha256};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::clock;
use crate::error::RouteError;
use crate::http::{Edge, admin, dashboard_frame, respond};

const PAGE: &str = include_str!("dashboard.html");
/// Pages that are fed at a time.
const MAX_PAGES: usize = 32;
/// How often a page is sent a frame.
const FRAME_INTERVAL: Duration = Duration::from_secs(1);
/// How old a frame must be before a newer one is made: a page's own interval has some play.
const FRAME_AGE: Duration = Duration::from_millis(900);
/// Frames after which a stream ends.
const FRAMES_PER_STREAM: u32 = 15;

/// Only what is in the page itself may run, and it may speak to its own router only.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        source_hash(PAGE, "script"),
        source_hash(PAGE, "style")
    )
});

/// The page itself; it holds no secrets.
pub(super) async fn page() -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, "text/html; charset=utf-8"))
        .insert_header((CONTENT_SECURITY_POLICY, POLICY.as_str()))
        .insert_header((REFERRER_POLICY, "no-referrer"))
        .insert_header(("x-content-type-options", "nosniff"))
        .insert_header((CACHE_CONTROL, "no-cache"))
        .body(PAGE)
}

/// Snapshots of the fleet, one each second, as server-sent events.
pub(super) async fn events(edge: web::Data<Edge>) -> HttpResponse {
    let Some(seat) = Seat::take(&edge.ports.board) else {
        return respond::error(RouteError::TooManyPages, &edge.ports.telemetry);
    };
    let mut ticks = interval(FRAME_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let page = OpenPage { edge, ticks, last_number: 0, num_left: FRAMES_PER_STREAM, _seat: seat };
    HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, "text/event-stream"))
        .insert_header((CACHE_CONTROL, "no-store"))
        // Proxies that collect answers would show the page minutes at a time.
        .insert_header(("x-accel-buffering", "no"))
        .streaming(stream::unfold(page, |page| async { page.next().await }))
}

/// What open pages share.
#[derive(Default)]
pub(crate) struct Board {
    num_pages: AtomicUsize,
    latest: Mutex<Latest>,
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").field("num_pages", &self.num_pages).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Latest {
    frame: Option<Frame>,
    num_made: u64,
    is_being_made: bool,
}

#[derive(Clone)]
struct Frame {
    number: u64,
    made_at: Instant,
    event: Bytes,
}

impl Board {
    fn latest(&self) -> std::sync::MutexGuard<'_, Latest> {
        // Nothing panics while it is held, and it is whole at every step.
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the right to make the next frame, where it is due and nobody has it.
    fn claim(&self, now: Instant) -> Option<Turn<'_>> {
        let mut latest = self.latest();
        let is_due =
            latest.frame.as_ref().is_none_or(|frame| now.saturating_duration_since(frame.made_at) >= FRAME_AGE);
        if !is_due || latest.is_being_made {
            return None;
        }
        latest.is_being_made = true;
        latest.num_made += 1;
        Some(Turn { board: self, number: latest.num_made })
    }
}

/// The right to make a frame. A page that leaves meanwhile gives it back.
struct Turn<'a> {
    board: &'a Board,
    number: u64,
}

impl Turn<'_> {
    fn show(&self, event: Bytes, now: Instant) {
        self.board.latest().frame = Some(Frame { number: self.number, made_at: now, event });
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.board.latest().is_being_made = false;
    }
}

/// One of the places for pages.
struct Seat(Arc<Board>);

impl Seat {
    fn take(board: &Arc<Board>) -> Option<Self> {
        let seat = Self(Arc::clone(board));
        (board.num_pages.fetch_add(1, Ordering::SeqCst) < MAX_PAGES).then_some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.num_pages.fetch_sub(1, Ordering::SeqCst);
    }
}

struct OpenPage {
    edge: web::Data<Edge>,
    ticks: Interval,
    last_number: u64,
    num_left: u32,
    _seat: Seat,
}

impl OpenPage {
    /// Waits for the next frame. It is polled only when the connection has room.
    async fn next(mut self) -> Option<(Result<Bytes, std::convert::Infallible>, Self)> {
        loop {
            self.num_left = self.num_left.checked_sub(1)?;
            self.ticks.tick().await;
            make_frame(&self.edge).await;
            let frame = self.edge.ports.board.latest().frame.clone();
            if let Some(frame) = frame.filter(|frame| frame.number != self.last_number) {
                self.last_number = frame.number;
                return Some((Ok(frame.event), self));
            }
        }
    }
}

async fn make_frame(edge: &Edge) {
    let Some(turn) = edge.ports.board.claim(clock::now()) else { return };
    let members = admin::fleet(edge).await.unwrap_or_default();
    let now = clock::now();
    if let Some(json) = dashboard_frame::encode(&edge.ports, &members, turn.number, now) {
        turn.show(Bytes::from(format!("data: {json}\n\n")), now);
    }
}

/// Returns the content security policy's name for the page's only element of that name.
fn source_hash(page: &str, element: &str) -> String {
    let start = page.split_once(&format!("<{element}>")).map_or("", |(_, rest)| rest);
    let text = start.split_once(&format!("</{element}>")).map_or("", |(text, _)| text);
    format!("sha256-{}", base64(&Sha256::digest(text.as_bytes())))
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for digit in 0..4 {
            let is_padding = digit > group.len();
            let index = (bits >> (18 - 6 * digit)) as usize & 63;
            text.push(if is_padding { '=' } else { char::from(ALPHABET[index]) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Board, FRAME_AGE, MAX_PAGES, Seat, base64, source_hash};
    use crate::clock;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (text, encoded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(text.as_bytes()), encoded);
        }
    }

    #[test]
    fn a_hash_is_that_of_the_text_inside_the_element() {
        let expected = "sha256-RFWPLDbv2BY+rCkDzsE+0fr8ylGr2R2faWMhq4lfEQc=";
        assert_eq!(source_hash("<style>x</style><script>doSomething();</script>", "script"), expected);
    }

    #[test]
    fn one_page_at_a_time_makes_the_next_frame_and_may_give_up() {
        let (board, now) = (Board::default(), clock::now());
        let turn = board.claim(now).expect("none was made yet");
        assert!(board.claim(now).is_none(), "it is being made");
        drop(turn);
        let turn = board.claim(now).expect("the turn was given back");
        turn.show("data: {}\n\n".into(), now);
        drop(turn);
        assert!(board.claim(now + FRAME_AGE / 2).is_none(), "it is young");
        assert!(board.claim(now + FRAME_AGE).is_some());
    }

    #[test]
    fn there_is_a_seat_for_so_many_pages_and_a_page_that_leaves_makes_room() {
        let board = Arc::new(Board::default());
        let mut seats: Vec<Seat> = (0..MAX_PAGES).filter_map(|_| Seat::take(&board)).collect();
        assert_eq!(seats.len(), MAX_PAGES);
        for _ in 0..3 {
            assert!(Seat::take(&board).is_none());
        }
        seats.pop();
        assert!(Seat::take(&board).is_some());
    }
}
