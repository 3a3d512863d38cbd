//! Annotations of Cluster API.
//!
//! Not here: who writes them. Callers: the kinds and the controllers of Cluster API.
//!
//! Pure: no clock, no file, no socket.

pub use crate::cluster::core::PAUSED_ANNOTATION as PAUSED;

/// Annotation of a Machine: health checks skip it. Its value has no meaning.
pub const SKIP_REMEDIATION: &str = "cluster.x-k8s.io/skip-remediation";

/// Annotation of a Machine: health checks mark it. Its value has no meaning.
pub const REMEDIATE_MACHINE: &str = "cluster.x-k8s.io/remediate-machine";

/// Annotation of a Machine: its set deletes it first. Its value has no meaning.
pub const DELETE_MACHINE: &str = "cluster.x-k8s.io/delete-machine";

/// Annotation of a Machine: its Node is not drained. Its value has no meaning.
pub const EXCLUDE_NODE_DRAINING: &str = "machine.cluster.x-k8s.io/exclude-node-draining";

/// Annotation of a Machine: its deletion does not wait for volumes. Its value has no meaning.
pub const EXCLUDE_VOLUME_DETACH: &str = "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach";

/// Prefix of annotations of a Machine that hold its deletion before the drain.
pub const PRE_DRAIN_HOOK_PREFIX: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io";

/// Prefix of annotations of a Machine that hold its deletion after the drain.
pub const PRE_TERMINATE_HOOK_PREFIX: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io";

/// Annotation of a Machine of a KubeadmControlPlane: the member of etcd is not removed yet.
pub const KCP_CLEANUP_HOOK: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/kcp-cleanup";

/// Annotation of a Machine or of its bootstrap object: time at which the certificates expire (RFC 3339).
pub const CERTIFICATES_EXPIRY: &str = "machine.cluster.x-k8s.io/certificates-expiry";

/// Prefix of annotations of in-place updates. Bedplate carries out none.
pub(crate) const IN_PLACE_UPDATES_PREFIX: &str = "in-place-updates.internal.cluster.x-k8s.io/";

/// Annotation of a MachineSet: `true` if it must not make Machines.
pub const DISABLE_MACHINE_CREATE: &str = "cluster.x-k8s.io/disable-machine-create";

/// Annotation of a MachineSet or MachineDeployment: names of preflight checks that are skipped, separated by commas.
pub const SKIP_PREFLIGHT_CHECKS: &str = "machineset.cluster.x-k8s.io/skip-preflight-checks";

/// Annotation of a MachineSet or MachineDeployment: minimum of `spec.replicas` of the autoscaler.
pub const AUTOSCALER_MIN_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size";

/// Annotation of a MachineDeployment and of its sets: number of the template.
pub const REVISION: &str = "machinedeployment.clusters.x-k8s.io/revision";

/// Annotation of a MachineSet: earlier numbers of its template, separated by commas.
pub const REVISION_HISTORY: &str = "machinedeployment.clusters.x-k8s.io/revision-history";

/// Annotation of a MachineSet: `spec.replicas` of the MachineDeployment.
pub const DESIRED_REPLICAS: &str = "machinedeployment.clusters.x-k8s.io/desired-replicas";

/// Annotation of a MachineSet: `spec.replicas` of the MachineDeployment with its surge.
pub const MAX_REPLICAS: &str = "machinedeployment.clusters.x-k8s.io/max-replicas";

/// Annotation of an object that was made from a template: name of the template.
pub const CLONED_FROM_NAME: &str = "cluster.x-k8s.io/cloned-from-name";

/// Annotation of an object that was made from a template: kind and group of the template, as `Kind.group`.
pub const CLONED_FROM_GROUP_KIND: &str = "cluster.x-k8s.io/cloned-from-groupkind";

/// Annotation of a MachineSet: Machines that are being made, as JSON: name, kind of the infrastructure object, kind of the bootstrap object. It is
/// written before the first object of a Machine exists. A name is removed when its Machine exists, or when its objects are deleted.
pub const CREATING: &str = "bedplate.dev/creating";

/// Annotation of the Secret `<cluster>-kubeconfig`: digest of the kubeconfig that the core provider has written into it. The provider renews the
/// kubeconfig only if its digest is this one.
pub const KUBECONFIG_DIGEST: &str = "bedplate.dev/kubeconfig-digest";

/// Annotation of a Machine of a MachineSet, and of its objects: labels and annotations that the MachineSet has given, as JSON: their keys, and a
/// hash of keys and values. A key that the MachineSet does not give any more is removed from the object. Other keys stay. Of a Machine, also the
/// fields of its spec that the MachineSet has given in place.
pub const PROPAGATED: &str = "bedplate.dev/propagated";

/// Annotation of a Node: name of the cluster.
pub const NODE_CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";

/// Annotation of a Node: namespace of its Machine.
pub const NODE_CLUSTER_NAMESPACE: &str = "cluster.x-k8s.io/cluster-namespace";

/// Annotation of a Node: name of its Machine.
pub const NODE_MACHINE: &str = "cluster.x-k8s.io/machine";

/// Annotation of a Node: kind of the owner of its Machine.
pub const NODE_OWNER_KIND: &str = "cluster.x-k8s.io/owner-kind";

/// Annotation of a Node: name of the owner of its Machine.
pub const NODE_OWNER_NAME: &str = "cluster.x-k8s.io/owner-name";

/// Annotation of a Node: keys of the labels that come from its Machine, separated by commas.
pub const LABELS_FROM_MACHINE: &str = "cluster.x-k8s.io/labels-from-machine";

/// Annotation of a Node: keys of the annotations that come from its Machine, separated by commas.
pub const ANNOTATIONS_FROM_MACHINE: &str = "cluster.x-k8s.io/annotations-from-machine";

/// Annotation of a Node: taints that come from its Machine, separated by commas.
pub const TAINTS_FROM_MACHINE: &str = "cluster.x-k8s.io/taints-from-machine";

/// Returns true if an annotation belongs to Cluster API.
pub(crate) fn is_of_cluster_api(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    domain == "cluster.x-k8s.io" || domain.ends_with(".cluster.x-k8s.io")
}
