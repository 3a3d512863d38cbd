//! Pure: converts a command's arguments to a MachineOperation, and a finished operation to a text for users.

use std::collections::BTreeMap;
use std::time::Duration;

use bedplate_api::id::MachineName;
use bedplate_api::operation::{
    AGENT_OPERATIONS, MachineOperation, MachineOperationSpec, MachineRef, OperationState, POWER_OFF_TIMEOUT,
    POWER_ON_TIMEOUT,
};
use bedplate_api::reason;
use bedplate_api::selector::MachineSelector;

use crate::arguments::{Boot, OperationCreate, PowerAct, PowerCommand};
use crate::selector;

/// Time that a forced power-off gets after the grace period, in seconds.
const FORCED_OFF_SECONDS: i32 = 120;

/// Margin after an operation's own timeout before this program stops waiting, in seconds.
const WAIT_MARGIN_SECONDS: u64 = 60;

/// Returns the operation of a power command, and its arguments. None for a command that changes nothing.
pub(crate) fn of_power(command: &PowerCommand) -> Option<(MachineOperation, &PowerAct)> {
    let mut parameters = BTreeMap::new();
    let mut put = |key: &str, value: String| drop(parameters.insert(key.to_owned(), value));
    let (name, words, act) = match command {
        PowerCommand::Status { .. } => return None,
        PowerCommand::On { act, .. } => ("powerOn", "power-on", act),
        PowerCommand::Off { act, .. } => ("powerOff", "power-off", act),
        PowerCommand::Cycle { act, .. } => ("powerCycle", "power-cycle", act),
        PowerCommand::Reset { act } => ("reset", "reset", act),
    };
    let mut timeout = act.timeout;
    match command {
        PowerCommand::On { boot: Some(boot), .. } | PowerCommand::Cycle { boot: Some(boot), .. } => {
            let source = match boot {
                Boot::Network => "network",
                Boot::Default => "default",
            };
            put("bootSource", source.to_owned());
        }
        PowerCommand::Off { force, grace_period, .. } => {
            if *force {
                put("force", true.to_string());
            }
            if let Some(seconds) = grace_period {
                put("gracePeriodSeconds", seconds.to_string());
                // Otherwise the operation would time out before its end.
                let least = seconds.saturating_add(FORCED_OFF_SECONDS);
                timeout = timeout.or((least > POWER_OFF_TIMEOUT).then_some(least));
            }
        }
        PowerCommand::Status { .. }
        | PowerCommand::On { .. }
        | PowerCommand::Cycle { .. }
        | PowerCommand::Reset { .. } => {}
    }
    let mut spec = spec(name, parameters);
    spec.machine_ref = Some(MachineRef { name: act.name.clone() });
    spec.timeout_seconds = timeout;
    Some((named(&act.name, words, spec), act))
}

/// Returns the operation of `operation create`. The error names the fault of the selector.
pub(crate) fn of_create(arguments: &OperationCreate) -> Result<MachineOperation, String> {
    let mut parameters = BTreeMap::new();
    for (key, value) in &arguments.parameters {
        if parameters.insert(key.clone(), value.clone()).is_some() {
            return Err(format!("the parameter {key} is given twice"));
        }
    }
    let mut spec = spec(&arguments.operation, parameters);
    spec.machine_ref = arguments.machine.clone().map(|name| MachineRef { name });
    spec.machine_selector = machine_selector(arguments)?;
    spec.timeout_seconds = arguments.timeout;
    spec.ttl_seconds_after_finished = arguments.ttl;
    spec.max_parallel = arguments.max_parallel;
    spec.failure_limit = arguments.failure_limit;
    let words = kebab(&arguments.operation);
    Ok(match &arguments.machine {
        Some(machine) => named(machine, &words, spec),
        None => with_prefix(format!("{words}-"), spec),
    })
}

/// Returns the selector of `--selector` and `--field-selector`; none without either.
fn machine_selector(arguments: &OperationCreate) -> Result<Option<MachineSelector>, String> {
    if arguments.selector.is_none() && arguments.field_selector.is_none() {
        return Ok(None);
    }
    let labels = arguments.selector.as_deref().map(selector::parse).transpose()?.unwrap_or_default();
    let fields = arguments.field_selector.as_deref().map(selector::parse_fields).transpose()?;
    Ok(Some(MachineSelector {
        match_labels: labels.match_labels,
        match_expressions: labels.match_expressions,
        match_fields: fields.unwrap_or_default(),
    }))
}

