//! Observed state of a pool host: its claim, the record on disk, the slots, and the progress of a bootstrap.
//!
//! Changes nothing. Called by `run::claim` before each plan.

use std::path::Path;
use std::time::Instant;

use bedplate_api::claim::{MachineClaim, RELEASE_ANNOTATION, condition_type};
use bedplate_api::machine::{Machine, SelectionSource, SlotName, StateDisk, Wipe};
use bedplate_bootstrap::user_data::{FINISHED, NAME, STARTED};
use bedplate_oci::node::NodeImage;
use bedplate_rules::selection::was_granted;
use jiff::{SignedDuration, Timestamp};

use super::claim_record::{ClaimRecord, ClaimStage, Claimant};
use super::claim_report::{reported, reported_on_machine};
use super::effects::Parts;
use super::host_state::HostState;
use super::observe::{ObserveError, look_at_slots};
use super::plan::claim::{
    Admission, ClaimFacts, ClaimObserved, ClaimReport, ClaimSeen, ClaimSlot, JoinedNode, PoolMachine, Script,
    UserData,
};
use super::user_data::{RefusedUserData, StoredUserData};
use crate::bus::{ActiveState, Leader, MainExit, UnitName, UnitState};
use crate::fault::explained;
use crate::model::{Api, PerSlot, ProviderId, SlotSeen, Stage, VersionFacts};
use crate::plane::{ClaimObject, Seen};
use crate::slot::store::Slots;

/// Slot that a claim uses.
pub(super) const CLAIM_SLOT: SlotName = SlotName::A;
/// Exit code of a unit that failed without one.
const NO_EXIT_CODE: i32 = 1;
/// Added to the number of a signal, as shells do.
const SIGNAL_BASE: i32 = 128;

/// Observed state.
pub(super) struct ClaimSight {
    /// Facts of the plan.
    pub(super) observed: ClaimObserved,
    /// Objects of the cluster.
    pub(super) seen: Seen,
    /// The slots, for the Machine's status.
    pub(super) slots: PerSlot<SlotSeen>,
    /// Cause of a wait inside of the slot, for a user.
    pub(super) problem: Option<String>,
    /// Reason that former contents of a slot cannot be removed.
    pub(super) stuck: Option<String>,
}

/// Facts that the loop remembers between turns. A new agent learns them again.
#[derive(Debug, Default)]
pub(super) struct ClaimMemory {
    /// The record on disk. None: it was not read yet.
    pub(super) held: Option<Option<ClaimRecord>>,
    /// Hash of a version's template, and the image of that version, which is on disk.
    pub(super) fetched: Option<(String, NodeImage)>,
    /// User data that was refused.
    pub(super) refused: Option<(ProviderId, RefusedUserData)>,
    /// Latest answer about the configuration of the claim.
    pub(super) admission: Option<AskedAdmission>,
    /// Latest report that was written.
    pub(super) written: Option<WrittenReport>,
    /// Number of reports in a row that failed, and the time of the next one.
    pub(super) delayed: Option<(u32, Instant)>,
}

/// Answer to the question whether a configuration may be run for a claimant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AskedAdmission {
    /// Name of the MachineConfiguration.
    pub(super) configuration: String,
    /// Namespace of the claimant.
    pub(super) namespace: String,
    /// Answer.
    pub(super) is_allowed: bool,
    /// Time of the answer.
    pub(super) asked: Instant,
}

/// Report that the API server has taken. The watch may not have it yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrittenReport {
    /// UID of the claim object.
    pub(super) claim_uid: Option<String>,
    /// Report that the watch had before.
    pub(super) before: Option<ClaimReport>,
    /// Report that was written.
    pub(super) report: ClaimReport,
}

impl ClaimMemory {
    /// The record, if there is one.
    pub(super) fn record(&self) -> Option<&ClaimRecord> {
        self.held.as_ref()?.as_ref()
    }

    fn admission(&self, claim: Option<&MachineClaim>) -> Admission {
        let answer = claim.and_then(|claim| {
            let of_claim = |asked: &&AskedAdmission| {
                asked.configuration == claim.spec.configuration_ref.name
                    && asked.namespace == claim.spec.claimant.namespace
            };
            self.admission.as_ref().filter(of_claim)
        });
        match answer {
            None => Admission::Unknown,
            Some(AskedAdmission { is_allowed: true, .. }) => Admission::Allowed,
            Some(AskedAdmission { is_allowed: false, .. }) => Admission::Refused,
        }
    }
}

