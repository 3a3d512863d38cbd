//! Writes of pxed: its own fields of the status of Machines, operations on power, one finalizer, Leases; and the Secrets that it reads.

use std::collections::BTreeSet;

use bedplate_tests::kubernetes::Kubernetes;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use super::super::cluster::{admin, api, create, machine, operation, with};
use super::{agents_fields, apply, condition, dry, ownership, pxed, pxeds_fields, refused};

#[tokio::test]
async fn pxed_watches_machines_and_writes_only_status_and_its_own_finalizer() {
    let object = machine("pxed-writes");
    let admin = admin().await;
    create(&admin, &object).await;
    let pxed = pxed().await;
    let machines = api(&pxed, &object);
    machines.list(&kube::api::ListParams::default()).await.unwrap();
    apply(&pxed, &object, "pxed", json!({ "boot": { "stage": "Offered", "attempts": 1 } })).await.unwrap();
    let words = "pxed may change only its own finalizer of a Machine";
    for change in [
        json!({ "spec": { "paused": true } }),
        json!({ "metadata": { "labels": { "a": "b" } } }),
        json!({ "metadata": { "annotations": { "a": "b" } } }),
        json!({ "metadata": { "finalizers": ["example.com/other"] } }),
        json!({ "metadata": { "finalizers": ["bedplate.dev/power-off", "example.com/other"] } }),
    ] {
        let (machines, patch) = (machines.clone(), Patch::Merge(change));
        refused(words, || async { machines.patch("pxed-writes", &dry(), &patch).await }).await;
    }
    for finalizers in [json!(["bedplate.dev/power-off"]), json!([])] {
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
        machines.patch("pxed-writes", &PatchParams::default(), &patch).await.unwrap();
    }
    let foreign = Patch::Merge(json!({ "metadata": { "finalizers": ["example.com/other"] } }));
    api(&admin, &object).patch("pxed-writes", &PatchParams::default(), &foreign).await.unwrap();
    let without = Patch::Merge(json!({ "metadata": { "finalizers": [] } }));
    refused(words, || async { machines.patch("pxed-writes", &dry(), &without).await }).await;
    machines.delete("pxed-writes", &kube::api::DeleteParams::default()).await.expect_err("no deletion");
    let none = Patch::Merge(json!({ "metadata": { "finalizers": [] } }));
    api(&admin, &object).patch("pxed-writes", &PatchParams::default(), &none).await.unwrap();
}

/// Trust 4 for pxed: its credentials permit neither to select a version nor to report for a host.
#[tokio::test]
async fn pxed_writes_its_own_fields_of_a_machines_status_and_no_others() {
    let object = machine("pxed-fields");
    let admin = admin().await;
    create(&admin, &object).await;
    let pxed = pxed().await;
    let machines = api(&pxed, &object);
    let words = "pxed may write only these fields of the status of a Machine";
    let probe = Patch::Merge(json!({ "status": { "phase": "Ready" } }));
    refused(words, || async { machines.patch_status("pxed-fields", &dry(), &probe).await }).await;
    let conditions = ["BMCReachable", "PoweredOn", "Booted", "Enrolled"].map(condition);
    let own = json!({ "boot": { "stage": "Offered", "attempts": 1 }, "power": { "state": "On" },
        "hardware": { "bmc": { "vendor": "V" } }, "enrollment": { "certificateFingerprint": format!("sha256:{}", "0".repeat(64)) },
        "conditions": conditions });
    apply(&pxed, &object, "pxed", own.clone()).await.unwrap();
    let agents = agents_fields();
    let agents = agents.as_object().unwrap().iter().map(|(name, value)| json!({ name: value }));
    let controllers = [
        json!({ "observedGeneration": 1 }),
        json!({ "phase": "Ready" }),
        json!({ "selected": { "name": "workers", "version": 1, "source": "Reference" } }),
        json!({ "nodeRef": { "name": "pxed-fields", "uid": "u" } }),
        json!({ "providerID": "bedplate://other" }),
    ];
    let conditions = ["ConfigurationPending", "Ready", "Stalled", "Drained", "Invented"];
    let conditions = conditions.map(|kind| json!({ "conditions": [condition(kind)] }));
    for status in agents.chain(controllers).chain(conditions) {
        let why = apply(&pxed, &object, "another", status.clone()).await.expect_err(&status.to_string());
        assert!(why.contains("pxed may write only "), "{status}: {why}");
    }
    // pxed cannot remove fields of other writers either.
    apply(&admin, &object, "bedplate-agent", agents_fields()).await.unwrap();
    for status in [json!({ "slots": null }), json!({ "hardware": null }), json!({ "conditions": null })] {
        let patch = Patch::Merge(json!({ "status": status }));
        let why = machines.patch_status("pxed-fields", &PatchParams::default(), &patch).await.unwrap_err();
        assert!(why.to_string().contains("pxed may write only "), "{status}: {why}");
    }
    apply(&pxed, &object, "pxed", json!({})).await.expect("its own fields may go");
}

