//! One row for each way in which a Machine is not Ready, and those that are Ready.

use serde_json::{Value, json};

use super::*;

fn is(type_: &str, status: &str, reason: &str) -> Value {
    json!({ "type": type_, "status": status, "reason": reason, "message": format!("{type_}: {reason}"),
        "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

/// A Machine of this provider with these conditions and other fields of its status.
fn machine(provider: &str, conditions: &[Value], more: &Value) -> Machine {
    let mut status = json!({ "conditions": conditions });
    status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "a" },
        "spec": { "provider": provider }, "status": status });
    serde_json::from_value(object).unwrap()
}

fn summarized(machine: &Machine, node: &NodeFacts, blocked: Option<Cause<'_>>) -> Summary {
    summarize(Plane::Cluster, machine, machine.status.as_ref().unwrap(), node, blocked)
}

/// Conditions and other fields of a Machine whose node runs `w-v1`, with `w-v<selected>` selected.
fn running(selected: i64) -> (Vec<Value>, Value) {
    let conditions = vec![
        is("Enrolled", "True", "Enrolled"),
        is("ConfigurationPending", "False", "Selected"),
        is("Paved", "True", "Applied"),
        is("NodeReady", "True", "NodeReady"),
    ];
    let more = json!({ "selected": { "name": "w", "version": selected, "source": "Reference" },
        "applied": { "name": "w", "version": 1, "slot": "a" }, "nodeRef": { "name": "a", "uid": "1" } });
    (conditions, more)
}

fn without(mut conditions: Vec<Value>, type_: &str, other: Value) -> Vec<Value> {
    conditions.retain(|condition| condition["type"] != type_);
    conditions.push(other);
    conditions
}

#[test]
fn before_enrollment_the_first_condition_that_is_not_met_is_shown() {
    let unknown = is("PoweredOn", "Unknown", "PowerStateUnknown");
    let unreachable = is("BMCReachable", "False", "BMCUnreachable");
    let found = is("PoweredOn", "True", "FoundRunning");
    let booting = is("Booted", "False", "Booting");
    let seeded = json!({ "boot": { "stage": "Userspace", "seedTime": "2026-01-01T00:00:00.000000Z" } });
    let kernel = json!({ "boot": { "stage": "Kernel" } });
    let none = json!({});
    for (conditions, more, phase, reason) in [
        (vec![], &none, Phase::Pending, "AwaitingEnrollment"),
        (vec![is("Booted", "False", "DuplicateMACAddress")], &none, Phase::Failed, "DuplicateMACAddress"),
        (vec![is("PoweredOn", "False", "PoweringOn")], &none, Phase::PoweringOn, "PoweringOn"),
        (vec![is("PoweredOn", "False", "PoweredOff")], &none, Phase::Pending, "PoweredOff"),
        (
            vec![is("PoweredOn", "False", "PoweredOffByOperation")],
            &none,
            Phase::Pending,
            "PoweredOffByOperation",
        ),
        (vec![is("PoweredOn", "False", "MadeLater")], &none, Phase::Pending, "MadeLater"),
        (
            vec![is("PoweredOn", "False", "PowerOnAttemptsExhausted")],
            &none,
            Phase::Failed,
            "PowerOnAttemptsExhausted",
        ),
        (
            vec![unreachable.clone(), unknown.clone(), booting.clone()],
            &none,
            Phase::Pending,
            "BMCUnreachable",
        ),
        (vec![unreachable, unknown, booting.clone()], &kernel, Phase::Booting, "Booting"),
        (vec![found.clone()], &none, Phase::Pending, "FoundRunning"),
        (vec![found.clone(), booting.clone()], &kernel, Phase::Pending, "FoundRunning"),
        (vec![found, booting.clone()], &seeded, Phase::Booting, "Booting"),
        (
            vec![booting.clone(), is("Enrolled", "False", "HeardElsewhere")],
            &kernel,
            Phase::Booting,
            "HeardElsewhere",
        ),
        (
            vec![booting.clone(), is("Enrolled", "False", "AwaitingEnrollment")],
            &kernel,
            Phase::Booting,
            "Booting",
        ),
        (vec![is("PoweredOn", "True", "PoweredOn")], &none, Phase::Pending, "AwaitingEnrollment"),
        (vec![booting], &kernel, Phase::Booting, "Booting"),
        (
            vec![is("Booted", "True", "UserspaceStarted"), is("Enrolled", "False", "SeedRequestedTwice")],
            &kernel,
            Phase::Booting,
            "SeedRequestedTwice",
        ),
    ] {
        let machine = machine("pxe", &conditions, more);
        let shown = summarized(&machine, &NodeFacts::default(), None);
        assert_eq!((shown.phase, shown.reason.as_str()), (phase, reason), "{conditions:?} {more}");
    }
}

