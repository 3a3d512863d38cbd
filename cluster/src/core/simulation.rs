//! A small API server in memory, with the controllers of MachineDeployments and MachineSets.
//!
//! Each test drives it through a rollout. Passes end after a number of writes, as if the controller was killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::full::{Machine, MachineDeployment, MachineSet};
use bedplate_api::cluster::part::{Reference, annotation};
use bedplate_replicas::Key;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json};

use super::api_server::merge;
use super::object::{is_controlled_by, is_deleting};
use super::reference::Lookup;
use super::replica::Own;
use super::set;
use super::set::observe::Template;
use super::set::template::TemplateObject;
use super::{deployment, object};
use crate::owner::owner_reference;

/// The API server.
struct World {
    deployment: MachineDeployment,
    sets: BTreeMap<String, MachineSet>,
    machines: BTreeMap<String, Machine>,
    clones: BTreeMap<Reference, Value>,
    /// Names of all Machines that were ever created.
    created: Vec<String>,
    version: u64,
    writes: usize,
    /// Maximum number of writes of a pass.
    limit: usize,
    now: Timestamp,
}

fn deployment_object(replicas: i32) -> MachineDeployment {
    let reference = |kind: &str| json!({ "apiGroup": "g.io", "kind": kind, "name": "t" });
    from_value(json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
        "metadata": { "name": "md", "namespace": "n", "uid": "md-uid", "resourceVersion": "1", "generation": 1 },
        "spec": { "clusterName": "c", "replicas": replicas,
            "template": { "metadata": { "labels": { "tier": "a" } }, "spec": { "clusterName": "c", "version": "v1.34.0",
                "bootstrap": { "configRef": reference("BootTemplate") }, "infrastructureRef": reference("InfraTemplate") } } } }))
    .unwrap()
}

fn template(kind: &str) -> Template {
    let reference = Reference { api_group: "g.io".into(), kind: kind.into(), name: "t".into() };
    let body = json!({ "spec": { "template": { "metadata": { "labels": { "own": "x" } }, "spec": { "size": 1 } } } });
    Template::Found(Arc::new(TemplateObject::read("g.io/v1", reference, &body).unwrap()))
}

impl World {
    fn new(replicas: i32, limit: usize) -> Self {
        Self {
            deployment: deployment_object(replicas),
            sets: BTreeMap::new(),
            machines: BTreeMap::new(),
            clones: BTreeMap::new(),
            created: Vec::new(),
            version: 1,
            writes: 0,
            limit,
            now: Timestamp::from_second(1_000_000).unwrap(),
        }
    }

    fn stamp(&mut self, metadata: &mut ObjectMeta) {
        self.version += 1;
        metadata.resource_version = Some(self.version.to_string());
        if metadata.uid.is_none() {
            metadata.uid = Some(format!("uid-{}", self.version));
            metadata.creation_timestamp = Some(Time(self.now));
        }
    }

    fn lookups(&self) -> BTreeMap<Reference, Lookup> {
        let found = |value: &Value| Lookup::Found(Arc::new(from_value::<Referenced>(value.clone()).unwrap()));
        self.clones.iter().map(|(reference, value)| (reference.clone(), found(value))).collect()
    }

    fn deployment_seen(&self) -> deployment::observe::Observed {
        let found = Lookup::Found(Arc::default());
        deployment::observe::Observed {
            deployment: Arc::new(self.deployment.clone()),
            is_live: true,
            sets: self.sets.values().cloned().map(Arc::new).collect(),
            machines: self.machines.values().cloned().map(Arc::new).collect(),
            cluster: None,
            refused: BTreeSet::new(),
            templates: vec![("InfraTemplate".to_owned(), found)],
        }
    }

    fn set_seen(&self, name: &str) -> set::observe::Observed {
        set::observe::Observed {
            set: Arc::new(self.sets[name].clone()),
            is_live: true,
            machines: self.machines.values().cloned().map(Arc::new).collect(),
            cluster: None,
            deployment: Some(Arc::new(self.deployment.clone())),
            control_plane: None,
            refused: BTreeSet::new(),
            infrastructure: template("InfraTemplate"),
            bootstrap: Some(template("BootTemplate")),
            clones: self.lookups(),
        }
    }

