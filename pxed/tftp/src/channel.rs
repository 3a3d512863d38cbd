//! The socket of one transfer: its port is the server's transfer identifier. Sends windows, receives what the client says.
//!
//! A window of equal blocks leaves in one system call, cut into packets by the kernel (UDP_SEGMENT), without being copied here.
//! Where a path does not take that, block by block. Decides nothing. Called by the worker.

use std::{
    io::{self, ErrorKind, IoSlice},
    net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
};

use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use crate::{
    negotiate::MAX_WINDOW,
    session::Session,
    wire::{BLOCK_SIZES, DATA_HEADER, DEFAULT_BLOCK_SIZE},
};

/// The kernel's limits of one segmented send: packets (UDP_MAX_SEGMENTS) and bytes (a UDP datagram's).
const MAX_SEGMENTS: usize = 64;
const MAX_SEND: usize = 65_507;

/// A transfer's socket.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: UdpSocket,
    peer: SockAddr,
    peer_address: SocketAddr,
    /// Blocks in one system call.
    batch: usize,
}

/// Packet at the transfer's port.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// A packet of the client, this long.
    Client(usize),
    /// Packet of another sender.
    Stranger(SocketAddr),
    Nothing,
}

impl Channel {
    /// A socket with a port of its own on the address that was asked.
    pub(crate) fn open(peer: SocketAddr, local: IpAddr) -> io::Result<Self> {
        let socket = bound(peer, local)?;
        Ok(Self { socket, peer: peer.into(), peer_address: peer, batch: 1 })
    }

    /// Enables segmentation of windows with this block size in the kernel; a kernel without it is not an error.
    pub(crate) fn segment(&mut self, block_size: u16, window: u16) {
        let packet = usize::from(block_size).saturating_add(DATA_HEADER);
        let batch = (MAX_SEND / packet).min(MAX_SEGMENTS).min(window.into());
        let segment = i32::from(block_size).saturating_add(4);
        if batch > 1 && setsockopt(&self.socket, sockopt::UdpGsoSegment, &segment).is_ok() {
            self.batch = batch;
        }
    }

    /// Sends blocks; returns the first that did not fit into the socket's buffer.
    pub(crate) fn send_blocks(
        &mut self,
        session: &Session,
        content: &[u8],
        first: u64,
        end: u64,
    ) -> Option<u64> {
        let mut next = first;
        while next < end {
            let after = end.min(next.saturating_add(self.batch as u64));
            match self.send_batch(session, content, next, after) {
                Ok(()) => next = after,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(next),
                Err(error) if error.raw_os_error() == Some(nix::libc::ENOBUFS) => return Some(next),
                Err(error) if self.batch > 1 => {
                    // EIO without checksum offload, EINVAL or EMSGSIZE when the path became narrower than the block.
                    tracing::debug!(peer = %self.peer_address, %error, "sending block by block");
                    self.batch = 1;
                    let _ = setsockopt(&self.socket, sockopt::UdpGsoSegment, &0);
                }
                Err(error) => {
                    // As if lost on the way: the timer sends it again, or gives the client up.
                    tracing::debug!(peer = %self.peer_address, %error, "block was not sent");
                    next = after;
                }
            }
        }
        None
    }

    fn send_batch(&self, session: &Session, content: &[u8], first: u64, end: u64) -> io::Result<()> {
        const MAX_BLOCKS: usize = MAX_WINDOW as usize;
        let mut headers = [[0; DATA_HEADER]; MAX_BLOCKS];
        for (header, block) in headers.iter_mut().zip(first..end) {
            *header = session.header(block);
        }
        let mut slices = [IoSlice::new(&[]); 2 * MAX_BLOCKS];
        let mut filled = 0;
        for ((pair, header), block) in slices.chunks_exact_mut(2).zip(&headers).zip(first..end) {
            let range = session.payload(block);
            let (Ok(begin), Ok(stop)) = (usize::try_from(range.start), usize::try_from(range.end)) else {
                return Err(ErrorKind::InvalidInput.into());
            };
            let payload = content.get(begin..stop).ok_or(ErrorKind::InvalidInput)?;
            if let [head, body] = pair {
                (*head, *body) = (IoSlice::new(header), IoSlice::new(payload));
                filled += 2;
            }
        }
        let slices = slices.get(..filled).unwrap_or_default();
        SockRef::from(&self.socket).send_to_vectored(slices, &self.peer).map(|_| ())
    }

    /// Sends a short packet to the client. It may get lost, as any packet may.
    pub(crate) fn send(&self, packet: &[u8]) {
        if let Err(error) = self.socket.send_to(packet, self.peer_address) {
            tracing::debug!(peer = %self.peer_address, %error, "packet was not sent");
        }
    }

