//! Pure: next step of a Machine with `deletionPolicy: Drain`.
//!
//! ```text
//! Drain: finalizer --deleted--> cordon --> evict Pods --> delete Node --agent stops slot, or timeout-->
//! remove finalizer
//! any other policy: no finalizer; a cordon that was set for this is removed
//! ```

use bedplate_api::condition::Conditions as _;
use bedplate_api::machine::{DeletionPolicy, Machine, SlotState, condition_type};
use bedplate_api::reason::machine::DrainedReason;
use bedplate_engine::elapsed::later;
use bedplate_rules::claim::claimant;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;

use crate::cordon::{Cordon, Purpose, cordon_of, is_ready};
use crate::foreign_node::foreign;

/// Keeps a Machine until its Node is drained and its slot stopped.
pub const FINALIZER: &str = "bedplate.dev/drain";

/// Next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Do nothing until something changes.
    Rest,
    /// Add the finalizer.
    Hold,
    /// Uncordon the Node that was cordoned for this, then continue as [`Self::Release`].
    FreeAndRelease,
    /// Remove the finalizer.
    Release,
    /// Cordon the Node.
    Cordon,
    /// Evict its Pods, and delete the Node when none is left. `anyway` deletes it even if some Pods do not
    /// leave, because no kubelet is running that ends them.
    Empty {
        /// True if the timeout has passed and the host is unreachable.
        anyway: bool,
    },
    /// Wait.
    Await,
}

/// Next step, and the condition that reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Next step.
    pub step: Step,
    /// Status, reason and message of the condition `Drained`.
    pub drained: Option<(bool, DrainedReason, String)>,
    /// Time of the next reconcile, if nothing changes before.
    pub until: Option<Timestamp>,
}

/// Elapsed times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lasted {
    /// Time since the deletion.
    pub deletion: SignedDuration,
    /// Time since the Node is gone and the end of the slot is pending.
    pub slot: SignedDuration,
}

/// Returns true if this module must act on the Machine.
pub fn concerns(machine: &Machine) -> bool {
    machine.spec.deletion_policy == DeletionPolicy::Drain || is_held(machine)
}

fn is_held(machine: &Machine) -> bool {
    machine.metadata.finalizers.iter().flatten().any(|held| held == FINALIZER)
}

fn only(step: Step) -> Plan {
    Plan { step, drained: None, until: None }
}

/// Plans the next step. `node`: Node of the same name, read live if the store has none. `limit`: timeout of the drain, and of the end of the slot.
pub fn plan(
    machine: &Machine,
    node: Option<&Node>,
    limit: SignedDuration,
    lasted: Lasted,
    now: Timestamp,
) -> Plan {
    let drains = machine.spec.deletion_policy == DeletionPolicy::Drain;
    let cordon = node.map(cordon_of);
    let is_ours = matches!(&cordon, Some(Cordon::Ours(hold)) if hold.purpose == Purpose::Deletion);
    if machine.metadata.deletion_timestamp.is_none() {
        return only(match (drains, is_held(machine)) {
            (true, false) => Step::Hold,
            (false, true) => Step::Release,
            (true, true) | (false, false) => Step::Rest,
        });
    }
    // The API server accepts no new finalizer on an object that is being deleted.
    if !is_held(machine) {
        return only(Step::Rest);
    }
    if !drains {
        return only(if is_ours { Step::FreeAndRelease } else { Step::Release });
    }
    let left = limit.saturating_sub(lasted.deletion);
    let is_over = !left.is_positive();
    let Some(node) = node else {
        // The Node of a claim is in another cluster, and its slot is emptied at the release of the claim.
        return match claimed(machine) {
            Some(why) => stay(why, "slot"),
            None => slot(machine, limit, lasted.slot, now),
        };
    };
    if let Some(why) = foreign(machine, node) {
        let drained = (false, DrainedReason::NodeNameConflict, format!("Node is not drained: {why}"));
        let step = if is_over { Step::Release } else { Step::Await };
        return Plan { step, drained: Some(drained), until: Some(later(now, left)) };
    }
    if let Some(why) = stands_still(machine) {
        return stay(why, "Node");
    }
    let (step, pending) = match cordon {
        // The cordon of a user or an operation stays theirs, even if the policy changes later.
        Some(Cordon::Foreign | Cordon::Operation) => {
            (Step::Empty { anyway: is_over && !is_ready(node) }, None)
        }
        Some(Cordon::Ours(hold)) if is_ours && hold.cordoned => {
            (Step::Empty { anyway: is_over && !is_ready(node) }, hold.pending)
        }
        Some(Cordon::Ours(hold)) => (Step::Cordon, hold.pending),
        Some(Cordon::Free) | None => (Step::Cordon, None),
    };
    let pending = pending.map(|pods| format!(": waiting for {pods}")).unwrap_or_default();
    let message = format!("Node is being drained{pending}");
    Plan { step, drained: Some((false, DrainedReason::Draining, message)), until: None }
}

