//! The grant of a claim, its end, and claims whose claimant is gone or restored.

use bedplate_api::claim::ReleasePolicy;
use serde_json::{Value, json};

use super::*;
use crate::infrastructure::claim::clock::FutureHeartbeats;

const ID: &str = "bedplate://host-1/u-1";
const KEY: &str = "0123456789abcdef0123456789abcdef";

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn claim(metadata: &Value, status: &Value) -> MachineClaim {
    let mut value = json!({ "metadata": { "name": "host-1", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": { "bedplate.dev/enrollment": KEY } },
        "spec": { "claimant": { "namespace": "team-a", "name": "w-1", "uid": "u-1" }, "clusterName": "c", "role": "Worker",
            "nodeName": "w-1", "providerID": ID, "configurationRef": { "name": "pool" }, "bootstrapSecretName": "data",
            "release": "Empty" }, "status": status });
    value["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    serde_json::from_value(value).unwrap()
}

fn claimant(uid: &str, spec: &Value) -> BedplateMachine {
    let mut value = json!({ "metadata": { "name": "w-1", "namespace": "team-a", "uid": uid },
        "spec": { "configurationRef": { "name": "pool" } } });
    value["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(value).unwrap()
}

fn holding(uid: &str) -> BedplateMachine {
    claimant(uid, &json!({ "machineName": "host-1", "providerID": ID }))
}

fn host(heartbeat: &str, key: &str, record: Option<(&str, &str)>) -> Machine {
    let mut status = json!({ "agent": { "lastHeartbeatTime": heartbeat }, "enrollment": { "keyID": key } });
    if let Some((id, state)) = record {
        status["claim"] = json!({ "providerID": id, "claimant": { "namespace": "team-a", "name": "w-1" }, "state": state,
            "since": "2026-01-01T00:00:00Z" });
    }
    serde_json::from_value(
        json!({ "metadata": { "name": "host-1" }, "spec": { "provider": "manual" }, "status": status }),
    )
    .unwrap()
}

fn seen(claim: MachineClaim, claimant: Option<BedplateMachine>, host: Machine) -> Observed {
    Observed {
        claim: Arc::new(claim),
        host: Some(Arc::new(host)),
        claimant: claimant.map(Arc::new),
        right: Right::NotNeeded,
        operation: None,
        future_heartbeat: None,
        now: now(),
    }
}

fn granted(reason: &str, state: Option<&str>) -> Value {
    let mut status = json!({ "conditions": [{ "type": "Granted", "status": "True", "reason": reason, "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
    if let Some(state) = state {
        status["providerID"] = ID.into();
        status["state"] = state.into();
    }
    status
}

#[test]
fn d1_grant_follows_the_claimant_and_a_heartbeat_of_the_right_enrollment() {
    let (none, early, late) = (json!({}), "2025-12-31T23:59:59Z", "2026-01-01T00:00:01Z");
    let step = |claimant, host| next(&seen(claim(&none, &none), claimant, host));
    assert_eq!(step(Some(holding("u-1")), host(late, KEY, None)), ClaimStep::Grant);
    assert_eq!(step(Some(holding("u-1")), host(early, KEY, None)), ClaimStep::AwaitAgent);
    for (is_changed, expected) in [(false, ClaimStep::AwaitAgent), (true, ClaimStep::Grant)] {
        let ahead = "2026-01-01T02:00:00Z";
        let mut ahead = seen(claim(&none, &none), Some(holding("u-1")), host(ahead, KEY, None));
        ahead.future_heartbeat = sight(&ahead, ahead.now, is_changed);
        assert_eq!(next(&ahead), expected, "{is_changed}");
    }
    let other_key = "f".repeat(32);
    let other = seen(claim(&none, &none), Some(holding("u-1")), host(late, &other_key, None));
    assert_eq!(next(&other), ClaimStep::CorrectEnrollment);
    assert_eq!(enrollment(&other).map(ToString::to_string), Some(other_key));
    let recorded = claimant("u-1", &json!({ "machineName": "host-1" }));
    assert_eq!(step(Some(recorded), host(late, KEY, None)), ClaimStep::AwaitProviderId);
    assert_eq!(step(Some(holding("u-2")), host(late, KEY, None)), ClaimStep::CorrectUid);
    let again = claimant("u-2", &json!({ "machineName": "host-1" }));
    assert_eq!(found(&claim(&none, &none), Some(&again)), Found::Absent);
    let elsewhere = claimant("u-1", &json!({ "machineName": "host-2" }));
    assert_eq!(step(Some(elsewhere), host(late, KEY, None)), ClaimStep::Delete);
}

#[test]
fn d1_claim_without_a_claimant_is_deleted_only_if_nothing_has_run() {
    let (none, early, late) = (json!({}), "2025-12-31T23:59:59Z", "2026-01-01T00:00:01Z");
    for (status, record, heartbeat, expected) in [
        (json!({}), None, early, ClaimStep::AwaitAgent),
        (json!({}), None, late, ClaimStep::Delete),
        (json!({}), Some((ID, "Preparing")), late, ClaimStep::Delete),
        // The status was lost with a backup: the host reports that it runs the claim.
        (json!({}), Some((ID, "Joined")), late, ClaimStep::Orphan),
        (json!({}), Some((ID, "AddedLater")), late, ClaimStep::Orphan),
        (json!({ "providerID": ID, "state": "Bootstrapping" }), None, late, ClaimStep::Orphan),
        (granted("Granted", None), None, late, ClaimStep::Orphan),
    ] {
        let seen = seen(claim(&none, &status), None, host(heartbeat, KEY, record));
        assert_eq!(next(&seen), expected, "{status} {record:?}");
    }
    let orphan = claim(&none, &granted("Granted", Some("Joined")));
    let found = status(&seen(orphan, None, host(late, KEY, None)), ClaimStep::Orphan, None);
    let types: Vec<_> =
        found.conditions.iter().map(|one| (one.type_.as_str(), one.status.as_str())).collect();
    assert_eq!(types, [("Granted", "True"), ("Orphaned", "True")]);
}

#[test]
fn d7_orphaned_claim_is_deleted_once_its_host_has_released_it() {
    let late = "2026-01-01T00:00:01Z";
    let of = |state| granted("GrantWithdrawn", Some(state));
    for (status, record, expected) in [
        (of("Joined"), Some((ID, "Joined")), ClaimStep::Orphan),
        (of("Releasing"), Some((ID, "Releasing")), ClaimStep::Orphan),
        (of("Released"), Some((ID, "Released")), ClaimStep::Delete),
        // One of both reports is behind. A host never runs a claim again that it has released.
        (of("Joined"), Some((ID, "Released")), ClaimStep::Delete),
        (of("Released"), Some((ID, "Joined")), ClaimStep::Delete),
        // The release of another claim.
        (of("Joined"), Some(("bedplate://host-1/u-0", "Released")), ClaimStep::Orphan),
    ] {
        let seen = seen(claim(&json!({}), &status), None, host(late, KEY, record));
        assert_eq!(next(&seen), expected, "{status} {record:?}");
    }
    let deleted = json!({ "deletionTimestamp": "2026-01-01T00:30:00Z" });
    let seen = seen(claim(&deleted, &of("Released")), None, host(late, KEY, Some((ID, "Released"))));
    assert_eq!(next(&seen), ClaimStep::RemoveFinalizer);
}

/// Step of a claim whose Role and RoleBinding exist.
fn step_with_right(
    claim: MachineClaim,
    claimant: Option<BedplateMachine>,
    key: &str,
) -> (ClaimStep, Observed) {
    let mut seen = seen(claim, claimant, host("2026-01-01T00:59:00Z", key, None));
    seen.right = Right::Complete;
    (next(&seen), seen)
}

#[test]
fn d4_right_to_read_is_ended_by_what_exists() {
    let none = json!({});
    let deleted = json!({ "deletionTimestamp": "2026-01-01T00:30:00Z" });
    for (metadata, status) in [
        (&none, granted("Granted", Some("Bootstrapping"))),
        (&none, granted("Granted", Some("Failed"))),
        // The process was killed after the Role, before the condition.
        (&deleted, json!({})),
        (&deleted, granted("Granted", Some("Preparing"))),
        (&deleted, granted("GrantWithdrawn", Some("Preparing"))),
    ] {
        let (step, _) = step_with_right(claim(metadata, &status), Some(holding("u-1")), KEY);
        assert_eq!(step, ClaimStep::Withdraw, "{metadata} {status}");
    }
    let open = || claim(&none, &granted_at("2026-01-01T00:50:00Z"));
    assert_eq!(step_with_right(open(), Some(holding("u-1")), KEY).0, ClaimStep::Granted);
    assert_eq!(step_with_right(open(), None, KEY).0, ClaimStep::Withdraw);
    // Another writer has deleted the RoleBinding.
    let (_, mut seen) = step_with_right(open(), Some(holding("u-1")), KEY);
    seen.right = Right::Partial;
    assert_eq!(next(&seen), ClaimStep::Grant);
}

fn granted_at(time: &str) -> Value {
    json!({ "conditions": [{ "type": "Granted", "status": "True", "reason": "Granted", "message": "",
        "lastTransitionTime": time }] })
}

#[test]
fn d4_right_of_a_former_key_ends_before_the_claim_names_the_next() {
    let open = claim(&json!({}), &granted_at("2026-01-01T00:50:00Z"));
    let (step, mut seen) = step_with_right(open, Some(holding("u-1")), &"f".repeat(32));
    assert_eq!((step, withdrawn(&seen)), (ClaimStep::Withdraw, Some(GrantedReason::EnrollmentChanged)));
    seen.right = Right::Absent;
    assert_eq!(next(&seen), ClaimStep::CorrectEnrollment);
    // Otherwise no report of the release is accepted.
    let deleted =
        claim(&json!({ "deletionTimestamp": "2026-01-01T00:30:00Z" }), &granted("GrantWithdrawn", None));
    let seen = self::seen(deleted, Some(holding("u-1")), host("2026-01-01T00:59:00Z", &"f".repeat(32), None));
    assert_eq!(next(&seen), ClaimStep::CorrectEnrollment);
}

#[test]
fn d4_grant_expires_and_its_condition_names_the_remedy() {
    let late = claim(&json!({}), &granted_at("2026-01-01T00:44:59Z"));
    let (step, mut seen) = step_with_right(late, Some(holding("u-1")), KEY);
    assert_eq!((step, withdrawn(&seen)), (ClaimStep::Withdraw, Some(GrantedReason::GrantExpired)));
    let reason = GrantedReason::GrantExpired;
    let found = status(&seen, step, Some((reason, reason.meaning())));
    assert_eq!(
        (found.conditions[0].status.as_str(), found.conditions[0].reason.as_str()),
        ("False", "GrantExpired")
    );
    let mut expired = (*seen.claim).clone();
    expired.status = Some(found);
    (seen.claim, seen.right) = (Arc::new(expired), Right::Absent);
    assert_eq!(next(&seen), ClaimStep::Overdue);
    // It may have started all the same.
    seen.claimant = None;
    assert_eq!(next(&seen), ClaimStep::Orphan);
}

#[test]
fn d1_claim_is_not_granted_over_another_unreleased_record() {
    let (none, late) = (json!({}), "2026-01-01T00:00:01Z");
    let other = "bedplate://host-1/u-0";
    for (state, expected) in [
        ("Joined", ClaimStep::AwaitHost),
        ("Failed", ClaimStep::AwaitHost),
        ("AddedLater", ClaimStep::AwaitHost),
        ("Preparing", ClaimStep::Grant),
        ("Released", ClaimStep::Grant),
    ] {
        let seen = seen(claim(&none, &none), Some(holding("u-1")), host(late, KEY, Some((other, state))));
        assert_eq!(next(&seen), expected, "{state}");
    }
    // Another claimant with this ID has another record.
    let mut foreign = host(late, KEY, Some((ID, "Joined")));
    foreign.status.as_mut().unwrap().claim.as_mut().unwrap().claimant.namespace = "team-b".to_owned();
    assert_eq!(next(&seen(claim(&none, &none), Some(holding("u-1")), foreign)), ClaimStep::AwaitHost);
}

fn silent(bmc: bool, annotations: &Value, operation: Option<&str>) -> Observed {
    let deleted = claim(
        &json!({ "uid": "c-1", "deletionTimestamp": "2026-01-01T00:30:00Z" }),
        &granted("GrantWithdrawn", Some("Joined")),
    );
    let mut claimant = holding("u-1");
    claimant.metadata.deletion_timestamp = Some(bedplate_api::machine::Time(now()));
    let mut host = host("2026-01-01T00:20:00Z", KEY, Some((ID, "Joined")));
    host.metadata.annotations = serde_json::from_value(annotations.clone()).unwrap();
    if bmc {
        let bmc = json!({ "protocol": "Redfish", "address": "10.7.0.9",
            "credentialsSecretRef": { "name": "b", "namespace": "n" } });
        host.spec.bmc = serde_json::from_value(bmc).unwrap();
    }
    let mut seen = seen(deleted, Some(claimant), host);
    seen.operation = operation.map(|state| {
        let mut operation = fence(&seen.claim).unwrap();
        operation.status =
            serde_json::from_value(json!({ "state": state, "message": "no route to 10.7.0.9" })).unwrap();
        Arc::new(operation)
    });
    seen
}

#[test]
fn d8_operation_that_powers_no_host_off_does_not_fence() {
    for (field, value) in [
        ("operationName", json!("powerOn")),
        ("machineRef", json!({ "name": "other" })),
        ("parameters", json!({})),
        ("parameters", json!({ "force": "false" })),
    ] {
        let mut seen = silent(true, &json!({}), Some("Complete"));
        let mut operation = (**seen.operation.as_ref().unwrap()).clone();
        let mut spec = json!(operation.spec);
        spec[field] = value;
        operation.spec = serde_json::from_value(spec).unwrap();
        seen.operation = Some(Arc::new(operation));
        let step = next(&seen);
        assert_eq!(step, ClaimStep::AwaitPowerOff, "{field}");
        let found = status(&seen, step, None);
        let fenced = found.conditions.iter().find(|one| one.type_ == "Fenced").unwrap();
        assert_eq!(fenced.reason, "PowerOffFailed");
        assert!(fenced.message.contains("is not a forced powerOff of this Machine"), "{}", fenced.message);
    }
}

#[test]
fn d8_silent_host_is_powered_off_before_it_counts_as_fenced() {
    let none = json!({});
    for (operation, expected, reason) in [
        (None, ClaimStep::PowerOff, None),
        (Some("Pending"), ClaimStep::AwaitPowerOff, Some("PoweringOff")),
        (Some("InProgress"), ClaimStep::AwaitPowerOff, Some("PoweringOff")),
        (Some("AddedLater"), ClaimStep::AwaitPowerOff, Some("PoweringOff")),
        (Some("Failed"), ClaimStep::AwaitPowerOff, Some("PowerOffFailed")),
        (Some("Complete"), ClaimStep::Fence, Some("PoweredOff")),
    ] {
        let seen = silent(true, &none, operation);
        let step = next(&seen);
        let found = status(&seen, step, None);
        let fenced = found.conditions.iter().find(|one| one.type_ == "Fenced");
        assert_eq!((step, fenced.map(|one| one.reason.as_str())), (expected, reason), "{operation:?}");
        assert_eq!(fenced.is_some_and(|one| one.status == "True"), expected == ClaimStep::Fence);
        let mut fenced = seen.clone();
        let mut claim = (*seen.claim).clone();
        claim.status.as_mut().unwrap().conditions = found.conditions;
        fenced.claim = Arc::new(claim);
        if expected == ClaimStep::Fence {
            assert_eq!(
                next(&fenced),
                ClaimStep::AwaitRelease,
                "the claim stays until the host has emptied itself"
            );
        }
    }
    assert_eq!(fence_name(&silent(true, &none, None).claim), "fence-c-1");
    assert_eq!(json!(fence(&silent(true, &none, None).claim).unwrap().spec)["parameters"]["force"], "true");
}

#[test]
fn d8_host_without_a_bmc_waits_for_a_user() {
    let seen = silent(false, &json!({}), None);
    let step = next(&seen);
    assert_eq!(step, ClaimStep::AwaitPowerOff);
    let found = status(&seen, step, None);
    let fenced = found.conditions.iter().find(|one| one.type_ == "Fenced").unwrap();
    assert_eq!((fenced.status.as_str(), fenced.reason.as_str()), ("False", "HostSilent"));
    assert!(
        fenced.message.contains("confirm it: `bedplate claim release host-1 --host-is-off`"),
        "{}",
        fenced.message
    );
    let other = json!({ "bedplate.dev/host-is-off": "bedplate://host-1/u-0" });
    assert_eq!(next(&silent(false, &other, None)), ClaimStep::AwaitPowerOff);
    let own = json!({ "bedplate.dev/host-is-off": ID });
    let seen = silent(false, &own, None);
    assert_eq!(next(&seen), ClaimStep::Fence);
    let found = status(&seen, ClaimStep::Fence, None);
    assert_eq!(found.conditions.last().map(|one| one.reason.as_str()), Some("ConfirmedByUser"));
}

#[test]
fn d8_confirmation_counts_whatever_time_the_host_has_reported() {
    let own = json!({ "bedplate.dev/host-is-off": ID });
    let mut seen = silent(false, &own, None);
    let mut host = (**seen.host.as_ref().unwrap()).clone();
    let agent = host.status.as_mut().unwrap().agent.as_mut().unwrap();
    // With the timeout, it is later than any time that can be counted.
    agent.last_heartbeat_time =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time("9999-12-30T21:50:00Z".parse().unwrap()));
    seen.host = Some(Arc::new(host));
    assert_eq!(next(&seen), ClaimStep::Fence);
}

#[test]
fn d8_timeout_starts_with_the_deletion_and_follows_the_heartbeat() {
    let mut seen = silent(false, &json!({}), None);
    seen.now = "2026-01-01T00:44:59Z".parse().unwrap();
    assert_eq!(next(&seen), ClaimStep::AwaitRelease);
    seen.now = "2026-01-01T00:45:00Z".parse().unwrap();
    assert_eq!(next(&seen), ClaimStep::AwaitPowerOff);
    let mut claimant = (**seen.claimant.as_ref().unwrap()).clone();
    claimant.spec.release_timeout_seconds = Some(1800);
    seen.claimant = Some(Arc::new(claimant));
    assert_eq!(next(&seen), ClaimStep::AwaitRelease);
}

#[test]
fn d8_heartbeat_of_the_future_does_not_delay_the_fence() {
    let mut seen = silent(false, &json!({}), None);
    let mut host = (**seen.host.as_ref().unwrap()).clone();
    let agent = host.status.as_mut().unwrap().agent.as_mut().unwrap();
    agent.last_heartbeat_time = Some(serde_json::from_value(json!("2999-12-31T23:59:59Z")).unwrap());
    seen.host = Some(Arc::new(host));
    seen.now = "2026-01-01T00:45:00Z".parse().unwrap();
    for (seen_at, expected) in [
        ("2026-01-01T00:20:00Z", ClaimStep::AwaitPowerOff),
        ("2026-01-01T00:40:00Z", ClaimStep::AwaitRelease),
    ] {
        seen.future_heartbeat = sight(&seen, seen_at.parse().unwrap(), true);
        assert_eq!(next(&seen), expected, "{seen_at}");
    }
}

/// The heartbeat of a host whose clock is ahead.
fn sight(of: &Observed, seen_at: Timestamp, is_changed: bool) -> Option<FutureHeartbeat> {
    let sights = FutureHeartbeats::default();
    let host = of.host.as_deref().unwrap();
    if is_changed {
        let mut earlier = host.clone();
        let agent = earlier.status.as_mut().unwrap().agent.as_mut().unwrap();
        agent.last_heartbeat_time = Some(serde_json::from_value(json!("2500-01-01T00:00:00Z")).unwrap());
        sights.see(&earlier, seen_at);
    }
    sights.see(host, seen_at)
}

#[test]
fn d7_paused_cluster_keeps_no_host_whose_claimant_is_gone() {
    let (none, deleted) = (json!({}), json!({ "deletionTimestamp": "2026-01-01T00:30:00Z" }));
    let (joined, released) = (granted("Granted", Some("Joined")), granted("Granted", Some("Released")));
    let late = "2026-01-01T00:31:00Z";
    for (metadata, status, claimant, expected) in [
        (&deleted, &joined, None, true),
        (&deleted, &joined, Some(holding("u-1")), false),
        // A user may create another object with the name of the claimant.
        (&deleted, &joined, Some(holding("u-2")), true),
        (&none, &released, None, true),
        (&none, &released, Some(holding("u-1")), false),
        (&none, &joined, None, false),
        (&none, &joined, Some(holding("u-2")), false),
    ] {
        let uid = claimant.as_ref().and_then(|claimant| claimant.metadata.uid.clone());
        let seen = seen(claim(metadata, status), claimant, host(late, KEY, None));
        assert_eq!(is_abandoned(&seen), expected, "{metadata} {status} {uid:?}");
    }
}

#[test]
fn m9_finalizer_stays_until_this_claim_is_released() {
    let (deleted, late) = (json!({ "deletionTimestamp": "2026-01-01T00:30:00Z" }), "2026-01-01T00:31:00Z");
    let other = "bedplate://host-1/u-0";
    for (status, record, expected) in [
        (granted("GrantWithdrawn", Some("Joined")), None, ClaimStep::AwaitRelease),
        (granted("GrantWithdrawn", Some("Released")), None, ClaimStep::RemoveFinalizer),
        // The agent reports an earlier claim: this one has not run, if it was not granted.
        (
            json!({ "providerID": other, "state": "Released" }),
            Some((other, "Released")),
            ClaimStep::RemoveFinalizer,
        ),
        (granted("Granted", None), Some((other, "Released")), ClaimStep::AwaitRelease),
        (json!({}), None, ClaimStep::AwaitRelease),
    ] {
        let seen = seen(claim(&deleted, &status), None, host(late, KEY, record));
        assert_eq!(next(&seen), expected, "{status} {record:?}");
    }
    let mut gone = seen(claim(&deleted, &json!({})), None, host(late, KEY, None));
    gone.host = None;
    assert_eq!(next(&gone), ClaimStep::RemoveFinalizer);
}

/// Claim whose host has another key than its tenant had.
fn rekeyed(metadata: &Value, status: &Value) -> MachineClaim {
    let mut claim = claim(metadata, status);
    let annotations = claim.metadata.annotations.as_mut().unwrap();
    annotations.insert("bedplate.dev/tenant-enrollments".to_owned(), "f".repeat(32));
    claim
}

#[test]
fn d7_claim_with_wipe_ends_with_the_token_of_its_own_wipe() {
    let deleted = json!({ "uid": "claim-1", "deletionTimestamp": "2026-01-01T00:30:00Z" });
    let released = granted("GrantWithdrawn", Some("Released"));
    let disk = |token: Value| json!({ "stateDisk": { "name": "d", "wipeToken": token } });
    let no_disk = json!({});
    let has_disk = json!({ "interfaces": [], "stateDisk": { "serial": "s" } });
    let memory = json!({ "interfaces": [] });
    for (release, status, pxe, reported, expected) in [
        ("Wipe", &released, &has_disk, disk(json!("claim-1")), ClaimStep::RemoveFinalizer),
        ("Wipe", &released, &has_disk, disk(json!("claim-0")), ClaimStep::AwaitRelease),
        ("Wipe", &released, &has_disk, disk(json!(null)), ClaimStep::AwaitRelease),
        ("Wipe", &released, &has_disk, no_disk.clone(), ClaimStep::AwaitRelease),
        // The selection of the disk was removed, and the host has not booted since.
        ("Wipe", &released, &memory, disk(json!(null)), ClaimStep::AwaitRelease),
        ("Wipe", &released, &memory, no_disk.clone(), ClaimStep::RemoveFinalizer),
        ("Empty", &released, &has_disk, disk(json!(null)), ClaimStep::RemoveFinalizer),
        // The token alone is not enough: the agent of the new key reports the release.
        (
            "Wipe",
            &granted("GrantWithdrawn", Some("Wiping")),
            &has_disk,
            disk(json!("claim-1")),
            ClaimStep::AwaitRelease,
        ),
        // It was never granted, so it never ran.
        (
            "Wipe",
            &json!({ "providerID": ID, "state": "Released" }),
            &has_disk,
            disk(json!(null)),
            ClaimStep::RemoveFinalizer,
        ),
    ] {
        let mut one = rekeyed(&deleted, status);
        one.spec.release = serde_json::from_value(json!(release)).unwrap();
        let machine = with_disk(&json!({ "provider": "pxe", "pxe": pxe }), &reported, KEY);
        assert_eq!(next(&seen(one, None, machine)), expected, "{release} {status} {pxe} {reported}");
    }
}

#[test]
fn d7_claim_that_waits_for_its_wipe_says_so_in_a_condition() {
    let deleted = json!({ "uid": "claim-1", "deletionTimestamp": "2026-01-01T00:30:00Z" });
    let spec = json!({ "provider": "pxe", "pxe": { "interfaces": [], "stateDisk": { "serial": "s" } },
        "claimPolicy": { "namespaces": ["team-a"], "release": "Wipe" } });
    let other_token = json!({ "stateDisk": { "name": "d", "wipeToken": "claim-0" } });
    for (state, expected) in
        [("Joined", None), ("Wiping", Some("AwaitingWipe")), ("Released", Some("NotWiped"))]
    {
        let one = rekeyed(&deleted, &granted("GrantWithdrawn", Some(state)));
        let seen = seen(one, None, with_disk(&spec, &other_token, KEY));
        assert_eq!(next(&seen), ClaimStep::AwaitRelease, "{state}");
        let status = status(&seen, ClaimStep::AwaitRelease, None);
        let wiped = status.conditions.iter().find(|one| one.type_ == condition_type::WIPED);
        let found = wiped.map(|one| (one.status.as_str(), one.reason.as_str()));
        assert_eq!(found, expected.map(|reason| ("False", reason)), "{state}");
    }
}

#[test]
fn d7_event_names_a_wipe_only_if_there_was_one() {
    let text = |release: &str, status: &Value, host: Option<&Machine>| {
        let mut claim = claim(&json!({}), status);
        claim.spec.release = serde_json::from_value(json!(release)).unwrap();
        end_text(&claim, host)
    };
    let (ran, never) = (granted("GrantWithdrawn", Some("Released")), json!({}));
    let host = |release: &str| {
        let spec = json!({ "provider": "pxe", "pxe": { "interfaces": [], "stateDisk": { "serial": "s" } },
            "claimPolicy": { "namespaces": ["team-a"], "release": release } });
        with_disk(&spec, &json!({}), KEY)
    };
    let (empty, wipe) = (host("Empty"), host("Wipe"));
    for (release, status, host, expected) in [
        ("Wipe", &ran, Some(&empty), true),
        ("Empty", &ran, Some(&wipe), true),
        ("Empty", &ran, Some(&empty), false),
        ("Wipe", &never, Some(&wipe), false),
        ("Wipe", &ran, None, false),
    ] {
        let text = text(release, status, host);
        assert_eq!(text.contains("after its wipe"), expected, "{release} {status}: {text}");
    }
}

fn with_disk(spec: &Value, status: &Value, key: &str) -> Machine {
    let mut machine = serde_json::to_value(host("2026-01-01T00:59:00Z", key, None)).unwrap();
    machine["spec"] = spec.clone();
    machine["status"].as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
    serde_json::from_value(machine).unwrap()
}

#[test]
fn d7_wipe_of_the_machine_strengthens_a_claim_that_asks_for_empty() {
    let deleted = json!({ "uid": "claim-1", "deletionTimestamp": "2026-01-01T00:30:00Z" });
    for (policy, token, expected) in [
        ("Wipe", None, ClaimStep::AwaitRelease),
        ("Wipe", Some("claim-0"), ClaimStep::AwaitRelease),
        ("Wipe", Some("claim-1"), ClaimStep::RemoveFinalizer),
        ("Empty", None, ClaimStep::RemoveFinalizer),
    ] {
        let one = rekeyed(&deleted, &granted("GrantWithdrawn", Some("Released")));
        assert_eq!(one.spec.release, ReleasePolicy::Empty);
        let spec = json!({ "provider": "pxe", "pxe": { "interfaces": [], "stateDisk": { "serial": "s" } },
            "claimPolicy": { "namespaces": ["team-a"], "release": policy } });
        let machine = with_disk(&spec, &json!({ "stateDisk": { "name": "d", "wipeToken": token } }), KEY);
        assert_eq!(next(&seen(one, None, machine)), expected, "{policy} {token:?}");
    }
}

#[test]
fn d7_wiped_host_reports_its_release_with_its_new_key() {
    let deleted = json!({ "uid": "claim-1", "deletionTimestamp": "2026-01-01T00:30:00Z" });
    let key = "f".repeat(32);
    let wiped = json!({ "stateDisk": { "name": "d", "wipeToken": "claim-1" } });
    let pxe = json!({ "provider": "pxe", "pxe": { "interfaces": [], "stateDisk": { "serial": "s" } } });
    for state in ["Wiping", "Released"] {
        let mut one = claim(&deleted, &granted("GrantWithdrawn", Some(state)));
        one.spec.release = ReleasePolicy::Wipe;
        // The former key has reported the whole wipe.
        let copied = seen(one.clone(), None, with_disk(&pxe, &wiped, KEY));
        assert_eq!(next(&copied), ClaimStep::AwaitRelease, "{state}");
        let mut seen = seen(one, None, with_disk(&pxe, &wiped, &key));
        assert_eq!(next(&seen), ClaimStep::CorrectEnrollment, "{state}");
        let corrected = enrollment_annotations(&seen).unwrap();
        let named = |name: &str| corrected.get(name).map(String::as_str);
        assert_eq!(named("bedplate.dev/enrollment"), Some(key.as_str()));
        assert_eq!(named("bedplate.dev/tenant-enrollments"), Some(KEY));
        let annotations = corrected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Arc::make_mut(&mut seen.claim).metadata.annotations = Some(annotations);
        let ends = if state == "Released" { ClaimStep::RemoveFinalizer } else { ClaimStep::AwaitRelease };
        assert_eq!(next(&seen), ends, "{state}");
    }
}

#[test]
fn d7_claim_that_was_created_again_has_run_and_owes_its_wipe() {
    let late = "2026-01-01T00:59:00Z";
    let reports = |state: &str| json!({ "providerID": ID, "state": state });
    let granted = |claim: MachineClaim, record: Option<&str>, step| {
        let seen = seen(claim, Some(holding("u-1")), host(late, KEY, record.map(|state| (ID, state))));
        let conditions = status(&seen, step, None).conditions;
        conditions.into_iter().find(|one| one.type_ == "Granted").map(|one| (one.status, one.reason))
    };
    let withdrawn = Some(("True".to_owned(), "GrantWithdrawn".to_owned()));
    for state in ["Bootstrapping", "Joined", "Failed", "AddedLater"] {
        let again = || claim(&json!({}), &reports(state));
        assert_eq!(granted(again(), None, ClaimStep::Granted), withdrawn, "{state}");
        let deleted = claim(&json!({ "deletionTimestamp": "2026-01-01T00:30:00Z" }), &json!({}));
        assert_eq!(granted(deleted, Some(state), ClaimStep::AwaitRelease), withdrawn, "{state}");
    }
    for state in ["Preparing", "Releasing", "Released"] {
        assert_eq!(
            granted(claim(&json!({}), &reports(state)), None, ClaimStep::AwaitRelease),
            None,
            "{state}"
        );
    }
    assert_eq!(
        granted(claim(&json!({}), &json!({})), None, ClaimStep::AwaitAgent).map(|(_, reason)| reason),
        Some("AwaitingAgent".to_owned())
    );
}

#[test]
fn d4_host_that_refuses_a_claim_for_another_one_is_not_granted_it() {
    let late = "2026-01-01T00:59:00Z";
    let refuses = |state: &str| json!({ "providerID": "bedplate://host-1/u-0", "state": state, "reason": "ClaimRefused" });
    for (state, record, expected) in [
        ("Joined", None, ClaimStep::AwaitHost),
        ("Wiping", None, ClaimStep::AwaitHost),
        // The record was restored from a backup.
        ("Joined", Some(("bedplate://host-1/u-2", "Released")), ClaimStep::AwaitHost),
        ("Released", None, ClaimStep::Grant),
    ] {
        let seen = seen(claim(&json!({}), &refuses(state)), Some(holding("u-1")), host(late, KEY, record));
        assert_eq!(next(&seen), expected, "{state} {record:?}");
    }
}

#[test]
fn d8_silent_host_is_not_powered_off_in_the_middle_of_its_wipe() {
    for (state, expected) in [("Releasing", ClaimStep::PowerOff), ("Wiping", ClaimStep::AwaitRelease)] {
        let mut seen = silent(true, &json!({}), None);
        Arc::make_mut(&mut seen.claim).status =
            serde_json::from_value(granted("GrantWithdrawn", Some(state))).unwrap();
        assert_eq!(next(&seen), expected, "{state}");
    }
}
