//! Name and parameters of an operation, checked (docs/design/rules.md, O4, O6).
//!
//! Pure: no clock, no file, no socket. Callers: `plan`, `run`.

use std::collections::BTreeMap;

use bedplate_api::operation::MachineOperationSpec;
use bedplate_rules::drain::Drain;
use jiff::SignedDuration;

use crate::bus::UnitName;

/// Maximum number of characters of a parameter in a message.
const LONGEST_SHOWN: usize = 64;
/// Maximum duration of a capture, in seconds.
pub(crate) const MOST_SECONDS: i64 = 300;
/// Largest capture, in bytes.
pub const MOST_BYTES: i64 = 64 << 20;
/// Maximum length of a capture filter, in characters.
const MOST_FILTER: usize = 1024;
/// Timeout of a drain without `drainTimeoutSeconds`, in seconds.
const DEFAULT_DRAIN_SECONDS: i64 = 600;

/// The operations that the agent carries out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Reboot the host.
    Reboot,
    /// Shut the host down.
    Shutdown,
    /// Restart a service of the host or of the slot.
    RestartService,
    /// Capture packets of an interface in a file.
    PacketCapture,
    /// Bring the node to the selected version.
    ApplyConfiguration,
}

impl Kind {
    /// All operations.
    pub const ALL: [Self; 5] =
        [Self::Reboot, Self::Shutdown, Self::RestartService, Self::PacketCapture, Self::ApplyConfiguration];

    /// Returns the `operationName`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reboot => "reboot",
            Self::Shutdown => "shutdown",
            Self::RestartService => "restartService",
            Self::PacketCapture => "packetCapture",
            Self::ApplyConfiguration => "applyConfiguration",
        }
    }

    /// Returns the operation of this `operationName`. None: another program carries it out.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Returns the names of its parameters.
    pub const fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::Reboot | Self::Shutdown => {
                &["drain", "drainTimeoutSeconds", "gracePeriodSeconds", "deleteEmptyDirData", "force"]
            }
            Self::RestartService => &["service", "in"],
            Self::PacketCapture => &["interface", "filter", "seconds", "bytes"],
            Self::ApplyConfiguration => &["disruption"],
        }
    }
}

/// Place of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The slot that is the node.
    Slot,
    /// The host.
    Host,
}

/// Parameters of a packet capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    /// The host's interface, or `any`.
    pub interface: String,
    /// A BPF expression (pcap-filter(7)); empty: every packet.
    pub filter: String,
    /// Duration in seconds.
    pub seconds: u32,
    /// Maximum size of the file in bytes.
    pub bytes: u64,
}

/// Task of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// Reboot, after a drain if there is one.
    Reboot(Option<Drain>),
    /// Shut down, after a drain if there is one.
    Shutdown(Option<Drain>),
    /// Restart a unit.
    RestartService {
        /// Which.
        unit: UnitName,
        /// Place of the service.
        place: Place,
    },
    /// Capture packets.
    PacketCapture(Capture),
    /// Apply the selected version.
    ApplyConfiguration {
        /// True if a repave is allowed.
        disruption: bool,
    },
}

/// A checked operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Task of the operation.
    pub task: Task,
    /// Timeout of the operation.
    pub timeout: SignedDuration,
}

impl Order {
    /// Checks an operation.
    ///
    /// # Errors
    /// The problem as human-readable text with the parameter's name.
    pub fn parse(kind: Kind, spec: &MachineOperationSpec) -> Result<Self, String> {
        let given = Parameters { kind, given: &spec.parameters };
        given.known()?;
        let (task, default) = match kind {
            Kind::Reboot => {
                let drain = given.drain()?;
                (Task::Reboot(drain), 900 + drain_seconds(drain))
            }
            Kind::Shutdown => {
                let drain = given.drain()?;
                (Task::Shutdown(drain), 300 + drain_seconds(drain))
            }
            Kind::RestartService => (given.service()?, 300),
            Kind::PacketCapture => {
                let capture = given.capture()?;
                let seconds = i64::from(capture.seconds) + 60;
                (Task::PacketCapture(capture), seconds)
            }
            Kind::ApplyConfiguration => {
                let disruption = given.one_of("disruption", &["deny", "allow"])? == "allow";
                (Task::ApplyConfiguration { disruption }, if disruption { 3600 } else { 300 })
            }
        };
        let timeout = spec.timeout_seconds.map_or(default, i64::from);
        let order = Self { task, timeout: SignedDuration::from_secs(timeout) };
        order.fits(timeout)?;
        Ok(order)
    }

