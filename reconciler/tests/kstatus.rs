//! Result that kstatus (sigs.k8s.io/cli-utils, pkg/kstatus/status) computes for each kind: current, in
//! progress, or failed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
mod server;

use std::sync::Arc;

use bedplate_api::operation::MachineOperationStatus;
use bedplate_process::lease::Tenure;
use bedplate_reconciler::{configuration, image, machine, operation};
use bedplate_rules::operation::{End, ended};
use jiff::Timestamp;
use serde_json::{Value, json};

use self::server::{Asked, Objects, Server, body, object};

const CONFIGURATION: &str = "PATCH /machineconfigurations/w/status";
const VERSION: &str = "PATCH /machineconfigurationversions/w-v1/status";

/// `status.Compute` of kstatus, for a kind that it does not know.
fn kstatus(object: &Value) -> &'static str {
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return "Terminating";
    }
    let observed = &object["status"]["observedGeneration"];
    if !observed.is_null() && *observed != object["metadata"]["generation"] {
        return "InProgress";
    }
    let conditions: Vec<_> = object["status"]["conditions"].as_array().into_iter().flatten().collect();
    for condition in conditions.iter().filter(|condition| condition["status"] == "True") {
        match condition["type"].as_str().unwrap() {
            "Reconciling" => return "InProgress",
            "Stalled" => return "Failed",
            _ => {}
        }
    }
    match conditions.iter().find(|condition| condition["type"] == "Ready") {
        Some(ready) if ready["status"] != "True" => "InProgress",
        Some(_) | None => "Current",
    }
}

/// A status that no program has written, as the definitions have it.
fn unwritten() -> Value {
    json!({ "observedGeneration": -1 })
}

/// Server-side apply: fields that are not named stay.
fn applied(mut object: Value, status: &Value) -> Value {
    object["status"].as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
    object
}

fn written(asked: &Asked) -> (u16, Value) {
    (200, asked.body.clone())
}

/// Reconciles the configuration once; it and its version with what was written.
async fn reconciled(
    mut given: Value,
    version: Option<Value>,
    machines: Vec<Value>,
) -> (Value, Option<Value>) {
    let server = Server::default();
    let objects = Objects {
        configurations: vec![given.clone()],
        versions: version.clone().into_iter().collect(),
        machines,
        ..Objects::default()
    };
    let answer = |asked: &Asked| match asked.line.as_str() {
        "GET /machines" => server::machine_list(&[]),
        line if line.starts_with("GET") => server::refusal(404, "not there"),
        _ => written(asked),
    };
    let world = server.world(&objects, Tenure::always(), answer);
    // An edit that is refused is an error, too.
    let _ = configuration::reconcile(Arc::new(object(&given)), world).await;
    let asked = server.asked();
    given["status"] = body(&asked, CONFIGURATION)["status"].clone();
    let counted = asked.iter().find(|asked| asked.line == VERSION).map(|asked| asked.body["status"].clone());
    let version =
        version.map(|version| counted.into_iter().fold(version, |version, status| applied(version, &status)));
    (given, version)
}

fn configuration(template: &Value) -> Value {
    let mut given = server::configuration(1, &unwritten());
    given["spec"]["template"].as_object_mut().unwrap().extend(template.as_object().unwrap().clone());
    given
}

fn version_of(given: &Value) -> Value {
    let mut version = server::version(1, &json!({ "status": unwritten() }));
    version["spec"]["template"] = given["spec"]["template"].clone();
    version
}

#[tokio::test]
async fn object_that_was_not_reconciled_yet_is_in_progress() {
    let new = configuration(&json!({}));
    assert_eq!(kstatus(&new), "InProgress");
    assert_eq!(kstatus(&version_of(&new)), "InProgress");
}

#[tokio::test]
async fn configuration_is_current_when_its_machines_have_its_newest_version() {
    let given = configuration(&json!({}));
    let version = Some(version_of(&given));
    let (idle, counted) = reconciled(given.clone(), version.clone(), Vec::new()).await;
    assert_eq!((kstatus(&idle), kstatus(&counted.unwrap())), ("Current", "Current"), "{idle}");
    let mut edited = idle.clone();
    edited["metadata"]["generation"] = json!(2);
    assert_eq!(kstatus(&edited), "InProgress");
    // A Machine that is being paved.
    let selected = json!({ "selected": { "name": "w", "version": 1, "source": "Reference" } });
    let (moves, _) = reconciled(given, version, vec![server::machine(&selected)]).await;
    assert_eq!(kstatus(&moves), "InProgress", "{moves}");
    let mut deleted = idle;
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(kstatus(&deleted), "Terminating");
}

#[tokio::test]
async fn configuration_of_which_no_host_can_make_a_node_has_failed() {
    let used = json!({ "deployed": true, "machines": 0 });
    let version = server::version(1, &json!({ "status": used }));
    let invalid = configuration(&json!({ "sysctls": { "a b": "1" } }));
    let (refused, _) = reconciled(invalid, Some(version), Vec::new()).await;
    assert_eq!(kstatus(&refused), "Failed", "{refused}");
}

