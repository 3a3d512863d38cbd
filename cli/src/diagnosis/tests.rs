//! Each event that a Machine can wait for, in the order of its life.

use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-01T01:00:00Z";

fn is(type_: &str, status: &str, reason: &str) -> Value {
    json!({ "type": type_, "status": status, "reason": reason, "message": format!("{reason} is said"),
        "lastTransitionTime": "2026-01-01T00:30:00Z" })
}

fn machine(spec: &Value, status: &Value) -> Machine {
    let mut all =
        json!({ "provider": "pxe", "pxe": { "interfaces": [{ "macAddress": "52:54:00:00:00:01" }] } });
    for (name, value) in spec.as_object().unwrap() {
        all[name] = value.clone();
    }
    if all["provider"] != "pxe" {
        all.as_object_mut().unwrap().remove("pxe");
    }
    serde_json::from_value(json!({
        "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
        "metadata": { "name": "node-1", "creationTimestamp": "2026-01-01T00:00:00Z" }, "spec": all, "status": status
    }))
    .unwrap()
}

fn at_rest(machine: &Machine) -> Diagnosis {
    diagnose(machine, &Rolling::new(), NOW.parse().unwrap())
}

fn of(spec: &Value, status: &Value) -> Diagnosis {
    at_rest(&machine(spec, status))
}

fn enrolled(conditions: &[Value], rest: &Value) -> Value {
    let mut all = vec![
        is("PoweredOn", "True", "PoweredOn"),
        is("Booted", "True", "UserspaceStarted"),
        is("Enrolled", "True", "Enrolled"),
    ];
    all.extend_from_slice(conditions);
    let mut status = rest.clone();
    status["conditions"] = json!(all);
    status["agent"] = json!({ "lastHeartbeatTime": "2026-01-01T00:58:00Z" });
    status
}

#[test]
fn first_unmet_condition_names_who_must_act() {
    let chosen = json!({ "selected": { "name": "w", "version": 2, "source": "Selector" } });
    let node = json!({ "name": "node-1", "uid": "1" });
    let runs = json!({ "selected": { "name": "w", "version": 2, "source": "Selector" },
        "applied": { "name": "w", "version": 1, "slot": "a" }, "nodeRef": node });
    let done = json!({ "selected": { "name": "w", "version": 2, "source": "Selector" },
        "applied": { "name": "w", "version": 2, "slot": "a" }, "nodeRef": { "name": "node-1", "uid": "1" } });
    let both = [is("Paved", "True", "Applied"), is("NodeReady", "True", "NodeReady")];
    let mut back = runs.clone();
    back["rolledBack"] = json!({ "from": { "name": "w", "version": 2 }, "to": { "name": "w", "version": 1 },
        "message": "no Node within 600 s", "time": "2026-01-01T00:50:00Z" });
    let plain = json!({});
    for (spec, status, from, reason) in [
        (plain.clone(), plain.clone(), Some(Actor::Host), "AwaitingBoot"),
        (json!({ "provider": "manual" }), plain.clone(), Some(Actor::User), "AwaitingEnrollment"),
        (json!({ "provider": "other" }), plain.clone(), Some(Actor::Other), "AwaitingEnrollment"),
        (json!({ "paused": true }), plain.clone(), Some(Actor::User), "Paused"),
        (
            plain.clone(),
            json!({ "conditions": [is("PoweredOn", "True", "FoundRunning"), is("BMCReachable", "True", "Reachable")] }),
            Some(Actor::User),
            "FoundRunning",
        ),
        (
            plain.clone(),
            enrolled(&[is("ConfigurationPending", "True", "HardwareNotReported")], &plain),
            Some(Actor::Agent),
            "HardwareNotReported",
        ),
        (
            plain.clone(),
            json!({ "conditions": [is("PoweredOn", "False", "PoweringOn")] }),
            Some(Actor::Bmc),
            "PoweringOn",
        ),
        (
            plain.clone(),
            json!({ "conditions": [is("PoweredOn", "False", "PoweredOff"), is("Booted", "False", "DuplicateMACAddress")] }),
            Some(Actor::User),
            "DuplicateMACAddress",
        ),
        (
            plain.clone(),
            json!({ "conditions": [is("BMCReachable", "False", "AuthenticationFailed"), is("PoweredOn", "Unknown", "PowerStateUnknown")] }),
            Some(Actor::User),
            "AuthenticationFailed",
        ),
        (
            plain.clone(),
            json!({ "conditions": [is("Booted", "False", "BootStalled")] }),
            Some(Actor::User),
            "BootStalled",
        ),
        (
            plain.clone(),
            json!({ "conditions": [is("Booted", "True", "UserspaceStarted"), is("Enrolled", "False", "AwaitingEnrollment")] }),
            Some(Actor::Agent),
            "AwaitingEnrollment",
        ),
        (
            plain.clone(),
            json!({ "conditions": [is("Booted", "False", "Booting"), is("Enrolled", "False", "HeardElsewhere")] }),
            Some(Actor::User),
            "HeardElsewhere",
        ),
        (
            plain.clone(),
            enrolled(&[is("ConfigurationPending", "True", "NoConfiguration")], &plain),
            Some(Actor::User),
            "NoConfiguration",
        ),
        (plain.clone(), enrolled(&[], &plain), Some(Actor::Controller), "NoVersionSelected"),
        (
            plain.clone(),
            enrolled(&[is("Ready", "False", "NodeNameConflict")], &chosen),
            Some(Actor::User),
            "NodeNameConflict",
        ),
        (plain.clone(), enrolled(&[], &back), Some(Actor::User), "RolledBack"),
        (
            plain.clone(),
            enrolled(&[is("Paved", "False", "ImageUnavailable")], &chosen),
            Some(Actor::Registry),
            "ImageUnavailable",
        ),
        (
            plain.clone(),
            enrolled(&[is("Paved", "False", "Joining"), is("NodeReady", "False", "NodeNotFound")], &chosen),
            Some(Actor::Agent),
            "Joining",
        ),
        (
            plain.clone(),
            enrolled(&[both[0].clone(), is("NodeReady", "False", "NodeNotReady")], &done),
            Some(Actor::Cluster),
            "NodeNotReady",
        ),
        (plain.clone(), enrolled(&both, &runs), Some(Actor::User), "AwaitingRepave"),
        // Next to a node that runs.
        (
            plain.clone(),
            enrolled(&[is("Paved", "True", "ImageUnavailable"), both[1].clone()], &runs),
            Some(Actor::Registry),
            "ImageUnavailable",
        ),
        (
            plain.clone(),
            enrolled(&[both[0].clone(), both[1].clone(), is("Ready", "False", "NodeNotReady")], &done),
            Some(Actor::Cluster),
            "NodeNotReady",
        ),
        (
            plain.clone(),
            enrolled(&[both[0].clone(), both[1].clone(), is("Ready", "False", "Updating")], &runs),
            Some(Actor::Controller),
            "Updating",
        ),
        (plain.clone(), enrolled(&both, &done), None, "Ready"),
    ] {
        let found = of(&spec, &status);
        assert_eq!((found.from, found.reason.as_str()), (from, reason), "{status:#}");
        assert_eq!(found.next.is_empty(), from.is_none(), "{found:?}");
        assert!(!found.next.contains("NAME"), "{found:?}");
    }
}

