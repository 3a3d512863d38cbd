//! MachineConfigurations: their versions, counts and finalizers (C1, C2, C5, C6, V3).
//!
//! Reads the index, decides in `plan`, writes here. Each write is bound to the resource version that was
//! read. The order keeps the objects valid if the process dies between two steps: the finalizer before the
//! first version, a version before its number in the status, the number before the finalizer is removed. A
//! failed step does not keep independent steps from being done.

mod plan;
mod template;

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::{Applied, Machine};
use bedplate_api::reason::configuration::DegradedReason;
use bedplate_api::reason::event::ControllerEvent;
use bedplate_api::version::{MachineConfigurationVersion, version_name};
use bedplate_bootstrap::makes_a_cluster;
use bedplate_engine::Context as _;
use bedplate_engine::write::{self, Failed, WriteError, ask, called};
use bedplate_rules::selection::{OWN_FINALIZER, VersionPlan, Write, is_deployed, is_of};
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

pub use self::plan::{Plan, Refused, plan};
use crate::FIELD_MANAGER;
use crate::cache::index::Index;
use crate::context::World;
use crate::image::status_of;
use crate::metrics::Kind;
use crate::rollout::{self, Clocks};

/// Interval between checks of a configuration with rolling updates, if nothing changes before.
const ROLLOUT_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Brings one configuration's versions and status to the desired state.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(
    configuration: Arc<MachineConfiguration>,
    world: Arc<World>,
) -> Result<Option<Duration>, WriteError> {
    let nodes = |name: &str| world.stores.nodes.get(&ObjectRef::new(name));
    let now = Timestamp::now();
    let silent = |machine: &Machine| world.stores.heard.is_silent(machine, now);
    let wait = |machine: &Machine| world.stores.waits.of(machine);
    let clocks = Clocks { silent: &silent, wait: &wait };
    let (plan, versions) = {
        let index = world.stores.index();
        let versions: Vec<_> = index.versions_of(&configuration.name_any()).into_iter().cloned().collect();
        (plan(&configuration, &index, (&nodes, clocks), now), versions)
    };
    // Heartbeats and overdue Nodes depend on the time, not on a change.
    let after = (rollout::settings(&configuration).is_some() || plan.nodes_pending())
        .then_some(ROLLOUT_CHECK_INTERVAL);
    if plan.is_empty() {
        return Ok(after);
    }
    let versions: Vec<_> = versions.iter().map(AsRef::as_ref).collect();
    world.leading(apply(&configuration, &plan, &versions, &world)).await.map(|()| after)
}

async fn apply(
    configuration: &MachineConfiguration,
    plan: &Plan,
    versions: &[&MachineConfigurationVersion],
    world: &World,
) -> Result<(), WriteError> {
    if plan.hold {
        // The watch returns the configuration with its finalizer.
        return hold(configuration, true, world).await;
    }
    let mut failed = Failed::default();
    let invalid = plan.versions.write.as_ref().and_then(|write| invalid(write, world));
    let reason =
        if invalid.is_some() { DegradedReason::InvalidTemplate } else { DegradedReason::VersionInvalid };
    let made = match (&plan.versions.write, invalid) {
        (_, Some(error)) => Err(error),
        (Some(write), None) => make(write, versions, world).await,
        (None, None) => Ok(()),
    };
    let refused = made.as_ref().err().and_then(WriteError::refusal).map(str::to_owned);
    let made = failed.note(made);
    if let Some(write) = plan.versions.write.as_ref().filter(|_| made) {
        report_version(configuration, write, world);
    }
    failed.note(count(configuration, plan, versions, world).await);
    // The status has the number of the new version, or the reason why it was not written.
    let mut known = configuration.status.as_ref().and_then(|status| status.latest_version).unwrap_or(0);
    let status = match &refused {
        Some(why) => plan.status_of(configuration, Some((reason, why)), Timestamp::now()),
        None => plan.status.clone().filter(|_| made),
    };
    if let Some(status) = status {
        let all = world.write(Kind::Configuration);
        if failed.note(FIELD_MANAGER.apply_status(&all, configuration, &status).await.map(drop)) {
            known = status.latest_version;
            if let Some(held) = status.newly_held(configuration) {
                world.news.publish(configuration, ControllerEvent::DeletionBlocked, held);
            }
            if let Some((event, note)) = status.newly_rolls(configuration) {
                world.news.publish(configuration, event, note);
            }
        }
    }
    // An older version exceeds the limit only after the new one was created.
    if made {
        failed.note(remove(configuration, &plan.versions, world).await);
    }
    failed.note(release(configuration, &plan.versions, known, (versions, world)).await);
    failed.end()
}

/// Reports a version that was created or changed.
fn report_version(configuration: &MachineConfiguration, write: &Write, world: &World) {
    let (Write::Create(object) | Write::Copy(object)) = write;
    let name = object.name_any();
    let (reason, note) = match write {
        Write::Create(_) => (ControllerEvent::VersionCreated, format!("created version {name}")),
        Write::Copy(_) => {
            let note = format!("edit written to version {name}; no Machine has used it yet");
            (ControllerEvent::VersionUpdated, note)
        }
    };
    world.news.publish(configuration, reason, &note);
}

