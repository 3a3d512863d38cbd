//! Fields of the core kinds, compared with those of upstream's definitions (fields/*.txt: facts only, one field a line).
//!
//! differences.txt has each difference with its class and its reason. Classes: `laxer` (upstream's webhook fills it in, or the rule is one of CEL),
//! `added` (upstream has no such field or default), `opaque` (no program reads the part), `kept-bound` (a bound of ours that upstream does not have).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bedplate_api::crds::core_definitions;
use serde_json::{Value, to_value};

/// Kinds with a list of the facts of upstream's definition.
const UPSTREAM: [&str; 6] =
    ["clusters", "machines", "machinesets", "machinedeployments", "machinehealthchecks", "machinedrainrules"];

const CLASSES: [&str; 4] = ["laxer", "added", "opaque", "kept-bound"];

/// Reads a file of this folder.
fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster_api").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Facts about each field, by its path.
type Fields = BTreeMap<String, BTreeSet<String>>;

/// Facts of a schema and their names, in the order of the lists.
const FACTS: [(&str, &str); 15] = [
    ("format", "format"),
    ("default", "default"),
    ("enum", "enum"),
    ("minimum", "min"),
    ("maximum", "max"),
    ("minLength", "minLen"),
    ("maxLength", "maxLen"),
    ("pattern", "pattern"),
    ("minItems", "minItems"),
    ("maxItems", "maxItems"),
    ("minProperties", "minProps"),
    ("maxProperties", "maxProps"),
    ("x-kubernetes-list-type", "list"),
    ("x-kubernetes-list-map-keys", "keys"),
    ("x-kubernetes-preserve-unknown-fields", "preserve"),
];

/// Returns a value as the lists have it.
fn text(value: &Value) -> String {
    match value {
        Value::Array(values) => format!("[{}]", values.iter().map(text).collect::<Vec<_>>().join(", ")),
        Value::Number(number) => number.as_f64().map(|number| number.to_string()).unwrap_or_default(),
        other => other.to_string(),
    }
}

fn facts(schema: &Value, is_required: bool) -> BTreeSet<String> {
    let is_either = schema["x-kubernetes-int-or-string"] == true;
    let type_ = schema["type"].as_str().unwrap_or(if is_either { "int-or-string" } else { "any" });
    let mut found: BTreeSet<String> = [type_.to_owned()].into();
    if is_required {
        found.insert("REQUIRED".to_owned());
    }
    for (key, name) in FACTS {
        if !schema[key].is_null() {
            found.insert(format!("{name}={}", text(&schema[key])));
        }
    }
    found
}

fn walk(path: &str, schema: &Value, is_required: bool, fields: &mut Fields) {
    fields.insert(path.to_owned(), facts(schema, is_required));
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), field, required.contains(&name.as_str()), fields);
    }
    if schema["items"].is_object() {
        walk(&format!("{path}[]"), &schema["items"], false, fields);
    }
    if schema["additionalProperties"].is_object() {
        walk(&format!("{path}{{}}"), &schema["additionalProperties"], false, fields);
    }
}

/// Fields of our definition of a kind.
fn ours(plural: &str) -> Fields {
    let definition = core_definitions().into_iter().find(|definition| definition.spec.names.plural == plural);
    let schema = to_value(&definition.unwrap().spec.versions[0].schema).unwrap();
    let schema = &schema["openAPIV3Schema"];
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let mut fields = Fields::new();
    for part in ["spec", "status"] {
        if schema["properties"][part].is_object() {
            walk(part, &schema["properties"][part], required.contains(&part.into()), &mut fields);
        }
    }
    fields
}

/// Fields of upstream's definition of a kind. Rules in CEL are compared by the table of rules.
fn upstream(plural: &str) -> Fields {
    let line = |line: &str| {
        let (path, facts) = line.split_once(": ").unwrap();
        let facts = facts.split("  ").filter(|fact| !fact.starts_with("CEL: "));
        (path.to_owned(), facts.map(|fact| fact.trim().to_owned()).collect())
    };
    read(&format!("fields/{plural}.txt")).lines().map(line).collect()
}

/// Returns the differences of a kind: `kind path: -fact of upstream, +fact of ours`.
fn differences(plural: &str, upstream: &Fields, ours: &Fields) -> BTreeSet<String> {
    let paths: BTreeSet<&String> = upstream.keys().chain(ours.keys()).collect();
    let none = BTreeSet::new();
    let difference = |path: &String| {
        let (theirs, own) = (upstream.get(path).unwrap_or(&none), ours.get(path).unwrap_or(&none));
        let lost = theirs.difference(own).map(|fact| format!("-{fact}"));
        let gained = own.difference(theirs).map(|fact| format!("+{fact}"));
        let all: Vec<_> = lost.chain(gained).collect();
        (!all.is_empty()).then(|| format!("{plural} {path}: {}", all.join("  ")))
    };
    paths.into_iter().filter_map(difference).collect()
}