/// Waits, and does not change the Node or the slot.
fn stay((reason, why): (DrainedReason, String), what: &str) -> Plan {
    let message =
        format!("{why}; its {what} is not changed; set deletionPolicy Retain to delete only the Machine");
    Plan { step: Step::Await, drained: Some((false, reason, message)), until: None }
}

fn stands_still(machine: &Machine) -> Option<(DrainedReason, String)> {
    if machine.spec.paused {
        return Some((DrainedReason::Paused, "spec.paused is set".to_owned()));
    }
    claimed(machine)
}

fn claimed(machine: &Machine) -> Option<(DrainedReason, String)> {
    Some((DrainedReason::Claimed, format!("Machine is claimed by {}", claimant(machine)?)))
}

/// Returns the recorded time since which the Node is gone.
pub(super) fn drained_since(machine: &Machine) -> Option<Timestamp> {
    let drained = machine.condition(condition_type::DRAINED).filter(|drained| drained.status == "True")?;
    Some(drained.last_transition_time.0)
}

/// Plans for a Machine whose Node is gone: the agent stops the slot, and removes its keys and data.
fn slot(machine: &Machine, limit: SignedDuration, lasted: SignedDuration, now: Timestamp) -> Plan {
    // Every slot but an empty one may have keys and Secrets, also one that never ran. A state of a later version may be any of these.
    let mut slots = machine.status.iter().flat_map(|status| &status.slots);
    if machine.applied().is_none() && slots.all(|slot| slot.state == SlotState::Empty) {
        return only(Step::Release);
    }
    let deadline = later(drained_since(machine).unwrap_or(now), limit);
    let message =
        format!("Node is deleted; waiting for the agent to stop and empty the slot, deadline {deadline:.0}");
    let left = limit.saturating_sub(lasted);
    let step = if left.is_positive() { Step::Await } else { Step::Release };
    Plan { step, drained: Some((true, DrainedReason::StoppingSlot, message)), until: Some(later(now, left)) }
}

#[cfg(test)]
mod tests {
    use bedplate_rules::drain::CORDONED_BY;
    use serde_json::{Value, json};

    use super::*;

