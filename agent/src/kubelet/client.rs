//! The node's own way to the API server: as the kubelet of the slot that runs, with its kubeconfig.
//!
//! The Node is the one that the kubelet's client certificate names: the Node of a claimed host has another name than its Machine.
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
use super::node_name::{NodeName, ReadNodeNameError};
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
    /// The kubelet's certificate does not name a Node.
    #[error(
        "cannot find the Node of Machine {machine} by the kubelet's client certificate: {problem}; check {KUBECONFIG} in the slot"
    )]
    NodeName {
        /// Machine of the host.
        machine: MachineName,
        /// Problem of the certificate.
        problem: ReadNodeNameError,
    },
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

    /// Returns true if the kubelet's certificate does not name its Node.
    pub(crate) fn is_of_certificate(&self) -> bool {
        matches!(self, Self::NodeName { .. })
    }
}

/// Our Node and the Pods on it.
#[async_trait]
pub trait NodeApi: Send + Sync {
    /// Name of the Node. None: no slot runs, it has not joined, or its certificate names no Node.
    async fn name(&self) -> Option<NodeName>;
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
    machine: MachineName,
}

impl SlotKubelet {
    /// Creates the client of the host whose root directory is `root`.
    pub fn new(machines: Arc<dyn Machines>, root: &Path, machine: MachineName) -> Self {
        Self { machines, root: root.to_owned(), machine }
    }

    /// The Machine of this host.
    pub(super) fn machine(&self) -> &MachineName {
        &self.machine
    }

    /// Reads the kubelet's credential; none: no slot runs, or it has not joined. Read again each time, because
    /// certificates rotate.
    async fn credential(&self) -> Result<Option<KubeletCredential>, AskNodeError> {
        let Some(container) = running(self.machines.as_ref()).await? else { return Ok(None) };
        let failed = |path: &str| {
            let path = path.to_owned();
            move |source| AskNodeError::File { path, source }
        };
        let inside = container.leader.open_root(&self.root).map_err(failed("/"))?;
        let read = |path: &str| inside.read_text(path).map_err(failed(path));
        let Some(text) = read(KUBECONFIG)? else { return Ok(None) };
        KubeletCredential::read(&text, &read).map(Some)
    }

    /// Opens a connection with the kubelet's credential; none: no slot runs, or it has not joined.
    pub(super) async fn open(&self) -> Result<Option<Way>, AskNodeError> {
        self.credential().await?.map(|credential| Way::new(&credential)).transpose()
    }

    /// The way for what was seen through it a moment ago.
    pub(super) async fn way(&self) -> Result<Way, AskNodeError> {
        self.open().await?.ok_or_else(stopped)
    }

    /// Opens a connection with the kubelet's credential, and reads the name of its Node from the same credential (D5).
    async fn open_node(&self) -> Result<Option<(Way, NodeName)>, AskNodeError> {
        let Some(credential) = self.credential().await? else { return Ok(None) };
        let name = NodeName::of_certificate(&credential.certificate_pem);
        let name =
            name.map_err(|problem| AskNodeError::NodeName { machine: self.machine.clone(), problem })?;
        Ok(Some((Way::new(&credential)?, name)))
    }

    /// Sends a merge patch of the Node.
    async fn patch(&self, body: Value) -> Result<(), AskNodeError> {
        let (way, name) = self.open_node().await?.ok_or_else(stopped)?;
        let path = format!("{}?fieldManager=bedplate-agent", path(&name));
        way.ask(Method::PATCH, &path, Some(("application/merge-patch+json", body))).await.map(drop)
    }
}

#[async_trait]
impl NodeApi for SlotKubelet {
    async fn name(&self) -> Option<NodeName> {
        let found = self.credential().await.ok().flatten();
        found.and_then(|credential| NodeName::of_certificate(&credential.certificate_pem).ok())
    }

    async fn node(&self) -> Result<Option<NodeView>, AskNodeError> {
        let Some((way, name)) = self.open_node().await? else { return Ok(None) };
        match way.get(&path(&name)).await {
            Ok(node) => Ok(Some(node_view(&node))),
            Err(AskNodeError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn cordon(&self, seen: &NodeView, by: Option<&str>) -> Result<(), AskNodeError> {
        let unschedulable = by.map(|_| true);
        let body = json!({
            "metadata": { "resourceVersion": seen.version, "annotations": { CORDONED_BY: by } },
            "spec": { "unschedulable": unschedulable },
        });
        self.patch(body).await
    }

    async fn edit(&self, labels: Option<&Edit>, annotations: Option<&Edit>) -> Result<(), AskNodeError> {
        let body = json!({ "metadata": { "labels": merged(labels), "annotations": merged(annotations) } });
        self.patch(body).await
    }

    async fn pods(&self) -> Result<Vec<Pod>, AskNodeError> {
        let (way, name) = self.open_node().await?.ok_or_else(stopped)?;
        drain::pods(&way, name.as_str()).await
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

/// Returns the path of a Node.
fn path(name: &NodeName) -> String {
    format!("/api/v1/nodes/{name}")
}

/// Returns the error of a slot that has stopped since its Node was read.
fn stopped() -> AskNodeError {
    AskNodeError::Kubeconfig("the file is missing because the slot has stopped".to_owned())
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
mod tests;
