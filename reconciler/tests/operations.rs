//! Writes for operations, their order, and the result when the controller is killed at any request. The API
//! server of these tests stores what it receives.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
mod server;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use bedplate_engine::write::WriteError;
use bedplate_process::lease::Tenure;
use bedplate_reconciler::operation;
use serde_json::{Value, json};
use server::{Asked, Objects, Server, body, machine_list, object, refusal};

const OLD: &str = "2026-01-01T00:00:00Z";

fn operation(name: &str, spec: &Value, more: &Value) -> Value {
    let mut object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation",
        "metadata": { "name": name, "uid": format!("uid-{name}"), "resourceVersion": "7", "creationTimestamp": OLD },
        "spec": { "operationName": "reboot" } });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    for (key, value) in more.as_object().unwrap() {
        match object[key].as_object_mut() {
            Some(there) => there.extend(value.as_object().unwrap().clone()),
            None => object[key] = value.clone(),
        }
    }
    object
}

fn parent(more: &Value) -> Value {
    let spec = json!({ "machineSelector": { "matchLabels": { "rack": "1" } }, "maxParallel": 2 });
    let mut parent = operation("all", &spec, more);
    if parent["metadata"].get("finalizers").is_none() {
        parent["metadata"]["finalizers"] = json!(["bedplate.dev/children"]);
    }
    if parent["metadata"].get("labels").is_none() {
        parent["metadata"]["labels"] = json!({ "bedplate.dev/children": "" });
    }
    parent
}

fn child(machine: &str, state: &str) -> Value {
    let owner = json!([{ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation", "name": "all",
        "uid": "uid-all", "controller": true }]);
    operation(
        &format!("all-{machine}"),
        &json!({ "machineRef": { "name": machine } }),
        &json!({ "metadata": { "ownerReferences": owner }, "status": { "state": state } }),
    )
}

fn machine(name: &str) -> Value {
    json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "spec": { "provider": "manual" },
        "metadata": { "name": name, "uid": format!("uid-{name}"), "resourceVersion": "7", "labels": { "rack": "1" } } })
}

fn written(asked: &Asked) -> (u16, Value) {
    let mut object = asked.body.clone();
    object["metadata"]["resourceVersion"] = json!("8");
    if object.get("spec").is_none() {
        object["spec"] = json!({ "operationName": "reboot", "machineRef": { "name": "a" } });
    }
    object["apiVersion"] = json!("bedplate.dev/v1alpha1");
    object["kind"] = json!("MachineOperation");
    (200, object)
}

/// Reconciles `given` with `others` in the stores. Returns the requests and the result.
async fn look(
    given: &Value,
    others: &[Value],
    machines: &[Value],
    answers: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static,
) -> (Vec<Asked>, Result<(), WriteError>) {
    let operations = others.iter().chain([given]).cloned().collect();
    let objects = Objects { operations, machines: machines.to_vec(), ..Objects::default() };
    let server = Server::default();
    let world = server.world(&objects, Tenure::always(), answers);
    let done = operation::reconcile(Arc::new(object(given)), world).await.map(drop);
    (server.asked(), done)
}

fn lines(asked: &[Asked]) -> Vec<&str> {
    asked.iter().map(|asked| asked.line.as_str()).collect()
}

#[tokio::test]
async fn o5_new_operation_is_set_pending_then_labeled_even_if_the_first_fails() {
    let now = json!({ "metadata": { "creationTimestamp": jiff::Timestamp::now().to_string() } });
    let new = operation("x", &json!({ "machineRef": { "name": "a" } }), &now);
    for refuses in [false, true] {
        let answers = move |asked: &Asked| {
            if refuses && asked.line.ends_with("/status") { refusal(409, "changed") } else { written(asked) }
        };
        let (asked, done) = look(&new, &[], &[machine("a")], answers).await;
        assert_eq!(lines(&asked), ["PATCH /machineoperations/x/status", "PATCH /machineoperations/x"]);
        assert_eq!(done.is_ok(), !refuses);
        let pending = body(&asked, "PATCH /machineoperations/x/status");
        assert_eq!(pending["status"], json!({ "state": "Pending" }));
        assert_eq!(pending["metadata"]["resourceVersion"], "7");
        let labels = json!({ "bedplate.dev/machine": "a", "bedplate.dev/site": "default" });
        let labeled = body(&asked, "PATCH /machineoperations/x");
        assert_eq!((&labeled["metadata"]["labels"], &labeled["metadata"]["uid"]), (&labels, &json!("uid-x")));
    }
}

