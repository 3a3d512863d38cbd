//! Pure: reads a TOML document key by key, so that every error is found in one pass and has its line.
//!
//! The known keys of a section are exactly those that are read; the rest is rejected as unknown at
//! [`Section::finish`]. A test compares the keys that were read with docs/reference/configuration.md.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Problem, either, nearest};

type Item<'t> = &'t Spanned<DeValue<'t>>;

/// Results of reading: errors, lines, keys.
#[derive(Debug, Default)]
pub(super) struct Reader {
    line_starts: Vec<usize>,
    lines: BTreeMap<String, usize>,
    overrides: BTreeMap<&'static str, (String, String)>,
    problems: Vec<Problem>,
    asked: BTreeSet<String>,
}

impl Reader {
    /// A reader of `text`. `overrides`: top-level key, value, and what it is called where it was given.
    pub(super) fn new(
        text: &str,
        overrides: impl IntoIterator<Item = (&'static str, String, String)>,
    ) -> Self {
        let line_starts =
            std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at.saturating_add(1))).collect();
        let overrides = overrides.into_iter().map(|(key, value, origin)| (key, (value, origin))).collect();
        Self { line_starts, overrides, ..Self::default() }
    }

    /// The line of a byte offset.
    pub(super) fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    /// Records an error at a key that was read (its line is known) or is missing (it is not).
    pub(super) fn problem(&mut self, key: &str, message: impl Into<String>, remedy: impl Into<String>) {
        let origin = self.overrides.get(key).map(|(_, origin)| origin.clone());
        let line = if origin.is_some() { None } else { self.lines.get(key).copied() };
        let key = origin.unwrap_or_else(|| key.to_owned());
        self.problems.push(Problem { line, key, message: message.into(), remedy: remedy.into() });
    }

    /// Records an error at a place in the file.
    pub(super) fn problem_at(&mut self, span: Option<Range<usize>>, message: &str, remedy: &str) {
        let line = span.map(|s| self.line(s.start));
        self.problems.push(Problem {
            line,
            key: String::new(),
            message: message.to_owned(),
            remedy: remedy.to_owned(),
        });
    }

    /// Returns true if the file, a flag or the environment sets this key.
    pub(super) fn is_given(&self, key: &str) -> bool {
        self.lines.contains_key(key) || self.overrides.contains_key(key)
    }

    /// Returns true if an error was recorded at a key.
    pub(super) fn is_wrong(&self, key: &str) -> bool {
        self.problems.iter().any(|problem| problem.key == key)
    }

    /// Returns the errors in the order of their lines, and every key that was read.
    pub(super) fn into_parts(mut self) -> (Vec<Problem>, BTreeSet<String>) {
        self.problems.sort();
        self.problems.dedup();
        (self.problems, self.asked)
    }
}

/// One table of the document, or the place where it would be.
pub(super) struct Section<'t> {
    table: Option<&'t DeTable<'t>>,
    path: String,
    pattern: String,
    known: Vec<&'static str>,
}

impl<'t> Section<'t> {
    /// The document's top.
    pub(super) fn root(table: &'t DeTable<'t>) -> Self {
        Self { table: Some(table), path: String::new(), pattern: String::new(), known: Vec::new() }
    }

    /// The path of one of this section's keys, as shown in messages.
    pub(super) fn path(&self, key: &str) -> String {
        join(&self.path, key)
    }

