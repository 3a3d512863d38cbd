//! Random histories of edits, deletions and choices: numbers are never used twice, a deployed version never changes, a used version
//! stays, and a selector decides once. Each rule also has an example.

#![allow(clippy::unwrap_used)]
#![allow(clippy::needless_pass_by_value, reason = "JSON literals read better without borrows")]

use std::collections::{BTreeMap, BTreeSet};

use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::{Machine, Selected, SelectionSource};
use bedplate_api::reason::machine::ConfigurationPendingReason;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_rules::selection::{
    Again, Choice, References, VersionPlan, Write, choose, is_deployed, plan_versions, reference_changed,
    repave,
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Simulated cluster. Plans are written immediately.
#[derive(Debug, Default)]
struct World {
    configurations: BTreeMap<String, MachineConfiguration>,
    versions: BTreeMap<String, MachineConfigurationVersion>,
    machines: BTreeMap<String, Machine>,
    /// Every version that was ever made, by name and UID.
    made: BTreeSet<String>,
    uids: u32,
}

fn configuration(name: &str, uid: &str, more: &Value) -> MachineConfiguration {
    let mut spec = json!({ "template": template(0) });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object("MachineConfiguration", json!({ "name": name, "uid": uid }), spec)
}

fn template(content: u8) -> Value {
    json!({ "image": { "reference": "registry.example/node:1", "allowTag": true },
        "kubernetes": { "version": "v1.34.0" }, "sysctls": { "kernel.panic": content.to_string() } })
}

fn machine(name: &str, labels: Value, spec: Value) -> Machine {
    let mut all = json!({ "provider": "manual" });
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let mut machine: Machine = object("Machine", json!({ "name": name, "labels": labels }), all);
    machine.status = Some(
        serde_json::from_value(
            json!({ "conditions": [{ "type": "Enrolled", "status": "True", "reason": "Enrolled",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] }),
        )
        .unwrap(),
    );
    machine
}

fn object<K: serde::de::DeserializeOwned>(kind: &str, metadata: Value, spec: Value) -> K {
    let object =
        json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec });
    serde_json::from_value(object).unwrap()
}

fn selected(machine: &Machine) -> Option<&Selected> {
    machine.status.as_ref().and_then(|status| status.selected.as_ref())
}

impl World {
    fn with(configurations: Vec<MachineConfiguration>, machines: Vec<Machine>) -> Self {
        let mut world = Self::default();
        for configuration in configurations {
            world.configurations.insert(configuration.metadata.name.clone().unwrap(), configuration);
        }
        for machine in machines {
            world.machines.insert(machine.metadata.name.clone().unwrap(), machine);
        }
        world.settle();
        world
    }

    fn uid(&mut self) -> String {
        self.uids += 1;
        format!("uid-{}", self.uids)
    }

    fn plan(&self, name: &str) -> VersionPlan {
        let versions: Vec<_> = self.versions.values().collect();
        plan_versions(&self.configurations[name], &versions, &References::of(self.machines.values()))
    }

    fn choose(&self, machine: &str, again: Option<Again>) -> Choice {
        let configurations: Vec<_> = self.configurations.values().collect();
        let versions: Vec<_> = self.versions.values().collect();
        choose(&self.machines[machine], again, &configurations, &versions)
    }

    /// Plans and applies until nothing is left to do, with at most `steps` writes.
    fn settle_within(&mut self, mut steps: usize) {
        for name in self.configurations.keys().cloned().collect::<Vec<_>>() {
            loop {
                let plan = self.plan(&name);
                let before = format!("{:?}", self.versions);
                if let Some(write) = &plan.write {
                    if steps == 0 {
                        return;
                    }
                    steps -= 1;
                    self.write(write);
                }
                if steps == 0 {
                    return;
                }
                steps -= 1;
                let status = self.configurations.get_mut(&name).unwrap().status.get_or_insert_default();
                (status.latest_version, status.deployed_version) = (Some(plan.latest), plan.deployed);
                for number in plan.remove.iter().map(|removal| removal.version).chain(plan.release.clone()) {
                    self.versions.remove(&format!("{name}-v{number}"));
                }
                if plan.release_configuration {
                    self.configurations.remove(&name);
                    break;
                }
                if format!("{:?}", self.versions) == before {
                    break;
                }
            }
        }
    }

