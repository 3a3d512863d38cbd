//! Values that a definition admits, for each field of the core kinds and the bootstrap kinds: programs must read each of them (Trust 4).
//!
//! A typed list ends with the first object that cannot be read, and hides all others. Bounds and enums are ignored, because upstream's definitions
//! may be installed, and a later version may admit more. Bounds of integers are those of ours.

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::cluster::full::{
    Cluster, Machine, MachineDeployment, MachineDrainRule, MachineHealthCheck, MachineSet,
};
use bedplate_api::cluster::kubeadm::{KubeadmConfig, KubeadmConfigTemplate};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::schema;

/// Number of different values of a field that the test tries.
const VALUE_VARIANTS: usize = 5;

type Read = fn(&Value) -> Result<(), String>;

/// Kinds, and the functions that read them as programs do.
const KINDS: [(&str, Read); 8] = [
    ("Cluster", read::<Cluster>),
    ("Machine", read::<Machine>),
    ("MachineSet", read::<MachineSet>),
    ("MachineDeployment", read::<MachineDeployment>),
    ("MachineHealthCheck", read::<MachineHealthCheck>),
    ("MachineDrainRule", read::<MachineDrainRule>),
    ("KubeadmConfig", read::<KubeadmConfig>),
    ("KubeadmConfigTemplate", read::<KubeadmConfigTemplate>),
];

fn read<K: DeserializeOwned>(object: &Value) -> Result<(), String> {
    let read = serde_json::from_str::<BoundedTimes<K>>(&object.to_string());
    read.map(drop).map_err(|error| error.to_string())
}

/// Returns a value for a schema. `is_full`: optional fields are set too.
fn sample(schema: &Value, variant: usize, is_full: bool) -> Value {
    if schema["x-kubernetes-int-or-string"] == true {
        let values = [json!(1), json!("later"), json!(99_999_999_999_i64), json!(-1), json!("1")];
        return values[variant % values.len()].clone();
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        let failure = json!({ "failureReason": 5, "failureMessage": ["a"] });
        let values =
            [json!({}), json!({ "v1beta1": 5 }), json!({ "v1beta1": failure }), json!({ "classRef": "a" })];
        return values[variant % values.len()].clone();
    }
    match schema["type"].as_str() {
        Some("object") => object(schema, variant, is_full),
        Some("array") => json!([sample(&schema["items"], variant, is_full)]),
        Some("string") if schema["format"] == "date-time" => json!("2026-01-01T00:00:00Z"),
        Some("string") => json!(["later", "", "\u{1f6e0}"][variant % 3]),
        Some("integer") => integer(schema, variant),
        Some("boolean") => json!(variant.is_multiple_of(2)),
        other => panic!("{other:?}: {schema}"),
    }
}

fn object(schema: &Value, variant: usize, is_full: bool) -> Value {
    if schema["additionalProperties"].is_object() {
        return json!({ "later": sample(&schema["additionalProperties"], variant, is_full) });
    }
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let fields = schema["properties"].as_object().into_iter().flatten();
    let fields = fields.filter(|(name, _)| is_full || required.contains(&json!(name)));
    fields.map(|(name, field)| (name.clone(), sample(field, variant, is_full))).collect()
}

/// Returns the lowest, the highest or another number.
fn integer(schema: &Value, variant: usize) -> Value {
    let (lowest, highest) = match schema["format"].as_str() {
        Some("int32") => (i64::from(i32::MIN), i64::from(i32::MAX)),
        Some("int64") | None => (i64::MIN, i64::MAX),
        Some(other) => panic!("{other}: {schema}"),
    };
    let bound = |name: &str, otherwise: i64| schema[name].as_f64().map_or(otherwise, as_integer);
    let (lowest, highest) = (bound("minimum", lowest), bound("maximum", highest));
    json!([lowest, highest, 1_i64.clamp(lowest, highest)][variant % 3])
}

#[allow(clippy::cast_possible_truncation, reason = "bounds of definitions are integers")]
fn as_integer(bound: f64) -> i64 {
    bound as i64
}

#[test]
fn every_value_that_a_definition_admits_is_readable() {
    let mut problems = Vec::new();
    for (kind, read) in KINDS {
        let properties = &schema(kind)["properties"];
        for (variant, is_full) in (0..VALUE_VARIANTS).flat_map(|variant| [(variant, true), (variant, false)])
        {
            let mut object = json!({ "apiVersion": "x.cluster.x-k8s.io/v1beta2", "kind": kind,
                "metadata": { "name": "case", "namespace": "default" }, "spec": sample(&properties["spec"], variant, is_full) });
            if properties["status"].is_object() {
                object["status"] = sample(&properties["status"], variant, is_full);
            }
            if let Err(error) = read(&object) {
                problems.push(format!("{kind}, variant {variant}, full {is_full}: {error}"));
            }
        }
        let is_required = |field: &str| {
            schema(kind)["required"].as_array().is_some_and(|required| required.contains(&json!(field)))
        };
        let empty = json!({ "apiVersion": "x.cluster.x-k8s.io/v1beta2", "kind": kind, "metadata": { "name": "case" } });
        if let (false, Err(error)) = (is_required("spec"), read(&empty)) {
            problems.push(format!("{kind} without spec: {error}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
