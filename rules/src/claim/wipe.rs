//! Pure: decides whether a host must be wiped before its claim ends (D7), and which keys its tenant may have copied.
//!
//! Called by the provider, which keeps the claim until then, and by the CLI.

use bedplate_api::claim::{
    ClaimState, ENROLLMENT_ANNOTATION, MachineClaim, ReleasePolicy, TENANT_ENROLLMENTS_ANNOTATION,
};
use bedplate_api::machine::Machine;
use bedplate_api::reason::claim::WipedReason;

use super::eligible::is_heard_elsewhere;
use crate::selection::was_granted;

/// Maximum number of enrollments that a claim records. The earliest ones are dropped.
const MAX_ENROLLMENTS: usize = 1024;

/// Part of a wipe that a claim waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwedWipe {
    /// The state disk does not have the token of the claim.
    Disk,
    /// The Machine has a key that the tenant of the claim may have copied.
    Key,
}

/// Returns true if the release of a claim wipes its host. The stronger one of both policies counts. A claim that was never granted has not run.
pub fn releases_with_wipe(claim: &MachineClaim, host: &Machine) -> bool {
    let (policy, claimed) = (host.spec.claim_policy.as_ref(), claim.spec.release);
    let release = policy.map_or(claimed, |policy| policy.release_of(claimed));
    release == ReleasePolicy::Wipe && was_granted(claim)
}

/// Returns the part of the wipe that a claim waits for.
///
/// The token of the disk is a report of the host, so a client with a copied key can write it, too. pxed alone writes the key. A host with its
/// state in memory has no token: the boot that empties the memory makes another key.
pub fn owed_wipe(claim: &MachineClaim, host: &Machine) -> Option<OwedWipe> {
    if !releases_with_wipe(claim, host) {
        return None;
    }
    let reported = host.status.as_ref().and_then(|status| status.state_disk.as_ref());
    let has_disk = reported.is_some() || host.spec.pxe.as_ref().is_some_and(|pxe| pxe.state_disk.is_some());
    let used = reported.and_then(|disk| disk.wipe_token.as_ref());
    if has_disk && (used.is_none() || used != claim.metadata.uid.as_ref()) {
        return Some(OwedWipe::Disk);
    }
    (!has_new_key(claim, host)).then_some(OwedWipe::Key)
}

/// Returns why a deleted claim waits for its wipe. None: its host is not emptied yet, or no wipe is due.
pub fn unwiped(claim: &MachineClaim, host: &Machine) -> Option<WipedReason> {
    claim.metadata.deletion_timestamp.as_ref()?;
    let state = claim_state(claim).filter(|state| state.is_emptied())?;
    Some(match (state, owed_wipe(claim, host)?) {
        _ if is_heard_elsewhere(host) => WipedReason::KeyNotReplaced,
        (ClaimState::Released, OwedWipe::Key) => WipedReason::KeyNotReplaced,
        (ClaimState::Released, OwedWipe::Disk) => WipedReason::NotWiped,
        _ => WipedReason::AwaitingWipe,
    })
}

/// Returns true if the Machine has another key than those that the host had while its tenant could read them.
fn has_new_key(claim: &MachineClaim, host: &Machine) -> bool {
    let enrollment = host.status.as_ref().and_then(|status| status.enrollment.as_ref());
    let Some(key) = enrollment.and_then(|enrollment| enrollment.key_id.as_ref()) else { return false };
    let key = key.to_string();
    let mut recorded = tenant_enrollments(claim).peekable();
    recorded.peek().is_some() && recorded.all(|one| one != key)
}

fn tenant_enrollments(claim: &MachineClaim) -> impl Iterator<Item = &str> {
    let annotations = claim.metadata.annotations.as_ref();
    let recorded = annotations.and_then(|all| all.get(TENANT_ENROLLMENTS_ANNOTATION));
    recorded.into_iter().flat_map(|list| list.split(',')).filter(|one| !one.is_empty())
}

