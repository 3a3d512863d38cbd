//! Pure: the objects that a process reconciles: those of one namespace or of all, with the filter label of Cluster API or without.
//!
//! An object with another filter value belongs to another installation. Called by the watches of each kind.

use std::collections::BTreeMap;

use kube::{Api, Client, Resource, core::NamespaceResourceScope};

/// Label with the installation that an object belongs to (`WatchLabel` of Cluster API).
pub(crate) const WATCH_FILTER: &str = "cluster.x-k8s.io/watch-filter";

/// The objects of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Namespace. None: all.
    pub namespace: Option<String>,
    /// Value of [`WATCH_FILTER`]. None: the label is ignored.
    pub filter: Option<String>,
}

impl Scope {
    /// Returns the API of a namespaced kind.
    pub fn api<K>(&self, client: Client) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        }
    }

    /// Returns true if objects of this namespace are reconciled.
    pub(crate) fn is_of_namespace(&self, namespace: &str) -> bool {
        self.namespace.as_deref().is_none_or(|own| own == namespace)
    }

    /// Returns true if an object with these labels is reconciled.
    pub fn includes(&self, labels: &BTreeMap<String, String>) -> bool {
        self.filter.as_ref().is_none_or(|filter| labels.get(WATCH_FILTER) == Some(filter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_of_another_filter_is_not_included() {
        let labels = |value: &str| BTreeMap::from([(WATCH_FILTER.to_owned(), value.to_owned())]);
        let filtered = Scope { filter: Some("blue".to_owned()), ..Scope::default() };
        assert!(filtered.includes(&labels("blue")));
        assert!(!filtered.includes(&labels("green")) && !filtered.includes(&BTreeMap::new()));
        assert!(Scope::default().includes(&labels("green")) && Scope::default().includes(&BTreeMap::new()));
    }
}
