//! The core kinds and the bootstrap kinds of Cluster API: each rule with an accepted and a refused object, fields compared with upstream's, objects
//! in the form of upstream's guides, and values that must be readable.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod cluster_api {
    pub(crate) mod fields;
    pub(crate) mod readable;
    pub(crate) mod rules;
}

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use bedplate_api::cluster::full::cluster::ClusterPhase;
use bedplate_api::cluster::full::deployment::{DeploymentPhase, StrategyType};
use bedplate_api::cluster::full::drain::DrainBehavior;
use bedplate_api::cluster::full::machine::MachinePhase;
use bedplate_api::cluster::full::set::DeletionOrder;
use bedplate_api::cluster::full::{
    Cluster, Machine, MachineDeployment, MachineDrainRule, MachineHealthCheck,
};
use bedplate_api::cluster::part::{Gate, Polarity};
use bedplate_api::crds::{bootstrap_definitions, core_definitions};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::cel::Validator;
use serde_json::{Value, from_value, json, to_value};

use cluster_api::rules::{self, Case, with};

/// All definitions in the form of upstream.
fn definitions() -> impl Iterator<Item = CustomResourceDefinition> {
    core_definitions().into_iter().chain(bootstrap_definitions())
}

/// Schema of a kind.
fn schema(kind: &str) -> &'static Value {
    static SCHEMAS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
        let schema = |definition: CustomResourceDefinition| {
            let mut schema = to_value(&definition.spec.versions[0].schema).unwrap();
            (definition.spec.names.kind, schema["openAPIV3Schema"].take())
        };
        definitions().map(schema).collect()
    });
    SCHEMAS.get(kind).unwrap_or_else(|| panic!("there is no definition of {kind}"))
}

/// Errors of the rules of an object.
fn refusal(object: &Value, old: Option<&Value>) -> String {
    let schema = schema(object["kind"].as_str().unwrap());
    let result = Validator::new().validate(schema, object, old);
    result.err().map(|errors| format!("{errors:?}")).unwrap_or_default()
}

