//! System calls that no safe wrapper offers in the required form: `recvmmsg` and `sendmmsg` with `IP_PKTINFO` per
//! message and their counts, and binding a packet socket to an interface.
//!
//! Only these calls; called by `socket`.
//!
//! Proof for the unsafe parts, which the comments refer to:
//! 1. `mmsghdr`, `msghdr`, `iovec`, `sockaddr_in`, `in_pktinfo` and `sockaddr_ll` are plain C data: all zeros is
//!    valid.
//! 2. Every pointer in a `msghdr` points into a buffer that this function owns or borrows, that is not moved or
//!    dropped before the call returns, and whose length is set with it. The kernel keeps no pointer after the call.
//! 3. Control buffers are aligned for `cmsghdr` (`repr(align(8))`) and have `CMSG_SPACE(in_pktinfo)` octets, so that
//!    `CMSG_FIRSTHDR` is null or points inside, and `CMSG_DATA` has space for an `in_pktinfo`.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::SockAddr;

/// Messages in one call.
pub(super) const MAX_MESSAGES: usize = 64;
/// Octets kept of a message: more than Ethernet carries, so that a longer one is known by its being cut.
const MESSAGE_BUFFER_OCTETS: usize = 2048;
const CONTROL_BUFFER_OCTETS: usize = 64;

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BUFFER_OCTETS]);

const _: () = {
    // SAFETY: computes a number.
    let space = unsafe { libc::CMSG_SPACE(PKTINFO_LENGTH) };
    assert!(space as usize <= CONTROL_BUFFER_OCTETS);
};

#[allow(clippy::cast_possible_truncation)]
const BATCH_LENGTH: u32 = MAX_MESSAGES as u32;
#[allow(clippy::cast_possible_truncation)]
const INET_FAMILY: u16 = libc::AF_INET as u16;
#[allow(clippy::cast_possible_truncation)]
const PACKET_FAMILY: u16 = libc::AF_PACKET as u16;
#[allow(clippy::cast_possible_truncation)]
const PKTINFO_LENGTH: u32 = size_of::<libc::in_pktinfo>() as u32;
#[allow(clippy::cast_possible_truncation)]
const NAME_LENGTH: u32 = size_of::<libc::sockaddr_in>() as u32;
#[allow(clippy::cast_possible_truncation)]
const LINK_LENGTH: u32 = size_of::<libc::sockaddr_ll>() as u32;

/// One message as it arrived.
#[derive(Debug, Clone, Copy)]
pub(super) struct Datagram<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) peer: SocketAddrV4,
    /// Destination address of the IP header.
    pub(super) destination: Ipv4Addr,
    /// Longer than what is kept.
    pub(super) is_cut: bool,
}

/// Room for one batch of messages.
pub(super) struct Inbox {
    buffers: Box<[[u8; MESSAGE_BUFFER_OCTETS]; MAX_MESSAGES]>,
    controls: Box<[Control; MAX_MESSAGES]>,
    names: Box<[libc::sockaddr_in; MAX_MESSAGES]>,
    lengths: [usize; MAX_MESSAGES],
    flags: [i32; MAX_MESSAGES],
    control_lengths: [usize; MAX_MESSAGES],
    received: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        // SAFETY: 1.
        let name: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        Self {
            buffers: Box::new([[0; MESSAGE_BUFFER_OCTETS]; MAX_MESSAGES]),
            controls: Box::new([Control([0; CONTROL_BUFFER_OCTETS]); MAX_MESSAGES]),
            names: Box::new([name; MAX_MESSAGES]),
            lengths: [0; MAX_MESSAGES],
            flags: [0; MAX_MESSAGES],
            control_lengths: [0; MAX_MESSAGES],
            received: 0,
        }
    }

    /// Takes what has arrived, without waiting. `WouldBlock` when there is nothing.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.received = 0;
        // SAFETY: 1.
        let mut headers: [libc::mmsghdr; MAX_MESSAGES] = unsafe { std::mem::zeroed() };
        // SAFETY: 1.
        let mut vectors: [libc::iovec; MAX_MESSAGES] = unsafe { std::mem::zeroed() };
        for index in 0..MAX_MESSAGES {
            vectors[index].iov_base = self.buffers[index].as_mut_ptr().cast();
            vectors[index].iov_len = MESSAGE_BUFFER_OCTETS;
            let header = &mut headers[index].msg_hdr;
            header.msg_iov = &raw mut vectors[index];
            header.msg_iovlen = 1;
            header.msg_name = (&raw mut self.names[index]).cast();
            header.msg_namelen = NAME_LENGTH;
            header.msg_control = self.controls[index].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BUFFER_OCTETS as _;
        }
        // SAFETY: 2. `headers` has MAX_MESSAGES entries.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH_LENGTH,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (index, header) in headers.iter().enumerate().take(count) {
            self.lengths[index] =
                usize::try_from(header.msg_len).unwrap_or(MESSAGE_BUFFER_OCTETS).min(MESSAGE_BUFFER_OCTETS);
            self.flags[index] = header.msg_hdr.msg_flags;
            self.control_lengths[index] = header.msg_hdr.msg_controllen;
        }
        self.received = count;
        Ok(count)
    }

    /// The messages of the last batch.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        (0..self.received).map(|index| {
            let name = &self.names[index];
            let peer = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Datagram {
                bytes: &self.buffers[index][..self.lengths[index]],
                peer: SocketAddrV4::new(peer, u16::from_be(name.sin_port)),
                destination: self.destination(index).unwrap_or(Ipv4Addr::BROADCAST),
                is_cut: self.flags[index] & libc::MSG_TRUNC != 0,
            }
        })
    }

    fn destination(&self, index: usize) -> Option<Ipv4Addr> {
        let control = &self.controls[index];
        // SAFETY: 1.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_control = control.0.as_ptr().cast_mut().cast();
        header.msg_controllen = self.control_lengths[index].min(CONTROL_BUFFER_OCTETS) as _;
        // SAFETY: 3. The buffer was filled by the kernel up to `control_lengths`.
        let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header).as_ref() }?;
        let is_pktinfo = first.cmsg_level == libc::IPPROTO_IP
            && first.cmsg_type == libc::IP_PKTINFO
            // SAFETY: computes a number.
            && first.cmsg_len >= unsafe { libc::CMSG_LEN(PKTINFO_LENGTH) } as _;
        if !is_pktinfo {
            return None;
        }
        // SAFETY: 3. The length was checked.
        let info = unsafe { libc::CMSG_DATA(first).cast::<libc::in_pktinfo>().read_unaligned() };
        Some(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)))
    }
}

