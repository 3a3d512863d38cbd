//! Pure: decides whether a host of a pool may be claimed now, by what its Machine has.
//!
//! Called by the provider before it chooses a host, and by the CLI.

use bedplate_api::claim::{CLAIMS_FEATURE, ReleasePolicy, WIPE_FEATURE};
use bedplate_api::machine::{Machine, PROVIDER_PXE, PowerPolicy, Wipe, condition_type};
use bedplate_api::reason::machine::{EnrolledReason, PoweredOnReason};
use jiff::{SignedDuration, Timestamp};

/// Maximum age of the last heartbeat of a host that is claimed. A heartbeat follows every 5 minutes.
const MAX_HEARTBEAT_AGE: SignedDuration = SignedDuration::from_mins(15);

/// Maximum lead of the clock of a host.
const MAX_CLOCK_LEAD: SignedDuration = SignedDuration::from_mins(5);

/// Requirement that a host does not meet, nearest to eligibility last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unmet {
    /// The host must be wiped first, and cannot be.
    Wipe,
    /// The Machine is being deleted.
    Deleting,
    /// The Machine is paused.
    Paused,
    /// The agent does not carry claims out.
    Agent,
    /// The Machine has no enrollment group.
    Enrollment,
    /// A host with another key waits, and the key in force is heard.
    Key,
    /// A claim holds it, or it has a node.
    Held,
    /// The agent is unreachable.
    Silent,
}

impl Unmet {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::Wipe,
        Self::Deleting,
        Self::Paused,
        Self::Agent,
        Self::Enrollment,
        Self::Key,
        Self::Held,
        Self::Silent,
    ];

    /// State of the host in one word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Wipe => "CannotBeWiped",
            Self::Deleting => "Deleting",
            Self::Paused => "Paused",
            Self::Agent => "AgentOutdated",
            Self::Enrollment => "NotEnrolled",
            Self::Key => "HeardElsewhere",
            Self::Held => "InUse",
            Self::Silent => "Silent",
        }
    }

    /// Text for a user. Its subject is one host.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Wipe => "the host cannot be wiped at the release (docs/guides/claims.md)",
            Self::Deleting => "the Machine is being deleted",
            Self::Paused => "the Machine is paused",
            Self::Agent => "the agent does not report the feature claims; update it",
            Self::Enrollment => "the host is not enrolled",
            Self::Key => {
                "a host with another key is waiting, and the current key is still in use (docs/troubleshooting/boot.md)"
            }
            Self::Held => "a version is selected for the host",
            Self::Silent => "the agent has not reported for 15 minutes, or its clock is ahead",
        }
    }
}

/// Returns the requirement that a host of a pool does not meet, nearest last. `is_held`: true if a claim holds it. `claimed`: cleanup that the
/// claimant asks for.
pub fn unmet(host: &Machine, is_held: bool, claimed: ReleasePolicy, now: Timestamp) -> Option<Unmet> {
    if lacks_wipe(host, claimed) {
        return Some(Unmet::Wipe);
    }
    if host.metadata.deletion_timestamp.is_some() {
        return Some(Unmet::Deleting);
    }
    if host.spec.paused {
        return Some(Unmet::Paused);
    }
    if !is_enrolled(host) {
        return Some(Unmet::Enrollment);
    }
    if !has_claims(host) {
        return Some(Unmet::Agent);
    }
    if is_heard_elsewhere(host) {
        return Some(Unmet::Key);
    }
    if is_held || is_selected(host) {
        return Some(Unmet::Held);
    }
    (!is_heard(host, now) && !is_off_until_claimed(host)).then_some(Unmet::Silent)
}

