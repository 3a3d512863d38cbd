//! Starts a slot: the host's requirements first, then the files of the join, then the slot's own systemd.
//!
//! Called by `apply`. A start continues in systemd if the agent is killed meanwhile.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_api::configuration::ContainerNetwork;
use bedplate_api::machine::SlotName;
use bedplate_bootstrap::{JOIN_KUBECONFIG, Rendered, joins_own_cluster, unit};
use zeroize::Zeroizing;

use super::packet_filter::clean_rules;
use super::stop::clean_links;
use super::{ApplyError, job_error, kubelet, reload, rendered};
use crate::bus::UnitName;
use crate::model::Record;
use crate::node::effects::{Parts, Say};
use crate::node::host_state::withdraw_wipe;
use crate::slot::fill_record::Filled;
use crate::slot::network;
use crate::slot::paths::service;
use crate::slot::render::{self, Input};
use crate::slot::uplink::uplink;

/// Timeout until the slot's process 1 runs. Under emulation the mounts of nspawn alone take seconds.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout for loading modules and setting kernel parameters.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(60);
/// Units that run again whenever a slot starts, because their files belong to that slot's version.
const HOST_UNITS: [&str; 2] = ["systemd-modules-load.service", "systemd-sysctl.service"];
/// Directory of the shared in-memory files, as the slot sees it.
pub(super) const SHARED: &str = "/run/bedplate/";

/// Starts the slot. A running slot is left running.
pub(super) async fn start(parts: &Parts, slot: SlotName, say: Say<'_>) -> Result<(), ApplyError> {
    let (record, filled, joined) = parts
        .on_disk(move |slots| {
            Ok((slots.record(slot)?, slots.filled(slot)?, slots.has_mark(slot, unit::JOINED)))
        })
        .await?;
    let (Some(record), Some(filled)) = (record, filled) else {
        return Err(ApplyError::Superseded("the slot is not filled"));
    };
    let files = host_files(parts, slot, &record, &filled).await?;
    let rendered = rendered(parts, &filled)?;
    let shared = if joined { Vec::new() } else { shared(parts, slot, (&filled, &rendered), say).await? };
    launch(parts, slot, (&filled, files), shared).await
}

/// Starts the slot of a claim, with its user data from memory.
pub(super) async fn start_claimed(
    parts: &Parts,
    slot: SlotName,
    shared: Vec<(String, Zeroizing<Vec<u8>>)>,
) -> Result<(), ApplyError> {
    let (record, filled) = parts.on_disk(move |slots| Ok((slots.record(slot)?, slots.filled(slot)?))).await?;
    let (Some(record), Some(filled)) = (record, filled) else {
        return Err(ApplyError::Superseded("the slot is not filled"));
    };
    let files = host_files(parts, slot, &record, &filled).await?;
    launch(parts, slot, (&filled, files), shared).await
}

/// Writes the host's files and the slot's in-memory files, then starts the slot's unit.
async fn launch(
    parts: &Parts,
    slot: SlotName,
    (filled, files): (&Filled, Vec<render::File>),
    shared: Vec<(String, Zeroizing<Vec<u8>>)>,
) -> Result<(), ApplyError> {
    let host = parts.root.clone();
    let changed = parts
        .on_disk(move |slots| {
            // No boot wipes the host under a node.
            withdraw_wipe(&host)?;
            slots.make_shared(slot)?;
            for (name, content) in &shared {
                slots.share(slot, name, content)?;
            }
            slots.write_host(&files)
        })
        .await?;
    let unit: UnitName = service(slot).parse()?;
    reload(parts, &unit, changed).await?;
    for name in HOST_UNITS {
        settle(parts, name).await;
    }
    if network::of(&filled.template) == ContainerNetwork::Veth {
        tell_networkd(parts).await?;
    }
    parts.units.reset_failed(&unit).await?;
    if parts.units.state(&unit).await?.active.is_down() {
        // Removes chains and links of a slot that crashed.
        clean_rules(parts, slot).await;
        clean_links(parts).await;
        let root = parts.root.clone();
        parts.on_disk(move |slots| slots.remember_links(&root)).await?;
    }
    let result = parts.units.start(&unit, START_TIMEOUT).await?;
    if result.is_done() {
        return kubelet::forget(parts, slot).await;
    }
    Err(job_error(parts, unit, result.as_str().to_owned()).await)
}