    /// Sends a short packet to another sender, from the transfer's port.
    pub(crate) fn send_stranger(&self, packet: &[u8], stranger: SocketAddr) {
        let _ = self.socket.send_to(packet, stranger);
    }

    /// Returns the next packet, if any.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Heard> {
        match self.socket.recv_from(buffer) {
            Ok((length, from)) if same_peer(from, self.peer_address) => Ok(Heard::Client(length)),
            Ok((_, stranger)) => Ok(Heard::Stranger(stranger)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Heard::Nothing),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn same_peer(one: SocketAddr, other: SocketAddr) -> bool {
    one.ip() == other.ip() && one.port() == other.port()
}

fn bound(peer: SocketAddr, local: IpAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(peer), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    let local = match (local, peer) {
        // A link-local address means something on its link only: the client's.
        (IpAddr::V6(local), SocketAddr::V6(peer)) => SocketAddrV6::new(local, 0, 0, peer.scope_id()).into(),
        (local, _) => SocketAddr::new(local, 0),
    };
    socket.bind(&local.into())?;
    Ok(socket.into())
}

/// The largest block that reaches the client in one packet without fragments, as far as this host knows the path.
pub(crate) fn block_size_of_path(peer: SocketAddr, local: IpAddr) -> u16 {
    // IP header without options, UDP header, TFTP header.
    let (headers, mtu) = match peer {
        SocketAddr::V4(_) => (20 + 8 + 4, mtu_of_path(peer, local)),
        // The kernel's estimate is not to be had without unsafe code; every IPv6 path takes this (RFC 8200 section 5).
        SocketAddr::V6(_) => (40 + 8 + 4, Some(1280)),
    };
    let fits = mtu.and_then(|mtu| u16::try_from(mtu.saturating_sub(headers)).ok());
    // A path that is not known now gets the size that is valid without being asked for.
    fits.unwrap_or(if mtu.is_some() { u16::MAX } else { DEFAULT_BLOCK_SIZE })
        .clamp(*BLOCK_SIZES.start(), *BLOCK_SIZES.end())
}

/// The kernel tells the MTU of a connected socket only; the transfer's own must stay open to strangers, who get error 5.
fn mtu_of_path(peer: SocketAddr, local: IpAddr) -> Option<i32> {
    let socket = bound(peer, local).ok()?;
    socket.connect(peer).ok()?;
    getsockopt(&socket, sockopt::IpMtu).ok()
}

#[cfg(test)]
mod tests {
    use std::{
        net::Ipv4Addr,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::{negotiate::Agreed, session::Retry};

    const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn client() -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind((LOCALHOST, 0)).expect("loopback");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("time-out");
        let address = socket.local_addr().expect("bound");
        (socket, address)
    }

    #[test]
    fn window_arrives_as_packets_of_the_agreed_size() {
        let (client, address) = client();
        let content: Vec<u8> = (0..3100_u32).map(|number| number.to_le_bytes()[0]).collect();
        for window in [1, 4] {
            let agreed = Agreed { block_size: 1000, window, timeout: None, acknowledged: Vec::new() };
            let (session, _) = Session::start(&agreed, 3100, Retry::default(), Instant::now());
            let mut channel = Channel::open(address, LOCALHOST).expect("loopback");
            channel.segment(1000, window);
            assert_eq!(channel.send_blocks(&session, &content, 1, 5), None);
            let mut buffer = [0; 2000];
            for (block, chunk) in (1_u8..).zip(content.chunks(1000)) {
                let length = client.recv(&mut buffer).expect("a block");
                assert_eq!(buffer[..4], [0, 3, 0, block]);
                assert_eq!(&buffer[4..length], chunk);
            }
        }
    }

    #[test]
    fn stranger_is_distinguished_from_the_client() {
        let (client, address) = client();
        let (stranger, stranger_address) = self::client();
        let channel = Channel::open(address, LOCALHOST).expect("loopback");
        let port = channel.socket.local_addr().expect("bound");
        let mut buffer = [0; 64];
        assert_eq!(channel.receive(&mut buffer).expect("open"), Heard::Nothing);
        stranger.send_to(b"x", port).expect("loopback");
        assert_eq!(channel.receive(&mut buffer).expect("open"), Heard::Stranger(stranger_address));
        client.send_to(b"yes", port).expect("loopback");
        assert_eq!(channel.receive(&mut buffer).expect("open"), Heard::Client(3));
    }

    #[test]
    fn block_size_follows_the_mtu() {
        let (_client, address) = client();
        // Loopback's MTU is 65536.
        assert_eq!(block_size_of_path(address, LOCALHOST), 65464);
        let v6 = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 9));
        assert_eq!(block_size_of_path(v6, v6.ip()), 1228);
    }
}