fn spec(operation: &str, parameters: BTreeMap<String, String>) -> MachineOperationSpec {
    MachineOperationSpec {
        machine_ref: None,
        machine_selector: None,
        operation_name: operation.to_owned(),
        parameters,
        ttl_seconds_after_finished: None,
        timeout_seconds: None,
        max_parallel: None,
        failure_limit: None,
    }
}

fn named(machine: &MachineName, words: &str, spec: MachineOperationSpec) -> MachineOperation {
    with_prefix(format!("{machine}-{words}-"), spec)
}

fn with_prefix(prefix: String, spec: MachineOperationSpec) -> MachineOperation {
    let mut operation = MachineOperation::new("", spec);
    operation.metadata.name = None;
    operation.metadata.generate_name = Some(prefix);
    operation
}

/// Converts `powerCycle` to `power-cycle` for an object's name. Invalid characters are omitted.
fn kebab(operation: &str) -> String {
    let mut words = String::new();
    for sign in operation.chars() {
        if sign.is_ascii_uppercase() && !words.is_empty() && !words.ends_with('-') {
            words.push('-');
        }
        if sign.is_ascii_alphanumeric() || (sign == '-' && !words.is_empty()) {
            words.push(sign.to_ascii_lowercase());
        }
    }
    if words.is_empty() { "operation".to_owned() } else { words }
}

/// Returns the time to wait for a new power operation: its timeout and a margin.
pub(crate) fn patience(operation: &MachineOperation) -> Duration {
    let own = match operation.spec.operation_name.as_str() {
        "powerOff" | "powerCycle" => POWER_OFF_TIMEOUT,
        _ => POWER_ON_TIMEOUT,
    };
    let seconds = operation.spec.timeout_seconds.unwrap_or(own);
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default().saturating_add(WAIT_MARGIN_SECONDS))
}

/// Returns whether the operation succeeded. Returns `None` if it has not finished.
pub(crate) fn ended(operation: &MachineOperation) -> Option<bool> {
    match operation.status.as_ref().and_then(|status| status.state) {
        Some(OperationState::Complete) => Some(true),
        Some(OperationState::Failed) => Some(false),
        Some(OperationState::Pending | OperationState::InProgress | OperationState::Unknown) | None => None,
    }
}

/// Returns the next step after an operation of this name that ended with `reason`.
pub(crate) fn remedy_of(operation: &str, reason: &str) -> Option<&'static str> {
    let row = reason::of_operation(AGENT_OPERATIONS.contains(&operation), reason)?;
    row.remedy.map(|remedy| remedy.text)
}

#[cfg(test)]
mod tests {
    use bedplate_api::reason::Reason;
    use bedplate_api::reason::operation::{AgentOutcome, FanOutOutcome, PowerOutcome};
    use std::ffi::OsString;

    use serde_json::{Value, json};

    use super::*;
    use crate::arguments::{Command, OperationCommand, parse};

    fn made(line: &str) -> Value {
        let cli = parse(line.split(' ').map(OsString::from).collect()).unwrap();
        let operation = match &cli.command {
            Command::Power(power) => of_power(power).unwrap().0,
            Command::Operation(OperationCommand::Create(create)) => of_create(create).unwrap(),
            other => panic!("{other:?}"),
        };
        json!({ "prefix": operation.metadata.generate_name, "name": operation.metadata.name, "spec": operation.spec })
    }

