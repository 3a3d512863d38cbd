//! What a rolling update and a departure ask of the API server, in which order, and where they stop when that fails.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
mod server;

use std::sync::Arc;
use std::time::Duration;

use bedplate_lease::Tenure;
use bedplate_reconciler::rollout::Place;
use bedplate_reconciler::write::WriteError;
use bedplate_reconciler::{departure, rollout};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use self::server::{Asked, Objects, Server, object, refusal};

const NODE: &str = "/api/v1/nodes/a";
const PODS: &str = "GET /api/v1/pods";

fn configuration() -> Value {
    let mut configuration = server::configuration(2, &json!({ "latestVersion": 2 }));
    configuration["spec"]["updateStrategy"] =
        json!({ "type": "RollingUpdate", "rollingUpdate": { "drainTimeoutSeconds": 60 } });
    configuration
}

/// A Machine whose Node came of version 1, with `selected` and what is in its other slot.
fn machine(selected: u32, slots: &Value) -> Value {
    server::machine(
        &json!({ "selected": { "name": "w", "version": selected, "by": "Reference" }, "slots": slots,
        "applied": { "name": "w", "version": 1, "slot": "a", "nodeUid": "n1" }, "nodeRef": { "name": "a", "uid": "n1" },
        "agent": { "lastHeartbeat": "2100-01-01T00:00:00Z" } }),
    )
}

fn prepared() -> Value {
    json!([{ "name": "b", "configurationName": "w", "version": 2, "state": "Prepared" }])
}

fn node(more: &Value, cordoned: bool) -> Value {
    let mut annotations = json!({ "bedplate.dev/machine-configuration": "w", "bedplate.dev/machine-configuration-version": "1" });
    annotations.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "a", "uid": "n1", "resourceVersion": "8", "annotations": annotations },
        "spec": { "providerID": "bedplate://a", "unschedulable": cordoned },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] } })
}

fn ours(began: &str) -> Value {
    node(&json!({ "bedplate.dev/cordoned-by": "rollout/w-v2", "bedplate.dev/drain-began": began }), true)
}

fn pod(name: &str, owner: Option<&str>) -> Value {
    let owners = owner.map(|kind| json!([{ "kind": kind, "controller": true }]));
    json!({ "metadata": { "namespace": "n", "name": name, "uid": name, "ownerReferences": owners }, "spec": {} })
}

/// A cluster with this Machine, Node and Pods; evictions are answered with this code.
struct Cluster {
    machine: Value,
    node: Value,
    pods: Vec<Value>,
    eviction: u16,
}

impl Cluster {
    /// `fails`: from this request on, nobody answers.
    async fn look(&self, fails: Option<usize>) -> (Server, Result<Option<Duration>, WriteError>) {
        let server = Server::default();
        let objects = Objects {
            configurations: vec![configuration()],
            versions: vec![server::version(1, &json!({})), server::version(2, &json!({}))],
            machines: vec![self.machine.clone()],
            nodes: vec![self.node.clone()],
            ..Objects::default()
        };
        let (machine, node, pods, eviction) =
            (self.machine.clone(), self.node.clone(), self.pods.clone(), self.eviction);
        let heard = server.clone();
        let answer = move |asked: &Asked| match asked.line.as_str() {
            _ if fails.is_some_and(|fails| heard.asked().len() >= fails) => refusal(503, "away"),
            PODS => (200, json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods })),
            "GET /machines/a" => (200, machine.clone()),
            line if line.ends_with("/eviction") && eviction != 201 => refusal(eviction, "the budget"),
            line if line.ends_with("/eviction") => {
                (201, json!({ "kind": "Status", "apiVersion": "v1", "metadata": {} }))
            }
            line if line.contains("machineconfigurationversions") => (200, server::version(2, &json!({}))),
            line if line.contains("/machines/") => (200, machine.clone()),
            _ => (200, node.clone()),
        };
        let world = server.world(&objects, Tenure::always(), answer);
        let done = rollout::reconcile(Arc::new(object(&configuration())), world).await;
        (server, done)
    }

    /// What is asked, in this order; and whoever of them fails, nothing after it is asked.
    async fn asks(&self, lines: &[&str]) -> Vec<Asked> {
        let (server, done) = self.look(None).await;
        assert_eq!(server.lines(), lines, "{done:?}");
        done.unwrap();
        for fails in 0..lines.len() {
            let (server, done) = self.look(Some(fails)).await;
            assert!(done.is_err(), "{fails}");
            assert_eq!(server.lines(), &lines[..=fails]);
        }
        server.asked()
    }
}

