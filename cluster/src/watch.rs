//! Parts of the watches of each group: the objects that are read, and what a store keeps of them.
//!
//! Not here: what a change concerns. Each group decides that for its kinds.

use bedplate_api::bounded_times::BoundedTimes;
pub use bedplate_engine::store::bare;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};

use crate::scope::Scope;

/// Returns the objects of a kind that the process reconciles.
pub(crate) fn in_scope<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(
    scope: &Scope,
) -> impl FnOnce(Client) -> Api<BoundedTimes<K>> + use<K> {
    let scope = scope.clone();
    move |client| scope.api(client)
}
