//! Parts of Machine, Node and version that the node's plan depends on.
//!
//! Pure: API objects in, the plan's own types out. Called by the node's loop and by `view`.

use bedplate_api::configuration::Template;
use bedplate_api::id::Digest;
use bedplate_api::machine::{DeletionPolicy, Machine, VersionRef};
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_rules::claim::claimant;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{NodeState, Seen};
use crate::model::{MachineFacts, NodeSeen, VersionFacts};

/// The default of `healthGate.timeoutSeconds`.
const GATE_TIMEOUT: i32 = 600;
/// The default of `healthGate.minReadySeconds`.
const NODE_READY: i32 = 30;

impl Seen {
    /// Returns the Machine. None: deleted if the API is live, otherwise unknown.
    pub(crate) fn machine_facts(&self) -> Option<MachineFacts> {
        self.machine.as_ref().map(|seen| machine(seen, self.ours))
    }

    /// Returns the Node.
    pub(crate) fn node_seen(&self) -> NodeSeen {
        match &self.node {
            NodeState::Unknown => NodeSeen::Unknown,
            NodeState::Absent => NodeSeen::Absent,
            NodeState::Present(seen) => node(seen),
        }
    }

    /// Returns the selected version.
    pub(crate) fn version_facts(&self) -> Option<VersionFacts> {
        self.version.as_ref().map(|seen| version(seen))
    }
}

/// Returns true if a host enrolled for this Machine with the certificate of this
/// SHA-256. pxed writes it there, and the API server accepts no other certificate
/// (docs/design/rules.md, Trust 3). A re-created Machine has none, or another host's.
pub fn is_ours(machine: &Machine, fingerprint: Option<Digest>) -> bool {
    let enrollment = machine.status.as_ref().and_then(|status| status.enrollment.as_ref());
    let written = enrollment.and_then(|enrollment| enrollment.certificate_fingerprint);
    fingerprint.is_some() && written == fingerprint
}

fn machine(machine: &Machine, ours: bool) -> MachineFacts {
    let status = machine.status.as_ref();
    let selected = status.and_then(|status| status.selected.as_ref());
    MachineFacts {
        uid: machine.metadata.uid.clone().unwrap_or_default(),
        generation: machine.metadata.generation,
        ours,
        paused: machine.spec.paused,
        deleting: machine.metadata.deletion_timestamp.is_some(),
        drain: machine.spec.deletion_policy == DeletionPolicy::Drain,
        claimed_by: claimant(machine),
        selected: selected
            .map(|selected| VersionRef { name: selected.name.clone(), version: selected.version }),
        node_ref: status.and_then(|status| status.node_ref.as_ref()).map(|node| node.uid.clone()),
    }
}

fn node(node: &Node) -> NodeSeen {
    NodeSeen::Present { uid: node.metadata.uid.clone().unwrap_or_default(), ready_since: ready_since(node) }
}

/// Returns the time since which the condition Ready is True.
fn ready_since(node: &Node) -> Option<Timestamp> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    (ready.status == "True")
        .then(|| ready.last_transition_time.as_ref().map_or(Timestamp::MIN, |time| time.0))
}

fn version(version: &MachineConfigurationVersion) -> VersionFacts {
    let spec = &version.spec;
    let gate = spec.template.health_gate.as_ref();
    let seconds = |seconds: i32| SignedDuration::from_secs(seconds.into());
    VersionFacts {
        reference: VersionRef { name: spec.configuration_name.clone(), version: spec.version },
        template: template_hash(&spec.template),
        timeout: seconds(gate.map_or(GATE_TIMEOUT, |gate| gate.timeout_seconds)),
        node_ready: seconds(gate.map_or(NODE_READY, |gate| gate.min_ready_seconds)),
    }
}

