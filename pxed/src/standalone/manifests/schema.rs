//! Pure: checks a Machine, a MachineOperation or a MachineConfiguration by the schema and the CEL rules of its CustomResourceDefinition, so
//! that a directory, or the admin socket, refuses what an API server would refuse. All kinds are checked in the same way.
//!
//! Two differences. An unknown field is refused; an API server drops it with a warning, which no user would see here. A
//! MachineConfiguration of which no host makes a node is refused; in a cluster its controller refuses it.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use bedplate_api::configuration::{MachineConfiguration, Template};
use bedplate_api::machine::Machine;
use bedplate_api::operation::MachineOperation;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_bootstrap::template::{self, CheckTemplateError};
use bedplate_bootstrap::{Plane, is_label_value, is_qualified_name};
use ipnet::IpNet;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Resource;
use kube::core::cel::{CompiledSchema, ValidationErrors, Validator, compile_schema};
use regex::Regex;
use serde_json::{Map, Number, Value};

use crate::config::problem::nearest;

/// A MachineConfiguration's JSON, in bytes.
const MOST_CONFIGURATION: usize = 1 << 20;
/// Maximum size of all annotations of an object, as an API server accepts them.
const MAX_ANNOTATION_BYTES: usize = 256 << 10;

/// A field and what is wrong with it.
pub(crate) type Finding = (String, String);

struct Rules {
    schema: Value,
    compiled: CompiledSchema,
}

thread_local! {
    /// The functions are registered once for each thread, not for each Machine.
    static VALIDATOR: Validator = Validator::new();
}

/// Rules by kind, compiled once. A version is not read from a manifest.
static RULES: LazyLock<HashMap<String, Rules>> = LazyLock::new(|| {
    let version = MachineConfigurationVersion::kind(&());
    let definitions = bedplate_api::crds::definitions().into_iter();
    let read = definitions.filter(|definition| definition.spec.names.kind != version);
    read.map(|definition| (definition.spec.names.kind.clone(), Rules::of(&definition))).collect()
});

/// Regular expressions of all schemas, compiled once: a directory of ten thousand Machines tries each of them as often.
static PATTERNS: LazyLock<HashMap<String, Regex>> = LazyLock::new(|| {
    let mut patterns = HashMap::new();
    RULES.values().for_each(|rules| collect_patterns(&rules.schema, &mut patterns));
    patterns
});

impl Rules {
    fn of(definition: &CustomResourceDefinition) -> Self {
        let schema = definition.spec.versions.first().and_then(|version| version.schema.as_ref());
        let schema = schema.and_then(|schema| schema.open_api_v3_schema.as_ref());
        let schema = serde_json::to_value(schema).unwrap_or_default();
        Self { compiled: compile_schema(&schema), schema }
    }
}

