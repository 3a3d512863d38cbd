//! Pure: whether a label selector matches, as an API server has it, and if not, for want of what.
//!
//! Callers: `choose`; pxed, for operations with a selector.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Whether a selector matches labels. An empty one matches all.
pub fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    unmet(selector, labels).is_empty()
}

/// What of a selector labels do not meet, each for a person to read.
pub(crate) fn unmet(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> Vec<String> {
    let wanted = selector.match_labels.iter().flatten();
    let wanted = wanted.filter_map(|(key, value)| {
        let found = labels.get(key);
        (found != Some(value)).then(|| format!("{key}={value}, {}", has(key, found)))
    });
    let expressions = selector.match_expressions.iter().flatten();
    let expressions = expressions.filter_map(|requirement| {
        let found = labels.get(&requirement.key);
        (!holds(requirement, found)).then(|| {
            let values = requirement.values.clone().unwrap_or_default().join(", ");
            let (key, operator) = (&requirement.key, &requirement.operator);
            let values = if values.is_empty() { values } else { format!(" ({values})") };
            format!("{key} {operator}{values}, {}", has(key, found))
        })
    });
    wanted.chain(expressions).collect()
}

fn has(key: &str, found: Option<&String>) -> String {
    found.map_or_else(|| format!("has no {key}"), |value| format!("has {key}={value}"))
}

fn holds(requirement: &LabelSelectorRequirement, found: Option<&String>) -> bool {
    let among = |value: &String| requirement.values.iter().flatten().any(|wanted| wanted == value);
    match requirement.operator.as_str() {
        "In" => found.is_some_and(among),
        "NotIn" => !found.is_some_and(among),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        // No other is known: it matches nothing.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_match_as_on_an_api_server() {
        let labels = BTreeMap::from([("rack".to_owned(), "1".to_owned())]);
        for (selector, expected) in [
            (json!({}), true),
            (json!({ "matchLabels": { "rack": "1" } }), true),
            (json!({ "matchLabels": { "rack": "1", "row": "2" } }), false),
            (
                json!({ "matchExpressions": [{ "key": "rack", "operator": "In", "values": ["1", "2"] }] }),
                true,
            ),
            (json!({ "matchExpressions": [{ "key": "rack", "operator": "NotIn", "values": ["1"] }] }), false),
            (json!({ "matchExpressions": [{ "key": "row", "operator": "NotIn", "values": ["1"] }] }), true),
            (json!({ "matchExpressions": [{ "key": "row", "operator": "DoesNotExist" }] }), true),
            (json!({ "matchExpressions": [{ "key": "row", "operator": "Exists" }] }), false),
            (json!({ "matchExpressions": [{ "key": "rack", "operator": "Gt", "values": ["0"] }] }), false),
        ] {
            let parsed = serde_json::from_value(selector.clone()).unwrap();
            assert_eq!(matches(&parsed, &labels), expected, "{selector}");
        }
    }

    #[test]
    fn what_is_not_met_is_said_with_what_is_there() {
        let labels = BTreeMap::from([("rack".to_owned(), "1".to_owned())]);
        let selector = serde_json::from_value(json!({
            "matchLabels": { "rack": "2", "row": "b" },
            "matchExpressions": [{ "key": "rack", "operator": "In", "values": ["3", "4"] },
                { "key": "gpu", "operator": "Exists" }],
        }))
        .unwrap();
        let expected = [
            "rack=2, has rack=1",
            "row=b, has no row",
            "rack In (3, 4), has rack=1",
            "gpu Exists, has no gpu",
        ];
        assert_eq!(unmet(&selector, &labels), expected);
    }
}
