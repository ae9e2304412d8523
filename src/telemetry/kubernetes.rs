//! What the Kubernetes source knows, and how old that is.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::telemetry::Kind;

/// One resource in one namespace. The set is closed by the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KubernetesLabels {
    /// The namespace; `*` for all of them.
    pub namespace: String,
    /// `pods` or `endpointslices`.
    pub resource: &'static str,
}

/// A right to a resource in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RightLabels {
    namespace: String,
    resource: &'static str,
    verb: &'static str,
}

/// Counters and gauges of the Kubernetes source. Nothing is shown of a resource that is not followed.
#[derive(Debug, Clone, Default)]
pub struct KubernetesTelemetry {
    /// 1 while what is known is no older than two list periods.
    pub synced: Family<KubernetesLabels, Gauge>,
    /// Seconds since the API last said what there is, by a list or by its watch. Absent until it has.
    pub age_seconds: Family<KubernetesLabels, Gauge<f64, AtomicU64>>,
    /// Full lists taken.
    pub lists: Counter,
    /// Lists and watches that failed, by reason.
    pub failures: Family<Kind, Counter>,
    missing_rights: Family<RightLabels, Gauge>,
    unused: Family<Kind, Gauge>,
}

impl KubernetesTelemetry {
    /// Returns the gauge that is 1 while the verb is forbidden.
    pub fn missing_rights(&self, labels: &KubernetesLabels, verb: &'static str) -> Gauge {
        let labels = RightLabels { namespace: labels.namespace.clone(), resource: labels.resource, verb };
        self.missing_rights.get_or_create_owned(&labels)
    }

    /// Returns the gauge of pods that are not served, for this reason.
    pub fn unused_of(&self, kind: &'static str) -> Gauge {
        self.unused.get_or_create_owned(&Kind { kind })
    }

    pub(super) fn register(&self, r: &mut Registry) {
        r.register("synced", "1 while what is known is no older than two list periods", self.synced.clone());
        let help = "Seconds since the Kubernetes API last said what there is";
        r.register("age_seconds", help, self.age_seconds.clone());
        r.register("lists", "Full lists taken", self.lists.clone());
        r.register("failures", "Lists and watches that failed, by reason", self.failures.clone());
        r.register("missing_rights", "1 while the service account may not do this", self.missing_rights.clone());
        r.register("unused_pods", "Pods that are not served, by reason", self.unused.clone());
    }
}
