//! Fields of the core kinds that are set and that Bedplate does not carry out. Condition `FieldsSupported` names them.
//!
//! Upstream's definitions may be installed, so a value of a later version is reported too.
//!
//! Pure: no clock, no file, no socket.

use std::collections::BTreeMap;
use std::fmt;

use kube::ResourceExt;

use super::full::deployment::{Rollout, StrategyType};
use super::full::machine::MachineSpec;
use super::full::set::{DeletionOrder, MachineNaming, SetDeletion};
use super::full::{Cluster, Machine, MachineDeployment, MachineHealthCheck, MachineSet};
use super::part::{CountOrPercent, Gate, Polarity, Propagation, Taint, TaintEffect, annotation};

/// Path of a field, such as `spec.topology`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(String);

impl FieldPath {
    fn new(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    /// Returns the path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Kind with fields that Bedplate may not carry out.
pub trait Unsupported {
    /// Returns the paths of the fields that are set and not carried out, in order.
    fn unsupported(&self) -> Vec<FieldPath>;
}

impl Unsupported for Cluster {
    fn unsupported(&self) -> Vec<FieldPath> {
        let mut found = Vec::new();
        found.extend(self.spec.topology.map(|_| FieldPath::new("spec.topology")));
        gates("spec.availabilityGates", &self.spec.availability_gates, &mut found);
        found
    }
}

impl Unsupported for Machine {
    fn unsupported(&self) -> Vec<FieldPath> {
        let mut found = Vec::new();
        in_place_updates(self.annotations(), &mut found);
        machine("spec", &self.spec, &mut found);
        found
    }
}

impl Unsupported for MachineSet {
    fn unsupported(&self) -> Vec<FieldPath> {
        let mut found = Vec::new();
        let spec = &self.spec;
        in_place_updates(self.annotations(), &mut found);
        preflight_checks(self.annotations(), &mut found);
        machine("spec.template.spec", &spec.template.spec, &mut found);
        replicas(spec.replicas, &mut found);
        set(spec.machine_naming.as_ref(), spec.deletion.as_ref(), &mut found);
        found
    }
}

impl Unsupported for MachineDeployment {
    fn unsupported(&self) -> Vec<FieldPath> {
        let mut found = Vec::new();
        let spec = &self.spec;
        in_place_updates(self.annotations(), &mut found);
        preflight_checks(self.annotations(), &mut found);
        machine("spec.template.spec", &spec.template.spec, &mut found);
        replicas(spec.replicas, &mut found);
        set(spec.machine_naming.as_ref(), spec.deletion.as_ref(), &mut found);
        rollout(spec.rollout.as_ref(), &mut found);
        let in_flight = spec.remediation.as_ref().and_then(|remediation| remediation.max_in_flight);
        amount("spec.remediation.maxInFlight", in_flight, &mut found);
        found
    }
}

impl Unsupported for MachineHealthCheck {
    fn unsupported(&self) -> Vec<FieldPath> {
        let mut found = Vec::new();
        let Some(remediation) = &self.spec.remediation else { return found };
        found.extend(
            remediation.template_ref.as_ref().map(|_| FieldPath::new("spec.remediation.templateRef")),
        );
        let Some(trigger) = &remediation.trigger_if else { return found };
        let path = |field| format!("spec.remediation.triggerIf.{field}");
        amount(&path("unhealthyLessThanOrEqualTo"), trigger.unhealthy_less_than_or_equal_to, &mut found);
        if trigger.unhealthy_in_range.is_some() && trigger.range().is_none() {
            found.push(FieldPath::new(path("unhealthyInRange")));
        }
        found
    }
}

/// Preflight checks of a MachineSet that can be skipped.
const PREFLIGHT_CHECKS: [&str; 5] =
    ["All", "KubeadmVersionSkew", "KubernetesVersionSkew", "ControlPlaneIsStable", "ControlPlaneVersionSkew"];

/// Variables of the template of names.
const NAME_VARIABLES: [&str; 3] = [".cluster.name", ".machineSet.name", ".random"];

fn in_place_updates(annotations: &BTreeMap<String, String>, found: &mut Vec<FieldPath>) {
    let keys = annotations.keys().filter(|key| key.starts_with(annotation::IN_PLACE_UPDATES_PREFIX));
    found.extend(keys.map(|key| FieldPath::new(format!("metadata.annotations[{key}]"))));
}

/// Reports an unknown check: it is not skipped.
fn preflight_checks(annotations: &BTreeMap<String, String>, found: &mut Vec<FieldPath>) {
    let key = annotation::SKIP_PREFLIGHT_CHECKS;
    let names = annotations.get(key).map_or("", String::as_str).split(',').map(str::trim);
    let is_known = names.into_iter().all(|name| name.is_empty() || PREFLIGHT_CHECKS.contains(&name));
    if !is_known {
        found.push(FieldPath::new(format!("metadata.annotations[{key}]")));
    }
}

fn machine(path: &str, spec: &MachineSpec, found: &mut Vec<FieldPath>) {
    gates(&format!("{path}.readinessGates"), &spec.readiness_gates, found);
    let is_later =
        |taint: &Taint| taint.effect == TaintEffect::Unknown || taint.propagation == Propagation::Unknown;
    let taints = (0..).zip(&spec.taints).filter(|(_, taint)| is_later(taint));
    found.extend(taints.map(|(index, _): (u32, _)| FieldPath::new(format!("{path}.taints[{index}]"))));
}

fn gates(path: &str, gates: &[Gate], found: &mut Vec<FieldPath>) {
    let later = (0..).zip(gates).filter(|(_, gate)| gate.polarity == Some(Polarity::Unknown));
    found.extend(later.map(|(index, _): (u32, _)| FieldPath::new(format!("{path}[{index}].polarity"))));
}

fn set(naming: Option<&MachineNaming>, deletion: Option<&SetDeletion>, found: &mut Vec<FieldPath>) {
    let template = naming.and_then(|naming| naming.template.as_deref()).unwrap_or_default();
    if has_functions(template) {
        found.push(FieldPath::new("spec.machineNaming.template"));
    }
    if deletion.and_then(|deletion| deletion.order) == Some(DeletionOrder::Unknown) {
        found.push(FieldPath::new("spec.deletion.order"));
    }
}

/// Returns true if a template of names has an action of Go's templates that is not a variable.
fn has_functions(template: &str) -> bool {
    template
        .split("{{")
        .skip(1)
        .any(|rest| rest.split_once("}}").is_none_or(|(action, _)| !NAME_VARIABLES.contains(&action.trim())))
}

fn rollout(rollout: Option<&Rollout>, found: &mut Vec<FieldPath>) {
    let Some(strategy) = rollout.and_then(|rollout| rollout.strategy.as_ref()) else { return };
    if strategy.type_ == Some(StrategyType::Unknown) {
        found.push(FieldPath::new("spec.rollout.strategy.type"));
    }
    let Some(rolling) = &strategy.rolling_update else { return };
    let path = |field| format!("spec.rollout.strategy.rollingUpdate.{field}");
    amount(&path("maxSurge"), rolling.max_surge, found);
    amount(&path("maxUnavailable"), rolling.max_unavailable, found);
}

/// Reports a number or percentage that upstream's definition admits and that has no meaning.
fn amount(path: &str, value: Option<CountOrPercent>, found: &mut Vec<FieldPath>) {
    if value == Some(CountOrPercent::Unknown) {
        found.push(FieldPath::new(path));
    }
}

/// Reports a negative number, which upstream's definition admits.
fn replicas(replicas: Option<i32>, found: &mut Vec<FieldPath>) {
    if replicas.is_some_and(|replicas| replicas < 0) {
        found.push(FieldPath::new("spec.replicas"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn object<K: serde::de::DeserializeOwned>(kind: &str, annotations: &Value, spec: &Value) -> K {
        let metadata = json!({ "name": "x", "annotations": annotations });
        from_value(json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec }))
            .unwrap()
    }

    fn paths(object: &impl Unsupported) -> Vec<String> {
        object.unsupported().iter().map(ToString::to_string).collect()
    }

    fn machine_spec() -> Value {
        json!({ "clusterName": "c", "bootstrap": { "dataSecretName": "" }, "infrastructureRef": { "apiGroup": "g", "kind": "K", "name": "n" } })
    }

    #[test]
    fn k10_topology_is_named() {
        let spec = json!({ "topology": { "classRef": { "name": "c" } },
            "availabilityGates": [{ "conditionType": "A" }, { "conditionType": "B", "polarity": "Later" }] });
        let cluster: Cluster = object("Cluster", &json!({}), &spec);
        assert_eq!(paths(&cluster), ["spec.topology", "spec.availabilityGates[1].polarity"]);
        let cluster: Cluster = object("Cluster", &json!({}), &json!({ "paused": true }));
        assert_eq!(paths(&cluster), [""; 0]);
    }

    #[test]
    fn in_place_update_of_a_machine_is_named() {
        let mut spec = machine_spec();
        spec["taints"] = json!([{ "key": "a", "effect": "NoSchedule", "propagation": "Later" }]);
        let key = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";
        let machine: Machine = object("Machine", &json!({ key: "", "other": "" }), &spec);
        assert_eq!(paths(&machine), [format!("metadata.annotations[{key}]").as_str(), "spec.taints[0]"]);
    }

    #[test]
    fn unknown_values_of_a_deployment_are_named() {
        let key = "machineset.cluster.x-k8s.io/skip-preflight-checks";
        let spec = json!({ "clusterName": "c", "replicas": -1, "template": { "spec": machine_spec() },
            "machineNaming": { "template": "{{ .cluster.name | upper }}-{{ .random }}" }, "deletion": { "order": "Later" },
            "rollout": { "strategy": { "type": "Later", "rollingUpdate": { "maxSurge": 99_999_999_999_i64, "maxUnavailable": -1 } } },
            "remediation": { "maxInFlight": "x%" } });
        let deployment: MachineDeployment = object("MachineDeployment", &json!({ key: "All, Other" }), &spec);
        let expected = [
            "metadata.annotations[machineset.cluster.x-k8s.io/skip-preflight-checks]",
            "spec.replicas",
            "spec.machineNaming.template",
            "spec.deletion.order",
            "spec.rollout.strategy.type",
            "spec.rollout.strategy.rollingUpdate.maxSurge",
            "spec.rollout.strategy.rollingUpdate.maxUnavailable",
            "spec.remediation.maxInFlight",
        ];
        assert_eq!(paths(&deployment), expected);
        let known = json!({ "clusterName": "c", "replicas": 0, "template": { "spec": machine_spec() },
            "machineNaming": { "template": "{{ .cluster.name }}-{{.machineSet.name}}-{{ .random }}" } });
        let set: MachineSet = object("MachineSet", &json!({ key: "All,KubeadmVersionSkew, " }), &known);
        assert_eq!(paths(&set), [""; 0]);
    }

    #[test]
    fn hc4_range_without_a_meaning_is_named() {
        for (range, expected) in [
            ("[3-5]", Some(3..=5)),
            ("[0-0]", Some(0..=0)),
            ("[0-99999999999]", None),
            ("[99999999999-3]", None),
            ("[5-3]", None),
            ("3-5", None),
        ] {
            let spec = json!({ "clusterName": "c", "selector": {}, "remediation": { "triggerIf": { "unhealthyInRange": range } } });
            let check: MachineHealthCheck = object("MachineHealthCheck", &json!({}), &spec);
            let named = ["spec.remediation.triggerIf.unhealthyInRange"];
            let is_named: &[&str] = if expected.is_none() { &named } else { &[] };
            assert_eq!(paths(&check), is_named, "{range}");
            let trigger = check.spec.remediation.and_then(|remediation| remediation.trigger_if);
            assert_eq!(trigger.and_then(|trigger| trigger.range()), expected, "{range}");
        }
    }

    #[test]
    fn hc8_external_remediation_is_named() {
        let spec = json!({ "clusterName": "c", "selector": {}, "remediation": {
            "templateRef": { "apiVersion": "g/v1", "kind": "K", "name": "n" },
            "triggerIf": { "unhealthyLessThanOrEqualTo": "many" } } });
        let check: MachineHealthCheck = object("MachineHealthCheck", &json!({}), &spec);
        let expected =
            ["spec.remediation.templateRef", "spec.remediation.triggerIf.unhealthyLessThanOrEqualTo"];
        assert_eq!(paths(&check), expected);
    }
}
