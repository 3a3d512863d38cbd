//! Pure: a host of a pool by three sources (its MachineClaim, the record of its agent, the selected version), and their disagreements.
//!
//! Callers: `claim`, `render`.

use bedplate_api::claim::{ClaimState, MachineClaim, ReleasePolicy, condition_type};
use bedplate_api::cluster::infrastructure::BedplateMachine;
use bedplate_api::machine::{ClaimStatus, Condition, Machine, SelectionSource, condition_type as of_machine};
use bedplate_api::reason::claim::WipedReason;
use bedplate_api::reason::{self, Actor, Reason as _};
use bedplate_rules::claim::eligible::{Unmet, is_heard_elsewhere, unmet};
use bedplate_rules::claim::wipe;
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

/// Claimant of a host, as the API server has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub(crate) enum ClaimantSeen {
    /// Neither a claim nor the host names a claimant.
    None,
    /// A BedplateMachine of this name exists.
    Present {
        /// UID of the BedplateMachine.
        uid: String,
        /// `spec.providerID`.
        #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
        provider_id: Option<String>,
        /// True if it is being deleted.
        deleting: bool,
    },
    /// No BedplateMachine of this name exists.
    Absent,
    /// The API server does not answer this question.
    Unreadable {
        /// Cause, for a user.
        why: String,
    },
}

impl ClaimantSeen {
    /// Returns the claimant of a BedplateMachine.
    pub(crate) fn of(machine: &BedplateMachine) -> Self {
        Self::Present {
            uid: machine.metadata.uid.clone().unwrap_or_default(),
            provider_id: machine.spec.provider_id.clone(),
            deleting: machine.metadata.deletion_timestamp.is_some(),
        }
    }
}

/// Condition `Granted` of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Grant {
    /// The host may start the claim.
    Granted,
    /// The host may not start the claim yet.
    Pending,
}

/// A host and its claim, in one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HostClaim {
    /// The Machine.
    pub(crate) machine: String,
    /// Claimant, as `<namespace>/<name>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) claimant: Option<String>,
    /// Cluster of the claimant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<String>,
    /// State: that of the claim on the host, `Pending` before the host has reported one, `ClaimMissing`, `Free`, or the word of a requirement
    /// that a host without a claim does not meet.
    pub(crate) state: String,
    /// True if the claim is being deleted.
    pub(crate) deleting: bool,
    /// Time at which the state was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Timestamp>,
    /// Grant of the claim. None: there is no claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) grant: Option<Grant>,
    /// `spec.providerID` of the claim, or that of the claim that the host still holds.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub(crate) provider_id: Option<String>,
    /// Cause for which the host cannot be claimed, or reasons of conditions of the claim, for a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

impl HostClaim {
    /// Joins a Machine and the MachineClaim of its name.
    pub(crate) fn new(machine: &Machine, claim: Option<&MachineClaim>, now: Timestamp) -> Self {
        let name = machine.name_any();
        let Some(claim) = claim else { return Self::without_claim(machine, now) };
        let of_claimant = &claim.spec.claimant;
        let reported = reported(claim);
        let created = claim.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let since = reported.and_then(|(_, since)| since).or(created);
        let granted = condition(claim, condition_type::GRANTED).is_some_and(|found| found.status == "True");
        Self {
            machine: name,
            claimant: Some(format!("{}/{}", of_claimant.namespace, of_claimant.name)),
            cluster: Some(claim.spec.cluster_name.clone()),
            state: reported.map_or_else(|| "Pending".to_owned(), |(state, _)| format!("{state:?}")),
            since,
            deleting: claim.metadata.deletion_timestamp.is_some(),
            grant: Some(if granted { Grant::Granted } else { Grant::Pending }),
            provider_id: Some(claim.spec.provider_id.clone()),
            note: note(machine, claim),
        }
    }

    fn without_claim(machine: &Machine, now: Timestamp) -> Self {
        let held = held(machine);
        let unmet = unmet(machine, false, ReleasePolicy::Empty, now).filter(|_| held.is_none());
        Self {
            machine: machine.name_any(),
            claimant: held.map(|record| record.claimant.to_string()),
            cluster: None,
            state: held.map_or_else(|| unmet.map_or("Free", Unmet::word), |_| "ClaimMissing").to_owned(),
            deleting: false,
            since: held.map(|record| record.since.0),
            grant: None,
            provider_id: held.map(|record| record.provider_id.clone()),
            note: unmet.map(|unmet| unmet.text().to_owned()),
        }
    }
}

