//! Pure: YAML (of which JSON is a part) as JSON values, with the line of every field.
//!
//! Bounded: serde-saphyr's budget limits nodes, depth, aliases and merges. Called by `manifest`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

/// Documents of one file at most: a rack of ten thousand Machines, and their separators.
const MOST_DOCUMENTS: usize = 32_768;

/// Scalars, lists and maps of one file at most, a hundred for each of ten thousand Machines.
const MOST_NODES: usize = 1_000_000;

/// Lines by path, such as `spec.pxe.interfaces[0].macAddress`; the whole document is the empty path.
pub(crate) type Lines = BTreeMap<String, u64>;

/// One document of a file.
pub(crate) struct Document {
    pub(crate) value: Value,
    pub(crate) lines: Lines,
}

/// Reason why a text is not valid YAML.
pub(crate) struct SyntaxProblem {
    pub(crate) line: u64,
    pub(crate) message: String,
}

/// Returns the documents of a text without empty ones.
pub(crate) fn read_documents(text: &str) -> Result<Vec<Document>, SyntaxProblem> {
    let budget = serde_saphyr::budget! {
        max_documents: MOST_DOCUMENTS,
        max_nodes: MOST_NODES,
        max_events: 2 * MOST_NODES,
    };
    let options = serde_saphyr::options! { with_snippet: false, budget: budget };
    let nodes: Vec<Spanned<Node>> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
            let line = error.location().map_or(1, |location| location.line());
            SyntaxProblem { line, message: error.without_snippet().to_string() }
        })?;
    let documents = nodes.into_iter().filter(|node| !matches!(node.value, Node::Null));
    Ok(documents
        .map(|node| {
            let mut lines = Lines::new();
            let value = convert(node, String::new(), &mut lines);
            Document { value, lines }
        })
        .collect())
}

/// A value whose parts know their positions.
enum Node {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Spanned<Node>>),
    Map(Vec<(String, Spanned<Node>)>),
}

fn convert(node: Spanned<Node>, path: String, lines: &mut Lines) -> Value {
    let line = node.referenced.line();
    let value = match node.value {
        Node::Null => Value::Null,
        Node::Bool(value) => Value::Bool(value),
        Node::Number(value) => Value::Number(value),
        Node::Text(value) => Value::String(value),
        Node::List(items) => {
            let items = items.into_iter().enumerate();
            Value::Array(
                items.map(|(index, item)| convert(item, format!("{path}[{index}]"), lines)).collect(),
            )
        }
        Node::Map(entries) => {
            let mut map = Map::new();
            for (key, item) in entries {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                map.insert(key, convert(item, path, lines));
            }
            Value::Object(map)
        }
    };
    lines.insert(path, line);
    value
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Node, E> {
        Number::from_f64(value).map(Node::Number).ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Node::Map(map))
    }
}
