//! Services that restartService leaves alone, because that would cut the agent off, end the host, or undo what the agent does.
//!
//! Against accidents: who may make operations could also reboot the host. Pure: names in, a reason out. Called by `plan`.

use super::parameters::Place;
use crate::bus::UnitName;

/// Name or `prefix*`, and why it is refused.
type Refused = (&'static str, &'static str);

const BUS: &str = "the agent reaches systemd by D-Bus, and everything on the bus would lose its connection";
const ENDS: &str = "starting it ends or suspends what runs; use reboot, shutdown or a power operation";
const ALIAS: &str = "it is another name of a service: name the service itself";

/// Refused services of the host.
const HOST: [Refused; 15] = [
    (
        "bedplate-agent.service",
        "it is the agent that would carry this out; systemd restarts it by itself when it fails",
    ),
    ("bedplate-host.service", "it sets the host up once, at boot; use reboot"),
    ("dbus.service", BUS),
    ("dbus-broker.service", BUS),
    ("systemd-networkd.service", "the host's way to the cluster is its network; use reboot"),
    (
        "systemd-nspawn@*",
        "a slot is started and stopped by the agent alone; use applyConfiguration, or restart a service in it",
    ),
    ("systemd-journald.service", "what all services say would be lost meanwhile"),
    ("systemd-udevd.service", "disks and interfaces would miss events; use reboot"),
    ("user@*", "it is a login's, not the host's"),
    ("systemd-remount-fs.service", "it is the boot's; use reboot"),
    ("initrd-*", ENDS),
    ("emergency.service", ENDS),
    ("rescue.service", ENDS),
    ("debug-shell.service", "it gives root access at the console"),
    ("bedplate-capture-*", "it is a packetCapture's"),
];

/// Refused services of a slot.
const SLOT: [Refused; 6] = [
    ("bedplate-kubeadm.service", "it joins the node once; a repave does it again"),
    ("dbus.service", BUS),
    ("dbus-broker.service", BUS),
    ("systemd-journald.service", "what all services say would be lost meanwhile"),
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