    fn settle(&mut self) {
        self.settle_within(usize::MAX);
    }

    fn write(&mut self, write: &Write) {
        match write {
            Write::Create(object) => {
                let name = object.metadata.name.clone().unwrap();
                assert!(self.made.insert(name.clone()), "C5: {name} was made before");
                let mut object = object.clone();
                object.metadata.uid = Some(self.uid());
                assert!(self.versions.insert(name, *object).is_none());
            }
            Write::Copy(object) => {
                let before = self.versions.get_mut(object.metadata.name.as_ref().unwrap()).unwrap();
                assert!(!is_deployed(before), "V2: what is deployed was changed");
                before.spec = object.spec.clone();
            }
        }
    }

    /// Chooses for a Machine and writes it: the lock first.
    fn select(&mut self, machine: &str, again: Option<Again>) {
        let before = selected(&self.machines[machine]).cloned();
        let choice = self.choose(machine, again);
        if let Choice::Select(select) = &choice {
            let name = format!("{}-v{}", select.selected.name, select.selected.version);
            let version = self.versions.get_mut(&name).unwrap();
            assert_eq!(select.lock, !is_deployed(version));
            version.status.get_or_insert_default().deployed = Some(true);
            let status = self.machines.get_mut(machine).unwrap().status.get_or_insert_default();
            status.selected = Some(select.selected.clone());
        }
        if again.is_none() && before.is_some() {
            assert_eq!(choice, Choice::Keep(None), "C3: decided once");
        }
    }

    fn edit(&mut self, name: &str, content: u8) {
        let configuration = self.configurations.get_mut(name).unwrap();
        configuration.spec.template = serde_json::from_value(template(content)).unwrap();
    }

    fn numbers(&self, configuration: &str) -> Vec<i64> {
        let own = self.versions.values().filter(|v| v.spec.configuration_name == configuration);
        let mut numbers: Vec<i64> = own.map(|version| version.spec.version).collect();
        numbers.sort_unstable();
        numbers
    }
}

fn rack(value: &str) -> Value {
    json!({ "machineSelector": { "matchLabels": { "rack": value } } })
}

#[test]
fn c1_new_configuration_owns_version_1_which_is_not_deployed() {
    let world = World::with(vec![configuration("w", "1", &json!({}))], vec![]);
    assert_eq!(world.numbers("w"), [1]);
    let version = &world.versions["w-v1"];
    assert!(!is_deployed(version));
    let owner = &version.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.uid.as_str(), owner.name.as_str(), owner.controller), ("1", "w", Some(true)));
    assert_eq!(world.configurations["w"].status.as_ref().unwrap().latest_version, Some(1));
}

#[test]
fn c2_edit_changes_the_newest_version_until_deployed_then_adds_one() {
    let node = machine("a", json!({}), json!({ "configurationRef": { "name": "w" } }));
    let mut world = World::with(vec![configuration("w", "1", &json!({}))], vec![node]);
    world.edit("w", 1);
    assert!(matches!(world.plan("w").write, Some(Write::Copy(_))));
    world.settle();
    assert_eq!(world.numbers("w"), [1]);
    world.select("a", None);
    assert_eq!(world.plan("w").write, None);
    world.edit("w", 2);
    world.settle();
    world.edit("w", 3);
    world.settle();
    assert_eq!(world.numbers("w"), [1, 2]);
    assert_eq!(world.versions["w-v1"].spec.template.sysctls["kernel.panic"], "1");
    assert_eq!(world.versions["w-v2"].spec.template.sysctls["kernel.panic"], "3");
}

