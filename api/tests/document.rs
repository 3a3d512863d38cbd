//! docs/guides/machine.md: every rule accepts its example Machines. No field of a spec that users write is missing
//! from the page of its kind.

#![allow(clippy::panic, reason = "a test that cannot go on has failed")]

use std::path::Path;

use bedplate_api::machine::Machine;
use serde_json::Value;

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The YAML blocks with the line on which each begins.
fn examples(document: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut block: Option<(usize, String)> = None;
    for (number, line) in document.lines().enumerate() {
        match (&mut block, line) {
            (None, "```yaml") => block = Some((number + 2, String::new())),
            (Some(_), "```") => found.extend(block.take()),
            (Some((_, text)), line) => *text += &format!("{line}\n"),
            (None, _) => {}
        }
    }
    found
}

#[test]
fn every_example_is_a_machine_that_the_rules_accept() {
    let document = document("guides/machine.md");
    let examples = examples(&document);
    assert!(examples.len() >= 5, "the document lost its examples");
    for (line, yaml) in examples {
        let written: Value = serde_saphyr::from_str(&yaml).unwrap_or_else(|e| panic!("line {line}: {e}"));
        let machine: Machine =
            serde_json::from_value(written.clone()).unwrap_or_else(|e| panic!("line {line}: {e}"));
        machine.validate_cel().unwrap_or_else(|e| panic!("line {line}: {e}"));
        let read = serde_json::to_value(&machine).unwrap();
        nothing_is_lost(&written, &read, &format!("line {line}"));
    }
}

/// A misspelled field would be read as absent.
fn nothing_is_lost(written: &Value, read: &Value, path: &str) {
    match written {
        Value::Object(fields) => {
            for (name, value) in fields {
                nothing_is_lost(value, &read[name], &format!("{path}.{name}"));
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                nothing_is_lost(item, &read[index], &format!("{path}[{index}]"));
            }
        }
        _ => assert!(!read.is_null(), "{path} is no field"),
    }
}

#[test]
fn every_field_of_a_spec_is_in_the_document_of_its_kind() {
    let mut missing = Vec::new();
    for (kind, name) in [
        ("Machine", "guides/machine.md"),
        ("MachineConfiguration", "guides/machine-configuration.md"),
        ("MachineOperation", "guides/machine-operations.md"),
        ("MachineClaim", "guides/claims.md"),
    ] {
        let document = document(name);
        let definitions = bedplate_api::crds::definitions();
        let definition = definitions.iter().find(|definition| definition.spec.names.kind == kind).unwrap();
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        fields(&schema["openAPIV3Schema"]["properties"]["spec"], "spec", &mut |path, field| {
            let mentions =
                [format!("`{field}`"), format!("`{field}:"), format!("`{field}."), format!(".{field}`")];
            let of_a_selector = path.contains(".machineSelector.matchExpressions.")
                || path.contains(".machineSelector.matchFields.");
            if !of_a_selector && !mentions.iter().any(|mention| document.contains(mention.as_str())) {
                missing.push(format!("docs/{name}: {path}"));
            }
        });
    }
    assert!(missing.is_empty(), "not said what these are: {missing:#?}");
}

fn fields(schema: &Value, path: &str, visit: &mut impl FnMut(&str, &str)) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        visit(&path, name);
        fields(field, &path, visit);
        fields(&field["items"], &path, visit);
    }
}
