//! proxyDHCP and the PXE boot server (PXE 2.1, 2.2.3 and 2.3): boot information next to another server's address.
//!
//! Pure.

use super::link::can_be_sent_to;
use super::{Asked, Decision, Heard, Silence};
use crate::client::{BootAnswer, Loader};
use crate::settings::Mode;
use crate::wire::MessageType;

/// Decides the answer on port 67 in proxy mode, to loaders that need boot information. Their DHCPREQUEST goes to the
/// server that assigns the address.
pub(super) fn proxy(asked: &Asked<'_>) -> Result<Decision, Silence> {
    match asked.request.message {
        MessageType::Discover => Ok(Decision::Proxy(MessageType::Offer, boot(asked)?)),
        MessageType::Inform => match asked.request.client_address {
            Some(address) if !can_be_sent_to(asked.settings, asked.arrival, address) => {
                Err(Silence::NoSubnet)
            }
            Some(_) | None => Ok(Decision::Proxy(MessageType::Ack, boot(asked)?)),
        },
        MessageType::Request
        | MessageType::Decline
        | MessageType::Release
        | MessageType::Offer
        | MessageType::Ack
        | MessageType::Nak => Err(Silence::NotOurs),
    }
}

/// Answers on port 4011: a loader that has its address asks for its file, by DHCPREQUEST or DHCPINFORM. It must have sent a
/// DHCPDISCOVER, and now send from an address of the same network. Any other sender only knows its MAC address.
pub(super) fn boot_server(asked: &Asked<'_>) -> Result<Decision, Silence> {
    let source = *asked.arrival.peer.ip();
    let is_there = match asked.arrival.discovered.filter(|_| asked.settings.mode == Mode::Proxy) {
        Some(Heard::Link) => asked.arrival.is_neighbor(source),
        Some(Heard::Behind(network)) => network.contains(&source),
        None => false,
    };
    if !is_there {
        return Err(Silence::NotDiscovered);
    }
    match asked.request.message {
        MessageType::Request | MessageType::Inform => Ok(Decision::Proxy(MessageType::Ack, boot(asked)?)),
        MessageType::Discover
        | MessageType::Decline
        | MessageType::Release
        | MessageType::Offer
        | MessageType::Ack
        | MessageType::Nak => Err(Silence::NotOurs),
    }
}

fn boot(asked: &Asked<'_>) -> Result<BootAnswer, Silence> {
    match asked.request.loader {
        Loader::None => Err(Silence::NotALoader),
        Loader::Pxe | Loader::Http | Loader::Ipxe => asked.boot().ok_or(Silence::NoBoot),
    }
}