#[test]
fn c2_what_changes_no_template_makes_no_version() {
    let mut world = World::with(vec![configuration("w", "1", &json!({}))], vec![]);
    let spec = &mut world.configurations.get_mut("w").unwrap().spec;
    (spec.priority, spec.revision_history_limit) = (7, 3);
    assert_eq!(world.plan("w").write, None);
}

#[test]
fn c5_a_number_is_found_again_from_whatever_is_left() {
    let node = machine("a", json!({}), json!({ "configurationRef": { "name": "w" } }));
    let mut world = World::with(vec![configuration("w", "1", &json!({}))], vec![node]);
    world.select("a", None);
    for content in 1..4 {
        world.edit("w", content);
        world.settle();
        world.machines.get_mut("a").unwrap().spec.configuration_ref = None;
        world.select("a", Some(Again::NodeGone));
    }
    assert_eq!(world.plan("w").latest, 4);
    let all = world.versions.clone();
    // The versions are deleted; then the status; then both, with a Machine that has the newest version.
    world.versions.clear();
    assert_eq!(world.plan("w").write.unwrap().version(), 5);
    world.configurations.get_mut("w").unwrap().status = None;
    assert_eq!(world.plan("w").write.unwrap().version(), 5);
    (world.versions, world.machines) = (all, BTreeMap::new());
    assert_eq!(world.plan("w").latest, 4);
}

#[test]
fn c5_a_version_of_another_owner_is_never_adopted_and_its_number_not_used() {
    let mut world = World::with(vec![configuration("w", "old", &json!({}))], vec![]);
    world.configurations.insert("w".to_owned(), configuration("w", "new", &json!({})));
    let plan = world.plan("w");
    assert_eq!((plan.write.unwrap().version(), plan.foreign), (2, vec!["w-v1".to_owned()]));
    world
        .machines
        .insert("a".to_owned(), machine("a", json!({}), json!({ "configurationRef": { "name": "w" } })));
    let Choice::Pending(pending) = world.choose("a", None) else { panic!("another's version was chosen") };
    assert_eq!(pending.reason, ConfigurationPendingReason::VersionNotFound);
}

#[test]
fn c5_plan_has_the_latest_and_the_highest_deployed_number_until_the_end() {
    let node = machine("a", json!({}), json!({ "configurationRef": { "name": "w" } }));
    let mut world = World::with(vec![configuration("w", "1", &json!({}))], vec![node]);
    let numbers = |world: &World| {
        let plan = world.plan("w");
        (plan.latest, plan.deployed)
    };
    assert_eq!(numbers(&world), (1, None));
    world.select("a", None);
    assert_eq!(numbers(&world), (1, Some(1)));
    world.edit("w", 1);
    assert_eq!(numbers(&world), (2, Some(1)));
    world.settle();
    let time = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    world.configurations.get_mut("w").unwrap().metadata.deletion_timestamp = time;
    assert_eq!(numbers(&world), (2, Some(1)));
    // The versions are deleted. The status keeps the numbers.
    world.versions.clear();
    assert_eq!(numbers(&world), (2, Some(1)));
}

#[test]
fn c6_the_newest_and_what_is_in_use_stay() {
    let pinned = machine("a", json!({}), json!({ "configurationRef": { "name": "w", "version": 1 } }));
    let limit = json!({ "revisionHistoryLimit": 2 });
    let mut world = World::with(vec![configuration("w", "1", &limit)], vec![pinned]);
    for content in 1..6 {
        let newest = world.numbers("w").pop().unwrap();
        let version = world.versions.get_mut(&format!("w-v{newest}")).unwrap();
        version.status.get_or_insert_default().deployed = Some(true);
        world.edit("w", content);
        world.settle();
    }
    assert_eq!(world.numbers("w"), [1, 5, 6]);
}

/// Returns a world with two configurations and a Machine whose reference selected version 1 of `w`.
fn referring() -> World {
    let node = machine("a", json!({}), json!({ "configurationRef": { "name": "w" } }));
    let all = vec![configuration("w", "1", &json!({})), configuration("x", "2", &json!({}))];
    let mut world = World::with(all, vec![node]);
    world.select("a", None);
    world
}

