//! The grant of a claim, its end, and claims whose claimant is gone or restored.

use serde_json::{Value, json};

use super::*;

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
    Observed { claim: Arc::new(claim), host: Some(Arc::new(host)), claimant: claimant.map(Arc::new) }
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
    let other_key = "f".repeat(32);
    let other = seen(claim(&none, &none), Some(holding("u-1")), host(late, &other_key, None));
    assert_eq!(next(&other), ClaimStep::AwaitAgent);
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
    let found = status(&orphan, ClaimStep::Orphan, None, now());
    let types: Vec<_> =
        found.conditions.iter().map(|one| (one.type_.as_str(), one.status.as_str())).collect();
    assert_eq!(types, [("Granted", "True"), ("Orphaned", "True")]);
}

#[test]
fn d4_right_to_read_ends_with_the_start_or_the_end_of_the_claim() {
    let none = json!({});
    for (reason, state, is_ended) in [
        ("Granted", None, false),
        ("Granted", Some("Preparing"), false),
        ("Granted", Some("Bootstrapping"), true),
        ("Granted", Some("Failed"), true),
        ("GrantWithdrawn", Some("Joined"), false),
        ("GrantFailed", None, false),
    ] {
        assert_eq!(must_withdraw(&claim(&none, &granted(reason, state))), is_ended, "{reason} {state:?}");
    }
    let deleted = json!({ "deletionTimestamp": "2026-01-01T00:30:00Z" });
    assert!(must_withdraw(&claim(&deleted, &granted("Granted", Some("Preparing")))));
    assert!(!must_withdraw(&claim(&deleted, &granted("GrantWithdrawn", Some("Joined")))));
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
    let gone = Observed { claim: Arc::new(claim(&deleted, &json!({}))), host: None, claimant: None };
    assert_eq!(next(&gone), ClaimStep::RemoveFinalizer);
}
