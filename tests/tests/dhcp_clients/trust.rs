//! An attacker in another network, with a route to pxed and the MAC address of a Machine, against the machine's own boot.
//!
//! Three hosts and a router in network namespaces; the attacker's packets reach the interface that pxed serves.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bedplate_tests::draw::{self, DISCOVER, INFORM, REQUEST};
use bedplate_tests::guard::{self, Directory};
use bedplate_tests::netns::Namespace;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::rack::Rack;
use bedplate_tests::wait;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 254);
const ATTACKER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
/// An address of the link that no host there has.
const NEIGHBOR: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 77);
const BOOT_SERVER_PORT: u16 = 4011;
/// Maximum time for pxed to count a packet.
const COUNT_TIMEOUT: Duration = Duration::from_secs(20);

/// pxed's host and a machine on one link, and an attacker behind the router of that link.
struct Site {
    directory: Directory,
    server: Namespace,
    machine: Namespace,
    attacker: Namespace,
    router: Namespace,
}

impl Site {
    fn new(label: &str) -> Result<Self> {
        let (server, router) = (Namespace::new("server")?, Namespace::new("router")?);
        let (machine, attacker) = (Namespace::new("machine")?, Namespace::new("attacker")?);
        router.add_bridge("br0", Some((ROUTER, 24)))?;
        for (host, device, port) in [(&server, "rack0", "port0"), (&machine, "eth0", "port1")] {
            host.add_veth(device, &router, port)?;
            router.ip(&format!("link set {port} master br0"))?;
        }
        attacker.add_veth("eth0", &router, "out0")?;
        router.ip("address add 198.51.100.1/24 dev out0")?;
        guard::run(router.command("sh").args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]))?;
        server.ip(&format!("address add {SERVER}/24 dev rack0"))?;
        server.ip(&format!("route add default via {ROUTER}"))?;
        attacker.ip(&format!("address add {ATTACKER}/24 dev eth0"))?;
        attacker.ip("route add default via 198.51.100.1")?;
        Ok(Self { directory: Directory::new(label)?, server, machine, attacker, router })
    }

    fn start(&self, change: impl FnOnce(&mut Setup)) -> Result<Pxed<'_>> {
        let mut setup = Setup::new(pxed::stub_image(self.directory.path())?);
        setup.interfaces = vec!["rack0".to_owned()];
        change(&mut setup);
        Pxed::start(&setup, &[pxed::manifest(1, "")], &self.server, self.directory.path())
    }

    /// Returns the HTTP status of a part of a boot that this host requests.
    fn fetch(host: &Namespace, base: &str, what: &str) -> Result<String> {
        let mut command = host.command("curl");
        command.args(["-sS", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}"]);
        guard::run(command.arg(format!("{base}/{what}")))
    }
}

/// The attacker's sockets: an unprivileged port, and those to which relays' and clients' answers go.
struct Attacker {
    sockets: Vec<UdpSocket>,
}

impl Attacker {
    fn new(site: &Site) -> Result<Self> {
        let open = |port| -> Result<UdpSocket> {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
            socket.set_read_timeout(Some(Duration::from_millis(300)))?;
            Ok(socket)
        };
        site.attacker
            .inside(|| Ok(Self { sockets: [0, 67, 68].map(open).into_iter().collect::<Result<_>>()? }))
    }

    fn send(&self, packet: &[u8], port: u16) -> Result<()> {
        for socket in &self.sockets {
            socket.send_to(packet, SocketAddrV4::new(SERVER, port))?;
        }
        Ok(())
    }

    fn has_heard_nothing(&self) -> Result<()> {
        let mut buffer = [0; 1500];
        for socket in &self.sockets {
            if let Ok(length) = socket.recv(&mut buffer) {
                let answer = buffer.get(..length).unwrap_or_default();
                anyhow::bail!("an answer of {length} bytes: {:?}", draw::base_url(answer));
            }
        }
        Ok(())
    }
}

/// Returns messages that name machine 1: from the machine, and as through a relay that asks for answers at its own port.
fn messages() -> Vec<(Vec<u8>, &'static str)> {
    let relay_information: &[u8] = &[82, 8, 19, 0, 5, 4, 10, 7, 0, 0];
    let mut messages = Vec::new();
    for (transaction, kind) in [(1, DISCOVER), (2, REQUEST), (3, INFORM)] {
        let server: &[u8] = &[54, 4, 10, 7, 0, 1, 50, 4, 10, 7, 0, 150];
        let plain = draw::message(Rack::mac(1), transaction, kind, server);
        messages.push((plain, "not_on_link"));
        for relay in [ATTACKER, ROUTER, SERVER] {
            let mut relayed = draw::message(Rack::mac(1), transaction, kind, relay_information);
            if let Some(field) = relayed.get_mut(24..28) {
                field.copy_from_slice(&relay.octets());
            }
            messages.push((relayed, "unlisted_relay"));
        }
    }
    messages
}

fn unanswered(pxed: &Pxed<'_>, reason: &str) -> Result<u64> {
    pxed.metric(&format!("bedplate_pxed_dhcp_unanswered_total{{reason=\"{reason}\"}}"))
}

/// Waits until pxed has refused exactly `count` messages for this reason, which proves that they reached it.
fn wait_unanswered(pxed: &Pxed<'_>, reason: &str, count: u64) -> Result<()> {
    wait::until(&format!("{count} messages refused: {reason}"), COUNT_TIMEOUT, || {
        let counted = unanswered(pxed, reason)?;
        ensure!(counted <= count, "{counted} messages refused: {reason}");
        Ok((counted == count).then_some(()))
    })
}

