//! Pure: `NodeReady` and `NodeHealthy` of a Machine.
//!
//! ```text
//! Cluster provisioned, control plane initialized -> connection -> Node with the providerID -> its conditions
//! ```
//! A short loss of the connection keeps the last conditions: 5 minutes after the last successful probe they become Unknown. Called by
//! `condition`.

use std::collections::BTreeSet;
use std::time::Duration;

use bedplate_api::cluster::full::machine::MachineStatus;
use bedplate_api::cluster::full::{Cluster, condition_type};
use bedplate_api::cluster::part::label;
use bedplate_api::condition::ConditionState;
use bedplate_api::reason::core::{MachineNodeReadyReason as Ready, NodeHealthyReason as Healthy};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt;

use super::condition::{Line, get, left};
use super::node::{self, Connection, NodeView};
use super::plan::Observed;

/// Time for which the last conditions stay after the last successful probe.
pub(crate) const UNREACHABLE_GRACE: SignedDuration = SignedDuration::from_mins(5);
/// Condition of a Node that must be True.
const NODE_READY: &str = "Ready";
/// Conditions of a Node that must be False.
const PRESSURES: [&str; 3] = ["MemoryPressure", "DiskPressure", "PIDPressure"];

/// `NodeReady` and `NodeHealthy`.
pub type Lines = (Line, Line);

/// Returns the conditions, and the delay until they change by the time alone. None: they stay.
pub fn lines(observed: &Observed, status: &MachineStatus) -> (Option<Lines>, Option<Duration>) {
    let since = match initialized(observed) {
        Ok(since) => since,
        // The Node of the first Machine is there before the control plane counts as initialized.
        Err(_) if initializes(observed) && matches!(observed.workload.node, NodeView::Found(_)) => None,
        Err(text) => return (Some(inspection_failed(text)), None),
    };
    let name = &observed.machine.spec.cluster_name;
    let connection = observed.workload.connection;
    let types = [condition_type::NODE_READY, condition_type::NODE_HEALTHY];
    let is_shown = types.iter().all(|type_| get(status, type_).is_some());
    if is_expected(connection) {
        let text = format!("API server of Cluster {name} is not connected yet; see Secret {name}-kubeconfig");
        return ((!is_shown).then(|| connection_down(text)), None);
    }
    let heard = connection.last_success.max(since);
    let grace = heard.and_then(|heard| left(UNREACHABLE_GRACE, observed.now.duration_since(heard)));
    if grace.is_none() {
        // A process that has started during the outage does not know its start.
        let is_down = types
            .iter()
            .all(|type_| get(status, type_).is_some_and(|shown| shown.reason == Ready::ConnectionDown));
        if is_down && connection.last_success.is_none() {
            return (None, None);
        }
        return (Some(connection_down(unreachable(name, connection.last_success))), None);
    }
    let recheck = grace.filter(|_| observed.workload.node == NodeView::Unknown);
    let shown = match &observed.workload.node {
        NodeView::Unknown if is_shown => None,
        NodeView::Unknown if connection.is_lost => {
            Some(connection_down(unreachable(name, connection.last_success)))
        }
        NodeView::Unknown => Some(inspection_failed(format!(
            "Nodes of Cluster {name} are not read yet, or have more bytes than the provider keeps"
        ))),
        NodeView::Ambiguous(names) => Some(ambiguous(observed, names)),
        NodeView::Found(_) | NodeView::Absent => {
            let refused = observed.refusal(condition_type::NODE_READY);
            let found = node::found(observed).map(|node| of_node(node, refused));
            Some(found.unwrap_or_else(|| missing(observed, status)))
        }
    };
    (shown, recheck)
}

/// Returns true if this process has not reached the API server yet, and the probes have not decided that it is unreachable.
pub fn is_expected(connection: Connection) -> bool {
    connection.last_success.is_none() && !connection.is_lost
}

/// Returns true if the Node of the Machine is read. An API server that cannot be there yet is not asked.
pub(crate) fn reads_node(observed: &Observed) -> bool {
    initialized(observed).is_ok() || initializes(observed)
}

/// Returns true if the Node of the Machine initializes the control plane: no object of `controlPlaneRef` reports it (K6).
fn initializes(observed: &Observed) -> bool {
    let Some(cluster) = &observed.cluster else { return false };
    let latches = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
    latches.and_then(|latches| latches.infrastructure_provisioned) == Some(true)
        && cluster.spec.control_plane_ref.is_none()
        && observed.machine.labels().contains_key(label::CONTROL_PLANE)
        && observed.provider_id().is_some()
}

/// Returns the time at which the control plane was initialized, if it is known.
///
/// # Errors
/// State of the Cluster that the Machine waits for.
pub fn initialized(observed: &Observed) -> Result<Option<Timestamp>, String> {
    let name = &observed.machine.spec.cluster_name;
    let Some(cluster) = &observed.cluster else {
        return Err(format!("Cluster {name} does not exist; create it, or delete the Machine"));
    };
    let status = cluster.status.as_ref();
    let latches = status.and_then(|status| status.initialization.as_ref());
    if latches.and_then(|latches| latches.infrastructure_provisioned) != Some(true) {
        return Err(format!("infrastructure of Cluster {name} is not provisioned yet"));
    }
    let since = initialized_since(cluster);
    let is_latched = latches.and_then(|latches| latches.control_plane_initialized) == Some(true);
    if since.is_none() && !is_latched {
        return Err(format!("control plane of Cluster {name} is not initialized yet"));
    }
    Ok(since)
}

