//! Has the Pods of a Node leave, and deletes it: the writes for `rollout` and `departure`. Which Pods leave, `bedplate-drain` decides.
//!
//! Each write is bound to the Node as it was read a moment before, live: another one of the same name, or one that somebody has changed
//! meanwhile, is not touched.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bedplate_drain::{CORDONED_BY, Drain, Evicted, Pod, again, evict, list, outcome, page};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::counters::{Eviction, Kind};
use crate::rollout::mark::{DRAIN_AWAITS, DRAIN_BEGAN, DRAIN_FAILED, Failed, Purpose, cut};
use crate::world::World;
use crate::write::{FIELD_MANAGER, WriteError, ask, called, delete};

/// Between two looks at the Pods of a Node.
pub const LOOK: Duration = Duration::from_secs(5);

/// What is known of drains beside the objects. All of it may be lost: an eviction is tried a little earlier then.
#[derive(Debug, Default)]
pub struct Memory {
    /// Until when an eviction is not tried again, and why it was held, by the Pod's UID.
    held: Mutex<BTreeMap<String, (Timestamp, String)>>,
    /// Nodes (name and UID) that were cordoned a moment ago, and for what: the store may not show it yet, and a second one would be begun.
    cordoned: Mutex<BTreeMap<String, (String, Purpose)>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// What this Node of the store was cordoned for a moment ago, if the store does not show it yet.
    pub fn cordoned(&self, name: &str, node: Option<&Node>) -> Option<Purpose> {
        let mut cordoned = locked(&self.cordoned);
        let (uid, purpose) = cordoned.get(name)?;
        let is_same = node.is_some_and(|node| node.metadata.uid.as_ref() == Some(uid));
        let is_seen = node.is_some_and(|node| node.annotations().contains_key(CORDONED_BY));
        if is_same && !is_seen {
            return Some(purpose.clone());
        }
        cordoned.remove(name);
        None
    }

    /// A Node is not as it was remembered.
    pub fn forget(&self, name: &str) {
        locked(&self.cordoned).remove(name);
    }
}

/// How far a Node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The Pods that are there yet, and why, for a person.
    pub awaits: String,
    /// When it is looked at again.
    pub after: Duration,
}

/// The Pods on a Node.
///
/// # Errors
/// The API server did not say.
pub async fn pods(world: &World, node: &str) -> Result<Vec<Pod>, WriteError> {
    let what = format!("the Pods of Node {node}");
    let mut pods = Vec::new();
    let mut token = String::new();
    loop {
        let request = http::Request::get(page(node, &token)).body(Vec::new());
        let request = request.map_err(|error| refused(&what, &error))?;
        let list: Value = ask(&what, world.client.request(request)).await?;
        pods.extend(list["items"].as_array().into_iter().flatten().map(Pod::read));
        token = match list["metadata"]["continue"].as_str() {
            Some(next) if !next.is_empty() => next.to_owned(),
            _ => return Ok(pods),
        };
    }
}

fn refused(what: &str, error: &http::Error) -> WriteError {
    WriteError::Refused { what: what.to_owned(), why: error.to_string() }
}

/// Asks for the end of the Pods that have to leave; none: there is no such any more. `now`: when they were read.
///
/// # Errors
/// The API server is away, or does not let the controller evict.
pub async fn evict_all(
    world: &World,
    pods: &[Pod],
    drain: &Drain,
    now: Timestamp,
) -> Result<Option<Left>, WriteError> {
    let leaving: Vec<&Pod> = pods.iter().filter(|pod| pod.has_to_leave()).collect();
    if leaving.is_empty() {
        return Ok(None);
    }
    let mut awaited = Vec::new();
    for pod in leaving {
        let known = locked(&world.drains.held).get(&pod.uid).filter(|(until, _)| now < *until).cloned();
        let held = match known {
            _ if pod.leaving => None,
            Some((_, why)) => Some(why),
            None => match send(world, pod, drain.grace).await? {
                Evicted::Accepted => None,
                Evicted::Gone => continue,
                Evicted::Held { again: named, why } => {
                    locked(&world.drains.held).insert(pod.uid.clone(), (again(now, named), why.clone()));
                    Some(why)
                }
            },
        };
        awaited.push(match held {
            Some(why) => format!("{} ({why})", pod.full_name()),
            None => pod.full_name(),
        });
    }
    locked(&world.drains.held).retain(|_, (until, _)| now < *until);
    Ok(Some(Left { awaits: cut(&list(&awaited)), after: LOOK }))
}

