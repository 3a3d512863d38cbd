//! Standalone rules over time: versions, choices, Nodes that come and go. Nothing is published before it is stored.

use std::collections::BTreeSet;

use bedplate_api::machine::{Applied, Machine, SlotName};
use bedplate_api::reason::machine::{ConfigurationPendingReason, EnrolledReason};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::plan::{Input, Manifests, Outcome, PendingCondition, references, settle};
use super::problems::problems;
use super::*;
use crate::machines::Snapshot;
use crate::status::conditions::condition;
use crate::status::set_condition;
use crate::system_of_record::SystemOfRecord;

/// A small site, and what of it is known.
struct Site {
    state: State,
    manifests: Manifests,
    machines: Vec<Machine>,
    enrolled: BTreeSet<MachineName>,
    applied: Option<Applied>,
    now: Timestamp,
    uids: u32,
}

fn name(name: &str) -> MachineName {
    name.parse().unwrap()
}

fn node(uid: &str) -> NodeRef {
    NodeRef::new("a", uid)
}

fn machine(spec: Value) -> Machine {
    let mut spec = spec;
    spec["provider"] = json!("manual");
    serde_json::from_value(json!({
        "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
        "metadata": { "name": "a", "labels": { "rack": "1" } }, "spec": spec,
    }))
    .unwrap()
}

/// A configuration of this Kubernetes version, for Machines of rack 1.
fn sourced(origin: &str, kubernetes: &Value) -> SourcedConfiguration {
    let template =
        json!({ "image": { "reference": "r.example/node:1", "allowTag": true }, "kubernetes": kubernetes });
    let selector = json!({ "matchLabels": { "rack": "1" } });
    let object = json!({
        "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration", "metadata": { "name": "w" },
        "spec": { "machineSelector": selector, "template": template },
    });
    SourcedConfiguration {
        origin: origin.to_owned(),
        line: 1,
        configuration: Arc::new(serde_json::from_value(object).unwrap()),
    }
}

fn kubernetes(version: &str) -> Value {
    json!({ "version": version })
}

impl Site {
    /// Machine `a` and a configuration `w` that matches it; the host is not enrolled.
    fn new() -> Self {
        let mut site = Self {
            state: State::default(),
            manifests: Manifests { configurations: Vec::new(), whole: true },
            machines: vec![machine(json!({}))],
            enrolled: BTreeSet::new(),
            applied: None,
            now: Timestamp::UNIX_EPOCH,
            uids: 0,
        };
        site.edit(&kubernetes("v1.34.0"));
        site
    }

    fn enrolled() -> Self {
        let mut site = Self::new();
        site.enrolled.insert(name("a"));
        assert_eq!(site.settle().selected.len(), 1);
        site
    }

    fn edit(&mut self, kubernetes: &Value) {
        self.manifests.configurations = vec![sourced("w.yaml", kubernetes)];
    }

    fn statuses(&self) -> impl Fn(&MachineName) -> Option<bedplate_api::machine::MachineStatus> + use<> {
        let (enrolled, applied, now) = (self.enrolled.clone(), self.applied.clone(), self.now);
        move |name: &MachineName| {
            let mut status =
                bedplate_api::machine::MachineStatus { applied: applied.clone(), ..Default::default() };
            set_condition(&mut status, enrolled.contains(name), EnrolledReason::Enrolled, "", None, now);
            Some(status)
        }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::build(&Default::default(), self.machines.clone())
    }

    fn settle(&mut self) -> Outcome {
        let (snapshot, status_of) = (self.snapshot(), self.statuses());
        let input = Input {
            manifests: Some(&self.manifests),
            machines: Some(&snapshot),
            status_of: &status_of,
            look: None,
            versions: true,
            now: self.now,
        };
        let uids = &mut self.uids;
        settle(&mut self.state, &input, &mut || {
            *uids += 1;
            format!("uid-{uids}")
        })
    }

    fn condition(&mut self) -> PendingCondition {
        self.settle().conditions.remove(&name("a")).flatten().unwrap()
    }

