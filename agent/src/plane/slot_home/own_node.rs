//! The own Node where its API server is the slot's: watched by the credential of the kubelet in the slot.
//!
//! ```text
//!   find ─┬─ no slot, no credential ───────────────────────► told; wait until the node's loop has done something
//!         └─ joined ─► watch ─┬─ Node ─────────────────────► Present
//!                             ├─ none ─► live GET ─ 404 ───► Gone
//!                             └─ no answer ────────────────► Silent, tried again
//! ```
//! At rest nothing polls: the watch stands. Called by `slot_home`.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::id::MachineName;
use bedplate_api::machine::Machine;
use bedplate_api::wire::KubernetesEndpoint;
use bedplate_process::liveness::Pulse;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::fault::explained;
use crate::kubelet::credential::{FindKubelet, Joined, Kubelet};
use crate::plane::NodeState;
use crate::plane::client::{Access, PrepareClientError};
use crate::plane::error::{AskServerError, why};
use crate::plane::node_deletion::is_node_gone;
use crate::plane::view::{Single, trim};

/// A way that has failed is tried anew at most so often.
const AGAIN: Duration = Duration::from_secs(1);
/// A kubelet that could not be looked for is looked for again.
const LOOK: Duration = Duration::from_secs(30);

/// What is known of the own Node.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum OwnNode {
    /// Not asked yet.
    #[default]
    Unasked,
    /// No slot runs, and none was the node.
    Nowhere,
    /// A slot runs whose kubelet has no credential yet.
    NotJoined,
    /// The slot that was this Node does not run, nor the API server in it.
    Asleep {
        /// UID of the Node when the slot ran.
        node_uid: String,
    },
    /// The API server does not answer.
    Silent {
        /// Text for a user.
        why: String,
        /// True if the API server runs in the slot itself.
        runs_api: bool,
    },
    /// A live read has said that there is none.
    Gone,
    /// There is one.
    Present(Arc<Node>),
}

/// That as the node's loop sees it; none: as it was.
pub(in crate::plane) fn node_state(own: &OwnNode, machine: Option<&Machine>) -> Option<NodeState> {
    let status = machine.and_then(|machine| machine.status.as_ref());
    let node_ref = status.and_then(|status| status.node_ref.as_ref());
    match own {
        OwnNode::Unasked | OwnNode::Silent { runs_api: false, .. } => None,
        OwnNode::Silent { runs_api: true, .. } => Some(NodeState::Unknown),
        OwnNode::Present(node) => Some(NodeState::Present(Arc::clone(node))),
        OwnNode::Gone => Some(NodeState::Absent),
        OwnNode::Asleep { node_uid } => Some(unseen(node_uid)),
        // What pxed has noted is all that is known of it: nobody says that it is Ready. State in memory went with a boot, or a trial has
        // failed; a join by kubeadm awaits that no Node of this name is Ready.
        OwnNode::Nowhere => Some(node_ref.map_or(NodeState::Absent, |node| unseen(&node.uid))),
        OwnNode::NotJoined if node_ref.is_none() && status.is_none_or(|status| status.applied.is_none()) => {
            Some(NodeState::Absent)
        }
        OwnNode::NotJoined => Some(NodeState::Unknown),
    }
}

/// A Node that was there, and that nobody was asked about.
fn unseen(uid: &str) -> NodeState {
    let mut node = Node::default();
    node.metadata.uid = Some(uid.to_owned());
    NodeState::Present(Arc::new(node))
}

/// Follows it until it is dropped. `look`: the slots may be other ones.
pub(super) async fn follow_node(
    kubelet: Arc<dyn FindKubelet>,
    machine: MachineName,
    look: Arc<Notify>,
    told: watch::Sender<OwnNode>,
    pulse: Pulse,
) {
    let mut tried: Option<Instant> = None;
    loop {
        pulse.beat();
        let own = match kubelet.find().await {
            Ok(Kubelet::Joined(joined)) => {
                if let Some(tried) = tried {
                    tokio::time::sleep_until(tried + AGAIN).await;
                }
                tried = Some(Instant::now());
                if let Err(error) = watch_by(kubelet.as_ref(), &joined, &machine, &look, &told, &pulse).await
                {
                    publish(&told, OwnNode::Silent { why: explained(&error), runs_api: joined.runs_api });
                    rest(&look, &pulse).await;
                }
                continue;
            }
            Ok(Kubelet::Nowhere) => OwnNode::Nowhere,
            Ok(Kubelet::NotJoined) => OwnNode::NotJoined,
            Ok(Kubelet::Asleep { node_uid }) => OwnNode::Asleep { node_uid },
            // Whether its API server would answer, nobody knows.
            Err(why) => {
                publish(&told, OwnNode::Silent { why, runs_api: true });
                rest(&look, &pulse).await;
                continue;
            }
        };
        publish(&told, own);
        tokio::select! {
            () = look.notified() => {}
            never = pulse.beating() => match never {},
        }
    }
}

