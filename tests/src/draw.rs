//! Draws a boot from pxed without a machine: one DHCP DISCOVER as iPXE sends it, answered with the URL of the boot's script.
//!
//! For what wants a boot id and no firmware: HTTP load, enrolment.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::socket::{setsockopt, sockopt};

use crate::netns::Namespace;
use crate::rack::{BRIDGE, Rack};
use crate::wait;

/// Puts `client` on the rack's bridge by a device of the name `cable`, as `eth0` there, and draws a boot of machine 1.
///
/// # Errors
/// What [`draw_again`] says.
pub fn draw_boot(rack: &Rack, client: &Namespace, cable: &str, transaction: u8) -> Result<String> {
    rack.network().add_veth(cable, client, "eth0")?;
    rack.network().ip(&format!("link set {cable} master {BRIDGE}"))?;
    draw_again(client, transaction)
}

/// The base URL of a boot of machine 1, `http://10.7.0.1:8067/b/<id>`. Another transaction is another boot.
///
/// # Errors
/// No offer from pxed within 20 s, or one without a script.
pub fn draw_again(client: &Namespace, transaction: u8) -> Result<String> {
    let answer = client.inside(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 68))?;
        socket.set_broadcast(true)?;
        setsockopt(&socket, sockopt::BindToDevice, &"eth0".into())?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        let mut buffer = [0; 1500];
        wait::until("an offer from pxed", Duration::from_secs(20), || {
            socket.send_to(&discover(transaction), (Ipv4Addr::BROADCAST, 67))?;
            Ok(socket.recv(&mut buffer).ok().map(|length| buffer.get(..length).unwrap_or_default().to_vec()))
        })
    })?;
    let text: String = answer.iter().map(|byte| char::from(*byte)).collect();
    let start = text.find("http://").context("the offer has no URL")?;
    let url: String =
        text.get(start..).unwrap_or_default().chars().take_while(char::is_ascii_graphic).collect();
    let (base, _) = url.rsplit_once("/script.ipxe").with_context(|| format!("{url} is no script"))?;
    Ok(base.to_owned())
}

/// A DISCOVER as iPXE sends it, its answer wanted by broadcast.
fn discover(transaction: u8) -> Vec<u8> {
    let mac = Rack::mac(1).octets();
    let mut packet = vec![1, 1, 6, 0, 0xbe, 0xdc, 0, transaction, 0, 0, 0x80, 0];
    packet.resize(28, 0);
    packet.extend(mac);
    packet.resize(236, 0);
    packet.extend([0x63, 0x82, 0x53, 0x63]);
    packet.extend([53, 1, 1, 93, 2, 0, 0, 94, 3, 1, 2, 1, 55, 5, 1, 3, 6, 66, 67]);
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
