//! MachineOperations on a real API server: bedplate-controller under the role that `deploy/` gives it, agents and pxed under theirs, seen
//! from outside.
//!
//! Executors are simulated: the tests write what an agent or pxed would, as that user.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "kubernetes/cluster.rs"]
mod cluster;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use bedplate_api::operation::MachineOperation;
use bedplate_tests::guard::{Directory, Process};
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::{pxed, wait};
use cluster::client;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const PATIENCE: Duration = Duration::from_secs(60);

/// The cluster with its garbage collector, and the controller; all end with the test program.
struct Site {
    kubernetes: Kubernetes,
    place: Directory,
    controller: Mutex<Process>,
    pxed: PathBuf,
    runtime: Runtime,
}

impl Site {
    fn shared() -> &'static Self {
        static SHARED: OnceLock<Site> = OnceLock::new();
        SHARED.get_or_init(|| {
            let mut kubernetes = Kubernetes::start().unwrap();
            kubernetes.install().unwrap();
            kubernetes.start_controllers(&["garbage-collector-controller"]).unwrap();
            let place = Directory::new("operations").unwrap();
            let controller = Mutex::new(controller(&kubernetes, &place, "first"));
            let pxed = kubernetes.service_account("bedplate-system", "pxed").unwrap();
            Self { kubernetes, place, controller, pxed, runtime: Runtime::new().unwrap() }
        })
    }

    fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.kubernetes.kubectl(&self.kubernetes.admin(), arguments)
    }

    fn apply(&self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        let path = self.place.path().join(format!("{}-{name}.json", object["kind"].as_str().unwrap()));
        std::fs::write(&path, object.to_string()).unwrap();
        self.kubectl(&["apply", "--server-side", "-f", &path.display().to_string()]).unwrap();
    }

    fn machine(&self, name: &str, labels: &Value, spec: &Value) {
        let mut machine = object("Machine", name, &json!({ "provider": "manual", "site": "north" }));
        machine["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        machine["metadata"]["labels"] = labels.clone();
        self.apply(&machine);
    }

    /// An operation for one Machine.
    fn operation(&self, name: &str, machine: &str, spec: &Value) {
        let mut operation = object("MachineOperation", name, &json!({ "machineRef": { "name": machine } }));
        operation["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        self.apply(&operation);
    }

    /// An operation for the Machines of a row.
    fn selecting(&self, name: &str, row: &str, more: &Value) {
        let spec = json!({ "operationName": "reboot", "machineSelector": { "matchLabels": { "row": row } } });
        let mut operation = object("MachineOperation", name, &spec);
        operation["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.apply(&operation);
    }

    fn get(&self, name: &str) -> Option<Value> {
        let found = self.kubectl(&["get", "mop", name, "--ignore-not-found", "-o", "json"]).unwrap();
        serde_json::from_str(&found).ok()
    }

    /// Waits until an operation is in a state.
    fn until(&self, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let found = wait::until(what, PATIENCE, || Ok(self.get(name).filter(|object| is(object))));
        found.unwrap_or_else(|error| {
            let said = self.controller.lock().unwrap().said();
            panic!("{name}: {error:#}\n{:#}\n{said}", self.get(name).unwrap_or_default())
        })
    }

    fn until_state(&self, name: &str, state: &str) -> Value {
        self.until(name, state, |operation| operation["status"]["state"] == state)
    }

    fn until_gone(&self, name: &str) {
        wait::until("its end", PATIENCE, || Ok(self.get(name).is_none().then_some(()))).unwrap();
    }

    /// What its executor says of an operation, as who it is. Not by kubectl, which reads first what agents and pxed may not read.
    fn says(&self, who: &Path, name: &str, status: &Value) -> Result<(), String> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.runtime.block_on(async {
            let operations: Api<MachineOperation> = Api::all(client(who).await);
            let said = operations.patch_status(name, &PatchParams::default(), &patch).await;
            said.map(drop).map_err(|error| error.to_string())
        })
    }

    fn agent(&self, machine: &str) -> PathBuf {
        self.kubernetes.user(&format!("bedplate:machine:{machine}"), &["bedplate:machines"]).unwrap()
    }

    /// The Machine's agent takes an operation, and ends it if `end` says how.
    fn carries_out(&self, machine: &str, name: &str, end: Option<&str>) {
        let agent = self.agent(machine);
        let now = jiff::Timestamp::now().to_string();
        let taken = json!({ "state": "InProgress", "startTime": now, "executor": format!("bedplate-agent/{machine}") });
        self.says(&agent, name, &taken).unwrap();
        if let Some(state) = end {
            self.says(&agent, name, &json!({ "state": state, "completionTime": now, "reason": "Said" }))
                .unwrap();
        }
    }

    fn children(&self, parent: &str) -> Vec<String> {
        let selector = format!("bedplate.dev/parent={parent}");
        let found = self.kubectl(&["get", "mop", "-l", &selector, "-o", "name"]).unwrap();
        found.lines().map(|line| line.rsplit('/').next().unwrap().to_owned()).collect()
    }

    fn until_children(&self, parent: &str, expected: &[&str]) {
        wait::until(&format!("children {expected:?}"), PATIENCE, || {
            Ok((self.children(parent) == expected).then_some(()))
        })
        .unwrap_or_else(|error| {
            let said = self.controller.lock().unwrap().said();
            panic!(
                "{error:#}: {:?}\n{:#}\n{said}",
                self.children(parent),
                self.get(parent).unwrap_or_default()
            )
        });
    }
}

fn controller(kubernetes: &Kubernetes, place: &Directory, name: &str) -> Process {
    let kubeconfig = kubernetes.service_account("bedplate-system", "bedplate-controller").unwrap();
    let mut command = Command::new(pxed::binary("bedplate-controller").unwrap());
    command.arg("--kubeconfig").arg(kubeconfig);
    command.args(["--instance", name, "--listen", "127.0.0.1:0", "--log-format", "text"]);
    Process::spawn("bedplate-controller", &mut command, &place.path().join(format!("{name}.log"))).unwrap()
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec })
}