#[test]
fn c3_reference_to_another_name_or_version_is_a_change() {
    for (reference, changed) in [
        (json!({ "name": "w" }), false),
        (json!({ "name": "w", "version": 1 }), false),
        (json!({ "name": "w", "version": 2 }), true),
        (json!({ "name": "x" }), true),
        (json!({ "name": "x", "version": 1 }), true),
        (json!(null), false),
    ] {
        let mut machine = referring().machines["a"].clone();
        machine.spec.configuration_ref = serde_json::from_value(reference.clone()).unwrap();
        assert_eq!(reference_changed(&machine), changed, "{reference}");
    }
}

#[test]
fn c3_same_version_is_selected_again_only_for_a_node_that_is_gone() {
    let world = referring();
    let same = selected(&world.machines["a"]).unwrap();
    for again in [Again::PersonChangedReference, Again::RollingUpdate] {
        assert_eq!(world.choose("a", Some(again)), Choice::Keep(None), "{again:?}");
    }
    let Choice::Select(select) = world.choose("a", Some(Again::NodeGone)) else { panic!("not selected") };
    assert_eq!(&select.selected, same);
}

#[test]
fn c3_repave_of_a_machine_would_select_the_newest_version() {
    let mut world = referring();
    world.edit("w", 1);
    world.settle();
    let repaved = |machine: &Machine| {
        let configurations: Vec<_> = world.configurations.values().collect();
        repave(machine, &configurations, &world.versions.values().collect::<Vec<_>>())
    };
    let mut machine = world.machines["a"].clone();
    let newest = repaved(&machine).unwrap();
    assert_eq!((newest.name.as_str(), newest.version), ("w", 2));
    machine.spec.configuration_ref = serde_json::from_value(json!({ "name": "w", "version": 9 })).unwrap();
    assert_eq!(repaved(&machine), None, "there is no such version");
    machine.status = None;
    assert_eq!(repaved(&machine), None, "nothing is selected");
}

#[test]
fn c3_priority_decides_then_the_name_and_once() {
    let mut high = configuration("z-high", "3", &rack("1"));
    high.spec.priority = 5;
    let all = vec![configuration("b", "1", &rack("1")), configuration("a", "2", &rack("1"))];
    let mut world = World::with(all, vec![machine("m", json!({ "rack": "1" }), json!({}))]);
    world.select("m", None);
    assert_eq!(selected(&world.machines["m"]).unwrap().name, "a");
    world.configurations.insert("z-high".to_owned(), high);
    world.settle();
    world.select("m", None);
    assert_eq!(selected(&world.machines["m"]).unwrap().name, "a");
    world.select("m", Some(Again::NodeGone));
    assert_eq!(selected(&world.machines["m"]).unwrap().name, "a", "a repave is no new registration");
    world.machines.insert("n".to_owned(), machine("n", json!({ "rack": "1" }), json!({})));
    world.select("n", None);
    assert_eq!(selected(&world.machines["n"]).unwrap().name, "z-high");
}

#[test]
fn c3_a_selector_gives_the_latest_deployed_and_a_reference_the_newest() {
    let first = machine("a", json!({ "rack": "1" }), json!({}));
    let mut world = World::with(vec![configuration("w", "1", &rack("1"))], vec![first]);
    world.select("a", None);
    world.edit("w", 1);
    world.settle();
    let referring = machine("c", json!({}), json!({ "configurationRef": { "name": "w" } }));
    for machine in [machine("b", json!({ "rack": "1" }), json!({})), referring] {
        world.machines.insert(machine.metadata.name.clone().unwrap(), machine);
    }
    let given = |world: &World, name: &str| match world.choose(name, None) {
        Choice::Select(select) => (select.selected.version, select.selected.source, select.lock),
        other => panic!("{other:?}"),
    };
    assert_eq!(given(&world, "b"), (1, SelectionSource::Selector, false));
    assert_eq!(given(&world, "c"), (2, SelectionSource::Reference, true));
}

