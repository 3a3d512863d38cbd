//! Resident memory of pxed (`VmRSS`): idle without Machines, with ten thousand known ones, and with open sessions in addition.
//!
//! A session is the boot of one Machine, held in the middle: a lease, a TFTP transfer of its loader with a window
//! sent and unanswered, and an HTTP download of its kernel of which nothing is read after the head. Each Machine has an address of its own.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use bedplate_api::id::MacAddress;
use bedplate_tftp::wire::{self, AskedOption};
use socket2::{Domain, Socket, Type};

use crate::load;
use crate::measurement::{Better, Context, OURS, Row, rows};
use bedplate_tests::{
    draw,
    netns::Namespace,
    pxed::{Pxed, Setup},
    timeline, wait,
};

/// Number of Machines that pxed knows.
const MACHINE_COUNT: u16 = 10_000;
/// Number of Machines in one file of the directory.
const MACHINES_PER_FILE: usize = 500;
/// Number of boots held open.
const SESSION_COUNT: u16 = 500;
/// Size of the kernel in bytes: more than the kernel of this machine buffers for a connection.
const KERNEL_BYTES: usize = 16 << 20;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const HTTP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8067);
const TFTP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 69);

/// Measures a new pxed in each round.
///
/// # Errors
/// The namespaces cannot be made. A pxed that does not do as it should is noted.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>> {
    let (server, client) = (Namespace::new("server")?, Namespace::new("client")?);
    server.add_veth("rack0", &client, "eth0")?;
    server.ip(&format!("address add {SERVER}/16 dev rack0"))?;
    let titles = [
        "Resident memory of pxed, idle, no Machines".to_owned(),
        format!("Resident memory of pxed, {MACHINE_COUNT} known Machines"),
        format!("Resident memory of pxed, {MACHINE_COUNT} known Machines, {SESSION_COUNT} open sessions"),
    ];
    let mut measured = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..context.rounds {
        let place = context.directory.path().join(format!("memory-{round}"));
        let numbers = measure(&server, &client, &place);
        let Some(numbers) = context.noted("Resident memory", OURS, numbers) else { break };
        timeline::say(&format!("bench memory: {numbers:.1?} MiB"));
        measured.iter_mut().zip(numbers).for_each(|(rounds, number)| rounds.push(number));
    }
    let note = [
        String::new(),
        String::new(),
        format!("{SESSION_COUNT} boots, each with a TFTP transfer and an HTTP download under way"),
    ];
    let row = |((title, rounds), note): ((&String, Vec<f64>), String)| {
        rows(context, title, "MiB", Better::Less, [(OURS.to_owned(), rounds, note)])
    };
    Ok(titles.iter().zip(measured).zip(note).flat_map(row).collect())
}

fn measure(server: &Namespace, client: &Namespace, place: &Path) -> Result<[f64; 3]> {
    let files = place.join("files");
    std::fs::create_dir_all(&files)?;
    for name in ["kernel", "initrd"] {
        std::fs::write(files.join(name), vec![0x5a; KERNEL_BYTES])?;
    }
    let path = |name: &str| files.join(name).display().to_string();
    let mut setup = Setup::new(format!("kernel = {:?}\ninitrd = {:?}\n", path("kernel"), path("initrd")));
    setup.interfaces = vec!["rack0".to_owned()];
    setup.subnets = vec![
        "network = \"10.7.0.0/16\"\nranges = [\"10.7.1.0-10.7.250.255\"]\nrouters = [\"10.7.0.1\"]\n"
            .to_owned(),
    ];
    let mut idle = Pxed::start(&setup, &[], server, &place.join("idle"))?;
    let empty = resident(idle.process().pid())?;
    drop(idle);
    let busy = place.join("busy");
    let machines: Vec<String> = (0..MACHINE_COUNT).map(manifest).collect();
    std::fs::create_dir_all(busy.join("machines.d"))?;
    let (first, others) = machines.split_at(MACHINES_PER_FILE);
    for (number, chunk) in others.chunks(MACHINES_PER_FILE).enumerate() {
        std::fs::write(busy.join(format!("machines.d/{number}.yaml")), chunk.join("---\n"))?;
    }
    let mut pxed = Pxed::start(&setup, first, server, &busy)?;
    wait_metric(&pxed, "bedplate_pxed_machines{", MACHINE_COUNT)?;
    let known = resident(pxed.process().pid())?;
    let boots = (0..SESSION_COUNT)
        .map(|number| draw::lease(client, mac(number), number))
        .collect::<Result<Vec<_>>>()?;
    let sessions = server.inside(|| {
        boots.iter().enumerate().map(|(n, boot)| Session::open(n, &boot.base)).collect::<Result<Vec<_>>>()
    })?;
    wait_metric(&pxed, "bedplate_pxed_tftp_active ", SESSION_COUNT)?;
    let open = resident(pxed.process().pid())?;
    ensure!(sessions.len() == usize::from(SESSION_COUNT), "{} sessions", sessions.len());
    Ok([empty, known, open])
}

