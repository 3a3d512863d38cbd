//! Phase and `Ready` of a Machine without a cluster, where no controller derives them.

use bedplate_api::machine::{Machine, MachineStatus};
use bedplate_rules::phase::{NodeFacts, Plane, summarize};
use jiff::Timestamp;

use super::conditions::set_ready;

/// Writes `phase`, `Ready` and the generation, derived from the other conditions and the boot. pxed does not read Nodes: the agent reports them.
pub fn derive(machine: &Machine, status: &mut MachineStatus, now: Timestamp) {
    let shown = summarize(Plane::Standalone, machine, status, &NodeFacts::default(), None);
    let generation = machine.metadata.generation;
    status.phase = Some(shown.phase);
    status.observed_generation = generation;
    set_ready(status, shown.is_ready(), &shown.reason, &shown.message, generation, now);
}
