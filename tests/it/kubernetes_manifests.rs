//! The manifests in examples/kubernetes.
