//! Pure: writes for one MachineConfiguration: its versions, its status and its Machine counts.

use std::collections::BTreeMap;

use bedplate_api::condition::{Conditions as _, condition};
use bedplate_api::configuration::condition_type::{DEGRADED, PROGRESSING};
use bedplate_api::configuration::{Condition, MachineConfiguration, MachineCounts, RolloutFailure};
use bedplate_api::machine::{Machine, Selected};
use bedplate_api::reason::Reason;
use bedplate_api::reason::configuration::{DegradedReason, ProgressingReason};
use bedplate_api::reason::event::ControllerEvent;
use bedplate_api::version::{MachineConfigurationVersion, version_name};
use bedplate_rules::claim::is_claimed;
use bedplate_rules::selection::{
    Again, Choice, OWN_FINALIZER, References, VersionPlan, Write, choose, is_of, plan_versions,
};
use jiff::Timestamp;
use serde::Serialize;

use crate::cache::index::Index;
use crate::configuration_conditions::{
    self as conditions, Newest, PendingMachines, Standing, at_rest, is_missing_reported, leaving, merge,
};
use crate::cordon;
use crate::foreign_node::foreign;
use crate::image;
use crate::rollout::{self, Clocks, Nodes};

/// Writes for one configuration, in this order.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// True if the configuration lacks the finalizer of this program.
    pub hold: bool,
    /// Changes of the versions.
    pub versions: VersionPlan,
    /// Status of the configuration after all writes, if it differs from the current one.
    pub status: Option<Status>,
    /// Summary after `versions` is written.
    pub reckoned: Reckoned,
    /// Summary if the version of `versions` is not written.
    pub without: Option<Reckoned>,
    /// Number of Machines of each version whose status differs from the current one, by the number of the version.
    pub counted: BTreeMap<i64, i32>,
}

/// Reason and text of an edit that did not become a version.
pub type Refused<'a> = (DegradedReason, &'a str);

/// Fields of a MachineConfiguration's status that this controller owns.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    observed_generation: Option<i64>,
    /// The highest number of a version.
    pub(super) latest_version: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    deployed_version: Option<i64>,
    machines: MachineCounts,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rollout_failures: Vec<RolloutFailure>,
    conditions: Vec<Condition>,
}

impl Status {
    /// Returns the Event of the rolling update and its note, if its state has changed.
    pub(crate) fn newly_rolls(
        &self,
        configuration: &MachineConfiguration,
    ) -> Option<(ControllerEvent, &str)> {
        let of = |conditions: &[Condition]| rollout_event(&condition(conditions, PROGRESSING)?.reason);
        let now = of(&self.conditions)?;
        let before = of(configuration.conditions());
        // A configuration that has never rolled out needs no report that it is at rest.
        if before == Some(now) || before.is_none() && now == ControllerEvent::RolloutFinished {
            return None;
        }
        let kind = if now == ControllerEvent::RolloutPaused { DEGRADED } else { PROGRESSING };
        Some((now, condition(&self.conditions, kind).map_or("", |c| &c.message)))
    }

    /// Message if Machines block the deletion of the configuration, and did not before.
    pub(crate) fn newly_held(&self, configuration: &MachineConfiguration) -> Option<&str> {
        let is_it = |c: &&Condition| c.reason == ProgressingReason::DeletionBlocked.as_str();
        let held = self.conditions.iter().find(is_it)?;
        let before = configuration.conditions().iter().find(is_it);
        before.is_none().then_some(held.message.as_str())
    }
}

