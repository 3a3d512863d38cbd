//! Pure: writes for one MachineConfiguration: its versions, its status and its Machine counts.

use std::collections::BTreeMap;

use bedplate_api::configuration::condition_type::{DEGRADED, PROGRESSING};
use bedplate_api::configuration::{Condition, MachineConfiguration, MachineCounts, RolloutFailure};
use bedplate_api::machine::Machine;
use bedplate_api::reason::Reason;
use bedplate_api::reason::configuration::{DegradedReason, ProgressingReason};
use bedplate_api::reason::event::ControllerEvent;
use bedplate_api::version::{MachineConfigurationVersion, version_name};
use bedplate_rules::claim::is_claimed;
use bedplate_rules::selection::{
    Again, Choice, OWN_FINALIZER, VersionPlan, Write, choose, is_of, plan_versions,
};
use jiff::Timestamp;
use serde::Serialize;

use crate::cache::index::Index;
use crate::configuration_conditions::{
    self as conditions, Awaited, Newest, Standing, at_rest, is_missing_reported, leaving, merge,
};
use crate::cordon;
use crate::foreign_node::foreign;
use crate::image;
use crate::rollout::{self, Clocks, Nodes};

/// Writes for one configuration, in this order.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The configuration has not got our finalizer yet.
    pub hold: bool,
    /// Changes of the versions.
    pub versions: VersionPlan,
    /// Status of the configuration after all writes, if it differs from the current one.
    pub status: Option<Status>,
    /// Summary of its Machines after `versions` is written.
    pub reckoned: Reckoned,
    /// Summary if the new version is not created.
    pub without: Option<Reckoned>,
    /// Versions whose status differs from the current one.
    pub counted: Vec<Counted>,
    /// The newest version as soon as `versions` is written.
    pub newest: Newest,
    /// The newest version if the new one is not made.
    pub newest_without: Newest,
}

/// Reason and text of an edit that did not become a version.
pub type Refused<'a> = (DegradedReason, &'a str);

impl Plan {
    /// Returns true if Machines wait for a Node, so that time alone can change the status.
    pub fn awaits_nodes(&self) -> bool {
        self.reckoned.awaits_nodes
    }

    /// Returns true if there is nothing to write.
    pub fn is_empty(&self) -> bool {
        let versions = &self.versions;
        let untouched = versions.write.is_none() && versions.remove.is_empty() && versions.release.is_empty();
        !self.hold
            && untouched
            && !versions.release_configuration
            && self.status.is_none()
            && self.counted.is_empty()
    }
}

/// Fields of a MachineConfiguration's status that this controller owns.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    observed_generation: Option<i64>,
    latest_version: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    deployed_version: Option<i64>,
    machines: MachineCounts,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rollout_failures: Vec<RolloutFailure>,
    conditions: Vec<Condition>,
}

impl Status {
    /// The highest number that stands in it.
    pub fn latest_version(&self) -> i64 {
        self.latest_version
    }
}

impl Status {
    /// Returns the new state of the rolling update if it changed.
    pub fn newly_rolls(&self, configuration: &MachineConfiguration) -> Option<(Rolls, &str)> {
        let of = |conditions: &[Condition]| {
            let progressing = conditions.iter().find(|c| c.type_ == PROGRESSING)?;
            Rolls::of(&progressing.reason)
        };
        let now = of(&self.conditions)?;
        let before = of(configuration.status.as_ref().map_or(&[][..], |status| &status.conditions));
        // A configuration that has never rolled out needs no report that it is at rest.
        if before == Some(now) || before.is_none() && now == Rolls::AtRest {
            return None;
        }
        let told = if now == Rolls::Paused { DEGRADED } else { PROGRESSING };
        let message = self.conditions.iter().find(|c| c.type_ == told).map_or("", |c| c.message.as_str());
        Some((now, message))
    }

