//! Pure: the state of an object that a Cluster or a Machine names, and its owner. Shared by the planners of the core kinds.
//!
//! A core kind is refused by name. Otherwise a user who may create a Machine could have any other Machine of the namespace adopted and deleted.
//! Not here: the watches that find the object.

use std::sync::Arc;

use bedplate_api::cluster::contract::{Mirrored, Referenced};
use bedplate_api::cluster::core::GROUP;
use bedplate_api::cluster::part::Reference;
use bedplate_api::condition::ConditionState;
use bedplate_api::reason::Reason;
use bedplate_api::reason::core::{
    BootstrapConfigReadyReason, ControlPlaneAvailableReason, InfrastructureReadyReason,
};
use bedplate_engine::watches;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt as _};

/// Reason of a condition that is not True and has none, as upstream has it.
const NO_REASON: &str = "NoReasonReported";
/// Maximum number of characters of a reason.
const MAX_REASON: usize = 1024;

/// State of an object that a Cluster or a Machine names, as the watch of its kind shows it.
#[derive(Debug, Clone, PartialEq)]
pub enum Lookup {
    /// The object.
    Found(Arc<Referenced>),
    /// The watch is synced and does not show the object.
    Absent,
    /// The watch of the kind is not synced yet.
    NotSynced,
    /// The kind is refused, it is not installed, it fulfills no contract, or it may not be watched. The text is for a user.
    Unresolved(String),
}

impl Lookup {
    /// Returns the object.
    pub fn found(&self) -> Option<&Referenced> {
        match self {
            Self::Found(object) => Some(object),
            Self::Absent | Self::NotSynced | Self::Unresolved(_) => None,
        }
    }

    /// Returns true if the object does not exist.
    pub fn is_absent(&self) -> bool {
        *self == Self::Absent
    }

    /// Returns true if the watch has shown that the object exists or does not exist.
    pub fn is_known(&self) -> bool {
        match self {
            Self::Found(_) | Self::Absent => true,
            Self::NotSynced | Self::Unresolved(_) => false,
        }
    }

    /// Returns the text for a user, if the watch shows nothing.
    pub fn unknown(&self, kind: &str) -> Option<String> {
        match self {
            Self::Found(_) | Self::Absent => None,
            Self::NotSynced => Some(format!("objects of kind {kind} are not read yet")),
            Self::Unresolved(why) => Some(why.clone()),
        }
    }
}

impl From<&watches::Lookup<Referenced>> for Lookup {
    fn from(lookup: &watches::Lookup<Referenced>) -> Self {
        match lookup {
            watches::Lookup::Found { object, .. } => Self::Found(Arc::clone(object)),
            watches::Lookup::Absent => Self::Absent,
            watches::Lookup::NotSynced => Self::NotSynced,
            watches::Lookup::Unresolved(why) => Self::Unresolved(why.to_string()),
        }
    }
}

/// Returns the cause for which a reference is refused, for a user: it names a kind of Cluster API, and not one of a provider.
pub fn refusal(reference: &Reference) -> Option<String> {
    let Reference { api_group, kind, .. } = reference;
    (api_group == GROUP)
        .then(|| format!("{kind} is a kind of {GROUP}, and not of a provider; correct the reference"))
}

/// Reasons of a condition that shows a condition of a referenced object.
pub trait MirrorReason: Reason + Into<ConditionState> {
    /// The object is ready, and gives no reason.
    const READY: Self;
    /// The object is not ready, and gives no reason.
    const NOT_READY: Self;
    /// The object does not exist.
    const ABSENT: Self;
    /// The object was deleted after it had been complete.
    const DELETED: Self;
    /// The condition of the object is not valid.
    const INVALID: Self;
    /// The object cannot be read, or it belongs to another object.
    const UNREADABLE: Self;
}

impl MirrorReason for BootstrapConfigReadyReason {
    const READY: Self = BootstrapConfigReadyReason::Ready;
    const NOT_READY: Self = BootstrapConfigReadyReason::NotReady;
    const ABSENT: Self = BootstrapConfigReadyReason::ObjectDoesNotExist;
    const DELETED: Self = BootstrapConfigReadyReason::ObjectDeleted;
    const INVALID: Self = BootstrapConfigReadyReason::InvalidConditionReported;
    const UNREADABLE: Self = BootstrapConfigReadyReason::InternalError;
}

