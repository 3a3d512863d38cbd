//! Generated files match the types. Each rule and list of a definition has its bound.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "../examples/generate.rs"]
mod generate;

use std::path::Path;

use bedplate_api::writers;
use serde_json::Value;

#[test]
fn generated_files_match_the_types() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let expected = generate::files();
    for (path, content) in &expected {
        let committed = std::fs::read_to_string(root.join(path)).unwrap_or_default();
        if committed != *content {
            let (line, new) = content
                .lines()
                .enumerate()
                .find(|(index, line)| committed.lines().nth(*index) != Some(line))
                .unwrap_or((0, "(committed file has more lines)"));
            let old = committed.lines().nth(line).unwrap_or("(nothing)");
            panic!(
                "{path} differs from the types at line {}:\n- {old}\n+ {new}\nRun `cargo xtask generate`.",
                line + 1
            );
        }
    }
    let mut committed: Vec<String> = std::fs::read_dir(root.join("api/crds"))
        .unwrap()
        .map(|entry| format!("api/crds/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    committed.sort();
    let mut expected: Vec<String> = expected.into_iter().map(|(path, _)| path).collect();
    expected.retain(|path| path.starts_with("api/crds/"));
    expected.sort();
    assert_eq!(committed, expected, "api/crds has files that no kind makes; remove them");
}

/// clusterctl deletes cluster-wide objects of RBAC only if their names start with the namespace of the provider.
#[test]
fn clusterctl_deletes_the_cluster_roles_of_each_provider() {
    let files = generate::files();
    let own = |provider: &str| format!("bedplate-system-{provider}");
    for (provider, expected) in [
        ("infrastructure", vec![own("infrastructure"); 2]),
        ("bootstrap", vec![own("bootstrap"); 2]),
        ("core", [own("core"), own("core-aggregated"), own("core-aggregated"), own("core")].into()),
    ] {
        let name = format!("{provider}-components.yaml");
        let (_, components) = files.iter().find(|(path, _)| path.ends_with(&name)).unwrap();
        let roles = components.split("\n---\n").filter(|part| {
            part.lines().any(|line| matches!(line, "kind: ClusterRole" | "kind: ClusterRoleBinding"))
        });
        let names: Vec<&str> =
            roles.filter_map(|part| part.lines().find_map(|line| line.strip_prefix("  name: "))).collect();
        assert_eq!(names, expected);
    }
}

/// A provider may read Secrets by their names only. Policies bound what it writes.
#[test]
fn no_provider_has_the_right_to_list_or_delete_secrets() {
    let files = generate::files();
    for (provider, verbs) in [("bootstrap", "[get, create]"), ("core", "[get, create, patch]")] {
        let name = format!("{provider}-components.yaml");
        let (_, components) = files.iter().find(|(path, _)| path.ends_with(&name)).unwrap();
        let rules: Vec<_> = components
            .split("\n- apiGroups: ")
            .filter(|rule| rule.contains("  resources: [secrets]\n  verbs:"))
            .collect();
        let [rule] = &rules[..] else { panic!("rights of Secrets: {rules:#?}") };
        assert!(rule.contains(&format!("  verbs: {verbs}\n")), "{rule}");
    }
}

#[test]
fn every_field_has_a_description_and_every_list_of_a_spec_a_bound() {
    let definitions = bedplate_api::crds::definitions().into_iter();
    let definitions = definitions.chain(bedplate_api::crds::core_definitions());
    for definition in definitions.chain(bedplate_api::crds::bootstrap_definitions()) {
        let kind = &definition.spec.names.kind;
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        walk(&schema["openAPIV3Schema"]["properties"]["spec"], &format!("{kind}.spec"));
        walk(&schema["openAPIV3Schema"]["properties"]["status"], &format!("{kind}.status"));
    }
}

fn walk(schema: &Value, path: &str) {
    // Selectors and conditions are Kubernetes' own types.
    if path.ends_with("elector") || path.ends_with("conditions") {
        return;
    }
    assert_ne!(schema["nullable"], true, "{path} is nullable");
    if schema["type"] == "array" {
        assert!(schema["maxItems"].is_number(), "{path} has no maxItems");
        walk(&schema["items"], &format!("{path}[]"));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        assert!(field["description"].is_string(), "{path} has no description");
        walk(field, &path);
    }
}

/// Fields of a status as the table of writers has them: parts of `hardware`, and all others as a whole. Without conditions.
fn fields(definition: &Value) -> Vec<String> {
    let status = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
    let names = |schema: &Value| -> Vec<String> {
        schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
    };
    let parts = names(&status["properties"]["hardware"]).into_iter().map(|part| format!("hardware.{part}"));
    let whole = names(status).into_iter().filter(|name| !["hardware", "conditions"].contains(&name.as_str()));
    whole.chain(parts).collect()
}

#[test]
fn every_field_of_a_status_has_one_row_in_the_table_of_writers() {
    let kinds = bedplate_api::crds::definitions().into_iter().map(|definition| (definition, writers::KINDS));
    let core = bedplate_api::crds::core_definitions().into_iter();
    for (definition, tables) in kinds.chain(core.map(|definition| (definition, writers::CORE_KINDS))) {
        let plural = definition.spec.names.plural.as_str();
        // The form of its status belongs to another program.
        if plural == "machinepools" {
            continue;
        }
        let rows = tables.iter().find(|(kind, _)| *kind == plural).map_or(&[][..], |(_, rows)| *rows);
        let mut stated: Vec<_> =
            rows.iter().filter(|row| row.condition().is_none()).map(|row| row.field.to_owned()).collect();
        let mut found = fields(&serde_json::to_value(&definition).unwrap());
        // No program of Bedplate writes the fields of earlier versions of Cluster API.
        found.retain(|field| field != "deprecated");
        stated.sort();
        found.sort();
        assert_eq!(stated, found, "{plural}: add each field to api/src/writers.rs");
        for row in rows {
            assert!(!row.writers.is_empty() && !row.readers.is_empty(), "{plural}: {}", row.field);
            assert_eq!(rows.iter().filter(|other| other.field == row.field).count(), 1, "{}", row.field);
        }
    }
}

/// Returns the words of a variable of a policy in deploy/.
fn words(file: &str, policy: &str, variable: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let document = text.split("\n---\n").find(|document| document.contains(&format!("\n  name: {policy}\n")));
    let document = document.unwrap_or_else(|| panic!("{file} has no {policy}"));
    let rest = document.split_once(&format!("- name: {variable}\n    expression:"));
    let line = rest.and_then(|(_, rest)| rest.lines().next());
    let line = line.unwrap_or_else(|| panic!("{policy} has no {variable}"));
    let mut words: Vec<_> = line.split('\'').skip(1).step_by(2).map(str::to_owned).collect();
    words.sort();
    words
}

#[test]
fn policies_let_each_program_write_its_own_fields_alone() {
    use bedplate_api::writers::Writer;
    let pxed = [Writer::Pxed, Writer::PxedPower, Writer::PxedEnrollment];
    let machines = writers::MACHINE;
    let (executor, pxed_executes) = ([Writer::Agent, Writer::Executor], [Writer::Pxed, Writer::Executor]);
    for (file, policy, rows, by) in [
        ("agent-policy.yaml", "bedplate-agent-machines", machines, &[Writer::Agent][..]),
        ("pxed-policy.yaml", "bedplate-pxed-machine-status", machines, &pxed[..]),
        ("controller-policy.yaml", "bedplate-controller-machines", machines, &[Writer::Controller][..]),
        ("agent-policy.yaml", "bedplate-agent-operations", writers::OPERATION, &executor[..]),
        ("pxed-policy.yaml", "bedplate-pxed-operations", writers::OPERATION, &pxed_executes[..]),
    ] {
        let own = |of: &dyn Fn(&str) -> Option<String>| -> Vec<String> {
            let mut own: Vec<_> = writers::written(rows, by).filter_map(|row| of(row.field)).collect();
            own.sort();
            own.dedup();
            own
        };
        let whole = |field: &str| field.split('.').next().map(str::to_owned);
        assert_eq!(words(file, policy, "fields"), own(&whole), "{policy}: fields");
        let condition = |field: &str| field.strip_prefix("conditions.").map(str::to_owned);
        assert_eq!(words(file, policy, "conditions"), own(&condition), "{policy}: conditions");
        if policy == "bedplate-agent-machines" {
            let part = |field: &str| field.strip_prefix("hardware.").map(str::to_owned);
            assert_eq!(words(file, policy, "hardwareFields"), own(&part), "{policy}: hardwareFields");
        }
    }
    let parts: Vec<_> =
        writers::written(machines, &pxed).filter(|row| row.field.starts_with("hardware")).collect();
    assert_eq!(
        parts.iter().map(|row| row.field).collect::<Vec<_>>(),
        ["hardware.bmc"],
        "the policy names it"
    );
}

/// A program that may write a status must not be able to make the object so large that the writes of others fail.
#[test]
fn every_text_and_list_of_a_status_has_a_bound() {
    for definition in bedplate_api::crds::definitions() {
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        let status = &schema["openAPIV3Schema"]["properties"]["status"];
        bounded(status, &format!("{}.status", definition.spec.names.kind));
    }
}

fn bounded(schema: &Value, path: &str) {
    match schema["type"].as_str() {
        Some("string") => {
            assert!(schema["maxLength"].is_number() || schema["enum"].is_array(), "{path} has no maxLength");
        }
        Some("array") => {
            assert!(schema["maxItems"].is_number(), "{path} has no maxItems");
            bounded(&schema["items"], &format!("{path}[]"));
        }
        Some("object") => {
            let fields = schema["properties"].as_object().unwrap_or_else(|| panic!("{path} is a map"));
            fields.iter().for_each(|(name, field)| bounded(field, &format!("{path}.{name}")));
        }
        Some("integer" | "boolean") => {}
        other => panic!("{path}: {other:?}"),
    }
}

/// Trust 4. etcd accepts 1.5 MiB. A character takes up to 6 bytes in JSON.
#[test]
fn trust_4_agent_cannot_make_its_machine_too_large() {
    const FIELDS: [&str; 8] =
        ["agent", "hardware", "addresses", "stateDisk", "applied", "slots", "rolledBack", "conditions"];
    let definitions = bedplate_api::crds::definitions();
    let schema = serde_json::to_value(&definitions[0].spec.versions[0].schema).unwrap();
    let status = &schema["openAPIV3Schema"]["properties"]["status"]["properties"];
    let sizes = FIELDS.map(|field| match field {
        // An agent writes two of them.
        "conditions" => 2 * bytes(&status[field]["items"]),
        _ => bytes(&status[field]),
    });
    // The texts of the disks have one bound together.
    let disk = &status["hardware"]["properties"]["disks"];
    let texts = 256 * 6 * 256 * (5 + 16) - 98_304 * 6;
    assert_eq!(
        (&disk["maxItems"], &disk["items"]["properties"]["byID"]["maxItems"]),
        (&256.into(), &16.into())
    );
    let size = sizes.iter().sum::<u64>() - texts;
    assert!(size < 1_300_000, "{size} bytes: {sizes:?}");
}

/// Returns the largest size of a value, in bytes of JSON.
fn bytes(schema: &Value) -> u64 {
    match schema["type"].as_str() {
        Some("string") => schema["maxLength"].as_u64().map_or(32, |length| 6 * length) + 3,
        Some("array") => schema["maxItems"].as_u64().unwrap() * (bytes(&schema["items"]) + 1),
        Some("object") => {
            let fields = schema["properties"].as_object().unwrap();
            fields.iter().map(|(name, field)| name.len() as u64 + 4 + bytes(field)).sum()
        }
        Some(_) | None => 21,
    }
}

/// Lists that are not `atomic`, by path: their type, or the keys of a `map`.
const UNIQUE: [(&str, &str); 9] = [
    ("spec.claimPolicy.namespaces", "set"),
    ("spec.template.container.capabilities", "set"),
    ("spec.template.files[].inPlace.restartUnits", "set"),
    ("spec.template.kernelModules", "set"),
    ("spec.template.kubernetes.taints", "key,effect"),
    ("spec.template.units", "name"),
    ("spec.template.units[].dropins", "name"),
    ("status.conditions", "type"),
    ("status.rolloutFailures", "machine"),
];

/// Lists of a Machine that are not `atomic`.
const MACHINE: [(&str, &str); 7] = [
    ("spec.bmc.redfish.tls.pins", "set"),
    ("spec.claimPolicy.namespaces", "set"),
    ("status.agent.features", "set"),
    ("status.conditions", "type"),
    ("status.hardware.bmc.quirks", "set"),
    ("status.hardware.disks[].byID", "set"),
    ("status.slots", "name"),
];

#[test]
fn every_list_has_a_type() {
    for definition in bedplate_api::crds::definitions() {
        let kind = &definition.spec.names.kind;
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        let mut found = Vec::new();
        for part in ["spec", "status"] {
            lists(&schema["openAPIV3Schema"]["properties"][part], part, &mut found);
        }
        for (path, list) in &found {
            assert_ne!(list, "", "{kind}.{path} has no list type");
        }
        found.retain(|(_, list)| list != "atomic");
        found.sort();
        let expected: Vec<_> = match kind.as_str() {
            "MachineConfiguration" => UNIQUE.to_vec(),
            "MachineConfigurationVersion" => {
                let is_other = |path: &str| path.ends_with("rolloutFailures") || path.contains("claimPolicy");
                UNIQUE.iter().copied().filter(|(path, _)| !is_other(path)).collect()
            }
            "MachineOperation" => vec![("status.conditions", "type")],
            "MachineClaim" => vec![("status.conditions", "type"), ("status.refused", "set")],
            _ => MACHINE.to_vec(),
        };
        let found: Vec<_> = found.iter().map(|(path, list)| (path.as_str(), list.as_str())).collect();
        assert_eq!(found, expected, "{kind}");
    }
}

fn lists(schema: &Value, path: &str, found: &mut Vec<(String, String)>) {
    if schema["type"] == "array" {
        let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
        let keys: Vec<_> = keys.filter_map(Value::as_str).collect();
        let list = schema["x-kubernetes-list-type"].as_str().unwrap_or_default();
        found.push((path.to_owned(), if list == "map" { keys.join(",") } else { list.to_owned() }));
        lists(&schema["items"], &format!("{path}[]"), found);
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        lists(field, &format!("{path}.{name}"), found);
    }
}