    /// Runs one pass of each controller, then the controllers of Machines. Returns the number of writes.
    fn pass(&mut self) -> usize {
        let before = self.writes;
        let plan = deployment::act::plan(&self.deployment_seen(), self.now);
        for act in plan.acts.into_iter().take(self.limit) {
            self.writes += 1;
            self.apply_deployment(act);
        }
        for name in self.sets.keys().cloned().collect::<Vec<_>>() {
            let plan = set::act::plan(&self.set_seen(&name), self.now);
            let first = self.writes;
            for act in plan.acts {
                if self.writes - first >= self.limit {
                    break;
                }
                self.writes += 1;
                self.apply_set(&name, act);
            }
            let Some(mut present) = self.sets.remove(&name) else { continue };
            if is_deleting(&present) && present.finalizers().is_empty() {
                continue;
            }
            present.status.get_or_insert_default().observed_generation = present.metadata.generation;
            self.sets.insert(name, present);
        }
        self.machine_controllers();
        self.now = self.now.checked_add(SignedDuration::from_secs(1)).unwrap();
        self.writes - before
    }

    fn apply_deployment(&mut self, act: deployment::act::Act) {
        use deployment::act::Act;
        match act {
            Act::Own(own) => change(&mut self.deployment, &own),
            Act::CreateSet(set) => {
                let mut set = (*set).clone();
                self.stamp(&mut set.metadata);
                assert!(self.sets.insert(set.name_any(), set).is_none(), "a set is made once");
            }
            Act::UpdateSet(set) => {
                let mut set = (*set).clone();
                self.stamp(&mut set.metadata);
                self.sets.insert(set.name_any(), set);
            }
            Act::Adopt(key) => {
                let owner = owner_reference(&self.deployment, true);
                self.sets.get_mut(&key.0).unwrap().metadata.owner_references = Some(vec![owner]);
            }
            Act::DeleteSet(key) => {
                self.sets.get_mut(&key.0).unwrap().metadata.deletion_timestamp = Some(Time(self.now));
            }
        }
    }

    fn apply_set(&mut self, name: &str, act: set::act::Act) {
        use set::act::Act;
        match act {
            Act::CreateClone { reference, mut object } => {
                let mut metadata: ObjectMeta = from_value(object["metadata"].clone()).unwrap();
                self.stamp(&mut metadata);
                object["metadata"] = serde_json::to_value(metadata).unwrap();
                assert!(self.clones.insert(reference, object).is_none(), "an object is made once");
            }
            Act::DeleteClone { reference, .. } => {
                self.clones.remove(&reference).unwrap();
            }
            Act::CreateMachine(machine) => {
                let mut machine = (*machine).clone();
                self.stamp(&mut machine.metadata);
                let objects = std::iter::once(&machine.spec.infrastructure_ref)
                    .chain(&machine.spec.bootstrap.config_ref);
                for reference in objects {
                    assert!(self.clones.contains_key(reference), "the objects of a Machine precede it");
                }
                assert!(
                    self.sets[name].annotations()[annotation::CREATING].contains(&machine.name_any()),
                    "name is recorded"
                );
                self.created.push(machine.name_any());
                assert!(
                    self.machines.insert(machine.name_any(), machine).is_none(),
                    "a Machine is made once"
                );
            }
            Act::Label { reference, metadata } => {
                let object = self.clones.get_mut(&reference).unwrap();
                let mut all: ObjectMeta = from_value(object["metadata"].clone()).unwrap();
                metadata.write(&mut all);
                object["metadata"] = serde_json::to_value(all).unwrap();
            }
            Act::Machine(key, change) => self.change_machine(name, &key, change),
            Act::Own(own) => {
                let mut set = self.sets[name].clone();
                change(&mut set, &own);
                self.stamp(&mut set.metadata);
                self.sets.insert(name.to_owned(), set);
            }
        }
    }

    fn change_machine(&mut self, set: &str, key: &Key, change: set::act::Change) {
        use set::act::Change;
        let machine = self.machines.get_mut(&key.0).unwrap();
        match change {
            Change::Propagate(propagation) => {
                if let Some(metadata) = propagation.metadata {
                    metadata.write(&mut machine.metadata);
                }
                if let Some(fields) = propagation.fields {
                    fields.write(&mut machine.spec);
                }
            }
            Change::Delete => machine.metadata.deletion_timestamp = Some(Time(self.now)),
            Change::Adopt => {
                machine.metadata.owner_references = Some(vec![owner_reference(&self.sets[set], true)]);
            }
            Change::Mark(_) => {}
        }
    }

    /// Machines become available and own their objects. Deleted Machines end with them.
    fn machine_controllers(&mut self) {
        let gone: Vec<Machine> =
            self.machines.values().filter(|machine| is_deleting(*machine)).cloned().collect();
        for machine in gone {
            self.clones.remove(&machine.spec.infrastructure_ref);
            if let Some(config) = &machine.spec.bootstrap.config_ref {
                self.clones.remove(config);
            }
            self.machines.remove(&machine.name_any());
        }
        for machine in self.machines.values_mut() {
            let owner = json!([owner_reference(machine, true)]);
            let objects =
                std::iter::once(&machine.spec.infrastructure_ref).chain(&machine.spec.bootstrap.config_ref);
            for reference in objects {
                self.clones.get_mut(reference).unwrap()["metadata"]["ownerReferences"] = owner.clone();
            }
            let time = "2026-01-01T00:00:00Z";
            let condition = |type_: &str| json!({ "type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": time });
            machine.status = from_value(json!({ "nodeRef": { "name": "n" }, "conditions": [condition("Ready"), condition("Available"), condition("UpToDate")] })).unwrap();
        }
    }

