//! Pure: addresses to which the credentials of a Secret may be sent. The author of the Secret lists them; the author of a Machine cannot.
//!
//! A host name is compared as the Machine has it, never by what it resolves to: the Secret's author does not control the name server's answer.
//! For the same reason networks match literal addresses only. Without a valid list nothing is allowed. Callers: `credentials`, which
//! reads the list; `connection`, which asks it before it dials.

use bedplate_bmc::address::Host;
use ipnet::IpNet;
use thiserror::Error;

/// Annotation of a Secret that lists the addresses for its credentials.
pub(crate) const ANNOTATION: &str = "bedplate.dev/bmc-addresses";

/// File next to `username` and `password` that lists the addresses for them.
pub const FILE: &str = "bmc-addresses";

/// Maximum length of an invalid entry in a message, in characters.
const MAX_SHOWN: usize = 64;

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    /// Literal addresses of a network.
    Network(IpNet),
    /// A host name.
    Name(String),
    /// All names below a domain, with the leading dot.
    Below(String),
}

/// Addresses to which the credentials of a Secret may be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destinations {
    place: &'static str,
    listed: Result<Vec<Entry>, Problem>,
}

/// Fault of the list itself.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Problem {
    Missing,
    Invalid(String),
}

/// Reason why credentials are not sent to a host. It shows nothing else of the list.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RefuseHostError {
    /// There is no list, or it is empty.
    #[error("its {place} is missing or empty")]
    Missing {
        /// Object that must contain the list.
        place: &'static str,
    },
    /// An entry of the list is not valid.
    #[error("its {place} has {entry:?}, which is not a network, an IP address, a host name or *.domain")]
    Invalid {
        /// Object that contains the list.
        place: &'static str,
        /// The entry.
        entry: String,
    },
    /// The list does not have the host.
    #[error("its {place} does not list {host}")]
    Unlisted {
        /// Object that contains the list.
        place: &'static str,
        /// The host.
        host: Host,
    },
}

impl Destinations {
    /// Reads the annotation [`ANNOTATION`].
    pub(crate) fn of_annotation(text: Option<&str>) -> Self {
        Self::read("annotation bedplate.dev/bmc-addresses", text)
    }

    /// Reads the file [`FILE`].
    pub fn of_file(text: Option<&str>) -> Self {
        Self::read("file bmc-addresses", text)
    }

    /// Entries are separated by commas, spaces and line ends. One that is not valid makes the whole list invalid.
    fn read(place: &'static str, text: Option<&str>) -> Self {
        let words = text.unwrap_or_default().split(|c: char| c == ',' || c.is_ascii_whitespace());
        let listed: Result<Vec<Entry>, Problem> =
            words.filter(|word| !word.is_empty()).map(Entry::parse).collect();
        let listed = listed.and_then(|all| if all.is_empty() { Err(Problem::Missing) } else { Ok(all) });
        Self { place, listed }
    }

    /// Refuses a host that is not listed.
    ///
    /// # Errors
    /// [`RefuseHostError`]
    pub fn check(&self, host: &Host) -> Result<(), RefuseHostError> {
        let place = self.place;
        match &self.listed {
            Err(Problem::Missing) => Err(RefuseHostError::Missing { place }),
            Err(Problem::Invalid(entry)) => Err(RefuseHostError::Invalid { place, entry: entry.clone() }),
            Ok(entries) if entries.iter().any(|entry| entry.has(host)) => Ok(()),
            Ok(_) => Err(RefuseHostError::Unlisted { place, host: host.clone() }),
        }
    }
}

impl Entry {
    fn parse(word: &str) -> Result<Self, Problem> {
        let invalid = || Problem::Invalid(word.chars().take(MAX_SHOWN).collect());
        if let Ok(network) = word.parse::<IpNet>() {
            return Ok(Self::Network(network));
        }
        let (domain, is_below) = match word.strip_prefix("*.") {
            Some(domain) => (domain, true),
            None => (word, false),
        };
        match Host::parse(domain).ok_or_else(invalid)? {
            Host::Name(name) if is_below => Ok(Self::Below(format!(".{name}"))),
            Host::Name(name) => Ok(Self::Name(name)),
            Host::Ip(_) if is_below => Err(invalid()),
            Host::Ip(ip) => Ok(Self::Network(IpNet::from(ip))),
        }
    }

