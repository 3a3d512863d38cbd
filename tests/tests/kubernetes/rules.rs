//! Cases of the validation rules of the kinds, from `tests/cases`: one accepted and one refused object for each rule.
//!
//! The files have one format. `base` is an accepted object, and `bases` has named changes of it. All changes are JSON merge patches (RFC 7396).
//! `accepted` and `refused` change the named base of their case, or `base`. With `update: true`, the base exists before the change.
//! `{ repeat: a, times: 64 }` stands for a text of 64 letters.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::cluster::with;

/// A rule, found by its message.
pub(crate) struct Case {
    pub(crate) message: String,
    /// The object before an update. None: the object is created.
    pub(crate) before: Option<Value>,
    pub(crate) accepted: Value,
    pub(crate) refused: Value,
}

impl Case {
    /// Returns kind and message.
    pub(crate) fn title(&self) -> String {
        format!("{}: {}", self.accepted["kind"].as_str().unwrap(), self.message)
    }
}

/// An object with one value that the schema of its field does not allow.
pub(crate) struct OutsideSchema {
    pub(crate) description: String,
    pub(crate) object: Value,
}

/// A file of cases.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    base: Value,
    #[serde(default)]
    bases: BTreeMap<String, Value>,
    rules: Vec<Rule>,
    #[serde(default)]
    schema: Vec<Invalid>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    message: String,
    cases: Vec<Pair>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    base: Option<String>,
    #[serde(default)]
    update: bool,
    accepted: Value,
    refused: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Invalid {
    description: String,
    base: Option<String>,
    refused: Value,
}

impl Cases {
    /// Returns an object: a base with a change.
    fn object(&self, base: Option<&str>, change: &Value) -> Value {
        let Some(base) = base else { return with(&self.base, change) };
        with(&with(&self.base, self.bases.get(base).unwrap_or_else(|| panic!("no base {base}"))), change)
    }
}

/// Reads a directory of case files.
fn read_all(directory: &str) -> Vec<Cases> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases").join(directory);
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap();
        parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    files.map(|path| read(&path)).collect()
}

fn parse(text: &str) -> Result<Cases, serde_json::Error> {
    serde_json::from_value(expand(serde_saphyr::from_str(text).unwrap()))
}

#[test]
fn unknown_field_of_a_case_is_refused() {
    let text = "{ base: {}, rules: [{ message: m, cases: [{ accepted: {}, refused: {} }] }] }";
    assert!(parse(text).is_ok());
    let refused = parse(&text.replace("refused", "refuses")).err().unwrap().to_string();
    assert!(refused.contains("unknown field `refuses`"), "{refused}");
}

fn of_kinds() -> Vec<Cases> {
    read_all("crd")
}

/// Writes out the repeated letters in a value.
fn expand(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            if let (Some(Value::String(text)), Some(times)) = (fields.get("repeat"), fields.get("times")) {
                return text.repeat(times.as_u64().unwrap().try_into().unwrap()).into();
            }
            fields.into_iter().map(|(name, value)| (name, expand(value))).collect()
        }
        Value::Array(values) => values.into_iter().map(expand).collect(),
        other => other,
    }
}

/// Returns the cases of all rules of our kinds. Rules of updates have tests in `crds.rs`.
pub(crate) fn all() -> Vec<Case> {
    let all = cases(of_kinds());
    let update = all.iter().find(|case| case.before.is_some());
    assert!(
        update.is_none(),
        "a case of tests/cases/crd must not set `update`: {:?}",
        update.map(|case| &case.message)
    );
    all
}

/// Returns the cases of all rules of the infrastructure kinds.
pub(crate) fn infrastructure() -> Vec<Case> {
    cases(read_all("infrastructure"))
}

fn cases(files: Vec<Cases>) -> Vec<Case> {
    let of_file = |file: Cases| {
        let pairs = file.rules.iter().flat_map(|rule| rule.cases.iter().map(|pair| (&rule.message, pair)));
        let case = |(message, pair): (&String, &Pair)| {
            let object = |change: &Value| file.object(pair.base.as_deref(), change);
            Case {
                message: message.clone(),
                before: pair.update.then(|| object(&json!({}))),
                accepted: object(&pair.accepted),
                refused: object(&pair.refused),
            }
        };
        pairs.map(case).collect::<Vec<_>>()
    };
    files.into_iter().flat_map(of_file).collect()
}

/// Returns the objects with one value that its field's schema does not allow.
pub(crate) fn outside_the_schema() -> Vec<OutsideSchema> {
    let of_file = |file: Cases| {
        let invalid = file.schema.iter().map(|case| OutsideSchema {
            description: case.description.clone(),
            object: file.object(case.base.as_deref(), &case.refused),
        });
        invalid.collect::<Vec<_>>()
    };
    of_kinds().into_iter().flat_map(of_file).collect()
}
