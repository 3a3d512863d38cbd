//! Pure: choice of the Machines that a MachineSet replaces because a health check has marked them (MS6). Called by the planner of sets.

use super::{Health, MachineView, Mark, Remediated, SetView};
use crate::Key;
use crate::order::remediation_order;

/// Decisions about marked Machines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Decided {
    /// Desired condition `OwnerRemediated`.
    pub(crate) mark: Vec<(Key, Mark)>,
    /// Machines to delete.
    pub(crate) delete: Vec<Key>,
    /// True if preflight checks hold a remediation.
    pub(crate) is_blocked: bool,
}

/// Decides about the marked Machines. A Machine loses its mark if its health check succeeds, or if no health check judges it any more.
pub(crate) fn decide(seen: &SetView, owned: &[&MachineView], present: &[&MachineView]) -> Decided {
    let mut decided = Decided::default();
    let marked = present.iter().filter(|machine| machine.remediated.is_some());
    for machine in marked.clone().filter(|machine| machine.health != Health::Failed) {
        decided.mark.push((machine.key.clone(), Mark::Remove));
    }
    let mut failed: Vec<&MachineView> =
        marked.copied().filter(|machine| machine.health == Health::Failed).collect();
    if !seen.remediation.is_current_revision {
        decided.mark_all(&failed, &Mark::CannotBe);
        return decided;
    }
    remediation_order(&mut failed);
    let (now, later) = failed.split_at(tokens(seen, owned).min(failed.len()));
    if let Some((maximum, _)) = seen.remediation.max_in_flight {
        decided.mark_all(later, &Mark::TooManyInFlight(maximum));
    }
    if now.is_empty() {
        return decided;
    }
    if seen.preflight.is_empty() {
        // The mark precedes the deletion: a Machine that is being deleted is not decided about again.
        decided.mark_all(now, &Mark::Deleting);
        decided.delete = now.iter().map(|machine| machine.key.clone()).collect();
    } else {
        decided.mark_all(now, &Mark::Preflight(seen.preflight.clone()));
        decided.is_blocked = true;
    }
    decided
}

/// Returns how many Machines may be remediated now.
fn tokens(seen: &SetView, owned: &[&MachineView]) -> usize {
    let Some((amount, replicas)) = seen.remediation.max_in_flight else { return usize::MAX };
    let maximum = usize::try_from(amount.of_rounded_up(replicas)).unwrap_or(usize::MAX);
    let in_flight = owned
        .iter()
        .filter(|machine| machine.is_deleting && machine.remediated == Some(Remediated::Deleting));
    maximum.saturating_sub(in_flight.count())
}

impl Decided {
    fn mark_all(&mut self, machines: &[&MachineView], mark: &Mark) {
        self.mark.extend(machines.iter().map(|machine| (machine.key.clone(), mark.clone())));
    }
}