    /// Checks that the times of the parameters fit into the timeout.
    fn fits(&self, timeout: i64) -> Result<(), String> {
        let (name, seconds) = match &self.task {
            Task::Reboot(Some(drain)) | Task::Shutdown(Some(drain)) => {
                ("drainTimeoutSeconds", drain.limit.as_secs())
            }
            Task::PacketCapture(capture) => ("seconds", i64::from(capture.seconds)),
            Task::Reboot(None)
            | Task::Shutdown(None)
            | Task::RestartService { .. }
            | Task::ApplyConfiguration { .. } => {
                return Ok(());
            }
        };
        if seconds < timeout {
            return Ok(());
        }
        Err(format!(
            "{name} ({seconds}) must be less than timeoutSeconds ({timeout}), otherwise the operation \
             cannot finish in time"
        ))
    }
}

fn drain_seconds(drain: Option<Drain>) -> i64 {
    drain.map_or(0, |drain| drain.limit.as_secs())
}

struct Parameters<'a> {
    kind: Kind,
    given: &'a BTreeMap<String, String>,
}

impl Parameters<'_> {
    fn known(&self) -> Result<(), String> {
        let known = self.kind.parameters();
        let Some(name) = self.given.keys().find(|name| !known.contains(&name.as_str())) else {
            return Ok(());
        };
        let name = shown(name);
        Err(format!("{} has no parameter {name}; valid parameters: {}", self.kind.as_str(), known.join(", ")))
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.given.get(name).map(String::as_str)
    }

    fn flag(&self, name: &str) -> Result<bool, String> {
        Ok(self.one_of(name, &["false", "true"])? == "true")
    }

    /// Returns the value, which must be one of these words; the first is the default.
    fn one_of(&self, name: &str, words: &[&'static str]) -> Result<&'static str, String> {
        let Some(text) = self.text(name) else { return Ok(words.first().copied().unwrap_or_default()) };
        let found = words.iter().find(|word| **word == text).copied();
        found.ok_or_else(|| {
            format!("parameter {name} must be one of {}, not {}", words.join(", "), shown(text))
        })
    }

    fn number(&self, name: &str, least: i64, most: i64) -> Result<Option<i64>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let number = text.parse::<i64>().ok().filter(|number| (least..=most).contains(number));
        let wrong =
            || format!("parameter {name} must be a whole number from {least} to {most}, not {}", shown(text));
        number.map(Some).ok_or_else(wrong)
    }

    fn drain(&self) -> Result<Option<Drain>, String> {
        let drain = self.flag("drain")?;
        let limit = self.number("drainTimeoutSeconds", 1, 86_400)?;
        let grace = self.number("gracePeriodSeconds", 0, 86_400)?;
        let (delete_empty_dir, force) = (self.flag("deleteEmptyDirData")?, self.flag("force")?);
        if drain {
            let grace = grace.and_then(|seconds| u32::try_from(seconds).ok());
            let limit = SignedDuration::from_secs(limit.unwrap_or(DEFAULT_DRAIN_SECONDS));
            return Ok(Some(Drain { limit, grace, delete_empty_dir, force }));
        }
        match self.given.keys().find(|name| *name != "drain") {
            Some(name) => Err(format!("parameter {name} requires drain \"true\"")),
            None => Ok(None),
        }
    }

    fn service(&self) -> Result<Task, String> {
        let name = self.text("service").filter(|name| !name.is_empty());
        let name = name.ok_or(
            "parameter service is missing; set it to the name of a unit, such as \
                               kubelet.service",
        )?;
        let whole = if name.contains('.') { name.to_owned() } else { format!("{name}.service") };
        let unit = whole.parse::<UnitName>().ok().filter(|unit| unit.kind() == "service");
        let wrong = || {
            format!(
                "parameter service must be the name of a service, such as kubelet.service, not {}",
                shown(name)
            )
        };
        let unit = unit.ok_or_else(wrong)?;
        let place = if self.one_of("in", &["slot", "host"])? == "host" { Place::Host } else { Place::Slot };
        Ok(Task::RestartService { unit, place })
    }

    fn capture(&self) -> Result<Capture, String> {
        let interface = self.text("interface").unwrap_or_default();
        // Names that the kernel accepts, except those that look like an option or a file.
        let named = (1..=15).contains(&interface.len())
            && !interface.starts_with(['-', '.'])
            && interface.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte));
        if !named {
            return Err(match interface {
                "" => {
                    "parameter interface is missing; set it to an interface of the host, or to any".to_owned()
                }
                _ => {
                    format!(
                        "parameter interface must be the name of an interface of the host, not {}",
                        shown(interface)
                    )
                }
            });
        }
        let filter = self.text("filter").unwrap_or_default().trim();
        // No expression has a `$`, which systemd would expand.
        let plain = |sign: char| (sign == ' ' || sign.is_ascii_graphic()) && sign != '$';
        if filter.len() > MOST_FILTER || !filter.chars().all(plain) || filter.starts_with('-') {
            return Err(format!(
                "parameter filter must be a BPF expression (pcap-filter(7)) of at most {MOST_FILTER} \
                 characters, not {}",
                shown(filter)
            ));
        }
        let seconds = self.number("seconds", 1, MOST_SECONDS)?.unwrap_or(30);
        let bytes = self.number("bytes", 1024, MOST_BYTES)?.unwrap_or(16 << 20);
        Ok(Capture {
            interface: interface.to_owned(),
            filter: filter.to_owned(),
            seconds: u32::try_from(seconds).unwrap_or_default(),
            bytes: u64::try_from(bytes).unwrap_or_default(),
        })
    }
}

