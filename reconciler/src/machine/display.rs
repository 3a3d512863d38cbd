//! Pure: `phase` and `Ready` of a Machine, derived from its conditions. For display: no program reads the phase (H1).

use bedplate_api::machine::{
    Condition, Machine, MachineStatus, PROVIDER_MANUAL, PROVIDER_PXE, Phase, condition_type,
};
use bedplate_api::reason::Reason;
use bedplate_api::reason::machine::{
    BootedReason, EnrolledReason, NodeReadyReason, PavedReason, PoweredOnReason, ReadyReason,
};
use bedplate_rules::selection::version_name;
use k8s_openapi::api::core::v1::Node;

use crate::node::cordon::{self, Cordon, Hold, Purpose};

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

/// Of a Machine whose status is `status` by now; `there`: its Node, `pending`: why nothing is selected, `trouble`: what else is not as it ought
/// to be.
pub(super) fn derive(
    machine: &Machine,
    status: &MachineStatus,
    there: Option<&Node>,
    pending: Option<(&str, &str)>,
    trouble: Option<(&str, &str)>,
) -> Display {
    if machine.metadata.deletion_timestamp.is_some() {
        let drained = condition(status, condition_type::DRAINED).map(|c| c.message.clone());
        return display(
            Phase::Deleting,
            ReadyReason::Deleting.as_str(),
            &drained.unwrap_or_else(|| leaves(machine)),
        );
    }
    if machine.spec.paused {
        return display(
            Phase::Paused,
            ReadyReason::Paused.as_str(),
            "spec.paused is set: the machine is left as it is",
        );
    }
    if let Some(display) = before_enrolment(machine, status) {
        return display;
    }
    if let Some((reason, message)) = pending {
        return display(Phase::ConfigurationPending, reason, message);
    }
    if let Some((reason, message)) = trouble {
        let phase = if is_running(status) { Phase::Ready } else { Phase::Repaving };
        return Display { ready: false, ..display(phase, reason, message) };
    }
    node(status, there)
}

/// Who keeps it, once it is deleted.
fn leaves(machine: &Machine) -> String {
    match machine.metadata.finalizers.as_deref() {
        None | Some([]) => "it is being deleted".to_owned(),
        Some(held) => format!("it is being deleted, and held by {}", held.join(", ")),
    }
}

/// What comes before a configuration: power, boot, enrolment.
fn before_enrolment(machine: &Machine, status: &MachineStatus) -> Option<Display> {
    if let Some(c) =
        unmet(status, condition_type::BOOTED).filter(|c| c.reason == BootedReason::DuplicateMacAddress)
    {
        return Some(display(Phase::Failed, &c.reason, &c.message));
    }
    if let Some(c) = unmet(status, condition_type::POWERED_ON) {
        let phase = match PoweredOnReason::parse(&c.reason) {
            Some(PoweredOnReason::PoweringOn) => Phase::PoweringOn,
            Some(PoweredOnReason::PowerOnAttemptsExhausted) => Phase::Failed,
            Some(_) | None => Phase::Pending,
        };
        return Some(display(phase, &c.reason, &c.message));
    }
    if condition(status, condition_type::ENROLLED).is_some_and(|c| c.status == "True") {
        return None;
    }
    // Packets in the name of a server that runs are not its boot. A host that took its seed boots.
    let is_seeded = status.boot.as_ref().is_some_and(|boot| boot.seed_time.is_some());
    let powered = condition(status, condition_type::POWERED_ON);
    if let Some(found) = powered.filter(|c| !is_seeded && c.reason == PoweredOnReason::FoundRunning) {
        return Some(display(Phase::Pending, &found.reason, &found.message));
    }
    let booting = status.boot.as_ref().is_some_and(|boot| boot.stage.is_some());
    let phase = if booting { Phase::Booting } else { Phase::Pending };
    // Who cannot be switched on will not be heard.
    let first = unmet(status, condition_type::BMC_REACHABLE)
        .filter(|_| !booting && powered.is_some_and(|c| c.status == "Unknown"))
        .or_else(|| unmet(status, condition_type::BOOTED))
        .or_else(|| unmet(status, condition_type::ENROLLED));
    Some(match first {
        Some(c) => display(phase, &c.reason, &c.message),
        None if powered.is_some() => display(
            phase,
            EnrolledReason::AwaitingEnrolment.as_str(),
            "waiting for the host to boot and to enrol",
        ),
        None => display(phase, EnrolledReason::AwaitingEnrolment.as_str(), &unheard(machine)),
    })
}