    fn problems(&self) -> Vec<String> {
        let snapshot = self.snapshot();
        let references = references(&self.state, Some(&snapshot), &self.statuses());
        problems(&self.state, &self.manifests, Some(&snapshot), &references, &self.statuses())
    }

    /// Reports a Node as the agent does.
    fn agent_says(&mut self, node: Option<&NodeRef>, gone: Option<&str>) {
        let chosen = self.state.machines.get_mut(&name("a")).unwrap();
        *chosen = Arc::new(chosen.with_node(&name("a"), node, gone.map(str::to_owned).as_ref()));
    }

    fn chosen(&self) -> (i64, Option<String>) {
        let chosen = &self.state.machines[&name("a")];
        (chosen.selected.as_ref().unwrap().version, chosen.node.as_ref().map(|node| node.uid.clone()))
    }

    fn versions(&self) -> Vec<(String, bool)> {
        let versions = self.state.versions_of("w").into_iter();
        versions
            .map(|v| (v.metadata.name.clone().unwrap(), bedplate_rules::selection::is_deployed(v)))
            .collect()
    }
}

fn version(number: u32, deployed: bool) -> (String, bool) {
    (format!("w-v{number}"), deployed)
}

#[test]
fn h3_a_host_that_is_not_enrolled_gets_nothing_and_says_what_it_would_be() {
    let mut site = Site::new();
    let condition = site.condition();
    assert_eq!((condition.pending, condition.reason), (false, ConfigurationPendingReason::Matched));
    assert_eq!(site.versions(), [version(1, false)], "c1");
    site.edit(&kubernetes("v1.34.1"));
    site.settle();
    assert_eq!(site.versions(), [version(1, false)], "c2: no Machine uses it yet");
    assert_eq!(site.state.versions["w-v1"].spec.template.kubernetes.version, "v1.34.1");
    site.manifests.configurations.clear();
    let condition = site.condition();
    assert_eq!((condition.pending, condition.reason), (true, ConfigurationPendingReason::NoConfiguration));
    assert!(site.versions().is_empty() && site.state.configurations.is_empty(), "no Machine uses it");
}

#[test]
fn h4_enrollment_selects_and_locks_a_version_and_edit_makes_next() {
    let mut site = Site::enrolled();
    assert_eq!((site.chosen(), site.versions()), ((1, None), vec![version(1, true)]));
    assert_eq!(site.settle(), Outcome { conditions: site.settle().conditions, ..Outcome::default() }, "once");
    site.edit(&kubernetes("v1.34.1"));
    let outcome = site.settle();
    assert_eq!(outcome.written, ["w-v2"]);
    assert_eq!((outcome.selected.len(), site.chosen()), (0, (1, None)), "c4");
    assert_eq!(site.versions(), [version(1, true), version(2, false)], "c2");
}

#[test]
fn h6_gone_node_is_forgotten_with_selection_of_newest_version() {
    let mut site = Site::enrolled();
    site.agent_says(Some(&node("1")), None);
    site.edit(&kubernetes("v1.34.1"));
    site.settle();
    assert_eq!(site.chosen(), (1, Some("1".to_owned())));
    site.agent_says(None, Some("2"));
    site.settle();
    assert_eq!(site.chosen(), (1, Some("1".to_owned())), "another Node's end is none of its");
    site.agent_says(None, Some("1"));
    site.settle();
    assert_eq!(site.chosen(), (2, None));
    assert_eq!(site.versions()[1], version(2, true));
    assert_eq!(site.settle().selected, [], "once");
    // With the same version again.
    site.agent_says(Some(&node("3")), None);
    site.agent_says(None, Some("3"));
    site.settle();
    assert_eq!(site.chosen(), (2, None));
}

#[test]
fn a_paused_machine_is_not_chosen_for_until_it_is_paused_no_more() {
    let mut site = Site::enrolled();
    site.agent_says(Some(&node("1")), None);
    site.agent_says(None, Some("1"));
    site.machines = vec![machine(json!({ "paused": true }))];
    assert_eq!(site.settle().conditions[&name("a")], None);
    assert_eq!(site.chosen(), (1, Some("1".to_owned())));
    site.machines = vec![machine(json!({}))];
    site.settle();
    assert_eq!(site.chosen(), (1, None));
}

