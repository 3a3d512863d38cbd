//! Pure: facts of typed objects that the planners share: their Cluster, conditions, controllers, selectors. Not here: decisions.

use std::collections::BTreeMap;

use bedplate_api::cluster::full::{Machine, MachineDeployment, MachineHealthCheck, MachineSet};
pub use bedplate_api::condition::{Conditions, condition, is_false, is_true};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference, Time};
use kube::core::{DynamicObject, Selector, SelectorExt};
use kube::{Resource, ResourceExt};

/// Object whose spec names its Cluster.
pub trait OfCluster: Resource {
    /// Returns the name of the Cluster. None: an object of a kind without a type has none.
    fn cluster_name(&self) -> Option<&str>;
}

macro_rules! of_cluster {
    ($($kind:ty),+) => {
        $(impl OfCluster for $kind {
            fn cluster_name(&self) -> Option<&str> {
                Some(&self.spec.cluster_name)
            }
        })+
    };
}

of_cluster!(Machine, MachineDeployment, MachineHealthCheck, MachineSet);

impl OfCluster for DynamicObject {
    fn cluster_name(&self) -> Option<&str> {
        self.data.pointer("/spec/clusterName")?.as_str()
    }
}

/// Returns the owner that controls the object.
pub fn controller<K: Resource>(object: &K) -> Option<&OwnerReference> {
    object.meta().owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Returns true if the object with this UID controls the object.
pub(crate) fn is_controlled_by<K: Resource>(object: &K, uid: &str) -> bool {
    controller(object).is_some_and(|owner| owner.uid == uid)
}

/// Returns true if the object is being deleted.
pub fn is_deleting<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// Returns the time of creation. An object that is not created yet has the time of the epoch.
pub fn created<K: Resource>(object: &K) -> Timestamp {
    object.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |Time(time)| time)
}

/// Returns the selector in its evaluated form. None: an operator or its values are not valid.
pub fn selector(of: &LabelSelector) -> Option<Selector> {
    Selector::try_from(of.clone()).ok()
}

/// Returns true if the selector matches the labels of the object. A selector that is not valid matches nothing.
pub fn is_selected<K: Resource>(object: &K, selector: Option<&Selector>) -> bool {
    selector.is_some_and(|selector| selector.matches(object.labels()))
}

/// Returns true if the object has all these labels or annotations.
pub(crate) fn has_all(present: &BTreeMap<String, String>, desired: &BTreeMap<String, String>) -> bool {
    desired.iter().all(|(key, value)| present.get(key) == Some(value))
}

/// Returns a count as fields of a status have it.
pub fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Returns a hash of bytes (FNV-1a). It is part of objects, so it must stay the same in every release.
pub(crate) fn stable_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
