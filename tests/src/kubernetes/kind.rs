//! Kinds of objects that tests use, and their API paths. Tests use kubectl for kinds that are not in the table.

use anyhow::{Context, Result};
use serde_json::Value;

/// Kind of API objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    /// Names that kubectl accepts: singular and short names. The plural is accepted too.
    names: &'static [&'static str],
    /// Group and version.
    pub(super) version: &'static str,
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    pub(super) is_namespaced: bool,
}

const OURS: &str = "bedplate.dev/v1alpha1";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io/v1alpha1";
const RBAC: &str = "rbac.authorization.k8s.io/v1";
const ADMISSION: &str = "admissionregistration.k8s.io/v1";

/// True for kinds whose objects are in namespaces.
const NAMESPACED: bool = true;
const GLOBAL: bool = false;

#[rustfmt::skip]
const KINDS: &[Kind] = &[
    Kind::new(&["machine"], OURS, "Machine", "machines", GLOBAL),
    Kind::new(&["machineconfiguration", "mc"], OURS, "MachineConfiguration", "machineconfigurations", GLOBAL),
    Kind::new(&["machineconfigurationversion", "mcv"], OURS, "MachineConfigurationVersion", "machineconfigurationversions", GLOBAL),
    Kind::new(&["machineoperation", "mop"], OURS, "MachineOperation", "machineoperations", GLOBAL),
    Kind::new(&["machineclaim", "mcl"], OURS, "MachineClaim", "machineclaims", GLOBAL),
    Kind::new(&["bedplatecluster", "bpc"], INFRASTRUCTURE, "BedplateCluster", "bedplateclusters", NAMESPACED),
    Kind::new(&["bedplateclustertemplate", "bpct"], INFRASTRUCTURE, "BedplateClusterTemplate", "bedplateclustertemplates", NAMESPACED),
    Kind::new(&["bedplatemachine", "bpm"], INFRASTRUCTURE, "BedplateMachine", "bedplatemachines", NAMESPACED),
    Kind::new(&["bedplatemachinetemplate", "bpmt"], INFRASTRUCTURE, "BedplateMachineTemplate", "bedplatemachinetemplates", NAMESPACED),
    Kind::new(&["cluster"], "cluster.x-k8s.io/v1beta2", "Cluster", "clusters", NAMESPACED),
    Kind::new(&["clustermachine"], "cluster.x-k8s.io/v1beta2", "Machine", "machines", NAMESPACED),
    Kind::new(&["kubeadmconfig"], "bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfig", "kubeadmconfigs", NAMESPACED),
    Kind::new(&["kubeadmconfigtemplate"], "bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfigTemplate", "kubeadmconfigtemplates", NAMESPACED),
    Kind::new(&["machinedeployment"], "cluster.x-k8s.io/v1beta2", "MachineDeployment", "machinedeployments", NAMESPACED),
    Kind::new(&["machineset"], "cluster.x-k8s.io/v1beta2", "MachineSet", "machinesets", NAMESPACED),
    Kind::new(&["machinehealthcheck"], "cluster.x-k8s.io/v1beta2", "MachineHealthCheck", "machinehealthchecks", NAMESPACED),
    Kind::new(&["machinedrainrule"], "cluster.x-k8s.io/v1beta2", "MachineDrainRule", "machinedrainrules", NAMESPACED),
    Kind::new(&["kubeadmcontrolplane", "kcp"], "controlplane.cluster.x-k8s.io/v1beta2", "KubeadmControlPlane", "kubeadmcontrolplanes", NAMESPACED),
    Kind::new(&["node"], "v1", "Node", "nodes", GLOBAL),
    Kind::new(&["namespace"], "v1", "Namespace", "namespaces", GLOBAL),
    Kind::new(&["pod"], "v1", "Pod", "pods", NAMESPACED),
    Kind::new(&["persistentvolume", "pv"], "v1", "PersistentVolume", "persistentvolumes", GLOBAL),
    Kind::new(&["volumeattachment"], "storage.k8s.io/v1", "VolumeAttachment", "volumeattachments", GLOBAL),
    Kind::new(&["service"], "v1", "Service", "services", NAMESPACED),
    Kind::new(&["endpointslice"], "discovery.k8s.io/v1", "EndpointSlice", "endpointslices", NAMESPACED),
    Kind::new(&["secret"], "v1", "Secret", "secrets", NAMESPACED),
    Kind::new(&["configmap"], "v1", "ConfigMap", "configmaps", NAMESPACED),
    Kind::new(&["serviceaccount"], "v1", "ServiceAccount", "serviceaccounts", NAMESPACED),
    Kind::new(&["event"], "events.k8s.io/v1", "Event", "events", NAMESPACED),
    Kind::new(&["lease"], "coordination.k8s.io/v1", "Lease", "leases", NAMESPACED),
    Kind::new(&["poddisruptionbudget", "pdb"], "policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", NAMESPACED),
    Kind::new(&["replicaset"], "apps/v1", "ReplicaSet", "replicasets", NAMESPACED),
    Kind::new(&["deployment"], "apps/v1", "Deployment", "deployments", NAMESPACED),
    Kind::new(&["daemonset"], "apps/v1", "DaemonSet", "daemonsets", NAMESPACED),
    Kind::new(&["clusterrole"], RBAC, "ClusterRole", "clusterroles", GLOBAL),
    Kind::new(&["clusterrolebinding"], RBAC, "ClusterRoleBinding", "clusterrolebindings", GLOBAL),
    Kind::new(&["role"], RBAC, "Role", "roles", NAMESPACED),
    Kind::new(&["rolebinding"], RBAC, "RoleBinding", "rolebindings", NAMESPACED),
    Kind::new(&["validatingadmissionpolicy"], ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", GLOBAL),
    Kind::new(&["validatingadmissionpolicybinding"], ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", GLOBAL),
    Kind::new(&["certificatesigningrequest", "csr"], "certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests", GLOBAL),
    Kind::new(&["customresourcedefinition", "crd"], "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", GLOBAL),
];

impl Kind {
    const fn new(
        names: &'static [&'static str],
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        is_namespaced: bool,
    ) -> Self {
        Self { names, version, kind, plural, is_namespaced }
    }

    /// Finds a kind by a name that kubectl accepts, or by the name of the kind.
    ///
    /// # Errors
    /// The kind is not in the table.
    pub(super) fn named(name: &str) -> Result<&'static Self> {
        let found =
            KINDS.iter().find(|kind| kind.plural == name || kind.kind == name || kind.names.contains(&name));
        found.with_context(|| format!("no kind {name}: add it to tests/src/kubernetes/kind.rs"))
    }

    /// Finds the kind of a manifest.
    ///
    /// # Errors
    /// The kind is not in the table.
    pub(super) fn of(object: &Value) -> Result<&'static Self> {
        let found =
            KINDS.iter().find(|kind| object["kind"] == kind.kind && object["apiVersion"] == kind.version);
        found.with_context(|| {
            let (version, kind) = (&object["apiVersion"], &object["kind"]);
            format!("no kind {version} {kind}: add it to tests/src/kubernetes/kind.rs")
        })
    }

    /// Returns the path of all objects of the kind, in one namespace or in all.
    pub(super) fn path(&self, namespace: Option<&str>) -> String {
        let root = if self.version.contains('/') { "apis" } else { "api" };
        match namespace.filter(|_| self.is_namespaced) {
            Some(namespace) => format!("/{root}/{}/namespaces/{namespace}/{}", self.version, self.plural),
            None => format!("/{root}/{}/{}", self.version, self.plural),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kind_has_its_api_path() {
        let path = |name, namespace| Kind::named(name).unwrap().path(namespace);
        assert_eq!(path("mcv", None), "/apis/bedplate.dev/v1alpha1/machineconfigurationversions");
        assert_eq!(path("node", Some("default")), "/api/v1/nodes");
        assert_eq!(path("pod", Some("a")), "/api/v1/namespaces/a/pods");
        assert_eq!(path("pods", None), "/api/v1/pods");
        let budget = json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget" });
        assert_eq!(Kind::of(&budget).unwrap(), Kind::named("pdb").unwrap());
        assert!(Kind::named("invented").is_err());
    }

    #[test]
    fn each_name_of_a_kind_is_used_once() {
        let mut names: Vec<&str> = KINDS.iter().flat_map(|kind| kind.names).copied().collect();
        // `machines` are those of Bedplate, as in documents; the Machines of Cluster API have the singular alone.
        names.extend(KINDS.iter().filter(|kind| kind.names != ["clustermachine"]).map(|kind| kind.plural));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
