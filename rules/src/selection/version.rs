//! Pure: creation, change and deletion of a configuration's versions (C1, C2, C5, C6).
//!
//! ```text
//! none --edit--> create N+1 --edit--> copy into it --it is deployed--> fixed --edit--> create N+2
//! ```
//!
//! A number is 1 + the highest known one: in the configuration's status, in the name of an object, or selected by a Machine. No number is
//! used twice, even if a writer dies. For that, versions are created with [`OWN_FINALIZER`]: a deleted version stays until its number is in the
//! configuration's status.

use std::collections::BTreeSet;

use bedplate_api::configuration::{MachineConfiguration, Template};
use bedplate_api::version::{MachineConfigurationVersion, version_name};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::selection::reference::References;
use crate::selection::template::means_the_same;

/// Finalizer of versions and configurations. The planner's caller removes it when no Machine holds the object
/// any more.
pub const OWN_FINALIZER: &str = "bedplate.dev/in-use";

/// Writes that bring the versions of a configuration to the desired state, in this order: `write`, `latest`
/// in the configuration's status, `release`, `remove`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct VersionPlan {
    /// Version to create or to change. None: the newest one has the template of the configuration.
    pub write: Option<Write>,
    /// Highest number ever used, including that of `write` (`status.latestVersion`).
    pub latest: i64,
    /// Number of the newest version that a Machine uses or has used (`status.deployedVersion`).
    pub deployed: Option<i64>,
    /// Versions to delete: they exceed `revisionHistoryLimit`, or the configuration is being deleted.
    pub remove: Vec<Removal>,
    /// Versions that are being deleted and that no Machine holds: their finalizer can be removed.
    pub release: Vec<i64>,
    /// True if the configuration is being deleted, no Machine holds it, and none of its versions is left.
    pub release_configuration: bool,
    /// Objects with the name of a version that do not belong to this configuration. They are ignored, and their numbers are not used.
    pub foreign: Vec<String>,
}

/// A version's content.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    /// New object. The write fails if the object exists.
    Create(Box<MachineConfigurationVersion>),
    /// Update with the same template of a version that is not deployed. The write must fail if the version
    /// was deployed meanwhile: the object holds the observed resource version.
    Copy(Box<MachineConfigurationVersion>),
}

impl Write {
    /// Returns the number of the written version.
    pub fn version(&self) -> i64 {
        match self {
            Self::Create(object) | Self::Copy(object) => object.spec.version,
        }
    }
}

/// Version to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Number of the version.
    pub version: i64,
    /// UID of the version. A later object of the same name is not deleted.
    pub uid: Option<String>,
    /// Resource version of the observed object. A changed object is not deleted.
    pub resource_version: Option<String>,
}

/// Returns true if a version belongs to this configuration: by its name, and by the UID of its owner (no
/// owner when standalone).
pub fn is_of(version: &MachineConfigurationVersion, configuration: &MachineConfiguration) -> bool {
    let uid = configuration.metadata.uid.as_deref().unwrap_or_default();
    let mut owners = version.metadata.owner_references.iter().flatten();
    let is_owned = owners.any(|owner| owner.controller == Some(true) && owner.uid == uid);
    is_named_after(version, configuration) && is_owned
}

/// Returns true if a Machine uses or has used the version.
pub fn is_deployed(version: &MachineConfigurationVersion) -> bool {
    version.status.as_ref().and_then(|status| status.deployed).unwrap_or(false)
}

