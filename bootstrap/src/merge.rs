//! Pure: merges the user's settings of a version with the required ones.
//!
//! Works like a JSON merge patch (RFC 7386): objects are merged, other values are replaced, null counts as
//! absent. But no value is replaced silently. If both sides have different values, that is an error with the
//! field's path.

use serde_json::{Map, Value};

use crate::field_error::{FieldError, FieldErrors};

/// `theirs` with `ours` over it; `path` names both.
pub(crate) fn overlay(theirs: &Value, ours: &Value, path: &str, errors: &mut FieldErrors) -> Value {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            let mut merged = without_nulls(theirs);
            for (name, value) in ours {
                let below = theirs.get(name).unwrap_or(&Value::Null);
                merged.insert(name.clone(), overlay(below, value, &format!("{path}.{name}"), errors));
            }
            Value::Object(merged)
        }
        (Value::Null, _) => ours.clone(),
        _ => {
            if theirs != ours {
                errors.push(FieldError::Owned {
                    field: path.to_owned(),
                    theirs: theirs.to_string(),
                    ours: ours.to_string(),
                });
            }
            ours.clone()
        }
    }
}

/// Returns the fields that are not empty. Items of lists are not changed.
pub(crate) fn without_nulls(fields: &Map<String, Value>) -> Map<String, Value> {
    let kept = fields.iter().filter_map(|(name, value)| match value {
        Value::Null => None,
        Value::Object(inner) => Some((name.clone(), Value::Object(without_nulls(inner)))),
        other => Some((name.clone(), other.clone())),
    });
    kept.collect()
}

/// The value at a path of fields such as `nodeRegistration.name`; null counts as absent.
pub(crate) fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, name| value.get(name)).filter(|value| !value.is_null())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn merged(theirs: &Value, ours: &Value) -> (Value, Vec<FieldError>) {
        let mut errors = FieldErrors::default();
        let value = overlay(theirs, ours, "x", &mut errors);
        (value, errors.or(()).err().map(|error| error.0).unwrap_or_default())
    }

    #[test]
    fn field_that_both_set_is_named() {
        let (value, errors) = merged(&json!({"a": {"b": 1, "c": 2}}), &json!({"a": {"b": 3}}));
        assert_eq!(value, json!({"a": {"b": 3, "c": 2}}));
        let owned = FieldError::Owned { field: "x.a.b".into(), theirs: "1".into(), ours: "3".into() };
        assert_eq!(errors, [owned]);
    }

    #[test]
    fn same_value_is_not_an_error_and_null_is_absent() {
        let (value, errors) =
            merged(&json!({"a": 1, "b": null, "c": {"d": null}}), &json!({"a": 1, "b": {"e": []}}));
        assert_eq!((value, errors), (json!({"a": 1, "b": {"e": []}, "c": {}}), vec![]));
    }

    #[test]
    fn object_in_place_of_a_value_is_an_error() {
        let (value, errors) = merged(&json!({"a": {"b": 1}}), &json!({"a": "text"}));
        assert_eq!(value, json!({"a": "text"}));
        assert_eq!(errors.len(), 1);
        let (value, errors) = merged(&json!({"a": [1]}), &json!({"a": {"b": 1}}));
        assert_eq!(value, json!({"a": {"b": 1}}));
        assert_eq!(errors.len(), 1);
    }

    fn tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..3_u8).prop_map(Value::from),
            "[ab]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                fields(inner).prop_map(Value::Object),
            ]
        })
    }

    fn fields(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
        prop::collection::btree_map("[a-c]", value, 0..4).prop_map(|map| map.into_iter().collect())
    }

    fn object() -> impl Strategy<Value = Value> {
        fields(tree()).prop_map(Value::Object)
    }

    /// Applies a merge patch as specified in RFC 7386, section 2.
    fn merge_patch(target: &Value, patch: &Value) -> Value {
        let Value::Object(patch) = patch else { return patch.clone() };
        let mut target = target.as_object().cloned().unwrap_or_default();
        for (name, value) in patch {
            if value.is_null() {
                target.remove(name);
            } else {
                let below = target.get(name).cloned().unwrap_or_default();
                target.insert(name.clone(), merge_patch(&below, value));
            }
        }
        Value::Object(target)
    }

    proptest! {
        #[test]
        fn without_an_error_it_is_a_merge_patch(theirs in object(), ours in object()) {
            let ours = Value::Object(without_nulls(ours.as_object().expect("an object")));
            let (value, errors) = merged(&theirs, &ours);
            if errors.is_empty() {
                let base = merge_patch(&json!({}), &theirs);
                prop_assert_eq!(value, merge_patch(&base, &ours));
            }
        }

        #[test]
        fn ours_is_there_whatever_they_write(theirs in object(), ours in object()) {
            let ours = Value::Object(without_nulls(ours.as_object().expect("an object")));
            let (value, _) = merged(&theirs, &ours);
            // Laid over the result again it changes nothing.
            prop_assert_eq!(merged(&value, &ours), (value.clone(), vec![]));
        }

        #[test]
        fn nothing_of_ours_leaves_theirs(theirs in object()) {
            let (value, errors) = merged(&theirs, &json!({}));
            prop_assert_eq!(value, merge_patch(&json!({}), &theirs));
            prop_assert!(errors.is_empty());
        }
    }
}
