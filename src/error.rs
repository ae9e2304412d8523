//! What can go wrong at start, and what can go wrong with a request.

use crate::logic::decide::NoWorker;

/// Why a router did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An actor ended before it had started.
    #[error("the {0} ended before it had started")]
    Actor(&'static str),
    /// The configuration was refused.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The listener could not be opened.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no way to the Kubernetes API.
    #[error("the Kubernetes source cannot start")]
    Kubernetes(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The server ended with an error.
    #[error("the HTTP server failed")]
    Serve(#[source] std::io::Error),
}

/// Why a changed configuration was not obeyed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReconfigureError {
    /// It was refused.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// It differs in something that is fixed at start.
    #[error("it differs from that of the start in something that cannot change while the router runs")]
    NeedsRestart,
    /// The router has stopped.
    #[error("the router has stopped")]
    Stopped,
}

/// Who caused a request to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorSource {
    /// The client.
    Client,
    /// An engine.
    Engine,
    /// This router, or the state of the fleet.
    Router,
}

/// Why the router answered a request itself. The `Display` text is what the client sees; it names no worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The body is not one JSON object.
    #[error("the body is not a JSON object")]
    InvalidBody,
    /// The request is for a pair of engines, and lists more prompts than get rooms.
    #[error("{0}", crate::wire::shared_body::TooManyPrompts)]
    TooManyPrompts,
    /// The body is larger than the limit.
    #[error("the body is larger than {max_body_bytes} bytes")]
    BodyTooLarge {
        /// The limit.
        max_body_bytes: usize,
    },
    /// The body did not arrive whole.
    #[error("the body did not arrive whole")]
    BodyBroken,
    /// The client stopped sending in the middle of the body.
    #[error("the body did not go on in time")]
    BodyTimeout,
    /// The path cannot be forwarded.
    #[error("the path cannot be forwarded")]
    InvalidPath,
    /// A header cannot be passed on.
    #[error("a header of the request cannot be passed on")]
    InvalidHeader,
    /// No client's key came with the request, or an unknown one.
    #[error("a valid API key is wanted, as a bearer token or in x-api-key")]
    InvalidApiKey,
    /// No admin key came with the request, or an unknown one.
    #[error("a valid admin key is wanted, as a bearer token or in x-api-key")]
    InvalidAdminKey,
    /// No admin key is configured, and the request comes from elsewhere.
    #[error("without an admin key, this path answers only the machine that the router runs on")]
    AdminKeyRequired,
    /// No worker serves the model.
    #[error("no worker serves this model")]
    UnknownModel,
    /// No worker has this id.
    #[error("no worker has this id")]
    UnknownWorker,
    /// The model's work is shared by pairs, and no prefill worker takes traffic.
    #[error("no prefill worker can take this request now")]
    NoPrefillWorker,
    /// The model's work is shared by pairs, and no decode worker takes traffic.
    #[error("no decode worker can take this request now")]
    NoDecodeWorker,
    /// As many pages of the operator are open as may be.
    #[error("as many pages are open as may be")]
    TooManyPages,
    /// No worker takes traffic now.
    #[error("no worker can take this request now")]
    NoWorkerAvailable,
    /// Every worker that serves the model has as many requests as it may have.
    #[error("every worker has as many requests as it may have")]
    WorkersFull,
    /// Everyone who could have served it failed before the first byte of an answer.
    #[error("every worker that could serve this request failed before it answered")]
    AllWorkersFailed,
    /// The chosen engine sent no answer in time.
    #[error("the worker sent no answer in time")]
    UpstreamTimeout,
    /// More requests are open than the limit allows.
    #[error("the router handles as many requests as it may")]
    Overloaded,
    /// The router is shutting down.
    #[error("the router is shutting down")]
    ShuttingDown,
    /// The selector did not answer.
    #[error("the router cannot decide at the moment")]
    SelectorUnavailable,
}

impl RouteError {
    /// Returns who caused it.
    pub fn source(self) -> ErrorSource {
        match self {
            Self::InvalidBody
            | Self::TooManyPrompts
            | Self::BodyTooLarge { .. }
            | Self::BodyBroken
            | Self::BodyTimeout
            | Self::InvalidPath
            | Self::InvalidHeader
            | Self::InvalidApiKey
            | Self::InvalidAdminKey
            | Self::AdminKeyRequired
            | Self::UnknownModel
            | Self::UnknownWorker => ErrorSource::Client,
            Self::AllWorkersFailed | Self::UpstreamTimeout => ErrorSource::Engine,
            Self::NoWorkerAvailable
            | Self::NoPrefillWorker
            | Self::NoDecodeWorker
            | Self::WorkersFull
            | Self::Overloaded
            | Self::TooManyPages
            | Self::ShuttingDown
            | Self::SelectorUnavailable => ErrorSource::Router,
        }
    }

    /// Tells whether the same request may succeed a little later. A timeout is not: the engine may still be working on it.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::AllWorkersFailed
            | Self::WorkersFull
            | Self::NoWorkerAvailable
            | Self::NoPrefillWorker
            | Self::NoDecodeWorker
            | Self::Overloaded
            | Self::TooManyPages
            | Self::ShuttingDown
            | Self::SelectorUnavailable => true,
            Self::InvalidBody
            | Self::TooManyPrompts
            | Self::BodyTooLarge { .. }
            | Self::BodyBroken
            | Self::BodyTimeout
            | Self::InvalidPath
            | Self::InvalidHeader
            | Self::InvalidApiKey
            | Self::InvalidAdminKey
            | Self::AdminKeyRequired
            | Self::UnknownModel
            | Self::UnknownWorker
            | Self::UpstreamTimeout => false,
        }
    }

    /// Returns the stable code sent in `x-fathom-error-code` and in the body.
    pub fn code(self) -> &'static str {
        match self {
            Self::InvalidBody => "invalid_body",
            Self::TooManyPrompts => "too_many_prompts",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::BodyBroken => "body_broken",
            Self::BodyTimeout => "body_timeout",
            Self::InvalidPath => "invalid_path",
            Self::InvalidHeader => "invalid_header",
            Self::InvalidApiKey => "invalid_api_key",
            Self::InvalidAdminKey => "invalid_admin_key",
            Self::AdminKeyRequired => "admin_key_required",
            Self::UnknownModel => "model_not_found",
            Self::UnknownWorker => "worker_not_found",
            Self::NoWorkerAvailable => "no_worker_available",
            Self::NoPrefillWorker => "no_prefill_worker",
            Self::NoDecodeWorker => "no_decode_worker",
            Self::WorkersFull => "workers_full",
            Self::AllWorkersFailed => "all_workers_failed",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::TooManyPages => "too_many_pages",
            Self::Overloaded => "router_overloaded",
            Self::ShuttingDown => "router_shutting_down",
            Self::SelectorUnavailable => "selector_unavailable",
        }
    }
}

impl From<NoWorker> for RouteError {
    fn from(cause: NoWorker) -> Self {
        match cause {
            NoWorker::UnknownModel => Self::UnknownModel,
            NoWorker::AllFailed => Self::AllWorkersFailed,
            NoWorker::Full => Self::WorkersFull,
            NoWorker::EmptyFleet | NoWorker::NoneServing => Self::NoWorkerAvailable,
            NoWorker::NoPrefill => Self::NoPrefillWorker,
            NoWorker::NoDecode => Self::NoDecodeWorker,
            NoWorker::NoAnswer => Self::SelectorUnavailable,
        }
    }
}