/// Plans the versions of one configuration from all versions (those of others are skipped) and the references of all Machines.
pub fn plan_versions(
    configuration: &MachineConfiguration,
    existing: &[&MachineConfigurationVersion],
    references: &References,
) -> VersionPlan {
    let name = configuration.metadata.name.as_deref().unwrap_or_default();
    let status = configuration.status.clone().unwrap_or_default();
    let named: Vec<&MachineConfigurationVersion> =
        existing.iter().copied().filter(|version| is_named_after(version, configuration)).collect();
    let (own, foreign): (Vec<&MachineConfigurationVersion>, Vec<_>) =
        named.iter().copied().partition(|version| is_of(version, configuration));
    let highest = named.iter().map(|version| version.spec.version).chain(status.latest_version);
    let highest = highest.chain(references.highest_selected(name)).max().unwrap_or(0);
    let deployed = own.iter().filter(|version| is_deployed(version)).map(|version| version.spec.version);
    let (live, leaving): (Vec<&MachineConfigurationVersion>, Vec<_>) =
        own.iter().copied().partition(|version| version.metadata.deletion_timestamp.is_none());
    let is_held = |version: i64| references.is_held(name, version);
    let leaving = leaving.iter().map(|version| version.spec.version).filter(|version| !is_held(*version));
    let mut plan = VersionPlan {
        latest: highest,
        deployed: deployed.chain(status.deployed_version).max(),
        release: leaving.collect(),
        foreign: foreign.iter().filter_map(|version| version.metadata.name.clone()).collect(),
        ..VersionPlan::default()
    };
    if configuration.metadata.deletion_timestamp.is_some() {
        if references.is_free(name) {
            plan.remove = live.iter().map(|version| removal(version)).collect();
            plan.release_configuration = own.is_empty();
        }
        return plan;
    }
    plan.write = write(configuration, &live, highest);
    plan.latest = plan.write.as_ref().map_or(highest, |write| write.version().max(highest));
    plan.remove = beyond_history(configuration, &live, plan.write.as_ref(), &is_held);
    plan
}

fn is_named_after(version: &MachineConfigurationVersion, configuration: &MachineConfiguration) -> bool {
    configuration.metadata.name.as_ref() == Some(&version.spec.configuration_name)
}

fn write(
    configuration: &MachineConfiguration,
    live: &[&MachineConfigurationVersion],
    highest: i64,
) -> Option<Write> {
    let template = &configuration.spec.template;
    let newest = live.iter().max_by_key(|version| version.spec.version);
    match newest {
        Some(newest) if means_the_same(&newest.spec.template, template) => None,
        // A version of a higher number was deleted, or belongs to another configuration. The new version gets a still higher number.
        Some(newest) if !is_deployed(newest) && newest.spec.version == highest => {
            let mut copy = version(configuration, newest.spec.version, template);
            copy.metadata.uid.clone_from(&newest.metadata.uid);
            copy.metadata.resource_version.clone_from(&newest.metadata.resource_version);
            Some(Write::Copy(Box::new(copy)))
        }
        Some(_) | None => {
            Some(Write::Create(Box::new(version(configuration, highest.saturating_add(1), template))))
        }
    }
}

/// Returns a new version of a configuration.
fn version(
    configuration: &MachineConfiguration,
    number: i64,
    template: &Template,
) -> MachineConfigurationVersion {
    let name = configuration.metadata.name.clone().unwrap_or_default();
    let mut object: MachineConfigurationVersion = MachineConfigurationVersion::new(
        &version_name(&name, number),
        bedplate_api::version::MachineConfigurationVersionSpec {
            configuration_name: name.clone(),
            version: number,
            template: template.clone(),
        },
    );
    object.metadata.finalizers = Some(vec![OWN_FINALIZER.to_owned()]);
    object.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "bedplate.dev/v1alpha1".to_owned(),
        kind: "MachineConfiguration".to_owned(),
        name,
        uid: configuration.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        // The finalizer decides when the configuration may be deleted, not its versions.
        block_owner_deletion: None,
    }]);
    object
}

/// Returns the versions that are neither among the newest nor held (C6). The newest one stays regardless of the limit: the next Machine gets it.
fn beyond_history(
    configuration: &MachineConfiguration,
    live: &[&MachineConfigurationVersion],
    write: Option<&Write>,
    is_held: &dyn Fn(i64) -> bool,
) -> Vec<Removal> {
    let limit = usize::try_from(configuration.spec.revision_history_limit).unwrap_or(0).max(1);
    let numbers: BTreeSet<i64> =
        live.iter().map(|version| version.spec.version).chain(write.map(Write::version)).collect();
    let newest: BTreeSet<i64> = numbers.into_iter().rev().take(limit).collect();
    let goes = |version: &&&MachineConfigurationVersion| {
        !newest.contains(&version.spec.version) && !is_held(version.spec.version)
    };
    live.iter().filter(goes).map(|version| removal(version)).collect()
}

fn removal(version: &MachineConfigurationVersion) -> Removal {
    Removal {
        version: version.spec.version,
        uid: version.metadata.uid.clone(),
        resource_version: version.metadata.resource_version.clone(),
    }
}
