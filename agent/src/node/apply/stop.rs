//! Stops a slot: politely, then not, and takes its root off.
//!
//! Called by `apply`.

use std::time::Duration;

use bedplate_api::machine::SlotName;

use super::super::effects::Parts;
use super::{ApplyError, job_error, unit_name};
use crate::bus::{BusError, ContainerName};
use crate::slot::places::{machine, service};

/// How long a node may take to end what it runs; systemd itself kills after 90 s.
const POLITE: Duration = Duration::from_secs(100);
/// How long it may take once it was terminated.
const HARD: Duration = Duration::from_secs(20);
const SIGKILL: i32 = nix::libc::SIGKILL;

/// Stops it and takes its root off. What is stopped already is as good.
pub(super) async fn stop(parts: &Parts, slot: SlotName) -> Result<(), ApplyError> {
    let unit = unit_name(&service(slot))?;
    match parts.units.stop(&unit, POLITE).await {
        Ok(result) if result.is_done() => {}
        Ok(result) => {
            tracing::warn!(%unit, result = result.as_str(), "a slot does not stop, it is terminated");
        }
        Err(BusError::JobHangs { .. }) => {
            tracing::warn!(%unit, "a slot does not stop in time, it is terminated");
        }
        Err(error) => return Err(error.into()),
    }
    if !parts.units.state(&unit).await?.active.is_down() {
        if let Ok(name) = machine(slot).parse::<ContainerName>() {
            parts.machines.terminate(&name).await?;
        }
        let again = parts.units.stop(&unit, HARD).await;
        if !matches!(&again, Ok(result) if result.is_done()) {
            parts.units.kill(&unit, SIGKILL).await?;
            let result = parts.units.stop(&unit, HARD).await?;
            if !result.is_done() {
                return Err(job_error(parts, unit, result.as_str().to_owned()).await);
            }
        }
    }
    // Nobody needs the root any more; one that is busy for a moment hinders nothing before the slot is filled anew.
    if let Err(error) = unmount(parts, slot).await {
        let error = bedplate_process::exit::chain(&error);
        tracing::warn!(slot = ?slot, error, "a slot's root stays mounted for now");
    }
    Ok(())
}

/// Takes a slot's root off.
pub(super) async fn unmount(parts: &Parts, slot: SlotName) -> Result<(), ApplyError> {
    let mount = unit_name(&parts.slots.places().mount_unit(slot))?;
    let result = parts.units.stop(&mount, HARD).await?;
    if result.is_done() {
        return Ok(());
    }
    Err(job_error(parts, mount, result.as_str().to_owned()).await)
}
