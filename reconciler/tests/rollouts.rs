//! Requests of a rolling update and of a deletion to the API server, their order, and the point where they
//! stop after a failure.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
mod server;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bedplate_api::machine::Machine;
use bedplate_engine::write::WriteError;
use bedplate_process::lease::Tenure;
use bedplate_process::liveness::Liveness;
use bedplate_process::shutdown::Stages;
use bedplate_process::tasks::Tasks;
use bedplate_reconciler::context::World;
use bedplate_reconciler::metrics::Metrics;
use bedplate_reconciler::reach::RegistryReach;
use bedplate_reconciler::rollout::{Clocks, Place, Rollout, Skip, Step, Wait};
use bedplate_reconciler::{deletion, rollout, run};
use k8s_openapi::api::core::v1::Node;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::server::{Asked, Objects, Server, body, object, refusal};

const NODE: &str = "/api/v1/nodes/a";
const NODES: &str = "GET /api/v1/nodes";
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
        &json!({ "selected": { "name": "w", "version": selected, "source": "Reference" }, "slots": slots,
        "applied": { "name": "w", "version": 1, "slot": "a", "nodeUID": "n1" }, "nodeRef": { "name": "a", "uid": "n1" },
        "agent": { "lastHeartbeatTime": "2100-01-01T00:00:00Z" } }),
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
    node(&json!({ "bedplate.dev/cordoned-by": "rollout/w-v2", "bedplate.dev/drain-started": began }), true)
}

/// One whose time is over, and whose Pod was asked to leave.
fn late() -> Value {
    let mut node = ours("2026-01-01T00:00:00Z");
    node["metadata"]["annotations"]["bedplate.dev/drain-pending"] = json!("n/web (the budget)");
    node
}

fn now() -> String {
    jiff::Timestamp::now().to_string()
}

fn pod(name: &str, owner: Option<&str>) -> Value {
    let owners = owner.map(|kind| json!([{ "kind": kind, "controller": true }]));
    json!({ "metadata": { "namespace": "n", "name": name, "uid": name, "ownerReferences": owners }, "spec": {} })
}

fn pod_list(pods: &[Value]) -> (u16, Value) {
    (200, json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods }))
}

/// A cluster with this Machine, Node and Pods; evictions are answered with this code.
struct Cluster {
    machine: Value,
    node: Value,
    pods: Vec<Value>,
    eviction: u16,
}

impl Cluster {
    /// Reconciles once. From request `fails` on, the API server does not answer.
    async fn look(&self, fails: Option<usize>) -> (Server, Result<Option<Duration>, WriteError>) {
        let (server, world) = self.world(fails);
        let done = rollout::reconcile(Arc::new(object(&configuration())), world).await;
        (server, done)
    }

    fn world(&self, fails: Option<usize>) -> (Server, Arc<World>) {
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
            PODS => pod_list(&pods),
            NODES if asked.query.contains("unschedulable") => server::node_heads(&[]),
            NODES => server::node_heads(std::slice::from_ref(&node)),
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
        (server, world)
    }