/// Nobody has said anything of its host: who has to.
fn unheard(machine: &Machine) -> String {
    let (name, site) = (machine.metadata.name.as_deref().unwrap_or_default(), &machine.spec.site);
    match machine.spec.provider.as_str() {
        PROVIDER_PXE => format!("waiting for a pxed of site {site}: none has said anything of it yet"),
        PROVIDER_MANUAL => {
            format!(
                "no agent has enrolled as it: a person installs it, `bedplate machine token {name}` has its token"
            )
        }
        other => format!("waiting for {other}, which is not Bedplate, to have its host enrol"),
    }
}

/// What comes after it.
fn node(status: &MachineStatus, there: Option<&Node>) -> Display {
    let selected = status.selected.as_ref().map(|s| (s.name.as_str(), s.version));
    let applied = status.applied.as_ref().map(|a| (a.name.as_str(), a.version));
    let refused = status.rolled_back.as_ref().map(|r| (r.from.name.as_str(), r.from.version));
    if let (Some(back), true) = (&status.rolled_back, refused.is_some() && refused == selected) {
        return display(Phase::RolledBack, ReadyReason::RolledBack.as_str(), &back.reason);
    }
    // Who has died does not say so: its agent's word is the last one.
    let down = there.and_then(down).filter(|_| applied.is_some() && status.node_ref.is_some());
    let said_well = is_running(status) || unmet(status, condition_type::PAVED).is_none();
    if let Some(why) = down.filter(|_| said_well) {
        return display(Phase::Failed, NodeReadyReason::NodeNotReady.as_str(), &why);
    }
    if is_running(status) {
        // What is awaited changes with each Pod, and stands on the Node.
        if let Some(next) = there.and_then(emptied_for) {
            let leave = format!(
                "the Node's Pods leave, then {next} comes: the Node's annotation {} says who is awaited",
                cordon::DRAIN_AWAITS
            );
            return display(Phase::Updating, ReadyReason::Updating.as_str(), &leave);
        }
        return display(
            Phase::Ready,
            ReadyReason::Ready.as_str(),
            &to_come(status, there, selected, applied),
        );
    }
    let phase = if applied.is_none() { Phase::Paving } else { Phase::Repaving };
    let first = unmet(status, condition_type::PAVED).or_else(|| unmet(status, condition_type::NODE_READY));
    match first {
        Some(c) if applied == selected && status.node_ref.is_some() => {
            Display { ready: false, ..display(Phase::Failed, &c.reason, &c.message) }
        }
        Some(c) => display(phase, &c.reason, &c.message),
        None => display(phase, ReadyReason::AwaitingNode.as_str(), "waiting for the agent to make the node"),
    }
}

/// Since when its Node is not Ready, and why, by the cluster's word.
fn down(node: &Node) -> Option<String> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready" && c.status != "True")?;
    let since = ready.last_transition_time.as_ref().map(|time| format!(" since {:.0}", time.0));
    let why = ready.message.as_deref().filter(|why| !why.is_empty()).map(|why| format!(": {why}"));
    Some(format!("the Node is not Ready{}{}", since.unwrap_or_default(), why.unwrap_or_default()))
}

/// What a Machine that is well waits for; mostly for nothing.
fn to_come(
    status: &MachineStatus,
    there: Option<&Node>,
    selected: Option<(&str, i64)>,
    applied: Option<(&str, i64)>,
) -> String {
    let (Some(next), Some(runs)) = (selected.filter(|next| Some(*next) != applied), applied) else {
        return String::new();
    };
    let (next, runs) = (version_name(next.0, next.1), version_name(runs.0, runs.1));
    if let Some(failed) = there.and_then(cordon::failed).filter(|failed| failed.version == next) {
        return format!("{runs} runs, and the turn for {next} was given up: {}", failed.message);
    }
    let fetched = condition(status, condition_type::PAVED).filter(|c| c.reason != PavedReason::Applied);
    match fetched {
        Some(c) => format!("{runs} runs, and {next} does not come into its slot: {}", c.message),
        None => format!(
            "{runs} runs until the Node is deleted, by a rolling update or by hand: {next} comes then"
        ),
    }
}