#[test]
fn a_host_that_was_not_heard_is_explained_by_its_provider() {
    for (provider, words) in [
        ("pxe", "no pxed instance of site default has reported"),
        ("manual", "`bedplate machine token a`"),
        ("metal", "provider metal"),
    ] {
        let shown = summarized(&machine(provider, &[], &json!({})), &NodeFacts::default(), None);
        assert!(shown.message.contains(words), "{}", shown.message);
    }
    let machine = machine("pxe", &[], &json!({}));
    let status = machine.status.as_ref().unwrap();
    let shown = summarize(Plane::Standalone, &machine, status, &NodeFacts::default(), None);
    assert_eq!(shown.message, "waiting for its first DHCP packet");
}

#[test]
fn after_enrollment_the_first_condition_that_is_not_met_is_shown() {
    let enrolled = is("Enrolled", "True", "Enrolled");
    let selected = json!({ "selected": { "name": "w", "version": 1, "source": "Reference" } });
    let (conditions, more) = running(1);
    let mut back = more.clone();
    back["rolledBack"] = json!({ "from": { "name": "w", "version": 1 }, "to": { "name": "w", "version": 0 }, "message": "late",
        "time": "2026-01-01T00:00:00Z" });
    let down = without(conditions.clone(), "NodeReady", is("NodeReady", "False", "NodeNotReady"));
    let failed = without(down.clone(), "Paved", is("Paved", "False", "UnitFailed"));
    let next = running(2).1;
    let pending = is("ConfigurationPending", "True", "NoConfiguration");
    for (conditions, more, phase, reason) in [
        (vec![enrolled.clone()], &json!({}), Phase::Enrolled, "NoVersionSelected"),
        (vec![enrolled.clone(), pending], &json!({}), Phase::ConfigurationPending, "NoConfiguration"),
        (vec![enrolled.clone()], &selected, Phase::Paving, "AwaitingAgent"),
        (vec![enrolled, is("Paved", "False", "Joining")], &selected, Phase::Paving, "Joining"),
        (conditions.clone(), &back, Phase::RolledBack, "RolledBack"),
        (down.clone(), &more, Phase::Degraded, "NodeNotReady"),
        (failed.clone(), &more, Phase::Degraded, "UnitFailed"),
        (failed, &next, Phase::Repaving, "UnitFailed"),
        (down, &next, Phase::Repaving, "NodeNotReady"),
        (conditions, &more, Phase::Ready, "Ready"),
    ] {
        let machine = machine("pxe", &conditions, more);
        let shown = summarized(&machine, &NodeFacts::default(), None);
        assert_eq!((shown.phase, shown.reason.as_str()), (phase, reason), "{conditions:?} {more}");
    }
}

