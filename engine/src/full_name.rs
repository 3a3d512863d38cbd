//! Pure: the name of an object within its kind, as `namespace/name`, or as `name` if the kind is cluster-scoped.
//!
//! Objects in two namespaces may share a name, so delays, waiting times, log lines and errors use the full name.

use std::borrow::Cow;

use kube::runtime::reflector::{Lookup, ObjectRef};

/// Returns the full name of a referenced object.
pub fn full_name<K: Lookup + ?Sized>(object: &ObjectRef<K>) -> Cow<'_, str> {
    join(object.namespace.as_deref(), &object.name)
}

/// Returns the full name of the object with this name in a namespace.
pub(crate) fn join<'a>(namespace: Option<&str>, name: &'a str) -> Cow<'a, str> {
    namespace.map_or(Cow::Borrowed(name), |namespace| Cow::Owned(format!("{namespace}/{name}")))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Node, Pod};

    use super::*;

    #[test]
    fn full_name_has_the_namespace_of_a_namespaced_kind() {
        assert_eq!(full_name(&ObjectRef::<Pod>::new("web").within("team")), "team/web");
        assert_eq!(full_name(&ObjectRef::<Node>::new("web")), "web");
    }
}
