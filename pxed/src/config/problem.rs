//! Pure: error in the configuration: its place, its description, its remedy.

use std::fmt;

/// Error in the configuration. Shown as `file:line: key: message; remedy`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The line in the file, from 1; none for what is missing from it, or was given by flag or environment.
    pub line: Option<usize>,
    /// The key with its sections (`dhcp.subnet[0].ranges`), or the flag; empty for the file as a whole.
    pub key: String,
    /// Description of the error, with the value that was found.
    pub message: String,
    /// Valid input instead.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "{line}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}", self.message)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// The nearest of `known` to `found`, if one is near enough to be meant.
pub fn nearest<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|k| (strsim::damerau_levenshtein(found, k), k))
        .filter(|(distance, k)| *distance <= 1 + k.len() / 4)
        .min()
        .map(|(_, k)| k)
}

/// `a, b or c`, for messages.
pub fn either(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_keyboard_finds_the_key_that_was_meant() {
        assert_eq!(nearest("lisen", ["listen", "advertise"]), Some("listen"));
        assert_eq!(nearest("lease_seconds", ["lease-seconds", "domain"]), Some("lease-seconds"));
        assert_eq!(nearest("color", ["listen", "advertise"]), None);
    }
}
