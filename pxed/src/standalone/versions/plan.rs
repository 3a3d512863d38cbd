//! Pure: result of the manifests, the Machines and the stored state: configurations, their versions, the choice of each Machine.
//!
//! ```text
//! manifests --follow--> configurations --plan_versions--> versions --choose--> lock, selected, nodeRef
//! ```
//! The rules are `rules::selection`'s (docs/design/rules.md, H3, H4, H6, C1 to C6, V3); here they are applied to one state, which is
//! written as a whole: a version is locked in the same commit as it is selected. Called by `follow`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_api::id::MachineName;
use bedplate_api::machine::{
    Machine, MachineSpec, MachineStatus, PROVIDER_MANUAL, Selected, SelectionSource, Time,
};
use bedplate_api::reason::machine::ConfigurationPendingReason;
use bedplate_api::version::{MachineConfigurationVersion, MachineConfigurationVersionStatus, version_name};
use bedplate_bootstrap::makes_a_cluster;
use bedplate_rules::selection::{
    Again, Choice, References, Select, Write, choose, plan_versions, reference_changed,
};
use jiff::{SignedDuration, Timestamp};

use super::state::{Chosen, Configured, State, with_status};
use crate::machines::source::SourcedConfiguration;
use crate::machines::{KnownMachine, Snapshot};

/// Period for which a Machine without a manifest keeps its choice: its file may be rewritten or have an error.
pub(super) const MISSING_MACHINE_RETENTION: SignedDuration = SignedDuration::from_mins(10);

/// Content of the manifests.
#[derive(Debug, Clone, Default)]
pub(super) struct Manifests {
    /// Configurations in the manifests; one name may occur twice.
    pub(super) configurations: Vec<SourcedConfiguration>,
    /// True if no manifest is missing, so that an absent object is deleted.
    pub(super) whole: bool,
}

/// Input of one decision.
pub(super) struct Input<'a> {
    /// The manifests, if they are new.
    pub(super) manifests: Option<&'a Manifests>,
    /// Machines; `None` before their source has answered.
    pub(super) machines: Option<&'a Snapshot>,
    /// Reported status of a Machine.
    pub(super) status_of: &'a dyn Fn(&MachineName) -> Option<MachineStatus>,
    /// The Machines to choose for; none: all.
    pub(super) look: Option<&'a BTreeSet<MachineName>>,
    /// True if versions may have to be created or removed.
    pub(super) versions: bool,
    /// The present.
    pub(super) now: Timestamp,
}

/// Reason and message for `ConfigurationPending` of a Machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PendingCondition {
    /// Nothing is selected, and nothing can be.
    pub(super) pending: bool,
    pub(super) reason: ConfigurationPendingReason,
    pub(super) message: String,
    /// Generation of the Machine.
    pub(super) generation: Option<i64>,
}

/// Results besides the state.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Condition of each checked Machine; Machines that are not managed here have no entry.
    pub(super) conditions: BTreeMap<MachineName, Option<PendingCondition>>,
    /// Selections that are new.
    pub(super) selected: Vec<(MachineName, Selected)>,
    /// Versions that were made or written over.
    pub(super) written: Vec<String>,
    /// Versions and configurations that are gone.
    pub(super) removed: Vec<String>,
}

/// Brings the state in line with the input. `uid` returns a new UID at each call.
pub(super) fn settle(state: &mut State, input: &Input<'_>, uid: &mut dyn FnMut() -> String) -> Outcome {
    let mut outcome = Outcome::default();
    if let Some(machines) = input.machines {
        follow_machines(state, machines, input.now);
    }
    if let Some(manifests) = input.manifests {
        follow_manifests(state, manifests, input.now, uid);
    }
    if input.versions {
        let references = references(state, input.machines, input.status_of);
        let names: Vec<String> = state.configurations.keys().cloned().collect();
        for name in names {
            follow_versions(state, &name, &references, (input.now, uid), &mut outcome);
        }
    }
    for known in input.machines.into_iter().flat_map(Snapshot::iter) {
        if input.look.is_none_or(|look| look.contains(&known.name)) {
            let condition =
                choose_for(state, known, (input.status_of)(&known.name).as_ref(), input.now, &mut outcome);
            outcome.conditions.insert(known.name.clone(), condition);
        }
    }
    outcome
}

/// Collects the references to versions: of Machines, and of those missing for a while.
pub(super) fn references(
    state: &State,
    machines: Option<&Snapshot>,
    status_of: &dyn Fn(&MachineName) -> Option<MachineStatus>,
) -> References {
    let known = machines.into_iter().flat_map(Snapshot::iter);
    let known = known.map(|known| {
        let chosen = state.chosen(&known.name, &known.uid).map(|chosen| &**chosen);
        with_status(known, chosen, status_of(&known.name).as_ref())
    });
    let is_missing = |name: &MachineName| machines.is_none_or(|machines| machines.by_name(name).is_none());
    let missing = state.machines.iter().filter(|(name, _)| is_missing(name));
    let missing = missing.map(|(name, chosen)| {
        let mut machine = Machine::new(name.as_str(), nobodys_spec());
        let selected = chosen.selected.clone();
        machine.status = Some(MachineStatus { selected, ..MachineStatus::default() });
        machine
    });
    let all: Vec<Machine> = known.chain(missing).collect();
    References::of(&all)
}