/// One message to send, in two parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outgoing<'a> {
    /// Link, IP and UDP headers on a packet socket; empty on a UDP socket.
    pub(super) header: &'a [u8],
    pub(super) payload: &'a [u8],
    /// Receiver and our own address, on a UDP socket.
    pub(super) route: Option<(SocketAddrV4, Ipv4Addr)>,
}

/// Sends up to [`MAX_MESSAGES`] messages; returns the number that the kernel accepted. An error is that of the first
/// message.
///
/// Never waits: answers to unused addresses fill the socket's buffer until ARP fails seconds later, and all other
/// clients would wait for that.
pub(super) fn send(socket: BorrowedFd<'_>, messages: &[Outgoing<'_>]) -> io::Result<usize> {
    // SAFETY: 1, for all four.
    let mut headers: [libc::mmsghdr; MAX_MESSAGES] = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut vectors: [[libc::iovec; 2]; MAX_MESSAGES] = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut names: [libc::sockaddr_in; MAX_MESSAGES] = unsafe { std::mem::zeroed() };
    let mut controls = [Control([0; CONTROL_BUFFER_OCTETS]); MAX_MESSAGES];
    let count = messages.len().min(MAX_MESSAGES);
    let length = u32::try_from(count).unwrap_or(BATCH_LENGTH);
    for (index, message) in messages.iter().take(count).enumerate() {
        for (vector, part) in vectors[index].iter_mut().zip([message.header, message.payload]) {
            // sendmmsg only reads through it.
            vector.iov_base = part.as_ptr().cast_mut().cast();
            vector.iov_len = part.len();
        }
        let header = &mut headers[index].msg_hdr;
        header.msg_iov = vectors[index].as_mut_ptr();
        header.msg_iovlen = 2;
        if let Some((to, from)) = message.route {
            names[index].sin_family = INET_FAMILY;
            names[index].sin_port = to.port().to_be();
            names[index].sin_addr.s_addr = u32::from(*to.ip()).to_be();
            header.msg_name = (&raw mut names[index]).cast();
            header.msg_namelen = NAME_LENGTH;
            header.msg_control = controls[index].0.as_mut_ptr().cast();
            write_source(header, from);
        }
    }
    // SAFETY: 2. `headers` has at least `count` entries.
    let sent =
        unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), length, libc::MSG_DONTWAIT) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sets the address that the message leaves from. `msg_control` points to a whole [`Control`].
fn write_source(header: &mut libc::msghdr, from: Ipv4Addr) {
    // SAFETY: 3; CMSG_SPACE computes a number.
    unsafe {
        header.msg_controllen = libc::CMSG_SPACE(PKTINFO_LENGTH) as _;
        let Some(first) = libc::CMSG_FIRSTHDR(std::ptr::from_ref(header)).as_mut() else { return };
        first.cmsg_level = libc::IPPROTO_IP;
        first.cmsg_type = libc::IP_PKTINFO;
        first.cmsg_len = libc::CMSG_LEN(PKTINFO_LENGTH) as _;
        let info = libc::in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: libc::in_addr { s_addr: u32::from(from).to_be() },
            ipi_addr: libc::in_addr { s_addr: 0 },
        };
        libc::CMSG_DATA(first).cast::<libc::in_pktinfo>().write_unaligned(info);
    }
}

/// The address that binds a packet socket to an interface for sending; with protocol 0 it receives nothing.
pub(super) fn link_address(interface_index: u32) -> io::Result<SockAddr> {
    // SAFETY: 1; the storage is zeroed, as large and aligned as any socket address, and its length is set to what was
    // written.
    let (written, address) = unsafe {
        SockAddr::try_init(|storage, length| {
            let link = storage.cast::<libc::sockaddr_ll>();
            (*link).sll_family = PACKET_FAMILY;
            (*link).sll_ifindex = i32::try_from(interface_index).map_err(io::Error::other)?;
            *length = LINK_LENGTH;
            Ok(())
        })
    }?;
    let () = written;
    Ok(address)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn full_send_buffer_does_not_block_other_clients() {
        // Blocking, as the real sockets are; the other end never reads.
        let (socket, _other) = UnixDatagram::pair().unwrap();
        let message = Outgoing { header: &[0; 42], payload: &[0; 548], route: None };
        let full = (0..1_000_000).find_map(|_| send(socket.as_fd(), &[message; MAX_MESSAGES]).err());
        assert_eq!(full.map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
    }
}