/// Writes into versions how many Machines hold them.
async fn count(
    configuration: &MachineConfiguration,
    plan: &Plan,
    versions: &[&MachineConfigurationVersion],
    world: &World,
) -> Result<(), WriteError> {
    let mut failed = Failed::default();
    for version in versions.iter().filter(|version| is_of(version, configuration)) {
        let Some(machines) = plan.counted.get(&version.spec.version) else { continue };
        let status = status_of(version, is_deployed(version), Some(*machines));
        let each = world.write(Kind::Configuration);
        failed.note(FIELD_MANAGER.apply_status(&each, *version, &status).await.map(drop));
    }
    failed.end()
}

/// Deletes the versions of the plan. A policy may refuse one of them while the API server knows a Machine that uses it.
async fn remove(
    configuration: &MachineConfiguration,
    plan: &VersionPlan,
    world: &World,
) -> Result<(), WriteError> {
    let mut failed = Failed::default();
    for removal in &plan.remove {
        let (uid, resource_version) = (removal.uid.clone(), removal.resource_version.clone());
        let version = version_name(&configuration.name_any(), removal.version);
        let each = world.write::<MachineConfigurationVersion>(Kind::Configuration);
        let gone = write::delete(&each, &version, uid, resource_version).await;
        tracing::info!(version, ok = gone.is_ok(), "version deletion finished");
        if failed.note(gone) {
            let note = format!(
                "deleted version {version}: no Machine uses it, and revisionHistoryLimit does not keep it"
            );
            world.news.publish(configuration, ControllerEvent::VersionDeleted, &note);
        }
    }
    failed.end()
}

/// Returns true if a host runs a version of a configuration by which it made its cluster. A version that is not known here counts: the host may
/// have become a Machine of the cluster that it made before.
fn runs_first(configuration: &str, index: &Index) -> bool {
    let makes = |applied: &Applied| {
        let version = index.find(applied.key());
        version.is_none_or(|version| makes_a_cluster(&version.spec.template.kubernetes))
    };
    let mut applied = index.users_of(configuration).filter_map(|machine| machine.applied());
    applied.any(|applied| applied.name == configuration && makes(applied))
}

/// Returns the error of an edit whose template no host can run.
fn invalid(write: &Write, world: &World) -> Option<WriteError> {
    let (Write::Create(object) | Write::Copy(object)) = write;
    let is_run = runs_first(&object.spec.configuration_name, &world.stores.index());
    let why = template::refusal(&object.spec.template, is_run)?;
    Some(WriteError::Refused { what: called(&**object), why })
}

/// Creates or changes a version.
async fn make(
    write: &Write,
    known: &[&MachineConfigurationVersion],
    world: &World,
) -> Result<(), WriteError> {
    let (Write::Create(object) | Write::Copy(object)) = write;
    let (name, what) = (object.name_any(), called(&**object));
    if let Write::Create(object) = write {
        // The version before it may be new. The watch of versions may lag behind that of configurations.
        let before = version_name(&object.spec.configuration_name, object.spec.version.saturating_sub(1));
        let is_known = known.iter().any(|version| version.name_any() == before);
        if !is_known && let Some(found) = world.live::<MachineConfigurationVersion>(&before).await? {
            return Err(WriteError::Conflict { what: called(&found) });
        }
    }
    let parameters = FIELD_MANAGER.post();
    let versions: Api<MachineConfigurationVersion> = world.write(Kind::Configuration);
    let (step, written) = match write {
        Write::Create(_) => ("create", ask(&what, versions.create(&parameters, object)).await),
        Write::Copy(_) => ("copy", ask(&what, versions.replace(&name, &parameters, object)).await),
    };
    tracing::info!(version = name, step, ok = written.is_ok(), "version write finished");
    written.map(drop)
}

/// Removes the finalizer of a deleted object if a live read confirms that no Machine holds it. `known` is the
/// highest version number in the configuration's status; a higher one would be used twice.
async fn release(
    configuration: &MachineConfiguration,
    plan: &VersionPlan,
    known: i64,
    (versions, world): (&[&MachineConfigurationVersion], &World),
) -> Result<(), WriteError> {
    let numbers: Vec<i64> = plan.release.iter().copied().filter(|number| *number <= known).collect();
    // A version that a known Machine holds is not in the plan. It needs no live read.
    if numbers.is_empty() && !plan.release_configuration {
        return Ok(());
    }
    let name = configuration.name_any();
    let (references, giving) = world.live_references().await?;
    let mut failed = Failed::default();
    for version in versions.iter().filter(|version| numbers.contains(&version.spec.version)) {
        let number = version.spec.version;
        if !giving.contains(&(name.clone(), number)) && !references.is_held(&name, number) {
            let each = world.write(Kind::Configuration);
            failed.note(FIELD_MANAGER.set_finalizer(&each, *version, OWN_FINALIZER, false).await);
        }
    }
    let is_given = giving.iter().any(|(given, _)| *given == name);
    if plan.release_configuration && !is_given && references.is_free(&name) {
        let gone = hold(configuration, false, world).await;
        tracing::info!(configuration = name, ok = gone.is_ok(), "finalizer removal finished");
        if failed.note(gone) {
            let note =
                "finalizer removed: no Machine references or uses the MachineConfiguration or its versions";
            world.news.publish(configuration, ControllerEvent::FinalizerRemoved, note);
        }
    }
    failed.end()
}

async fn hold(configuration: &MachineConfiguration, held: bool, world: &World) -> Result<(), WriteError> {
    let all = world.write(Kind::Configuration);
    FIELD_MANAGER.set_finalizer(&all, configuration, OWN_FINALIZER, held).await
}