#[tokio::test]
async fn missing_machine_is_confirmed_live_before_an_operation_fails() {
    let new = operation("x", &json!({ "machineRef": { "name": "a" } }), &json!({}));
    for (code, state) in [(404, Some("Failed")), (503, None)] {
        let answers = move |asked: &Asked| match asked.line.as_str() {
            "GET /machines/a" => refusal(code, "no"),
            _ => written(asked),
        };
        let (asked, done) = look(&new, &[], &[], answers).await;
        assert_eq!(done.is_ok(), state.is_some());
        let status = asked.iter().find(|asked| asked.line.ends_with("/status"));
        assert_eq!(status.map(|asked| asked.body["status"]["state"].as_str().unwrap()), state);
        if let Some(status) = status {
            assert_eq!(status.body["status"]["reason"], "MachineNotFound");
        }
    }
}

/// The attack: the agent of a compromised host writes the status without pause, so that no write over the version that was read succeeds.
#[tokio::test]
async fn o1_end_by_the_controller_tests_uid_and_state_and_no_version() {
    const STATUS: &str = "PATCH /machineoperations/x/status";
    for (state, reason) in [("InProgress", "TimedOut"), ("Pending", "NoExecutor")] {
        let status = json!({ "state": state, "startTime": OLD, "executor": "bedplate-agent/a" });
        let labels = json!({ "bedplate.dev/machine": "a", "bedplate.dev/site": "default" });
        let more = json!({ "metadata": { "labels": labels }, "status": status });
        let open = operation("x", &json!({ "machineRef": { "name": "a" } }), &more);
        let mut ended = open.clone();
        ended["status"]["state"] = json!("Complete");
        let answers = {
            let open = open.clone();
            move |_: &Asked| (200, open.clone())
        };
        let (asked, done) = look(&open, &[], &[machine("a")], answers).await;
        done.unwrap();
        assert_eq!(lines(&asked), [STATUS]);
        let edits = body(&asked, STATUS).as_array().cloned().unwrap_or_default();
        let test = |path: &str, value: &str| json!({ "op": "test", "path": path, "value": value });
        assert_eq!(edits[..2], [test("/metadata/uid", "uid-x"), test("/status/state", state)]);
        let add = |path: &str, value: &str| json!({ "op": "add", "path": path, "value": value });
        for edit in [add("/status/state", "Failed"), add("/status/reason", reason)] {
            assert!(edits.contains(&edit), "{edit}: {edits:?}");
        }
        assert!(asked[0].query.contains("fieldManager=bedplate-controller"), "{}", asked[0].query);
        // Refused because its executor has ended it, or by a rule.
        for (now, is_conflict) in [(ended, true), (open.clone(), false)] {
            let answers = move |asked: &Asked| match asked.line.as_str() {
                STATUS => refusal(422, "the server rejected our request due to an error in our request"),
                _ => (200, now.clone()),
            };
            let (asked, done) = look(&open, &[], &[machine("a")], answers).await;
            assert_eq!(lines(&asked), [STATUS, "GET /machineoperations/x"]);
            assert_eq!(matches!(done, Err(WriteError::Conflict { .. })), is_conflict, "{done:?}");
            assert_eq!(matches!(done, Err(WriteError::Refused { .. })), !is_conflict, "{done:?}");
        }
    }
}

/// Each pxed watches the operations without a site. A parent has up to 10,000 names, which are written about once a second.
#[tokio::test]
async fn o3_parent_is_labeled_before_anything_else_is_written() {
    for more in [
        json!({ "metadata": { "finalizers": [] } }),
        // From before this label.
        json!({ "status": { "state": "InProgress", "machines": { "notStarted": ["a"] } } }),
        json!({ "status": { "state": "Complete" } }),
    ] {
        let mut new = parent(&more);
        new["metadata"]["labels"] = json!({ "own": "x" });
        let (asked, done) = look(&new, &[], &[machine("a")], written).await;
        done.unwrap();
        assert_eq!(lines(&asked), ["PATCH /machineoperations/all"], "{more}");
        let metadata = &body(&asked, "PATCH /machineoperations/all")["metadata"];
        assert_eq!(metadata["labels"], json!({ "bedplate.dev/children": "" }));
        assert_eq!((&metadata["uid"], metadata.get("finalizers")), (&json!("uid-all"), None));
    }
    let leaving = json!({ "metadata": { "deletionTimestamp": OLD, "labels": {} } });
    let (asked, _) = look(&parent(&leaving), &[], &[], written).await;
    let patched = body(&asked, "PATCH /machineoperations/all");
    assert_eq!(patched["metadata"]["finalizers"], json!([]), "it is deleted, without a label");
}

