//! The version of a Machine in a pool, which its MachineClaim chooses.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use bedplate_api::claim::MachineClaim;
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::{Machine, SelectionSource};
use bedplate_api::reason::machine::ConfigurationPendingReason;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_rules::selection::{Choice, choose_by_claim};
use serde_json::{Value, json};

fn configuration(namespaces: &[&str]) -> MachineConfiguration {
    let template = json!({ "image": { "reference": "r" }, "kubernetes": { "version": "v1.34.0" } });
    serde_json::from_value(json!({ "metadata": { "name": "pool", "uid": "u" },
        "spec": { "claimPolicy": { "namespaces": namespaces }, "template": template } }))
    .unwrap()
}

fn version(number: i64) -> MachineConfigurationVersion {
    let template = json!({ "image": { "reference": "r" }, "kubernetes": { "version": "v1.34.0" } });
    let owner = json!([{ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration", "name": "pool", "uid": "u",
        "controller": true }]);
    serde_json::from_value(
        json!({ "metadata": { "name": format!("pool-v{number}"), "ownerReferences": owner },
        "spec": { "configurationName": "pool", "version": number, "template": template } }),
    )
    .unwrap()
}

fn machine(status: &Value) -> Machine {
    serde_json::from_value(json!({ "metadata": { "name": "a" },
        "spec": { "provider": "manual", "claimPolicy": { "namespaces": ["team-a"] } }, "status": status }))
    .unwrap()
}