#[test]
fn a_machine_whose_next_version_cannot_be_selected_is_degraded() {
    let (conditions, more) = running(1);
    let blocked = Some(("VersionNotFound", "w-v9 does not exist"));
    let shown = summarized(&machine("pxe", &conditions, &more), &NodeFacts::default(), blocked);
    assert_eq!((shown.phase, shown.reason.as_str()), (Phase::Degraded, "VersionNotFound"));
    let mut gone = more.clone();
    gone.as_object_mut().unwrap().remove("nodeRef");
    let shown = summarized(&machine("pxe", &conditions, &gone), &NodeFacts::default(), blocked);
    assert_eq!((shown.phase, shown.reason.as_str()), (Phase::Repaving, "VersionNotFound"));
}

#[test]
fn the_node_counts_whatever_the_agent_reported_last() {
    let (conditions, more) = running(1);
    let down = NodeFacts { not_ready: Some("the Node is not Ready".to_owned()), ..NodeFacts::default() };
    let shown = summarized(&machine("pxe", &conditions, &more), &down, None);
    assert_eq!((shown.phase, shown.message.as_str()), (Phase::Degraded, "the Node is not Ready"));
    let paving = without(
        without(conditions, "NodeReady", is("NodeReady", "False", "NodeNotReady")),
        "Paved",
        is("Paved", "False", "Starting"),
    );
    let shown = summarized(&machine("pxe", &paving, &more), &down, None);
    assert_eq!(shown.reason, "Starting", "the report of a paving says more");
}

#[test]
fn c4_a_node_that_a_rolling_update_drains_is_updating() {
    let (conditions, more) = running(2);
    let drained = NodeFacts { drained_for: Some("w-v2".to_owned()), ..NodeFacts::default() };
    let shown = summarized(&machine("pxe", &conditions, &more), &drained, None);
    assert_eq!((shown.phase, shown.reason.as_str()), (Phase::Updating, "Updating"));
    assert!(shown.message.contains("drained for w-v2"), "{}", shown.message);
}

#[test]
fn c4_a_ready_machine_says_what_keeps_its_next_version() {
    let (conditions, more) = running(2);
    let shown = |conditions: &[Value], node: &NodeFacts| {
        let shown = summarized(&machine("pxe", conditions, &more), node, None);
        assert!(shown.is_ready());
        shown.message
    };
    let none = NodeFacts::default();
    assert_eq!(shown(&conditions, &none), "w-v1 is running; w-v2 is paved after the Node is deleted");
    let late = without(conditions.clone(), "Paved", is("Paved", "True", "ImageUnavailable"));
    assert_eq!(shown(&late, &none), "w-v1 is running; w-v2 is not prepared: Paved: ImageUnavailable");
    let failed = |version: &str| NodeFacts {
        failed_turn: Some((version.to_owned(), "no time".to_owned())),
        ..NodeFacts::default()
    };
    assert_eq!(shown(&conditions, &failed("w-v2")), "w-v1 is running; the update to w-v2 failed: no time");
    assert!(!shown(&conditions, &failed("w-v1")).contains("failed"));
}