    /// Message if Machines block the deletion of the configuration, and did not before.
    pub fn newly_held(&self, configuration: &MachineConfiguration) -> Option<&str> {
        let is_it = |c: &&Condition| c.reason == ProgressingReason::DeletionBlocked.as_str();
        let held = self.conditions.iter().find(is_it)?;
        let before = configuration.status.iter().flat_map(|status| &status.conditions).find(is_it);
        before.is_none().then_some(held.message.as_str())
    }
}

/// Reported state of a rolling update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rolls {
    /// The update changes Machines, or waits for its turn.
    On,
    /// A failure stopped it until a user acts.
    Paused,
    /// All Machines are updated, except skipped ones.
    AtRest,
}

impl From<Rolls> for ControllerEvent {
    fn from(rolls: Rolls) -> Self {
        match rolls {
            Rolls::On => ControllerEvent::RolloutStarted,
            Rolls::Paused => ControllerEvent::RolloutPaused,
            Rolls::AtRest => ControllerEvent::RolloutFinished,
        }
    }
}

impl Rolls {
    /// Reads the reason of `Progressing`. None if the configuration has no rolling update, or if a newer program has written it.
    fn of(reason: &str) -> Option<Self> {
        match ProgressingReason::parse(reason)? {
            ProgressingReason::RollingOut
            | ProgressingReason::MaxUnavailableReached
            | ProgressingReason::AwaitingPrefetch => Some(Self::On),
            ProgressingReason::PausedOnFailure => Some(Self::Paused),
            ProgressingReason::UpToDate | ProgressingReason::MachinesSkipped => Some(Self::AtRest),
            ProgressingReason::NoMachines
            | ProgressingReason::Paving
            | ProgressingReason::AwaitingNodeDeletion
            | ProgressingReason::Deleting
            | ProgressingReason::DeletionBlocked => None,
        }
    }
}

/// Summary of a configuration's Machines.
#[derive(Debug, Clone, PartialEq)]
pub struct Reckoned {
    /// Number of Machines by state.
    pub counts: MachineCounts,
    /// State of the configuration, such as whether its Machines change on their own.
    pub standing: Standing,
    /// True if a Machine waits for a Node, also for one that has registered and that its agent does not know.
    pub awaits_nodes: bool,
}

/// A version and what is ours of its status.
#[derive(Debug, Clone, PartialEq)]
pub struct Counted {
    /// Number of the version.
    pub version: i64,
    /// Number of Machines that hold it.
    pub machines: i32,
}

/// Plans for one configuration, of everything that there is.
pub fn plan(
    configuration: &MachineConfiguration,
    index: &Index,
    (nodes, clocks): (Nodes<'_>, Clocks<'_>),
    now: Timestamp,
) -> Plan {
    let name = configuration.metadata.name.as_deref().unwrap_or_default();
    let references = index.references();
    let versions: Vec<_> = index.versions_of(name).into_iter().map(AsRef::as_ref).collect();
    let plan = plan_versions(configuration, &versions, references);
    let (made, written) = match &plan.write {
        Some(Write::Create(object)) => (Some(&**object), Some(&**object)),
        Some(Write::Copy(object)) => (None, Some(&**object)),
        None => (None, None),
    };
    let newest = newest(configuration, &versions);
    let own = versions.iter().filter(|version| is_of(version, configuration));
    let counted = own.filter_map(|version| {
        let machines = i32::try_from(references.machines(name, version.spec.version)).unwrap_or(i32::MAX);
        let status = version.status.as_ref();
        let same =
            status.is_some_and(|status| status.machines == Some(machines) && status.deployed.is_some());
        let same = same && image::is_described(version);
        (!same).then_some(Counted { version: version.spec.version, machines })
    });
    let is_held = configuration.metadata.finalizers.iter().flatten().any(|held| held == OWN_FINALIZER);
    let mut plan = Plan {
        hold: !is_held && configuration.metadata.deletion_timestamp.is_none(),
        counted: counted.collect(),
        status: None,
        reckoned: reckon(configuration, plan.latest, (index, nodes, clocks), made),
        without: made.map(|made| {
            reckon(configuration, made.spec.version.saturating_sub(1), (index, nodes, clocks), None)
        }),
        newest: usability(written.or(newest)),
        newest_without: usability(newest),
        versions: plan,
    };
    if configuration.metadata.deletion_timestamp.is_some() {
        plan.reckoned.standing = leaving(&references.of_configuration(name));
    }
    let machines: Vec<_> = index.users_of(name).map(AsRef::as_ref).collect();
    if let Some(standing) = rollout::standing(configuration, &machines, nodes, &versions, clocks) {
        let others = plan.without.iter_mut();
        for reckoned in others.chain([&mut plan.reckoned]) {
            let before = std::mem::replace(&mut reckoned.standing, standing.clone());
            // A Machine that never had a Node is not part of an update. It does not pause one, but it is reported.
            let missing = before.degraded.filter(|(reason, _)| *reason == DegradedReason::NodeMissing);
            reckoned.standing.degraded = reckoned.standing.degraded.take().or(missing);
        }
    }
    plan.status = plan.status_of(configuration, None, now);
    plan
}