    fn get(&mut self, reader: &mut Reader, key: &'static str) -> Option<Item<'t>> {
        self.known.push(key);
        reader.asked.insert(join(&self.pattern, key));
        let (name, item) = self.table?.iter().find(|(name, _)| name.get_ref() == key)?;
        reader.lines.insert(self.path(key), reader.line(name.span().start));
        Some(item)
    }

    fn wrong_type(&self, reader: &mut Reader, key: &str, item: Item<'_>, wanted: &str) {
        let found = item.get_ref().type_str();
        reader.problem(&self.path(key), format!("is {}", article(found)), format!("write {wanted}"));
    }

    /// A text.
    pub(super) fn text(&mut self, reader: &mut Reader, key: &'static str) -> Option<String> {
        let item = self.get(reader, key);
        if self.path.is_empty()
            && let Some((value, _)) = reader.overrides.get(key)
        {
            return Some(value.clone());
        }
        let item = item?;
        let text = item.get_ref().as_str().map(str::to_owned);
        if text.is_none() {
            self.wrong_type(reader, key, item, "a text in quotes");
        }
        text
    }

    /// A text of a certain form.
    pub(super) fn parse<T: FromStr>(
        &mut self,
        reader: &mut Reader,
        key: &'static str,
        form: &str,
    ) -> Option<T> {
        let text = self.text(reader, key)?;
        let value = text.parse().ok();
        if value.is_none() {
            reader.problem(&self.path(key), format!("{text:?} is not {form}"), String::new());
        }
        value
    }

    /// One of several words.
    pub(super) fn choice<T: Copy>(
        &mut self,
        reader: &mut Reader,
        key: &'static str,
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        let text = self.text(reader, key)?;
        let value = choices.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if value.is_none() {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            let message = format!("{text:?} is not one of {}", either(&words));
            reader.problem(&self.path(key), message, did_you_mean(nearest(&text, words)));
        }
        value
    }

    /// A yes or no.
    pub(super) fn boolean(&mut self, reader: &mut Reader, key: &'static str) -> Option<bool> {
        let item = self.get(reader, key)?;
        let value = item.get_ref().as_bool();
        if value.is_none() {
            self.wrong_type(reader, key, item, "true or false, without quotes");
        }
        value
    }

    /// A whole number within limits.
    pub(super) fn integer(
        &mut self,
        reader: &mut Reader,
        key: &'static str,
        limits: RangeInclusive<u32>,
    ) -> Option<u32> {
        let item = self.get(reader, key)?;
        let (low, high) = (limits.start(), limits.end());
        let Some(number) = item.get_ref().as_integer() else {
            self.wrong_type(
                reader,
                key,
                item,
                &format!("a whole number from {low} to {high}, without quotes"),
            );
            return None;
        };
        let value = u32::from_str_radix(number.as_str(), number.radix()).ok().filter(|v| limits.contains(v));
        if value.is_none() {
            reader.problem(
                &self.path(key),
                format!("{number} is out of range"),
                format!("write {low} to {high}"),
            );
        }
        value
    }

    /// A list of texts of a certain form; empty if there is none.
    pub(super) fn list<T: FromStr>(&mut self, reader: &mut Reader, key: &'static str, form: &str) -> Vec<T> {
        let Some(item) = self.get(reader, key) else { return Vec::new() };
        let Some(array) = item.get_ref().as_array() else {
            self.wrong_type(reader, key, item, "a list in square brackets");
            return Vec::new();
        };
        let mut values = Vec::new();
        for (index, item) in array.iter().enumerate() {
            let path = format!("{}[{index}]", self.path(key));
            reader.lines.insert(path.clone(), reader.line(item.span().start));
            match item.get_ref().as_str().map(|text| (text, text.parse())) {
                Some((_, Ok(value))) => values.push(value),
                Some((text, Err(_))) => {
                    reader.problem(&path, format!("{text:?} is not {form}"), String::new());
                }
                None => {
                    let found = article(item.get_ref().type_str());
                    reader.problem(&path, format!("is {found}"), "write a text in quotes".to_owned());
                }
            }
        }
        values
    }

    /// A section within this one, there or not.
    pub(super) fn section(&mut self, reader: &mut Reader, key: &'static str) -> Self {
        let item = self.get(reader, key);
        let table = item.and_then(|item| {
            let table = item.get_ref().as_table();
            if table.is_none() {
                self.wrong_type(reader, key, item, &format!("a section [{}]", self.path(key)));
            }
            table
        });
        Self { table, path: self.path(key), pattern: join(&self.pattern, key), known: Vec::new() }
    }

    /// The sections `[[key]]`, in their order.
    pub(super) fn sections(&mut self, reader: &mut Reader, key: &'static str) -> Vec<Self> {
        let Some(item) = self.get(reader, key) else { return Vec::new() };
        let Some(array) = item.get_ref().as_array() else {
            self.wrong_type(reader, key, item, &format!("sections [[{}]]", self.path(key)));
            return Vec::new();
        };
        let pattern = format!("{}[]", join(&self.pattern, key));
        let mut sections = Vec::new();
        for (index, item) in array.iter().enumerate() {
            let path = format!("{}[{index}]", self.path(key));
            reader.lines.insert(path.clone(), reader.line(item.span().start));
            match item.get_ref().as_table() {
                Some(table) => {
                    sections.push(Self {
                        table: Some(table),
                        path,
                        pattern: pattern.clone(),
                        known: Vec::new(),
                    });
                }
                None => reader.problem(&path, "is not a section", format!("write [[{}]]", self.path(key))),
            }
        }
        sections
    }

    /// The sections `[key.NAME]` with their names.
    pub(super) fn named_sections(&mut self, reader: &mut Reader, key: &'static str) -> Vec<(String, Self)> {
        let outer = self.section(reader, key);
        let mut sections = Vec::new();
        for (name, item) in outer.table.into_iter().flatten() {
            let path = outer.path(name.get_ref());
            reader.lines.insert(path.clone(), reader.line(name.span().start));
            match item.get_ref().as_table() {
                Some(table) => {
                    let pattern = join(&outer.pattern, "*");
                    let section = Self { table: Some(table), path, pattern, known: Vec::new() };
                    sections.push((name.get_ref().to_string(), section));
                }
                None => reader.problem(&path, "is not a section", format!("write [{path}]")),
            }
        }
        sections
    }

    /// Rejects every key that was not read.
    pub(super) fn finish(self, reader: &mut Reader) {
        for (name, _) in self.table.into_iter().flatten() {
            let key: &str = name.get_ref();
            if self.known.contains(&key) {
                continue;
            }
            let path = self.path(key);
            reader.lines.insert(path.clone(), reader.line(name.span().start));
            let remedy = match nearest(key, self.known.iter().copied()) {
                Some(near) => did_you_mean(Some(near)),
                None => format!("known here: {}", self.known.join(", ")),
            };
            reader.problem(&path, "is not a known key", remedy);
        }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn did_you_mean(near: Option<&str>) -> String {
    near.map(|near| format!("did you mean {near:?}?")).unwrap_or_default()
}

fn article(type_name: &str) -> String {
    match type_name {
        "integer" | "array" | "offset date-time" => format!("an {type_name}"),
        "string" => "a text".to_owned(),
        _ => format!("a {type_name}"),
    }
}
