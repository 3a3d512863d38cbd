//! Objects that a change of programs must not replace, and the objects of a cluster that its deletion must not leave.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::site::{CLUSTER, Site};

/// Kinds whose objects end with their cluster. Templates stay: our core does not make the Cluster their owner (docs/reference/core-provider.md).
const KINDS: [&str; 9] = [
    "cluster",
    "kcp",
    "machinedeployment",
    "machineset",
    "clustermachine",
    "machinehealthcheck",
    "kubeadmconfig",
    "bpc",
    "bpm",
];

/// Default that the webhook of upstream's core writes into a Machine. Our core implies it.
const NODE_DELETION_TIMEOUT_SECONDS: u32 = 10;

/// Returns the Machines and MachineSets, by UID, without the fields that a scale changes.
pub(crate) fn kept(site: &Site) -> BTreeMap<String, Value> {
    let fields = |object: &Value| {
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        let mut spec = if object["kind"] == "MachineSet" {
            json!({ "selector": spec["selector"], "template": spec["template"] })
        } else {
            spec.clone()
        };
        if object["kind"] == "Machine" && spec["deletion"]["nodeDeletionTimeoutSeconds"].is_null() {
            spec["deletion"]["nodeDeletionTimeoutSeconds"] = NODE_DELETION_TIMEOUT_SECONDS.into();
        }
        json!({ "name": metadata["name"], "labels": metadata["labels"], "finalizers": metadata["finalizers"],
            "owners": metadata["ownerReferences"], "spec": spec })
    };
    let all = ["machineset", "clustermachine"].map(|kind| site.team.list(kind, "").unwrap());
    let by_uid = |object: &Value| Some((object["metadata"]["uid"].as_str()?.to_owned(), fields(object)));
    all.iter().flatten().filter_map(by_uid).collect()
}

/// Asserts that MachineSets and Machines are unchanged since `before`, and that `machines` of the Machines of then exist.
pub(crate) fn assert_kept(site: &Site, before: &BTreeMap<String, Value>, machines: usize) {
    let now = kept(site);
    let common = before.keys().filter(|uid| now.contains_key(*uid));
    let is_set = |object: &Value| object["spec"]["template"].is_object();
    let (mut sets, mut found) = (0, 0);
    for uid in common {
        assert_eq!(now[uid], before[uid], "{}", site.conditions());
        *(if is_set(&now[uid]) { &mut sets } else { &mut found }) += 1;
    }
    assert_eq!(found, machines, "{before:#?}\n{}", site.conditions());
    assert_eq!(sets, now.values().filter(|object| is_set(object)).count(), "{before:#?}\n{now:#?}");
}

/// Waits until no object of the cluster is left.
pub(crate) fn leaves_nothing(site: &Site) {
    let label = format!("labelSelector=cluster.x-k8s.io/cluster-name={CLUSTER}");
    site.until("no object of the cluster", |site| left(site, &label).is_empty());
}

fn left(site: &Site, label: &str) -> Vec<Value> {
    let of_cluster =
        ["secret", "configmap"].into_iter().flat_map(|kind| site.team.list(kind, label).unwrap());
    KINDS.into_iter().flat_map(|kind| site.team.list(kind, "").unwrap()).chain(of_cluster).collect()
}
