//! Who is served: the keys of clients, the key of the operator, and what is open without one.
//!
//! Both are checked before anything of a request's body is read. Keys are compared as digests, all of them, in a time that tells
//! nothing of how close a guess was. Their files are looked at on access, at most once a second: one `stat`, and a read where it
//! has changed.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::ConnectionType;
use actix_web::http::header::{AUTHORIZATION, HeaderMap};
use actix_web::middleware::Next;
use actix_web::web;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::clock;
use crate::config::{AccessSettings, ConfigError, FileVersion, read_keys};
use crate::error::RouteError;
use crate::http::record::Record;
use crate::http::{Edge, respond};

/// Header with the key that clients in Anthropic's manner send.
pub(super) const API_KEY_HEADER: &str = "x-api-key";
/// How long what is known of a file counts.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Headers by which proxies say for whom they ask. A peer on this machine that sends one is not the client.
const FORWARDING_HEADERS: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];

type KeyDigest = [u8; 32];

/// Who is served. Shared by all HTTP threads.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    clients: Option<Arc<KeyRing>>,
    admin: Admin,
}

#[derive(Debug, Clone)]
enum Admin {
    Keys(Arc<KeyRing>),
    ThisMachine,
    Everyone,
}

impl Access {
    /// Reads the files.
    ///
    /// # Errors
    /// Where one of them cannot be read, or holds no key.
    pub(crate) fn open(settings: &AccessSettings) -> Result<Self, ConfigError> {
        let ring = |key, path: &Option<PathBuf>| match path {
            Some(path) => KeyRing::open(key, path.clone(), clock::now()).map(|ring| Some(Arc::new(ring))),
            None => Ok(None),
        };
        let admin = match ring("admin_key_file", &settings.admin_key_file)? {
            Some(keys) => Admin::Keys(keys),
            None if settings.open_admin => Admin::Everyone,
            None => Admin::ThisMachine,
        };
        if matches!(admin, Admin::Everyone) {
            tracing::warn!("open_admin: /metrics, /workers and /dashboard answer everyone who reaches them");
        }
        Ok(Self { clients: ring("api_keys_file", &settings.api_keys_file)?, admin })
    }

    fn check_client(&self, headers: &HeaderMap) -> Result<(), RouteError> {
        match &self.clients {
            Some(keys) if !keys.accepts(headers, clock::now()) => Err(RouteError::InvalidApiKey),
            _ => Ok(()),
        }
    }

    fn check_admin(&self, headers: &HeaderMap, peer: Option<SocketAddr>) -> Result<(), RouteError> {
        match &self.admin {
            Admin::Everyone => Ok(()),
            Admin::Keys(keys) if keys.accepts(headers, clock::now()) => Ok(()),
            Admin::Keys(_) => Err(RouteError::InvalidAdminKey),
            Admin::ThisMachine if is_this_machine(headers, peer) => Ok(()),
            Admin::ThisMachine => Err(RouteError::AdminKeyRequired),
        }
    }
}

/// Lets requests with a client's key pass.
pub(super) async fn clients_only<B: MessageBody + 'static>(
    edge: web::Data<Edge>,
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, actix_web::Error> {
    let checked = edge.ports.access.check_client(request.headers());
    if let Err(error) = checked {
        Record::open(&edge, request.request(), clock::now()).refused(error);
    }
    pass_on(checked, &edge, request, next).await
}

/// Lets requests of the operator pass.
pub(super) async fn admin_only<B: MessageBody + 'static>(
    edge: web::Data<Edge>,
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, actix_web::Error> {
    let checked = edge.ports.access.check_admin(request.headers(), request.peer_addr());
    pass_on(checked, &edge, request, next).await
}

/// Lets requests for the operator's page pass. A browser cannot send a key with them, and the page is the same for everyone: where
/// there are keys, only what it then asks for is guarded.
pub(super) async fn page_only<B: MessageBody + 'static>(
    edge: web::Data<Edge>,
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, actix_web::Error> {
    let checked = match &edge.ports.access.admin {
        Admin::Keys(_) => Ok(()),
        _ => edge.ports.access.check_admin(request.headers(), request.peer_addr()),
    };
    pass_on(checked, &edge, request, next).await
}