/// The attack: pxed's credentials apply fields of others as they are. A co-owner keeps a field that its writer removes.
#[tokio::test]
async fn trust_3_pxed_does_not_own_fields_of_others_as_they_are() {
    const OWN: [&str; 3] = ["pxed", "pxed-power", "pxed-enrollment"];
    let object = machine("pxed-owner");
    let admin = admin().await;
    create(&admin, &object).await;
    let pxed = pxed().await;
    let machines = api(&pxed, &object);
    let words = "pxed must not write fields of other managers, not even unchanged";
    apply(&admin, &object, "bedplate-controller", json!({ "phase": "Ready" })).await.unwrap();
    let as_it_is = Patch::Apply(json!({ "apiVersion": object["apiVersion"], "kind": object["kind"],
        "metadata": { "name": "pxed-owner" }, "status": { "phase": "Ready" } }));
    let probe = PatchParams { dry_run: true, ..PatchParams::apply("pxed").force() };
    refused(words, || async { machines.patch_status("pxed-owner", &probe, &as_it_is).await }).await;
    // Each part of its own by its manager, also again and on an object that has other owners by now.
    for _ in 0..2 {
        for (manager, status) in pxeds_fields() {
            apply(&pxed, &object, manager, status).await.unwrap();
        }
        apply(&admin, &object, "bedplate-agent", agents_fields()).await.unwrap();
    }
    let agents = agents_fields();
    let agents = agents.as_object().unwrap().iter().map(|(name, value)| json!({ name: value }));
    for status in agents.chain([json!({ "phase": "Ready" })]) {
        let before = api(&admin, &object).get("pxed-owner").await.unwrap();
        for manager in OWN.into_iter().chain(["another", "before-first-apply"]) {
            let why = apply(&pxed, &object, manager, status.clone()).await;
            let why = why.expect_err(&format!("{status} by {manager}"));
            assert!(why.contains(words), "{status} by {manager}: {why}");
        }
        for manager in ["pxed", "bedplate-agent", "bedplate-controller"] {
            let patch = Patch::Merge(json!({ "metadata": { "managedFields": [{}] }, "status": status }));
            let parameters =
                PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
            // Accepted or not: no ownership of others is lost by it.
            let _ = machines.patch_status("pxed-owner", &parameters, &patch).await;
            let after = api(&admin, &object).get("pxed-owner").await.unwrap();
            assert_eq!(ownership(&after, &OWN), ownership(&before, &OWN), "{status} by {manager}");
        }
    }
    // In another writer's name it would remove what it does not name.
    for (_, status) in pxeds_fields() {
        for manager in ["bedplate-agent", "bedplate-controller"] {
            let why = apply(&pxed, &object, manager, status.clone()).await.expect_err(manager);
            assert!(why.contains("pxed may write only "), "{status} by {manager}: {why}");
        }
    }
    // Only what a writer does not apply any more is removed.
    for (manager, status) in pxeds_fields() {
        apply(&pxed, &object, manager, status).await.unwrap();
    }
    apply(&admin, &object, "bedplate-agent", json!({})).await.unwrap();
    let left = api(&admin, &object).get("pxed-owner").await.unwrap();
    let left: BTreeSet<_> = left.data["status"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(
        left,
        ["boot", "conditions", "enrollment", "hardware", "observedGeneration", "phase", "power"]
            .map(str::to_owned)
            .into()
    );
    for (manager, _) in pxeds_fields() {
        apply(&pxed, &object, manager, json!({})).await.expect("its own fields may go");
    }
}

#[tokio::test]
async fn pxed_reports_only_on_power_operations_and_only_its_own_fields() {
    let power = |name: &str| with(&operation(name), &json!({ "spec": { "operationName": "powerOn" } }));
    let (own, other) = (power("power-own"), operation("power-other"));
    let parent = with(
        &power("power-parent"),
        &json!({ "spec": { "machineRef": null, "machineSelector": { "matchLabels": { "a": "b" } } } }),
    );
    let admin = admin().await;
    for object in [&own, &other, &parent] {
        create(&admin, object).await;
    }
    let pxed = pxed().await;
    let status = Patch::Merge(json!({ "status": { "state": "InProgress", "executor": "pxed/lab/x" } }));
    for name in ["power-other", "power-parent"] {
        let operations = api(&pxed, &own);
        let words = "pxed reports only on powerOn, powerOff, powerCycle and reset of one Machine";
        refused(words, || async { operations.patch_status(name, &dry(), &status).await }).await;
    }
    let operations = api(&pxed, &own);
    let fields = "pxed may write only these fields of the status of a MachineOperation: ";
    let conditions = "pxed may write only these conditions of a MachineOperation: ";
    for (status, words) in [
        (json!({ "counts": { "total": 1 } }), fields),
        (json!({ "machines": { "complete": ["a"] } }), fields),
        (json!({ "bootID": "b" }), fields),
        (json!({ "conditions": [condition("Suspended")] }), conditions),
        (json!({ "conditions": [condition("Drained")] }), conditions),
    ] {
        let patch = Patch::Merge(json!({ "status": status }));
        refused(words, || async { operations.patch_status("power-own", &dry(), &patch).await }).await;
    }
    operations.patch_status("power-own", &PatchParams::default(), &status).await.unwrap();
    let end = json!({ "state": "Failed", "reason": "TimedOut", "conditions": [condition("Failed"), condition("Stalled")] });
    let end = Patch::Merge(json!({ "status": end }));
    operations.patch_status("power-own", &PatchParams::default(), &end).await.unwrap();
    operations.patch("power-own", &dry(), &status).await.expect_err("only the subresource");
}

#[tokio::test]
async fn pxed_reads_single_secrets_of_its_namespace_and_writes_leases_of_sites() {
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::Secret;
    Kubernetes::shared();
    let pxed = pxed().await;
    let secrets = |namespace: &str| Api::<Secret>::namespaced(pxed.clone(), namespace);
    assert!(secrets("bedplate-system").get_opt("not-there").await.unwrap().is_none());
    secrets("bedplate-system").list(&kube::api::ListParams::default()).await.expect_err("no list");
    secrets("default").get_opt("not-there").await.expect_err("another namespace");
    let leases = Api::<Lease>::namespaced(pxed, "bedplate-system");
    let lease = |name: &str| {
        let value = json!({ "metadata": { "name": name }, "spec": { "holderIdentity": "x" } });
        serde_json::from_value::<Lease>(value).unwrap()
    };
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    let foreign = lease("kube-scheduler");
    refused("only Leases named bedplate-pxed-", || async { leases.create(&parameters, &foreign).await })
        .await;
    leases.create(&parameters, &lease("bedplate-pxed-lab")).await.unwrap();
}
