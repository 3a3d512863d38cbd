//! This host's Node when its API server belongs to the slot's cluster. It is watched with the credential of
//! the slot's kubelet.
//!
//! ```text
//!   find ─┬─ no slot, no credential ───────────────────────► published; wait until the node's loop has acted
//!         └─ joined ─► watch ─┬─ Node ─────────────────────► Present
//!                             ├─ none ─► live GET ─ 404 ───► Gone
//!                             └─ no answer ────────────────► Silent, retried
//! ```
//! The idle watch does not poll. Called by `slot_home`.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::id::MachineName;
use bedplate_api::machine::Machine;
use bedplate_api::wire::KubernetesEndpoint;
use bedplate_process::reconcile::{Activation, Reconcile, Turn};
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
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

/// Minimum interval between two watches after a failure.
const MIN_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before the next search for a kubelet after an error.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Observed state of this host's Node.
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
    /// A live read found no Node.
    Gone,
    /// The Node exists.
    Present(Arc<Node>),
}

/// Converts the Node to the view of the node's loop; none: unchanged.
pub(in crate::plane) fn node_state(own: &OwnNode, machine: Option<&Machine>) -> Option<NodeState> {
    let status = machine.and_then(|machine| machine.status.as_ref());
    let node_ref = status.and_then(|status| status.node_ref.as_ref());
    match own {
        OwnNode::Unasked | OwnNode::Silent { runs_api: false, .. } => None,
        OwnNode::Silent { runs_api: true, .. } => Some(NodeState::Unknown),
        OwnNode::Present(node) => Some(NodeState::Present(Arc::clone(node))),
        OwnNode::Gone => Some(NodeState::Absent),
        OwnNode::Asleep { node_uid } => Some(unseen(node_uid)),
        // Only pxed's record of the Node is known, so it does not count as Ready. State in memory was lost in
        // a boot, or a trial has failed. A join by kubeadm waits until no Node of this name is Ready.
        OwnNode::Nowhere => Some(node_ref.map_or(NodeState::Absent, |node| unseen(&node.uid))),
        OwnNode::NotJoined if node_ref.is_none() && status.is_none_or(|status| status.applied.is_none()) => {
            Some(NodeState::Absent)
        }
        OwnNode::NotJoined => Some(NodeState::Unknown),
    }
}

/// Returns a Node that existed, without any status.
fn unseen(uid: &str) -> NodeState {
    let mut node = Node::default();
    node.metadata.uid = Some(uid.to_owned());
    NodeState::Present(Arc::new(node))
}

/// Follows the Node.
pub(super) struct NodeFollower {
    kubelet: Arc<dyn FindKubelet>,
    name: MachineName,
    /// Signal that the slots may have changed.
    look: Arc<Notify>,
    reported: watch::Sender<OwnNode>,
    followed: Option<Followed>,
    /// Time at which the latest watch was opened.
    tried: Option<Instant>,
}

/// Wake source.
#[expect(clippy::large_enum_variant, reason = "only one exists at a time, and its turn consumes it")]
pub(super) enum Woken {
    /// The slots may have changed.
    Slots,
    /// The API server has accepted the watch.
    Accepted,
    /// Event of the watch. None: it has ended.
    Watch(Option<Result<Event<Node>, watcher::Error>>),
}

impl NodeFollower {
    pub(super) fn new(
        kubelet: Arc<dyn FindKubelet>,
        name: MachineName,
        look: Arc<Notify>,
        reported: watch::Sender<OwnNode>,
    ) -> Self {
        Self { kubelet, name, look, reported, followed: None, tried: None }
    }

    /// Drops the watch if the credential changed, or if it fails while the slot changes, because the slot's
    /// API server may have started.
    async fn check_credential(&mut self) {
        let Some(joined) = self.followed.as_ref().map(|followed| followed.joined.clone()) else { return };
        let is_same = self.kubelet.find().await.is_ok_and(|found| found == Kubelet::Joined(joined));
        self.followed = self.followed.take().filter(|followed| is_same && !followed.silent);
    }

    /// Opens a watch if the kubelet has a credential. Returns the next turn if there is no watch.
    async fn open(&mut self) -> Option<Turn> {
        let own = match self.kubelet.find().await {
            Ok(Kubelet::Joined(joined)) => return self.watch(joined),
            Ok(Kubelet::Nowhere) => OwnNode::Nowhere,
            Ok(Kubelet::NotJoined) => OwnNode::NotJoined,
            Ok(Kubelet::Asleep { node_uid }) => OwnNode::Asleep { node_uid },
            // It is not known whether the API server would answer.
            Err(why) => return Some(self.silence(why, true)),
        };
        publish(&self.reported, own);
        Some(Turn::Idle)
    }

