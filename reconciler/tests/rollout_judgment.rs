//! Judgment of single Machines of a rolling update, and the plan that follows. Each test covers one condition of `judge` or `plan`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot continue has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
mod server;

use std::sync::Arc;

use bedplate_api::reason::configuration::DegradedReason;
use bedplate_reconciler::rollout::{
    Clocks, Failure, Member, Place, Rollout, Skip, Step, Wait, judge, limit, plan, settings,
};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use self::server::object;

const TIME: &str = "2026-01-01T00:00:00Z";

/// Objects by which Machine `a` is judged. Its agent sends heartbeats.
struct Given {
    configuration: Value,
    versions: Vec<Value>,
    machine: Value,
    node: Value,
}

impl Given {
    /// Machine `a` runs version 1 on a Ready Node, and version 2 is selected and prepared.
    fn prepared() -> Self {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "a", "uid": "n1", "annotations": {} },
            "spec": { "providerID": "bedplate://a" }, "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        let mut given = Self {
            configuration: configuration(&json!({ "type": "RollingUpdate" })),
            versions: vec![worker(1), worker(2)],
            machine: server::machine(&json!({ "nodeRef": { "name": "a", "uid": "n1" } })),
            node,
        };
        given.set_versions(1, 2);
        given
    }

    /// Node `a` is cordoned by the controller for this purpose.
    fn cordoned_by(purpose: &str) -> Self {
        let mut given = Self::prepared();
        given.node["metadata"]["annotations"] =
            json!({ "bedplate.dev/cordoned-by": purpose, "bedplate.dev/drain-started": TIME });
        given.node["spec"]["unschedulable"] = json!(true);
        given
    }

    /// Sets the version that runs, and the version that is selected and prepared.
    fn set_versions(&mut self, applied: u32, selected: u32) {
        let status = &mut self.machine["status"];
        status["applied"] = json!({ "name": "w", "version": applied, "slot": "a", "nodeUID": "n1" });
        status["selected"] = json!({ "name": "w", "version": selected, "source": "Reference" });
        status["slots"] = json!([slot(selected, "Prepared")]);
    }

    fn judged(&self) -> Rollout {
        let versions: Vec<_> = self.versions.iter().map(object).collect();
        let node = Arc::new(object::<Node>(&self.node));
        judge(
            &object(&self.configuration),
            &[&object(&self.machine)],
            &|_| Some(node.clone()),
            &versions.iter().collect::<Vec<_>>(),
            Clocks { silent: &|_| false, wait: &|_| Wait::default() },
        )
    }

    fn member(&self) -> Member {
        self.judged().members.remove(0)
    }
}

fn configuration(strategy: &Value) -> Value {
    let mut configuration = server::configuration(2, &json!({}));
    configuration["spec"]["updateStrategy"] = strategy.clone();
    configuration
}

fn worker(number: u32) -> Value {
    server::version(number, &json!({}))
}

fn control_plane(number: u32, join: &Value) -> Value {
    let mut version = worker(number);
    version["spec"]["template"]["kubernetes"]["role"] = json!("ControlPlane");
    version["spec"]["template"]["kubernetes"]["joinConfiguration"] = join.clone();
    version
}

/// A version that makes a cluster: its control plane does not join another.
fn founder(number: u32) -> Value {
    control_plane(number, &Value::Null)
}

fn slot(version: u32, state: &str) -> Value {
    json!({ "name": "b", "configurationName": "w", "version": version, "state": state })
}

fn v2() -> String {
    "w-v2".to_owned()
}

#[test]
fn c4_slot_is_prepared_only_with_the_selected_version() {
    for (version, state, place) in [
        (2, "Prepared", Place::Prepared(v2())),
        (2, "Failed", Place::Preparing(v2())),
        (1, "Prepared", Place::Preparing(v2())),
    ] {
        let mut given = Given::prepared();
        given.machine["status"]["slots"] = json!([slot(version, state)]);
        assert_eq!(given.member().place, place, "{version} {state}");
    }
}

#[test]
fn c4_failed_drain_counts_for_its_version_and_generation_only() {
    for (version, generation, fails) in [("w-v2", 1, true), ("w-v1", 1, false), ("w-v2", 2, false)] {
        let mut given = Given::prepared();
        let failed = json!({ "version": version, "generation": generation, "reason": "DrainTimedOut", "message": "x" });
        given.node["metadata"]["annotations"]["bedplate.dev/drain-failed"] = json!(failed.to_string());
        match given.member().place {
            Place::Failed(failure) => {
                assert_eq!((failure.reason.as_str(), fails), ("DrainTimedOut", true), "{failed}");
            }
            place => assert_eq!((place, fails), (Place::Prepared(v2()), false), "{failed}"),
        }
    }
}

#[test]
fn c4_control_plane_is_kept_if_either_version_makes_a_cluster() {
    let joins = |number| control_plane(number, &json!({ "discovery": {} }));
    for (versions, is_kept) in [
        ([founder(1), joins(2)], true),
        ([joins(1), founder(2)], true),
        ([joins(1), joins(2)], false),
        ([worker(1), worker(2)], false),
    ] {
        let given = Given { versions: versions.into(), ..Given::prepared() };
        let place = if is_kept { Place::Skipped(Skip::ClusterMade) } else { Place::Prepared(v2()) };
        assert_eq!(given.member().place, place, "{:?}", given.versions);
    }
}

