//! Pure: the Machine of a set, and the fields that its set changes in place (MS7). Labels, annotations, timeouts, taints, gates and
//! `minReadySeconds` reach existing Machines; version, references and failure domain never change. Called by `children` and `act`.

use std::collections::BTreeMap;

use bedplate_api::cluster::full::machine::{
    DEFAULT_NODE_DELETION_TIMEOUT_SECONDS, FINALIZER, MachineDeletion, MachineSpec,
};
use bedplate_api::cluster::full::{Machine, MachineSet};
use bedplate_api::cluster::part::annotation::PROPAGATED;
use bedplate_api::cluster::part::{Gate, Taint, label, label_value};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::record::Recorded;
use crate::core::object::{has_all, is_deleting, stable_hash};
use crate::owner::owner_reference;

/// Fields of a Machine that its set changes in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InPlace {
    /// `spec.minReadySeconds`.
    pub min_ready_seconds: Option<i32>,
    /// `spec.readinessGates`.
    pub readiness_gates: Vec<Gate>,
    /// `spec.deletion`.
    pub deletion: Option<MachineDeletion>,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
}

impl InPlace {
    /// Returns the fields of a spec.
    pub fn of(spec: &MachineSpec) -> Self {
        Self {
            min_ready_seconds: spec.min_ready_seconds,
            readiness_gates: spec.readiness_gates.clone(),
            deletion: spec.deletion.clone(),
            taints: spec.taints.clone(),
        }
    }

    /// Writes the fields into a spec.
    pub fn write(&self, spec: &mut MachineSpec) {
        spec.min_ready_seconds = self.min_ready_seconds;
        spec.readiness_gates.clone_from(&self.readiness_gates);
        spec.deletion.clone_from(&self.deletion);
        spec.taints.clone_from(&self.taints);
    }

    /// Returns true if both have the same effect. Upstream's webhook writes the default of the deletion of the Node.
    fn is_same(&self, other: &Self) -> bool {
        let deletion = |of: &Self| {
            let deletion = of.deletion.clone().unwrap_or_default();
            (
                deletion.node_drain_timeout_seconds,
                deletion.node_volume_detach_timeout_seconds,
                deletion.node_deletion_timeout_seconds.unwrap_or(DEFAULT_NODE_DELETION_TIMEOUT_SECONDS),
            )
        };
        (self.min_ready_seconds, &self.readiness_gates, &self.taints, deletion(self))
            == (other.min_ready_seconds, &other.readiness_gates, &other.taints, deletion(other))
    }
}

/// Returns the labels of the Machines of a set, and of their objects.
fn labels(set: &MachineSet) -> BTreeMap<String, String> {
    let mut labels = set.effective_labels().template;
    labels.insert(label::SET_NAME.to_owned(), label_value(&set.name_any()).into_owned());
    if let Some(deployment) = set.labels().get(label::DEPLOYMENT_NAME) {
        labels.insert(label::DEPLOYMENT_NAME.to_owned(), deployment.clone());
    }
    labels
}

/// Returns the annotations of the Machines of a set, and of their objects.
fn annotations(set: &MachineSet) -> BTreeMap<String, String> {
    let metadata = set.spec.template.metadata.as_ref();
    metadata.and_then(|metadata| metadata.annotations.clone()).unwrap_or_default()
}

/// Returns the Machine of a recorded name.
pub fn desired(set: &MachineSet, recorded: &Recorded) -> Machine {
    let mut spec = set.spec.template.spec.clone();
    spec.cluster_name.clone_from(&set.spec.cluster_name);
    spec.infrastructure_ref = recorded.infrastructure();
    spec.bootstrap.config_ref = recorded.bootstrap();
    spec.provider_id = None;
    let mut machine = Machine::new(&recorded.name, spec);
    let metadata = &mut machine.metadata;
    metadata.namespace = set.namespace();
    let given = given(set);
    metadata.labels = Some(given.labels);
    metadata.annotations = Some(given.annotations);
    metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    metadata.owner_references = Some(vec![owner_reference(set, true)]);
    machine
}

/// Labels and annotations that an owner gives: a set to its Machines and their objects, a deployment to its sets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Given {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations, with [`PROPAGATED`].
    pub annotations: BTreeMap<String, String>,
}

