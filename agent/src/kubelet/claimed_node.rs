//! The Node of a claimed host, in the cluster of its claimant: found and marked as the kubelet of the slot that runs.
//!
//! The claimant's user data makes the Node, so its name is the claim's and not the Machine's. Called by the node's loop while a claim
//! bootstraps.

use async_trait::async_trait;
use bedplate_api::id::MachineName;
use reqwest::Method;
use serde_json::{Value, json};

use super::client::{AskNodeError, SlotKubelet};

/// Label of the Node with the name of its host.
const LABEL: &str = "bedplate.dev/machine";

/// A Node as far as a claim depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredNode {
    /// UID.
    pub uid: String,
    /// `spec.providerID`. None: it is empty.
    pub provider_id: Option<String>,
    /// True if it has the label with the name of this host.
    pub is_labeled: bool,
}

/// The Node of a claimed host.
#[async_trait]
pub trait ClaimedNode: Send + Sync {
    /// Finds the Node of this name. None: no slot runs, its kubelet has no credential, or there is no such Node.
    async fn find(&self, name: &MachineName) -> Result<Option<RegisteredNode>, AskNodeError>;

    /// Sets `spec.providerID` and the label with the name of this host, of the Node of this UID.
    async fn mark(&self, name: &MachineName, uid: &str, provider_id: &str) -> Result<(), AskNodeError>;
}

#[async_trait]
impl ClaimedNode for SlotKubelet {
    async fn find(&self, name: &MachineName) -> Result<Option<RegisteredNode>, AskNodeError> {
        let Some(way) = self.open().await? else { return Ok(None) };
        match way.get(&format!("/api/v1/nodes/{name}")).await {
            Ok(node) => Ok(Some(registered(&node, self.machine()))),
            Err(AskNodeError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn mark(&self, name: &MachineName, uid: &str, provider_id: &str) -> Result<(), AskNodeError> {
        let way = self.way().await?;
        let path = format!("/api/v1/nodes/{name}?fieldManager=bedplate-agent");
        let body = mark(uid, provider_id, self.machine());
        way.ask(Method::PATCH, &path, Some(("application/merge-patch+json", body))).await.map(drop)
    }
}

fn registered(node: &Value, machine: &MachineName) -> RegisteredNode {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let provider_id = Some(text(&node["spec"]["providerID"])).filter(|id| !id.is_empty());
    let label = node["metadata"]["labels"][LABEL].as_str();
    let is_labeled = label == Some(machine.as_str());
    RegisteredNode { uid: text(&node["metadata"]["uid"]), provider_id, is_labeled }
}

/// Returns the merge patch. The UID refuses a Node that has registered again.
fn mark(uid: &str, provider_id: &str, machine: &MachineName) -> Value {
    json!({ "metadata": { "uid": uid, "labels": { LABEL: machine } }, "spec": { "providerID": provider_id } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d5_node_is_marked_with_provider_id_and_host_by_its_uid() {
        let machine: MachineName = "host-1".parse().unwrap();
        let mut node = json!({ "metadata": { "name": "w-1", "uid": "n-1" }, "spec": { "providerID": "" } });
        let bare = RegisteredNode { uid: "n-1".to_owned(), provider_id: None, is_labeled: false };
        assert_eq!(registered(&node, &machine), bare);
        let patch = mark("n-1", "bedplate://host-1/u-1", &machine);
        assert_eq!(patch["metadata"]["uid"], "n-1");
        node["metadata"]["labels"] = patch["metadata"]["labels"].clone();
        node["spec"] = patch["spec"].clone();
        let marked = RegisteredNode {
            provider_id: Some("bedplate://host-1/u-1".to_owned()),
            is_labeled: true,
            ..bare
        };
        assert_eq!(registered(&node, &machine), marked);
        assert!(!registered(&node, &"host-2".parse().unwrap()).is_labeled);
    }
}
