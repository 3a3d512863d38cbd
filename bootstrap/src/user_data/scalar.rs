//! Pure: types of unquoted scalars by the rules of YAML 1.1 as PyYAML applies them. Called by `yaml`.
//!
//! `yes` and `off` are booleans, `0644` is 420, `1:30` is 90. Only the types that user data can use have values. All others are
//! [`Scalar::Other`]: a user must quote them, since text and value differ.

/// Value of an unquoted scalar that is not text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    /// `null`, `~`, or nothing.
    Null,
    /// `true`, `yes`, `on` and their opposites.
    Bool(bool),
    /// An integer.
    Integer {
        /// The value.
        value: i64,
        /// True if the text is the value in decimal.
        is_decimal: bool,
    },
    /// `<<`.
    Merge,
    /// A float, a date, or an integer out of range or to the base 60.
    Other,
}

/// Returns the value of an unquoted scalar, or `None` if it is text.
pub(super) fn resolve(text: &str) -> Option<Scalar> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Some(Scalar::Null),
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Some(Scalar::Bool(true)),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Some(Scalar::Bool(false)),
        "<<" => Some(Scalar::Merge),
        // PyYAML has no value for it and fails.
        "=" => Some(Scalar::Other),
        _ => integer(text).or_else(|| (is_float(text) || is_date(text)).then_some(Scalar::Other)),
    }
}

fn unsigned(text: &str) -> &str {
    text.strip_prefix(['-', '+']).unwrap_or(text)
}

fn all(text: &str, allowed: impl Fn(u8) -> bool) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte == b'_' || allowed(byte))
}

fn integer(text: &str) -> Option<Scalar> {
    let body = unsigned(text);
    let octal = |byte: u8| matches!(byte, b'0'..=b'7');
    let (digits, radix) = if let Some(digits) = body.strip_prefix("0b") {
        (Some(digits).filter(|digits| all(digits, |byte| matches!(byte, b'0' | b'1'))), 2)
    } else if let Some(digits) = body.strip_prefix("0x") {
        (Some(digits).filter(|digits| all(digits, |byte| byte.is_ascii_hexdigit())), 16)
    } else if body == "0" {
        (Some(body), 10)
    } else if let Some(digits) = body.strip_prefix('0') {
        (Some(digits).filter(|digits| all(digits, octal)), 8)
    } else if body.starts_with(|c: char| c.is_ascii_digit()) {
        if is_sexagesimal(body) {
            return Some(Scalar::Other);
        }
        (Some(body).filter(|digits| all(digits, |byte| byte.is_ascii_digit())), 10)
    } else {
        (None, 10)
    };
    let plain: String = digits?.chars().filter(|c| *c != '_').collect();
    let sign = if text.starts_with('-') { "-" } else { "" };
    // `0_` is octal without digits.
    let plain = if plain.is_empty() && radix == 8 { "0" } else { &plain };
    let Ok(value) = i64::from_str_radix(&format!("{sign}{plain}"), radix) else { return Some(Scalar::Other) };
    Some(Scalar::Integer { value, is_decimal: value.to_string() == text })
}

/// Returns true for numbers to the base 60: digits, then `:` and at most 59, repeated.
fn is_sexagesimal(text: &str) -> bool {
    let Some((first, rest)) = text.split_once(':') else { return false };
    let part = |part: &str| match part.as_bytes() {
        [one] => one.is_ascii_digit(),
        [ten, one] => matches!(ten, b'0'..=b'5') && one.is_ascii_digit(),
        _ => false,
    };
    let starts = first.starts_with(|c: char| c.is_ascii_digit());
    starts && all(first, |byte| byte.is_ascii_digit()) && rest.split(':').all(part)
}

fn is_float(text: &str) -> bool {
    let body = unsigned(text);
    if matches!(body, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let Some((whole, rest)) = body.split_once('.') else { return false };
    if is_sexagesimal(whole) && (rest.is_empty() || all(rest, |byte| byte.is_ascii_digit())) {
        return true;
    }
    let (part, exponent) = rest.split_once(['e', 'E']).map_or((rest, None), |(part, e)| (part, Some(e)));
    let exponent = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['-', '+']).unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    });
    let digits = |text: &str| all(text, |byte| byte.is_ascii_digit());
    let starts = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let is_whole = starts(whole) && digits(whole) && (part.is_empty() || digits(part));
    // A sign before a point is text.
    let is_part = whole.is_empty() && body == text && starts(part) && digits(part);
    exponent && (is_whole || is_part)
}

/// Returns true for a date, and for a date with a time.
fn is_date(text: &str) -> bool {
    let Some((year, rest)) = text.split_once('-') else { return false };
    let Some((month, rest)) = rest.split_once('-') else { return false };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (day, time) = rest.split_at(end);
    if year.len() != 4 || !digits(year) || !digits(month) {
        return false;
    }
    if time.is_empty() {
        return month.len() == 2 && day.len() == 2;
    }
    // Wider than PyYAML: what looks like a time must be quoted.
    let is_time = |c: char| c.is_ascii_digit() || " \t:.+-Z".contains(c);
    let time = time.strip_prefix(['T', 't', ' ', '\t']);
    matches!(month.len(), 1 | 2)
        && matches!(day.len(), 1 | 2)
        && time.is_some_and(|time| time.chars().all(is_time))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer(value: i64, is_decimal: bool) -> Option<Scalar> {
        Some(Scalar::Integer { value, is_decimal })
    }

    #[test]
    fn scalars_have_the_types_of_yaml_1_1() {
        for (text, expected) in [
            ("", Some(Scalar::Null)),
            ("~", Some(Scalar::Null)),
            ("yes", Some(Scalar::Bool(true))),
            ("Off", Some(Scalar::Bool(false))),
            ("y", None),
            ("<<", Some(Scalar::Merge)),
            ("0", integer(0, true)),
            ("-0", integer(0, false)),
            ("12", integer(12, true)),
            ("-12", integer(-12, true)),
            ("+12", integer(12, false)),
            ("1_000", integer(1000, false)),
            ("0644", integer(0o644, false)),
            ("0o644", None),
            ("08", None),
            ("0x1F", integer(31, false)),
            ("0b11", integer(3, false)),
            ("1:30", Some(Scalar::Other)),
            ("0:0", None),
            ("1000:1000", None),
            ("99999999999999999999", Some(Scalar::Other)),
            ("1.5", Some(Scalar::Other)),
            ("1.", Some(Scalar::Other)),
            (".5", Some(Scalar::Other)),
            ("-.5", None),
            ("1e3", None),
            ("1.0e3", None),
            ("1.0e+3", Some(Scalar::Other)),
            ("10.0.0.1", None),
            (".inf", Some(Scalar::Other)),
            ("-.INF", Some(Scalar::Other)),
            (".NaN", Some(Scalar::Other)),
            ("2001-12-14", Some(Scalar::Other)),
            ("2001-1-1", None),
            ("2001-12-14t21:59:43.10-05:00", Some(Scalar::Other)),
            ("root:root", None),
            ("-", None),
            ("=", Some(Scalar::Other)),
        ] {
            assert_eq!(resolve(text), expected, "{text:?}");
        }
    }
}