/// Observes a host of a pool.
///
/// # Errors
/// A record or a unit cannot be read.
pub(super) async fn observe_claim(
    parts: &Parts,
    memory: &ClaimMemory,
    now: Timestamp,
) -> Result<ClaimSight, ObserveError> {
    let seen = parts.seen();
    // First whether a slot runs: the marks of the user data are written before it stops.
    let slots = look_at_slots(parts).await?;
    let record = memory.record().cloned();
    let version = selected_version(&seen);
    let stored = parts.on_disk(|slots| Ok(StoredUserData::read(slots)?.map(|stored| stored.provider_id)));
    let user_data = user_data(stored.await?.as_ref(), record.as_ref(), memory);
    let fetched = memory.fetched.as_ref().map(|(template, _)| template);
    let has_image = version.as_ref().is_some_and(|version| fetched == Some(&version.template));
    let mut slot = ClaimSlot { has_image, ..slot_facts(parts, &slots, record.as_ref()).await? };
    let inside = look_inside(parts, &mut slot, record.as_ref()).await?;
    let claim = seen.claim.present().map(AsRef::as_ref);
    let observed = ClaimObserved {
        now,
        uptime: uptime(&parts.root),
        boot_id: parts.boot_id.clone(),
        api: seen.api,
        machine: pool_machine(&seen),
        claim: claim_seen(&seen, memory.written.as_ref()),
        configuration: memory.admission(claim),
        timeout: version.map(|version| version.timeout),
        record,
        state: HostState::read(&parts.root),
        slot,
        user_data,
        node: inside.node,
        not_counted: SignedDuration::ZERO,
        is_report_delayed: memory.delayed.is_some_and(|(_, until)| Instant::now() < until),
    };
    let stuck = parts.slots.trash().removal().borrow().stuck.clone();
    Ok(ClaimSight { observed, seen, slots, problem: inside.problem, stuck })
}

fn pool_machine(seen: &Seen) -> PoolMachine {
    let Some(machine) = &seen.machine else { return PoolMachine::Absent };
    if !seen.ours {
        return PoolMachine::Foreign;
    }
    let annotations = machine.metadata.annotations.as_ref();
    let release = annotations.and_then(|annotations| annotations.get(RELEASE_ANNOTATION));
    let policy = machine.spec.claim_policy.as_ref();
    PoolMachine::Own {
        namespaces: policy.map(|policy| policy.namespaces.clone()).unwrap_or_default(),
        paused: machine.spec.paused,
        deleting: machine.metadata.deletion_timestamp.is_some(),
        release: release.cloned().map(ProviderId::from),
        policy: policy.and_then(|policy| policy.release).unwrap_or_default(),
        may_wipe: state_disk(machine).is_none_or(|disk| disk.wipe == Wipe::IfBlank),
        selects_disk: state_disk(machine).is_some(),
        last: last_report(machine),
    }
}

fn state_disk(machine: &Machine) -> Option<&StateDisk> {
    machine.spec.pxe.as_ref()?.state_disk.as_ref()
}

fn last_report(machine: &Machine) -> Option<ClaimReport> {
    machine.status.as_ref()?.claim.as_ref().map(reported_on_machine)
}

fn claim_seen(seen: &Seen, written: Option<&WrittenReport>) -> ClaimSeen {
    match &seen.claim {
        ClaimObject::Unknown => ClaimSeen::Unknown,
        ClaimObject::Absent => ClaimSeen::Absent,
        ClaimObject::Present(claim) => ClaimSeen::Present(claim_facts(claim, written)),
    }
}

fn claim_facts(claim: &MachineClaim, written: Option<&WrittenReport>) -> ClaimFacts {
    let mut conditions = claim.status.iter().flat_map(|status| &status.conditions);
    let granted =
        conditions.any(|condition| condition.type_ == condition_type::GRANTED && condition.status == "True");
    let seen = claim.status.as_ref().and_then(reported);
    // The watch may come after the answer to this agent's write.
    let written = written.filter(|written| written.claim_uid == claim.metadata.uid && written.before == seen);
    ClaimFacts {
        uid: claim.metadata.uid.clone().unwrap_or_default(),
        release: claim.spec.release,
        provider_id: claim.spec.provider_id.clone().into(),
        claimant: claimant(claim),
        has_user_data: claim.spec.bootstrap_secret_name.is_some(),
        granted,
        was_granted: was_granted(claim),
        deleting: claim.metadata.deletion_timestamp.is_some(),
        reported: written.map(|written| written.report.clone()).or(seen),
    }
}

/// Claimant of a claim object.
pub(super) fn claimant(claim: &MachineClaim) -> Claimant {
    let claimant = &claim.spec.claimant;
    Claimant { namespace: claimant.namespace.clone(), name: claimant.name.clone() }
}

