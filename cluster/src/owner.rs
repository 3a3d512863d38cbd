//! Pure: the objects of Cluster API that an object of a provider belongs to. Called by each group.

use bedplate_api::cluster::core::{
    CLUSTER_NAME_LABEL, CONTROL_PLANE_LABEL, Cluster, GROUP, PAUSED_ANNOTATION,
};
use bedplate_api::cluster::full;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

/// Returns name and UID of the owner of a kind of Cluster API.
pub fn owner<'a, K: Resource>(object: &'a K, kind: &str) -> Option<(&'a str, &'a str)> {
    let mut owners = object.meta().owner_references.iter().flatten();
    let is_group = |version: &str| version.split_once('/').is_some_and(|(group, _)| group == GROUP);
    let owner = owners.find(|owner| owner.kind == kind && is_group(&owner.api_version))?;
    Some((&owner.name, &owner.uid))
}

/// Returns a reference to an owner.
pub(crate) fn owner_reference<K: Resource<DynamicType = ()>>(
    owner: &K,
    is_controller: bool,
) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: is_controller.then_some(true),
        block_owner_deletion: is_controller.then_some(true),
    }
}

/// Returns the owners of an object with one more. It replaces an owner of the same name and kind with another UID, which was deleted: if it were the
/// only owner, the garbage collector would delete the object.
pub(crate) fn with_owner<K: Resource>(object: &K, owner: &OwnerReference) -> Vec<OwnerReference> {
    let group = |of: &OwnerReference| of.api_version.split('/').next().unwrap_or_default().to_owned();
    let is_same = |present: &OwnerReference| present.uid == owner.uid;
    let is_kept = |present: &&OwnerReference| {
        let has_role = present.controller == Some(true) || owner.controller != Some(true);
        let is_named = present.kind == owner.kind && present.name == owner.name;
        if is_same(present) { has_role } else { !is_named || group(present) != group(owner) }
    };
    let present = object.meta().owner_references.iter().flatten();
    let mut owners: Vec<OwnerReference> = present.filter(is_kept).cloned().collect();
    if !owners.iter().any(is_same) {
        owners.push(owner.clone());
    }
    owners
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
pub(crate) fn has_paused_annotation<K: Resource>(object: &K) -> bool {
    object.annotations().contains_key(PAUSED_ANNOTATION)
}

#[cfg(test)]
mod tests {
    use bedplate_api::cluster::infrastructure::BedplateMachine;
    use serde_json::json;

    use super::*;

    #[test]
    fn owner_replaces_a_deleted_one_and_keeps_the_others() {
        let of = |kind: &str, name: &str, uid: &str, controller: bool| {
            let version = "cluster.x-k8s.io/v1beta2";
            let mut owner = json!({ "apiVersion": version, "kind": kind, "name": name, "uid": uid });
            if controller {
                owner["controller"] = true.into();
                owner["blockOwnerDeletion"] = true.into();
            }
            owner
        };
        let owners = |present: &[serde_json::Value], is_controller: bool| {
            let object: BedplateMachine = serde_json::from_value(json!({ "metadata": { "name": "m",
                "ownerReferences": present }, "spec": { "configurationRef": { "name": "p" } } }))
            .unwrap();
            let cluster = json!({ "metadata": { "name": "c", "uid": "1" }, "spec": {} });
            let cluster: full::Cluster = serde_json::from_value(cluster).unwrap();
            json!(with_owner(&object, &owner_reference(&cluster, is_controller)))
        };
        let (own, other) = (of("Cluster", "c", "1", false), of("MachineSet", "c", "2", true));
        assert_eq!(owners(&[], false), json!([own]));
        assert_eq!(owners(&[other.clone(), own.clone()], false), json!([other, own]));
        assert_eq!(owners(&[of("Cluster", "c", "0", false), other.clone()], false), json!([other, own]));
        let controller = of("Cluster", "c", "1", true);
        assert_eq!(owners(&[own], true), json!([controller]));
        assert_eq!(
            owners(std::slice::from_ref(&controller), false),
            json!([controller]),
            "a role is not taken away"
        );
    }

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
