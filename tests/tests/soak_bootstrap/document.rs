//! The parsed form of user data, and the differences of two of them.

use regex::Regex;
use serde_json::{Value, json};

/// Returns the parsed form of user data: a list of the header and the cloud-config. Documents in kubeadm's files are parsed too.
pub(crate) fn parsed(text: &str) -> Value {
    let token = Regex::new(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b").unwrap();
    // A token that a KubeadmConfig has stays.
    let text = token.replace_all(text, |found: &regex::Captures<'_>| match &found[0] {
        "abcdef.0123456789abcdef" => found[0].to_owned(),
        _ => "TOKEN".to_owned(),
    });
    let header: Vec<&str> = text.lines().take_while(|line| line.starts_with('#')).collect();
    let mut config: Value = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error}"));
    for file in config["write_files"].as_array_mut().into_iter().flatten() {
        let path = file["path"].as_str().unwrap_or_default();
        let is_yaml = path.starts_with("/run/kubeadm/") || path.ends_with("join.conf");
        if is_yaml && let Some(content) = file["content"].as_str() {
            file["content"] = documents(content);
        }
    }
    json!([header, config])
}

/// Returns the documents of a text, sorted by kind.
fn documents(text: &str) -> Value {
    let parts = text.split("\n---\n").map(|part| part.trim_start_matches("---\n"));
    let parts = parts.filter(|part| !part.trim().is_empty());
    let mut documents: Vec<Value> =
        parts.map(|part| serde_saphyr::from_str(part).unwrap_or_else(|_| json!(part))).collect();
    documents.sort_by_key(|document| document["kind"].to_string());
    Value::Array(documents)
}

/// Returns the paths whose values differ, with both values.
pub(crate) fn differences(ours: &Value, upstreams: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare("", ours, upstreams, &mut found);
    found
}

fn compare(path: &str, ours: &Value, upstreams: &Value, found: &mut Vec<String>) {
    match (ours, upstreams) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                let part =
                    |object: &serde_json::Map<String, Value>| object.get(key).cloned().unwrap_or(Value::Null);
                compare(&format!("{path}.{key}"), &part(a), &part(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}[{index}]"), a, b, found);
            }
        }
        _ if ours == upstreams || is_known(path, ours, upstreams) => {}
        _ => found.push(format!("{path}: ours {ours}, upstream's {upstreams}")),
    }
}

/// Returns true for the differences without a meaning: an empty object that upstream writes for an absent one, the text of the file that makes a
/// directory, and version and kind of a kubeconfig, which upstream omits.
fn is_known(path: &str, ours: &Value, upstreams: &Value) -> bool {
    let is_empty = ours.is_null() && upstreams.as_object().is_some_and(serde_json::Map::is_empty);
    let is_placeholder = upstreams.as_str().is_some_and(|text| text.starts_with("This placeholder file"));
    let header = path.ends_with(".apiVersion") && ours == "v1" || path.ends_with(".kind") && ours == "Config";
    is_empty || is_placeholder && path.ends_with(".content") || header && upstreams.is_null()
}
