//! Pure: the Node of a Machine in its deletion: if it may be deleted, if it is the right one, and its deletion. Caller: `plan`.
//!
//! A host that is freed and claimed again may have the same Node name. The provider ID decides, not the name.

use bedplate_api::reason::core::MachineDeletingReason as Reason;
use jiff::{SignedDuration, Timestamp};

use super::list;
use super::object::is_of_another;
use super::plan::{Act, Needed, Observed, Plan, deadline, later, until};
use crate::core::machine::node_condition::UNREACHABLE_GRACE;
use crate::core::reference::Lookup;

/// Interval between attempts to delete the Node.
const RETRY_INTERVAL: SignedDuration = SignedDuration::from_secs(2);
/// Interval between turns while the Nodes are not read.
const NOT_READ_INTERVAL: SignedDuration = SignedDuration::from_secs(20);
/// Minimum time for which the deletion of the Node is tried. The timeout of the Machine often expires during the drain.
const MIN_RETRY_TIME: SignedDuration = SignedDuration::from_secs(10);

/// Cause for which the Node is neither drained nor deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Skip {
    /// The Cluster does not exist.
    NoCluster,
    /// The Cluster is deleted.
    ClusterDeleting,
    /// The control plane is deleted.
    ControlPlaneDeleting,
    /// No other Machine of the control plane is left.
    NoControlPlane,
    /// The Machine has no Node.
    NoNode,
}

impl Skip {
    /// Returns the cause for a user.
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::NoCluster => "its Cluster does not exist",
            Self::ClusterDeleting => "its Cluster is being deleted",
            Self::ControlPlaneDeleting => "the control plane is being deleted",
            Self::NoControlPlane => "no other Machine of the control plane is left",
            Self::NoNode => "no Node has the providerID of the Machine",
        }
    }
}

/// Answer of the workload API to the read of a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeAnswer {
    /// The Node does not exist.
    Absent,
    /// The Node.
    Found(NodeState),
    /// The Nodes were not read yet, so it is not known if the Machine has one.
    NotRead {
        /// True if this process is about to read them for the first time.
        is_expected: bool,
    },
}

/// Facts of a Node that count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeState {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// `spec.providerID`.
    pub provider_id: Option<String>,
    /// True if it is cordoned.
    pub is_unschedulable: bool,
    /// True if its condition `Ready` is `Unknown`: its kubelet does not report.
    pub is_unreachable: bool,
    /// True if it is being deleted.
    pub is_deleting: bool,
}

/// Failed attempts to delete or to read the Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFailure {
    /// Time of the first failure.
    pub since: Timestamp,
    /// Text of the last failure, for a user.
    pub why: String,
}

impl NodeFailure {
    /// Returns the record after another failure.
    pub fn after(previous: Option<&Self>, why: &str, now: Timestamp) -> Self {
        Self { since: previous.map_or(now, |previous| previous.since), why: list::text(why) }
    }
}

impl Observed {
    /// Returns the provider ID of the Machine, or that of its infrastructure. The infrastructure of another Machine has the ID of another Node.
    pub(super) fn provider_id(&self) -> Option<&str> {
        let own = self.machine.spec.provider_id.as_deref().filter(|id| !id.is_empty());
        let infrastructure = || self.infrastructure.found().filter(|object| !is_of_another(self, object));
        own.or_else(|| infrastructure()?.contract.provider_id.as_deref())
    }

    /// Returns the name in `nodeRef`.
    fn recorded_node(&self) -> Option<&str> {
        Some(self.machine.status.as_ref()?.node_ref.as_ref()?.name.as_str())
    }

    /// Returns the Node, if it was read and has the provider ID of the Machine.
    pub(super) fn own_node(&self) -> Option<&NodeState> {
        let Some(Ok(NodeAnswer::Found(node))) = &self.node else { return None };
        let id = node.provider_id.as_deref();
        (id.is_some() && id == self.provider_id()).then_some(node)
    }
}

