//! The commands against a fake pxed: requests, output, errors.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::arguments::parse;
use crate::command::run;
use crate::error::RunError;

/// Requests: method and path, and the body.
type Asked = Arc<Mutex<Vec<(String, Value)>>>;

/// Serves the answers of `answer`, which gets the number of earlier requests of the same kind.
fn pxed(
    answer: impl Fn(&str, &Value, usize) -> (u16, Value) + Send + 'static,
) -> (tempfile::TempDir, PathBuf, Asked) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pxed.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let asked = Asked::default();
    let recorded = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // Recorded before the answer, because the client may look as soon as it has the answer.
            request(&stream.unwrap(), |what, body| {
                let before = recorded.lock().unwrap().iter().filter(|(other, _)| other == what).count();
                recorded.lock().unwrap().push((what.to_owned(), body.clone()));
                answer(what, body, before)
            });
        }
    });
    (directory, path, asked)
}

fn request(stream: &UnixStream, answer: impl Fn(&str, &Value) -> (u16, Value)) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    let mut length = 0;
    while reader.read_line(&mut head).ok()? > 2 {
        let line = head.lines().next_back()?.to_lowercase();
        if let Some(text) = line.strip_prefix("content-length: ") {
            length = text.parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let what = head.lines().next()?.strip_suffix(" HTTP/1.1")?.to_owned();
    let (code, object) = answer(&what, &body);
    let text = object.to_string();
    let head = format!("HTTP/1.1 {code} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
    { stream }.write_all((head + &text).as_bytes()).ok()
}

fn bedplate(socket: &Path, line: &str) -> (String, Result<(), RunError>) {
    let line = format!("bedplate --socket {} {line}", socket.display());
    let cli = parse(line.split(' ').map(OsString::from).collect()).unwrap();
    let mut out = Vec::new();
    let result = run(&cli, "bedplate".as_ref(), &mut out);
    (String::from_utf8(out).unwrap(), result)
}

fn refusal(reason: &str) -> Value {
    json!({ "reason": reason, "message": "no" })
}

fn cycle(status: &Value) -> Value {
    json!({
        "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation", "metadata": { "name": "a-power-cycle-1" },
        "spec": { "operationName": "powerCycle", "machineRef": { "name": "a" } }, "status": status
    })
}

/// Returns a pxed that knows Machine `a`. Its operation ends with `last` at the second poll.
fn executing(last: Value) -> (tempfile::TempDir, PathBuf, Asked) {
    pxed(move |what, _, before| match what {
        "GET /v1/machines/a" => (200, json!({ "spec": { "paused": false } })),
        "POST /v1/operations" => (201, cycle(&Value::Null)),
        "GET /v1/operations/a-power-cycle-1" if before == 0 => {
            (200, cycle(&json!({ "state": "InProgress" })))
        }
        "GET /v1/operations/a-power-cycle-1" => (200, cycle(&last)),
        _ => (404, refusal("NotFound")),
    })
}

#[test]
fn a_power_command_makes_an_operation_and_says_how_to_follow_it() {
    let (_directory, socket, asked) = executing(Value::Null);
    let (out, result) = bedplate(&socket, "power cycle a --boot network --timeout 90");
    result.unwrap();
    let again = format!("bedplate operation watch a-power-cycle-1 --socket {}\n", socket.display());
    assert_eq!(out, format!("MachineOperation a-power-cycle-1 created; to follow it: {again}"));
    let posted = asked.lock().unwrap().last().unwrap().clone();
    assert_eq!(posted.0, "POST /v1/operations");
    assert_eq!(posted.1["metadata"], json!({ "generateName": "a-power-cycle-" }));
    assert_eq!(
        posted.1["spec"],
        json!({ "operationName": "powerCycle", "machineRef": { "name": "a" }, "timeoutSeconds": 90,
            "parameters": { "bootSource": "network" } })
    );
}

#[test]
fn waiting_ends_with_the_operation() {
    let done = json!({ "state": "Complete", "reason": "PowerCycled", "message": "off and on within 9 s" });
    let (_directory, socket, _asked) = executing(done);
    let (out, result) = bedplate(&socket, "power cycle a --wait");
    result.unwrap();
    assert_eq!(out, "a-power-cycle-1: powerCycle of a Complete (PowerCycled): off and on within 9 s\n");
}

#[test]
fn a_failed_operation_is_a_failure_with_reason_message_and_remedy() {
    let failed = json!({ "state": "Failed", "reason": "AuthenticationFailed", "message": "the BMC does not take them" });
    let (_directory, socket, _asked) = executing(failed);
    let (out, result) = bedplate(&socket, "power cycle a --wait --output json");
    let error = result.unwrap_err();
    assert_eq!(error.to_string(), "a-power-cycle-1 failed: AuthenticationFailed: the BMC does not take them");
    assert!(error.hint().unwrap().contains("credentialsSecretRef"));
    let printed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(printed["status"]["state"], "Failed", "JSON shows it all the same");
}

#[test]
fn a_pxed_that_is_away_for_a_moment_is_asked_again() {
    let (_directory, socket, asked) = pxed(|what, _, before| match (what, before) {
        ("GET /v1/operations/a-power-cycle-1", 0) => (200, cycle(&json!({ "state": "InProgress" }))),
        ("GET /v1/operations/a-power-cycle-1", 1) => (500, Value::Null),
        _ => (200, cycle(&json!({ "state": "Complete" }))),
    });
    bedplate(&socket, "operation watch a-power-cycle-1").1.unwrap();
    assert_eq!(asked.lock().unwrap().len(), 3);
}

#[test]
fn waiting_for_an_operation_ends() {
    let (_directory, socket, _asked) =
        executing(json!({ "state": "Pending", "message": "Machine a is paused" }));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let desk = crate::desk::Desk::Pxed(socket);
    let limit = Some(std::time::Duration::from_millis(1_500));
    let error =
        runtime.block_on(crate::follow_operation::to_the_end(&desk, "a-power-cycle-1", limit)).unwrap_err();
    assert!(error.to_string().contains("Pending: Machine a is paused"), "{error}");
    assert!(error.hint().unwrap().contains("operation watch a-power-cycle-1"));
}

#[test]
fn nothing_is_made_for_a_machine_that_is_not_there() {
    let (_directory, socket, asked) = pxed(|_, _, _| (404, refusal("NotFound")));
    let (_, result) = bedplate(&socket, "power on b");
    assert!(result.unwrap_err().hint().unwrap().contains("machine list"));
    assert!(asked.lock().unwrap().iter().all(|(what, _)| what.starts_with("GET ")));
}

#[test]
fn a_wrong_selector_is_wrong_usage() {
    let (_directory, socket, asked) = pxed(|_, _, _| (404, refusal("NotFound")));
    let (_, result) = bedplate(&socket, "operation create reboot --selector =b");
    assert!(result.unwrap_err().is_usage());
    assert!(asked.lock().unwrap().is_empty());
}

#[test]
fn a_pxed_that_breaks_off_may_have_made_the_operation() {
    let (_directory, socket, _asked) = pxed(|what, _, _| match what {
        "GET /v1/machines/a" => (200, json!({})),
        _ => (502, Value::Null),
    });
    let (_, result) = bedplate(&socket, "power cycle a");
    let error = result.unwrap_err();
    assert!(error.to_string().contains("unknown whether"), "{error}");
    assert!(error.hint().unwrap().contains("operation list"), "{error}");
}

/// A kubeconfig for an API server that listens here.
fn kubeconfig(listener: &std::net::TcpListener) -> (tempfile::TempDir, std::path::PathBuf) {
    let (directory, address) = (tempfile::tempdir().unwrap(), listener.local_addr().unwrap());
    let file = directory.path().join("kubeconfig");
    let config = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "a", "users": [],
        "clusters": [{ "name": "a", "cluster": { "server": format!("http://{address}") } }],
        "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "" } }] });
    std::fs::write(&file, config.to_string()).unwrap();
    (directory, file)
}

#[test]
fn only_a_broken_connection_may_have_created_the_operation() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (_directory, file) = kubeconfig(&listener);
    let line = format!("bedplate operation create reboot --machine a --kubeconfig {}", file.display());
    let create = || {
        let cli = parse(line.split(' ').map(OsString::from).collect()).unwrap();
        run(&cli, "bedplate".as_ref(), &mut Vec::new()).unwrap_err()
    };
    let server = std::thread::spawn(move || {
        // The server reads the request, and does not answer.
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
    });
    let error = create();
    assert!(error.to_string().contains("unknown whether"), "{error:?}");
    server.join().unwrap();
    let error = create();
    assert!(error.to_string().contains("cannot create machineoperations"), "{error:?}");
}

#[test]
fn missing_kinds_and_missing_object_are_distinguished() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (_directory, file) = kubeconfig(&listener);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let body = "404 page not found\n";
            let head =
                format!("HTTP/1.1 404 X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all((head + body).as_bytes());
        }
    });
    for (line, kind) in [
        ("machine list", "machines"),
        ("machine show a", "machines"),
        ("machine explain a", "machines"),
        ("config show a", "machineconfigurations"),
        ("config rollback a --yes", "machineconfigurations"),
        ("operation list", "machineoperations"),
    ] {
        let whole = format!("bedplate {line} --kubeconfig {}", file.display());
        let cli = parse(whole.split(' ').map(OsString::from).collect()).unwrap();
        let error = run(&cli, "bedplate".as_ref(), &mut Vec::new()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the cluster rejected the request: {kind}.bedplate.dev is not served"),
            "{line}"
        );
        assert!(error.hint().unwrap().contains("`bedplate install`"), "{line}");
    }
}