#[test]
fn h3_unenrolled_machine_shows_its_match_and_nothing_is_locked() {
    let mut waiting = machine("a", json!({ "rack": "1" }), json!({}));
    waiting.status = None;
    let world = World::with(vec![configuration("w", "1", &rack("1"))], vec![waiting]);
    let expected = Selected {
        name: "w".to_owned(),
        version: 1,
        source: SelectionSource::Selector,
        provider_id: None,
        granted: false,
    };
    assert_eq!(world.choose("a", None), Choice::Matched(expected));
}

#[test]
fn h3_only_the_condition_enrolled_with_status_true_enrolls_a_machine() {
    for (kind, status, enrolled) in
        [("Enrolled", "True", true), ("Enrolled", "False", false), ("Ready", "True", false)]
    {
        let mut host = machine("a", json!({ "rack": "1" }), json!({}));
        let condition = &mut host.status.as_mut().unwrap().conditions[0];
        (condition.type_, condition.status) = (kind.to_owned(), status.to_owned());
        let world = World::with(vec![configuration("w", "1", &rack("1"))], vec![host]);
        let choice = world.choose("a", None);
        assert_eq!(matches!(choice, Choice::Select(_)), enrolled, "{kind}={status}");
        assert_eq!(matches!(choice, Choice::Matched(_)), !enrolled, "{kind}={status}");
    }
}

#[test]
fn h3_message_names_two_unmet_requirements_and_marks_further_ones() {
    for (labels, named) in [
        (json!({ "a": "1" }), "w (requires a=1, has no a)"),
        (json!({ "a": "1", "b": "1" }), "w (requires a=1, has no a; b=1, has no b)"),
        (json!({ "a": "1", "b": "1", "c": "1" }), "w (requires a=1, has no a; b=1, has no b, ...)"),
        (json!({ "a": "1", "b": "1", "c": "1", "d": "1" }), "w (requires a=1, has no a; b=1, has no b, ...)"),
    ] {
        let selector = json!({ "machineSelector": { "matchLabels": labels } });
        let world =
            World::with(vec![configuration("w", "1", &selector)], vec![machine("a", json!({}), json!({}))]);
        let Choice::Pending(pending) = world.choose("a", None) else { panic!("{labels} matched") };
        assert!(pending.message.ends_with(&format!("nearest: {named}")), "{}", pending.message);
    }
}

#[test]
fn h3_nothing_that_matches_names_what_nearly_does() {
    let two = json!({ "machineSelector": { "matchLabels": { "rack": "2", "gpu": "yes" } } });
    let all = vec![configuration("far", "1", &two), configuration("near", "2", &rack("2"))];
    let world = World::with(all, vec![machine("a", json!({ "rack": "1" }), json!({}))]);
    let Choice::Pending(pending) = world.choose("a", None) else { panic!("something matched") };
    assert_eq!(pending.reason.as_str(), "NoConfiguration");
    assert!(
        pending.message.contains("nearest: near (requires rack=2, has rack=1), far (requires"),
        "{}",
        pending.message
    );
    assert_eq!(pending.nearest[0].configuration, "near");
}

