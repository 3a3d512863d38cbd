//! One interface's sockets: UDP for what arrives and for what is routed, a packet socket for clients without address.
//!
//! Does not look into messages. Called by `interface` (receive, send) and `commit` (send).

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;

use bedplate_api::id::MacAddress;
use ipnet::Ipv4Net;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use super::system::{self, MAX_MESSAGES, Outgoing};
use super::{Outlet, frame};
use crate::respond::{Destination, Packet};
use crate::settings::{Mode, Ports, Settings};

/// Bursts of whole racks wait here while a batch is answered.
const RECEIVE_BUFFER: usize = 8 << 20;
/// The kernel keeps 208 KiB for each address that does not answer ARP: a dead relay must not leave the others without room.
const SEND_BUFFER: usize = 4 << 20;
const BROADCAST_MAC: [u8; 6] = [0xff; 6];

/// Error of opening an interface.
#[derive(Debug, Error)]
pub enum OpenInterfaceError {
    /// The system's list of interfaces cannot be read.
    #[error("cannot list the interfaces")]
    List(#[source] io::Error),
    /// No interface of this name.
    #[error("there is no interface {0}")]
    Missing(String),
    /// Without an address clients could not reach us.
    #[error("interface {0} has no IPv4 address")]
    NoAddress(String),
    /// Something other than Ethernet.
    #[error("interface {0} has no Ethernet address")]
    NotEthernet(String),
    /// UDP socket: another server on that port, or missing rights.
    #[error("cannot listen on UDP port {port} of interface {interface}")]
    Listen {
        /// The interface.
        interface: String,
        /// The port.
        port: u16,
        /// Error of the system.
        source: io::Error,
    },
    /// Packet socket: mostly missing rights (CAP_NET_RAW).
    #[error("cannot open a packet socket on interface {interface}")]
    Packet {
        /// The interface.
        interface: String,
        /// Error of the system.
        source: io::Error,
    },
}

impl OpenInterfaceError {
    /// Returns true if waiting may help: the interface is missing or has no address yet.
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Missing(_) | Self::NoAddress(_) => true,
            Self::List(_) | Self::NotEthernet(_) | Self::Listen { .. } | Self::Packet { .. } => false,
        }
    }
}

/// Interface as the system describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    index: u32,
    mac: MacAddress,
    addresses: Vec<Ipv4Net>,
}

impl Link {
    pub(super) fn observe(name: &str) -> Result<Self, OpenInterfaceError> {
        let list = nix::ifaddrs::getifaddrs().map_err(|e| OpenInterfaceError::List(e.into()))?;
        let mut index = None;
        let mut mac = None;
        let mut addresses = Vec::new();
        for entry in list.filter(|entry| entry.interface_name == name) {
            let Some(address) = entry.address else { continue };
            if let Some(link) = address.as_link_addr() {
                index = u32::try_from(link.ifindex()).ok();
                mac = link.addr().map(MacAddress::new);
            }
            if let Some(v4) = address.as_sockaddr_in() {
                let mask = entry
                    .netmask
                    .as_ref()
                    .and_then(|m| m.as_sockaddr_in().map(nix::sys::socket::SockaddrIn::ip));
                let mask = mask.unwrap_or(Ipv4Addr::BROADCAST);
                addresses.extend(Ipv4Net::with_netmask(v4.ip(), mask));
            }
        }
        let index = index.ok_or_else(|| OpenInterfaceError::Missing(name.into()))?;
        let mac = mac.ok_or_else(|| OpenInterfaceError::NotEthernet(name.into()))?;
        if addresses.is_empty() {
            return Err(OpenInterfaceError::NoAddress(name.into()));
        }
        Ok(Self { index, mac, addresses })
    }
}

/// An interface's open sockets.
#[derive(Debug)]
pub(crate) struct Sockets {
    name: String,
    link: Mutex<Link>,
    ports: Ports,
    server: Socket,
    /// In proxy mode only: with an address of ours a client has its boot file already.
    boot_server: Option<Socket>,
    packet: Socket,
}

impl Sockets {
    pub(crate) fn open(name: &str, settings: &Settings) -> Result<Self, OpenInterfaceError> {
        let link = Link::observe(name)?;
        let ports = settings.ports;
        let shared = settings.mode == Mode::Proxy;
        let listen = |port| {
            udp_socket(name, port, shared).map_err(|source| OpenInterfaceError::Listen {
                interface: name.into(),
                port,
                source,
            })
        };
        let packet = packet_socket(link.index)
            .map_err(|source| OpenInterfaceError::Packet { interface: name.into(), source })?;
        Ok(Self {
            name: name.into(),
            ports,
            server: listen(ports.server)?,
            boot_server: shared.then(|| listen(ports.proxy)).transpose()?,
            packet,
            link: Mutex::new(link),
        })
    }

