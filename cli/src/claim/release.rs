//! Pure: decides whether a user may release a host by its Machine, or confirm that it is off (docs/guides/claims.md, "Release by a user").
//!
//! Called by `claim`.

use std::borrow::Cow;

use bedplate_api::claim::{MachineClaim, condition_type};
use bedplate_api::machine::{Machine, PowerState};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use thiserror::Error;

use crate::error::RunError;
use crate::standing::{ClaimantSeen, condition, held};

/// Minimum silence of an agent before its host can be off. An agent reports every 5 minutes.
const SILENCE_TIMEOUT: SignedDuration = SignedDuration::from_mins(15);

/// Objects that decide.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'a> {
    /// The host.
    pub(super) machine: &'a Machine,
    /// The MachineClaim with its name.
    pub(super) claim: Option<&'a MachineClaim>,
    /// The claimant.
    pub(super) claimant: &'a ClaimantSeen,
    /// Present time.
    pub(super) now: Timestamp,
}

/// An annotation that a user may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Release {
    /// Value of the annotation: the claim that it is about.
    pub(super) provider_id: String,
    /// Consequences, for a user.
    pub(super) consequences: Vec<String>,
    /// Question to the user.
    pub(super) question: String,
}

/// Cause of a refusal.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum RefuseRelease {
    #[error("Machine {machine} holds no claim")]
    NotHeld { machine: String },
    #[error("MachineClaim {machine} is being deleted; the agent releases the host")]
    Deleting { machine: String },
    #[error("the claimant of Machine {machine} exists: BedplateMachine {namespace}/{name}")]
    ClaimantExists { machine: String, namespace: String, name: String },
    #[error(
        "the claimant of Machine {machine} cannot be read ({why}), and the provider does not report it as lost"
    )]
    ClaimantUnknown { machine: String, namespace: String, name: String, why: String },
    #[error("MachineClaim {machine} is not being deleted, so nothing waits for the host")]
    NotDeleting { machine: String, namespace: String, name: String },
    #[error("Machine {machine} has no MachineClaim, so nothing waits for the host")]
    NoClaim { machine: String },
    #[error("the claimant of Machine {machine} does not exist, so nothing waits for the host")]
    NoClaimant { machine: String },
    #[error("the BMC of Machine {machine} reports On")]
    PoweredOn { machine: String },
    #[error("the agent of Machine {machine} reported at {heard}")]
    Heard { machine: String, heard: Timestamp },
}

impl From<RefuseRelease> for RunError {
    fn from(error: RefuseRelease) -> Self {
        let hint = error.hint();
        Self::of_command(error, Some(Cow::from(hint)), false)
    }
}

impl RefuseRelease {
    fn hint(&self) -> String {
        let delete = |namespace: &str, name: &str| {
            format!(
                "delete the Machine of Cluster API that owns it, or the claimant: `kubectl -n {namespace} delete bedplatemachines.infrastructure.cluster.x-k8s.io {name}`"
            )
        };
        match self {
            Self::NotHeld { .. } => "see `bedplate claim list` for the claimed hosts".to_owned(),
            Self::Deleting { machine } => format!(
                "see `bedplate claim explain {machine}`; if the host is powered off: `bedplate claim release {machine} --host-is-off`"
            ),
            Self::ClaimantExists { namespace, name, .. } | Self::NotDeleting { namespace, name, .. } => {
                delete(namespace, name)
            }
            Self::ClaimantUnknown { namespace, name, .. } => format!(
                "ask a user who may read it: `kubectl -n {namespace} get bedplatemachines.infrastructure.cluster.x-k8s.io {name}`"
            ),
            Self::NoClaim { machine } | Self::NoClaimant { machine } => {
                format!("to empty the host: `bedplate claim release {machine}`")
            }
            Self::PoweredOn { machine } => {
                format!("power it off first: `bedplate power off {machine} --force`")
            }
            Self::Heard { .. } => format!(
                "power the host off, and wait until its agent has not reported for {} minutes; if that time is in the future, compare the clocks, then see docs/reference/infrastructure-provider.md#confirm-that-a-host-is-off",
                SILENCE_TIMEOUT.as_secs() / 60
            ),
        }
    }
}

