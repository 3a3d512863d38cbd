//! Converts answers to text for users: tables, one Machine, its boot timeline, explanations.
//!
//! Pure: the time and the use of color are arguments. Control characters in data from outside are replaced,
//! so that a machine's text cannot control a terminal.

mod claim;
#[cfg(test)]
mod claim_tests;
mod configuration;
mod diagnosis;
mod install;
mod machine;
mod operation;
mod table;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod version_tests;

use bedplate_api::id::MacAddress;
use bedplate_api::machine::{BootStatus, Condition, Machine, MachineStatus, Selected, condition_type};
use bedplate_api::wire::{Explanation, Stage};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub(crate) use claim::{claim, claims};
pub(crate) use configuration::{
    Described, Row, configuration, configurations, difference, history, refusals, used,
};
pub(crate) use diagnosis::diagnosis;
pub(crate) use install::steps;
pub(crate) use machine::show;
pub(crate) use operation::{operations, power, progress};
use table::Table;

/// Parameters of text output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    /// The present.
    pub(crate) now: Timestamp,
    /// True if the text is colored.
    pub(crate) color: bool,
}

/// Color with a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paint {
    Heading,
    Good,
    Waiting,
    Bad,
    Faint,
}

impl Look {
    fn paint(self, paint: Paint, text: &str) -> String {
        let code = match paint {
            Paint::Heading => "1",
            Paint::Good => "32",
            Paint::Waiting => "33",
            Paint::Bad => "31",
            Paint::Faint => "2",
        };
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Unknown machine in an answer of pxed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Discovered {
    mac_address: MacAddress,
    #[serde(default)]
    uuid: Option<Uuid>,
    #[serde(default)]
    architectures: Vec<u16>,
    #[serde(default)]
    vendor_class: String,
    first_seen: Timestamp,
    last_seen: Timestamp,
    #[serde(default)]
    stage: Option<Stage>,
}

/// Returns `text` on one line, without control characters.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if bedplate_bmc::is_hidden(c) { ' ' } else { c }).collect()
}

/// Returns `text` without control characters, in the same lines.
pub(crate) fn clean_lines(text: &str) -> String {
    text.lines().map(|line| clean(line) + "\n").collect()
}

/// Returns the time of day, for lines of a log.
pub(crate) fn clock(look: Look) -> String {
    look.now.strftime("%H:%M:%SZ").to_string()
}

/// Returns a duration in its largest unit that is not 0, like ages of kubectl.
fn age(from: Timestamp, look: Look) -> String {
    let seconds = look.now.duration_since(from).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns a duration of a boot, in seconds with milliseconds.
fn seconds(duration: SignedDuration) -> String {
    let milliseconds = duration.as_millis().max(0);
    format!("{}.{:03} s", milliseconds / 1000, milliseconds % 1000)
}

fn stage(stage: Stage) -> String {
    stage.label().to_owned()
}

fn condition<'a>(status: &'a MachineStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns one line for each Machine, by name.
pub(crate) fn list(machines: &[Machine], look: Look) -> String {
    if machines.is_empty() {
        let next = "see docs/guides/machine.md, and list unknown machines with `bedplate discovered`";
        return format!("no Machines; {next}\n");
    }
    let mut machines: Vec<&Machine> = machines.iter().collect();
    machines.sort_by_key(|machine| machine.metadata.name.as_deref());
    let mut table = Table::new(&["NAME", "PHASE", "CONFIG", "NODE", "POWER", "BOOT STAGE", "WAITING", "AGE"]);
    for machine in machines {
        let status = machine.status.clone().unwrap_or_default();
        let selected = status.selected.as_ref().map(Selected::version_name);
        let boot_stage = status.boot.as_ref().and_then(|boot: &BootStatus| boot.stage).map(stage);
        let ready = condition(&status, condition_type::READY);
        let waiting = ready.filter(|ready| ready.status != "True").map(|ready| ready.message.clone());
        let created = machine.metadata.creation_timestamp.as_ref().map(|time| age(time.0, look));
        table.row(vec![
            (machine.metadata.name.clone().unwrap_or_default(), None),
            (text(status.phase.map(|phase| format!("{phase:?}"))), status.phase.map(machine::phase_paint)),
            (text(selected), None),
            (text(status.node_ref.map(|node| node.name)), None),
            (text(status.power.map(|power| format!("{:?}", power.state))), None),
            (text(boot_stage), None),
            (text(waiting), None),
            (text(created), None),
        ]);
    }
    table.print(look)
}

/// Returns every kind of request, with its answer and the reasons.
pub(crate) fn explain(explanation: &Explanation, look: Look) -> String {
    let mut lines = vec![match &explanation.machine {
        Some(machine) if machine.as_str() == explanation.subject => format!("Machine {machine}"),
        Some(machine) => format!("{} is Machine {machine}", explanation.subject),
        None => format!("this pxed does not know a Machine {}", explanation.subject),
    }];
    lines.extend(explanation.notes.iter().map(|note| look.paint(Paint::Bad, &clean(note))));
    for decision in &explanation.decisions {
        lines.push(format!(
            "{}: {}",
            look.paint(Paint::Heading, &clean(&decision.request)),
            clean(&decision.decision)
        ));
        lines.extend(decision.reasons.iter().map(|reason| format!("    {}", clean(reason))));
    }
    lines.join("\n") + "\n"
}

/// Returns one line for each unknown machine, the latest first.
pub(crate) fn discovered(machines: &[Discovered], look: Look) -> String {
    if machines.is_empty() {
        return "no unknown machine has sent a request\n".to_owned();
    }
    let mut machines: Vec<&Discovered> = machines.iter().collect();
    machines.sort_by_key(|machine| std::cmp::Reverse(machine.last_seen));
    let titles = ["MAC", "UUID", "ARCHITECTURES", "VENDOR CLASS", "BOOT STAGE", "FIRST SEEN", "LAST SEEN"];
    let mut table = Table::new(&titles);
    for machine in machines {
        let architectures: Vec<String> = machine.architectures.iter().map(u16::to_string).collect();
        table.row(vec![
            (machine.mac_address.to_string(), None),
            (text(machine.uuid.map(|uuid| uuid.to_string())), None),
            (text((!architectures.is_empty()).then(|| architectures.join(","))), None),
            (text((!machine.vendor_class.is_empty()).then(|| machine.vendor_class.clone())), None),
            (text(machine.stage.map(stage)), None),
            (format!("{} ago", age(machine.first_seen, look)), None),
            (format!("{} ago", age(machine.last_seen, look)), None),
        ]);
    }
    table.print(look)
}

fn text(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}