#[tokio::test]
async fn o3_the_finalizer_comes_first_then_the_machines_and_then_a_child() {
    let none = parent(&json!({ "metadata": { "finalizers": [] } }));
    let (asked, _) = look(&none, &[], &[], written).await;
    assert_eq!(lines(&asked), ["PATCH /machineoperations/all"]);
    assert_eq!(
        body(&asked, "PATCH /machineoperations/all")["metadata"]["finalizers"],
        json!(["bedplate.dev/children"])
    );

    let answers = |asked: &Asked| match asked.line.as_str() {
        "GET /machines" => machine_list(&[machine("a"), machine("b"), machine("c")]),
        _ => written(asked),
    };
    let (asked, _) = look(&parent(&json!({})), &[], &[], answers).await;
    assert_eq!(lines(&asked), ["GET /machines", "PATCH /machineoperations/all/status"]);
    let status = &body(&asked, "PATCH /machineoperations/all/status")["status"];
    assert_eq!((&status["state"], &status["counts"]["pending"]), (&json!("InProgress"), &json!(3)));
    assert_eq!(status["machines"], json!({ "notStarted": ["a", "b", "c"] }));

    let started = parent(&json!({ "status": status }));
    let answers = |asked: &Asked| match asked.line.as_str() {
        "GET /machineoperations/all" => (200, parent(&json!({}))),
        _ => written(asked),
    };
    let (asked, _) = look(&started, &[], &[machine("a")], answers).await;
    assert_eq!(
        lines(&asked),
        [
            "GET /machineoperations/all",
            "POST /machineoperations",
            "POST /machineoperations",
            "PATCH /machineoperations/all/status"
        ]
    );
    let made = asked.iter().find(|asked| asked.line.starts_with("POST")).unwrap();
    let made = &made.body;
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "uid-all");
    let labels =
        json!({ "bedplate.dev/machine": "a", "bedplate.dev/site": "default", "bedplate.dev/parent": "all" });
    assert_eq!(made["metadata"]["labels"], labels);
    assert_eq!(made["spec"], json!({ "operationName": "reboot", "machineRef": { "name": "a" } }));
    assert_eq!(
        body(&asked, "PATCH /machineoperations/all/status")["status"]["machines"],
        json!({ "started": ["a", "b"], "notStarted": ["c"] })
    );
}

#[tokio::test]
async fn o3_by_an_old_state_of_a_parent_no_child_is_made() {
    let started =
        parent(&json!({ "status": { "state": "InProgress", "machines": { "notStarted": ["a"] } } }));
    let answers = |asked: &Asked| match asked.line.as_str() {
        "GET /machineoperations/all" => {
            (200, parent(&json!({ "metadata": { "resourceVersion": "8", "finalizers": [] } })))
        }
        _ => written(asked),
    };
    let (asked, done) = look(&started, &[], &[], answers).await;
    assert!(matches!(done, Err(WriteError::Conflict { .. })), "{done:?}");
    assert_eq!(lines(&asked), ["GET /machineoperations/all"]);
}

#[tokio::test]
async fn o3_existing_child_is_not_re_created_and_an_impossible_one_fails() {
    let started =
        parent(&json!({ "status": { "state": "InProgress", "machines": { "notStarted": ["a", "b"] } } }));
    for (code, refused, machines) in [
        (409, true, json!({ "started": ["a", "b"] })),
        (422, true, json!({ "started": ["b"], "failed": ["a"] })),
        (503, false, json!({ "notStarted": ["a", "b"] })),
    ] {
        let answers =
            move |asked: &Asked| match (asked.line.as_str(), asked.body["metadata"]["name"].as_str()) {
                ("GET /machineoperations/all", _) => (200, parent(&json!({}))),
                ("POST /machineoperations", Some("all-a")) => refusal(code, "no"),
                ("GET /machineoperations/all-a", _) => (200, child("a", "Complete")),
                _ => written(asked),
            };
        let (asked, done) = look(&started, &[], &[], answers).await;
        assert_eq!(done.is_ok(), refused, "{code}: {done:?}");
        let status = asked.iter().find(|asked| asked.line.ends_with("/status")).unwrap();
        assert_eq!(status.body["status"]["machines"], machines, "{code}");
    }
}