#[test]
fn h3_a_choice_by_hardware_waits_until_the_agent_has_reported_it() {
    let amd64 = json!({ "priority": 1, "machineSelector": { "matchFields": [
        { "key": "status.hardware.cpu.architecture", "operator": "In", "values": ["amd64"] }] } });
    let any = json!({ "machineSelector": {} });
    let mut host = machine("a", json!({}), json!({}));
    host.status.as_mut().unwrap().hardware = None;
    let mut world =
        World::with(vec![configuration("amd64", "1", &amd64), configuration("any", "2", &any)], vec![host]);
    let Choice::Pending(pending) = world.choose("a", None) else { panic!("it would never get amd64") };
    assert_eq!(pending.reason, ConfigurationPendingReason::HardwareNotReported);
    assert!(
        pending.message.contains("machineSelector of amd64 requires status.hardware.cpu"),
        "{}",
        pending.message
    );
    let report = |world: &mut World, architecture: &str| {
        let hardware = json!({ "cpu": { "architecture": architecture } });
        let status = world.machines.get_mut("a").unwrap().status.as_mut().unwrap();
        status.hardware = serde_json::from_value(hardware).unwrap();
    };
    report(&mut world, "arm64");
    let Choice::Select(select) = world.choose("a", None) else { panic!("any matches") };
    assert_eq!(select.selected.name, "any");
    world.select("a", None);
    // Another board in the same chassis: the selected version stays.
    report(&mut world, "amd64");
    assert_eq!(world.choose("a", None), Choice::Keep(None));
    assert_eq!(selected(&world.machines["a"]).unwrap().name, "any");
}

#[test]
fn h4_pinned_version_is_used_unchanged_and_a_missing_one_is_named() {
    let pin = |version: i64| {
        machine("a", json!({}), json!({ "configurationRef": { "name": "w", "version": version } }))
    };
    let mut world = World::with(vec![configuration("w", "1", &json!({}))], vec![pin(7)]);
    let Choice::Pending(pending) = world.choose("a", None) else { panic!("v7 does not exist") };
    assert_eq!(pending.reason, ConfigurationPendingReason::VersionNotFound);
    assert!(pending.message.contains("w-v7 does not exist; the newest are: 1"), "{}", pending.message);
    world.machines.insert("a".to_owned(), pin(1));
    world.select("a", None);
    assert_eq!(selected(&world.machines["a"]).unwrap().version, 1);
    world.edit("w", 1);
    world.settle();
    world.select("a", Some(Again::NodeGone));
    assert_eq!(selected(&world.machines["a"]).unwrap().version, 1);
}

#[test]
fn h7_an_earlier_version_that_a_person_names_is_chosen_again() {
    let newest = machine("a", json!({}), json!({ "configurationRef": { "name": "w" } }));
    let mut world = World::with(vec![configuration("w", "1", &json!({}))], vec![newest]);
    world.select("a", None);
    world.edit("w", 1);
    world.settle();
    assert!(!reference_changed(&world.machines["a"]), "an edit alone moves nothing");
    world.select("a", Some(Again::NodeGone));
    assert_eq!(selected(&world.machines["a"]).unwrap().version, 2);
    let reference = json!({ "name": "w", "version": 1 });
    world.machines.get_mut("a").unwrap().spec.configuration_ref = serde_json::from_value(reference).unwrap();
    assert!(reference_changed(&world.machines["a"]));
    world.select("a", Some(Again::PersonChangedReference));
    assert_eq!(selected(&world.machines["a"]).unwrap().version, 1);
    assert!(!reference_changed(&world.machines["a"]));
}

#[test]
fn paused_deleted_or_claimed_machines_are_skipped() {
    let own = json!({ "configurationRef": { "name": "w" } });
    let mut world =
        World::with(vec![configuration("w", "1", &json!({}))], vec![machine("a", json!({}), own)]);
    world.select("a", None);
    let a = world.machines.get_mut("a").unwrap();
    let before = a.status.clone();
    a.status.as_mut().unwrap().selected.as_mut().unwrap().source = SelectionSource::Claim;
    let Choice::Keep(Some(pending)) = world.choose("a", Some(Again::NodeGone)) else {
        panic!("it was claimed")
    };
    assert_eq!(pending.reason, ConfigurationPendingReason::Claimed);
    let a = world.machines.get_mut("a").unwrap();
    a.status = before;
    a.spec.paused = true;
    assert_eq!(world.choose("a", Some(Again::NodeGone)), Choice::LeaveAlone);
    let deleted = &mut world.machines.get_mut("a").unwrap();
    deleted.spec.paused = false;
    deleted.metadata.deletion_timestamp =
        Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    assert_eq!(world.choose("a", None), Choice::LeaveAlone);
}

