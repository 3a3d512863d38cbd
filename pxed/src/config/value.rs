//! Pure: the forms of value that the configuration knows besides those of the standard library.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use ipnet::Ipv4Net;
use thiserror::Error;

/// The text does not have the expected form; the reader of the configuration names the form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not of the expected form")]
pub struct ParseValueError;

/// A host and a port, as in a URL: `boot.example:8067`, `10.7.0.1:8067`, `[fd00::1]:8067`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// The host as written in a URL.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl FromStr for HostPort {
    type Err = ParseValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, port) = text.rsplit_once(':').ok_or(ParseValueError)?;
        let port = port.parse().ok().filter(|p| *p != 0).ok_or(ParseValueError)?;
        let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let valid = match bracketed {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty()
                    && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
            }
        };
        if valid { Ok(Self { host: host.to_owned(), port }) } else { Err(ParseValueError) }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// An absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AbsolutePath(pub std::path::PathBuf);

impl FromStr for AbsolutePath {
    type Err = ParseValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with('/') && !text.contains('\0') {
            Ok(Self(text.into()))
        } else {
            Err(ParseValueError)
        }
    }
}

/// An IPv4 address, or an IPv4 network without host bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddressOrNetwork(pub Ipv4Net);

impl FromStr for AddressOrNetwork {
    type Err = ParseValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Ok(Self(address.into()));
        }
        let network: Ipv4Net = text.parse().map_err(|_| ParseValueError)?;
        if network.addr() == network.network() { Ok(Self(network)) } else { Err(ParseValueError) }
    }
}

/// The name of a file without any directory, fit for a TFTP name and a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileName(pub String);

impl FromStr for FileName {
    type Err = ParseValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
        let valid = !text.is_empty() && text.len() <= 64 && text.bytes().all(plain) && !text.starts_with('.');
        if valid { Ok(Self(text.to_owned())) } else { Err(ParseValueError) }
    }
}

/// A DNS label, such as the name of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label(pub String);

impl FromStr for Label {
    type Err = ParseValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let valid = (1..=63).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !text.starts_with('-')
            && !text.ends_with('-');
        if valid { Ok(Self(text.to_owned())) } else { Err(ParseValueError) }
    }
}

/// The name of a network interface: at most 15 bytes (IFNAMSIZ), no slash, no space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceName(pub String);

impl FromStr for InterfaceName {
    type Err = ParseValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let valid = (1..=15).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_graphic() && b != b'/' && b != b':')
            && text != "."
            && text != "..";
        if valid { Ok(Self(text.to_owned())) } else { Err(ParseValueError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_port_are_fit_for_a_url() {
        for text in ["10.7.0.1:8067", "boot.example:80", "[fd00::1]:8443"] {
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
        }
        for text in ["10.7.0.1", ":80", "host:0", "a/b:80", "fd00::1:80", "http://x:80", "[x]:80"] {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_loader_is_a_file_name_and_no_path() {
        assert!("snponly.efi".parse::<FileName>().is_ok());
        for text in ["", "../x", "a/b", ".hidden", "a b"] {
            assert!(text.parse::<FileName>().is_err(), "{text}");
        }
    }
}
