//! Pure: the networks in which API servers of workload clusters may be.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;

/// Networks of `--workload-networks`. By default all but loopback, link-local, multicast, unspecified and platform addresses: behind those are
/// services of this host and of its platform, such as a metadata service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks(Option<Vec<IpNet>>);

/// Addresses of services of platforms outside of the link-local networks. They answer every host, and some give it credentials.
const PLATFORMS: [&str; 4] = [
    // Amazon EC2: metadata, DNS and time (docs.aws.amazon.com, "Instance metadata service").
    "fd00:ec2::/32",
    // Google Compute Engine: metadata (cloud.google.com, "About VM metadata").
    "fd20:ce::254/128",
    // Alibaba Cloud: metadata (alibabacloud.com, "View instance metadata").
    "100.100.100.200/32",
    // Azure: WireServer (learn.microsoft.com, "What is IP address 168.63.129.16?").
    "168.63.129.16/32",
];

/// Prefix of IPv6 addresses that a NAT64 translates to the IPv4 address in their last 4 bytes (RFC 6052, 2.1).
const NAT64_PREFIX: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];

/// Prefix of a NAT64 of one network (RFC 8215). The place of the IPv4 address in it is not known.
const LOCAL_NAT64: &str = "64:ff9b:1::/48";

/// Text that is not a list of networks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not a network; use CIDR notation such as 10.0.0.0/8")]
pub struct NetworksError(String);

impl Networks {
    /// Returns true if an address may be dialed. An IPv4 address in IPv6 form, mapped or of a NAT64, counts as the IPv4 address.
    pub fn allows(&self, address: IpAddr) -> bool {
        let address = canonical(address);
        match &self.0 {
            Some(networks) => networks.iter().any(|network| network.contains(&address)),
            None => !is_special(address),
        }
    }
}

/// Returns the address that a connection reaches.
fn canonical(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if address.segments()[..6] == NAT64_PREFIX => {
            let [.., a, b, c, d] = address.octets();
            IpAddr::from([a, b, c, d])
        }
        other => other,
    }
}

fn is_special(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let is_in = |network: &&str| network.parse::<IpNet>().is_ok_and(|network| network.contains(&address));
    let is_platform = PLATFORMS.iter().chain([&LOCAL_NAT64]).any(is_in);
    is_link_local
        || is_platform
        || address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
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
    fn trust_4_services_of_platforms_are_not_allowed_by_default() {
        let allows = |address: &str| Networks::default().allows(address.parse().unwrap());
        for address in [
            "fd00:ec2::254",
            "fd00:ec2::253",
            "fd20:ce::254",
            "100.100.100.200",
            "::ffff:100.100.100.200",
            "168.63.129.16",
        ] {
            assert!(!allows(address), "{address}");
        }
        for address in ["fd00:ec3::254", "fd20:ce::1", "100.100.100.201", "168.63.129.17"] {
            assert!(allows(address), "{address}");
        }
        for network in PLATFORMS.into_iter().chain([LOCAL_NAT64]) {
            assert!(network.parse::<IpNet>().is_ok(), "{network}");
        }
    }

    #[test]
    fn trust_4_address_of_a_nat64_counts_as_its_ipv4_address() {
        let named: Networks = "10.0.0.0/8,64:ff9b::/96".parse().unwrap();
        for (address, by_default, by_name) in [
            ("64:ff9b::169.254.169.254", false, false),
            ("64:ff9b::127.0.0.1", false, false),
            ("64:ff9b::100.100.100.200", false, false),
            ("64:ff9b::", false, false),
            ("64:ff9b::10.1.2.3", true, true),
            ("64:ff9b::192.0.2.1", true, false),
            ("64:ff9b:1::169.254.169.254", false, false),
            ("64:ff9b:2::169.254.169.254", true, false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(Networks::default().allows(address), by_default, "{address}");
            assert_eq!(named.allows(address), by_name, "{address}");
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
