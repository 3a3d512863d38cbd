//! Pure: the networks in which API servers of workload clusters may be.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;

/// Networks of `--workload-networks`. By default all but loopback, link-local, multicast and unspecified addresses: behind those are services of
/// this host and of its platform, such as a metadata service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks(Option<Vec<IpNet>>);

/// Text that is not a list of networks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not a network; use CIDR notation such as 10.0.0.0/8")]
pub struct NetworksError(String);

impl Networks {
    /// Returns true if an address may be dialed. An IPv4 address in IPv6 form counts as the IPv4 address.
    pub fn allows(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        match &self.0 {
            Some(networks) => networks.iter().any(|network| network.contains(&address)),
            None => !is_special(address),
        }
    }
}

fn is_special(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    is_link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast()
}

impl FromStr for Networks {
    type Err = NetworksError;

    /// Reads networks that commas separate.
    fn from_str(text: &str) -> Result<Self, NetworksError> {
        let network = |part: &str| part.trim().parse().map_err(|_| NetworksError(part.trim().to_owned()));
        text.split(',').map(network).collect::<Result<_, _>>().map(|networks| Self(Some(networks)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_4_addresses_of_this_host_are_not_allowed_by_default() {
        let allows = |address: &str| Networks::default().allows(address.parse().unwrap());
        for address in ["10.1.2.3", "192.0.2.1", "8.8.8.8", "2001:db8::1", "fd00::1"] {
            assert!(allows(address), "{address}");
        }
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "fe80::1",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
        ] {
            assert!(!allows(address), "{address}");
        }
    }

    #[test]
    fn trust_4_only_named_networks_are_allowed() {
        let networks: Networks = "10.0.0.0/8, 127.0.0.1/32,fd00::/8".parse().unwrap();
        for (address, expected) in [
            ("10.255.0.1", true),
            ("127.0.0.1", true),
            ("fd12::1", true),
            ("::ffff:10.0.0.1", true),
            ("127.0.0.2", false),
            ("192.168.0.1", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(networks.allows(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn network_that_cannot_be_read_is_named() {
        for text in ["10.0.0.0/8,rack", "rack", "10.0.0.0/8,"] {
            let error = text.parse::<Networks>().unwrap_err().to_string();
            let part = text.rsplit(',').next().unwrap();
            assert_eq!(error, format!("{part:?} is not a network; use CIDR notation such as 10.0.0.0/8"));
        }
    }
}
