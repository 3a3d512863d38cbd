//! Identity and health of a machine from its resources.
//!
//! Pure: no clock, no file, no socket. Callers: `redfish`, `probe`.

use serde_json::Value;

use super::document::{Document, text_of};
use crate::error::{BmcError, printable};
use crate::model::{Health, HealthState, Identity, PowerState};

/// Maximum number of reported concerns.
const MOST_CONCERNS: usize = 16;

/// Returns the power state of a system; `Unknown` if it does not report one, or reports a value that the standard does not have.
pub(crate) fn power_state(system: &Document) -> Result<PowerState, BmcError> {
    Ok(match system.word("/PowerState")? {
        Some("On") => PowerState::On,
        Some("Off") => PowerState::Off,
        Some("PoweringOn") => PowerState::PoweringOn,
        Some("PoweringOff") => PowerState::PoweringOff,
        Some(_) | None => PowerState::Unknown,
    })
}

/// Returns the identity of the BMC and its machine.
pub(crate) fn identity(root: &Document, system: &Document, controller: Option<&Document>) -> Identity {
    let version = root.text("/RedfishVersion").unwrap_or_default();
    Identity {
        vendor: system.text("/Manufacturer").or_else(|| root.text("/Vendor")),
        product: system.text("/Model").or_else(|| root.text("/Product")),
        serial: system.text("/SerialNumber").or_else(|| system.text("/SKU")),
        firmware: controller.and_then(|c| c.text("/FirmwareVersion")),
        controller: controller.and_then(|c| c.text("/Model")),
        host_uuid: system.text("/UUID"),
        protocol: Some(format!("Redfish {version}").trim_end().to_owned()),
    }
}

/// Returns true if the service has sessions.
pub(crate) fn has_sessions(root: &Document) -> bool {
    root.at("/SessionService").is_some() || root.at("/Links/Sessions").is_some()
}

/// Serial consoles that the system reports. None of them is part of Redfish.
pub(crate) fn consoles(system: &Document) -> Vec<String> {
    let on =
        |name: &&str| system.at(&format!("/SerialConsole/{name}/ServiceEnabled")) == Some(&Value::Bool(true));
    ["IPMI", "SSH", "Telnet"].into_iter().filter(on).map(str::to_owned).collect()
}

/// Returns the health: the worst of the system's rollup, its parts and its BMC.
pub(crate) fn health(system: &Document, controller: Option<&Document>) -> Health {
    let mut health = Health { overall: HealthState::Unknown, concerns: Vec::new() };
    let parts = [("processors", "/ProcessorSummary"), ("memory", "/MemorySummary")];
    take(&mut health, "system", system.at("/Status"));
    for (name, pointer) in parts {
        take(&mut health, name, system.at(&format!("{pointer}/Status")));
    }
    take(&mut health, "BMC", controller.and_then(|c| c.at("/Status")));
    health.concerns.truncate(MOST_CONCERNS);
    health
}

fn take(health: &mut Health, name: &str, status: Option<&Value>) {
    let Some(status) = status else { return };
    // One service writes HealthRollUp.
    let rollup =
        ["HealthRollup", "HealthRollUp", "Health"].iter().find_map(|field| status.get(field)?.as_str());
    let state = rollup.map_or(HealthState::Unknown, state_of);
    health.overall = health.overall.max(state);
    if state > HealthState::Ok {
        health.concerns.push(format!("{name}: {}", printable(rollup.unwrap_or_default())));
    }
    let conditions = status.get("Conditions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let messages = conditions.iter().take(MOST_CONCERNS).filter_map(|c| text_of(c.get("Message")?));
    health.concerns.extend(messages.map(|message| format!("{name}: {message}")));
}

/// `Health` and `Severity`, in the words of the standard and of some BMCs.
pub(crate) fn state_of(word: &str) -> HealthState {
    match word.to_ascii_lowercase().as_str() {
        "ok" | "informational" => HealthState::Ok,
        "warning" => HealthState::Warning,
        "critical" | "fatal" => HealthState::Critical,
        _ => HealthState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(value: &Value) -> Document {
        Document::parse("/redfish/v1/x", None, value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn unlisted_power_state_is_unknown() {
        for (value, expected) in [
            (json!({"PowerState": "PoweringOff"}), PowerState::PoweringOff),
            (json!({"PowerState": "Paused"}), PowerState::Unknown),
            (json!({"PowerState": null}), PowerState::Unknown),
            (json!({}), PowerState::Unknown),
        ] {
            assert_eq!(power_state(&document(&value)).unwrap(), expected, "{value}");
        }
        assert!(power_state(&document(&json!({"PowerState": true}))).is_err());
    }

    #[test]
    fn health_is_the_worst_part_with_its_reasons() {
        let system = json!({"Status": {"Health": "OK", "HealthRollup": "Warning", "Conditions": [{"Message": "Fan 3\nis slow."}]},
            "MemorySummary": {"Status": {"HealthRollup": "Critical"}}, "ProcessorSummary": {"Status": null}});
        let health = health(&document(&system), Some(&document(&json!({"Status": {"Health": "OK"}}))));
        assert_eq!(health.overall, HealthState::Critical);
        assert_eq!(health.concerns, ["system: Warning", "system: Fan 3 is slow.", "memory: Critical"]);
        let nothing = super::health(&document(&json!({"Status": {"HealthRollup": null}})), None);
        assert_eq!(nothing, Health { overall: HealthState::Unknown, concerns: vec![] });
    }

    #[test]
    fn an_identity_is_what_the_documents_say() {
        let root = document(&json!({"RedfishVersion": "1.15.0", "Vendor": "Lenovo"}));
        let system = document(
            &json!({"Model": "SR650", "SerialNumber": "  ", "SKU": "7X06", "UUID": "38947555-7742-3448-3784-823347823834"}),
        );
        let controller = document(&json!({"FirmwareVersion": "CDI3A4E 5.00", "Model": "XCC"}));
        let found = identity(&root, &system, Some(&controller));
        assert_eq!(found.vendor.as_deref(), Some("Lenovo"));
        assert_eq!(found.serial.as_deref(), Some("7X06"));
        assert_eq!(found.firmware.as_deref(), Some("CDI3A4E 5.00"));
        assert_eq!(found.protocol.as_deref(), Some("Redfish 1.15.0"));
    }
}
