//! Home of a Node that lives in the cluster that the slot has joined or made. Only the slot's own kubelet can ask its API server.
//!
//! ```text
//!   SlotHome <-- credential -- kubelet of the slot        OwnNode --> the decider, which publishes it with what it decides
//!        <-- watch, live GET -- API server of that cluster
//! ```
//! It does not know who decides about this host. Called by `service::connections`.

mod own_node;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bedplate_api::id::MachineName;
use bedplate_process::liveness::Liveness;
use bedplate_process::task_set::TaskSet;
use tokio::sync::{Notify, watch};

pub use self::own_node::OwnNode;
pub(super) use self::own_node::node_state;
use self::own_node::{NodeFollower, ask_gone};
use super::certificate::CertificateAnswer;
use super::error::AskServerError;
use super::{Compared, Home, NodeState, Seen};
use crate::kubelet::credential::{FindKubelet, Kubelet};

/// Maximum time of one question to the API server or to the slot.
const ASK_PATIENCE: Duration = Duration::from_secs(300);

/// The cluster of the slot, as the home of one Node. Its task ends when it is dropped.
pub struct SlotHome {
    /// Dropped first, so that the task does not end because another field is dropped.
    tasks: TaskSet,
    /// Name of the Node.
    name: MachineName,
    kubelet: Arc<dyn FindKubelet>,
    node: watch::Receiver<OwnNode>,
    /// Signal that the slots may have changed.
    look: Arc<Notify>,
}

impl SlotHome {
    /// Starts to watch the Node of this name.
    pub fn start(name: MachineName, kubelet: Arc<dyn FindKubelet>, liveness: &Liveness) -> Self {
        let (reported, node) = watch::channel(OwnNode::default());
        let (look, mut tasks) = (Arc::new(Notify::new()), TaskSet::default());
        let follower = NodeFollower::new(Arc::clone(&kubelet), name.clone(), Arc::clone(&look), reported);
        tasks.reconcile(liveness, "own Node", ASK_PATIENCE, follower);
        Self { tasks, name, kubelet, node, look }
    }

    /// Returns the observed state of the Node, and its changes.
    pub fn node(&self) -> watch::Receiver<OwnNode> {
        self.node.clone()
    }

    /// Returns the names of the tasks that were started.
    #[cfg(test)]
    pub(crate) fn task_names(&self) -> &[&'static str] {
        self.tasks.names()
    }

    /// Returns the name of a task that ended without a request to stop, as soon as one does.
    pub fn ended(&self) -> impl Future<Output = &'static str> + Send + use<> {
        self.tasks.ended()
    }

    /// Stops the task and waits for its end.
    pub async fn stop(mut self: Arc<Self>) {
        // Another holder ends it when it drops its handle.
        if let Some(own) = Arc::get_mut(&mut self) {
            own.tasks.stop().await;
        }
    }
}

#[async_trait]
impl Home for SlotHome {
    fn follows_slot(&self) -> bool {
        true
    }

    fn slots_changed(&self) {
        self.look.notify_one();
    }

    async fn node_is_gone(&self, seen: &Seen) -> Result<bool, AskServerError> {
        let unknown =
            |problem| AskServerError::Answer { what: "the credential of the kubelet".to_owned(), problem };
        match self.kubelet.find().await.map_err(unknown)? {
            Kubelet::Joined(joined) => ask_gone(&joined, &self.name).await,
            // No slot has a Node, and the decider does not know one.
            Kubelet::Nowhere => Ok(seen.node == NodeState::Absent),
            Kubelet::NotJoined | Kubelet::Asleep { .. } => Ok(false),
        }
    }

    async fn compare(&self, _: &str, _: &str) -> Compared {
        Compared::Unknown("this host does not belong to a cluster".to_owned())
    }

    /// The version names how its kubelet joins, so nothing is requested here.
    async fn kubelet_certificate(&self, name: &str, _: &str) -> Result<CertificateAnswer, AskServerError> {
        let problem = "certificates of kubelets are signed in a cluster only".to_owned();
        Err(AskServerError::Answer { what: format!("certificate request {name}"), problem })
    }
}
