//! Versions that are being deleted and whose configuration is gone. No other code may remove their finalizer
//! (V1).
//!
//! The finalizer is removed when live reads find neither the owning configuration nor a Machine that holds
//! the version. A new configuration of the same name does not matter, nor does one that was deleted with
//! `--cascade=orphan`. Versions of an existing configuration belong to `configuration`.

use std::sync::Arc;

use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::reason::event::ControllerEvent;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_engine::Context as _;
use bedplate_engine::write::{WriteError, called};
use bedplate_rules::selection::{OWN_FINALIZER, is_of};
use kube::ResourceExt;

use crate::FIELD_MANAGER;
use crate::context::World;
use crate::metrics::Kind;

/// Returns true if a version is being deleted and still has the finalizer.
pub(crate) fn is_leaving(version: &MachineConfigurationVersion) -> bool {
    let is_held = version.finalizers().iter().any(|held| held == OWN_FINALIZER);
    is_held && version.metadata.deletion_timestamp.is_some()
}

/// Removes the finalizer of one version if no other code will.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(
    version: Arc<MachineConfigurationVersion>,
    world: Arc<World>,
) -> Result<(), WriteError> {
    let owner = world.configuration(&version.spec.configuration_name);
    if !is_leaving(&version) || owner.is_some_and(|owner| is_of(&version, &owner)) {
        return Ok(());
    }
    world.leading(release(&version, &world)).await
}

async fn release(version: &MachineConfigurationVersion, world: &World) -> Result<(), WriteError> {
    let (name, number) = (&version.spec.configuration_name, version.spec.version);
    let owner: Option<MachineConfiguration> = world.live(name).await?;
    if owner.is_some_and(|owner| is_of(version, &owner)) {
        return Ok(());
    }
    // The Machine's change enqueues the version again.
    if world.stores.index().references().is_held(name, number) {
        return Ok(());
    }
    let (references, giving) = world.live_references().await?;
    if giving.contains(&(name.clone(), number)) {
        return Err(WriteError::Conflict { what: called(version) });
    }
    if references.is_held(name, number) {
        return Ok(());
    }
    FIELD_MANAGER.set_finalizer(&world.write(Kind::Version), version, OWN_FINALIZER, false).await?;
    tracing::info!(version = version.name_any(), "finalizer removed, version deleted");
    world.news.publish(
        version,
        ControllerEvent::FinalizerRemoved,
        "finalizer removed: the MachineConfiguration is deleted, and no Machine references or uses the version",
    );
    Ok(())
}
