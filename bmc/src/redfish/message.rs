//! Messages of a BMC about an error (DSP0266, "Error responses"): `@Message.ExtendedInfo`, for users.
//!
//! Pure: no clock, no file, no socket. Callers: `login`, `task`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::StatusCode;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::document::parse;
use crate::error::printable;
use crate::model::Credentials;

/// The messages of an error's body in one line; `None` where it has none.
pub(crate) fn message(body: &[u8]) -> Option<String> {
    let value = parse(body).ok()?;
    let error = value.get("error").unwrap_or(&value);
    let mut said: Vec<String> = infos(error).filter_map(sentence).collect();
    said.dedup();
    if said.is_empty() {
        said.extend(error.get("message").and_then(Value::as_str).map(printable));
    }
    let line = printable(&said.join(" "));
    (!line.is_empty()).then_some(line)
}

/// Returns true if one of the messages has this key: `Base.1.8.SessionLimitExceeded` has `SessionLimitExceeded`.
pub(crate) fn has_key(body: &[u8], key: &str) -> bool {
    let Ok(value) = parse(body) else { return false };
    let error = value.get("error").unwrap_or(&value);
    ids_in(error).any(|id| id.rsplit('.').next() == Some(key))
}

/// The status and the ids of the messages, without a word that is free: for answers that may repeat a secret.
pub(crate) fn status_and_ids(status: StatusCode, body: &[u8], secrets: &Secrets) -> String {
    let value = parse(body).unwrap_or(Value::Null);
    let is_id = |id: &&str| {
        (1..=80).contains(&id.len())
            && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_'))
            && !secrets.are_in(id)
    };
    let mut ids: Vec<&str> = ids_in(value.get("error").unwrap_or(&value)).filter(is_id).take(3).collect();
    ids.dedup();
    if ids.is_empty() { status.to_string() } else { format!("{status}: {}", ids.join(", ")) }
}

fn ids_in(error: &Value) -> impl Iterator<Item = &str> {
    let ids = infos(error).filter_map(|info| info.get("MessageId").and_then(Value::as_str));
    ids.chain(error.get("code").and_then(Value::as_str))
}

/// Texts that no message may repeat.
pub(crate) struct Secrets(Vec<Zeroizing<String>>);

impl Secrets {
    /// Password and token, plain and as sent.
    pub(crate) fn new(credentials: &Credentials, token: Option<&SecretString>) -> Self {
        let password = credentials.password.expose_secret();
        let pair = Zeroizing::new(format!("{}:{password}", credentials.username));
        let mut all =
            vec![Zeroizing::new(password.to_owned()), Zeroizing::new(STANDARD.encode(pair.as_bytes()))];
        if let Ok(quoted) = serde_json::to_string(password).map(Zeroizing::new) {
            all.push(Zeroizing::new(quoted.trim_matches('"').to_owned()));
        }
        all.extend(token.map(|token| Zeroizing::new(token.expose_secret().to_owned())));
        all.retain(|secret| !secret.is_empty());
        Self(all)
    }

    fn are_in(&self, text: &str) -> bool {
        self.0.iter().any(|secret| text.contains(secret.as_str()))
    }

    /// Returns true if a text of a JSON body, before it is sanitized and cut, repeats one of them.
    pub(crate) fn are_repeated(&self, body: &[u8]) -> bool {
        parse(body).is_ok_and(|value| self.are_in_value(&value))
    }

    fn are_in_value(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.are_in(text),
            Value::Array(all) => all.iter().any(|value| self.are_in_value(value)),
            Value::Object(all) => all.values().any(|value| self.are_in_value(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }
}

/// A list by the standard, one object by some BMCs.
fn infos(error: &Value) -> impl Iterator<Item = &Value> {
    let infos = error.get("@Message.ExtendedInfo");
    let list = infos.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    list.iter().take(8).chain(infos.filter(|info| info.is_object()))
}

/// Returns the message, or its ID if there is no text, as with some BMCs.
pub(crate) fn sentence(info: &Value) -> Option<String> {
    let field =
        |name: &str| info.get(name).and_then(Value::as_str).map(printable).filter(|text| !text.is_empty());
    field("Message").or_else(|| field("MessageId"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_messages_are_shown_in_one_clean_line() {
        for (body, expected) in [
            (
                r#"{"error": {"code": "Base.1.8.GeneralError", "message": "See ExtendedInfo.", "@Message.ExtendedInfo": [
                    {"MessageId": "IDRAC.2.8.PSU501", "Message": "Unable to\nperform the operation."},
                    {"MessageId": "Base.1.8.Other", "Message": "Power\u001b[0m is off."}]}}"#,
                Some("Unable to perform the operation. Power [0m is off."),
            ),
            (
                r#"{"error": {"@Message.ExtendedInfo": {"MessageId": "iLO.2.14.ResetInProgress"}}}"#,
                Some("iLO.2.14.ResetInProgress"),
            ),
            (r#"{"error": {"code": "x", "message": "Busy."}}"#, Some("Busy.")),
            (r#"{"error": {"@Message.ExtendedInfo": 7, "message": null}}"#, None),
            ("<html>Bad</html>", None),
            ("", None),
        ] {
            assert_eq!(message(body.as_bytes()).as_deref(), expected, "{body}");
        }
    }

    #[test]
    fn a_key_is_the_last_part_of_a_message_id() {
        let body =
            br#"{"error": {"@Message.ExtendedInfo": [{"MessageId": "Base.1.8.SessionLimitExceeded"}]}}"#;
        assert!(has_key(body, "SessionLimitExceeded"));
        assert!(!has_key(body, "LimitExceeded") && !has_key(b"", "x"));
    }
}
