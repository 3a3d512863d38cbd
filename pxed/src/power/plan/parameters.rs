//! Name and parameters of a power operation, validated (docs/design/rules.md, O4, O6).
//!
//! Pure: no clock, no file, no socket. Callers: `supervisor` (routing), `worker`.

use bedplate_api::machine::{BootSource, MachineSpec, PROVIDER_PXE, PowerActionKind};
use bedplate_api::operation::{MachineOperationSpec, POWER_OFF_TIMEOUT, POWER_ON_TIMEOUT};
use jiff::SignedDuration;

/// The operations that pxed carries out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Power on.
    PowerOn,
    /// Power off.
    PowerOff,
    /// Off, then on.
    PowerCycle,
    /// A hard reset.
    Reset,
}

impl Kind {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::PowerOn, Self::PowerOff, Self::PowerCycle, Self::Reset];

    /// The `operationName`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PowerOn => "powerOn",
            Self::PowerOff => "powerOff",
            Self::PowerCycle => "powerCycle",
            Self::Reset => "reset",
        }
    }

    /// Action in the Machine's status.
    pub const fn action(self) -> PowerActionKind {
        match self {
            Self::PowerOn => PowerActionKind::PowerOn,
            Self::PowerOff => PowerActionKind::PowerOff,
            Self::PowerCycle => PowerActionKind::PowerCycle,
            Self::Reset => PowerActionKind::Reset,
        }
    }

    /// The one of this `operationName`; others are others'.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Default timeout of the operation, in seconds.
    fn default_timeout(self) -> i64 {
        i64::from(match self {
            Self::PowerOn | Self::Reset => POWER_ON_TIMEOUT,
            Self::PowerOff | Self::PowerCycle => POWER_OFF_TIMEOUT,
        })
    }
}

/// Method of switching a machine off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Off {
    /// At once.
    Forced,
    /// The operating system is asked; after this period, if there is one, the machine is forced off.
    Graceful(Option<SignedDuration>),
}

/// Setting of the next boot before powering on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boot {
    /// Nothing is set.
    Default,
    /// The network, where the BMC can set it.
    Network(BootSource),
    /// The network, because the operation names it.
    OnlyNetwork(BootSource),
}

/// A checked operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Kind of the operation.
    pub kind: Kind,
    /// Method of switching off, for `powerOff`.
    pub off: Off,
    /// From where the machine boots; of `powerOn` and `powerCycle`.
    pub boot: Boot,
    /// Timeout of the operation.
    pub timeout: SignedDuration,
}

/// Minimum time in seconds that a forced power-off leaves for reading the result.
const AFTER_FORCE: i64 = 120;

/// Characters of a parameter that are repeated to its author.
const LONGEST_SHOWN: usize = 64;

impl Order {
    /// Checks an operation for a Machine.
    ///
    /// # Errors
    /// Error text for users.
    pub fn parse(kind: Kind, spec: &MachineOperationSpec, machine: &MachineSpec) -> Result<Self, String> {
        let (mut force, mut grace, mut boot) = (false, None, None);
        for (name, value) in &spec.parameters {
            match (kind, name.as_str()) {
                (Kind::PowerOff, "force") => force = parse_bool(value)?,
                (Kind::PowerOff, "gracePeriodSeconds") => grace = Some(parse_grace(value)?),
                (Kind::PowerOn | Kind::PowerCycle, "bootSource") => boot = Some(parse_boot(value)?),
                _ => return Err(unknown_parameter(kind, name)),
            }
        }
        let off = match (force, grace) {
            (true, None) | (_, Some(0)) => Off::Forced,
            (false, None) => Off::Graceful(None),
            (_, Some(seconds)) => Off::Graceful(Some(SignedDuration::from_secs(seconds))),
        };
        let least = grace.map_or(0, |seconds| seconds.saturating_add(AFTER_FORCE));
        let timeout = match spec.timeout_seconds.map(i64::from) {
            Some(seconds) if grace.is_some_and(|grace| grace >= seconds) => {
                return Err(format!(
                    "gracePeriodSeconds must be less than timeoutSeconds ({seconds}); otherwise nothing is forced in time"
                ));
            }
            Some(seconds) => seconds,
            None => kind.default_timeout().max(least),
        };
        let source = machine.bmc.as_ref().map(|bmc| bmc.boot_source).unwrap_or_default();
        let boot = match boot {
            Some(true) => Boot::OnlyNetwork(source),
            None if machine.provider == PROVIDER_PXE => Boot::Network(source),
            None | Some(false) => Boot::Default,
        };
        Ok(Self { kind, off, boot, timeout: SignedDuration::from_secs(timeout) })
    }
}