async fn send(world: &World, pod: &Pod, grace: Option<u32>) -> Result<Evicted, WriteError> {
    let what = format!("Pod {}", pod.full_name());
    let eviction = evict(pod, grace);
    let request = http::Request::post(eviction.path).header(http::header::CONTENT_TYPE, "application/json");
    let request =
        request.body(eviction.body.to_string().into_bytes()).map_err(|error| refused(&what, &error))?;
    let answer = async {
        match world.client.request::<Value>(request).await {
            Ok(_) => Ok(Evicted::Accepted),
            Err(kube::Error::Api(status)) => {
                let named = status.details.as_ref().map(|details| details.retry_after_seconds);
                let known = outcome(status.code, &status.message, named.filter(|seconds| *seconds > 0));
                known.ok_or(kube::Error::Api(status))
            }
            Err(error) => Err(error),
        }
    };
    let evicted = ask(&what, answer).await?;
    world.counters.evicted(match evicted {
        Evicted::Accepted => Eviction::Accepted,
        Evicted::Held { .. } => Eviction::Held,
        Evicted::Gone => Eviction::Gone,
    });
    Ok(evicted)
}

/// Has no more Pods be placed on a Node, and says on it what for.
///
/// # Errors
/// [`WriteError`]
pub async fn cordon(world: &World, node: &Node, purpose: &Purpose, now: Timestamp) -> Result<(), WriteError> {
    let annotations = json!({ CORDONED_BY: purpose.text(), DRAIN_BEGAN: format!("{now:.0}"), DRAIN_AWAITS: null, DRAIN_FAILED: null });
    patch(world, node, &annotations, Some(&json!({ "unschedulable": true }))).await?;
    let uid = node.metadata.uid.clone().unwrap_or_default();
    locked(&world.drains.cordoned).insert(node.name_any(), (uid, purpose.clone()));
    Ok(())
}

/// Gives a Node free that the controller has cordoned; `failed`: why nothing came of it.
///
/// # Errors
/// [`WriteError`]
pub async fn free(world: &World, node: &Node, failed: Option<&Failed>) -> Result<(), WriteError> {
    let mut annotations = json!({ CORDONED_BY: null, DRAIN_BEGAN: null, DRAIN_AWAITS: null });
    if let Some(failed) = failed {
        annotations[DRAIN_FAILED] = json!(failed).to_string().into();
    }
    world.drains.forget(&node.name_any());
    patch(world, node, &annotations, Some(&json!({ "unschedulable": null }))).await
}

/// Says on a Node why it is not drained, which was not cordoned for that.
///
/// # Errors
/// [`WriteError`]
pub async fn say_failed(world: &World, node: &Node, failed: &Failed) -> Result<(), WriteError> {
    patch(world, node, &json!({ DRAIN_FAILED: json!(failed).to_string() }), None).await
}

/// Says on a Node what is awaited, if it does not say so yet.
///
/// # Errors
/// [`WriteError`]
pub async fn say_awaited(world: &World, node: &Node, awaits: &str) -> Result<(), WriteError> {
    if node.annotations().get(DRAIN_AWAITS).is_some_and(|before| before == awaits) {
        return Ok(());
    }
    patch(world, node, &json!({ DRAIN_AWAITS: awaits }), None).await
}

/// Deletes a Node.
///
/// # Errors
/// [`WriteError`]
pub async fn remove(world: &World, node: &Node) -> Result<(), WriteError> {
    let nodes: Api<Node> = Api::all(world.client.clone());
    world.counters.wrote(Kind::Rollout);
    let (uid, version) = (node.metadata.uid.clone(), node.metadata.resource_version.clone());
    delete(&nodes, &node.name_any(), uid, version).await
}

async fn patch(
    world: &World,
    node: &Node,
    annotations: &Value,
    spec: Option<&Value>,
) -> Result<(), WriteError> {
    let mut body = json!({ "metadata": { "uid": node.uid(), "resourceVersion": node.resource_version(), "annotations": annotations } });
    if let Some(spec) = spec {
        body["spec"] = spec.clone();
    }
    // No apply: an apply of the annotations alone (`machine`) would take away what this one has set.
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let nodes: Api<Node> = Api::all(world.client.clone());
    world.counters.wrote(Kind::Rollout);
    ask(&called(node), nodes.patch(&node.name_any(), &parameters, &Patch::Merge(&body))).await.map(drop)
}
