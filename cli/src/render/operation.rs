//! MachineOperations and a Machine's power as text.
//!
//! Pure: the time is an argument. Texts from outside are cleaned here or by the table.

use std::collections::BTreeMap;

use bedplate_api::machine::{BmcProtocol, MOST_POWER_ON_ATTEMPTS, Machine, PowerState, condition_type};
use bedplate_api::operation::{MachineOperation, MachineOperationStatus, OperationState};
use jiff::Timestamp;

use super::table::Table;
use super::{Look, Paint, age, clean, machine, text};

/// Label of a child: the name of its parent, or the parent's UID if the name is too long for a label.
const PARENT: &str = "bedplate.dev/parent";

/// Returns one line for each operation, the oldest first. Operations of a selector's Machines follow it, indented.
pub(crate) fn operations(operations: &[MachineOperation], look: Look) -> String {
    if operations.is_empty() {
        return "no MachineOperations; create one with `bedplate power` or `bedplate operation create`\n"
            .to_owned();
    }
    let parents = parents(operations);
    let parent = |operation: &MachineOperation| {
        parents.get(operation.metadata.labels.as_ref()?.get(PARENT)?.as_str()).copied()
    };
    let mut all: Vec<_> = operations.iter().map(|operation| (parent(operation), operation)).collect();
    let key = |operation: &MachineOperation| (created(operation), operation.metadata.name.clone());
    all.sort_by_key(|(parent, operation)| {
        (key(parent.unwrap_or(operation)), parent.is_some(), key(operation))
    });
    let mut table = Table::new(&["NAME", "OPERATION", "MACHINE", "STATE", "REASON", "AGE"]);
    for (parent, operation) in all {
        let status = operation.status.clone().unwrap_or_default();
        let indent = if parent.is_some() { "  " } else { "" };
        table.row(vec![
            (format!("{indent}{}", operation.metadata.name.as_deref().unwrap_or_default()), None),
            (operation.spec.operation_name.clone(), None),
            (target(operation), None),
            (state(&status), Some(paint(&status))),
            (text(status.reason.clone()), None),
            (text(created(operation).map(|time| age(time, look))), None),
        ]);
    }
    table.print(look)
}

/// Returns the operations with a selector, by the labels of their children.
fn parents(operations: &[MachineOperation]) -> BTreeMap<&str, &MachineOperation> {
    let parents = operations.iter().filter(|operation| operation.spec.machine_selector.is_some());
    let keyed = parents.flat_map(|one| {
        let keys = [&one.metadata.name, &one.metadata.uid].into_iter().flatten();
        keys.map(move |key| (key.as_str(), one))
    });
    keyed.collect()
}

