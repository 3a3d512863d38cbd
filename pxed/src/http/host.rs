//! Validity of a request's `Host` field (RFC 9112, 3.2; RFC 9110, 7.2; RFC 3986, 3.2).
//!
//! The value selects nothing: one listener has one set of resources. Called by `route` and by the agents' listener.
//!
//! Pure: a version and fields in, a verdict out.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::net::Ipv6Addr;

use hyper::header::HOST;
use hyper::{HeaderMap, Version};

/// Checks the `Host` field of a request. HTTP/1.0 does not need one; old loaders send none.
///
/// # Errors
/// The text for the client's answer.
pub fn check(version: Version, headers: &HeaderMap) -> Result<(), &'static str> {
    let mut values = headers.get_all(HOST).iter();
    match (values.next(), values.next()) {
        (None, _) if version < Version::HTTP_11 => Ok(()),
        (None, _) => Err("an HTTP/1.1 request needs a Host field"),
        (Some(_), Some(_)) => Err("the request has several Host fields"),
        (Some(value), None) if is_valid(value.as_bytes()) => Ok(()),
        (Some(_), None) => Err("the Host field is not a host with an optional port"),
    }
}

/// Returns true for `uri-host [ ":" port ]`. The host may be empty: RFC 9112, 3.2 asks for that if the URI has none.
fn is_valid(value: &[u8]) -> bool {
    let (is_host, port) = match value.strip_prefix(b"[") {
        Some(literal) => {
            let Some(end) = literal.iter().position(|octet| *octet == b']') else { return false };
            let (address, rest) = literal.split_at(end);
            (is_ip_literal(address), rest.get(1..).unwrap_or_default())
        }
        None => {
            let end = value.iter().position(|octet| *octet == b':').unwrap_or(value.len());
            let (name, rest) = value.split_at(end);
            (is_name(name), rest)
        }
    };
    is_host && (port.is_empty() || port.strip_prefix(b":").is_some_and(|p| p.iter().all(u8::is_ascii_digit)))
}

/// An IPv6 address, with or without a zone (RFC 6874), or a future form of address.
fn is_ip_literal(literal: &[u8]) -> bool {
    if let Some(future) = literal.strip_prefix(b"v").or_else(|| literal.strip_prefix(b"V")) {
        let Some(dot) = future.iter().position(|octet| *octet == b'.') else { return false };
        let (version, rest) = future.split_at(dot);
        let address = rest.get(1..).unwrap_or_default();
        return !version.is_empty()
            && version.iter().all(u8::is_ascii_hexdigit)
            && !address.is_empty()
            && address.iter().all(|octet| is_plain(*octet) || *octet == b':');
    }
    let (address, zone) = match literal.iter().position(|octet| *octet == b'%') {
        Some(at) => {
            let (address, zone) = literal.split_at(at);
            (address, zone.get(1..))
        }
        None => (literal, None),
    };
    // Loaders write the zone with `%` or with `%25`.
    let is_zone = |zone: &[u8]| !zone.is_empty() && zone.iter().all(|octet| is_plain(*octet));
    std::str::from_utf8(address).is_ok_and(|address| address.parse::<Ipv6Addr>().is_ok())
        && zone.is_none_or(is_zone)
}

/// A registered name or an IPv4 address (RFC 3986, 3.2.2).
fn is_name(mut name: &[u8]) -> bool {
    while let Some((&octet, rest)) = name.split_first() {
        name = match (octet, rest) {
            (b'%', [high, low, rest @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => rest,
            (octet, rest) if is_plain(octet) => rest,
            _ => return false,
        };
    }
    true
}

/// Returns true for an unreserved character or a sub-delimiter (RFC 3986, 2.2 and 2.3).
fn is_plain(octet: u8) -> bool {
    // The comma is excluded. In a field value it comes from joined field lines (RFC 9110, 5.3).
    octet.is_ascii_alphanumeric() || b"-._~!$&'()*+;=".contains(&octet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3986_invalid_host_values_are_recognized() {
        for value in [
            "",
            "10.7.0.1",
            "10.7.0.1:8067",
            "pxed",
            "pxed.rack_1.example.:80",
            "pxed:",
            "p%41xed",
            "[fd00::1]",
            "[::ffff:10.7.0.1]:8067",
            "[fe80::1%25eth0]",
            "[fe80::1%eth0]:80",
            "[v1.a:b]",
        ] {
            assert!(is_valid(value.as_bytes()), "{value}");
        }
        for value in [
            "user@pxed",
            "pxed/",
            "http://pxed",
            "pxed:x",
            "pxed:-1",
            "a:1:2",
            "pxed, b",
            "a b",
            "p%4",
            "p%zz",
            "[fd00::1",
            "fd00::1",
            "[fd00::1]x",
            "[]",
            "[fd00::g]",
            "[fe80::1%]",
            "[v.a]",
            "[v1.]",
            "[10.7.0.1]",
            "p\u{e4}xed",
            "a?b",
        ] {
            assert!(!is_valid(value.as_bytes()), "{value}");
        }
    }
}
