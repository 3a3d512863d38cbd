//! Conditional and partial requests: `If-None-Match`, `If-Range`, single `Range`s (RFC 9110, 13 and 14).
//!
//! Pure. Entity tags are digests, hence strong. Of several ranges the whole is sent, as a server may (14.2).

use std::ops::Range;

/// Part of a representation to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// All of it: 200.
    Whole,
    /// These bytes: 206.
    Bytes(Range<u64>),
    /// The client has the content: 304.
    NotModified,
    /// There are no such bytes: 416.
    Unsatisfiable,
}

/// The header fields that matter, as they were sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Conditions<'a> {
    /// `If-None-Match`.
    pub if_none_match: Option<&'a str>,
    /// `If-Range`.
    pub if_range: Option<&'a str>,
    /// `Range`.
    pub range: Option<&'a str>,
}

/// Decides which part of a representation with this entity tag (in quotes) and size to send.
pub fn part(conditions: Conditions<'_>, tag: &str, size: u64) -> Part {
    if let Some(known) = conditions.if_none_match {
        let same = |known: &str| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag;
        if known.split(',').any(|known| same(known.trim())) {
            return Part::NotModified;
        }
    }
    // A strong comparison: a date or a weak tag never matches (RFC 9110, 13.1.5), then the whole is sent.
    if conditions.if_range.is_some_and(|known| known.trim() != tag) {
        return Part::Whole;
    }
    conditions.range.map_or(Part::Whole, |range| parse_range(range, size))
}

fn parse_range(text: &str, size: u64) -> Part {
    let Some((unit, set)) = text.split_once('=') else { return Part::Whole };
    if !unit.trim().eq_ignore_ascii_case("bytes") || set.contains(',') {
        return Part::Whole;
    }
    let Some((first, last)) = set.trim().split_once('-') else { return Part::Whole };
    let number = |text: &str| -> Option<u64> {
        (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
            .then(|| text.parse().unwrap_or(u64::MAX))
    };
    match (first, last) {
        ("", "") => Part::Whole,
        ("", count) => match number(count) {
            None => Part::Whole,
            Some(0) => Part::Unsatisfiable,
            Some(_) if size == 0 => Part::Unsatisfiable,
            Some(count) => Part::Bytes(size.saturating_sub(count)..size),
        },
        (first, last) => {
            let end = if last.is_empty() { Some(u64::MAX) } else { number(last) };
            match (number(first), end) {
                (Some(first), Some(last)) if first > last => Part::Whole,
                (Some(first), Some(_)) if first >= size => Part::Unsatisfiable,
                (Some(first), Some(last)) => Part::Bytes(first..last.saturating_add(1).min(size)),
                (_, _) => Part::Whole,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TAG: &str = "\"sha256:ab\"";

    fn range(text: &str) -> Part {
        part(Conditions { range: Some(text), ..Conditions::default() }, TAG, 100)
    }

    #[test]
    fn single_ranges_are_sent_and_others_ignored() {
        let table = [
            ("bytes=0-9", Part::Bytes(0..10)),
            ("bytes=90-", Part::Bytes(90..100)),
            ("bytes=90-1000", Part::Bytes(90..100)),
            ("bytes=-10", Part::Bytes(90..100)),
            ("bytes=-1000", Part::Bytes(0..100)),
            ("Bytes = 0-0", Part::Bytes(0..1)),
            ("bytes=100-", Part::Unsatisfiable),
            ("bytes=-0", Part::Unsatisfiable),
            ("bytes=99999999999999999999-", Part::Unsatisfiable),
            ("bytes=9-0", Part::Whole),
            ("bytes=0-1,3-4", Part::Whole),
            ("bytes=a-b", Part::Whole),
            ("bytes=+1-2", Part::Whole),
            ("lines=0-1", Part::Whole),
            ("bytes", Part::Whole),
            ("bytes=-", Part::Whole),
        ];
        for (text, expected) in table {
            assert_eq!(range(text), expected, "{text}");
        }
    }

    #[test]
    fn conditions_compare_digests() {
        let with = |if_none_match, if_range| {
            part(Conditions { if_none_match, if_range, range: Some("bytes=1-") }, TAG, 100)
        };
        assert_eq!(with(Some(TAG), None), Part::NotModified);
        assert_eq!(with(Some("\"x\", W/\"sha256:ab\""), None), Part::NotModified);
        assert_eq!(with(Some("*"), None), Part::NotModified);
        assert_eq!(with(Some("\"x\""), None), Part::Bytes(1..100));
        assert_eq!(with(None, Some(TAG)), Part::Bytes(1..100));
        assert_eq!(with(None, Some("\"x\"")), Part::Whole);
        assert_eq!(with(None, Some("Tue, 01 Jan 2030 00:00:00 GMT")), Part::Whole);
    }

    proptest! {
        #[test]
        fn a_range_is_never_empty_nor_outside(text in "bytes=[0-9]{0,21}-[0-9]{0,21}|\\PC{0,30}", size in 0_u64..1000) {
            if let Part::Bytes(range) = part(Conditions { range: Some(&text), ..Conditions::default() }, TAG, size) {
                prop_assert!(range.start < range.end && range.end <= size);
            }
        }
    }
}