async fn pass_on<B: MessageBody + 'static>(
    checked: Result<(), RouteError>,
    edge: &Edge,
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, actix_web::Error> {
    match checked {
        Ok(()) => {
            let mut answered = next.call(request).await?;
            if edge.ports.gate.is_draining() {
                // Else a busy client on a kept connection would notice only when it is cut.
                answered.response_mut().head_mut().set_connection_type(ConnectionType::Close);
            }
            Ok(answered.map_into_left_body())
        }
        Err(error) => {
            let response = respond::error(error, &edge.ports.telemetry);
            Ok(request.into_response(response).map_into_right_body())
        }
    }
}

fn is_this_machine(headers: &HeaderMap, peer: Option<SocketAddr>) -> bool {
    let is_loopback = peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback());
    is_loopback && !FORWARDING_HEADERS.iter().any(|name| headers.contains_key(*name))
}

/// The keys of one file.
struct KeyRing {
    setting: &'static str,
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    digests: Arc<[KeyDigest]>,
    version: Option<FileVersion>,
    looked_at: Instant,
    is_failing: bool,
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRing").field("setting", &self.setting).field("path", &self.path).finish_non_exhaustive()
    }
}

impl KeyRing {
    fn open(setting: &'static str, path: PathBuf, now: Instant) -> Result<Self, ConfigError> {
        // The version is taken first: what is written in between is then seen as a change.
        let version = FileVersion::of(&path);
        let digests = read_digests(setting, &path)?;
        let state = State { digests, version, looked_at: now, is_failing: false };
        Ok(Self { setting, path, state: Mutex::new(state) })
    }

    /// Tells whether the request carries one of the keys.
    fn accepts(&self, headers: &HeaderMap, now: Instant) -> bool {
        let digests = self.digests(now);
        [bearer(headers), headers.get(API_KEY_HEADER).map(|value| value.as_bytes())]
            .into_iter()
            .flatten()
            .any(|given| is_one_of(&digests, given))
    }

    fn digests(&self, now: Instant) -> Arc<[KeyDigest]> {
        // Nothing panics while it is held, and the state is whole at every step.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(state.looked_at) >= LOOK_INTERVAL {
            state.looked_at = now;
            self.look(&mut state);
        }
        Arc::clone(&state.digests)
    }

    fn look(&self, state: &mut State) {
        let version = FileVersion::of(&self.path);
        if version == state.version && version.is_some() {
            return;
        }
        state.version = version;
        match read_digests(self.setting, &self.path) {
            Ok(digests) => {
                tracing::info!(setting = self.setting, path = ?self.path, num_keys = digests.len(), "keys read again");
                (state.digests, state.is_failing) = (digests, false);
            }
            Err(error) => {
                if !state.is_failing {
                    tracing::error!(%error, num_keys = state.digests.len(), "the keys known so far stay in use");
                }
                state.is_failing = true;
            }
        }
    }
}

fn read_digests(setting: &'static str, path: &std::path::Path) -> Result<Arc<[KeyDigest]>, ConfigError> {
    Ok(read_keys(setting, path)?.iter().map(|key| digest(key.reveal().as_bytes())).collect())
}

fn digest(key: &[u8]) -> KeyDigest {
    Sha256::digest(key).into()
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, key) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