#[test]
fn a_pxed_of_a_cluster_is_left_for_the_cluster() {
    let (_directory, socket, _asked) = pxed(|what, _, _| match what {
        "GET /v1/machines/a" => (200, json!({})),
        _ => (409, refusal("UseKubernetesAPI")),
    });
    let (_, result) = bedplate(&socket, "power on a");
    assert!(result.unwrap_err().hint().unwrap().contains("--context"));
    let (_, result) = bedplate(&socket, "config rollback a --yes");
    let error = result.unwrap_err();
    assert!(!error.to_string().contains("manifests"), "{error}");
    assert!(error.hint().unwrap().contains("Name the cluster with --context"), "{error}");
}

#[test]
fn operations_are_listed_and_an_unknown_one_is_not_waited_for() {
    let (_directory, socket, _asked) = pxed(|what, _, _| match what {
        "GET /v1/operations" => (200, json!({ "items": [cycle(&json!({ "state": "Complete" }))] })),
        _ => (404, refusal("OperationNotFound")),
    });
    let (out, result) = bedplate(&socket, "operation list");
    result.unwrap();
    assert!(
        out.lines().nth(1).unwrap().starts_with("a-power-cycle-1   powerCycle   a         Complete"),
        "{out}"
    );
    let (out, _) = bedplate(&socket, "operation list -o json");
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["items"].as_array().map(Vec::len), Some(1));
    let (_, result) = bedplate(&socket, "operation watch gone");
    assert!(matches!(result.unwrap_err(), RunError::NoOperation { .. }));
}

