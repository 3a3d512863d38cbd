//! SIGHUP while a TFTP and an HTTP transfer are under way, against pxed as a process; no virtual machine.
//!
//! The clients here stop in the middle until the reload has been done: nothing depends on who is faster.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bedplate_tests::netns::Namespace;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::rack::{ADDRESS, Rack};
use bedplate_tests::{draw, wait};
use bedplate_tftp::client::{Client, Reaction};
use bedplate_tftp::wire::AskedOption;

const LIMIT: Duration = Duration::from_secs(30);
/// More than the sockets between pxed and a client that does not read can hold.
const KERNEL: usize = 32 << 20;
const LOADER: usize = 300_007;
const LOADER_NAME: &str = "undionly.kpxe";
const DONE: &str = "bedplate_pxed_reloads_total{result=\"done\"}";
const REFUSED: &str = "bedplate_pxed_reloads_total{result=\"rejected\"}";

/// Content that says of which configuration it is.
fn content(generation: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from(at % 251).unwrap_or_default() ^ generation).collect()
}

/// A configuration with a kernel, a loader and a lease time of its own.
fn setup(rack: &Rack, generation: u8) -> Result<Setup> {
    let at = |name: &str| rack.file(&format!("{name}-{generation}"));
    std::fs::create_dir_all(at("loaders"))?;
    std::fs::write(at("loaders").join(LOADER_NAME), content(generation, LOADER))?;
    std::fs::write(at("kernel"), content(generation, KERNEL))?;
    let stub = pxed::stub_image(rack.path())?;
    let initrd = stub.lines().find(|line| line.starts_with("initrd")).context("no initrd")?;
    let mut setup = Setup::new(format!("kernel = {:?}\n{initrd}", at("kernel").display().to_string()));
    setup.loader_directory = at("loaders");
    setup.loaders = vec![("bios", LOADER_NAME)];
    // A client here reads nothing until the reload is finished.
    setup.more = "[http]\nstall-seconds = 120\n".to_owned();
    setup.subnets = setup
        .subnets
        .iter()
        .map(|subnet| format!("{subnet}lease-seconds = {}\n", lease_seconds(generation)))
        .collect();
    Ok(setup)
}

fn lease_seconds(generation: u8) -> u32 {
    1000 + u32::from(generation)
}

/// GET of a boot's kernel, read as far as the test wants.
struct Download {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Download {
    fn start(network: &Namespace, base: &str) -> Result<Self> {
        let path = base.splitn(4, '/').nth(3).context("a URL without a path")?;
        let mut stream = network.inside(|| Ok(TcpStream::connect((ADDRESS, 8067))?))?;
        stream.set_read_timeout(Some(LIMIT))?;
        write!(stream, "GET /{path}/kernel HTTP/1.1\r\nHost: pxed\r\nConnection: close\r\n\r\n")?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).context("no answer")?;
            head.extend(byte);
        }
        ensure!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
        let mut download = Self { stream, received: vec![0; KERNEL / 4] };
        download.stream.read_exact(&mut download.received)?;
        Ok(download)
    }

    fn finish(mut self) -> Result<Vec<u8>> {
        self.stream.read_to_end(&mut self.received).context("it broke off")?;
        Ok(self.received)
    }
}

/// RRQ of the loader, acknowledged as far as the test wants.
struct Transfer {
    socket: UdpSocket,
    client: Client,
    server: SocketAddr,
    received: Vec<u8>,
}

impl Transfer {
    fn start(network: &Namespace) -> Result<Self> {
        let client = Client::new(&[AskedOption::BlockSize(1024)]);
        let socket = network.inside(|| Ok(UdpSocket::bind((ADDRESS, 0))?))?;
        socket.set_read_timeout(Some(LIMIT))?;
        socket.send_to(&client.request(LOADER_NAME), (ADDRESS, 69))?;
        let mut transfer = Self { socket, client, server: (ADDRESS, 69).into(), received: Vec::new() };
        while transfer.received.len() < LOADER / 4 {
            ensure!(!transfer.step()?, "it has ended in its first half");
        }
        Ok(transfer)
    }

    /// One packet; whether the last block came.
    fn step(&mut self) -> Result<bool> {
        let mut buffer = [0; 2048];
        let (length, server) = self.socket.recv_from(&mut buffer).context("nothing came")?;
        self.server = server;
        let (answer, ended) = match self.client.receive(&buffer[..length]) {
            Reaction::Nothing => (None, false),
            Reaction::Acknowledge(answer) => (Some(answer), false),
            Reaction::Block { content, acknowledge, last } => {
                self.received.extend_from_slice(content);
                (acknowledge, last)
            }
            Reaction::Refused(code) => bail!("refused with {code}"),
            Reaction::Violation(what) => bail!("{what}"),
        };
        if let Some(answer) = answer {
            self.socket.send_to(&answer, self.server)?;
        }
        Ok(ended)
    }

