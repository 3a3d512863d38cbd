//! Pure: decides whether a host has to be wiped before its claim ends (D7).
//!
//! Called by the provider, which keeps the claim until then, and by the CLI.

use bedplate_api::claim::{MachineClaim, ReleasePolicy};
use bedplate_api::machine::Machine;

use crate::selection::was_granted;

/// Returns true if the host must be wiped by the stronger one of both policies, and its Machine does not report a wipe with the UID of this
/// claim. A host whose state is in memory is wiped by the boot that its agent reports as `Released`. A claim that was never granted has not run.
pub fn owes_wipe(claim: &MachineClaim, host: &Machine) -> bool {
    let (policy, claimed) = (host.spec.claim_policy.as_ref(), claim.spec.release);
    let release = policy.map_or(claimed, |policy| policy.release_of(claimed));
    let reported = host.status.as_ref().and_then(|status| status.state_disk.as_ref());
    let has_disk = reported.is_some() || host.spec.pxe.as_ref().is_some_and(|pxe| pxe.state_disk.is_some());
    let used = reported.and_then(|disk| disk.wipe_token.as_ref());
    let is_wiped = used.is_some() && used == claim.metadata.uid.as_ref();
    release == ReleasePolicy::Wipe && has_disk && was_granted(claim) && !is_wiped
}