/// The version for which a rolling update has a Node emptied.
fn emptied_for(node: &Node) -> Option<String> {
    match cordon::cordon_of(node) {
        Cordon::Ours(Hold { purpose: Purpose::Rollout(version), .. }) => Some(version),
        Cordon::Ours(_) | Cordon::Operation | Cordon::Foreign | Cordon::Free => None,
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
        let next = json!({ "name": "w", "version": 2, "by": "Reference" });
        let mut applied_well = is("Paved", "True");
        applied_well["reason"] = json!("Applied");
        let mut found = is("PoweredOn", "True");
        found["reason"] = json!("FoundRunning");
        for (status, phase, message) in [
            (
                json!({}),
                Phase::Pending,
                "no agent has enrolled as it: a person installs it, `bedplate machine token a` has its token",
            ),
            (
                json!({ "conditions": [is("BMCReachable", "False"), is("PoweredOn", "Unknown"), is("Booted", "False")] }),
                Phase::Pending,
                "BMCReachable is False",
            ),
            (
                json!({ "conditions": [is("BMCReachable", "False"), is("PoweredOn", "Unknown"), is("Booted", "False")],
                    "boot": { "stage": "kernel" } }),
                Phase::Booting,
                "Booted is False",
            ),
            (json!({ "conditions": [is("PoweredOn", "False")] }), Phase::Pending, "PoweredOn is False"),
            // On since before pxed knew it.
            (json!({ "conditions": [found] }), Phase::Pending, "PoweredOn is True"),
            // Packets in its name open a boot; only its own agent takes the seed.
            (
                json!({ "conditions": [found, is("Booted", "False")], "boot": { "stage": "loader" } }),
                Phase::Pending,
                "PoweredOn is True",
            ),
            (
                json!({ "conditions": [found, is("Booted", "False")],
                    "boot": { "stage": "userspace", "seedTime": "2026-01-01T00:00:00.000000Z" } }),
                Phase::Booting,
                "Booted is False",
            ),
            // Who has switched it on has said something of it.
            (
                json!({ "conditions": [is("PoweredOn", "True")] }),
                Phase::Pending,
                "waiting for the host to boot and to enrol",
            ),
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
                "",
            ),
            (
                json!({ "conditions": [is("Enrolled", "True"), applied_well, is("NodeReady", "True")],
                    "selected": next, "applied": applied, "nodeRef": node }),
                Phase::Ready,
                "w-v1 runs until the Node is deleted, by a rolling update or by hand: w-v2 comes then",
            ),
            (
                json!({ "conditions": [is("Enrolled", "True"), is("Paved", "True"), is("NodeReady", "True")],
                    "selected": next, "applied": applied, "nodeRef": node }),
                Phase::Ready,
                "w-v1 runs, and w-v2 does not come into its slot: Paved is True",
            ),
            (
                json!({ "conditions": [is("Enrolled", "True"), is("Paved", "True"), is("NodeReady", "False")],
                    "selected": selected, "applied": applied, "nodeRef": node }),
                Phase::Failed,
                "NodeReady is False",
            ),
        ] {
            let machine = machine(&status);
            let shown = derive(&machine, machine.status.as_ref().unwrap(), None, None, None);
            assert_eq!(
                (shown.phase, shown.message.as_str(), shown.ready),
                (phase, message, phase == Phase::Ready),
                "{status}"
            );
        }
    }

    #[test]
    fn a_machine_whose_node_is_down_is_not_ready_whatever_its_agent_said_last() {
        let status = |paved: &str| {
            json!({ "conditions": [is("Enrolled", "True"), is("Paved", paved), is("NodeReady", paved)],
                "selected": { "name": "w", "version": 1, "by": "Reference" },
                "applied": { "name": "w", "version": 1, "slot": "a" }, "nodeRef": { "name": "a", "uid": "1" } })
        };
        let node = |ready: &str| -> Node {
            serde_json::from_value(json!({ "metadata": { "name": "a" }, "status": { "conditions": [{ "type": "Ready",
                "status": ready, "message": "Kubelet stopped posting node status.", "lastTransitionTime": "2026-01-01T00:00:00Z" }] } }))
            .unwrap()
        };
        let shown = |paved: &str, ready: &str| {
            let machine = machine(&status(paved));
            let shown = derive(&machine, machine.status.as_ref().unwrap(), Some(&node(ready)), None, None);
            (shown.phase, shown.ready, shown.reason, shown.message)
        };
        let down = "the Node is not Ready since 2026-01-01T00:00:00Z: Kubelet stopped posting node status.";
        for ready in ["False", "Unknown"] {
            let expected = (Phase::Failed, false, "NodeNotReady".to_owned(), down.to_owned());
            assert_eq!(shown("True", ready), expected);
        }
        assert_eq!(shown("True", "True").0, Phase::Ready);
        assert_eq!(shown("False", "Unknown").3, "Paved is False", "it is being paved, which says more");
    }

    #[test]
    fn c4_a_machine_whose_node_a_rolling_update_empties_is_updating_and_any_other_cordon_is_not() {
        let status = json!({ "conditions": [is("Enrolled", "True"), is("Paved", "True"), is("NodeReady", "True")],
            "selected": { "name": "w", "version": 2, "by": "Reference" },
            "applied": { "name": "w", "version": 1, "slot": "a" }, "nodeRef": { "name": "a", "uid": "1" } });
        let machine = machine(&status);
        let shown = |by: Option<&str>, awaits: &str| {
            let mut annotations = json!({ cordon::DRAIN_AWAITS: awaits });
            annotations[bedplate_rules::drain::CORDONED_BY] = json!(by.unwrap_or_default());
            let annotations = by.map(|_| annotations);
            let node: Node = serde_json::from_value(
                json!({ "metadata": { "name": "a", "annotations": annotations }, "spec": { "unschedulable": true } }),
            )
            .unwrap();
            derive(&machine, machine.status.as_ref().unwrap(), Some(&node), None, None)
        };
        let updating = shown(Some("rollout/w-v2"), "n/a, held by its budget");
        assert_eq!((updating.phase, updating.ready, &*updating.reason), (Phase::Updating, false, "Updating"));
        assert!(updating.message.contains("then w-v2 comes"), "{}", updating.message);
        assert_eq!(updating, shown(Some("rollout/w-v2"), "n/b"), "no write for each Pod");
        for by in [None, Some("operation/x"), Some("deletion")] {
            assert_eq!(shown(by, "").phase, Phase::Ready, "{by:?}");
        }
    }

    #[test]
    fn c4_a_machine_whose_turn_was_given_up_says_why() {
        let status = json!({ "conditions": [is("Enrolled", "True"), is("Paved", "True"), is("NodeReady", "True")],
            "selected": { "name": "w", "version": 2, "by": "Reference" },
            "applied": { "name": "w", "version": 1, "slot": "a" }, "nodeRef": { "name": "a", "uid": "1" } });
        let machine = machine(&status);
        for (version, held) in [("w-v2", true), ("w-v1", false)] {
            let failed = json!({ "version": version, "generation": 3, "reason": "UnmanagedPods",
                "message": "nobody makes these Pods again: n/lone" });
            let annotations = json!({ cordon::DRAIN_FAILED: failed.to_string() });
            let node: Node = serde_json::from_value(
                json!({ "metadata": { "name": "a", "annotations": annotations }, "spec": {} }),
            )
            .unwrap();
            let shown = derive(&machine, machine.status.as_ref().unwrap(), Some(&node), None, None);
            let words =
                "w-v1 runs, and the turn for w-v2 was given up: nobody makes these Pods again: n/lone";
            assert_eq!((shown.ready, shown.message == words), (true, held), "{}", shown.message);
        }
    }

    #[test]
    fn a_machine_that_goes_says_who_holds_it() {
        let mut machine = machine(&json!({}));
        machine.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        machine.metadata.finalizers = Some(vec!["bedplate.dev/power-off".to_owned()]);
        let shown = derive(&machine, machine.status.as_ref().unwrap(), None, None, None);
        assert_eq!(shown.message, "it is being deleted, and held by bedplate.dev/power-off");
    }
}
