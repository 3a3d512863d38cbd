//! What the agent does beside its loop: the userspace stage, facts and addresses of the host, work that may wait for a
//! disk.
//!
//! Called by `run` and by `cli`.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use bedplate_api::machine::{Clock, Hardware, StateDiskStatus};
use bedplate_api::wire::{Stage, StageReport};
use bedplate_process::backoff::Backoff;
use bedplate_process::exit::chain;
use tokio_util::sync::CancellationToken;

use super::state::Places;
use crate::hardware::{observe_hardware, read_text};
use crate::stage1::arguments::read_arguments;

/// Delay between two attempts to report a stage.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Tells pxed, over the boot's own URL, that the host's userspace runs. A boot that has ended takes no more reports.
pub(super) async fn report_userspace(root: std::path::PathBuf, shutdown: CancellationToken) {
    let line = read_text(&root.join("proc/cmdline")).unwrap_or_default();
    let Ok(arguments) = read_arguments(&line) else { return };
    for failures in 1..=6 {
        let url = arguments.url.clone();
        let report = StageReport { stage: Stage::Userspace, failure: None };
        let sent =
            blocking(move || crate::stage1::http::post_stage(&url, &report, &name_servers(Path::new("/"))))
                .await;
        match sent {
            Ok(()) => return tracing::info!(stage = "userspace", "stage reported"),
            Err(error) => tracing::info!(error = chain(&error), "stage not taken"),
        }
        tokio::select! {
            () = tokio::time::sleep(BACKOFF.delay(failures, rand::random())) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

fn name_servers(root: &Path) -> Vec<std::net::Ipv4Addr> {
    let text = read_text(&root.join("etc/resolv.conf")).unwrap_or_default();
    text.lines().filter_map(|line| line.strip_prefix("nameserver")?.trim().parse().ok()).take(3).collect()
}

/// The hardware, and what stage-1 found out about its clock and did to its state disk. A boot.json that cannot be read
/// is said; the state disk is then the one that was `known` before.
pub(crate) fn observe_facts(
    places: &Places,
    known: Option<StateDiskStatus>,
) -> (Hardware, Option<StateDiskStatus>) {
    let mut hardware = observe_hardware(&places.root);
    let (offset, state_disk) = match places.read_boot_facts() {
        Ok(boot) => (
            boot.as_ref().and_then(|boot| boot.clock_offset_seconds),
            boot.and_then(|boot| boot.state.to_status()),
        ),
        Err(error) => {
            tracing::warn!(error = chain(&error), "stage-1's facts cannot be read");
            (None, known)
        }
    };
    hardware.clock = hardware.clock.map(|clock| Clock { boot_offset_seconds: offset, ..clock });
    (hardware, state_disk)
}

/// Maximum number of addresses that are reported.
const MAX_ADDRESSES: usize = 64;

/// Levels of links that are built on one another, such as a bridge on a VLAN on a bond.
const MAX_LEVELS: u32 = 8;

/// Links that have addresses of Services and of caches of a cluster, not of this host: kube-proxy in mode ipvs, and NodeLocal DNSCache.
const FOREIGN_LINKS: [&str; 2] = ["kube-ipvs0", "nodelocaldns"];

/// Returns the addresses of interfaces that others can reach.
pub(super) fn own_addresses(root: &Path) -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let found = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let address = v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))?;
        Some((interface.interface_name, address))
    });
    choose_addresses(root, found.collect())
}

/// Chooses which addresses are reported, by link. Those of hardware come first, so that they are never the ones above the limit: the controller
/// approves the serving certificate of a kubelet by them.
fn choose_addresses(root: &Path, found: Vec<(String, IpAddr)>) -> Vec<IpAddr> {
    let is_reached = |address: &IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    };
    let mut chosen: Vec<(bool, IpAddr)> = found
        .into_iter()
        .filter(|(link, address)| is_reached(address) && !FOREIGN_LINKS.contains(&link.as_str()))
        .map(|(link, address)| (!is_hardware(root, &link, MAX_LEVELS), address))
        .collect();
    chosen.sort();
    let mut addresses: Vec<IpAddr> = Vec::new();
    for (_, address) in chosen {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses.truncate(MAX_ADDRESSES);
    addresses
}

/// Returns true if a link is a device, or is built on one.
fn is_hardware(root: &Path, link: &str, levels: u32) -> bool {
    if levels == 0 {
        return false;
    }
    let link = root.join("sys/class/net").join(link);
    if link.join("device").exists() {
        return true;
    }
    let entries = std::fs::read_dir(link).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let lower: Vec<String> =
        names.filter_map(|name| name.strip_prefix("lower_").map(str::to_owned)).collect();
    lower.iter().any(|lower| is_hardware(root, lower, levels - 1))
}

/// Runs what may wait for a disk or a network beside the loop.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_of_hardware_are_never_cut_off_by_those_of_services() {
        let root = tempfile::tempdir().unwrap();
        let link = |below: &str| {
            fs::create_dir_all(root.path().join("sys/class/net").join(below)).unwrap();
        };
        for below in [
            "eth0/device",
            "eth1/device",
            "bond0/lower_eth1",
            "bond0.7/lower_bond0",
            "dummy0",
            "cni0/lower_vethab",
            "vethab",
        ] {
            link(below);
        }
        let on = |link: &str, text: &str| (link.to_owned(), address(text));
        let mut found: Vec<_> = (0..100).map(|number| on("dummy0", &format!("10.96.0.{number}"))).collect();
        found.extend([
            on("lo", "127.0.0.1"),
            on("kube-ipvs0", "10.95.0.1"),
            on("nodelocaldns", "10.95.0.2"),
            on("cni0", "10.244.0.1"),
            on("eth0", "169.254.3.4"),
            on("bond0.7", "192.168.1.21"),
            on("eth0", "192.168.1.20"),
            on("eth0", "fe80::1"),
            on("eth0", "fd00::20"),
        ]);
        let chosen = choose_addresses(root.path(), found);
        assert_eq!(chosen[..3], ["192.168.1.20", "192.168.1.21", "fd00::20"].map(address));
        assert_eq!((chosen.len(), chosen[3]), (MAX_ADDRESSES, address("10.96.0.0")));
        assert!(!chosen.contains(&address("10.95.0.1")) && !chosen.contains(&address("10.95.0.2")));
    }

    #[test]
    fn links_that_are_built_on_each_other_in_a_circle_end() {
        let root = tempfile::tempdir().unwrap();
        for below in ["a/lower_b", "b/lower_a"] {
            fs::create_dir_all(root.path().join("sys/class/net").join(below)).unwrap();
        }
        assert_eq!(choose_addresses(root.path(), vec![("a".to_owned(), address("10.0.0.1"))]).len(), 1);
    }
}
