//! Work of the agent next to its loop: the userspace stage, facts and addresses
//! of the host, and blocking disk access.
//!
//! Called by `run` and by `cli`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use bedplate_api::machine::{Clock, Hardware, StateDiskStatus};
use bedplate_api::wire::{Stage, StageReport};
use bedplate_process::exit::chain;
use bedplate_process::reconcile::{Activation, Reconcile, Turn};

use super::state::Places;
use crate::hardware::{observe_hardware, read_text};
use crate::stage1::arguments::read_arguments;

/// Maximum number of attempts to report a stage. A boot that has ended accepts no reports.
const MAX_REPORTS: u32 = 6;

/// Reports to pxed, over the boot's own URL, that the host's userspace runs. Ends once pxed has accepted it, or after the last attempt.
pub(super) struct UserspaceReport {
    root: PathBuf,
    attempts: u32,
    ended: bool,
}

impl UserspaceReport {
    /// The report of the host whose root directory is `root`.
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root, attempts: 0, ended: false }
    }
}

impl Reconcile for UserspaceReport {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        if self.ended { None } else { std::future::pending().await }
    }

    async fn turn(&mut self, _: Activation<()>) -> Turn {
        self.ended = true;
        let line = read_text(&self.root.join("proc/cmdline")).unwrap_or_default();
        let Ok(arguments) = read_arguments(&line) else { return Turn::Idle };
        let report = StageReport { stage: Stage::Userspace, failure: None };
        let sent = blocking(move || {
            crate::stage1::http::post_stage(&arguments.url, &report, &name_servers(Path::new("/")))
        });
        match sent.await {
            Ok(()) => tracing::info!(stage = "userspace", "stage reported"),
            Err(error) => {
                self.attempts += 1;
                self.ended = self.attempts >= MAX_REPORTS;
                if !self.ended {
                    return Turn::Retry(error.into());
                }
                tracing::info!(error = chain(&error), "stage not reported");
            }
        }
        Turn::Idle
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
            tracing::warn!(error = chain(&error), "failed to read stage-1's facts");
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

/// Runs work that may wait for a disk or a network, without blocking the loop.
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
