//! Identifiers, each parsed once at the edge and passed on as its own type.
//!
//! Not here: anything that draws random numbers (a boot id is made from 16 bytes that the caller drew).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// Error for a text that is not the expected identifier. The message contains the expected form and the text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{found:?} is not {expected}")]
pub struct ParseIdError {
    /// Expected form of the text.
    pub expected: &'static str,
    /// The text as it was given, cut to 80 characters.
    pub found: String,
}

impl ParseIdError {
    pub(crate) fn new(expected: &'static str, found: &str) -> Self {
        Self { expected, found: found.chars().take(80).collect() }
    }
}

/// An Ethernet address (EUI-48). Written in lower case with colons, read in any usual spelling: colons, hyphens,
/// Cisco's dotted groups of four, or bare hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress([u8; 6]);

impl MacAddress {
    /// The address with these octets, in transmission order.
    pub const fn new(octets: [u8; 6]) -> Self {
        Self(octets)
    }

    /// The six octets, in transmission order.
    pub const fn octets(self) -> [u8; 6] {
        self.0
    }

    /// Returns true if this can be the address of one interface: the group bit is clear (IEEE 802-2014,
    /// 8.2.2) and not all bytes are zero.
    pub const fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }

    /// Returns the address of a node with its own one on its host's network (`container.network: Macvlan`).
    /// It is `02` (locally administered, unicast), then the first five octets of SHA-256 of
    /// `bedplate slot <name>`. Both slots share it, so that a repave keeps the lease. The agent, pxed and
    /// external DHCP servers compute the same address, so it never changes.
    pub fn of_slot(machine: &MachineName) -> Self {
        let hash: [u8; 32] = Sha256::digest(format!("bedplate slot {machine}").as_bytes()).into();
        let [a, b, c, d, e, ..] = hash;
        Self([0x02, a, b, c, d, e])
    }
}