/// Returns the enrollments to record in a claim before it names `next`. None: the record stays.
///
/// A host that was granted the claim had the enrollment that the claim has named until now. It has the next one in the hands of the same tenant,
/// unless it was emptied before: the host boots to be wiped only after its report in the claim, which needs the key that the claim names.
pub fn enrollments_to_record(claim: &MachineClaim, host: Option<&Machine>, next: &str) -> Option<String> {
    let states = [claim_state(claim), record_state(claim, host)];
    let has_run = |state: &ClaimState| *state != ClaimState::Preparing;
    if !was_granted(claim) && !states.iter().flatten().any(has_run) {
        return None;
    }
    let annotations = claim.metadata.annotations.as_ref();
    let named = annotations.and_then(|all| all.get(ENROLLMENT_ANNOTATION)).map(String::as_str);
    let is_emptied = claim_state(claim).is_some_and(ClaimState::is_emptied);
    let mut list: Vec<&str> = tenant_enrollments(claim).collect();
    for key in [named, (!is_emptied).then_some(next)].into_iter().flatten() {
        if !list.contains(&key) {
            list.push(key);
        }
    }
    Some(list[list.len().saturating_sub(MAX_ENROLLMENTS)..].join(","))
}

/// Returns the state of this very claim, as the agent has reported it in the claim.
fn claim_state(claim: &MachineClaim) -> Option<ClaimState> {
    let status = claim.status.as_ref()?;
    status.state.filter(|_| status.provider_id.as_ref() == Some(&claim.spec.provider_id))
}

