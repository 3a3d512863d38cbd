//! Pure: the hosts of the pool that a claimant may claim, and counts of what the others do not meet.
//!
//! A host is eligible if it may be claimed from the namespace, is enrolled and heard, holds no claim and no node, and meets the selector, the
//! failure domain and the requirement of a state disk. Called by `machine::line`, which chooses.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bedplate_api::claim::{self, ReleasePolicy};
use bedplate_api::id::MachineName;
use bedplate_api::machine::Machine;
use bedplate_api::selector::MachineSelector;
use bedplate_claim::is_free;
use bedplate_rules::claim::eligible::{
    Unmet, has_claims, is_enrolled, is_heard_elsewhere, is_selected, lacks_wipe, unmet,
};
use bedplate_rules::selection::matches;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

/// Time for which a host that has failed a claim is chosen last.
const FAILED_HOST_PENALTY: SignedDuration = SignedDuration::from_hours(1);

/// Requirements of a claimant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request<'a> {
    /// UID of the claimant.
    pub uid: &'a str,
    /// Namespace of the claimant.
    pub namespace: &'a str,
    /// Hosts that the claimant selects. None: all.
    pub selector: Option<&'a MachineSelector>,
    /// Label of the failure domain with its value. None: any.
    pub failure_domain: Option<(&'a str, &'a str)>,
    /// True if the host must have a state disk.
    pub needs_state_disk: bool,
    /// Cleanup at the release.
    pub release: ReleasePolicy,
}

/// First requirement that a host does not meet, nearest to eligibility last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Miss {
    /// The claimant does not select it.
    Selector,
    /// The host is in another failure domain.
    FailureDomain,
    /// The host has no state disk.
    StateDisk,
    /// The host may not be claimed by any claimant.
    Host(Unmet),
    /// A claimant may claim it whose turn is earlier.
    Wanted,
}

impl Miss {
    const fn text(self) -> &'static str {
        match self {
            Self::Selector => "do not match machineSelector",
            Self::FailureDomain => "are in another failure domain",
            Self::StateDisk => "have no state disk",
            Self::Host(Unmet::Wipe) => "cannot be wiped at the release (docs/guides/claims.md)",
            Self::Host(Unmet::Deleting) => "are being deleted",
            Self::Host(Unmet::Paused) => "are paused",
            Self::Host(Unmet::Agent) => "have an agent without claims",
            Self::Host(Unmet::Enrollment) => "are not enrolled",
            Self::Host(Unmet::Key) => "wait with another key than the one in force",
            Self::Host(Unmet::Held) => "are held by another claim or have a node",
            Self::Host(Unmet::Silent) => "have not reported for 15 minutes, or their clocks are ahead",
            Self::Wanted => "are reserved for earlier claimants",
        }
    }
}

/// Hosts of the pool that are not eligible, by the first requirement that they do not meet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shortage(BTreeMap<Miss, usize>);

impl Shortage {
    /// Adds eligible hosts that are reserved for earlier claimants.
    #[must_use]
    pub(crate) fn with_wanted(mut self, hosts: usize) -> Self {
        if hosts > 0 {
            self.0.insert(Miss::Wanted, hosts);
        }
        self
    }

    /// Returns true if a host is left for a claimant whose turn is earlier.
    pub(crate) fn has_wanted(&self) -> bool {
        self.0.contains_key(&Miss::Wanted)
    }

    /// Returns the counts for a user, nearest to eligibility first.
    pub fn message(&self, namespace: &str) -> String {
        if self.0.is_empty() {
            return format!("no Machine allows claims of namespace {namespace} (spec.claimPolicy)");
        }
        let total: usize = self.0.values().sum();
        let mut text = format!("none of {total} Machines that namespace {namespace} may claim is eligible");
        for (index, (miss, count)) in self.0.iter().rev().enumerate() {
            let separator = if index == 0 { ": " } else { ", " };
            // Writing into a String does not fail.
            let _ = write!(text, "{separator}{count} {}", miss.text());
        }
        text
    }
}

/// Hosts that claimants with the same requirements may claim, and counts of the others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Survey {
    /// Indexes of the eligible hosts.
    pub eligible: Vec<usize>,
    /// Indexes of the eligible hosts that have failed a claim lately. They are chosen last.
    pub failed: Vec<usize>,
    /// Counts of the hosts that are not eligible.
    pub shortage: Shortage,
}

/// Result of the check of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The namespace may not claim it.
    Forbidden,
    /// The host is not eligible.
    Missed(Miss),
    /// The host is eligible, and has failed a claim lately.
    Failed,
    /// The host is eligible.
    Eligible,
}