#[test]
fn o1_o5_o7_an_operation_is_pending_and_labelled_and_its_executor_finds_takes_and_ends_it() {
    let site = Site::shared();
    site.machine("o5", &json!({}), &json!({}));
    site.operation("o5", "o5", &json!({ "operationName": "reboot" }));
    let labelled = site.until("o5", "its labels", |operation| {
        operation["metadata"]["labels"]["bedplate.dev/machine"] == "o5"
            && operation["status"]["state"] == "Pending"
    });
    assert_eq!(labelled["metadata"]["labels"]["bedplate.dev/site"], "north");
    // As the agent asks for it.
    let own = ["get", "mop", "-l", "bedplate.dev/machine=o5", "-o", "name"];
    let found = site.kubernetes.kubectl(&site.agent("o5"), &own).unwrap();
    assert_eq!(found.trim(), "machineoperation.bedplate.dev/o5");
    site.carries_out("o5", "o5", Some("Complete"));
    let ended = site.until_state("o5", "Complete");
    assert_eq!(ended["status"]["reason"], "Said");
    // Power is pxed's, and the agent may not say anything about it.
    site.operation("o7", "o5", &json!({ "operationName": "powerCycle" }));
    site.until_state("o7", "Pending");
    let taken = json!({ "state": "InProgress", "executor": "x" });
    let refused =
        wait::until("the policy", PATIENCE, || Ok(site.says(&site.agent("o5"), "o7", &taken).err()));
    assert!(refused.unwrap().contains("does not report on powerOn"));
}