    fn has(&self, host: &Host) -> bool {
        match (self, host) {
            // An IPv4 address inside an IPv6 one is in no IPv4 network: what leads there is not known.
            (Self::Network(network), Host::Ip(ip)) => network.contains(ip),
            (Self::Name(name), Host::Name(host)) => name == host,
            (Self::Below(domain), Host::Name(host)) => host.ends_with(domain.as_str()),
            (Self::Network(_), Host::Name(_)) | (Self::Name(_) | Self::Below(_), Host::Ip(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::machine::BmcProtocol;
    use bedplate_bmc::address::Address;

    use super::*;

    fn is_allowed(list: &str, address: &str) -> bool {
        let address = Address::parse(address, BmcProtocol::Redfish).unwrap();
        Destinations::of_annotation(Some(list)).check(&address.host).is_ok()
    }

    #[test]
    fn only_listed_hosts_get_the_credentials() {
        for (list, address, allowed) in [
            ("10.9.0.0/24", "https://10.9.0.21", true),
            ("10.9.0.0/24", "10.9.0.21:8443", true),
            ("10.9.0.0/24", "https://198.51.100.7", false),
            ("10.9.0.0/24", "https://10.9.1.21", false),
            ("10.9.0.21", "https://10.9.0.21", true),
            ("10.9.0.21", "https://10.9.0.22", false),
            ("fd00:9::/64", "https://[fd00:9::21]:443", true),
            ("fd00:9::21", "https://[fd00:9::22]", false),
            ("bmc-1.rack1.example", "https://BMC-1.rack1.example.", true),
            ("BMC-1.Rack1.Example.", "https://bmc-1.rack1.example", true),
            ("bmc-1.rack1.example", "https://bmc-1.rack1.example.evil.example", false),
            ("*.rack1.example", "https://bmc-1.rack1.example", true),
            ("*.rack1.example", "https://a.bmc-1.rack1.example", true),
            ("*.rack1.example", "https://rack1.example", false),
            ("*.rack1.example", "https://evilrack1.example", false),
            ("*.rack1.example", "https://rack1.example.evil.example", false),
            ("10.8.0.0/24, *.rack1.example,10.9.0.21", "https://10.9.0.21", true),
            ("10.8.0.0/24\n10.9.0.21\n", "https://10.9.0.21", true),
            ("0.0.0.0/0,::/0", "https://10.9.0.21", true),
        ] {
            assert_eq!(is_allowed(list, address), allowed, "{list:?}: {address}");
        }
    }

    #[test]
    fn a_name_is_compared_as_a_name_and_a_network_with_literal_addresses() {
        for (list, address) in [
            // The network has every address that the name could resolve to.
            ("0.0.0.0/0,::/0", "https://bmc.example"),
            ("0.0.0.0/0", "https://localhost"),
            ("*.example", "https://10.9.0.21"),
            // An IPv6 address that leads to an IPv4 address.
            ("10.9.0.0/24", "https://[::ffff:10.9.0.21]"),
            ("10.9.0.0/24", "https://[64:ff9b::a09:15]"),
        ] {
            assert!(!is_allowed(list, address), "{list:?}: {address}");
        }
    }

    #[test]
    fn a_list_that_is_missing_empty_or_invalid_allows_nothing() {
        let host = Host::parse("10.9.0.21").unwrap();
        let refusal =
            |list: Option<&str>| Destinations::of_annotation(list).check(&host).unwrap_err().to_string();
        for list in [None, Some(""), Some(" , \n")] {
            assert_eq!(
                refusal(list),
                "its annotation bedplate.dev/bmc-addresses is missing or empty",
                "{list:?}"
            );
        }
        for wrong in [
            "*",
            "*.",
            "*.10.9.0.21",
            "10.9.0.0/33",
            "bmc-*.example",
            "https://bmc",
            "bmc:443",
            "a..b",
            "10.9",
        ] {
            let refusal = refusal(Some(&format!("10.9.0.0/24,{wrong}")));
            assert!(refusal.contains(&format!("has {wrong:?}, which is not")), "{refusal}");
        }
        assert!(refusal(Some(&"*".repeat(5000))).len() < 200);
        assert!(
            Destinations::of_file(None).check(&host).unwrap_err().to_string().contains("file bmc-addresses")
        );
    }
}
