//! Pure: merge patches (RFC 7386) between two states of one object. Fields that this program does not know are not in them, so they stay.
//! Called by the writes of sets.

use serde::Serialize;
use serde_json::{Map, Value};

/// Returns the merge patch that turns `before` into `after`. Lists are replaced as a whole. It is empty if both are equal.
pub fn difference(before: &impl Serialize, after: &impl Serialize) -> Value {
    let value = |of: Result<Value, serde_json::Error>| of.unwrap_or_default();
    let (before, after) = (value(serde_json::to_value(before)), value(serde_json::to_value(after)));
    match (&before, &after) {
        (Value::Object(before), Value::Object(after)) => Value::Object(changes(before, after)),
        _ => Value::Object(Map::new()),
    }
}

fn changes(before: &Map<String, Value>, after: &Map<String, Value>) -> Map<String, Value> {
    let removed = before.keys().filter(|key| !after.contains_key(*key));
    let mut found: Map<String, Value> = removed.map(|key| (key.clone(), Value::Null)).collect();
    for (key, value) in after {
        match (before.get(key), value) {
            (Some(former), value) if former == value => {}
            (Some(Value::Object(former)), Value::Object(next)) => {
                found.insert(key.clone(), Value::Object(changes(former, next)));
            }
            _ => drop(found.insert(key.clone(), value.clone())),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn difference_has_changed_and_removed_fields_only() {
        let before =
            json!({ "same": 1, "gone": 2, "list": [1, 2], "inner": { "same": 1, "gone": 2, "new": 3 } });
        let after = json!({ "same": 1, "list": [2], "inner": { "same": 1, "new": 4 }, "added": { "a": 1 } });
        let expected =
            json!({ "gone": null, "list": [2], "inner": { "gone": null, "new": 4 }, "added": { "a": 1 } });
        assert_eq!(difference(&before, &after), expected);
        assert_eq!(difference(&after, &after), json!({}));
    }
}
