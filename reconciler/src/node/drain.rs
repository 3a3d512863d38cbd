//! Evicts the Pods of a Node and deletes the Node: the writes for `rollout` and `deletion`. `rules::drain`
//! decides which Pods leave.
//!
//! Each write is bound to the live Node that was read just before. A new Node of the same name, or one that
//! another client changed meanwhile, is not touched.

use std::time::Duration;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::machine::Machine;
use bedplate_api::reason::event::ControllerEvent;
use bedplate_engine::write::{WriteError, ask, called, delete};
use bedplate_rules::drain::{self, CORDONED_BY, Drain, Evicted, Pod, PodApi, Rejection, list};
use futures::TryFutureExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::Patch;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::FIELD_MANAGER;
pub use crate::cache::drains::Memory;
use crate::context::World;
use crate::cordon::{DRAIN_FAILED, DRAIN_PENDING, DRAIN_STARTED, Failed, Purpose, cut};
use crate::metrics::{Eviction, Kind};

/// Delay in seconds before an eviction is retried that was refused for another reason than a disruption
/// budget.
const REFUSED_EVICTION_SECONDS: u32 = 30;

/// Interval between checks of a draining Node's Pods.
pub const DRAIN_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Progress of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Pods that are left, with the reason, for users.
    pub awaits: String,
    /// Pods that may not be evicted now, and the reason: a disruption budget blocks the eviction, or the API
    /// server refuses it.
    pub blocked: Option<String>,
    /// Delay before the next check.
    pub after: Duration,
}

/// Connection of this controller, for requests about `what`.
struct Requests<'a> {
    world: &'a World,
    what: String,
}

/// Failure of a request, with the answer of the API server if it has answered.
struct Failure {
    error: WriteError,
    rejection: Option<Rejection>,
}

impl PodApi for Requests<'_> {
    type Error = Failure;

    async fn request(&self, path: &str, body: Option<Value>) -> Result<Value, Failure> {
        let request = match body {
            Some(body) => http::Request::post(path)
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(body.to_string().into_bytes()),
            None => http::Request::get(path).body(Vec::new()),
        };
        let request = request.map_err(|error| {
            let error = WriteError::Refused { what: self.what.clone(), why: error.to_string() };
            Failure { error, rejection: None }
        })?;
        let mut rejection = None;
        let answer = self.world.client.request(request).inspect_err(|error| rejection = rejected(error));
        ask(&self.what, answer).await.map_err(|error| Failure { error, rejection })
    }

    fn rejection(failure: &Failure) -> Option<Rejection> {
        failure.rejection.clone()
    }
}

/// Returns the answer of the API server in an error, with the name of the budget, which is in the causes.
fn rejected(error: &kube::Error) -> Option<Rejection> {
    let kube::Error::Api(status) = error else { return None };
    let details = status.details.iter();
    let causes = details.flat_map(|details| &details.causes).map(|cause| cause.message.as_str());
    let texts = std::iter::once(status.message.as_str()).chain(causes).filter(|text| !text.is_empty());
    let again = status.details.as_ref().map(|details| details.retry_after_seconds);
    Some(Rejection {
        status: status.code,
        message: texts.collect::<Vec<_>>().join(" "),
        again: again.filter(|seconds| *seconds > 0),
    })
}

/// Returns the Pods on a Node.
///
/// # Errors
/// The API server does not answer, or refuses.
pub async fn pods(world: &World, node: &str) -> Result<Vec<Pod>, WriteError> {
    let requests = Requests { world, what: format!("the Pods of Node {node}") };
    drain::pods(&requests, node).await.map_err(|failure| failure.error)
}

/// Evicts the Pods that have to leave. Returns `None` if there are none left. A refused eviction does not
/// stop the others.
///
/// # Errors
/// The API server is unreachable.
pub async fn evict_all(world: &World, pods: &[Pod], drain: &Drain) -> Result<Option<Left>, WriteError> {
    let leaving: Vec<&Pod> = pods.iter().filter(|pod| pod.has_to_leave()).collect();
    if leaving.is_empty() {
        return Ok(None);
    }
    let (mut awaited, mut blocked) = (Vec::new(), Vec::new());
    for pod in leaving {
        let known = if pod.leaving { None } else { world.drains.held(&pod.uid) };
        let held = match known {
            _ if pod.leaving => None,
            Some(why) => Some(why),
            None => match send(world, pod, drain.grace).await {
                Ok(Evicted::Accepted) => None,
                Ok(Evicted::Gone) => continue,
                Ok(Evicted::Held { again: named, why }) => {
                    world.drains.hold(&pod.uid, named, &why);
                    Some(why)
                }
                // The refusal concerns only this Pod. It came from a webhook, or the namespace is being
                // deleted.
                Err(error) => {
                    let Some(why) = error.refusal().map(str::to_owned) else { return Err(error) };
                    world.drains.hold(&pod.uid, Some(REFUSED_EVICTION_SECONDS), &why);
                    Some(why)
                }
            },
        };
        awaited.push(match held {
            Some(why) => {
                blocked.push(format!("{} ({why})", pod.full_name()));
                format!("{} ({why})", pod.full_name())
            }
            None => pod.full_name(),
        });
    }
    world.drains.let_go();
    let blocked = (!blocked.is_empty()).then(|| cut(&list(&blocked)));
    Ok(Some(Left { awaits: cut(&list(&awaited)), blocked, after: DRAIN_CHECK_INTERVAL }))
}