#[test]
fn h7_user_named_earlier_version_is_selected_and_node_stays() {
    let mut site = Site::enrolled();
    site.edit(&kubernetes("v1.34.1"));
    site.settle();
    site.machines = vec![machine(json!({ "configurationRef": { "name": "w", "version": 2 } }))];
    site.agent_says(Some(&node("1")), None);
    site.settle();
    assert_eq!(site.chosen(), (2, Some("1".to_owned())));
    site.machines = vec![machine(json!({ "configurationRef": { "name": "w", "version": 1 } }))];
    site.settle();
    assert_eq!(site.chosen(), (1, Some("1".to_owned())));
    site.machines = vec![machine(json!({ "configurationRef": { "name": "none" } }))];
    let condition = site.condition();
    assert_eq!(
        (condition.pending, condition.reason),
        (false, ConfigurationPendingReason::ConfigurationNotFound)
    );
    assert!(
        condition.message.starts_with("w-v1 is selected by spec.configurationRef, and is kept: "),
        "{condition:?}"
    );
}

#[test]
fn host_that_created_cluster_is_not_repaved_for_missing_node() {
    let mut site = Site::new();
    site.edit(&json!({ "version": "v1.34.0", "role": "ControlPlane" }));
    site.enrolled.insert(name("a"));
    site.settle();
    let applied = json!({ "name": "w", "version": 1, "slot": SlotName::A });
    site.applied = Some(serde_json::from_value(applied).unwrap());
    site.agent_says(Some(&node("1")), None);
    // The next version is not a control plane; the existing etcd is what counts.
    site.edit(&kubernetes("v1.34.1"));
    site.settle();
    site.agent_says(None, Some("1"));
    let condition = site.condition();
    assert_eq!(
        (condition.pending, condition.reason),
        (false, ConfigurationPendingReason::ControlPlaneProtected)
    );
    assert!(
        condition.message.contains("w-v1: kubeadm init") && condition.message.contains("restart the kubelet")
    );
    assert_eq!(site.chosen(), (1, Some("1".to_owned())));
    site.agent_says(Some(&node("2")), None);
    assert_eq!(site.condition().reason, ConfigurationPendingReason::Selected, "it has registered again");
    assert_eq!(site.chosen(), (1, Some("2".to_owned())));
}

#[test]
fn v3_configuration_in_use_outlives_manifest_and_is_reported() {
    let mut site = Site::enrolled();
    let uid = site.state.configurations["w"].configuration.metadata.uid.clone();
    site.manifests = Manifests { configurations: Vec::new(), whole: false };
    site.settle();
    assert!(!site.state.configurations["w"].is_removed(), "a file that cannot be read may have it");
    site.manifests.whole = true;
    site.settle();
    let problems = site.problems();
    assert!(problems[0].contains("w was removed from its manifest (w.yaml)"), "{problems:?}");
    assert!(problems[0].contains("in use by a; write it again"), "{problems:?}");
    let mut other = machine(json!({}));
    other.metadata.name = Some("b".to_owned());
    site.machines.push(other);
    site.enrolled.insert(name("b"));
    assert_eq!(
        site.settle().conditions[&name("b")].as_ref().unwrap().reason,
        ConfigurationPendingReason::NoConfiguration
    );
    site.edit(&kubernetes("v1.34.0"));
    site.settle();
    assert_eq!(site.problems(), Vec::<String>::new());
    let back = &site.state.configurations["w"].configuration.metadata;
    assert_eq!((&back.uid, &back.deletion_timestamp), (&uid, &None), "the same");
    site.manifests.configurations.clear();
    site.machines.clear();
    site.settle();
    assert_eq!(site.versions(), [version(1, true)], "the Machine may come back");
    site.now += plan::MISSING_MACHINE_RETENTION;
    site.settle();
    assert_eq!(site.state, State::default());
}