fn nobodys_spec() -> MachineSpec {
    MachineSpec {
        provider: PROVIDER_MANUAL.to_owned(),
        site: Default::default(),
        paused: false,
        pxe: None,
        bmc: None,
        configuration_ref: None,
        claim_policy: None,
        power_policy: Default::default(),
        deletion_policy: Default::default(),
    }
}

/// Returns the configurations of the manifests by name, with their places.
pub(super) fn by_name(manifests: &Manifests) -> BTreeMap<String, Vec<&SourcedConfiguration>> {
    let mut by_name: BTreeMap<String, Vec<&SourcedConfiguration>> = BTreeMap::new();
    for sourced in &manifests.configurations {
        let name = sourced.configuration.metadata.name.clone().unwrap_or_default();
        by_name.entry(name).or_default().push(sourced);
    }
    by_name
}

fn follow_machines(state: &mut State, machines: &Snapshot, now: Timestamp) {
    let since = |chosen: &Chosen| chosen.missing_since.as_ref().map(|since| since.0);
    state.machines.retain(|name, chosen| match machines.by_name(name) {
        Some(known) => known.uid == chosen.uid,
        None => since(chosen).is_none_or(|since| now.duration_since(since) < MISSING_MACHINE_RETENTION),
    });
    for (name, chosen) in &mut state.machines {
        let missing = machines.by_name(name).is_none();
        if missing != chosen.missing_since.is_some() {
            Arc::make_mut(chosen).missing_since = missing.then_some(Time(now));
        }
    }
}

fn follow_manifests(
    state: &mut State,
    manifests: &Manifests,
    now: Timestamp,
    uid: &mut dyn FnMut() -> String,
) {
    let by_name = by_name(manifests);
    for (name, places) in &by_name {
        let [sourced] = places.as_slice() else { continue };
        let mut configuration = (*sourced.configuration).clone();
        let metadata = &mut configuration.metadata;
        let kept = state.configurations.get(name).map(|kept| &kept.configuration);
        metadata.uid = kept.and_then(|kept| kept.metadata.uid.clone()).or_else(|| Some(uid()));
        metadata.creation_timestamp =
            kept.and_then(|kept| kept.metadata.creation_timestamp.clone()).or(Some(Time(now)));
        (metadata.deletion_timestamp, metadata.resource_version) = (None, None);
        configuration.status = kept.and_then(|kept| kept.status.clone());
        let configured = Configured { origin: sourced.origin.clone(), configuration };
        if state.configurations.get(name).is_none_or(|kept| **kept != configured) {
            state.configurations.insert(name.clone(), Arc::new(configured));
        }
    }
    let gone = |name: &String| manifests.whole && !by_name.contains_key(name);
    for (name, configured) in &mut state.configurations {
        if gone(name) && !configured.is_removed() {
            Arc::make_mut(configured).configuration.metadata.deletion_timestamp = Some(Time(now));
        }
    }
}

/// Creates, changes and removes versions of one configuration, and a removed configuration.
fn follow_versions(
    state: &mut State,
    name: &str,
    references: &References,
    (now, uid): (Timestamp, &mut dyn FnMut() -> String),
    outcome: &mut Outcome,
) {
    let Some(configured) = state.configurations.get(name).cloned() else { return };
    let existing: Vec<Arc<MachineConfigurationVersion>> =
        state.versions_of(name).into_iter().cloned().collect();
    let existing: Vec<&MachineConfigurationVersion> = existing.iter().map(|version| &**version).collect();
    let plan = plan_versions(&configured.configuration, &existing, references);
    let written = plan.write.map(|write| match write {
        Write::Create(mut version) => {
            version.metadata.uid = Some(uid());
            version.metadata.creation_timestamp = Some(Time(now));
            version
        }
        Write::Copy(mut version) => {
            let before = state.version(name, version.spec.version);
            version.metadata.creation_timestamp =
                before.and_then(|before| before.metadata.creation_timestamp.clone());
            version
        }
    });
    if let Some(mut version) = written {
        version.status = Some(MachineConfigurationVersionStatus {
            deployed: Some(false),
            ..MachineConfigurationVersionStatus::default()
        });
        let name = version_name(name, version.spec.version);
        outcome.written.push(name.clone());
        state.versions.insert(name, Arc::from(version));
    }
    for removal in &plan.remove {
        let name = version_name(name, removal.version);
        state.versions.remove(&name);
        outcome.removed.push(name);
    }
    let mut status = configured.configuration.status.clone().unwrap_or_default();
    (status.latest_version, status.deployed_version) = (Some(plan.latest), plan.deployed);
    if configured.configuration.status.as_ref() != Some(&status)
        && let Some(configured) = state.configurations.get_mut(name)
    {
        Arc::make_mut(configured).configuration.status = Some(status);
    }
    let is_free = references.of_configuration(name).is_empty();
    if configured.is_removed() && is_free && state.versions_of(name).is_empty() {
        state.configurations.remove(name);
        outcome.removed.push(name.to_owned());
    }
}