#[test]
fn o5_a_label_that_somebody_else_has_set_is_put_right() {
    let site = Site::shared();
    site.machine("wrong", &json!({}), &json!({}));
    let mut operation = object(
        "MachineOperation",
        "wrong",
        &json!({ "operationName": "reboot", "machineRef": { "name": "wrong" } }),
    );
    operation["metadata"]["labels"] = json!({ "bedplate.dev/machine": "another", "own": "kept" });
    site.apply(&operation);
    let labelled =
        site.until("wrong", "its label", |o| o["metadata"]["labels"]["bedplate.dev/machine"] == "wrong");
    assert_eq!(labelled["metadata"]["labels"]["own"], "kept");
}

#[test]
fn o2_an_operation_goes_after_its_time_whether_it_was_done_or_not() {
    let site = Site::shared();
    site.machine("o2", &json!({}), &json!({}));
    for (name, end) in [("o2-done", "Complete"), ("o2-failed", "Failed")] {
        site.operation(name, "o2", &json!({ "operationName": "reboot", "ttlSecondsAfterFinished": 1 }));
        site.operation(&format!("{name}-stays"), "o2", &json!({ "operationName": "reboot" }));
        site.until_state(name, "Pending");
        site.carries_out("o2", name, Some(end));
        site.carries_out("o2", &format!("{name}-stays"), Some(end));
        site.until_gone(name);
        assert!(site.get(&format!("{name}-stays")).is_some());
    }
}

#[test]
fn o3_children_begin_as_many_at_once_as_may_and_the_parent_sums_them_up() {
    let site = Site::shared();
    let row = json!({ "row": "o3" });
    for name in ["o3-a", "o3-b", "o3-c"] {
        site.machine(name, &row, &json!({}));
    }
    site.selecting(
        "all",
        "o3",
        &json!({ "maxParallel": 2, "ttlSecondsAfterFinished": 1, "parameters": { "drain": "true" } }),
    );
    site.until_children("all", &["all-o3-a", "all-o3-b"]);
    // Who comes later is not meant.
    site.machine("o3-later", &row, &json!({}));
    let child = site.until_state("all-o3-a", "Pending");
    assert_eq!(child["spec"]["parameters"], json!({ "drain": "true" }));
    let labels = &child["metadata"]["labels"];
    assert_eq!(
        (&labels["bedplate.dev/machine"], &labels["bedplate.dev/site"]),
        (&json!("o3-a"), &json!("north"))
    );
    let owner = &child["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["name"], &owner["controller"]), (&json!("all"), &json!(true)));
    site.carries_out("o3-a", "all-o3-a", Some("Complete"));
    site.until_children("all", &["all-o3-a", "all-o3-b", "all-o3-c"]);
    site.carries_out("o3-b", "all-o3-b", None);
    let counts = json!({ "total": 3, "pending": 1, "inProgress": 1, "complete": 1, "failed": 0 });
    let parent = site.until("all", "its sums", |parent| parent["status"]["counts"] == counts);
    assert_eq!(parent["status"]["state"], "InProgress");
    let machines = json!({ "begun": ["o3-b", "o3-c"], "complete": ["o3-a"] });
    assert_eq!(parent["status"]["machines"], machines);
    site.carries_out("o3-b", "all-o3-b", Some("Complete"));
    site.carries_out("o3-c", "all-o3-c", Some("Complete"));
    // O2: its time is the children's, too.
    site.until_gone("all");
    for child in ["all-o3-a", "all-o3-b", "all-o3-c"] {
        site.until_gone(child);
    }
}

#[test]
fn o3_after_the_failure_limit_no_more_begin_and_the_parent_fails_and_says_who() {
    let site = Site::shared();
    for name in ["limit-a", "limit-b", "limit-c"] {
        site.machine(name, &json!({ "row": "limit" }), &json!({}));
    }
    site.selecting("limit", "limit", &json!({ "maxParallel": 1, "failureLimit": 1 }));
    site.until_children("limit", &["limit-limit-a"]);
    site.carries_out("limit-a", "limit-limit-a", Some("Failed"));
    let parent = site.until_state("limit", "Failed");
    let status = &parent["status"];
    assert_eq!((&status["reason"], &status["counts"]["failed"]), (&json!("MachinesFailed"), &json!(1)));
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("limit-a") && message.contains("not begun on 2"), "{message}");
    assert_eq!(status["machines"]["waiting"], json!(["limit-b", "limit-c"]));
    assert_eq!(site.children("limit"), ["limit-limit-a"]);
}

