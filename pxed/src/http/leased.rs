//! Check before a boot's script and seed are sent: only an address that pxed leased to the boot's Machine gets them.
//!
//! The boot ID identifies a boot; an address does not. The check applies only where pxed itself leases the Machine's addresses: in mode
//! `server`, unless the subnets have no pool and the Machine has no fixed address. A fixed address counts without a lease, for no other
//! client is given it. A boot that lost its lease file has to ask by DHCP again, which its script does by itself.
//! Called by `route`; the leases are the DHCP engine's.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bedplate_api::id::MacAddress;
use bedplate_api::reason::refusal::BootRefusal;
use hyper::Response;
use ipnet::Ipv4Net;
use jiff::Timestamp;

use super::body::Payload;
use super::counters::SeedAnswer;
use super::path::What;
use super::route::{Peer, Routes, refuse};
use crate::boot::record::{Owner, Record};
use crate::machines::Interface;
use bedplate_process::counter::one;

/// Returns the addresses that pxed has leased to an interface, at most one in each subnet. `None`: no subnet has a pool to lease from.
type LeasesOf = dyn Fn(MacAddress) -> Option<Vec<Ipv4Addr>> + Send + Sync;

/// Leases, once the DHCP engine can be asked; clones share them. Without an engine the check does not apply.
#[derive(Clone, Default)]
pub struct Leases {
    source: Arc<OnceLock<Box<LeasesOf>>>,
    /// Number of refused requests.
    pub refused: Arc<AtomicU64>,
}

impl std::fmt::Debug for Leases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("leases")
    }
}

impl Leases {
    /// Sets the source of leases. Later calls change nothing.
    pub fn ask(&self, source: Box<LeasesOf>) {
        let _ = self.source.set(source);
    }
}

/// Returns true if `peer` must not fetch a boot that the interface `opened_by` of a Machine with these interfaces opened.
fn is_barred(peer: IpAddr, opened_by: MacAddress, interfaces: &[Interface], leases_of: &LeasesOf) -> bool {
    // Loader and kernel may use different cards of one machine.
    let cards = interfaces.iter().map(|interface| interface.mac).chain([opened_by]);
    let leases: Vec<_> = cards.filter_map(leases_of).collect();
    let mut fixed =
        interfaces.iter().flat_map(|interface| &interface.addresses).map(Ipv4Net::addr).peekable();
    let is_given_none = leases.is_empty() && fixed.peek().is_none();
    !is_given_none && !fixed.chain(leases.into_iter().flatten()).any(|address| IpAddr::V4(address) == peer)
}

/// Returns the refusal of a request for script or seed from an address of another machine.
pub(super) fn bar(
    routes: &Routes,
    record: &Record,
    what: &What<'_>,
    peer: &Peer,
) -> Option<Response<Payload>> {
    let Owner::Machine { name, .. } = &record.opening.owner else { return None };
    let leases = &routes.leases;
    let source = leases.source.get().filter(|_| matches!(what, What::Script | What::Seed))?;
    let machines = routes.machines.load();
    let interfaces = machines.by_name(name).map_or(&[][..], |known| known.interfaces.as_slice());
    if !is_barred(peer.address, record.opening.mac, interfaces, &**source) {
        return None;
    }
    one(&leases.refused);
    if matches!(what, What::Seed) {
        routes.counters.seeds.one(SeedAnswer::WrongAddress);
        if record.seed_taken {
            routes.boots.seed_asked_again(record, peer.address, Timestamp::now());
        }
    }
    let admitted = routes.boots.log_pace().admit(
        BootRefusal::AddressNotLeased.as_str(),
        Some(name.as_str()),
        Instant::now(),
    );
    if let Some(omitted) = admitted {
        let boot = record.id.public_id();
        tracing::warn!(machine = %name, %boot, peer = %peer.address, omitted, "boot refused, address is not leased to its machine");
    }
    let message = "this boot is served only to the address that pxed leased to its machine; with address \
                   translation in between, set http.require-leased-address = false in pxed.toml";
    Some(refuse(BootRefusal::AddressNotLeased, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(last: u8) -> MacAddress {
        MacAddress::new([0x52, 0x54, 0, 0, 0, last])
    }

    /// Interface 1 has 10.7.0.1 and 10.8.0.1, interface 2 has 10.7.0.2, others have none.
    fn leases_of(mac: MacAddress) -> Option<Vec<Ipv4Addr>> {
        Some(match mac.octets()[5] {
            1 => vec![[10, 7, 0, 1].into(), [10, 8, 0, 1].into()],
            2 => vec![[10, 7, 0, 2].into()],
            _ => Vec::new(),
        })
    }

    fn interface(last: u8, addresses: &[&str]) -> Interface {
        Interface {
            mac: mac(last),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            only_ipv6: false,
            gateway: None,
            nameservers: Vec::new(),
            netboot: true,
        }
    }

    #[test]
    fn trust_6_a_boot_without_a_lease_gives_no_seed() {
        let is_barred = |peer: &str, addresses: &[&str], leases: &LeasesOf| -> bool {
            super::is_barred(peer.parse().unwrap(), mac(3), &[interface(3, addresses)], leases)
        };
        assert!(is_barred("192.0.2.9", &[], &leases_of), "a client that only sent a DHCPDISCOVER");
        assert!(
            !is_barred("10.7.0.30", &["10.7.0.30/24"], &leases_of),
            "its fixed address, whose lease is lost"
        );
        let gives_none: &LeasesOf = &|_| None;
        for leases in [&leases_of as &LeasesOf, gives_none] {
            assert!(is_barred("10.7.0.66", &["10.7.0.30/24"], leases));
        }
        assert!(!is_barred("192.0.2.9", &[], gives_none), "pxed gives it no address");
    }

    #[test]
    fn a_boot_is_for_every_address_leased_to_its_machine_and_no_other() {
        for (peer, opened_by, interfaces, barred) in [
            ("10.7.0.1", 1, &[1_u8, 2][..], false),
            ("10.8.0.1", 1, &[1, 2], false),
            ("10.7.0.2", 1, &[1, 2], false),
            ("10.7.0.2", 1, &[1], true),
            ("10.7.0.66", 1, &[1, 2], true),
            ("192.0.2.9", 1, &[1, 2], true),
            ("fd00::1", 1, &[1, 2], true),
            ("10.7.0.1", 3, &[1, 3], false),
            ("192.0.2.9", 3, &[1, 3], true),
            ("10.7.0.1", 1, &[], false),
        ] {
            let cards: Vec<_> = interfaces.iter().map(|last| interface(*last, &[])).collect();
            let found = is_barred(peer.parse().unwrap(), mac(opened_by), &cards, &leases_of);
            assert_eq!(found, barred, "{peer} for a boot of {opened_by} among {interfaces:?}");
        }
    }
}
