//! The pass over a MachineSet with an API server in memory, named after the rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_api::cluster::full::{Machine, MachineSet};
use bedplate_api::cluster::part::Reference;
use bedplate_api::cluster::part::annotation::{CREATING, PROPAGATED};
use bedplate_engine::write::WriteError;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ApiResource;
use kube::core::GroupVersionKind;
use serde_json::{Value, from_value, json};

use super::act::Act;
use super::observe::{Observed, Template};
use super::pass::reconcile;
use super::write::{Handles, carry_out};
use super::{act, record};
use crate::core::api_server::{ApiServer, CORE, PROVIDER, Write};
use crate::core::reference::Lookup;

fn path(kind: &str, name: &str) -> String {
    format!("{CORE}/{kind}/{name}")
}

fn reference(kind: &str) -> Value {
    json!({ "apiGroup": "g.io", "kind": kind, "name": "t" })
}

/// A server with a Cluster, templates, and a set that is prepared.
fn server(replicas: i32) -> ApiServer {
    let server = ApiServer::default();
    let cluster = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": { "name": "c", "namespace": "ns", "uid": "cluster" }, "spec": {} });
    server.put(&path("clusters", "c"), cluster);
    for kind in ["InfraTemplate", "BootTemplate"] {
        let plural = format!("{}s", kind.to_lowercase());
        let template = json!({ "metadata": { "labels": { "own": "x" } }, "spec": { "size": 1 } });
        let object = json!({ "apiVersion": "g.io/v1", "kind": kind, "metadata": { "name": "t", "namespace": "ns" },
            "spec": { "template": template } });
        server.put(&format!("{PROVIDER}/{plural}/t"), object);
    }
    let owner = json!([{ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": "cluster" }]);
    let set = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet",
        "metadata": { "name": "ms", "namespace": "ns", "uid": "ms-uid", "generation": 1, "ownerReferences": owner,
            "labels": { "cluster.x-k8s.io/cluster-name": "c" }, "finalizers": ["cluster.x-k8s.io/machineset"] },
        "spec": { "clusterName": "c", "replicas": replicas,
            "template": { "metadata": { "labels": { "tier": "a" } }, "spec": { "clusterName": "c", "version": "v1.34.0",
                "bootstrap": { "configRef": reference("BootTemplate") }, "infrastructureRef": reference("InfraTemplate") } } } });
    server.put(&path("machinesets", "ms"), set);
    server
}

/// Runs one pass with stores that are synced.
async fn pass(server: &ApiServer) -> Result<(), WriteError> {
    let world = server.world();
    let Some(set) = world.stores.sets.state().into_iter().next() else { return Ok(()) };
    reconcile(set, world).await.map(drop)
}

/// Runs passes until nothing is written.
async fn settle(server: &ApiServer) {
    for _ in 0..30 {
        drop(server.take());
        let result = pass(server).await;
        let lines = server.lines();
        if lines.is_empty() {
            return result.unwrap();
        }
    }
    panic!("not settled: {:?}", pass(server).await.err().map_or(server.take(), |_| server.take()));
}

fn names(server: &ApiServer, collection: &str) -> Vec<String> {
    let name = |path: &String| path.rsplit('/').next().unwrap().to_owned();
    server.paths(collection).iter().map(name).collect()
}

fn machines(server: &ApiServer) -> Vec<String> {
    names(server, &format!("{CORE}/machines"))
}

fn infrastructures(server: &ApiServer) -> Vec<String> {
    names(server, &format!("{PROVIDER}/infras"))
}

fn boots(server: &ApiServer) -> Vec<String> {
    names(server, &format!("{PROVIDER}/boots"))
}

const SET: &str = "PATCH /apis/cluster.x-k8s.io/v1beta2/namespaces/ns/machinesets/ms";

#[tokio::test]
async fn ms3_scale_up_records_the_name_before_the_objects_and_the_machine() {
    let server = server(1);
    pass(&server).await.unwrap();
    let writes = server.take();
    let lines: Vec<&str> = writes.iter().map(|write| write.line.as_str()).collect();
    assert_eq!(lines, [SET, &format!("POST {PROVIDER}/infras"), &format!("POST {PROVIDER}/boots")]);
    pass(&server).await.unwrap();
    assert_eq!(server.lines(), [SET, &format!("POST {CORE}/machines")]);
    let name = &machines(&server)[0];
    let recorded = writes[0].body["metadata"]["annotations"][CREATING].as_str().unwrap();
    assert!(recorded.contains(name.as_str()), "{recorded}");
    assert_eq!(writes[0].body["metadata"]["uid"], "ms-uid");
    assert!(writes[0].body["metadata"]["resourceVersion"].is_string());
    let object = &writes[1].body;
    assert_eq!(
        (&object["kind"], &object["apiVersion"], &object["spec"]["size"]),
        (&json!("Infra"), &json!("g.io/v1"), &json!(1))
    );
    assert_eq!(object["metadata"]["labels"]["own"], "x");
    assert!(writes.iter().all(|write| write.manager == "bedplate-cluster-core"));
    settle(&server).await;
    let set: MachineSet = from_value(server.get(&path("machinesets", "ms")).unwrap()).unwrap();
    assert!(!set.annotations().contains_key(CREATING), "the record is empty");
    assert_eq!(set.status.unwrap().replicas, Some(1));
}

#[tokio::test]
async fn ms3_kill_after_any_write_makes_no_second_child() {
    for limit in 0..14 {
        let server = server(2);
        server.limit(Some(limit));
        for _ in 0..6 {
            drop(pass(&server).await);
        }
        server.limit(None);
        settle(&server).await;
        let all = [machines(&server), infrastructures(&server), boots(&server)];
        assert_eq!(all[0].len(), 2, "limit {limit}");
        assert!(all.iter().all(|names| *names == all[0]), "limit {limit}: {all:?}");
    }
}

/// The Machine was created and deleted before the set has observed it: its name is still recorded.
#[tokio::test]
async fn ms3_name_of_a_deleted_machine_is_never_used_again() {
    for is_killed in [false, true] {
        let server = server(1);
        for _ in 0..2 {
            pass(&server).await.unwrap();
        }
        let first = machines(&server)[0].clone();
        server.remove(&format!("{PROVIDER}/infras/{first}"));
        if !is_killed {
            server.remove(&format!("{PROVIDER}/boots/{first}"));
        }
        server.remove(&path("machines", &first));
        settle(&server).await;
        let all = [machines(&server), infrastructures(&server), boots(&server)];
        assert_eq!(all[0].len(), 1);
        assert!(all[0] != [first] && all.iter().all(|names| *names == all[0]), "{all:?}");
    }
}

/// A refused Machine must not cost objects of the provider for each attempt.
#[tokio::test]
async fn ms3_refused_machine_keeps_its_name_and_its_objects() {
    let server = server(1);
    server.reject(&format!("POST {CORE}/machines"));
    for _ in 0..3 {
        drop(pass(&server).await);
    }
    drop(server.take());
    for _ in 0..3 {
        drop(pass(&server).await);
    }
    let lines = server.lines();
    let status = format!("{SET}/status");
    let is_expected = |line: &String| *line == status || *line == format!("POST {CORE}/machines");
    assert!(lines.iter().all(is_expected), "{lines:?}");
    assert_eq!((infrastructures(&server).len(), boots(&server).len()), (1, 1));
}

#[tokio::test]
async fn ms2_unchanged_set_causes_no_write() {
    let server = server(2);
    settle(&server).await;
    for _ in 0..3 {
        pass(&server).await.unwrap();
    }
    assert_eq!(server.lines(), [""; 0]);
}

#[tokio::test]
async fn ms6_scale_down_deletes_by_uid_and_version() {
    let server = server(2);
    settle(&server).await;
    server.edit(&path("machinesets", "ms"), |set| set["spec"]["replicas"] = 1.into());
    pass(&server).await.unwrap();
    let writes = server.take();
    let deletions: Vec<_> = writes.iter().filter(|write| write.line.starts_with("DELETE")).collect();
    assert_eq!(deletions.len(), 1, "{writes:?}");
    let given = &deletions[0].body["preconditions"];
    assert!(given["uid"].is_string() && given["resourceVersion"].is_string(), "{given}");
    settle(&server).await;
    assert_eq!(machines(&server).len(), 2, "the Machine has a finalizer");
}

#[tokio::test]
async fn ms3_foreign_object_with_the_recorded_name_is_not_used() {
    let server = server(1);
    server.limit(Some(1));
    drop(pass(&server).await);
    server.limit(None);
    let set: MachineSet = from_value(server.get(&path("machinesets", "ms")).unwrap()).unwrap();
    let name = record::read(set.annotations())[0].name.clone();
    let foreign = format!("{PROVIDER}/infras/{name}");
    let object =
        json!({ "apiVersion": "g.io/v1", "kind": "Infra", "metadata": { "name": name, "namespace": "ns" } });
    server.put(&foreign, object);
    let before = server.get(&foreign);
    settle(&server).await;
    assert_eq!(server.get(&foreign), before, "the object is not changed");
    assert_eq!(machines(&server).len(), 1);
    assert_ne!(machines(&server)[0], name, "another name is used");
}

#[tokio::test]
async fn ms7_scaled_down_set_deletes_objects_without_a_machine() {
    for limit in 1..4 {
        let server = server(1);
        server.limit(Some(limit));
        drop(pass(&server).await);
        server.limit(None);
        server.edit(&path("machinesets", "ms"), |set| set["spec"]["replicas"] = 0.into());
        let is_machine = !machines(&server).is_empty();
        drop(server.take());
        pass(&server).await.unwrap();
        let writes = server.take();
        let mut deletions = writes.iter().filter(|write| write.line.starts_with("DELETE"));
        let is_bound = |write: &Write| write.body["preconditions"]["resourceVersion"].is_string();
        assert!(deletions.all(is_bound), "a Machine of another leader may have adopted it: {writes:?}");
        settle(&server).await;
        assert!(
            !is_machine && infrastructures(&server).is_empty() && boots(&server).is_empty(),
            "limit {limit}"
        );
    }
}

#[tokio::test]
async fn ms10_deleted_set_ends_when_its_machines_are_gone() {
    let server = server(1);
    settle(&server).await;
    server.edit(&path("machinesets", "ms"), |set| {
        set["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    });
    settle(&server).await;
    assert!(server.get(&path("machinesets", "ms")).is_some(), "a Machine is left");
    server.remove(&path("machines", &machines(&server)[0]));
    settle(&server).await;
    assert!(server.get(&path("machinesets", "ms")).is_none());
}

#[tokio::test]
async fn ms1_new_set_gets_its_finalizer_before_any_machine() {
    let server = server(1);
    server.edit(&path("machinesets", "ms"), |set| {
        set["metadata"]["finalizers"] = json!([]);
        set["metadata"]["ownerReferences"] = json!([]);
    });
    pass(&server).await.unwrap();
    let writes = server.take();
    assert_eq!(writes.iter().map(|write| write.line.as_str()).collect::<Vec<_>>(), [SET]);
    let metadata = &writes[0].body["metadata"];
    assert_eq!(metadata["finalizers"], json!(["cluster.x-k8s.io/machineset"]));
    assert_eq!(metadata["ownerReferences"][0]["uid"], "cluster");
    settle(&server).await;
    assert_eq!(machines(&server).len(), 1);
}

#[tokio::test]
async fn ms7_missing_template_is_reported() {
    let server = server(1);
    server.remove(&format!("{PROVIDER}/boottemplates/t"));
    settle(&server).await;
    assert!(machines(&server).is_empty() && infrastructures(&server).is_empty());
    let set = server.get(&path("machinesets", "ms")).unwrap();
    let conditions = set["status"]["conditions"].as_array().unwrap();
    let scaling = conditions.iter().find(|one| one["type"] == "ScalingUp").unwrap();
    assert!(scaling["message"].as_str().unwrap().contains("BootTemplate t does not exist"), "{scaling}");
}

/// A Machine that a health check has marked.
fn marked(server: &ApiServer) -> String {
    let name = machines(server)[0].clone();
    let condition = |type_: &str, reason: &str| {
        json!({ "type": type_, "status": "False", "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" })
    };
    server.edit(&path("machines", &name), |machine| {
        let conditions = [
            condition("Ready", "NotReady"),
            condition("HealthCheckSucceeded", "UnhealthyNode"),
            condition("OwnerRemediated", "WaitingForRemediation"),
            condition("example.org/Other", "Other"),
        ];
        machine["status"] = json!({ "nodeRef": { "name": "n" }, "conditions": conditions });
    });
    name
}

#[tokio::test]
async fn ms6_mark_keeps_conditions_of_other_writers() {
    let server = server(1);
    settle(&server).await;
    let name = marked(&server);
    let before = server.get(&path("machines", &name)).unwrap()["status"]["conditions"].clone();
    pass(&server).await.unwrap();
    let writes = server.take();
    let status = format!("PATCH {}/status", path("machines", &name));
    let mark = writes.iter().find(|write| write.line == status).expect("a mark");
    assert_eq!(mark.manager, "bedplate-cluster-health");
    assert!(mark.body["metadata"]["resourceVersion"].is_string());
    let types: Vec<&Value> =
        mark.body["status"]["conditions"].as_array().unwrap().iter().map(|one| &one["type"]).collect();
    assert_eq!(types, ["HealthCheckSucceeded", "OwnerRemediated"]);
    let after = server.get(&path("machines", &name)).unwrap()["status"]["conditions"].clone();
    for type_ in ["Ready", "HealthCheckSucceeded", "example.org/Other"] {
        let of = |all: &Value| all.as_array().unwrap().iter().find(|one| one["type"] == type_).cloned();
        assert_eq!(of(&after), of(&before), "{type_}");
    }
    settle(&server).await;
    let machine: Machine = from_value(server.get(&path("machines", &name)).unwrap()).unwrap();
    assert!(machine.metadata.deletion_timestamp.is_some(), "the Machine is deleted after its mark");
    assert_eq!(machines(&server).len(), 2, "and has a successor");
}

#[tokio::test]
async fn ms6_mark_of_a_healthy_machine_is_removed() {
    let server = server(1);
    settle(&server).await;
    let name = marked(&server);
    let machine = path("machines", &name);
    // No field manager of this program owns the mark, as after a take-over.
    server.edit(&machine, |machine| machine["status"]["conditions"][1]["status"] = "True".into());
    settle(&server).await;
    let conditions = server.get(&machine).unwrap()["status"]["conditions"].to_string();
    assert!(
        !conditions.contains("OwnerRemediated") && conditions.contains("example.org/Other"),
        "{conditions}"
    );
}

/// Orphan that the selector of the set matches.
fn orphan(server: &ApiServer) -> String {
    let name = machines(server)[0].clone();
    server.edit(&path("machines", &name), |machine| machine["metadata"]["ownerReferences"] = json!([]));
    path("machines", &name)
}

#[tokio::test]
async fn ms5_orphan_is_adopted() {
    let server = server(1);
    settle(&server).await;
    let machine = orphan(&server);
    settle(&server).await;
    assert_eq!(server.get(&machine).unwrap()["metadata"]["ownerReferences"][0]["uid"], "ms-uid");
    assert_eq!(machines(&server).len(), 1);
}

#[tokio::test]
async fn ms5_refused_adoption_does_not_hold_up_the_other_machines() {
    let server = server(1);
    settle(&server).await;
    let machine = orphan(&server);
    server.reject(&format!("PATCH {machine}"));
    for _ in 0..6 {
        drop(pass(&server).await);
    }
    assert_eq!(machines(&server).len(), 2, "a Machine that is not adopted is not counted");
    let set = server.get(&path("machinesets", "ms")).unwrap();
    assert_eq!(set["status"]["replicas"], 1);
}

#[tokio::test]
async fn ms2_refused_deletion_does_not_hold_up_creations() {
    let server = server(1);
    settle(&server).await;
    let name = marked(&server);
    server.reject(&format!("DELETE {}", path("machines", &name)));
    server.edit(&path("machinesets", "ms"), |set| set["spec"]["replicas"] = 2.into());
    for _ in 0..8 {
        drop(pass(&server).await);
    }
    assert_eq!(machines(&server).len(), 2);
    let set: MachineSet = from_value(server.get(&path("machinesets", "ms")).unwrap()).unwrap();
    assert!(!set.annotations().contains_key(CREATING), "the record shrinks");
}

#[tokio::test]
async fn ms1_owner_of_a_former_cluster_is_replaced() {
    let server = server(0);
    server.edit(&path("machinesets", "ms"), |set| {
        set["metadata"]["ownerReferences"][0]["uid"] = "former".into();
    });
    settle(&server).await;
    let owners = server.get(&path("machinesets", "ms")).unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!(owners.as_array().unwrap().iter().map(|one| &one["uid"]).collect::<Vec<_>>(), ["cluster"]);
}

#[tokio::test]
async fn ms7_removed_label_vanishes_and_other_labels_stay() {
    let server = server(1);
    settle(&server).await;
    let machine = path("machines", &machines(&server)[0]);
    server.edit(&machine, |machine| machine["metadata"]["labels"]["other"] = "y".into());
    server.edit(&path("machinesets", "ms"), |set| {
        set["spec"]["template"]["metadata"] = json!({ "labels": { "rack": "1" } });
        set["spec"]["template"]["spec"]["minReadySeconds"] = 7.into();
    });
    settle(&server).await;
    let found = server.get(&machine).unwrap();
    let labels = &found["metadata"]["labels"];
    assert_eq!(
        (&labels["rack"], &labels["other"], &labels["tier"]),
        (&json!("1"), &json!("y"), &Value::Null)
    );
    assert_eq!(found["spec"]["minReadySeconds"], 7);
}

#[tokio::test]
async fn ms7_gates_taints_and_timeouts_of_other_writers_stay() {
    let server = server(1);
    let taint = |key: &str| json!({ "key": key, "effect": "NoSchedule", "propagation": "Always" });
    let gate = |type_: &str| json!({ "conditionType": type_ });
    let template = |change: Value| {
        server.edit(&path("machinesets", "ms"), |set| {
            let spec = set["spec"]["template"]["spec"].as_object_mut().unwrap();
            spec.extend(change.as_object().unwrap().clone());
        });
    };
    template(
        json!({ "readinessGates": [gate("a/Own"), gate("a/Gone")], "taints": [taint("own"), taint("gone")],
        "deletion": { "nodeDrainTimeoutSeconds": 5 }, "minReadySeconds": 3 }),
    );
    settle(&server).await;
    let machine = path("machines", &machines(&server)[0]);
    server.edit(&machine, |machine| {
        let spec = &mut machine["spec"];
        spec["readinessGates"].as_array_mut().unwrap().insert(0, gate("b/Other"));
        spec["taints"].as_array_mut().unwrap().push(taint("other"));
        spec["deletion"]["nodeVolumeDetachTimeoutSeconds"] = 7.into();
    });
    settle(&server).await;
    let present = server.get(&machine).unwrap()["spec"].clone();
    assert_eq!(present["readinessGates"], json!([gate("b/Other"), gate("a/Own"), gate("a/Gone")]));
    template(
        json!({ "readinessGates": [gate("a/New"), gate("a/Own")], "taints": [taint("own")], "deletion": null,
        "minReadySeconds": null }),
    );
    settle(&server).await;
    let spec = server.get(&machine).unwrap()["spec"].clone();
    assert_eq!(spec["readinessGates"], json!([gate("b/Other"), gate("a/Own"), gate("a/New")]));
    assert_eq!(spec["taints"], json!([taint("own"), taint("other")]));
    assert_eq!(spec["deletion"], json!({ "nodeVolumeDetachTimeoutSeconds": 7 }));
    assert_eq!(spec["minReadySeconds"], Value::Null);
}

#[tokio::test]
async fn ms7_machine_that_is_deleted_gets_new_timeouts_only() {
    let server = server(1);
    settle(&server).await;
    let machine = path("machines", &machines(&server)[0]);
    server.edit(&machine, |machine| machine["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    server.edit(&path("machinesets", "ms"), |set| {
        let spec = &mut set["spec"]["template"]["spec"];
        spec["readinessGates"] = json!([{ "conditionType": "a/B" }]);
        spec["deletion"] = json!({ "nodeDrainTimeoutSeconds": 5 });
        set["spec"]["replicas"] = 0.into();
    });
    settle(&server).await;
    let spec = server.get(&machine).unwrap()["spec"].clone();
    assert_eq!(spec["deletion"], json!({ "nodeDrainTimeoutSeconds": 5 }));
    assert_eq!(spec["readinessGates"], Value::Null);
}

/// Returns the message of a condition of the set.
fn message(server: &ApiServer, type_: &str) -> String {
    let set = server.get(&path("machinesets", "ms")).unwrap();
    let conditions = set["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|one| one["type"] == type_);
    found.map_or_else(String::new, |one| one["message"].as_str().unwrap().to_owned())
}

/// Returns the message of condition `ScalingUp`.
fn scaling_up(server: &ApiServer) -> String {
    message(server, "ScalingUp")
}

#[tokio::test]
async fn ms1_refused_finalizer_does_not_delay_the_status() {
    let server = server(1);
    server.edit(&path("machinesets", "ms"), |set| set["metadata"]["finalizers"] = json!([]));
    server.reject_as(SET, (403, "Forbidden"));
    assert!(pass(&server).await.is_err());
    let expected = "Scaling up from 0 to 1 replicas is blocked because:\n* finalizer cannot be added: 403: Forbidden; permit it";
    assert_eq!(scaling_up(&server), expected);
    assert_eq!(machines(&server), [""; 0], "no Machine is made before the finalizer");
    drop(server.take());
    assert!(pass(&server).await.is_err());
    assert_eq!(server.lines(), [SET], "the status is written once");
}

#[tokio::test]
async fn ms10_refused_removal_of_the_finalizer_is_shown() {
    let server = server(0);
    settle(&server).await;
    server.edit(&path("machinesets", "ms"), |set| {
        set["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    });
    server.reject(SET);
    assert!(pass(&server).await.is_err());
    let expected = "Deletion is blocked because:\n* finalizer cannot be removed: Invalid; permit it";
    assert_eq!(message(&server, "Deleting"), expected);
}

#[tokio::test]
async fn ms7_refused_object_is_named_with_cause_and_next_step() {
    for (collection, answer, expected) in [
        ("infras", (422, "Invalid"), "is refused: Invalid; correct InfraTemplate t"),
        ("infras", (403, "Forbidden"), "is refused: 403: Forbidden; correct the role, quota or policy"),
        (
            "infras",
            (404, "NotFound"),
            "is refused: its kind or its namespace does not exist; install its provider",
        ),
        ("boots", (422, "Invalid"), "is refused: Invalid; correct BootTemplate t"),
    ] {
        let server = server(1);
        server.reject_as(&format!("POST {PROVIDER}/{collection}"), answer);
        for _ in 0..3 {
            assert!(pass(&server).await.is_err());
        }
        let message = scaling_up(&server);
        assert!(message.contains(expected) && message.contains("* creation of "), "{message}");
        drop(server.take());
        assert!(pass(&server).await.is_err());
        assert_eq!(server.lines(), [format!("POST {PROVIDER}/{collection}")], "the status is written once");
    }
}

#[tokio::test]
async fn ms3_refused_machine_is_named_with_cause_and_next_step() {
    let server = server(1);
    server.reject(&format!("POST {CORE}/machines"));
    for _ in 0..4 {
        drop(pass(&server).await);
    }
    let message = scaling_up(&server);
    assert!(message.contains("creation of Machine ms-"), "{message}");
    assert!(message.contains("is refused: Invalid; correct spec.template of the MachineSet"), "{message}");
}

/// The watch of the kind is not part of these tests: the object is given.
#[tokio::test]
async fn ms7_label_of_an_object_is_written_once_without_the_machine() {
    let server = server(1);
    settle(&server).await;
    let name = machines(&server)[0].clone();
    let object = format!("{PROVIDER}/infras/{name}");
    server.edit(&path("machinesets", "ms"), |set| {
        set["spec"]["template"]["metadata"] = json!({ "labels": { "rack": "1" } });
    });
    let observed = |server: &ApiServer| {
        let found = Arc::new(from_value(server.get(&object).unwrap()).unwrap());
        let of = Reference { api_group: "g.io".to_owned(), kind: "Infra".to_owned(), name: name.clone() };
        Observed {
            set: Arc::new(from_value(server.get(&path("machinesets", "ms")).unwrap()).unwrap()),
            is_live: false,
            machines: server.all::<Machine>(&format!("{CORE}/machines")).into_iter().map(Arc::new).collect(),
            cluster: None,
            deployment: None,
            control_plane: None,
            refused: std::collections::BTreeSet::new(),
            infrastructure: Template::Absent,
            bootstrap: None,
            clones: BTreeMap::from([(of, Lookup::Found(found))]),
        }
    };
    let first = observed(&server);
    let plan = act::plan(&first, Timestamp::now());
    let label = plan.acts.iter().find(|act| matches!(act, Act::Label { .. })).expect("a change of labels");
    let Act::Label { reference, .. } = label else { panic!() };
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("g.io", "v1", "Infra"));
    let handles = Handles { resources: BTreeMap::from([(reference.clone(), resource)]) };
    carry_out(&first, &handles, label, &server.world()).await.unwrap();
    let labels = server.get(&object).unwrap()["metadata"]["labels"].clone();
    assert_eq!((&labels["rack"], &labels["own"], &labels["tier"]), (&json!("1"), &json!("x"), &Value::Null));
    assert!(server.get(&object).unwrap()["metadata"]["annotations"][PROPAGATED].is_string());
    let again = act::plan(&observed(&server), Timestamp::now());
    assert!(!again.acts.iter().any(|act| matches!(act, Act::Label { .. })), "{:?}", again.acts);
}
