//! What a later version of another program writes into a status is read: a typed watch of all Machines would end with the first one that it
//! cannot decode.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use bedplate_api::machine::{
    AddressType, Machine, Phase, PowerActionKind, PowerState, SelectionSource, SlotState,
};
use bedplate_api::operation::{MachineOperation, OperationState};
use serde_json::{Value, json};

#[test]
fn a_state_of_a_later_version_is_read() {
    let machine: Machine = serde_json::from_value(json!({
        "apiVersion": "bedplate.dev/v1alpha1",
        "kind": "Machine",
        "metadata": { "name": "node-1" },
        "spec": { "provider": "manual" },
        "status": {
            "phase": "Later",
            "power": { "state": "Later", "lastAction": { "action": "Later", "time": "2026-01-01T00:00:00Z" } },
            "selected": { "name": "workers", "version": 1, "source": "Later" },
            "slots": [{ "name": "a", "state": "Later" }],
            "addresses": [{ "type": "Later", "address": "192.0.2.1" }],
        },
    }))
    .unwrap();
    let status = machine.status.unwrap();
    assert_eq!(status.phase, Some(Phase::Unknown));
    let power = status.power.unwrap();
    assert_eq!(power.state, PowerState::Unknown);
    assert_eq!(power.last_action.unwrap().action, PowerActionKind::Unknown);
    assert_eq!(status.selected.unwrap().source, SelectionSource::Unknown);
    assert_eq!(status.slots[0].state, SlotState::Unknown);
    assert_eq!(status.addresses[0].type_, AddressType::Unknown);
    let operation: MachineOperation = serde_json::from_value(json!({
        "apiVersion": "bedplate.dev/v1alpha1",
        "kind": "MachineOperation",
        "metadata": { "name": "reboot-1" },
        "spec": { "machineRef": { "name": "node-1" }, "operationName": "reboot" },
        "status": { "state": "Later" },
    }))
    .unwrap();
    assert_eq!(operation.status.unwrap().state, Some(OperationState::Unknown));
}

/// Only the state of a power supply may be written as `Unknown`, as ever.
#[test]
fn the_value_for_later_versions_is_not_one_that_an_api_server_takes() {
    let mut unknown = Vec::new();
    for definition in bedplate_api::crds::definitions() {
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        find(&schema["openAPIV3Schema"]["properties"]["status"], "status", &mut unknown);
    }
    assert_eq!(unknown, ["status.power.state"]);
}

fn find(schema: &Value, path: &str, found: &mut Vec<String>) {
    let is_unknown = |values: &Vec<Value>| values.iter().any(|value| value == "Unknown");
    // Conditions are Kubernetes' own type, with its own word of that name.
    if schema["enum"].as_array().is_some_and(is_unknown) && !path.contains("conditions") {
        found.push(path.to_owned());
    }
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        find(below, &format!("{path}.{name}"), found);
    }
    if schema["items"].is_object() {
        find(&schema["items"], &format!("{path}[]"), found);
    }
}
