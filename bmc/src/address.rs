//! `bmc.address`: its parts, and where no address may lead: a Machine's author must not reach what pxed can reach and he
//! cannot (loopback, link-local with its metadata services, the cluster's services).
//!
//! Pure: no clock, no file, no socket. What a name means is `resolve`'s. Callers: `resolve`, pxed's configuration.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bedplate_api::machine::BmcProtocol;
use ipnet::IpNet;

use crate::error::BmcError;

/// Protocol of the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Redfish over TLS.
    Https,
    /// Redfish without TLS.
    Http,
    /// IPMI over UDP.
    Rmcp,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// An address.
    Ip(IpAddr),
    /// A DNS name, in lower case.
    Name(String),
}

/// A parsed `bmc.address`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Protocol of the address.
    pub scheme: Scheme,
    /// The host.
    pub host: Host,
    /// TCP or UDP port.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
            Self::Ip(IpAddr::V4(ip)) => write!(f, "{ip}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

fn not_allowed(address: &str, problem: impl Into<String>) -> BmcError {
    BmcError::AddressNotAllowed { address: address.to_owned(), problem: problem.into() }
}

impl Address {
    /// Parses `bmc.address` for its protocol: a URL (Redfish), or host and optional port.
    pub fn parse(text: &str, protocol: BmcProtocol) -> Result<Self, BmcError> {
        let wrong = |problem: &str| not_allowed(text, problem);
        let (scheme, default, rest) = match protocol {
            BmcProtocol::Ipmi => (Scheme::Rmcp, 623, text),
            BmcProtocol::Redfish => match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
                (Some(rest), _) => (Scheme::Https, 443, rest),
                (None, Some(rest)) => (Scheme::Http, 80, rest),
                (None, None) if text.contains("://") => {
                    return Err(wrong("a URL must start with https:// or http://"));
                }
                (None, None) => (Scheme::Https, 443, text),
            },
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        match (protocol, path.trim_end_matches('/')) {
            (_, "") | (BmcProtocol::Redfish, "/redfish" | "/redfish/v1") => {}
            (BmcProtocol::Redfish, _) => {
                return Err(wrong(
                    "only the path /redfish/v1 may follow; a system is named in bmc.redfish.systemID",
                ));
            }
            (BmcProtocol::Ipmi, _) => return Err(wrong("write host or host:port")),
        }
        let (host, port) =
            split_port(authority).ok_or_else(|| wrong("write host, host:port or [IPv6]:port"))?;
        let port = match port {
            None => default,
            Some(digits) => digits
                .parse::<u16>()
                .ok()
                .filter(|port| *port > 0 && digits.bytes().all(|b| b.is_ascii_digit()))
                .ok_or_else(|| wrong("a port must be a number from 1 to 65535"))?,
        };
        let host =
            Host::parse(host).ok_or_else(|| wrong("the host is neither a DNS name nor an IP address"))?;
        Ok(Self { scheme, host, port })
    }
}

/// Host and port; an IPv6 address without brackets has no port.
fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        host.parse::<Ipv6Addr>().ok()?;
        return match after.strip_prefix(':') {
            Some(port) => Some((host, Some(port))),
            None => after.is_empty().then_some((host, None)),
        };
    }
    if authority.matches(':').count() > 1 {
        return Some((authority, None));
    }
    Some(match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    })
}

impl Host {
    /// Parses a literal address (IPv6 without brackets) or a DNS name.
    pub fn parse(host: &str) -> Option<Self> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Some(Self::Ip(ip));
        }
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        // `127.1` and `0x7f000001` are addresses to some, names to others: here they are neither.
        let last = host.rsplit('.').next().unwrap_or_default();
        let numeric = last.starts_with(|c: char| c.is_ascii_digit())
            && (last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x"));
        (host.len() <= 253 && host.split('.').all(label) && !numeric).then_some(Self::Name(host))
    }
}

/// Addresses at which BMCs may be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    /// Networks where no BMC is: the cluster's services and pods.
    pub forbidden: Vec<IpNet>,
    /// Networks that may be reached although they are refused otherwise.
    pub allowed: Vec<IpNet>,
}

impl Reach {
    /// Refuses an IP address where no BMC may be; `address` is how it was written.
    pub fn check(&self, address: &str, ip: IpAddr) -> Result<(), BmcError> {
        match self.refusal(ip) {
            None => Ok(()),
            Some(why) => {
                let problem = format!(
                    "{ip} is {why}, which is not allowed for a BMC; if the address is correct, allow its network in pxed's configuration"
                );
                Err(not_allowed(address, problem))
            }
        }
    }

    /// Returns the kind of an IP address that must not be reached, such as "loopback".
    pub fn refusal(&self, ip: IpAddr) -> Option<&'static str> {
        let plain = plain(ip);
        let inside = |net: &&IpNet| net.contains(&ip) || net.contains(&plain);
        if self.allowed.iter().any(|net| inside(&net)) {
            return None;
        }
        let is_forbidden = || self.forbidden.iter().any(|net| inside(&net));
        special(plain).or_else(|| is_forbidden().then_some("in a forbidden network"))
    }
}

/// The IPv4 address inside an IPv6 one that leads to it: mapped, compatible, translated (SIIT, RFC 2765), NAT64 (RFC 6052, its
/// well-known prefix) and 6to4. A NAT64 with a prefix of the site's own cannot be known here: `special` refuses the range that
/// RFC 8215 keeps for it, others belong into `Reach::forbidden`.
fn plain(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    let s = v6.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match s {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => ip,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        _ => ip,
    }
}

