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
    let status = json!({ "selected": { "name": "pool", "version": 1, "source": "Claim" } });
    assert_eq!(chosen(&status, Some(&claim("team-a", None, false))), Choice::Keep(None));
    let other = json!({ "selected": { "name": "pool-old", "version": 1, "source": "Claim" } });
    assert_eq!(selected(&chosen(&other, Some(&claim("team-a", None, false)))).0, 2);
    let mut busy = other;
    busy["claim"] = held("bedplate://a/u-0", "Joined");
    assert_eq!(
        chosen(&busy, Some(&claim("team-a", None, false))),
        Choice::Keep(None),
        "another claim holds it"
    );
}

#[test]
fn d2_selection_ends_with_its_claim_and_not_before_the_host_is_released() {
    let selected = json!({ "name": "pool", "version": 1, "source": "Claim" });
    for (claim_status, claim, is_kept) in [
        (held("bedplate://a/u-1", "Joined"), None, true),
        (held("bedplate://a/u-1", "Releasing"), Some(claim("team-a", None, true)), true),
        (held("bedplate://a/u-1", "Released"), Some(claim("team-a", None, true)), true),
        (held("bedplate://a/u-1", "Released"), None, false),
        (Value::Null, None, false),
    ] {
        let status = json!({ "selected": selected, "claim": claim_status });
        let choice = chosen(&status, claim.as_ref());
        match is_kept {
            true => assert_eq!(choice, Choice::Keep(None), "{status}"),
            false => assert_eq!(reason(&choice), ConfigurationPendingReason::AwaitsClaim, "{status}"),
        }
    }
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
