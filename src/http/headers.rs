//! Which headers pass, in both directions, and the step between the two versions of the `http` crate: actix-web speaks 0.2, hyper 1.

use actix_web::http::header as client_side;
use hyper::header as engine_side;

use crate::error::RouteError;
use crate::http::access::API_KEY_HEADER;
use crate::http::ranks::RANK_HEADER;

/// Headers that concern one connection only (RFC 9110, section 7.6.1, and the older ones it names).
const HOP_BY_HOP: [&str; 11] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "trailers",
    "transfer-encoding",
    "upgrade",
];
/// Request headers that the upstream client sets itself, or that were answered here.
const REPLACED_IN_REQUESTS: [&str; 4] = ["host", "content-length", "expect", RANK_HEADER];

/// Request headers in which clients send their keys.
const CREDENTIALS: [&str; 2] = ["authorization", API_KEY_HEADER];

/// Returns the headers of the request to the engine. The client's own credentials pass only where `keep_authorization` says so.
///
/// # Errors
/// Refuses a request for another protocol over the same connection (WebSocket): its body has no end, whatever its length says.
/// Refuses a header that one of the two crates takes and the other does not, such as one with a control character.
pub(super) fn to_engine(
    client: &client_side::HeaderMap,
    keep_authorization: bool,
) -> Result<engine_side::HeaderMap, RouteError> {
    if client
        .get_all(client_side::UPGRADE)
        .any(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"websocket"))
    {
        return Err(RouteError::InvalidHeader);
    }
    let named = named_by_connection(client.get_all(client_side::CONNECTION).map(client_side::HeaderValue::as_bytes));
    let mut headers = engine_side::HeaderMap::with_capacity(client.len());
    for (name, value) in client {
        let name_text = name.as_str();
        let passes = !is_hop_by_hop(name_text, &named)
            && !REPLACED_IN_REQUESTS.contains(&name_text)
            && (keep_authorization || !CREDENTIALS.contains(&name_text));
        if !passes {
            continue;
        }
        let name = engine_side::HeaderName::from_bytes(name_text.as_bytes());
        let value = engine_side::HeaderValue::from_bytes(value.as_bytes());
        let (Ok(name), Ok(mut value)) = (name, value) else { return Err(RouteError::InvalidHeader) };
        value.set_sensitive(CREDENTIALS.contains(&name_text));
        headers.append(name, value);
    }
    Ok(headers)
}

/// Returns the engine's headers for the client, repeated ones repeated. The length is left to the body.
pub(super) fn to_client(
    engine: &engine_side::HeaderMap,
) -> impl Iterator<Item = (client_side::HeaderName, client_side::HeaderValue)> + '_ {
    let named =
        named_by_connection(engine.get_all(engine_side::CONNECTION).iter().map(engine_side::HeaderValue::as_bytes));
    engine.iter().filter_map(move |(name, value)| {
        if is_hop_by_hop(name.as_str(), &named) || name == engine_side::CONTENT_LENGTH {
            return None;
        }
        let name = client_side::HeaderName::from_bytes(name.as_str().as_bytes()).ok()?;
        let value = client_side::HeaderValue::from_bytes(value.as_bytes()).ok()?;
        Some((name, value))
    })
}

fn is_hop_by_hop(name: &str, named: &[String]) -> bool {
    HOP_BY_HOP.contains(&name) || named.iter().any(|other| other == name)
}

fn named_by_connection<'a>(values: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let mut named = Vec::new();
    for value in values {
        let names =
            value.split(|byte| *byte == b',').map(|name| String::from_utf8_lossy(name).trim().to_ascii_lowercase());
        named.extend(names.filter(|name| !name.is_empty()));
    }
    named
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};

    use super::{RouteError, to_client, to_engine};

    fn client_headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn headers_of_one_connection_do_not_reach_the_engine() {
        let client = client_headers(&[
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("transfer-encoding", "chunked"),
            ("host", "router"),
            ("authorization", "Bearer client"),
            ("x-api-key", "client"),
            ("x-request-id", "7"),
        ]);
        let engine = to_engine(&client, false).expect("nothing to refuse");
        assert_eq!(engine.len(), 1, "{engine:?}");
        assert_eq!(engine["x-request-id"], "7");
        let engine = to_engine(&client, true).expect("nothing to refuse");
        assert_eq!(engine["authorization"], "Bearer client");
        assert_eq!(engine["x-api-key"], "client");
    }

    #[test]
    fn a_value_that_no_engine_would_take_refuses_the_request() {
        // What actix-web's parser lets through is not checked by its header type again.
        let mut client = client_headers(&[("x-request-id", "7")]);
        let unchecked = HeaderValue::from_bytes(b"a\x80").expect("bytes above ASCII pass");
        client.append(HeaderName::from_static("x-text"), unchecked);
        assert_eq!(to_engine(&client, false).expect("they pass")["x-text"].as_bytes(), b"a\x80");
        let upgrade = client_headers(&[("connection", "upgrade"), ("upgrade", " WebSocket")]);
        assert_eq!(to_engine(&upgrade, false).expect_err("no protocol but HTTP"), RouteError::InvalidHeader);
    }

    #[test]
    fn repeated_headers_stay_repeated() {
        let mut engine = hyper::HeaderMap::new();
        engine.append("set-cookie", hyper::header::HeaderValue::from_static("a=1"));
        engine.append("set-cookie", hyper::header::HeaderValue::from_static("b=2"));
        engine.append("connection", hyper::header::HeaderValue::from_static("x-secret"));
        engine.append("x-secret", hyper::header::HeaderValue::from_static("no"));
        engine.append("content-length", hyper::header::HeaderValue::from_static("5"));
        let passed: Vec<String> =
            to_client(&engine).map(|(_, value)| value.to_str().expect("text").to_owned()).collect();
        assert_eq!(passed, ["a=1", "b=2"]);
    }
}