#[tokio::test]
async fn version_and_configuration_wait_for_a_registry() {
    bedplate_process::tls::install_crypto_provider();
    // Nothing listens there.
    let image = json!({ "reference": "127.0.0.1:1/node:1", "allowTag": true });
    let given = configuration(&json!({ "image": image }));
    let (unasked, version) = reconciled(given.clone(), Some(version_of(&given)), Vec::new()).await;
    let mut version = version.unwrap();
    assert_eq!((kstatus(&unasked), kstatus(&version)), ("InProgress", "InProgress"), "{unasked} {version}");
    let server = Server::default();
    let world = server.world(&Objects::default(), Tenure::always(), written);
    image::reconcile(Arc::new(object(&version)), world).await.expect_err("no answer");
    version["status"] = body(&server.asked(), VERSION)["status"].clone();
    let (asked, _) = reconciled(given, Some(version.clone()), Vec::new()).await;
    assert_eq!((kstatus(&asked), kstatus(&version)), ("InProgress", "InProgress"), "{asked} {version}");
}

#[tokio::test]
async fn machine_that_needs_a_user_has_failed_and_a_ready_one_is_current() {
    let is = |type_: &str, status: bool, reason: &str| {
        json!({ "type": type_, "status": if status { "True" } else { "False" }, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" })
    };
    let enrolled = is("Enrolled", true, "Enrolled");
    let paved = |is_paved: bool, reason: &str| {
        json!([enrolled, is("Paved", is_paved, reason), is("NodeReady", is_paved, "NodeReady")])
    };
    let back = json!({ "from": { "name": "w", "version": 1 }, "to": { "name": "w", "version": 2 }, "message": "late",
        "time": "2026-01-01T00:00:00Z" });
    for (conditions, rolled_back, expected) in [
        (json!([is("PoweredOn", false, "PoweringOn")]), None, "InProgress"),
        (json!([is("PoweredOn", false, "PowerOnAttemptsExhausted")]), None, "Failed"),
        (json!([is("Booted", false, "DuplicateMACAddress")]), None, "Failed"),
        (json!([is("Booted", false, "BootStalled")]), None, "Failed"),
        (paved(false, "Joining"), None, "InProgress"),
        (paved(false, "SecretNotFound"), None, "Failed"),
        (paved(true, "Applied"), Some(back), "Failed"),
        (paved(true, "Applied"), None, "Current"),
    ] {
        let selected = json!({ "name": "w", "version": 1, "source": "Reference" });
        let applied = json!({ "name": "w", "version": 1, "slot": "a", "nodeUID": "n" });
        let mut given =
            server::machine(&json!({ "observedGeneration": -1, "selected": selected, "applied": applied,
            "nodeRef": { "name": "a", "uid": "n" }, "conditions": conditions, "rolledBack": rolled_back }));
        assert_eq!(kstatus(&given), "InProgress");
        let annotations = json!({ "bedplate.dev/machine-configuration": "w", "bedplate.dev/machine-configuration-version": "1" });
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "a", "uid": "n", "annotations": annotations },
            "spec": { "providerID": "bedplate://a" },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        let objects = Objects {
            configurations: vec![server::configuration(1, &json!({}))],
            versions: vec![server::version(1, &json!({ "status": { "deployed": true, "machines": 1 } }))],
            machines: vec![given.clone()],
            nodes: vec![node],
            ..Objects::default()
        };
        let server = Server::default();
        let there = given.clone();
        let world = server.world(&objects, Tenure::always(), move |_| (200, there.clone()));
        machine::reconcile(Arc::new(object(&given)), world).await.unwrap();
        let asked = server.asked();
        // Server-side apply: conditions of others stay.
        let mut status = body(&asked, "PATCH /machines/a/status")["status"].clone();
        status["conditions"].as_array_mut().unwrap().extend(conditions.as_array().unwrap().clone());
        given = self::applied(given, &status);
        assert_eq!(kstatus(&given), expected, "{given}");
    }
}

#[tokio::test]
async fn o1_operation_is_in_progress_until_its_end() {
    let given = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation",
        "metadata": { "name": "x", "uid": "uid-x", "resourceVersion": "7", "generation": 1,
            "creationTimestamp": Timestamp::now().to_string() },
        "spec": { "operationName": "reboot", "machineRef": { "name": "a" } }, "status": unwritten() });
    assert_eq!(kstatus(&given), "InProgress");
    let server = Server::default();
    let objects = Objects { machines: vec![server::machine(&json!({}))], ..Objects::default() };
    let there = given.clone();
    let world = server.world(&objects, Tenure::always(), move |_| (200, there.clone()));
    operation::reconcile(Arc::new(object(&given)), world).await.unwrap();
    let pending = body(&server.asked(), "PATCH /machineoperations/x/status")["status"].clone();
    let given = applied(given, &pending);
    assert_eq!(kstatus(&given), "InProgress", "{given}");
    for (complete, expected) in [(true, "Current"), (false, "Failed")] {
        let before: MachineOperationStatus = object(&given["status"]);
        let end = End { complete, reason: "R", message: "" };
        let mut over = given.clone();
        over["status"] = json!(ended(before, end, Some(1), Timestamp::now()));
        assert_eq!(kstatus(&over), expected, "{over}");
    }
}
