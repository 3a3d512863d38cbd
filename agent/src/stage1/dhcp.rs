//! Drives a `dhcp_session` over a UDP socket that is bound to one interface.
//!
//! The socket has no address yet: it sends from 0.0.0.0 and asks for broadcast answers. No lease file, no renewal: the
//! host's own DHCP client takes over. Called by the driver.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt};

use super::dhcp_session::{Act, Session};
use super::dhcp_wire::Lease;
use super::error::StageError;
use super::link::Interface;

/// Ports of server and client (RFC 2131, 4.1).
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::BROADCAST, 67);
const CLIENT_PORT: u16 = 68;

/// Gets a lease on `interface`. Returns the lease and its server. `random` returns any random number.
pub fn get_lease(
    interface: &Interface,
    random: &mut dyn FnMut() -> u64,
) -> Result<(Lease, Ipv4Addr), StageError> {
    let socket = open(interface).map_err(StageError::system("open a DHCP socket on", &interface.name))?;
    let [a, b, c, d, ..] = random().to_ne_bytes();
    let mut session = Session::new(u32::from_ne_bytes([a, b, c, d]), interface.mac);
    let start = Instant::now();
    let mut act = session.time_up(Duration::ZERO, random());
    let mut deadline = start;
    loop {
        match act {
            Act::Send { message, wait } => {
                deadline = Instant::now() + wait;
                // A failed send (queue full, link flapping) counts as a lost packet.
                let _ = socket.send_to(&message, SERVER);
            }
            Act::Wait => {}
            Act::Bound { lease, server } => return Ok((lease, server)),
            Act::Failed(reason) => {
                return Err(StageError::NoLease { interface: interface.name.clone(), reason });
            }
        }
        act = match receive(&socket, deadline) {
            Some(datagram) => session.received(&datagram, start.elapsed(), random()),
            None => session.time_up(start.elapsed(), random()),
        };
    }
}

/// The next datagram before `deadline`.
fn receive(socket: &UdpSocket, deadline: Instant) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 2048];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || socket.set_read_timeout(Some(left)).is_err() {
            return None;
        }
        match socket.recv(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Some(buffer);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            // An ICMP error of an earlier send; the wait continues, without a busy loop.
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn open(interface: &Interface) -> nix::Result<UdpSocket> {
    let socket: OwnedFd = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    setsockopt(&socket, sockopt::Broadcast, &true)?;
    setsockopt(&socket, sockopt::BindToDevice, &interface.name.clone().into())?;
    let address = SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, CLIENT_PORT));
    bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &address)?;
    Ok(UdpSocket::from(socket))
}
