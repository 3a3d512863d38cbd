//! Time since each Machine's version was chosen, and time without a Node of it, by this program's monotonic
//! clock.
//!
//! The agent may be dead or compromised, so its reports end no wait. A new controller counts from its start:
//! a failure may be reported later, but never too early. An earlier controller's report is in the
//! configuration's status (`conditions`). It counts for each Machine that this controller has found without a
//! Node. Updated by `watch`, read by `judge` and by `Degraded`.

use std::collections::HashMap;
use std::time::Duration;

use bedplate_api::machine::{Machine, Selected};
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_process::lock::Lock;
use bedplate_rules::claim::is_claimed;
use kube::ResourceExt;
use tokio::time::Instant;

/// Health gate of a version that names none (`HealthGate::timeout_seconds`).
const GATE_TIMEOUT: Duration = Duration::from_secs(600);
/// Time in addition to the health gate: power-on, boot, fetch of a node image, and rollback to the former version.
const REPAVE_MARGIN: Duration = Duration::from_secs(1800);

/// Starts of what each Machine waits for.
#[derive(Debug, Default)]
pub struct Waits(Lock<HashMap<String, Starts>>);

#[derive(Debug)]
struct Starts {
    uid: Option<String>,
    selected: Option<(String, i64)>,
    chosen: Instant,
    /// The second is [`Wait::is_found`].
    nodeless: Option<(Instant, bool)>,
}

/// Time that a Machine has waited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wait {
    /// Time since its version was chosen.
    pub chosen: Duration,
    /// Time without a Node of this version. None if the Machine has its Node, or is skipped.
    pub nodeless: Option<Duration>,
    /// True if the controller has found it without the Node, and has not seen the beginning.
    pub is_found: bool,
}

impl Waits {
    /// Records a Machine that was added or changed.
    pub fn put(&self, machine: &Machine) {
        let (name, uid, now) = (machine.name_any(), machine.metadata.uid.clone(), Instant::now());
        let selected = machine.selected().map(|selected| (selected.name.clone(), selected.version));
        let mut all = self.0.lock();
        let before = all.get(&name).filter(|starts| starts.uid == uid);
        let is_found = before.is_none();
        // Another choice begins another attempt.
        let same = before.filter(|starts| starts.selected == selected);
        let chosen = same.map_or(now, |starts| starts.chosen);
        let start = same.and_then(|starts| starts.nodeless).unwrap_or((now, is_found));
        let nodeless = pending_version(machine).map(|_| start);
        all.insert(name, Starts { uid, selected, chosen, nodeless });
    }

    /// Forgets a Machine that was deleted.
    pub fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }

    /// Returns how long a Machine has waited.
    pub fn of(&self, machine: &Machine) -> Wait {
        let all = self.0.lock();
        let starts = all.get(&machine.name_any()).filter(|starts| starts.uid == machine.metadata.uid);
        starts.map_or_else(Wait::default, |starts| Wait {
            chosen: starts.chosen.elapsed(),
            nodeless: starts.nodeless.map(|(since, _)| since.elapsed()),
            is_found: starts.nodeless.is_some_and(|(_, is_found)| is_found),
        })
    }
}

/// Returns the version that a Machine without a Node waits for. None if the Machine has its Node, or is skipped.
fn pending_version(machine: &Machine) -> Option<&Selected> {
    let status = machine.status.as_ref()?;
    let is_left = machine.spec.paused || machine.metadata.deletion_timestamp.is_some() || is_claimed(machine);
    let node = status.node_ref.as_ref().map(|node| node.uid.as_str());
    let applied = status.applied.as_ref();
    let has_node = node.is_some()
        && applied.is_some_and(|applied| applied.node_uid.is_none() || applied.node_uid.as_deref() == node);
    status.selected.as_ref().filter(|_| !is_left && !has_node)
}

