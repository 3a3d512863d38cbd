//! The committed definitions are those that the types make; and no rule or list is without its bound.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "../examples/crds.rs"]
mod generate;

use std::path::Path;

use serde_json::Value;

#[test]
fn committed_definitions_match_the_types() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    let expected = generate::files();
    for (name, content) in &expected {
        let committed = std::fs::read_to_string(directory.join(name)).unwrap_or_default();
        if committed != *content {
            let (line, new) = content
                .lines()
                .enumerate()
                .find(|(index, line)| committed.lines().nth(*index) != Some(line))
                .unwrap_or((0, "(committed file has more lines)"));
            let old = committed.lines().nth(line).unwrap_or("(nothing)");
            panic!(
                "api/crds/{name} differs from the types at line {}:\n- {old}\n+ {new}\nRefresh it with `cargo xtask crds`.",
                line + 1
            );
        }
    }
    let mut committed: Vec<String> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    committed.sort();
    let mut expected: Vec<String> = expected.into_iter().map(|(name, _)| name).collect();
    expected.sort();
    assert_eq!(committed, expected, "api/crds holds files that no kind makes: remove them");
}

#[test]
fn every_field_has_a_description_and_every_list_of_a_spec_a_bound() {
    for definition in bedplate_api::crds::definitions() {
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
