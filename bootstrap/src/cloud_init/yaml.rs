//! Pure: YAML that PyYAML (YAML 1.1), kubeadm and the parser of this crate read alike. A text stays a text, whatever it looks like.
//!
//! Quotes are chosen so that the text needs no escape if possible: an expression of jinja in it stays as it was written.

use std::fmt::Write as _;

use serde_json::Value;

/// Width of one level.
const INDENT: &str = "  ";

/// Words that some reader does not take for text.
const WORDS: [&str; 11] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"];

/// Returns a document of a value. Fields are sorted by name, after `apiVersion`, `kind` and `name`.
pub(crate) fn document(value: &Value) -> String {
    lines(value).into_iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{line}");
        text
    })
}

fn lines(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort_by_key(|name| (rank(name), *name));
            names.into_iter().flat_map(|name| field(name, &fields[name])).collect()
        }
        Value::Array(items) if !items.is_empty() => items.iter().flat_map(item).collect(),
        Value::Object(_) => vec!["{}".to_owned()],
        Value::Array(_) => vec!["[]".to_owned()],
        Value::String(text) => vec![scalar(text)],
        Value::Null | Value::Bool(_) | Value::Number(_) => vec![value.to_string()],
    }
}

fn rank(name: &str) -> usize {
    ["apiVersion", "kind", "name"].iter().position(|first| *first == name).unwrap_or(usize::MAX)
}

fn field(name: &str, value: &Value) -> Vec<String> {
    let below = lines(value);
    let name = scalar(name);
    if is_inline(value) {
        return below.into_iter().map(|line| format!("{name}: {line}")).collect();
    }
    let indent = if value.is_array() { "" } else { INDENT };
    std::iter::once(format!("{name}:"))
        .chain(below.into_iter().map(|line| format!("{indent}{line}")))
        .collect()
}

fn item(value: &Value) -> Vec<String> {
    let prefix = |index| if index == 0 { "- " } else { INDENT };
    lines(value).into_iter().enumerate().map(|(index, line)| format!("{}{line}", prefix(index))).collect()
}

fn is_inline(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// Returns a text as a scalar of one line.
pub(crate) fn scalar(text: &str) -> String {
    if is_plain(text) {
        return text.to_owned();
    }
    let fits_one_line = text.chars().all(|c| is_printable(c) && c != '\n' && c != '\t');
    if fits_one_line && !text.contains(['"', '\\']) {
        return format!("\"{text}\"");
    }
    if fits_one_line && !text.contains('\'') {
        return format!("'{text}'");
    }
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            _ if is_printable(c) => quoted.push(c),
            _ => quoted.push_str(&escaped(u32::from(c))),
        }
    }
    quoted.push('"');
    quoted
}

fn escaped(code: u32) -> String {
    match code {
        0..=0xff => format!("\\x{code:02X}"),
        0x100..=0xffff => format!("\\u{code:04X}"),
        _ => format!("\\U{code:08X}"),
    }
}

/// Returns true for a text that no reader takes for anything else: it starts with a letter or a slash, and has no character of YAML's.
fn is_plain(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_./-".contains(&byte))
        && !WORDS.contains(&text.to_ascii_lowercase().as_str())
}

/// Returns true for a character that PyYAML reads as it is, and that no reader takes for a line break. Line feed and tab are among them.
pub(super) fn is_printable(c: char) -> bool {
    matches!(c, '\t' | '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
        && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn quotes_are_those_that_need_no_escape() {
        for (text, expected) in [
            ("eth0", "eth0"),
            ("/etc/a-b_c.d", "/etc/a-b_c.d"),
            ("", r#""""#),
            ("yes", r#""yes""#),
            ("0640", r#""0640""#),
            ("root:root", r#""root:root""#),
            ("{{ ds.meta_data.name }}", r#""{{ ds.meta_data.name }}""#),
            ("{{ ds.meta_data[\"name\"] }}", r#"'{{ ds.meta_data["name"] }}'"#),
            ("{{ ds.meta_data['name'] }}", r#""{{ ds.meta_data['name'] }}""#),
            ("it's \"both\"", r#""it's \"both\"""#),
            ("a\u{7f}", r#""a\x7F""#),
            ("a\u{85}", r#""a\x85""#),
            ("a\nb\t\u{7f}\u{2028}\u{1f600}", "\"a\\nb\\t\\x7F\\u2028\u{1f600}\""),
        ] {
            assert_eq!(scalar(text), expected);
        }
    }

    #[test]
    fn document_is_read_as_its_value() {
        let value = json!({ "kind": "K", "apiVersion": "v1", "b": [], "a": {}, "n": null, "t": true, "i": 7,
            "list": [["a", "0"], [[]], [{}], { "x": 1, "name": [1, 2] }], "map": { "in": { "deep": "er" } } });
        let text = document(&value);
        assert!(text.starts_with("apiVersion: v1\nkind: K\na: {}\n"), "{text}");
        assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), value);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<String>().prop_map(Value::from),
            "[-0-9a-zA-Z:.#'\"{}%\\[\\] \t\n]{0,12}".prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            Just(Value::Null),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[-a-z0-9:. ]{1,6}", inner, 0..4)
                    .prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn kb7_any_value_is_read_as_itself(value in any_value()) {
            let text = document(&value);
            prop_assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), value, "{}", text);
        }
    }
}