/// Returns true if the Node of a Machine is overdue: the Machine has waited longer than the health gate of its version and a margin.
/// `versions`: those of its configuration. `is_reported`: an earlier controller has reported such a Machine, and this one started to count later.
pub fn is_late<'a>(
    machine: &Machine,
    mut versions: impl Iterator<Item = &'a MachineConfigurationVersion>,
    wait: Wait,
    is_reported: bool,
) -> bool {
    let (Some(selected), Some(time)) = (pending_version(machine), wait.nodeless) else { return false };
    if wait.is_found && is_reported {
        return true;
    }
    if time <= REPAVE_MARGIN {
        return false;
    }
    let version = versions.find(|version| version.key() == selected.key());
    let gate = version.and_then(|version| version.spec.template.health_gate.as_ref());
    let gate = gate.and_then(|gate| u64::try_from(gate.timeout_seconds).ok()).map(Duration::from_secs);
    time > gate.unwrap_or(GATE_TIMEOUT) + REPAVE_MARGIN
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(uid: &str, more: &Value) -> Machine {
        let mut object = json!({ "metadata": { "name": "a", "uid": uid }, "spec": { "provider": "manual" },
            "status": { "selected": { "name": "w", "version": 2, "source": "Selector" },
                "applied": { "name": "w", "version": 1, "slot": "a", "nodeUID": "n1" } } });
        for (key, value) in more.as_object().unwrap() {
            object[key].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        }
        serde_json::from_value(object).unwrap()
    }

    fn node(uid: &str) -> Value {
        json!({ "status": { "nodeRef": { "name": "a", "uid": uid } } })
    }

    fn nodeless(seconds: u64) -> Wait {
        Wait { nodeless: Some(Duration::from_secs(seconds)), ..Wait::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn c4_time_without_a_node_is_counted_whatever_the_agent_says() {
        let waits = Waits::default();
        let gone = machine("u", &json!({}));
        waits.put(&gone);
        for minute in 1..=3 {
            tokio::time::advance(Duration::from_secs(60)).await;
            // The agent lives, and reports something each minute.
            let heartbeat = json!({ "status": { "agent": { "lastHeartbeatTime": "2026-01-01T00:00:00Z", "version": minute.to_string() } } });
            let next = machine("u", &heartbeat);
            waits.put(&next);
            assert_eq!(waits.of(&next).nodeless, Some(Duration::from_secs(60 * minute)));
        }
        // A Node registers that the agent has not reported as the Node of the version.
        let registered = machine("u", &node("n2"));
        waits.put(&registered);
        assert_eq!(waits.of(&registered).nodeless, Some(Duration::from_secs(180)));
        // Another choice is another attempt, and its start was seen.
        assert!(waits.of(&gone).is_found);
        let chosen = json!({ "status": { "selected": { "name": "w", "version": 3, "source": "Selector" } } });
        waits.put(&machine("u", &chosen));
        assert_eq!(waits.of(&gone), Wait { nodeless: Some(Duration::ZERO), ..Wait::default() });
    }

    /// The attack: an agent reports the selected version and a full slot for a moment, so that its time begins again.
    #[tokio::test(start_paused = true)]
    async fn c4_time_since_a_choice_is_counted_whatever_the_agent_says() {
        let waits = Waits::default();
        let applied = json!({ "status": { "applied": { "name": "w", "version": 2, "slot": "b", "nodeUID": "n1" },
            "nodeRef": { "name": "a", "uid": "n1" } } });
        let slot = json!({ "status": { "nodeRef": { "name": "a", "uid": "n1" },
            "slots": [{ "name": "b", "configurationName": "w", "version": 2, "state": "Prepared" }] } });
        for more in [node("n1"), applied, slot, json!({})] {
            waits.put(&machine("u", &more));
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        assert_eq!(waits.of(&machine("u", &json!({}))).chosen, Duration::from_secs(240));
    }

    #[tokio::test(start_paused = true)]
    async fn c4_only_a_wait_that_was_found_is_that_of_an_earlier_report() {
        let (seen, found, gone) = (Waits::default(), Waits::default(), machine("u", &json!({})));
        seen.put(&machine("u", &node("n1")));
        for waits in [&seen, &found] {
            waits.put(&gone);
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        for (waits, is_reported, late) in
            [(&seen, true, false), (&seen, false, false), (&found, true, true), (&found, false, false)]
        {
            assert_eq!(is_late(&gone, [].into_iter(), waits.of(&gone), is_reported), late, "{is_reported}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn c4_machine_with_its_node_or_left_alone_waits_for_none() {
        let claim = json!({ "status": { "selected": { "name": "w", "version": 2, "source": "Claim" } } });
        let deleted = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        for more in [
            node("n1"),
            json!({ "spec": { "paused": true } }),
            claim,
            deleted,
            json!({ "status": { "selected": null } }),
        ] {
            let waits = Waits::default();
            waits.put(&machine("u", &json!({})));
            tokio::time::advance(Duration::from_secs(60)).await;
            waits.put(&machine("u", &more));
            assert_eq!(waits.of(&machine("u", &json!({}))).nodeless, None, "{more}");
        }
        let waits = Waits::default();
        waits.put(&machine("u", &json!({})));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(waits.of(&machine("v", &json!({}))), Wait::default(), "another Machine of its name");
        waits.remove("a");
        assert_eq!(waits.of(&machine("u", &json!({}))), Wait::default());
    }

    #[test]
    fn c4_a_version_has_the_time_of_its_own_health_gate() {
        let version = |gate: Value| -> MachineConfigurationVersion {
            serde_json::from_value(
                json!({ "metadata": { "name": "w-v2" }, "spec": { "configurationName": "w", "version": 2,
                "template": { "image": { "reference": "r.example/node:1", "allowTag": true },
                    "kubernetes": { "version": "v1.34.0" }, "healthGate": gate } } }),
            )
            .unwrap()
        };
        let gone = machine("u", &json!({}));
        for (gate, seconds) in [
            (Value::Null, 2400),
            (json!({ "timeoutSeconds": 60 }), 1860),
            (json!({ "timeoutSeconds": 7200 }), 9000),
        ] {
            let version = version(gate);
            let late = |seconds| is_late(&gone, [&version].into_iter(), nodeless(seconds), false);
            assert!(!late(seconds) && late(seconds + 1), "{seconds}");
        }
        let there = machine("u", &node("n1"));
        assert!(!is_late(&there, [].into_iter(), nodeless(u64::MAX), true), "it has its Node");
    }
}
