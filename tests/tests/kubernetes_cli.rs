//! `bedplate` asks a real cluster for Machines.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "kubernetes/cluster.rs"]
mod cluster;

use std::process::{Command, Output};

use bedplate_tests::kubernetes::Kubernetes;
use cluster::{admin, api, create, machine};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

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
    assert!(text(&absent).contains("hint: `bedplate machine list`"), "{}", text(&absent));
    assert_eq!(bedplate(&["machine", "shw"]).status.code(), Some(64));
}