/// Known facts of one host of a pool.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Standing {
    /// The host in one line.
    #[serde(flatten)]
    pub(crate) host: HostClaim,
    /// The claimant.
    pub(crate) claimant_object: ClaimantSeen,
    /// Name of the Node, and its role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// Selected version, and its source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// Record of the agent (`Machine.status.claim`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) record: Option<ClaimStatus>,
    /// Time at which the agent was heard last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) heard: Option<Timestamp>,
    /// Reason and message that the agent reports about the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reported: Option<String>,
    /// Conditions of the claim.
    pub(crate) conditions: Vec<Condition>,
    /// Disagreements of the sources.
    pub(crate) differences: Vec<String>,
    /// Next steps for a user.
    pub(crate) next: Vec<String>,
}

impl Standing {
    /// Joins the objects of one host.
    pub(crate) fn new(
        machine: &Machine,
        claim: Option<&MachineClaim>,
        claimant: &ClaimantSeen,
        now: Timestamp,
    ) -> Self {
        let status = machine.status.as_ref();
        let selected = status.and_then(|status| status.selected.as_ref());
        let agent = status.and_then(|status| status.agent.as_ref());
        let mut differences = differences(machine, claim, claimant);
        let owed = claim.and_then(|claim| unwiped(machine, claim));
        differences.extend(owed.map(|owed| format!("{} (docs/guides/claims.md#wipe)", owed.meaning())));
        let mut next = claim.map(next).unwrap_or_default();
        next.extend(owed.filter(|owed| *owed == WipedReason::KeyNotReplaced).map(|_| next_for_key(machine)));
        Self {
            host: HostClaim::new(machine, claim, now),
            claimant_object: claimant.clone(),
            node: claim.map(|claim| format!("{} ({:?})", claim.spec.node_name, claim.spec.role)),
            version: selected.map(|s| format!("{}, by {:?}", s.version_name(), s.source)),
            record: record(machine).cloned(),
            heard: agent.and_then(|agent| agent.last_heartbeat_time.as_ref()).map(|time| time.0),
            reported: claim.and_then(report),
            conditions: claim
                .and_then(|claim| claim.status.as_ref())
                .map_or(Vec::new(), |s| s.conditions.clone()),
            differences,
            next,
        }
    }
}

/// Returns why a claim waits for its wipe, if the host has done its own part, or if another key waits for the one in force.
fn unwiped(machine: &Machine, claim: &MachineClaim) -> Option<WipedReason> {
    wipe::unwiped(claim, machine).filter(|reason| *reason != WipedReason::AwaitingWipe)
}

/// Returns the next step of a user for a key that waits.
fn next_for_key(machine: &Machine) -> String {
    let name = machine.name_any();
    if is_heard_elsewhere(machine) {
        return format!(
            "find the boot in condition Enrolled (`bedplate machine show {name}`), and permit its key: `bedplate machine re-enroll {name} --boot BOOT`"
        );
    }
    if machine.status.as_ref().is_some_and(|status| status.state_disk.is_some()) {
        return format!("give Machine {name} another key: docs/concepts/agent.md#a-copied-key");
    }
    format!("power-cycle Machine {name}, so that it boots and enrolls with another key")
}

/// Returns the reasons of the conditions of a claim that need a user, and whether a wipe is missing.
fn note(machine: &Machine, claim: &MachineClaim) -> Option<String> {
    let conditions = claim.status.iter().flat_map(|status| &status.conditions);
    let notable = conditions.filter_map(|found| match (found.type_.as_str(), found.status.as_str()) {
        (condition_type::ORPHANED, "True") => Some(condition_type::ORPHANED),
        (condition_type::FENCED, "True") => Some(condition_type::FENCED),
        (condition_type::FENCED, _) => Some(&found.reason),
        (condition_type::GRANTED, "False") if needs_user(found) => Some(&found.reason),
        _ => None,
    });
    let unwiped = unwiped(machine, claim).map(WipedReason::as_str);
    let notable: Vec<&str> = notable.chain(unwiped).collect();
    (!notable.is_empty()).then(|| notable.join(", "))
}

/// Returns true if the next step for a condition is that of a user.
fn needs_user(condition: &Condition) -> bool {
    let remedy = reason::of_condition(&condition.type_, &condition.reason).and_then(|row| row.remedy);
    remedy.is_some_and(|remedy| remedy.actor == Actor::User)
}

/// Returns the record of the agent.
pub(crate) fn record(machine: &Machine) -> Option<&ClaimStatus> {
    machine.status.as_ref()?.claim.as_ref()
}