    /// Checks that these requests are sent in this order, and that none follows a failed one.
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
async fn c4_machine_is_taken_by_locking_its_version_and_then_selecting_it() {
    let cluster = Cluster {
        machine: machine(1, &json!([])),
        node: node(&json!({}), false),
        pods: vec![],
        eviction: 201,
    };
    let lock = "PATCH /machineconfigurationversions/w-v2/status";
    let asked = cluster.asks(&[lock, "PATCH /machines/a/status"]).await;
    let choice = body(&asked, "PATCH /machines/a/status");
    assert_eq!(choice["status"]["selected"]["version"], 2);
    assert_eq!(choice["status"]["nodeRef"]["uid"], "n1", "its Node stays");
    assert_eq!(choice["metadata"]["resourceVersion"], "7");
}

#[tokio::test]
async fn c4_node_is_cordoned_after_its_version_is_fetched_and_pods_are_checked() {
    let pods = vec![pod("web", Some("ReplicaSet"))];
    let cluster =
        Cluster { machine: machine(2, &prepared()), node: node(&json!({}), false), pods, eviction: 201 };
    let (get, patch) = (format!("GET {NODE}"), format!("PATCH {NODE}"));
    let asked = cluster.asks(&[NODES, NODES, &get, PODS, &patch]).await;
    let cordon = body(&asked, &patch);
    assert_eq!(
        (&cordon["metadata"]["uid"], &cordon["metadata"]["resourceVersion"]),
        (&json!("n1"), &json!("8"))
    );
    assert_eq!(cordon["spec"], json!({ "unschedulable": true }));
    assert_eq!(cordon["metadata"]["annotations"]["bedplate.dev/cordoned-by"], "rollout/w-v2");
    // A Pod without a controller: the reason is recorded, and nothing is cordoned.
    let cluster = Cluster { pods: vec![pod("lone", None)], ..cluster };
    let asked = cluster.asks(&[NODES, NODES, &get, PODS, &patch]).await;
    let patched = body(&asked, &patch);
    assert!(patched.get("spec").is_none());
    let failed = patched["metadata"]["annotations"]["bedplate.dev/drain-failed"].as_str().unwrap();
    assert!(failed.contains("UnmanagedPods") && failed.contains("n/lone"), "{failed}");
}

#[tokio::test]
async fn c4_node_is_deleted_without_pods_if_its_machine_still_needs_an_update() {
    let pods = vec![pod("network", Some("DaemonSet"))];
    let cluster = Cluster { machine: machine(2, &prepared()), node: ours(&now()), pods, eviction: 201 };
    let (get, delete) = (format!("GET {NODE}"), format!("DELETE {NODE}"));
    let asked = cluster.asks(&[&get, PODS, "GET /machines/a", &delete]).await;
    assert_eq!(body(&asked, &delete)["preconditions"], json!({ "uid": "n1", "resourceVersion": "8" }));
}

#[tokio::test]
async fn c4_pod_that_a_budget_holds_is_named_on_the_node_until_the_timeout() {
    let pods = vec![pod("web", Some("ReplicaSet"))];
    let cluster = Cluster { machine: machine(2, &prepared()), node: ours(&now()), pods, eviction: 429 };
    let (get, patch) = (format!("GET {NODE}"), format!("PATCH {NODE}"));
    let evict = "POST /api/v1/namespaces/n/pods/web/eviction";
    let asked = cluster.asks(&[&get, PODS, evict, &patch]).await;
    assert_eq!(
        body(&asked, &patch)["metadata"]["annotations"],
        json!({ "bedplate.dev/drain-pending": "n/web (the budget)" })
    );
    assert!(cluster.look(None).await.1.unwrap().unwrap() <= Duration::from_secs(5), "it is looked at again");
    // Its time is over.
    let cluster = Cluster { node: late(), ..cluster };
    let asked = cluster.asks(&[&get, PODS, &patch]).await;
    let patched = body(&asked, &patch);
    assert_eq!(patched["spec"], json!({ "unschedulable": null }));
    let failed = patched["metadata"]["annotations"]["bedplate.dev/drain-failed"].as_str().unwrap();
    assert!(failed.contains("DrainTimedOut"), "{failed}");
    assert!(failed.contains("not drained within 60 s: n/web (the budget)"), "{failed}");
}

#[tokio::test(start_paused = true)]
async fn c4_clock_leap_of_the_controller_neither_ends_nor_extends_a_drain() {
    let (get, patch) = (format!("GET {NODE}"), format!("PATCH {NODE}"));
    // Begun by this very controller a moment ago, by a wall clock that has leapt since.
    for began in ["2026-01-01T00:00:00Z", "2100-01-01T00:00:00Z"] {
        let mut node = late();
        node["metadata"]["annotations"]["bedplate.dev/drain-started"] = json!(began);
        let pods = vec![pod("web", Some("ReplicaSet"))];
        let cluster = Cluster { machine: machine(2, &prepared()), node, pods, eviction: 429 };
        let (server, world) = cluster.world(None);
        world.drains.lasting.begins("n1", began.parse().unwrap());
        let look = || rollout::reconcile(Arc::new(object(&configuration())), world.clone());
        tokio::time::advance(Duration::from_secs(59)).await;
        look().await.unwrap();
        let evict = "POST /api/v1/namespaces/n/pods/web/eviction";
        assert_eq!(server.lines(), [get.as_str(), PODS, evict], "{began}");
        tokio::time::advance(Duration::from_secs(1)).await;
        look().await.unwrap();
        assert_eq!(server.lines()[3..], [get.as_str(), PODS, patch.as_str()], "{began}");
        assert_eq!(body(&server.asked(), &patch)["spec"], json!({ "unschedulable": null }));
    }
}

#[tokio::test]
async fn c4_drain_evicts_its_pods_once_before_it_times_out() {
    let pods = vec![pod("web", Some("ReplicaSet"))];
    let node = ours("2026-01-01T00:00:00Z");
    let cluster = Cluster { machine: machine(2, &prepared()), node, pods, eviction: 429 };
    let (get, patch) = (format!("GET {NODE}"), format!("PATCH {NODE}"));
    let asked = cluster.asks(&[&get, PODS, "POST /api/v1/namespaces/n/pods/web/eviction", &patch]).await;
    assert_eq!(
        body(&asked, &patch)["metadata"]["annotations"],
        json!({ "bedplate.dev/drain-pending": "n/web (the budget)" })
    );
}

#[tokio::test]
async fn deleted_machine_reports_the_pending_step_before_its_node_is_drained() {
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
    deletion::reconcile(Arc::new(object(&given)), world).await.unwrap();
    assert_eq!(
        server.lines(),
        [format!("GET {NODE}"), "PATCH /machines/a/status".to_owned(), format!("PATCH {NODE}")]
    );
    let message = body(&server.asked(), "PATCH /machines/a/status")["status"]["conditions"].to_string();
    assert!(message.contains("Drained") && message.contains("Draining"), "{message}");
    // With another policy only this finalizer is removed; others stay.
    given["spec"]["deletionPolicy"] = json!("Retain");
    let server = Server::default();
    let answered = given.clone();
    let answer = move |asked: &Asked| match asked.line.as_str() {
        line if line.contains("/machines/") => (200, answered.clone()),
        _ => (200, node(&json!({ "bedplate.dev/cordoned-by": "deletion" }), true)),
    };
    let world = server.world(&objects, Tenure::always(), answer);
    deletion::reconcile(Arc::new(object(&given)), world).await.unwrap();
    assert_eq!(
        server.lines(),
        [format!("GET {NODE}"), format!("PATCH {NODE}"), "PATCH /machines/a".to_owned()]
    );
    assert_eq!(body(&server.asked(), "PATCH /machines/a")["metadata"]["finalizers"], json!(["other"]));
}

/// Objects that a rolling update is judged by. Agents are reachable.
struct Given {
    configuration: Value,
    /// Number of the newest version.
    newest: u32,
    machines: Vec<Value>,
    nodes: Vec<Value>,
}

impl Given {
    fn judged(&self, wait: impl Fn(&Machine) -> Wait) -> Rollout {
        let versions: Vec<_> =
            (1..=self.newest).map(|number| object(&server::version(number, &json!({})))).collect();
        let machines: Vec<_> = self.machines.iter().map(object).collect();
        let node = |name: &str| {
            let found = self.nodes.iter().find(|node| node["metadata"]["name"] == name);
            found.map(|node| Arc::new(object::<Node>(node)))
        };
        rollout::judge(
            &object(&self.configuration),
            &machines.iter().collect::<Vec<_>>(),
            &node,
            &versions.iter().collect::<Vec<_>>(),
            Clocks { silent: &|_| false, wait: &wait },
        )
    }