#[tokio::test]
async fn o3_object_of_another_writer_with_a_childs_name_does_not_count() {
    let started =
        parent(&json!({ "status": { "state": "InProgress", "machines": { "notStarted": ["a"] } } }));
    // It names the parent as its owner. Any creator of operations may write that.
    let mut forged = child("a", "Complete");
    for (key, value) in [
        ("operationName", json!("restartService")),
        ("machineRef", json!({ "name": "b" })),
        ("parameters", json!({ "drain": "false" })),
        ("ttlSecondsAfterFinished", json!(1)),
    ] {
        let before = forged["spec"].clone();
        forged["spec"][key] = value;
        let there = forged.clone();
        let answers = move |asked: &Asked| match asked.line.as_str() {
            "GET /machineoperations/all" => (200, parent(&json!({}))),
            "POST /machineoperations" => refusal(409, "it is there"),
            "GET /machineoperations/all-a" => (200, there.clone()),
            _ => written(asked),
        };
        for known in [vec![forged.clone()], vec![]] {
            let (asked, _) = look(&started, &known, &[], answers.clone()).await;
            let counted = asked.iter().filter(|asked| asked.line.ends_with("/status"));
            let complete = counted.filter(|asked| asked.body["status"]["machines"].get("complete").is_some());
            assert_eq!(complete.count(), 0, "{key}");
            assert!(
                known.is_empty()
                    || asked.iter().any(|asked| asked.body["status"]["reason"] == "MachinesFailed")
            );
        }
        forged["spec"] = before;
    }
}

#[tokio::test]
async fn o3_deleted_child_counts_as_failed_and_is_not_created_again() {
    let started = parent(
        &json!({ "status": { "state": "InProgress", "machines": { "started": ["a"], "complete": ["b"] } } }),
    );
    let answers = |asked: &Asked| match asked.line.as_str() {
        "GET /machineoperations/all-a" => refusal(404, "not there"),
        _ => written(asked),
    };
    let (asked, done) = look(&started, &[], &[], answers).await;
    done.unwrap();
    assert_eq!(lines(&asked), ["GET /machineoperations/all-a", "PATCH /machineoperations/all/status"]);
    let status = &body(&asked, "PATCH /machineoperations/all/status")["status"];
    assert_eq!((&status["state"], &status["reason"]), (&json!("Failed"), &json!("MachinesFailed")));
    assert_eq!(status["machines"], json!({ "complete": ["b"], "failed": ["a"] }));
}

#[tokio::test]
async fn o3_deleted_parent_deletes_untaken_children_and_waits_for_taken_ones() {
    let machines = json!({ "started": ["a", "b"], "notStarted": ["c"] });
    let deleted =
        parent(&json!({ "metadata": { "deletionTimestamp": OLD, "finalizers": ["bedplate.dev/children"] },
        "status": { "state": "InProgress", "startTime": OLD, "machines": machines } }));
    let (asked, _) = look(&deleted, &[child("a", "InProgress"), child("b", "Pending")], &[], written).await;
    assert_eq!(lines(&asked), ["DELETE /machineoperations/all-b", "PATCH /machineoperations/all/status"]);
    assert_eq!(
        body(&asked, "DELETE /machineoperations/all-b")["preconditions"],
        json!({ "uid": "uid-all-b", "resourceVersion": "7" }),
        "not if it was just taken"
    );
    let over = json!({ "complete": ["a"], "failed": ["b"], "notStarted": ["c"] });
    let status = json!({ "state": "Failed", "startTime": OLD, "completionTime": OLD, "machines": over });
    let mut ended = deleted;
    ended["status"] = status;
    let (asked, _) = look(&ended, &[], &[], written).await;
    assert_eq!(lines(&asked), ["PATCH /machineoperations/all"]);
    assert_eq!(body(&asked, "PATCH /machineoperations/all")["metadata"]["finalizers"], json!([]));
}

