//! Services that restartService refuses, because a restart would disconnect the agent, stop the host, or undo
//! work of the agent.
//!
//! It prevents accidents only: a user who may create operations could also reboot the host. Pure: names in, a
//! reason out. Called by `plan`.

use super::parameters::Place;
use crate::bus::UnitName;

/// Name or `prefix*`, and the reason of the refusal.
type Refused = (&'static str, &'static str);

const BUS: &str = "the agent reaches systemd by D-Bus, and all services on the bus would lose their \
                   connections";
const ENDS: &str = "a start of this unit stops or suspends the system; use reboot, shutdown or a power \
                    operation";
const ALIAS: &str = "the name is an alias; name the service itself";

/// Refused services of the host.
const HOST: [Refused; 15] = [
    ("bedplate-agent.service", "the agent carries out the operation; systemd restarts the agent if it fails"),
    ("bedplate-host.service", "the unit sets up the host once, at boot; use reboot"),
    ("dbus.service", BUS),
    ("dbus-broker.service", BUS),
    ("systemd-networkd.service", "the host would lose its connection to the cluster; use reboot"),
    (
        "systemd-nspawn@*",
        "only the agent starts and stops a slot; use applyConfiguration, or restart a service in the slot",
    ),
    ("systemd-journald.service", "log messages of all services would be lost"),
    ("systemd-udevd.service", "disks and interfaces would miss events; use reboot"),
    ("user@*", "the unit belongs to a login session, not to the host"),
    ("systemd-remount-fs.service", "the unit is part of the boot; use reboot"),
    ("initrd-*", ENDS),
    ("emergency.service", ENDS),
    ("rescue.service", ENDS),
    ("debug-shell.service", "the unit starts a root shell on the console"),
    ("bedplate-capture-*", "the unit belongs to a packetCapture"),
];

/// Refused services of a slot.
const SLOT: [Refused; 6] = [
    ("bedplate-kubeadm.service", "the unit joins the node once; a repave runs it again"),
    ("dbus.service", BUS),
    ("dbus-broker.service", BUS),
    ("systemd-journald.service", "log messages of all services would be lost"),
    ("emergency.service", ENDS),
    ("rescue.service", ENDS),
];

/// Refused in both: units of systemd that end the system, and names that are aliases of another unit.
const BOTH: [Refused; 12] = [
    ("systemd-reboot.service", ENDS),
    ("systemd-poweroff.service", ENDS),
    ("systemd-halt.service", ENDS),
    ("systemd-kexec.service", ENDS),
    ("systemd-soft-reboot.service", ENDS),
    ("systemd-exit.service", ENDS),
    ("systemd-suspend*", ENDS),
    ("systemd-hibernate*", ENDS),
    ("systemd-hybrid-sleep.service", ENDS),
    ("dbus-org.*", ALIAS),
    ("messagebus.service", ALIAS),
    ("autovt@*", ALIAS),
];

/// Returns the reason for not restarting this service; none: a restart is allowed.
pub fn refusal(unit: &UnitName, place: Place) -> Option<String> {
    let own: &[Refused] = match place {
        Place::Host => &HOST,
        Place::Slot => &SLOT,
    };
    let matches = |pattern: &str| match pattern.strip_suffix('*') {
        Some(prefix) => unit.as_str().starts_with(prefix),
        None => unit.as_str() == pattern,
    };
    let (_, why) = own.iter().chain(&BOTH).find(|(pattern, _)| matches(pattern))?;
    Some(format!("{unit} is not restarted: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o7_only_services_that_the_agent_needs_are_refused_with_a_reason() {
        let refused = |unit: &str, place| refusal(&unit.parse().unwrap(), place);
        for (unit, place) in [
            ("bedplate-agent.service", Place::Host),
            ("dbus.service", Place::Host),
            ("dbus.service", Place::Slot),
            ("systemd-networkd.service", Place::Host),
            ("systemd-nspawn@bedplate-a.service", Place::Host),
            ("systemd-poweroff.service", Place::Slot),
            ("dbus-org.freedesktop.network1.service", Place::Host),
            ("bedplate-kubeadm.service", Place::Slot),
        ] {
            assert!(refused(unit, place).unwrap().contains(": "), "{unit}");
        }
        for (unit, place) in [
            ("kubelet.service", Place::Slot),
            ("containerd.service", Place::Slot),
            ("bedplate-agent.service", Place::Slot),
            ("systemd-networkd.service", Place::Slot),
            ("systemd-timesyncd.service", Place::Host),
            ("ssh.service", Place::Host),
        ] {
            assert_eq!(refused(unit, place), None, "{unit}");
        }
    }
}