impl Survey {
    /// Adds the check of a host.
    pub fn add(&mut self, host: usize, check: Check) {
        match check {
            Check::Forbidden => {}
            Check::Missed(miss) => *self.shortage.0.entry(miss).or_default() += 1,
            Check::Failed => insert(&mut self.failed, host),
            Check::Eligible => insert(&mut self.eligible, host),
        }
    }

    /// Removes the check of a host.
    pub fn remove(&mut self, host: usize, check: Check) {
        match check {
            Check::Forbidden => {}
            Check::Missed(miss) => {
                let count = self.shortage.0.remove(&miss).unwrap_or_default();
                self.shortage.0.extend((count > 1).then(|| (miss, count - 1)));
            }
            Check::Failed => self.failed.retain(|other| *other != host),
            Check::Eligible => self.eligible.retain(|other| *other != host),
        }
    }
}

/// Inserts an index into ordered ones.
fn insert(all: &mut Vec<usize>, index: usize) {
    all.insert(all.partition_point(|other| *other < index), index);
}

/// Checks a host. `is_claimed`: true if a MachineClaim has its name.
pub fn check(request: &Request<'_>, host: &Machine, is_claimed: bool, now: Timestamp) -> Check {
    let is_allowed = host.spec.claim_policy.as_ref().is_some_and(|policy| policy.allows(request.namespace));
    let name = host.metadata.name.as_deref().and_then(|name| name.parse::<MachineName>().ok());
    let Some(name) = name.filter(|_| is_allowed) else { return Check::Forbidden };
    match miss(request, host, &name, is_claimed, now) {
        Some(miss) => Check::Missed(miss),
        None if has_failed(host, now) => Check::Failed,
        None => Check::Eligible,
    }
}

/// Returns true if a host may be claimed now, by what its Machine has. `own`: ID of the claim; `release`: the cleanup that its claimant asks
/// for. Checked again by a live read before the claim is made, since the choice may be old, or a user's.
pub fn is_eligible(host: &Machine, namespace: &str, own: &str, release: ReleasePolicy) -> bool {
    let is_allowed = host.spec.claim_policy.as_ref().is_some_and(|policy| policy.allows(namespace));
    is_allowed
        && host.metadata.deletion_timestamp.is_none()
        && is_enrolled(host)
        && has_claims(host)
        && !is_heard_elsewhere(host)
        && !lacks_wipe(host, release)
        && !is_held(host, own)
}

/// Returns true if the host may run another claim, or has a node, or has released this claim: it does not run it again then.
fn is_held(host: &Machine, own: &str) -> bool {
    let Some(status) = &host.status else { return false };
    let reported = status.claim.as_ref();
    let is_own = reported.is_some_and(|claim| claim.provider_id == own);
    is_own || !is_free(reported.map(|claim| claim.state)) || is_selected(host)
}

/// Returns true if a host has failed a claim in the last hour, as its agent has recorded.
fn has_failed(host: &Machine, now: Timestamp) -> bool {
    let record = host.status.as_ref().and_then(|status| status.claim.as_ref());
    let failed = record.and_then(|record| record.failed_time.as_ref());
    // The time is of the host's clock, which a tenant may set.
    failed.is_some_and(|failed| {
        (SignedDuration::ZERO..FAILED_HOST_PENALTY).contains(&now.duration_since(failed.0))
    })
}