fn claim(namespace: &str, version: Option<i64>, deleting: bool) -> MachineClaim {
    let mut object = json!({ "metadata": { "name": "a" }, "spec": { "clusterName": "c", "role": "Worker", "nodeName": "w-1",
        "claimant": { "namespace": namespace, "name": "w-1", "uid": "u-1" }, "providerID": "bedplate://a/u-1",
        "configurationRef": { "name": "pool", "version": version }, "release": "Empty" } });
    if deleting {
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    serde_json::from_value(object).unwrap()
}

fn held(id: &str, state: &str) -> Value {
    json!({ "providerID": id, "claimant": { "namespace": "team-a", "name": "w-1" }, "state": state, "since": "2026-01-01T00:00:00Z" })
}

fn chosen(status: &Value, claim: Option<&MachineClaim>) -> Choice {
    let (configuration, versions) = (configuration(&["team-a"]), [version(1), version(2)]);
    let versions: Vec<_> = versions.iter().collect();
    choose_by_claim(&machine(status), claim, &[&configuration], &versions)
}

fn selected(choice: &Choice) -> (i64, SelectionSource) {
    match choice {
        Choice::Select(select) => (select.selected.version, select.selected.source),
        other => panic!("{other:?}"),
    }
}

fn reason(choice: &Choice) -> ConfigurationPendingReason {
    match choice {
        Choice::Pending(pending) => pending.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn d2_claim_selects_the_newest_version_or_the_one_that_it_names() {
    let newest = chosen(&json!({}), Some(&claim("team-a", None, false)));
    assert_eq!(selected(&newest), (2, SelectionSource::Claim));
    let named = chosen(&json!({}), Some(&claim("team-a", Some(1), false)));
    assert_eq!(selected(&named), (1, SelectionSource::Claim));
    let missing = chosen(&json!({}), Some(&claim("team-a", Some(3), false)));
    assert_eq!(reason(&missing), ConfigurationPendingReason::VersionNotFound);
}

#[test]
fn d2_version_is_chosen_once_for_each_claim() {
    let status = json!({ "selected": chosen_for("u-1", false) });
    assert_eq!(chosen(&status, Some(&claim("team-a", None, false))), Choice::Keep(None));
    let mut other = json!({ "selected": chosen_for("u-0", false) });
    assert_eq!(selected(&chosen(&other, Some(&claim("team-a", None, false)))).0, 2);
    other["selected"]["granted"] = json!(true);
    let mut busy = other;
    busy["claim"] = held("bedplate://a/u-0", "Joined");
    assert_eq!(
        chosen(&busy, Some(&claim("team-a", None, false))),
        Choice::Keep(None),
        "another claim holds it"
    );
}

/// `status.selected` of version 1, for the claim of a claimant with this UID.
fn chosen_for(uid: &str, granted: bool) -> Value {
    let mut selected = json!({ "name": "pool", "version": 1, "source": "Claim", "providerID": format!("bedplate://a/{uid}") });
    if granted {
        selected["granted"] = json!(true);
    }
    selected
}

fn assert_kept(status: &Value, claim: Option<&MachineClaim>, is_kept: bool) {
    let choice = chosen(status, claim);
    match is_kept {
        true => assert_eq!(choice, Choice::Keep(None), "{status}"),
        false => assert_eq!(reason(&choice), ConfigurationPendingReason::ClaimPending, "{status}"),
    }
}

#[test]
fn d7_version_of_a_claim_stays_until_the_hosts_own_release() {
    for (granted, record, claim, is_kept) in [
        (true, held("bedplate://a/u-1", "Bootstrapping"), None, true),
        (true, held("bedplate://a/u-1", "Joined"), None, true),
        (true, held("bedplate://a/u-1", "Failed"), None, true),
        (true, held("bedplate://a/u-1", "Releasing"), None, true),
        (true, held("bedplate://a/u-1", "Wiping"), None, true),
        (true, held("bedplate://a/u-1", "AddedLater"), None, true),
        (true, held("bedplate://a/u-1", "Releasing"), Some(claim("team-a", None, true)), true),
        (true, held("bedplate://a/u-1", "Released"), Some(claim("team-a", None, true)), true),
        (true, held("bedplate://a/u-1", "Released"), None, false),
        (false, held("bedplate://a/u-1", "Joined"), None, true),
        // The host has not reported the claim yet: it may have started it.
        (true, Value::Null, None, true),
        (true, held("bedplate://a/u-0", "Released"), None, true),
        // The claim was never granted, so it never ran.
        (false, Value::Null, None, false),
        (false, held("bedplate://a/u-0", "Released"), None, false),
        (true, held("bedplate://a/u-1", "Preparing"), None, false),
        (false, Value::Null, Some(claim("team-a", None, true)), true),
    ] {
        let status = json!({ "selected": chosen_for("u-1", granted), "claim": record });
        assert_kept(&status, claim.as_ref(), is_kept);
    }
}

#[test]
fn d7_next_claim_gets_a_version_only_after_the_release_of_the_former() {
    let next = claim("team-a", None, false);
    for (granted, record, is_chosen) in [
        (true, Value::Null, false),
        (true, held("bedplate://a/u-0", "Joined"), false),
        (true, held("bedplate://a/u-9", "Released"), false),
        (true, held("bedplate://a/u-0", "Released"), true),
        (false, Value::Null, true),
        // A host holds one claim: it reports the next one, so it has released the former.
        (true, held("bedplate://a/u-1", "Preparing"), true),
    ] {
        let status = json!({ "selected": chosen_for("u-0", granted), "claim": record });
        let choice = chosen(&status, Some(&next));
        match &choice {
            Choice::Select(select) if is_chosen => {
                assert_eq!(select.selected.provider_id.as_deref(), Some("bedplate://a/u-1"));
            }
            choice => assert_eq!((choice, is_chosen), (&Choice::Keep(None), false), "{status}"),
        }
    }
}

#[test]
fn d7_user_releases_a_version_by_the_claim_that_the_host_does_not_know() {
    let status = json!({ "selected": chosen_for("u-1", true) });
    let mut named = machine(&status);
    let release = |id: &str| Some([("bedplate.dev/release".to_owned(), id.to_owned())].into());
    for (id, is_kept) in [("bedplate://a/u-0", true), ("bedplate://a/u-1", false)] {
        named.metadata.annotations = release(id);
        let choice = choose_by_claim(&named, None, &[], &[]);
        assert_eq!(choice == Choice::Keep(None), is_kept, "{id}");
    }
    let status = json!({ "selected": chosen_for("u-1", true), "claim": held("bedplate://a/u-1", "Joined") });
    let mut runs = machine(&status);
    runs.metadata.annotations = release("bedplate://a/u-1");
    assert_eq!(choose_by_claim(&runs, None, &[], &[]), Choice::Keep(None), "the host releases it itself");
}

#[test]
fn d7_grant_that_has_ended_is_recorded_since_the_host_may_run() {
    for (status, reason, was_granted) in [
        ("True", "Granted", true),
        ("True", "GrantWithdrawn", true),
        ("False", "GrantExpired", true),
        ("False", "EnrollmentChanged", true),
        ("False", "AwaitingAgent", false),
        ("False", "GrantFailed", false),
        ("False", "HostHeld", false),
    ] {
        let mut claim = claim("team-a", None, false);
        let condition = json!([{ "type": "Granted", "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
        claim.status = Some(serde_json::from_value(json!({ "conditions": condition })).unwrap());
        match chosen(&json!({}), Some(&claim)) {
            Choice::Select(select) => assert_eq!(select.selected.granted, was_granted, "{status} {reason}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn d7_grant_of_a_claim_is_recorded_with_its_version() {
    let mut granted = claim("team-a", None, false);
    let condition = json!([{ "type": "Granted", "status": "True", "reason": "Granted", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    granted.status = Some(serde_json::from_value(json!({ "conditions": condition })).unwrap());
    let recorded = |status: &Value| match chosen(status, Some(&granted)) {
        Choice::Select(select) => {
            (select.selected.version, select.selected.granted, select.selected.provider_id)
        }
        other => panic!("{other:?}"),
    };
    let id = Some("bedplate://a/u-1".to_owned());
    assert_eq!(recorded(&json!({})), (2, true, id.clone()));
    assert_eq!(recorded(&json!({ "selected": chosen_for("u-1", false) })), (1, true, id.clone()));
    let status = json!({ "selected": chosen_for("u-1", true) });
    assert_eq!(chosen(&status, Some(&granted)), Choice::Keep(None));
    let former = json!({ "name": "pool", "version": 1, "source": "Claim" });
    let status = json!({ "selected": former, "claim": held("bedplate://a/u-1", "Joined") });
    assert_eq!(recorded(&status), (1, true, id), "a choice without its claim");
    assert_kept(&json!({ "selected": former, "claim": held("bedplate://a/u-1", "Joined") }), None, true);
    assert_kept(&json!({ "selected": former }), None, false);
}

#[test]
fn d1_claim_selects_only_what_machine_and_configuration_allow() {
    let forbidden = chosen(&json!({}), Some(&claim("team-b", None, false)));
    assert_eq!(reason(&forbidden), ConfigurationPendingReason::ClaimForbidden);
    let (other, versions) = (configuration(&["team-b"]), [version(1)]);
    let versions: Vec<_> = versions.iter().collect();
    let choice =
        choose_by_claim(&machine(&json!({})), Some(&claim("team-a", None, false)), &[&other], &versions);
    assert_eq!(reason(&choice), ConfigurationPendingReason::ClaimForbidden);
}

#[test]
fn node_that_no_claim_has_selected_is_kept() {
    let status = json!({ "selected": { "name": "w", "version": 1, "source": "Reference" } });
    assert_eq!(chosen(&status, Some(&claim("team-a", None, false))), Choice::Keep(None));
    assert_eq!(chosen(&status, None), Choice::Keep(None));
}