#[test]
fn each_rule_accepts_one_object_and_refuses_another() {
    let mut problems = Vec::new();
    // The evaluator has no `optional` oldSelf. The test on an API server tries the rule of MachinePools.
    let is_evaluated = |case: &Case| case.refused["kind"] != "MachinePool";
    for Case { message, old, accepted, refused } in rules::all().into_iter().filter(is_evaluated) {
        let why = refusal(&accepted, old.as_ref());
        if !why.is_empty() {
            problems.push(format!("{message}: refuses {}: {why}", accepted["spec"]));
        }
        let why = refusal(&refused, old.as_ref());
        if !why.contains(message) {
            problems.push(format!("{message}: accepts {}: {why}", refused["spec"]));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_rule_of_the_definitions_is_tried() {
    let tried: BTreeSet<String> = rules::all().iter().map(|case| case.message.to_owned()).collect();
    let mut stated = BTreeSet::new();
    for definition in definitions() {
        messages(&to_value(definition).unwrap(), &mut stated);
    }
    assert_eq!(stated, tried);
}

/// Collects the messages of all rules.
fn messages(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for rule in fields.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten()
            {
                let message = rule["message"].as_str();
                found.insert(message.unwrap_or_else(|| panic!("{rule} has no message")).to_owned());
            }
            fields.values().for_each(|value| messages(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| messages(value, found)),
        _ => {}
    }
}

/// clusterctl refuses other names. Upstream's controllers find the version by the label.
#[test]
fn definitions_have_the_names_and_labels_that_clusterctl_reads() {
    for definition in definitions() {
        let (spec, metadata) = (&definition.spec, &definition.metadata);
        let plural = spec.names.kind.to_lowercase() + "s";
        assert_eq!(metadata.name.as_deref(), Some(format!("{plural}.{}", spec.group).as_str()));
        let labels = metadata.labels.as_ref().unwrap();
        assert_eq!(labels["cluster.x-k8s.io/v1beta2"], "v1beta2");
        let provider = if spec.group == "cluster.x-k8s.io" { "bedplate" } else { "bootstrap-bedplate" };
        assert_eq!(labels["cluster.x-k8s.io/provider"], provider);
        assert_eq!(spec.conversion.as_ref().unwrap().strategy, "None", "no webhook of upstream is kept");
        let versions: Vec<_> = spec.versions.iter().map(|v| (v.name.as_str(), v.served, v.storage)).collect();
        assert_eq!(versions, [("v1beta2", true, true)]);
    }
}

/// Objects in the form of upstream's guides: without what upstream's webhooks fill in. Only the rules are evaluated. The tests on an API server
/// apply such objects.
#[test]
fn m1_objects_in_the_form_of_upstream_pass_the_rules() {
    let cluster = with(
        &rules::cluster(),
        &json!({ "spec": {
        "clusterNetwork": { "pods": { "cidrBlocks": ["192.168.0.0/16"] }, "serviceDomain": "cluster.local" },
        "controlPlaneRef": { "apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "c" } } }),
    );
    let deployment = with(
        &rules::set("MachineDeployment"),
        &json!({ "spec": { "selector": { "matchLabels": {} },
        "rollout": { "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": "20%" } } } } }),
    );
    let check = with(
        &rules::health_check(),
        &json!({ "spec": { "checks": {
        "unhealthyNodeConditions": [{ "type": "Ready", "status": "Unknown", "timeoutSeconds": 300 }] },
        "remediation": { "triggerIf": { "unhealthyLessThanOrEqualTo": "40%" } } } }),
    );
    for object in [&cluster, &deployment, &check] {
        assert_eq!(refusal(object, None), "", "{object}");
    }
    let cluster: Cluster = from_value(cluster).unwrap();
    assert_eq!(cluster.spec.cluster_network.unwrap().pods.unwrap().cidr_blocks, ["192.168.0.0/16"]);
    let deployment: MachineDeployment = from_value(deployment).unwrap();
    let labels = deployment.effective_labels().selector.match_labels.unwrap();
    let implied = [("cluster.x-k8s.io/cluster-name", "c"), ("cluster.x-k8s.io/deployment-name", "case")];
    assert!(labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).eq(implied));
    let check: MachineHealthCheck = from_value(check).unwrap();
    assert_eq!(check.spec.node_startup_timeout_seconds(), 600);
}

#[test]
fn m1_machine_without_bootstrap_is_valid() {
    let machine =
        json!({ "clusterName": "c", "infrastructureRef": { "apiGroup": "g", "kind": "K", "name": "n" } });
    let machine = rules::object("Machine", &machine);
    assert_eq!(refusal(&machine, None), "");
    let machine: Machine = from_value(machine).unwrap();
    assert_eq!(
        (machine.spec.bootstrap.data_secret_name.as_ref(), machine.spec.version.as_ref()),
        (None, None)
    );
    assert_eq!(machine.spec.node_deletion_timeout_seconds(), 10);
    let written = to_value(&machine).unwrap();
    assert_eq!(written["spec"]["bootstrap"], json!({}), "upstream's definition requires the field");
    assert_eq!(written.get("status"), None);
}

/// M3: nil waits, and an empty text needs no data.
#[test]
fn m3_nil_and_empty_data_are_different() {
    let bootstrap = |bootstrap: Value| {
        let spec = with(
            &rules::machine_spec(),
            &json!({ "bootstrap": with(&json!({ "configRef": null }), &bootstrap) }),
        );
        let machine: Machine = from_value(rules::object("Machine", &spec)).unwrap();
        to_value(machine).unwrap()["spec"]["bootstrap"].clone()
    };
    assert_eq!(bootstrap(json!({ "dataSecretName": "" }))["dataSecretName"], "");
    assert_eq!(bootstrap(json!({ "data": "" }))["data"], "");
    assert_eq!(bootstrap(json!({})).get("dataSecretName"), None);
}

/// A watch of all objects would end with the first one that this version cannot decode.
#[test]
fn objects_with_values_of_a_later_version_are_readable() {
    let status = |phase: &str| json!({ "status": { "phase": phase, "deprecated": { "v1beta1": { "failureReason": "Lost", "added": [1] } } } });
    let gates = json!({ "spec": { "availabilityGates": [{ "conditionType": "A", "polarity": "Later" }], "added": { "later": true } } });
    let cluster: Cluster = from_value(with(&with(&rules::cluster(), &gates), &status("Later"))).unwrap();
    assert_eq!(
        cluster.spec.availability_gates,
        [Gate { condition_type: "A".into(), polarity: Some(Polarity::Unknown) }]
    );
    assert_eq!(cluster.status.unwrap().phase, Some(ClusterPhase::Unknown));
    let machine = rules::object("Machine", &rules::machine_spec());
    let machine: Machine = from_value(with(&machine, &status("Later"))).unwrap();
    let status_of_machine = machine.status.unwrap();
    assert_eq!(status_of_machine.phase, Some(MachinePhase::Unknown));
    let failure = status_of_machine.deprecated.unwrap().v1beta1.unwrap();
    assert_eq!((failure.failure_reason.as_deref(), failure.failure_message), (Some("Lost"), None));
    let later = json!({ "spec": { "deletion": { "order": "Later" }, "rollout": { "strategy": { "type": "Later" } } } });
    let deployment = with(&with(&rules::set("MachineDeployment"), &later), &status("Later"));
    let deployment: MachineDeployment = from_value(deployment).unwrap();
    assert_eq!(deployment.spec.deletion.unwrap().order, Some(DeletionOrder::Unknown));
    assert_eq!(deployment.spec.rollout.unwrap().strategy.unwrap().type_, Some(StrategyType::Unknown));
    assert_eq!(deployment.status.unwrap().phase, Some(DeploymentPhase::Unknown));
    let rule = with(&rules::drain_rule(), &json!({ "spec": { "drain": { "behavior": "Later" } } }));
    let rule: MachineDrainRule = from_value(rule).unwrap();
    assert_eq!(rule.spec.drain.behavior, DrainBehavior::Unknown);
}