#[test]
fn c4_version_of_another_number_or_configuration_keeps_no_machine() {
    let mut other = founder(2);
    other["metadata"]["name"] = json!("x-v2");
    other["metadata"]["ownerReferences"][0]["uid"] = json!("uid-x");
    other["spec"]["configurationName"] = json!("x");
    let mut given = Given { versions: vec![other, founder(1), worker(2), worker(3)], ..Given::prepared() };
    given.set_versions(2, 3);
    assert_eq!(given.member().place, Place::Prepared("w-v3".to_owned()));
}

#[test]
fn c4_only_a_cordon_of_a_rolling_update_lets_the_update_continue() {
    for (purpose, place) in [
        ("rollout/w-v2", Place::Draining(v2())),
        ("rollout/w-v1", Place::Prepared(v2())),
        ("deletion", Place::Skipped(Skip::Down)),
        ("0b5e4c1e-operation", Place::Skipped(Skip::Operation)),
    ] {
        assert_eq!(Given::cordoned_by(purpose).member().place, place, "{purpose}");
    }
}

#[test]
fn c4_rollback_reports_200_characters_of_the_first_line() {
    let mut given = Given::prepared();
    let version = |version| json!({ "name": "w", "version": version });
    let reason = format!("{}\nend of a log", "x".repeat(300));
    given.machine["status"]["rolledBack"] =
        json!({ "from": version(2), "to": version(1), "message": reason, "time": TIME });
    let Place::Failed(failure) = given.member().place else { panic!("{:?}", given.member()) };
    assert!(failure.message.ends_with(&format!(": {}", "x".repeat(200))), "{}", failure.message);
}

#[test]
fn c4_machine_is_unavailable_if_node_or_agent_reports_not_ready() {
    for (ready, condition, status, is_unavailable) in [
        ("True", "NodeReady", "True", false),
        ("True", "NodeReady", "Unknown", false),
        ("True", "NodeReady", "False", true),
        ("True", "Enrolled", "False", false),
        ("False", "NodeReady", "True", true),
    ] {
        let mut given = Given::prepared();
        given.node["status"]["conditions"][0]["status"] = json!(ready);
        given.machine["status"]["conditions"] = json!([{ "type": condition, "status": status, "reason": "Test",
            "message": "", "lastTransitionTime": TIME }]);
        let unavailable = is_unavailable.then_some("its Node is not Ready");
        assert_eq!(given.member().unavailable, unavailable, "{ready} {condition} {status}");
    }
}

#[test]
fn c4_machine_departs_if_it_is_deleted_with_policy_drain() {
    for (deleted, policy, departs) in [
        (json!(TIME), "Drain", true),
        (json!(TIME), "Retain", false),
        (Value::Null, "Drain", false),
        (Value::Null, "Retain", false),
    ] {
        let mut given = Given::prepared();
        given.machine["metadata"]["deletionTimestamp"] = deleted.clone();
        given.machine["spec"]["deletionPolicy"] = json!(policy);
        assert_eq!(given.member().departs, departs, "{deleted} {policy}");
    }
}

#[test]
fn c4_deleted_configuration_and_other_strategies_are_not_rolled_out() {
    for (strategy, deleted, rolls) in [
        ("RollingUpdate", Value::Null, true),
        ("RollingUpdate", json!(TIME), false),
        ("OnDelete", Value::Null, false),
        ("OnDelete", json!(TIME), false),
    ] {
        let mut configuration = configuration(&json!({ "type": strategy }));
        configuration["metadata"]["deletionTimestamp"] = deleted.clone();
        assert_eq!(settings(&object(&configuration)).is_some(), rolls, "{strategy} {deleted}");
    }
}

#[test]
fn c4_drain_may_take_ten_minutes_unless_the_configuration_limits_it() {
    let with = |strategy: Value| limit(Some(&object(&configuration(&strategy))));
    let limited = json!({ "type": "RollingUpdate", "rollingUpdate": { "drainTimeoutSeconds": 60 } });
    let limits = [limit(None), with(json!({ "type": "RollingUpdate" })), with(limited)];
    assert_eq!(limits, [600, 600, 60].map(SignedDuration::from_secs));
}

/// Adds Machine `b`, available and without a cordon.
fn with_b(mut rollout: Rollout, place: Place) -> Rollout {
    let b =
        Member { name: "b".to_owned(), node_uid: Some("n2".to_owned()), place, ..Given::prepared().member() };
    rollout.members.push(b);
    rollout
}

#[test]
fn c4_draining_machine_takes_the_room_of_the_next_one() {
    let given = Given::cordoned_by("rollout/w-v2");
    let rollout = with_b(given.judged(), Place::Outdated(v2()));
    let drain = Step::Drain { machine: "a".to_owned(), node_uid: "n1".to_owned(), version: v2() };
    assert_eq!(plan(&rollout, settings(&object(&given.configuration)).as_ref()), [drain]);
}

#[test]
fn c4_stopped_update_uncordons_its_nodes_only() {
    let free = Step::Free { machine: "a".to_owned(), node_uid: "n1".to_owned(), failed: None };
    for (given, steps) in [
        (Given::cordoned_by("rollout/w-v2"), vec![free.clone()]),
        // The cordon of an earlier version does not serve any purpose.
        (Given::cordoned_by("rollout/w-v1"), vec![free]),
        (Given::cordoned_by("deletion"), vec![]),
        (Given::prepared(), vec![]),
    ] {
        let settings = settings(&object(&given.configuration)).unwrap();
        let rollout = given.judged();
        assert_eq!(plan(&rollout, None), steps, "{rollout:?}");
        let (reason, message, remedy) = (DegradedReason::DrainTimedOut, String::new(), "");
        let paused = with_b(rollout, Place::Failed(Failure { reason, message, remedy }));
        assert_eq!(plan(&paused, Some(&settings)), steps, "{paused:?}");
    }
}
