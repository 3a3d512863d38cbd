//! Pure: start and run timeouts of operations.
//!
//! The executors' own default timeouts are included. No other program may time an operation out before its
//! executor does.

use bedplate_api::operation::{
    AGENT_OPERATIONS, MachineOperationSpec, POWER_OFF_TIMEOUT, POWER_ON_TIMEOUT, POWER_OPERATIONS,
};
use jiff::SignedDuration;

/// Grace period after an operation's timeout, in which the executor ends the operation itself.
pub const LEFT_TO_EXECUTOR: SignedDuration = SignedDuration::from_secs(30);

/// Default start timeout of a Bedplate operation, in seconds. Other operations of its Machine may run first,
/// and drain.
const START_TIMEOUT_SECONDS: i64 = 3600;
/// Start timeout of an unknown operation, in seconds. It is short because the name may be wrong.
const UNKNOWN_START_TIMEOUT_SECONDS: i64 = 300;
/// Default run timeout of an unknown operation, in seconds.
const UNKNOWN_RUN_TIMEOUT_SECONDS: i64 = 3600;
/// Default timeout of a drain without `drainTimeoutSeconds`, in seconds.
const DRAIN_TIMEOUT_SECONDS: i64 = 600;

/// Returns the time within which an executor must take the operation.
pub fn taken_within(spec: &MachineOperationSpec) -> SignedDuration {
    let name = spec.operation_name.as_str();
    let own = if POWER_OPERATIONS.contains(&name) || AGENT_OPERATIONS.contains(&name) {
        START_TIMEOUT_SECONDS.saturating_add(number(spec, "drainTimeoutSeconds").unwrap_or(0))
    } else {
        UNKNOWN_START_TIMEOUT_SECONDS
    };
    SignedDuration::from_secs(spec.timeout_seconds.map_or(own, i64::from))
}

/// Returns the time within which a taken operation must finish. It is never shorter than the executor's own
/// timeout.
pub fn done_within(spec: &MachineOperationSpec) -> SignedDuration {
    let drain = match spec.parameters.get("drain").map(String::as_str) {
        Some("true") => number(spec, "drainTimeoutSeconds").unwrap_or(DRAIN_TIMEOUT_SECONDS),
        Some(_) | None => 0,
    };
    let own = match spec.operation_name.as_str() {
        "powerOn" | "reset" => i64::from(POWER_ON_TIMEOUT),
        "powerOff" | "powerCycle" => {
            let grace = number(spec, "gracePeriodSeconds").unwrap_or(0);
            i64::from(POWER_OFF_TIMEOUT).max(grace.saturating_add(120))
        }
        "reboot" => 900 + drain,
        "shutdown" => 300 + drain,
        "restartService" => 300,
        "packetCapture" => number(spec, "seconds").unwrap_or(30).saturating_add(60),
        "applyConfiguration" => match spec.parameters.get("disruption").map(String::as_str) {
            Some("allow") => 3600,
            Some(_) | None => 300,
        },
        _ => UNKNOWN_RUN_TIMEOUT_SECONDS,
    };
    SignedDuration::from_secs(spec.timeout_seconds.map_or(own, i64::from))
}

/// Returns a parameter in seconds. A value that the executor would refuse counts as none.
fn number(spec: &MachineOperationSpec, name: &str) -> Option<i64> {
    let seconds = spec.parameters.get(name)?.parse::<u32>().ok()?;
    Some(i64::from(seconds))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(name: &str, parameters: &Value, timeout: Option<i32>) -> MachineOperationSpec {
        serde_json::from_value(json!({ "operationName": name, "machineRef": { "name": "a" },
            "parameters": parameters, "timeoutSeconds": timeout }))
        .unwrap()
    }

    #[test]
    fn an_operation_may_take_as_long_as_its_executor_gives_it() {
        let none = json!({});
        for (name, parameters, seconds) in [
            ("powerOn", &none, 300),
            ("powerCycle", &none, 600),
            ("powerOff", &json!({ "gracePeriodSeconds": "900" }), 1020),
            ("reboot", &none, 900),
            ("reboot", &json!({ "drain": "true" }), 1500),
            ("shutdown", &json!({ "drain": "true", "drainTimeoutSeconds": "60" }), 360),
            ("restartService", &none, 300),
            ("packetCapture", &json!({ "seconds": "200" }), 260),
            ("applyConfiguration", &none, 300),
            ("applyConfiguration", &json!({ "disruption": "allow" }), 3600),
            ("dance", &none, 3600),
        ] {
            assert_eq!(done_within(&spec(name, parameters, None)).as_secs(), seconds, "{name} {parameters}");
            assert_eq!(done_within(&spec(name, parameters, Some(7))).as_secs(), 7);
        }
    }

    #[test]
    fn unknown_operation_waits_5_minutes_and_a_bedplate_one_an_hour() {
        let none = json!({});
        for (name, timeout, seconds) in
            [("dance", None, 300), ("dance", Some(9), 9), ("reboot", None, 3600), ("powerOn", Some(9), 9)]
        {
            assert_eq!(taken_within(&spec(name, &none, timeout)).as_secs(), seconds, "{name}");
        }
        let drain = json!({ "drain": "true", "drainTimeoutSeconds": "100" });
        assert_eq!(taken_within(&spec("reboot", &drain, None)).as_secs(), 3700);
    }
}