/// Returns a pxed with an operation that appears, continues and is deleted.
fn passing() -> (tempfile::TempDir, PathBuf, Asked) {
    pxed(|what, _, before| match (what, before) {
        ("GET /v1/operations", 0) => (200, json!({ "items": [cycle(&Value::Null)] })),
        ("GET /v1/operations", 1) => (200, json!({ "items": [cycle(&json!({ "state": "InProgress" }))] })),
        ("GET /v1/operations", 2) => (200, json!({ "items": [] })),
        _ => (404, refusal("NotFound")),
    })
}

#[test]
fn json_watch_reports_deleted_operations() {
    let (_directory, socket, _asked) = passing();
    let (out, _) = bedplate(&socket, "operation watch -o json");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<_> =
        lines.iter().map(|line| (line["type"].as_str(), line["kind"].as_str(), &line["object"])).collect();
    let there = (None, Some("MachineOperation"), &Value::Null);
    assert_eq!(events, [there, there, (Some("DELETED"), None, &lines[1])]);
}

#[test]
fn all_operations_are_watched_for_as_long_as_pxed_answers() {
    let (_directory, socket, _asked) = passing();
    let (out, result) = bedplate(&socket, "operation watch");
    assert!(matches!(result.unwrap_err(), RunError::Pxed(_)));
    let lines: Vec<&str> = out.lines().map(|line| line.split_once(' ').unwrap().1).collect();
    assert_eq!(
        lines,
        [
            "a-power-cycle-1: powerCycle of a Pending",
            "a-power-cycle-1: powerCycle of a InProgress",
            "a-power-cycle-1: deleted"
        ]
    );
}

/// A configuration in the form of an answer of a standalone pxed.
fn workers() -> Value {
    let template = |version: &str| json!({ "image": { "reference": "registry.example/node:1", "allowTag": true }, "kubernetes": { "version": version } });
    let version = |number: u32, kubernetes: &str| {
        json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfigurationVersion",
            "metadata": { "name": format!("workers-v{number}") }, "status": { "deployed": number == 1 },
            "spec": { "configurationName": "workers", "version": number, "template": template(kubernetes) } })
    };
    json!({ "configuration": { "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration",
            "metadata": { "name": "workers" }, "spec": { "template": template("v1.34.4") } },
        "origin": "/etc/bedplate/machines.d/workers.yaml", "machines": [],
        "versions": [version(2, "v1.34.4"), version(1, "v1.33.1")] })
}

#[test]
fn standalone_pxed_shows_versions_and_rollback_points_to_the_manifest() {
    let (_directory, path, asked) = pxed(|_, _, _| (200, workers()));
    let (history, result) = bedplate(&path, "config history workers");
    assert!(result.is_ok() && history.contains("kubernetes.version v1.33.1 -> v1.34.4"), "{history}");
    let (diff, _) = bedplate(&path, "config diff workers");
    assert!(diff.contains("-  version: v1.33.1\n+  version: v1.34.4\n"), "{diff}");
    let (_, refused) = bedplate(&path, "config rollback workers --yes");
    let error = refused.unwrap_err();
    assert!(error.to_string().contains("reads its configurations from manifests"), "{error}");
    assert!(error.hint().unwrap().contains("--context") && !error.is_usage(), "{error}");
    assert!(asked.lock().unwrap().iter().all(|(what, _)| what == "GET /v1/configurations/workers"));
}

#[test]
fn a_pxed_says_what_its_machines_wait_for_too() {
    let machine = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "a" },
        "spec": { "provider": "manual" } });
    let (_directory, path, _) = pxed(move |what, _, _| {
        (
            200,
            if what == "GET /v1/machines" { json!({ "items": [machine.clone()] }) } else { machine.clone() },
        )
    });
    let (all, result) = bedplate(&path, "machine explain");
    assert!(result.is_ok() && all.starts_with("a  waits for a user\n"), "{all}");
    assert_eq!(bedplate(&path, "machine explain a").0, all);
}