#[test]
fn d1_pool_machine_is_matched_by_no_selector_and_waits_for_a_claim() {
    let every = json!({ "machineSelector": {} });
    let pool = json!({ "claimPolicy": { "namespaces": ["team-a", "team-b"], "release": "Empty" } });
    let mut world = World::with(vec![configuration("w", "1", &every)], vec![machine("a", json!({}), pool)]);
    let Choice::Pending(pending) = world.choose("a", None) else { panic!("no selector matches it") };
    assert_eq!(pending.reason, ConfigurationPendingReason::ClaimPending);
    assert!(pending.message.contains("team-a, team-b"), "{}", pending.message);
    assert!(pending.nearest.is_empty(), "no selector is near");
    // A claim that the agent still holds is named although its object is missing.
    let claim = json!({ "providerID": "bedplate://a/u", "claimant": { "namespace": "team-a", "name": "w-1" }, "state": "Joined",
        "since": "2026-01-01T00:00:00Z" });
    let status = world.machines.get_mut("a").unwrap().status.get_or_insert_default();
    status.claim = Some(serde_json::from_value(claim).unwrap());
    let Choice::Pending(pending) = world.choose("a", None) else { panic!("no selector matches it") };
    assert_eq!(pending.reason, ConfigurationPendingReason::ClaimPending);
    assert!(pending.message.contains("team-a/w-1"), "{}", pending.message);
}

#[test]
fn v3_deleted_configuration_waits_for_machines_and_removes_its_versions() {
    let own = json!({ "configurationRef": { "name": "w" } });
    let mut world =
        World::with(vec![configuration("w", "1", &json!({}))], vec![machine("a", json!({}), own)]);
    let time = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    world.configurations.get_mut("w").unwrap().metadata.deletion_timestamp = time;
    let plan = world.plan("w");
    assert!(plan.remove.is_empty() && !plan.release_configuration && plan.write.is_none(), "{plan:?}");
    world.machines.clear();
    let plan = world.plan("w");
    assert_eq!((plan.remove.len(), plan.release_configuration), (1, false));
    world.settle();
    assert!(world.configurations.is_empty() && world.versions.is_empty());
}

#[test]
fn v3_version_deleted_during_selection_is_held_until_another_is_selected() {
    let own = json!({ "configurationRef": { "name": "w" } });
    let mut world =
        World::with(vec![configuration("w", "1", &json!({}))], vec![machine("a", json!({}), own)]);
    world.select("a", None);
    let time = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    world.versions.get_mut("w-v1").unwrap().metadata.deletion_timestamp = time;
    let plan = world.plan("w");
    assert_eq!((plan.release.len(), plan.write.as_ref().map(Write::version)), (0, Some(2)));
    world.settle();
    world.select("a", Some(Again::NodeGone));
    assert_eq!(world.plan("w").release, [1]);
}

#[derive(Debug, Clone)]
enum Act {
    Edit {
        configuration: u8,
        content: u8,
    },
    /// Number of the plan's writes that are done before the writer dies.
    Settle {
        writes: usize,
    },
    Select {
        machine: u8,
    },
    NodeGone {
        machine: u8,
    },
    Refer {
        machine: u8,
        configuration: u8,
        version: Option<u8>,
    },
    Label {
        machine: u8,
        rack: u8,
    },
    Priority {
        configuration: u8,
        priority: i32,
    },
    /// Deletion of a version by a user. The policy allows it only if no Machine holds the version.
    Delete {
        configuration: u8,
        version: u8,
    },
}

