//! DP ranks at the edge: what a client may say of them, and engines that refuse one.

use actix_web::HttpRequest;
use bytes::Bytes;
use hyper::Response;
use hyper::StatusCode;
use hyper::body::Incoming;

use crate::http::Edge;
use crate::http::proxy::{Outgoing, send};
use crate::logic::ids::DpRank;
use crate::messages::WorkerPorts;
use crate::upstream::UpstreamError;
use crate::wire::body_edit::with_fields;
use crate::wire::openai::RequestPeek;

/// Header that names a DP rank to an engine, by its own number: SGLang and vLLM take it on their OpenAI routes, where it outranks the
/// body. A client's own copy is never passed on.
pub(super) const RANK_HEADER: &str = "x-data-parallel-rank";
/// Field of the body that names it to SGLang's own `/generate`, which reads no header.
const RANK_FIELD: &str = "routed_dp_rank";
/// Its older name.
const OLD_RANK_FIELD: &str = "data_parallel_rank";

/// How a route's requests name a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RankCarrier {
    /// In a header: the body stays as it came.
    Header,
    /// In the body.
    Body,
}

/// Returns the rank that the client named, in the header or else in the body.
pub(super) fn wanted_rank(request: &HttpRequest, peek: &RequestPeek) -> Option<u32> {
    let header = request.headers().get(RANK_HEADER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    header.or(peek.dp_rank)
}

/// Returns the body that names the rank; as it came where it cannot be edited.
pub(super) fn body_at_rank(body: &Bytes, number: u32) -> Bytes {
    let fields = [(RANK_FIELD, Some(number.to_string())), (OLD_RANK_FIELD, None)];
    with_fields(body, &fields).map_or_else(|| body.clone(), Bytes::from)
}

/// Sends the request to the rank. Where the engine refuses a rank that it was believed to own, the request is sent to it again
/// without one, and it gets none from then on.
pub(super) async fn send_at_rank(
    edge: &Edge,
    worker: &WorkerPorts,
    rank: Option<DpRank>,
    outgoing: &Outgoing,
) -> Result<Response<Incoming>, UpstreamError> {
    let Some(rank) = rank.filter(|_| !worker.ranks.is_refused()) else {
        return send(edge, worker, None, outgoing).await;
    };
    let number = worker.ranks.number_of(rank);
    let response = send(edge, worker, Some(number), outgoing).await?;
    if response.status() != StatusCode::BAD_REQUEST {
        if response.status().is_success() {
            worker.ranks.accept(rank);
        }
        return Ok(response);
    }
    if worker.ranks.is_accepted(rank) {
        return Ok(response);
    }
    drop(response);
    let response = send(edge, worker, None, outgoing).await?;
    if response.status().is_success() && worker.ranks.refuse() {
        edge.ports.telemetry.rank_refusals.inc();
        tracing::warn!(worker = %worker.id, url = %worker.url, rank = number,
            "the engine refuses a DP rank that it was believed to own: no rank is named to it any more; set dp_ranks of this worker");
    }
    Ok(response)
}