    fn steps(&self, wait: impl Fn(&Machine) -> Wait) -> Vec<Step> {
        rollout::plan(&self.judged(wait), rollout::settings(&object(&self.configuration)).as_ref())
    }

    fn is_paused(&self, wait: impl Fn(&Machine) -> Wait) -> bool {
        self.judged(wait).is_paused(&rollout::settings(&object(&self.configuration)).unwrap())
    }
}

/// The Machine `a`, whose Node was deleted for version 2, and `b`, which runs version 1.
fn gone_and_outdated(newest: u32) -> Given {
    let mut gone = called("a", machine(2, &json!([])));
    gone["status"]["nodeRef"] = Value::Null;
    let (configuration, nodes) = (configuration(), vec![called("b", node(&json!({}), false))]);
    Given { configuration, newest, machines: vec![gone, called("b", machine(1, &json!([])))], nodes }
}

fn paved(machine: &mut Value, reason: &str) {
    machine["status"]["conditions"] = json!([{ "type": "Paved", "status": "False", "reason": reason, "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
}

fn nodeless(seconds: u64) -> Wait {
    Wait { nodeless: Some(Duration::from_secs(seconds)), ..Wait::default() }
}

fn take(machine: &str) -> Step {
    Step::Take { machine: machine.to_owned() }
}

/// Judges one Machine, whose agent is heard, by the Node of its name, after it has had no Node of its choice for this time.
fn judged_after(machine: &Value, node: Option<&Value>, seconds: u64) -> Rollout {
    let (configuration, machines, nodes) =
        (configuration(), vec![machine.clone()], node.into_iter().cloned().collect());
    Given { configuration, newest: 2, machines, nodes }.judged(|_| nodeless(seconds))
}

/// Judges one Machine that has just lost its Node, or has one.
fn judged(machine: &Value, node: Option<&Value>) -> Rollout {
    judged_after(machine, node, 0)
}

/// The attack, and the accident: the host dies while it is paved, or its agent sends heartbeats and nothing else.
#[test]
fn c4_host_without_a_node_fails_despite_its_agents_reports() {
    // Its Node was deleted for version 2, which is selected.
    let mut gone = machine(2, &json!([]));
    gone["status"]["nodeRef"] = Value::Null;
    let mut at_it = gone.clone();
    paved(&mut at_it, "Preparing");
    let mut recreated = node(&json!({}), false);
    recreated["metadata"]["uid"] = json!("n2");
    recreated["status"]["conditions"][0]["status"] = json!("False");
    let settings = rollout::settings(&object(&configuration())).unwrap();
    for machine in [&gone, &at_it] {
        for node in [None, Some(&recreated)] {
            let judged = judged_after(machine, node, 2400);
            assert_eq!(judged.members[0].place, Place::Repaving, "{node:?}");
            let judged = judged_after(machine, node, 2401);
            let Place::Failed(failure) = &judged.members[0].place else {
                panic!("{:?}", judged.members[0].place)
            };
            assert_eq!(failure.reason.as_str(), "NodeMissing");
            assert!(judged.is_paused(&settings));
        }
    }
}

/// The attack: a host's agent sends heartbeats and never fills the slot.
#[test]
fn c4_host_that_is_preparing_for_too_long_keeps_no_other_from_its_turn() {
    let machines = vec![called("a", machine(2, &json!([]))), called("b", machine(1, &json!([])))];
    let nodes = ["a", "b"].map(|name| called(name, node(&json!({}), false))).into();
    let given = Given { configuration: configuration(), newest: 2, machines, nodes };
    let after = |seconds| move |_: &Machine| Wait { chosen: Duration::from_secs(seconds), ..Wait::default() };
    let place = |seconds| given.judged(after(seconds)).members[0].place.clone();
    assert_eq!(place(3600), Place::Preparing("w-v2".to_owned()));
    assert_eq!(given.steps(after(3600)), []);
    assert_eq!(place(3601), Place::Awaiting("w-v2".to_owned(), "PreparationOverdue".to_owned()));
    assert_eq!(given.steps(after(3601)), [take("b")]);
}

#[test]
fn c4_update_goes_on_with_the_version_after_one_that_paved_no_host() {
    for (reason, seconds) in [("Preparing", 2401), ("HealthGateFailed", 0)] {
        let given = |newest| {
            let mut given = gone_and_outdated(newest);
            paved(&mut given.machines[0], reason);
            given
        };
        assert!(given(2).is_paused(|_| nodeless(seconds)), "{reason}");
        let judged = given(3).judged(|_| nodeless(seconds));
        assert_eq!(judged.members[0].place, Place::Skipped(Skip::Behind("w-v2".to_owned())), "{reason}");
        assert_eq!(judged.unavailable(), 1, "{reason}");
        assert_eq!(given(3).steps(|_| nodeless(seconds)), [take("b")], "{reason}");
    }
    // While version 2 may still come, nothing has failed.
    assert_eq!(gone_and_outdated(3).judged(|_| nodeless(2400)).members[0].place, Place::Repaving);
}

#[test]
fn c4_update_paused_for_a_missing_node_stays_so_for_a_new_controller() {
    let condition = |type_: &str, reason: &str| json!({ "type": type_, "status": "True", "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    for (degraded, progressing, is_found, is_paused) in [
        ("NodeMissing", "PausedOnFailure", true, true),
        // Without pauseOnFailure until now.
        ("NodeMissing", "RollingOut", true, true),
        // A later edit was refused.
        ("VersionInvalid", "PausedOnFailure", true, true),
        ("InvalidTemplate", "PausedOnFailure", true, true),
        ("VersionInvalid", "RollingOut", true, false),
        ("DrainTimedOut", "PausedOnFailure", true, false),
        ("AsExpected", "RollingOut", true, false),
        // This controller has seen the beginning, so the report was about another Machine.
        ("NodeMissing", "PausedOnFailure", false, false),
    ] {
        let mut given = gone_and_outdated(2);
        given.configuration["status"]["conditions"] =
            json!([condition("Progressing", progressing), condition("Degraded", degraded)]);
        let wait = |_: &Machine| Wait { is_found, ..nodeless(1) };
        assert_eq!(given.is_paused(wait), is_paused, "{degraded} {progressing} {is_found}");
        let steps = if is_paused { vec![] } else { vec![take("b")] };
        assert_eq!(given.steps(wait), steps, "{degraded} {progressing} {is_found}");
    }
}

#[test]
fn c4_machine_that_is_paused_or_leaves_without_a_node_pauses_no_update() {
    for (path, value) in [
        ("/spec/paused", json!(true)),
        ("/status/selected/source", json!("Claim")),
        ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
    ] {
        let mut given = gone_and_outdated(2);
        paved(&mut given.machines[0], "HostUnsupported");
        assert!(given.is_paused(|_| nodeless(0)), "{path}");
        let (parent, key) = path.rsplit_once('/').unwrap();
        given.machines[0].pointer_mut(parent).unwrap()[key] = value;
        let judged = given.judged(|_| Wait::default());
        assert!(
            matches!(judged.members[0].place, Place::Skipped(_)),
            "{path}: {:?}",
            judged.members[0].place
        );
        assert_eq!(judged.unavailable(), 1, "{path}");
        assert_eq!(given.steps(|_| Wait::default()), [take("b")], "{path}");
    }
}

#[test]
fn c4_what_was_taken_back_holds_the_update_while_its_node_comes_and_goes() {
    let mut back = machine(2, &json!([]));
    let version = |version| json!({ "name": "w", "version": version });
    back["status"]["rolledBack"] =
        json!({ "from": version(2), "to": version(1), "message": "x", "time": "2026-01-01T00:00:00Z" });
    let there = node(&json!({}), false);
    let (mut down, mut recreated) = (there.clone(), there.clone());
    down["status"]["conditions"][0]["status"] = json!("Unknown");
    recreated["metadata"]["uid"] = json!("n2");
    for node in [Some(there), Some(down), Some(recreated), Some(node(&json!({}), true)), None] {
        let judged = judged(&back, node.as_ref());
        let place = &judged.members[0].place;
        assert!(
            matches!(place, Place::Failed(failure) if failure.reason.as_str() == "RolledBack"),
            "{node:?}: {place:?}"
        );
    }
}

#[test]
fn c4_a_machine_whose_node_is_foreign_is_left_as_it_is() {
    for provider_id in ["", "other://a", "bedplate://b"] {
        let mut seen = node(&json!({}), false);
        seen["spec"]["providerID"] = json!(provider_id);
        let judged = judged(&machine(2, &prepared()), Some(&seen));
        let member = &judged.members[0];
        let Place::Skipped(why) = &member.place else { panic!("{provider_id}: {:?}", member.place) };
        assert!(why.message().contains("providerID bedplate://NAME"), "{provider_id}: {why:?}");
        assert!(member.unavailable.is_some(), "{provider_id}: it has no Node of its own");
    }
}

/// Returns the object renamed for another host.
fn called(name: &str, mut object: Value) -> Value {
    let uid = format!("{}-{name}", object["metadata"]["uid"].as_str().unwrap());
    object["metadata"]["name"] = json!(name);
    if object["kind"] == "Node" {
        object["spec"]["providerID"] = json!(format!("bedplate://{name}"));
    } else {
        object["status"]["applied"]["nodeUID"] = json!(format!("n1-{name}"));
        object["status"]["nodeRef"] = json!({ "name": name, "uid": format!("n1-{name}") });
    }
    object["metadata"]["uid"] = json!(uid);
    object
}

/// Machines that were prepared, with free Nodes: what the stores show, however long it is not so any more.
fn two() -> Objects {
    Objects {
        configurations: vec![configuration()],
        versions: vec![server::version(1, &json!({})), server::version(2, &json!({}))],
        machines: ["a", "b"].map(|name| called(name, machine(2, &prepared()))).into(),
        nodes: ["a", "b"].map(|name| called(name, node(&json!({}), false))).into(),
        ..Objects::default()
    }
}

async fn roll(world: &Arc<World>) -> Result<Option<Duration>, WriteError> {
    rollout::reconcile(Arc::new(object(&configuration())), world.clone()).await
}

#[tokio::test]
async fn c4_no_turn_begins_while_the_store_does_not_show_a_cordon_that_is_there() {
    for (cordoned, begins) in [(vec![], true), (vec!["b"], false), (vec!["other"], true)] {
        let (server, free) = (Server::default(), node(&json!({}), false));
        let cordoned: Vec<Value> = cordoned.into_iter().map(|name| called(name, free.clone())).collect();
        let answer = move |asked: &Asked| match asked.line.as_str() {
            PODS => pod_list(&[]),
            NODES if asked.query.contains("spec.unschedulable%3Dtrue") => server::node_heads(&cordoned),
            NODES => server::node_heads(&two().nodes),
            _ => (200, called("a", node(&json!({}), false))),
        };
        let world = server.world(&two(), Tenure::always(), answer);
        let done = roll(&world).await;
        let writes = server.lines().iter().filter(|line| line.starts_with("PATCH")).count();
        assert_eq!((done.is_ok(), writes), (begins, usize::from(begins)), "{:?}", server.lines());
        assert!(begins || matches!(done, Err(WriteError::Conflict { .. })));
    }
}

#[tokio::test(start_paused = true)]
async fn c4_no_turn_begins_by_the_word_of_a_watch_of_nodes_that_has_died() {
    let answer = |asked: &Asked| match asked.line.as_str() {
        PODS => pod_list(&[]),
        NODES if asked.query.contains("unschedulable") => server::node_heads(&[]),
        NODES => server::node_heads(&two().nodes),
        _ => (200, called("a", node(&json!({}), false))),
    };
    for (silent, begins) in [(120, true), (121, false)] {
        let server = Server::default();
        let world = server.world(&two(), Tenure::always(), answer);
        world.counters.heard("Node");
        tokio::time::advance(Duration::from_secs(silent)).await;
        let done = roll(&world).await;
        assert_eq!((done.is_ok(), server.lines().is_empty()), (begins, !begins), "{done:?}");
    }
}

#[tokio::test]
async fn c4_new_leader_sees_nodes_that_the_previous_one_deleted_as_gone() {
    let server = Server::default();
    let answer = |asked: &Asked| match asked.line.as_str() {
        PODS => pod_list(&[]),
        NODES if asked.query.contains("unschedulable") => server::node_heads(&[]),
        // The watch of this one still shows `b`.
        NODES => server::node_heads(&two().nodes[..1]),
        _ => (200, called("a", node(&json!({}), false))),
    };
    let world = server.world(&two(), Tenure::always(), answer);
    assert!(matches!(roll(&world).await, Err(WriteError::Conflict { .. })));
    assert_eq!(roll(&world).await.unwrap(), Some(Duration::from_secs(60)), "the room is taken");
    assert_eq!(server.lines(), [NODES]);
}

/// Current Nodes of the API server, and the cordoned ones. The controller's watch may not show them.
#[derive(Default)]
struct Live {
    nodes: Vec<Value>,
    cordoned: Vec<Value>,
}

/// Complete controller with a server that has the objects of `two()`. Its watches deliver no events.
struct Controller {
    server: Server,
    live: Arc<Mutex<Live>>,
    metrics: Metrics,
    leads: watch::Sender<Option<Instant>>,
    _shutdown: DropGuard,
}

impl Controller {
    async fn start(live: Live) -> Self {
        let (server, live) = (Server::default(), Arc::new(Mutex::new(live)));
        let known = live.clone();
        let client =
            server.client(Arc::new(move |asked: &Asked| answer_of_two(asked, &known.lock().unwrap())));
        let (shutdown, metrics) = (CancellationToken::new(), Metrics::default());
        let (tasks, liveness) = (Tasks::new(shutdown.clone()), Liveness::new(shutdown.clone()));
        let (leads, tenure) = watch::channel(None);
        let stages = Stages::new(shutdown.clone());
        let running = (&tasks, &liveness, &stages);
        let (started, _counted) =
            run::begin(&client, (&Tenure::new(tenure), "test"), &metrics, running, RegistryReach::default());
        until("the caches are synced", || *started.borrow()).await;
        Self { server, live, metrics, leads, _shutdown: shutdown.drop_guard() }
    }

    fn is_leading(&self) -> bool {
        let (mut registry, mut text) = (Registry::default(), String::new());
        self.metrics.register(&mut registry);
        encode(&mut text, &registry).unwrap();
        text.lines().any(|line| line == "bedplate_controller_leader 1")
    }

    /// Ends the tenure: the controller is notified, or its time expires.
    async fn lose(&self, is_notified: bool) {
        let end = (!is_notified).then(|| Instant::now() + Duration::from_millis(20));
        self.leads.send_replace(end);
        until("the end of the tenure is noticed", || !self.is_leading()).await;
    }

    fn lead(&self) {
        self.leads.send_replace(Some(Instant::now() + Duration::from_secs(3600)));
    }

    /// Returns the complete lists of Nodes and the cordons after the first `before` requests, in order.
    fn lists_and_cordons(&self, before: usize) -> Vec<String> {
        let is_list = |asked: &Asked| asked.line == NODES && !asked.query.contains("unschedulable");
        let is_cordon = |asked: &Asked| asked.body["spec"]["unschedulable"] == true;
        let asked = self.server.asked().split_off(before).into_iter();
        asked.filter(|asked| is_list(asked) || is_cordon(asked)).map(|asked| asked.line).collect()
    }
}

fn answer_of_two(asked: &Asked, live: &Live) -> (u16, Value) {
    let list = |items: &[Value]| (200, json!({ "metadata": { "resourceVersion": "9" }, "items": items }));
    let name = asked.line.trim_end_matches("/status").rsplit('/').next().unwrap_or_default();
    match asked.line.as_str() {
        PODS => pod_list(&[]),
        NODES if asked.query.contains("unschedulable") => list(&live.cordoned),
        NODES => list(&live.nodes),
        "GET /machines" => list(&two().machines),
        "GET /machineconfigurations" => list(&two().configurations),
        "GET /machineconfigurationversions" => list(&two().versions),
        line if line.contains("/machines/") => (200, called(name, machine(2, &prepared()))),
        line if line.contains("/machineconfigurations/") => (200, configuration()),
        line if line.contains("/machineconfigurationversions/") => (200, server::version(2, &json!({}))),
        line if line.contains("/nodes/") => (200, called(name, node(&json!({}), false))),
        _ => list(&[]),
    }
}

async fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !reached() {
        assert!(Instant::now() < deadline, "not reached: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn c4_returning_leader_lists_the_nodes_before_a_turn() {
    for (is_notified, is_deleted) in [(true, true), (false, true), (true, false)] {
        let nodes = two().nodes;
        // The cordon prevents a turn from starting after the first comparison of the Nodes.
        let controller =
            Controller::start(Live { nodes: nodes.clone(), cordoned: nodes[1..].to_vec() }).await;
        controller.lead();
        let is_compared = |asked: &Asked| asked.line == NODES && asked.query.contains("unschedulable");
        until("the Nodes are compared", || controller.server.asked().iter().any(is_compared)).await;
        controller.lose(is_notified).await;
        // Another controller finishes the turn of `b` and deletes its Node. The watch of this controller does not show that.
        let left = if is_deleted { nodes[..1].to_vec() } else { nodes };
        *controller.live.lock().unwrap() = Live { nodes: left, cordoned: Vec::new() };
        let before = controller.server.asked().len();
        controller.lead();
        until("a list or a turn", || !controller.lists_and_cordons(before).is_empty()).await;
        assert_eq!(controller.lists_and_cordons(before)[0], NODES, "notified: {is_notified}");
        if !is_deleted {
            until("a turn starts", || controller.lists_and_cordons(before).len() > 1).await;
            assert_eq!(controller.lists_and_cordons(before)[1], format!("PATCH {NODE}"));
        }
    }
}

#[tokio::test]
async fn c4_one_of_two_prepared_machines_starts_however_late_the_node_watch_is() {
    for answered in [true, false] {
        let server = Server::default();
        let cordoned = Arc::new(AtomicBool::new(false));
        let answer = move |asked: &Asked| match asked.line.as_str() {
            PODS => pod_list(&[pod("web", Some("ReplicaSet"))]),
            NODES => server::node_heads(&[]),
            "PATCH /api/v1/nodes/a" if !cordoned.swap(true, Ordering::SeqCst) && !answered => {
                refusal(504, "its answer is lost")
            }
            line if line.ends_with("/eviction") => refusal(429, "the budget"),
            _ if cordoned.load(Ordering::SeqCst) => {
                let mut ours = called("a", ours(&now()));
                ours["metadata"]["resourceVersion"] = json!("9");
                (200, ours)
            }
            _ => (200, called("a", node(&json!({}), false))),
        };
        let world = server.world(&two(), Tenure::always(), answer);
        world.drains.sure(true);
        for _ in 0..4 {
            let _ = roll(&world).await;
        }
        let lines = server.lines();
        assert!(lines.contains(&"PATCH /api/v1/nodes/a".to_owned()), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("/nodes/b")), "{lines:?}");
        assert!(lines.iter().any(|line| line.ends_with("/eviction")), "it continues with the one: {lines:?}");
    }
}

#[tokio::test]
async fn c4_drain_with_an_unreadable_or_future_start_starts_now_and_times_out() {
    let pods = vec![pod("web", Some("ReplicaSet"))];
    for began in ["yesterday", "2300-01-01T00:00:00Z", ""] {
        let (machine, node, pods) = (machine(2, &prepared()), ours(began), pods.clone());
        let cluster = Cluster { machine, node, pods, eviction: 429 };
        let (server, done) = cluster.look(None).await;
        let asked = server.asked();
        let said = asked
            .iter()
            .find_map(|asked| asked.body["metadata"]["annotations"]["bedplate.dev/drain-started"].as_str());
        let said: jiff::Timestamp =
            said.unwrap_or_else(|| panic!("{began}: {:?}", server.lines())).parse().unwrap();
        assert!(jiff::Timestamp::now().duration_since(said).as_secs().abs() < 60);
        assert_eq!(done.unwrap(), Some(Duration::ZERO), "{began}");
    }
}

#[tokio::test]
async fn c4_a_pod_whose_eviction_is_refused_keeps_no_other_pod_from_leaving() {
    let server = Server::default();
    let given = ours(&now());
    let objects = Objects { machines: vec![machine(2, &prepared())], nodes: vec![given.clone()], ..two() };
    let answer = move |asked: &Asked| match asked.line.as_str() {
        PODS => pod_list(&[pod("kept", Some("ReplicaSet")), pod("web", Some("ReplicaSet"))]),
        line if line.ends_with("/kept/eviction") => refusal(403, "a webhook says no"),
        line if line.ends_with("/eviction") => {
            (201, json!({ "kind": "Status", "apiVersion": "v1", "metadata": {} }))
        }
        _ => (200, given.clone()),
    };
    let (world, teller) = server.telling(&objects, answer);
    for _ in 0..3 {
        assert!(roll(&world).await.unwrap().unwrap() <= Duration::from_secs(5));
    }
    let lines = server.lines();
    let evictions =
        |pod: &str| lines.iter().filter(|line| line.ends_with(&format!("/{pod}/eviction"))).count();
    assert_eq!(
        (evictions("kept"), evictions("web")),
        (1, 3),
        "who is refused is not asked each time: {lines:?}"
    );
    let pending = "n/kept (403: a webhook says no), n/web";
    let says = |asked: &Asked| asked.body["metadata"]["annotations"]["bedplate.dev/drain-pending"] == pending;
    assert!(server.asked().iter().any(says), "{:?}", server.asked());
    drop(world);
    teller.run().await;
    let events = server.events();
    let [(reason, about, note)] = events.as_slice() else { panic!("published once: {events:?}") };
    assert_eq!((reason.as_str(), about.as_str()), ("DrainBlocked", "Machine a"));
    assert!(note.contains("n/kept (403: a webhook says no)") && note.contains("times out at"), "{note}");
}

#[tokio::test(start_paused = true)]
async fn c4_many_drains_are_checked_concurrently() {
    let server = Server::slow(Duration::from_secs(1));
    let names: Vec<String> = (10..26).map(|number| format!("m{number}")).collect();
    let since = ours(&now());
    let all = |given: &Value| names.iter().map(|name| called(name, given.clone())).collect();
    let objects = Objects { machines: all(&machine(2, &prepared())), nodes: all(&since), ..two() };
    let answer = move |asked: &Asked| match asked.line.as_str() {
        PODS => pod_list(&[pod("web", Some("ReplicaSet"))]),
        line if line.ends_with("/eviction") => refusal(429, "the budget"),
        line => (200, called(line.rsplit('/').next().unwrap(), since.clone())),
    };
    let world = server.world(&objects, Tenure::always(), answer);
    let started = tokio::time::Instant::now();
    roll(&world).await.unwrap();
    // Two requests and one write each, and one eviction in all: its Pod is the same.
    assert!(started.elapsed() < Duration::from_secs(16), "{:?}", started.elapsed());
    let looks = server.lines().iter().filter(|line| line.as_str() == PODS).count();
    assert_eq!(looks, 16);
}

/// Returns the Events of one reconcile.
async fn message(objects: &Objects, given: Value, pods: Vec<Value>) -> Vec<(String, String, String)> {
    let server = Server::default();
    let machine = objects.machines[0].clone();
    let answer = move |asked: &Asked| match asked.line.as_str() {
        PODS => pod_list(&pods),
        NODES if asked.query.contains("unschedulable") => server::node_heads(&[]),
        NODES => server::node_heads(std::slice::from_ref(&given)),
        line if line.contains("/machines/") => (200, machine.clone()),
        _ => (200, given.clone()),
    };
    let (world, teller) = server.telling(objects, answer);
    roll(&world).await.unwrap();
    drop(world);
    teller.run().await;
    server.events()
}

#[tokio::test]
async fn each_step_of_a_turn_publishes_an_event_on_the_machine() {
    let lone = || vec![pod("lone", None)];
    let now = now();
    for (node, pods, paused, reason, words) in [
        (node(&json!({}), false), vec![], false, "UpdateStarted", "w-v2 started"),
        (node(&json!({}), false), lone(), false, "UpdateFailed", "n/lone"),
        (ours(&now), vec![], false, "NodeDrained", "paving the host with w-v2"),
        (ours(&now), lone(), false, "UpdateFailed", "n/lone"),
        (late(), vec![pod("web", Some("ReplicaSet"))], false, "UpdateFailed", "60 s"),
        (ours(&now), lone(), true, "UpdateInterrupted", "spec.paused"),
    ] {
        let mut machine = machine(2, &prepared());
        machine["spec"]["paused"] = json!(paused);
        let objects = Objects { machines: vec![machine], nodes: vec![node.clone()], ..two() };
        let events = message(&objects, node, pods).await;
        let [(message, about, note)] = events.as_slice() else { panic!("{reason}: {events:?}") };
        assert_eq!((message.as_str(), about.as_str()), (reason, "Machine a"), "{note}");
        assert!(note.contains(words), "{reason}: {note}");
    }
}

#[tokio::test]
async fn end_of_a_turn_is_reported_when_the_node_is_annotated() {
    let server = Server::default();
    let mut paved = machine(2, &json!([]));
    paved["status"]["applied"]["version"] = json!(2);
    let given = node(&json!({}), false);
    let objects = Objects { machines: vec![paved.clone()], nodes: vec![given.clone()], ..two() };
    let answered = paved.clone();
    let answer = move |asked: &Asked| match asked.line.as_str() {
        line if line.contains("/machines/") => (200, answered.clone()),
        _ => (200, given.clone()),
    };
    let (world, teller) = server.telling(&objects, answer);
    bedplate_reconciler::machine::reconcile(Arc::new(object(&paved)), world.clone()).await.unwrap();
    drop(world);
    teller.run().await;
    let end = ("VersionApplied".to_owned(), "Machine a".to_owned(), "Node a runs w-v2".to_owned());
    assert_eq!(server.events(), [end]);
}