/// Returns the Event of a rolling update whose `Progressing` gets this reason. None if the configuration has no rolling update, or if a newer
/// program has written it.
fn rollout_event(reason: &str) -> Option<ControllerEvent> {
    match ProgressingReason::parse(reason)? {
        ProgressingReason::RollingOut
        | ProgressingReason::MaxUnavailableReached
        | ProgressingReason::AwaitingPrefetch => Some(ControllerEvent::RolloutStarted),
        ProgressingReason::PausedOnFailure => Some(ControllerEvent::RolloutPaused),
        ProgressingReason::UpToDate | ProgressingReason::MachinesSkipped => {
            Some(ControllerEvent::RolloutFinished)
        }
        ProgressingReason::NoMachines
        | ProgressingReason::Paving
        | ProgressingReason::AwaitingNodeDeletion
        | ProgressingReason::Deleting
        | ProgressingReason::DeletionBlocked => None,
    }
}

/// Summary of a configuration: its Machines, and its newest version.
#[derive(Debug, Clone, PartialEq)]
pub struct Reckoned {
    /// Highest number of a version.
    pub latest: i64,
    /// Obstacles to the use of the newest version.
    pub newest: Newest,
    /// Number of Machines by state.
    pub counts: MachineCounts,
    /// State of the configuration, such as whether its Machines change on their own.
    pub standing: Standing,
    /// True if a Machine waits for a Node, also for one that has registered and that its agent does not know.
    pub nodes_pending: bool,
}

/// Plans the writes for one configuration from all objects.
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
    let own = || versions.iter().copied().filter(|version| is_of(version, configuration));
    let newest = own().filter(|version| version.metadata.deletion_timestamp.is_none());
    let newest = newest.max_by_key(|version| version.spec.version);
    let (made, written) = match &plan.write {
        Some(Write::Create(object)) => (Some(&**object), Some(&**object)),
        Some(Write::Copy(object)) => (None, Some(&**object)),
        None => (None, None),
    };
    let seen = (index, nodes, clocks);
    let mut reckoned = reckon(configuration, (plan.latest, written.or(newest)), seen, made);
    let mut without = written.map(|_| {
        let latest = made.map_or(plan.latest, |made| made.spec.version.saturating_sub(1));
        reckon(configuration, (latest, newest), seen, None)
    });
    if configuration.metadata.deletion_timestamp.is_some() {
        reckoned.standing = leaving(&references.of_configuration(name));
    }
    let machines: Vec<_> = index.users_of(name).map(AsRef::as_ref).collect();
    if let Some(standing) = rollout::standing(configuration, &machines, nodes, &versions, clocks) {
        for reckoned in without.iter_mut().chain([&mut reckoned]) {
            let before = std::mem::replace(&mut reckoned.standing, standing.clone());
            // A Machine that never had a Node is not part of an update. It does not pause one, but it is reported.
            let missing = before.degraded.filter(|(reason, _)| *reason == DegradedReason::NodeMissing);
            reckoned.standing.degraded = reckoned.standing.degraded.take().or(missing);
        }
    }
    let is_held = configuration.metadata.finalizers.iter().flatten().any(|held| held == OWN_FINALIZER);
    let mut plan = Plan {
        hold: !is_held && configuration.metadata.deletion_timestamp.is_none(),
        counted: own().filter_map(|version| counted(version, references)).collect(),
        status: None,
        reckoned,
        without,
        versions: plan,
    };
    plan.status = plan.status_of(configuration, None, now);
    plan
}

/// Returns number and Machines of a version whose status must be written.
fn counted(version: &MachineConfigurationVersion, references: &References) -> Option<(i64, i32)> {
    let (name, number) = version.key();
    let machines = i32::try_from(references.machines(name, number)).unwrap_or(i32::MAX);
    let status = version.status.as_ref();
    let same = status.is_some_and(|status| status.machines == Some(machines) && status.deployed.is_some());
    (!same || !image::is_described(version)).then_some((number, machines))
}

impl Plan {
    /// Returns true if Machines wait for a Node, so that time alone can change the status.
    pub(crate) fn nodes_pending(&self) -> bool {
        self.reckoned.nodes_pending
    }

