//! Phase, `Ready` and `Stalled` of a Machine without a cluster, where no controller derives them.

use bedplate_api::machine::{Machine, MachineStatus, condition_type};
use bedplate_api::reason::Reason as _;
use bedplate_api::reason::machine::ConfigurationPendingReason;
use bedplate_rules::phase::{Cause, NodeFacts, Plane, summarize};
use jiff::Timestamp;

use super::conditions::condition;

/// Writes `phase`, `Ready`, `Stalled` and the generation, derived from the other conditions and the boot. pxed does not read Nodes: the agent
/// reports them.
pub fn derive(machine: &Machine, status: &mut MachineStatus, now: Timestamp) {
    let shown = summarize(Plane::Standalone, machine, status, &NodeFacts::default(), blocked(status));
    shown.write(status, machine.metadata.generation, now);
}

/// Returns why a due selection is not made. The reason of `ConfigurationPending` tells it: a version is selected, and the next one cannot be.
fn blocked(status: &MachineStatus) -> Option<Cause<'_>> {
    let pending = condition(status, condition_type::CONFIGURATION_PENDING).filter(|c| c.status == "False")?;
    let is_blocked = match ConfigurationPendingReason::parse(&pending.reason)? {
        ConfigurationPendingReason::NoConfiguration
        | ConfigurationPendingReason::HardwareNotReported
        | ConfigurationPendingReason::ConfigurationNotFound
        | ConfigurationPendingReason::VersionNotFound
        | ConfigurationPendingReason::ImageUnresolved => true,
        // The agent reports a control plane that stays in `Paved`.
        ConfigurationPendingReason::Matched
        | ConfigurationPendingReason::Selected
        | ConfigurationPendingReason::Claimed
        | ConfigurationPendingReason::ClaimPending
        | ConfigurationPendingReason::ClaimForbidden
        | ConfigurationPendingReason::ControlPlaneProtected => false,
    };
    is_blocked.then_some((pending.reason.as_str(), pending.message.as_str()))
}
