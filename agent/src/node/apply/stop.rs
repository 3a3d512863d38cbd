//! Stops a slot, terminates it after a timeout, and unmounts its root.
//!
//! Called by `apply`.

use std::time::Duration;

use bedplate_api::machine::SlotName;

use super::packet_filter::clean_rules;
use super::{ApplyError, job_error};
use crate::bus::{BusError, ContainerName, Output, TransientCommand, UnitName};
use crate::node::effects::Parts;
use crate::slot::paths::{machine, service};
use crate::slot::store::Slots;

/// Timeout of a clean shutdown of a slot. Its systemd kills processes after 90 s.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(100);
/// Timeout of the stop after the slot was terminated.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(20);
const SIGNAL_KILL: i32 = nix::libc::SIGKILL;

/// Stops the slot and unmounts its root. A stopped slot is only unmounted.
pub(super) async fn stop(parts: &Parts, slot: SlotName) -> Result<(), ApplyError> {
    let unit: UnitName = service(slot).parse()?;
    match parts.units.stop(&unit, SHUTDOWN_TIMEOUT).await {
        Ok(result) if result.is_done() => {}
        Ok(result) => {
            tracing::warn!(%unit, result = result.as_str(), "failed to stop a slot, terminating it");
        }
        Err(BusError::JobHangs { .. }) => {
            tracing::warn!(%unit, "stop of a slot timed out, terminating it");
        }
        Err(error) => return Err(error.into()),
    }
    if !parts.units.state(&unit).await?.active.is_down() {
        if let Ok(name) = machine(slot).parse::<ContainerName>() {
            parts.machines.terminate(&name).await?;
        }
        let again = parts.units.stop(&unit, TERMINATION_TIMEOUT).await;
        if !matches!(&again, Ok(result) if result.is_done()) {
            parts.units.kill(&unit, SIGNAL_KILL).await?;
            let result = parts.units.stop(&unit, TERMINATION_TIMEOUT).await?;
            if !result.is_done() {
                return Err(job_error(parts, unit, result.as_str().to_owned()).await);
            }
        }
    }
    clean_rules(parts, slot).await;
    clean_links(parts).await;
    // The unmount may fail while the root is busy. The slot is unmounted again before it is filled.
    if let Err(error) = unmount(parts, slot).await {
        let error = bedplate_process::exit::chain(&error);
        tracing::warn!(slot = ?slot, error, "failed to unmount a slot's root");
    }
    Ok(())
}

/// Removes links that a slot left on the host's network, when no slot runs. Remaining links are logged. If
/// they matter, the next health gate fails.
pub(super) async fn clean_links(parts: &Parts) {
    let cleaned = async {
        for slot in SlotName::ALL {
            if !parts.units.state(&service(slot).parse()?).await?.active.is_down() {
                return Ok(Vec::new());
            }
        }
        let root = parts.root.clone();
        let links = parts.on_disk(move |slots| slots.leftover_links(&root)).await?;
        if !links.is_empty() {
            let script = "for link; do ip link delete dev \"$link\"; done";
            let argv = ["/bin/sh", "-c", script, "sh"].into_iter().map(str::to_owned).chain(links);
            let command = TransientCommand {
                unit: "bedplate-links.service".parse()?,
                description: "Removes network links of a stopped slot".to_owned(),
                argv: argv.collect(),
                environment: Vec::new(),
                output: Output::Tail,
                limit: TERMINATION_TIMEOUT,
                settings: Vec::new(),
            };
            parts.units.run(&command).await?;
        }
        let root = parts.root.clone();
        let left = move |slots: &Slots| {
            let left = slots.leftover_links(&root)?;
            slots.forget_links().map(|()| left)
        };
        Ok::<_, ApplyError>(parts.on_disk(left).await?)
    };
    match cleaned.await {
        Ok(left) if left.is_empty() => {}
        Ok(left) => tracing::warn!(links = left.join(" "), "network links of a stopped slot still exist"),
        Err(error) => {
            let error = bedplate_process::exit::chain(&error);
            tracing::warn!(error, "failed to remove network links of a stopped slot");
        }
    }
}

/// Unmounts a slot's root.
pub(super) async fn unmount(parts: &Parts, slot: SlotName) -> Result<(), ApplyError> {
    let mount: UnitName = parts.slots.places().mount_unit(slot).parse()?;
    let result = parts.units.stop(&mount, TERMINATION_TIMEOUT).await?;
    if result.is_done() {
        return Ok(());
    }
    Err(job_error(parts, mount, result.as_str().to_owned()).await)
}