    fn finish(mut self) -> Result<Vec<u8>> {
        while !self.step()? {}
        Ok(self.received)
    }
}

/// The rack's pxed and a machine's card.
struct Rig<'r> {
    rack: &'r Rack,
    pxed: Pxed<'r>,
    card: Namespace,
    drawn: u16,
}

impl<'r> Rig<'r> {
    fn new(rack: &'r Rack) -> Result<Self> {
        let pxed = Pxed::start(&setup(rack, 1)?, &[pxed::manifest(1, "")], rack.network(), rack.path())?;
        let card = Namespace::new("card")?;
        draw::connect(rack, &card, "card")?;
        Ok(Self { rack, pxed, card, drawn: 0 })
    }

    fn lease(&mut self) -> Result<draw::Lease> {
        self.drawn += 1;
        draw::lease(&self.card, Rack::mac(1), self.drawn)
    }

    fn wait_metric(&self, name: &str, value: u64) -> Result<()> {
        wait::until(
            &format!("{name} {value}"),
            LIMIT,
            || Ok((self.pxed.metric(name)? == value).then_some(())),
        )
    }

    /// DHCP, TFTP and HTTP all show this configuration, and none else. The kernel has to be read first, which takes a moment.
    fn in_force(&mut self, generation: u8) -> Result<()> {
        let lease = self.lease()?;
        ensure!(lease.seconds == lease_seconds(generation), "a lease of {} s", lease.seconds);
        let loader = Transfer::start(self.rack.network())?.finish()?;
        ensure!(loader == content(generation, LOADER), "another loader");
        wait::until("the image", LIMIT, || Ok((self.pxed.health("/readyz")?.0 == 200).then_some(())))?;
        let kernel = Download::start(self.rack.network(), &self.lease()?.base)?.finish()?;
        ensure!(kernel == content(generation, KERNEL), "another kernel");
        Ok(())
    }
}

#[test]
fn transfers_under_way_end_whole_and_the_new_configuration_is_in_force() -> Result<()> {
    let rack = Rack::new("reload")?;
    let mut rig = Rig::new(&rack)?;
    let base = rig.lease()?.base;
    let download = Download::start(rack.network(), &base)?;
    let transfer = Transfer::start(rack.network())?;
    ensure!(rig.pxed.metric("bedplate_pxed_tftp_active")? == 1);
    rig.pxed.reload(&setup(&rack, 2)?.to_toml(rack.path()))?;
    rig.wait_metric(DONE, 1)?;
    ensure!(rig.pxed.metric("bedplate_pxed_tftp_active")? == 1, "the reload ended a transfer");
    ensure!(transfer.finish()? == content(1, LOADER), "the TFTP transfer has other bytes");
    rig.in_force(2)?;
    ensure!(download.finish()? == content(1, KERNEL), "the HTTP transfer has other bytes");
    rack.succeeded();
    Ok(())
}

#[test]
fn bad_configuration_is_rejected_with_its_errors_and_the_old_one_stays() -> Result<()> {
    let rack = Rack::new("reload-bad")?;
    let mut rig = Rig::new(&rack)?;
    let base = rig.lease()?.base;
    let download = Download::start(rack.network(), &base)?;
    let transfer = Transfer::start(rack.network())?;
    let good = setup(&rack, 2)?.to_toml(rack.path());
    let bad = good
        .replace("mode = \"server\"", "mode = \"sever\"")
        .replace("discovery = false", "discover = false");
    ensure!(bad.contains("sever\"") && bad.contains("discover = "), "the mistakes are not in it:\n{bad}");
    rig.pxed.reload(&bad)?;
    rig.wait_metric(REFUSED, 1)?;
    let said = rig.pxed.process().said();
    for part in ["keeping the current one", "dhcp.mode", "sever", "discover"] {
        ensure!(said.contains(part), "the log does not say {part:?}:\n{said}");
    }
    ensure!(transfer.finish()? == content(1, LOADER), "the TFTP transfer has other bytes");
    rig.in_force(1)?;
    ensure!(download.finish()? == content(1, KERNEL), "the HTTP transfer has other bytes");
    rig.pxed.reload(&good)?;
    rig.wait_metric(DONE, 1)?;
    rig.in_force(2)?;
    rack.succeeded();
    Ok(())
}