/// Returns true if a host would have to be wiped after the claim, and cannot be: pxed must boot it, its Machine must have no other rule for
/// the state disk and select the one that the host uses, and its agent must know how. `claimed`: cleanup that the claimant asks for.
pub fn lacks_wipe(host: &Machine, claimed: ReleasePolicy) -> bool {
    let policy = host.spec.claim_policy.as_ref();
    let needs_wipe = policy.is_some_and(|policy| policy.release_of(claimed) == ReleasePolicy::Wipe);
    let disk = host.spec.pxe.as_ref().and_then(|pxe| pxe.state_disk.as_ref());
    let uses_disk = host.status.as_ref().is_some_and(|status| status.state_disk.is_some());
    let is_open = disk.map_or(!uses_disk, |disk| disk.wipe == Wipe::IfBlank);
    let can_wipe = host.spec.provider == PROVIDER_PXE && is_open && has_feature(host, WIPE_FEATURE);
    needs_wipe && !can_wipe
}

/// Returns true if the agent of a host carries claims out.
pub fn has_claims(host: &Machine) -> bool {
    has_feature(host, CLAIMS_FEATURE)
}

fn has_feature(host: &Machine, name: &str) -> bool {
    let agent = host.status.as_ref().and_then(|status| status.agent.as_ref());
    agent.is_some_and(|agent| agent.features.iter().any(|feature| feature == name))
}

/// Returns true if the agent of a host has an enrollment group.
pub fn is_enrolled(host: &Machine) -> bool {
    let enrollment = host.status.as_ref().and_then(|status| status.enrollment.as_ref());
    enrollment.is_some_and(|enrollment| enrollment.key_id.is_some())
}

/// Returns true if a host with another key waits. The key in force may be a copy.
pub fn is_heard_elsewhere(host: &Machine) -> bool {
    let conditions = host.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| {
        condition.type_ == condition_type::ENROLLED && condition.reason == EnrolledReason::HeardElsewhere
    })
}

/// Returns true if a version is selected for a host.
pub fn is_selected(host: &Machine) -> bool {
    host.status.as_ref().is_some_and(|status| status.selected.is_some())
}

/// Returns the last heartbeat of a host, by the clock of the host.
pub fn heartbeat(host: &Machine) -> Option<Timestamp> {
    let agent = host.status.as_ref().and_then(|status| status.agent.as_ref());
    agent.and_then(|agent| agent.last_heartbeat_time.as_ref()).map(|time| time.0)
}

/// Returns true if a heartbeat is in the future. The clock of the host, or root on it, has chosen it.
pub fn is_ahead(heartbeat: Timestamp, now: Timestamp) -> bool {
    heartbeat.duration_since(now) > MAX_CLOCK_LEAD
}

/// Returns true if a heartbeat is recent.
pub fn is_recent(heartbeat: Timestamp, now: Timestamp) -> bool {
    !is_ahead(heartbeat, now) && now.duration_since(heartbeat) <= MAX_HEARTBEAT_AGE
}

/// Returns true if the agent of a host was heard lately.
pub fn is_heard(host: &Machine, now: Timestamp) -> bool {
    heartbeat(host).is_some_and(|time| is_recent(time, now))
}