fn unknown_parameter(kind: Kind, name: &str) -> String {
    let known = match kind {
        Kind::PowerOn | Kind::PowerCycle => "it accepts bootSource",
        Kind::PowerOff => "it accepts force and gracePeriodSeconds",
        Kind::Reset => "it accepts none",
    };
    format!("{} does not know the parameter {}: {known}", kind.as_str(), shown(name))
}

/// Quotes a user's text, shortened if it is long.
fn shown(text: &str) -> String {
    match text.char_indices().nth(LONGEST_SHOWN) {
        Some((end, _)) => format!("{:?} and so on", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

fn parse_bool(value: &str) -> Result<bool, String> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("parameter force must be \"true\" or \"false\", not {}", shown(value))),
    }
}

fn parse_grace(value: &str) -> Result<i64, String> {
    let wrong = || {
        format!("parameter gracePeriodSeconds must be a whole number from 0 to 86400, not {}", shown(value))
    };
    value.parse::<i64>().ok().filter(|seconds| (0..=86_400).contains(seconds)).ok_or_else(wrong)
}

/// Returns true if the value names the network.
fn parse_boot(value: &str) -> Result<bool, String> {
    match value {
        "network" => Ok(true),
        "default" => Ok(false),
        _ => Err(format!("parameter bootSource must be \"network\" or \"default\", not {}", shown(value))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "rows of tables are written in place")]
    fn parse(name: &str, parameters: serde_json::Value, timeout: Option<i32>) -> Result<Order, String> {
        let spec = json!({"machineRef": {"name": "a"}, "operationName": name, "parameters": parameters,
            "timeoutSeconds": timeout});
        let machine = json!({"provider": "pxe", "pxe": {"interfaces": []}, "bmc": {"protocol": "Redfish",
            "address": "bmc", "bootSource": "HTTP", "credentialsSecretRef": {"namespace": "n", "name": "s"}}});
        let spec = serde_json::from_value(spec).unwrap();
        Order::parse(Kind::of(name).unwrap(), &spec, &serde_json::from_value(machine).unwrap())
    }

    #[test]
    fn a_long_value_is_not_repeated_whole() {
        let long = "ä".repeat(1 << 20);
        for parameters in
            [json!({ "force": long }), json!({ "\u{1b}[2J": "x" }), json!({ long.clone(): "x" })]
        {
            let problem = parse("powerOff", parameters, None).unwrap_err();
            assert!(problem.len() < 512 && !problem.contains(char::is_control), "{problem}");
        }
    }

    #[test]
    fn force_and_grace_say_how_a_machine_is_switched_off() {
        let graceful = |seconds| Off::Graceful(Some(SignedDuration::from_secs(seconds)));
        for (parameters, off, timeout) in [
            (json!({}), Off::Graceful(None), 600),
            (json!({"force": "false"}), Off::Graceful(None), 600),
            (json!({"force": "true"}), Off::Forced, 600),
            (json!({"gracePeriodSeconds": "60"}), graceful(60), 600),
            (json!({"force": "true", "gracePeriodSeconds": "60"}), graceful(60), 600),
            (json!({"gracePeriodSeconds": "0"}), Off::Forced, 600),
            (json!({"gracePeriodSeconds": "900"}), graceful(900), 1020),
        ] {
            let order = parse("powerOff", parameters.clone(), None).unwrap();
            assert_eq!((order.off, order.timeout.as_secs()), (off, timeout), "{parameters}");
        }
    }

    #[test]
    fn the_boot_source_is_the_network_for_a_machine_that_netboots() {
        for (name, parameters, boot) in [
            ("powerOn", json!({}), Boot::Network(BootSource::Http)),
            ("powerCycle", json!({"bootSource": "network"}), Boot::OnlyNetwork(BootSource::Http)),
            ("powerOn", json!({"bootSource": "default"}), Boot::Default),
        ] {
            assert_eq!(parse(name, parameters, None).unwrap().boot, boot);
        }
    }

    #[test]
    fn o6_a_parameter_that_is_unknown_or_wrong_is_named() {
        for (name, parameters, timeout, expected) in [
            ("powerOff", json!({"force": "yes"}), None, "force must be \"true\" or \"false\", not \"yes\""),
            ("powerOff", json!({"gracePeriodSeconds": "-1"}), None, "gracePeriodSeconds"),
            ("powerOff", json!({"gracePeriodSeconds": "60"}), Some(60), "less than timeoutSeconds (60)"),
            ("powerOff", json!({"bootSource": "network"}), None, "force and gracePeriodSeconds"),
            ("powerOn", json!({"bootSource": "disk"}), None, "\"disk\""),
            ("powerCycle", json!({"force": "true"}), None, "\"force\""),
            ("reset", json!({"x": "y"}), None, "it accepts none"),
        ] {
            let error = parse(name, parameters, timeout).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(Kind::of("reboot"), None);
    }
}
