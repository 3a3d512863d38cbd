//! The kinds of the infrastructure provider on a real API server: each validation rule with an object or a change that it accepts, and one that it
//! refuses. The tests write as the provider does, because its policies may be installed too.

use std::time::Duration;

use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::wait;
use serde_json::{Value, json};

use super::rules;

const PROVIDER: &str = "system:serviceaccount:bedplate-system:bedplate-infrastructure";

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
    for rule in rules::infrastructure() {
        let title = rule.title();
        if let Err(why) = try_rule(&objects, rule.before.as_ref(), &rule.accepted) {
            problems.push(format!("{title}: refused what it should accept: {why}"));
        }
        match try_rule(&objects, rule.before.as_ref(), &rule.refused) {
            Ok(()) => problems.push(format!("{title}: accepted {}", rule.refused["spec"])),
            Err(why) if !why.contains(&rule.message) => {
                problems.push(format!("{title}: refused for another reason: {why}"));
            }
            Err(_) => {}
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
