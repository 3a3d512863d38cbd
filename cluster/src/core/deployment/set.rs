//! Pure: the MachineSets of a deployment as they must be: a new one, and the changes of existing ones in place (MD5, MD7, MD8).
//! Called by `act`.
//!
//! Version, references and failure domain of a set never change: they decide that it belongs to a template.

use std::collections::BTreeMap;

use bedplate_api::cluster::full::set::{FINALIZER, MachineSetSpec};
use bedplate_api::cluster::full::{MachineDeployment, MachineSet};
use bedplate_api::cluster::part::{TemplateMetadata, annotation, label};
use bedplate_replicas::{DeploymentPlan, Key, Revision};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;

use super::observe::template;
use crate::core::set::in_place::InPlace;
use crate::core::set::machine::Given;
use crate::owner::owner_reference;

/// Annotations of a deployment that its sets do not get.
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "cluster.x-k8s.io/conversion-data",
    annotation::REVISION,
    annotation::REVISION_HISTORY,
    annotation::DESIRED_REPLICAS,
    annotation::MAX_REPLICAS,
];

/// Domain of the annotations of this program. A copy would overwrite the records of the set.
const OWN_DOMAIN: &str = "bedplate.dev/";

/// Maximum number of earlier revisions in the annotation.
const MAX_HISTORY: usize = 100;

/// Returns a new set.
pub fn new(deployment: &MachineDeployment, plan: &DeploymentPlan, name: &Key, replicas: u32) -> MachineSet {
    let spec = &deployment.spec;
    // The name ends with a part that differs for each decision. So two sets of one template have different selectors.
    let suffix = name.0.rsplit_once('-').map_or(name.0.as_str(), |(_, suffix)| suffix);
    let hash = format!("{}-{suffix}", template(&spec.template).hash());
    let mut selector: LabelSelector = deployment.effective_labels().selector;
    selector.match_labels.get_or_insert_default().insert(label::TEMPLATE_HASH.to_owned(), hash.clone());
    let set_spec = MachineSetSpec {
        cluster_name: spec.cluster_name.clone(),
        replicas: Some(i32::try_from(replicas).unwrap_or(i32::MAX)),
        selector: Some(selector),
        template: spec.template.clone(),
        machine_naming: None,
        deletion: None,
    };
    let mut set = MachineSet::new(&name.0, set_spec);
    set.metadata.namespace = deployment.namespace();
    set.metadata.labels = Some(BTreeMap::from([(label::TEMPLATE_HASH.to_owned(), hash)]));
    set.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    set.metadata.owner_references = Some(vec![owner_reference(deployment, true)]);
    in_place(deployment, plan, &mut set, plan.revision);
    set
}

/// Returns an existing set as it must be. Revision: that of the current set; other sets keep their own.
pub fn desired(
    deployment: &MachineDeployment,
    plan: &DeploymentPlan,
    present: &MachineSet,
    revision: Option<Revision>,
) -> MachineSet {
    let mut set = present.clone();
    if let Some(replicas) = plan.scale.get(&Key(present.name_any())) {
        set.spec.replicas = Some(i32::try_from(*replicas).unwrap_or(i32::MAX));
    }
    in_place(deployment, plan, &mut set, revision);
    set
}

fn in_place(
    deployment: &MachineDeployment,
    plan: &DeploymentPlan,
    set: &mut MachineSet,
    revision: Option<Revision>,
) {
    let spec = &deployment.spec;
    let mut labels = deployment.effective_labels().template;
    labels.insert(label::DEPLOYMENT_NAME.to_owned(), deployment.name_any());
    if let Some(hash) = set.labels().get(label::TEMPLATE_HASH) {
        labels.insert(label::TEMPLATE_HASH.to_owned(), hash.clone());
    }
    let annotations = spec.template.metadata.as_ref().and_then(|metadata| metadata.annotations.clone());
    let is_copied = |key: &str| !NOT_COPIED.contains(&key) && !key.starts_with(OWN_DOMAIN);
    let copied = deployment.annotations().iter().filter(|(key, _)| is_copied(key));
    let copied = copied.map(|(key, value)| (key.clone(), value.clone())).collect();
    let change = Given::new(labels.clone(), copied, &[]).change(set.annotations());
    change.write(&mut set.metadata);
    set.spec.template.metadata = Some(TemplateMetadata { labels: Some(labels), annotations });
    set.spec.machine_naming.clone_from(&spec.machine_naming);
    set.spec.deletion.clone_from(&spec.deletion);
    InPlace::of(&spec.template.spec).write(&mut set.spec.template.spec);
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    let replicas = spec.replicas.unwrap_or(0);
    all.insert(annotation::DESIRED_REPLICAS.to_owned(), replicas.to_string());
    all.insert(annotation::MAX_REPLICAS.to_owned(), plan.max_replicas.to_string());
    let is_disabled = plan.disable_creation.contains(&Key(set.name_any()));
    all.insert(annotation::DISABLE_MACHINE_CREATE.to_owned(), is_disabled.to_string());
    if let Some(revision) = revision {
        all.insert(annotation::REVISION.to_owned(), revision.number.to_string());
        if let Some(former) = revision.replaces {
            let history = set.annotations().get(annotation::REVISION_HISTORY).map(String::as_str);
            all.insert(annotation::REVISION_HISTORY.to_owned(), with(history, former));
        }
    }
    set.metadata.annotations.get_or_insert_default().extend(all);
}

/// Returns the earlier revisions with one more, the latest ones only.
fn with(history: Option<&str>, former: u64) -> String {
    let mut all: Vec<String> =
        history.unwrap_or_default().split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect();
    all.push(former.to_string());
    let first = all.len().saturating_sub(MAX_HISTORY);
    all[first..].join(",")
}
