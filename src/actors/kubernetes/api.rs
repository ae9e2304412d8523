//! The Kubernetes API as two calls: one page of a list, and the lines of a watch. Credentials, TLS and where the API server is
//! found are the business of the `kube` crate.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Limited};
use hyper::{Request, Response};
use kube::client::Body;
use kube::{Client, Config};

use crate::config::KubernetesSettings;
use crate::logic::kubernetes::{Failure, Resource};
use crate::wire::kubernetes::{Page, WatchLine, page, status, watch_line};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a page, or the head of a watch, may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Objects per page.
const PAGE_OBJECTS: usize = 250;
/// A pod has some 10 kB; the API server itself refuses objects beyond 3 MB.
const MAX_PAGE_BYTES: usize = 64 << 20;
/// One object with what surrounds it.
const MAX_LINE_BYTES: usize = 4 << 20;
/// What is read of an answer that says no.
const MAX_STATUS_BYTES: usize = 64 << 10;
/// What is kept of a server's text for people.
const MAX_MESSAGE_CHARS: usize = 300;

/// Says why there is no way to the Kubernetes API.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubernetesError {
    /// There is neither a kubeconfig nor a service account.
    #[error("where the Kubernetes API is cannot be found out; set kubernetes_api_url, or KUBECONFIG")]
    Config(#[source] kube::config::InferConfigError),
    /// The address is not one.
    #[error("kubernetes_api_url = {value:?}: it is not an address")]
    Address {
        /// As it was given.
        value: String,
    },
    /// The credentials cannot be used.
    #[error("the credentials for the Kubernetes API cannot be used")]
    Client(#[source] kube::Error),
}

/// A way to the API. Cheap to clone.
#[derive(Clone)]
pub struct KubernetesConnection {
    client: Client,
}

impl std::fmt::Debug for KubernetesConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubernetesConnection").finish_non_exhaustive()
    }
}

/// What is asked for.
#[derive(Debug, Clone)]
pub(super) struct ResourcePath {
    pub(super) resource: Resource,
    pub(super) namespace: Arc<str>,
    pub(super) selector: String,
}

/// Why it was not given.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) failure: Failure,
    pub(super) message: String,
}

impl Trouble {
    fn new(failure: Failure, message: &str) -> Self {
        Self { failure, message: message.chars().take(MAX_MESSAGE_CHARS).collect() }
    }

    fn unreachable(error: &dyn std::error::Error) -> Self {
        Self::new(Failure::Unreachable, &error.to_string())
    }
}

impl KubernetesConnection {
    /// Finds the API server as `kubectl` does, or as a pod does, unless its address is configured. Must be called on the thread
    /// that will use it. Nothing is sent yet.
    ///
    /// # Errors
    /// Says what is missing.
    pub async fn open(settings: &KubernetesSettings) -> Result<Self, KubernetesError> {
        let mut config = match &settings.api_url {
            Some(url) => {
                let url = url.parse().map_err(|_| KubernetesError::Address { value: url.clone() })?;
                Config::new(url)
            }
            None => Config::infer().await.map_err(KubernetesError::Config)?,
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // A watch may be silent for as long as it likes; the periodic list makes up for it.
        config.read_timeout = None;
        config.default_retry = false;
        Ok(Self { client: Client::try_from(config).map_err(KubernetesError::Client)? })
    }

    /// Returns the namespace of the service account, or of the kubeconfig's context.
    pub fn default_namespace(&self) -> &str {
        self.client.default_namespace()
    }

    /// Gets one page, the first where `token` is empty.
    pub(super) async fn page(&self, path: &ResourcePath, token: &str) -> Result<Page, Trouble> {
        let mut query = path.query();
        query.append_pair("limit", &PAGE_OBJECTS.to_string());
        if !token.is_empty() {
            query.append_pair("continue", token);
        }
        let asked = async {
            let response = self.get(path, &query.finish()).await?;
            let body = Limited::new(response.into_body(), MAX_PAGE_BYTES).collect().await;
            let bytes = body.map_err(|error| Trouble::unreachable(&*error))?.to_bytes();
            page(&bytes, path.resource).map_err(|error| Trouble::new(Failure::Unreadable, &error.to_string()))
        };
        in_time(asked).await
    }

    /// Opens a watch that begins after the version, and that the server ends by itself after a while.
    pub(super) async fn watch(&self, path: &ResourcePath, version: &str, most: Duration) -> Result<Watch, Trouble> {
        let mut query = path.query();
        query.append_pair("watch", "true");
        query.append_pair("allowWatchBookmarks", "true");
        query.append_pair("resourceVersion", version);
        query.append_pair("timeoutSeconds", &(most.as_secs() + 1).to_string());
        let query = query.finish();
        let response = in_time(self.get(path, &query)).await?;
        Ok(Watch { body: response.into_body(), unread: BytesMut::new(), searched: 0, resource: path.resource })
    }

    async fn get(&self, path: &ResourcePath, query: &str) -> Result<Response<Body>, Trouble> {
        let request = Request::get(format!("{}?{query}", path.path()))
            .body(Body::empty())
            .map_err(|error| Trouble::new(Failure::Unreadable, &error.to_string()))?;
        let response = self.client.send(request).await.map_err(|error| Trouble::unreachable(&error))?;
        let code = response.status();
        if code.is_success() {
            return Ok(response);
        }
        let body = Limited::new(response.into_body(), MAX_STATUS_BYTES).collect().await;
        let said = body.map(|body| status(&body.to_bytes())).unwrap_or_default();
        let message = if said.message.is_empty() { code.to_string() } else { said.message };
        Err(Trouble::new(Failure::of_status(code.as_u16()), &message))
    }
}

async fn in_time<T>(asked: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    let late = || Trouble::new(Failure::Unreachable, "no answer in time");
    tokio::time::timeout(ANSWER_TIMEOUT, asked).await.unwrap_or_else(|_| Err(late()))
}

impl ResourcePath {
    fn path(&self) -> String {
        let group = match self.resource.group() {
            "" => "/api/v1".to_owned(),
            group => format!("/apis/{group}/v1"),
        };
        match &*self.namespace {
            "" => format!("{group}/{}", self.resource.name()),
            namespace => format!("{group}/namespaces/{namespace}/{}", self.resource.name()),
        }
    }

    fn query(&self) -> url::form_urlencoded::Serializer<'static, String> {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.append_pair("labelSelector", &self.selector);
        query
    }
}

/// An open watch.
pub(super) struct Watch {
    body: Body,
    unread: BytesMut,
    /// How much of `unread` is known to hold no end of line.
    searched: usize,
    resource: Resource,
}

impl Watch {
    /// Returns the next line; `None` where the server has ended the watch. May be dropped at any time without losing a line.
    pub(super) async fn next(&mut self) -> Result<Option<WatchLine>, Trouble> {
        loop {
            if let Some(line) = self.take_line() {
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                let read = watch_line(&line, self.resource);
                return read
                    .map(Some)
                    .ok_or_else(|| Trouble::new(Failure::Unreadable, "a line that is no watch event"));
            }
            if self.unread.len() > MAX_LINE_BYTES {
                return Err(Trouble::new(Failure::Unreadable, "a line without an end"));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(Trouble::unreachable(&*Box::<dyn std::error::Error>::from(error))),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.unread.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    fn take_line(&mut self) -> Option<Bytes> {
        let Some(end) = self.unread[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.unread.len();
            return None;
        };
        let line = self.unread.split_to(self.searched + end + 1).freeze();
        self.searched = 0;
        Some(line)
    }
}