/// Returns the state of this very claim, as the agent has reported it in the Machine.
fn record_state(claim: &MachineClaim, host: Option<&Machine>) -> Option<ClaimState> {
    let record = host?.status.as_ref()?.claim.as_ref()?;
    (record.provider_id == claim.spec.provider_id).then_some(record.state)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ID: &str = "bedplate://host-1/u-1";

    fn key(digit: char) -> String {
        digit.to_string().repeat(32)
    }

    fn claim(recorded: Option<&str>, state: Option<&str>, is_granted: bool) -> MachineClaim {
        let mut annotations = json!({ "bedplate.dev/enrollment": key('a') });
        if let Some(recorded) = recorded {
            annotations["bedplate.dev/tenant-enrollments"] = recorded.into();
        }
        let mut status = json!({});
        if let Some(state) = state {
            status = json!({ "providerID": ID, "state": state });
        }
        if is_granted {
            status["conditions"] = json!([{ "type": "Granted", "status": "True", "reason": "GrantWithdrawn",
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
        }
        let object = json!({ "metadata": { "name": "host-1", "uid": "claim-1", "annotations": annotations },
            "spec": { "claimant": { "namespace": "team-a", "name": "w-1", "uid": "u-1" }, "clusterName": "c",
                "role": "Worker", "nodeName": "w-1", "providerID": ID, "configurationRef": { "name": "pool" },
                "release": "Wipe" }, "status": status });
        serde_json::from_value(object).unwrap()
    }

    fn host(key: Option<&str>, more: &Value) -> Machine {
        let mut status = json!({ "enrollment": { "keyID": key } });
        status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let object =
            json!({ "metadata": { "name": "host-1" }, "spec": { "provider": "pxe" }, "status": status });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn d7_copied_key_does_not_end_a_claim_with_wipe() {
        let wiped = json!({ "stateDisk": { "name": "d", "wipeToken": "claim-1" } });
        let (a, b) = (key('a'), key('b'));
        let both = format!("{a},{b}");
        for (recorded, present, expected) in [
            (None, Some(&a), Some(OwedWipe::Key)),
            (Some(&a), Some(&a), Some(OwedWipe::Key)),
            (Some(&a), Some(&b), None),
            // The host has got another key while its tenant held it.
            (Some(&both), Some(&b), Some(OwedWipe::Key)),
            (Some(&both), Some(&key('c')), None),
            (Some(&a), None, Some(OwedWipe::Key)),
        ] {
            let claim = claim(recorded.map(String::as_str), Some("Released"), true);
            let host = |more| host(present.map(String::as_str), more);
            assert_eq!(owed_wipe(&claim, &host(&wiped)), expected, "{recorded:?} {present:?}");
            assert_eq!(owed_wipe(&claim, &host(&json!({}))), expected, "in memory: {recorded:?} {present:?}");
        }
        let other = json!({ "stateDisk": { "name": "d", "wipeToken": "claim-0" } });
        let released = claim(Some(&a), Some("Released"), true);
        assert_eq!(owed_wipe(&released, &host(Some(&b), &other)), Some(OwedWipe::Disk));
        let never = claim(None, Some("Released"), false);
        assert_eq!(owed_wipe(&never, &host(Some(&a), &other)), None);
    }

    #[test]
    fn d7_claim_that_waits_for_its_wipe_says_why() {
        let (a, b) = (key('a'), key('b'));
        let token = |token: &str| json!({ "stateDisk": { "name": "d", "wipeToken": token } });
        let mut elsewhere = token("claim-1");
        elsewhere["conditions"] = json!([{ "type": "Enrolled", "status": "True", "reason": "HeardElsewhere",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
        for (state, present, status, expected) in [
            ("Releasing", &a, token("claim-0"), None),
            ("Wiping", &a, token("claim-0"), Some(WipedReason::AwaitingWipe)),
            ("Wiping", &a, elsewhere, Some(WipedReason::KeyNotReplaced)),
            ("Released", &a, token("claim-0"), Some(WipedReason::NotWiped)),
            ("Released", &a, token("claim-1"), Some(WipedReason::KeyNotReplaced)),
            ("Released", &b, token("claim-1"), None),
        ] {
            let mut claim = claim(Some(&a), Some(state), true);
            let host = host(Some(present), &status);
            assert_eq!(unwiped(&claim, &host), None, "not deleted: {state}");
            claim.metadata.deletion_timestamp =
                Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
            assert_eq!(unwiped(&claim, &host), expected, "{state} {status}");
        }
    }

    #[test]
    fn d7_each_key_of_the_tenant_is_recorded_until_the_host_is_emptied() {
        let (a, b, c) = (key('a'), key('b'), key('c'));
        let (just_a, ab) = (a.clone(), format!("{a},{b}"));
        let wiping = json!({ "claim": { "providerID": ID, "state": "Wiping", "since": "2026-01-01T00:00:00Z",
            "claimant": { "namespace": "team-a", "name": "w-1" } } });
        for (claim, status, expected) in [
            (claim(None, None, false), json!({}), None),
            (claim(None, Some("Preparing"), false), json!({}), None),
            // The claim was created again after it had run.
            (claim(None, Some("Joined"), false), json!({}), Some(ab.clone())),
            (claim(None, Some("Joined"), true), json!({}), Some(ab.clone())),
            (claim(None, Some("Releasing"), true), json!({}), Some(ab.clone())),
            // The host has got another key before it was emptied, and the provider did not run.
            (claim(None, Some("Releasing"), true), wiping.clone(), Some(ab.clone())),
            (claim(None, None, false), wiping.clone(), Some(ab)),
            (claim(None, Some("Wiping"), true), json!({}), Some(just_a.clone())),
            (claim(None, Some("Released"), true), json!({}), Some(just_a)),
            (claim(Some(&c), Some("Wiping"), true), json!({}), Some(format!("{c},{a}"))),
            (claim(Some(&a), Some("Wiping"), true), json!({}), Some(a.clone())),
        ] {
            let found = enrollments_to_record(&claim, Some(&host(Some(&b), &status)), &b);
            assert_eq!(found, expected, "{:?} {status}", claim.status);
        }
        let many: Vec<String> = (0..MAX_ENROLLMENTS).map(|number| format!("{number:032x}")).collect();
        let full = claim(Some(&many.join(",")), Some("Wiping"), true);
        let recorded = enrollments_to_record(&full, None, &b).unwrap();
        assert_eq!(recorded.split(',').count(), MAX_ENROLLMENTS);
        assert!(recorded.ends_with(&a), "the latest one stays");
    }
}
