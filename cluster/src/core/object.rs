//! Pure: facts of typed objects that the planners of replicas share: conditions, controllers, selectors. Not here: decisions.

use std::collections::BTreeMap;

use bedplate_api::cluster::core::GROUP;
use bedplate_api::cluster::part::VERSION;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, OwnerReference, Time};
use kube::core::{Selector, SelectorExt};
use kube::{Resource, ResourceExt};

/// Returns the condition of a type.
pub fn condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns true if the condition of a type is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    condition(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// Returns true if the condition of a type is False.
pub fn is_false(conditions: &[Condition], type_: &str) -> bool {
    condition(conditions, type_).is_some_and(|condition| condition.status == "False")
}

/// Returns the owner that controls the object.
pub fn controller<K: Resource>(object: &K) -> Option<&OwnerReference> {
    object.meta().owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Returns true if the object with this UID controls the object.
pub fn is_controlled_by<K: Resource>(object: &K, uid: &str) -> bool {
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

/// Returns a reference to an owner of Cluster API.
pub fn owner_reference<K: Resource<DynamicType = ()>>(owner: &K, is_controller: bool) -> OwnerReference {
    OwnerReference {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: K::kind(&()).into_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: is_controller.then_some(true),
        block_owner_deletion: is_controller.then_some(true),
    }
}

/// Returns the owners of an object with one more. It replaces an owner of the same name and kind with another UID, which was deleted: if it were the
/// only owner, the garbage collector would delete the object.
pub fn with_owner<K: Resource>(object: &K, owner: &OwnerReference) -> Vec<OwnerReference> {
    let group = |of: &OwnerReference| of.api_version.split('/').next().unwrap_or_default().to_owned();
    let is_former = |present: &&OwnerReference| {
        present.kind == owner.kind && present.name == owner.name && group(present) == group(owner)
    };
    let present = object.meta().owner_references.iter().flatten();
    present.filter(|present| !is_former(present)).chain([owner]).cloned().collect()
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
pub fn has_all(present: &BTreeMap<String, String>, desired: &BTreeMap<String, String>) -> bool {
    desired.iter().all(|(key, value)| present.get(key) == Some(value))
}

/// Returns a count as fields of a status have it.
pub fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Returns a hash of bytes (FNV-1a). It is part of objects, so it must stay the same in every release.
pub fn stable_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
