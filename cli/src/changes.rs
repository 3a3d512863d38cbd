//! Pure: differences of two objects, by the paths of the fields, as a list and as one line.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Maximum length of a value that is shown. A longer one is only reported as changed.
const MAX_SHOWN_CHARACTERS: usize = 60;

/// Number of digits of a digest that are shown.
const DIGEST_DIGITS: usize = 12;

/// Maximum width of a line in characters. Changes that do not fit are counted.
const MAX_LINE_CHARACTERS: usize = 120;

/// Returns the changes that fit into a line, and the number of the others.
pub(crate) fn line(changes: &[String]) -> String {
    let mut line = String::new();
    for (index, change) in changes.iter().enumerate() {
        if index > 0 && line.chars().count() + change.chars().count() > MAX_LINE_CHARACTERS {
            return format!("{line}, and {} more", changes.len() - index);
        }
        line.push_str(if index > 0 { ", " } else { "" });
        line.push_str(change);
    }
    line
}

/// Returns the differences between two objects, one per field. Long values and all file contents, which may
/// be secret, are only reported as changed.
pub(crate) fn changes(from: &Value, to: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare("", from, to, &mut found);
    found
}

fn compare(path: &str, from: &Value, to: &Value, found: &mut Vec<String>) {
    if from == to {
        return;
    }
    match (from, to) {
        (Value::Object(one), Value::Object(other)) => {
            each(
                one,
                other,
                &|name| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") },
                found,
            );
        }
        (Value::Array(one), Value::Array(other)) => match (named(one), named(other)) {
            (Some(one), Some(other)) => each(&one, &other, &|name| format!("{path}[{name}]"), found),
            _ => found.push(format!("{path} changed")),
        },
        _ => match (short(path, from), short(path, to)) {
            (Some(from), Some(to)) => found.push(format!("{path} {from} -> {to}")),
            _ => found.push(format!("{path} changed")),
        },
    }
}

fn each(
    one: &Map<String, Value>,
    other: &Map<String, Value>,
    path: &dyn Fn(&str) -> String,
    found: &mut Vec<String>,
) {
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    for name in names {
        match (one.get(name), other.get(name)) {
            (Some(from), Some(to)) => compare(&path(name), from, to, found),
            (None, Some(to)) => found.push(match short(&path(name), to) {
                Some(to) => format!("{} {to} added", path(name)),
                None => format!("{} added", path(name)),
            }),
            (Some(_), None) => found.push(format!("{} removed", path(name))),
            (None, None) => {}
        }
    }
}

/// Returns the items of a list by their names. None if an item has no name, or two have the same name.
fn named(items: &[Value]) -> Option<Map<String, Value>> {
    let mut map = Map::new();
    for item in items {
        let name = ["path", "name", "key"].iter().find_map(|key| item.get(key)?.as_str())?;
        if map.insert(name.to_owned(), item.clone()).is_some() {
            return None;
        }
    }
    Some(map)
}

/// Returns a value that fits into a line and has no secret.
fn short(path: &str, value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    };
    let last = path.rsplit('.').next().unwrap_or_default();
    let secret = ["content", "contents"].contains(&last) || last.to_lowercase().contains("token");
    let text = match text.split_once("sha256:") {
        Some((before, digest)) if digest.len() > DIGEST_DIGITS && digest.is_ascii() => {
            format!("{before}sha256:{}", &digest[..DIGEST_DIGITS])
        }
        _ => text,
    };
    (!secret && text.chars().count() <= MAX_SHOWN_CHARACTERS && !text.contains('\n')).then_some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_are_listed_by_field() {
        let digest = "0123456789abcdef".repeat(4);
        let from = json!({
            "image": { "reference": "registry.example/node:1" }, "kubernetes": { "version": "v1.33.1", "nodeLabels": { "a": "b" } },
            "files": [{ "path": "/etc/a", "content": "one" }, { "path": "/etc/b", "content": "x" }],
            "preKubeadmCommands": ["true"], "sysctls": { "kernel.panic": "1" }
        });
        let to = json!({
            "image": { "reference": format!("registry.example/node@sha256:{digest}") },
            "kubernetes": { "version": "v1.34.4", "nodeLabels": {} },
            "files": [{ "path": "/etc/c", "content": "y" }, { "path": "/etc/a", "content": "secret" }],
            "preKubeadmCommands": ["false"], "sysctls": { "kernel.panic": "1", "vm.swappiness": "0" }
        });
        assert_eq!(
            changes(&from, &to),
            [
                "files[/etc/a].content changed",
                "files[/etc/b] removed",
                "files[/etc/c] added",
                "image.reference registry.example/node:1 -> registry.example/node@sha256:0123456789ab",
                "kubernetes.nodeLabels.a removed",
                "kubernetes.version v1.33.1 -> v1.34.4",
                "preKubeadmCommands changed",
                "sysctls.vm.swappiness 0 added",
            ]
        );
        assert_eq!(
            line(&changes(&from, &to)),
            "files[/etc/a].content changed, files[/etc/b] removed, files[/etc/c] added, and 5 more"
        );
        assert_eq!(changes(&to, &to), Vec::<String>::new());
        assert_eq!(changes(&json!({ "token": "a" }), &json!({ "token": "b" })), ["token changed"]);
    }
}