#[tokio::test]
async fn o8_only_the_node_that_was_cordoned_for_this_very_operation_is_deleted() {
    let now = jiff::Timestamp::now().to_string();
    let drained = json!({ "type": "Drained", "status": "True", "reason": "PodsEvicted", "message": "", "lastTransitionTime": OLD });
    let spec = json!({ "machineRef": { "name": "a" }, "operationName": "applyConfiguration", "parameters": { "disruption": "allow" } });
    let labels = json!({ "bedplate.dev/machine": "a", "bedplate.dev/site": "default" });
    let given = operation(
        "x",
        &spec,
        &json!({ "metadata": { "labels": labels },
        "status": { "state": "InProgress", "startTime": now, "conditions": [drained] } }),
    );
    for (by, provider, cordoned, goes) in [
        ("uid-x", "bedplate://a", true, true),
        ("uid-y", "bedplate://a", true, false),
        ("uid-x", "bedplate://b", true, false),
        ("uid-x", "bedplate://a", false, false),
    ] {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "spec": { "providerID": provider, "unschedulable": cordoned },
            "metadata": { "name": "a", "uid": "uid-node", "resourceVersion": "5", "annotations": { "bedplate.dev/cordoned-by": by } } });
        let (asked, done) = look(&given, &[], &[machine("a")], move |_| (200, node.clone())).await;
        done.unwrap();
        let deleted = asked.iter().find(|asked| asked.line == "DELETE /api/v1/nodes/a");
        assert_eq!(deleted.is_some(), goes, "{by} {provider} {cordoned}: {:?}", lines(&asked));
        if let Some(deleted) = deleted {
            assert_eq!(deleted.body["preconditions"], json!({ "uid": "uid-node", "resourceVersion": "5" }));
        }
    }
}

#[tokio::test]
async fn end_of_an_operation_is_reported_once_by_the_controller_that_saw_it() {
    let with = |state: &str, reason: &str| {
        let status = json!({ "state": state, "reason": reason, "message": "why", "completionTime": OLD });
        operation("x", &json!({ "machineRef": { "name": "a" } }), &json!({ "status": status }))
    };
    for (state, reason, reported, note) in [
        ("Complete", "Done", Some("OperationComplete"), "reboot of Machine a completed: why"),
        ("Failed", "TimedOut", Some("OperationFailed"), "reboot of Machine a failed: TimedOut: why"),
        ("InProgress", "", None, ""),
    ] {
        for came in [true, false] {
            let (before, after) = (with("Pending", ""), with(state, reason));
            let first = if came { before } else { after.clone() };
            let objects =
                Objects { operations: vec![first], machines: vec![machine("a")], ..Objects::default() };
            let server = Server::default();
            let (world, teller) = server.telling(&objects, written);
            world.stores.whose.put(&object(&after), jiff::Timestamp::now());
            for _ in 0..2 {
                let _ = operation::reconcile(Arc::new(object(&after)), world.clone()).await;
            }
            drop(world);
            teller.run().await;
            let expected = reported
                .filter(|_| came)
                .map(|reported| (reported.to_owned(), "MachineOperation x".to_owned(), note.to_owned()));
            assert_eq!(server.events(), Vec::from_iter(expected), "{state} {came}");
        }
    }
}

/// An API server that keeps operations, and its visitor, who is killed at one request: from then on nothing of his arrives.
#[derive(Clone)]
struct Cluster {
    operations: Arc<Mutex<BTreeMap<String, Value>>>,
    version: Arc<AtomicI64>,
    /// Number of times that each child was created.
    made: Arc<Mutex<BTreeMap<String, u32>>>,
    /// Requests until the kill.
    left: Arc<AtomicI64>,
    /// That request arrives, only its answer does not.
    arrives: bool,
    dead: Arc<AtomicBool>,
}

impl Cluster {
    fn new(left: i64, arrives: bool) -> Self {
        let operations = Arc::new(Mutex::new(BTreeMap::from([("all".to_owned(), parent(&json!({})))])));
        let left = Arc::new(AtomicI64::new(left));
        let version = Arc::new(AtomicI64::new(100));
        Self { operations, version, made: Arc::default(), left, arrives, dead: Arc::default() }
    }