fn miss(
    request: &Request<'_>,
    host: &Machine,
    name: &MachineName,
    is_claimed: bool,
    now: Timestamp,
) -> Option<Miss> {
    let status = host.status.as_ref();
    let has = |label: &str, value: &str| host.labels().get(label).map(String::as_str) == Some(value);
    if request.selector.is_some_and(|selector| !matches(selector, host)) {
        return Some(Miss::Selector);
    }
    if request.failure_domain.is_some_and(|(label, value)| !has(label, value)) {
        return Some(Miss::FailureDomain);
    }
    if request.needs_state_disk && status.is_none_or(|status| status.state_disk.is_none()) {
        return Some(Miss::StateDisk);
    }
    let is_held = is_claimed || is_held(host, &claim::provider_id(name, request.uid));
    unmet(host, is_held, request.release, now).map(Miss::Host)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Checks hosts without claims.
    fn survey(request: &Request<'_>, hosts: &[Machine]) -> Survey {
        survey_of(request, hosts.iter().map(|host| (host, false)))
    }

    /// Checks hosts. Each comes with true if a MachineClaim has its name.
    fn survey_of<'a>(request: &Request<'_>, hosts: impl Iterator<Item = (&'a Machine, bool)>) -> Survey {
        let mut survey = Survey::default();
        for (index, (host, is_claimed)) in hosts.enumerate() {
            survey.add(index, check(request, host, is_claimed, now()));
        }
        survey
    }

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().unwrap()
    }

    fn host(name: &str, spec: &Value, status: &Value) -> Machine {
        let mut object = json!({ "metadata": { "name": name, "labels": { "rack": "7" } },
            "spec": { "provider": "manual", "claimPolicy": { "namespaces": ["team-a"] } },
            "status": { "enrollment": { "keyID": "0123456789abcdef0123456789abcdef" },
                "agent": { "features": ["claims"], "lastHeartbeatTime": "2026-01-01T00:55:00Z" }, "stateDisk": { "name": "d" } } });
        for (part, more) in [("spec", spec), ("status", status)] {
            object[part].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        }
        serde_json::from_value(object).unwrap()
    }

    fn request(uid: &str) -> Request<'_> {
        Request {
            uid,
            namespace: "team-a",
            selector: None,
            failure_domain: None,
            needs_state_disk: true,
            release: ReleasePolicy::Empty,
        }
    }

    fn reported(state: &str, uid: &str) -> Value {
        json!({ "claim": { "providerID": format!("bedplate://a/{uid}"), "claimant": { "namespace": "team-a", "name": "w" },
            "state": state, "since": "2026-01-01T00:00:00Z" } })
    }

    fn missed(spec: &Value, status: &Value) -> Option<Miss> {
        let found = survey(&request("u-1"), &[host("a", spec, status)]);
        assert_eq!(found.eligible.is_empty(), !found.shortage.0.is_empty());
        found.shortage.0.keys().next().copied()
    }

    #[test]
    fn d1_only_free_hosts_that_are_heard_are_chosen() {
        let none = json!({});
        assert_eq!(missed(&none, &none), None);
        for (spec, status, miss) in [
            (json!({ "paused": true }), none.clone(), Miss::Host(Unmet::Paused)),
            (
                json!({ "claimPolicy": { "namespaces": ["team-a"], "release": "Wipe" } }),
                none.clone(),
                Miss::Host(Unmet::Wipe),
            ),
            (none.clone(), json!({ "enrollment": {} }), Miss::Host(Unmet::Enrollment)),
            (none.clone(), json!({ "stateDisk": null }), Miss::StateDisk),
            (
                none.clone(),
                json!({ "agent": { "features": ["claims"], "lastHeartbeatTime": "2026-01-01T00:44:00Z" } }),
                Miss::Host(Unmet::Silent),
            ),
            (
                none.clone(),
                json!({ "agent": { "lastHeartbeatTime": "2026-01-01T00:55:00Z" } }),
                Miss::Host(Unmet::Agent),
            ),
            (
                none.clone(),
                json!({ "selected": { "name": "w", "version": 1, "source": "Selector" } }),
                Miss::Host(Unmet::Held),
            ),
            // The version of an earlier claim: bedplate-controller has not seen the host's release.
            (
                none.clone(),
                json!({ "selected": { "name": "w", "version": 1, "source": "Claim", "providerID": "bedplate://a/u-2" } }),
                Miss::Host(Unmet::Held),
            ),
            (none.clone(), reported("Joined", "u-2"), Miss::Host(Unmet::Held)),
            (none.clone(), reported("Released", "u-1"), Miss::Host(Unmet::Held)),
            (none.clone(), reported("AddedLater", "u-2"), Miss::Host(Unmet::Held)),
        ] {
            assert_eq!(missed(&spec, &status), Some(miss), "{spec} {status}");
        }
        for state in ["Released", "Preparing"] {
            assert_eq!(missed(&none, &reported(state, "u-2")), None, "{state}");
        }
        let other = json!({ "claimPolicy": { "namespaces": ["team-b"] } });
        let shortage = survey(&request("u-1"), &[host("a", &other, &none)]).shortage;
        assert_eq!(
            shortage.message("team-a"),
            "no Machine allows claims of namespace team-a (spec.claimPolicy)"
        );
    }

    #[test]
    fn d7_host_that_cannot_be_wiped_is_not_claimed_for_a_wipe() {
        let agent = |features: &[&str]| json!({ "agent": { "features": features, "lastHeartbeatTime": "2026-01-01T00:55:00Z" } });
        let pool = |release: &str, provider: &str, wipe: &str| {
            let mut spec = json!({ "provider": provider, "claimPolicy": { "namespaces": ["team-a"], "release": release } });
            if provider == "pxe" {
                spec["pxe"] = json!({ "interfaces": [{ "macAddress": "52:54:00:00:00:01" }],
                    "stateDisk": { "serial": "s", "wipe": wipe, "wipeToken": "t" } });
            }
            spec
        };
        let able = ["claims", "wipe"];
        for (spec, features, miss) in [
            (pool("Wipe", "pxe", "IfBlank"), &able[..], None),
            (pool("Wipe", "pxe", "Once"), &able[..], Some(Miss::Host(Unmet::Wipe))),
            (pool("Wipe", "pxe", "Never"), &able[..], Some(Miss::Host(Unmet::Wipe))),
            (pool("Wipe", "manual", ""), &able[..], Some(Miss::Host(Unmet::Wipe))),
            (pool("Wipe", "pxe", "IfBlank"), &able[..1], Some(Miss::Host(Unmet::Wipe))),
            (pool("Empty", "pxe", "Once"), &able[..1], None),
        ] {
            let status = agent(features);
            assert_eq!(missed(&spec, &status), miss, "{spec} {status}");
            let one = host("a", &spec, &status);
            let is_eligible = |release| is_eligible(&one, "team-a", "bedplate://a/u-1", release);
            assert_eq!(is_eligible(ReleasePolicy::Empty), miss.is_none(), "{spec} {status}");
            let asks = is_eligible(ReleasePolicy::Wipe);
            assert_eq!(asks, spec["pxe"]["stateDisk"]["wipe"] == "IfBlank" && features.len() == 2, "{spec}");
        }
    }

    #[test]
    fn d1_host_that_has_failed_is_chosen_last_for_an_hour() {
        let at = |name: &str, time: &str| {
            let mut record = reported("Released", "u-0");
            record["claim"]["failedTime"] = json!(time);
            host(name, &json!({}), &record)
        };
        let (recent, old) = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:00Z");
        let hosts = [at("a", recent), at("b", old), at("c", recent), at("d", "2027-01-01T00:00:00Z")];
        let found = survey(&request("u"), &hosts);
        // A clock that is ahead does not make the penalty longer.
        assert_eq!((found.eligible, found.failed), (vec![1, 3], vec![0, 2]));
    }

    #[test]
    fn m6_a_host_that_is_off_until_it_is_claimed_is_eligible() {
        let silent = |status: &str, reason: &str| {
            json!({ "agent": { "lastHeartbeatTime": "2026-01-01T00:00:00Z", "features": ["claims"] }, "conditions": [{ "type": "PoweredOn",
                "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] })
        };
        let on_claim = json!({ "powerPolicy": "OnClaim" });
        for (spec, status, miss) in [
            (&on_claim, silent("False", "ClaimPending"), None),
            (&on_claim, silent("False", "PoweredOffByOperation"), Some(Miss::Host(Unmet::Silent))),
            (&on_claim, silent("True", "PoweredOn"), Some(Miss::Host(Unmet::Silent))),
            (&json!({}), silent("False", "ClaimPending"), Some(Miss::Host(Unmet::Silent))),
        ] {
            assert_eq!(missed(spec, &status), miss, "{spec} {status}");
        }
    }

    #[test]
    fn d1_message_counts_hosts_that_are_left_for_earlier_claimants() {
        let none = json!({});
        let hosts = ["a", "b"].map(|name| host(name, &none, &none));
        let found = survey(&request("u"), &hosts);
        assert_eq!((found.eligible.len(), found.shortage.has_wanted()), (2, false));
        assert!(!found.shortage.clone().with_wanted(0).has_wanted());
        let shortage = found.shortage.with_wanted(2);
        let text = "none of 2 Machines that namespace team-a may claim is eligible: 2 are reserved for earlier claimants";
        assert_eq!((shortage.message("team-a").as_str(), shortage.has_wanted()), (text, true));
        let other = Request { namespace: "team-b", ..request("u") };
        assert!(survey(&other, &hosts).eligible.is_empty());
    }

    #[test]
    fn message_counts_the_hosts_nearest_first() {
        let none = json!({});
        let hosts = [
            host("a", &none, &none),
            host("b", &none, &none),
            host("c", &json!({ "paused": true }), &none),
            host("d", &none, &json!({ "agent": { "features": ["claims"] } })),
        ];
        let claimed = hosts.iter().map(|host| (host, host.name_any().as_str() < "c"));
        let shortage = survey_of(&request("u"), claimed).shortage;
        let expected = "none of 4 Machines that namespace team-a may claim is eligible: 1 have not reported for 15 minutes, or their clocks are ahead, \
                        2 are held by another claim or have a node, 1 are paused";
        assert_eq!(shortage.message("team-a"), expected);
    }

    #[test]
    fn hosts_of_another_failure_domain_are_not_eligible() {
        let none = json!({});
        let hosts = ["a", "b"].map(|name| host(name, &none, &none));
        let domain = |value| Request { failure_domain: Some(("rack", value)), ..request("u") };
        assert_eq!(survey(&domain("7"), &hosts).eligible, [0, 1]);
        assert_eq!(survey(&domain("8"), &hosts).shortage.0, BTreeMap::from([(Miss::FailureDomain, 2)]));
    }
}
