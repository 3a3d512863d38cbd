//! `bedplate` asks a real cluster for Machines, and makes and follows MachineOperations there.

use std::process::{Command, Output};
use std::time::Duration;

use bedplate_tests::guard::{Directory, Process};
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::wait;
use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::cluster::{admin, api, configuration, create, machine, version, with};

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
    let status = json!({ "status": { "phase": "Booting", "boot": { "stage": "Script", "startTime": "2026-01-01T00:00:00.000000Z",
        "timeline": [{ "stage": "Discover", "time": "2026-01-01T00:00:00.000000Z" },
            { "stage": "Script", "time": "2026-01-01T00:00:04.250000Z" }] } } });
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
    assert!(!show.contains('\u{1b}'), "color without a terminal");

    let json = bedplate(&["machine", "show", "cli-1", "--output", "json"]);
    let machine: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(machine["metadata"]["name"], "cli-1");

    let absent = bedplate(&["machine", "show", "cli-none"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(text(&absent).contains("hint: see `bedplate machine list "), "{}", text(&absent));
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
    wait::until_asked(prefix, DEADLINE, found).unwrap()
}

async fn report(client: &Client, made: &Value, mut status: Value) {
    let name = made["metadata"]["name"].as_str().unwrap();
    if ["Complete", "Failed"].iter().any(|end| status["state"] == *end) {
        status["conditions"] = json!([{ "type": status["state"], "status": "True", "reason": status["reason"], "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    }
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
    let seen = || Ok(all.out().contains("InProgress: waiting until it is off").then_some(()));
    wait::until("the progress in `operation watch`", DEADLINE, seen).unwrap();
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
    assert!(all.process.is_running(), "{}", all.out());

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
fn operations_of_a_cluster_need_an_existing_machine_or_a_selector() {
    let absent = bedplate(&["power", "on", "cli-none"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(text(&absent).contains("hint: see `bedplate machine list "), "{}", text(&absent));
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
    assert_eq!(refused.status.code(), Some(64));
    assert!(text(&refused).contains("<OPERATION>"), "{}", text(&refused));
    // A refusal of the API server is reported with its field.
    let many: Vec<String> = (0..65).map(|number| format!("--parameter=k{number}=v")).collect();
    let line = ["operation", "create", "reboot", "--machine", "cli-none"].into_iter();
    let refused = bedplate(&line.chain(many.iter().map(String::as_str)).collect::<Vec<_>>());
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused).contains("spec.parameters"), "{}", text(&refused));
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
    assert!(shown.contains("Power        Off") && shown.contains("1 of 5"), "{shown}");
    let json = bedplate(&["power", "status", "cli-4", "-o", "json"]);
    let machine: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(machine["status"]["power"]["state"], "Off");
}

/// A MachineConfiguration of a cluster with versions 1 and 2, of which the test is the controller, and a Machine that runs 2.
async fn with_versions(client: &Client, name: &str, machine_name: &str) {
    let mut object = configuration(name);
    object["spec"]["template"]["sysctls"] = json!({ "kernel.panic": "2" });
    let made = create(client, &object).await;
    for number in [1, 2] {
        let mut version = version(name, number);
        version["metadata"]["ownerReferences"] = json!([{ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration",
            "name": name, "uid": made.metadata.uid, "controller": true }]);
        version["spec"]["template"]["sysctls"] = json!({ "kernel.panic": number.to_string() });
        create(client, &version).await;
        report(client, &version, json!({ "deployed": true, "deployedTime": "2026-01-01T00:00:00Z" })).await;
    }
    report(client, &object, json!({ "latestVersion": 2, "deployedVersion": 2 })).await;
    let mut machine = machine(machine_name);
    machine["spec"]["paused"] = json!(true);
    create(client, &machine).await;
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": machine_name } });
    let uid = Kubernetes::shared().objects().unwrap().apply(&node).unwrap()["metadata"]["uid"].clone();
    let status = json!({ "selected": { "name": name, "version": 2, "source": "Selector" },
        "applied": { "name": name, "version": 2, "slot": "a", "nodeUID": uid }, "nodeRef": { "name": machine_name, "uid": uid } });
    report(client, &machine, status).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_of_a_cluster_are_shown_with_what_they_changed() {
    let client = admin().await;
    with_versions(&client, "cli-shown", "cli-5").await;
    let list = text(&bedplate(&["config", "list"]));
    assert!(list.lines().any(|line| line.starts_with("cli-shown ") && line.contains("v2")), "{list}");
    let show = text(&bedplate(&["config", "show", "cli-shown"]));
    assert!(show.contains("cli-shown-v1") && show.contains("selected v2, by Selector"), "{show}");
    let history = text(&bedplate(&["config", "history", "cli-shown"]));
    let newest = history.lines().find(|line| line.starts_with("v2 ")).unwrap_or_else(|| panic!("{history}"));
    assert!(newest.ends_with("  1          sysctls.kernel.panic 1 -> 2"), "{history}");
    let diff = bedplate(&["config", "diff", "cli-shown"]);
    assert_eq!(diff.status.code(), Some(0), "{}", text(&diff));
    let diff = text(&diff);
    assert!(diff.starts_with("--- cli-shown-v1\n+++ cli-shown-v2\n@@ "), "{diff}");
    assert!(diff.ends_with(" sysctls:\n-  kernel.panic: \"1\"\n+  kernel.panic: \"2\"\n"), "{diff}");
    assert!(!diff.contains('\u{1b}'), "color without a terminal");
    let back = text(&bedplate(&["config", "diff", "cli-shown", "--from", "2", "--to", "1"]));
    assert!(back.contains("\n+  kernel.panic: \"1\"\n"), "{back}");
    let json = bedplate(&["config", "history", "cli-shown", "-o", "json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["versions"][0]["machines"], json!(["cli-5"]));
    let invalid = json!({ "spec": { "template": { "sysctls": { "a b": "1" } } } });
    create(&client, &with(&configuration("cli-invalid"), &invalid)).await;
    let refused = text(&bedplate(&["config", "diff", "cli-invalid"]));
    assert!(refused.contains("no host can create a node from its template"), "{refused}");
    assert!(
        refused.contains("  spec.template.sysctls: \"a b\" is not the name of a kernel parameter"),
        "{refused}"
    );
    let absent = bedplate(&["config", "diff", "cli-shown", "--from", "7"]);
    assert_eq!(absent.status.code(), Some(1));
    let said = text(&absent);
    assert!(
        said.contains("cli-shown has no version 7; existing versions: v1, v2")
            && said.contains("hint: see `bedplate config history"),
        "{said}"
    );
    assert_eq!(bedplate(&["config", "show", "cli-none"]).status.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn h7_configuration_rolls_back_after_a_confirmation() {
    let client = admin().await;
    with_versions(&client, "cli-back", "cli-6").await;
    let template = async || {
        let found = api(&client, &configuration("cli-back")).get("cli-back").await.unwrap();
        json!(found)["spec"]["template"]["sysctls"]["kernel.panic"].clone()
    };
    let unasked = bedplate(&["config", "rollback", "cli-back"]);
    assert_eq!(unasked.status.code(), Some(64), "{}", text(&unasked));
    let said = text(&unasked);
    assert!(
        said.contains("-  kernel.panic: \"2\"")
            && said.contains("- cli-back-v3 is created with the template of v1"),
        "{said}"
    );
    assert!(said.contains("hint: use --yes"), "{said}");
    assert_eq!(template().await, "2", "nothing without a yes");
    let done = bedplate(&["config", "rollback", "cli-back", "--to", "1", "--yes"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    assert!(
        text(&done).ends_with("MachineConfiguration cli-back rolled back to the template of cli-back-v1\n"),
        "{}",
        text(&done)
    );
    assert_eq!(template().await, "1");
    let again = bedplate(&["config", "rollback", "cli-back", "--to", "1", "--yes"]);
    assert!(text(&again).contains("already has the template of cli-back-v1"), "{}", text(&again));
}

#[tokio::test(flavor = "multi_thread")]
async fn h7_one_machine_goes_back_by_its_reference_and_the_end_of_its_node() {
    let client = admin().await;
    with_versions(&client, "cli-pin", "cli-7").await;
    let machine = async || json!(api(&client, &machine("cli-7")).get("cli-7").await.unwrap());
    let has_node = || Kubernetes::shared().objects().unwrap().get("node", "cli-7").unwrap().is_some();
    let named = bedplate(&["config", "rollback", "cli-pin", "--to", "1", "--machine", "cli-7", "--yes"]);
    assert_eq!(named.status.code(), Some(0), "{}", text(&named));
    let said = text(&named);
    assert!(said.contains("until its Node is deleted") && said.contains("cli-7 is paused"), "{said}");
    assert!(said.ends_with("`kubectl drain cli-7`, then `kubectl delete node cli-7`\n"), "{said}");
    assert_eq!(machine().await["spec"]["configurationRef"], json!({ "name": "cli-pin", "version": 1 }));
    assert!(has_node());
    let line = ["config", "rollback", "cli-pin", "--to", "1", "--machine", "cli-7", "--delete-node", "--yes"];
    let paused = bedplate(&line);
    assert_eq!(paused.status.code(), Some(1));
    assert!(text(&paused).contains("Machine cli-7 is paused; "), "{}", text(&paused));
    assert!(has_node());
    let on = Patch::Merge(json!({ "spec": { "paused": false } }));
    api(&client, &machine().await).patch("cli-7", &PatchParams::default(), &on).await.unwrap();
    let deleted = bedplate(&line);
    assert_eq!(deleted.status.code(), Some(0), "{}", text(&deleted));
    assert!(
        text(&deleted).contains("Node cli-7 deleted; follow the repave: `bedplate machine explain cli-7`"),
        "{}",
        text(&deleted)
    );
    assert!(!has_node());
    let kept = json!({ "type": "Paved", "status": "True", "reason": "ControlPlaneProtected", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    report(&client, &machine().await, json!({ "conditions": [kept] })).await;
    let refused = bedplate(&line);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused).contains("docs/concepts/node.md, \"The first control plane\""),
        "{}",
        text(&refused)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_names_the_pending_step_of_one_and_of_all_machines() {
    let client = admin().await;
    let object = machine("cli-8");
    create(&client, &object).await;
    let held = json!({ "type": "Booted", "status": "False", "reason": "ImagePending", "lastTransitionTime": "2026-01-01T00:00:00Z",
        "message": "held at stage script: image host is being fetched (12 of 61 MiB)" });
    report(&client, &object, json!({ "conditions": [held] })).await;
    let one = text(&bedplate(&["machine", "explain", "cli-8"]));
    assert!(one.starts_with("cli-8  waits for the registry for ") && one.contains("    next  "), "{one}");
    let all = text(&bedplate(&["machine", "explain"]));
    assert!(all.contains(&one.lines().nth(1).unwrap().to_owned()), "{all}");
    let json = bedplate(&["machine", "explain", "cli-8", "-o", "json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (&json["items"][0]["from"], &json["items"][0]["reason"]),
        (&json!("registry"), &json!("ImagePending"))
    );
    assert_eq!(json["items"][0]["since"], "2026-01-01T00:00:00Z");
}