/// Returns true if the host is silent because pxed powers it on only for a claim.
fn is_off_until_claimed(host: &Machine) -> bool {
    let conditions = host.status.iter().flat_map(|status| &status.conditions);
    let is_off = conditions.into_iter().any(|condition| {
        let is_power = condition.type_ == condition_type::POWERED_ON && condition.status == "False";
        is_power && condition.reason == PoweredOnReason::ClaimPending
    });
    host.spec.power_policy == PowerPolicy::OnClaim && is_off
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn host(spec: &Value, status: &Value) -> Machine {
        let mut object = json!({ "metadata": { "name": "a" }, "spec": { "provider": "manual",
            "claimPolicy": { "namespaces": ["team-a"] } },
            "status": { "enrollment": { "keyID": "0123456789abcdef0123456789abcdef" },
                "agent": { "features": ["claims"], "lastHeartbeatTime": "2026-01-01T00:55:00Z" } } });
        for (part, more) in [("spec", spec), ("status", status)] {
            object[part].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn d1_host_whose_heartbeat_is_of_the_future_is_silent() {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        for (time, expected) in [
            ("2026-01-01T00:45:00Z", None),
            ("2026-01-01T00:44:59Z", Some(Unmet::Silent)),
            ("2026-01-01T01:05:00Z", None),
            ("2026-01-01T01:05:01Z", Some(Unmet::Silent)),
            ("2999-12-31T23:59:59Z", Some(Unmet::Silent)),
        ] {
            let agent = json!({ "agent": { "features": ["claims"], "lastHeartbeatTime": time } });
            assert_eq!(
                unmet(&host(&json!({}), &agent), false, ReleasePolicy::Empty, now),
                expected,
                "{time}"
            );
        }
    }

    #[test]
    fn d1_first_unmet_requirement_of_a_host_is_named() {
        let (none, now) = (json!({}), "2026-01-01T01:00:00Z".parse().unwrap());
        let of = |spec: &Value, status: &Value| unmet(&host(spec, status), false, ReleasePolicy::Empty, now);
        assert_eq!(of(&none, &none), None);
        let late = json!({ "features": ["claims"], "lastHeartbeatTime": "2026-01-01T00:44:00Z" });
        let elsewhere = |status: &str| {
            json!({ "conditions": [{ "type": "Enrolled", "status": status, "reason": "HeardElsewhere", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }] })
        };
        for (spec, status, expected) in [
            (json!({ "paused": true }), none.clone(), Unmet::Paused),
            (json!({ "claimPolicy": { "namespaces": ["a"], "release": "Wipe" } }), none.clone(), Unmet::Wipe),
            (none.clone(), json!({ "enrollment": {} }), Unmet::Enrollment),
            (none.clone(), json!({ "enrollment": {}, "agent": null }), Unmet::Enrollment),
            (none.clone(), json!({ "agent": { "lastHeartbeatTime": "2026-01-01T00:55:00Z" } }), Unmet::Agent),
            (
                none.clone(),
                json!({ "selected": { "name": "w", "version": 1, "source": "Claim" } }),
                Unmet::Held,
            ),
            (none.clone(), json!({ "agent": late }), Unmet::Silent),
            (none.clone(), elsewhere("True"), Unmet::Key),
            (none.clone(), elsewhere("False"), Unmet::Key),
        ] {
            assert_eq!(of(&spec, &status), Some(expected), "{spec} {status}");
        }
        assert_eq!(unmet(&host(&none, &none), true, ReleasePolicy::Empty, now), Some(Unmet::Held));
        assert_eq!(unmet(&host(&none, &none), false, ReleasePolicy::Wipe, now), Some(Unmet::Wipe));
    }

    #[test]
    fn d7_host_can_be_wiped_with_the_disk_that_its_machine_selects() {
        let features = json!({ "features": ["claims", "wipe"], "lastHeartbeatTime": "2026-01-01T00:55:00Z" });
        let uses = |disk: Value| json!({ "agent": features, "stateDisk": disk });
        let selects =
            |disk: Value| json!({ "provider": "pxe", "pxe": { "interfaces": [], "stateDisk": disk } });
        let (disk, used, none) = (json!({ "serial": "s" }), json!({ "name": "virtio-s" }), json!(null));
        for (spec, status, expected) in [
            (selects(disk.clone()), uses(used.clone()), false),
            (selects(disk), uses(none.clone()), false),
            (selects(none.clone()), uses(none.clone()), false),
            (selects(none), uses(used.clone()), true),
            (selects(json!({ "serial": "s", "wipe": "Never" })), uses(used), true),
        ] {
            assert_eq!(lacks_wipe(&host(&spec, &status), ReleasePolicy::Wipe), expected, "{spec} {status}");
            assert!(!lacks_wipe(&host(&spec, &status), ReleasePolicy::Empty), "{spec} {status}");
        }
    }

    #[test]
    fn each_requirement_has_a_word_of_its_own() {
        let words: std::collections::BTreeSet<_> = Unmet::ALL.map(Unmet::word).into();
        assert_eq!(words.len(), Unmet::ALL.len());
        assert!(Unmet::ALL.is_sorted());
    }
}
