//! The pass over a MachineDeployment, with that over its sets, on an API server in memory. Named after the rules.

use bedplate_api::cluster::full::{Machine, MachineDeployment, MachineSet};
use bedplate_api::cluster::part::annotation;
use kube::ResourceExt;
use serde_json::{Value, from_value, json};

use crate::core::api_server::{ApiServer, CORE, PROVIDER};
use crate::core::{deployment, set};

const DEPLOYMENT: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/ns/machinedeployments/md";

fn server(replicas: i32) -> ApiServer {
    let server = ApiServer::default();
    let cluster = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": { "name": "c", "namespace": "ns", "uid": "cluster" }, "spec": {} });
    server.put(&format!("{CORE}/clusters/c"), cluster);
    for kind in ["InfraTemplate", "BootTemplate"] {
        let object = json!({ "apiVersion": "g.io/v1", "kind": kind, "metadata": { "name": "t", "namespace": "ns" },
            "spec": { "template": { "spec": { "size": 1 } } } });
        server.put(&format!("{PROVIDER}/{}s/t", kind.to_lowercase()), object);
    }
    let reference = |kind: &str| json!({ "apiGroup": "g.io", "kind": kind, "name": "t" });
    let deployment = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
        "metadata": { "name": "md", "namespace": "ns", "uid": "md-uid", "generation": 1 },
        "spec": { "clusterName": "c", "replicas": replicas,
            "template": { "metadata": { "labels": { "tier": "a" } }, "spec": { "clusterName": "c", "version": "v1.34.0",
                "bootstrap": { "configRef": reference("BootTemplate") }, "infrastructureRef": reference("InfraTemplate") } } } });
    server.put(DEPLOYMENT, deployment);
    server
}

/// Runs one pass of each controller. Returns true if no pass failed.
async fn pass(server: &ApiServer) -> bool {
    let mut is_done = true;
    let world = server.world();
    for object in world.stores.deployments.state() {
        is_done &= deployment::pass::reconcile(object, world.clone()).await.is_ok();
    }
    for name in server.paths(&format!("{CORE}/machinesets")) {
        let world = server.world();
        let found = world.stores.sets.state().into_iter().find(|set| name.ends_with(&set.name_any()));
        if let Some(object) = found {
            is_done &= set::pass::reconcile(object, world).await.is_ok();
        }
    }
    machine_controllers(server);
    is_done
}