    /// Returns true if there is nothing to write.
    pub fn is_empty(&self) -> bool {
        let VersionPlan { write, remove, release, release_configuration, .. } = &self.versions;
        let is_changed =
            write.is_some() || !remove.is_empty() || !release.is_empty() || *release_configuration;
        !self.hold && !is_changed && self.status.is_none() && self.counted.is_empty()
    }

    /// Returns the configuration's status if it differs from the current one. `refused` is the reason why the
    /// version was not written.
    pub fn status_of(
        &self,
        configuration: &MachineConfiguration,
        refused: Option<Refused<'_>>,
        now: Timestamp,
    ) -> Option<Status> {
        let reckoned = refused.and(self.without.as_ref()).unwrap_or(&self.reckoned);
        let mut newest = reckoned.newest.clone();
        if let Some(((reason, why), write)) = refused.zip(self.versions.write.as_ref()) {
            let name = configuration.metadata.name.as_deref().unwrap_or_default();
            let name = version_name(name, write.version());
            let refusal = format!("edit not written to MachineConfigurationVersion {name}: {why}");
            newest.troubles.insert(0, (reason, refusal));
        }
        let generation = configuration.metadata.generation;
        let wanted = Status {
            observed_generation: generation,
            latest_version: reckoned.latest,
            deployed_version: self.versions.deployed,
            machines: reckoned.counts.clone(),
            rollout_failures: reckoned.standing.failures.clone(),
            conditions: merge(configuration.conditions(), &reckoned.standing, &newest, generation, now),
        };
        (current(configuration) != Some(wanted.clone())).then_some(wanted)
    }
}

/// Returns the obstacles to the use of a version: its image.
fn usability(version: Option<&MachineConfigurationVersion>) -> Newest {
    let Some(version) = version.filter(|version| image::is_open(version)) else { return Newest::default() };
    let name = version.metadata.name.as_deref().unwrap_or_default();
    let trouble = image::failure(version);
    let trouble = trouble.map(|why| (DegradedReason::ImageUnresolved, format!("{name}: {why}")));
    let unasked = || format!("{name}: waiting for the registry to resolve the image tag");
    Newest { unasked: trouble.is_none().then(unasked), troubles: trouble.into_iter().collect() }
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

/// Sums up a configuration with this newest version, and its Machines as if `made` existed already.
fn reckon(
    configuration: &MachineConfiguration,
    (latest, newest): (i64, Option<&MachineConfigurationVersion>),
    (index, nodes, clocks): (&Index, Nodes<'_>, Clocks<'_>),
    made: Option<&MachineConfigurationVersion>,
) -> Reckoned {
    let name = configuration.metadata.name.as_deref().unwrap_or_default();
    let (mut counts, mut pending, mut nodes_pending) =
        (MachineCounts::default(), PendingMachines::default(), false);
    let is_reported = is_missing_reported(configuration);
    let mut repaved = Repaved { index, made, known: BTreeMap::new() };
    for machine in index.users_of(name) {
        let Some(status) = &machine.status else { continue };
        let selected = status.selected.as_ref().filter(|selected| selected.name == name);
        let applied = status.applied.as_ref().filter(|applied| applied.name == name);
        let called = machine.metadata.name.as_deref().unwrap_or_default();
        pending.users += usize::from(selected.is_some() || applied.is_some());
        counts.selected += i32::from(selected.is_some());
        // The Node of a claimed host is in another cluster.
        if let Some(selected) = selected.filter(|_| !is_claimed(machine)) {
            if status.node_ref.is_none() {
                pending.moving.add(called);
            }
            let wait = (clocks.wait)(machine);
            nodes_pending |= wait.nodeless.is_some();
            let versions = || index.versions_of(name).into_iter().map(AsRef::as_ref);
            if wait.nodeless.is_some() && rollout::is_late(machine, versions(), wait, is_reported) {
                pending.late.add(called);
            }
            if status.rolled_back.as_ref().is_some_and(|back| back.from.key() == selected.key()) {
                pending.rolled_back.add(called);
            }
            // By the Node, because the last report of a dead host says that its Node is Ready.
            let node = nodes(called).filter(|node| foreign(machine, node).is_none());
            counts.unavailable += i32::from(!node.is_some_and(|node| cordon::is_ready(&node)));
        }
        let Some(applied) = applied else { continue };
        counts.applied += 1;
        let next = repaved.with(machine);
        if next.is_some_and(|next| next.key() != applied.key()) {
            counts.outdated += 1;
            if status.node_ref.is_some() {
                pending.outdated.add(called);
            }
        }
    }
    let standing = at_rest(name, latest, &pending);
    Reckoned { latest, newest: usability(newest), counts, standing, nodes_pending }
}

/// Fields that decide which version a repave selects for a Machine with a choice: the configuration, and the
/// pinned version.
type Case = (String, Option<i64>);

/// Versions that repaves would select now. Each case is computed once.
struct Repaved<'a> {
    index: &'a Index,
    made: Option<&'a MachineConfigurationVersion>,
    known: BTreeMap<Case, Option<Selected>>,
}

