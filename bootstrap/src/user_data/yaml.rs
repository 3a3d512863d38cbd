//! Pure: YAML as PyYAML reads it for cloud-init: the types of YAML 1.1, and whether a text was quoted.
//!
//! Bounded: depth, nodes and aliases. An alias shares its node, so that no alias multiplies memory. Errors name lines, never content.
//! Refused although PyYAML reads it: merge keys, tags other than `!!str` and `!!binary`, keys that are not text, duplicate keys.
//! Called by `user_data`.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use granit_parser::{Event, Parser, ScalarStyle, StrInput, Tag};
use zeroize::Zeroizing;

use super::scalar::{Scalar, resolve};
use crate::encoding;

/// Maximum depth of lists and maps, aliases included.
const MAX_DEPTH: usize = 32;

/// Maximum number of scalars, lists and maps.
const MAX_NODES: usize = 100_000;

/// Maximum number of aliases.
const MAX_ALIASES: usize = 1_000;

/// A value and its place.
pub(super) struct Node {
    /// Line of the rendered user data, from 1.
    pub(super) line: usize,
    /// Levels of lists and maps.
    depth: usize,
    pub(super) value: Value,
}

/// A value as PyYAML has it.
pub(super) enum Value {
    Scalar(Scalar),
    /// Text that was quoted, or that nothing else reads.
    Text(Zeroizing<String>),
    /// `!!binary`.
    Bytes(Zeroizing<Vec<u8>>),
    List(Vec<Rc<Node>>),
    /// Names are keys of cloud-init, not content.
    Map(Vec<(String, Rc<Node>)>),
}

/// Failure to read YAML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct YamlError {
    /// Line of the rendered user data, from 1.
    pub(super) line: usize,
    pub(super) cause: YamlCause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum YamlCause {
    #[error("this is not valid YAML")]
    Syntax,
    #[error("lists and maps are nested more than {MAX_DEPTH} levels deep")]
    Deep,
    #[error("there are more than {MAX_NODES} values")]
    Nodes,
    #[error("there are more than {MAX_ALIASES} aliases")]
    Aliases,
    #[error("an alias is inside of its own anchor")]
    Recursive,
    #[error("a second document starts")]
    Documents,
    #[error("a tag other than !!str and !!binary is not supported")]
    Tag,
    #[error("a value with the tag !!binary is not base64")]
    Binary,
    #[error("a merge key (<<) is not supported")]
    Merge,
    #[error("a key is not text")]
    Key,
    #[error("a key is there twice in one map")]
    Duplicate,
}

/// Reads one document. An empty text is null.
///
/// # Errors
/// The text is not YAML, or has something that is not supported.
pub(super) fn parse(text: &str) -> Result<Rc<Node>, YamlError> {
    let options = granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: MAX_DEPTH + 1,
        block_nesting_limit: MAX_DEPTH + 1,
    };
    let parser = Parser::new_from_str_with_options(text, options);
    let mut composer = Composer { parser, line: 1, anchors: HashMap::new(), nodes: 0, aliases: 0 };
    composer.document()
}

struct Composer<'t> {
    parser: Parser<'t, StrInput<'t>>,
    /// Line of the last event.
    line: usize,
    anchors: HashMap<usize, Rc<Node>>,
    nodes: usize,
    aliases: usize,
}

impl<'t> Composer<'t> {
    fn error(&self, cause: YamlCause) -> YamlError {
        YamlError { line: self.line, cause }
    }