/// Waits for the kernel's report that port 4011 is closed. The kernel sends few of these a second.
fn port_is_closed(site: &Site) -> Result<()> {
    site.attacker.inside(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        socket.connect((SERVER, BOOT_SERVER_PORT))?;
        wait::until("port 4011 to be closed in mode server", COUNT_TIMEOUT, || {
            let _ = socket.send(b"x");
            let error = socket.recv(&mut [0; 16]).err().map(|error| error.kind());
            Ok((error == Some(std::io::ErrorKind::ConnectionRefused)).then_some(()))
        })
    })
}

#[test]
fn trust_6_an_attacker_in_another_network_opens_no_boot() -> Result<()> {
    let site = Site::new("trust")?;
    let mut pxed = site.start(|_| {})?;
    let attacker = Attacker::new(&site)?;
    let (mut not_on_link, mut unlisted) = (0, 0);
    for (packet, reason) in messages() {
        attacker.send(&packet, 67)?;
        attacker.send(&packet, BOOT_SERVER_PORT)?;
        *if reason == "not_on_link" { &mut not_on_link } else { &mut unlisted } += 3;
    }
    wait_unanswered(&pxed, "not_on_link", not_on_link)?;
    wait_unanswered(&pxed, "unlisted_relay", unlisted)?;
    attacker.has_heard_nothing()?;
    ensure!(pxed.metric("bedplate_pxed_boots_open")? == 0, "a boot was opened");
    port_is_closed(&site)?;

    let said = pxed.process().said();
    ensure!(
        said.contains("relays = [") && said.contains(&ROUTER.to_string()),
        "no remedy in the log:\n{said}"
    );
    let explained = pxed::ask(&pxed.socket(), &format!("/v1/explain/{}", Rack::mac(1)))?.to_string();
    ensure!(explained.contains("is not listed; if it is your relay"), "{explained}");

    let lease = draw::lease(&site.machine, Rack::mac(1), 9)?;
    ensure!(pxed.metric("bedplate_pxed_boots_open")? == 1);
    site.machine.ip(&format!("address add {}/24 dev eth0", lease.address))?;
    // The attacker knows the boot's URL now. Its own address is not the machine's.
    for what in ["script.ipxe", "seed"] {
        ensure!(Site::fetch(&site.attacker, &lease.base, what)? == "403", "{what} was given away");
    }
    ensure!(pxed.metric("bedplate_pxed_http_address_refused_total")? == 2);
    for (what, status) in [("script.ipxe", "200"), ("seed", "200"), ("seed", "410")] {
        let answered = Site::fetch(&site.machine, &lease.base, what)?;
        ensure!(answered == status, "{what} for the machine: {answered}, not {status}");
    }
    Ok(())
}

#[test]
fn trust_6_an_attacker_with_a_forged_address_of_the_link_opens_no_boot() -> Result<()> {
    let site = Site::new("trust-forged")?;
    let pxed = site.start(|_| {})?;
    // A router that does not check where its packets come from.
    for device in ["all", "out0"] {
        let command = format!("echo 0 > /proc/sys/net/ipv4/conf/{device}/rp_filter");
        guard::run(site.router.command("sh").args(["-c", &command]))?;
    }
    site.attacker.ip(&format!("address add {NEIGHBOR}/32 dev eth0"))?;
    site.attacker.inside(|| {
        let socket = UdpSocket::bind((NEIGHBOR, 0))?;
        for transaction in 1..=20 {
            socket.send_to(&draw::discover(Rack::mac(1), transaction), SocketAddrV4::new(SERVER, 67))?;
        }
        Ok(())
    })?;
    wait_unanswered(&pxed, "not_on_link", 20)?;
    ensure!(pxed.metric("bedplate_pxed_boots_open")? == 0, "a boot was opened");
    draw::lease(&site.machine, Rack::mac(1), 30)?;
    ensure!(pxed.metric("bedplate_pxed_boots_open")? == 1, "the machine's pace was used up");
    Ok(())
}

#[test]
fn trust_6_only_a_machine_that_was_heard_asks_the_boot_server_port() -> Result<()> {
    let site = Site::new("trust-proxy")?;
    let pxed = site.start(|setup| {
        setup.mode = "proxy";
        setup.subnets = vec!["network = \"10.7.0.0/24\"\n".to_owned()];
    })?;
    let attacker = Attacker::new(&site)?;
    let request = draw::message(Rack::mac(1), 2, REQUEST, &[]);
    attacker.send(&request, BOOT_SERVER_PORT)?;
    wait_unanswered(&pxed, "not_discovered", 3)?;

    draw::draw_again(&site.machine, 1)?;
    attacker.send(&request, BOOT_SERVER_PORT)?;
    wait_unanswered(&pxed, "not_discovered", 6)?;
    attacker.has_heard_nothing()?;

    site.machine.ip("address add 10.7.0.50/24 dev eth0")?;
    let answer = site.machine.inside(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 68))?;
        socket.set_read_timeout(Some(COUNT_TIMEOUT))?;
        socket.send_to(&request, SocketAddrV4::new(SERVER, BOOT_SERVER_PORT))?;
        let mut buffer = [0; 1500];
        let length = socket.recv(&mut buffer).context("no answer on port 4011")?;
        Ok(buffer.get(..length).unwrap_or_default().to_vec())
    })?;
    let base = draw::base_url(&answer)?;
    ensure!(Site::fetch(&site.machine, &base, "script.ipxe")? == "200", "{base}");
    Ok(())
}
