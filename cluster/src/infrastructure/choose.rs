//! Pure: chooses the host of a claimant among the Machines of the pool, and counts what the others do not meet.
//!
//! A host is eligible if it may be claimed from the namespace, is enrolled and heard, holds no claim and no node, and meets the selector, the
//! failure domain and the requirement of a state disk. Among eligible hosts a hash of claimant and host decides, so that claimants that choose
//! concurrently spread. Called by `machine`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};

use bedplate_api::claim::{self, ReleasePolicy};
use bedplate_api::id::MachineName;
use bedplate_api::machine::Machine;
use bedplate_api::selector::MachineSelector;
use bedplate_claim::is_free;
use bedplate_rules::claim::eligible::{Unmet, has_claims, is_enrolled, is_selected, unmet};
use bedplate_rules::selection::matches;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

/// Time for which a host that has failed a claim is chosen last.
const FAILED_HOST_PENALTY: SignedDuration = SignedDuration::from_hours(1);

/// Requirements of a claimant.
#[derive(Debug, Clone, Copy)]
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
    /// It is in another failure domain.
    FailureDomain,
    /// It has no state disk.
    StateDisk,
    /// It may not be claimed by any claimant.
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
            Self::Host(Unmet::Wipe) => "need release Wipe, which is not supported yet",
            Self::Host(Unmet::Deleting) => "are being deleted",
            Self::Host(Unmet::Paused) => "are paused",
            Self::Host(Unmet::Agent) => "have an agent without claims",
            Self::Host(Unmet::Enrollment) => "are not enrolled",
            Self::Host(Unmet::Held) => "are held by another claim or have a node",
            Self::Host(Unmet::Silent) => "have not reported for 15 minutes",
            Self::Wanted => "are left for claimants whose turn is earlier",
        }
    }
}

/// Hosts of the pool that are not eligible, by the first requirement that they do not meet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shortage(BTreeMap<Miss, usize>);