fn mac(number: u16) -> MacAddress {
    let [high, low] = number.to_be_bytes();
    MacAddress::new([0x52, 0x54, 0x00, 0x10, high, low])
}

/// A Machine with two interfaces, as servers have.
fn manifest(number: u16) -> String {
    let [high, low] = number.to_be_bytes();
    format!(
        "apiVersion: bedplate.dev/v1alpha1\nkind: Machine\nmetadata:\n  name: server-{number}\n  labels:\n    rack: r{high}\nspec:\n  \
         provider: pxe\n  pxe:\n    interfaces:\n    - macAddress: {}\n      addresses: [10.7.{}.{low}/16]\n      \
         gateway: 10.7.0.1\n      netboot: true\n    - macAddress: 52:54:00:11:{high:02x}:{low:02x}\n",
        mac(number),
        u16::from(high) + 100,
    )
}

/// One boot held in the middle; its sockets are only kept.
struct Session {
    _transfer: UdpSocket,
    _download: TcpStream,
}

impl Session {
    fn open(number: usize, boot: &str) -> Result<Self> {
        let address = load::address(number);
        let path = boot.splitn(4, '/').nth(3).context("a URL without a path")?;
        let (transfer, download) = (transfer(address, path)?, download(address, path)?);
        Ok(Self { _transfer: transfer, _download: download })
    }
}

/// A transfer whose first window is sent and not acknowledged.
fn transfer(address: Ipv4Addr, path: &str) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((address, 0))?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let options = [AskedOption::BlockSize(1468), AskedOption::WindowSize(16)];
    socket.send_to(&wire::read_request(&format!("{path}/undionly.kpxe"), &options), TFTP)?;
    let mut buffer = [0; 2000];
    let (length, from) = socket.recv_from(&mut buffer).context("no answer by TFTP")?;
    ensure!(buffer.starts_with(&[0, 6]), "no option acknowledgement: {:?}", buffer.get(..length));
    socket.send_to(&[0, 4, 0, 0], from)?;
    Ok(socket)
}

/// A download of which the head was read.
fn download(address: Ipv4Addr, path: &str) -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((address, 0)).into())?;
    socket.connect(&HTTP.into())?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET /{path}/kernel HTTP/1.1\r\nHost: pxed\r\n\r\n")?;
    let mut head = [0; 15];
    stream.read_exact(&mut head).context("no answer by HTTP")?;
    ensure!(head == *b"HTTP/1.1 200 OK", "{}", String::from_utf8_lossy(&head));
    Ok(stream)
}

/// Waits until the samples of a metric, added up, are `wanted`.
fn wait_metric(pxed: &Pxed<'_>, name: &str, wanted: u16) -> Result<()> {
    let mut seen = 0.0;
    let result = wait::until(name, Duration::from_secs(60), || {
        let (_, text) = pxed.health("/metrics")?;
        let samples = text.lines().filter(|line| line.starts_with(name));
        seen = samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        Ok((seen >= f64::from(wanted)).then_some(()))
    });
    result.with_context(|| format!("{name} is {seen}, not {wanted}"))
}

/// MiB.
fn resident(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()).context("no VmRSS")?;
    Ok(kibibytes.parse::<f64>()? / 1024.0)
}