impl FromStr for MacAddress {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseIdError::new("a MAC address such as 52:54:00:12:34:56", text);
        let group = match text.bytes().find(|b| !b.is_ascii_hexdigit()) {
            None => 12,
            Some(b':' | b'-') => 2,
            Some(b'.') => 4,
            Some(_) => return Err(error()),
        };
        let separator = text.chars().find(|c| !c.is_ascii_hexdigit());
        let groups: Vec<&str> = match separator {
            None => vec![text],
            Some(separator) => text.split(separator).collect(),
        };
        if groups.len() * group != 12 || groups.iter().any(|g| g.len() != group) {
            return Err(error());
        }
        let value = u64::from_str_radix(&groups.concat(), 16).map_err(|_| error())?;
        let [_, _, octets @ ..] = value.to_be_bytes();
        Ok(Self(octets))
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The name of a Machine, which is also its Node's name and its host name: a DNS label of at most 63 characters
/// (RFC 1123).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineName(String);

/// The group of pxed instances that owns a Machine (A3); a DNS label.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteName(String);

fn is_dns_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// One boot of one Machine: 128 random bits, written as 32 lower-case hex digits. A client that knows it is
/// treated as that boot's loader, so it comes from the system's random source and expires within minutes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BootId([u8; 16]);

impl BootId {
    /// A boot id of these bytes; the caller drew them from a cryptographic source.
    pub const fn from_random(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 16 bytes.
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// ID for statuses, Events and logs: the first 16 bytes of SHA-256 over this ID. A client that knows the ID itself counts as the
    /// loader of the boot and may take its seed, so the ID stays in URLs and in pxed's store.
    #[must_use]
    pub fn public_id(self) -> Self {
        let mut public = [0; 16];
        public.iter_mut().zip(Sha256::digest(self.0)).for_each(|(to, from)| *to = from);
        Self(public)
    }
}

impl FromStr for BootId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        hex_bytes(text)
            .map(Self)
            .ok_or_else(|| ParseIdError::new("a boot id of 32 lower-case hex digits", text))
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// A content digest, `sha256:` and 64 lower-case hex digits (OCI image specification, descriptor "digests"; the only
/// algorithm that Bedplate takes).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest whose SHA-256 value is `bytes`.
    pub const fn from_sha256(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the 32 bytes of the SHA-256 value.
    pub const fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// The 64 hex digits without the algorithm, as used for file names.
    pub fn hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }
}

impl FromStr for Digest {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_prefix("sha256:")
            .and_then(hex_bytes)
            .map(Self)
            .ok_or_else(|| ParseIdError::new("a digest: sha256: and 64 lower-case hex digits", text))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

/// Exactly `BYTE_COUNT` bytes of lower-case hex; upper case is refused so that every identifier has one spelling.
pub(crate) fn hex_bytes<const BYTE_COUNT: usize>(text: &str) -> Option<[u8; BYTE_COUNT]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * BYTE_COUNT || !digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut bytes = [0; BYTE_COUNT];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

macro_rules! dns_label {
    ($type:ident, $expected:literal) => {
        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                if is_dns_label(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(ParseIdError::new($expected, text))
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

dns_label!(MachineName, "a Machine name: at most 63 of a-z, 0-9 and '-', not first or last '-'");
dns_label!(SiteName, "a site name: at most 63 of a-z, 0-9 and '-', not first or last '-'");

impl Default for SiteName {
    /// The site of Machines and of pxed instances that name none: `default`.
    fn default() -> Self {
        Self("default".to_owned())
    }
}

macro_rules! text_form {
    ($($type:ident),*) => {$(
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

text_form!(MacAddress, MachineName, SiteName, BootId, Digest);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_address_is_read_in_every_usual_spelling_and_shown_in_one() {
        for text in ["52:54:00:aB:cd:ef", "52-54-00-AB-CD-EF", "5254.00ab.cdef", "525400abcdef"] {
            assert_eq!(text.parse::<MacAddress>().unwrap().to_string(), "52:54:00:ab:cd:ef", "{text}");
        }
    }

    #[test]
    fn mac_address_refuses_what_is_not_one() {
        for text in [
            "",
            "52:54:00:ab:cd",
            "52:54:00:ab:cd:ef:01",
            "5254:00ab:cdef",
            "52:54-00:ab:cd:ef",
            "zz:54:00:ab:cd:ef",
            "5:254:00:ab:cd:ef",
            "+2:54:00:ab:cd:ef",
        ] {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn group_and_zero_addresses_are_not_unicast() {
        assert!(!"01:00:5e:00:00:01".parse::<MacAddress>().unwrap().is_unicast());
        assert!(!"00:00:00:00:00:00".parse::<MacAddress>().unwrap().is_unicast());
        assert!("52:54:00:00:00:01".parse::<MacAddress>().unwrap().is_unicast());
    }

    /// `printf 'bedplate slot node-1' | sha256sum`: frozen, leases and other DHCP servers' files hold it.
    #[test]
    fn a_nodes_own_address_comes_of_the_machines_name_and_stays() {
        let of = |name: &str| MacAddress::of_slot(&name.parse().unwrap());
        assert_eq!(of("node-1").to_string(), "02:83:90:9c:ab:61");
        assert!(of("node-1").is_unicast());
        assert_ne!(of("node-1"), of("node-2"));
    }

    #[test]
    fn machine_name_is_a_dns_label() {
        assert!("node-1".parse::<MachineName>().is_ok());
        for text in ["", "-a", "a-", "A", "a.b", "a_b", &"a".repeat(64)] {
            assert!(text.parse::<MachineName>().is_err(), "{text}");
        }
    }

    #[test]
    fn boot_id_and_digest_have_one_spelling() {
        let id = "000102030405060708090a0b0c0d0e0f";
        assert_eq!(id.parse::<BootId>().unwrap().to_string(), id);
        assert!(id.to_uppercase().parse::<BootId>().is_err());
        let digest = format!("sha256:{}", "ab".repeat(32));
        assert_eq!(digest.parse::<Digest>().unwrap().to_string(), digest);
        assert!(digest.replace("sha256", "sha512").parse::<Digest>().is_err());
    }
}