/// Returns the version that is selected for this very claim, if it is the one that the claim names. The version of an earlier claim is not
/// prepared and not started.
pub(super) fn selected_version(seen: &Seen) -> Option<VersionFacts> {
    let claim = &seen.claim.present()?.spec;
    let named = &claim.configuration_ref;
    let selected = seen.machine.as_ref()?.status.as_ref()?.selected.as_ref()?;
    let is_named = selected.source == SelectionSource::Claim
        && selected.provider_id.as_ref() == Some(&claim.provider_id)
        && selected.name == named.name
        && named.version.is_none_or(|version| version == selected.version);
    let version = seen.version_facts()?;
    let is_read = (&version.reference.name, version.reference.version) == (&selected.name, selected.version);
    (is_named && is_read).then_some(version)
}

fn user_data(stored: Option<&ProviderId>, record: Option<&ClaimRecord>, memory: &ClaimMemory) -> UserData {
    let id = record.map(|record| &record.provider_id);
    if stored.is_some() && stored == id {
        return UserData::Rendered;
    }
    match &memory.refused {
        Some((of, refused)) if Some(of) == id => UserData::Refused { why: refused.why.clone() },
        Some(_) | None => UserData::Absent,
    }
}

/// The slots as they are on disk and in systemd.
async fn slot_facts(
    parts: &Parts,
    slots: &PerSlot<SlotSeen>,
    record: Option<&ClaimRecord>,
) -> Result<ClaimSlot, ObserveError> {
    let records = || slots.iter().filter_map(|(_, slot)| slot.record.as_ref());
    let is_releasing = record.is_some_and(|record| record.stage == ClaimStage::Releasing);
    let filled = slots[CLAIM_SLOT].record.as_ref().filter(|record| record.stage == Stage::Prepared);
    let runs = slots.iter().any(|(_, slot)| slot.runs);
    // The keys of a claimant are gone only with the former contents of its slot.
    let has_trash = is_releasing && slots.iter().any(|(_, slot)| slot.has_trash);
    let root = parts.root.clone();
    let has_links = is_releasing && !runs && {
        let left = parts.on_disk(move |slots: &Slots| slots.leftover_links(&root));
        !left.await?.is_empty()
    };
    Ok(ClaimSlot {
        is_foreign: records().any(|record| record.claim.is_none()),
        is_empty: records().next().is_none() && !has_trash,
        filled: filled.and_then(|record| record.claim.clone()),
        runs,
        has_links,
        ..ClaimSlot::default()
    })
}

/// State inside of the slot that bootstraps.
struct Inside {
    node: JoinedNode,
    problem: Option<String>,
}

/// Probes the slot that bootstraps, up to the first missing part.
async fn look_inside(
    parts: &Parts,
    slot: &mut ClaimSlot,
    record: Option<&ClaimRecord>,
) -> Result<Inside, ObserveError> {
    let unknown = |problem| Ok(Inside { node: JoinedNode::Unknown, problem });
    let is_bootstrapping = |record: &&ClaimRecord| matches!(record.stage, ClaimStage::Bootstrapping { .. });
    let Some(record) = record.filter(is_bootstrapping).filter(|record| record.has_user_data) else {
        return unknown(None);
    };
    let leader = if slot.runs { parts.leader(CLAIM_SLOT).await? } else { None };
    slot.script = script(parts, leader).await?;
    // The script succeeds only with the sentinel, if the user data names one.
    slot.has_sentinel = slot.script == Script::Ended(0);
    let Some(leader) = leader.filter(|_| slot.has_sentinel) else { return unknown(None) };
    let Some(filled) = parts.on_disk(|slots| slots.filled(CLAIM_SLOT)).await? else { return unknown(None) };
    if let Err(why) = parts.gate.kubelet(leader, &filled).await {
        return unknown(Some(why));
    }
    slot.is_kubelet_healthy = true;
    // The Node of the Machine's name, if there is one, is another host's.
    let Some(name) = filled.node_name else {
        return unknown(Some("the record of the slot names no Node; release the claim".to_owned()));
    };
    let node = match parts.claimed_node.find(&name).await {
        Err(error) => return unknown(Some(explained(&error))),
        Ok(None) => JoinedNode::Absent,
        Ok(Some(node)) => JoinedNode::Present {
            uid: node.uid,
            provider_id: node.provider_id.map(ProviderId::from),
            is_labeled: node.is_labeled,
        },
    };
    let other = |id: &ProviderId| *id != record.provider_id;
    let problem = match &node {
        JoinedNode::Present { provider_id: Some(id), .. } if other(id) => {
            Some(format!("Node {name} has spec.providerID {}", id.as_str()))
        }
        _ => None,
    };
    Ok(Inside { node, problem })
}

