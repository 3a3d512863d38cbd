//! Pure: the taints of the Node of a Machine.
//!
//! Taints of `Always` are set again and removed with the Machine's. Taints of `OnInitialization` are set once: the annotation
//! `taints-from-machine` shows that the Node was initialized. Taints of other programs stay. Called by `node`.

use bedplate_api::cluster::part::{Propagation, Taint as Wanted, annotation};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;

use super::plan::Observed;

/// All taints of a Node.
pub(crate) type NodeTaints = Vec<Taint>;

/// Taint of a Node until its labels are set.
const UNINITIALIZED: (&str, &str) = ("node.cluster.x-k8s.io/uninitialized", "NoSchedule");
/// Taint of a Node whose Machine has an earlier template than its MachineDeployment.
const OUTDATED: (&str, &str) = ("node.cluster.x-k8s.io/outdated-revision", "PreferNoSchedule");

/// Returns the value of the annotation `taints-from-machine`.
pub(crate) fn tracked(taints: &[Wanted]) -> String {
    let always = taints.iter().filter(|taint| taint.propagation == Propagation::Always);
    let mut keys: Vec<String> = always.filter_map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.join(",")
}

/// Returns all taints of a Node, if they change.
pub fn taints(node: &Node, observed: &Observed) -> Option<NodeTaints> {
    let present = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let mut taints = present.clone();
    remove(&mut taints, UNINITIALIZED);
    propagate(
        &mut taints,
        node.annotations().get(annotation::TAINTS_FROM_MACHINE),
        &observed.machine.spec.taints,
    );
    if is_outdated(observed) {
        set(&mut taints, OUTDATED, None);
    } else {
        remove(&mut taints, OUTDATED);
    }
    (taints != present).then_some(taints)
}

fn propagate(taints: &mut NodeTaints, earlier: Option<&String>, wanted: &[Wanted]) {
    let is_initialized = earlier.is_some();
    let named: Vec<String> = wanted.iter().filter_map(key).collect();
    let owned = earlier.map(String::as_str).unwrap_or_default().split(',');
    for (owned_key, effect) in owned.filter(|owned| !named.iter().any(|key| key == owned)).filter_map(parts) {
        remove(taints, (owned_key, effect));
    }
    for taint in wanted {
        let is_due = match taint.propagation {
            Propagation::Always => true,
            Propagation::OnInitialization => !is_initialized,
            Propagation::Unknown => false,
        };
        if let (true, Some(effect)) = (is_due, taint.effect.as_str()) {
            set(taints, (&taint.key, effect), taint.value.clone());
        }
    }
}

/// Returns a taint as the annotation names it. None for a value of a later version.
fn key(taint: &Wanted) -> Option<String> {
    if taint.propagation == Propagation::Unknown {
        return None;
    }
    Some(format!("{}:{}", taint.key, taint.effect.as_str()?))
}

fn parts(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').filter(|(_, effect)| !effect.contains(':'))
}

fn is(taint: &Taint, (key, effect): (&str, &str)) -> bool {
    taint.key == key && taint.effect == effect
}

fn remove(taints: &mut NodeTaints, which: (&str, &str)) {
    taints.retain(|taint| !is(taint, which));
}

fn set(taints: &mut NodeTaints, which: (&str, &str), value: Option<String>) {
    match taints.iter_mut().find(|taint| is(taint, which)) {
        Some(taint) => taint.value = value,
        None => taints.push(Taint {
            key: which.0.to_owned(),
            effect: which.1.to_owned(),
            value,
            time_added: None,
        }),
    }
}

/// Returns true if the MachineSet of the Machine has an earlier template than its MachineDeployment.
fn is_outdated(observed: &Observed) -> bool {
    let (Some(set), Some(deployment)) = (&observed.set, &observed.deployment) else { return false };
    let (set, deployment) = (revision(set.annotations()), revision(deployment.annotations()));
    set.zip(deployment).is_some_and(|(set, deployment)| set < deployment)
}

/// Returns the number of a template. 0 if it has none yet, None if it is not a number.
fn revision(annotations: &std::collections::BTreeMap<String, String>) -> Option<i64> {
    annotations.get(annotation::REVISION).map_or(Some(0), |number| number.parse().ok())
}