    pub(super) fn server(&self) -> BorrowedFd<'_> {
        self.server.as_fd()
    }

    pub(super) fn boot_server(&self) -> Option<BorrowedFd<'_>> {
        self.boot_server.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn addresses(&self) -> Vec<Ipv4Net> {
        self.link().addresses.clone()
    }

    /// Looks at the interface again. `false` when these sockets do not belong to it any more.
    pub(super) fn refresh(&self, settings: &Settings) -> Result<bool, OpenInterfaceError> {
        let observed = Link::observe(&self.name)?;
        let mut link = self.link();
        let same_mode = self.boot_server.is_some() == (settings.mode == Mode::Proxy);
        let same = observed.index == link.index && self.ports == settings.ports && same_mode;
        if *link != observed {
            *link = observed;
        }
        Ok(same)
    }

    fn link(&self) -> std::sync::MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn send_chunk(
        &self,
        group: Way,
        packets: &[&Packet],
        messages: &[Outgoing<'_>],
        done: &mut dyn FnMut(&Packet, io::Result<()>),
    ) {
        let socket = match group {
            Way::Link => self.packet.as_fd(),
            Way::Server => self.server.as_fd(),
            // Answers from this port are made for questions at this port.
            Way::BootServer => self.boot_server.as_ref().unwrap_or(&self.server).as_fd(),
        };
        let mut next = 0;
        while next < messages.len() {
            match system::send(socket, &messages[next..]) {
                // The kernel never accepts zero bytes without an error, but the loop must end in any case.
                Ok(0) => return,
                Ok(count) => {
                    packets[next..].iter().take(count).for_each(|packet| done(packet, Ok(())));
                    next += count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    done(packets[next], Err(error));
                    next += 1;
                }
            }
        }
    }

    fn header(&self, packet: &Packet, from_mac: [u8; 6]) -> Option<[u8; frame::HEADER_OCTETS]> {
        let (to_mac, to) = match packet.to {
            Destination::Broadcast => (BROADCAST_MAC, Ipv4Addr::BROADCAST),
            Destination::Hardware(address) => (packet.mac.octets(), address),
            Destination::Routed(_) | Destination::BootServer(_) => return None,
        };
        let addresses = frame::Addresses {
            from_mac,
            to_mac,
            from: packet.source,
            to,
            from_port: self.ports.server,
            to_port: self.ports.client,
        };
        Some(frame::header(&addresses, &packet.payload))
    }
}

impl Outlet for Sockets {
    fn send(&self, packets: &[&Packet], done: &mut dyn FnMut(&Packet, io::Result<()>)) {
        let from_mac = self.link().mac.octets();
        for group in [Way::Link, Way::Server, Way::BootServer] {
            let packets: Vec<&Packet> = packets.iter().copied().filter(|p| way(p) == group).collect();
            for chunk in packets.chunks(MAX_MESSAGES) {
                let headers: Vec<_> = chunk.iter().map(|packet| self.header(packet, from_mac)).collect();
                let messages: Vec<Outgoing<'_>> =
                    chunk.iter().zip(&headers).map(|(packet, header)| outgoing(packet, header)).collect();
                self.send_chunk(group, chunk, &messages, done);
            }
        }
    }
}

/// Socket by which a packet is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Link,
    Server,
    BootServer,
}

fn way(packet: &Packet) -> Way {
    match packet.to {
        Destination::Broadcast | Destination::Hardware(_) => Way::Link,
        Destination::Routed(_) => Way::Server,
        Destination::BootServer(_) => Way::BootServer,
    }
}

fn outgoing<'a>(packet: &'a Packet, header: &'a Option<[u8; frame::HEADER_OCTETS]>) -> Outgoing<'a> {
    let route = match packet.to {
        Destination::Routed(to) | Destination::BootServer(to) => Some((to, packet.source)),
        Destination::Broadcast | Destination::Hardware(_) => None,
    };
    Outgoing { header: header.as_ref().map_or(&[], |h| h.as_slice()), payload: &packet.payload, route }
}

/// `shared`: the port may be another DHCP server's as well (proxyDHCP on the same machine).
fn udp_socket(interface: &str, port: u16, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.cloexec(), Some(Protocol::UDP))?;
    socket.bind_device(Some(interface.as_bytes()))?;
    socket.set_broadcast(true)?;
    socket.set_reuse_address(shared)?;
    setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
    // Beyond net.core.rmem_max needs CAP_NET_ADMIN; without it the usual limit holds.
    if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    }
    if setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER).is_err() {
        socket.set_send_buffer_size(SEND_BUFFER)?;
    }
    socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port).into())?;
    Ok(socket)
}

fn packet_socket(index: u32) -> io::Result<Socket> {
    // Protocol 0: nothing is received.
    let socket = Socket::new(Domain::PACKET, Type::RAW.cloexec(), None)?;
    socket.bind(&system::link_address(index)?)?;
    Ok(socket)
}