#[tokio::test]
async fn c4_a_machine_is_taken_by_the_lock_of_its_version_and_then_the_choice_of_it() {
    let cluster = Cluster {
        machine: machine(1, &json!([])),
        node: node(&json!({}), false),
        pods: vec![],
        eviction: 201,
    };
    let lock = "PATCH /machineconfigurationversions/w-v2/status";
    let asked = cluster.asks(&[lock, "PATCH /machines/a/status"]).await;
    assert_eq!(asked[1].body["status"]["selected"]["version"], 2);
    assert_eq!(asked[1].body["status"]["nodeRef"]["uid"], "n1", "its Node stays");
    assert_eq!(asked[1].body["metadata"]["resourceVersion"], "7");
}

#[tokio::test]
async fn c4_a_node_is_cordoned_after_its_version_was_fetched_and_its_pods_were_looked_at() {
    let pods = vec![pod("web", Some("ReplicaSet"))];
    let cluster =
        Cluster { machine: machine(2, &prepared()), node: node(&json!({}), false), pods, eviction: 201 };
    let (get, patch) = (format!("GET {NODE}"), format!("PATCH {NODE}"));
    let asked = cluster.asks(&[&get, PODS, &patch]).await;
    let body = &asked[2].body;
    assert_eq!((&body["metadata"]["uid"], &body["metadata"]["resourceVersion"]), (&json!("n1"), &json!("8")));
    assert_eq!(body["spec"], json!({ "unschedulable": true }));
    assert_eq!(body["metadata"]["annotations"]["bedplate.dev/cordoned-by"], "rollout/w-v2");
    // One that nobody makes again: why not is said, and nothing is cordoned.
    let cluster = Cluster { pods: vec![pod("lone", None)], ..cluster };
    let asked = cluster.asks(&[&get, PODS, &patch]).await;
    assert!(asked[2].body.get("spec").is_none());
    let failed = asked[2].body["metadata"]["annotations"]["bedplate.dev/drain-failed"].as_str().unwrap();
    assert!(failed.contains("UnmanagedPods") && failed.contains("n/lone"), "{failed}");
}

#[tokio::test]
async fn c4_a_node_is_deleted_when_no_pod_is_left_and_its_machine_is_still_to_be_updated() {
    let pods = vec![pod("network", Some("DaemonSet"))];
    let cluster =
        Cluster { machine: machine(2, &prepared()), node: ours("2100-01-01T00:00:00Z"), pods, eviction: 201 };
    let (get, delete) = (format!("GET {NODE}"), format!("DELETE {NODE}"));
    let asked = cluster.asks(&[&get, PODS, "GET /machines/a", &delete]).await;
    assert_eq!(asked[3].body["preconditions"], json!({ "uid": "n1", "resourceVersion": "8" }));
}

