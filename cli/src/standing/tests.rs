//! Hosts of a pool and their claims, in tables.

use serde_json::{Value, json};

use super::*;

pub(crate) fn machine(spec: &Value, status: &Value) -> Machine {
    let mut object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "host-1" },
        "spec": { "provider": "manual", "claimPolicy": { "namespaces": ["team-a"] } }, "status": status });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(object).unwrap()
}

pub(crate) fn claim(metadata: &Value, status: &Value) -> MachineClaim {
    let mut object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineClaim",
        "metadata": { "name": "host-1", "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "claimant": { "namespace": "team-a", "name": "w-1", "uid": "u" }, "clusterName": "c", "role": "Worker",
            "nodeName": "w-1", "providerID": "bedplate://host-1/u", "configurationRef": { "name": "pool" },
            "release": "Empty" }, "status": status });
    object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    serde_json::from_value(object).unwrap()
}

pub(crate) fn record(state: &str, uid: &str) -> Value {
    json!({ "providerID": format!("bedplate://host-1/{uid}"), "state": state, "since": "2026-01-01T00:05:00Z",
        "claimant": { "namespace": "team-a", "name": "w-1" } })
}

pub(crate) fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

/// Status of a host that may be claimed.
pub(crate) fn free() -> Value {
    json!({ "enrollment": { "keyID": "0123456789abcdef0123456789abcdef" },
        "agent": { "features": ["claims"], "lastHeartbeatTime": "2026-01-01T00:08:00Z" } })
}

fn selected(name: &str) -> Value {
    json!({ "name": name, "version": 3, "source": "Claim" })
}

fn status(state: &str) -> Value {
    json!({ "providerID": "bedplate://host-1/u", "state": state, "since": "2026-01-01T00:05:00Z" })
}

#[test]
fn d1_state_of_a_line_is_that_of_the_claim_then_that_of_the_host() {
    let of = |machine_status: &Value, claim: Option<MachineClaim>| {
        HostClaim::new(&machine(&json!({}), machine_status), claim.as_ref(), now()).state
    };
    let held = json!({ "claim": record("Joined", "u") });
    let earlier = claim(&json!({}), &json!({ "providerID": "bedplate://host-1/earlier", "state": "Joined" }));
    let released = |more: Value| {
        let mut status = free();
        status["claim"] = record("Released", "u");
        status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        status
    };
    let silent = released(json!({ "agent": { "features": ["claims"] } }));
    for (machine, claim, expected) in [
        (&free(), None, "Free"),
        (&released(json!({})), None, "Free"),
        (&silent, None, "Silent"),
        (&json!({}), None, "NotEnrolled"),
        (&held, None, "ClaimMissing"),
        (&json!({}), Some(claim(&json!({}), &json!({}))), "Pending"),
        (&held, Some(claim(&json!({}), &status("Joined"))), "Joined"),
        // The report is about an earlier claim.
        (&held, Some(earlier), "Pending"),
    ] {
        assert_eq!(of(machine, claim), expected);
    }
}

#[test]
fn d1_disagreements_of_claim_host_and_version_are_named() {
    let present = ClaimantSeen::Present {
        uid: "u".to_owned(),
        provider_id: Some("bedplate://host-1/u".to_owned()),
        deleting: false,
    };
    let joined = json!({ "claim": record("Joined", "u"), "selected": selected("pool") });
    for (machine_status, claim, claimant, expected) in [
        (&joined, Some(status("Joined")), &present, vec![]),
        (&joined, None, &present, vec!["there is no MachineClaim host-1", "is selected by a claim"]),
        (&joined, Some(status("Bootstrapping")), &present, vec!["record of the host is Joined"]),
        (&joined, Some(status("Joined")), &ClaimantSeen::Absent, vec!["the claimant does not exist"]),
        (
            &json!({ "claim": record("Joined", "earlier"), "selected": selected("pool") }),
            Some(json!({})),
            &present,
            vec!["the host holds claim bedplate://host-1/earlier"],
        ),
        (
            &json!({ "selected": selected("pool") }),
            Some(status("Joined")),
            &present,
            vec!["the host has no record of this claim"],
        ),
        (
            &json!({ "claim": record("Joined", "u") }),
            Some(status("Joined")),
            &present,
            vec!["no version of pool"],
        ),
        (
            &json!({ "claim": record("Joined", "u"), "selected": selected("other") }),
            Some(status("Joined")),
            &present,
            vec!["other-v3 is selected, and the claim names pool"],
        ),
        (&json!({}), None, &ClaimantSeen::None, vec![]),
    ] {
        let machine = machine(&json!({}), machine_status);
        let claim = claim.as_ref().map(|status| super::tests::claim(&json!({}), status));
        let found = differences(&machine, claim.as_ref(), claimant);
        // Each difference is named, and no other one.
        let of_selection = |text: &&String| !text.contains("is selected by a claim");
        assert_eq!(
            found.iter().filter(of_selection).count(),
            expected.iter().filter(|e| !e.contains("by a claim")).count(),
            "{found:?}"
        );
        for part in expected {
            assert!(found.iter().any(|text| text.contains(part)), "{part}: {found:?}");
        }
    }
}