    fn event(&mut self) -> Result<Event<'t>, YamlError> {
        loop {
            match self.parser.next_event() {
                Some(Ok((Event::StreamStart, _))) => {}
                Some(Ok((event, span))) => {
                    self.line = span.start.line().max(1);
                    return Ok(event);
                }
                Some(Err(error)) => {
                    self.line = error.marker().line().max(1);
                    return Err(self.error(YamlCause::Syntax));
                }
                None => return Ok(Event::StreamEnd),
            }
        }
    }

    fn document(&mut self) -> Result<Rc<Node>, YamlError> {
        match self.event()? {
            Event::StreamEnd => return self.finish(0, Value::Scalar(Scalar::Null), 0),
            Event::DocumentStart(..) => {}
            _ => return Err(self.error(YamlCause::Syntax)),
        }
        let event = self.event()?;
        let root = self.node(event, 0)?;
        loop {
            match self.event()? {
                Event::DocumentEnd => {}
                Event::StreamEnd => return Ok(root),
                Event::DocumentStart(..) => return Err(self.error(YamlCause::Documents)),
                _ => return Err(self.error(YamlCause::Syntax)),
            }
        }
    }

    /// Reads the node that starts with an event.
    fn node(&mut self, event: Event<'t>, level: usize) -> Result<Rc<Node>, YamlError> {
        if level > MAX_DEPTH {
            return Err(self.error(YamlCause::Deep));
        }
        match event {
            Event::Alias(anchor) => {
                self.aliases += 1;
                if self.aliases > MAX_ALIASES {
                    return Err(self.error(YamlCause::Aliases));
                }
                self.anchors.get(&anchor).cloned().ok_or_else(|| self.error(YamlCause::Recursive))
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = self.scalar(&text, style, tag.as_deref())?;
                self.finish(anchor, value, 0)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.plain_collection(tag.as_ref())?;
                self.list(anchor, level)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.plain_collection(tag.as_ref())?;
                self.map(anchor, level)
            }
            _ => Err(self.error(YamlCause::Syntax)),
        }
    }

    /// Counts a node and remembers it if it has an anchor.
    fn finish(&mut self, anchor: usize, value: Value, depth: usize) -> Result<Rc<Node>, YamlError> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(self.error(YamlCause::Nodes));
        }
        if depth > MAX_DEPTH {
            return Err(self.error(YamlCause::Deep));
        }
        let node = Rc::new(Node { line: self.line, depth, value });
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        Ok(node)
    }

    fn list(&mut self, anchor: usize, level: usize) -> Result<Rc<Node>, YamlError> {
        let (line, mut items, mut depth) = (self.line, Vec::new(), 0);
        loop {
            match self.event()? {
                Event::SequenceEnd => break,
                event => {
                    let item = self.node(event, level + 1)?;
                    depth = depth.max(item.depth);
                    items.push(item);
                }
            }
        }
        self.line = line;
        self.finish(anchor, Value::List(items), depth + 1)
    }

    fn map(&mut self, anchor: usize, level: usize) -> Result<Rc<Node>, YamlError> {
        let (line, mut entries, mut depth) = (self.line, Vec::new(), 0);
        let mut names = BTreeSet::new();
        loop {
            let event = self.event()?;
            if event == Event::MappingEnd {
                break;
            }
            let key = self.node(event, level + 1)?;
            let name = self.key(&key)?;
            if !names.insert(name.clone()) {
                return Err(self.error(YamlCause::Duplicate));
            }
            let event = self.event()?;
            let node = self.node(event, level + 1)?;
            depth = depth.max(node.depth);
            entries.push((name, node));
        }
        self.line = line;
        self.finish(anchor, Value::Map(entries), depth + 1)
    }

    fn key(&self, node: &Node) -> Result<String, YamlError> {
        match &node.value {
            Value::Text(text) => Ok(text.to_string()),
            Value::Scalar(Scalar::Merge) => Err(self.error(YamlCause::Merge)),
            _ => Err(self.error(YamlCause::Key)),
        }
    }

    fn scalar(&self, text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, YamlError> {
        let quoted = || Value::Text(Zeroizing::new(text.to_owned()));
        let Some(tag) = tag else {
            let resolved = if style == ScalarStyle::Plain { resolve(text) } else { None };
            return Ok(resolved.map_or_else(quoted, Value::Scalar));
        };
        match tag.suffix_in_namespace("tag:yaml.org,2002:").as_deref() {
            Some("str") => Ok(quoted()),
            Some("binary") => {
                encoding::base64(text.as_bytes()).map(Value::Bytes).map_err(|_| self.error(YamlCause::Binary))
            }
            _ => Err(self.error(YamlCause::Tag)),
        }
    }

    fn plain_collection(&self, tag: Option<&Cow<'_, Tag>>) -> Result<(), YamlError> {
        if tag.is_some() { Err(self.error(YamlCause::Tag)) } else { Ok(()) }
    }
}

#[cfg(test)]
#[path = "yaml_tests.rs"]
mod tests;
