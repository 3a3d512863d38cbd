//! One Machine as text: its properties, its conditions, its boot timeline with durations.
//!
//! Pure: the time is an argument.

use bedplate_api::configuration::condition_type as of_configuration;
use bedplate_api::machine::{
    Applied, BootStatus, Condition, Hardware, Machine, MachineStatus, PROVIDER_PXE, Phase, Slot, SlotName,
    condition_type,
};
use bedplate_api::operation::condition_type as of_operation;
use bedplate_api::version::version_name;

use super::table::Table;
use super::{Look, Paint, age, clean, seconds, stage};

/// Returns the color of a phase.
pub(crate) fn phase_paint(phase: Phase) -> Paint {
    match phase {
        Phase::Ready => Paint::Good,
        Phase::Failed | Phase::RolledBack | Phase::Degraded => Paint::Bad,
        Phase::Paused | Phase::Releasing | Phase::Deleting | Phase::Unknown => Paint::Faint,
        Phase::Pending
        | Phase::PoweringOn
        | Phase::Booting
        | Phase::Enrolled
        | Phase::ConfigurationPending
        | Phase::Claimed
        | Phase::Paving
        | Phase::Repaving
        | Phase::Updating => Paint::Waiting,
    }
}

/// Returns the color of a condition. Some are good when False, one only reports whether something changes.
fn condition_paint(condition: &Condition) -> Paint {
    let good = match (condition.type_.as_str(), condition.status.as_str()) {
        (of_configuration::DEGRADED | of_operation::STALLED | of_operation::FAILED, "True") => {
            return Paint::Bad;
        }
        (of_configuration::PROGRESSING, "False") => return Paint::Faint,
        (of_configuration::PROGRESSING, _) => return Paint::Waiting,
        (
            condition_type::CONFIGURATION_PENDING
            | of_configuration::DEGRADED
            | of_operation::STALLED
            | of_operation::FAILED
            | of_operation::SUSPENDED,
            _,
        ) => "False",
        _ => "True",
    };
    match condition.status.as_str() {
        status if status == good => Paint::Good,
        "Unknown" => Paint::Faint,
        _ => Paint::Waiting,
    }
}

/// Returns all that is known about one Machine.
pub(crate) fn show(machine: &Machine, look: Look) -> String {
    let status = machine.status.clone().unwrap_or_default();
    let name = machine.metadata.name.clone().unwrap_or_default();
    let mut printed = format!("{}\n", look.paint(Paint::Heading, &format!("Machine {}", clean(&name))));
    printed.push_str(&summary(machine, &status, look));
    printed.push_str(&format!("\n{}\n", look.paint(Paint::Heading, "Conditions")));
    printed.push_str(&conditions(&status.conditions, look));
    if let Some(boot) = &status.boot {
        printed.push_str(&timeline(boot, look));
    }
    printed
}

fn summary(machine: &Machine, status: &MachineStatus, look: Look) -> String {
    let mut table = Table::indented(2);
    let mut line = |name: &str, value: Option<String>, paint: Option<Paint>| {
        if let Some(value) = value {
            table.row(vec![(name.to_owned(), Some(Paint::Faint)), (value, paint)]);
        }
    };
    line("Phase", status.phase.map(|phase| format!("{phase:?}")), status.phase.map(phase_paint));
    line("Provider", Some(format!("{}, site {}", machine.spec.provider, machine.spec.site)), None);
    line("Paused", machine.spec.paused.then(|| "no program changes the machine".to_owned()), None);
    let selected = status.selected.as_ref();
    line("Config", selected.map(|s| format!("{}, by {:?}", s.version_name(), s.source)), None);
    line("Applied", status.applied.as_ref().map(|a| format!("{}-{}", a.name, applied(a, look))), None);
    for slot in &status.slots {
        let name = match slot.name {
            SlotName::A => "Slot a",
            SlotName::B => "Slot b",
        };
        line(name, Some(content(slot)), None);
    }
    line("Node", status.node_ref.as_ref().map(|node| node.name.clone()), None);
    let power = status.power.as_ref().map(|power| {
        let seen = power.observed_time.as_ref().map(|time| format!(", seen {} ago", age(time.0, look)));
        format!("{:?}{}", power.state, seen.unwrap_or_default())
    });
    line("Power", power, None);
    for (index, interface) in machine.spec.pxe.iter().flat_map(|pxe| pxe.interfaces.iter().enumerate()) {
        let netboots = machine.spec.pxe.as_ref().is_some_and(|pxe| pxe.netboots(index));
        let mut parts = vec![interface.mac_address.to_string()];
        parts.extend(interface.addresses.iter().map(ToString::to_string));
        parts.extend(netboots.then(|| "netboot".to_owned()));
        line("Interface", Some(parts.join(" ")), None);
    }
    line("BMC", machine.spec.bmc.as_ref().map(|bmc| bmc.address.clone()), None);
    line("Hardware", status.hardware.as_ref().map(hardware), None);
    line("State", state(machine, status), None);
    let addresses: Vec<_> = status.addresses.iter().map(|address| address.address.clone()).collect();
    line("Addresses", (!addresses.is_empty()).then(|| addresses.join(" ")), None);
    let agent = status.agent.as_ref().map(|agent| {
        let heard =
            agent.last_heartbeat_time.as_ref().map(|time| format!(", heard {} ago", age(time.0, look)));
        format!("{}{}", agent.version.as_deref().unwrap_or("unknown version"), heard.unwrap_or_default())
    });
    line("Agent", agent, None);
    let created = machine.metadata.creation_timestamp.as_ref();
    line("Age", created.map(|time| age(time.0, look)), None);
    table.print(look)
}

