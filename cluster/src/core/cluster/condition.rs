//! Pure: the conditions of a Cluster about its infrastructure, its control plane and its API server, and their summary.
//!
//! A condition of an object whose watch is not synced stays as it is: a restart causes no write.

use bedplate_api::cluster::full::{Cluster, condition_type};
use bedplate_api::cluster::part::Reference;
use bedplate_api::reason::ConditionReason;
use bedplate_api::reason::core::{
    AvailableReason, ControlPlaneAvailableReason, ControlPlaneInitializedReason, InfrastructureReadyReason,
    RemoteConnectionProbeReason,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::observed::{AuthoritySecret, Component, KubeconfigSecret, Observed, Ownership, ownership};
use super::plan::makes_kubeconfig;
use super::secret;
use super::status::{Draft, Latched};
use crate::core::machine::node::Connection;
use crate::core::merge::{Merged, Part, summary};
use crate::core::object::{Conditions as _, is_true};
use crate::core::reference::{Lookup, MirrorReason, shown};

/// Sets condition `RemoteConnectionProbe`. Without a cause it stays until the probes of this process decide.
pub fn probe(draft: &mut Draft, observed: &Observed) {
    let Connection { last_success, is_lost } = observed.connection;
    let failed = RemoteConnectionProbeReason::ProbeFailed;
    let cause =
        observed.refusal(condition_type::REMOTE_CONNECTION_PROBE).or_else(|| kubeconfig(observed, draft.now));
    let secret = secret::kubeconfig_name(&observed.cluster);
    match (last_success, cause) {
        // The certificate of the present kubeconfig is still valid.
        (Some(_), cause) if !is_lost => {
            draft.set(RemoteConnectionProbeReason::ProbeSucceeded, &cause.unwrap_or_default());
        }
        (_, Some(cause)) => draft.set(failed, &cause),
        (Some(last), None) => {
            let since = format!("it answered last at {last:.0}");
            let message =
                format!("API server of the cluster does not answer, {since}; check Secret {secret}");
            draft.set(failed, &message);
        }
        (None, None) if is_lost => {
            draft.set(failed, &format!("API server of the cluster does not answer; check Secret {secret}"));
        }
        (None, None) if draft.has(condition_type::REMOTE_CONNECTION_PROBE) => {}
        (None, None) => draft.set(failed, "API server of the cluster has not answered yet"),
    }
}

/// Returns the text about the certificate authority, if the kubeconfig cannot be made or renewed without it.
fn kubeconfig(observed: &Observed, now: Timestamp) -> Option<String> {
    let act = match observed.kubeconfig {
        _ if !makes_kubeconfig(&observed.cluster) => return None,
        KubeconfigSecret::Absent => "made",
        KubeconfigSecret::Made { renews_at } if renews_at <= now => "renewed",
        KubeconfigSecret::Made { .. } | KubeconfigSecret::Given | KubeconfigSecret::NotRead => return None,
    };
    let name = secret::authority_name(&observed.cluster);
    let (state, remedy) = match observed.authority {
        AuthoritySecret::Absent if act == "made" => {
            ("does not exist", "it is made with the first Machine of the control plane")
        }
        AuthoritySecret::Absent => ("does not exist", "restore it"),
        AuthoritySecret::Unusable => ("has no certificate or no key that belongs to it", "restore it"),
        AuthoritySecret::NotRead | AuthoritySecret::Usable => return None,
    };
    Some(format!("kubeconfig cannot be {act}: Secret {name} {state}; {remedy}"))
}

/// State of a component whose object has no condition to show.
enum Missing {
    /// The former condition stays.
    Keep,
    /// The object cannot be read, or it is not the Cluster's.
    Error(String),
    /// The object does not exist. True: it was complete before.
    Gone(bool, String),
}

fn missing(observed: &Observed, component: Component, was_complete: bool) -> Option<Missing> {
    let (reference, lookup) = observed.component(component)?;
    let (kind, name) = (&reference.kind, &reference.name);
    match lookup {
        Lookup::NotSynced => Some(Missing::Keep),
        Lookup::Unresolved(why) => Some(Missing::Error(format!("{kind} {name} cannot be read: {why}"))),
        Lookup::Absent if was_complete => Some(Missing::Gone(true, format!("{kind} {name} was deleted"))),
        Lookup::Absent => Some(Missing::Gone(false, format!("{kind} {name} does not exist"))),
        Lookup::Found(object) => match ownership(&**object, &observed.cluster) {
            Ownership::Foreign(other) => {
                let field = component.field();
                Some(Missing::Error(format!("{kind} {name} belongs to Cluster {other}; change {field}")))
            }
            Ownership::Own | Ownership::Free => None,
        },
    }
}

/// Sets condition `InfrastructureReady`.
pub fn infrastructure(draft: &mut Draft, observed: &Observed, latched: Latched) {
    use InfrastructureReadyReason as Reason;
    let component = Component::Infrastructure;
    if observed.component(component).is_none() {
        return draft.set(Reason::Ready, "");
    }
    let source = Source {
        type_: condition_type::READY,
        is_complete: latched.is_provisioned,
        pending: "is not provisioned yet",
    };
    show::<Reason>(draft, observed, component, source);
}

/// Sets condition `ControlPlaneInitialized` (K6).
pub fn initialized(draft: &mut Draft, observed: &Observed, latched: Latched) {
    use ControlPlaneInitializedReason as Reason;
    if latched.is_initialized {
        return draft.set(Reason::Initialized, "");
    }
    let Some((reference, lookup)) = observed.component(Component::ControlPlane) else {
        return draft.set(Reason::NotInitialized, "no Machine of the control plane has a Node yet");
    };
    match missing(observed, Component::ControlPlane, false) {
        Some(Missing::Keep) if draft.has(condition_type::CONTROL_PLANE_INITIALIZED) => {}
        Some(Missing::Keep) => {
            draft.set(Reason::InternalError, &lookup.unknown(&reference.kind).unwrap_or_default());
        }
        Some(Missing::Error(message)) => draft.set(Reason::InternalError, &message),
        Some(Missing::Gone(_, message)) => draft.set(Reason::NotInitialized, &message),
        None => {
            let message = format!("{} {} is not initialized yet", reference.kind, reference.name);
            draft.set(Reason::NotInitialized, &message);
        }
    }
}

/// Sets condition `ControlPlaneAvailable` (K6). It is kept current.
pub fn control_plane(draft: &mut Draft, observed: &Observed, latched: Latched) {
    use ControlPlaneAvailableReason as Reason;
    let component = Component::ControlPlane;
    if observed.component(component).is_none() {
        let mut machines = observed.control_plane_machines();
        return if machines.any(|machine| is_true(machine.conditions(), condition_type::AVAILABLE)) {
            draft.set(Reason::Available, "");
        } else {
            draft.set(Reason::NotAvailable, "no Machine of the control plane is available");
        };
    }
    let source = Source {
        type_: condition_type::AVAILABLE,
        is_complete: latched.is_initialized,
        pending: "is not initialized yet",
    };
    show::<Reason>(draft, observed, component, source);
}

/// Condition of a component that a condition of the Cluster shows.
#[derive(Clone, Copy)]
struct Source {
    /// Type of the condition of the component.
    type_: &'static str,
    /// True once the component was complete.
    is_complete: bool,
    /// State of a component without the condition that is not complete.
    pending: &'static str,
}

/// Sets a condition that shows a condition of a component, or that a write for the component was refused.
fn show<R>(draft: &mut Draft, observed: &Observed, component: Component, source: Source)
where
    R: MirrorReason + ConditionReason,
{
    let Some((reference, lookup)) = observed.component(component) else { return };
    if let Some(message) = observed.refusal(R::TYPE) {
        return draft.set(R::UNREADABLE, &message);
    }
    match missing(observed, component, source.is_complete) {
        Some(Missing::Keep) if draft.has(R::TYPE) => {}
        Some(Missing::Keep) => draft.set(R::UNREADABLE, &lookup.unknown(&reference.kind).unwrap_or_default()),
        Some(Missing::Error(message)) => draft.set(R::UNREADABLE, &message),
        Some(Missing::Gone(true, message)) => draft.set(R::DELETED, &message),
        Some(Missing::Gone(false, message)) => draft.set(R::ABSENT, &message),
        None => {
            let condition =
                lookup.found().and_then(|object| shown::<R>(object, source.type_, &reference.kind));
            match condition {
                Some(shown) => draft.set_as(R::TYPE, shown.state, &shown.reason, &shown.message),
                None if source.is_complete => draft.set(R::READY, ""),
                None => {
                    let Reference { kind, name, .. } = reference;
                    draft.set(R::NOT_READY, &format!("{kind} {name} {}", source.pending));
                }
            }
        }
    }
}

/// Sets condition `Available`: the summary of other conditions, with those of the gates.
pub fn available(draft: &mut Draft, cluster: &Cluster) {
    let is_deleting = cluster.metadata.deletion_timestamp.is_some();
    let own = &draft.status.conditions;
    let find = |type_: &str| own.iter().find(|condition| condition.type_ == type_);
    let foreign = cluster.status.iter().flat_map(|status| &status.conditions);
    let foreign: Vec<&Condition> = foreign.collect();
    let gate = |type_: &str| {
        find(type_).or_else(|| foreign.iter().copied().find(|condition| condition.type_ == type_))
    };
    let is_gone = |condition: Option<&Condition>| {
        // An object that was deleted before the Cluster is not an issue.
        let reason = condition.map(|condition| condition.reason.as_str()).unwrap_or_default();
        let gone = [
            InfrastructureReadyReason::ObjectDeleted.as_str(),
            InfrastructureReadyReason::ObjectDoesNotExist.as_str(),
        ];
        is_deleting && gone.contains(&reason)
    };
    let part = |type_, is_negative| {
        let condition = find(type_);
        Part { type_, condition, is_negative, is_info: is_gone(condition) }
    };
    let mut parts = vec![
        part(condition_type::DELETING, true),
        part(condition_type::REMOTE_CONNECTION_PROBE, false),
        part(condition_type::INFRASTRUCTURE_READY, false),
        part(condition_type::CONTROL_PLANE_AVAILABLE, false),
        part(condition_type::WORKERS_AVAILABLE, false),
    ];
    parts.extend(cluster.spec.availability_gates.iter().map(|named| Part {
        type_: &named.condition_type,
        condition: gate(&named.condition_type),
        is_negative: named.is_negative(),
        is_info: false,
    }));
    let (merged, message) = summary(&parts);
    let reason = match merged {
        Merged::Normal => AvailableReason::Available,
        Merged::Issue => AvailableReason::NotAvailable,
        Merged::Unknown => AvailableReason::AvailableUnknown,
    };
    draft.set(reason, &message);
}
