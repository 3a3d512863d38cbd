//! Pure: fields of the spec of a Machine that its set changes in place (MS7): timeouts, taints, gates and `minReadySeconds`. Called by `machine`.
//!
//! Other writers may have given a Machine more of them. So a set writes what it gives, and removes what it has given earlier. The record of the
//! Machine names that.

use std::collections::BTreeSet;

use bedplate_api::cluster::full::machine::{MachineDeletion, MachineSpec};
use bedplate_api::cluster::part::{Gate, Taint};
use serde_json::json;

const MIN_READY: &str = "minReadySeconds";
const DRAIN: &str = "deletion/nodeDrainTimeoutSeconds";
const DETACH: &str = "deletion/nodeVolumeDetachTimeoutSeconds";
const DELETION: &str = "deletion/nodeDeletionTimeoutSeconds";

/// Fields of a Machine that its set changes in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InPlace {
    /// `spec.minReadySeconds`.
    pub min_ready_seconds: Option<i32>,
    /// `spec.readinessGates`.
    pub readiness_gates: Vec<Gate>,
    /// `spec.deletion`. None: it is empty.
    pub deletion: Option<MachineDeletion>,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
}

impl InPlace {
    /// Returns the fields of a spec.
    pub fn of(spec: &MachineSpec) -> Self {
        Self {
            min_ready_seconds: spec.min_ready_seconds,
            readiness_gates: spec.readiness_gates.clone(),
            deletion: spec.deletion.clone().filter(|deletion| *deletion != MachineDeletion::default()),
            taints: spec.taints.clone(),
        }
    }

    /// Writes the fields into a spec.
    pub fn write(&self, spec: &mut MachineSpec) {
        spec.min_ready_seconds = self.min_ready_seconds;
        spec.readiness_gates.clone_from(&self.readiness_gates);
        spec.deletion.clone_from(&self.deletion);
        spec.taints.clone_from(&self.taints);
    }

    /// Returns the keys of the values, for the record.
    pub fn keys(&self) -> Vec<String> {
        let [drain, detach, deletion] = timeouts(self);
        let numbers =
            [(MIN_READY, self.min_ready_seconds), (DRAIN, drain), (DETACH, detach), (DELETION, deletion)];
        let numbers = numbers.into_iter().filter(|(_, number)| number.is_some());
        let numbers = numbers.map(|(key, _)| key.to_owned());
        let gates = self.readiness_gates.iter().map(gate);
        numbers.chain(gates).chain(self.taints.iter().map(taint)).collect()
    }

    /// Returns the fields of a Machine after its set has given its own. `earlier`: keys of what the set has given before.
    pub fn over(&self, present: &Self, earlier: &BTreeSet<String>) -> Self {
        let number = |given: Option<i32>, present: Option<i32>, key: &str| {
            given.or_else(|| present.filter(|_| !earlier.contains(key)))
        };
        let ([drain, detach, delete], before) = (timeouts(self), timeouts(present));
        let deletion = MachineDeletion {
            node_drain_timeout_seconds: number(drain, before[0], DRAIN),
            node_volume_detach_timeout_seconds: number(detach, before[1], DETACH),
            node_deletion_timeout_seconds: number(delete, before[2], DELETION),
        };
        Self {
            min_ready_seconds: number(self.min_ready_seconds, present.min_ready_seconds, MIN_READY),
            readiness_gates: merged(&self.readiness_gates, &present.readiness_gates, gate, earlier),
            deletion: Some(deletion).filter(|deletion| *deletion != MachineDeletion::default()),
            taints: merged(&self.taints, &present.taints, taint, earlier),
        }
    }
}

fn gate(gate: &Gate) -> String {
    format!("readinessGates/{}", gate.condition_type)
}

fn taint(taint: &Taint) -> String {
    let effect = json!(taint.effect);
    format!("taints/{}:{}", taint.key, effect.as_str().unwrap_or_default())
}

/// Returns the timeouts of the drain, of the volumes and of the deletion of the Node.
fn timeouts(of: &InPlace) -> [Option<i32>; 3] {
    let get = |field: fn(&MachineDeletion) -> Option<i32>| of.deletion.as_ref().and_then(field);
    [
        get(|deletion| deletion.node_drain_timeout_seconds),
        get(|deletion| deletion.node_volume_detach_timeout_seconds),
        get(|deletion| deletion.node_deletion_timeout_seconds),
    ]
}

/// Returns a list with the given entries and those of other writers. The order of the entries that are there stays.
fn merged<T: Clone>(given: &[T], present: &[T], key: fn(&T) -> String, earlier: &BTreeSet<String>) -> Vec<T> {
    let next = |one: &T| {
        let name = key(one);
        let own = given.iter().find(|given| key(given) == name);
        own.or_else(|| Some(one).filter(|_| !earlier.contains(&name))).cloned()
    };
    let new = given.iter().filter(|given| present.iter().all(|one| key(one) != key(given)));
    present.iter().filter_map(next).chain(new.cloned()).collect()
}