/// Returns the SHA-256, in hex digits, of a template as JSON without whitespace
/// and with sorted keys (byte order).
pub(crate) fn template_hash(template: &Template) -> String {
    let mut text = String::new();
    // A template has only texts, numbers, lists and maps with text keys, which JSON can represent.
    canonical(&serde_json::to_value(template).unwrap_or_default(), &mut text);
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn canonical(value: &Value, text: &mut String) {
    let separated = |first: &mut bool, text: &mut String| {
        if !std::mem::take(first) {
            text.push(',');
        }
    };
    let mut first = true;
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<&String> = fields.keys().collect();
            keys.sort_unstable();
            text.push('{');
            for key in keys {
                separated(&mut first, text);
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                canonical(&fields[key], text);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                separated(&mut first, text);
                canonical(item, text);
            }
            text.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            text.push_str(&value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn seen(metadata: &Value, spec: &Value, status: &Value) -> MachineFacts {
        let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": metadata,
            "spec": spec, "status": status });
        let object: Machine = serde_json::from_value(object).unwrap();
        let ours = is_ours(&object, Some(Digest::from_sha256([0xab; 32])));
        Seen { machine: Some(Arc::new(object)), ours, ..Seen::default() }.machine_facts().unwrap()
    }

    #[test]
    fn a_machine_says_what_counts() {
        let plain = seen(&json!({ "name": "node-1" }), &json!({ "provider": "manual" }), &json!({}));
        let nothing = MachineFacts {
            uid: String::new(),
            generation: None,
            ours: false,
            paused: false,
            deleting: false,
            drain: false,
            claimed_by: None,
            selected: None,
            node_ref: None,
        };
        assert_eq!(plain, nothing);
        let metadata =
            json!({ "name": "node-1", "generation": 7, "deletionTimestamp": "2026-01-01T00:00:00Z" });
        let spec = json!({ "provider": "manual", "paused": true, "deletionPolicy": "Drain" });
        let status = json!({ "enrollment": { "certificateFingerprint": Digest::from_sha256([0xab; 32]) },
            "selected": { "name": "workers", "version": 3, "source": "Claim" }, "nodeRef": { "name": "node-1", "uid": "n" } });
        let all = MachineFacts {
            uid: String::new(),
            generation: Some(7),
            ours: true,
            paused: true,
            deleting: true,
            drain: true,
            claimed_by: Some("MachineClaim node-1".to_owned()),
            selected: Some(VersionRef { name: "workers".to_owned(), version: 3 }),
            node_ref: Some("n".to_owned()),
        };
        assert_eq!(seen(&metadata, &spec, &status), all);
    }

    #[test]
    fn a_machine_is_ours_only_by_the_certificate_that_was_written_last() {
        let other = json!({ "enrollment": { "certificateFingerprint": Digest::from_sha256([0xcd; 32]) } });
        assert!(!seen(&json!({ "name": "n" }), &json!({ "provider": "manual" }), &other).ours);
        let object = json!({ "metadata": { "name": "n" }, "spec": { "provider": "manual" },
            "status": { "enrollment": {} } });
        assert!(
            !is_ours(&serde_json::from_value(object).unwrap(), None),
            "a missing fingerprint matches no host"
        );
    }

    #[test]
    fn a_node_is_ready_since_its_condition_says_so_and_only_while_it_is_true() {
        for (status, since) in [("True", Some(Timestamp::UNIX_EPOCH)), ("False", None), ("Unknown", None)] {
            let object = json!({ "metadata": { "name": "n", "uid": "u" }, "status": { "conditions": [
                { "type": "MemoryPressure", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" },
                { "type": "Ready", "status": status, "lastTransitionTime": "1970-01-01T00:00:00Z" }] } });
            let object: Node = serde_json::from_value(object).unwrap();
            let seen = Seen { node: NodeState::Present(Arc::new(object)), ..Seen::default() };
            assert_eq!(
                seen.node_seen(),
                NodeSeen::Present { uid: "u".to_owned(), ready_since: since },
                "{status}"
            );
        }
        let bare: Node = serde_json::from_value(json!({ "metadata": { "name": "n" } })).unwrap();
        assert_eq!(node(&bare), NodeSeen::Present { uid: String::new(), ready_since: None });
    }

    fn of(template: &Value) -> VersionFacts {
        let object = json!({ "metadata": { "name": "workers-v2" },
            "spec": { "configurationName": "workers", "version": 2, "template": template } });
        version(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_version_says_its_gate_or_the_defaults() {
        let template = json!({ "image": { "reference": "r" }, "kubernetes": { "version": "v1.34.4" } });
        let plain = of(&template);
        assert_eq!(plain.reference, VersionRef { name: "workers".to_owned(), version: 2 });
        assert_eq!((plain.timeout.as_secs(), plain.node_ready.as_secs()), (600, 30));
        let mut gated = template;
        gated["healthGate"] = json!({ "timeoutSeconds": 60, "minReadySeconds": 5 });
        let gated = of(&gated);
        assert_eq!((gated.timeout.as_secs(), gated.node_ready.as_secs()), (60, 5));
        assert_ne!(gated.template, plain.template);
    }

    #[test]
    fn template_hash_does_not_depend_on_key_order_and_never_changes() {
        let ordered = |text: &str| {
            let mut canonical_text = String::new();
            canonical(&serde_json::from_str(text).unwrap(), &mut canonical_text);
            canonical_text
        };
        let text = r#"{"b":[1,{"d":null,"c":"x\n"}],"a":1.50,"é":true}"#;
        assert_eq!(ordered(text), r#"{"a":1.5,"b":[1,{"c":"x\n","d":null}],"é":true}"#);
        let template = json!({ "image": { "reference": "r" }, "kubernetes": { "version": "v1.34.4",
            "kubeletConfiguration": { "maxPods": 20, "evictionHard": {} } } });
        // Records on disk contain the hash: another result would fill every slot again.
        assert_eq!(
            of(&template).template,
            "6e91854c3e5bb4fc5fdc990df512173a63588b88a5aa4a4e5ff394a24f9bd9ab"
        );
    }
}