#[test]
fn o3_a_selector_that_matches_nothing_is_complete_at_once() {
    let site = Site::shared();
    site.selecting("nobody", "nobody", &json!({}));
    let parent = site.until_state("nobody", "Complete");
    assert_eq!(parent["status"]["reason"], "NothingMatched");
}

#[test]
fn o3_a_parent_that_is_deleted_begins_no_more_and_what_was_begun_is_seen_to_its_end() {
    let site = Site::shared();
    for name in ["stop-a", "stop-b", "stop-c"] {
        site.machine(name, &json!({ "row": "stop" }), &json!({}));
    }
    site.selecting("stop", "stop", &json!({ "maxParallel": 2 }));
    site.until_children("stop", &["stop-stop-a", "stop-stop-b"]);
    site.until_state("stop-stop-a", "Pending");
    site.carries_out("stop-a", "stop-stop-a", None);
    site.kubectl(&["delete", "mop", "stop", "--wait=false"]).unwrap();
    site.until_gone("stop-stop-b");
    assert!(site.get("stop").is_some(), "it waits for what was begun");
    site.carries_out("stop-a", "stop-stop-a", Some("Complete"));
    site.until_gone("stop");
    site.until_gone("stop-stop-a");
    assert!(site.get("stop-stop-c").is_none());
}

#[test]
fn o3_a_child_that_somebody_deletes_is_not_made_again() {
    let site = Site::shared();
    for name in ["gone-a", "gone-b"] {
        site.machine(name, &json!({ "row": "gone" }), &json!({}));
    }
    site.selecting("gone", "gone", &json!({ "maxParallel": 1 }));
    site.until_children("gone", &["gone-gone-a"]);
    site.until("gone", "its sums", |parent| parent["status"]["machines"]["begun"] == json!(["gone-a"]));
    site.kubectl(&["delete", "mop", "gone-gone-a"]).unwrap();
    site.until_children("gone", &["gone-gone-b"]);
    site.carries_out("gone-b", "gone-gone-b", Some("Complete"));
    let parent = site.until_state("gone", "Failed");
    assert_eq!(parent["status"]["machines"], json!({ "complete": ["gone-b"], "failed": ["gone-a"] }));
}

#[test]
fn o3_another_controller_goes_on_where_one_was_killed() {
    let site = Site::shared();
    let names = ["kill-a", "kill-b", "kill-c", "kill-d"];
    for name in names {
        site.machine(name, &json!({ "row": "kill" }), &json!({}));
    }
    site.selecting("kill", "kill", &json!({ "maxParallel": 2 }));
    site.until_children("kill", &["kill-kill-a", "kill-kill-b"]);
    {
        let mut controller = site.controller.lock().unwrap();
        controller.kill();
        *controller = self::controller(&site.kubernetes, &site.place, "second");
    }
    site.machine("kill-later", &json!({ "row": "kill" }), &json!({}));
    for name in names {
        let child = format!("kill-{name}");
        site.until_state(&child, "Pending");
        site.carries_out(name, &child, Some("Complete"));
    }
    let parent = site.until_state("kill", "Complete");
    assert_eq!(parent["status"]["counts"]["total"], 4);
    assert_eq!(parent["status"]["machines"]["complete"], json!(names));
}

