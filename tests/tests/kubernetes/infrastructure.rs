//! The kinds of the infrastructure provider on a real API server: each validation rule with an object or a change that it accepts, and one that it
//! refuses. The tests write as the provider does, because its policies may be installed too.

use std::time::Duration;

use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::wait;
use serde_json::{Value, json};

use super::cluster::with;

const PROVIDER: &str = "system:serviceaccount:bedplate-system:bedplate-infrastructure";

/// A rule of a kind, found by its message.
pub(super) struct Rule {
    message: &'static str,
    /// The object before a change. None: the object is created.
    before: Option<Value>,
    accepted: Value,
    refused: Value,
}

impl Rule {
    /// Returns kind and message.
    pub(super) fn title(&self) -> String {
        format!("{}: {}", self.accepted["kind"].as_str().unwrap(), self.message)
    }
}

fn object(kind: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": kind, "metadata": { "name": "rule" }, "spec": spec })
}

/// A BedplateMachine, or its template, with these fields more than the required ones.
fn machine(kind: &str, more: &Value) -> Value {
    let spec = with(&json!({ "configurationRef": { "name": "pool" } }), more);
    let is_template = kind == "BedplateMachineTemplate";
    object(kind, &if is_template { json!({ "template": { "spec": spec } }) } else { spec })
}

fn id(host: &str, uid: &str) -> Value {
    json!({ "machineName": "host-1", "providerID": format!("bedplate://{host}/{uid}") })
}

/// The rules.
pub(super) fn rules() -> Vec<Rule> {
    let mut all = vec![endpoint()];
    all.extend(changes());
    for kind in ["BedplateMachine", "BedplateMachineTemplate"] {
        let field = |field: &Value| machine(kind, &json!({ "machineSelector": { "matchFields": [field] } }));
        let key = "status.hardware.cpu.architecture";
        all.push(Rule {
            message: "matchFields: values must be set when operator is In or NotIn, and may only be set then",
            before: None,
            accepted: field(&json!({ "key": key, "operator": "In", "values": ["amd64"] })),
            refused: field(&json!({ "key": key, "operator": "In" })),
        });
        all.push(Rule {
            message: "matchFields: values must be set when operator is In or NotIn, and may only be set then",
            before: None,
            accepted: field(&json!({ "key": key, "operator": "Exists" })),
            refused: field(&json!({ "key": key, "operator": "Exists", "values": ["amd64"] })),
        });
    }
    all.extend(claimed());
    all
}

/// The rules of the fields that the provider writes.
fn claimed() -> Vec<Rule> {
    let in_template =
        "machineName and providerID must not be set in a template: each machine claims its own host";
    let with_id = "machineName must be set when providerID is set";
    let of_host = "providerID must be bedplate://<machineName>/<UID of this object>";
    let (kind, template) = ("BedplateMachine", "BedplateMachineTemplate");
    let nameless = json!({ "providerID": "bedplate://host-1/u-1" });
    let rule = |message, kind: &str, accepted: &Value, refused: &Value| Rule {
        message,
        before: None,
        accepted: machine(kind, accepted),
        refused: machine(kind, refused),
    };
    vec![
        rule(with_id, kind, &json!({ "machineName": "host-1" }), &nameless),
        rule(of_host, kind, &id("host-1", "u-1"), &id("host-2", "u-1")),
        rule(with_id, template, &json!({}), &nameless),
        rule(of_host, template, &json!({}), &id("host-2", "u-1")),
        rule(in_template, template, &json!({}), &json!({ "machineName": "host-1" })),
        rule(in_template, template, &json!({}), &id("host-1", "u-1")),
    ]
}

fn endpoint() -> Rule {
    let cluster =
        |more: &Value| object("BedplateCluster", &with(&json!({ "failureDomainLabel": "zone" }), more));
    let endpoint = |host: &str| cluster(&json!({ "controlPlaneEndpoint": { "host": host, "port": 6443 } }));
    Rule {
        message: "spec.controlPlaneEndpoint cannot be changed once it is set: the certificates of the control plane name it",
        before: Some(endpoint("10.7.0.9")),
        accepted: with(&endpoint("10.7.0.9"), &json!({ "spec": { "failureDomainLabel": "rack" } })),
        refused: endpoint("10.7.0.10"),
    }
}