#[tokio::test]
async fn c4_a_pod_that_a_budget_holds_is_said_on_the_node_and_given_up_in_time() {
    let pods = vec![pod("web", Some("ReplicaSet"))];
    let cluster =
        Cluster { machine: machine(2, &prepared()), node: ours("2100-01-01T00:00:00Z"), pods, eviction: 429 };
    let (get, patch) = (format!("GET {NODE}"), format!("PATCH {NODE}"));
    let evict = "POST /api/v1/namespaces/n/pods/web/eviction";
    let asked = cluster.asks(&[&get, PODS, evict, &patch]).await;
    assert_eq!(
        asked[3].body["metadata"]["annotations"],
        json!({ "bedplate.dev/drain-awaits": "n/web (the budget)" })
    );
    assert!(cluster.look(None).await.1.unwrap().unwrap() <= Duration::from_secs(5), "it is looked at again");
    // Its time is over.
    let cluster = Cluster { node: ours("2026-01-01T00:00:00Z"), ..cluster };
    let asked = cluster.asks(&[&get, PODS, &patch]).await;
    assert_eq!(asked[2].body["spec"], json!({ "unschedulable": null }));
    let failed = asked[2].body["metadata"]["annotations"]["bedplate.dev/drain-failed"].as_str().unwrap();
    assert!(failed.contains("DrainTimedOut") && failed.contains("60 s"), "{failed}");
}

#[tokio::test]
async fn a_machine_that_goes_says_what_is_awaited_before_its_node_is_touched() {
    let mut given = machine(1, &json!([{ "name": "a", "state": "Running" }]));
    given["spec"]["deletionPolicy"] = json!("Drain");
    given["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    given["metadata"]["finalizers"] = json!(["bedplate.dev/drain", "other"]);
    let server = Server::default();
    let objects = Objects { machines: vec![given.clone()], ..Objects::default() };
    let answered = given.clone();
    let answer = move |asked: &Asked| match asked.line.as_str() {
        line if line.contains("/machines/") => (200, answered.clone()),
        _ => (200, node(&json!({}), false)),
    };
    let world = server.world(&objects, Tenure::always(), answer);
    departure::reconcile(Arc::new(object(&given)), world).await.unwrap();
    assert_eq!(
        server.lines(),
        [format!("GET {NODE}"), "PATCH /machines/a/status".to_owned(), format!("PATCH {NODE}")]
    );
    let told = server.asked()[1].body["status"]["conditions"].to_string();
    assert!(told.contains("Drained") && told.contains("Draining"), "{told}");
    // Another policy: it is let go, with others' finalizers.
    given["spec"]["deletionPolicy"] = json!("Retain");
    let server = Server::default();
    let answered = given.clone();
    let answer = move |asked: &Asked| match asked.line.as_str() {
        line if line.contains("/machines/") => (200, answered.clone()),
        _ => (200, node(&json!({ "bedplate.dev/cordoned-by": "deletion" }), true)),
    };
    let world = server.world(&objects, Tenure::always(), answer);
    departure::reconcile(Arc::new(object(&given)), world).await.unwrap();
    assert_eq!(
        server.lines(),
        [format!("GET {NODE}"), format!("PATCH {NODE}"), "PATCH /machines/a".to_owned()]
    );
    assert_eq!(server.asked()[2].body["metadata"]["finalizers"], json!(["other"]));
}

#[test]
fn c4_what_was_taken_back_holds_the_update_while_its_node_comes_and_goes() {
    let mut back = machine(2, &json!([]));
    let version = |version| json!({ "name": "w", "version": version });
    back["status"]["rolledBack"] =
        json!({ "from": version(2), "to": version(1), "reason": "x", "time": "2026-01-01T00:00:00Z" });
    let versions = [1, 2].map(|number| object(&server::version(number, &json!({}))));
    let there = node(&json!({}), false);
    let (mut down, mut anew) = (there.clone(), there.clone());
    down["status"]["conditions"][0]["status"] = json!("Unknown");
    anew["metadata"]["uid"] = json!("n2");
    for node in [Some(there), Some(down), Some(anew), Some(node(&json!({}), true)), None] {
        let found = node.as_ref().map(|node| Arc::new(object::<Node>(node)));
        let judged = rollout::judge(
            &object(&configuration()),
            &[&object(&back)],
            &|_: &str| found.clone(),
            &[&versions[0], &versions[1]],
            jiff::Timestamp::UNIX_EPOCH,
        );
        let place = &judged.members[0].place;
        assert!(
            matches!(place, Place::Failed(failure) if failure.reason == "RolledBack"),
            "{node:?}: {place:?}"
        );
    }
}
