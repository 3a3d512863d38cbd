//! What `deploy/` lets pxed and agents do on a real API server, and what it refuses them (docs/rules.md, "Who writes what" and
//! "Trust" 3 and 4).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "kubernetes/cluster.rs"]
mod cluster;

use std::time::Duration;

use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::wait;
use cluster::{admin, api, client, create, machine, operation, with};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

async fn agent(name: &str) -> Client {
    let kubeconfig =
        Kubernetes::shared().user(&format!("bedplate:machine:{name}"), &["bedplate:machines"]).unwrap();
    client(&kubeconfig).await
}

async fn pxed() -> Client {
    client(&Kubernetes::shared().service_account("bedplate-system", "pxed").unwrap()).await
}

fn condition(kind: &str) -> Value {
    json!({ "type": kind, "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

/// Applies `status` to an object as a writer's whole opinion, the way every program does it.
async fn apply(client: &Client, object: &Value, writer: &str, status: Value) -> Result<(), String> {
    let name = object["metadata"]["name"].as_str().unwrap();
    let applied = json!({
        "apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": { "name": name }, "status": status
    });
    let parameters = PatchParams::apply(writer).force();
    let result = api(client, object).patch_status(name, &parameters, &Patch::Apply(applied)).await;
    result.map(drop).map_err(|error| error.to_string())
}

/// Policies take effect some time after they were made, and nothing in the API says when.
fn policies_in_force() {
    let kubernetes = Kubernetes::shared();
    let stranger = kubernetes.user("bedplate:machine:stranger", &["bedplate:machines"]).unwrap();
    let deploy = "apiVersion: bedplate.dev/v1alpha1\nkind: Machine\nmetadata: {name: probe}\nspec: {provider: manual}\n";
    let file = bedplate_tests::guard::Directory::new("probe").unwrap();
    let path = file.path().join("probe.yaml");
    std::fs::write(&path, deploy).unwrap();
    let path = path.display().to_string();
    kubernetes.kubectl(&kubernetes.admin(), &["apply", "--server-side", "-f", &path]).unwrap();
    // Not `kubectl patch`: it reads the status first, which agents may not, so that it is always refused.
    let status = "apiVersion: bedplate.dev/v1alpha1\nkind: Machine\nmetadata: {name: probe}\nstatus: {agent: {version: '0'}}\n";
    let probe = file.path().join("status.yaml");
    std::fs::write(&probe, status).unwrap();
    let probe = probe.display().to_string();
    let apply = ["apply", "--server-side", "--subresource=status", "--validate=false", "--dry-run=server"];
    wait::until("the policies", Duration::from_secs(60), || {
        let refused = kubernetes.kubectl(&stranger, &[&apply[..], &["-f", &probe]].concat()).err();
        let why = refused.map(|error| error.to_string()).unwrap_or_default();
        Ok(why.contains("is not the agent of Machine probe").then_some(()))
    })
    .unwrap();
}

#[tokio::test]
async fn agent_writes_its_own_fields_of_its_own_machine() {
    policies_in_force();
    let object = machine("agent-own");
    create(&admin().await, &object).await;
    let others = json!({ "phase": "Enrolled", "power": { "state": "On" }, "conditions": [condition("Enrolled")],
        "hardware": { "bmc": { "vendor": "V" } } });
    apply(&pxed().await, &object, "pxed", others).await.unwrap();
    let status = json!({
        "addresses": [{ "type": "InternalIP", "address": "10.7.0.21" }],
        "agent": { "version": "0.1.0", "lastHeartbeat": "2026-01-01T00:00:00Z" },
        "hardware": { "vendor": "QEMU", "disks": [{ "name": "vda" }] },
        "applied": { "name": "workers", "version": 1, "slot": "a" },
        "slots": [{ "name": "a", "state": "Running" }],
        "conditions": [condition("Paved"), condition("NodeReady")]
    });
    let agent = agent("agent-own").await;
    apply(&agent, &object, "bedplate-agent", status).await.unwrap();
    let made = api(&agent, &object).get("agent-own").await.expect("it may read");
    let status = &made.data["status"];
    assert_eq!(status["hardware"]["bmc"]["vendor"], "V", "what others wrote stays");
    assert_eq!(status["conditions"].as_array().unwrap().len(), 3);
    apply(&agent, &object, "bedplate-agent", json!({ "agent": { "version": "0.1.1" } }))
        .await
        .expect("fewer fields");
}

#[tokio::test]
async fn agent_is_refused_the_fields_of_others() {
    policies_in_force();
    let object = machine("agent-others");
    create(&admin().await, &object).await;
    let before = json!({ "power": { "state": "On" }, "conditions": [condition("Booted")] });
    apply(&pxed().await, &object, "pxed", before).await.unwrap();
    let agent = agent("agent-others").await;
    for status in [
        json!({ "phase": "Ready" }),
        json!({ "power": { "state": "Off" } }),
        json!({ "boot": { "stage": "enrolled" } }),
        json!({ "selected": { "name": "workers", "version": 1, "by": "Reference" } }),
        json!({ "nodeRef": { "name": "agent-others", "uid": "u" } }),
        json!({ "providerID": "bedplate://other" }),
        json!({ "hardware": { "bmc": { "vendor": "V" } } }),
        json!({ "conditions": [condition("Ready")] }),
        json!({ "conditions": [with(&condition("Booted"), &json!({ "status": "False" }))] }),
    ] {
        let why =
            apply(&agent, &object, "bedplate-agent", status.clone()).await.expect_err(&status.to_string());
        assert!(why.contains("an agent "), "{status}: {why}");
    }
    // Not only by server-side apply.
    let patch = Patch::Merge(json!({ "status": { "conditions": null } }));
    let why =
        api(&agent, &object).patch_status("agent-others", &PatchParams::default(), &patch).await.unwrap_err();
    assert!(why.to_string().contains("no conditions but Paved and NodeReady"), "{why}");
}

#[tokio::test]
async fn agent_is_refused_other_machines_and_every_spec() {
    policies_in_force();
    let admin = admin().await;
    for name in ["agent-a", "agent-b"] {
        create(&admin, &machine(name)).await;
    }
    let agent = agent("agent-a").await;
    let status = json!({ "agent": { "version": "0" } });
    let why = apply(&agent, &machine("agent-b"), "bedplate-agent", status).await.unwrap_err();
    assert!(why.contains("is not the agent of Machine agent-b"), "{why}");
    let machines = api(&agent, &machine("agent-a"));
    let patch = Patch::Merge(json!({ "spec": { "paused": true } }));
    machines.patch("agent-a", &PatchParams::default(), &patch).await.expect_err("specs are people's");
    machines.delete("agent-a", &kube::api::DeleteParams::default()).await.expect_err("no deletion");
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::all(agent.clone());
    secrets.list(&kube::api::ListParams::default()).await.expect_err("no Secrets");
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(agent);
    assert!(nodes.get_opt("agent-a").await.expect("it may ask for its Node").is_none());
}

#[tokio::test]
async fn agent_reports_only_on_its_own_operations() {
    policies_in_force();
    let admin = admin().await;
    let of = |name: &str, machine: &str| {
        with(
            &operation(name),
            &json!({ "metadata": { "labels": { "bedplate.dev/machine": "agent-ops" } },
            "spec": { "machineRef": { "name": machine } } }),
        )
    };
    let (own, other) = (of("own", "agent-ops"), of("other", "agent-else"));
    create(&admin, &own).await;
    create(&admin, &other).await;
    let agent = agent("agent-ops").await;
    let status = json!({ "state": "InProgress", "executor": "bedplate:machine:agent-ops" });
    apply(&agent, &own, "bedplate-agent", status.clone()).await.unwrap();
    let why = apply(&agent, &other, "bedplate-agent", status)
        .await
        .expect_err("a label that anybody set does not count");
    assert!(why.contains("only on operations for its own Machine"), "{why}");
}

#[tokio::test]
async fn pxed_watches_machines_and_writes_only_their_status() {
    let object = machine("pxed-writes");
    create(&admin().await, &object).await;
    let pxed = pxed().await;
    let machines = api(&pxed, &object);
    machines.list(&kube::api::ListParams::default()).await.unwrap();
    apply(&pxed, &object, "pxed", json!({ "boot": { "stage": "offered", "attempts": 1 } })).await.unwrap();
    let patch = Patch::Merge(json!({ "spec": { "paused": true } }));
    machines.patch("pxed-writes", &PatchParams::default(), &patch).await.expect_err("specs are people's");
    machines.delete("pxed-writes", &kube::api::DeleteParams::default()).await.expect_err("no deletion");
    let kubernetes = Kubernetes::shared();
    let account = kubernetes.service_account("bedplate-system", "pxed").unwrap();
    let can =
        |arguments: &[&str]| kubernetes.kubectl(&account, &[&["auth", "can-i"], arguments].concat()).is_ok();
    assert!(can(&["create", "events.events.k8s.io", "-n", "default"]));
    for refused in [
        &["get", "secrets", "-A"][..],
        &["impersonate", "users"],
        &["create", "events.events.k8s.io", "-n", "kube-system"],
        &["patch", "machineconfigurationversions"],
        &["update", "nodes"],
    ] {
        assert!(!can(refused), "pxed may {refused:?}");
    }
}

const CLIENT: &str = "kubernetes.io/kube-apiserver-client";

/// Trust 3: pxed makes the request on the agent's behalf and approves it; nobody else's.
#[tokio::test]
async fn pxed_approves_only_requests_that_it_made() {
    let kubernetes = Kubernetes::shared();
    let account = kubernetes.service_account("bedplate-system", "pxed").unwrap();
    let directory = bedplate_tests::guard::Directory::new("csr").unwrap();
    let key = directory.path().join("key.pem").display().to_string();
    let made = std::process::Command::new("openssl")
        .args([
            "req",
            "-new",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            &key,
        ])
        .args(["-subj", "/O=bedplate:machines/CN=bedplate:machine:node-1"])
        .output()
        .unwrap();
    assert!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
    let request = k8s_openapi::ByteString(made.stdout);
    let file = |name: &str, signer: &str| {
        let csr = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": name },
            "spec": { "request": request, "signerName": signer, "usages": ["client auth"] }
        });
        let path = directory.path().join(format!("{name}.json"));
        std::fs::write(&path, csr.to_string()).unwrap();
        path.display().to_string()
    };
    kubernetes.kubectl(&account, &["create", "-f", &file("by-pxed", CLIENT)]).unwrap();
    kubernetes.kubectl(&account, &["certificate", "approve", "by-pxed"]).unwrap();
    kubernetes.kubectl(&account, &["create", "-f", &file("elsewhere", "example.com/other")]).unwrap();
    kubernetes.kubectl(&account, &["certificate", "approve", "elsewhere"]).expect_err("another signer");
    kubernetes.kubectl(&kubernetes.admin(), &["create", "-f", &file("by-somebody", CLIENT)]).unwrap();
    policies_in_force();
    let why =
        kubernetes.kubectl(&account, &["certificate", "approve", "by-somebody"]).unwrap_err().to_string();
    assert!(why.contains("only certificate signing requests that it made itself"), "{why}");
}
