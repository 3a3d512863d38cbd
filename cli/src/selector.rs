//! Pure: selectors as kubectl writes them (`rack=a,role!=gpu,zone in (a,b),!spare`) -> requirements on labels, or on fields of a Machine.
//!
//! The receiver of the selector checks whether keys and values are valid labels.

use std::collections::BTreeMap;

use bedplate_api::selector::{FieldRequirement, LabelSelector, LabelSelectorRequirement, MACHINE_FIELDS};

/// Reads a selector of fields. The error names the cause.
pub(crate) fn parse_fields(text: &str) -> Result<Vec<FieldRequirement>, String> {
    let LabelSelector { match_labels, match_expressions } = parse(text)?;
    let equal = match_labels.into_iter().flatten();
    let equal =
        equal.map(|(key, value)| FieldRequirement { key, operator: "In".to_owned(), values: vec![value] });
    let others = match_expressions.into_iter().flatten().map(|requirement| {
        let LabelSelectorRequirement { key, operator, values } = requirement;
        FieldRequirement { key, operator, values: values.unwrap_or_default() }
    });
    let all: Vec<_> = equal.chain(others).collect();
    match all.iter().find(|requirement| !MACHINE_FIELDS.contains(&requirement.key.as_str())) {
        Some(wrong) => Err(format!(
            "{:?} is not a selectable field; use one of {}",
            wrong.key,
            MACHINE_FIELDS.join(", ")
        )),
        None => Ok(all),
    }
}

/// Reads a selector. The error names the fault.
pub(crate) fn parse(text: &str) -> Result<LabelSelector, String> {
    let mut labels = BTreeMap::new();
    let mut expressions = Vec::new();
    for part in split(text) {
        let part = part.trim();
        match part.strip_suffix(')').and_then(|part| part.split_once('(')) {
            Some((head, values)) => {
                let words: Vec<&str> = head.split_whitespace().collect();
                let (key, operator) = match words[..] {
                    [key, "in"] => (key, "In"),
                    [key, "notin"] => (key, "NotIn"),
                    _ => return Err(wrong(part)),
                };
                let values = values.split(',').map(|value| value.trim().to_owned()).collect();
                expressions.push(requirement(word(key, part)?, operator, Some(values)));
            }
            None => match (part.strip_prefix('!'), part.split_once("!="), part.split_once('=')) {
                (Some(key), _, _) => expressions.push(requirement(word(key, part)?, "DoesNotExist", None)),
                (None, Some((key, value)), _) => {
                    let value = vec![value.trim().to_owned()];
                    expressions.push(requirement(word(key, part)?, "NotIn", Some(value)));
                }
                (None, None, Some((key, value))) => {
                    let value = value.strip_prefix('=').unwrap_or(value).trim().to_owned();
                    let other = labels.insert(word(key, part)?, value.clone());
                    if other.is_some_and(|other| other != value) {
                        return Err(format!("{key:?} has two values; nothing would match"));
                    }
                }
                (None, None, None) => expressions.push(requirement(word(part, part)?, "Exists", None)),
            },
        }
    }
    Ok(LabelSelector {
        match_labels: (!labels.is_empty()).then_some(labels),
        match_expressions: (!expressions.is_empty()).then_some(expressions),
    })
}

/// Splits at commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.split(|sign: char| {
        inside = match sign {
            '(' => true,
            ')' => false,
            _ => inside,
        };
        sign == ',' && !inside
    })
    .collect()
}

fn requirement(key: String, operator: &str, values: Option<Vec<String>>) -> LabelSelectorRequirement {
    LabelSelectorRequirement { key, operator: operator.to_owned(), values }
}

fn word(key: &str, part: &str) -> Result<String, String> {
    let key = key.trim();
    let plain = |sign: char| sign.is_ascii_alphanumeric() || "-_./".contains(sign);
    if key.is_empty() || !key.chars().all(plain) { Err(wrong(part)) } else { Ok(key.to_owned()) }
}

fn wrong(part: &str) -> String {
    format!(
        "{part:?} is not a valid requirement: write key=value, key!=value, key, !key, or 'key in (a,b)', with commas between"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_selector_is_read_as_kubectl_does() {
        let text = "rack=a, example.com/role==db,zone in (x, y),tier notin (z),size!=small,ready,!spare";
        assert_eq!(
            serde_json::to_value(parse(text).unwrap()).unwrap(),
            json!({
                "matchLabels": { "rack": "a", "example.com/role": "db" },
                "matchExpressions": [
                    { "key": "zone", "operator": "In", "values": ["x", "y"] },
                    { "key": "tier", "operator": "NotIn", "values": ["z"] },
                    { "key": "size", "operator": "NotIn", "values": ["small"] },
                    { "key": "ready", "operator": "Exists" },
                    { "key": "spare", "operator": "DoesNotExist" }
                ]
            })
        );
    }

    #[test]
    fn fields_are_selected_as_labels_are_and_only_known_ones() {
        let found =
            parse_fields("spec.provider=manual,metadata.name notin (a, b),status.hardware.vendor").unwrap();
        let expected = json!([
            { "key": "spec.provider", "operator": "In", "values": ["manual"] },
            { "key": "metadata.name", "operator": "NotIn", "values": ["a", "b"] },
            { "key": "status.hardware.vendor", "operator": "Exists" }
        ]);
        assert_eq!(serde_json::to_value(found).unwrap(), expected);
        let error = parse_fields("spec.provder=manual").unwrap_err();
        assert!(error.contains("spec.provider, spec.site"), "{error}");
    }

    #[test]
    fn invalid_selector_is_rejected() {
        for text in ["", "a=b,", "=b", "a in b", "a near (b)", "a=b,a=c", "!", "a b"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