    const LIMIT: SignedDuration = SignedDuration::from_secs(600);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A Machine whose slot runs, deleted at second 0.
    fn machine(policy: &str, more: &Value, status: &Value) -> Machine {
        let mut metadata =
            json!({ "name": "a", "finalizers": [FINALIZER], "deletionTimestamp": "1970-01-01T00:00:00Z" });
        metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut all = json!({ "slots": [{ "name": "a", "state": "Running" }] });
        all.as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
        let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": metadata,
            "spec": { "provider": "manual", "deletionPolicy": policy }, "status": all });
        serde_json::from_value(object).unwrap()
    }

    fn node(annotations: &Value, unschedulable: bool, ready: &str) -> Node {
        serde_json::from_value(json!({ "metadata": { "name": "a", "annotations": annotations },
            "spec": { "unschedulable": unschedulable, "providerID": "bedplate://a" },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] } }))
        .unwrap()
    }

    /// Returns the plan by an accurate clock: the Machine was deleted in second 0, its Node was gone in
    /// second 600.
    fn planned(machine: &Machine, node: Option<&Node>, second: i64) -> Plan {
        let lasted = |since: i64| SignedDuration::from_secs(second - since);
        plan(machine, node, LIMIT, Lasted { deletion: lasted(0), slot: lasted(600) }, at(second))
    }

    fn step(machine: &Machine, node: Option<&Node>, second: i64) -> Step {
        planned(machine, node, second).step
    }

    #[test]
    fn only_a_machine_that_is_to_be_drained_is_held() {
        let alive = json!({ "deletionTimestamp": null });
        let free = json!({ "deletionTimestamp": null, "finalizers": [] });
        assert_eq!(step(&machine("Drain", &free, &json!({})), None, 0), Step::Hold);
        assert_eq!(step(&machine("Drain", &alive, &json!({})), None, 0), Step::Rest);
        for policy in ["Retain", "PowerOff"] {
            assert_eq!(step(&machine(policy, &free, &json!({})), None, 0), Step::Rest);
            assert_eq!(step(&machine(policy, &alive, &json!({})), None, 0), Step::Release);
            let late = json!({ "finalizers": ["other"] });
            assert_eq!(step(&machine(policy, &late, &json!({})), None, 0), Step::Rest);
        }
        let late = json!({ "finalizers": ["other"] });
        assert_eq!(
            step(&machine("Drain", &late, &json!({})), None, 0),
            Step::Rest,
            "it cannot be held any more"
        );
    }

    #[test]
    fn a_node_is_cordoned_and_emptied_and_its_slot_waited_for() {
        let gone = machine("Drain", &json!({}), &json!({}));
        let ours = json!({ CORDONED_BY: "deletion" });
        assert_eq!(step(&gone, Some(&node(&json!({}), false, "True")), 0), Step::Cordon);
        let rolling = json!({ CORDONED_BY: "rollout/w-v2" });
        assert_eq!(step(&gone, Some(&node(&rolling, true, "True")), 0), Step::Cordon, "it is ours by now");
        for annotations in [&ours, &json!({})] {
            let there = node(annotations, true, "True");
            assert_eq!(step(&gone, Some(&there), 9000), Step::Empty { anyway: false }, "budgets are kept");
        }
        let down = node(&ours, true, "False");
        assert_eq!(step(&gone, Some(&down), 599), Step::Empty { anyway: false });
        assert_eq!(step(&gone, Some(&down), 600), Step::Empty { anyway: true });
        let condition = json!([{ "type": "Drained", "status": "True", "reason": "StoppingSlot", "message": "",
            "lastTransitionTime": "1970-01-01T00:10:00Z" }]);
        let drained = machine("Drain", &json!({}), &json!({ "conditions": condition }));
        assert_eq!([step(&drained, None, 1199), step(&drained, None, 1200)], [Step::Await, Step::Release]);
        let emptying =
            machine("Drain", &json!({}), &json!({ "slots": [{ "name": "a", "state": "Emptying" }] }));
        assert_eq!(step(&emptying, None, 0), Step::Await, "keys and data are still on the disk");
        let later = machine("Drain", &json!({}), &json!({ "slots": [{ "name": "a", "state": "Later" }] }));
        assert_eq!(step(&later, None, 0), Step::Await, "a state of a later version is not known to be over");
        let stopped = machine("Drain", &json!({}), &json!({ "slots": [{ "name": "a", "state": "Empty" }] }));
        assert_eq!(step(&stopped, None, 0), Step::Release);
    }

    #[test]
    fn trust_8_machine_waits_for_every_slot_that_may_have_keys() {
        for state in ["Preparing", "Prepared", "Failed", "Emptying"] {
            let slots = json!({ "applied": null, "slots": [{ "name": "b", "state": state }] });
            let deleted = machine("Drain", &json!({}), &slots);
            assert_eq!(step(&deleted, None, 0), Step::Await, "{state}");
        }
    }

    #[test]
    fn a_policy_that_is_changed_while_it_is_deleted_counts_at_once() {
        for policy in ["Retain", "PowerOff"] {
            let gone = machine(policy, &json!({}), &json!({}));
            let ours = node(&json!({ CORDONED_BY: "deletion" }), true, "True");
            assert_eq!(step(&gone, Some(&ours), 0), Step::FreeAndRelease);
            assert_eq!(
                step(&gone, Some(&node(&json!({}), true, "True")), 0),
                Step::Release,
                "a user's cordon stays"
            );
            assert_eq!(step(&gone, None, 0), Step::Release);
        }
    }

    #[test]
    fn h1_a_paused_or_claimed_machine_and_a_foreign_node_are_left_as_they_are() {
        let there = node(&json!({}), false, "True");
        let mut paused = machine("Drain", &json!({}), &json!({}));
        paused.spec.paused = true;
        let source = json!({ "selected": { "name": "w", "version": 1, "source": "Claim" } });
        let claimed = machine("Drain", &json!({}), &source);
        let slot = planned(&claimed, None, 9000);
        assert_eq!(
            (slot.step, slot.drained.unwrap().1),
            (Step::Await, DrainedReason::Claimed),
            "a claimed slot is not ended"
        );
        for held in [paused, claimed] {
            let plan = planned(&held, Some(&there), 9000);
            assert_eq!(plan.step, Step::Await);
            assert!(plan.drained.unwrap().2.contains("Retain"));
        }
        let mut foreign = there.clone();
        foreign.spec.as_mut().unwrap().provider_id = Some("other://a".to_owned());
        let gone = machine("Drain", &json!({}), &json!({}));
        assert_eq!(
            [step(&gone, Some(&foreign), 0), step(&gone, Some(&foreign), 600)],
            [Step::Await, Step::Release]
        );
    }
}
