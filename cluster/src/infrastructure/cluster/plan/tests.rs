//! Owner, endpoint, failure domains and deletion of a BedplateCluster.

use serde_json::{Value, json};

use super::*;

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn observed(metadata: &Value, spec: &Value, cluster: Option<&Value>) -> Observed {
    let mut value = json!({ "metadata": { "name": "c", "namespace": "team-a", "generation": 1, "finalizers": [FINALIZER],
        "annotations": { "clusterctl.cluster.x-k8s.io/block-move": "true" } }, "spec": spec });
    value["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    let cluster = cluster.map(|spec| {
        let value = json!({ "metadata": { "name": "c", "namespace": "team-a" }, "spec": spec });
        Arc::new(serde_json::from_value(value).unwrap())
    });
    Observed {
        object: Arc::new(serde_json::from_value(value).unwrap()),
        cluster,
        machines: Vec::new(),
        domains: BTreeSet::new(),
    }
}

fn status(observed: &Observed) -> BedplateClusterStatus {
    match plan(observed, now()) {
        Act::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

fn ready(status: &BedplateClusterStatus) -> (&str, &str) {
    let found = status.conditions.iter().find(|condition| condition.type_ == "Ready").unwrap();
    (&found.status, &found.reason)
}

#[test]
fn k3_nothing_is_done_without_an_owner() {
    let found = status(&observed(&json!({ "finalizers": [] }), &json!({}), None));
    assert_eq!(ready(&found), ("False", "WaitingForOwner"));
    assert_eq!(found.initialization, None);
    let managed = json!({ "annotations": { "cluster.x-k8s.io/managed-by": "other" } });
    assert_eq!(plan(&observed(&managed, &json!({}), Some(&json!({}))), now()), Act::None);
}

#[test]
fn k4_endpoint_of_either_object_makes_it_provisioned() {
    let endpoint = json!({ "controlPlaneEndpoint": { "host": "10.7.0.9", "port": 6443 } });
    let (none, empty) = (json!({}), json!({ "controlPlaneEndpoint": { "host": "", "port": 0 } }));
    for (own, of_cluster, is_provisioned) in
        [(&endpoint, &none, true), (&none, &endpoint, true), (&none, &empty, false), (&none, &none, false)]
    {
        let mut seen = observed(&json!({}), own, Some(of_cluster));
        seen.domains = ["z-1".to_owned(), "z-2".to_owned()].into();
        let found = status(&seen);
        let expected = if is_provisioned { ("True", "Provisioned") } else { ("False", "EndpointMissing") };
        assert_eq!(ready(&found), expected, "{own} {of_cluster}");
        assert_eq!(found.initialization.is_some(), is_provisioned);
        assert_eq!(found.failure_domains.len(), 2);
        // A status that is written is not written again.
        let mut next = (*seen.object).clone();
        next.status = Some(found);
        seen.object = Arc::new(next);
        assert_eq!(plan(&seen, now()), Act::None);
    }
}

#[test]
fn finalizer_comes_first_and_goes_last() {
    let owner = json!({});
    let begin = observed(&json!({ "finalizers": [] }), &json!({}), Some(&owner));
    assert_eq!(plan(&begin, now()), Act::AddFinalizer);
    let unmarked = observed(&json!({ "annotations": {} }), &json!({}), Some(&owner));
    assert_eq!(plan(&unmarked, now()), Act::BlockMove);
    let mut deleted =
        observed(&json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), &json!({}), Some(&owner));
    deleted.machines = vec!["w-1".to_owned()];
    assert_eq!(ready(&status(&deleted)), ("False", "Deleting"));
    deleted.machines.clear();
    assert_eq!(plan(&deleted, now()), Act::RemoveFinalizer);
}

#[test]
fn paused_cluster_is_left_as_it_is() {
    let paused = observed(&json!({ "finalizers": [] }), &json!({}), Some(&json!({ "paused": true })));
    let found = status(&paused);
    let types: Vec<_> =
        found.conditions.iter().map(|one| (one.type_.as_str(), one.status.as_str())).collect();
    assert_eq!(types, [("Paused", "True")]);
}
