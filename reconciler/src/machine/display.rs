//! Pure: `phase` and `Ready` of a Machine, derived from its conditions. For display: no program reads the phase (H1).

use bedplate_api::machine::{Condition, Machine, MachineStatus, Phase, condition_type};

/// `Ready` False: what was chosen was tried, and the version before runs again.
pub(super) const ROLLED_BACK: &str = "RolledBack";

/// `phase`, and the status, reason and message of `Ready`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Display {
    /// For people.
    pub(super) phase: Phase,
    /// Whether everything is as it ought to be.
    pub(super) ready: bool,
    /// Of `Ready`.
    pub(super) reason: String,
    /// The first thing that is not met.
    pub(super) message: String,
}

fn display(phase: Phase, reason: &str, message: &str) -> Display {
    let (ready, reason, message) = (phase == Phase::Ready, reason.to_owned(), message.to_owned());
    Display { phase, ready, reason, message }
}

/// Of a Machine whose status is `status` by now; `pending`: why nothing is selected, `trouble`: what else is not as it ought to be.
pub(super) fn derive(
    machine: &Machine,
    status: &MachineStatus,
    pending: Option<(&str, &str)>,
    trouble: Option<(&str, &str)>,
) -> Display {
    if machine.metadata.deletion_timestamp.is_some() {
        let drained = condition(status, condition_type::DRAINED).map(|c| c.message.as_str());
        return display(Phase::Deleting, "Deleting", drained.unwrap_or("the Machine is being deleted"));
    }
    if machine.spec.paused {
        return display(Phase::Paused, "Paused", "spec.paused is set: the machine is left as it is");
    }
    if let Some(display) = before_enrolment(status) {
        return display;
    }
    if let Some((reason, message)) = pending {
        return display(Phase::ConfigurationPending, reason, message);
    }
    if let Some((reason, message)) = trouble {
        let phase = if is_running(status) { Phase::Ready } else { Phase::Repaving };
        return Display { ready: false, ..display(phase, reason, message) };
    }
    node(status)
}

/// What comes before a configuration: power, boot, enrolment.
fn before_enrolment(status: &MachineStatus) -> Option<Display> {
    if let Some(c) = unmet(status, condition_type::BOOTED).filter(|c| c.reason == "DuplicateMACAddress") {
        return Some(display(Phase::Failed, &c.reason, &c.message));
    }
    if let Some(c) = unmet(status, condition_type::POWERED_ON) {
        let phase = match c.reason.as_str() {
            "PoweringOn" => Phase::PoweringOn,
            "PowerOnAttemptsExhausted" => Phase::Failed,
            _ => Phase::Pending,
        };
        return Some(display(phase, &c.reason, &c.message));
    }
    if condition(status, condition_type::ENROLLED).is_some_and(|c| c.status == "True") {
        return None;
    }
    let first = unmet(status, condition_type::BOOTED).or_else(|| unmet(status, condition_type::ENROLLED));
    let booting = status.boot.as_ref().is_some_and(|boot| boot.stage.is_some());
    let phase = if booting { Phase::Booting } else { Phase::Pending };
    Some(match first {
        Some(c) => display(phase, &c.reason, &c.message),
        None => display(phase, "AwaitingEnrolment", "waiting for the host to enrol"),
    })
}

/// What comes after it.
fn node(status: &MachineStatus) -> Display {
    let selected = status.selected.as_ref().map(|s| (s.name.as_str(), s.version));
    let applied = status.applied.as_ref().map(|a| (a.name.as_str(), a.version));
    let refused = status.rolled_back.as_ref().map(|r| (r.from.name.as_str(), r.from.version));
    if let (Some(back), true) = (&status.rolled_back, refused.is_some() && refused == selected) {
        return display(Phase::RolledBack, ROLLED_BACK, &back.reason);
    }
    if is_running(status) {
        return display(Phase::Ready, "Ready", "the Node is Ready");
    }
    let phase = if applied.is_none() { Phase::Paving } else { Phase::Repaving };
    let first = unmet(status, condition_type::PAVED).or_else(|| unmet(status, condition_type::NODE_READY));
    match first {
        Some(c) if applied == selected && status.node_ref.is_some() => {
            Display { ready: false, ..display(Phase::Failed, &c.reason, &c.message) }
        }
        Some(c) => display(phase, &c.reason, &c.message),
        None => display(phase, "AwaitingNode", "waiting for the agent to make the node"),
    }
}

/// A node runs and is Ready.
fn is_running(status: &MachineStatus) -> bool {
    let ready = condition(status, condition_type::NODE_READY).is_some_and(|c| c.status == "True");
    ready && status.node_ref.is_some() && status.applied.is_some()
}

fn condition<'a>(status: &'a MachineStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|c| c.type_ == type_)
}

fn unmet<'a>(status: &'a MachineStatus, type_: &str) -> Option<&'a Condition> {
    condition(status, type_).filter(|c| c.status == "False")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(status: &Value) -> Machine {
        let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "a" },
            "spec": { "provider": "manual" }, "status": status });
        serde_json::from_value(object).unwrap()
    }

    fn is(type_: &str, status: &str) -> Value {
        json!({ "type": type_, "status": status, "reason": "Why", "message": format!("{type_} is {status}"),
            "lastTransitionTime": "2026-01-01T00:00:00Z" })
    }

    #[test]
    fn the_first_thing_that_is_not_met_is_said() {
        let selected = json!({ "name": "w", "version": 1, "by": "Reference" });
        let applied = json!({ "name": "w", "version": 1, "slot": "a" });
        let node = json!({ "name": "a", "uid": "1" });
        for (status, phase, message) in [
            (json!({}), Phase::Pending, "waiting for the host to enrol"),
            (json!({ "conditions": [is("PoweredOn", "False")] }), Phase::Pending, "PoweredOn is False"),
            (
                json!({ "conditions": [is("Booted", "False")], "boot": { "stage": "kernel" } }),
                Phase::Booting,
                "Booted is False",
            ),
            (
                json!({ "conditions": [is("Enrolled", "True")], "selected": selected }),
                Phase::Paving,
                "waiting for the agent to make the node",
            ),
            (
                json!({ "conditions": [is("Enrolled", "True"), is("Paved", "False")], "selected": selected, "applied": applied }),
                Phase::Repaving,
                "Paved is False",
            ),
            (
                json!({ "conditions": [is("Enrolled", "True"), is("Paved", "True"), is("NodeReady", "True")],
                    "selected": selected, "applied": applied, "nodeRef": node }),
                Phase::Ready,
                "the Node is Ready",
            ),
            (
                json!({ "conditions": [is("Enrolled", "True"), is("Paved", "True"), is("NodeReady", "False")],
                    "selected": selected, "applied": applied, "nodeRef": node }),
                Phase::Failed,
                "NodeReady is False",
            ),
        ] {
            let machine = machine(&status);
            let shown = derive(&machine, machine.status.as_ref().unwrap(), None, None);
            assert_eq!(
                (shown.phase, shown.message.as_str(), shown.ready),
                (phase, message, phase == Phase::Ready),
                "{status}"
            );
        }
    }
}