    fn watch(&mut self, joined: Joined) -> Option<Turn> {
        let now = Instant::now();
        if let Some(next) = self.tried.map(|tried| tried + MIN_RETRY_INTERVAL).filter(|next| now < *next) {
            return Some(Turn::At(next));
        }
        self.tried = Some(now);
        let runs_api = joined.runs_api;
        match Followed::open(joined, &self.name) {
            Ok(followed) => {
                self.followed = Some(followed);
                None
            }
            Err(error) => Some(self.silence(explained(&error), runs_api)),
        }
    }

    fn silence(&self, why: String, runs_api: bool) -> Turn {
        publish(&self.reported, OwnNode::Silent { why, runs_api });
        Turn::At(Instant::now() + POLL_INTERVAL)
    }

    /// Reads a Node that the watch does not have, and publishes the state.
    async fn ask(&mut self) -> Turn {
        let Some(followed) = self.followed.as_mut().filter(|followed| !followed.silent) else {
            return Turn::Idle;
        };
        if followed.node.asks() {
            match is_node_gone(followed.access.client(), self.name.as_str()).await {
                Ok(absent) => followed.node.absent = absent,
                Err(error) => {
                    let runs_api = followed.joined.runs_api;
                    self.followed = None;
                    return self.silence(explained(&error), runs_api);
                }
            }
        }
        if let Some(own) = followed.node.own() {
            publish(&self.reported, own);
        }
        Turn::Idle
    }
}

impl Reconcile for NodeFollower {
    type Event = Woken;

    async fn changed(&mut self) -> Option<Woken> {
        let followed = &mut self.followed;
        let watch = async {
            match followed {
                Some(Followed { events, accepted, .. }) => tokio::select! {
                    event = events.next() => Woken::Watch(event),
                    () = accepted.notified() => Woken::Accepted,
                },
                None => std::future::pending().await,
            }
        };
        Some(tokio::select! {
            woken = watch => woken,
            () = self.look.notified() => Woken::Slots,
        })
    }

    async fn turn(&mut self, activation: Activation<Woken>) -> Turn {
        match activation {
            Activation::Start | Activation::Due => {}
            Activation::Changed(Woken::Slots) => self.check_credential().await,
            Activation::Changed(Woken::Accepted) => {
                if let Some(followed) = &mut self.followed {
                    followed.silent = false;
                }
            }
            Activation::Changed(Woken::Watch(Some(event))) => {
                if let Some(followed) = &mut self.followed {
                    followed.take(event, &self.reported);
                }
            }
            Activation::Changed(Woken::Watch(None)) => self.followed = None,
        }
        if self.followed.is_none()
            && let Some(turn) = self.open().await
        {
            return turn;
        }
        self.ask().await
    }
}

fn publish(reported: &watch::Sender<OwnNode>, own: OwnNode) {
    reported.send_if_modified(|known| {
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

/// Verifies by a live read that the Node is deleted.
pub(super) async fn ask_gone(joined: &Joined, machine: &MachineName) -> Result<bool, AskServerError> {
    let access = access(joined, machine).map_err(|error| AskServerError::Answer {
        what: "the credential of the kubelet".to_owned(),
        problem: error.to_string(),
    })?;
    is_node_gone(access.client(), machine.as_str()).await
}

/// The Node as one watch has it.
struct Watched {
    name: MachineName,
    single: Single<Node>,
    /// True if a live read found no Node and the watch has reported none since.
    absent: bool,
}

impl Watched {
    fn take(&mut self, event: Event<Node>) {
        // A list may have missed a Node that came and went.
        self.absent &= !matches!(event, Event::Init | Event::Apply(_));
        self.single.take(event.modify(trim), self.name.as_str());
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

/// A watch by one credential.
struct Followed {
    joined: Joined,
    access: Access,
    events: BoxStream<'static, Result<Event<Node>, watcher::Error>>,
    /// Signal that the API server has accepted the watch.
    accepted: Arc<Notify>,
    node: Watched,
    /// True if the watch has failed and was not answered since.
    silent: bool,
}

impl Followed {
    fn open(joined: Joined, name: &MachineName) -> Result<Self, PrepareClientError> {
        let access = access(&joined, name)?;
        let accepted = Arc::new(Notify::new());
        let events = events(&access, name, &accepted);
        let node = Watched { name: name.clone(), single: Single::default(), absent: false };
        Ok(Self { joined, access, events, accepted, node, silent: false })
    }

    fn take(&mut self, event: Result<Event<Node>, watcher::Error>, reported: &watch::Sender<OwnNode>) {
        match event {
            Ok(event) => {
                self.silent = false;
                self.node.take(event);
            }
            Err(error) => {
                // A Node that was gone may come while the watch is broken.
                (self.silent, self.node.absent) = (true, false);
                publish(reported, OwnNode::Silent { why: why(error), runs_api: self.joined.runs_api });
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
    let nodes = Api::<BoundedTimes<Node>>::all(client);
    watcher(nodes, config).default_backoff().map_ok(BoundedTimes::event).boxed()
}

#[cfg(test)]
mod tests;
