//! docs/machine.md: its examples are Machines that every rule accepts, and no field of the spec is missing from it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::path::Path;

use bedplate_api::machine::Machine;
use serde_json::Value;

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/machine.md");
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
    let document = document();
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

/// A misspelt field would be read as absent.
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
fn every_field_of_the_spec_is_in_the_document() {
    let document = document();
    let definitions = bedplate_api::crds::definitions();
    let schema = serde_json::to_value(&definitions[0].spec.versions[0].schema).unwrap();
    let mut missing = Vec::new();
    fields(&schema["openAPIV3Schema"]["properties"]["spec"], "spec", &mut |path, name| {
        let mentions = [format!("`{name}`"), format!("`{name}:"), format!(".{name}`")];
        if !mentions.iter().any(|mention| document.contains(mention.as_str())) {
            missing.push(path.to_owned());
        }
    });
    assert!(missing.is_empty(), "docs/machine.md does not say what these are: {missing:#?}");
}

fn fields(schema: &Value, path: &str, visit: &mut impl FnMut(&str, &str)) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        visit(&path, name);
        fields(field, &path, visit);
        fields(&field["items"], &path, visit);
    }
}