async fn rest(look: &Notify, pulse: &Pulse) {
    tokio::select! {
        () = look.notified() => {}
        () = tokio::time::sleep(LOOK) => {}
        never = pulse.beating() => match never {},
    }
}

fn publish(told: &watch::Sender<OwnNode>, own: OwnNode) {
    told.send_if_modified(|known| {
        let changed = *known != own;
        *known = own;
        changed
    });
}

fn access(joined: &Joined, machine: &MachineName) -> Result<Access, PrepareClientError> {
    let credential = &joined.credential;
    let endpoint =
        KubernetesEndpoint { server: credential.server.clone(), ca_pem: credential.ca_pem.clone() };
    Access::new(&endpoint, machine, (&credential.certificate_pem, &credential.key_pem))
}

/// Asks its API server now whether the Node is gone.
pub(super) async fn ask_gone(joined: &Joined, machine: &MachineName) -> Result<bool, AskServerError> {
    let access = access(joined, machine).map_err(|error| AskServerError::Answer {
        what: "the credential of the kubelet".to_owned(),
        problem: error.to_string(),
    })?;
    is_node_gone(access.client(), machine.as_str()).await
}

/// The Node as one watch has it.
struct Followed {
    machine: MachineName,
    single: Single<Node>,
    /// A live read said that there is none, and the watch has told of none since.
    absent: bool,
}

impl Followed {
    fn take(&mut self, event: Event<Node>) {
        // A list may have missed a Node that came and went.
        self.absent &= !matches!(event, Event::Init | Event::Apply(_));
        self.single.take(event.modify(trim), self.machine.as_str());
    }

    fn asks(&self) -> bool {
        self.single.listed && self.single.known.is_none() && !self.absent
    }

    fn own(&self) -> Option<OwnNode> {
        match &self.single.known {
            Some(node) => Some(OwnNode::Present(Arc::clone(node))),
            None => self.absent.then_some(OwnNode::Gone),
        }
    }
}

/// Watches by this credential, until there is another one or no answer.
async fn watch_by(
    kubelet: &dyn FindKubelet,
    joined: &Joined,
    machine: &MachineName,
    look: &Notify,
    told: &watch::Sender<OwnNode>,
    pulse: &Pulse,
) -> Result<(), AskServerError> {
    let access = access(joined, machine).map_err(|error| AskServerError::Answer {
        what: "the credential of the kubelet".to_owned(),
        problem: error.to_string(),
    })?;
    let taken = Arc::new(Notify::new());
    let mut events = events(&access, machine, &taken);
    let mut node = Followed { machine: machine.clone(), single: Single::default(), absent: false };
    let mut silent = false;
    loop {
        if node.asks() && !silent {
            node.absent = is_node_gone(access.client(), machine.as_str()).await?;
        }
        if let Some(own) = node.own().filter(|_| !silent) {
            publish(told, own);
        }
        tokio::select! {
            event = events.next() => match event {
                None => return Ok(()),
                Some(Ok(event)) => {
                    silent = false;
                    node.take(event);
                }
                Some(Err(error)) => {
                    // What was said to be gone may come while nobody listens.
                    (silent, node.absent) = (true, false);
                    publish(told, OwnNode::Silent { why: why(error), runs_api: joined.runs_api });
                }
            },
            () = taken.notified() => silent = false,
            never = pulse.beating() => match never {},
            () = look.notified() => {
                let same = kubelet.find().await.is_ok_and(|found| found == Kubelet::Joined(joined.clone()));
                // Something is done to the slot: its API server may just have come.
                if !same || silent {
                    return Ok(());
                }
            }
        }
    }
}

fn events(
    access: &Access,
    machine: &MachineName,
    taken: &Arc<Notify>,
) -> BoxStream<'static, Result<Event<Node>, watcher::Error>> {
    let taken = Arc::clone(taken);
    let client = access.watching(move || taken.notify_one());
    let config = watcher::Config::default().fields(&format!("metadata.name={machine}"));
    watcher(Api::<Node>::all(client), config).default_backoff().boxed()
}

#[cfg(test)]
mod tests;
