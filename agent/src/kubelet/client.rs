//! The node's own way to the API server: as the kubelet of the slot that runs, with its kubeconfig.
//!
//! A kubelet may cordon its own Node and evict the Pods on it, and of no other (Node authorization, NodeRestriction). The agent's own
//! role has neither right: RBAC cannot name "the Pods of the Node of my name". Called by `operation` and `node`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bedplate_api::configuration::Taint;
use bedplate_api::id::MachineName;
use bedplate_bootstrap::diff::Edit;
use bedplate_rules::drain::{self, CORDONED_BY, Evicted, Pod, PodApi, Rejection};
use reqwest::Method;
use serde_json::{Value, json};

use super::connection::{KUBECONFIG, KubeletCredential, Way};
use super::slot_root::running;
use crate::bus::{BusError, Machines};
use crate::https::request::AskError;

/// Fields of this host's Node that the agent uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// True if it is cordoned.
    pub cordoned: bool,
    /// The operation (UID) of this agent that has cordoned it, if one has.
    pub cordoned_by: Option<String>,
    /// Version of the object.
    pub version: String,
    /// Taints of the Node.
    pub taints: Vec<Taint>,
}

/// Error of a request about the Node or its Pods.
#[derive(Debug, thiserror::Error)]
pub enum AskNodeError {
    /// machined could not be asked for the slot.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// A file of the slot's cannot be read.
    #[error("cannot read {path} of the slot")]
    File {
        /// The file.
        path: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The kubeconfig cannot be used.
    #[error("{KUBECONFIG} of the slot is not usable: {0}")]
    Kubeconfig(String),
    /// The connection cannot be prepared.
    #[error(transparent)]
    Prepare(#[from] AskError),
    /// The server did not answer, or the answer broke off.
    #[error("no answer from {url}")]
    Transport {
        /// URL of the request.
        url: String,
        /// Cause.
        #[source]
        source: reqwest::Error,
    },
    /// An answer that makes no sense.
    #[error("unexpected answer from {0}")]
    Answer(String),
    /// The API server refused.
    #[error("{url} refused the kubelet with status {status}: {message}")]
    Refused {
        /// URL of the request.
        url: String,
        /// HTTP status.
        status: u16,
        /// Message of the server.
        message: String,
        /// Seconds until a retry, if the server named them.
        again: Option<u32>,
    },
}

impl AskNodeError {
    /// Returns true if a retry cannot succeed.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if (400..500).contains(status) && !matches!(status, 401 | 408 | 409 | 429))
    }
}

/// Our Node and the Pods on it.
#[async_trait]
pub trait NodeApi: Send + Sync {
    /// The Node; none: no slot runs, it has not joined, or there is no such Node.
    async fn node(&self) -> Result<Option<NodeView>, AskNodeError>;
    /// Cordons the Node for an operation (UID), or uncordons it. Fails if
    /// another writer changed it since it was read.
    async fn cordon(&self, seen: &NodeView, by: Option<&str>) -> Result<(), AskNodeError>;
    /// Changes its labels and annotations. NodeRestriction lets a kubelet change those that are not Kubernetes' own.
    async fn edit(&self, labels: Option<&Edit>, annotations: Option<&Edit>) -> Result<(), AskNodeError>;
    /// The Pods on it.
    async fn pods(&self) -> Result<Vec<Pod>, AskNodeError>;
    /// Evicts a Pod, with this grace period in seconds.
    async fn evict(&self, pod: &Pod, grace: Option<u32>) -> Result<Evicted, AskNodeError>;
}

/// The kubelet of the slot that runs.
pub struct SlotKubelet {
    machines: Arc<dyn Machines>,
    root: PathBuf,
    node: MachineName,
}

impl SlotKubelet {
    /// Creates the client of the host whose root directory is `root`. The Node has the Machine's name.
    pub fn new(machines: Arc<dyn Machines>, root: &Path, node: MachineName) -> Self {
        Self { machines, root: root.to_owned(), node }
    }

    /// The Machine of this host.
    pub(super) fn machine(&self) -> &MachineName {
        &self.node
    }

    /// Opens a connection with the kubelet's credential; none: no slot runs, or it has not joined. Read again
    /// each time, because certificates rotate.
    pub(super) async fn open(&self) -> Result<Option<Way>, AskNodeError> {
        let Some(container) = running(self.machines.as_ref()).await? else { return Ok(None) };
        let failed = |path: &str| {
            let path = path.to_owned();
            move |source| AskNodeError::File { path, source }
        };
        let inside = container.leader.open_root(&self.root).map_err(failed("/"))?;
        let read = |path: &str| inside.read_text(path).map_err(failed(path));
        let Some(text) = read(KUBECONFIG)? else { return Ok(None) };
        Way::new(&KubeletCredential::read(&text, &read)?).map(Some)
    }

