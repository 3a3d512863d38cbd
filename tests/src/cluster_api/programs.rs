//! The providers of Cluster API in a test: which of them are ours, and which are upstream's.

/// Source of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Upstream's manager, for all namespaces.
    Upstream,
    /// Upstream's manager, for one namespace.
    Within(&'static str),
    /// A group of `bedplate-cluster`, which the caller starts.
    Bedplate,
}

/// Sources of the providers that differ between tests. The infrastructure is ours, and the control plane is upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Programs {
    /// Source of the core. The control plane acts in the same namespaces.
    pub core: Source,
    /// Source of the bootstrap provider.
    pub bootstrap: Source,
}

impl Programs {
    /// Upstream's core and upstream's bootstrap.
    pub const UPSTREAM: Self = Self { core: Source::Upstream, bootstrap: Source::Upstream };

    /// Returns the groups of `bedplate-cluster` that the caller starts.
    pub fn groups(self) -> Vec<&'static str> {
        let ours = [("core", self.core), ("bootstrap", self.bootstrap)];
        let ours = ours.into_iter().filter(|(_, source)| *source == Source::Bedplate);
        std::iter::once("infrastructure").chain(ours.map(|(group, _)| group)).collect()
    }
}
