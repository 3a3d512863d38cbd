//! Statuses written by a later version of another program can be read. Otherwise a typed watch of all
//! Machines would end at the first object that it cannot decode.

use bedplate_api::claim::{ClaimState, MachineClaim};
use bedplate_api::machine::{
    AddressType, FirmwareMode, Machine, Phase, PowerActionKind, PowerState, SelectionSource, SlotName,
    SlotState,
};
use bedplate_api::operation::{MachineOperation, OperationState, StepName};
use bedplate_api::wire::Stage;
use serde_json::{Value, json};

/// A Machine in whose status each enumeration has a value that this version does not know.
fn later_machine() -> Value {
    let time = "2026-01-01T00:00:00Z";
    json!({
        "apiVersion": "bedplate.dev/v1alpha1",
        "kind": "Machine",
        "metadata": { "name": "node-1" },
        "spec": { "provider": "manual" },
        "status": {
            "phase": "Later",
            "power": { "state": "Later", "lastAction": { "action": "Later", "time": time } },
            "boot": {
                "stage": "Later",
                "timeline": [{ "stage": "Later", "time": time }],
                "previous": { "id": "00".repeat(16), "startTime": time, "stage": "Later" },
            },
            "hardware": { "firmware": { "mode": "Later" } },
            "observedNode": { "observedGeneration": 1, "state": "Later" },
            "applied": { "name": "workers", "version": 1, "slot": "later" },
            "selected": { "name": "workers", "version": 1, "source": "Later" },
            "slots": [{ "name": "later", "state": "Ready" }, { "name": "a", "state": "Later" }],
            "addresses": [{ "type": "Later", "address": "192.0.2.1" }],
            "claim": { "providerID": "bedplate://node-1/u", "claimant": { "namespace": "n", "name": "c" }, "state": "Later",
                "since": time },
        },
    })
}

fn later_operation() -> Value {
    json!({
        "apiVersion": "bedplate.dev/v1alpha1",
        "kind": "MachineOperation",
        "metadata": { "name": "reboot-1" },
        "spec": { "machineRef": { "name": "node-1" }, "operationName": "reboot" },
        "status": { "state": "Later", "step": { "name": "Later", "startTime": "2026-01-01T00:00:00Z" } },
    })
}

fn later_claim() -> Value {
    json!({
        "apiVersion": "bedplate.dev/v1alpha1",
        "kind": "MachineClaim",
        "metadata": { "name": "node-1" },
        "spec": { "claimant": { "namespace": "n", "name": "c", "uid": "u" }, "clusterName": "c", "role": "Worker", "nodeName": "c",
            "providerID": "bedplate://node-1/u", "configurationRef": { "name": "pool" }, "release": "Empty" },
        "status": { "state": "Later" },
    })
}

#[test]
fn a_state_of_a_later_version_is_read() {
    let machine: Machine = serde_json::from_value(later_machine()).unwrap();
    let status = machine.status.unwrap();
    assert_eq!(status.phase, Some(Phase::Unknown));
    let power = status.power.unwrap();
    assert_eq!(power.state, PowerState::Unknown);
    assert_eq!(power.last_action.unwrap().action, PowerActionKind::Unknown);
    let boot = status.boot.unwrap();
    assert_eq!((boot.stage, boot.timeline[0].stage), (Some(Stage::Unknown), Stage::Unknown));
    assert_eq!(boot.previous.unwrap().stage, Stage::Unknown);
    assert!(Stage::Unknown < Stage::Discover, "nothing is known to be reached");
    assert_eq!(status.hardware.unwrap().firmware.unwrap().mode, Some(FirmwareMode::Unknown));
    assert_eq!(status.selected.unwrap().source, SelectionSource::Unknown);
    assert_eq!(status.applied.unwrap().slot, None, "the version counts, also in a slot of a later version");
    assert_eq!(status.slots.len(), 1, "a slot of a later version is skipped");
    assert_eq!((status.slots[0].name, status.slots[0].state), (SlotName::A, SlotState::Unknown));
    assert_eq!(status.addresses[0].type_, AddressType::Unknown);
    assert_eq!(status.claim.unwrap().state, ClaimState::Unknown);
    let operation: MachineOperation = serde_json::from_value(later_operation()).unwrap();
    let status = operation.status.unwrap();
    assert_eq!(status.state, Some(OperationState::Unknown));
    assert_eq!(status.step.unwrap().name, StepName::Unknown);
    let claim: MachineClaim = serde_json::from_value(later_claim()).unwrap();
    assert_eq!(claim.status.unwrap().state, Some(ClaimState::Unknown));
}

/// Each enumeration that a status has is in the objects above.
#[test]
fn every_enumeration_of_a_status_has_a_later_value_here() {
    for definition in bedplate_api::crds::definitions() {
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        let schema = &schema["openAPIV3Schema"]["properties"]["status"];
        let mut enumerations = Vec::new();
        find(schema, "status", &mut enumerations, &|_| true);
        let object = match definition.spec.names.kind.as_str() {
            "Machine" => later_machine(),
            "MachineOperation" => later_operation(),
            "MachineClaim" => later_claim(),
            _ => Value::Null,
        };
        let missing: Vec<_> = enumerations.into_iter().filter(|path| !has_later(&object, path)).collect();
        assert_eq!(missing, Vec::<String>::new(), "{}", definition.spec.names.kind);
    }
}

/// Returns true if a value at a path, such as `status.slots[].name`, is a later one.
fn has_later(object: &Value, path: &str) -> bool {
    let values = path.split('.').fold(vec![object], |values, name| {
        let (name, is_list) = name.strip_suffix("[]").map_or((name, false), |name| (name, true));
        let below = values.into_iter().filter_map(|value| value.get(name));
        if is_list { below.filter_map(Value::as_array).flatten().collect() } else { below.collect() }
    });
    values.into_iter().filter_map(Value::as_str).any(|value| value.eq_ignore_ascii_case("later"))
}

/// Only the state of a power supply may be written as `Unknown`, as ever.
#[test]
fn the_value_for_later_versions_is_not_one_that_an_api_server_takes() {
    let mut unknown = Vec::new();
    for definition in bedplate_api::crds::definitions() {
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        let is_unknown = |values: &[Value]| values.iter().any(|value| value == "Unknown");
        find(&schema["openAPIV3Schema"]["properties"]["status"], "status", &mut unknown, &is_unknown);
    }
    assert_eq!(unknown, ["status.power.state"]);
}

/// Finds the enumerations of a schema that `is_wanted` accepts.
fn find(schema: &Value, path: &str, found: &mut Vec<String>, is_wanted: &dyn Fn(&[Value]) -> bool) {
    // Conditions are Kubernetes' own type, with its own word `Unknown`.
    if schema["enum"].as_array().is_some_and(|values| is_wanted(values)) && !path.contains("conditions") {
        found.push(path.to_owned());
    }
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        find(below, &format!("{path}.{name}"), found, is_wanted);
    }
    if schema["items"].is_object() {
        find(&schema["items"], &format!("{path}[]"), found, is_wanted);
    }
}