async fn send(world: &World, pod: &Pod, grace: Option<u32>) -> Result<Evicted, WriteError> {
    let requests = Requests { world, what: format!("Pod {}", pod.full_name()) };
    let evicted = drain::evict(&requests, pod, grace).await.map_err(|failure| failure.error)?;
    world.turns.evicted(match evicted {
        Evicted::Accepted => Eviction::Accepted,
        Evicted::Held { .. } => Eviction::Held,
        Evicted::Gone => Eviction::Gone,
    });
    Ok(evicted)
}

/// Cordons a Node, and records the purpose on it.
///
/// # Errors
/// [`WriteError`]
pub async fn cordon(world: &World, node: &Node, purpose: &Purpose, now: Timestamp) -> Result<(), WriteError> {
    let began = begins(world, node, now);
    let annotations =
        json!({ CORDONED_BY: purpose.text(), DRAIN_STARTED: began, DRAIN_PENDING: null, DRAIN_FAILED: null });
    // Remembered before: an answer that is lost does not make it undone.
    world.drains.cordons(node, purpose);
    let written = patch(world, node, &annotations, Some(&json!({ "unschedulable": true }))).await;
    match &written {
        Ok(version) => world.drains.cordoned(node, purpose, version.as_deref()),
        Err(WriteError::Conflict { .. } | WriteError::Refused { .. }) => {
            world.drains.forget(&node.name_any());
        }
        Err(WriteError::Later { .. } | WriteError::Forbidden { .. } | WriteError::Deposed) => {}
    }
    written.map(drop)
}

/// Gives a Node free that the controller has cordoned; `failed`: why nothing came of it.
///
/// # Errors
/// [`WriteError`]
pub async fn free(world: &World, node: &Node, failed: Option<&Failed>) -> Result<(), WriteError> {
    let mut annotations = json!({ CORDONED_BY: null, DRAIN_STARTED: null, DRAIN_PENDING: null });
    if let Some(failed) = failed {
        annotations[DRAIN_FAILED] = json!(failed).to_string().into();
    }
    world.drains.forget(&node.name_any());
    world.drains.over(node);
    patch(world, node, &annotations, Some(&json!({ "unschedulable": null }))).await.map(drop)
}

/// Says on a Node why it is not drained, which was not cordoned for that.
///
/// # Errors
/// [`WriteError`]
pub async fn say_failed(world: &World, node: &Node, failed: &Failed) -> Result<(), WriteError> {
    patch(world, node, &json!({ DRAIN_FAILED: json!(failed).to_string() }), None).await.map(drop)
}

/// Records on a Node that its drain starts now. Does so if the annotation is not a time, or is in the future.
///
/// # Errors
/// [`WriteError`]
pub async fn say_begun(world: &World, node: &Node, now: Timestamp) -> Result<(), WriteError> {
    let began = begins(world, node, now);
    patch(world, node, &json!({ DRAIN_STARTED: began }), None).await.map(drop)
}

/// Returns the start time for a Node whose drain starts now, and remembers it.
fn begins(world: &World, node: &Node, now: Timestamp) -> String {
    let text = format!("{now:.0}");
    if let (Some(uid), Ok(began)) = (&node.metadata.uid, text.parse()) {
        world.drains.lasting.begins(uid, began);
    }
    text
}

/// Records the pending Pods on a Node if the annotation differs.
///
/// # Errors
/// [`WriteError`]
pub async fn say_awaited(world: &World, node: &Node, awaits: &str) -> Result<(), WriteError> {
    if node.annotations().get(DRAIN_PENDING).is_some_and(|before| before == awaits) {
        return Ok(());
    }
    patch(world, node, &json!({ DRAIN_PENDING: awaits }), None).await.map(drop)
}

/// Publishes an Event on a Machine, once per drain, that names the Pods that cannot be evicted. `until` is
/// the deadline of the drain.
pub fn tell_blocked(world: &World, machine: &Machine, node: &Node, left: &Left, until: Option<Timestamp>) {
    let Some(blocked) = &left.blocked else { return world.drains.unblock(node) };
    if world.drains.blocks(node) {
        let until = until.map(|until| format!("; it times out at {until:.0}")).unwrap_or_default();
        let note = format!("the drain of Node {} waits for {blocked}{until}", node.name_any());
        world.news.publish(machine, ControllerEvent::DrainBlocked, &note);
    }
}

/// Deletes a Node.
///
/// # Errors
/// [`WriteError`]
pub async fn remove(world: &World, node: &Node) -> Result<(), WriteError> {
    let nodes: Api<BoundedTimes<Node>> = Api::all(world.client.clone());
    world.counters.wrote(Kind::Rollout);
    let (uid, version) = (node.metadata.uid.clone(), node.metadata.resource_version.clone());
    delete(&nodes, &node.name_any(), uid, version).await?;
    world.drains.removed(node);
    Ok(())
}

/// The resource version that comes of it.
async fn patch(
    world: &World,
    node: &Node,
    annotations: &Value,
    spec: Option<&Value>,
) -> Result<Option<String>, WriteError> {
    let mut body = json!({ "metadata": { "uid": node.uid(), "resourceVersion": node.resource_version(), "annotations": annotations } });
    if let Some(spec) = spec {
        body["spec"] = spec.clone();
    }
    // No apply: an apply of the annotations alone (`machine`) would take away what this one has set.
    let parameters = FIELD_MANAGER.patch();
    let nodes: Api<BoundedTimes<Node>> = Api::all(world.client.clone());
    world.counters.wrote(Kind::Rollout);
    let written =
        ask(&called(node), nodes.patch(&node.name_any(), &parameters, &Patch::Merge(&body))).await?;
    Ok(written.0.metadata.resource_version)
}
