//! Reads the state of the host: the cluster's view, records on disk, units, and
//! the health of the slot on trial.
//!
//! Changes nothing. Called by `run` before each plan.

use std::collections::BTreeSet;

use bedplate_api::machine::SlotName;
use bedplate_api::reason::machine::PavedReason;
use bedplate_bootstrap::{joined_by, unit};
use bedplate_process::exit::chain;
use jiff::{SignedDuration, Timestamp};

use super::attempt::not_before;
use super::effects::Parts;
use super::etcd_member::may_leave;
use super::log_excerpt::{hidden, last_message};
use crate::bus::{ActiveState, BusError, LoadState, UnitName, UnitNameError, UnitState};
use crate::model::{
    Annotations, Api, Bootstrap, Health, Leave, NodeSeen, Observed, PerSlot, Record, SlotSeen, Stage,
};
use crate::plane::Seen;
use crate::slot::paths::service;
use crate::slot::store::{KeepSlotError, Ledger, Slots};

/// Maximum bytes of kubeadm's output in a message.
const OUTPUT_BYTES: u64 = 300;

/// Error of reading the host's state.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// A record cannot be read.
    #[error("cannot read the record of a slot")]
    Slot(#[from] KeepSlotError),
    /// systemd or machined did not answer.
    #[error("cannot read the units of the slots")]
    Bus(#[from] BusError),
    /// The unit name is not valid.
    #[error(transparent)]
    Name(#[from] UnitNameError),
}

impl ObserveError {
    /// Returns the reason for the condition `Paved`, of a closed set.
    pub fn reason(&self) -> PavedReason {
        match self {
            Self::Slot(_) => PavedReason::DiskError,
            Self::Bus(_) | Self::Name(_) => PavedReason::DbusError,
        }
    }
}

/// Observed state.
#[derive(Debug, Clone)]
pub struct Sight {
    /// Input of the plan.
    pub observed: Observed,
    /// The cluster's own objects.
    pub seen: Seen,
    /// Ledger next to the slots.
    pub ledger: Ledger,
    /// Reason that former contents of a slot cannot be removed.
    pub stuck: Option<String>,
}

/// Result of probing a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probed {
    /// Slot of the trial.
    pub slot: SlotName,
    /// Start of the trial.
    pub since: Timestamp,
    /// Error of the sandbox start; none: the sandbox started.
    pub failure: Option<String>,
}

/// Observes the host.
pub async fn observe(parts: &Parts, probed: Option<&Probed>, now: Timestamp) -> Result<Sight, ObserveError> {
    let seen = parts.seen();
    let ledger = parts.on_disk(Slots::ledger).await?;
    let slots = look_at_slots(parts).await?;
    let health = match on_trial(&slots) {
        Some((slot, since)) if slots[slot].runs => look_into(parts, slot, since, probed).await?,
        Some(_) | None => Health::default(),
    };
    let node = seen.node_seen();
    let is_reported = seen.api == Api::Live && node != NodeSeen::Unknown;
    let silent = parts.home.follows_slot() && !is_reported;
    let not_ready = matches!(node, NodeSeen::Present { ready_since: None, .. });
    let ended = if silent || not_ready { kubelet_ended(parts, &slots, now).await? } else { None };
    let annotations = annotations(parts, &slots).await?;
    let leave = leave(parts, &slots, &seen).await;
    let observed = Observed {
        now,
        boot_id: parts.boot_id.clone(),
        api: seen.api,
        machine: seen.machine_facts(),
        node,
        version: seen.version_facts(),
        slots,
        health,
        refused: ledger.refused.clone(),
        failures: ledger.failures,
        not_before: not_before(&ledger, now),
        not_counted: SignedDuration::ZERO,
        annotations,
        kubelet_ended: ended.map(|(ended, _)| ended),
        joins_again: parts.home.follows_slot() && ended.is_some_and(|(_, joins_again)| joins_again),
        leave,
    };
    let stuck = parts.slots.trash().removal().borrow().stuck.clone();
    Ok(Sight { observed, seen, ledger, stuck })
}

/// Observes the slots in systemd and on disk.
pub(super) async fn look_at_slots(parts: &Parts) -> Result<PerSlot<SlotSeen>, ObserveError> {
    let mut slots = PerSlot::<SlotSeen>::default();
    for slot in SlotName::ALL {
        let runs = !parts.units.state(&service(slot).parse()?).await?.active.is_down();
        slots[slot] = parts.on_disk(move |slots| slots.look(slot, runs)).await?;
    }
    Ok(slots)
}

/// Returns the slot on trial, and the start of the trial.
pub(super) fn on_trial(slots: &PerSlot<SlotSeen>) -> Option<(SlotName, Timestamp)> {
    SlotName::ALL.into_iter().find_map(|slot| match &slots[slot].record {
        Some(Record { stage: Stage::Trial { since, .. }, .. }) => Some((slot, *since)),
        _ => None,
    })
}

/// Returns the expiry of the kubelet's certificate, and true if the version has a way to join again. Both are
/// read only if the expiry may explain a Node that is not Ready or an API server that does not answer.
async fn kubelet_ended(
    parts: &Parts,
    slots: &PerSlot<SlotSeen>,
    now: Timestamp,
) -> Result<Option<(Timestamp, bool)>, KeepSlotError> {
    let applied = |slot: &SlotName| {
        let SlotSeen { record, runs, .. } = &slots[*slot];
        *runs && record.as_ref().is_some_and(|record| matches!(record.stage, Stage::Applied { .. }))
    };
    let Some(slot) = SlotName::ALL.into_iter().find(applied) else { return Ok(None) };
    let read = parts.on_disk(move |slots| {
        let Some(ended) = slots.kubelet_certificate_ends(slot).filter(|ends| *ends <= now) else {
            return Ok(None);
        };
        let filled = slots.filled(slot)?;
        Ok(Some((ended, filled.is_some_and(|filled| joined_by(&filled.template.kubernetes).is_some()))))
    });
    read.await
}

/// Checks whether the Node of the applied slot has its annotations.
async fn annotations(parts: &Parts, slots: &PerSlot<SlotSeen>) -> Result<Annotations, KeepSlotError> {
    let of_node = SlotName::ALL.into_iter().filter(|slot| slots[*slot].runs).find_map(|slot| {
        match &slots[slot].record.as_ref()?.stage {
            Stage::Applied { node_uid, .. } => Some((slot, node_uid.clone())),
            _ => None,
        }
    });
    let Some((slot, node_uid)) = of_node else { return Ok(Annotations::Written) };
    let record = slots[slot].record.as_ref().filter(|_| parts.home.follows_slot());
    let named = record.map(|record| record.version.clone());
    let written = parts.on_disk(move |slots| slots.is_annotated(slot, &node_uid, named.as_ref())).await?;
    Ok(if written { Annotations::Written } else { Annotations::Due })
}

/// Asks whether etcd allows the applied control plane to leave. Asked while its Node exists and another
/// version is selected, because users must know it before they delete the Node.
async fn leave(parts: &Parts, slots: &PerSlot<SlotSeen>, seen: &Seen) -> Leave {
    let is_there = seen.api == Api::Live && matches!(seen.node_seen(), NodeSeen::Present { .. });
    let Some(version) = seen.version_facts().filter(|_| is_there) else { return Leave::Unasked };
    let is_other = |record: &Record| {
        matches!(record.stage, Stage::Applied { .. })
            && (&record.version, &record.template) != (&version.reference, &version.template)
    };
    let asked = |slot: &SlotName| {
        let SlotSeen { record, runs, joined_control_plane, leaving, .. } = &slots[*slot];
        *runs && *joined_control_plane && !leaving && record.as_ref().is_some_and(is_other)
    };
    let Some(slot) = SlotName::ALL.into_iter().find(asked) else { return Leave::Unasked };
    match may_leave(parts, slot).await {
        Ok(()) => Leave::May,
        Err(why) => Leave::MayNot(why.to_string()),
    }
}

/// Probes a slot up to the first part that is missing.
async fn look_into(
    parts: &Parts,
    slot: SlotName,
    since: Timestamp,
    probed: Option<&Probed>,
) -> Result<Health, ObserveError> {
    let mut health = Health::default();
    let Some(leader) = parts.leader(slot).await? else {
        health.message = Some("the slot is not registered with machined yet".to_owned());
        return Ok(health);
    };
    let (filled, finished, credential, said) = parts
        .on_disk(move |slots| {
            let said = slots.tail(slot, "log", "/bedplate/kubeadm.log", OUTPUT_BYTES);
            let said = said.map(|said| hidden(&said, &slots.secrets(slot).unwrap_or_default()));
            let finished = slots.has_mark(slot, unit::FINISHED);
            Ok((slots.filled(slot)?, finished, slots.has_credential(slot), said))
        })
        .await?;
    health.no_credential = !credential;
    if finished {
        health.bootstrap = Bootstrap::Done;
    } else {
        // A slot without a running systemd reports nothing. The trial's timeout limits that.
        let state = parts.machines.units(leader).state(&unit::NAME.parse()?).await;
        let (bootstrap, message) = match state {
            Ok(state) => bootstrap(&state, said.as_deref()),
            Err(error) if is_absent(&error) => (Bootstrap::Running, Some("the slot is starting".to_owned())),
            Err(error) => (Bootstrap::Running, Some(chain(&error))),
        };
        health.bootstrap = bootstrap;
        health.message = message;
        return Ok(health);
    }
    let Some(filled) = filled else { return Ok(health) };
    if let Err(why) = parts.gate.kubelet(leader, &filled).await {
        health.message = Some(why);
        return Ok(health);
    }
    health.kubelet = true;
    if let Err(why) = parts.gate.runtime(leader, &filled.cri_socket).await {
        health.message = Some(why);
        return Ok(health);
    }
    health.runtime = true;
    if let Err(why) = parts.gate.control_plane(leader, &filled).await {
        (health.waits_for_control_plane, health.message) = (true, Some(why));
        return Ok(health);
    }
    if let Some(probed) = probed.filter(|probed| probed.slot == slot && probed.since == since) {
        health.sandbox = probed.failure.is_none();
        health.message.clone_from(&probed.failure);
    }
    Ok(health)
}

/// Returns true if the slot has no bus because it is still starting. That is not a fault.
fn is_absent(error: &BusError) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        if kind == Some(std::io::ErrorKind::NotFound) {
            return true;
        }
        // zbus stores its causes behind an Arc.
        if let Some(zbus::Error::InputOutput(source)) = error.downcast_ref() {
            return source.kind() == std::io::ErrorKind::NotFound;
        }
        cause = error.source();
    }
    false
}