fn initialized_since(cluster: &Cluster) -> Option<Timestamp> {
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    let type_ = condition_type::CONTROL_PLANE_INITIALIZED;
    let condition = conditions.find(|condition| condition.type_ == type_ && condition.status == "True");
    condition.map(|condition| condition.last_transition_time.0)
}

fn inspection_failed(text: String) -> Lines {
    (Line::of(Ready::InspectionFailed, text.clone()), Line::of(Healthy::InspectionFailed, text))
}

fn connection_down(text: String) -> Lines {
    (Line::of(Ready::ConnectionDown, text.clone()), Line::of(Healthy::ConnectionDown, text))
}

fn unreachable(cluster: &str, last_success: Option<Timestamp>) -> String {
    let since = last_success.map_or_else(String::new, |time| format!(" since {time:.0}"));
    let remedy =
        format!("see Secret {cluster}-kubeconfig, and condition RemoteConnectionProbe of the Cluster");
    format!("API server of Cluster {cluster} has not answered{since}; {remedy}")
}

fn ambiguous(observed: &Observed, names: &[String]) -> Lines {
    let id = observed.provider_id().unwrap_or_default();
    let names = names.join(", ");
    inspection_failed(format!("several Nodes have providerID {id}; delete all but one of {names}"))
}

/// Returns the conditions of a Machine without a Node.
fn missing(observed: &Observed, status: &MachineStatus) -> Lines {
    let machine = &*observed.machine;
    let both = |ready, healthy, text: String| (Line::of(ready, text.clone()), Line::of(healthy, text));
    if let Some(node) = &status.node_ref {
        let remedy = if observed.is_deleting() { "" } else { "; delete the Machine" };
        let text = format!("Node {} was deleted{remedy}", node.name);
        return both(Ready::NodeDeleted, Healthy::NodeDeleted, text);
    }
    if observed.is_deleting() {
        return both(Ready::NodeDoesNotExist, Healthy::NodeDoesNotExist, "Node does not exist".to_owned());
    }
    if let Some(id) = observed.provider_id() {
        return inspection_failed(format!(
            "no Node has providerID {id} yet; check the bootstrap of the host"
        ));
    }
    let reference = &machine.spec.infrastructure_ref;
    inspection_failed(format!("{} {} has not reported spec.providerID yet", reference.kind, reference.name))
}

/// Returns the conditions of a Machine with a Node. `refused`: text about a write of the Node. It changes no state: the Node works without it.
fn of_node(node: &Node, refused: Option<&str>) -> Lines {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let mut ready = ready(conditions);
    let texts = [ready.message.as_str(), refused.unwrap_or_default()];
    let texts: Vec<&str> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    ready.message = texts.join("; ");
    (ready, healthy(conditions))
}

fn ready(conditions: &[NodeCondition]) -> Line {
    let Some(condition) = find(conditions, NODE_READY) else {
        return Line::of(Ready::NodeReadyUnknown, "* Node.Ready: condition is not reported yet");
    };
    let reason = match state(condition) {
        ConditionState::True => Ready::NodeReady,
        ConditionState::False => Ready::NodeNotReady,
        ConditionState::Unknown => Ready::NodeReadyUnknown,
    };
    let said = condition.message.as_deref().filter(|said| reason != Ready::NodeReady && !said.is_empty());
    let message = said.map(|said| format!("* Node.Ready: {said}")).unwrap_or_default();
    let since = condition.last_transition_time.as_ref().map(|time| time.0);
    Line { since, ..Line::of(reason, message) }
}

/// Returns `NodeHealthy`: the issues and the unknown states of the conditions of the Node.
fn healthy(conditions: &[NodeCondition]) -> Line {
    let (mut is_issue, mut is_unknown) = (false, false);
    let (mut messages, mut texts) = (Vec::new(), BTreeSet::new());
    let mut reported = 0;
    for type_ in [NODE_READY].into_iter().chain(PRESSURES) {
        let Some(condition) = find(conditions, type_) else {
            is_unknown = true;
            messages.push(format!("* Node.{type_}: condition is not reported yet"));
            continue;
        };
        let state = state(condition);
        let normal = if type_ == NODE_READY { ConditionState::True } else { ConditionState::False };
        if state == normal {
            continue;
        }
        is_unknown |= state == ConditionState::Unknown;
        is_issue |= state != ConditionState::Unknown;
        let said = condition.message.clone().filter(|said| !said.is_empty());
        let text = said.unwrap_or_else(|| format!("condition is {}", state.as_str()));
        reported += 1;
        messages.push(format!("* Node.{type_}: {text}"));
        texts.insert(text);
    }
    if reported > 1 && texts.len() == 1 {
        messages = texts.into_iter().map(|text| format!("* Node.AllConditions: {text}")).collect();
    }
    let reason = match (is_issue, is_unknown) {
        (true, _) => Healthy::NodeNotHealthy,
        (false, true) => Healthy::NodeHealthyUnknown,
        (false, false) => Healthy::NodeHealthy,
    };
    Line::of(reason, messages.join("\n"))
}

fn find<'a>(conditions: &'a [NodeCondition], type_: &str) -> Option<&'a NodeCondition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

fn state(condition: &NodeCondition) -> ConditionState {
    match condition.status.as_str() {
        "True" => ConditionState::True,
        "False" => ConditionState::False,
        _ => ConditionState::Unknown,
    }
}