#[test]
fn an_operation_for_a_machine_that_is_not_there_fails_but_waits_for_one_that_comes_with_it() {
    let site = Site::shared();
    site.operation("nowhere", "nowhere", &json!({ "operationName": "reboot" }));
    site.operation("early", "early", &json!({ "operationName": "reboot" }));
    site.machine("early", &json!({}), &json!({}));
    let failed = site.until_state("nowhere", "Failed");
    assert_eq!(failed["status"]["reason"], "MachineNotFound");
    let early = site.until("early", "its site", |o| o["metadata"]["labels"]["bedplate.dev/site"] == "north");
    assert_eq!(early["status"]["state"], "Pending");
}

#[test]
fn o4_o7_what_nobody_takes_or_ends_in_its_time_fails_and_says_who_there_is() {
    let site = Site::shared();
    site.machine("alone", &json!({}), &json!({}));
    site.operation("dance", "alone", &json!({ "operationName": "dance", "timeoutSeconds": 2 }));
    let failed = site.until_state("dance", "Failed");
    let message = failed["status"]["message"].as_str().unwrap();
    assert_eq!(failed["status"]["reason"], "NoExecutor");
    assert!(message.contains("no bedplate-agent yet") && message.contains("no spec.bmc"), "{message}");
    // A program of somebody's own takes it in time.
    site.operation("own", "alone", &json!({ "operationName": "dance", "timeoutSeconds": 5 }));
    site.until_state("own", "Pending");
    let taken = json!({ "state": "InProgress", "executor": "dancer" });
    site.says(&site.kubernetes.admin(), "own", &taken).unwrap();
    let late = site.until_state("own", "Failed");
    assert_eq!(
        (&late["status"]["reason"], &late["status"]["executor"]),
        (&json!("TimedOut"), &json!("dancer"))
    );
    // While the Machine is paused no time runs.
    site.machine("paused", &json!({}), &json!({ "paused": true }));
    site.operation("held", "paused", &json!({ "operationName": "dance", "timeoutSeconds": 1 }));
    let held = site.until("held", "that it is held", |o| o["status"]["conditions"][0]["status"] == "True");
    assert_eq!(held["status"]["conditions"][0]["reason"], "MachinePaused");
    site.machine("paused", &json!({}), &json!({ "paused": false }));
    let failed = site.until_state("held", "Failed");
    assert_eq!(failed["status"]["reason"], "NoExecutor");
}

#[test]
fn the_controller_makes_no_operations_of_its_own_and_changes_nobodys_but_for_its_labels() {
    let site = Site::shared();
    site.machine("policy", &json!({}), &json!({}));
    site.operation("policy", "policy", &json!({ "operationName": "reboot" }));
    let own = site.kubernetes.service_account("bedplate-system", "bedplate-controller").unwrap();
    let refuses = |arguments: &[&str], words: &str| {
        let said = wait::until(words, PATIENCE, || {
            let said = site.kubernetes.kubectl(&own, arguments).err().map(|error| format!("{error:#}"));
            Ok(said.filter(|said| said.contains(words)))
        });
        said.unwrap();
    };
    let path = site.place.path().join("made.json");
    let made = object(
        "MachineOperation",
        "made",
        &json!({ "operationName": "reboot", "machineRef": { "name": "policy" } }),
    );
    std::fs::write(&path, made.to_string()).unwrap();
    refuses(
        &["create", "--dry-run=server", "-f", &path.display().to_string()],
        "makes no operations but for the Machines",
    );
    for patch in [
        r#"{"metadata":{"labels":{"a":"b"}}}"#,
        r#"{"metadata":{"annotations":{"a":"b"}}}"#,
        r#"{"metadata":{"finalizers":["example.org/stays"]}}"#,
    ] {
        refuses(
            &["patch", "mop", "policy", "--dry-run=server", "--type=merge", "-p", patch],
            "changes nothing of an operation but",
        );
    }
    // What is summed up is nobody's but the controller's.
    let sums = json!({ "machines": { "complete": ["policy"] } });
    let said =
        wait::until("the policy", PATIENCE, || Ok(site.says(&site.agent("policy"), "policy", &sums).err()));
    assert!(said.unwrap().contains("leaves the sums"));
    assert!(site.says(&site.pxed, "policy", &sums).is_err());
}

