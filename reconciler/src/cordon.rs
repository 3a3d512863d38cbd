//! Pure: annotations that the controller writes on a Node it drains: purpose of the cordon, start, pending
//! Pods, and failure. They hold everything that a restarted controller needs to continue.

use bedplate_api::reason::configuration::DegradedReason;
use bedplate_rules::drain::CORDONED_BY;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};

/// Start of the drain (RFC 3339).
pub const DRAIN_STARTED: &str = "bedplate.dev/drain-started";
/// Pods that have not left yet, with reasons, for users.
pub(crate) const DRAIN_PENDING: &str = "bedplate.dev/drain-pending";
/// Failure of the last drain: a [`Failed`] in JSON.
pub const DRAIN_FAILED: &str = "bedplate.dev/drain-failed";
/// [`CORDONED_BY`] of a rolling update: this and the version.
const ROLLOUT: &str = "rollout/";
/// [`CORDONED_BY`] of a Machine that is deleted with `deletionPolicy: Drain`.
const DELETION: &str = "deletion";
/// Characters of a message that are kept on a Node.
const MAX_MESSAGE: usize = 512;

/// Purpose of a drain by the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// Repave with this version (`<configuration>-v<N>`).
    Rollout(String),
    /// Deletion of the Machine.
    Deletion,
}

impl Purpose {
    /// Returns the annotation's value.
    pub fn text(&self) -> String {
        match self {
            Self::Rollout(version) => format!("{ROLLOUT}{version}"),
            Self::Deletion => DELETION.to_owned(),
        }
    }

    /// The configuration whose rolling update it is.
    pub fn configuration(&self) -> Option<&str> {
        match self {
            Self::Rollout(version) => version.rsplit_once("-v").map(|(name, _)| name),
            Self::Deletion => None,
        }
    }

    fn read(text: &str) -> Option<Self> {
        if text == DELETION {
            return Some(Self::Deletion);
        }
        text.strip_prefix(ROLLOUT).map(|version| Self::Rollout(version.to_owned()))
    }
}

/// Owner of a Node's cordon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cordon {
    /// The Node has no cordon.
    Free,
    /// The controller's.
    Ours(Hold),
    /// An operation's cordon. The agent carries the operation out.
    Operation,
    /// Cordon of a user or another program.
    Foreign,
}

/// A Node that the controller has cordoned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Purpose of the cordon.
    pub purpose: Purpose,
    /// Start of the drain.
    pub began: Option<Timestamp>,
    /// True if the Node is cordoned. A user may have uncordoned it.
    pub cordoned: bool,
    /// Pods that the drain is waiting for.
    pub pending: Option<String>,
}

/// Failure of a drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failed {
    /// Version of the update (`<configuration>-v<N>`).
    pub version: String,
    /// Generation of the MachineConfiguration at that time. An edit of it retries the drain.
    pub generation: i64,
    /// Machine-readable reason.
    pub reason: UpdateFailure,
    /// Message for users.
    pub message: String,
}

/// Reason for a failed drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpdateFailure {
    /// Pods were left when the time was over.
    DrainTimedOut,
    /// Some of its Pods have no controller that re-creates them.
    UnmanagedPods,
    /// Some of its Pods would lose what is in their emptyDir.
    EmptyDirData,
    /// The Node was uncordoned during the drain.
    Uncordoned,
}

impl From<UpdateFailure> for DegradedReason {
    fn from(reason: UpdateFailure) -> Self {
        match reason {
            UpdateFailure::DrainTimedOut => DegradedReason::DrainTimedOut,
            UpdateFailure::UnmanagedPods => DegradedReason::UnmanagedPods,
            UpdateFailure::EmptyDirData => DegradedReason::EmptyDirData,
            UpdateFailure::Uncordoned => DegradedReason::UncordonedExternally,
        }
    }
}

/// Returns true if no Pods are scheduled onto the Node.
pub fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true))
}

/// Returns the owner of a Node's cordon.
pub(crate) fn cordon_of(node: &Node) -> Cordon {
    let text = |name: &str| node.annotations().get(name);
    let cordoned = is_cordoned(node);
    match text(CORDONED_BY).map(|by| Purpose::read(by)) {
        Some(Some(purpose)) => Cordon::Ours(Hold {
            purpose,
            began: text(DRAIN_STARTED).and_then(|time| time.parse().ok()),
            cordoned,
            pending: text(DRAIN_PENDING).cloned(),
        }),
        Some(None) if cordoned => Cordon::Operation,
        None if cordoned => Cordon::Foreign,
        Some(None) | None => Cordon::Free,
    }
}

/// Returns the failure of a Node's last drain.
pub fn failed(node: &Node) -> Option<Failed> {
    serde_json::from_str(node.annotations().get(DRAIN_FAILED)?).ok()
}

/// Returns a message, cut to the length that is kept on a Node.
pub fn cut(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).collect()
}

/// Returns true if the Node's status reports it Ready.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(annotations: &Value, unschedulable: bool) -> Node {
        let object = json!({ "metadata": { "name": "a", "annotations": annotations },
            "spec": { "unschedulable": unschedulable } });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn only_a_cordon_with_our_word_on_it_is_ours() {
        assert_eq!(cordon_of(&node(&json!({}), false)), Cordon::Free);
        assert_eq!(cordon_of(&node(&json!({}), true)), Cordon::Foreign);
        let operation = json!({ CORDONED_BY: "0b5e4c1e-uid" });
        assert_eq!(cordon_of(&node(&operation, true)), Cordon::Operation);
        assert_eq!(cordon_of(&node(&operation, false)), Cordon::Free);
        let ours = json!({ CORDONED_BY: Purpose::Rollout("w-v2".to_owned()).text(), DRAIN_STARTED: "2026-01-01T00:00:00Z" });
        let Cordon::Ours(hold) = cordon_of(&node(&ours, true)) else { panic!() };
        assert_eq!(hold.purpose, Purpose::Rollout("w-v2".to_owned()));
        assert!(hold.began.is_some() && hold.cordoned);
        let Cordon::Ours(hold) = cordon_of(&node(&json!({ CORDONED_BY: "deletion" }), false)) else {
            panic!()
        };
        assert_eq!((hold.purpose, hold.cordoned), (Purpose::Deletion, false));
    }

    #[test]
    fn drain_failure_is_read_as_written() {
        let failed_ = Failed {
            version: "w-v2".to_owned(),
            generation: 3,
            reason: UpdateFailure::DrainTimedOut,
            message: "why".to_owned(),
        };
        let text = serde_json::to_string(&failed_).unwrap();
        assert_eq!(failed(&node(&json!({ DRAIN_FAILED: text }), false)), Some(failed_));
        assert_eq!(failed(&node(&json!({ DRAIN_FAILED: "by hand" }), false)), None);
    }
}
