//! Redfish resource, read tolerantly: a missing or `null` field is absent, a field of a wrong type is an error that
//! names it only where it is needed, and all other fields are ignored.
//!
//! Pure: no clock, no file, no socket. Callers: everything in `redfish`.

use serde_json::{Map, Value};

use crate::error::{BmcError, printable};

/// Maximum number of members of a list that are read.
const MOST_MEMBERS: usize = 1024;

/// Longest path that is followed, in bytes.
const LONGEST_PATH: usize = 2048;
/// More words of a list are not taken; the standard knows some 20 reset types and as many sources of a boot.
const MOST_WORDS: usize = 32;
/// Longest word of a list, in characters.
const LONGEST_WORD: usize = 64;
/// More values are not parsed: each costs memory many times its length in the body.
const MOST_VALUES: usize = 20_000;
/// Fields of a service root that are used, next to the names of its `Oem`.
const ROOT_FIELDS: [&str; 7] =
    ["Systems", "Managers", "SessionService", "Links", "RedfishVersion", "Vendor", "Product"];
/// More makers' names are not kept.
const MOST_MAKERS: usize = 32;

/// A resource and where it is from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Document {
    pub(crate) path: String,
    pub(crate) etag: Option<String>,
    pub(crate) value: Value,
}

impl Document {
    /// Parses an answer's body; the ETag is the header's, or the body's if there is no header.
    pub(crate) fn parse(path: &str, etag: Option<String>, body: &[u8]) -> Result<Self, BmcError> {
        let problem = |problem: String| BmcError::Protocol { path: path.to_owned(), problem, sent: false };
        let value = parse(body).map_err(problem)?;
        if !value.is_object() {
            return Err(problem("not a JSON object".to_owned()));
        }
        let own = value.get("@odata.etag").and_then(Value::as_str).map(str::to_owned);
        Ok(Self { path: path.to_owned(), etag: etag.or(own).filter(|tag| !tag.is_empty()), value })
    }

    /// Reduces a service root to its used fields: it is stored as long as its BMC.
    pub(crate) fn root(self) -> Self {
        let mut kept = Map::new();
        for name in ROOT_FIELDS {
            if let Some(value) = self.value.get(name) {
                kept.insert(name.to_owned(), short(value));
            }
        }
        if let Some(Value::Object(makers)) = self.value.get("Oem") {
            let names = makers.iter().filter(|(name, fields)| name.len() <= 64 && fields.is_object());
            let names = names.take(MOST_MAKERS).map(|(name, _)| (name.clone(), Value::Object(Map::new())));
            kept.insert("Oem".to_owned(), Value::Object(names.collect()));
        }
        Self { path: self.path, etag: None, value: Value::Object(kept) }
    }

    pub(crate) fn wrong(&self, pointer: &str, problem: &str) -> BmcError {
        let path = format!("{} {pointer}", self.path);
        BmcError::Protocol { path, problem: problem.to_owned(), sent: false }
    }

    pub(crate) fn at(&self, pointer: &str) -> Option<&Value> {
        self.value.pointer(pointer).filter(|value| !value.is_null())
    }

    /// Returns a text for users, sanitized; `None` if it is empty.
    pub(crate) fn text(&self, pointer: &str) -> Option<String> {
        text_of(self.at(pointer)?)
    }

    /// A word that decides something: of a wrong type it is an error.
    pub(crate) fn word(&self, pointer: &str) -> Result<Option<&str>, BmcError> {
        match self.at(pointer) {
            None => Ok(None),
            Some(Value::String(word)) => Ok(Some(word)),
            Some(_) => Err(self.wrong(pointer, "not a text")),
        }
    }

    /// The path of a link (`{"@odata.id": ...}`).
    pub(crate) fn link(&self, pointer: &str) -> Result<Option<String>, BmcError> {
        self.at(pointer).map(|value| self.link_in(pointer, value)).transpose()
    }

    pub(crate) fn link_in(&self, pointer: &str, value: &Value) -> Result<String, BmcError> {
        let link = value.get("@odata.id").and_then(Value::as_str);
        let link = link.ok_or_else(|| self.wrong(pointer, "no @odata.id"))?;
        if is_path(link) { Ok(link.to_owned()) } else { Err(self.wrong(pointer, "@odata.id is not a path")) }
    }

    /// The links of a list; `null` and absent are an empty one.
    pub(crate) fn links(&self, pointer: &str) -> Result<Vec<String>, BmcError> {
        self.list(pointer)?.iter().map(|member| self.link_in(pointer, member)).collect()
    }

    pub(crate) fn list(&self, pointer: &str) -> Result<&[Value], BmcError> {
        match self.at(pointer) {
            None => Ok(&[]),
            Some(Value::Array(members)) => Ok(&members[..members.len().min(MOST_MEMBERS)]),
            Some(_) => Err(self.wrong(pointer, "not a list")),
        }
    }

    /// Returns a list of words; `None` if there is none. Elements that are not texts are skipped.
    pub(crate) fn words(&self, pointer: &str) -> Option<Vec<String>> {
        words_of(self.at(pointer)?)
    }
}

/// A document as text, a fifth of what it is as values: thousands of roots are kept.
pub(crate) struct Kept {
    path: Box<str>,
    text: Box<str>,
}

impl Kept {
    pub(crate) fn of(document: &Document) -> Self {
        Self { path: document.path.as_str().into(), text: document.value.to_string().into() }
    }

    pub(crate) fn document(&self) -> Result<Document, BmcError> {
        Document::parse(&self.path, None, self.text.as_bytes())
    }
}

