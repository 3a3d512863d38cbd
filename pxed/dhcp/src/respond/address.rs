//! Choice of a client's address.
//!
//! Pure; changes the table only in that an address taken from a pool leaves the pool's queue (the caller offers it).

use std::net::Ipv4Addr;

use super::{Asked, Silence};
use crate::lease::{LeaseState, Table};
use crate::settings::Subnet;

/// Returns a Machine's fixed address in this subnet. An address of ours, on whichever interface, is not given to any Machine.
pub(super) fn fixed(asked: &Asked<'_>, subnet: &Subnet) -> Option<Ipv4Addr> {
    let addresses = asked.known?.addresses.iter().map(ipnet::Ipv4Net::addr);
    addresses.into_iter().find(|address| subnet.is_host(*address) && !asked.arrival.own.contains(address))
}

/// Returns true if the Machine has fixed addresses and none of them can be given in this subnet, from which it asks. A pool
/// address in their place would make the host run where no one expects it.
pub(super) fn is_misplaced(asked: &Asked<'_>, subnet: &Subnet) -> bool {
    asked.known.is_some_and(|known| !known.addresses.is_empty()) && fixed(asked, subnet).is_none()
}

/// Chooses the address to offer, in this order: the fixed one; the one the client has, was offered, or had last; the
/// one it asks for, if it is free; the one free for longest (RFC 2131, 4.3.1).
///
/// A fixed address that another client still holds is not assigned twice: until that lease ends (its renewal is
/// refused) the Machine gets a pool address if there is one.
pub(super) fn choose(asked: &Asked<'_>, subnet: &Subnet, table: &mut Table) -> Result<Ipv4Addr, Silence> {
    if is_misplaced(asked, subnet) {
        return Err(Silence::FixedOutside);
    }
    if let Some(address) = fixed(asked, subnet)
        && table.is_open_to(address, &asked.holder)
    {
        return Ok(address);
    }
    let had = table.of(&asked.holder).map(|lease| lease.address);
    let reusable = |address: &Ipv4Addr| {
        pool_allows(asked, subnet, *address) && table.is_open_to(*address, &asked.holder)
    };
    if let Some(address) = had.filter(reusable).or_else(|| asked.request.requested.filter(reusable)) {
        return Ok(address);
    }
    let allowed = |address| pool_allows(asked, subnet, address);
    let address = match asked.known {
        Some(_) => table.allocate(subnet.network, allowed),
        None => table.allocate_unreserved(subnet.network, allowed),
    };
    address.ok_or(Silence::PoolExhausted)
}

/// Returns true if the pool may assign this address to this client: it is not a fixed address, not ours, not a
/// router's, and not reserved for Machines unless a Machine asks.
fn pool_allows(asked: &Asked<'_>, subnet: &Subnet, address: Ipv4Addr) -> bool {
    subnet.pool_contains(address)
        && (asked.known.is_some() || !subnet.is_reserved(address))
        && !asked.arrival.own.contains(&address)
        && !subnet.routers.contains(&address)
        && asked.request.relay != Some(address)
        && asked.clients.owner(address).is_none_or(|mac| asked.known.is_some() && mac == asked.request.mac)
}

/// Returns true if the client may get or keep this address: the fixed one, or one of the pool if the fixed one is not
/// available.
pub(super) fn may_have(asked: &Asked<'_>, subnet: &Subnet, table: &Table, address: Ipv4Addr) -> bool {
    if !table.is_open_to(address, &asked.holder) {
        return false;
    }
    match fixed(asked, subnet) {
        Some(fixed) if fixed == address => true,
        Some(fixed) if table.is_open_to(fixed, &asked.holder) => false,
        Some(_) | None => pool_allows(asked, subnet, address),
    }
}

/// Returns true if the client has a current or lapsed lease on this address.
pub(super) fn has_record(asked: &Asked<'_>, table: &Table, address: Ipv4Addr) -> bool {
    table
        .get(address)
        .is_some_and(|lease| lease.holder == asked.holder && lease.state != LeaseState::Declined)
}