/// The rules of changes of a BedplateMachine.
fn changes() -> Vec<Rule> {
    let chosen = "machineName and providerID cannot be changed once providerID is set: delete the object to release its host";
    let configuration =
        "configurationRef cannot be changed: create a new template, and the owner replaces the machine";
    let selector =
        "machineSelector cannot be changed: create a new template, and the owner replaces the machine";
    let cleanup =
        "release and stateDisk cannot be changed: create a new template, and the owner replaces the machine";
    let machine = |more: &Value| machine("BedplateMachine", more);
    let rule = |message, before: &Value, accepted: &Value, refused: &Value| Rule {
        message,
        before: Some(machine(before)),
        accepted: machine(&with(before, accepted)),
        refused: machine(&with(before, refused)),
    };
    let (none, claimed) = (json!({}), id("host-1", "u-1"));
    let longer = json!({ "releaseTimeoutSeconds": 120 });
    let version = |version: u32| json!({ "configurationRef": { "version": version } });
    let rack = |rack: &str| json!({ "machineSelector": { "matchLabels": { "rack": rack } } });
    vec![
        rule(chosen, &claimed, &longer, &id("host-1", "u-2")),
        rule(chosen, &claimed, &longer, &json!({ "machineName": null, "providerID": null })),
        rule(configuration, &none, &longer, &json!({ "configurationRef": { "name": "other" } })),
        rule(configuration, &none, &longer, &version(1)),
        rule(configuration, &version(1), &longer, &version(2)),
        rule(selector, &none, &longer, &rack("7")),
        rule(selector, &rack("7"), &longer, &rack("8")),
        rule(cleanup, &none, &longer, &json!({ "release": "Wipe" })),
        rule(cleanup, &json!({ "release": "Wipe" }), &longer, &json!({ "release": "Empty" })),
        rule(cleanup, &none, &longer, &json!({ "stateDisk": "Any" })),
        rule(cleanup, &json!({ "stateDisk": "Required" }), &longer, &json!({ "stateDisk": "Any" })),
    ]
}

/// Installs the kinds, and waits until the API server serves them.
fn installed() -> Objects {
    let objects = Kubernetes::shared().objects().unwrap();
    for definition in bedplate_api::crds::infrastructure_definitions() {
        let name = definition.metadata.name.clone().unwrap();
        objects.apply(&serde_json::to_value(definition).unwrap()).unwrap();
        let is_served = |found: &Value| {
            let conditions = found["status"]["conditions"].as_array().into_iter().flatten();
            conditions.filter(|one| one["type"] == "Established" && one["status"] == "True").count() == 1
        };
        let found = || Ok(objects.get("crd", &name)?.filter(is_served).map(drop));
        wait::until_asked(&name, Duration::from_secs(60), found).unwrap();
    }
    objects.impersonating(PROVIDER, &["system:masters"])
}

/// Has the API server check an object: its creation, or the change of an object that was created just now. Nothing is stored afterward.
fn try_rule(objects: &Objects, before: Option<&Value>, object: &Value) -> Result<(), String> {
    let (kind, name) = (object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
    let text = |error: anyhow::Error| format!("{error:#}");
    let Some(before) = before else { return objects.try_create(object).map(drop).map_err(text) };
    objects.create(before).map_err(text)?;
    // The whole spec is replaced.
    let change = json!([{ "op": "replace", "path": "/spec", "value": object["spec"] }]);
    let tried = objects.edit(kind, name, "", &change).map(drop).map_err(text);
    objects.delete(kind, name).map_err(text)?;
    tried
}

#[test]
fn k3_each_rule_of_the_infrastructure_kinds_accepts_and_refuses() {
    let objects = installed();
    let mut problems = Vec::new();
    for rule in rules() {
        let title = rule.title();
        if let Err(why) = try_rule(&objects, rule.before.as_ref(), &rule.accepted) {
            problems.push(format!("{title}: refused what it should accept: {why}"));
        }
        match try_rule(&objects, rule.before.as_ref(), &rule.refused) {
            Ok(()) => problems.push(format!("{title}: accepted {}", rule.refused["spec"])),
            Err(why) if !why.contains(rule.message) => {
                problems.push(format!("{title}: refused for another reason: {why}"));
            }
            Err(_) => {}
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