/// Quotes text that a user wrote, and truncates it if it is long.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(LONGEST_SHOWN) {
        Some((end, _)) => format!("{:?} and so on", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "rows of tables are written in place")]
    fn parse(name: &str, parameters: Value, timeout: Option<i32>) -> Result<Order, String> {
        let spec = json!({"machineRef": {"name": "a"}, "operationName": name, "parameters": parameters,
            "timeoutSeconds": timeout});
        Order::parse(Kind::of(name).unwrap(), &serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn o7_power_is_not_the_agents() {
        for name in ["powerOn", "powerOff", "powerCycle", "reset", "Reboot", "", "mine"] {
            assert_eq!(Kind::of(name), None, "{name}");
        }
    }

    #[test]
    fn o6_parameters_say_what_is_done_and_how_long_it_may_take() {
        let drain = |limit, grace, delete_empty_dir, force| {
            Some(Drain { limit: SignedDuration::from_secs(limit), grace, delete_empty_dir, force })
        };
        let kubelet = |place| Task::RestartService { unit: "kubelet.service".parse().unwrap(), place };
        let capture = |filter: &str, seconds, bytes| {
            Task::PacketCapture(Capture { interface: "eth0".into(), filter: filter.into(), seconds, bytes })
        };
        for (name, parameters, task, timeout) in [
            ("reboot", json!({}), Task::Reboot(None), 900),
            ("reboot", json!({"drain": "false"}), Task::Reboot(None), 900),
            ("reboot", json!({"drain": "true"}), Task::Reboot(drain(600, None, false, false)), 1500),
            (
                "shutdown",
                json!({"drain": "true", "drainTimeoutSeconds": "60", "gracePeriodSeconds": "5",
                    "deleteEmptyDirData": "true", "force": "true"}),
                Task::Shutdown(drain(60, Some(5), true, true)),
                360,
            ),
            ("restartService", json!({"service": "kubelet"}), kubelet(Place::Slot), 300),
            (
                "restartService",
                json!({"service": "kubelet.service", "in": "host"}),
                kubelet(Place::Host),
                300,
            ),
            ("packetCapture", json!({"interface": "eth0"}), capture("", 30, 16 << 20), 90),
            (
                "packetCapture",
                json!({"interface": "eth0", "filter": " udp port 67 ", "seconds": "300", "bytes": "1024"}),
                capture("udp port 67", 300, 1024),
                360,
            ),
            ("applyConfiguration", json!({}), Task::ApplyConfiguration { disruption: false }, 300),
            (
                "applyConfiguration",
                json!({"disruption": "allow"}),
                Task::ApplyConfiguration { disruption: true },
                3600,
            ),
        ] {
            let order = parse(name, parameters.clone(), None).unwrap();
            assert_eq!((order.task, order.timeout.as_secs()), (task, timeout), "{name} {parameters}");
        }
        assert_eq!(parse("reboot", json!({}), Some(5)).unwrap().timeout.as_secs(), 5);
    }

    #[test]
    fn o6_a_parameter_that_is_unknown_or_wrong_is_named() {
        for (name, parameters, timeout, expected) in [
            ("reboot", json!({"x": "y"}), None, "reboot has no parameter \"x\"; valid parameters: drain,"),
            ("reboot", json!({"drain": "yes"}), None, "drain must be one of false, true, not \"yes\""),
            ("reboot", json!({"force": "true"}), None, "parameter force requires drain"),
            (
                "reboot",
                json!({"drain": "true", "gracePeriodSeconds": "-1"}),
                None,
                "gracePeriodSeconds must be a whole",
            ),
            ("reboot", json!({"drain": "true"}), Some(600), "drainTimeoutSeconds (600) must be less than"),
            ("restartService", json!({}), None, "parameter service is missing"),
            ("restartService", json!({"service": "../x"}), None, "name of a service"),
            ("restartService", json!({"service": "multi-user.target"}), None, "name of a service"),
            ("restartService", json!({"service": "a", "in": "pod"}), None, "in must be one of slot, host"),
            ("packetCapture", json!({}), None, "interface is missing"),
            ("packetCapture", json!({"interface": "-w"}), None, "not \"-w\""),
            ("packetCapture", json!({"interface": "../../etc"}), None, "interface must be the name"),
            (
                "packetCapture",
                json!({"interface": "lo", "filter": "-F /etc/shadow"}),
                None,
                "parameter filter",
            ),
            ("packetCapture", json!({"interface": "lo", "filter": "port $HOME"}), None, "parameter filter"),
            ("packetCapture", json!({"interface": "lo", "seconds": "301"}), None, "from 1 to 300"),
            ("packetCapture", json!({"interface": "lo", "bytes": "67108865"}), None, "to 67108864"),
            ("packetCapture", json!({"interface": "lo"}), Some(30), "seconds (30) must be less"),
            ("applyConfiguration", json!({"disruption": "maybe"}), None, "one of deny, allow"),
        ] {
            let error = parse(name, parameters, timeout).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_long_value_is_not_repeated_whole() {
        let long = "ä".repeat(1 << 16);
        for parameters in
            [json!({ "drain": long }), json!({ "\u{1b}[2J": "x" }), json!({ long.clone(): "x" })]
        {
            let problem = parse("reboot", parameters, None).unwrap_err();
            assert!(problem.len() < 512 && !problem.contains(char::is_control), "{problem}");
        }
    }
}