/// Collects every `pattern` in a schema. An invalid regular expression is skipped; the tests of the definition
/// compile every pattern.
fn collect_patterns(schema: &Value, patterns: &mut HashMap<String, Regex>) {
    match schema {
        Value::Object(map) => {
            if let Some(pattern) = map.get("pattern").and_then(Value::as_str)
                && let Ok(compiled) = Regex::new(pattern)
            {
                patterns.insert(pattern.to_owned(), compiled);
            }
            map.values().for_each(|below| collect_patterns(below, patterns));
        }
        Value::Array(items) => items.iter().for_each(|below| collect_patterns(below, patterns)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Every field of a Machine that the API server would not take.
pub(crate) fn check_machine(object: &Value) -> Vec<Finding> {
    check::<Machine>(object)
}

/// Every field of a MachineOperation that the API server would not take.
pub(crate) fn check_operation(object: &Value) -> Vec<Finding> {
    check::<MachineOperation>(object)
}

/// Every field of a MachineConfiguration that the API server would not take; nor is one taken that does not fit into an answer to an
/// agent, which an API server's own limit sees to, or that every host refuses, which a controller refuses in a cluster.
pub(crate) fn check_configuration(object: &Value) -> Vec<Finding> {
    let findings = check::<MachineConfiguration>(object);
    let length = serde_json::to_vec(object).map(|text| text.len()).unwrap_or_default();
    if findings.is_empty() && length > MOST_CONFIGURATION {
        let message =
            format!("is larger than {} KiB; put large files into the node image", MOST_CONFIGURATION >> 10);
        return vec![("spec.template".to_owned(), message)];
    }
    if findings.is_empty() { refusals(object) } else { findings }
}

/// Returns why no host without a cluster makes a node of a template that the schema allows.
fn refusals(object: &Value) -> Vec<Finding> {
    let written = object.pointer("/spec/template").cloned().unwrap_or_default();
    // An invalid template is reported when it is parsed.
    let Ok(written) = serde_json::from_value::<Template>(written) else { return Vec::new() };
    let CheckTemplateError(refusals) = template::check(&written, Plane::Standalone).err().unwrap_or_default();
    refusals.iter().map(|why| ("spec.template".to_owned(), why.to_string())).collect()
}

fn check<K: Resource<DynamicType = ()>>(object: &Value) -> Vec<Finding> {
    let rules = RULES.get(&*K::kind(&())).expect("each kind that is read has a definition");
    let mut findings = check_metadata(object);
    match (rules.schema.pointer("/properties/spec"), object.get("spec")) {
        (Some(schema), Some(value)) => walk(schema, value, "spec", &mut findings),
        _ => findings.push((String::new(), "spec is missing".to_owned())),
    }
    if findings.is_empty() {
        // CEL rules presuppose the schema.
        let errors = VALIDATOR.with(|validator| validator.validate_compiled(&rules.compiled, object, None));
        for error in errors.err().map(ValidationErrors::into_vec).unwrap_or_default() {
            findings.push((error.field_path, error.message));
        }
    }
    findings
}

/// Checks labels and annotations as an API server does for every kind.
fn check_metadata(object: &Value) -> Vec<Finding> {
    const NAME: &str = "is not a valid key; use letters, digits, '-', '_' and '.', at most 63, after an optional DNS name and '/'";
    let mut findings = Vec::new();
    let mut each = |key: &str, fault: &dyn Fn(&str, &str) -> Option<String>| {
        let path = format!("metadata.{key}");
        let Some(given) = object.pointer(&format!("/metadata/{key}")) else { return };
        let Some(map) = given.as_object() else {
            findings.push((path, wrong_type("object", given)));
            return;
        };
        for (name, value) in map {
            let fault =
                value.as_str().map_or_else(|| Some(wrong_type("string", value)), |value| fault(name, value));
            findings.extend(fault.map(|fault| (format!("{path}.{name}"), fault)));
        }
    };
    each("labels", &|key, value| {
        if !is_qualified_name(key) {
            return Some(NAME.to_owned());
        }
        let message = format!(
            "{value:?} is not a valid label value; use letters, digits, '-', '_' and '.', at most 63"
        );
        (!is_label_value(value)).then_some(message)
    });
    each("annotations", &|key, _| (!is_qualified_name(&key.to_lowercase())).then(|| NAME.to_owned()));
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    let size = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    if annotations.into_iter().flatten().map(size).sum::<usize>() > MAX_ANNOTATION_BYTES {
        let message = format!("are larger than {} KiB together", MAX_ANNOTATION_BYTES >> 10);
        findings.push(("metadata.annotations".to_owned(), message));
    }
    findings
}

fn walk(schema: &Value, value: &Value, path: &str, findings: &mut Vec<Finding>) {
    if value.is_null() {
        // A field that is given without a value is one that is not given.
        return;
    }
    let wanted = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    let int_or_string = schema.get("x-kubernetes-int-or-string").is_some_and(|v| v == true);
    match (wanted, value) {
        ("object", Value::Object(map)) => walk_object(schema, map, path, findings),
        ("array", Value::Array(items)) => {
            check_count(schema, items.len(), ("minItems", "maxItems"), "entries", path, findings);
            check_unique(schema, items, path, findings);
            if let Some(schema) = schema.get("items") {
                for (index, item) in items.iter().enumerate() {
                    walk(schema, item, &format!("{path}[{index}]"), findings);
                }
            }
        }
        ("string", Value::String(text)) => check_text(schema, text, path, findings),
        ("boolean", Value::Bool(_)) => {}
        ("integer", Value::Number(number)) if number.is_i64() || number.is_u64() => {
            check_number(schema, number, path, findings);
        }
        ("number", Value::Number(number)) => check_number(schema, number, path, findings),
        ("", Value::Number(number)) if int_or_string => check_number(schema, number, path, findings),
        ("", Value::String(text)) if int_or_string => check_text(schema, text, path, findings),
        ("", _) if !int_or_string => {}
        _ => findings.push((path.to_owned(), wrong_type(wanted, value))),
    }
}

fn walk_object(schema: &Value, map: &Map<String, Value>, path: &str, findings: &mut Vec<Finding>) {
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    check_count(schema, map.len(), ("minProperties", "maxProperties"), "entries", path, findings);
    let free = schema.get("x-kubernetes-preserve-unknown-fields").is_some_and(|v| v == true);
    for (key, value) in map {
        let below = format!("{path}.{key}");
        match (properties.get(key), schema.get("additionalProperties")) {
            (Some(schema), _) => walk(schema, value, &below, findings),
            (None, Some(Value::Bool(true))) => {}
            (None, Some(schema @ Value::Object(_))) => walk(schema, value, &below, findings),
            (None, _) if free || properties.is_empty() => {}
            (None, _) => {
                let hint = match nearest(key, properties.keys().map(String::as_str)) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => {
                        let known: Vec<_> = properties.keys().map(String::as_str).collect();
                        format!("known here: {}", known.join(", "))
                    }
                };
                findings.push((below, format!("is not a known field; {hint}")));
            }
        }
    }
    for required in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        if let Some(key) = required.as_str()
            && map.get(key).is_none_or(Value::is_null)
        {
            findings.push((path.to_owned(), format!("{key} is missing")));
        }
    }
}

/// Refuses repeated entries of a list of type `set`, and repeated keys of a list of type `map`, as the API server does.
fn check_unique(schema: &Value, items: &[Value], path: &str, findings: &mut Vec<Finding>) {
    let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
    let is_set = schema.get("x-kubernetes-list-type").is_some_and(|list| list == "set");
    let identity = |item: &Value| match keys {
        Some(keys) => {
            let of = |key: &Value| key.as_str().and_then(|key| item.get(key)).cloned().unwrap_or_default();
            Some(keys.iter().map(|key| of(key).to_string()).collect::<Vec<_>>().join(", "))
        }
        None => is_set.then(|| item.to_string()),
    };
    let mut seen = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        if let Some(identity) = identity(item)
            && !seen.insert(identity.clone())
        {
            findings.push((format!("{path}[{index}]"), format!("duplicate value: {identity}")));
        }
    }
}

