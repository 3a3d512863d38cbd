//! The `WWW-Authenticate` header of a registry (RFC 9110, 11.6.1; distribution specification, "token authentication").
//!
//! Not here: asking for the token. Caller: `registry`.
//!
//! Pure: text in, values out.

use std::collections::BTreeMap;

/// Maximum length of a header, in bytes.
const MAX_HEADER_BYTES: usize = 4096;

/// Authentication that a registry requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// User name and password with every request.
    Basic,
    /// A token of this token service.
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// Returns the first supported challenge of the header.
pub(crate) fn parse(header: &str) -> Option<Challenge> {
    let header = header.get(..header.len().min(MAX_HEADER_BYTES))?.trim();
    let (scheme, rest) = header.split_once(' ').unwrap_or((header, ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let mut parameters = parameters(rest);
    Some(Challenge::Bearer {
        realm: parameters.remove("realm")?,
        service: parameters.remove("service"),
        scope: parameters.remove("scope"),
    })
}

/// Parses `name=value` and `name="value"`, separated by commas. Stops at other text.
fn parameters(mut rest: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    while let Some((name, after)) = rest.trim_start_matches([' ', ',']).split_once('=') {
        let (value, left) = match after.strip_prefix('"') {
            Some(quoted) => quoted_text(quoted),
            None => match after.split_once(',') {
                Some((value, left)) => (value.trim().to_owned(), left),
                None => (after.trim().to_owned(), ""),
            },
        };
        found.entry(name.trim().to_ascii_lowercase()).or_insert(value);
        rest = left;
    }
    found
}

/// Returns the unescaped text up to the closing quote, and the rest.
fn quoted_text(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, text.get(at + 1..).unwrap_or_default()),
            '\\' => value.extend(characters.next().map(|(_, c)| c)),
            other => value.push(other),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            Some(Challenge::Bearer {
                realm: realm.into(),
                service: service.map(Into::into),
                scope: scope.map(Into::into),
            })
        };
        let cases = [
            (
                r#"Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a/b:pull,push""#,
                bearer(
                    "https://auth.example/token",
                    Some("registry.example"),
                    Some("repository:a/b:pull,push"),
                ),
            ),
            (r#"bearer Realm=https://a/t , service=x"#, bearer("https://a/t", Some("x"), None)),
            (r#"Bearer realm="a\"b""#, bearer("a\"b", None, None)),
            (r#"Bearer realm="unclosed"#, bearer("unclosed", None, None)),
            (r#"Basic realm="x""#, Some(Challenge::Basic)),
            ("Basic", Some(Challenge::Basic)),
            ("Bearer", None),
            ("Bearer service=x", None),
            ("Negotiate abc", None),
            ("", None),
            ("Bearer =,=,==", None),
        ];
        for (header, expected) in cases {
            assert_eq!(parse(header), expected, "{header}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_header_makes_it_panic(header in ".{0,200}") {
            let _ = parse(&header);
        }
    }
}
