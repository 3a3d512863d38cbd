//! Two hundred machines request their root image concurrently from a pxed that sends eight at a time.
//!
//! Each machine has a card, a lease and a boot of its own, all by DHCP; no virtual machine.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bedplate_tests::draw::{self, Lease};
use bedplate_tests::netns::Namespace;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::rack::{ADDRESS, Rack};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, sockopt};

const MACHINES: u8 = 200;
const STREAMS: usize = 8;
/// Size of the root image: more than all buffers between pxed and a machine that does not read.
const SIZE: usize = 1 << 20;
/// Bytes that only an admitted machine has received. A waiting machine gets 4 KiB immediately and 4 KiB every 5 s.
const LET_IN: usize = 64 << 10;
/// Time after which pxed gives the place of a machine that reads nothing to one that waits.
const PROGRESS_TIME: Duration = Duration::from_secs(10);
/// Maximum time of each wait for pxed. `pxed`'s own tests check how often a waiting machine gets data.
const TIMEOUT: Duration = Duration::from_secs(120);

fn image() -> Vec<u8> {
    (0..SIZE).map(|at| u8::try_from(at % 251).unwrap_or_default()).collect()
}

/// pxed on the rack, and all machines with their leases in one namespace.
struct Rig<'r> {
    _pxed: Pxed<'r>,
    network: Namespace,
    leases: Vec<Lease>,
}

impl<'r> Rig<'r> {
    fn new(rack: &'r Rack) -> Result<Self> {
        let root = rack.file("rootfs");
        std::fs::write(&root, image())?;
        let image = pxed::stub_image(rack.path())?;
        let mut setup = Setup::new(format!("{image}rootfs = {:?}\n", root.display().to_string()));
        setup.subnets = vec!["network = \"10.7.0.0/24\"\nranges = [\"10.7.0.20-10.7.0.250\"]\n".to_owned()];
        setup.more = format!("[http]\nmax-streams = {STREAMS}\n");
        let manifests: Vec<String> = (1..=MACHINES).map(|number| pxed::manifest(number, "")).collect();
        let _pxed = Pxed::start(&setup, &manifests, rack.network(), rack.path())?;
        let network = Namespace::new("machines")?;
        draw::connect(rack, &network, "machines")?;
        let lease = |number| draw::lease(&network, Rack::mac(number), 1);
        let leases = (1..=MACHINES).map(lease).collect::<Result<Vec<_>>>()?;
        for lease in &leases {
            network.ip(&format!("address add {}/24 dev eth0", lease.address))?;
        }
        Ok(Self { _pxed, network, leases })
    }
}

/// A machine that fetches its root image.
struct Machine {
    stream: TcpStream,
    /// Number of received bytes of the image.
    received: usize,
}

impl Machine {
    /// Asks for the image of its boot, and returns with its first bytes: it has its place in the queue then.
    fn ask(lease: &Lease, image: &[u8]) -> Result<Self> {
        let path = lease.base.splitn(4, '/').nth(3).context("a URL without a path")?;
        let mut stream = open(lease.address)?;
        write!(stream, "GET /{path}/rootfs HTTP/1.1\r\nHost: pxed\r\nConnection: close\r\n\r\n")?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).context("no answer")?;
            head.extend(byte);
        }
        ensure!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
        let mut machine = Self { stream, received: 0 };
        machine.read_to(1, image)?;
        Ok(machine)
    }

    /// Reads until it has `count` bytes of the image, and compares them.
    fn read_to(&mut self, count: usize, image: &[u8]) -> Result<()> {
        let mut bytes = vec![0; count.saturating_sub(self.received)];
        self.stream.read_exact(&mut bytes).context("nothing came")?;
        self.take(&bytes, image)
    }

    fn take(&mut self, bytes: &[u8], image: &[u8]) -> Result<()> {
        let end = self.received + bytes.len();
        ensure!(image.get(self.received..end) == Some(bytes), "other bytes before {end}");
        self.received = end;
        Ok(())
    }

    /// Takes what has come, without waiting for more.
    fn look(&mut self, image: &[u8]) -> Result<()> {
        self.stream.set_nonblocking(true)?;
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = self.stream.read(&mut bytes) {
            self.take(&bytes[..length], image)?;
            if self.received >= LET_IN {
                break;
            }
        }
        Ok(self.stream.set_nonblocking(false)?)
    }
}

/// A connection to pxed from this address. A small window, so that what is not read stays with pxed.
fn open(from: Ipv4Addr) -> Result<TcpStream> {
    let kind = (AddressFamily::Inet, SockType::Stream);
    let socket = nix::sys::socket::socket(kind.0, kind.1, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::RcvBuf, &(32 << 10))?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(from, 0)))?;
    connect(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(ADDRESS, 8067)))?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

#[test]
fn root_images_go_out_in_the_order_of_asking_at_most_max_streams_at_once() -> Result<()> {
    let rack = Rack::new("queue")?;
    let rig = Rig::new(&rack)?;
    let image = image();
    let started = Instant::now();
    let mut machines = rig
        .network
        .inside(|| rig.leases.iter().map(|lease| Machine::ask(lease, &image)).collect::<Result<Vec<_>>>())?;
    for (number, machine) in machines.iter_mut().enumerate().take(STREAMS) {
        machine.read_to(LET_IN, &image).with_context(|| format!("machine {number} was not let in"))?;
    }
    for done in 0..machines.len() {
        for (number, machine) in machines.iter_mut().enumerate().skip(done + STREAMS) {
            machine.look(&image)?;
            // Machines whose image is sent read nothing meanwhile, which pxed tolerates for some time.
            let is_in_turn = machine.received < LET_IN || started.elapsed() >= PROGRESS_TIME;
            ensure!(is_in_turn, "machine {number} came before {}", done + STREAMS);
        }
        machines[done].read_to(SIZE, &image).with_context(|| format!("machine {done}"))?;
        if let Some(next) = machines.get_mut(done + STREAMS) {
            next.read_to(LET_IN, &image)
                .with_context(|| format!("machine {} was not let in after {done}", done + STREAMS))?;
        }
    }
    rack.succeeded();
    Ok(())
}

#[test]
fn two_hundred_machines_at_once_all_get_their_root_image() -> Result<()> {
    let rack = Rack::new("storm")?;
    let rig = Rig::new(&rack)?;
    let image = image();
    let fetch = |lease: &Lease| -> Result<()> {
        let mut machine = rig.network.inside(|| Machine::ask(lease, &image))?;
        machine.read_to(SIZE, &image)?;
        let more = machine.stream.read(&mut [0])?;
        ensure!(more == 0, "more than the image");
        Ok(())
    };
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = rig.leases.iter().map(|lease| scope.spawn(|| fetch(lease))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for (lease, result) in rig.leases.iter().zip(results) {
        result.with_context(|| format!("the machine at {}", lease.address))?;
    }
    rack.succeeded();
    Ok(())
}
