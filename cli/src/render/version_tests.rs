//! Golden texts of versions, of diagnoses, and of an installation. Refreshed like those of `tests`.

use serde_json::{Value, json};

use super::tests::{golden, look};
use super::*;
use crate::configuration::history;
use crate::diagnosis;
use crate::step::{Action, Step};

fn described() -> Described {
    let template = |image: u32, content: &str| {
        json!({ "image": { "reference": format!("registry.example/node:{image}"), "allowTag": true },
            "kubernetes": { "version": "v1.34.4", "nodeLabels": { "rack": "7" } },
            "files": [{ "path": "/etc/motd", "content": content }], "sysctls": { "kernel.panic": "10" } })
    };
    let version = |number: i64, template: Value, status: Value| {
        json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfigurationVersion",
            "metadata": { "name": format!("workers-v{number}"), "creationTimestamp": "2026-01-01T00:05:00Z" },
            "spec": { "configurationName": "workers", "version": number, "template": template }, "status": status })
    };
    let deployed = json!({ "deployed": true, "deployedTime": "2026-01-01T00:06:00Z" });
    serde_json::from_value(json!({
        "configuration": { "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration",
            "metadata": { "name": "workers" }, "spec": { "template": template(3, "three\n") } },
        "versions": [version(4, template(3, "three\n"), json!({})), version(2, template(2, "one\ntwo\n"), deployed.clone()),
            version(1, template(1, "one\n"), deployed)],
        "machines": [{ "name": "a", "applied": { "name": "workers", "version": 2, "slot": "a" } }],
    }))
    .unwrap()
}

#[test]
fn history_has_a_line_for_each_version_and_what_it_changed() {
    golden("history.txt", &history(&history::rows(&described()), look()));
    assert_eq!(history(&[], look()), "no versions yet\n");
}

#[test]
fn refusals_of_a_template_name_the_fields() {
    let mut template = described().configuration.spec.template;
    template.sysctls.insert("a b".to_owned(), "1".to_owned());
    template.image.reference = "r.example/Node".to_owned();
    let found = bedplate_bootstrap::check(&template, bedplate_bootstrap::Plane::Cluster { is_run: false })
        .unwrap_err()
        .0;
    let text = refusals("workers", &found, look());
    assert!(
        text.contains("MachineConfiguration workers: no host can create a node from its template"),
        "{text}"
    );
    for field in ["\n  spec.template.image.reference: ", "\n  spec.template.sysctls: "] {
        assert!(text.contains(field), "{text}");
    }
}

/// The controller refuses the same (`reconciler/src/configuration/template.rs`).
#[test]
fn control_plane_that_joins_nothing_is_refused_unless_a_host_runs_it() {
    let mut described = described();
    described.machines.clear();
    assert!(!described.runs_first());
    let refused = |described: &Described| {
        let plane = bedplate_bootstrap::Plane::Cluster { is_run: described.runs_first() };
        let mut template = described.configuration.spec.template.clone();
        template.kubernetes.role = bedplate_api::configuration::NodeRole::ControlPlane;
        let found = bedplate_bootstrap::check(&template, plane).err().unwrap_or_default().0;
        found.iter().map(|why| format!("{why:?}")).collect::<Vec<_>>()
    };
    assert_eq!(refused(&described), ["MakesCluster"]);
    let machine = json!({ "name": "a", "applied": { "name": "workers", "version": 1, "slot": "a" } });
    described.machines.push(serde_json::from_value(machine).unwrap());
    let version = described.versions.iter_mut().find(|version| version.spec.version == 1).unwrap();
    version.spec.template.kubernetes.role = bedplate_api::configuration::NodeRole::ControlPlane;
    assert!(described.runs_first());
    assert_eq!(refused(&described), Vec::<String>::new());
}