#[test]
fn since_when_is_the_time_of_what_says_it() {
    let found = of(&json!({}), &json!({ "conditions": [is("Booted", "False", "ImagePending")] }));
    assert_eq!(found.since, Some("2026-01-01T00:30:00Z".parse().unwrap()));
    assert_eq!(of(&json!({}), &json!({})).since, Some("2026-01-01T00:00:00Z".parse().unwrap()));
}

#[test]
fn last_report_of_an_unreachable_agent_is_not_current() {
    let applied = json!({ "selected": { "name": "w", "version": 2, "source": "Selector" },
        "applied": { "name": "w", "version": 2, "slot": "a" }, "nodeRef": { "name": "node-1", "uid": "1" } });
    let mut status =
        enrolled(&[is("Paved", "True", "Applied"), is("NodeReady", "True", "NodeReady")], &applied);
    status["agent"]["lastHeartbeatTime"] = json!("2026-01-01T00:46:00Z");
    assert_eq!(of(&json!({}), &status).from, None);
    status["agent"]["lastHeartbeatTime"] = json!("2026-01-01T00:45:00Z");
    let found = of(&json!({}), &status);
    assert_eq!((found.from, found.reason.as_str()), (Some(Actor::Agent), "AgentSilent"));
    assert_eq!(found.since, Some("2026-01-01T00:45:00Z".parse().unwrap()));
    status["conditions"][0] = is("PoweredOn", "False", "PoweredOffByOperation");
    assert_eq!(of(&json!({}), &status).reason, "PoweredOffByOperation", "it is off: of course it is silent");
}

#[test]
fn a_bmc_that_is_not_reached_keeps_no_running_machine_from_being_ready() {
    let applied = json!({ "selected": { "name": "w", "version": 2, "source": "Selector" },
        "applied": { "name": "w", "version": 2, "slot": "a" }, "nodeRef": { "name": "node-1", "uid": "1" } });
    let mut status = enrolled(
        &[
            is("Paved", "True", "Applied"),
            is("NodeReady", "True", "NodeReady"),
            is("BMCReachable", "False", "BMCUnreachable"),
        ],
        &applied,
    );
    status["conditions"][0] = is("PoweredOn", "Unknown", "PowerStateUnknown");
    let found = of(&json!({}), &status);
    assert_eq!(found.from, None);
    assert_eq!(found.also, ["BMC: BMCUnreachable is said (BMCUnreachable)"]);
}