impl MirrorReason for InfrastructureReadyReason {
    const READY: Self = InfrastructureReadyReason::Ready;
    const NOT_READY: Self = InfrastructureReadyReason::NotReady;
    const ABSENT: Self = InfrastructureReadyReason::ObjectDoesNotExist;
    const DELETED: Self = InfrastructureReadyReason::ObjectDeleted;
    const INVALID: Self = InfrastructureReadyReason::InvalidConditionReported;
    const UNREADABLE: Self = InfrastructureReadyReason::InternalError;
}

impl MirrorReason for ControlPlaneAvailableReason {
    const READY: Self = ControlPlaneAvailableReason::Available;
    const NOT_READY: Self = ControlPlaneAvailableReason::NotAvailable;
    const ABSENT: Self = ControlPlaneAvailableReason::ObjectDoesNotExist;
    const DELETED: Self = ControlPlaneAvailableReason::ObjectDeleted;
    const INVALID: Self = ControlPlaneAvailableReason::InvalidConditionReported;
    const UNREADABLE: Self = ControlPlaneAvailableReason::InternalError;
}

/// Condition of a referenced object, ready to be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Status of the condition.
    pub state: ConditionState,
    /// Reason of the condition. The API server accepts it.
    pub reason: String,
    /// Message of the condition.
    pub message: String,
    /// Time at which the condition of the object has changed. None: the present time.
    pub since: Option<Timestamp>,
}

/// Returns the condition of a referenced object. None: it has no condition of the type. A reason that the API server would refuse is replaced:
/// otherwise one faulty provider would block every later status. `kind`: kind of the object, for the message.
pub fn shown<R: MirrorReason>(object: &Referenced, type_: &str, kind: &str) -> Option<Shown> {
    let condition = match object.condition(type_) {
        Mirrored::Absent => return None,
        Mirrored::Invalid => {
            let name = object.name_any();
            let message = format!("condition {type_} of {kind} {name} has no valid status or time");
            let reason = R::INVALID.as_str().to_owned();
            return Some(Shown { state: R::INVALID.into(), reason, message, since: None });
        }
        Mirrored::Is(condition) => condition,
    };
    let (state, fallback) = match condition.status.as_str() {
        "True" => (ConditionState::True, R::READY),
        "False" => (ConditionState::False, R::NOT_READY),
        _ => (ConditionState::Unknown, R::NOT_READY),
    };
    let reason = match condition.reason.as_str() {
        // Contract v1beta1 has none for conditions that are True.
        "" if state == ConditionState::True => fallback.as_str(),
        "" => NO_REASON,
        reason if is_valid_reason(reason) => reason,
        _ => fallback.as_str(),
    };
    let since = Some(condition.last_transition_time.0);
    Some(Shown { state, reason: reason.to_owned(), message: condition.message.clone(), since })
}

/// Returns true if the API server accepts the reason. Contract v1beta1 allows any text.
fn is_valid_reason(reason: &str) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let bytes = reason.as_bytes();
    bytes.len() <= MAX_REASON
        && bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(is_word)
        && bytes.iter().all(|byte| is_word(byte) || b",:".contains(byte))
}

/// Returns the owners of a kind of Cluster API, in any version.
pub fn owners<'a, K: Resource>(object: &'a K, kind: &str) -> impl Iterator<Item = &'a OwnerReference> {
    let owners = object.meta().owner_references.iter().flatten();
    owners.filter(move |owner| is_core_owner(owner, kind))
}

/// Returns true if an owner reference names an object of a kind of Cluster API, in any version.
pub(crate) fn is_core_owner(owner: &OwnerReference, kind: &str) -> bool {
    let is_group = owner.api_version.split_once('/').is_some_and(|(group, _)| group == GROUP);
    is_group && owner.kind == kind
}

/// Returns true if the object of a kind of Cluster API with this UID owns the object.
pub(crate) fn is_owned_by<K: Resource>(object: &K, kind: &str, uid: &str) -> bool {
    owners(object, kind).any(|owner| owner.uid == uid)
}

