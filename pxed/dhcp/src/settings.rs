//! Settings of the server, as plain data. The owner reads them from a file.
//!
//! Pure: data and checks.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Role of the server: it assigns addresses, or gives boot information only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Addresses and boot information.
    Server,
    /// Boot information next to another DHCP server (PXE 2.1, proxyDHCP).
    Proxy,
}

/// Settings of the engine, without its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Server or proxyDHCP.
    pub mode: Mode,
    /// Names of the interfaces to serve. One that is not there yet is waited for.
    pub interfaces: Vec<String>,
    /// True if a client that asks for a wrong address of one of our subnets gets a DHCPNAK.
    pub authoritative: bool,
    /// The subnets, those behind relays included.
    pub subnets: Vec<Subnet>,
    /// UDP ports.
    pub ports: Ports,
}

/// One IP subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subnet {
    /// The addresses.
    pub network: Ipv4Net,
    /// The pool: addresses for clients that have no fixed one.
    pub ranges: Vec<AddressRange>,
    /// Number of pool addresses, counted from the end of the last range, that are reserved for known Machines:
    /// unknown machines cannot exhaust them.
    pub reserve: u64,
    /// Option 3.
    pub routers: Vec<Ipv4Addr>,
    /// Option 6.
    pub nameservers: Vec<Ipv4Addr>,
    /// Option 15.
    pub domain: Option<String>,
    /// Option 42.
    pub ntp_servers: Vec<Ipv4Addr>,
    /// Maximum lease time in seconds; a client may ask for less.
    pub lease_seconds: u32,
    /// Addresses of the relays that may pass on messages of this subnet's clients: each relay's `giaddr` and the address that
    /// it sends from. No other sender's `giaddr` counts.
    pub relays: Vec<Ipv4Net>,
}

/// UDP ports, other than the usual ones only in tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// Port of servers and relays.
    pub server: u16,
    /// Port of clients.
    pub client: u16,
    /// Port of PXE boot servers.
    pub proxy: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self { server: 67, client: 68, proxy: 4011 }
    }
}

/// Addresses from the first to the last, both included. Written `10.7.0.100-10.7.0.199`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressRange {
    first: Ipv4Addr,
    last: Ipv4Addr,
}

impl AddressRange {
    /// A range, unless its last address is before its first.
    pub fn new(first: Ipv4Addr, last: Ipv4Addr) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// The lowest address.
    pub const fn first(self) -> Ipv4Addr {
        self.first
    }

    /// The highest address.
    pub const fn last(self) -> Ipv4Addr {
        self.last
    }

    /// Returns true if the address is in the range.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        (self.first..=self.last).contains(&address)
    }

    /// Returns true if two ranges share an address.
    pub fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Returns the number of addresses.
    pub fn size(self) -> u64 {
        u64::from(u32::from(self.last)) - u64::from(u32::from(self.first)) + 1
    }
}

/// Error of parsing an address range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not an address range such as 10.7.0.100-10.7.0.199")]
pub struct ParseRangeError(String);

impl FromStr for AddressRange {
    type Err = ParseRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseRangeError(text.chars().take(80).collect());
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let parse = |part: &str| part.trim().parse().map_err(|_| error());
        Self::new(parse(first)?, parse(last)?).ok_or_else(error)
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl Serialize for AddressRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AddressRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A setting that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// There is nothing to listen on.
    #[error("no interface is named")]
    NoInterfaces,
    /// Longer than the kernel allows, or empty.
    #[error("{0:?} is not an interface name")]
    InterfaceName(String),
    /// Two subnets share addresses.
    #[error("subnets {0} and {1} overlap")]
    Overlap(Ipv4Net, Ipv4Net),
    /// A range reaches outside of its subnet, or takes in its network or broadcast address.
    #[error("range {range} is not within the host addresses of {network}")]
    RangeOutside {
        /// The subnet.
        network: Ipv4Net,
        /// The range.
        range: AddressRange,
    },
    /// Two ranges share addresses.
    #[error("ranges {0} and {1} overlap")]
    RangeOverlap(AddressRange, AddressRange),
    /// A router that the client could not reach.
    #[error("router {router} is not in {network}")]
    RouterOutside {
        /// The subnet.
        network: Ipv4Net,
        /// The router.
        router: Ipv4Addr,
    },
    /// Lease times below a minute make clients renew all the time.
    #[error("lease time of {network} is {seconds} s, the minimum is {MIN_LEASE_SECONDS} s")]
    LeaseTime {
        /// The subnet.
        network: Ipv4Net,
        /// The lease time.
        seconds: u32,
    },
    /// A network of relays that is too large for a list of relays.
    #[error("relays {relays} of {network} are more than {MAX_RELAYS} addresses")]
    RelaysTooMany {
        /// The subnet.
        network: Ipv4Net,
        /// The relays.
        relays: Ipv4Net,
    },
    /// A client that counts as a relay could forge any client of the subnet.
    #[error("relays {relays} of {network} contain addresses of range {range}")]
    RelayInRange {
        /// The subnet.
        network: Ipv4Net,
        /// The relays.
        relays: Ipv4Net,
        /// The range that clients get addresses from.
        range: AddressRange,
    },
}