    /// Runs passes until nothing is written.
    fn settle(&mut self) {
        for _ in 0..400 {
            if self.pass() == 0 {
                return self.check();
            }
        }
        panic!("not settled: {:?}", deployment::act::plan(&self.deployment_seen(), self.now).acts);
    }

    fn check(&self) {
        let objects: BTreeSet<&String> = self.clones.keys().map(|reference| &reference.name).collect();
        assert_eq!(objects, self.machines.keys().collect(), "no object without its Machine");
        assert_eq!(self.clones.len(), 2 * self.machines.len());
        let distinct: BTreeSet<&String> = self.created.iter().collect();
        assert_eq!(distinct.len(), self.created.len(), "no name is used twice");
        for set in self.sets.values() {
            assert!(!set.annotations().contains_key(annotation::CREATING), "the record is empty");
        }
    }

    fn versions(&self) -> Vec<&str> {
        self.machines.values().filter_map(|machine| machine.spec.version.as_deref()).collect()
    }
}

const LIMITS: [usize; 5] = [1, 2, 3, 5, usize::MAX];

#[test]
fn md1_rollout_with_a_kill_after_any_write_replaces_all_machines() {
    for limit in LIMITS {
        let mut world = World::new(3, limit);
        world.settle();
        assert_eq!((world.versions(), world.sets.len()), (vec!["v1.34.0"; 3], 1));
        world.deployment.spec.template.spec.version = Some("v1.35.0".to_owned());
        world.settle();
        assert_eq!((world.versions(), world.sets.len()), (vec!["v1.35.0"; 3], 1), "limit {limit}");
        assert_eq!(world.created.len(), 6, "limit {limit}: no Machine was made in vain");
        assert_eq!(world.deployment.annotations()[annotation::REVISION], "2");
    }
}

#[test]
fn ms7_labels_and_fields_reach_machines_in_place() {
    for limit in LIMITS {
        let mut world = World::new(2, limit);
        world.settle();
        let specs: Vec<_> = world.machines.values().map(|machine| machine.spec.clone()).collect();
        let template = &mut world.deployment.spec.template;
        template.metadata =
            Some(from_value(json!({ "labels": { "tier": "b" }, "annotations": { "a": "1" } })).unwrap());
        template.spec.min_ready_seconds = Some(7);
        world.settle();
        for (machine, former) in world.machines.values().zip(specs) {
            assert_eq!((machine.labels()["tier"].as_str(), machine.annotations()["a"].as_str()), ("b", "1"));
            let expected =
                bedplate_api::cluster::full::machine::MachineSpec { min_ready_seconds: Some(7), ..former };
            assert_eq!(machine.spec, expected, "other fields do not change");
        }
        for object in world.clones.values() {
            assert_eq!(
                (&object["metadata"]["labels"]["tier"], &object["metadata"]["labels"]["own"]),
                (&json!("b"), &json!("x"))
            );
        }
        world.deployment.spec.template.metadata = None;
        for machine in world.machines.values_mut() {
            machine.metadata.labels.get_or_insert_default().insert("other".to_owned(), "y".to_owned());
        }
        world.settle();
        for machine in world.machines.values() {
            let (labels, annotations) = (machine.labels(), machine.annotations());
            assert!(
                !labels.contains_key("tier") && !annotations.contains_key("a"),
                "removal reaches Machines"
            );
            assert_eq!(labels["other"], "y", "labels of other writers stay");
        }
        for object in world.clones.values() {
            assert!(object["metadata"]["labels"].get("tier").is_none(), "removal reaches the objects");
            assert_eq!(object["metadata"]["labels"]["own"], "x");
        }
        assert_eq!(world.created.len(), 2);
    }
}

#[test]
fn ms7_half_made_objects_of_a_scaled_down_set_are_removed() {
    for passes in 0..12 {
        let mut world = World::new(2, 1);
        for _ in 0..passes {
            world.pass();
        }
        world.deployment.spec.replicas = Some(0);
        world.settle();
        assert_eq!((world.machines.len(), world.clones.len()), (0, 0), "after {passes} passes");
    }
}

#[test]
fn ms10_deleted_deployment_leaves_nothing() {
    for limit in LIMITS {
        for passes in 0..10 {
            let mut world = World::new(2, limit);
            for _ in 0..passes {
                world.pass();
            }
            world.deployment.metadata.deletion_timestamp = Some(Time(world.now));
            world.settle();
            assert_eq!((world.sets.len(), world.machines.len(), world.clones.len()), (0, 0, 0));
            assert!(world.deployment.finalizers().is_empty());
        }
    }
}