/// Metadata services of clouds, which also serve secrets, in addition to the link-local addresses (AWS over IPv6,
/// Alibaba).
const METADATA: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
];

fn special(ip: IpAddr) -> Option<&'static str> {
    let multicast = "a multicast address";
    match ip {
        metadata if METADATA.contains(&metadata) => Some("a cloud's metadata service"),
        IpAddr::V4(v4) if v4.is_loopback() => Some("loopback"),
        IpAddr::V4(v4) if v4.is_link_local() => Some("link-local"),
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some("unspecified"),
        IpAddr::V4(v4) if v4.is_multicast() => Some(multicast),
        IpAddr::V4(v4) if v4.octets()[0] >= 240 => Some("reserved or broadcast"),
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) if v6.is_loopback() => Some("loopback"),
        IpAddr::V6(v6) if v6.is_unspecified() => Some("unspecified"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("link-local"),
        IpAddr::V6(v6) if v6.is_multicast() => Some(multicast),
        IpAddr::V6(v6) if v6.segments().starts_with(&[0x64, 0xff9b, 1]) => {
            Some("a NAT64 address, which maps to other addresses")
        }
        // Its IPv4 addresses are hidden, and lead anywhere (RFC 4380).
        IpAddr::V6(v6) if v6.segments().starts_with(&[0x2001, 0]) => {
            Some("a Teredo address, which maps to other addresses")
        }
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, protocol: BmcProtocol) -> Option<String> {
        let address = Address::parse(text, protocol).ok()?;
        Some(format!("{:?} {address}", address.scheme))
    }

    #[test]
    fn addresses_have_scheme_host_and_port() {
        for (text, expected) in [
            ("10.9.0.21", Some("Https 10.9.0.21:443")),
            ("BMC-1.Example.", Some("Https bmc-1.example:443")),
            ("bmc:8443", Some("Https bmc:8443")),
            ("https://bmc/", Some("Https bmc:443")),
            ("https://bmc:1/redfish/v1/", Some("Https bmc:1")),
            ("http://bmc", Some("Http bmc:80")),
            ("https://[fd00::1]:8443", Some("Https [fd00::1]:8443")),
            ("fd00::1", Some("Https [fd00::1]:443")),
            ("https://bmc/redfish/v1/Systems/1", None),
            ("https://user@bmc", None),
            ("https://bmc?x", None),
            ("ftp://bmc", None),
            ("bmc:0", None),
            ("bmc:65536", None),
            ("bmc:+1", None),
            ("bmc:", None),
            ("[fd00::1", None),
            ("[10.9.0.21]", None),
            ("[fd00::1]x", None),
            ("127.1", None),
            ("2130706433", None),
            ("0x7f000001", None),
            ("a..b", None),
            ("-a", None),
            ("", None),
        ] {
            assert_eq!(shown(text, BmcProtocol::Redfish).as_deref(), expected, "{text}");
        }
        for (text, expected) in [
            ("10.9.0.21", Some("Rmcp 10.9.0.21:623")),
            ("bmc:6230", Some("Rmcp bmc:6230")),
            ("https://bmc", None),
            ("bmc/x", None),
        ] {
            assert_eq!(shown(text, BmcProtocol::Ipmi).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn loopback_link_local_and_the_clusters_services_are_not_reached() {
        let reach = Reach { forbidden: vec!["10.96.0.0/12".parse().unwrap()], allowed: Vec::new() };
        for (ip, allowed) in [
            ("10.9.0.21", true),
            ("192.168.1.1", true),
            ("fd00::1", true),
            ("2001:db8::1", true),
            ("127.0.0.1", false),
            ("127.255.0.9", false),
            ("169.254.169.254", false),
            ("0.0.0.0", false),
            ("0.1.2.3", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("10.96.0.1", false),
            ("::", false),
            ("::1", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("::ffff:127.0.0.1", false),
            ("::127.0.0.1", false),
            ("::ffff:10.96.0.1", false),
            ("64:ff9b::a9fe:a9fe", false),
            ("64:ff9b:1::a9fe:a9fe", false),
            ("::ffff:0:127.0.0.1", false),
            ("::ffff:0:10.9.0.21", true),
            ("2002:7f00:1::", false),
            ("2001:0:7f00:1::", false),
            ("2001:1::1", true),
            ("fd00:ec2::254", false),
            ("fd00:ec2::253", true),
            ("100.100.100.200", false),
            ("::ffff:100.100.100.200", false),
            ("100.100.100.201", true),
            ("::ffff:10.9.0.21", true),
        ] {
            assert_eq!(reach.check("bmc", ip.parse().unwrap()).is_ok(), allowed, "{ip}");
        }
    }

    #[test]
    fn address_in_an_allowed_network_is_reached() {
        let reach = Reach { forbidden: Vec::new(), allowed: vec!["127.0.0.0/8".parse().unwrap()] };
        assert!(reach.check("bmc", "127.0.0.1".parse().unwrap()).is_ok());
        assert!(reach.check("bmc", "::1".parse().unwrap()).is_err());
        let error = reach.check("bmc.example", "169.254.0.1".parse().unwrap()).unwrap_err();
        assert!(
            error.to_string().contains("bmc.example") && error.to_string().contains("link-local"),
            "{error}"
        );
    }
}