impl Plan {
    /// Returns the configuration's status if it differs from the current one. `refused` is the reason why the
    /// version was not written.
    pub fn status_of(
        &self,
        configuration: &MachineConfiguration,
        refused: Option<Refused<'_>>,
        now: Timestamp,
    ) -> Option<Status> {
        let versions = &self.versions;
        let unmade = match (&versions.write, refused) {
            (Some(Write::Create(object)), Some(_)) => Some(object.spec.version),
            (Some(Write::Copy(_)) | None, _) | (_, None) => None,
        };
        let refusal = refused.zip(versions.write.as_ref()).map(|((reason, why), write)| {
            let name =
                version_name(configuration.metadata.name.as_deref().unwrap_or_default(), write.version());
            (reason, format!("the edit did not get into MachineConfigurationVersion {name}: {why}"))
        });
        let reckoned = self.without.as_ref().filter(|_| unmade.is_some()).unwrap_or(&self.reckoned);
        let before = configuration.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let mut newest = if refused.is_some() { &self.newest_without } else { &self.newest }.clone();
        newest.troubles.splice(0..0, refusal);
        let generation = configuration.metadata.generation;
        let wanted = Status {
            observed_generation: generation,
            latest_version: unmade.map_or(versions.latest, |number| number.saturating_sub(1)),
            deployed_version: versions.deployed,
            machines: reckoned.counts.clone(),
            rollout_failures: reckoned.standing.failures.clone(),
            conditions: merge(before, &reckoned.standing, &newest, generation, now),
        };
        (current(configuration) != Some(wanted.clone())).then_some(wanted)
    }
}

/// Returns the newest version that is not being deleted.
fn newest<'a>(
    configuration: &MachineConfiguration,
    versions: &[&'a MachineConfigurationVersion],
) -> Option<&'a MachineConfigurationVersion> {
    let own = versions.iter().copied().filter(|version| is_of(version, configuration));
    let live = own.filter(|version| version.metadata.deletion_timestamp.is_none());
    live.max_by_key(|version| version.spec.version)
}

/// Returns the obstacles to the use of a version: its image.
fn usability(version: Option<&MachineConfigurationVersion>) -> Newest {
    let Some(version) = version.filter(|version| image::is_open(version)) else { return Newest::default() };
    let name = version.metadata.name.as_deref().unwrap_or_default();
    match image::failure(version) {
        Some(why) => Newest {
            troubles: vec![(DegradedReason::ImageUnresolved, format!("{name}: {why}"))],
            unasked: None,
        },
        None => Newest {
            troubles: Vec::new(),
            unasked: Some(format!("{name}: the registry has not resolved the tag of the image yet")),
        },
    }
}

fn current(configuration: &MachineConfiguration) -> Option<Status> {
    let status = configuration.status.clone()?;
    Some(Status {
        observed_generation: status.observed_generation,
        latest_version: status.latest_version?,
        deployed_version: status.deployed_version,
        machines: status.machines?,
        rollout_failures: status.rollout_failures,
        conditions: conditions::own(&status.conditions),
    })
}