/// Decides whether a user may empty a host without a deleted claim.
///
/// # Errors
/// The host holds no claim, or its claimant exists.
pub(super) fn release(facts: &Facts<'_>) -> Result<Release, RefuseRelease> {
    let machine = facts.machine.name_any();
    let held = held(facts.machine);
    let Some(claim) = facts.claim else {
        let held = held.ok_or(RefuseRelease::NotHeld { machine })?;
        let why = "its MachineClaim is missing";
        return Ok(emptied(facts, &held.provider_id, &held.claimant.to_string(), why));
    };
    // The claim object of the host's claim is deleted, and another one has its name.
    if let Some(held) = held.filter(|held| held.provider_id != claim.spec.provider_id) {
        let why = format!("its MachineClaim does not exist; the current one is {}", claim.spec.provider_id);
        return Ok(emptied(facts, &held.provider_id, &held.claimant.to_string(), &why));
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(RefuseRelease::Deleting { machine });
    }
    let (namespace, name) = claimant_name(claim);
    match facts.claimant {
        ClaimantSeen::Present { .. } => {
            return Err(RefuseRelease::ClaimantExists { machine, namespace, name });
        }
        ClaimantSeen::Unreadable { why } if !is_orphaned(claim) => {
            return Err(RefuseRelease::ClaimantUnknown { machine, namespace, name, why: why.clone() });
        }
        ClaimantSeen::Unreadable { .. } | ClaimantSeen::Absent | ClaimantSeen::None => {}
    }
    let claimant = format!("{namespace}/{name}");
    let mut release = emptied(facts, &claim.spec.provider_id, &claimant, "its claimant does not exist");
    release.consequences.push("The provider deletes the MachineClaim once the host is empty.".to_owned());
    Ok(release)
}

fn emptied(facts: &Facts<'_>, id: &str, claimant: &str, why: &str) -> Release {
    let machine = facts.machine.name_any();
    let mut consequences = vec![
        format!("Machine {machine} holds claim {id} of {claimant}; {why}."),
        "The agent stops the slot and empties both slots. Everything in them is lost. With release Wipe it also reboots the host and wipes its state disk.".to_owned(),
    ];
    if facts.machine.spec.paused {
        consequences.push("The Machine is paused. The agent starts when the Machine is unpaused.".to_owned());
    }
    if !is_heard(facts) {
        consequences
            .push("The agent has not reported for 15 minutes. It starts when the host is up.".to_owned());
    }
    let holds_it =
        matches!(facts.claimant, ClaimantSeen::Present { provider_id: Some(own), .. } if own == id);
    if holds_it {
        consequences.push(format!(
            "BedplateMachine {claimant} exists and names this claim. Delete it; otherwise its provider may create the claim again."
        ));
    }
    let question = format!("empty Machine {machine} and end claim {id}?");
    Release { provider_id: id.to_owned(), consequences, question }
}

/// Decides whether a user may confirm that a silent host is off.
///
/// # Errors
/// Nothing waits for the host, or the host is not off.
pub(super) fn confirm_off(facts: &Facts<'_>) -> Result<Release, RefuseRelease> {
    let machine = facts.machine.name_any();
    let (claimant, id) = waiting(facts)?;
    let status = facts.machine.status.as_ref();
    match status.and_then(|status| status.power.as_ref()).map(|power| power.state) {
        Some(PowerState::On | PowerState::PoweringOn) => return Err(RefuseRelease::PoweredOn { machine }),
        Some(PowerState::Off) => {}
        Some(PowerState::PoweringOff | PowerState::Unknown) | None => {
            if let Some(heard) = heard(facts).filter(|_| is_heard(facts)) {
                return Err(RefuseRelease::Heard { machine, heard });
            }
        }
    }
    let consequences = vec![
        format!("The claimant {claimant} of Machine {machine} is deleted without the release of its host."),
        "The host stays held. At its next boot the agent empties it, and wipes its state disk if the claim requires this. It cannot be claimed before that.".to_owned(),
        "If the host is not off, two machines may act as one Node. Power it on only while the API server answers.".to_owned(),
    ];
    let question = format!("confirm that the host of Machine {machine} is powered off?");
    Ok(Release { provider_id: id, consequences, question })
}