#[test]
fn ms2_settled_state_writes_no_status_twice() {
    let mut world = World::new(2, usize::MAX);
    world.settle();
    let name = world.sets.keys().next().unwrap().clone();
    let observed = world.set_seen(&name);
    let plan = set::act::plan(&observed, world.now);
    let status = set::status::status(&observed, &plan, world.now);
    assert_eq!(
        (status.replicas, status.ready_replicas, status.available_replicas, status.up_to_date_replicas),
        (Some(2), Some(2), Some(2), Some(2))
    );
    world.sets.get_mut(&name).unwrap().status = Some(status.clone());
    let later = world.now.checked_add(SignedDuration::from_hours(1)).unwrap();
    assert_eq!(set::status::status(&world.set_seen(&name), &plan, later), status);
    let observed = world.deployment_seen();
    let plan = deployment::act::plan(&observed, world.now);
    let status = deployment::status::status(&observed, &plan, world.now);
    let shown =
        |type_: &str| object::condition(&status.conditions, type_).map(|condition| condition.status.as_str());
    let expected = [
        ("Available", "True"),
        ("RollingOut", "False"),
        ("ScalingUp", "False"),
        ("ScalingDown", "False"),
        ("MachinesReady", "True"),
        ("MachinesUpToDate", "True"),
        ("Remediating", "False"),
        ("Deleting", "False"),
        ("Paused", "False"),
        ("FieldsSupported", "True"),
    ];
    for (type_, state) in expected {
        assert_eq!(shown(type_), Some(state), "{type_}");
    }
}

#[test]
fn ms1_machine_has_the_labels_and_the_owner_of_its_set() {
    let mut world = World::new(1, usize::MAX);
    world.settle();
    let machine = world.machines.values().next().unwrap();
    let set = world.sets.values().next().unwrap();
    assert!(is_controlled_by(machine, set.meta().uid.as_deref().unwrap()));
    for (key, value) in [
        ("cluster.x-k8s.io/set-name", set.name_any()),
        ("cluster.x-k8s.io/deployment-name", "md".to_owned()),
        ("cluster.x-k8s.io/cluster-name", "c".to_owned()),
        ("tier", "a".to_owned()),
    ] {
        assert_eq!(machine.labels().get(key), Some(&value), "{key}");
    }
    let object = &world.clones[&machine.spec.infrastructure_ref];
    assert_eq!(
        (&object["kind"], &object["apiVersion"], &object["spec"]["size"]),
        (&json!("Infra"), &json!("g.io/v1"), &json!(1))
    );
    let annotations = &object["metadata"]["annotations"];
    assert_eq!(annotations["cluster.x-k8s.io/cloned-from-name"], "t");
    assert_eq!(annotations["cluster.x-k8s.io/cloned-from-groupkind"], "InfraTemplate.g.io");
    assert!(machine.annotations().contains_key(annotation::PROPAGATED));
    let selector = object::selector(&set.effective_labels().selector);
    assert!(object::is_selected(machine, selector.as_ref()), "the set selects its Machine");
}

/// A set that waits for ever because of its template of names must say so in `FieldsSupported`.
#[test]
fn ms8_templates_that_are_reported_are_those_that_are_refused() {
    use bedplate_api::cluster::unsupported::Unsupported;
    use bedplate_replicas::{NameTemplate, NameVariables};
    for (template, is_supported) in [
        ("{{ .random }}", true),
        ("{{ .random }}-{{ .random }}", true),
        ("{{ .cluster.name }}-{{.machineSet.name}}-{{ .random }}", true),
        ("{{ .cluster.name | upper }}-{{ .random }}", false),
        ("{{- .cluster.name -}}-{{ .random }}", false),
        ("{{ .random }}-{{", false),
        ("{{ .random }}-{{ .random", false),
        ("{{ printf }}-{{ .random }}", false),
    ] {
        let mut deployment = deployment_object(1);
        deployment.spec.machine_naming = from_value(json!({ "template": template })).unwrap();
        assert_eq!(deployment.unsupported().is_empty(), is_supported, "{template}");
        let parsed = NameTemplate::parse(template, NameVariables { cluster: "c", set: "s" });
        assert_eq!(parsed.is_ok(), is_supported, "{template}");
    }
}

/// Carries out a change of a set or a deployment itself.
fn change<K: Resource + Serialize + DeserializeOwned>(object: &mut K, own: &Own) {
    let mut next = serde_json::to_value(&*object).unwrap();
    merge(&mut next, &own.patch(object));
    *object = from_value(next).unwrap();
}