    /// The way for what was seen through it a moment ago.
    pub(super) async fn way(&self) -> Result<Way, AskNodeError> {
        self.open().await?.ok_or_else(|| {
            AskNodeError::Kubeconfig("the file is missing because the slot has stopped".to_owned())
        })
    }
}

#[async_trait]
impl NodeApi for SlotKubelet {
    async fn node(&self) -> Result<Option<NodeView>, AskNodeError> {
        let Some(way) = self.open().await? else { return Ok(None) };
        match way.get(&format!("/api/v1/nodes/{}", self.node)).await {
            Ok(node) => Ok(Some(node_view(&node))),
            Err(AskNodeError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn cordon(&self, seen: &NodeView, by: Option<&str>) -> Result<(), AskNodeError> {
        let way = self.way().await?;
        let unschedulable = by.map(|_| true);
        let body = json!({
            "metadata": { "resourceVersion": seen.version, "annotations": { CORDONED_BY: by } },
            "spec": { "unschedulable": unschedulable },
        });
        let path = format!("/api/v1/nodes/{}?fieldManager=bedplate-agent", self.node);
        way.ask(Method::PATCH, &path, Some(("application/merge-patch+json", body))).await.map(drop)
    }

    async fn edit(&self, labels: Option<&Edit>, annotations: Option<&Edit>) -> Result<(), AskNodeError> {
        let way = self.way().await?;
        let body = json!({ "metadata": { "labels": merged(labels), "annotations": merged(annotations) } });
        let path = format!("/api/v1/nodes/{}?fieldManager=bedplate-agent", self.node);
        way.ask(Method::PATCH, &path, Some(("application/merge-patch+json", body))).await.map(drop)
    }

    async fn pods(&self) -> Result<Vec<Pod>, AskNodeError> {
        drain::pods(&self.way().await?, self.node.as_str()).await
    }

    async fn evict(&self, pod: &Pod, grace: Option<u32>) -> Result<Evicted, AskNodeError> {
        drain::evict(&self.way().await?, pod, grace).await
    }
}

impl PodApi for Way {
    type Error = AskNodeError;

    async fn request(&self, path: &str, body: Option<Value>) -> Result<Value, AskNodeError> {
        match body {
            Some(body) => self.ask(Method::POST, path, Some(("application/json", body))).await,
            None => self.get(path).await,
        }
    }

    fn rejection(error: &AskNodeError) -> Option<Rejection> {
        let AskNodeError::Refused { status, message, again, .. } = error else { return None };
        Some(Rejection { status: *status, message: message.clone(), again: *again })
    }
}

/// Returns an edit as a merge patch: null removes a key.
fn merged(edit: Option<&Edit>) -> Value {
    let Some(edit) = edit else { return json!({}) };
    let set = edit.set.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
    set.chain(edit.remove.iter().map(|name| (name.clone(), Value::Null)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn node_view(node: &Value) -> NodeView {
    NodeView {
        cordoned: node["spec"]["unschedulable"].as_bool() == Some(true),
        cordoned_by: node["metadata"]["annotations"][CORDONED_BY].as_str().map(str::to_owned),
        version: text(&node["metadata"]["resourceVersion"]),
        taints: node["spec"]["taints"].as_array().into_iter().flatten().filter_map(taint).collect(),
    }
}

/// Parses a taint. None if its effect is unknown.
fn taint(object: &Value) -> Option<Taint> {
    let fields = json!({ "key": object["key"], "value": object["value"], "effect": object["effect"] });
    serde_json::from_value(fields).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejection_is_what_the_api_server_answered_and_a_forbidden_one_is_final() {
        let refused = |status, again| AskNodeError::Refused {
            url: "u".into(),
            status,
            message: "budget".into(),
            again,
        };
        let held = Rejection { status: 429, message: "budget".into(), again: Some(10) };
        assert_eq!(Way::rejection(&refused(429, Some(10))), Some(held));
        assert_eq!(Way::rejection(&AskNodeError::Answer("u".into())), None);
        assert!(refused(403, None).is_final());
        assert!(!refused(503, None).is_final());
    }
}
