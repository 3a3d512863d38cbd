//! Pure: the system of record of a site's Machines. `plane` chooses it. Every other module takes it from there, and does not ask for a cluster.
//!
//! Statuses, keys in force, permissions and heartbeats are in one place. `status`, `heard` and `enroll` derive from it the record that counts.

/// System with the statuses of Machines. Agents report to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SystemOfRecord {
    /// pxed and its store (standalone). pxed is the only writer of statuses, and decides what a controller decides in a cluster.
    Pxed,
    /// The API server (in a cluster). Statuses have other writers, and outlive pxed's store.
    Cluster,
}

impl SystemOfRecord {
    /// Returns true if pxed is the only writer of statuses and hears each report itself.
    pub(crate) fn is_pxed(self) -> bool {
        self == Self::Pxed
    }

    /// Returns the record that counts of pxed's own and that of the object.
    pub fn select<T>(self, own: T, object: T) -> T {
        match self {
            Self::Pxed => own,
            Self::Cluster => object,
        }
    }
}