fn created(operation: &MachineOperation) -> Option<Timestamp> {
    operation.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// Returns the operation's Machine, or the number of finished Machines.
fn target(operation: &MachineOperation) -> String {
    match (&operation.spec.machine_ref, operation.status.as_ref().and_then(|status| status.counts.as_ref())) {
        (Some(machine), _) => machine.name.to_string(),
        (None, Some(counts)) => {
            format!("{} of {} finished", counts.complete.saturating_add(counts.failed), counts.total)
        }
        (None, None) => "by selector".to_owned(),
    }
}

/// Returns the state. An operation without one was not taken yet.
fn state(status: &MachineOperationStatus) -> String {
    format!("{:?}", status.state.unwrap_or(OperationState::Pending))
}

fn paint(status: &MachineOperationStatus) -> Paint {
    match status.state {
        Some(OperationState::Complete) => Paint::Good,
        Some(OperationState::Failed) => Paint::Bad,
        Some(OperationState::InProgress | OperationState::Unknown) => Paint::Waiting,
        Some(OperationState::Pending) | None => Paint::Faint,
    }
}

/// Formats the progress of an operation on one line:
/// `node-1-power-cycle-x7k2p: powerCycle of node-1 InProgress (Off): waiting`.
pub(crate) fn progress(operation: &MachineOperation, look: Look) -> String {
    let status = operation.status.clone().unwrap_or_default();
    let step = status.step.as_ref().filter(|_| status.state == Some(OperationState::InProgress));
    let why = step.map(|step| format!("{:?}", step.name)).or_else(|| status.reason.clone());
    let why = why.filter(|why| !why.is_empty()).map(|why| format!(" ({})", clean(&why)));
    let message = status.message.as_deref().filter(|message| !message.is_empty());
    let message = message.map(|message| format!(": {}", clean(message)));
    format!(
        "{}: {} of {} {}{}{}",
        clean(operation.metadata.name.as_deref().unwrap_or_default()),
        clean(&operation.spec.operation_name),
        target(operation),
        look.paint(paint(&status), &state(&status)),
        why.unwrap_or_default(),
        message.unwrap_or_default(),
    )
}

/// Returns a Machine's power: state, last action, next action, and whether the BMC is reachable.
pub(crate) fn power(machine: &Machine, look: Look) -> String {
    let status = machine.status.clone().unwrap_or_default();
    let name = machine.metadata.name.clone().unwrap_or_default();
    let mut printed = format!("{}\n", look.paint(Paint::Heading, &format!("Machine {}", clean(&name))));
    let mut table = Table::indented(2);
    let mut line = |name: &str, value: String, paint: Option<Paint>| {
        table.row(vec![(name.to_owned(), Some(Paint::Faint)), (value, paint)]);
    };
    match &status.power {
        None => line("Power", "not seen yet".to_owned(), Some(Paint::Faint)),
        Some(power) => {
            let seen = power.observed_time.as_ref().map(|time| format!(", seen {} ago", age(time.0, look)));
            line(
                "Power",
                format!("{:?}{}", power.state, seen.unwrap_or_default()),
                Some(state_paint(power.state)),
            );
            if let Some(last) = &power.last_action {
                let why = last.message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
                line("Last action", format!("{:?} {} ago{why}", last.action, age(last.time.0, look)), None);
            }
            if let Some(attempts) = power.attempts.filter(|attempts| *attempts > 0) {
                let next =
                    power.next_attempt_time.as_ref().map(|time| next(time.0, look)).unwrap_or_default();
                line(
                    "Powered on",
                    format!(
                        "{attempts} of {MOST_POWER_ON_ATTEMPTS} times automatically without a boot{next}"
                    ),
                    None,
                );
            }
        }
    }
    let policy = format!("{:?}", machine.spec.power_policy);
    let paused = if machine.spec.paused { "; paused, operations wait" } else { "" };
    line("Policy", format!("{policy}{paused}"), None);
    let bmc = machine.spec.bmc.as_ref().map(|bmc| format!("{} {}", protocol(bmc.protocol), bmc.address));
    let none = || "none; power is switched by hand (spec.bmc is not set)".to_owned();
    line("BMC", bmc.unwrap_or_else(none), None);
    printed.push_str(&table.print(look));
    let wanted = [condition_type::BMC_REACHABLE, condition_type::POWERED_ON];
    let conditions: Vec<_> = status
        .conditions
        .into_iter()
        .filter(|condition| wanted.contains(&condition.type_.as_str()))
        .collect();
    printed.push_str(&format!("\n{}\n", look.paint(Paint::Heading, "Conditions")));
    printed.push_str(&machine::conditions(&conditions, look));
    printed
}

/// Returns the usual name of the protocol.
fn protocol(protocol: BmcProtocol) -> &'static str {
    match protocol {
        BmcProtocol::Redfish => "Redfish",
        BmcProtocol::Ipmi => "IPMI",
    }
}

fn next(time: Timestamp, look: Look) -> String {
    let seconds = time.duration_since(look.now).as_secs();
    if seconds > 0 { format!(", next not before {seconds}s from now") } else { ", next now".to_owned() }
}

fn state_paint(state: PowerState) -> Paint {
    match state {
        PowerState::On => Paint::Good,
        PowerState::Off | PowerState::PoweringOn | PowerState::PoweringOff => Paint::Waiting,
        PowerState::Unknown => Paint::Faint,
    }
}