#[test]
fn machine_is_stalled_while_a_user_must_act() {
    let (conditions, more) = running(1);
    let mut back = more.clone();
    back["rolledBack"] = json!({ "from": { "name": "w", "version": 1 }, "to": { "name": "w", "version": 0 }, "message": "late",
        "time": "2026-01-01T00:00:00Z" });
    let unmet = |type_: &str, reason: &str| (vec![is(type_, "False", reason)], json!({}));
    let enrolled = is("Enrolled", "True", "Enrolled");
    let pending =
        |reason: &str| (vec![enrolled.clone(), is("ConfigurationPending", "True", reason)], json!({}));
    let paved = |reason: &str| {
        (vec![enrolled.clone(), is("Paved", "False", reason)], json!({ "selected": more["selected"] }))
    };
    for ((conditions, more), reason, is_stalled) in [
        (unmet("Booted", "DuplicateMACAddress"), "DuplicateMACAddress", true),
        (unmet("PoweredOn", "PowerOnAttemptsExhausted"), "PowerOnAttemptsExhausted", true),
        (unmet("PoweredOn", "PoweringOn"), "PoweringOn", false),
        (unmet("PoweredOn", "MadeLater"), "MadeLater", false),
        (unmet("Booted", "Booting"), "Booting", false),
        (unmet("Booted", "ImagePending"), "ImagePending", false),
        (unmet("Booted", "ImageUnavailable"), "ImageUnavailable", true),
        (paved("ImageUnavailable"), "ImageUnavailable", false),
        (unmet("Enrolled", "SeedRequestedTwice"), "SeedRequestedTwice", true),
        ((vec![], json!({})), "AwaitingEnrollment", false),
        (pending("NoConfiguration"), "NoConfiguration", true),
        (pending("HardwareNotReported"), "HardwareNotReported", false),
        ((vec![enrolled.clone()], json!({})), "NoVersionSelected", false),
        (paved("Joining"), "Joining", false),
        (paved("SecretNotFound"), "SecretNotFound", true),
        ((conditions.clone(), back), "RolledBack", true),
        ((conditions, more.clone()), "Ready", false),
    ] {
        let machine = machine("pxe", &conditions, &more);
        let shown = summarized(&machine, &NodeFacts::default(), None);
        // A condition is removed with its reason.
        let mut status = machine.status.clone().unwrap();
        status.conditions.push(serde_json::from_value(is("Stalled", "True", "RolledBack")).unwrap());
        shown.write(&mut status, Some(3), Timestamp::UNIX_EPOCH);
        let find = |type_: &str| status.conditions.iter().find(|condition| condition.type_ == type_).cloned();
        let ready = find("Ready").unwrap();
        assert_eq!((ready.reason.as_str(), ready.status == "True"), (reason, reason == "Ready"));
        let stalled = find("Stalled").map(|c| (c.status, c.reason, c.message, c.observed_generation));
        let expected = ("True".to_owned(), reason.to_owned(), ready.message, Some(3));
        assert_eq!(stalled, is_stalled.then_some(expected), "{reason}");
        assert_eq!((status.phase, status.observed_generation), (Some(shown.phase), Some(3)));
    }
    let machine = machine("pxe", &running(1).0, &running(1).1);
    let blocked = |reason| summarized(&machine, &NodeFacts::default(), Some((reason, ""))).actor;
    assert_eq!(blocked("NodeReregistered"), Some(Actor::User));
    assert_eq!(blocked("ImageUnresolved"), Some(Actor::Registry));
}

#[test]
fn summary_names_the_condition_that_is_not_met() {
    let (conditions, more) = running(1);
    let pending =
        vec![is("Enrolled", "True", "Enrolled"), is("ConfigurationPending", "True", "NoConfiguration")];
    for (conditions, more, type_) in [
        (
            vec![is("PoweredOn", "False", "PoweredOff"), is("Booted", "False", "Booting")],
            &json!({}),
            Some("PoweredOn"),
        ),
        (pending, &json!({}), Some("ConfigurationPending")),
        (vec![], &json!({}), None),
        (conditions, &more, None),
    ] {
        let shown = summarized(&machine("pxe", &conditions, more), &NodeFacts::default(), None);
        assert_eq!(shown.condition.as_deref(), type_, "{conditions:?}");
    }
}

