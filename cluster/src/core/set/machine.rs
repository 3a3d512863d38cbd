//! Pure: the Machine of a set, and the fields that its set changes in place (MS7). Labels, annotations, timeouts, taints, gates and
//! `minReadySeconds` reach existing Machines; version, references and failure domain never change. Called by `children` and `act`.

use std::collections::BTreeMap;

use bedplate_api::cluster::full::machine::{
    DEFAULT_NODE_DELETION_TIMEOUT_SECONDS, FINALIZER, MachineDeletion, MachineSpec,
};
use bedplate_api::cluster::full::{Machine, MachineSet};
use bedplate_api::cluster::part::{Gate, Taint, label, label_value};
use kube::ResourceExt;

use super::record::Recorded;
use crate::core::object::{has_all, is_deleting, owner_reference, stable_hash};

/// Annotation of a Machine: hash of the labels and annotations that its set has given it. It shows that one was removed.
pub const PROPAGATED: &str = "bedplate.dev/propagated";

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
pub fn labels(set: &MachineSet) -> BTreeMap<String, String> {
    let mut labels = set.effective_labels().template;
    labels.insert(label::SET_NAME.to_owned(), label_value(&set.name_any()).into_owned());
    if let Some(deployment) = set.labels().get(label::DEPLOYMENT_NAME) {
        labels.insert(label::DEPLOYMENT_NAME.to_owned(), deployment.clone());
    }
    labels
}

/// Returns the annotations of the Machines of a set, and of their objects.
pub fn annotations(set: &MachineSet) -> BTreeMap<String, String> {
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
    metadata.labels = Some(labels(set));
    let mut all = annotations(set);
    all.insert(PROPAGATED.to_owned(), fingerprint(set));
    metadata.annotations = Some(all);
    metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    metadata.owner_references = Some(vec![owner_reference(set, true)]);
    machine
}

/// Change of an existing Machine by its set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Propagation {
    /// Labels and annotations, all that the set gives. None: they stay, as for a deleting Machine.
    pub metadata: Option<Metadata>,
    /// Fields of the spec. None: they are as the set has them.
    pub fields: Option<InPlace>,
}

/// Labels and annotations that a set gives.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// Returns the change of a Machine. None: it is as the set has it.
pub fn propagation(set: &MachineSet, machine: &Machine) -> Option<Propagation> {
    let desired = InPlace::of(&set.spec.template.spec);
    let fields = Some(desired).filter(|desired| !desired.is_same(&InPlace::of(&machine.spec)));
    let mut metadata = given(set);
    metadata.annotations.insert(PROPAGATED.to_owned(), fingerprint(set));
    let is_given =
        has_all(machine.labels(), &metadata.labels) && has_all(machine.annotations(), &metadata.annotations);
    // A deleting Machine gets only the fields that its deletion needs.
    let metadata = (!is_given && !is_deleting(machine)).then_some(metadata);
    (metadata.is_some() || fields.is_some()).then_some(Propagation { metadata, fields })
}

/// Returns labels and annotations of the objects of a Machine.
pub fn given(set: &MachineSet) -> Metadata {
    Metadata { labels: labels(set), annotations: annotations(set) }
}

/// Returns true if a label or an annotation of the set has changed since it reached the Machine.
pub fn is_changed(set: &MachineSet, machine: &Machine) -> bool {
    machine.annotations().get(PROPAGATED) != Some(&fingerprint(set))
}

/// Returns a hash of labels and annotations. It must stay the same in every release: another one causes a write for each Machine.
fn fingerprint(set: &MachineSet) -> String {
    let text = serde_json::to_vec(&(labels(set), annotations(set))).unwrap_or_default();
    format!("{:016x}", stable_hash(&text))
}
