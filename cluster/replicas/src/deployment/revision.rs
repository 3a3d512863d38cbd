//! Pure: the revision of the current set (MD8). Called by the planner.

use super::SetSummary;

/// Revision of the current set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revision {
    /// The number. It is higher than that of each other set.
    pub number: u64,
    /// Former number of a set that is current again. It belongs in the annotation `revision-history`.
    pub replaces: Option<u64>,
}

/// Returns the revision of the current set, which may not exist yet. It only rises.
pub(crate) fn of(current: Option<&SetSummary>, old: &[&SetSummary]) -> Revision {
    let highest = old.iter().map(|set| set.revision).max().unwrap_or(0);
    let former = current.map_or(0, |set| set.revision);
    let number = former.max(highest.saturating_add(1));
    Revision { number, replaces: (former != 0 && former != number).then_some(former) }
}
