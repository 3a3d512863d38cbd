//! A Redfish resource, read tolerantly: a field that is not there or `null` is not there, a field of a wrong type is an error
//! that names it only where it is needed, everything else is not looked at.
//!
//! Pure: no clock, no file, no socket. Callers: everything in `redfish`.

use serde_json::Value;

use crate::error::{BmcError, told};

/// More members of a list are not looked at.
const MOST_MEMBERS: usize = 1024;

/// A resource and where it is from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Document {
    pub(crate) path: String,
    pub(crate) etag: Option<String>,
    pub(crate) value: Value,
}

impl Document {
    /// Parses an answer's body; the ETag is the header's, else the body's.
    pub(crate) fn parse(path: &str, etag: Option<String>, body: &[u8]) -> Result<Self, BmcError> {
        let problem = |problem: String| BmcError::Protocol { path: path.to_owned(), problem, sent: false };
        // serde_json refuses what is nested deeper than 128.
        let value: Value = serde_json::from_slice(body)
            .map_err(|e| problem(format!("not JSON (line {}, column {})", e.line(), e.column())))?;
        if !value.is_object() {
            return Err(problem("not a JSON object".to_owned()));
        }
        let own = value.get("@odata.etag").and_then(Value::as_str).map(str::to_owned);
        Ok(Self { path: path.to_owned(), etag: etag.or(own).filter(|tag| !tag.is_empty()), value })
    }

    pub(crate) fn wrong(&self, pointer: &str, problem: &str) -> BmcError {
        let path = format!("{} {pointer}", self.path);
        BmcError::Protocol { path, problem: problem.to_owned(), sent: false }
    }

    pub(crate) fn at(&self, pointer: &str) -> Option<&Value> {
        self.value.pointer(pointer).filter(|value| !value.is_null())
    }

    /// Text for people, cleaned; blank is none.
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

    /// A list of words; `None` where there is none. What is not a text in it is left out.
    pub(crate) fn words(&self, pointer: &str) -> Option<Vec<String>> {
        words_of(self.at(pointer)?)
    }
}

pub(crate) fn words_of(value: &Value) -> Option<Vec<String>> {
    let words = value.as_array()?.iter().filter_map(Value::as_str).take(MOST_MEMBERS);
    Some(words.map(|word| word.chars().take(64).collect()).collect())
}

pub(crate) fn text_of(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => told(text),
        Value::Number(number) => number.to_string(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    (!text.is_empty()).then_some(text)
}

/// A path of the same server, of a length that one may have. `//host` and `/\host` are none.
pub(crate) fn is_path(text: &str) -> bool {
    text.starts_with('/')
        && !text.starts_with("//")
        && text.len() <= 2048
        && text.bytes().all(|b| b.is_ascii_graphic() && b != b'\\')
}

/// The last segment of a path: the id of a system.
pub(crate) fn last_segment(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(body: &str) -> Result<Document, BmcError> {
        Document::parse("/redfish/v1/Systems/1", None, body.as_bytes())
    }

    #[test]
    fn what_is_not_json_names_the_path() {
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
}