/// Parses a body with a bounded number of values. All bodies of a BMC are parsed here.
pub(crate) fn parse(body: &[u8]) -> Result<Value, String> {
    if values(body) > MOST_VALUES {
        return Err(format!("more than {MOST_VALUES} values"));
    }
    // serde_json refuses what is nested deeper than 128.
    serde_json::from_slice(body).map_err(|e| format!("not JSON (line {}, column {})", e.line(), e.column()))
}

/// At least the number of values in a JSON text: every value but the first follows one of `,`, `[`, `{`.
fn values(body: &[u8]) -> usize {
    let (mut count, mut in_text, mut escaped) = (1, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

/// A value of a root for the cache: the links of objects, and no lists. A text that is too long for a path stays so.
fn short(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let links = ["@odata.id", "Sessions"];
            let links = links.iter().filter_map(|name| Some(((*name).to_owned(), short(fields.get(*name)?))));
            Value::Object(links.collect())
        }
        Value::Array(_) => Value::Array(Vec::new()),
        Value::String(text) => Value::String(text.chars().take(LONGEST_PATH + 1).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

pub(crate) fn words_of(value: &Value) -> Option<Vec<String>> {
    let words = value.as_array()?.iter().filter_map(Value::as_str).take(MOST_MEMBERS);
    let words = words.map(|word| printable(word).chars().take(LONGEST_WORD).collect::<String>());
    Some(words.filter(|word| !word.is_empty()).take(MOST_WORDS).collect())
}

pub(crate) fn text_of(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => printable(text),
        Value::Number(number) => number.to_string(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    (!text.is_empty()).then_some(text)
}

/// A path of the same server, of a length that one may have. `//host` and `/\host` are none.
pub(crate) fn is_path(text: &str) -> bool {
    text.starts_with('/')
        && !text.starts_with("//")
        && text.len() <= LONGEST_PATH
        && text.bytes().all(|b| b.is_ascii_graphic() && b != b'\\')
}

/// The last segment of a path: the id of a system.
pub(crate) fn last_segment(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(body: &str) -> Result<Document, BmcError> {
        Document::parse("/redfish/v1/Systems/1", None, body.as_bytes())
    }

    #[test]
    fn invalid_json_error_names_the_path() {
        let deep = format!("{}1{}", "[".repeat(300), "]".repeat(300));
        for body in ["", "<html>", "[]", "\"x\"", "{\"a\":", &format!("{{\"a\":{deep}}}")] {
            let error = parsed(body).unwrap_err().to_string();
            assert!(error.contains("/redfish/v1/Systems/1"), "{error}");
        }
    }

    #[test]
    fn a_field_of_a_wrong_type_is_named() {
        let document =
            parsed(r#"{"PowerState": 1, "Systems": {"@odata.id": "//evil/x"}, "A": {}, "M": 3}"#).unwrap();
        for (error, field) in [
            (document.word("/PowerState").map(drop).unwrap_err(), "/PowerState"),
            (document.link("/Systems").map(drop).unwrap_err(), "/Systems"),
            (document.link("/A").map(drop).unwrap_err(), "/A"),
            (document.links("/M").map(drop).unwrap_err(), "/M"),
        ] {
            assert!(error.to_string().contains(&format!("/redfish/v1/Systems/1 {field}")), "{error}");
        }
    }

    #[test]
    fn null_and_absent_are_the_same_and_blank_text_is_none() {
        let document =
            parsed(r#"{"Members": null, "SerialNumber": "   ", "Model": " R\n640 ", "@odata.etag": ""}"#);
        let document = document.unwrap();
        assert_eq!(document.links("/Members").unwrap(), Vec::<String>::new());
        assert_eq!(document.text("/SerialNumber"), None);
        assert_eq!(document.text("/Model").as_deref(), Some("R 640"));
        assert_eq!((document.word("/None").unwrap(), document.etag.as_deref()), (None, None));
    }

    #[test]
    fn only_paths_of_the_same_server_are_followed() {
        for (text, expected) in [
            ("/redfish/v1/Systems/1", true),
            ("//evil.example/x", false),
            ("/\\evil.example/x", false),
            ("https://evil.example/", false),
            ("/a b", false),
            ("/a\r\nX: y", false),
            ("", false),
        ] {
            assert_eq!(is_path(text), expected, "{text}");
        }
    }

    #[test]
    fn of_a_root_only_what_is_looked_at_is_kept() {
        let kept = json!({"RedfishVersion": "1.6.0", "Product": null, "Vendor": ["x"], "Systems": {"@odata.id": "/s"},
            "Links": {"Sessions": {"@odata.id": "/x"}}, "SessionService": {}, "Oem": {"Hpe": {}}});
        let mut body = kept.clone();
        body["Chassis"] = json!({"@odata.id": "/c"});
        body["Systems"]["Description"] = json!("long");
        body["Vendor"] = json!(["x", "y"]);
        body["Oem"] = json!({"Hpe": {"Manager": [1, 2, 3]}, "No": 1});
        let mut expected = kept;
        expected["Vendor"] = json!([]);
        assert_eq!(parsed(&body.to_string()).unwrap().root().value, expected);
        let long =
            json!({"Systems": {"@odata.id": format!("/{}", "x".repeat(9000))}, "Vendor": "x".repeat(9000)});
        let root = parsed(&long.to_string()).unwrap().root();
        assert!(root.link("/Systems").is_err() && root.value.to_string().len() < 5000);
    }

    #[test]
    fn words_are_cleaned_and_few() {
        let mut words = vec![json!("On\u{1b}[31m"), json!(1), json!(" \u{202e} "), json!("x".repeat(5000))];
        words.extend(vec![json!("Off"); 100]);
        let words = words_of(&json!(words)).unwrap();
        assert_eq!((words.len(), words[0].as_str(), words[2].as_str()), (32, "On [31m", "Off"));
        assert!(words[1].chars().count() <= 64);
    }
}
