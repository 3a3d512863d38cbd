//! Examples of each rule, and random histories of one operation. It ends exactly once, and never while its
//! Machine is paused.

use bedplate_api::machine::Time;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn time(second: i64) -> String {
    at(second).to_string()
}

fn operation(name: &str, more: &Value) -> MachineOperation {
    let mut object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation",
        "metadata": { "name": format!("op-{name}"), "uid": format!("uid-{name}"), "creationTimestamp": time(0) },
        "spec": { "operationName": name, "machineRef": { "name": "a" } } });
    for (key, value) in more.as_object().unwrap() {
        match object[key].as_object_mut() {
            Some(there) => there.extend(value.as_object().unwrap().clone()),
            None => object[key] = value.clone(),
        }
    }
    serde_json::from_value(object).unwrap()
}

fn machine(spec: &Value) -> Machine {
    let mut all = json!({ "provider": "manual", "site": "north" });
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
        "metadata": { "name": "a" }, "spec": all,
        "status": { "agent": { "lastHeartbeatTime": time(5) } } }))
    .unwrap()
}

fn look(operation: &MachineOperation, machine: Option<&Machine>, second: i64) -> Plan {
    look_since(operation, machine, second, first_seen(second))
}

fn look_since(operation: &MachineOperation, machine: Option<&Machine>, second: i64, since: Since) -> Plan {
    plan(&Seen { operation, machine, since, others: &[], now: at(second) })
}

#[test]
fn o1_end_keeps_the_conditions_of_an_executor_and_adds_failed() {
    let cordoned = json!({ "type": "Cordoned", "status": "True", "reason": "Draining", "message": "", "lastTransitionTime": time(5) });
    // A host that writes its own end cannot keep the operation.
    let complete = json!({ "type": "Complete", "status": "False", "reason": "x", "message": "", "lastTransitionTime": time(5) });
    let status = json!({ "state": "InProgress", "startTime": time(0), "conditions": [cordoned, complete] });
    let mut taken = operation("reboot", &json!({ "spec": { "timeoutSeconds": 60 }, "status": status }));
    taken.metadata.generation = Some(1);
    let status = look(&taken, None, 9999).status.unwrap();
    let found: Vec<_> = status.conditions.iter().map(|c| (c.type_.as_str(), c.reason.as_str())).collect();
    let expected =
        [("Cordoned", "Draining"), ("Complete", "x"), ("Failed", "TimedOut"), ("Stalled", "TimedOut")];
    assert_eq!(found, expected);
    assert_eq!(status.observed_generation, Some(1));
}

/// Returns the time record of a controller that has just started.
fn first_seen(second: i64) -> Since {
    Since { seen: at(second), came: false, leap: SignedDuration::ZERO, taken: None }
}

fn seen_to_come(second: i64) -> Since {
    Since { seen: at(second), came: true, leap: SignedDuration::ZERO, taken: None }
}

/// State, reason and message that a plan writes.
fn written(plan: &Plan) -> (Option<OperationState>, &str, &str) {
    let Some(status) = &plan.status else { return (None, "", "") };
    let text = |text: &'static str| text;
    let (reason, message) = (status.reason.as_deref(), status.message.as_deref());
    (status.state, reason.unwrap_or(text("")), message.unwrap_or(text("")))
}

const PENDING: Option<OperationState> = Some(OperationState::Pending);
const FAILED: Option<OperationState> = Some(OperationState::Failed);