/// The Node of a host joins.
fn join(site: &Site, name: &str, version: u32) {
    site.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
        "spec": { "providerID": format!("bedplate://{name}") } }));
    let uid = site.kubectl(&["get", "node", name, "-o", "jsonpath={.metadata.uid}"]).unwrap();
    let applied = json!({ "name": name, "version": version, "slot": "a", "nodeUid": uid });
    machine_says(site, name, &json!({ "applied": applied }));
}

fn machine_says(site: &Site, name: &str, status: &Value) {
    let patch = json!({ "status": status }).to_string();
    site.kubectl(&["patch", "machine", name, "--subresource=status", "--type=merge", "-p", &patch]).unwrap();
}

fn until_machine(site: &Site, name: &str, what: &str, is: impl Fn(&Value) -> bool) {
    let found = wait::until(what, PATIENCE, || {
        let machine: Value = serde_json::from_str(&site.kubectl(&["get", "machine", name, "-o", "json"])?)?;
        Ok(is(&machine["status"]).then_some(()))
    });
    found.unwrap_or_else(|error| panic!("{error:#}\n{}", site.controller.lock().unwrap().said()));
}

#[test]
fn o8_the_node_that_was_drained_for_an_operation_is_deleted_so_that_the_host_is_paved_anew() {
    let site = Site::shared();
    let configuration = |maximum: u32| {
        let mut configuration = cluster::configuration("o8");
        configuration["spec"]["template"]["kubernetes"]["kubeletConfiguration"]["maxPods"] = json!(maximum);
        site.apply(&configuration);
    };
    configuration(20);
    site.machine("o8", &json!({}), &json!({ "configurationRef": { "name": "o8" } }));
    let enrolled = json!({ "type": "Enrolled", "status": "True", "reason": "Done", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    machine_says(site, "o8", &json!({ "conditions": [enrolled] }));
    until_machine(site, "o8", "version 1", |status| status["selected"]["version"] == 1);
    join(site, "o8", 1);
    until_machine(site, "o8", "its Node", |status| status["nodeRef"]["name"] == "o8");
    configuration(30);
    wait::until("version 2", PATIENCE, || Ok(site.kubectl(&["get", "mcv", "o8-v2"]).ok())).unwrap();

    site.operation(
        "o8",
        "o8",
        &json!({ "operationName": "applyConfiguration", "parameters": { "disruption": "allow" } }),
    );
    let uid = site.until_state("o8", "Pending")["metadata"]["uid"].as_str().unwrap().to_owned();
    site.carries_out("o8", "o8", None);
    // As the agent does by its kubelet's right, and as another operation would.
    let cordon = |by: &str| {
        let patch = json!({ "metadata": { "annotations": { "bedplate.dev/cordoned-by": by } }, "spec": { "unschedulable": true } });
        site.kubectl(&["patch", "node", "o8", "--type=merge", "-p", &patch.to_string()]).unwrap();
    };
    cordon(&uid);
    let drained = json!({ "type": "Drained", "status": "True", "reason": "PodsLeft", "message": "the Pods have left",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    site.says(&site.agent("o8"), "o8", &json!({ "conditions": [drained] })).unwrap();
    wait::until("the end of its Node", PATIENCE, || Ok(site.kubectl(&["get", "node", "o8"]).err())).unwrap();
    until_machine(site, "o8", "version 2 and no Node", |status| {
        status["selected"]["version"] == 2 && status.get("nodeRef").is_none()
    });
    join(site, "o8", 2);
    until_machine(site, "o8", "its new Node", |status| status["nodeRef"]["name"] == "o8");
    site.carries_out("o8", "o8", Some("Complete"));
    site.until_state("o8", "Complete");
    assert!(site.kubectl(&["get", "node", "o8"]).is_ok(), "it is deleted once");
}