#[test]
fn a_machine_that_is_away_for_a_moment_comes_back_to_what_was_chosen() {
    let mut site = Site::enrolled();
    site.agent_says(Some(&node("1")), None);
    let machines = std::mem::take(&mut site.machines);
    site.settle();
    site.now += plan::MISSING_MACHINE_RETENTION - SignedDuration::from_secs(1);
    site.settle();
    site.machines = machines;
    site.edit(&kubernetes("v1.34.1"));
    site.settle();
    assert_eq!(site.chosen(), (1, Some("1".to_owned())));
    assert_eq!(site.state.machines[&name("a")].missing_since, None);
    site.machines[0].metadata.uid = Some("another".to_owned());
    site.settle();
    assert_eq!(site.chosen(), (1, None), "a re-created Machine gets a new choice (c3: the latest deployed)");
}

#[test]
fn a_name_in_two_places_changes_nothing_and_both_are_named() {
    let mut site = Site::enrolled();
    site.manifests.configurations.push(sourced("x.yaml", &kubernetes("v1.34.9")));
    site.settle();
    assert_eq!(site.versions(), [version(1, true)]);
    assert_eq!(
        site.problems(),
        ["MachineConfiguration w is defined in w.yaml:1 and in x.yaml:1; neither is used"]
    );
}

#[test]
fn machine_whose_deletion_needs_a_controller_is_reported() {
    let mut site = Site::new();
    for (policy, named) in [("Retain", false), ("PowerOff", false), ("Drain", true)] {
        site.machines = vec![machine(json!({ "deletionPolicy": policy }))];
        let problems = site.problems();
        assert_eq!(problems.len(), usize::from(named), "{policy}: {problems:?}");
        assert!(problems.iter().all(|one| one.starts_with("Machine a: deletionPolicy Drain has no effect")));
    }
}

#[test]
fn d1_machine_in_a_pool_is_named_without_a_cluster() {
    let mut site = Site::new();
    site.machines = vec![machine(json!({ "claimPolicy": { "namespaces": ["team-a"] } }))];
    let problems = site.problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with("Machine a: claimPolicy needs a cluster"), "{problems:?}");
}

#[test]
fn c4_rolling_update_without_a_cluster_is_named() {
    let mut site = Site::enrolled();
    let mut rolling = sourced("w.yaml", &kubernetes("v1.34.4"));
    let mut configuration = (*rolling.configuration).clone();
    configuration.spec.update_strategy = serde_json::from_value(json!({ "type": "RollingUpdate" })).unwrap();
    rolling.configuration = configuration.into();
    site.manifests.configurations = vec![rolling];
    site.settle();
    let problems = site.problems();
    assert!(
        problems.len() == 1
            && problems[0]
                .starts_with("MachineConfiguration w: updateStrategy RollingUpdate works as OnDelete"),
        "{problems:?}"
    );
}

fn first_control_plane() -> Value {
    json!({ "version": "v1.34.4", "role": "ControlPlane", "apiServerEndpoint": "api.example:6443" })
}

#[test]
fn machines_that_make_clusters_of_their_own_are_named() {
    let named = |name: &str| {
        let mut machine = machine(json!({}));
        machine.metadata.name = Some(name.to_owned());
        machine
    };
    let mut site = Site::new();
    site.edit(&first_control_plane());
    site.settle();
    assert_eq!(site.problems(), Vec::<String>::new(), "one host makes the cluster");
    let mut paused = named("b");
    paused.spec.paused = true;
    site.machines = vec![named("a"), paused];
    site.settle();
    let problems = site.problems();
    let start = "MachineConfiguration w: each of the Machines a, b makes a cluster of its own, with the same apiServerEndpoint; ";
    assert!(problems.len() == 1 && problems[0].starts_with(start), "matched, not enrolled: {problems:?}");
    assert!(problems[0].contains("before further hosts enroll"), "{problems:?}");
    site.machines = vec![named("a"), named("b")];
    site.enrolled.extend([name("a"), name("b")]);
    assert_eq!(site.settle().selected.len(), 2);
    let problems = site.problems();
    assert!(problems[0].starts_with(start) && problems[0].contains("keep one"), "selected: {problems:?}");
    let all: Vec<String> = (0..12).map(|n| format!("m{n:02}")).collect();
    site.machines = all.iter().map(|name| named(name)).collect();
    site.settle();
    assert!(site.problems()[0].contains("m08, m09, and 2 more makes"), "{:?}", site.problems());

    // Clusters of one host each, without an endpoint of several control planes.
    let mut single = Site::new();
    single.edit(&json!({ "version": "v1.34.4", "role": "ControlPlane" }));
    single.machines = vec![named("a"), named("b")];
    single.settle();
    assert_eq!(single.problems(), Vec::<String>::new());
}

