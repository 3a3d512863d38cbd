//! Pure: fields of a Machine that decide about the rolling update of its configuration. Heartbeats are excluded, because those of ten
//! thousand Machines would reconcile it all the time. Called by `watch`.

use bedplate_api::condition::Conditions as _;
use bedplate_api::machine::{Machine, NODE_CONFIGURATION, NODE_VERSION, Selected, SlotState, condition_type};
use bedplate_rules::claim::claimant;
use bedplate_rules::drain::CORDONED_BY;
use k8s_openapi::api::core::v1::Node;

use crate::cordon::{DRAIN_FAILED, DRAIN_PENDING, DRAIN_STARTED, is_cordoned, is_ready};

/// Facts of a Machine that a rolling update depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineFacts {
    selected: Option<Selected>,
    pin: Option<i64>,
    applied: Option<((String, i64), Option<String>)>,
    slots: Vec<(Option<String>, Option<i64>, SlotState)>,
    refused: Option<(String, i64)>,
    /// Status and reason of `Paved` and `NodeReady`.
    said: Vec<(String, String, String)>,
    paused: bool,
    leaving: bool,
    claim: Option<String>,
    heard: bool,
}

impl MachineFacts {
    /// Returns the facts of a Machine.
    pub fn of(machine: &Machine) -> Self {
        let status = machine.status.as_ref();
        let said = [condition_type::PAVED, condition_type::NODE_READY];
        let said = said.into_iter().filter_map(|type_| machine.condition(type_));
        let slots = status.map_or(&[][..], |status| &status.slots).iter();
        let refused = status.and_then(|status| status.rolled_back.as_ref());
        let owned = |(name, version): (&str, i64)| (name.to_owned(), version);
        Self {
            selected: machine.selected().cloned(),
            pin: machine.spec.configuration_ref.as_ref().and_then(|reference| reference.version),
            applied: machine.applied().map(|applied| (owned(applied.key()), applied.node_uid.clone())),
            slots: slots.map(|slot| (slot.configuration_name.clone(), slot.version, slot.state)).collect(),
            refused: refused.map(|back| owned(back.from.key())),
            said: said.map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone())).collect(),
            paused: machine.spec.paused,
            leaving: machine.metadata.deletion_timestamp.is_some(),
            claim: claimant(machine),
            heard: status.is_some_and(|status| status.agent.is_some()),
        }
    }

    /// Returns the configuration whose rolling update the Machine is in.
    pub fn configuration(&self) -> Option<&str> {
        self.selected.as_ref().map(|selected| selected.name.as_str())
    }
}

/// Node annotations that are read here.
const READ: [&str; 6] =
    [CORDONED_BY, DRAIN_STARTED, DRAIN_PENDING, DRAIN_FAILED, NODE_CONFIGURATION, NODE_VERSION];

/// Facts of a Node that a rolling update depends on. Periodic kubelet status is not among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    uid: Option<String>,
    provider_id: Option<String>,
    goes: bool,
    ready: bool,
    cordoned: bool,
    annotations: [Option<String>; READ.len()],
}

impl NodeFacts {
    /// Returns the facts of a Node.
    pub fn of(node: &Node) -> Self {
        let annotations = node.metadata.annotations.as_ref();
        Self {
            uid: node.metadata.uid.clone(),
            provider_id: node.spec.as_ref().and_then(|spec| spec.provider_id.clone()),
            goes: node.metadata.deletion_timestamp.is_some(),
            ready: is_ready(node),
            cordoned: is_cordoned(node),
            annotations: READ.map(|key| annotations.and_then(|all| all.get(key)).cloned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(status: &Value) -> Machine {
        serde_json::from_value(
            json!({ "metadata": { "name": "a" }, "spec": { "provider": "manual" }, "status": status }),
        )
        .unwrap()
    }

    #[test]
    fn a_heartbeat_touches_no_rolling_update_and_a_prepared_slot_does() {
        let selected = json!({ "name": "w", "version": 2, "source": "Reference" });
        let agent = |time: &str| json!({ "version": "1", "lastHeartbeatTime": time });
        let slot = json!([{ "name": "b", "configurationName": "w", "version": 2, "state": "Prepared" }]);
        let facts = |status: Value| MachineFacts::of(&machine(&status));
        let before = facts(json!({ "selected": selected, "agent": agent("2026-01-01T00:00:00Z") }));
        assert_eq!(before.configuration(), Some("w"));
        assert_eq!(facts(json!({ "selected": selected, "agent": agent("2026-01-01T00:05:00Z") })), before);
        assert_ne!(
            facts(json!({ "selected": selected, "agent": agent("2026-01-01T00:05:00Z"), "slots": slot })),
            before
        );
    }

    #[test]
    fn repeated_kubelet_status_is_ignored_and_a_ready_change_is_not() {
        let node = |version: u32, ready: &str, more: &Value| -> Node {
            let mut node = json!({ "metadata": { "name": "a", "uid": "n1", "resourceVersion": version.to_string(),
                "labels": { "v": version.to_string() }, "annotations": { "other": version.to_string() } },
                "spec": { "providerID": "bedplate://a" }, "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
            for (key, value) in more.as_object().unwrap() {
                node[key].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
            }
            serde_json::from_value(node).unwrap()
        };
        let none = json!({});
        let before = NodeFacts::of(&node(1, "True", &none));
        assert_eq!(NodeFacts::of(&node(2, "True", &none)), before);
        assert_ne!(NodeFacts::of(&node(3, "Unknown", &none)), before);
        for more in [
            json!({ "spec": { "unschedulable": true } }),
            json!({ "metadata": { "uid": "n2" } }),
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
            json!({ "spec": { "providerID": "other://a" } }),
            json!({ "metadata": { "annotations": { DRAIN_FAILED: "x" } } }),
            json!({ "metadata": { "annotations": { NODE_VERSION: "2" } } }),
        ] {
            let [one, other] = [5, 6].map(|version| NodeFacts::of(&node(version, "True", &more)));
            assert!(one != before && one == other, "{more}");
        }
    }
}
