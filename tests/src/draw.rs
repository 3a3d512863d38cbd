//! Draws boots from pxed without machines: DHCP as iPXE speaks it, answered with the URL of the boot's script.
//!
//! For what wants boot ids and no firmware: HTTP load, enrollment, reloads.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bedplate_api::id::MacAddress;
use nix::sys::socket::{setsockopt, sockopt};

use crate::netns::Namespace;
use crate::rack::{BRIDGE, Rack};
use crate::wait;

/// DHCPDISCOVER (RFC 2132, 9.6).
pub const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
/// DHCPREQUEST.
pub const REQUEST: u8 = 3;
const ACK: u8 = 5;
/// DHCPINFORM.
pub const INFORM: u8 = 8;

/// Result of a complete DHCP exchange.
#[derive(Debug, Clone)]
pub struct Lease {
    /// The base URL of the boot, `http://10.7.0.1:8067/b/<id>`.
    pub base: String,
    /// The address leased.
    pub address: Ipv4Addr,
    /// For how long, in seconds.
    pub seconds: u32,
}

/// Puts `client` on the rack's bridge by a device of the name `cable`, as `eth0` there, and draws a boot of machine 1.
///
/// # Errors
/// What [`draw_again`] says.
pub fn draw_boot(rack: &Rack, client: &Namespace, cable: &str, transaction: u16) -> Result<String> {
    connect(rack, client, cable)?;
    draw_again(client, transaction)
}

/// Puts `client` on the rack's bridge by a device of the name `cable`, as `eth0` there.
///
/// # Errors
/// What `ip` says.
pub fn connect(rack: &Rack, client: &Namespace, cable: &str) -> Result<()> {
    rack.network().add_veth(cable, client, "eth0")?;
    rack.network().ip(&format!("link set {cable} master {BRIDGE}")).map(drop)
}

/// The base URL of a boot of machine 1 from an offer alone. Another transaction is another boot.
///
/// # Errors
/// No offer from pxed within 20 s, or one without a script.
pub fn draw_again(client: &Namespace, transaction: u16) -> Result<String> {
    let socket = socket(client)?;
    base_url(&exchange(&socket, Rack::mac(1), transaction, DISCOVER, &[])?)
}

/// A lease of the machine with this address of its card, as firmware gets it: discover, offer, request, acknowledgement.
///
/// # Errors
/// No answer from pxed within 20 s, or one without a script.
pub fn lease(client: &Namespace, mac: MacAddress, transaction: u16) -> Result<Lease> {
    let socket = socket(client)?;
    let offer = exchange(&socket, mac, transaction, DISCOVER, &[])?;
    let server = option(&offer, 54).context("an offer without its server")?;
    let address = offer.get(16..20).context("a short offer")?;
    let more = [&[54, 4], server, &[50, 4], address].concat();
    let ack = exchange(&socket, mac, transaction, REQUEST, &more)?;
    let octets = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).context("not four octets");
    Ok(Lease {
        base: base_url(&ack)?,
        address: octets(ack.get(16..20).unwrap_or_default())?.into(),
        seconds: u32::from_be_bytes(octets(option(&ack, 51).unwrap_or_default())?),
    })
}

fn socket(client: &Namespace) -> Result<UdpSocket> {
    client.inside(|| {
        // A child of another test may hold the socket of before, between its fork and its exec.
        let socket = wait::until("port 68", Duration::from_secs(5), || {
            match UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 68)) {
                Ok(socket) => Ok(Some(socket)),
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Ok(None),
                Err(error) => Err(error.into()),
            }
        })?;
        socket.set_broadcast(true)?;
        setsockopt(&socket, sockopt::BindToDevice, &"eth0".into())?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        Ok(socket)
    })
}

/// Says it until the answer to it comes.
fn exchange(socket: &UdpSocket, mac: MacAddress, transaction: u16, kind: u8, more: &[u8]) -> Result<Vec<u8>> {
    let packet = message(mac, transaction, kind, more);
    let wanted = if kind == DISCOVER { OFFER } else { ACK };
    let mut buffer = [0; 1500];
    wait::until("an answer from pxed", Duration::from_secs(20), || {
        socket.send_to(&packet, (Ipv4Addr::BROADCAST, 67))?;
        while let Ok(length) = socket.recv(&mut buffer) {
            let answer = buffer.get(..length).unwrap_or_default();
            // Other machines' answers are broadcast too.
            let own = answer.first() == Some(&2)
                && answer.get(4..8) == packet.get(4..8)
                && answer.get(28..34) == packet.get(28..34);
            if own && option(answer, 53) == Some(&[wanted]) {
                return Ok(Some(answer.to_vec()));
            }
        }
        Ok(None)
    })
}

/// The content of an option, not looked for in overloaded fields.
fn option(packet: &[u8], wanted: u8) -> Option<&[u8]> {
    let mut rest = packet.get(240..)?;
    while let [code, after @ ..] = rest {
        if *code == 0 {
            rest = after;
            continue;
        }
        let (length, after) = after.split_first()?;
        let (content, after) = after.split_at_checked(usize::from(*length))?;
        if *code == wanted {
            return Some(content);
        }
        rest = after;
    }
    None
}

/// The base URL of a boot, `http://10.7.0.1:8067/b/<id>`, out of an answer.
///
/// # Errors
/// It names no script.
pub fn base_url(answer: &[u8]) -> Result<String> {
    let text: String = answer.iter().map(|byte| char::from(*byte)).collect();
    let start = text.find("http://").context("the answer has no URL")?;
    let url: String =
        text.get(start..).unwrap_or_default().chars().take_while(char::is_ascii_graphic).collect();
    let (base, _) = url.rsplit_once("/script.ipxe").with_context(|| format!("{url} is not a script"))?;
    Ok(base.to_owned())
}

/// A DISCOVER as iPXE sends it, its answer wanted by broadcast.
pub fn discover(mac: MacAddress, transaction: u16) -> Vec<u8> {
    message(mac, transaction, DISCOVER, &[])
}

/// Makes a message as iPXE sends it, which asks for a broadcast answer. `more` are further options.
pub fn message(mac: MacAddress, transaction: u16, kind: u8, more: &[u8]) -> Vec<u8> {
    let [high, low] = transaction.to_be_bytes();
    let mut packet = vec![1, 1, 6, 0, 0xbe, 0xdc, high, low, 0, 0, 0x80, 0];
    packet.resize(28, 0);
    packet.extend(mac.octets());
    packet.resize(236, 0);
    packet.extend([0x63, 0x82, 0x53, 0x63]);
    packet.extend([53, 1, kind]);
    packet.extend(more);
    packet.extend([93, 2, 0, 0, 94, 3, 1, 2, 1, 55, 6, 1, 3, 6, 51, 66, 67]);
    packet.extend([77, 4]);
    packet.extend(b"iPXE");
    packet.extend([60, 32]);
    packet.extend(b"PXEClient:Arch:00000:UNDI:002001");
    packet.extend([97, 17]);
    packet.resize(packet.len() + 17, 0);
    packet.push(255);
    packet.resize(packet.len().max(300), 0);
    packet
}
