//! Pure: reasons for which user data is refused. They name keys, indexes and lines, never content. Called by `user_data`.

/// Maximum number of findings of each kind that are kept.
const MAX_FINDINGS: usize = 32;

/// Maximum length of a key that a finding quotes. A longer one could be content at the wrong place.
const MAX_QUOTED_KEY: usize = 48;

/// A part of user data that cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}; {remedy}")]
pub struct Refusal {
    /// Path of the key, such as `write_files[2].encoding`, or the key of the Secret.
    pub key: String,
    /// Cause.
    pub reason: String,
    /// Next step of the user.
    pub remedy: String,
}

/// Findings of one reading.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Errors. They cannot be ignored.
    pub(super) invalid: Vec<Refusal>,
    /// Parts that are not supported, and without which the rest can run.
    pub(super) unsupported: Vec<Refusal>,
}

impl Findings {
    pub(super) fn invalid(&mut self, key: &str, reason: impl Into<String>, remedy: impl Into<String>) {
        add(&mut self.invalid, refusal(key, reason, remedy));
    }

    pub(super) fn unsupported(&mut self, key: &str, reason: impl Into<String>, remedy: impl Into<String>) {
        add(&mut self.unsupported, refusal(key, reason, remedy));
    }

    /// Adds a value that is not text.
    pub(super) fn not_text(&mut self, key: &str) {
        self.invalid(key, "the value is not text", "put it in quotes");
    }
}

fn add(list: &mut Vec<Refusal>, refusal: Refusal) {
    if list.len() < MAX_FINDINGS {
        list.push(refusal);
    }
}

pub(super) fn refusal(key: &str, reason: impl Into<String>, remedy: impl Into<String>) -> Refusal {
    Refusal { key: key.to_owned(), reason: reason.into(), remedy: remedy.into() }
}

/// Returns the path of a field. A name that does not have the form of cloud-init's keys is not quoted.
pub(super) fn field(above: &str, name: &str, line: usize) -> String {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    let fits = (1..=MAX_QUOTED_KEY).contains(&name.len()) && name.bytes().all(plain);
    let name = if fits { name.to_owned() } else { format!("(key in line {line})") };
    if above.is_empty() { name } else { format!("{above}.{name}") }
}
