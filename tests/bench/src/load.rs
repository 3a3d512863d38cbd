//! TFTP load: clients that fetch one file concurrently, each byte compared. Fast enough not to be the bottleneck.
//!
//! One thread, no blocking: a lone client looks for its packet without sleeping, many wait together. Windows that the kernel hands over
//! in one piece are taken in one piece (UDP_GRO). Called by the TFTP bench.

use std::{
    io::IoSliceMut,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use bedplate_tftp::{
    client::{Client, Reaction},
    wire::AskedOption,
};
use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt, sockopt},
    },
};

/// Silence after which a client sends its last message again.
const RESEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Timeout of the measurement.
const FETCH_TIMEOUT: Duration = Duration::from_secs(60);

struct Fetch<'a> {
    socket: UdpSocket,
    client: Client,
    wanted: &'a [u8],
    received: usize,
    transfer: Option<SocketAddr>,
    server: SocketAddr,
    request: Vec<u8>,
    heard: Instant,
    /// True if one packet at a time is under way: a second check of the socket finds nothing.
    lock_step: bool,
}

/// Result of a load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    /// From the first request to the last byte.
    pub(crate) took: Duration,
    /// Bytes of content, all clients together.
    pub(crate) bytes: u64,
    /// Times that a client had to repeat itself: should be 0 on loopback.
    pub(crate) repeats: u64,
}

impl Measured {
    /// MiB of content a second.
    pub(crate) fn mebibytes_per_second(self) -> f64 {
        self.bytes as f64 / f64::from(1 << 20) / self.took.as_secs_f64()
    }
}

/// Has `count` clients fetch `name` concurrently and compares every byte with `wanted`.
///
/// # Errors
/// A refusal, a wrong byte, or no end within a minute.
pub(crate) fn fetch(
    server: SocketAddr,
    name: &str,
    options: &[AskedOption],
    count: usize,
    wanted: &[u8],
) -> Result<Measured> {
    let started = Instant::now();
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut fetches = Vec::with_capacity(count);
    for index in 0..count {
        let fetch = Fetch::start(index, server, name, options, wanted)?;
        epoll.add(&fetch.socket, EpollEvent::new(EpollFlags::EPOLLIN, index as u64))?;
        fetches.push(fetch);
    }
    let mut buffer = vec![0; 1 << 16];
    let (mut open, mut repeats, mut looked) = (count, 0, started);
    let mut events = [EpollEvent::empty(); 64];
    while open > 0 {
        if let [only] = fetches.as_mut_slice() {
            if only.hear(&mut buffer)? {
                open -= 1;
            }
        } else {
            let ready = epoll.wait(&mut events, EpollTimeout::from(100_u8)).or_else(interrupted)?;
            for event in events.iter().take(ready) {
                let fetch = usize::try_from(event.data()).ok().and_then(|index| fetches.get_mut(index));
                open -= usize::from(fetch.context("an event of no socket")?.hear(&mut buffer)?);
            }
        }
        let now = Instant::now();
        if now.duration_since(looked) > Duration::from_millis(100) {
            looked = now;
            ensure!(
                now.duration_since(started) < FETCH_TIMEOUT,
                "{open} of {count} transfers from {server} did not end"
            );
            repeats += fetches.iter_mut().map(|fetch| fetch.repeat(now)).sum::<Result<u64>>()?;
        }
    }
    let bytes = wanted.len() as u64 * count as u64;
    Ok(Measured { took: started.elapsed(), bytes, repeats })
}

