//! Pure: choice of the pxed of a site that writes `boot`, `Booted` and `Enrolled` of a Machine (docs/design/rules.md, "Who writes what").
//!
//! Each DHCP broadcast reaches every pxed, so each opens a boot for one and the same attempt of the host. The host then answers one of them. Rule:
//!
//! 1. The object shows the boot of the pxed that the host chose last. The host chooses by its answer: an acknowledged address, a fetch, a report.
//!    `boot.id` tells whose boot it is: no other pxed knows that ID.
//! 2. Each write names the `resourceVersion` of an object that was read for it ([`judge`]). If another pxed has changed the part since this one
//!    last wrote it or took it over ([`Base`]), its word counts, unless the host chose this pxed meanwhile and came further.
//! 3. A boot of another pxed that was taken over stays until the host opens a new boot or chooses this pxed ([`TakenOver`]). Packets of a boot that was
//!    open before, and time that passes, do not replace it.
//!
//! Clocks of two pxed are never compared: [`TakenOver::time`] is this pxed's own, like the times of its boots. A change that lost is not made again:
//! the next answer of the host, or its next heartbeat, corrects what is shown. Called by the sink of a cluster and by `boot::report`.

use bedplate_api::id::{BootId, Digest};
use bedplate_api::machine::MachineStatus;
use bedplate_api::wire::Stage;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use super::project::Part;

/// First stage by which a host chooses a pxed. Each pxed of a site reaches the stages before it.
pub(crate) const CHOSEN: Stage = Stage::Acknowledged;

/// The part as the object had it when this pxed last wrote it or took it over.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Base {
    /// Digest of its JSON. Absent: the object had no boot and no conditions of a boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<Digest>,
    /// The boot and its stage. They are not stored: after a restart the stored status does not count as a change.
    #[serde(skip)]
    boot: (Option<BootId>, Option<Stage>),
}

/// A boot of another pxed that this pxed shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TakenOver {
    /// The boot.
    pub boot: BootId,
    /// Time at which it was found in the object, by this pxed's clock.
    pub time: Timestamp,
}

/// Action of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The object has the status: write nothing.
    InSync,
    /// Write the status.
    Write,
    /// Take over the part from the object.
    TakeOver,
}

impl Base {
    /// Makes the base of a status that the object has.
    pub fn of(status: &MachineStatus) -> Self {
        let part = Part::Boot.of(status);
        let is_empty = part == MachineStatus::default();
        // Plain data with text keys always has a JSON form.
        let json = serde_json::to_vec(&part).unwrap_or_default();
        let digest = (!is_empty).then(|| Digest::from_sha256(sha2::Sha256::digest(json).into()));
        Self { part: digest, boot: boot(status) }
    }

    /// Returns true if the object still has this part.
    pub fn is_in(&self, status: &MachineStatus) -> bool {
        self.part == Self::of(status).part
    }

    /// Makes the base that was stored with this status.
    #[must_use]
    pub(crate) fn stored_with(self, status: &MachineStatus) -> Self {
        Self { boot: boot(status), ..self }
    }
}

impl TakenOver {
    /// Records that the boot of a status was taken over now; `None` if it has none.
    pub fn of(status: &MachineStatus, now: Timestamp) -> Option<Self> {
        let boot = status.boot.as_ref()?.id?;
        Some(Self { boot, time: now })
    }
}

/// Decides about a write of `own`. `base`: what this pxed knows of the object. `there`: the object's part.
pub(crate) fn judge(own: &MachineStatus, base: &Base, there: &MachineStatus) -> Verdict {
    let (mine, theirs) = (Base::of(own), Base::of(there));
    if mine.part == theirs.part {
        return Verdict::InSync;
    }
    let (stage, their_stage) = (mine.boot.1, theirs.boot.1);
    let is_further = stage >= Some(CHOSEN) && stage > their_stage;
    // A write of this pxed whose answer was lost.
    let is_own_boot = mine.boot.0.is_some() && mine.boot.0 == theirs.boot.0;
    let has_news = mine.boot != base.boot;
    if theirs.part == base.part || (has_news && (is_own_boot || is_further)) {
        Verdict::Write
    } else {
        Verdict::TakeOver
    }
}