    fn answer(&self, asked: &Asked) -> (u16, Value) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            self.dead.store(true, Ordering::SeqCst);
            if self.arrives {
                self.serve(asked);
            }
        }
        if self.dead.load(Ordering::SeqCst) { refusal(503, "killed") } else { self.serve(asked) }
    }

    fn serve(&self, asked: &Asked) -> (u16, Value) {
        if asked.line == "GET /machines" {
            return machine_list(&["a", "b", "c", "d"].map(machine));
        }
        let mut all = self.operations.lock().unwrap();
        let version = self.version.fetch_add(1, Ordering::SeqCst).to_string();
        let (verb, path) = asked.line.split_once(' ').unwrap();
        let is_status = path.ends_with("/status");
        let name =
            path.trim_start_matches("/machineoperations").trim_start_matches('/').trim_end_matches("/status");
        if verb == "POST" {
            let mut new = asked.body.clone();
            let name = new["metadata"]["name"].as_str().unwrap().to_owned();
            if all.contains_key(&name) {
                return refusal(409, "it exists");
            }
            *self.made.lock().unwrap().entry(name.clone()).or_default() += 1;
            let now = jiff::Timestamp::now().to_string();
            let head =
                json!({ "uid": format!("uid-{name}"), "resourceVersion": version, "creationTimestamp": now });
            new["metadata"].as_object_mut().unwrap().extend(head.as_object().unwrap().clone());
            all.insert(name, new.clone());
            return (201, new);
        }
        let Some(there) = all.get_mut(name) else { return refusal(404, "not there") };
        let sent = &asked.body["metadata"]["resourceVersion"];
        if verb == "PATCH" && !sent.is_null() && *sent != there["metadata"]["resourceVersion"] {
            return refusal(409, "it has changed");
        }
        match (verb, is_status) {
            ("PATCH", true) => there["status"] = asked.body["status"].clone(),
            ("PATCH", false) => {
                for key in ["finalizers", "labels"] {
                    if let Some(value) = asked.body["metadata"].get(key) {
                        there["metadata"][key] = value.clone();
                    }
                }
            }
            _ => return (200, there.clone()),
        }
        there["metadata"]["resourceVersion"] = json!(version);
        (200, there.clone())
    }

    /// Reconciles everything until nothing changes, as the restarted controller does.
    async fn settle(&self) {
        for _ in 0..60 {
            let before = self.version.load(Ordering::SeqCst);
            let all: Vec<Value> = self.operations.lock().unwrap().values().cloned().collect();
            for given in &all {
                let cluster = self.clone();
                let machines = ["a", "b", "c", "d"].map(machine);
                // A failed reconcile is retried.
                let _ = look(given, &all, &machines, move |asked| cluster.answer(asked)).await;
            }
            if !self.dead.swap(false, Ordering::SeqCst) && self.version.load(Ordering::SeqCst) == before {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    /// Executors take and end what there is; `b` fails. How many were open.
    fn carry_out(&self) -> usize {
        let mut all = self.operations.lock().unwrap();
        let open =
            all.iter_mut().filter(|(name, object)| *name != "all" && object["status"]["state"] == "Pending");
        let mut number = 0;
        for (name, object) in open {
            let state = if name == "all-b" { "Failed" } else { "Complete" };
            object["status"] =
                json!({ "state": state, "completionTime": jiff::Timestamp::now().to_string() });
            object["metadata"]["resourceVersion"] =
                json!(self.version.fetch_add(1, Ordering::SeqCst).to_string());
            number += 1;
        }
        number
    }

    fn status(&self) -> Value {
        self.operations.lock().unwrap()["all"]["status"].clone()
    }
}

#[tokio::test]
async fn o3_kill_at_any_request_keeps_the_result_and_creates_no_child_twice() {
    for (at, arrives) in (0..).flat_map(|at| [(at, false), (at, true)]) {
        let cluster = Cluster::new(at, arrives);
        for _ in 0..4 {
            cluster.settle().await;
            assert!(cluster.carry_out() <= 2, "more than maxParallel, killed at {at}");
        }
        cluster.settle().await;
        let (status, what) = (cluster.status(), format!("killed at request {at}, which arrives: {arrives}"));
        assert_eq!(
            (&status["state"], &status["reason"]),
            (&json!("Failed"), &json!("MachinesFailed")),
            "{what}"
        );
        assert_eq!(status["machines"], json!({ "complete": ["a", "c", "d"], "failed": ["b"] }), "{what}");
        let made = cluster.made.lock().unwrap().clone();
        assert_eq!(made, ["a", "b", "c", "d"].map(|name| (format!("all-{name}"), 1)).into(), "{what}");
        let finalizers = &cluster.operations.lock().unwrap()["all"]["metadata"]["finalizers"];
        assert_eq!(*finalizers, json!([]), "{what}");
        if cluster.left.load(Ordering::SeqCst) >= 0 {
            assert!(at > 15, "the whole story has {at} requests");
            return;
        }
    }
}
