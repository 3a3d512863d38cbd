//! Pure: `BootstrapConfigReady` and `InfrastructureReady`, which mirror `Ready` of the referenced objects. Called by `condition`.

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::full::condition_type;
use bedplate_api::cluster::full::machine::MachineStatus;
use bedplate_api::reason::core::{BootstrapConfigReadyReason, InfrastructureReadyReason};
use kube::ResourceExt;

use super::condition::{Line, get};
use super::data::{DataSecret, Given, given};
use super::plan::Observed;
use super::references::{self, Ownership};
use crate::core::reference::{Lookup, MirrorReason, Shown, shown};

/// Returns `BootstrapConfigReady`. None: it stays.
pub fn bootstrap(observed: &Observed, status: &MachineStatus) -> Option<Line> {
    if let Some(text) = observed.refusal(condition_type::BOOTSTRAP_CONFIG_READY) {
        return Some(Line::of(BootstrapConfigReadyReason::UNREADABLE, text));
    }
    let Some(reference) = &observed.machine.spec.bootstrap.config_ref else {
        return Some(data(observed));
    };
    let latches = status.initialization.as_ref();
    let is_created = latches.is_some_and(|latches| latches.bootstrap_data_secret_created == Some(true));
    let (kind, name) = (&reference.kind, &reference.name);
    match &observed.bootstrap {
        Lookup::Found(object) => {
            let fields = ("status.initialization.dataSecretCreated", "status.dataSecretName");
            let pending = pending((kind, name), object.contract.data_secret_created, fields);
            Some(of_object::<BootstrapConfigReadyReason>(observed, object, (kind, pending), is_created))
        }
        Lookup::Absent if observed.is_deleting() && is_created => {
            Some(Line::of(BootstrapConfigReadyReason::DELETED, format!("{kind} {name} was deleted")))
        }
        Lookup::Absent => Some(absent::<BootstrapConfigReadyReason>(observed, (kind, name))),
        Lookup::NotSynced | Lookup::Unresolved(_) => {
            let type_ = condition_type::BOOTSTRAP_CONFIG_READY;
            unreadable::<BootstrapConfigReadyReason>(&observed.bootstrap, kind, get(status, type_).is_some())
        }
    }
}

/// Returns `InfrastructureReady`. None: it stays.
pub fn infrastructure(observed: &Observed, status: &MachineStatus) -> Option<Line> {
    if let Some(text) = observed.refusal(condition_type::INFRASTRUCTURE_READY) {
        return Some(Line::of(InfrastructureReadyReason::UNREADABLE, text));
    }
    let reference = &observed.machine.spec.infrastructure_ref;
    let latches = status.initialization.as_ref();
    let is_provisioned = latches.is_some_and(|latches| latches.infrastructure_provisioned == Some(true));
    let (kind, name) = (&reference.kind, &reference.name);
    match &observed.infrastructure {
        Lookup::Found(object) => {
            let fields = ("status.initialization.provisioned", "spec.providerID");
            let pending = pending((kind, name), object.contract.provisioned, fields);
            Some(other_id(observed).unwrap_or_else(|| {
                of_object::<InfrastructureReadyReason>(observed, object, (kind, pending), is_provisioned)
            }))
        }
        Lookup::Absent if is_provisioned => {
            let remedy = if observed.is_deleting() { "" } else { " under its Machine; delete the Machine" };
            let text = format!("{kind} {name} was deleted{remedy}");
            Some(Line::of(InfrastructureReadyReason::DELETED, text))
        }
        Lookup::Absent => Some(absent::<InfrastructureReadyReason>(observed, (kind, name))),
        Lookup::NotSynced | Lookup::Unresolved(_) => {
            let type_ = condition_type::INFRASTRUCTURE_READY;
            unreadable::<InfrastructureReadyReason>(
                &observed.infrastructure,
                kind,
                get(status, type_).is_some(),
            )
        }
    }
}

/// Returns `BootstrapConfigReady` of a Machine without `configRef` (M3).
fn data(observed: &Observed) -> Line {
    let not_ready = |text: String| Line::of(BootstrapConfigReadyReason::NotReady, text);
    let given = given(&observed.machine);
    match given {
        Given::NotUsed => Line::of(BootstrapConfigReadyReason::DataSecretProvided, ""),
        Given::Nothing => {
            let fields = "spec.bootstrap.dataSecretName or spec.bootstrap.data";
            not_ready(format!("Machine has no bootstrap data; set {fields}"))
        }
        Given::Empty => not_ready("spec.bootstrap.dataSecretName is not set yet".to_owned()),
        Given::Text(name) if observed.data_secret == DataSecret::Foreign => {
            not_ready(format!("Secret {name} belongs to another object; delete it if it is not needed"))
        }
        Given::Text(name) => not_ready(format!("Secret {name} is not written yet")),
        Given::NameTooLong => {
            let remedy = "set spec.bootstrap.dataSecretName instead";
            not_ready(format!(
                "name of the Machine is too long for a Secret with spec.bootstrap.data; {remedy}"
            ))
        }
    }
}

/// Returns the field that an object lacks: the one that reports the end of its work, or else the one with its result.
fn pending((kind, name): (&str, &str), is_done: Option<bool>, (done, result): (&str, &str)) -> String {
    if is_done == Some(true) {
        format!("{kind} {name} has no {result} yet")
    } else {
        format!("{done} of {kind} {name} is not true")
    }
}

fn of_object<R: MirrorReason>(
    observed: &Observed,
    object: &Referenced,
    (kind, pending): (&str, String),
    is_done: bool,
) -> Line {
    let name = object.name_any();
    let ownership = references::ownership(&observed.machine, observed.cluster.as_deref(), object);
    if let Ownership::Foreign(other) = ownership {
        let text = format!("{kind} {name} belongs to {other}; delete this Machine, or name another object");
        return Line::of(R::UNREADABLE, text);
    }
    match (shown::<R>(object, condition_type::READY, kind), &object.contract.failure) {
        (Some(Shown { state, reason, message, since }), _) => Line { state, reason, message, since },
        (None, Some(failure)) => {
            let words = [failure.reason.as_str(), failure.message.as_str()];
            let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
            let text = format!("{kind} {name} has failed: {}; delete the Machine", words.join(": "));
            Line::of(R::NOT_READY, text)
        }
        (None, None) if is_done => Line::of(R::READY, ""),
        (None, None) => Line::of(R::NOT_READY, pending),
    }
}

/// Returns `InfrastructureReady` of a Machine whose infrastructure reports another providerID than the Machine has.
fn other_id(observed: &Observed) -> Option<Line> {
    let reported = references::other_provider_id(observed)?;
    let reference = &observed.machine.spec.infrastructure_ref;
    let id = observed.provider_id().unwrap_or_default();
    let text = format!(
        "{} {} reports providerID {reported}, and the Machine has {id}; delete the Machine",
        reference.kind, reference.name
    );
    Some(Line::of(InfrastructureReadyReason::InternalError, text))
}

fn absent<R: MirrorReason>(observed: &Observed, (kind, name): (&str, &str)) -> Line {
    let remedy = if observed.is_deleting() { "" } else { "; create it, or delete the Machine" };
    Line::of(R::ABSENT, format!("{kind} {name} does not exist{remedy}"))
}

/// Returns the condition of an object that cannot be read. None: its watch is not synced, and the last condition stays.
fn unreadable<R: MirrorReason>(lookup: &Lookup, kind: &str, is_shown: bool) -> Option<Line> {
    if is_shown && *lookup == Lookup::NotSynced {
        return None;
    }
    lookup.unknown(kind).map(|text| Line::of(R::UNREADABLE, text))
}
