//! Versions that are being deleted and whose configuration is gone: nobody else may take their finalizer away (V1).
//!
//! It goes when neither the configuration that owned them nor a Machine that holds them is there, both asked live: whether that
//! configuration was made anew meanwhile, or went without its versions (`--cascade=orphan`), does not matter. Those of a configuration
//! that is there are `configuration`'s.

use std::sync::Arc;

use bedplate_api::reason::event::ControllerEvent;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_engine::Context as _;
use bedplate_engine::write::{WriteError, called};
use bedplate_rules::selection::{OWN_FINALIZER, is_of};
use kube::{Api, ResourceExt};

use crate::FIELD_MANAGER;
use crate::context::World;
use crate::metrics::Kind;

/// Whether a version is being deleted, and waits for its finalizer to go.
pub fn is_leaving(version: &MachineConfigurationVersion) -> bool {
    let is_held = version.finalizers().iter().any(|held| held == OWN_FINALIZER);
    is_held && version.metadata.deletion_timestamp.is_some()
}

/// Lets one version go, if nobody else will.
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
    let owner = world.live_configuration(name).await?;
    if owner.is_some_and(|owner| is_of(version, &owner)) {
        return Ok(());
    }
    // When its Machine lets it go, it is looked at again.
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
    let versions: Api<MachineConfigurationVersion> = Api::all(world.client.clone());
    world.counters.wrote(Kind::Version);
    FIELD_MANAGER.set_finalizer(&versions, version, OWN_FINALIZER, false).await?;
    tracing::info!(version = version.name_any(), "it goes: its configuration is gone, and nobody holds it");
    world.news.tell(
        version,
        ControllerEvent::FinalizerRemoved,
        "it goes: its configuration is gone, and no Machine names or has it",
    );
    Ok(())
}
