//! Evicts the Pods of a Node and deletes the Node: the writes for `rollout` and `deletion`. `rules::drain`
//! decides which Pods leave.
//!
//! Each write is bound to the live Node that was read just before. A new Node of the same name, or one that
//! another client changed meanwhile, is not touched.

use std::time::Duration;

use bedplate_api::machine::Machine;
use bedplate_api::reason::event::ControllerEvent;
use bedplate_engine::write::{WriteError, ask, delete};
use bedplate_rules::drain::{self, CORDONED_BY, Drain, Evicted, Pod, PodApi, Rejection, list};
use futures::TryFutureExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
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
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_secs(5);

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

/// Evicts the Pods of a Node that must leave. A refused eviction does not stop the others. Records on the Node which Pods are pending, and
/// reports blocked ones on its Machine. `until`: the deadline of the drain. Returns the delay before the next check.
///
/// # Errors
/// The API server is unreachable.
pub(crate) async fn evict_all(
    world: &World,
    (node, machine): (&Node, Option<&Machine>),
    pods: &[Pod],
    drain: &Drain,
    until: Option<Timestamp>,
) -> Result<Duration, WriteError> {
    let (mut pending, mut blocked) = (Vec::new(), Vec::new());
    for pod in pods.iter().filter(|pod| pod.has_to_leave()) {
        match evict(world, pod, drain.grace).await? {
            Evicted::Gone => {}
            Evicted::Accepted => pending.push(pod.full_name()),
            Evicted::Held { why, .. } => {
                let held = format!("{} ({why})", pod.full_name());
                blocked.push(held.clone());
                pending.push(held);
            }
        }
    }
    world.drains.forget_expired();
    let pending = cut(&list(&pending));
    if node.annotations().get(DRAIN_PENDING) != Some(&pending) {
        annotate(world, node, &json!({ DRAIN_PENDING: pending })).await?;
    }
    if let Some(machine) = machine {
        tell_blocked(world, machine, node, &blocked, until);
    }
    Ok(DRAIN_CHECK_INTERVAL)
}

/// Publishes an Event on a Machine, once per drain, that names the Pods that cannot be evicted.
fn tell_blocked(world: &World, machine: &Machine, node: &Node, blocked: &[String], until: Option<Timestamp>) {
    if blocked.is_empty() {
        world.drains.unblock(node);
    } else if world.drains.blocks(node) {
        let until = until.map(|until| format!("; drain times out at {until:.0}")).unwrap_or_default();
        let blocked = cut(&list(blocked));
        let note = format!("Node {} is not drained: waiting for {blocked}{until}", node.name_any());
        world.news.publish(machine, ControllerEvent::DrainBlocked, &note);
    }
}

/// Evicts a Pod, unless it is leaving or must not be evicted yet.
async fn evict(world: &World, pod: &Pod, grace: Option<u32>) -> Result<Evicted, WriteError> {
    if pod.leaving {
        return Ok(Evicted::Accepted);
    }
    if let Some(why) = world.drains.held(&pod.uid) {
        return Ok(Evicted::Held { again: None, why });
    }
    let requests = Requests { world, what: format!("Pod {}", pod.full_name()) };
    let evicted = match drain::evict(&requests, pod, grace).await {
        Ok(evicted) => {
            world.turns.evicted(match evicted {
                Evicted::Accepted => Eviction::Accepted,
                Evicted::Held { .. } => Eviction::Held,
                Evicted::Gone => Eviction::Gone,
            });
            evicted
        }
        // The refusal concerns only this Pod. It came from a webhook, or the namespace is being deleted.
        Err(Failure { error, .. }) => {
            let Some(why) = error.refusal().map(str::to_owned) else { return Err(error) };
            Evicted::Held { again: Some(REFUSED_EVICTION_SECONDS), why }
        }
    };
    if let Evicted::Held { again, why } = &evicted {
        world.drains.hold(&pod.uid, *again, why);
    }
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
    let change = json!({ "metadata": { "annotations": annotations }, "spec": { "unschedulable": true } });
    // Remembered before the write, because the answer may be lost.
    world.drains.cordons(node, purpose);
    let written = patch(world, node, &change).await;
    match &written {
        Ok(version) => world.drains.cordoned(node, purpose, version.as_deref()),
        Err(WriteError::Conflict { .. } | WriteError::Refused { .. }) => {
            world.drains.forget(&node.name_any());
        }
        Err(WriteError::Later { .. } | WriteError::Forbidden { .. } | WriteError::Deposed) => {}
    }
    written.map(drop)
}

/// Uncordons a Node that the controller has cordoned. `failed`: failure of the drain.
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
    let change = json!({ "metadata": { "annotations": annotations }, "spec": { "unschedulable": null } });
    patch(world, node, &change).await.map(drop)
}

/// Records on a Node that was not cordoned why its drain failed.
///
/// # Errors
/// [`WriteError`]
pub(crate) async fn say_failed(world: &World, node: &Node, failed: &Failed) -> Result<(), WriteError> {
    annotate(world, node, &json!({ DRAIN_FAILED: json!(failed).to_string() })).await
}

/// Records on a Node that its drain starts now. Does so if the annotation is not a time, or is in the future.
///
/// # Errors
/// [`WriteError`]
pub(crate) async fn report_started(world: &World, node: &Node, now: Timestamp) -> Result<(), WriteError> {
    annotate(world, node, &json!({ DRAIN_STARTED: begins(world, node, now) })).await
}

/// Returns the start time for a Node whose drain starts now, and remembers it.
fn begins(world: &World, node: &Node, now: Timestamp) -> String {
    let text = format!("{now:.0}");
    if let (Some(uid), Ok(began)) = (&node.metadata.uid, text.parse()) {
        world.drains.lasting.begins(uid, began);
    }
    text
}

/// Deletes a Node.
///
/// # Errors
/// [`WriteError`]
pub async fn remove(world: &World, node: &Node) -> Result<(), WriteError> {
    let nodes = world.write::<Node>(Kind::Rollout);
    delete(&nodes, &node.name_any(), node.uid(), node.resource_version()).await?;
    world.drains.removed(node);
    Ok(())
}

async fn annotate(world: &World, node: &Node, annotations: &Value) -> Result<(), WriteError> {
    patch(world, node, &json!({ "metadata": { "annotations": annotations } })).await.map(drop)
}

/// Changes a Node. Returns its new resource version. This is not an apply: the apply of the annotations alone (`machine`) would remove the
/// other fields.
async fn patch(world: &World, node: &Node, change: &Value) -> Result<Option<String>, WriteError> {
    let written = FIELD_MANAGER.merge_object(&world.write(Kind::Rollout), &(), node, change).await?;
    Ok(written.metadata.resource_version)
}