#[test]
fn c4_configuration_shows_pending_rollout_and_faults_for_users() {
    let is = |type_: &str, status: &str, reason: &str, message: &str| {
        json!({ "type": type_, "status": status,
        "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:08:00Z" })
    };
    let with = |conditions: Value| {
        let mut described = described();
        let status = json!({ "latestVersion": 4, "conditions": conditions });
        described.configuration.status = serde_json::from_value(status).unwrap();
        described
    };
    let going = with(json!([
        is("Progressing", "True", "RollingOut", "1 Machine (a) is drained"),
        is("Degraded", "False", "AsExpected", "")
    ]));
    let ill = with(json!([
        is("Progressing", "False", "PausedOnFailure", "something has failed"),
        is("Degraded", "True", "DrainTimedOut", "a: Pods were left")
    ]));
    let all = [going.configuration.clone(), ill.configuration.clone(), described().configuration];
    let listed = configurations(&all, look());
    let state = |line: &str| line.split_whitespace().nth_back(1).map(str::to_owned);
    let states: Vec<_> = listed.lines().filter_map(state).collect();
    assert_eq!(states, ["STATE", "RollingOut", "DrainTimedOut", "-"], "{listed}");
    golden("configuration-ill.txt", &configuration(&ill, look()));
    let bright = configuration(&ill, Look { color: true, ..look() });
    assert!(bright.contains("\u{1b}[31mTrue"), "{bright}");
    assert!(!configuration(&described(), look()).contains("Conditions"));
}

#[test]
fn two_templates_differ_as_yaml_and_color_is_for_terminals() {
    let described = described();
    let (from, to) = history::pair(&described, None, None).unwrap();
    let text =
        difference(("workers-v2", &from.spec.template), ("workers-v4", &to.spec.template), look()).unwrap();
    golden("difference.txt", &text);
    let bright = Look { color: true, ..look() };
    let bright =
        difference(("workers-v2", &from.spec.template), ("workers-v4", &to.spec.template), bright).unwrap();
    assert!(bright.contains("\u{1b}[32m+") && bright.contains("\u{1b}[31m-"), "{bright}");
    let same = ("workers-v2", &from.spec.template);
    assert_eq!(difference(same, same, look()).unwrap(), "");
}

#[test]
fn explain_prints_event_actor_time_and_next_step_of_each_machine() {
    let machine = |name: &str, conditions: Value| -> Machine {
        serde_json::from_value(json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
            "metadata": { "name": name, "creationTimestamp": "2026-01-01T00:00:00Z" }, "spec": { "provider": "manual" },
            "status": { "conditions": conditions, "selected": { "name": "w", "version": 2, "source": "Selector" },
                "applied": { "name": "w", "version": 2, "slot": "a" },
                "nodeRef": { "name": name, "uid": "u" } } }))
        .unwrap()
    };
    let is = |type_: &str, status: &str, reason: &str, message: &str| json!({ "type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:08:00Z" });
    let enrolled = is("Enrolled", "True", "Enrolled", "");
    let running = json!([
        enrolled,
        is("NodeReady", "True", "NodeReady", "the Node is Ready"),
        is("BMCReachable", "False", "BMCUnreachable", "no route to 10.9.0.9")
    ]);
    let image = json!([
        enrolled,
        is("Paved", "False", "ImageUnavailable", "registry.example: no\u{1b}[31m such image")
    ]);
    let all = [machine("a", running), machine("b", image), machine("c", json!([]))];
    let found: Vec<_> =
        all.iter().map(|machine| diagnosis::diagnose(machine, &Default::default(), look().now)).collect();
    golden("diagnosis.txt", &diagnosis(&found, look()));
    assert!(diagnosis(&[], look()).contains("docs/guides/machine.md"));
}

#[test]
fn an_installation_says_what_becomes_of_each_object() {
    let step = |action, kind: &str, namespace: Option<&str>, name: &str, changes: &[&str]| Step {
        action,
        api_version: "v1".to_owned(),
        kind: kind.to_owned(),
        namespace: namespace.map(str::to_owned),
        name: name.to_owned(),
        changes: changes.iter().map(|change| (*change).to_owned()).collect(),
        left: false,
    };
    let all = [
        step(Action::Create, "CustomResourceDefinition", None, "machines.bedplate.dev", &[]),
        step(Action::Unchanged, "Namespace", None, "bedplate-system", &[]),
        step(
            Action::Change,
            "Deployment",
            Some("bedplate-system"),
            "bedplate-controller",
            &["spec.replicas 1 -> 2"],
        ),
        step(Action::Conflict, "ClusterRole", None, "bedplate:pxed", &[".rules: conflict with \"kubectl\""]),
    ];
    golden("install.txt", &steps(&all, true, look()));
}