/// Sums up the Machines of a configuration as if `made` existed already.
fn reckon(
    configuration: &MachineConfiguration,
    latest: i64,
    (index, nodes, clocks): (&Index, Nodes<'_>, Clocks<'_>),
    made: Option<&MachineConfigurationVersion>,
) -> Reckoned {
    let name = configuration.metadata.name.as_deref().unwrap_or_default();
    let (mut counts, mut awaited, mut awaits_nodes) = (MachineCounts::default(), Awaited::default(), false);
    let is_reported = is_missing_reported(configuration);
    let mut repaved = Repaved { index, made, known: BTreeMap::new() };
    for machine in index.users_of(name) {
        let Some(status) = &machine.status else { continue };
        let selected = status.selected.as_ref().filter(|selected| selected.name == name);
        let applied = status.applied.as_ref().filter(|applied| applied.name == name);
        let called = machine.metadata.name.as_deref().unwrap_or_default();
        awaited.users += usize::from(selected.is_some() || applied.is_some());
        counts.selected += i32::from(selected.is_some());
        // The Node of a claimed host is in another cluster.
        if let Some(selected) = selected.filter(|_| !is_claimed(machine)) {
            if status.node_ref.is_none() {
                awaited.moving.add(called);
            }
            let wait = (clocks.wait)(machine);
            awaits_nodes |= wait.nodeless.is_some();
            let versions = || index.versions_of(name).into_iter().map(AsRef::as_ref);
            if wait.nodeless.is_some() && rollout::is_late(machine, versions(), wait, is_reported) {
                awaited.late.add(called);
            }
            if status
                .rolled_back
                .as_ref()
                .is_some_and(|back| back.from.name == selected.name && back.from.version == selected.version)
            {
                awaited.rolled_back.add(called);
            }
            // By the Node, because the last report of a dead host says that its Node is Ready.
            let node = nodes(called).filter(|node| foreign(machine, node).is_none());
            counts.unavailable += i32::from(!node.is_some_and(|node| cordon::is_ready(&node)));
        }
        let Some(applied) = applied else { continue };
        counts.applied += 1;
        let next = repaved.with(machine);
        if next.is_some_and(|next| (next.0.as_str(), next.1) != (applied.name.as_str(), applied.version)) {
            counts.outdated += 1;
            if status.node_ref.is_some() {
                awaited.outdated.add(called);
            }
        }
    }
    Reckoned { counts, standing: at_rest(name, latest, &awaited), awaits_nodes }
}

/// Fields that decide which version a repave selects for a Machine with a choice: the configuration, and the
/// pinned version.
type Case = (String, Option<i64>);

/// Which versions repaves would give now, each case asked once.
struct Repaved<'a> {
    index: &'a Index,
    made: Option<&'a MachineConfigurationVersion>,
    known: BTreeMap<Case, Option<(String, i64)>>,
}

impl Repaved<'_> {
    /// Returns the version that a repave selects for one Machine. Returns `None` if the Machine is skipped,
    /// or if there is no version for it.
    fn with(&mut self, machine: &Machine) -> Option<(String, i64)> {
        let selected = machine.status.as_ref().and_then(|status| status.selected.as_ref());
        // Without a choice the labels decide. A paused or claimed Machine gets no version.
        let Some(selected) = selected.filter(|_| !is_left(machine)) else { return self.asked(machine) };
        let case = match &machine.spec.configuration_ref {
            Some(reference) => (reference.name.clone(), reference.version),
            None => (selected.name.clone(), None),
        };
        if let Some(known) = self.known.get(&case) {
            return known.clone();
        }
        let next = self.asked(machine);
        self.known.insert(case, next.clone());
        next
    }

    fn asked(&self, machine: &Machine) -> Option<(String, i64)> {
        let known = self.index.known(machine, None);
        let (configurations, mut versions) = known.slices();
        versions.extend(self.made);
        match choose(machine, Some(Again::NodeGone), &configurations, &versions) {
            Choice::Select(next) => Some((next.selected.name, next.selected.version)),
            Choice::LeaveAlone | Choice::Pending(_) | Choice::Matched(_) | Choice::Keep(_) => None,
        }
    }
}