/// Returns the name of the Node that is drained and deleted, or the cause why none is. Err: the plan if that is not known yet.
pub(super) fn target(observed: &Observed, now: Timestamp) -> Result<Result<String, Skip>, Plan> {
    let Some(cluster) = &observed.cluster else { return Ok(Err(Skip::NoCluster)) };
    if cluster.metadata.deletion_timestamp.is_some() {
        return Ok(Err(Skip::ClusterDeleting));
    }
    let name = match (observed.recorded_node(), observed.provider_id(), &observed.node) {
        (Some(name), ..) => Ok(name.to_owned()),
        (None, None, _) => return Ok(Err(Skip::NoNode)),
        (None, Some(id), None) => return Err(Plan::read(Needed::NodeOf(id.to_owned()))),
        (None, Some(id), Some(Ok(NodeAnswer::NotRead { is_expected }))) => {
            match not_read(observed, id, *is_expected, now) {
                Some(wait) => Err(wait),
                None => return Ok(Err(Skip::NoNode)),
            }
        }
        (None, Some(_), Some(_)) => match observed.own_node() {
            Some(node) => Ok(node.name.clone()),
            None => return Ok(Err(Skip::NoNode)),
        },
    };
    if let Some(skip) = control_plane(observed)? {
        return Ok(Err(skip));
    }
    name.map(Ok)
}

/// Waits until the Nodes are read: without that, a Node could keep its Pods without a drain. None: the wait has ended.
fn not_read(observed: &Observed, id: &str, is_expected: bool, now: Timestamp) -> Option<Plan> {
    let deletion = observed.machine.metadata.deletion_timestamp.as_ref().map(|time| time.0)?;
    let spec = observed.machine.spec.deletion.as_ref();
    let grace = later(deletion, UNREACHABLE_GRACE);
    let limit = deadline(Some(deletion), spec.and_then(|spec| spec.node_drain_timeout_seconds));
    let limit = limit.map_or(grace, |limit| limit.min(grace));
    if !is_expected && limit <= now {
        return None;
    }
    let until = until(Some(limit).filter(|_| !is_expected));
    let message = format!(
        "Node with providerID {} is not known yet: Nodes of the workload cluster are not read{until}",
        list::text(id)
    );
    let again = later(now, NOT_READ_INTERVAL);
    let again = if is_expected { again } else { again.min(limit) };
    Some(Plan::wait(Reason::DrainingNode, message).again(again))
}

/// Returns the cause in the control plane for which no Node is drained or deleted. Err: the plan if that is not known yet.
fn control_plane(observed: &Observed) -> Result<Option<Skip>, Plan> {
    match &observed.control_plane {
        Some(Lookup::NotSynced) => return Err(Plan::default()),
        Some(Lookup::Unresolved(why)) => {
            let message = format!("control plane of the Cluster cannot be read: {}", list::text(why));
            return Err(Plan::wait(Reason::InternalError, message));
        }
        Some(Lookup::Found(object)) if object.metadata.deletion_timestamp.is_some() => {
            return Ok(Some(Skip::ControlPlaneDeleting));
        }
        Some(Lookup::Found(object)) if object.contract.is_externally_managed => return Ok(None),
        Some(Lookup::Found(_) | Lookup::Absent) | None => {}
    }
    Ok((observed.active_control_plane_machines == 0).then_some(Skip::NoControlPlane))
}

/// Deletes the Node. Continues without it after its timeout, but not before [`MIN_RETRY_TIME`] of attempts.
pub(super) fn step(observed: &Observed, name: &str, now: Timestamp) -> Option<Plan> {
    let Some(answer) = &observed.node else { return Some(Plan::read(Needed::Node(name.to_owned()))) };
    let node = observed.own_node().filter(|node| !node.is_deleting);
    if answer.is_ok() && node.is_none() {
        return None;
    }
    let deletion = observed.machine.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let limit = deadline(deletion, Some(observed.machine.spec.node_deletion_timeout_seconds()));
    let failure = observed.node_failure.as_ref();
    let limit = limit.zip(failure).map(|(limit, failure)| limit.max(later(failure.since, MIN_RETRY_TIME)));
    if limit.is_some_and(|limit| limit <= now) {
        return None;
    }
    let cause = failure
        .map(|failure| failure.why.clone())
        .or_else(|| answer.as_ref().err().map(|why| list::text(why)));
    let message = match cause {
        None => format!("Node {name} is being deleted"),
        Some(why) => format!("Node {name} is not deleted yet: {why}{}", until(limit)),
    };
    let act =
        node.map_or(Act::Wait, |node| Act::DeleteNode { name: node.name.clone(), uid: node.uid.clone() });
    let again = later(now, RETRY_INTERVAL);
    Some(Plan::act(act, Reason::DeletingNode, message).again(limit.map_or(again, |limit| limit.min(again))))
}
