//! The sockets on the request port: a packet with the address that was asked, an answer from that very address.
//!
//! Owns no transfer and decides nothing. Called by the worker.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use nix::{
    errno::Errno,
    libc,
    sys::socket::{
        ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage, recvmsg,
        sendmsg, setsockopt, sockopt,
    },
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::wire::MAX_REQUEST;

/// Room for a request and its opcode, and one byte more to see that it is too long.
const REQUEST_BUFFER_BYTES: usize = MAX_REQUEST + 3;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Endpoint {
    socket: Socket,
    address: SocketAddr,
    buffer: [u8; REQUEST_BUFFER_BYTES],
}

/// A packet to the request port.
#[derive(Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) peer: SocketAddr,
    /// Our address that was asked; the scope of a link-local one is the peer's.
    pub(crate) local: IpAddr,
    pub(crate) packet: &'a [u8],
}

impl Endpoint {
    /// Binds `count` sockets to one address; the kernel spreads clients over them and keeps each client at its socket.
    pub(crate) fn bind_group(address: SocketAddr, count: usize) -> io::Result<Vec<Self>> {
        // SO_REUSEPORT would silently share the port with another server of ours: a first socket without it finds that out, and
        // finds the number where port 0 was asked for.
        let probe = open(address, false)?;
        let address = probe.local_addr()?.as_socket().unwrap_or(address);
        drop(probe);
        (0..count.max(1))
            .map(|_| Ok(Self { socket: open(address, true)?, address, buffer: [0; REQUEST_BUFFER_BYTES] }))
            .collect()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next packet; `None` when there is none, or when it came by broadcast or multicast, which is not answered
    /// (RFC 1123 4.2.3.5).
    pub(crate) fn receive(&mut self) -> io::Result<Option<Arrival<'_>>> {
        let mut control = nix::cmsg_space!(libc::in6_pktinfo, libc::in_pktinfo);
        let (length, peer, local) = {
            let mut slices = [IoSliceMut::new(&mut self.buffer)];
            let flags = MsgFlags::MSG_DONTWAIT;
            let received =
                recvmsg::<SockaddrStorage>(self.socket.as_raw_fd(), &mut slices, Some(&mut control), flags)?;
            let asked = received
                .cmsgs()
                .ok()
                .and_then(|mut messages| messages.find_map(|message| asked_address(&message)));
            (received.bytes, received.address.as_ref().and_then(socket_address), asked)
        };
        let Some(packet) = self.buffer.get(..length) else {
            return Ok(None);
        };
        let unspecified = self.address.ip().is_unspecified();
        let local = match local {
            Some(Asked::Ours(local)) => local,
            None if !unspecified => self.address.ip(),
            None | Some(Asked::Many) => return Ok(None),
        };
        Ok(peer.map(|peer| Arrival { peer, local, packet }))
    }

    /// Sends a short answer from the address that was asked. It may get lost, as any packet may.
    pub(crate) fn answer(&self, packet: &[u8], peer: SocketAddr, local: IpAddr) {
        let slices = [IoSlice::new(packet)];
        let (descriptor, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        let sent = match (peer, local) {
            (SocketAddr::V4(peer), IpAddr::V4(local)) => {
                let source = libc::in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: libc::in_addr { s_addr: local.to_bits().to_be() },
                    ipi_addr: libc::in_addr { s_addr: 0 },
                };
                let peer = SockaddrIn::from(peer);
                sendmsg(descriptor, &slices, &[ControlMessage::Ipv4PacketInfo(&source)], flags, Some(&peer))
            }
            (SocketAddr::V6(peer), IpAddr::V6(local)) => {
                let source = libc::in6_pktinfo {
                    ipi6_addr: libc::in6_addr { s6_addr: local.octets() },
                    ipi6_ifindex: peer.scope_id(),
                };
                let peer = SockaddrIn6::from(peer);
                sendmsg(descriptor, &slices, &[ControlMessage::Ipv6PacketInfo(&source)], flags, Some(&peer))
            }
            (SocketAddr::V4(_), IpAddr::V6(_)) | (SocketAddr::V6(_), IpAddr::V4(_)) => {
                Err(Errno::EAFNOSUPPORT)
            }
        };
        if let Err(error) = sent {
            tracing::debug!(%peer, %error, "answer was not sent");
        }
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn open(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    } else {
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
    }
    if shared {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

enum Asked {
    Ours(IpAddr),
    /// Broadcast or multicast.
    Many,
}

fn asked_address(message: &ControlMessageOwned) -> Option<Asked> {
    match message {
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            let (asked, ours) = (info.ipi_addr.s_addr, info.ipi_spec_dst.s_addr);
            // For a broadcast the kernel names one of our addresses next to the one in the packet.
            let address = Ipv4Addr::from_bits(u32::from_be(asked));
            Some(if asked == ours { Asked::Ours(address.into()) } else { Asked::Many })
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => {
            let address = Ipv6Addr::from(info.ipi6_addr.s6_addr);
            Some(if address.is_multicast() { Asked::Many } else { Asked::Ours(address.into()) })
        }
        _ => None,
    }
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddrV4::from(*v4).into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddrV6::from(*v6).into()))
}
