//! Definitions against the fields of upstream's version v1beta2 (`fields.txt`: path, type, bounds), and forms of objects. `tests/cluster_api`
//! tries the rules.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::*;

/// Fields of upstream, one a line: `<path>: <type> [REQUIRED] [<bound>=<value>]...`.
const UPSTREAM: &str = include_str!("fields.txt");

/// Facts of a field.
#[derive(Debug, Default, PartialEq)]
struct Field {
    kind: String,
    is_required: bool,
    bounds: BTreeMap<&'static str, Value>,
}

/// Bounds that are compared. Patterns, formats, defaults and rules are not.
const BOUNDS: [(&str, &str); 10] = [
    ("minLen", "minLength"),
    ("maxLen", "maxLength"),
    ("min", "minimum"),
    ("max", "maximum"),
    ("minItems", "minItems"),
    ("maxItems", "maxItems"),
    ("minProps", "minProperties"),
    ("enum", "enum"),
    ("list", "x-kubernetes-list-type"),
    ("keys", "x-kubernetes-list-map-keys"),
];

fn upstream() -> BTreeMap<String, Field> {
    let field = |line: &str| {
        let (path, facts) = line.split_once(": ").unwrap();
        let facts = facts.replace("\", \"", "\",\"");
        let mut words = facts.split(' ');
        let mut field = Field { kind: words.next().unwrap().to_owned(), ..Field::default() };
        for word in words {
            field.is_required |= word == "REQUIRED";
            let Some((name, value)) = word.split_once('=') else { continue };
            if let Some((name, _)) = BOUNDS.iter().find(|(short, _)| *short == name) {
                field.bounds.insert(name, serde_json::from_str(value).unwrap());
            }
        }
        (path.to_owned(), field)
    };
    UPSTREAM.lines().map(field).collect()
}

fn walk(path: &str, schema: &Value, is_required: bool, found: &mut BTreeMap<String, Field>) {
    let is_mixed = schema["x-kubernetes-int-or-string"] == true;
    let kind = if is_mixed { "int-or-string" } else { schema["type"].as_str().unwrap_or("any") };
    let bound = |(short, name): &(&'static str, &str)| {
        let value = schema.get(name)?;
        let whole = value.as_f64().filter(|number| number.fract() == 0.0);
        #[allow(clippy::cast_possible_truncation, reason = "the number is whole and small")]
        Some((*short, whole.map_or_else(|| value.clone(), |number| json!(number as i64))))
    };
    let bounds = BOUNDS.iter().filter_map(bound).collect();
    found.insert(path.to_owned(), Field { kind: kind.to_owned(), is_required, bounds });
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), field, required.contains(&name.as_str()), found);
    }
    if schema["items"].is_object() {
        walk(&format!("{path}[]"), &schema["items"], false, found);
    }
    if schema["additionalProperties"].is_object() {
        walk(&format!("{path}{{}}"), &schema["additionalProperties"], false, found);
    }
}

fn schema_of(kind: &str) -> Value {
    let definitions = crate::crds::bootstrap_definitions();
    let definition = definitions.iter().find(|definition| definition.spec.names.kind == kind).unwrap();
    let schema = definition.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap();
    serde_json::to_value(schema).unwrap()
}

fn ours() -> BTreeMap<String, Field> {
    let schema = schema_of("KubeadmConfig");
    let mut found = BTreeMap::new();
    for part in ["spec", "status"] {
        walk(part, &schema["properties"][part], false, &mut found);
    }
    found
}

/// Removes bounds that do not count from a field.
fn comparable(path: &str, mut field: Field) -> Field {
    // Kubernetes' own type has fewer bounds here.
    let is_kubernetes = path.contains(".taints[].");
    field.bounds.retain(|name, value| match *name {
        _ if is_kubernetes => false,
        // Times have the bounds of all kinds.
        "maxLen" if path.ends_with(".expires") || path.ends_with(".lastTransitionTime") => false,
        // These bounds are none.
        "minLen" | "minItems" => *value != json!(0),
        // A list without a type is atomic.
        "list" => *value != json!("atomic"),
        _ => true,
    });
    field
}