/// Change of labels and annotations. None: the key is removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    /// Labels.
    pub labels: BTreeMap<String, Option<String>>,
    /// Annotations.
    pub annotations: BTreeMap<String, Option<String>>,
}

/// Change of an existing Machine by its set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Propagation {
    /// Labels and annotations. None: they stay, as for a deleting Machine.
    pub metadata: Option<Metadata>,
    /// Fields of the spec. None: they are as the set has them.
    pub fields: Option<InPlace>,
}

/// Returns the change of a Machine. None: it is as the set has it.
pub fn propagation(set: &MachineSet, machine: &Machine) -> Option<Propagation> {
    let desired = InPlace::of(&set.spec.template.spec);
    let fields = Some(desired).filter(|desired| !desired.is_same(&InPlace::of(&machine.spec)));
    let given = given(set);
    let is_given =
        has_all(machine.labels(), &given.labels) && has_all(machine.annotations(), &given.annotations);
    // A deleting Machine gets only the fields that its deletion needs.
    let metadata = (!is_given && !is_deleting(machine)).then(|| given.change(machine.annotations()));
    (metadata.is_some() || fields.is_some()).then_some(Propagation { metadata, fields })
}

/// Returns the change of an object of a Machine. None: it is as the set has it. Its record decides about annotations: they are not read.
pub fn label_change(set: &MachineSet, object: &ObjectMeta) -> Option<Metadata> {
    let (given, empty) = (given(set), BTreeMap::new());
    let labels = object.labels.as_ref().unwrap_or(&empty);
    let annotations = object.annotations.as_ref().unwrap_or(&empty);
    let is_given =
        has_all(labels, &given.labels) && annotations.get(PROPAGATED) == given.annotations.get(PROPAGATED);
    (!is_given).then(|| given.change(annotations))
}

/// Returns labels and annotations of a Machine and of its objects.
pub fn given(set: &MachineSet) -> Given {
    Given::new(labels(set), annotations(set))
}

/// Returns the value of [`PROPAGATED`]. It must stay the same in every release: another one causes a write for each Machine.
fn record(labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> String {
    let text = serde_json::to_vec(&(labels, annotations)).unwrap_or_default();
    let keys = |of: &BTreeMap<String, String>| of.keys().cloned().collect::<Vec<_>>();
    let hash = format!("{:016x}", stable_hash(&text));
    json!({ "annotations": keys(annotations), "hash": hash, "labels": keys(labels) }).to_string()
}

impl Given {
    /// Adds the record to labels and annotations.
    pub fn new(labels: BTreeMap<String, String>, mut annotations: BTreeMap<String, String>) -> Self {
        annotations.insert(PROPAGATED.to_owned(), record(&labels, &annotations));
        Self { labels, annotations }
    }

    /// Returns the change of an object with these annotations. Keys that an earlier change has recorded, and that are not given now, are removed.
    pub fn change(self, present: &BTreeMap<String, String>) -> Metadata {
        let text = present.get(PROPAGATED).map_or("", String::as_str);
        let earlier: Value = serde_json::from_str(text).unwrap_or_default();
        let change = |given: BTreeMap<String, String>, field: &str| {
            let keys = earlier.get(field).and_then(Value::as_array).into_iter().flatten();
            let keys = keys.filter_map(Value::as_str).map(|key| (key.to_owned(), None));
            let given = given.into_iter().map(|(key, value)| (key, Some(value)));
            keys.chain(given).collect()
        };
        Metadata {
            labels: change(self.labels, "labels"),
            annotations: change(self.annotations, "annotations"),
        }
    }
}

impl Metadata {
    /// Carries out the change.
    pub fn write(self, object: &mut ObjectMeta) {
        write(self.labels, object.labels.get_or_insert_default());
        write(self.annotations, object.annotations.get_or_insert_default());
    }

    /// Returns the change as a merge patch of the metadata.
    pub fn patch(&self) -> Value {
        json!({ "labels": self.labels, "annotations": self.annotations })
    }
}

fn write(change: BTreeMap<String, Option<String>>, present: &mut BTreeMap<String, String>) {
    for (key, value) in change {
        match value {
            Some(value) => drop(present.insert(key, value)),
            None => drop(present.remove(&key)),
        }
    }
}
