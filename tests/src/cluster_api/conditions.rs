//! Conditions of the objects of Cluster API.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use http::Method;
use serde_json::Value;

use crate::kubernetes::Objects;

/// Type, status and reason of a condition.
pub type Expected = (&'static str, &'static str, &'static str);

/// Returns the conditions that an object does not have.
pub fn unmet(object: &Value, expected: &[Expected]) -> Vec<Expected> {
    let has = |(kind, status, reason): &Expected| {
        let is_it = |found: &Value| {
            found["type"] == *kind && found["status"] == *status && found["reason"] == *reason
        };
        conditions(object).iter().any(is_it)
    };
    expected.iter().filter(|one| !has(one)).copied().collect()
}

/// Returns an object with its conditions, to read.
pub fn shown(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines = format!(
        "{} {} {} {}",
        text(&object["kind"]),
        text(&object["metadata"]["name"]),
        text(&object["status"]["phase"]),
        text(&object["spec"]["providerID"])
    );
    for condition in conditions(object) {
        let [kind, status, reason, message] =
            ["type", "status", "reason", "message"].map(|field| text(&condition[field]));
        let _ = write!(lines, "\n    {kind}={status} {reason} {message}");
    }
    lines
}

/// Returns the Machines of Cluster API in a namespace.
///
/// # Errors
/// The API server refuses the list.
pub fn machines(objects: &Objects, namespace: &str) -> Result<Vec<Value>> {
    let path = format!("/apis/cluster.x-k8s.io/v1beta2/namespaces/{namespace}/machines");
    let list = objects.request(&Method::GET, &path, "application/json", &Value::Null)?;
    list["items"].as_array().cloned().context("no list")
}

fn conditions(object: &Value) -> &[Value] {
    object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default()
}
