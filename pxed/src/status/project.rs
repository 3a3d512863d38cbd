//! Pure: the fields of a Machine's status that are pxed's to write (docs/rules.md, "Who writes what").

use bedplate_api::machine::{Hardware, Machine, MachineStatus, condition_type};
use kube::Resource;
use serde_json::{Value, json};

/// The conditions that pxed writes.
pub const OWN_CONDITIONS: [&str; 4] = [
    condition_type::BMC_REACHABLE,
    condition_type::POWERED_ON,
    condition_type::BOOTED,
    condition_type::ENROLLED,
];

/// A status with pxed's fields alone.
pub fn own_fields(status: &MachineStatus) -> MachineStatus {
    let bmc = status.hardware.as_ref().and_then(|hardware| hardware.bmc.clone());
    let mut conditions = status.conditions.clone();
    conditions.retain(|c| OWN_CONDITIONS.contains(&c.type_.as_str()));
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    MachineStatus {
        conditions,
        power: status.power.clone(),
        boot: status.boot.clone(),
        hardware: bmc.map(|bmc| Hardware { bmc: Some(bmc), ..Hardware::default() }),
        ..MachineStatus::default()
    }
}

/// Another's view of a status with pxed's fields replaced by `own`.
pub fn overlay(mut others: MachineStatus, own: &MachineStatus) -> MachineStatus {
    let own = own_fields(own);
    others.conditions.retain(|c| !OWN_CONDITIONS.contains(&c.type_.as_str()));
    others.conditions.extend(own.conditions);
    others.power = own.power;
    others.boot = own.boot;
    if let Some(bmc) = own.hardware.and_then(|hardware| hardware.bmc) {
        others.hardware.get_or_insert_with(Hardware::default).bmc = Some(bmc);
    }
    others
}

/// What is sent to the API server: pxed's fields of this very Machine (a later one of the same name has another uid,
/// and the server refuses).
///
/// # Errors
/// The status cannot be written as JSON.
pub fn apply_body(name: &str, uid: &str, status: &MachineStatus) -> Result<Value, serde_json::Error> {
    Ok(json!({
        "apiVersion": Machine::api_version(&()),
        "kind": Machine::kind(&()),
        "metadata": { "name": name, "uid": uid },
        "status": serde_json::to_value(own_fields(status))?,
    }))
}
