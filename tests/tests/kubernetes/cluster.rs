//! Shared parts of the tests against a real API server: clients, objects that are accepted as they stand, and patches of them.

use bedplate_api::claim::Claimant;
use bedplate_api::configuration::Template;
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::objects::{self, NODE_IMAGE};
use kube::api::{DynamicObject, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};
use std::path::Path;

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

pub(crate) fn machine(name: &str) -> Value {
    objects::machine(name).pxe("52:54:00:00:00:01").json()
}

fn template() -> Template {
    let mut template = objects::template(NODE_IMAGE);
    template.kubernetes.kubelet_configuration = Some(json!({ "maxPods": 20 }));
    template
}

pub(crate) fn configuration(name: &str) -> Value {
    objects::configuration(name, &template()).json()
}

pub(crate) fn version(configuration: &str, number: u32) -> Value {
    objects::version(configuration, number, &template()).json()
}

/// A claim of the Machine with this name, for a claimant of namespace `team-a`.
pub(crate) fn claim(name: &str) -> Value {
    let claimant = Claimant { namespace: "team-a".into(), name: "w-1".into(), uid: "u-1".into() };
    objects::claim(name, &claimant).json()
}

pub(crate) fn operation(name: &str) -> Value {
    objects::operation(name, "reboot").on("node-1").json()
}
