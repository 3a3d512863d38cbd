//! Requests of pxed and agents that `deploy/` permits and refuses on a real API server (docs/design/rules.md, "Who writes what" and
//! "Trust" 3 and 4).
//!
//! Here: the writers, and the fields that each writes. The tests are below, by role.

mod agent_machines;
mod agent_operations;
mod people;
mod pxed_writes;
mod rights;

use std::collections::BTreeSet;
use std::time::Duration;

use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::wait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::Client;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use super::cluster::{api, client, machine};

/// An agent with a new certificate, and the status of a Machine that is enrolled with it.
pub(super) async fn certified(name: &str) -> (Client, Value) {
    let (kubeconfig, enrollment) = Kubernetes::shared().agent(name).unwrap();
    (client(&kubeconfig).await, json!({ "enrollment": enrollment }))
}

/// Status of a Machine that is enrolled with a certificate that no agent has.
fn enrollment() -> Value {
    json!({ "enrollment": { "certificateFingerprint": format!("sha256:{}", "0".repeat(64)), "keyID": "0".repeat(32) } })
}

/// The agent of a Machine that is there, enrolled with a new certificate.
pub(super) async fn agent(name: &str) -> Client {
    let (agent, enrollment) = certified(name).await;
    apply(&pxed().await, &machine(name), "pxed-enrollment", enrollment).await.unwrap();
    agent
}

pub(super) async fn pxed() -> Client {
    client(&Kubernetes::shared().service_account("bedplate-system", "pxed").unwrap()).await
}

