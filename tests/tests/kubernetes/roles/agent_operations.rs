//! Status of operations by an agent: those for its own Machine, without those on power, each to its end.

use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::super::cluster::{admin, api, create, operation, with};
use super::{apply, certified, condition, policies_in_force};

#[tokio::test]
async fn agent_reports_only_on_its_own_operations_and_not_on_power() {
    policies_in_force();
    let admin = admin().await;
    let of = |name: &str, machine: &str, what: &str| {
        with(
            &operation(name),
            &json!({ "metadata": { "labels": { "bedplate.dev/machine": "agent-ops" } },
            "spec": { "machineRef": { "name": machine }, "operationName": what } }),
        )
    };
    let own = of("own", "agent-ops", "reboot");
    let (other, power) = (of("other", "agent-else", "reboot"), of("power", "agent-ops", "powerCycle"));
    for operation in [&own, &other, &power] {
        create(&admin, operation).await;
    }
    let (agent, _) = certified("agent-ops").await;
    let status = json!({ "state": "InProgress", "executor": "bedplate:machine:agent-ops" });
    apply(&agent, &own, "bedplate-agent", status.clone()).await.unwrap();
    for (operation, words) in [
        // A label that anybody set does not count.
        (&other, "only on operations for its own Machine"),
        (&power, "an agent does not report on powerOn, powerOff, powerCycle and reset"),
    ] {
        let why = apply(&agent, operation, "bedplate-agent", status.clone()).await.expect_err(words);
        assert!(why.contains(words), "{why}");
    }
    let sums = with(&status, &json!({ "counts": { "total": 1 } }));
    let why = apply(&agent, &own, "bedplate-agent", sums).await.expect_err("sums");
    assert!(
        why.contains("an agent may write only these fields of the status of a MachineOperation: "),
        "{why}"
    );
    // The way the agent writes it: only over the version that it read.
    let old = json!({ "metadata": { "resourceVersion": "1" }, "status": { "state": "Complete" } });
    let why = api(&agent, &own).patch_status("own", &PatchParams::default(), &Patch::Merge(old)).await;
    assert!(matches!(why, Err(kube::Error::Api(status)) if status.code == 409), "an old version");
}

#[tokio::test]
async fn o1_agent_does_not_reopen_an_operation_that_has_ended() {
    policies_in_force();
    let admin = admin().await;
    let spec = json!({ "spec": { "machineRef": { "name": "agent-ended" }, "operationName": "reboot" } });
    let (agent, _) = certified("agent-ended").await;
    let words = "an operation that has ended cannot be changed";
    for (name, end) in [("again-complete", "Complete"), ("again-failed", "Failed")] {
        let operation = with(&operation(name), &spec);
        create(&admin, &operation).await;
        let open = ["Pending", "InProgress"].map(|state| json!({ "state": state, "executor": "x" }));
        let ended = json!({ "state": end, "executor": "x", "conditions": [condition(end)] });
        for state in open.iter().chain([&ended]) {
            apply(&agent, &operation, "bedplate-agent", state.clone()).await.unwrap();
        }
        for state in &open {
            let why = apply(&agent, &operation, "bedplate-agent", state.clone()).await.expect_err(words);
            assert!(why.contains(words), "{why}");
        }
    }
}

/// The attack: a compromised host restarts the time of an operation, so that its parent never starts the next Machine.
#[tokio::test]
async fn o1_agent_neither_releases_an_operation_nor_restarts_its_time() {
    policies_in_force();
    let admin = admin().await;
    let own = with(
        &operation("held-by-host"),
        &json!({ "spec": { "machineRef": { "name": "agent-holds" }, "operationName": "reboot" } }),
    );
    create(&admin, &own).await;
    let (agent, _) = certified("agent-holds").await;
    let (start, executor) = ("2026-01-01T00:00:00Z", "bedplate-agent/agent-holds");
    let status = |state: &str| json!({ "state": state, "startTime": start, "executor": executor });
    let words = "an agent may write only these conditions of a MachineOperation that has not ended: Cordoned, Drained";
    let [suspended, failed, stalled] =
        ["Suspended", "Failed", "Stalled"].map(|type_| json!({ "conditions": [condition(type_)] }));
    for conditions in [&suspended, &stalled] {
        let why = apply(&agent, &own, "bedplate-agent", with(&json!({ "state": "Pending" }), conditions))
            .await
            .expect_err(words);
        assert!(why.contains(words), "{why}");
    }
    apply(&agent, &own, "bedplate-agent", json!({ "state": "Pending" })).await.unwrap();
    // Without a state the controller would write Pending again, and the time until an executor takes it would start again.
    let stateless = "the status of a MachineOperation must have a state";
    for status in [json!({ "state": null }), json!({ "state": null, "message": "m" })] {
        let patch = Patch::Merge(json!({ "status": status }));
        let written = api(&agent, &own).patch_status("held-by-host", &PatchParams::default(), &patch).await;
        let why = written.expect_err(stateless).to_string();
        assert!(why.contains(stateless), "{status}: {why}");
    }
    let gone = Patch::Merge(json!({ "status": null }));
    let written = api(&agent, &own).patch_status("held-by-host", &PatchParams::default(), &gone).await;
    let why = written.expect_err(stateless).to_string();
    assert!(why.contains(stateless), "{why}");
    apply(&agent, &own, "bedplate-agent", json!({ "message": "m" })).await.expect_err(stateless);
    apply(&agent, &own, "bedplate-agent", status("InProgress")).await.unwrap();
    let (later, other) = (json!({ "startTime": "2026-01-01T00:01:00Z" }), json!({ "executor": "x" }));
    for (change, words) in [
        (status("Pending"), "an operation in progress can only end"),
        (json!({ "startTime": start, "executor": executor }), "an operation in progress can only end"),
        (
            with(&status("InProgress"), &later),
            "startTime, executor and bootID of an operation cannot be changed",
        ),
        (
            with(&with(&status("Complete"), &other), &json!({ "conditions": [condition("Complete")] })),
            "startTime, executor and bootID of an operation cannot be changed",
        ),
        (
            json!({ "state": "InProgress", "executor": executor }),
            "startTime, executor and bootID of an operation cannot be changed",
        ),
        (with(&status("InProgress"), &suspended), words),
        (with(&status("InProgress"), &stalled), words),
        (
            with(&status("Failed"), &json!({ "conditions": [condition("Failed"), condition("Suspended")] })),
            "an agent may write only these conditions of a MachineOperation that has ended: Cordoned, Drained, Complete, Failed, Stalled",
        ),
    ] {
        let why = apply(&agent, &own, "bedplate-agent", change.clone()).await.expect_err(words);
        assert!(why.contains(words), "{change}: {why}");
    }
    let drained = json!({ "bootID": "b", "conditions": [condition("Cordoned"), condition("Drained")] });
    apply(&agent, &own, "bedplate-agent", with(&status("InProgress"), &drained)).await.unwrap();
    let own_conditions = ["Cordoned", "Drained", "Failed", "Stalled"].map(condition);
    assert_eq!(failed["conditions"][0], own_conditions[2]);
    let ended = json!({ "bootID": "b", "observedGeneration": 1, "conditions": own_conditions });
    apply(&agent, &own, "bedplate-agent", with(&status("Failed"), &ended)).await.unwrap();
}
