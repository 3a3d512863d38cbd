//! Pure: the objects of Cluster API that an object of a provider belongs to. Called by each group.

use bedplate_api::cluster::core::{
    CLUSTER_NAME_LABEL, CONTROL_PLANE_LABEL, Cluster, GROUP, PAUSED_ANNOTATION,
};
use bedplate_api::cluster::full;
use kube::{Resource, ResourceExt};

/// Returns name and UID of the owner of a kind of Cluster API.
pub fn owner<'a, K: Resource>(object: &'a K, kind: &str) -> Option<(&'a str, &'a str)> {
    let mut owners = object.meta().owner_references.iter().flatten();
    let is_group = |version: &str| version.split_once('/').is_some_and(|(group, _)| group == GROUP);
    let owner = owners.find(|owner| owner.kind == kind && is_group(&owner.api_version))?;
    Some((&owner.name, &owner.uid))
}

/// Returns the name of the cluster that an object belongs to.
pub fn cluster_name<K: Resource>(object: &K) -> Option<&str> {
    object.labels().get(CLUSTER_NAME_LABEL).map(String::as_str).filter(|name| !name.is_empty())
}

/// Returns true if an object belongs to the control plane of its cluster.
pub fn is_control_plane<K: Resource>(object: &K) -> bool {
    object.labels().contains_key(CONTROL_PLANE_LABEL)
}

/// A Cluster, with all fields or with those that the infrastructure provider reads.
pub trait Pausing {
    /// Returns true if no controller changes the objects of the cluster.
    fn pauses(&self) -> bool;
}

impl Pausing for Cluster {
    fn pauses(&self) -> bool {
        self.spec.paused == Some(true)
    }
}

impl Pausing for full::Cluster {
    fn pauses(&self) -> bool {
        self.spec.paused == Some(true)
    }
}

/// Returns true if no controller changes an object.
pub fn is_paused<K: Resource>(object: &K, cluster: Option<&impl Pausing>) -> bool {
    cluster.is_some_and(Pausing::pauses) || has_paused_annotation(object)
}

/// Returns true if an object has the annotation that pauses it.
pub fn has_paused_annotation<K: Resource>(object: &K) -> bool {
    object.annotations().contains_key(PAUSED_ANNOTATION)
}

#[cfg(test)]
mod tests {
    use bedplate_api::cluster::infrastructure::BedplateMachine;
    use serde_json::json;

    use super::*;

    #[test]
    fn k3_owner_is_of_the_core_group_in_any_version() {
        let owned = |version: &str| -> BedplateMachine {
            serde_json::from_value(json!({ "metadata": { "name": "m", "ownerReferences": [
                { "apiVersion": version, "kind": "Machine", "name": "o", "uid": "u" }] },
                "spec": { "configurationRef": { "name": "p" } } }))
            .unwrap()
        };
        for version in ["cluster.x-k8s.io/v1beta2", "cluster.x-k8s.io/v1beta1"] {
            assert_eq!(owner(&owned(version), "Machine"), Some(("o", "u")));
        }
        for version in ["bedplate.dev/v1alpha1", "v1"] {
            assert_eq!(owner(&owned(version), "Machine"), None);
        }
        assert_eq!(owner(&owned("cluster.x-k8s.io/v1beta2"), "Cluster"), None);
    }
}