/// The shortest lease that is given.
pub(crate) const MIN_LEASE_SECONDS: u32 = 60;

/// Maximum number of addresses of one entry in a list of relays: a network of relays, not of clients.
pub const MAX_RELAYS: u32 = 256;

/// Shortest prefix whose network has at most [`MAX_RELAYS`] addresses.
const MIN_RELAY_PREFIX: u8 = 24;

impl Settings {
    /// Returns all errors, in the order of the settings; empty if the settings are valid.
    pub fn errors(&self) -> Vec<SettingsError> {
        let mut found = Vec::new();
        if self.interfaces.is_empty() {
            found.push(SettingsError::NoInterfaces);
        }
        let bad_name = |name: &&String| name.is_empty() || name.len() > 15 || name.contains(['/', '\0', ' ']);
        found.extend(self.interfaces.iter().filter(bad_name).cloned().map(SettingsError::InterfaceName));
        for (index, subnet) in self.subnets.iter().enumerate() {
            for other in &self.subnets[..index] {
                if subnet.network.contains(&other.network) || other.network.contains(&subnet.network) {
                    found.push(SettingsError::Overlap(other.network, subnet.network));
                }
            }
            subnet.errors(&mut found);
            for &relays in &subnet.relays {
                let range = self.range_in(relays);
                let network = subnet.network;
                found.extend(range.map(|range| SettingsError::RelayInRange { network, relays, range }));
            }
        }
        found
    }

    /// Returns the first range, of any subnet, that shares an address with this network.
    fn range_in(&self, network: Ipv4Net) -> Option<AddressRange> {
        let all = AddressRange { first: network.network(), last: network.broadcast() };
        self.subnets.iter().flat_map(|subnet| &subnet.ranges).find(|range| range.overlaps(all)).copied()
    }

    /// The subnet that holds this address.
    pub(crate) fn subnet_of(&self, address: Ipv4Addr) -> Option<&Subnet> {
        self.subnets.iter().find(|subnet| subnet.network.contains(&address))
    }
}

impl Subnet {
    fn errors(&self, found: &mut Vec<SettingsError>) {
        let network = self.network;
        for (index, &range) in self.ranges.iter().enumerate() {
            if !self.is_host(range.first) || !self.is_host(range.last) {
                found.push(SettingsError::RangeOutside { network, range });
            }
            for &other in &self.ranges[..index] {
                if range.first <= other.last && other.first <= range.last {
                    found.push(SettingsError::RangeOverlap(other, range));
                }
            }
        }
        for &router in self.routers.iter().filter(|router| !network.contains(*router)) {
            found.push(SettingsError::RouterOutside { network, router });
        }
        for &relays in self.relays.iter().filter(|relays| is_too_large(**relays)) {
            found.push(SettingsError::RelaysTooMany { network, relays });
        }
        if self.lease_seconds < MIN_LEASE_SECONDS {
            found.push(SettingsError::LeaseTime { network, seconds: self.lease_seconds });
        }
    }

    /// Returns true if a host of this subnet can have the address: neither the network's nor the broadcast address.
    pub fn is_host(&self, address: Ipv4Addr) -> bool {
        is_host(self.network, address)
    }

    /// Returns true if a relay of this subnet has the address.
    pub fn has_relay(&self, address: Ipv4Addr) -> bool {
        self.relays.iter().any(|relays| relays.contains(&address))
    }

    /// Returns true if the address belongs to the pool.
    pub(crate) fn pool_contains(&self, address: Ipv4Addr) -> bool {
        self.ranges.iter().any(|range| range.contains(address))
    }

    /// Returns true if the address is one of the pool's last `reserve`.
    pub fn is_reserved(&self, address: Ipv4Addr) -> bool {
        let mut behind = 0_u64;
        for range in self.ranges.iter().rev() {
            if range.contains(address) {
                return behind + u64::from(u32::from(range.last)) - u64::from(u32::from(address))
                    < self.reserve;
            }
            behind += range.size();
        }
        false
    }
}

/// Returns true if a network has more than [`MAX_RELAYS`] addresses.
pub fn is_too_large(relays: Ipv4Net) -> bool {
    relays.prefix_len() < MIN_RELAY_PREFIX
}

/// Returns true if a host of this network can have the address (RFC 3021: both of a /31).
pub(crate) fn is_host(network: Ipv4Net, address: Ipv4Addr) -> bool {
    network.contains(&address)
        && (network.prefix_len() >= 31 || (address != network.network() && address != network.broadcast()))
}