/// Returns a text such as `v3 in slot a, 5m ago`.
pub(super) fn applied(applied: &Applied, look: Look) -> String {
    let since = applied.time.as_ref().map(|time| format!(", {} ago", age(time.0, look)));
    let slot = applied.slot.map(|slot| format!(" in slot {slot:?}").to_lowercase());
    format!("v{}{}{}", applied.version, slot.unwrap_or_default(), since.unwrap_or_default())
}

/// Returns a text such as `Prepared, workers-v3`.
fn content(slot: &Slot) -> String {
    let version = slot.configuration_name.as_ref().zip(slot.version);
    let version = version.map(|(name, number)| format!(", {}", version_name(name, number)));
    format!("{:?}{}", slot.state, version.unwrap_or_default())
}

fn hardware(hardware: &Hardware) -> String {
    let mut parts = Vec::new();
    let name: Vec<&str> =
        [&hardware.vendor, &hardware.product].into_iter().flatten().map(String::as_str).collect();
    parts.extend((!name.is_empty()).then(|| name.join(" ")));
    parts.extend(hardware.serial.as_ref().map(|serial| format!("serial {serial}")));
    let cpu = hardware.cpu.as_ref();
    parts.extend(cpu.and_then(|cpu| cpu.threads).map(|threads| counted(i64::from(threads), "thread")));
    parts.extend(hardware.memory_bytes.map(|bytes| format!("{} MiB", bytes / (1 << 20))));
    parts.extend(
        (!hardware.disks.is_empty())
            .then(|| counted(hardware.disks.len().try_into().unwrap_or(i64::MAX), "disk")),
    );
    parts.extend(
        (!hardware.nics.is_empty())
            .then(|| counted(hardware.nics.len().try_into().unwrap_or(i64::MAX), "interface")),
    );
    parts.join(", ")
}

/// Returns a text such as `1 disk` or `2 disks`.
fn counted(count: i64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Returns where the host keeps its state, as its agent reported. Memory is certain only for a host that
/// stage-1 booted and that has reported; the report includes the kernel's boot ID.
fn state(machine: &Machine, status: &MachineStatus) -> Option<String> {
    let Some(disk) = &status.state_disk else {
        let reported = status.agent.as_ref().is_some_and(|agent| agent.boot_id.is_some());
        let in_memory = reported && machine.spec.provider == PROVIDER_PXE;
        return in_memory.then(|| "in memory, lost with the boot".to_owned());
    };
    let token = disk.wipe_token.as_ref().map(|token| format!(", wipe token {token:?} used"));
    let name = disk.name.as_deref().unwrap_or("without a name");
    Some(format!("on disk {name}{}", token.unwrap_or_default()))
}

/// Returns a line for each condition.
pub(super) fn conditions(conditions: &[Condition], look: Look) -> String {
    if conditions.is_empty() {
        return "  none yet\n".to_owned();
    }
    let mut table = Table::indented(2);
    for condition in conditions {
        table.row(vec![
            (condition.type_.clone(), None),
            (condition.status.clone(), Some(condition_paint(condition))),
            (age(condition.last_transition_time.0, look), Some(Paint::Faint)),
            (condition.reason.clone(), None),
            (condition.message.clone(), None),
        ]);
    }
    table.print(look)
}

fn timeline(boot: &BootStatus, look: Look) -> String {
    let id = boot.id.map(|id| format!(" {id}")).unwrap_or_default();
    let attempt = boot.attempts.map(|attempts| format!(", attempt {attempts}")).unwrap_or_default();
    let start = boot.start_time.as_ref().map(|time| {
        let rounded = time.0.round(jiff::Unit::Second).unwrap_or(time.0);
        format!(", started {rounded} ({} ago)", age(time.0, look))
    });
    let heading = format!("Boot{id}{attempt}{}", start.unwrap_or_default());
    let mut printed = format!("\n{}\n", look.paint(Paint::Heading, &heading));
    let mut entries: Vec<_> = boot.timeline.iter().collect();
    entries.sort_by_key(|entry| entry.time.0);
    let start =
        boot.start_time.as_ref().map(|time| time.0).or_else(|| entries.first().map(|entry| entry.time.0));
    let mut table = Table::indented(2);
    let mut before = start;
    for entry in entries {
        let since = |from: Option<jiff::Timestamp>| from.map(|from| entry.time.0.duration_since(from));
        let at = since(start).map(seconds).unwrap_or_default();
        let took = since(before).map(|took| format!("+{}", seconds(took))).unwrap_or_default();
        let (mark, paint) = if entry.failed { ("failed", Paint::Bad) } else { ("", Paint::Good) };
        table.row(vec![
            (stage(entry.stage), Some(paint)),
            (format!("{at:>10}"), None),
            (format!("{took:>11}"), Some(Paint::Faint)),
            (mark.to_owned(), Some(Paint::Bad)),
            (entry.message.clone().unwrap_or_default(), None),
        ]);
        before = Some(entry.time.0);
    }
    printed.push_str(&table.print(look));
    if let Some(previous) = &boot.previous {
        let message = previous.message.as_ref().map(|message| format!(": {}", clean(message)));
        let took = previous.stage_time.as_ref().map(|reached| {
            format!(" after {:.1} s", reached.0.duration_since(previous.start_time.0).as_secs_f64())
        });
        printed.push_str(&format!(
            "  previous boot {}, {} ago, reached {}{}{}\n",
            previous.id,
            age(previous.start_time.0, look),
            stage(previous.stage),
            took.unwrap_or_default(),
            message.unwrap_or_default()
        ));
    }
    printed
}