#[test]
fn d1_a_claimed_host_is_ready_when_it_has_joined_its_claimants_cluster() {
    let enrolled = is("Enrolled", "True", "Enrolled");
    let chosen = is("ConfigurationPending", "False", "Selected");
    let waits = is("ConfigurationPending", "True", "ClaimPending");
    let paved = is("Paved", "True", "Applied");
    let selected = json!({ "name": "w", "version": 1, "source": "Claim" });
    let reported = |state: &str| {
        json!({ "providerID": "bedplate://a/u", "claimant": { "namespace": "team-a", "name": "w-1" }, "state": state,
            "since": "2026-01-01T00:00:00Z" })
    };
    let claim = |state: &str| json!({ "selected": selected, "claim": reported(state) });
    let lost = |state: &str| json!({ "claim": reported(state) });
    let with = |more: Value| vec![enrolled.clone(), chosen.clone(), more];
    let idle = vec![enrolled.clone(), chosen.clone()];
    let free = vec![enrolled.clone(), waits.clone()];
    for (conditions, more, phase, reason) in [
        (free.clone(), json!({}), Phase::ConfigurationPending, "ClaimPending"),
        (free.clone(), lost("Released"), Phase::ConfigurationPending, "ClaimPending"),
        (idle.clone(), json!({ "selected": selected }), Phase::Claimed, "AwaitingAgent"),
        (idle.clone(), claim("Released"), Phase::Claimed, "AwaitingAgent"),
        (idle.clone(), claim("AddedLater"), Phase::Claimed, "AwaitingAgent"),
        (with(is("Paved", "False", "Preparing")), claim("Preparing"), Phase::Claimed, "Preparing"),
        (with(is("Paved", "False", "ClaimRefused")), claim("Released"), Phase::Claimed, "ClaimRefused"),
        (idle.clone(), claim("Bootstrapping"), Phase::Claimed, "Bootstrapping"),
        (
            with(is("Paved", "False", "Bootstrapping")),
            claim("Bootstrapping"),
            Phase::Claimed,
            "Bootstrapping",
        ),
        (idle.clone(), claim("Failed"), Phase::Failed, "BootstrapFailed"),
        (with(is("Paved", "False", "Interrupted")), claim("Failed"), Phase::Failed, "Interrupted"),
        (idle.clone(), claim("Releasing"), Phase::Releasing, "Releasing"),
        (idle.clone(), claim("Wiping"), Phase::Releasing, "Wiping"),
        (with(paved.clone()), claim("Joined"), Phase::Ready, "Joined"),
        (with(is("Paved", "False", "UnitFailed")), claim("Joined"), Phase::Degraded, "UnitFailed"),
        (with(is("NodeReady", "False", "NodeNotReady")), claim("Joined"), Phase::Degraded, "NodeNotReady"),
        // The MachineClaim is missing. The host still runs the claim, and is not shown as free.
        (vec![enrolled.clone(), waits.clone(), paved], lost("Joined"), Phase::Ready, "Joined"),
        (
            vec![enrolled.clone(), waits, is("Paved", "False", "ClaimMissing")],
            lost("Joined"),
            Phase::Degraded,
            "ClaimMissing",
        ),
    ] {
        let mut machine = machine("pxe", &conditions, &more);
        machine.spec.claim_policy =
            Some(serde_json::from_value(json!({ "namespaces": ["team-a"] })).unwrap());
        let shown = summarized(&machine, &NodeFacts::default(), None);
        assert_eq!((shown.phase, shown.reason.as_str()), (phase, reason), "{conditions:?} {more}");
        assert_eq!(shown.is_ready(), phase == Phase::Ready);
    }
}

#[test]
fn deletion_and_pause_come_first() {
    let (conditions, more) = running(1);
    let mut machine = machine("pxe", &conditions, &more);
    machine.spec.paused = true;
    let shown = |machine: &Machine| summarized(machine, &NodeFacts::default(), None);
    assert_eq!((shown(&machine).phase, shown(&machine).reason.as_str()), (Phase::Paused, "Paused"));
    let time = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    machine.metadata.deletion_timestamp = Some(time);
    machine.metadata.finalizers = Some(vec!["bedplate.dev/drain".to_owned()]);
    let deleted = shown(&machine);
    assert_eq!((deleted.phase, deleted.reason.as_str()), (Phase::Deleting, "Deleting"));
    assert!(deleted.message.contains("bedplate.dev/drain"), "{}", deleted.message);
    let drained = is("Drained", "False", "Draining");
    machine.status.as_mut().unwrap().conditions.push(serde_json::from_value(drained).unwrap());
    assert_eq!(shown(&machine).message, "Drained: Draining");
}