/// Result of the user data, by its marks and the exit code of its unit.
async fn script(parts: &Parts, leader: Option<Leader>) -> Result<Script, ObserveError> {
    let marks = parts.on_disk(|slots| {
        Ok((slots.has_root_mark(CLAIM_SLOT, STARTED)?, slots.has_root_mark(CLAIM_SLOT, FINISHED)?))
    });
    let (is_started, is_finished) = marks.await?;
    if is_finished {
        return Ok(Script::Ended(0));
    }
    if let Some(leader) = leader {
        let unit: UnitName = NAME.parse()?;
        // A slot whose own systemd does not answer is starting or stopping.
        let state = parts.machines.units(leader).state(&unit).await;
        let failed = state.ok().filter(|state| state.active == ActiveState::Failed && !state.has_job);
        if let Some(state) = failed {
            return Ok(Script::Ended(exit_code(&state)));
        }
    }
    Ok(if is_started { Script::Started } else { Script::NotStarted })
}

/// Exit code of a unit that failed. Never zero.
fn exit_code(state: &UnitState) -> i32 {
    match state.main_exit {
        Some(MainExit::Code(code)) if code != 0 => code,
        Some(MainExit::Signal(signal)) => SIGNAL_BASE + signal,
        Some(MainExit::Code(_)) | None => NO_EXIT_CODE,
    }
}

/// Time since the boot of the host with this root directory. Zero if it cannot be read: nothing starts earlier by that.
fn uptime(root: &Path) -> SignedDuration {
    let text = std::fs::read_to_string(root.join("proc/uptime")).unwrap_or_default();
    let seconds = text.split([' ', '.']).next().and_then(|seconds| seconds.parse().ok());
    SignedDuration::from_secs(seconds.unwrap_or_default())
}

/// Returns true if the loop acts for claims on this host: it holds one, or a live answer says that its Machine is in a pool.
pub(super) fn is_for_claims(seen: &Seen, record: Option<&ClaimRecord>) -> bool {
    let is_held = record.is_some_and(|record| record.stage != ClaimStage::Released);
    let is_pooled = seen.machine.as_ref().is_some_and(|machine| machine.spec.claim_policy.is_some());
    is_held || is_pooled && seen.ours && seen.api == Api::Live
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d3_result_is_the_exit_code_of_the_unit() {
        use crate::bus::fake::unit_state;
        let mut state = unit_state(ActiveState::Failed, "failed");
        for (exit, expected) in [
            (Some(MainExit::Code(7)), 7),
            (Some(MainExit::Signal(9)), 137),
            (Some(MainExit::Code(0)), 1),
            (None, 1),
        ] {
            state.main_exit = exit;
            assert_eq!(exit_code(&state), expected, "{exit:?}");
        }
    }

    #[test]
    fn d16_uptime_is_that_of_the_host() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(uptime(root.path()), SignedDuration::ZERO);
        std::fs::create_dir(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/uptime"), "121.57 400.00\n").unwrap();
        assert_eq!(uptime(root.path()).as_secs(), 121);
    }

    #[test]
    fn written_report_counts_until_the_watch_has_another_one() {
        use crate::node::plan::claim::ReportedState;
        let claim = |status: serde_json::Value| -> MachineClaim {
            serde_json::from_value(
                serde_json::json!({ "metadata": { "name": "host-1", "uid": "c" }, "status": status,
                "spec": { "clusterName": "c", "role": "Worker", "nodeName": "w-1", "release": "Empty",
                    "claimant": { "namespace": "team-a", "name": "w-1", "uid": "u" },
                    "providerID": "bedplate://host-1/u", "configurationRef": { "name": "pool" } } }),
            )
            .unwrap()
        };
        let status = |state: &str| serde_json::json!({ "providerID": "bedplate://host-1/u", "state": state });
        let report = |state| ClaimReport {
            provider_id: "bedplate://host-1/u".to_owned().into(),
            state: Some(state),
            cause: None,
        };
        let written = WrittenReport {
            claim_uid: Some("c".to_owned()),
            before: Some(report(ReportedState::Preparing)),
            report: report(ReportedState::Bootstrapping),
        };
        for (seen, expected) in [
            ("Preparing", ReportedState::Bootstrapping),
            ("Bootstrapping", ReportedState::Bootstrapping),
            ("Failed", ReportedState::Failed),
        ] {
            let facts = claim_facts(&claim(status(seen)), Some(&written));
            assert_eq!(facts.reported, Some(report(expected)), "{seen}");
        }
        let other = WrittenReport { claim_uid: Some("other".to_owned()), ..written };
        let facts = claim_facts(&claim(status("Preparing")), Some(&other));
        assert_eq!(facts.reported, Some(report(ReportedState::Preparing)), "another claim object");
    }
}