/// Returns the state of kubeadm by its unit, and its last output for the message.
fn bootstrap(state: &UnitState, said: Option<&str>) -> (Bootstrap, Option<String>) {
    let bad = match &state.load {
        LoadState::Loaded => None,
        LoadState::NotFound => Some("the unit is missing in the slot"),
        LoadState::Masked => Some("the unit is masked in the slot"),
        LoadState::Bad(word) => Some(word.as_str()),
    };
    if let Some(why) = bad {
        return (Bootstrap::Running, Some(format!("{}: {why}", unit::NAME)));
    }
    // kubeadm's own unit restarts on failure, so a failed unit was written by a user.
    let failed = state.active == ActiveState::Failed && !state.has_job;
    let last = said.and_then(last_message).map(|last| hidden(last.trim(), &[]));
    let tries = state.restarts.filter(|restarts| *restarts > 0);
    let message = match (tries, last) {
        (Some(tries), Some(last)) => Some(format!("{tries} attempts failed, retrying; last output: {last}")),
        (None, Some(last)) => Some(format!("last output: {last}")),
        (Some(tries), None) => Some(format!("{tries} attempts failed, retrying")),
        (None, None) => None,
    };
    (if failed { Bootstrap::Failed } else { Bootstrap::Running }, message)
}

/// The units whose changes are news.
pub(super) fn watched() -> Result<BTreeSet<UnitName>, UnitNameError> {
    SlotName::ALL.into_iter().map(|slot| service(slot).parse()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::fake::unit_state;

    #[test]
    fn slot_without_a_bus_is_starting_and_a_refusing_bus_is_a_fault() {
        let away = |kind| BusError::Away {
            act: "state of x.service".to_owned(),
            socket: "/proc/2/root/run/dbus/system_bus_socket".into(),
            source: std::io::Error::from(kind).into(),
        };
        assert!(is_absent(&away(std::io::ErrorKind::NotFound)));
        assert!(!is_absent(&away(std::io::ErrorKind::ConnectionRefused)));
    }

    #[test]
    fn kubeadm_is_at_work_until_its_unit_gives_up_and_says_what_it_said_last() {
        let mut state = unit_state(ActiveState::Activating, "auto-restart");
        state.restarts = Some(2);
        let (how, message) = bootstrap(&state, Some("first\n\tno API server\n\n"));
        assert_eq!(how, Bootstrap::Running);
        assert_eq!(message.as_deref(), Some("2 attempts failed, retrying; last output: no API server"));
        state.restarts = None;
        let (_, message) = bootstrap(&state, Some("bedplate: started at 2026-11-22T08:00:00Z\n"));
        assert_eq!(message, None, "that it was started is nothing that kubeadm says");
        let (how, _) = bootstrap(&unit_state(ActiveState::Failed, "failed"), None);
        assert_eq!(how, Bootstrap::Failed);
        let missing = UnitState { load: LoadState::NotFound, ..unit_state(ActiveState::Inactive, "dead") };
        assert_eq!(
            bootstrap(&missing, None),
            (
                Bootstrap::Running,
                Some("bedplate-kubeadm.service: the unit is missing in the slot".to_owned())
            )
        );
    }
}
