//! Pure: documents as YAML in a fixed order: apiVersion and kind first, then by name.

use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::Value;

/// A value whose fields are written in order.
struct Ordered<'a>(&'a Value);

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(fields) => {
                let mut names: Vec<&String> = fields.keys().collect();
                names.sort_by_key(|name| (rank(name), *name));
                let mut map = serializer.serialize_map(Some(names.len()))?;
                for name in names {
                    map.serialize_entry(name, &Self(&fields[name]))?;
                }
                map.end()
            }
            Value::Array(items) => serializer.collect_seq(items.iter().map(Self)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                self.0.serialize(serializer)
            }
        }
    }
}

fn rank(name: &str) -> u8 {
    match name {
        "apiVersion" => 0,
        "kind" => 1,
        _ => 2,
    }
}

/// Returns a file of these documents below a comment.
pub(crate) fn yaml(comment: &str, documents: &[Value]) -> String {
    let head: String = comment.lines().map(|line| format!("# {line}\n")).collect();
    // Readers of the file should see the original lines, not folded ones.
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let texts: Vec<String> = documents
        .iter()
        .map(|document| {
            serde_saphyr::to_string_with_options(&Ordered(document), options.clone())
                .expect("a JSON value is a YAML document")
        })
        .collect();
    format!("{head}{}", texts.join("---\n"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn kind_comes_first_and_fields_by_name() {
        let document = json!({"b": [{"name": "x", "kind": "K"}], "kind": "K", "a": {}, "apiVersion": "v1"});
        let text = yaml("one\ntwo", &[document]);
        assert_eq!(text, "# one\n# two\napiVersion: v1\nkind: K\na: {}\nb:\n- kind: K\n  name: x\n");
    }

    proptest! {
        #[test]
        fn text_is_read_as_the_text_it_was(text in any::<String>()) {
            let document = json!({"value": text, "list": [text]});
            let read: Value = serde_saphyr::from_str(&yaml("", std::slice::from_ref(&document))).unwrap();
            prop_assert_eq!(read, document);
        }
    }
}