#[test]
fn host_with_its_own_cluster_is_named_also_if_it_has_another_choice() {
    let mut site = Site::enrolled();
    site.edit(&first_control_plane());
    site.settle();
    assert_eq!(site.problems(), Vec::<String>::new(), "its selected version joins a cluster");
    site.applied = Some(serde_json::from_value(json!({ "name": "w", "version": 2 })).unwrap());
    let mut second = machine(json!({ "configurationRef": { "name": "w", "version": 2 } }));
    second.metadata.name = Some("b".to_owned());
    site.machines.push(second);
    site.settle();
    assert!(site.problems()[0].contains("the Machines a, b makes a cluster"), "{:?}", site.problems());
}

#[test]
fn machine_whose_cluster_is_in_memory_is_named() {
    let pxe = |state_disk: bool| {
        let mut pxe = json!({ "interfaces": [{ "macAddress": "52:54:00:00:00:01" }] });
        if state_disk {
            pxe["stateDisk"] = json!({ "rule": { "minSizeBytes": 1 } });
        }
        let mut machine = machine(json!({ "pxe": pxe }));
        machine.spec.provider = "pxe".to_owned();
        machine
    };
    let mut site = Site::new();
    site.edit(&first_control_plane());
    for (has_disk, expected) in [(true, 0), (false, 1)] {
        site.machines = vec![pxe(has_disk)];
        site.settle();
        let problems = site.problems();
        assert_eq!(problems.len(), expected, "{problems:?}");
        assert!(
            problems.iter().all(|one| one.contains("ends its cluster: a; set spec.pxe.stateDisk")),
            "{problems:?}"
        );
    }
}

/// The real thing on a real store.
struct Rig {
    _directory: tempfile::TempDir,
    store: Store,
    machines: Machines,
    registry: StatusRegistry,
    choice: NodeChoice,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Rig {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("pxed.redb")).unwrap();
        let machines = Machines::default();
        let registry = StatusRegistry::new(machines.clone(), &store, SystemOfRecord::Pxed).unwrap().0;
        let (choice, choosing) = NodeChoice::open(store.clone(), machines.clone(), registry.clone()).unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(choosing.run(Pulse::unwatched(), shutdown.clone()));
        machines.store(Snapshot::build(&Default::default(), [machine(json!({}))]));
        Self { _directory: directory, store, machines, registry, choice, shutdown, task }
    }

    fn known(&self) -> Arc<KnownMachine> {
        self.machines.load().by_name(&name("a")).unwrap().clone()
    }

    fn enroll(&self) {
        let now = Timestamp::now();
        self.registry.update(&name("a"), |status| {
            set_condition(status, true, EnrolledReason::Enrolled, "", None, now);
        });
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let mut changes = self.choice.changes();
        let wait = async {
            while !is_so(self) {
                // The status follows the state: it may be a moment late.
                let _ = tokio::time::timeout(std::time::Duration::from_millis(20), changes.changed()).await;
            }
        };
        let patience = std::time::Duration::from_secs(30);
        assert!(tokio::time::timeout(patience, wait).await.is_ok(), "not reached: {what}");
    }

    fn selected(&self) -> Option<i64> {
        self.choice.selection(&self.known()).chosen?.selected.as_ref().map(|selected| selected.version)
    }
}

