//! Plan of the wipe at the release of a claim with `release: Wipe` (D7).
//!
//! ```text
//!   slots empty ─► Wiping ─ reported twice ─ request on the disk ─ reboot ─► (stage-1 makes the disk) ─► no record, new key ─► Released
//!                    ▲                                          │
//!                    └── 10 minutes ── a boot that did not wipe ┘
//! ```
//! The claim has the report for its provider, and the Machine for pxed: by it the next boot makes a disk again whose wipe was interrupted.
//! The record goes with the disk. So a host that has no record of a claim, and a disk that the claim's token has made, is wiped. The wipe is due
//! until then, also if power fails while the disk is made: such a disk has another token, or none.
//!
//! Pure. Part of `claim`.

use jiff::SignedDuration;

use super::{
    ClaimFacts, ClaimObserved, ClaimPlan, ClaimSeen, ClaimStep, HostState, Pending, PoolMachine,
    ReportedState, is_reported, later, of_record, on_releasing, own_claim, report_record, wait,
};
use crate::model::Api;
use crate::node::claim_record::{ClaimRecord, ProviderId, ReleasePolicy};

/// Delay after a boot that did not wipe, before the host boots again.
const WIPE_RETRY_DELAY: SignedDuration = SignedDuration::from_mins(10);

/// Cleanup at the release of a claim: the stronger one of the claim's and the Machine's.
pub(super) fn release_of(seen: &ClaimObserved, claim: &ClaimFacts) -> ReleasePolicy {
    match &seen.machine {
        PoolMachine::Own { policy, .. } => claim.release.max(*policy),
        PoolMachine::Absent | PoolMachine::Foreign => claim.release,
    }
}

/// Returns true if pxed and the Machine allow that this host is wiped.
fn may_wipe(seen: &ClaimObserved) -> bool {
    let PoolMachine::Own { may_wipe: true, selects_disk, .. } = seen.machine else { return false };
    match seen.state {
        HostState::Disk { .. } => selects_disk,
        HostState::Memory => true,
        HostState::Installed => false,
    }
}

/// Returns true if the next boot uses a state disk.
fn selects_disk(seen: &ClaimObserved) -> bool {
    matches!(seen.machine, PoolMachine::Own { selects_disk: true, .. })
}

/// Returns true if the host must not start a claim, because it could not be wiped after it.
pub(super) fn cannot_end(seen: &ClaimObserved, claim: &ClaimFacts) -> bool {
    release_of(seen, claim) == ReleasePolicy::Wipe && !may_wipe(seen)
}

/// Returns true if the provider waits for a wipe of the disk that was not done, by the stronger one of both policies. The host has no record of the
/// claim. A claim that was never granted has not run. The node of a configuration that no claim has selected is not wiped. As for the provider, a
/// host has a disk if its boot facts cannot be read. So does a host that has booted before its Machine selected a disk.
pub(super) fn lacks_wipe(seen: &ClaimObserved, claim: &ClaimFacts) -> bool {
    let has_disk = matches!(seen.state, HostState::Disk { .. }) || selects_disk(seen);
    let is_asked = release_of(seen, claim) == ReleasePolicy::Wipe && has_disk && !seen.slot.is_foreign;
    is_asked && claim.was_granted && !seen.state.has_used(&claim.uid)
}

/// Returns true if this host has reported that it boots to be wiped. Without its record it was.
pub(super) fn was_wiping(seen: &ClaimObserved, id: &ProviderId) -> bool {
    let PoolMachine::Own { last, .. } = &seen.machine else { return false };
    let ClaimSeen::Present(claim) = &seen.claim else { return false };
    let mut reports = [&claim.reported, last].into_iter().flatten();
    reports.any(|report| report.provider_id == *id && report.state == Some(ReportedState::Wiping))
}

/// Returns true if a boot has wiped this host, by its report in the Machine. The host has no record of a claim, and there is no claim object.
pub(super) fn is_wiped_unseen(seen: &ClaimObserved) -> bool {
    let PoolMachine::Own { last: Some(last), .. } = &seen.machine else { return false };
    let is_emptied = seen.slot.is_empty && !seen.slot.runs && !seen.slot.is_foreign;
    // The record is lost with the disk or the memory. Unreadable boot facts prove nothing.
    let is_booted = matches!(seen.state, HostState::Disk { .. } | HostState::Memory);
    last.state == Some(ReportedState::Wiping) && is_emptied && is_booted
}

/// Plans for empty slots: the claim ends now, or after a wipe.
pub(super) fn end(seen: &ClaimObserved, record: &ClaimRecord) -> ClaimStep {
    let token = match record.release {
        ReleasePolicy::Empty => return ClaimStep::EndRelease,
        ReleasePolicy::Wipe => token(seen, record),
    };
    if seen.state.has_used(&token) { ClaimStep::EndRelease } else { ClaimStep::BeginWipe { token } }
}

/// Token of the wipe: UID of the claim object. A claim that was created again after a loss has another one.
fn token(seen: &ClaimObserved, record: &ClaimRecord) -> String {
    match own_claim(seen, record) {
        Ok(claim) => claim.uid.clone(),
        Err(_) => record.claim_uid.clone(),
    }
}

/// Plans for a host that must be wiped by its next boot. `same_boot`: it has not booted since.
pub(super) fn on_wiping(
    seen: &ClaimObserved,
    record: &ClaimRecord,
    token: &str,
    same_boot: bool,
) -> ClaimPlan {
    // Another program has filled a slot since.
    if seen.slot.is_foreign {
        return wait(Pending::ForeignSlot);
    }
    if seen.slot.runs || !seen.slot.is_empty {
        return on_releasing(seen, record);
    }
    if seen.state.has_used(token) {
        return ClaimPlan::Do(ClaimStep::EndRelease);
    }
    if seen.api != Api::Live || seen.claim == ClaimSeen::Unknown {
        return wait(Pending::ApiServer);
    }
    let PoolMachine::Own { last, .. } = &seen.machine else { return wait(Pending::Machine) };
    if let Some(report) = report_record(seen, record) {
        return report;
    }
    // The status writer reports it there, again until it is taken.
    if last.as_ref() != Some(&of_record(record)) {
        return wait(Pending::Report);
    }
    // Without the report, a host with its state in memory would not know after the boot that it was wiped.
    if let ClaimSeen::Present(claim) = &seen.claim
        && !is_reported(claim, &of_record(record))
    {
        return wait(Pending::Report);
    }
    if !may_wipe(seen) {
        return wait(Pending::WipeNotPossible);
    }
    // A host in memory has no record of an earlier boot, and may have booted for a disk that pxed does not know yet.
    let may_be_repeated = !same_boot || seen.state == HostState::Memory && selects_disk(seen);
    if may_be_repeated && seen.uptime < WIPE_RETRY_DELAY {
        let until = Some(later(seen.now, WIPE_RETRY_DELAY - seen.uptime));
        return ClaimPlan::Wait { pending: Pending::Wipe, until };
    }
    ClaimPlan::Do(ClaimStep::RequestWipe { token: token.to_owned() })
}