    #[test]
    fn each_power_command_is_the_operation_that_its_rule_names() {
        let spec = |operation: &str, parameters: Value| {
            let mut spec = json!({ "machineRef": { "name": "node-1" }, "operationName": operation });
            if parameters != json!({}) {
                spec["parameters"] = parameters;
            }
            spec
        };
        for (line, prefix, expected) in [
            ("power on node-1", "node-1-power-on-", spec("powerOn", json!({}))),
            (
                "power on node-1 --boot default",
                "node-1-power-on-",
                spec("powerOn", json!({ "bootSource": "default" })),
            ),
            ("power off node-1", "node-1-power-off-", spec("powerOff", json!({}))),
            ("power off node-1 --force", "node-1-power-off-", spec("powerOff", json!({ "force": "true" }))),
            (
                "power off node-1 --force --grace-period 60",
                "node-1-power-off-",
                spec("powerOff", json!({ "force": "true", "gracePeriodSeconds": "60" })),
            ),
            (
                "power cycle node-1 --boot network --wait",
                "node-1-power-cycle-",
                spec("powerCycle", json!({ "bootSource": "network" })),
            ),
            ("power reset node-1", "node-1-reset-", spec("reset", json!({}))),
        ] {
            let found = made(&format!("bedplate {line}"));
            assert_eq!(found, json!({ "prefix": prefix, "name": null, "spec": expected }), "{line}");
        }
    }

    #[test]
    fn a_long_grace_period_does_not_outlast_its_operation() {
        let timeout =
            |line: &str| made(&format!("bedplate power off node-1 {line}"))["spec"]["timeoutSeconds"].clone();
        assert_eq!(timeout("--grace-period 480"), Value::Null);
        assert_eq!(timeout("--grace-period 481"), 601);
        assert_eq!(timeout("--grace-period 900 --timeout 950"), 950);
    }

    #[test]
    fn any_operation_can_be_made_for_one_machine_or_for_a_selector() {
        let found = made(
            "bedplate operation create packetCapture --machine node-1 --parameter filter=port=67 --parameter seconds=5 --ttl 0 --timeout 9",
        );
        assert_eq!(found["prefix"], "node-1-packet-capture-");
        assert_eq!(found["spec"]["parameters"], json!({ "filter": "port=67", "seconds": "5" }));
        assert_eq!(
            (&found["spec"]["ttlSecondsAfterFinished"], &found["spec"]["timeoutSeconds"]),
            (&json!(0), &json!(9))
        );
        let line =
            "bedplate operation create reboot --machine a --parameter force=true --parameter force=false";
        let cli = parse(line.split(' ').map(OsString::from).collect()).unwrap();
        let Command::Operation(OperationCommand::Create(twice)) = &cli.command else { panic!("create") };
        assert_eq!(of_create(twice).unwrap_err(), "the parameter force is given twice");
        let all =
            made("bedplate operation create reboot --selector rack=a --max-parallel 2 --failure-limit 1");
        assert_eq!(all["prefix"], "reboot-");
        assert_eq!(all["spec"]["machineSelector"], json!({ "matchLabels": { "rack": "a" } }));
        assert_eq!((&all["spec"]["maxParallel"], &all["spec"]["failureLimit"]), (&json!(2), &json!(1)));
    }

    #[test]
    fn every_end_that_is_a_failure_has_a_remedy() {
        let well = [
            "PoweredOn",
            "PoweredOff",
            "PowerCycled",
            "Reset",
            "MachineDeleting",
            "Applied",
            "Captured",
            "Rebooted",
            "Restarted",
            "ShutDown",
            "AllComplete",
        ];
        let power = PowerOutcome::ALL.iter().map(|reason| ("powerOff", reason.as_str()));
        let agent = AgentOutcome::ALL.iter().map(|reason| ("reboot", reason.as_str()));
        let others = FanOutOutcome::ALL.iter().map(|reason| ("mine", reason.as_str()));
        for (operation, reason) in power.chain(agent).chain(others) {
            let known = remedy_of(operation, reason).is_some() || well.contains(&reason);
            assert!(known, "{operation}: {reason}");
        }
    }

    #[test]
    fn remedies_of_agent_operations_do_not_mention_the_bmc() {
        for reason in ["TimedOut", "Refused", "NotSupported", "ProtocolError"] {
            let remedy = remedy_of("reboot", reason).unwrap();
            assert!(
                !remedy.contains("BMC") && !remedy.contains("bmc") && !remedy.contains("power"),
                "{remedy}"
            );
        }
    }

    #[test]
    fn an_operation_s_name_becomes_a_part_of_an_object_s() {
        for (operation, words) in
            [("powerCycle", "power-cycle"), ("a.B_c", "a-bc"), ("X", "x"), ("_", "operation")]
        {
            assert_eq!(kebab(operation), words);
        }
    }
}