#[test]
fn differences_to_upstream_are_listed_with_their_reasons() {
    let found: BTreeSet<String> =
        UPSTREAM.iter().flat_map(|plural| differences(plural, &upstream(plural), &ours(plural))).collect();
    let mut stated = BTreeSet::new();
    let file = read("differences.txt");
    let (mut class, mut reason) = ("", "");
    for line in file.lines().filter(|line| !line.is_empty()) {
        if let Some(heading) = line.strip_prefix("# ") {
            (class, reason) = heading.split_once(": ").unwrap_or((heading, ""));
            continue;
        }
        assert!(
            CLASSES.contains(&class) && reason.ends_with('.'),
            "{line}: class {class:?}, reason {reason:?}"
        );
        assert!(stated.insert(line.to_owned()), "{line} is there twice");
    }
    let new: Vec<_> = found.difference(&stated).collect();
    let gone: Vec<_> = stated.difference(&found).collect();
    assert!(new.is_empty() && gone.is_empty(), "add to differences.txt:\n{new:#?}\nremove:\n{gone:#?}");
}

/// Fields of a spec that controllers must act upon. A path stands for all below it. The list is a decision: a new field of upstream, or of ours,
/// must be added here or to `REPORTED`. The tests of the planners show that the fields are acted upon.
const ACTED_UPON: [(&str, &[&str]); 6] = [
    (
        "clusters",
        &[
            "spec.availabilityGates",
            "spec.clusterNetwork",
            "spec.controlPlaneEndpoint",
            "spec.controlPlaneRef",
            "spec.infrastructureRef",
            "spec.paused",
        ],
    ),
    (
        "machines",
        &[
            "spec.bootstrap",
            "spec.clusterName",
            "spec.deletion",
            "spec.failureDomain",
            "spec.infrastructureRef",
            "spec.minReadySeconds",
            "spec.providerID",
            "spec.readinessGates",
            "spec.taints",
            "spec.version",
        ],
    ),
    (
        "machinesets",
        &[
            "spec.clusterName",
            "spec.deletion",
            "spec.machineNaming",
            "spec.replicas",
            "spec.selector",
            "spec.template",
        ],
    ),
    (
        "machinedeployments",
        &[
            "spec.clusterName",
            "spec.deletion",
            "spec.machineNaming",
            "spec.paused",
            "spec.remediation",
            "spec.replicas",
            "spec.rollout",
            "spec.selector",
            "spec.template",
        ],
    ),
    (
        "machinehealthchecks",
        &["spec.checks", "spec.clusterName", "spec.remediation.triggerIf", "spec.selector"],
    ),
    ("machinedrainrules", &["spec.drain", "spec.machines", "spec.pods"]),
];

/// Fields of a spec that `FieldsSupported` names when they are set. The tests of `cluster::unsupported` set each of them.
const REPORTED: [(&str, &str); 2] =
    [("clusters", "spec.topology"), ("machinehealthchecks", "spec.remediation.templateRef")];

#[test]
fn every_field_has_a_decision() {
    for plural in UPSTREAM {
        let (_, acted) = ACTED_UPON.iter().find(|(kind, _)| *kind == plural).unwrap();
        let reported = REPORTED.iter().filter(|(kind, _)| *kind == plural).map(|(_, path)| *path);
        let stated: Vec<&str> = acted.iter().copied().chain(reported).collect();
        let is_in = |path: &str, prefix: &str| {
            let rest = path.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[', '{']))
        };
        let (upstream, ours) = (upstream(plural), ours(plural));
        let paths: BTreeSet<&String> =
            upstream.keys().chain(ours.keys()).filter(|path| path.starts_with("spec.")).collect();
        for path in &paths {
            let is_part = stated.iter().any(|prefix| is_in(prefix, path));
            let count = stated.iter().filter(|prefix| is_in(path, prefix)).count();
            assert!(count == 1 || (count == 0 && is_part), "{plural} {path}: in {count} rows");
        }
        for prefix in stated {
            assert!(paths.iter().any(|path| path.as_str() == prefix), "{plural}: {prefix} does not exist");
        }
    }
}