/// Paused, being deleted, or claimed.
fn is_left(machine: &Machine) -> bool {
    machine.spec.paused || machine.metadata.deletion_timestamp.is_some() || is_claimed(machine)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cache::waits::Wait;

    fn conditions(reason: &str) -> Value {
        let condition = |type_: &str, reason: &str, message: &str| {
            json!({ "type": type_, "status": "True", "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z" })
        };
        json!([condition(PROGRESSING, reason, "how"), condition(DEGRADED, "RolledBack", "what to do")])
    }

    fn told(before: Option<&str>, now: &str) -> Option<(Rolls, String)> {
        let mut object = json!({ "metadata": { "name": "w" }, "spec": { "template": {
            "image": { "reference": "r.example/node:1", "allowTag": true }, "kubernetes": { "version": "v1.34.0" } } } });
        if let Some(before) = before {
            object["status"] = json!({ "conditions": conditions(before) });
        }
        let configuration: MachineConfiguration = serde_json::from_value(object).unwrap();
        let conditions = serde_json::from_value(conditions(now)).unwrap();
        let machines = MachineCounts::default();
        let rollout_failures = Vec::new();
        let status = Status {
            observed_generation: None,
            latest_version: 1,
            deployed_version: None,
            machines,
            rollout_failures,
            conditions,
        };
        status.newly_rolls(&configuration).map(|(rolls, message)| (rolls, message.to_owned()))
    }

    #[test]
    fn d2_claimed_hosts_do_not_keep_their_configuration_progressing() {
        let configuration: MachineConfiguration = serde_json::from_value(json!({ "metadata": { "name": "pool", "uid": "c" },
            "spec": { "claimPolicy": { "namespaces": ["*"] }, "template": {
                "image": { "reference": "r.example/node:1", "allowTag": true }, "kubernetes": { "version": "v1.34.0" } } } }))
        .unwrap();
        let standing = |source: &str| {
            let machine = json!({ "metadata": { "name": "a" }, "spec": { "provider": "manual" },
                "status": { "selected": { "name": "pool", "version": 1, "source": source } } });
            let machine: Machine = serde_json::from_value(machine).unwrap();
            let mut index = Index::default();
            index.machine("a", Some(std::sync::Arc::new(machine)));
            let clocks = Clocks { silent: &|_| false, wait: &|_| Wait::default() };
            let reckoned = reckon(&configuration, 1, (&index, &|_| None, clocks), None);
            (reckoned.standing.progressing.1, reckoned.counts.selected, reckoned.counts.unavailable)
        };
        assert_eq!(standing("Reference"), (ProgressingReason::Paving, 1, 1));
        assert_eq!(standing("Claim"), (ProgressingReason::UpToDate, 1, 0));
    }

    #[test]
    fn c4_start_pause_and_end_of_a_rolling_update_are_reported_once() {
        let (how, what) = ("how".to_owned(), "what to do".to_owned());
        for (before, now, expected) in [
            (None, "RollingOut", Some((Rolls::On, how.clone()))),
            (Some("UpToDate"), "RollingOut", Some((Rolls::On, how.clone()))),
            (Some("RollingOut"), "MaxUnavailableReached", None),
            (Some("MaxUnavailableReached"), "PausedOnFailure", Some((Rolls::Paused, what))),
            (Some("PausedOnFailure"), "PausedOnFailure", None),
            (Some("PausedOnFailure"), "RollingOut", Some((Rolls::On, how.clone()))),
            (Some("RollingOut"), "MachinesSkipped", Some((Rolls::AtRest, how.clone()))),
            (Some("MachinesSkipped"), "UpToDate", None),
            // One that does not roll, and one that has never done so.
            (Some("AwaitingNodeDeletion"), "Paving", None),
            (Some("Paving"), "UpToDate", None),
            (None, "UpToDate", None),
        ] {
            assert_eq!(told(before, now), expected, "{before:?} {now}");
        }
    }
}
