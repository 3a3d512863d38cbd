//! `bedplate` asks a real cluster for Machines, and makes and follows MachineOperations there.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "kubernetes/cluster.rs"]
mod cluster;

use std::process::{Command, Output};
use std::time::Duration;

use bedplate_tests::guard::{Directory, Process};
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::wait;
use cluster::{admin, api, create, machine};
use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

/// For anything on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn bedplate(arguments: &[&str]) -> Output {
    let program = bedplate_tests::pxed::binary("bedplate").unwrap();
    let kubeconfig = Kubernetes::shared().admin();
    Command::new(program).args(arguments).arg("--kubeconfig").arg(kubeconfig).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[tokio::test]
async fn machines_of_a_cluster_are_listed_and_shown() {
    let client = admin().await;
    let object = machine("cli-1");
    create(&client, &object).await;
    let status = json!({ "status": { "phase": "Booting", "boot": { "stage": "script", "startedTime": "2026-01-01T00:00:00.000000Z",
        "timeline": [{ "stage": "discover", "time": "2026-01-01T00:00:00.000000Z" },
            { "stage": "script", "time": "2026-01-01T00:00:04.250000Z" }] } } });
    api(&client, &object)
        .patch_status("cli-1", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();

    let list = bedplate(&["machine", "list"]);
    assert_eq!(list.status.code(), Some(0), "{}", text(&list));
    let line = text(&list).lines().find(|line| line.starts_with("cli-1 ")).unwrap().to_owned();
    assert!(line.contains("Booting") && line.contains("script"), "{line}");

    let show = text(&bedplate(&["machine", "show", "cli-1"]));
    assert!(show.contains("52:54:00:00:00:01 netboot") && show.contains("+4.250 s"), "{show}");
    assert!(!show.contains('\u{1b}'), "colour without a terminal");

    let json = bedplate(&["machine", "show", "cli-1", "--output", "json"]);
    let machine: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(machine["metadata"]["name"], "cli-1");

    let absent = bedplate(&["machine", "show", "cli-none"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(text(&absent).contains("hint: `bedplate machine list "), "{}", text(&absent));
    assert_eq!(bedplate(&["machine", "shw"]).status.code(), Some(64));
}

/// `bedplate` in the background, its output in files of its own.
struct Running {
    process: Process,
    directory: Directory,
}

impl Running {
    fn start(arguments: &str) -> Self {
        let program = bedplate_tests::pxed::binary("bedplate").unwrap();
        let directory = Directory::new("cli").unwrap();
        let out = directory.path().join("out");
        // The guard writes both streams into one file; the shell tells them apart.
        let mut command = Command::new("sh");
        command.args(["-c", "out=$1; shift; exec \"$@\" >\"$out\"", "sh"]).arg(&out).arg(program);
        command.args(arguments.split(' ')).arg("--kubeconfig").arg(Kubernetes::shared().admin());
        let process = Process::spawn("bedplate", &mut command, &directory.path().join("log")).unwrap();
        Self { process, directory }
    }

    fn out(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("out")).unwrap_or_default()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    fn wait_for_its_end(&mut self) {
        let ended = || Ok((!self.process.is_running()).then_some(()));
        wait::until("the end of bedplate", DEADLINE, ended).unwrap();
    }
}

/// The operation whose name begins so, once it is there.
fn made(prefix: &str) -> Value {
    let begins =
        |item: &Value| item["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(prefix));
    let found = || {
        let list = bedplate(&["operation", "list", "--output", "json"]);
        let list: Value = serde_json::from_slice(&list.stdout)?;
        Ok(list["items"].as_array().and_then(|items| items.iter().find(|item| begins(item)).cloned()))
    };
    wait::until(prefix, DEADLINE, found).unwrap()
}

async fn report(client: &Client, made: &Value, status: Value) {
    let name = made["metadata"]["name"].as_str().unwrap();
    let patch = Patch::Merge(json!({ "status": status }));
    api(client, made).patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_is_made_in_a_cluster_and_followed_to_its_end() {
    let client = admin().await;
    create(&client, &machine("cli-2")).await;
    let mut all = Running::start("operation watch");

    let mut waiting = Running::start("power cycle cli-2 --wait --boot network --timeout 120");
    let cycle = made("cli-2-power-cycle-");
    assert_eq!(
        cycle["spec"],
        json!({ "operationName": "powerCycle", "machineRef": { "name": "cli-2" }, "timeoutSeconds": 120,
            "parameters": { "bootSource": "network" } })
    );
    report(&client, &cycle, json!({ "state": "InProgress", "message": "waiting until it is off" })).await;
    let progress = || Ok(waiting.log().contains("InProgress: waiting until it is off").then_some(()));
    wait::until("progress", DEADLINE, progress).unwrap();
    report(&client, &cycle, json!({ "state": "Complete", "reason": "PowerCycled", "message": "took 9 s" }))
        .await;
    waiting.wait_for_its_end();
    assert!(
        waiting.out().ends_with(" powerCycle of cli-2 Complete (PowerCycled): took 9 s\n"),
        "{}",
        waiting.out()
    );
    assert!(!waiting.log().contains('\u{1b}') && !waiting.log().contains('\r'), "{}", waiting.log());

    let seen = || Ok(all.out().contains("Complete (PowerCycled)").then_some(()));
    wait::until("the change in `operation watch`", DEADLINE, seen).unwrap();
    assert!(all.process.is_running() && all.out().contains("InProgress"), "{}", all.out());

    let name = cycle["metadata"]["name"].as_str().unwrap();
    let watched = bedplate(&["operation", "watch", name]);
    assert_eq!(watched.status.code(), Some(0), "{}", text(&watched));
    let list = text(&bedplate(&["operation", "list"]));
    assert!(list.lines().any(|line| line.starts_with(name) && line.contains("PowerCycled")), "{list}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_operation_of_a_cluster_is_a_failure_with_its_remedy() {
    let client = admin().await;
    create(&client, &machine("cli-3")).await;
    let made_one = bedplate(&["power", "off", "cli-3", "--grace-period", "60", "--output", "json"]);
    assert_eq!(made_one.status.code(), Some(0), "{}", text(&made_one));
    let off: Value = serde_json::from_slice(&made_one.stdout).unwrap();
    assert_eq!(off["spec"]["parameters"], json!({ "gracePeriodSeconds": "60" }));
    let failed = json!({ "state": "Failed", "reason": "BMCUnreachable", "message": "no route to 10.9.0.9" });
    report(&client, &off, failed).await;
    let watched = bedplate(&["operation", "watch", off["metadata"]["name"].as_str().unwrap()]);
    assert_eq!(watched.status.code(), Some(1), "{}", text(&watched));
    let said = text(&watched);
    assert!(
        said.contains("failed: BMCUnreachable: no route to 10.9.0.9") && said.contains("hint: "),
        "{said}"
    );
}

#[test]
fn operations_of_a_cluster_are_for_machines_that_are_there_or_for_a_selector() {
    let absent = bedplate(&["power", "on", "cli-none"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(text(&absent).contains("hint: `bedplate machine list "), "{}", text(&absent));
    let line = [
        "operation",
        "create",
        "cliReboot",
        "--selector",
        "rack=a,!spare",
        "--max-parallel",
        "2",
        "--ttl",
        "9",
    ];
    let all = bedplate(&line);
    assert_eq!(all.status.code(), Some(0), "{}", text(&all));
    let reboot = made("cli-reboot-");
    assert_eq!(
        reboot["spec"]["machineSelector"],
        json!({ "matchLabels": { "rack": "a" }, "matchExpressions": [{ "key": "spare", "operator": "DoesNotExist" }] })
    );
    assert_eq!(
        (&reboot["spec"]["maxParallel"], &reboot["spec"]["ttlSecondsAfterFinished"]),
        (&json!(2), &json!(9))
    );
    let refused = bedplate(&["operation", "create", "not a name", "--machine", "cli-none"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused).contains("operationName"), "{}", text(&refused));
}

#[tokio::test(flavor = "multi_thread")]
async fn power_of_a_machine_of_a_cluster_is_shown() {
    let client = admin().await;
    let object = machine("cli-4");
    create(&client, &object).await;
    let status = json!({ "status": { "power": { "state": "Off", "attempts": 1 } } });
    let patch = Patch::Merge(status);
    api(&client, &object).patch_status("cli-4", &PatchParams::default(), &patch).await.unwrap();
    let shown = text(&bedplate(&["power", "status", "cli-4"]));
    assert!(shown.contains("Power         Off") && shown.contains("1 of 5"), "{shown}");
    let json = bedplate(&["power", "status", "cli-4", "-o", "json"]);
    let machine: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(machine["status"]["power"]["state"], "Off");
}