/// The loopback address of a client: as in a rack, each has its own.
pub(crate) fn address(index: usize) -> Ipv4Addr {
    let [.., high, low] = index.to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

fn interrupted(error: Errno) -> Result<usize, Errno> {
    if error == Errno::EINTR { Ok(0) } else { Err(error) }
}

impl<'a> Fetch<'a> {
    fn start(
        index: usize,
        server: SocketAddr,
        name: &str,
        options: &[AskedOption],
        wanted: &'a [u8],
    ) -> Result<Self> {
        let client = Client::new(options);
        let request = client.request(name);
        let socket = UdpSocket::bind((address(index), 0))?;
        socket.set_nonblocking(true)?;
        let lock_step = !options.iter().any(|option| matches!(option, AskedOption::WindowSize(_)));
        if !lock_step {
            // Without it windows come packet by packet.
            let _ = setsockopt(&socket, sockopt::UdpGroSegment, &true);
        }
        socket.send_to(&request, server)?;
        let heard = Instant::now();
        Ok(Self { socket, client, wanted, received: 0, transfer: None, server, request, heard, lock_step })
    }

    /// Takes what has come; true when the transfer is over by it.
    fn hear(&mut self, buffer: &mut [u8]) -> Result<bool> {
        while !self.client.is_done() {
            let Some((length, segment, from)) = self.receive(buffer)? else { return Ok(false) };
            if self.transfer.is_none() {
                // Connected: cheaper, and packets of others stay away.
                self.socket.connect(from)?;
                self.transfer = Some(from);
            }
            self.heard = Instant::now();
            let received = buffer.get(..length).context("a packet longer than its buffer")?;
            for packet in received.chunks(segment.max(1)) {
                self.take(packet)?;
            }
            if !self.client.is_done() {
                if self.lock_step {
                    return Ok(false);
                }
                continue;
            }
            ensure!(self.received == self.wanted.len(), "{} of {} bytes", self.received, self.wanted.len());
            return Ok(true);
        }
        Ok(false)
    }

    /// Length, length of each packet in it, sender.
    fn receive(&self, buffer: &mut [u8]) -> Result<Option<(usize, usize, SocketAddr)>> {
        let Some(from) = self.transfer.filter(|_| self.lock_step) else {
            return receive(&self.socket, buffer);
        };
        // Connected, and one packet: the cheapest call.
        match self.socket.recv(buffer) {
            Ok(length) => Ok(Some((length, length, from))),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).context("cannot receive"),
        }
    }

    fn take(&mut self, packet: &[u8]) -> Result<()> {
        match self.client.receive(packet) {
            Reaction::Nothing => {}
            Reaction::Acknowledge(answer) => self.send(answer)?,
            Reaction::Block { content, acknowledge, .. } => {
                let end = self.received + content.len();
                ensure!(
                    self.wanted.get(self.received..end) == Some(content),
                    "wrong bytes at {}",
                    self.received
                );
                self.received = end;
                if let Some(answer) = acknowledge {
                    self.send(answer)?;
                }
            }
            Reaction::Refused(code) => bail!("{} refuses with error {code}", self.server),
            Reaction::Violation(what) => bail!("{}: {what}", self.server),
        }
        Ok(())
    }

    fn send(&self, answer: [u8; 4]) -> Result<()> {
        match self.socket.send(&answer) {
            // The server has closed its port on the last ACK: nothing is lost.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused && self.client.is_done() => {
                Ok(())
            }
            sent => sent.map(|_| ()).context("cannot acknowledge"),
        }
    }

    /// Says the last thing again after a silence; gives how often.
    fn repeat(&mut self, now: Instant) -> Result<u64> {
        if self.client.is_done() || now.duration_since(self.heard) < RESEND_TIMEOUT {
            return Ok(0);
        }
        self.heard = now;
        match self.client.again() {
            Some(answer) => self.send(answer)?,
            None if self.transfer.is_none() => {
                self.socket.send_to(&self.request, self.server)?;
            }
            None => {}
        }
        Ok(1)
    }
}

/// Length, length of each packet in it, sender.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Result<Option<(usize, usize, SocketAddr)>> {
    let mut control = nix::cmsg_space!(i32);
    let mut slices = [IoSliceMut::new(buffer)];
    let received =
        recvmsg::<SockaddrIn>(socket.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::MSG_DONTWAIT);
    let received = match received {
        Ok(received) => received,
        Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
        Err(error) => return Err(error).context("cannot receive"),
    };
    let segment = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::UdpGroSegments(size) => usize::try_from(size).ok(),
        _ => None,
    });
    let from = received.address.map(std::net::SocketAddrV4::from).context("a packet from nowhere")?;
    Ok(Some((received.bytes, segment.unwrap_or(received.bytes), from.into())))
}
