//! Requests of `install` to the API server: reads of objects, dry-run and real applies, and the controller's
//! Pods.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::manifest;
use super::plan::{conflicts, step};
use crate::backend::cluster::{self, AskClusterError, FIELD_MANAGER};
use crate::step::{Action, Step};

/// Returns the API of an object's kind.
fn api(client: &Client, object: &Value) -> Api<DynamicObject> {
    let (group, version) = match object["apiVersion"].as_str().unwrap_or_default().split_once('/') {
        Some((group, version)) => (group, version),
        None => ("", object["apiVersion"].as_str().unwrap_or_default()),
    };
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, manifest::kind(object)));
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// `patch deployments.apps`
fn asked(verb: &str, object: &Value) -> String {
    let group = object["apiVersion"]
        .as_str()
        .and_then(|version| version.split_once('/'))
        .map(|(group, _)| format!(".{group}"));
    format!("{verb} {}s{}", manifest::kind(object).to_lowercase(), group.unwrap_or_default())
        .replace("ys.", "ies.")
}

/// Reads the current object.
pub(super) async fn get(client: &Client, object: &Value) -> Result<Option<Value>, AskClusterError> {
    let found = api(client, object).get_opt(name(object)).await;
    let found = found.map_err(|error| cluster::failed(error, asked("get", object)))?;
    Ok(found.map(|found| json!(found)))
}

/// Runs a dry-run apply. An object that already has the desired values and belongs to another field manager
/// is skipped.
pub(super) async fn look(client: &Client, wanted: &Value, force: bool) -> Result<Step, AskClusterError> {
    let before = get(client, wanted).await?;
    match patch(client, wanted, PatchParams { dry_run: true, force, ..PatchParams::apply(FIELD_MANAGER) })
        .await
    {
        Ok(after) => Ok(step(wanted, before.as_ref(), &after)),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            // The owner of an atomic field (matchConstraints) also owns the API server's defaults, which no
            // other manager applies. A plain apply would report a conflict although nothing changes.
            let taken = PatchParams { dry_run: true, force: true, ..PatchParams::apply(FIELD_MANAGER) };
            let after = patch(client, wanted, taken).await;
            let after = after.map_err(|error| cluster::failed(error, asked("patch", wanted)))?;
            let forced = step(wanted, before.as_ref(), &after);
            if forced.action == Action::Unchanged {
                return Ok(forced.left());
            }
            let details = status.details.as_ref();
            let causes: Vec<(String, String)> = details
                .iter()
                .flat_map(|details| &details.causes)
                .map(|cause| (cause.field.clone(), cause.message.clone()))
                .collect();
            Ok(Step::new(wanted, Action::Conflict, conflicts(&status.message, &causes)))
        }
        // The installation also creates the namespace, so a dry run is not possible yet.
        Err(kube::Error::Api(status)) if status.code == 404 && before.is_none() => {
            Ok(Step::new(wanted, Action::Create, Vec::new()))
        }
        Err(error) => Err(cluster::failed(error, asked("patch", wanted))),
    }
}

/// Applies an object.
pub(super) async fn apply(client: &Client, wanted: &Value, force: bool) -> Result<(), AskClusterError> {
    let applied = patch(client, wanted, PatchParams { force, ..PatchParams::apply(FIELD_MANAGER) }).await;
    applied.map(drop).map_err(|error| cluster::failed(error, asked("patch", wanted)))
}

async fn patch(client: &Client, wanted: &Value, parameters: PatchParams) -> Result<Value, kube::Error> {
    let applied = api(client, wanted).patch(name(wanted), &parameters, &Patch::Apply(wanted)).await?;
    Ok(json!(applied))
}

/// Returns the Pods that a Deployment selects. None if the user may not read them.
pub(super) async fn pods(client: &Client, deployment: &Value) -> Vec<Value> {
    let labels = deployment["spec"]["selector"]["matchLabels"].as_object();
    let labels: Vec<String> = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": deployment["metadata"]["namespace"] } });
    let found = api(client, &pod).list(&ListParams::default().labels(&labels.join(","))).await;
    found.map(|list| list.items.into_iter().map(|pod| json!(pod)).collect()).unwrap_or_default()
}
