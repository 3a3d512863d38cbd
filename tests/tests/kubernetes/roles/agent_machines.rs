//! Status of a Machine by its agent: its own fields of its own Machine, with the certificate that the Machine was enrolled with.

use std::collections::BTreeSet;

use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::super::cluster::{admin, api, create, machine, with};
use super::{
    agent, agents_fields, apply, certified, condition, enrollment, others_fields, ownership,
    policies_in_force, pxed,
};

#[tokio::test]
async fn agent_writes_its_own_fields_of_its_own_machine() {
    policies_in_force();
    let object = machine("agent-own");
    let admin = admin().await;
    create(&admin, &object).await;
    let others = json!({ "phase": "Enrolled", "power": { "state": "On" }, "conditions": [condition("Enrolled")],
        "hardware": { "bmc": { "vendor": "V" } } });
    apply(&admin, &object, "pxed", others).await.unwrap();
    let agent = agent("agent-own").await;
    apply(&agent, &object, "bedplate-agent", agents_fields()).await.unwrap();
    let made = api(&admin, &object).get("agent-own").await.unwrap();
    let status = &made.data["status"];
    let names = |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    for name in names(&agents_fields()) {
        assert!(!status[&name].is_null(), "{name} was not written: {status}");
    }
    assert_eq!(status["hardware"]["bmc"]["vendor"], "V", "what others wrote stays");
    assert_eq!(status["conditions"].as_array().unwrap().len(), 3);
    apply(&agent, &object, "bedplate-agent", json!({ "agent": { "version": "0.1.1" } }))
        .await
        .expect("fewer fields");
}

#[tokio::test]
async fn agent_names_only_versions_of_its_machines_configuration() {
    policies_in_force();
    let object = machine("agent-versions");
    let admin = admin().await;
    create(&admin, &object).await;
    let agent = agent("agent-versions").await;
    let applied = |name: &str, version: u32| {
        json!({ "applied": { "name": name, "version": version, "slot": "a" },
            "slots": [{ "name": "a", "state": "Running", "configurationName": name, "version": version },
                { "name": "b", "state": "Empty" }] })
    };
    let write = async |status: Value| apply(&agent, &object, "bedplate-agent", status).await;
    // The Machine was re-created: the host reports what it has.
    write(applied("before", 3)).await.unwrap();
    let selected = json!({ "selected": { "name": "workers", "version": 2, "source": "Reference" } });
    apply(&admin, &object, "bedplate-controller", selected).await.unwrap();
    for (name, version) in [("before", 3), ("workers", 1), ("workers", 2), ("workers", 3)] {
        write(applied(name, version)).await.unwrap();
    }
    let words = "an agent may name only versions of the configuration that is selected for its Machine";
    let in_a_slot = json!({ "slots": [{ "name": "b", "state": "Prepared", "configurationName": "others", "version": 1 }] });
    for status in [applied("others", 1), in_a_slot, applied("before", 3)] {
        let why = write(status.clone()).await.expect_err(&status.to_string());
        assert!(why.contains(words), "{why}");
    }
    // A write of less removes the applied version; the agent may still name the selected one.
    write(json!({ "agent": { "version": "0.1.0" } })).await.unwrap();
    let why = write(applied("others", 1)).await.expect_err("nothing is applied");
    assert!(why.contains(words), "{why}");
    let by_hand = Patch::Merge(json!({ "spec": { "configurationRef": { "name": "others" } } }));
    api(&admin, &object).patch("agent-versions", &PatchParams::default(), &by_hand).await.unwrap();
    write(applied("others", 1)).await.unwrap();
}

/// Returns true if a policy of fields or of their owners refused the write. The API server reports the first that fails.
fn is_not_the_agents(refusal: &str) -> bool {
    ["an agent may write only ", "an agent must not write fields of other managers"]
        .iter()
        .any(|words| refusal.contains(words))
}

#[tokio::test]
async fn agent_is_refused_the_fields_of_others() {
    policies_in_force();
    let object = machine("agent-others");
    create(&admin().await, &object).await;
    let before = json!({ "power": { "state": "On" }, "conditions": [condition("Booted")],
        "hardware": { "bmc": { "vendor": "Before" } } });
    apply(&pxed().await, &object, "pxed", before).await.unwrap();
    let agent = agent("agent-others").await;
    let changed = json!({ "conditions": [with(&condition("Booted"), &json!({ "status": "False" }))] });
    for status in others_fields().into_iter().chain([changed]) {
        let why =
            apply(&agent, &object, "bedplate-agent", status.clone()).await.expect_err(&status.to_string());
        assert!(is_not_the_agents(&why), "{status}: {why}");
    }
    // Not only by server-side apply; and what is there is not taken away either.
    for status in [json!({ "conditions": null }), json!({ "power": null }), json!({ "hardware": null })] {
        let patch = Patch::Merge(json!({ "status": status }));
        let parameters = PatchParams::default();
        let why = api(&agent, &object).patch_status("agent-others", &parameters, &patch).await.unwrap_err();
        assert!(is_not_the_agents(&why.to_string()), "{status}: {why}");
    }
}

