//! Shared parts of the tests against a real API server: clients, objects that are accepted as they stand, and patches of them.

use bedplate_tests::kubernetes::Kubernetes;
use kube::api::{DynamicObject, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};
use std::path::Path;

pub(crate) const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A client with the rights of this kubeconfig.
pub(crate) async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

pub(crate) async fn admin() -> Client {
    client(&Kubernetes::shared().admin()).await
}

/// The interface to the kind that `object` has.
pub(crate) fn api(client: &Client, object: &Value) -> Api<DynamicObject> {
    let kind = object["kind"].as_str().unwrap();
    let resource = kube::api::ApiResource {
        group: "bedplate.dev".into(),
        version: "v1alpha1".into(),
        api_version: "bedplate.dev/v1alpha1".into(),
        kind: kind.into(),
        plural: format!("{}s", kind.to_lowercase()),
    };
    Api::all_with(client.clone(), &resource)
}

/// Answer of the API server for a new object, without storing it.
pub(crate) async fn try_create(client: &Client, object: &Value) -> Result<Value, String> {
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    let typed: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    match api(client, object).create(&parameters, &typed).await {
        Ok(made) => Ok(serde_json::to_value(made).unwrap()),
        Err(error) => Err(error.to_string()),
    }
}

/// Makes an object and gives it as the API server has it.
pub(crate) async fn create(client: &Client, object: &Value) -> DynamicObject {
    let typed: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let made = api(client, object).create(&PostParams::default(), &typed).await;
    made.unwrap_or_else(|error| panic!("{}: {error}", typed.name_any()))
}

/// `object` with a JSON merge patch (RFC 7396) applied.
pub(crate) fn with(object: &Value, patch: &Value) -> Value {
    let (Value::Object(_), Value::Object(changes)) = (object, patch) else { return patch.clone() };
    let mut merged = object.clone();
    for (name, change) in changes {
        if change.is_null() {
            merged.as_object_mut().unwrap().remove(name);
        } else {
            let before = object.get(name).cloned().unwrap_or_else(|| json!({}));
            merged[name] = with(&before, change);
        }
    }
    merged
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec })
}

pub(crate) fn machine(name: &str) -> Value {
    let interface = json!({ "macAddress": "52:54:00:00:00:01" });
    object("Machine", name, &json!({ "provider": "pxe", "pxe": { "interfaces": [interface] } }))
}

pub(crate) fn template() -> Value {
    json!({
        "image": { "reference": format!("registry.example/node@{DIGEST}") },
        "kubernetes": { "version": "v1.34.4", "kubeletConfiguration": { "maxPods": 20 } }
    })
}

pub(crate) fn configuration(name: &str) -> Value {
    object("MachineConfiguration", name, &json!({ "template": template() }))
}

pub(crate) fn version(configuration: &str, number: u32) -> Value {
    let spec = json!({ "configurationName": configuration, "version": number, "template": template() });
    object("MachineConfigurationVersion", &format!("{configuration}-v{number}"), &spec)
}

/// A claim of the Machine with this name, for a claimant of namespace `team-a`.
pub(crate) fn claim(name: &str) -> Value {
    object(
        "MachineClaim",
        name,
        &json!({ "claimant": { "namespace": "team-a", "name": "w-1", "uid": "u-1" }, "clusterName": "c", "role": "Worker",
            "nodeName": "w-1", "providerID": format!("bedplate://{name}/u-1"), "configurationRef": { "name": "pool" },
            "release": "Empty" }),
    )
}

pub(crate) fn operation(name: &str) -> Value {
    object(
        "MachineOperation",
        name,
        &json!({ "operationName": "reboot", "machineRef": { "name": "node-1" } }),
    )
}