pub(super) fn condition(kind: &str) -> Value {
    json!({ "type": kind, "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

/// Applies `status` to an object as a writer's whole opinion, the way every program does it.
pub(super) async fn apply(
    client: &Client,
    object: &Value,
    writer: &str,
    status: Value,
) -> Result<(), String> {
    let name = object["metadata"]["name"].as_str().unwrap();
    let applied = json!({
        "apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": { "name": name }, "status": status
    });
    let parameters = PatchParams::apply(writer).force();
    let result = api(client, object).patch_status(name, &parameters, &Patch::Apply(applied)).await;
    result.map(drop).map_err(|error| error.to_string())
}

/// Policies take effect some time after they were made, and nothing in the API says when.
pub(super) fn policies_in_force() {
    let kubernetes = Kubernetes::shared();
    let stranger = kubernetes.user("bedplate:machine:stranger", &["bedplate:machines"]).unwrap();
    let (admin, stranger) = (kubernetes.objects().unwrap(), kubernetes.objects_of(&stranger).unwrap());
    let probe = |kind: &str, field: &str, value: Value| {
        let mut object =
            json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": kind, "metadata": { "name": "probe" } });
        object[field] = value;
        object
    };
    admin.apply(&probe("Machine", "spec", json!({ "provider": "manual" }))).unwrap();
    let status = probe("Machine", "status", json!({ "agent": { "version": "0" } }));
    let spec = json!({ "operationName": "reboot", "machineRef": { "name": "probe" } });
    let operation = probe("MachineOperation", "spec", spec);
    // No role lets agents make operations, so one asks that may do everything and is an agent too.
    let both = admin.impersonating("bedplate:machine:probe", &["bedplate:machines", "system:masters"]);
    wait::until_asked("the policies", Duration::from_secs(60), || {
        let refusal =
            |tried: anyhow::Result<Value>| tried.err().map(|why| why.to_string()).unwrap_or_default();
        let machines = refusal(stranger.apply_as("kubectl", "/status", &status, "&dryRun=All"));
        let operations = refusal(both.try_create(&operation));
        let are_refused = machines.contains("is not the agent of Machine probe")
            && operations.contains("an agent may write only the status of a MachineOperation");
        Ok(are_refused.then_some(()))
    })
    .unwrap();
}

/// Tries until a policy refuses it with these words: policies take effect some time after they were made.
pub(super) async fn refused<T, F>(words: &str, attempt: impl Fn() -> F)
where
    F: Future<Output = kube::Result<T>>,
{
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let why = attempt().await.err().map(|error| error.to_string()).unwrap_or_default();
        if why.contains(words) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "not refused with {words:?}: {why}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn dry() -> PatchParams {
    PatchParams { dry_run: true, ..PatchParams::default() }
}

/// Returns the entries of `metadata.managedFields` of others than these managers, without their times.
fn ownership(object: &DynamicObject, own: &[&str]) -> Vec<ManagedFieldsEntry> {
    let entries = object.metadata.managed_fields.clone().unwrap_or_default().into_iter();
    let others = entries.filter(|entry| !own.contains(&entry.manager.as_deref().unwrap_or_default()));
    others.map(|entry| ManagedFieldsEntry { time: None, ..entry }).collect()
}

/// Fields of the status, each with a value, that an agent writes.
pub(super) fn agents_fields() -> Value {
    json!({
        "addresses": [{ "type": "InternalIP", "address": "10.7.0.21" }],
        "agent": { "version": "0.1.0", "lastHeartbeatTime": "2026-01-01T00:00:00Z" },
        "hardware": {
            "vendor": "QEMU", "product": "P", "serial": "S", "uuid": "00000000-0000-0000-0000-000000000001",
            "firmware": {}, "cpu": {}, "memoryBytes": 1, "disks": [{ "name": "vda" }], "nics": [{ "name": "eth0" }],
            "tpm": { "present": false }, "clock": {}
        },
        "stateDisk": { "name": "virtio-state", "wipeToken": "1" },
        "applied": { "name": "workers", "version": 1, "slot": "a" },
        "slots": [{ "name": "a", "state": "Running" }],
        "rolledBack": { "from": { "name": "workers", "version": 2 }, "to": { "name": "workers", "version": 1 },
            "message": "r", "time": "2026-01-01T00:00:00Z" },
        "claim": { "providerID": "bedplate://host/u", "claimant": { "namespace": "team-a", "name": "w-1" }, "state": "Released",
            "since": "2026-01-01T00:00:00Z" },
        "conditions": [condition("Paved"), condition("NodeReady")]
    })
}

/// Statuses with one field that an agent does not write.
fn others_fields() -> Vec<Value> {
    let conditions = [
        "BMCReachable",
        "PoweredOn",
        "Booted",
        "Enrolled",
        "ConfigurationPending",
        "Ready",
        "Stalled",
        "Invented",
    ];
    let conditions = conditions.map(|kind| json!({ "conditions": [condition(kind)] }));
    let fields = [
        json!({ "observedGeneration": 1 }),
        json!({ "phase": "Ready" }),
        json!({ "power": { "state": "Off" } }),
        json!({ "boot": { "stage": "Enrolled" } }),
        enrollment(),
        json!({ "selected": { "name": "workers", "version": 1, "source": "Reference" } }),
        json!({ "nodeRef": { "name": "agent-others", "uid": "u" } }),
        json!({ "observedNode": { "state": "Absent", "observedGeneration": 1 } }),
        json!({ "providerID": "bedplate://other" }),
        json!({ "hardware": { "bmc": { "vendor": "V" } } }),
    ];
    conditions.into_iter().chain(fields).collect()
}

#[test]
fn every_field_of_the_status_is_tried_as_the_agents_or_another_s() {
    let definitions = bedplate_api::crds::definitions();
    let schema = serde_json::to_value(&definitions[0].spec.versions[0].schema).unwrap();
    let names = |value: &Value| -> BTreeSet<String> { value.as_object().unwrap().keys().cloned().collect() };
    let mut stated = [BTreeSet::new(), BTreeSet::new()];
    let status = &schema["openAPIV3Schema"]["properties"]["status"]["properties"];
    stated[0].extend(names(status));
    stated[1].extend(names(&status["hardware"]["properties"]));
    let mut tried = [BTreeSet::new(), BTreeSet::new()];
    for status in others_fields().into_iter().chain([agents_fields()]) {
        tried[0].extend(names(&status));
        tried[1].extend(status.get("hardware").map(names).unwrap_or_default());
    }
    assert_eq!(
        tried, stated,
        "decide who writes a new field: deploy/agent-policy.yaml, docs/design/rules.md, and here"
    );
}

/// Fields of the status, each with a value, that pxed writes, by the manager that it writes them with.
pub(super) fn pxeds_fields() -> [(&'static str, Value); 3] {
    [
        (
            "pxed",
            json!({ "boot": { "stage": "Offered", "attempts": 1 }, "conditions": [condition("Booted"), condition("Enrolled")] }),
        ),
        (
            "pxed-power",
            json!({ "power": { "state": "On" }, "hardware": { "bmc": { "vendor": "V" } },
                "conditions": [condition("BMCReachable"), condition("PoweredOn")] }),
        ),
        ("pxed-enrollment", enrollment()),
    ]
}
