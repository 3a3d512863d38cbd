//! Pure: the rolling update (MD2, MD3). Called by the planner of deployments.
//!
//! The current set grows while all Machines together stay below replicas plus surge. Old sets shrink while enough Machines stay available,
//! also if a set removes its available Machines first: a user may have marked them.

use super::Note;
use super::part::{Bounds, Part, to_count};

/// Decides the targets. The first part is the current set, the others follow from the oldest to the newest.
pub(crate) fn scale(bounds: &Bounds, parts: &mut [Part]) {
    grow_current(bounds, bounds.maximum(), parts);
    shrink_old(bounds, parts);
    unblock(parts);
}

/// Gives the current set as many replicas as there is room for below the maximum. A set that is too large shrinks immediately: its user has
/// asked for fewer replicas.
pub(crate) fn grow_current(bounds: &Bounds, maximum: i64, parts: &mut [Part]) {
    let machines: i64 = parts.iter().map(Part::reserved).sum();
    let current = &mut parts[0];
    // Machines of the current set that are about to be deleted take no room: they are kept (rollback).
    let room = maximum - (machines - current.reserved());
    if current.asked > bounds.replicas {
        current.set(bounds.replicas, Note::CurrentTooLarge);
    } else if current.asked < bounds.replicas.min(room) {
        let note = Note::Room { machines: to_count(machines), maximum: to_count(maximum) };
        current.set(bounds.replicas.min(room), note);
    }
}

fn shrink_old(bounds: &Bounds, parts: &mut [Part]) {
    let asked: i64 = parts.iter().map(|part| part.asked).sum();
    let pending: i64 = parts.iter().map(Part::pending).sum();
    // Machines of the current set that do not become available stop the rollout: otherwise a broken version would replace everything.
    let broken = (parts[0].asked - parts[0].available).max(0);
    let mut budget = asked - pending - bounds.minimum() - broken;
    // Machines that are unavailable go first, so that the rollout can proceed.
    for is_unavailable_only in [true, false] {
        for index in 1..parts.len() {
            budget -= shrink(index, budget, is_unavailable_only, bounds.minimum(), parts);
        }
    }
}

/// Lowers the target of one old set, and returns by how much.
fn shrink(index: usize, budget: i64, is_unavailable_only: bool, minimum: i64, parts: &mut [Part]) -> i64 {
    let available: i64 = parts.iter().map(|part| part.available).sum();
    let others: i64 = parts.iter().map(Part::loss).sum::<i64>() - parts[index].loss();
    let part = &mut parts[index];
    let most = if is_unavailable_only { (part.target - part.available).max(0) } else { part.target };
    let mut lowest = part.target - most.min(budget.max(0));
    if part.available > 0 {
        // Each Machine that the set removes may be an available one.
        let room = (available - others - minimum).max(0);
        lowest = lowest.max((part.existing - room).min(part.target));
    }
    let taken = part.target - lowest;
    if taken > 0 {
        let before = part.loss();
        part.target = lowest;
        let note = if part.loss() == before {
            Note::NoneAvailableLost
        } else {
            Note::Surplus {
                available: to_count(available - others - part.loss()),
                minimum: to_count(minimum),
            }
        };
        part.set(lowest, note);
    }
    taken
}

/// Takes one Machine from an old set if nothing else can proceed. Without this, unavailable old Machines could block a rollout for ever,
/// because the bounds assume that an available one is removed.
fn unblock(parts: &mut [Part]) {
    let is_settled = parts.iter().all(|part| part.target == part.asked && part.asked == part.existing);
    if !is_settled || parts[0].available != parts[0].existing {
        return;
    }
    let mut old = parts[1..].iter_mut();
    if let Some(part) = old.find(|part| part.available != part.existing) {
        part.set(part.asked - 1, Note::Unblock);
    }
}