/// Machines become available. Deleted ones end with their objects.
fn machine_controllers(server: &ApiServer) {
    for path in server.paths(&format!("{CORE}/machines")) {
        let machine: Machine = from_value(server.get(&path).unwrap()).unwrap();
        if machine.metadata.deletion_timestamp.is_some() {
            server.remove(&path);
            for plural in ["infras", "boots"] {
                server.remove(&format!("{PROVIDER}/{plural}/{}", machine.name_any()));
            }
        } else if machine.status.is_none() {
            let condition = |type_: &str| {
                json!({ "type": type_, "status": "True", "reason": "R", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z" })
            };
            let conditions = ["Ready", "Available", "UpToDate"].map(condition);
            server.edit(&path, |machine| {
                machine["status"] = json!({ "nodeRef": { "name": "n" }, "conditions": conditions });
            });
        }
    }
}

async fn settle(server: &ApiServer) {
    for _ in 0..80 {
        drop(server.take());
        let is_done = pass(server).await;
        if server.lines().is_empty() {
            assert!(is_done, "a pass failed without a write");
            return;
        }
    }
    panic!("not settled: {:?}", server.take());
}

fn machines(server: &ApiServer) -> Vec<Machine> {
    server.all(&format!("{CORE}/machines"))
}

fn sets(server: &ApiServer) -> Vec<MachineSet> {
    server.all(&format!("{CORE}/machinesets"))
}

fn versions(server: &ApiServer) -> Vec<String> {
    machines(server).into_iter().filter_map(|machine| machine.spec.version).collect()
}

fn change_version(server: &ApiServer) {
    server.edit(DEPLOYMENT, |object| {
        object["spec"]["template"]["spec"]["version"] = "v1.35.0".into();
        object["metadata"]["generation"] = 2.into();
    });
}

#[tokio::test]
async fn md1_rollout_replaces_all_machines() {
    let server = server(2);
    settle(&server).await;
    assert_eq!((versions(&server), sets(&server).len()), (vec!["v1.34.0".to_owned(); 2], 1));
    change_version(&server);
    settle(&server).await;
    assert_eq!(versions(&server), ["v1.35.0"; 2]);
    let deployment: MachineDeployment = from_value(server.get(DEPLOYMENT).unwrap()).unwrap();
    assert_eq!(deployment.annotations()[annotation::REVISION], "2");
    let status = deployment.status.unwrap();
    assert_eq!(
        (status.replicas, status.available_replicas, status.observed_generation),
        (Some(2), Some(2), Some(2))
    );
}

#[tokio::test]
async fn md1_kill_after_any_write_makes_no_second_set() {
    for limit in 0..24 {
        let server = server(1);
        settle(&server).await;
        change_version(&server);
        server.limit(Some(limit));
        for _ in 0..10 {
            pass(&server).await;
        }
        server.limit(None);
        settle(&server).await;
        assert_eq!(versions(&server), ["v1.35.0"], "limit {limit}");
        let names: std::collections::BTreeSet<String> =
            sets(&server).iter().map(ResourceExt::name_any).collect();
        assert!(names.len() <= 2, "limit {limit}: {names:?}");
        for plural in ["infras", "boots"] {
            assert_eq!(server.paths(&format!("{PROVIDER}/{plural}")).len(), 1, "limit {limit}");
        }
    }
}

#[tokio::test]
async fn md9_unchanged_deployment_causes_no_write() {
    let server = server(2);
    settle(&server).await;
    for _ in 0..3 {
        assert!(pass(&server).await);
    }
    assert_eq!(server.lines(), [""; 0]);
}

#[tokio::test]
async fn md1_missing_template_makes_no_set() {
    let server = server(1);
    server.remove(&format!("{PROVIDER}/infratemplates/t"));
    settle(&server).await;
    assert!(sets(&server).is_empty());
    let conditions = server.get(DEPLOYMENT).unwrap()["status"]["conditions"].to_string();
    assert!(conditions.contains("InfraTemplate t does not exist"), "{conditions}");
}

#[tokio::test]
async fn md7_change_in_place_is_a_patch_of_the_changed_fields() {
    let server = server(1);
    settle(&server).await;
    server.edit(DEPLOYMENT, |object| object["spec"]["template"]["spec"]["minReadySeconds"] = 7.into());
    let name = sets(&server)[0].name_any();
    pass(&server).await;
    let line = format!("PATCH {CORE}/machinesets/{name}");
    let writes = server.take();
    let change = writes.iter().find(|write| write.line == line).expect("a change of the set");
    assert_eq!(change.body["spec"], json!({ "template": { "spec": { "minReadySeconds": 7 } } }));
    let metadata = change.body["metadata"].as_object().unwrap();
    assert_eq!(metadata.keys().collect::<Vec<_>>(), ["resourceVersion", "uid"]);
    settle(&server).await;
    assert_eq!(machines(&server)[0].spec.min_ready_seconds, Some(7));
}

#[tokio::test]
async fn md10_deleted_deployment_leaves_nothing() {
    let server = server(2);
    settle(&server).await;
    server.edit(DEPLOYMENT, |object| object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    settle(&server).await;
    assert!(server.get(DEPLOYMENT).is_none() && sets(&server).is_empty() && machines(&server).is_empty());
}

#[tokio::test]
async fn md9_status_has_conditions_of_this_program_only() {
    let server = server(1);
    let other = json!({ "type": "example.org/Other", "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    server.edit(DEPLOYMENT, |object| object["status"] = json!({ "conditions": [other] }));
    for _ in 0..8 {
        pass(&server).await;
    }
    let is_own = |one: &Value| deployment::pass::CONDITION_TYPES.contains(&one["type"].as_str().unwrap());
    let line = format!("PATCH {DEPLOYMENT}/status");
    let statuses: Vec<_> = server.take().into_iter().filter(|write| write.line == line).collect();
    assert!(!statuses.is_empty());
    for status in statuses {
        assert!(
            status.body["status"]["conditions"].as_array().unwrap().iter().all(is_own),
            "{:?}",
            status.body
        );
    }
    assert!(server.get(DEPLOYMENT).unwrap().to_string().contains("example.org/Other"));
}

#[tokio::test]
async fn md1_owner_of_a_former_cluster_is_replaced() {
    let server = server(0);
    let owner = json!([{ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": "former" }]);
    server.edit(DEPLOYMENT, |object| object["metadata"]["ownerReferences"] = owner);
    settle(&server).await;
    let owners = server.get(DEPLOYMENT).unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!(owners.as_array().unwrap().iter().map(|one| &one["uid"]).collect::<Vec<_>>(), ["cluster"]);
}

#[tokio::test]
async fn md7_removed_annotation_vanishes_from_the_set() {
    let server = server(1);
    let (skip, note) = ("machineset.cluster.x-k8s.io/skip-preflight-checks", "bedplate.dev/creating");
    server.edit(DEPLOYMENT, |object| object["metadata"]["annotations"] = json!({ skip: "All", note: "[]" }));
    settle(&server).await;
    let set = &sets(&server)[0];
    assert_eq!(set.annotations()[skip], "All");
    assert!(!set.annotations().contains_key(note), "records of the set are not overwritten");
    let path = format!("{CORE}/machinesets/{}", set.name_any());
    server.edit(&path, |set| set["metadata"]["annotations"]["other"] = "y".into());
    server.edit(DEPLOYMENT, |object| {
        drop(object["metadata"]["annotations"].as_object_mut().unwrap().remove(skip));
    });
    settle(&server).await;
    let annotations = server.get(&path).unwrap()["metadata"]["annotations"].clone();
    assert_eq!((&annotations[skip], &annotations["other"]), (&Value::Null, &json!("y")));
}

/// Returns the message of condition `ScalingUp`.
fn scaling_up(server: &ApiServer) -> String {
    let conditions = server.get(DEPLOYMENT).unwrap()["status"]["conditions"].clone();
    let found = conditions.as_array().unwrap().iter().find(|one| one["type"] == "ScalingUp").unwrap().clone();
    found["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn md1_refused_write_is_shown_and_does_not_delay_the_status() {
    for (line, expected) in [
        (format!("PATCH {DEPLOYMENT}"), "\n* finalizer cannot be added: Invalid; permit it"),
        (
            format!("POST {CORE}/machinesets"),
            "is refused: Invalid; correct spec.template of the MachineDeployment",
        ),
    ] {
        let server = server(1);
        server.reject(&line);
        for _ in 0..3 {
            pass(&server).await;
        }
        let message = scaling_up(&server);
        assert!(message.contains("0 to 1 replicas is blocked") && message.ends_with(expected), "{message}");
        assert!(sets(&server).is_empty());
        drop(server.take());
        assert!(!pass(&server).await);
        assert_eq!(server.lines(), [line], "the status is written once");
    }
}

#[tokio::test]
async fn md3_refused_adoption_does_not_hold_up_the_rollout() {
    let server = server(1);
    settle(&server).await;
    let path = format!("{CORE}/machinesets/{}", sets(&server)[0].name_any());
    server.edit(&path, |set| set["metadata"]["ownerReferences"] = json!([]));
    server.reject(&format!("PATCH {path}"));
    change_version(&server);
    for _ in 0..20 {
        pass(&server).await;
    }
    assert_eq!(sets(&server).len(), 2, "the set that is not adopted is not counted");
    assert!(versions(&server).contains(&"v1.35.0".to_owned()), "{:?}", versions(&server));
}
