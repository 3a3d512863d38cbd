//! Parts of the watches of each group: the objects that are read, and what a store keeps of them.
//!
//! Not here: what a change concerns. Each group decides that for its kinds.

use bedplate_api::bounded_times::BoundedTimes;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};

use crate::scope::Scope;

/// Annotation with which kubectl stores the whole object a second time.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Returns the objects of a kind that the process reconciles.
pub fn in_scope<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(
    scope: &Scope,
) -> impl FnOnce(Client) -> Api<BoundedTimes<K>> + use<K> {
    let scope = scope.clone();
    move |client| scope.api(client)
}

/// Removes what kubectl and the API server store about an object's writers.
pub fn bare<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
    if let Some(annotations) = &mut object.meta_mut().annotations {
        annotations.remove(LAST_APPLIED);
    }
}