#[test]
fn d1_next_steps_are_those_of_the_table_of_reasons() {
    let condition = |type_: &str, status: &str, reason: &str| json!({ "type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let mut failed = status("Failed");
    failed["reason"] = json!("UserDataRefused");
    failed["conditions"] =
        json!([condition("Granted", "True", "Granted"), condition("Orphaned", "True", "ClaimantNotFound")]);
    let steps = next(&claim(&json!({}), &failed));
    assert_eq!(steps.len(), 2, "{steps:?}");
    assert!(
        steps[0].starts_with("Orphaned ClaimantNotFound: ")
            && steps[1].starts_with("Paved UserDataRefused: ")
    );
    // A user can copy the command.
    assert!(steps[0].contains("`bedplate claim release host-1`"), "{steps:?}");
}

#[test]
fn d7_claim_that_waits_for_a_wipe_says_so() {
    let granted = json!([{ "type": "Granted", "status": "True", "reason": "GrantWithdrawn", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    let mut status = status("Released");
    status["conditions"] = granted;
    let key = |name: &str| json!({ "bedplate.dev/tenant-enrollments": name.repeat(32) });
    let deleted = |name| json!({ "uid": "claim-1", "deletionTimestamp": "2026-01-01T00:06:00Z", "annotations": key(name) });
    let live = json!({ "uid": "claim-1", "annotations": key("b") });
    let wipe = json!({ "claimPolicy": { "namespaces": ["team-a"], "release": "Wipe" } });
    let of = |metadata: &Value, token: &str, status: &Value, conditions: &Value| {
        let reported = json!({ "stateDisk": { "name": "d", "wipeToken": token }, "conditions": conditions,
            "enrollment": { "keyID": "a".repeat(32) } });
        let claim = claim(metadata, status);
        Standing::new(&machine(&wipe, &reported), Some(&claim), &ClaimantSeen::None, now())
    };
    for (metadata, token, expected) in [
        (&deleted("b"), "", Some(WipedReason::NotWiped)),
        (&deleted("b"), "claim-0", Some(WipedReason::NotWiped)),
        (&deleted("b"), "claim-1", None),
        (&deleted("a"), "claim-1", Some(WipedReason::KeyNotReplaced)),
        (&live, "", None),
    ] {
        let standing = of(metadata, token, &status, &json!([]));
        assert_eq!(standing.host.note.as_deref(), expected.map(WipedReason::as_str), "{metadata} {token}");
        for owed in [WipedReason::NotWiped, WipedReason::KeyNotReplaced] {
            let is_named = standing.differences.iter().any(|text| text.starts_with(owed.meaning()));
            assert_eq!(is_named, expected == Some(owed), "{metadata} {token}");
        }
    }
    let on_disk = of(&deleted("a"), "claim-1", &status, &json!([]));
    assert!(
        on_disk.next.iter().any(|step| step.contains("docs/concepts/agent.md#a-copied-key")),
        "{:?}",
        on_disk.next
    );
    // The wiped host waits for the former key.
    let elsewhere = json!([{ "type": "Enrolled", "status": "True", "reason": "HeardElsewhere", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    status["state"] = json!("Wiping");
    let waits = of(&deleted("a"), "claim-1", &status, &elsewhere);
    assert_eq!(waits.host.note.as_deref(), Some("KeyNotReplaced"));
    let command = "`bedplate machine re-enroll host-1 --boot BOOT`";
    assert!(waits.next.iter().any(|step| step.contains(command)), "{:?}", waits.next);
    assert_eq!(of(&deleted("a"), "claim-1", &status, &json!([])).host.note, None);
}