fn boot(status: &MachineStatus) -> (Option<BootId>, Option<Stage>) {
    status.boot.as_ref().map(|boot| (boot.id, boot.stage)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use bedplate_api::machine::{Condition, MicroTime};
    use bedplate_api::reason::machine::BootedReason;

    use super::*;
    use crate::status::{boot_mut, set_condition};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn status(boot: u8, start: i64, stage: Stage) -> MachineStatus {
        let mut status = MachineStatus::default();
        let shown = boot_mut(&mut status);
        (shown.id, shown.start_time) = (Some(BootId::from_random([boot; 16])), Some(MicroTime(at(start))));
        shown.stage = Some(stage);
        status
    }

    fn stalled(mut status: MachineStatus) -> MachineStatus {
        set_condition(&mut status, false, BootedReason::BootStalled, "no answer", None, at(100));
        status
    }

    #[test]
    fn pxed_writes_what_no_other_pxed_has_changed() {
        let none = MachineStatus::default();
        let old = status(1, 0, Stage::Enrolled);
        for own in [status(2, 50, Stage::Discover), stalled(old.clone()), none.clone()] {
            assert_eq!(judge(&own, &Base::of(&old), &old), Verdict::Write, "{own:?}");
            assert_eq!(judge(&own, &Base::of(&old), &own), Verdict::InSync);
        }
        assert_eq!(judge(&old, &Base::default(), &none), Verdict::Write);
    }

    #[test]
    fn of_two_pxed_the_one_that_the_host_chose_writes() {
        let before = Base::of(&status(1, 0, Stage::Enrolled));
        // The clock of one pxed is an hour ahead, or both have the packet at the same time.
        for (own, there, expected) in [
            (Stage::Offered, Stage::Discover, Verdict::TakeOver),
            (Stage::Offered, Stage::Kernel, Verdict::TakeOver),
            (Stage::Acknowledged, Stage::Offered, Verdict::Write),
            (Stage::Kernel, Stage::Offered, Verdict::Write),
            (Stage::Kernel, Stage::Kernel, Verdict::TakeOver),
        ] {
            for (mine, theirs) in [(50, 3650), (3650, 50), (50, 50)] {
                let (own, there) = (status(2, mine, own), status(3, theirs, there));
                assert_eq!(judge(&own, &before, &there), expected, "{own:?} {there:?}");
            }
        }
    }

    #[test]
    fn time_that_passes_replaces_no_boot_of_another_pxed() {
        let own = status(2, 50, Stage::Kernel);
        let there = status(3, 60, Stage::Script);
        assert_eq!(judge(&stalled(own.clone()), &Base::of(&own), &there), Verdict::TakeOver);
        // Its own boot was changed by a write whose answer was lost.
        let further = status(2, 50, Stage::Initrd);
        assert_eq!(judge(&further, &Base::of(&there), &own), Verdict::Write);
    }

    #[test]
    fn stored_boot_is_written_after_a_restart_only_over_the_stored_base() {
        let (before, own) = (status(1, 0, Stage::Enrolled), status(2, 50, Stage::Enrolled));
        let stored = serde_json::to_string(&Base::of(&before)).unwrap();
        let base = serde_json::from_str::<Base>(&stored).unwrap().stored_with(&own);
        assert_eq!(judge(&own, &base, &before), Verdict::Write, "the crash came before the write");
        for there in [status(3, 60, Stage::Discover), status(3, 60, Stage::Script)] {
            assert_eq!(judge(&own, &base, &there), Verdict::TakeOver, "{there:?}");
        }
    }

    #[test]
    fn status_that_comes_back_from_the_api_server_is_in_sync() {
        let mut own = stalled(status(2, 50, Stage::Kernel));
        let start = at(50).checked_add(jiff::SignedDuration::from_nanos(1_234_567)).unwrap();
        boot_mut(&mut own).start_time = Some(MicroTime(start));
        let there: MachineStatus = serde_json::from_value(serde_json::to_value(&own).unwrap()).unwrap();
        assert_eq!(judge(&own, &Base::default(), &there), Verdict::InSync);
        let others = Condition { type_: "Ready".to_owned(), ..own.conditions[0].clone() };
        let there = MachineStatus { conditions: [there.conditions, vec![others]].concat(), ..there };
        assert!(Base::of(&own).is_in(&there), "conditions of other writers do not count");
    }
}
