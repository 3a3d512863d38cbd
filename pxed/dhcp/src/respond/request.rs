//! DHCPREQUEST in its four states, DHCPDECLINE, DHCPRELEASE and DHCPINFORM (RFC 2131, 4.3.2 to 4.3.5).
//!
//! Pure.

use std::net::Ipv4Addr;

use super::address::{fixed, has_record, is_misplaced, may_have};
use super::origin::Origin;
use super::{Asked, Decision, Silence};
use crate::lease::{DECLINED_FIXED_SECONDS, DECLINED_SECONDS, Table};
use crate::settings::{MIN_LEASE_SECONDS, Subnet};
use crate::wire::Malformed;

type Decided = Result<Result<Decision, Silence>, Malformed>;

/// Tells the four states apart by options 50, 54 and `ciaddr` (RFC 2131, table 4).
pub(super) fn request(asked: &Asked<'_>, subnet: &Subnet, table: &mut Table) -> Decided {
    let request = asked.request;
    match (request.server_id, request.requested, request.client_address) {
        (Some(server), requested, client_address) => {
            if !asked.arrival.is_us(server, request) {
                table.withdraw(&asked.holder, asked.now);
                return Ok(Err(Silence::OtherServer));
            }
            let address = requested.or(client_address).ok_or(Malformed::NoState)?;
            Ok(selecting(asked, subnet, table, address))
        }
        (None, Some(address), None) => Ok(init_reboot(asked, subnet, table, address)),
        (None, _, Some(address)) => Ok(renewing(asked, subnet, table, address)),
        (None, None, None) => Err(Malformed::NoState),
    }
}

/// The client took our offer, or asks us by name for something else. What it may not have we refuse (RFC 2131, 3.1.4) as far
/// as that is ours to do.
fn selecting(
    asked: &Asked<'_>,
    subnet: &Subnet,
    table: &mut Table,
    address: Ipv4Addr,
) -> Result<Decision, Silence> {
    if is_misplaced(asked, subnet) {
        return Err(Silence::FixedOutside);
    }
    if may_have(asked, subnet, table, address) {
        Ok(bind(asked, subnet, table, address))
    } else {
        refuse(asked, address)
    }
}

/// The client remembers an address from before. Without a record of it we stay silent: it may be another server's
/// (RFC 2131, 4.3.2), unless it cannot be right here.
fn init_reboot(
    asked: &Asked<'_>,
    subnet: &Subnet,
    table: &mut Table,
    address: Ipv4Addr,
) -> Result<Decision, Silence> {
    if is_misplaced(asked, subnet) {
        return Err(Silence::FixedOutside);
    }
    let is_fixed = fixed(asked, subnet) == Some(address);
    if (is_fixed || has_record(asked, table, address)) && may_have(asked, subnet, table, address) {
        return Ok(bind(asked, subnet, table, address));
    }
    let knows_better = !subnet.is_host(address)
        || fixed(asked, subnet).is_some()
        || table.of(&asked.holder).is_some()
        || asked.clients.owner(address).is_some();
    if knows_better { refuse(asked, address) } else { Err(Silence::NoRecord) }
}

/// The client extends the lease it uses. A lease we lost is taken up again if the address is free in our pool: that
/// is safer than to let it run on unrecorded. By unicast only a lease on record is extended: the client will rebind by broadcast
/// or through its relay. Any other sender learns nothing, and cannot move a Machine's lease to another address.
fn renewing(
    asked: &Asked<'_>,
    subnet: &Subnet,
    table: &mut Table,
    address: Ipv4Addr,
) -> Result<Decision, Silence> {
    if asked.origin == Origin::Routed && !has_record(asked, table, address) {
        return Err(Silence::NoRecord);
    }
    if may_have(asked, subnet, table, address) {
        return Ok(bind(asked, subnet, table, address));
    }
    let ours = !subnet.is_host(address)
        || subnet.pool_contains(address)
        || fixed(asked, subnet).is_some()
        || asked.clients.owner(address).is_some()
        || table.get(address).is_some();
    if ours { refuse(asked, address) } else { Err(Silence::NoRecord) }
}

/// A wrong address is called wrong only by a server that knows all there is to know of its subnets.
fn refuse(asked: &Asked<'_>, address: Ipv4Addr) -> Result<Decision, Silence> {
    if asked.settings.authoritative { Ok(Decision::Nak(address)) } else { Err(Silence::NotAuthoritative) }
}

fn bind(asked: &Asked<'_>, subnet: &Subnet, table: &mut Table, address: Ipv4Addr) -> Decision {
    let changes = table.bind(
        address,
        asked.holder.clone(),
        asked.request.mac,
        asked.known.map(|known| known.machine.clone()),
        asked.now,
        lease_seconds(asked, subnet),
    );
    Decision::Ack(address, changes)
}

/// Returns the lease time that the client asks for, limited by the subnet.
pub(super) fn lease_seconds(asked: &Asked<'_>, subnet: &Subnet) -> u32 {
    let most = subnet.lease_seconds;
    asked.request.lease_seconds.map_or(most, |wanted| wanted.max(MIN_LEASE_SECONDS).min(most))
}

/// DHCPDECLINE. Clients broadcast it (RFC 2131, 4.4.4): one that was sent to our address alone may come from any network
/// and would take a bound lease from its client.
pub(super) fn decline(asked: &Asked<'_>, table: &mut Table) -> Decided {
    let Some(address) = asked.request.requested else { return Err(Malformed::NoState) };
    if let Some(server) = asked.request.server_id
        && !asked.arrival.is_us(server, asked.request)
    {
        return Ok(Err(Silence::OtherServer));
    }
    if asked.request.relay.is_none() && asked.arrival.is_unicast() {
        return Ok(Err(Silence::NotBroadcast));
    }
    let is_fixed = asked.known.is_some_and(|known| known.addresses.iter().any(|a| a.addr() == address));
    let seconds = if is_fixed { DECLINED_FIXED_SECONDS } else { DECLINED_SECONDS };
    let changes = table.decline(address, &asked.holder, asked.now, seconds);
    Ok(changes.map(|changes| Decision::Declined(address, changes)).ok_or(Silence::NotHeld))
}

/// DHCPRELEASE. Clients send it from the address that they release (RFC 2131, 4.4.4).
pub(super) fn release(asked: &Asked<'_>, table: &mut Table) -> Decided {
    let Some(address) = asked.request.client_address else { return Err(Malformed::NoState) };
    if let Some(server) = asked.request.server_id
        && !asked.arrival.is_us(server, asked.request)
    {
        return Ok(Err(Silence::OtherServer));
    }
    if asked.request.relay.is_none() && *asked.arrival.peer.ip() != address {
        return Ok(Err(Silence::ForeignSource));
    }
    let changes = table.release(address, &asked.holder, asked.now);
    Ok(changes.map(|changes| Decision::Released(address, changes)).ok_or(Silence::NotHeld))
}

/// DHCPINFORM: the client has its address; it needs one for the answer to go to. That must be a host's of ours (RFC 2131,
/// 4.3.5), or anybody could have our answers sent to any address.
pub(super) fn inform(asked: &Asked<'_>) -> Decided {
    let peer = Some(*asked.arrival.peer.ip()).filter(|address| !address.is_unspecified());
    let address = asked.request.client_address.or(peer).ok_or(Malformed::NoState)?;
    let is_ours = asked.arrival.own.contains(&address);
    let is_host = asked.settings.subnet_of(address).is_some_and(|subnet| subnet.is_host(address));
    Ok(if is_host && !is_ours { Ok(Decision::Inform) } else { Err(Silence::NoSubnet) })
}
