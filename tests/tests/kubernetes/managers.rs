//! Field managers of a Machine: a host adds none (docs/design/rules.md, Trust 4), and pxed writes a Machine that has many (Trust 3).

use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::cluster::{admin, api, create, machine, operation, with};
use super::roles::{
    agent, agents_fields, apply, certified, condition, policies_in_force, pxed, pxeds_fields, refused,
};

/// Number of field managers that made the policy of pxed exceed its cost.
const MANY: usize = 600;

/// Message of the policies of agents.
const REFUSED: &str = "an agent must write with the field manager bedplate-agent";

/// An entry of `metadata.managedFields` by which a manager owns these fields of a status.
fn entry(manager: &str, fields: &Value) -> Value {
    json!({ "manager": manager, "operation": "Apply", "apiVersion": "bedplate.dev/v1alpha1", "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": { "f:status": fields }, "subresource": "status" })
}

/// Entries by which `count` managers own a field that an agent writes.
fn entries(count: usize) -> Vec<Value> {
    let fields = json!({ "f:agent": { "f:version": {} } });
    (0..count).map(|number| entry(&format!("m-{number}"), &fields)).collect()
}

async fn managed(object: &Value) -> Vec<Value> {
    let name = object["metadata"]["name"].as_str().unwrap();
    let found = api(&admin().await, object).get(name).await.unwrap();
    serde_json::from_value(serde_json::to_value(found.metadata.managed_fields).unwrap()).unwrap()
}

/// A patch that adds entries to `metadata.managedFields`, as by a client that writes the list itself.
async fn with_entries(object: &Value, more: Vec<Value>) -> (Patch<Value>, PatchParams) {
    let all = [managed(object).await, more].concat();
    let own = PatchParams { field_manager: Some("bedplate-agent".to_owned()), ..PatchParams::default() };
    (Patch::Merge(json!({ "metadata": { "managedFields": all } })), own)
}

/// The API server takes no list of entries from a client that writes the status.
async fn adds_no_entries(agent: &Client, object: &Value) {
    let (patch, own) = with_entries(object, entries(MANY)).await;
    let name = object["metadata"]["name"].as_str().unwrap();
    let before = managed(object).await;
    let _ = api(agent, object).patch_status(name, &own, &patch).await;
    assert_eq!(managed(object).await, before);
}

/// The attack: a compromised host adds field managers until the API server refuses the writes of pxed, those about power too.
#[tokio::test]
async fn trust_4_agent_adds_no_field_managers_to_its_machine() {
    policies_in_force();
    let object = machine("managers-agent");
    create(&admin().await, &object).await;
    let agent = agent("managers-agent").await;
    apply(&agent, &object, "bedplate-agent", agents_fields()).await.unwrap();
    let version = json!({ "agent": { "version": "0.1.0" } });
    for number in 0..MANY {
        let manager = format!("m-{number}");
        let why = apply(&agent, &object, &manager, version.clone()).await.expect_err(&manager);
        assert!(why.contains(REFUSED), "{why}");
    }
    adds_no_entries(&agent, &object).await;
    let nameless = Patch::Merge(json!({ "status": version }));
    let written =
        api(&agent, &object).patch_status("managers-agent", &PatchParams::default(), &nameless).await;
    assert!(written.unwrap_err().to_string().contains(REFUSED));
    for (manager, status) in pxeds_fields().into_iter().filter(|(manager, _)| *manager != "pxed-enrollment") {
        apply(&pxed().await, &object, manager, status).await.unwrap();
    }
    apply(&agent, &object, "bedplate-agent", agents_fields()).await.unwrap();
    let managers = managed(&object).await;
    assert!(managers.len() <= 6, "{managers:?}");
}

/// The attack: a compromised host makes an operation too large to be ended by the controller.
#[tokio::test]
async fn trust_4_agent_adds_no_field_managers_to_its_operation() {
    policies_in_force();
    let spec = json!({ "spec": { "machineRef": { "name": "managers-op" }, "operationName": "reboot" } });
    let object = with(&operation("managers-op"), &spec);
    create(&admin().await, &object).await;
    let (agent, _) = certified("managers-op").await;
    let status = json!({ "state": "InProgress", "executor": "x" });
    apply(&agent, &object, "bedplate-agent", status.clone()).await.unwrap();
    let why = apply(&agent, &object, "another", status.clone()).await.expect_err("another");
    assert!(why.contains(REFUSED), "{why}");
    adds_no_entries(&agent, &object).await;
    let ended = json!({ "state": "Complete", "conditions": [condition("Complete")] });
    apply(&agent, &object, "bedplate-agent", with(&status, &ended)).await.unwrap();
}

/// A Machine that had many managers before agents were kept from adding them.
#[tokio::test]
async fn trust_3_pxed_writes_a_machine_with_many_field_managers() {
    let (admin, pxed) = (admin().await, pxed().await);
    let foreign = json!({ "phase": "Ready" });
    let words = "pxed must not write fields of other managers, not even unchanged";
    for (name, count) in [("managers-many", MANY), ("managers-most", 4000)] {
        let object = machine(name);
        create(&admin, &object).await;
        apply(&admin, &object, "bedplate-agent", agents_fields()).await.unwrap();
        apply(&admin, &object, "bedplate-controller", foreign.clone()).await.unwrap();
        let mut nameless = entry("x", &json!({ "f:agent": { "f:version": {} } }));
        nameless.as_object_mut().unwrap().remove("manager");
        let (patch, own) = with_entries(&object, [entries(count), vec![nameless]].concat()).await;
        api(&admin, &object).patch(name, &own, &patch).await.unwrap();
        assert!(managed(&object).await.len() > count, "the API server has not taken the entries");
        for _ in 0..2 {
            for (manager, status) in pxeds_fields() {
                apply(&pxed, &object, manager, status).await.unwrap_or_else(|why| panic!("{name}: {why}"));
            }
        }
        let as_it_is = Patch::Apply(json!({ "apiVersion": object["apiVersion"], "kind": object["kind"],
            "metadata": { "name": name }, "status": foreign }));
        let parameters = PatchParams { dry_run: true, ..PatchParams::apply("pxed").force() };
        let machines = api(&pxed, &object);
        refused(words, || async { machines.patch_status(name, &parameters, &as_it_is).await }).await;
        for (manager, _) in pxeds_fields() {
            apply(&pxed, &object, manager, json!({})).await.expect("its own fields may go");
        }
    }
    // A user has written a field of pxed, which pxed takes over.
    let object = machine("managers-many");
    let by_hand = Patch::Merge(json!({ "status": { "power": { "state": "Off" } } }));
    api(&admin, &object).patch_status("managers-many", &PatchParams::default(), &by_hand).await.unwrap();
    for (manager, status) in pxeds_fields() {
        apply(&pxed, &object, manager, status).await.unwrap_or_else(|why| panic!("{manager}: {why}"));
    }
}
