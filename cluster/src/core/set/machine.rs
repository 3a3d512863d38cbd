//! Pure: the Machine of a set, and the fields that its set changes in place (MS7). Labels, annotations, timeouts, taints, gates and
//! `minReadySeconds` reach existing Machines; version, references and failure domain never change. Called by `children` and `act`.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_api::cluster::full::machine::FINALIZER;
use bedplate_api::cluster::full::{Machine, MachineSet};
use bedplate_api::cluster::part::annotation::PROPAGATED;
use bedplate_api::cluster::part::{label, label_value};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::in_place::InPlace;
use super::record::Recorded;
use crate::core::object::{has_all, is_deleting, stable_hash};
use crate::owner::owner_reference;

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
    let given = given_to_machine(set);
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
    let (own, present) = (InPlace::of(&set.spec.template.spec), InPlace::of(&machine.spec));
    let earlier = earlier(machine.annotations());
    let earlier: BTreeSet<String> = keys(&earlier, "spec").map(str::to_owned).collect();
    let mut next = own.over(&present, &earlier);
    if is_deleting(machine) {
        next = InPlace { deletion: next.deletion, ..present.clone() };
    }
    let fields = Some(next).filter(|next| *next != present);
    let given = given_to_machine(set);
    let is_given =
        has_all(machine.labels(), &given.labels) && has_all(machine.annotations(), &given.annotations);
    // A deleting Machine gets only the timeouts of its deletion.
    let metadata = (!is_given && !is_deleting(machine)).then(|| given.change(machine.annotations()));
    (metadata.is_some() || fields.is_some()).then_some(Propagation { metadata, fields })
}

/// Returns the change of an object of a Machine. None: it is as the set has it. Its record decides about annotations: they are not read.
pub(crate) fn label_change(set: &MachineSet, object: &ObjectMeta) -> Option<Metadata> {
    let (given, empty) = (given(set), BTreeMap::new());
    let labels = object.labels.as_ref().unwrap_or(&empty);
    let annotations = object.annotations.as_ref().unwrap_or(&empty);
    let is_given =
        has_all(labels, &given.labels) && annotations.get(PROPAGATED) == given.annotations.get(PROPAGATED);
    (!is_given).then(|| given.change(annotations))
}

/// Returns labels and annotations of the objects of a Machine.
pub fn given(set: &MachineSet) -> Given {
    Given::new(labels(set), annotations(set), &[])
}

/// Returns labels and annotations of a Machine: those of its objects, with a record that names the fields of the spec too.
fn given_to_machine(set: &MachineSet) -> Given {
    Given::new(labels(set), annotations(set), &InPlace::of(&set.spec.template.spec).keys())
}

/// Returns the value of [`PROPAGATED`]. It must stay the same in every release: another one causes a write for each Machine.
fn record(
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    spec: &[String],
) -> String {
    let text = serde_json::to_vec(&(labels, annotations)).unwrap_or_default();
    let keys = |of: &BTreeMap<String, String>| of.keys().cloned().collect::<Vec<_>>();
    let hash = format!("{:016x}", stable_hash(&text));
    let mut record = json!({ "annotations": keys(annotations), "hash": hash, "labels": keys(labels) });
    if !spec.is_empty() {
        record["spec"] = json!(spec);
    }
    record.to_string()
}

/// Returns the record of an object with these annotations.
fn earlier(present: &BTreeMap<String, String>) -> Value {
    let text = present.get(PROPAGATED).map_or("", String::as_str);
    serde_json::from_str(text).unwrap_or_default()
}

/// Returns the keys that a record has in a field.
fn keys<'a>(record: &'a Value, field: &str) -> impl Iterator<Item = &'a str> {
    record.get(field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

impl Given {
    /// Adds the record to labels and annotations. `spec`: keys of fields of the spec.
    pub fn new(
        labels: BTreeMap<String, String>,
        mut annotations: BTreeMap<String, String>,
        spec: &[String],
    ) -> Self {
        annotations.insert(PROPAGATED.to_owned(), record(&labels, &annotations, spec));
        Self { labels, annotations }
    }

    /// Returns the change of an object with these annotations. Keys that an earlier change has recorded, and that are not given now, are removed.
    pub fn change(self, present: &BTreeMap<String, String>) -> Metadata {
        let earlier = earlier(present);
        let change = |given: BTreeMap<String, String>, field: &str| {
            let keys = keys(&earlier, field).map(|key| (key.to_owned(), None));
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
