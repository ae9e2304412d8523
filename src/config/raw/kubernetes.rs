//! What people write about Kubernetes: which pods become workers.

use clap::Args;
use serde::Deserialize;

const KUBERNETES: &str = "Kubernetes";

/// Which pods of a Kubernetes cluster become workers.
#[derive(Debug, Clone, PartialEq, Default, Args, Deserialize)]
#[non_exhaustive]
pub struct RawKubernetes {
    /// Service whose EndpointSlices say which pods become workers. Default: none.
    #[arg(long, env = "FATHOM_KUBERNETES_SERVICE", value_name = "NAME", help_heading = KUBERNETES)]
    pub kubernetes_service: Option<String>,

    /// Label selector of the pods that become workers; beside kubernetes_service it adds nobody, and tells which containers
    /// were started again in place. Default: none.
    #[arg(long, env = "FATHOM_KUBERNETES_SELECTOR", value_name = "SELECTOR", help_heading = KUBERNETES)]
    pub kubernetes_selector: Option<String>,

    /// Namespaces to look in, separated by commas; * is all of them, which takes a ClusterRole. Default: the router's own.
    #[arg(long, env = "FATHOM_KUBERNETES_NAMESPACES", value_name = "NAME", num_args = 1.., value_delimiter = ',', help_heading = KUBERNETES)]
    pub kubernetes_namespaces: Option<Vec<String>>,

    /// The engines' port: a number, or the name of a port of the container, of the service where kubernetes_service is given.
    /// Default: the only one.
    #[arg(long, env = "FATHOM_KUBERNETES_PORT", value_name = "PORT", help_heading = KUBERNETES)]
    pub kubernetes_port: Option<String>,

    /// How often the full list is taken beside the watch, which repairs what a silent watch has missed, in seconds, 1 to 86400.
    /// Default: 60.
    #[arg(long, env = "FATHOM_KUBERNETES_RELIST_SECS", value_name = "SECS", help_heading = KUBERNETES)]
    pub kubernetes_relist_secs: Option<u64>,

    /// How often the full list is taken where watching is forbidden, in seconds, 1 to 3600. Default: 5.
    #[arg(long, env = "FATHOM_KUBERNETES_POLL_SECS", value_name = "SECS", help_heading = KUBERNETES)]
    pub kubernetes_poll_secs: Option<u64>,

    /// The most workers from Kubernetes, 1 to 10000; who was there before stays. Default: 1024.
    #[arg(long, env = "FATHOM_KUBERNETES_MAX_ENDPOINTS", value_name = "COUNT", help_heading = KUBERNETES)]
    pub kubernetes_max_endpoints: Option<usize>,

    /// Address of the API server, such as that of kubectl proxy. Default: as kubectl or a pod finds it.
    #[arg(long, env = "FATHOM_KUBERNETES_API_URL", value_name = "URL", help_heading = KUBERNETES)]
    pub kubernetes_api_url: Option<String>,
}

keys_of! { RawKubernetes:
    kubernetes_service kubernetes_selector kubernetes_namespaces kubernetes_port kubernetes_relist_secs
    kubernetes_poll_secs kubernetes_max_endpoints kubernetes_api_url
}