#[tokio::test]
async fn agent_is_refused_to_own_fields_of_others_as_they_are() {
    policies_in_force();
    let object = machine("agent-owner");
    let admin = admin().await;
    create(&admin, &object).await;
    let agent = agent("agent-owner").await;
    apply(&agent, &object, "bedplate-agent", agents_fields()).await.unwrap();
    let enrolled =
        api(&admin, &object).get("agent-owner").await.unwrap().data["status"]["enrollment"].clone();
    let others = others_fields().into_iter().filter(|status| status.get("enrollment").is_none());
    for status in others.chain([json!({ "enrollment": enrolled })]) {
        apply(&admin, &object, "pxed", status.clone()).await.unwrap();
        let before = api(&admin, &object).get("agent-owner").await.unwrap();
        for manager in ["bedplate-agent", "another", "before-first-apply"] {
            let why = apply(&agent, &object, manager, with(&agents_fields(), &status)).await;
            let why = why.expect_err(&format!("{status} by {manager}"));
            assert!(why.contains("not even unchanged"), "{status}: {why}");
        }
        // In pxed's name it would take away what it does not name.
        let why = apply(&agent, &object, "pxed", agents_fields()).await.expect_err("in pxed's name");
        assert!(is_not_the_agents(&why), "{status}: {why}");
        for manager in ["bedplate-agent", "pxed"] {
            let patch = Patch::Merge(json!({ "metadata": { "managedFields": [{}] }, "status": status }));
            let parameters =
                PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
            // Accepted or not: no ownership of others is lost by it.
            let _ = api(&agent, &object).patch_status("agent-owner", &parameters, &patch).await;
            let after = api(&admin, &object).get("agent-owner").await.unwrap();
            let own = ["bedplate-agent"];
            assert_eq!(ownership(&after, &own), ownership(&before, &own), "{status} by {manager}");
        }
    }
    // Only what pxed does not apply any more is removed.
    apply(&agent, &object, "bedplate-agent", agents_fields()).await.unwrap();
    apply(&admin, &object, "pxed", json!({})).await.unwrap();
    let left = api(&admin, &object).get("agent-owner").await.unwrap();
    let own: BTreeSet<_> =
        with(&agents_fields(), &enrollment()).as_object().unwrap().keys().cloned().collect();
    let left: BTreeSet<_> = left.data["status"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(left, own);
}

#[tokio::test]
async fn certificate_counts_only_for_the_machine_that_was_enrolled_with_it() {
    policies_in_force();
    let object = machine("agent-anew");
    let (admin, pxed) = (admin().await, pxed().await);
    let [old, new] = [certified("agent-anew").await, certified("agent-anew").await];
    let write = async |(agent, _): &(Client, Value)| {
        apply(agent, &object, "bedplate-agent", json!({ "agent": { "version": "0.1.0" } })).await
    };
    let refused = async |who: &(Client, Value)| {
        let why = write(who).await.expect_err("another's certificate");
        assert!(why.contains("is not the certificate that Machine agent-anew was enrolled with"), "{why}");
    };
    create(&admin, &object).await;
    refused(&old).await;
    apply(&pxed, &object, "pxed-enrollment", old.1.clone()).await.unwrap();
    write(&old).await.unwrap();
    // Fields that another pxed of the site applies do not refuse the agent.
    apply(&admin, &object, "pxed", json!({ "phase": "Enrolled" })).await.unwrap();
    write(&old).await.unwrap();
    refused(&new).await;
    let machines = api(&admin, &object);
    machines.delete("agent-anew", &kube::api::DeleteParams::default()).await.unwrap();
    create(&admin, &object).await;
    refused(&old).await;
    apply(&pxed, &object, "pxed-enrollment", new.1.clone()).await.unwrap();
    write(&new).await.unwrap();
    refused(&old).await;
}

#[tokio::test]
async fn agent_writes_its_fields_also_if_another_manager_or_none_owns_them() {
    policies_in_force();
    let object = machine("agent-people");
    let admin = admin().await;
    create(&admin, &object).await;
    let agent = agent("agent-people").await;
    let machines = api(&admin, &object);
    let by_hand = Patch::Merge(json!({ "status": { "agent": { "version": "by hand" }, "phase": "Ready" } }));
    machines.patch_status("agent-people", &PatchParams::default(), &by_hand).await.unwrap();
    apply(&agent, &object, "bedplate-agent", agents_fields()).await.expect("over a person's value");
    let forget = Patch::Merge(json!({ "metadata": { "managedFields": [{}] } }));
    machines.patch("agent-people", &PatchParams::default(), &forget).await.unwrap();
    let again = with(&agents_fields(), &json!({ "agent": { "version": "0.1.1" } }));
    apply(&agent, &object, "bedplate-agent", again).await.expect("where nobody is known to own anything");
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
    machines.get("agent-a").await.expect("its own Machine");
    let patch = Patch::Merge(json!({ "spec": { "paused": true } }));
    machines.patch("agent-a", &PatchParams::default(), &patch).await.expect_err("specs are people's");
    machines.delete("agent-a", &kube::api::DeleteParams::default()).await.expect_err("no deletion");
}