#[test]
fn deleted_machine_waits_for_its_finalizers() {
    for (paused, finalizers, from) in [
        (false, json!(["bedplate.dev/power-off"]), Actor::Pxed),
        (true, json!(["bedplate.dev/power-off"]), Actor::User),
        (true, json!(["bedplate.dev/drain"]), Actor::Controller),
        (true, json!(["example.com/backup"]), Actor::Other),
        (true, json!([]), Actor::Cluster),
    ] {
        let mut object = machine(&json!({ "paused": paused }), &json!({}));
        object.metadata.finalizers = serde_json::from_value(finalizers).unwrap();
        object.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:59:00Z")).unwrap();
        let found = at_rest(&object);
        assert_eq!((found.from, found.reason.as_str()), (Some(from), "Deleting"));
    }
}

#[test]
fn a_held_boot_waits_for_the_party_that_its_reason_names() {
    for (reason, from) in [
        ("ImagePending", Actor::Registry),
        ("ImageUnavailable", Actor::User),
        ("InvalidKernelArguments", Actor::User),
        ("MachinePaused", Actor::User),
    ] {
        let held = is("Booted", "False", reason);
        assert_eq!(of(&json!({}), &json!({ "conditions": [held] })).from, Some(from), "{reason}");
    }
}

#[test]
fn drain_before_a_deletion_names_the_pods_that_remain() {
    for (status, reason, from) in [
        ("False", "Draining", Actor::Controller),
        ("False", "NodeNameConflict", Actor::Controller),
        ("True", "StoppingSlot", Actor::Agent),
        // The drain continues only after the cause is removed.
        ("False", "Paused", Actor::User),
        ("False", "Claimed", Actor::Other),
    ] {
        let conditions = json!({ "conditions": [is("Drained", status, reason)] });
        let mut object = machine(&json!({ "paused": reason == "Paused" }), &conditions);
        object.metadata.finalizers = Some(vec!["bedplate.dev/drain".to_owned()]);
        object.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:59:00Z")).unwrap();
        let found = at_rest(&object);
        let message = format!("{reason} is said");
        assert_eq!((found.from, found.reason.as_str(), found.what), (Some(from), reason, message));
        assert!(!found.next.contains("machine show"), "{}", found.next);
    }
}

#[test]
fn a_host_that_is_silent_like_its_bmc_is_said_to_be_silent() {
    let mut status = enrolled(&[is("BMCReachable", "False", "BMCUnreachable")], &json!({}));
    status["agent"]["lastHeartbeatTime"] = json!("2026-01-01T00:30:00Z");
    status["conditions"][0] = is("PoweredOn", "Unknown", "PowerStateUnknown");
    let found = of(&json!({}), &status);
    assert_eq!((found.from, found.reason.as_str()), (Some(Actor::Agent), "AgentSilent"));
    assert_eq!(found.also, ["BMC: BMCUnreachable is said (BMCUnreachable)"]);
}

#[test]
fn c4_a_machine_that_a_rolling_update_will_come_to_waits_for_no_person() {
    let status = json!({ "selected": { "name": "w", "version": 2, "source": "Selector" },
        "applied": { "name": "w", "version": 1, "slot": "a" }, "nodeRef": { "name": "node-1", "uid": "1" } });
    let both = [is("Paved", "True", "Applied"), is("NodeReady", "True", "NodeReady")];
    let machine = machine(&json!({}), &enrolled(&both, &status));
    assert!(runs_another(&machine));
    let found = diagnose(&machine, &Rolling::from([("w".to_owned(), None)]), NOW.parse().unwrap());
    assert_eq!((found.from, found.reason.as_str()), (Some(Actor::Controller), "AwaitingTurn"));
    assert!(found.next.contains("`bedplate config show w`"), "{}", found.next);
    let other = diagnose(&machine, &Rolling::from([("x".to_owned(), None)]), NOW.parse().unwrap());
    assert_eq!((other.from, other.reason.as_str()), (Some(Actor::User), "AwaitingRepave"));
}