/// The host's files for a slot.
pub(crate) async fn host_files(
    parts: &Parts,
    slot: SlotName,
    record: &Record,
    filled: &Filled,
) -> Result<Vec<render::File>, ApplyError> {
    if network::of(&filled.template) == ContainerNetwork::Veth {
        need_networkd(parts).await?;
    }
    let root = parts.root.clone();
    let own = network::is_own(&filled.template);
    let look = move || (name_servers(&root), if own { uplink(&root) } else { None });
    let looked = tokio::task::spawn_blocking(look).await;
    let (resolv_conf, uplink) =
        looked.map_err(|error| ApplyError::Unfit(format!("cannot read the state of the host: {error}")))?;
    let resolv_conf = resolv_conf.ok_or_else(|| {
        ApplyError::Unfit("the host has no /etc/resolv.conf, which the node shares; create it".to_owned())
    })?;
    let input = Input {
        slot,
        machine: filled.node_name.as_ref().unwrap_or(&parts.machine),
        version: &record.version,
        template: &filled.template,
        layers: filled.layers,
        resolv_conf: &resolv_conf,
        uplink: uplink.as_ref(),
    };
    Ok(render::host(&input, parts.slots.places())?)
}

/// Returns a list of name servers that a node can use. The default list of systemd-resolved names a stub on
/// the host's loopback.
fn name_servers(root: &Path) -> Option<PathBuf> {
    let found = ["run/systemd/resolve/resolv.conf", "etc/resolv.conf"]
        .into_iter()
        .find(|path| std::fs::metadata(root.join(path)).is_ok_and(|metadata| metadata.is_file()));
    found.map(|path| Path::new("/").join(path))
}

/// Returns the in-memory files of the slot's join: name below the shared directory, and content.
async fn shared(
    parts: &Parts,
    slot: SlotName,
    (filled, rendered): (&Filled, &Rendered),
    say: Say<'_>,
) -> Result<Vec<(String, Zeroizing<Vec<u8>>)>, ApplyError> {
    let below = |path: &str| path.strip_prefix(SHARED).map(str::to_owned);
    let mut shared: Vec<(String, Zeroizing<Vec<u8>>)> = rendered
        .files
        .iter()
        .filter_map(|file| Some((below(&file.path)?, Zeroizing::new(file.content.clone().into_bytes()))))
        .collect();
    let kubernetes = &filled.template.kubernetes;
    if joins_own_cluster(kubernetes) {
        let endpoint = kubernetes.api_server_endpoint.as_deref();
        let content = kubelet::kubeconfig(parts, slot, endpoint, say).await?;
        shared.extend(below(JOIN_KUBECONFIG).map(|name| (name, content)));
    }
    Ok(shared)
}

/// Restarts one of systemd's own services, so that it applies its files. A module
/// that this kernel does not have, or a parameter that it refuses, is an error in
/// the service's log. The health gate finds out if the node works without it.
async fn settle(parts: &Parts, name: &str) {
    let Ok(unit) = name.parse() else { return };
    match parts.units.restart(&unit, SETTINGS_TIMEOUT).await {
        Ok(result) if result.is_done() => {}
        Ok(result) => {
            tracing::warn!(%unit, result = result.as_str(), "host settings only partly applied, see systemctl status of the unit");
        }
        Err(error) => {
            let error = bedplate_process::exit::chain(&error);
            tracing::warn!(%unit, error, "failed to apply kernel modules or parameters");
        }
    }
}

/// Refuses a slot whose link to the host would have no address.
async fn need_networkd(parts: &Parts) -> Result<(), ApplyError> {
    let unit: UnitName = network::HOST_NETWORKD.parse()?;
    if !parts.units.state(&unit).await?.active.is_down() {
        return Ok(());
    }
    Err(ApplyError::Unfit(format!(
        "container.network is Veth, but {unit}, which configures the link, does not run on this host; run \
         `systemctl enable --now {unit}`, or omit container.network"
    )))
}

/// Makes the host's networkd read its configuration of the slot's link.
async fn tell_networkd(parts: &Parts) -> Result<(), ApplyError> {
    let unit: UnitName = network::HOST_NETWORKD.parse()?;
    let result = parts.units.reload(&unit, SETTINGS_TIMEOUT).await?;
    if result.is_done() {
        return Ok(());
    }
    Err(job_error(parts, unit, result.as_str().to_owned()).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_gets_real_name_servers() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(name_servers(root.path()), None);
        put("etc/resolv.conf", "nameserver 127.0.0.53\n");
        assert_eq!(name_servers(root.path()).unwrap(), Path::new("/etc/resolv.conf"));
        put("run/systemd/resolve/resolv.conf", "nameserver 10.0.0.1\n");
        assert_eq!(name_servers(root.path()).unwrap(), Path::new("/run/systemd/resolve/resolv.conf"));
    }
}