impl Repaved<'_> {
    /// Returns the version that a repave selects for one Machine. Returns `None` if the Machine is skipped,
    /// or if there is no version for it.
    fn with(&mut self, machine: &Machine) -> Option<Selected> {
        // Without a choice the labels decide. A paused or claimed Machine gets no version.
        let Some(selected) = machine.selected().filter(|_| !is_left(machine)) else {
            return self.asked(machine);
        };
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

    fn asked(&self, machine: &Machine) -> Option<Selected> {
        let known = self.index.known(machine, None);
        let (configurations, mut versions) = known.slices();
        versions.extend(self.made);
        let Choice::Select(next) = choose(machine, Some(Again::NodeGone), &configurations, &versions) else {
            return None;
        };
        Some(next.selected)
    }
}

/// Returns true if a Machine is paused, being deleted, or claimed.
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

    fn event(before: Option<&str>, now: &str) -> Option<(ControllerEvent, String)> {
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
        status.newly_rolls(&configuration).map(|(event, message)| (event, message.to_owned()))
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
            let reckoned = reckon(&configuration, (1, None), (&index, &|_| None, clocks), None);
            (reckoned.standing.progressing.1, reckoned.counts.selected, reckoned.counts.unavailable)
        };
        assert_eq!(standing("Reference"), (ProgressingReason::Paving, 1, 1));
        assert_eq!(standing("Claim"), (ProgressingReason::UpToDate, 1, 0));
    }

    #[test]
    fn c4_start_pause_and_end_of_a_rolling_update_are_reported_once() {
        let (how, what) = ("how".to_owned(), "what to do".to_owned());
        for (before, now, expected) in [
            (None, "RollingOut", Some((ControllerEvent::RolloutStarted, how.clone()))),
            (Some("UpToDate"), "RollingOut", Some((ControllerEvent::RolloutStarted, how.clone()))),
            (Some("RollingOut"), "MaxUnavailableReached", None),
            (Some("MaxUnavailableReached"), "PausedOnFailure", Some((ControllerEvent::RolloutPaused, what))),
            (Some("PausedOnFailure"), "PausedOnFailure", None),
            (Some("PausedOnFailure"), "RollingOut", Some((ControllerEvent::RolloutStarted, how.clone()))),
            (Some("RollingOut"), "MachinesSkipped", Some((ControllerEvent::RolloutFinished, how.clone()))),
            (Some("MachinesSkipped"), "UpToDate", None),
            // A configuration without a rolling update, and one that has never rolled out.
            (Some("AwaitingNodeDeletion"), "Paving", None),
            (Some("Paving"), "UpToDate", None),
            (None, "UpToDate", None),
        ] {
            assert_eq!(event(before, now), expected, "{before:?} {now}");
        }
    }
}
