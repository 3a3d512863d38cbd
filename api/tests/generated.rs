//! Generated files match the types. Each rule and list of a definition has its bound.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "../examples/generate.rs"]
mod generate;

use std::path::Path;

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