#[test]
fn c4_machine_of_a_paused_rolling_update_waits_for_a_user_with_a_reason() {
    let status = json!({ "selected": { "name": "w", "version": 2, "source": "Selector" },
        "applied": { "name": "w", "version": 1, "slot": "a" }, "nodeRef": { "name": "node-1", "uid": "1" } });
    let both = [is("Paved", "True", "Applied"), is("NodeReady", "True", "NodeReady")];
    let machine = machine(&json!({}), &enrolled(&both, &status));
    let condition = |type_: &str, status: &str, reason: &str, message: &str| {
        json!({ "type": type_, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:30:00Z" })
    };
    for (reason, degraded, message, held) in [
        (
            "PausedOnFailure",
            "True",
            "rolling update is paused until this is resolved (pauseOnFailure); a: no controller re-creates these Pods: n/x",
            true,
        ),
        ("RollingOut", "True", "node-1: no controller re-creates these Pods: n/x", true),
        ("RollingOut", "True", "node-10: no controller re-creates these Pods: n/x", false),
        ("RollingOut", "False", "", false),
    ] {
        let conditions = [
            condition("Progressing", "False", reason, ""),
            condition("Degraded", degraded, "UnmanagedPods", message),
        ];
        // Only the typed failures decide: the message is text for a user.
        let failed = if held { "node-1" } else { "node-10" };
        let failures = json!([{ "machine": failed, "reason": "UnmanagedPods", "message": "m" }]);
        let object = json!({ "metadata": { "name": "w" }, "status": { "conditions": conditions, "rolloutFailures": failures }, "spec": { "template": {
            "image": { "reference": "registry.example/node@sha256:0000000000000000000000000000000000000000000000000000000000000001" },
            "kubernetes": { "version": "v1.34.0" } } } });
        let stopped = Stopped::of(&serde_json::from_value(object).unwrap());
        let found = diagnose(&machine, &Rolling::from([("w".to_owned(), stopped)]), NOW.parse().unwrap());
        let expected = if held { "RolloutStopped" } else { "AwaitingTurn" };
        assert_eq!(found.reason, expected, "{message}");
        assert!(!held || found.from == Some(Actor::User) && found.what.contains(message), "{}", found.what);
    }
}

/// `Ready` has the same order: both must not name different causes.
#[test]
fn explanation_names_the_condition_that_decides_ready() {
    let (unknown, found) =
        (is("PoweredOn", "Unknown", "PowerStateUnknown"), is("PoweredOn", "True", "FoundRunning"));
    let booting = is("Booted", "False", "Booting");
    for conditions in [
        vec![unknown.clone(), booting.clone()],
        vec![unknown, is("BMCReachable", "False", "BMCUnreachable"), booting.clone()],
        vec![found, booting.clone()],
        vec![booting.clone(), is("Enrolled", "False", "SeedRequestedTwice")],
        vec![booting, is("Enrolled", "False", "AwaitingEnrollment")],
        vec![is("PoweredOn", "False", "PoweredOff"), is("Booted", "False", "BootStalled")],
    ] {
        let machine = machine(&json!({}), &json!({ "conditions": conditions }));
        let status = machine.status.as_ref().unwrap();
        let shown = summarize(Plane::Cluster, &machine, status, &NodeFacts::default(), None);
        assert_eq!(at_rest(&machine).reason, shown.reason, "{conditions:?}");
    }
}

#[test]
fn d1_a_claimed_host_is_explained_by_its_claim() {
    let pool = json!({ "claimPolicy": { "namespaces": ["team-a"] } });
    let waits = is("ConfigurationPending", "True", "ClaimPending");
    let claim = |state: &str| {
        json!({ "providerID": "bedplate://node-1/u", "claimant": { "namespace": "team-a", "name": "w-1" },
            "state": state, "since": "2026-01-01T00:30:00Z" })
    };
    let held = |state: &str| json!({ "selected": { "name": "pool", "version": 1, "source": "Claim" }, "claim": claim(state) });
    let paved = |reason: &str| vec![is("Paved", "False", reason)];
    for (conditions, status, from, reason) in [
        (vec![waits.clone()], json!({}), Some(Actor::Other), "ClaimPending"),
        (vec![], json!({ "selected": held("")["selected"] }), Some(Actor::Agent), "AwaitingAgent"),
        (vec![is("Ready", "True", "Joined")], held("Joined"), None, "Joined"),
        (vec![], held("Bootstrapping"), Some(Actor::Agent), "Bootstrapping"),
        (paved("BootstrapFailed"), held("Failed"), Some(Actor::Other), "BootstrapFailed"),
        (paved("UserDataRefused"), held("Failed"), Some(Actor::User), "UserDataRefused"),
        (vec![], held("Failed"), Some(Actor::Other), "BootstrapFailed"),
        (vec![], held("Releasing"), Some(Actor::Agent), "Releasing"),
        // The MachineClaim is missing.
        (
            vec![waits, is("Paved", "False", "ClaimMissing")],
            json!({ "claim": claim("Joined") }),
            Some(Actor::User),
            "ClaimMissing",
        ),
    ] {
        let found = of(&pool, &enrolled(&conditions, &status));
        assert_eq!((found.from, found.reason.as_str()), (from, reason), "{found:?}");
    }
}