#[tokio::test]
async fn choice_is_stored_before_publication_and_survives_restart() {
    let rig = Rig::new();
    rig.choice.take(vec![sourced("w.yaml", &kubernetes("v1.34.0"))], true).await;
    rig.until("the version", |rig| rig.choice.state().versions.contains_key("w-v1")).await;
    rig.enroll();
    rig.until("the choice", |rig| rig.selected() == Some(1)).await;
    rig.choice.report(&rig.known(), Some(node("1")), None).await.unwrap();
    rig.until("the status", |rig| {
        let status = rig.registry.get(&name("a")).unwrap();
        let pending = condition(&status, "ConfigurationPending").is_some_and(|c| c.reason == "Selected");
        pending && status.selected.is_some_and(|s| s.version == 1) && status.node_ref == Some(node("1"))
    })
    .await;
    let state = rig.choice.state();
    let (again, _choosing) =
        NodeChoice::open(rig.store.clone(), rig.machines.clone(), rig.registry.clone()).unwrap();
    assert_eq!(again.state(), state, "all of it is in the store");
    rig.shutdown.cancel();
    rig.task.await.unwrap();
}

#[tokio::test]
async fn c1_selector_by_hardware_chooses_when_the_agent_has_reported_it() {
    let rig = Rig::new();
    let mut by_hardware = sourced("w.yaml", &kubernetes("v1.34.0"));
    let mut configuration = (*by_hardware.configuration).clone();
    let fields =
        [json!({ "key": "status.hardware.cpu.architecture", "operator": "In", "values": ["amd64"] })];
    configuration.spec.machine_selector =
        Some(serde_json::from_value(json!({ "matchFields": fields })).unwrap());
    by_hardware.configuration = configuration.into();
    rig.choice.take(vec![by_hardware], true).await;
    rig.enroll();
    rig.until("no choice without the hardware", |rig| {
        let status = rig.registry.get(&name("a")).unwrap();
        condition(&status, "ConfigurationPending").is_some_and(|c| c.reason == "HardwareNotReported")
    })
    .await;
    rig.registry.update(&name("a"), |status| {
        status.hardware =
            Some(serde_json::from_value(json!({ "cpu": { "architecture": "amd64" } })).unwrap());
    });
    rig.until("the choice", |rig| rig.selected() == Some(1)).await;
}

#[tokio::test]
async fn an_agents_word_that_cannot_be_kept_is_refused_and_changes_nothing() {
    let rig = Rig::new();
    rig.choice.take(vec![sourced("w.yaml", &kubernetes("v1.34.0"))], true).await;
    rig.enroll();
    rig.until("the choice", |rig| rig.selected() == Some(1)).await;
    crate::store::tests::break_next_write(&rig.store);
    assert!(rig.choice.report(&rig.known(), Some(node("1")), None).await.is_err());
    assert_eq!(rig.choice.selection(&rig.known()).chosen.unwrap().node, None);
    rig.choice.report(&rig.known(), Some(node("1")), None).await.unwrap();
    assert_eq!(rig.choice.selection(&rig.known()).chosen.unwrap().node, Some(node("1")));
}

#[tokio::test]
async fn recreated_store_holds_every_choice() {
    let rig = Rig::new();
    rig.choice.take(vec![sourced("w.yaml", &kubernetes("v1.34.0"))], true).await;
    rig.enroll();
    rig.until("the choice", |rig| rig.selected() == Some(1)).await;
    crate::store::tests::damage(&rig.store, &rig._directory.path().join("pxed.redb"));
    assert!(rig.store.put(Table::Boots, b"a", Vec::new()).await.is_err());
    rig.until("the choice is in the new file", |rig| {
        rig.store.scan(Table::Choices).is_ok_and(|kept| kept.len() == 1)
            && rig.store.scan(Table::Versions).is_ok_and(|kept| kept.len() == 1)
    })
    .await;
}
