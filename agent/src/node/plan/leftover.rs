//! Empties slots whose version will not run, which also removes the Secrets that the version names.
//!
//! Pure. Part of `plan`.

use bedplate_api::machine::SlotName;

use super::holds::{is_drained, is_free};
use super::{control_plane, record, stop_and_empty};
use crate::model::{Api, Observed, Stage, Step};

/// Returns the next step that empties the slots of a drained Machine, whatever is in them. None of its slots is the node any more.
pub(super) fn of_drained(seen: &Observed) -> Option<Step> {
    let slot = SlotName::ALL.into_iter().find(|slot| record(seen, *slot).is_some());
    slot.filter(|_| is_drained(seen)).map(|slot| control_plane::release(seen, slot))
}

/// Returns the step that empties a slot whose version is not selected any more, if no other version is put into the slot. A slot that failed keeps
/// its logs, and one with the version of the node holds no other Secrets than the node; `node` is the slot that is the node.
pub(super) fn of_unselected(seen: &Observed, node: Option<SlotName>) -> Option<Step> {
    let machine = seen.machine.as_ref().filter(|machine| seen.api == Api::Live && is_free(machine))?;
    let of_node = node.and_then(|node| record(seen, node)).map(|record| &record.version);
    let used = [machine.selected.as_ref(), of_node];
    let is_left = |slot: &SlotName| {
        let is_filled = |stage: &Stage| match stage {
            Stage::Preparing | Stage::Prepared | Stage::Retired => true,
            Stage::Trial { .. } | Stage::Applied { .. } | Stage::Failed { .. } => false,
        };
        let left = record(seen, *slot).filter(|record| is_filled(&record.stage));
        let is_unused = left.is_some_and(|record| !used.contains(&Some(&record.version)));
        is_unused && !control_plane::is_kept(seen, *slot)
    };
    SlotName::ALL.into_iter().find(is_left).map(|slot| stop_and_empty(seen, slot))
}
