//! What the agent does beside its loop: the userspace stage, facts and addresses of the host, work that may wait for a
//! disk.
//!
//! Called by `run` and by `cli`.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use bedplate_api::machine::{Clock, Hardware, StateDiskStatus};
use bedplate_api::wire::{Stage, StageReport};
use bedplate_process::exit::chain;
use tokio_util::sync::CancellationToken;

use super::plan::back_off;
use super::state::Places;
use crate::hardware::{observe_hardware, read_text};
use crate::stage1::arguments::read_arguments;

/// Longest wait between two tries to report a stage.
const MOST: Duration = Duration::from_secs(60);

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
            () = tokio::time::sleep(back_off(failures, MOST, rand::random())) => {}
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

/// The addresses of interfaces that others can reach.
pub(super) fn own_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let mut addresses: Vec<IpAddr> = interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
        })
        .filter(|address| match address {
            IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
        })
        .collect();
    addresses.sort();
    addresses.dedup();
    addresses.truncate(64);
    addresses
}

/// Runs what may wait for a disk or a network beside the loop.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