/// Returns the record of the agent, if the host holds that claim.
pub(crate) fn held(machine: &Machine) -> Option<&ClaimStatus> {
    record(machine).filter(|record| record.state.holds_host())
}

/// Returns a condition of a claim.
pub(crate) fn condition<'a>(claim: &'a MachineClaim, type_: &str) -> Option<&'a Condition> {
    claim.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns the state of this very claim on the host, and its time.
fn reported(claim: &MachineClaim) -> Option<(ClaimState, Option<Timestamp>)> {
    let status = claim.status.as_ref()?;
    let is_own = status.provider_id.as_ref() == Some(&claim.spec.provider_id);
    status.state.filter(|_| is_own).map(|state| (state, status.since.as_ref().map(|time| time.0)))
}

fn report(claim: &MachineClaim) -> Option<String> {
    let status = claim.status.as_ref()?;
    let parts = [status.reason.as_deref(), status.message.as_deref()];
    let parts: Vec<&str> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join(": "))
}

/// Returns the next steps for the conditions of a claim and for the cause that its agent reports. None for those that need no action.
fn next(claim: &MachineClaim) -> Vec<String> {
    let Some(status) = claim.status.as_ref() else { return Vec::new() };
    let of_agent = status.reason.as_deref().map(|reason| (of_machine::PAVED, reason));
    let of_conditions = status.conditions.iter().map(|c| (c.type_.as_str(), c.reason.as_str()));
    let mut steps = Vec::new();
    for (type_, word) in of_conditions.chain(of_agent) {
        let remedy = reason::of_condition(type_, word).and_then(|row| row.remedy);
        let step = remedy
            .map(|remedy| format!("{type_} {word}: {}", remedy.text.replace("NAME", &claim.name_any())));
        steps.extend(step);
    }
    steps
}

/// Returns where claim, host, selected version and claimant disagree. A disagreement of a few seconds is normal while a claim begins or ends.
fn differences(machine: &Machine, claim: Option<&MachineClaim>, claimant: &ClaimantSeen) -> Vec<String> {
    let name = machine.name_any();
    let selected = machine.status.as_ref().and_then(|status| status.selected.as_ref());
    let by_claim = selected.filter(|selected| selected.source == SelectionSource::Claim);
    let mut found = Vec::new();
    let Some(claim) = claim else {
        if let Some(held) = held(machine) {
            found.push(format!(
                "the host holds claim {} of {} ({:?}), and there is no MachineClaim {name}",
                held.provider_id, held.claimant, held.state
            ));
        }
        if let Some(selected) = by_claim {
            let version = selected.version_name();
            found.push(format!("{version} is selected by a claim, and there is no MachineClaim {name}"));
        }
        return found;
    };
    let id = &claim.spec.provider_id;
    match held(machine) {
        Some(held) if held.provider_id != *id => found.push(format!(
            "the host holds claim {} of {} ({:?}), and the MachineClaim is {id}",
            held.provider_id, held.claimant, held.state
        )),
        Some(held) if reported(claim).is_some_and(|(state, _)| state != held.state) => {
            let state = reported(claim).map(|(state, _)| format!("{state:?}")).unwrap_or_default();
            found.push(format!(
                "the record of the host is {:?}, and the MachineClaim has {state}",
                held.state
            ));
        }
        None if reported(claim).is_some_and(|(state, _)| state.holds_host()) => {
            found.push("the MachineClaim has a state, and the host has no record of this claim".to_owned());
        }
        Some(_) | None => {}
    }
    let reference = &claim.spec.configuration_ref;
    match by_claim {
        None => found.push(format!("no version of {} is selected for the claim", reference.name)),
        Some(selected)
            if selected.name != reference.name
                || reference.version.is_some_and(|version| version != selected.version) =>
        {
            let (version, name) = (selected.version_name(), &reference.name);
            let named = reference.version.map(|version| format!("-v{version}")).unwrap_or_default();
            found.push(format!("{version} is selected, and the claim names {name}{named}"));
        }
        Some(_) => {}
    }
    match claimant {
        ClaimantSeen::Absent => found.push("the claimant does not exist".to_owned()),
        ClaimantSeen::Present { provider_id: Some(own), .. } if own != id => {
            found.push(format!("the claimant holds {own}, and the MachineClaim is {id}"));
        }
        ClaimantSeen::Present { .. } | ClaimantSeen::None | ClaimantSeen::Unreadable { .. } => {}
    }
    found
}

#[cfg(test)]
pub(crate) mod tests;