#[test]
fn every_field_of_upstream_is_declared_with_its_sizes() {
    let (upstream, mut ours) = (upstream(), ours());
    assert!(upstream.len() > 350, "{} fields", upstream.len());
    let names = |fields: &BTreeMap<String, Field>| fields.keys().cloned().collect::<BTreeSet<_>>();
    let missing: Vec<_> = names(&upstream).difference(&names(&ours)).cloned().collect();
    let added: Vec<_> = names(&ours).difference(&names(&upstream)).cloned().collect();
    assert_eq!((missing, added), (vec![], vec![]));
    let mut different = Vec::new();
    for (path, theirs) in upstream {
        let (theirs, ours) = (comparable(&path, theirs), comparable(&path, ours.remove(&path).unwrap()));
        if theirs != ours {
            different.push(format!("{path}: {ours:?} instead of {theirs:?}"));
        }
    }
    assert_eq!(different, Vec::<String>::new());
}

/// As in upstream's definitions. `BoundedTimes` reads such an object.
#[test]
fn spec_is_not_required() {
    for kind in ["KubeadmConfig", "KubeadmConfigTemplate"] {
        assert_eq!(schema_of(kind)["required"], json!(null), "{kind}");
    }
}

/// A default would be an empty object, which the bounds of upstream refuse.
#[test]
fn template_is_required_and_has_no_default() {
    let spec = schema_of("KubeadmConfigTemplate")["properties"]["spec"].take();
    assert_eq!((&spec["required"], &spec["default"]), (&json!(["template"]), &json!(null)));
    let template = &spec["properties"]["template"];
    assert_eq!((&template["minProperties"], &template["default"]), (&json!(1), &json!(null)));
}

#[test]
fn kb10_format_ignition_is_reported() {
    let reported = ["spec.format", "spec.ignition"];
    let spec = |value: Value| serde_json::from_value::<KubeadmConfigSpec>(value).unwrap();
    assert_eq!(spec(json!({ "format": "ignition", "ignition": {} })).unsupported(), reported);
    assert_eq!(spec(json!({ "format": "later" })).unsupported(), ["spec.format"]);
    assert!(spec(json!({ "format": "cloud-config", "verbosity": 5 })).unsupported().is_empty());
}

fn config(spec: &Value) -> KubeadmConfig {
    let object = json!({ "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfig",
        "metadata": { "name": "c", "namespace": "team-a" }, "spec": spec });
    serde_json::from_value(object).unwrap()
}

#[test]
fn objects_of_a_later_upstream_are_readable() {
    let spec = json!({ "format": "later", "added": { "by": "a later version" },
        "clusterConfiguration": { "encryptionAlgorithm": "RSA-9000" },
        "initConfiguration": { "nodeRegistration": { "taints": [], "imagePullPolicy": "Sometimes" } } });
    let read = config(&spec).spec;
    assert_eq!(read.format.as_deref(), Some("later"));
    // Empty is not unset: kubeadm sets no taint at all.
    assert_eq!(read.init_configuration.unwrap().node_registration.unwrap().taints, Some(vec![]));
}

#[test]
fn written_form_has_no_empty_objects() {
    let spec = json!({ "joinConfiguration": { "nodeRegistration": { "taints": [] } }, "verbosity": 3 });
    let written = serde_json::to_value(config(&spec)).unwrap();
    assert_eq!(written["spec"], spec);
    assert_eq!(written.get("status"), None, "the definition refuses an empty status");
}

#[test]
fn debug_output_has_no_token_and_no_password() {
    let spec = json!({ "users": [{ "name": "u", "passwd": "SECRET" }],
        "joinConfiguration": { "discovery": { "bootstrapToken": { "token": "SECRET" }, "tlsBootstrapToken": "SECRET" } },
        "initConfiguration": { "bootstrapTokens": [{ "token": "SECRET" }] } });
    let shown = format!("{:?}", config(&spec).spec);
    assert!(!shown.contains("SECRET"), "{shown}");
}