fn check_text(schema: &Value, text: &str, path: &str, findings: &mut Vec<Finding>) {
    check_count(schema, text.chars().count(), ("minLength", "maxLength"), "characters", path, findings);
    if let Some(words) = schema.get("enum").and_then(Value::as_array)
        && !words.iter().any(|word| word == text)
    {
        let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
        findings.push((path.to_owned(), format!("{text:?} is not one of {}", words.join(", "))));
    }
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && !matches(pattern, text)
    {
        let text: String = text.chars().take(80).collect();
        let mut message = format!("{text:?} does not match {pattern}");
        if let Some(what) = schema.get("description").and_then(Value::as_str) {
            let what = what.split(". ").next().unwrap_or_default().trim_end_matches('.');
            message.push_str(&format!(" ({what})"));
        }
        findings.push((path.to_owned(), message));
    } else if schema.get("format").is_some_and(|format| format == "cidr") && text.parse::<IpNet>().is_err() {
        let message = format!("{text:?} is not an address with a prefix length, such as 10.7.0.21/24");
        findings.push((path.to_owned(), message));
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    PATTERNS.get(pattern).is_none_or(|pattern| pattern.is_match(text))
}

fn check_number(schema: &Value, number: &Number, path: &str, findings: &mut Vec<Finding>) {
    let bits = match schema.get("format").and_then(Value::as_str) {
        Some("int32") => number.as_i64().is_none_or(|number| i32::try_from(number).is_err()).then_some(32),
        Some("int64") => number.as_i64().is_none().then_some(64),
        Some(_) | None => None,
    };
    if let Some(bits) = bits {
        findings.push((path.to_owned(), format!("{number} does not fit into {bits} bits")));
        return;
    }
    let Some(number) = number.as_f64() else { return };
    if let Some(least) = schema.get("minimum").and_then(Value::as_f64).filter(|least| number < *least) {
        findings.push((path.to_owned(), format!("{number} is less than {least}")));
    }
    if let Some(most) = schema.get("maximum").and_then(Value::as_f64).filter(|most| number > *most) {
        findings.push((path.to_owned(), format!("{number} is more than {most}")));
    }
}

fn check_count(
    schema: &Value,
    count: usize,
    (least, most): (&str, &str),
    what: &str,
    path: &str,
    findings: &mut Vec<Finding>,
) {
    let limit = |key: &str| schema.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    if let Some(least) = limit(least).filter(|least| count < *least) {
        findings.push((path.to_owned(), format!("needs at least {least} {what}")));
    }
    if let Some(most) = limit(most).filter(|most| count > *most) {
        findings.push((path.to_owned(), format!("has {count} {what}, at most {most} are allowed")));
    }
}

fn wrong_type(wanted: &str, value: &Value) -> String {
    let found = match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    };
    match (wanted, value) {
        ("string", Value::Number(_) | Value::Bool(_)) => format!("is {found}: put it in quotes"),
        ("object", _) => format!("is {found}, expected a map"),
        ("array", _) => format!("is {found}, expected a list"),
        ("string", _) => format!("is {found}, expected a string"),
        ("boolean", _) => format!("is {found}, expected true or false without quotes"),
        _ => format!("is {found}, expected a number without quotes"),
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::kernel_argument::fault;

    use super::*;

    fn takes(arguments: &[&str]) -> bool {
        let interfaces = serde_json::json!([{ "macAddress": "52:54:00:00:00:01" }]);
        let pxe = serde_json::json!({ "interfaces": interfaces, "kernelArguments": arguments });
        let spec = serde_json::json!({ "provider": "pxe", "pxe": pxe });
        check_machine(&serde_json::json!({
            "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "node-1" }, "spec": spec
        }))
        .is_empty()
    }

    #[test]
    fn an_operation_is_held_to_its_schema_and_rules() {
        let found = |spec: Value| {
            let object = serde_json::json!({
                "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation", "metadata": { "name": "x" }, "spec": spec
            });
            check_operation(&object)
                .into_iter()
                .map(|(field, message)| format!("{field}: {message}"))
                .collect::<Vec<_>>()
        };
        let target = serde_json::json!({ "name": "node-1" });
        let on = |more: Value| {
            let mut spec = serde_json::json!({ "machineRef": target, "operationName": "powerOn" });
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            found(spec)
        };
        assert_eq!(
            on(serde_json::json!({ "parameters": { "bootSource": "network" } })),
            Vec::<String>::new()
        );
        let many: Map<String, Value> = (0..65).map(|n| (format!("p{n}"), Value::from("x"))).collect();
        for (more, expected) in [
            (
                serde_json::json!({ "machineSelector": { "matchLabels": { "a": "b" } } }),
                "exactly one of machineRef",
            ),
            (serde_json::json!({ "operationName": "power on" }), "spec.operationName: "),
            (serde_json::json!({ "timeoutSeconds": 0 }), "spec.timeoutSeconds: 0 is less than 1"),
            (
                serde_json::json!({ "parameters": { "force": true } }),
                "spec.parameters.force: is true or false: put it in quotes",
            ),
            (serde_json::json!({ "parameters": many }), "spec.parameters: has 65 entries"),
            (serde_json::json!({ "timeoutSecond": 1 }), "did you mean"),
            (serde_json::json!({ "maxParallel": 1 }), "may only be set when machineSelector is set"),
            (serde_json::json!({ "machineRef": { "name": "Node_1" } }), "spec.machineRef.name: "),
        ] {
            let found = on(more);
            assert!(found.iter().any(|line| line.contains(expected)), "{expected}: {found:?}");
        }
        assert!(
            found(serde_json::json!({ "machineSelector": {}, "operationName": "reboot" }))[0]
                .contains("at least one")
        );
    }

    #[test]
    fn a_machine_s_rules_and_pxed_agree_on_every_kernel_argument() {
        let signs = (0..=0x100).filter_map(char::from_u32).flat_map(|c| [format!("{c}"), format!("a{c}b=1")]);
        let words = [
            "",
            "${",
            "a=${b}",
            "$",
            "a=$b",
            "{",
            "--",
            "-s",
            "a-",
            "initrd=x",
            "initrd",
            "xinitrd=x",
            "bedplate.",
            "bedplate.url=x",
            "xbedplate.x",
            "bedplate",
            "console=ttyS0,115200n8",
        ];
        let long = "x".repeat(1025);
        for argument in signs.chain(words.map(str::to_owned)).chain([long]) {
            assert_eq!(takes(&[&argument]), fault(&argument).is_none(), "{argument:?}");
        }
        let hundred = "x".repeat(99);
        assert!(takes(&[&hundred[..]; 8]));
        assert!(!takes(&[
            &hundred[..],
            &hundred,
            &hundred,
            &hundred,
            &hundred,
            &hundred,
            &hundred,
            &hundred,
            "x"
        ]));
    }
}
