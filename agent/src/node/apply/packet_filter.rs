//! Removes from the host's packet filter the chains that a stopped slot left:
//! those of kube-proxy, the kubelet and network plug-ins.
//!
//! The chains lead to Pods that do not exist any more. Chains of a host port would capture traffic of the
//! next node. The tools come from the slot's own root (`rules.sh`), because a host has none. A process that
//! was root in the slot may have replaced them. So they get the right to change the packet filter, and no
//! other access to the host. Called by `stop` and `start`.

use std::time::Duration;

use bedplate_api::machine::SlotName;
use bedplate_process::exit::chain;

use super::ApplyError;
use crate::bus::{Exit, Output, Ran, Setting, TransientCommand, UnitName, sandbox};
use crate::node::effects::Parts;
use crate::slot::network;
use crate::slot::paths::service;

const SCRIPT: &str = include_str!("rules.sh");
/// Timeout of the cleanup, enough for thousands of Services.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);

/// Removes the chains when no slot runs. Remaining chains are logged, and end with the boot.
pub(super) async fn clean_rules(parts: &Parts, slot: SlotName) {
    let why = match clean(parts, slot).await {
        Ok(None | Some(Ran { exit: Exit::Code(0), .. })) => return,
        Ok(Some(ran)) => format!("{:?}: {}", ran.exit, ran.output.trim()),
        Err(error) => chain(&error),
    };
    tracing::warn!(slot = ?slot, error = why, "failed to remove packet filter rules of a stopped slot");
}

async fn clean(parts: &Parts, slot: SlotName) -> Result<Option<Ran>, ApplyError> {
    for slot in SlotName::ALL {
        if !parts.units.state(&service(slot).parse()?).await?.active.is_down() {
            return Ok(None);
        }
    }
    let filled = parts.on_disk(move |slots| slots.filled(slot)).await?;
    let on_host = filled.is_some_and(|filled| !network::is_own(&filled.template));
    let mount: UnitName = parts.slots.places().mount_unit(slot).parse()?;
    if !on_host || !parts.units.state(&mount).await?.is_up() {
        return Ok(None);
    }
    let root = parts.slots.places().root(slot).display().to_string();
    let command = TransientCommand {
        unit: "bedplate-rules.service".parse()?,
        description: "Removes rules of a stopped slot from the packet filter".to_owned(),
        argv: ["/bin/sh", "-c", SCRIPT].map(str::to_owned).to_vec(),
        environment: vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()],
        output: Output::Tail,
        limit: CLEANUP_TIMEOUT,
        settings: settings(root),
    };
    Ok(Some(parts.units.run(&command).await?))
}

/// Returns the sandbox of the slot's tools: they may change packet filters only. They stay root, because the
/// kernel's list of tables and the tools' lock require root.
fn settings(root: String) -> Vec<(&'static str, Setting)> {
    const CAP_NET_ADMIN: u64 = 1 << 12;
    const CAP_NET_RAW: u64 = 1 << 13;
    sandbox(vec![
        ("RootDirectory", Setting::Text(root)),
        // The kernel's list of tables is in /proc.
        ("MountAPIVFS", Setting::Flag(true)),
        ("CapabilityBoundingSet", Setting::Number(CAP_NET_ADMIN | CAP_NET_RAW)),
        // For thousands of Services.
        ("MemoryMax", Setting::Number(1 << 30)),
        ("TasksMax", Setting::Number(64)),
        // The lock of iptables, in a /run of their own.
        ("ReadWritePaths", Setting::List(vec!["+/run"])),
        // No /proc/1/root: to root "invisible" hides nothing.
        ("ProtectProc", Setting::Word("ptraceable")),
        // AF_INET, AF_INET6: those of before nftables. No AF_UNIX: the host's sockets without a path are on the same network.
        ("RestrictAddressFamilies", Setting::Only(vec!["AF_NETLINK", "AF_INET", "AF_INET6"])),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_tools_may_change_the_packet_filter_and_nothing_else_of_the_host() {
        let settings = settings("/var/lib/machines/bedplate-a".to_owned());
        let of = |name| &settings.iter().find(|(is, _)| *is == name).unwrap_or_else(|| panic!("{name}")).1;
        assert_eq!(of("RootDirectory"), &Setting::Text("/var/lib/machines/bedplate-a".to_owned()));
        assert_eq!(of("CapabilityBoundingSet"), &Setting::Number(0x3000), "NET_ADMIN and NET_RAW");
        assert_eq!(of("ProtectProc"), &Setting::Word("ptraceable"), "no /proc/1/root");
        assert_eq!(of("RestrictNamespaces"), &Setting::Number(0));
        let Setting::Only(families) = of("RestrictAddressFamilies") else { panic!("all but some") };
        assert!(!families.contains(&"AF_UNIX"), "{families:?}");
        assert_eq!(of("SystemCallFilter"), &Setting::Only(vec!["@system-service"]));
        for name in ["NoNewPrivileges", "PrivateDevices", "ProtectKernelTunables", "ProtectControlGroups"] {
            assert_eq!(of(name), &Setting::Flag(true), "{name}");
        }
    }
}
