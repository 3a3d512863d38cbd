//! Descriptions that `kubectl explain` prints for the fields of Bedplate's own kinds: a user must learn from them what to type.
//!
//! The kinds of Cluster API are not checked: upstream defines their fields.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use bedplate_api::crds::{definitions, infrastructure_definitions};
use bedplate_api::writers::{self, Row, Writer};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, to_value};

/// Maximum number of words of a sentence.
const MAX_SENTENCE_WORDS: usize = 25;

fn all() -> impl Iterator<Item = CustomResourceDefinition> {
    definitions().into_iter().chain(infrastructure_definitions())
}

/// Visits the schema of each field with its path. The fields of Kubernetes' own types are skipped.
fn each_field(visit: &mut impl FnMut(&str, &Value)) {
    for definition in all() {
        let schema = to_value(&definition.spec.versions[0].schema).unwrap();
        fields(&schema["openAPIV3Schema"], &definition.spec.names.kind, visit);
    }
}

fn fields(schema: &Value, path: &str, visit: &mut impl FnMut(&str, &Value)) {
    if path.ends_with("conditions[]") || path.ends_with("matchExpressions[]") {
        return;
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        visit(&path, field);
        fields(field, &path, visit);
        fields(&field["items"], &format!("{path}[]"), visit);
    }
}

fn description(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or_default()
}

fn hold(problems: &[String]) {
    assert!(problems.is_empty(), "{} descriptions:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn each_description_has_short_sentences() {
    const OPENINGS: [&str; 9] =
        ["What ", "Who ", "Whose ", "Whom ", "How ", "Why ", "Where ", "When ", "Whether "];
    let mut problems = Vec::new();
    let mut check = |path: &str, field: &Value| {
        let text = description(field);
        for block in text.split('\n').filter(|block| !block.is_empty()) {
            let block = block.strip_prefix("- ").unwrap_or(block);
            if !block.ends_with(['.', ':']) {
                problems.push(format!("{path}: no end: {block}"));
            }
            for sentence in block.split(". ") {
                let words = sentence.split_whitespace().count();
                if words > MAX_SENTENCE_WORDS {
                    problems.push(format!("{path}: {words} words: {sentence}"));
                }
                if OPENINGS.iter().any(|opening| sentence.starts_with(opening)) {
                    problems.push(format!("{path}: opening: {sentence}"));
                }
            }
        }
        if text.is_empty() {
            problems.push(format!("{path}: no description"));
        }
    };
    each_field(&mut check);
    for definition in all() {
        let schema = to_value(&definition.spec.versions[0].schema).unwrap();
        check(&definition.spec.names.kind, &schema["openAPIV3Schema"]);
    }
    hold(&problems);
}

#[test]
fn each_value_of_an_enum_is_explained() {
    let mut problems = Vec::new();
    each_field(&mut |path, field| {
        for value in field["enum"].as_array().into_iter().flatten() {
            let word = value.as_str().map_or_else(|| value.to_string(), |word| format!("`{word}`"));
            if !description(field).contains(&word) {
                problems.push(format!("{path}: {word}"));
            }
        }
    });
    hold(&problems);
}

/// Forms of a number in a description.
fn forms(number: i64) -> Vec<String> {
    let kibibytes = (number % 1024 == 0).then(|| format!("{} KiB", number / 1024));
    [number.to_string()].into_iter().chain(kibibytes).collect()
}

#[test]
fn each_default_and_each_bound_is_described() {
    let mut problems = Vec::new();
    each_field(&mut |path, field| {
        let text = description(field);
        let default = match &field["default"] {
            Value::String(word) => Some(format!("Default: `{word}`.")),
            value @ (Value::Bool(_) | Value::Number(_)) => Some(format!("Default: {value}.")),
            _ => None,
        };
        problems.extend(default.filter(|default| !text.contains(default)).map(|it| format!("{path}: {it}")));
        let has = |name: &str| !field[name].is_null();
        // The bound of a text with a form follows from its form.
        let bounds = ["minimum", "maximum", "maxItems", "maxProperties"].into_iter();
        let bounds = bounds.chain((!has("pattern") && !has("format")).then_some("maxLength"));
        for bound in bounds.filter(|bound| has(bound)) {
            let number = bounded(&field[bound]);
            let is_stated = || {
                let words = |text: &str| format!(" {} ", text.replace(['.', ',', ':', ';', '`', '%'], " "));
                forms(number).iter().any(|form| words(text).contains(&words(form)))
            };
            if number != 0 && number != i64::from(i32::MAX) && !is_stated() {
                problems.push(format!("{path}: {bound} {number}"));
            }
        }
    });
    hold(&problems);
}

#[allow(clippy::cast_possible_truncation, reason = "bounds of definitions are integers")]
fn bounded(bound: &Value) -> i64 {
    bound.as_f64().unwrap() as i64
}

/// Word for a writer in descriptions.
fn word(writer: Writer) -> &'static str {
    match writer {
        Writer::Controller => "bedplate-controller",
        Writer::Agent => "the agent",
        Writer::Pxed | Writer::PxedPower | Writer::PxedEnrollment => "pxed",
        Writer::Provider => "the controller of another provider",
        Writer::ClaimProvider => "the provider",
        Writer::Executor => "the executor",
        Writer::Core | Writer::CoreHealth | Writer::ControlPlane => {
            panic!("no writer of Bedplate's own kinds")
        }
    }
}

/// Description of the field of a row. That of a condition is the head of the list and its item.
fn described(status: &Value, row: &Row) -> String {
    let Some(condition) = row.condition() else {
        let mut field = status;
        for name in row.field.split('.') {
            field = &field["properties"][name];
        }
        return description(field).to_owned();
    };
    let text = description(&status["properties"]["conditions"]);
    let item = format!("- `{condition}`: ");
    let item = text.lines().find(|line| line.starts_with(&item)).unwrap_or_default();
    let states = ["True if", "True while", "False while"];
    if states.iter().any(|state| item.contains(state)) {
        format!("{} {item}", text.lines().next().unwrap_or_default())
    } else {
        String::new()
    }
}

#[test]
fn each_field_of_a_status_names_its_writers() {
    let mut problems = Vec::new();
    for definition in definitions() {
        let plural = definition.spec.names.plural.as_str();
        let schema = to_value(&definition.spec.versions[0].schema).unwrap();
        let status = &schema["openAPIV3Schema"]["properties"]["status"];
        let (_, rows) = writers::KINDS.iter().find(|(kind, _)| *kind == plural).unwrap();
        for row in *rows {
            let text = described(status, row);
            let (_, by) = text.rsplit_once("Written by ").unwrap_or_default();
            for writer in row.writers.iter().filter(|writer| !by.contains(word(**writer))) {
                problems.push(format!("{plural}: {}: {}", row.field, word(*writer)));
            }
        }
    }
    hold(&problems);
}

#[test]
fn each_column_has_a_description() {
    let mut problems = Vec::new();
    for definition in all() {
        for column in definition.spec.versions[0].additional_printer_columns.iter().flatten() {
            if !column.description.as_deref().is_some_and(|text| text.ends_with('.')) {
                problems.push(format!("{}: {}", definition.spec.names.kind, column.name));
            }
        }
    }
    hold(&problems);
}