/// Chooses for one Machine; returns the message for it.
fn choose_for(
    state: &mut State,
    known: &KnownMachine,
    status: Option<&MachineStatus>,
    now: Timestamp,
    outcome: &mut Outcome,
) -> Option<PendingCondition> {
    let chosen = state.chosen(&known.name, &known.uid).cloned();
    let machine = with_status(known, chosen.as_deref(), status);
    let gone = chosen.as_ref().is_some_and(|chosen| chosen.node_is_gone());
    let control_plane = gone.then(|| cluster_of(state, &machine)).flatten().map(named);
    let again = [
        (gone && control_plane.is_none()).then_some(Again::NodeGone),
        reference_changed(&machine).then_some(Again::PersonChangedReference),
    ];
    let mut reasons = again.into_iter().flatten();
    let (mut why, mut choice) = ask(state, &machine, reasons.next());
    // Another program may decide about a Node that is gone; the user's choice still counts.
    if let (Choice::Keep(_), Some(next)) = (&choice, reasons.next()) {
        (why, choice) = ask(state, &machine, Some(next));
    }
    let generation = known.machine.metadata.generation;
    let condition =
        |pending, reason, message| Some(PendingCondition { pending, reason, message, generation });
    match choice {
        Choice::LeaveAlone => None,
        Choice::Pending(pending) => condition(true, pending.reason, pending.message),
        Choice::Matched(matched) => {
            let version = matched.version_name();
            condition(
                false,
                ConfigurationPendingReason::Matched,
                format!("{version} is selected once the host is enrolled"),
            )
        }
        Choice::Select(select) => {
            let message = described(&select.selected);
            select_for(state, known, select, why, now, outcome);
            condition(false, ConfigurationPendingReason::Selected, message)
        }
        Choice::Keep(stuck) => {
            let selected = machine.status.and_then(|status| status.selected)?;
            match (control_plane, stuck) {
                (Some(version), _) => {
                    condition(false, ConfigurationPendingReason::ControlPlaneProtected, kept(&version))
                }
                (None, Some(stuck)) => {
                    let message = format!("{}, and is kept: {}", described(&selected), stuck.message);
                    condition(false, stuck.reason, message)
                }
                (None, None) => condition(false, ConfigurationPendingReason::Selected, described(&selected)),
            }
        }
    }
}

fn ask(state: &State, machine: &Machine, again: Option<Again>) -> (Option<Again>, Choice) {
    let configurations: Vec<_> = state.configurations.values().map(|c| &c.configuration).collect();
    let versions: Vec<_> = state.versions.values().map(|version| &**version).collect();
    (again, choose(machine, again, &configurations, &versions))
}

/// Locks and selects, both in one state; a Node that is gone is forgotten with it.
fn select_for(
    state: &mut State,
    known: &KnownMachine,
    Select { selected, lock }: Select,
    why: Option<Again>,
    now: Timestamp,
    outcome: &mut Outcome,
) {
    if lock && let Some(version) = state.versions.get_mut(&selected.version_name()) {
        let status = Arc::make_mut(version).status.get_or_insert_default();
        (status.deployed, status.deployed_time) = (Some(true), Some(Time(now)));
    }
    let chosen = state.chosen(&known.name, &known.uid).map(|chosen| (**chosen).clone());
    let mut chosen = chosen.unwrap_or_else(|| Chosen { uid: known.uid.clone(), ..Chosen::default() });
    chosen.selected = Some(selected.clone());
    if why == Some(Again::NodeGone) {
        (chosen.node, chosen.gone) = (None, None);
    }
    state.machines.insert(known.name.clone(), Arc::new(chosen));
    outcome.selected.push((known.name.clone(), selected));
}

/// Returns the version with which this Machine's node created its cluster: the applied one, or the selected one if
/// none is applied. `None` if it did not create one.
pub(super) fn cluster_of<'a>(state: &'a State, machine: &Machine) -> Option<&'a MachineConfigurationVersion> {
    let status = machine.status.as_ref()?;
    let applied = status.applied.as_ref().and_then(|applied| state.version(&applied.name, applied.version));
    let selected = status.selected.as_ref();
    let selected = selected.and_then(|selected| state.version(&selected.name, selected.version));
    let version = applied.or(selected)?;
    makes_a_cluster(&version.spec.template.kubernetes).then_some(version)
}

fn named(version: &MachineConfigurationVersion) -> String {
    version_name(&version.spec.configuration_name, version.spec.version)
}

fn kept(version: &str) -> String {
    format!(
        "the Node was deleted, but the host initialized the cluster ({version}: kubeadm init) and has its \
         etcd, so it is not repaved; restart the kubelet in the slot, which registers the Node again"
    )
}

fn described(selected: &Selected) -> String {
    let by = match selected.source {
        SelectionSource::Reference => "spec.configurationRef",
        SelectionSource::Selector => "a machineSelector",
        SelectionSource::Claim => "a MachineClaim",
        SelectionSource::Unknown => "a source of a later version",
    };
    format!("{} is selected by {by}", selected.version_name())
}