/// Returns the claimant that waits for the host, and the ID of its claim.
fn waiting(facts: &Facts<'_>) -> Result<(String, String), RefuseRelease> {
    let machine = facts.machine.name_any();
    let Some(claim) = facts.claim else {
        // The claim object was lost. A claimant that is being deleted waits for the host all the same.
        let held = held(facts.machine).filter(|held| is_waiting(facts.claimant, &held.provider_id));
        let held = held.ok_or(RefuseRelease::NoClaim { machine })?;
        return Ok((held.claimant.to_string(), held.provider_id.clone()));
    };
    let (namespace, name) = claimant_name(claim);
    if claim.metadata.deletion_timestamp.is_some() {
        return Ok((format!("{namespace}/{name}"), claim.spec.provider_id.clone()));
    }
    Err(match facts.claimant {
        ClaimantSeen::Absent => RefuseRelease::NoClaimant { machine },
        ClaimantSeen::Present { .. } | ClaimantSeen::Unreadable { .. } | ClaimantSeen::None => {
            RefuseRelease::NotDeleting { machine, namespace, name }
        }
    })
}

/// Returns true if a claimant of this claim is being deleted.
fn is_waiting(claimant: &ClaimantSeen, id: &str) -> bool {
    matches!(claimant, ClaimantSeen::Present { provider_id: Some(own), deleting: true, .. } if own == id)
}

fn claimant_name(claim: &MachineClaim) -> (String, String) {
    (claim.spec.claimant.namespace.clone(), claim.spec.claimant.name.clone())
}

fn is_orphaned(claim: &MachineClaim) -> bool {
    condition(claim, condition_type::ORPHANED).is_some_and(|orphaned| orphaned.status == "True")
}

fn heard(facts: &Facts<'_>) -> Option<Timestamp> {
    let agent = facts.machine.status.as_ref()?.agent.as_ref()?;
    agent.last_heartbeat_time.as_ref().map(|time| time.0)
}