/// Returns true if an object other than a Cluster manages the object.
pub fn is_managed<K: Resource>(object: &K) -> bool {
    let mut owners = object.meta().owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && !is_core_owner(owner, "Cluster"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(owners: &Value, conditions: &Value) -> Referenced {
        serde_json::from_value(json!({ "metadata": { "name": "o", "ownerReferences": owners },
            "status": { "conditions": conditions } }))
        .unwrap()
    }

    #[test]
    fn owner_counts_in_any_version_of_the_core_group_only() {
        let owned = |version: &str| {
            object(
                &json!([{ "apiVersion": version, "kind": "Cluster", "name": "c", "uid": "u" }]),
                &json!([]),
            )
        };
        assert!(is_owned_by(&owned("cluster.x-k8s.io/v1beta1"), "Cluster", "u"));
        assert!(is_owned_by(&owned("cluster.x-k8s.io/v1beta2"), "Cluster", "u"));
        assert!(!is_owned_by(&owned("cluster.x-k8s.io/v1beta2"), "Cluster", "other"));
        assert!(!is_owned_by(&owned("cluster.x-k8s.io/v1beta2"), "Machine", "u"));
        assert!(!is_owned_by(&owned("example.org/v1"), "Cluster", "u"));
    }

    #[test]
    fn core_kind_is_refused_and_a_kind_of_a_provider_is_not() {
        let of = |group: &str| {
            let reference = json!({ "apiGroup": group, "kind": "Machine", "name": "m" });
            refusal(&serde_json::from_value(reference).unwrap())
        };
        let why = "Machine is a kind of cluster.x-k8s.io, and not of a provider; correct the reference";
        assert_eq!(of("cluster.x-k8s.io").as_deref(), Some(why));
        for group in ["infrastructure.cluster.x-k8s.io", "bootstrap.cluster.x-k8s.io", "bedplate.dev"] {
            assert_eq!(of(group), None, "{group}");
        }
    }

    #[test]
    fn controller_owner_other_than_a_cluster_manages() {
        let owned = |kind: &str, controller: bool| {
            let owner = json!([{ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind, "name": "o", "uid": "u",
                "controller": controller }]);
            is_managed(&object(&owner, &json!([])))
        };
        assert_eq!(
            [owned("MachineSet", true), owned("MachineSet", false), owned("Cluster", true)],
            [true, false, false]
        );
    }

    #[test]
    fn condition_keeps_status_reason_message_and_time() {
        let time = "2026-01-01T00:00:00Z";
        let of = |condition: Value| {
            let object = object(&json!([]), &json!([condition]));
            let shown = shown::<InfrastructureReadyReason>(&object, "Ready", "Host");
            shown.map(|shown| (shown.state, shown.reason, shown.message, shown.since))
        };
        let since = Some(time.parse().unwrap());
        let words = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
        for (status, reason, state, expected) in [
            ("False", "R", ConditionState::False, "R"),
            ("False", "", ConditionState::False, "NoReasonReported"),
            ("False", "not valid", ConditionState::False, "NotReady"),
            ("True", "", ConditionState::True, "Ready"),
            ("True", "not valid", ConditionState::True, "Ready"),
            ("Unknown", "R", ConditionState::Unknown, "R"),
        ] {
            let given = json!({ "type": "Ready", "status": status, "reason": reason, "message": "m", "lastTransitionTime": time });
            let (reason, message) = words(expected, "m");
            assert_eq!(of(given), Some((state, reason, message, since)));
        }
        let (reason, message) =
            words("InvalidConditionReported", "condition Ready of Host o has no valid status or time");
        let invalid = Some((ConditionState::Unknown, reason, message, None));
        assert_eq!(of(json!({ "type": "Ready", "status": "Yes" })), invalid);
        assert_eq!(of(json!({ "type": "Other", "status": "True" })), None);
    }

    #[test]
    fn lookup_without_an_answer_has_a_text() {
        assert_eq!(Lookup::Absent.unknown("K"), None);
        assert_eq!(Lookup::NotSynced.unknown("K").unwrap(), "objects of kind K are not read yet");
        assert_eq!(Lookup::Unresolved("no kind".to_owned()).unknown("K").unwrap(), "no kind");
        assert!(Lookup::Absent.is_known() && !Lookup::NotSynced.is_known() && Lookup::Absent.is_absent());
        assert!(Lookup::Found(Arc::default()).found().is_some());
    }
}