impl Shortage {
    /// Returns true if a host is left for a claimant whose turn is earlier.
    pub fn has_wanted(&self) -> bool {
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

/// Chooses a host. `claims`: returns true if a MachineClaim has this name. `is_wanted`: returns true if this host is left for a claimant whose
/// turn is earlier. A host that has failed a claim lately is chosen only if there is no other one.
///
/// # Errors
/// No host is eligible.
pub fn choose<'a>(
    request: &Request<'_>,
    hosts: impl IntoIterator<Item = &'a Machine>,
    (claims, mut is_wanted): (impl Fn(&str) -> bool, impl FnMut(&Machine) -> bool),
    now: Timestamp,
) -> Result<MachineName, Shortage> {
    let mut shortage = Shortage::default();
    let mut eligible = Vec::new();
    for host in hosts {
        let is_allowed =
            host.spec.claim_policy.as_ref().is_some_and(|policy| policy.allows(request.namespace));
        let Ok(name) = host.name_any().parse::<MachineName>() else { continue };
        if !is_allowed {
            continue;
        }
        match miss(request, host, &name, claims(name.as_str()), now) {
            Some(miss) => *shortage.0.entry(miss).or_default() += 1,
            None => eligible.push(((has_failed(host, now), rank(request.uid, name.as_str())), name, host)),
        }
    }
    eligible.sort_unstable_by_key(|(rank, ..)| *rank);
    for (_, name, host) in eligible {
        if !is_wanted(host) {
            return Ok(name);
        }
        *shortage.0.entry(Miss::Wanted).or_default() += 1;
    }
    Err(shortage)
}

/// Returns true if a claimant may claim a host that no MachineClaim holds.
pub fn fits(request: &Request<'_>, host: &Machine, now: Timestamp) -> bool {
    let is_allowed = host.spec.claim_policy.as_ref().is_some_and(|policy| policy.allows(request.namespace));
    let name = host.name_any().parse::<MachineName>();
    is_allowed && name.is_ok_and(|name| miss(request, host, &name, false, now).is_none())
}

/// Returns true if a host may be claimed now, by what its Machine has. `own`: ID of the claim. Checked again by a live read before the claim is
/// made, since the choice may be old, or a user's.
pub fn is_eligible(host: &Machine, namespace: &str, own: &str) -> bool {
    let is_allowed = host.spec.claim_policy.as_ref().is_some_and(|policy| policy.allows(namespace));
    is_allowed
        && host.metadata.deletion_timestamp.is_none()
        && is_enrolled(host)
        && has_claims(host)
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

fn rank(uid: &str, host: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (uid, host).hash(&mut hasher);
    hasher.finish()
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

    type Test = fn(&Machine) -> bool;

    /// No host has a claim, and no other claimant waits.
    const NONE: (fn(&str) -> bool, Test) = (|_| false, |_| false);

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
        let hosts = [host("a", spec, status)];
        let result = choose(&request("u-1"), &hosts, NONE, now());
        result.err().and_then(|shortage| shortage.0.keys().next().copied())
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
        let hosts = [host("a", &other, &none)];
        let shortage = choose(&request("u-1"), &hosts, NONE, now()).unwrap_err();
        assert_eq!(
            shortage.message("team-a"),
            "no Machine allows claims of namespace team-a (spec.claimPolicy)"
        );
    }

    #[test]
    fn d1_host_that_has_failed_is_chosen_last_for_an_hour() {
        let at = |name: &str, time: &str| {
            let mut record = reported("Released", "u-0");
            record["claim"]["failedTime"] = json!(time);
            host(name, &json!({}), &record)
        };
        let (recent, old) = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:00Z");
        let chosen = |hosts: &[Machine], uid: &str| choose(&request(uid), hosts, NONE, now()).unwrap();
        for index in 0..20 {
            let (uid, times) =
                (format!("u-{index}"), if index % 2 == 0 { [recent, old] } else { [old, recent] });
            let found = chosen(&[at("a", times[0]), at("b", times[1])], &uid);
            assert_eq!(found.as_str(), if index % 2 == 0 { "b" } else { "a" });
        }
        assert_eq!(chosen(&[at("a", recent)], "u").as_str(), "a");
        // A clock that is ahead does not make the penalty longer.
        assert_eq!(chosen(&[at("a", recent), at("b", "2027-01-01T00:00:00Z")], "u-1").as_str(), "b");
        assert_eq!(chosen(&[at("a", "2027-01-01T00:00:00Z"), at("b", recent)], "u-1").as_str(), "a");
    }

    #[test]
    fn m6_a_host_that_is_off_until_it_is_claimed_is_eligible() {
        let silent = |status: &str, reason: &str| {
            json!({ "agent": { "lastHeartbeatTime": "2026-01-01T00:00:00Z", "features": ["claims"] }, "conditions": [{ "type": "PoweredOn",
                "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] })
        };
        let on_claim = json!({ "powerPolicy": "OnClaim" });
        for (spec, status, miss) in [
            (&on_claim, silent("False", "AwaitsClaim"), None),
            (&on_claim, silent("False", "PoweredOffByOperation"), Some(Miss::Host(Unmet::Silent))),
            (&on_claim, silent("True", "PoweredOn"), Some(Miss::Host(Unmet::Silent))),
            (&json!({}), silent("False", "AwaitsClaim"), Some(Miss::Host(Unmet::Silent))),
        ] {
            assert_eq!(missed(spec, &status), miss, "{spec} {status}");
        }
    }

    #[test]
    fn d1_host_is_left_for_a_claimant_whose_turn_is_earlier() {
        let none = json!({});
        let hosts = ["a", "b"].map(|name| host(name, &none, &none));
        for index in 0..10 {
            let uid = format!("u-{index}");
            let left = |name: &'static str| (NONE.0, move |host: &Machine| host.name_any() == name);
            assert_eq!(choose(&request(&uid), &hosts, left("a"), now()).unwrap().as_str(), "b");
            assert_eq!(choose(&request(&uid), &hosts, left("b"), now()).unwrap().as_str(), "a");
        }
        let shortage = choose(&request("u"), &hosts, (NONE.0, |_: &Machine| true), now()).unwrap_err();
        let text = "none of 2 Machines that namespace team-a may claim is eligible: 2 are left for claimants whose turn is earlier";
        assert_eq!((shortage.message("team-a").as_str(), shortage.has_wanted()), (text, true));
        assert!(fits(&request("u"), &hosts[0], now()));
        let other = Request { namespace: "team-b", ..request("u") };
        assert!(!fits(&other, &hosts[0], now()));
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
        let shortage = choose(&request("u"), &hosts, (|name: &str| name < "c", NONE.1), now()).unwrap_err();
        let expected = "none of 4 Machines that namespace team-a may claim is eligible: 1 have not reported for 15 minutes, \
                        2 are held by another claim or have a node, 1 are paused";
        assert_eq!(shortage.message("team-a"), expected);
    }

    #[test]
    fn concurrent_claimants_spread_over_the_hosts() {
        let none = json!({});
        let hosts: Vec<_> = (0..50).map(|index| host(&format!("host-{index}"), &none, &none)).collect();
        let chosen: std::collections::BTreeSet<_> = (0..50)
            .map(|index| choose(&request(&format!("u-{index}")), &hosts, NONE, now()).unwrap().to_string())
            .collect();
        assert!(chosen.len() > 20, "{}", chosen.len());
        let domain = Request { failure_domain: Some(("rack", "8")), ..request("u") };
        let shortage = choose(&domain, &hosts, NONE, now()).unwrap_err();
        assert_eq!(shortage.0, BTreeMap::from([(Miss::FailureDomain, 50)]));
    }
}
