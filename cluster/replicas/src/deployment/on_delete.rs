//! Pure: strategy OnDelete (MD4): an old Machine is replaced when a user deletes it. Called by the planner of deployments.

use super::Note;
use super::part::{Bounds, Part};
use super::rolling::grow_current;

/// Decides the targets. The first part is the current set, the others follow from the oldest to the newest.
pub(crate) fn scale(bounds: &Bounds, parts: &mut [Part]) {
    grow_current(bounds, bounds.replicas, parts);
    let asked: i64 = parts[0].target + parts[1..].iter().map(|part| part.asked).sum::<i64>();
    let mut surplus = asked - bounds.replicas;
    // An old set must not re-create a Machine that was deleted.
    for part in &mut parts[1..] {
        let deleted = (part.asked - part.existing).max(0);
        if deleted > 0 {
            part.set(part.asked - deleted, Note::MachinesDeleted);
            surplus -= deleted;
        }
    }
    for part in &mut parts[1..] {
        let taken = part.target.min(surplus.max(0));
        if taken > 0 {
            part.set(part.target - taken, Note::TooManyReplicas);
            surplus -= taken;
        }
    }
}