fn act() -> impl Strategy<Value = Act> {
    let (machine, configuration) = (0..3_u8, 0..2_u8);
    prop_oneof![
        (configuration.clone(), 0..4_u8)
            .prop_map(|(configuration, content)| Act::Edit { configuration, content }),
        (0..6_usize).prop_map(|writes| Act::Settle { writes }),
        machine.clone().prop_map(|machine| Act::Select { machine }),
        machine.clone().prop_map(|machine| Act::NodeGone { machine }),
        (machine.clone(), configuration.clone(), proptest::option::of(1..5_u8))
            .prop_map(|(machine, configuration, version)| Act::Refer { machine, configuration, version }),
        (machine, 0..2_u8).prop_map(|(machine, rack)| Act::Label { machine, rack }),
        (configuration.clone(), -1..2_i32)
            .prop_map(|(configuration, priority)| Act::Priority { configuration, priority }),
        (configuration, 1..6_u8).prop_map(|(configuration, version)| Act::Delete { configuration, version }),
    ]
}

impl World {
    fn act(&mut self, act: &Act) {
        let named = |number: u8| format!("c{number}");
        match *act {
            Act::Edit { configuration, content } => self.edit(&named(configuration), content),
            Act::Settle { writes } => self.settle_within(writes),
            Act::Select { machine } => self.select(&format!("m{machine}"), None),
            Act::NodeGone { machine } => self.select(&format!("m{machine}"), Some(Again::NodeGone)),
            Act::Refer { machine, configuration, version } => {
                let name = format!("m{machine}");
                let reference = json!({ "name": named(configuration), "version": version });
                let machine = self.machines.get_mut(&name).unwrap();
                machine.spec.configuration_ref = serde_json::from_value(reference).unwrap();
                if reference_changed(machine) {
                    self.select(&name, Some(Again::PersonChangedReference));
                }
            }
            Act::Label { machine, rack } => {
                let machine = self.machines.get_mut(&format!("m{machine}")).unwrap();
                machine.metadata.labels = Some([("rack".to_owned(), rack.to_string())].into());
            }
            Act::Priority { configuration, priority } => {
                self.configurations.get_mut(&named(configuration)).unwrap().spec.priority = priority;
            }
            Act::Delete { configuration, version } => {
                let name = named(configuration);
                let references = References::of(self.machines.values());
                let latest = self.configurations[&name].status.as_ref().and_then(|s| s.latest_version);
                // The finalizer keeps the version until its number is in the status.
                if references.of_version(&name, version.into()).is_empty() && latest >= Some(version.into()) {
                    self.versions.remove(&format!("{name}-v{version}"));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn numbers_are_never_reused_and_deployed_or_used_versions_are_kept(
        acts in proptest::collection::vec(act(), 1..60),
        limit in 0..3_i32,
    ) {
        let limited = |rack_: &str| {
            let mut more = rack(rack_);
            more["revisionHistoryLimit"] = json!(limit);
            more
        };
        let configurations =
            vec![configuration("c0", "0", &limited("0")), configuration("c1", "1", &limited("1"))];
        let machines = (0..3).map(|n| machine(&format!("m{n}"), json!({ "rack": "0" }), json!({}))).collect();
        let mut world = World::with(configurations, machines);
        for act in acts {
            let deployed: Vec<_> = world.versions.values().filter(|v| is_deployed(v)).cloned().collect();
            world.act(&act);
            for before in deployed {
                let after = world.versions.get(before.metadata.name.as_ref().unwrap());
                prop_assert!(after.is_none_or(|after| after.spec == before.spec && is_deployed(after)), "{act:?}");
            }
            for machine in world.machines.values() {
                if let Some(selected) = selected(machine) {
                    let version = world.versions.get(&format!("{}-v{}", selected.name, selected.version));
                    prop_assert!(version.is_some_and(is_deployed), "{act:?}: {selected:?} of {machine:?}");
                }
            }
        }
        world.settle();
        for name in ["c0", "c1"] {
            let plan = world.plan(name);
            prop_assert!(plan.write.is_none() && plan.remove.is_empty(), "settled: {plan:?}");
            let newest = world.numbers(name).pop().unwrap();
            let newest = &world.versions[&format!("{name}-v{newest}")];
            prop_assert_eq!(&newest.spec.template, &world.configurations[name].spec.template);
        }
    }
}