#[test]
fn o5_new_operation_is_pending_and_has_the_labels_for_its_agent() {
    let plan = look(&operation("reboot", &json!({})), Some(&machine(&json!({}))), 1);
    assert_eq!(written(&plan), (PENDING, "", ""));
    let labels = [(MACHINE, "a"), (SITE, "north")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(plan.labels, Some(labels.into()));
    // Values of another writer do not count.
    let labeled = json!({ "metadata": { "labels": { "bedplate.dev/machine": "b", "bedplate.dev/site": "north", "own": "x" } },
        "status": { "state": "Pending" } });
    let plan = look(&operation("reboot", &labeled), Some(&machine(&json!({}))), 1);
    assert_eq!(plan.labels.unwrap()[MACHINE], "a");
    assert_eq!(plan.status, None);
    let owner = json!([{ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation", "name": "all", "uid": "u",
        "controller": true }]);
    let child = operation("reboot", &json!({ "metadata": { "ownerReferences": owner } }));
    assert_eq!(look(&child, None, 1).labels.unwrap()[PARENT], "all");
}

#[test]
fn o5_operation_that_failed_at_first_sight_gets_its_labels() {
    let status = json!({ "status": { "state": "Failed" }, "spec": { "ttlSecondsAfterFinished": 10 } });
    let plan = look(&operation("reboot", &status), Some(&machine(&json!({}))), 1);
    let labels = [(MACHINE, "a"), (SITE, "north")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!((plan.labels, plan.status), (Some(labels.into()), None));
    // It ran at another site.
    let mut moved = operation("reboot", &status);
    let labels = [(MACHINE, "a"), (SITE, "south")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    moved.metadata.labels = Some(labels.into());
    assert_eq!(look(&moved, Some(&machine(&json!({}))), 1).labels, None);
}

#[test]
fn an_operation_waits_a_moment_for_its_machine_and_then_fails() {
    let new = operation("reboot", &json!({}));
    let plan = look(&new, None, 9);
    assert_eq!((written(&plan).0, plan.again), (PENDING, Some(Duration::from_secs(1))));
    let plan = look(&new, None, 10);
    let (state, reason, message) = written(&plan);
    assert_eq!((state, reason), (FAILED, "MachineNotFound"));
    assert!(message.contains("Machine a does not exist"), "{message}");
}

#[test]
fn operation_in_a_state_of_a_later_version_does_not_lack_an_executor() {
    let later = operation("reboot", &json!({ "status": { "state": "Later" } }));
    let plan = look(&later, Some(&machine(&json!({}))), 1_000_000);
    assert_eq!((&plan.status, plan.again.is_some()), (&None, true), "its own time counts");
}

#[test]
fn operation_without_executor_times_out_and_names_the_executors() {
    let bmc = json!({ "bmc": { "protocol": "Redfish", "address": "10.0.0.1",
        "credentialsSecretRef": { "namespace": "n", "name": "s" } } });
    for (name, more, spec, last, words) in [
        ("dance", json!({}), json!({}), 300, "bedplate-agent (reboot"),
        ("dance", json!({ "spec": { "timeoutSeconds": 7 } }), bmc, 7, "pxed of site north (powerOn"),
        ("powerOn", json!({}), json!({}), 3600, "spec.bmc is not set"),
        ("powerOn", json!({}), json!({ "provider": "azure" }), 3600, "the controller of provider azure"),
    ] {
        let (operation, machine) = (operation(name, &more), machine(&spec));
        let plan = look(&operation, Some(&machine), last - 1);
        assert_eq!((written(&plan).0, plan.again), (PENDING, Some(Duration::from_secs(1))), "{name}");
        let plan = look(&operation, Some(&machine), last);
        let (state, reason, message) = written(&plan);
        assert_eq!((state, reason), (FAILED, "NoExecutor"), "{name}");
        assert!(message.contains(words) && message.contains(&format!("within {last} s")), "{message}");
    }
    let mut silent = machine(&json!({}));
    silent.status = None;
    let plan = look(&operation("reboot", &json!({})), Some(&silent), 9999);
    assert!(written(&plan).2.contains("no bedplate-agent yet"), "{plan:?}");
}

#[test]
fn taken_operation_is_left_to_its_executor_for_30_s_after_its_timeout() {
    let taken = |start: i64| {
        let status =
            json!({ "state": "InProgress", "startTime": time(start), "executor": "bedplate-agent/a" });
        operation("reboot", &json!({ "spec": { "timeoutSeconds": 60 }, "status": status }))
    };
    let machine = machine(&json!({}));
    let plan = look(&taken(100), Some(&machine), 189);
    assert_eq!((plan.status, plan.again), (None, Some(Duration::from_secs(1))));
    for machine in [Some(&machine), None] {
        let plan = look(&taken(100), machine, 190);
        let (state, reason, message) = written(&plan);
        assert_eq!((state, reason), (FAILED, "TimedOut"));
        assert!(message.starts_with("bedplate-agent/a started the operation"), "{message}");
    }
}

#[test]
fn o1_timeout_does_not_depend_on_the_clock_of_the_host() {
    let machine = machine(&json!({}));
    for said in [-900_000, 100, 4000, 900_000] {
        let status =
            json!({ "state": "InProgress", "startTime": time(said), "executor": "bedplate-agent/a" });
        let taken = operation("reboot", &json!({ "spec": { "timeoutSeconds": 60 }, "status": status }));
        // It waited for over an hour, and was seen to be taken then.
        let at =
            |second| written(&look_since(&taken, Some(&machine), second, seen_to_come(4000))).1.to_owned();
        assert_eq!([at(4000), at(4089), at(4090)], ["", "", "TimedOut"], "{said}");
    }
    // A controller that started later ends the operation within its time from then, if the reported time is
    // impossible.
    for (said, end) in [(-900_000, 5090), (4990, 5080), (900_000, 5090)] {
        let status = json!({ "state": "InProgress", "startTime": time(said) });
        let taken = operation("reboot", &json!({ "spec": { "timeoutSeconds": 60 }, "status": status }));
        let at = |second| written(&look_since(&taken, Some(&machine), second, first_seen(5000))).1.to_owned();
        assert_eq!([at(end - 1), at(end)], ["", "TimedOut"], "{said}");
    }
}

/// The attack: the agent of a compromised host writes any state, any start and `Suspended` again and again, so that its parent waits.
#[test]
fn o1_host_cannot_hold_an_operation_by_releasing_it() {
    let (free, paused) = (machine(&json!({})), machine(&json!({ "paused": true })));
    let held = |status: &str| json!([{ "type": "Suspended", "status": status, "reason": "x", "message": "", "lastTransitionTime": time(4080) }]);
    for machine in [Some(&free), Some(&paused), None] {
        for status in [
            json!({ "state": "InProgress", "startTime": time(4080) }),
            json!({ "state": "Pending" }),
            json!({ "state": "Pending", "conditions": held("True") }),
            json!({ "state": "InProgress", "conditions": held("False") }),
            json!({}),
        ] {
            let given = operation("reboot", &json!({ "spec": { "timeoutSeconds": 60 }, "status": status }));
            // Taken first at second 4000, and seen in another state every few seconds since.
            let at = |second| {
                let since = Since { taken: Some(at(4000)), ..seen_to_come(second - 5) };
                written(&look_since(&given, machine, second, since)).1.to_owned()
            };
            assert_eq!([at(4089), at(4090)], ["", "TimedOut"], "{status} {machine:?}");
        }
    }
}

#[test]
fn o2_ttl_does_not_depend_on_the_clock_of_the_host() {
    for said in [-900_000, 100, 900_000] {
        let status = json!({ "state": "Complete", "completionTime": time(said) });
        let ended =
            operation("reboot", &json!({ "spec": { "ttlSecondsAfterFinished": 10 }, "status": status }));
        let goes = |second, since| look_since(&ended, None, second, since).remove;
        assert!(!goes(4009, seen_to_come(4000)) && goes(4010, seen_to_come(4000)), "{said}");
        assert!(goes(5010, first_seen(5000)), "{said}");
    }
}

#[test]
fn timeout_after_another_operation_ignores_the_clock_of_the_host() {
    let machine = machine(&json!({}));
    let waiting = operation("restartService", &json!({ "spec": { "timeoutSeconds": 60 } }));
    for said in [-900_000, 100, 900_000] {
        let status = json!({ "state": "Complete", "completionTime": time(said) });
        let others = [(Arc::new(operation("reboot", &json!({ "status": status }))), seen_to_come(5000))];
        let at = |second| {
            let (machine, since) = (Some(&machine), seen_to_come(1));
            let seen = Seen { operation: &waiting, machine, since, others: &others, now: at(second) };
            written(&plan(&seen)).1.to_owned()
        };
        assert_eq!([at(5059), at(5060)], ["", "NoExecutor"], "{said}");
    }
}

#[test]
fn clock_leap_of_the_controller_neither_ends_nor_extends_an_operation() {
    let machine = machine(&json!({}));
    let pending = json!({ "spec": { "timeoutSeconds": 60 }, "status": { "state": "Pending" } });
    let taken = json!({ "spec": { "timeoutSeconds": 60 }, "status": { "state": "InProgress", "startTime": time(0) } });
    let ended = json!({ "spec": { "ttlSecondsAfterFinished": 60 }, "status": { "state": "Complete", "completionTime": time(0) } });
    for leap in [-90_000, 0, 90_000] {
        // All of it was found so, and written, at second 0; `passed` seconds and one leap later:
        let look = |what: &Value, passed: i64| {
            let since =
                Since { seen: at(leap), came: false, leap: SignedDuration::from_secs(leap), taken: None };
            look_since(&operation("reboot", what), Some(&machine), leap + passed, since)
        };
        assert_eq!(
            (written(&look(&pending, 59)).1, written(&look(&pending, 60)).1),
            ("", "NoExecutor"),
            "{leap}"
        );
        assert_eq!((written(&look(&taken, 89)).1, written(&look(&taken, 90)).1), ("", "TimedOut"), "{leap}");
        assert_eq!((look(&ended, 59).remove, look(&ended, 60).remove), (false, true), "{leap}");
    }
}

#[test]
fn while_its_machine_is_paused_it_waits_and_its_time_begins_afterwards() {
    let paused = machine(&json!({ "paused": true }));
    let mut waiting = operation("reboot", &json!({ "spec": { "timeoutSeconds": 60 } }));
    let plan = look(&waiting, Some(&paused), 10);
    waiting.status = plan.status;
    let suspended = |operation: &MachineOperation| {
        let condition = operation.status.as_ref().unwrap().conditions[0].clone();
        (condition.type_, condition.status, condition.reason)
    };
    let expected =
        |status: &str, reason: &str| ("Suspended".to_owned(), status.to_owned(), reason.to_owned());
    assert_eq!(suspended(&waiting), expected("True", "MachinePaused"));
    assert_eq!(look(&waiting, Some(&paused), 99_999).status, None, "however long");
    let free = machine(&json!({}));
    let plan = look(&waiting, Some(&free), 100_000);
    waiting.status = plan.status;
    assert_eq!(suspended(&waiting), expected("False", "Resumed"));
    assert_eq!(look(&waiting, Some(&free), 100_059).status, None);
    assert_eq!(written(&look(&waiting, Some(&free), 100_060)).1, "NoExecutor");
}

/// The executor sees the end of the pause by the same watch as the controller, and may write first.
#[test]
fn operation_that_was_taken_or_has_ended_is_not_suspended() {
    let (free, suspended) = (
        machine(&json!({})),
        json!([{ "type": "Suspended", "status": "True", "reason": "MachinePaused",
        "message": "", "lastTransitionTime": time(5) }]),
    );
    for state in ["InProgress", "Complete", "Failed"] {
        let status = json!({ "state": state, "startTime": time(8), "completionTime": time(9), "conditions": suspended });
        let mut given = operation("reboot", &json!({ "status": status }));
        let status = look(&given, Some(&free), 10).status.unwrap();
        assert_eq!(status.state, None, "the executor's");
        let found: Vec<_> = status.conditions.iter().map(|c| (c.type_.as_str(), c.status.as_str())).collect();
        assert_eq!(found, [("Suspended", "False")], "{state}");
        given.status.as_mut().unwrap().conditions = status.conditions;
        assert_eq!(look(&given, Some(&free), 11).status, None, "{state}: once");
    }
    // Ended by the controller: its Machine is gone, or it was not ended in time.
    for state in ["Pending", "InProgress"] {
        let status = json!({ "state": state, "startTime": time(8), "conditions": suspended });
        let status = look(&operation("reboot", &json!({ "status": status })), None, 9999).status.unwrap();
        assert_eq!(status.state, FAILED);
        assert!(status.conditions.iter().all(|c| c.type_ != "Suspended" || c.status == "False"), "{state}");
    }
}

#[test]
fn timeout_starts_after_the_previous_operation_of_the_executor() {
    let machine = machine(&json!({}));
    let waiting = operation("restartService", &json!({ "spec": { "timeoutSeconds": 60 } }));
    let with = |name: &str, status: &Value, second| {
        let since = first_seen(second);
        let others = [(Arc::new(operation(name, &json!({ "status": status }))), since)];
        let machine = Some(&machine);
        let seen = Seen { operation: &waiting, machine, since, others: &others, now: at(second) };
        written(&plan(&seen)).1.to_owned()
    };
    let drains = json!({ "state": "InProgress" });
    assert_eq!(with("reboot", &drains, 5000), "");
    assert_eq!(with("powerCycle", &drains, 5000), "NoExecutor", "that one is pxed's");
    let ended = json!({ "state": "Complete", "completionTime": time(5000) });
    assert_eq!(with("reboot", &ended, 5059), "");
    assert_eq!(with("reboot", &ended, 5060), "NoExecutor");
    assert_eq!(with("reboot", &json!({ "state": "Pending" }), 60), "NoExecutor");
}

#[test]
fn o2_operation_is_removed_after_any_outcome_and_a_child_with_its_parent() {
    for state in ["Complete", "Failed"] {
        let status = json!({ "state": state, "completionTime": time(100) });
        let ended =
            operation("reboot", &json!({ "spec": { "ttlSecondsAfterFinished": 10 }, "status": status }));
        let plan = look(&ended, None, 109);
        assert_eq!((plan.remove, plan.again), (false, Some(Duration::from_secs(1))));
        assert!(look(&ended, None, 110).remove);
        let mut stays = operation("reboot", &json!({ "status": status }));
        let labels = [(MACHINE, "a"), (PARENT, "all")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        stays.metadata.labels = Some(labels.into());
        assert_eq!(look(&stays, None, 9999), Plan::default());
        let owner = json!([{ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation", "name": "all", "uid": "u",
            "controller": true }]);
        let mut child = stays;
        child.spec.ttl_seconds_after_finished = ended.spec.ttl_seconds_after_finished;
        child.metadata.owner_references = serde_json::from_value(owner).unwrap();
        assert_eq!(look(&child, None, 9999), Plan::default());
    }
}

#[test]
fn o8_node_is_deleted_only_for_a_disruptive_operation_after_its_drain() {
    let drained = json!({ "type": "Drained", "status": "True", "reason": "PodsEvicted", "message": "", "lastTransitionTime": time(5) });
    let plan = |name: &str, disruption: &str, conditions: Value, machine: &Machine| {
        let status = json!({ "state": "InProgress", "startTime": time(1), "conditions": conditions });
        let spec = json!({ "parameters": { "disruption": disruption } });
        look(&operation(name, &json!({ "spec": spec, "status": status })), Some(machine), 10)
    };
    let free = machine(&json!({}));
    assert!(plan("applyConfiguration", "allow", json!([drained]), &free).repave);
    assert!(!plan("applyConfiguration", "deny", json!([drained]), &free).repave);
    assert!(!plan("applyConfiguration", "allow", json!([]), &free).repave);
    assert!(!plan("reboot", "allow", json!([drained]), &free).repave);
    assert!(
        !plan("applyConfiguration", "allow", json!([drained]), &machine(&json!({ "paused": true }))).repave
    );
    let mut claimed = free;
    let selected = json!({ "selected": { "name": "w", "version": 1, "source": "Claim" } });
    claimed.status = Some(serde_json::from_value(selected).unwrap());
    let plan = plan("applyConfiguration", "allow", json!([drained]), &claimed);
    assert_eq!((plan.repave, written(&plan).1), (false, "Claimed"));
}

/// Event in the history of an operation.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// The executor takes the operation.
    Taken,
    /// The executor ends the operation with this result.
    Ended(bool),
    Paused(bool),
    /// The Machine is deleted, or made.
    There(bool),
    Passes(i64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        1 => Just(Event::Taken),
        1 => any::<bool>().prop_map(Event::Ended),
        1 => any::<bool>().prop_map(Event::Paused),
        1 => any::<bool>().prop_map(Event::There),
        3 => (0_i64..2000).prop_map(Event::Passes),
    ];
    proptest::collection::vec(event, 0..40)
}

/// Merges a status like the API server: the executor and the controller each own their fields.
fn take_on(operation: &mut MachineOperation, status: MachineOperationStatus) {
    let before = operation.status.clone().unwrap_or_default();
    operation.status = Some(MachineOperationStatus {
        state: status.state.or(before.state),
        executor: status.executor.or(before.executor),
        start_time: status.start_time.or(before.start_time),
        completion_time: status.completion_time.or(before.completion_time),
        ..status
    });
}

proptest! {
    #[test]
    fn o1_an_operation_ends_once_whatever_happens(
        events in events(), known in any::<bool>(), timeout in proptest::option::of(1_i32..4000),
    ) {
        let name = if known { "reboot" } else { "dance" };
        let mut object = operation(name, &json!({ "spec": { "timeoutSeconds": timeout } }));
        let (mut now, mut paused, mut there) = (0_i64, false, true);
        let settle = |object: &mut MachineOperation, paused: bool, there: bool, now: i64| {
            for _ in 0..4 {
                let machine = machine(&json!({ "paused": paused }));
                let before = object.clone();
                let plan = look(object, there.then_some(&machine), now);
                let Some(status) = plan.status else { return plan.again };
                assert!(!(is_finished(&before) && status.state.is_some()), "ended twice: {before:?}");
                let waits = before.status.as_ref().and_then(|s| s.state) != Some(OperationState::InProgress);
                assert!(!(paused && there && waits && status.state == FAILED), "it fails while it is paused");
                take_on(object, status);
            }
            panic!("it does not come to rest: {object:?}");
        };
        settle(&mut object, paused, there, now);
        for event in events {
            match event {
                Event::Taken if matches!(state(&object), None | Some(OperationState::Pending)) && !paused => {
                    let status = object.status.clone().unwrap_or_default();
                    let (state, start_time) = (Some(OperationState::InProgress), Some(Time(at(now))));
                    take_on(&mut object, MachineOperationStatus { state, start_time, ..status });
                }
                Event::Ended(well) if state(&object) == Some(OperationState::InProgress) => {
                    let status = object.status.clone().unwrap_or_default();
                    let state = Some(if well { OperationState::Complete } else { OperationState::Failed });
                    let completion_time = Some(Time(at(now)));
                    take_on(&mut object, MachineOperationStatus { state, completion_time, ..status });
                }
                Event::Taken | Event::Ended(_) => {}
                Event::Paused(now) => paused = now,
                Event::There(now) => there = now,
                Event::Passes(seconds) => now += seconds,
            }
            settle(&mut object, paused, there, now);
        }
        // No client acts from here on.
        for _ in 0..8 {
            let Some(again) = settle(&mut object, false, there, now) else { break };
            now += i64::try_from(again.as_secs()).unwrap() + 1;
        }
        prop_assert!(is_finished(&object), "{:?}", object.status);
        let conditions = &object.status.as_ref().unwrap().conditions;
        prop_assert!(conditions.iter().all(|c| c.type_ != "Suspended" || c.status == "False"), "{conditions:?}");
    }
}