fn is_heard(facts: &Facts<'_>) -> bool {
    heard(facts).is_some_and(|heard| facts.now.duration_since(heard) < SILENCE_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::standing::tests::{claim, machine};

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().unwrap()
    }

    fn seen() -> ClaimantSeen {
        ClaimantSeen::Present { uid: "u".to_owned(), provider_id: None, deleting: false }
    }

    fn unreadable() -> ClaimantSeen {
        ClaimantSeen::Unreadable { why: "forbidden".to_owned() }
    }

    fn facts<'a>(
        machine: &'a Machine,
        claim: Option<&'a MachineClaim>,
        claimant: &'a ClaimantSeen,
    ) -> Facts<'a> {
        Facts { machine, claim, claimant, now: now() }
    }

    fn record(state: &str, uid: &str) -> Value {
        json!({ "claim": { "providerID": format!("bedplate://host-1/{uid}"), "state": state, "since": "2026-01-01T00:30:00Z",
            "claimant": { "namespace": "team-a", "name": "w-1" } } })
    }

    #[test]
    fn d7_a_host_is_released_if_its_claim_or_its_claimant_is_lost() {
        let joined = machine(&json!({}), &record("Joined", "u"));
        let orphaned = json!({ "conditions": [{ "type": "Orphaned", "status": "True", "reason": "ClaimantNotFound", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
        let orphaned = claim(&json!({}), &orphaned);
        let plain = claim(&json!({}), &json!({}));
        let id = "bedplate://host-1/u";
        for (claim, claimant) in [
            (None, ClaimantSeen::Absent),
            (None, seen()),
            (None, unreadable()),
            (Some(&plain), ClaimantSeen::Absent),
            (Some(&orphaned), ClaimantSeen::Absent),
            (Some(&orphaned), unreadable()),
        ] {
            let found = release(&facts(&joined, claim, &claimant)).unwrap();
            assert_eq!(found.provider_id, id, "{claimant:?}");
        }
        // The host still holds an earlier claim.
        let earlier = machine(&json!({}), &record("Joined", "earlier"));
        let found = release(&facts(&earlier, Some(&plain), &seen())).unwrap();
        assert_eq!(found.provider_id, "bedplate://host-1/earlier");
    }

    #[test]
    fn d7_a_host_with_a_claimant_is_not_released() {
        let joined = machine(&json!({}), &record("Joined", "u"));
        let deleting = claim(&json!({ "deletionTimestamp": "2026-01-01T00:50:00Z" }), &json!({}));
        let plain = claim(&json!({}), &json!({}));
        let refused = |machine: &Machine, claim: Option<&MachineClaim>, claimant: &ClaimantSeen| {
            release(&facts(machine, claim, claimant)).unwrap_err()
        };
        let error = refused(&joined, Some(&plain), &seen());
        assert!(matches!(error, RefuseRelease::ClaimantExists { .. }));
        let command = "`kubectl -n team-a delete bedplatemachines.infrastructure.cluster.x-k8s.io w-1`";
        assert!(error.hint().contains(command), "{}", error.hint());
        assert!(matches!(
            refused(&joined, Some(&plain), &unreadable()),
            RefuseRelease::ClaimantUnknown { .. }
        ));
        assert!(matches!(
            refused(&joined, Some(&deleting), &ClaimantSeen::Absent),
            RefuseRelease::Deleting { .. }
        ));
        for status in [json!({}), record("Released", "u")] {
            let free = machine(&json!({}), &status);
            assert!(matches!(refused(&free, None, &ClaimantSeen::None), RefuseRelease::NotHeld { .. }));
        }
    }

    #[test]
    fn d8_only_a_silent_host_of_a_deleted_claim_is_confirmed_off() {
        let deleting = claim(&json!({ "deletionTimestamp": "2026-01-01T00:50:00Z" }), &json!({}));
        let plain = claim(&json!({}), &json!({}));
        let heard = |time: &str| json!({ "agent": { "lastHeartbeatTime": time } });
        let power = |state: &str, heard: Value| {
            let mut status = heard;
            status["power"] = json!({ "state": state });
            status
        };
        let (late, early) = ("2026-01-01T00:55:00Z", "2026-01-01T00:40:00Z");
        for (status, is_off) in [
            (json!({}), true),
            (heard(early), true),
            (heard(late), false),
            (power("Off", heard(late)), true),
            (power("On", heard(early)), false),
            (power("Unknown", heard(late)), false),
            (power("Unknown", heard(early)), true),
        ] {
            let host = machine(&json!({}), &status);
            let found = confirm_off(&facts(&host, Some(&deleting), &seen()));
            assert_eq!(found.is_ok(), is_off, "{status}: {found:?}");
            assert!(matches!(
                confirm_off(&facts(&host, Some(&plain), &seen())),
                Err(RefuseRelease::NotDeleting { .. })
            ));
        }
        let host = machine(&json!({}), &json!({}));
        let none = confirm_off(&facts(&host, None, &ClaimantSeen::None));
        assert!(matches!(none, Err(RefuseRelease::NoClaim { .. })));
        let lost = confirm_off(&facts(&host, Some(&plain), &ClaimantSeen::Absent));
        assert!(matches!(lost, Err(RefuseRelease::NoClaimant { .. })));
    }

    /// The provider does not make such a claim again, and waits for the host.
    #[test]
    fn d8_host_of_a_lost_claim_is_confirmed_off_for_a_deleted_claimant() {
        let silent = machine(&json!({}), &record("Joined", "u"));
        let claimant = |uid: &str, deleting: bool| {
            let provider_id = Some(format!("bedplate://host-1/{uid}"));
            ClaimantSeen::Present { uid: uid.to_owned(), provider_id, deleting }
        };
        for (claimant, is_off) in [
            (claimant("u", true), true),
            (claimant("u", false), false),
            (claimant("v", true), false),
            (ClaimantSeen::Absent, false),
        ] {
            let found = confirm_off(&facts(&silent, None, &claimant));
            assert_eq!(found.is_ok(), is_off, "{claimant:?}: {found:?}");
            assert!(found.is_ok_and(|found| found.provider_id == "bedplate://host-1/u") == is_off);
        }
    }

    #[test]
    fn d7_consequences_name_what_delays_the_release() {
        let mut paused = machine(&json!({ "paused": true }), &record("Joined", "u"));
        let claimant = ClaimantSeen::Present {
            uid: "u".to_owned(),
            provider_id: Some("bedplate://host-1/u".to_owned()),
            deleting: false,
        };
        let consequences_of =
            |machine: &Machine| release(&facts(machine, None, &claimant)).unwrap().consequences.join(" ");
        let text = consequences_of(&paused);
        for part in ["is paused", "has not reported", "may create the claim again"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        paused.spec.paused = false;
        assert!(!consequences_of(&paused).contains("is paused"));
    }
}
