//! Pure: what of a Machine decides about the rolling update of its configuration. Its heartbeats do not, or ten thousand Machines would have it
//! be judged all the time. Asked by `watch`.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_api::machine::{
    Condition, Machine, NODE_CONFIGURATION, NODE_VERSION, Selected, SlotState, condition_type,
};
use bedplate_rules::claim::claimant;
use bedplate_rules::drain::CORDONED_BY;
use k8s_openapi::api::core::v1::Node;

use crate::cordon::{DRAIN_FAILED, DRAIN_PENDING, DRAIN_STARTED, is_cordoned, is_ready};

/// Last seen properties of Machines that a rolling update depends on.
#[derive(Debug, Default)]
pub struct Weights(BTreeMap<String, Weight>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Weight {
    selected: Option<Selected>,
    pin: Option<i64>,
    applied: Option<(String, i64, Option<String>)>,
    slots: Vec<(Option<String>, Option<i64>, SlotState)>,
    refused: Option<(String, i64)>,
    /// Status and reason of `Paved` and `NodeReady`.
    said: Vec<(String, String, String)>,
    paused: bool,
    leaving: bool,
    claim: Option<String>,
    heard: bool,
}

impl Weight {
    fn of(machine: &Machine) -> Self {
        let status = machine.status.as_ref();
        let conditions = status.map_or(&[][..], |status| &status.conditions);
        let counts =
            |c: &&Condition| [condition_type::PAVED, condition_type::NODE_READY].contains(&c.type_.as_str());
        let said =
            conditions.iter().filter(counts).map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone()));
        let applied = status.and_then(|status| status.applied.as_ref());
        let slots = status.map_or(&[][..], |status| &status.slots);
        let refused = status.and_then(|status| status.rolled_back.as_ref());
        Self {
            selected: status.and_then(|status| status.selected.clone()),
            pin: machine.spec.configuration_ref.as_ref().and_then(|reference| reference.version),
            applied: applied.map(|a| (a.name.clone(), a.version, a.node_uid.clone())),
            slots: slots
                .iter()
                .map(|slot| (slot.configuration_name.clone(), slot.version, slot.state))
                .collect(),
            refused: refused.map(|back| (back.from.name.clone(), back.from.version)),
            said: said.collect(),
            paused: machine.spec.paused,
            leaving: machine.metadata.deletion_timestamp.is_some(),
            claim: claimant(machine),
            heard: status.is_some_and(|status| status.agent.is_some()),
        }
    }

    fn configuration(&self) -> Option<&str> {
        self.selected.as_ref().map(|selected| selected.name.as_str())
    }
}

impl Weights {
    /// The configurations whose rolling updates a Machine's change touches; `None`: it is gone.
    pub fn touched(&mut self, name: &str, machine: Option<&Machine>) -> BTreeSet<String> {
        let after = machine.map(Weight::of);
        let before = match &after {
            Some(after) => self.0.insert(name.to_owned(), after.clone()),
            None => self.0.remove(name),
        };
        if before == after {
            return BTreeSet::new();
        }
        let both = before.iter().chain(&after);
        both.filter_map(Weight::configuration).map(str::to_owned).collect()
    }
}

/// Node annotations that are read here.
const READ: [&str; 6] =
    [CORDONED_BY, DRAIN_STARTED, DRAIN_PENDING, DRAIN_FAILED, NODE_CONFIGURATION, NODE_VERSION];

/// Last seen properties of Nodes that a rolling update depends on. Periodic kubelet status is not among them.
#[derive(Debug, Default)]
pub struct NodeWeights(BTreeMap<String, NodeWeight>);

#[derive(Debug, PartialEq, Eq)]
struct NodeWeight {
    uid: Option<String>,
    provider_id: Option<String>,
    goes: bool,
    ready: bool,
    cordoned: bool,
    annotations: [Option<String>; READ.len()],
}

impl NodeWeight {
    fn of(node: &Node) -> Self {
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

impl NodeWeights {
    /// Returns true if a Node's change matters. `None` means that the Node is gone.
    pub fn is_other(&mut self, name: &str, node: Option<&Node>) -> bool {
        let Some(node) = node else {
            self.0.remove(name);
            return true;
        };
        let after = NodeWeight::of(node);
        if self.0.get(name) == Some(&after) {
            return false;
        }
        self.0.insert(name.to_owned(), after);
        true
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
        let w = BTreeSet::from(["w".to_owned()]);
        let mut weights = Weights::default();
        let mut touched = |status: Value| weights.touched("a", Some(&machine(&status)));
        assert_eq!(touched(json!({ "selected": selected, "agent": agent("2026-01-01T00:00:00Z") })), w);
        assert!(touched(json!({ "selected": selected, "agent": agent("2026-01-01T00:05:00Z") })).is_empty());
        assert_eq!(
            touched(json!({ "selected": selected, "agent": agent("2026-01-01T00:05:00Z"), "slots": slot })),
            w
        );
        assert_eq!(weights.touched("a", None), w);
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
        let mut weights = NodeWeights::default();
        let mut counts = |node: Option<&Node>| weights.is_other("a", node);
        let none = json!({});
        assert!(counts(Some(&node(1, "True", &none))));
        assert!(!counts(Some(&node(2, "True", &none))));
        assert!(counts(Some(&node(3, "Unknown", &none))));
        for more in [
            json!({ "spec": { "unschedulable": true } }),
            json!({ "metadata": { "uid": "n2" } }),
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
            json!({ "spec": { "providerID": "other://a" } }),
            json!({ "metadata": { "annotations": { DRAIN_FAILED: "x" } } }),
            json!({ "metadata": { "annotations": { NODE_VERSION: "2" } } }),
        ] {
            assert_eq!(
                [5, 6].map(|version| counts(Some(&node(version, "True", &more)))),
                [true, false],
                "{more}"
            );
        }
        assert!(counts(None) && counts(Some(&node(9, "True", &none))));
    }
}