/// Compares with all of them, whichever it is.
fn is_one_of(digests: &[KeyDigest], given: &[u8]) -> bool {
    let given = digest(given);
    digests.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(&given)).into()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::PathBuf;
    use std::time::Duration;

    use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};

    use super::{KeyRing, LOOK_INTERVAL, is_this_machine};
    use crate::clock;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_str(text).expect("a value");
        pairs.iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
    }

    /// A file that is removed when its test ends.
    struct KeyFile(PathBuf);

    impl KeyFile {
        fn new(name: &str, text: &str) -> Self {
            let file = Self(std::env::temp_dir().join(format!("fathom-keys-{}-{name}", std::process::id())));
            file.write(text);
            file
        }

        fn write(&self, text: &str) {
            std::fs::write(&self.0, text).expect("the temporary directory can be written");
        }
    }

    impl Drop for KeyFile {
        fn drop(&mut self) {
            // One that is left behind does no harm.
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn accepts(ring: &KeyRing, key: &str, now: std::time::Instant) -> bool {
        ring.accepts(&headers(&[("x-api-key", key)]), now)
    }

    #[test]
    fn a_key_is_taken_from_either_header_and_only_whole() {
        let file = KeyFile::new("either", "sk-one\nsk-two");
        let now = clock::now();
        let ring = KeyRing::open("api_keys_file", file.0.clone(), now).expect("a file with keys");
        let accepted: [&[(&str, &str)]; 5] = [
            &[("authorization", "Bearer sk-one")],
            &[("authorization", "bearer  sk-two")],
            &[("x-api-key", "sk-two")],
            &[("x-api-key", "sk-one"), ("authorization", "Bearer other")],
            &[("x-api-key", "other"), ("authorization", "BEARER sk-one")],
        ];
        for pairs in accepted {
            assert!(ring.accepts(&headers(pairs), now), "{pairs:?}");
        }
        let refused: [&[(&str, &str)]; 8] = [
            &[],
            &[("authorization", "sk-one")],
            &[("authorization", "Basic sk-one")],
            &[("authorization", "Bearer ")],
            &[("authorization", "Bearer sk-on")],
            &[("authorization", "Bearer sk-one sk-two")],
            &[("x-api-key", "sk-one\tsk-two")],
            &[("x-api-key", "# of the team")],
        ];
        for pairs in refused {
            assert!(!ring.accepts(&headers(pairs), now), "{pairs:?}");
        }
        assert!(!format!("{ring:?}").contains("sk-"), "{ring:?}");
    }

    #[test]
    fn a_changed_file_counts_after_a_second_and_a_broken_one_changes_nothing() {
        let file = KeyFile::new("changes", "sk-old");
        let start = clock::now();
        let ring = KeyRing::open("api_keys_file", file.0.clone(), start).expect("a file with a key");
        file.write("sk-newer");
        let just_before = LOOK_INTERVAL.saturating_sub(Duration::from_nanos(1));
        assert!(accepts(&ring, "sk-old", start + just_before), "it is not looked at more than once a second");
        assert!(accepts(&ring, "sk-newer", start + LOOK_INTERVAL));
        assert!(!accepts(&ring, "sk-old", start + LOOK_INTERVAL), "a key that was withdrawn is refused");

        for (seconds, text) in [(2, ""), (3, "# nothing\n"), (4, "sk with spaces")] {
            file.write(text);
            assert!(accepts(&ring, "sk-newer", start + LOOK_INTERVAL * seconds), "{text:?}");
        }
        std::fs::remove_file(&file.0).expect("the file is there");
        assert!(accepts(&ring, "sk-newer", start + LOOK_INTERVAL * 5));
        file.write("sk-back-again");
        assert!(accepts(&ring, "sk-back-again", start + LOOK_INTERVAL * 6));
        assert!(!accepts(&ring, "sk-newer", start + LOOK_INTERVAL * 6));
    }

    #[test]
    fn this_machine_is_a_loopback_peer_for_whom_no_proxy_asks() {
        let peer = |text: &str| Some(text.parse::<SocketAddr>().expect("an address"));
        for text in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(is_this_machine(&headers(&[]), peer(text)), "{text}");
        }
        for text in ["10.0.0.1:1", "0.0.0.0:1", "[::ffff:10.0.0.1]:1", "[fe80::1]:1"] {
            assert!(!is_this_machine(&headers(&[]), peer(text)), "{text}");
        }
        assert!(!is_this_machine(&headers(&[]), None), "a socket without addresses tells nothing");
        for name in super::FORWARDING_HEADERS {
            assert!(!is_this_machine(&headers(&[(name, "127.0.0.1")]), peer("127.0.0.1:1")), "{name}");
        }
    }
}
