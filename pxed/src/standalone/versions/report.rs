//! Pure: configurations for users, with their versions, and the version that each Machine uses.
//!
//! Called by the admin socket, through `NodeChoice`.

use std::collections::BTreeSet;
use std::sync::Arc;

use bedplate_api::configuration::{MachineConfiguration, MachineCounts};
use bedplate_api::id::MachineName;
use bedplate_api::machine::{Applied, ConfigurationRef, MachineStatus, Phase, Selected, condition_type};
use bedplate_api::version::MachineConfigurationVersion;
use serde::Serialize;

use super::state::{Configured, State};
use crate::machines::{KnownMachine, Snapshot};
use crate::status::conditions::is_true;

/// A configuration, its versions and its Machines.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Described {
    /// The configuration with its status. A `deletionTimestamp` marks a configuration without a manifest.
    pub configuration: MachineConfiguration,
    /// The file of its manifest.
    pub origin: String,
    /// The versions with their status, the newest first.
    pub versions: Vec<MachineConfigurationVersion>,
    /// The Machines that name, get or have any of them, by name.
    pub machines: Vec<Used>,
}

/// A Machine that uses a configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Used {
    /// The Machine.
    pub name: MachineName,
    /// Rollout state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Reference of the user, if it names this configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration_ref: Option<ConfigurationRef>,
    /// Selected version, if it belongs to this configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selected: Option<Selected>,
    /// Applied version, if it belongs to this configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied: Option<Applied>,
}

/// Facts about one Machine.
struct Seen<'a> {
    known: &'a KnownMachine,
    selected: Option<Selected>,
    status: MachineStatus,
}

/// Describes every configuration, by name, with the reported statuses of its Machines.
pub(super) fn describe(
    state: &State,
    machines: &Snapshot,
    status_of: &dyn Fn(&MachineName) -> Option<MachineStatus>,
) -> Vec<Described> {
    let seen: Vec<Seen<'_>> = machines
        .iter()
        .map(|known| Seen {
            known,
            selected: state.chosen(&known.name, &known.uid).and_then(|chosen| chosen.selected.clone()),
            status: status_of(&known.name).unwrap_or_default(),
        })
        .collect();
    let configurations = state.configurations.iter();
    configurations.map(|(name, configured)| describe_one(state, name, configured, &seen)).collect()
}

fn describe_one(state: &State, name: &str, configured: &Configured, seen: &[Seen<'_>]) -> Described {
    let machines: Vec<Used> = seen.iter().filter_map(|seen| used(name, seen)).collect();
    let versions = state.versions_of(name).into_iter().rev();
    let versions: Vec<MachineConfigurationVersion> =
        versions.map(|version| with_count(version, &machines)).collect();
    let mut configuration = configured.configuration.clone();
    let status = configuration.status.get_or_insert_default();
    let latest = status.latest_version;
    let deployed = versions.iter().filter(|version| bedplate_rules::selection::is_deployed(version));
    status.deployed_version = deployed.map(|v| v.spec.version).max().max(status.deployed_version);
    let newest = versions.first().map(|version| version.spec.version).or(latest);
    let ready = seen.iter().filter(|seen| is_true(&seen.status, condition_type::NODE_READY));
    let ready = ready.map(|seen| &seen.known.name).collect();
    status.machines = Some(counts(&machines, newest, &ready));
    Described { configuration, origin: configured.origin.clone(), versions, machines }
}

fn used(name: &str, seen: &Seen<'_>) -> Option<Used> {
    let reference = seen.known.machine.spec.configuration_ref.clone().filter(|r| r.name == name);
    let selected = seen.selected.clone().filter(|selected| selected.name == name);
    let applied = seen.status.applied.clone().filter(|applied| applied.name == name);
    let uses = reference.is_some() || selected.is_some() || applied.is_some();
    uses.then(|| Used {
        name: seen.known.name.clone(),
        phase: seen.status.phase,
        configuration_ref: reference,
        selected,
        applied,
    })
}

fn with_count(version: &Arc<MachineConfigurationVersion>, machines: &[Used]) -> MachineConfigurationVersion {
    let number = version.spec.version;
    let holds = |used: &&Used| {
        used.configuration_ref.as_ref().and_then(|r| r.version) == Some(number)
            || used.selected.as_ref().map(|s| s.version) == Some(number)
            || used.applied.as_ref().map(|a| a.version) == Some(number)
    };
    let mut version = MachineConfigurationVersion::clone(version);
    version.status.get_or_insert_default().machines = Some(count(machines.iter().filter(holds).count()));
    version
}

fn counts(machines: &[Used], newest: Option<i64>, ready: &BTreeSet<&MachineName>) -> MachineCounts {
    let selected = machines.iter().filter(|used| used.selected.is_some());
    let outdated = |used: &&Used| {
        let pin = used.configuration_ref.as_ref().and_then(|reference| reference.version);
        let next = pin.or(newest);
        used.applied.as_ref().is_some_and(|applied| Some(applied.version) != next)
    };
    MachineCounts {
        selected: count(selected.clone().count()),
        applied: count(machines.iter().filter(|used| used.applied.is_some()).count()),
        outdated: count(machines.iter().filter(outdated).count()),
        unavailable: count(selected.filter(|used| !ready.contains(&used.name)).count()),
    }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
