//! Foreign DHCP clients and a foreign relay against pxed as a process: udhcpc, dhclient, dhcrelay, perfdhcp.
//!
//! Two to four network namespaces each; no virtual machine.

mod dhcp_clients {
    mod trust;
}

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bedplate_tests::guard::{self, Directory, Process};
use bedplate_tests::netns::Namespace;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::rack::Rack;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Script that udhcpc calls with its lease in the environment.
const REPORT: &str = "#!/bin/sh\n[ \"$1\" = bound ] && env > \"$REPORT\"\nexit 0\n";

/// pxed's namespace and a client's, joined by a wire.
struct Wire {
    directory: Directory,
    server: Namespace,
    client: Namespace,
}

impl Wire {
    fn new(label: &str) -> Result<Self> {
        let (directory, server, client) =
            (Directory::new(label)?, Namespace::new("server")?, Namespace::new("client")?);
        server.add_veth("rack0", &client, "eth0")?;
        server.ip("address add 10.7.0.1/24 dev rack0")?;
        Ok(Self { directory, server, client })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn setup(&self) -> Result<Setup> {
        let mut setup = Setup::new(pxed::stub_image(self.path())?);
        setup.interfaces = vec!["rack0".to_owned()];
        Ok(setup)
    }

    fn start(&self, setup: &Setup) -> Result<Pxed<'_>> {
        let machines = [pxed::manifest(1, "      addresses: [10.7.0.21/24]\n"), pxed::manifest(2, "")];
        Pxed::start(setup, &machines, &self.server, self.path())
    }

    /// Gives the client's device the MAC address of machine `number`.
    fn become_machine(&self, number: u8) -> Result<()> {
        self.client.ip("link set dev eth0 down")?;
        self.client.ip(&format!("link set dev eth0 address {}", Rack::mac(number)))?;
        self.client.ip("link set dev eth0 up").map(drop)
    }
}

/// One lease by udhcpc in the environment that it gives its script, or why there is none.
fn udhcpc(client: &Namespace, directory: &Path, more: &[&str]) -> Result<String> {
    let (script, report) = (directory.join("report.sh"), directory.join("report"));
    std::fs::write(&script, REPORT)?;
    guard::run(Command::new("chmod").arg("755").arg(&script))?;
    let _ = std::fs::remove_file(&report);
    let mut command = client.command("udhcpc");
    command.args(["-i", "eth0", "-f", "-n", "-q", "-t", "3", "-T", "2", "-s"]).arg(&script).args(more);
    guard::run(command.env("REPORT", &report))?;
    std::fs::read_to_string(&report).context("udhcpc has not reported its lease")
}

fn says(report: &str, name: &str, value: &str) -> Result<()> {
    let line = format!("{name}={value}");
    ensure!(report.lines().any(|l| l == line), "no {line} in\n{report}");
    Ok(())
}

fn address_of(report: &str) -> Result<&str> {
    report.lines().find_map(|line| line.strip_prefix("ip=")).context("no address")
}

#[test]
fn udhcpc_gets_the_fixed_address_and_the_options_of_its_subnet() -> Result<()> {
    let wire = Wire::new("udhcpc")?;
    let _pxed = wire.start(&wire.setup()?)?;
    wire.become_machine(1)?;
    let report = udhcpc(&wire.client, wire.path(), &["-O", "domain"])?;
    for (name, value) in [
        ("ip", "10.7.0.21"),
        ("subnet", "255.255.255.0"),
        ("router", "10.7.0.1"),
        ("dns", "10.7.0.1"),
        ("hostname", "server-1"),
        ("domain", "rack.example"),
        ("serverid", "10.7.0.1"),
    ] {
        says(&report, name, value)?;
    }
    Ok(())
}

#[test]
fn machine_in_a_subnet_without_its_fixed_address_gets_none_and_is_named() -> Result<()> {
    let wire = Wire::new("stray")?;
    let mut setup = wire.setup()?;
    setup.subnets.push("network = \"10.9.0.0/24\"\n".to_owned());
    let machines = [pxed::manifest(1, "      addresses: [10.9.0.21/24]\n")];
    let mut pxed = Pxed::start(&setup, &machines, &wire.server, wire.path())?;
    wire.become_machine(1)?;
    let given = udhcpc(&wire.client, wire.path(), &[]);
    ensure!(given.is_err(), "{given:?}");
    pxed.process().wait_said("AddressOutsideSubnets", Duration::from_secs(30))?;
    let said = pxed.process().said();
    ensure!(said.contains("add an address of 10.7.0.0/24 to spec.pxe.interfaces[].addresses"), "{said}");
    Ok(())
}

#[test]
fn firmware_gets_its_loader_and_an_operating_system_does_not() -> Result<()> {
    let wire = Wire::new("loader")?;
    let _pxed = wire.start(&wire.setup()?)?;
    wire.become_machine(2)?;
    let options = ["-V", "PXEClient:Arch:00000", "-x", "0x5d:0000", "-O", "bootfile", "-O", "tftp"];
    let report = udhcpc(&wire.client, wire.path(), &options)?;
    says(&report, "siaddr", "10.7.0.1")?;
    ensure!(
        report.lines().any(|l| l.starts_with("boot_file=b/") && l.ends_with("/undionly.kpxe")),
        "{report}"
    );
    let report = udhcpc(&wire.client, wire.path(), &[])?;
    ensure!(!report.contains("boot_file="), "{report}");
    Ok(())
}

#[test]
fn unknown_machine_gets_nothing_until_discovery_is_on() -> Result<()> {
    let wire = Wire::new("unknown")?;
    let mut setup = wire.setup()?;
    let silent = wire.start(&setup)?;
    wire.become_machine(200)?;
    ensure!(udhcpc(&wire.client, wire.path(), &[]).is_err(), "an unknown machine was served");
    drop(silent);
    setup.discovery = true;
    let _pxed = wire.start(&setup)?;
    let report = udhcpc(&wire.client, wire.path(), &[])?;
    ensure!(address_of(&report)?.starts_with("10.7.0.1"), "{report}");
    Ok(())
}

#[test]
fn lease_outlives_kill_9_and_its_address_is_not_reassigned() -> Result<()> {
    let wire = Wire::new("kill")?;
    let mut setup = wire.setup()?;
    setup.discovery = true;
    let pxed = wire.start(&setup)?;
    wire.become_machine(2)?;
    let first = udhcpc(&wire.client, wire.path(), &[])?;
    let _pxed = pxed.kill_and_restart()?;
    wire.become_machine(201)?;
    let other = udhcpc(&wire.client, wire.path(), &[])?;
    ensure!(address_of(&other)? != address_of(&first)?, "given twice: {first}");
    wire.become_machine(2)?;
    let again = udhcpc(&wire.client, wire.path(), &[])?;
    says(&again, "ip", address_of(&first)?)
}

/// Runs `work` with a disk of 8 MiB at `path` that only its thread and child processes see. Images have a disk of their own, because pxed
/// keeps more space free than this one has.
fn with_small_disk<T: Send>(path: &Path, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::fs::create_dir_all(path)?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            unshare(CloneFlags::CLONE_NEWNS).context("no mount namespace")?;
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
                .context("mounts are shared")?;
            mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), Some("size=8m"))
                .context("no tmpfs")?;
            let images = path.join("images");
            std::fs::create_dir(&images)?;
            mount(Some("tmpfs"), &images, Some("tmpfs"), MsFlags::empty(), none).context("no tmpfs")?;
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Fills the disk of `file`.
fn fill(file: &Path) -> Result<()> {
    let mut filler = std::fs::File::create(file)?;
    loop {
        match filler.write_all(&[0; 4096]) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[test]
fn lease_that_cannot_be_stored_is_not_acknowledged() -> Result<()> {
    let wire = Wire::new("full")?;
    let state = wire.path().join("state");
    with_small_disk(&state, || {
        let mut setup = wire.setup()?;
        setup.discovery = true;
        let pxed = wire.start(&setup)?;
        fill(&state.join("filler"))?;
        let failures = || pxed.metric("bedplate_pxed_dhcp_errors_total{reason=\"commit_failed\"}");
        // The file has some free pages.
        for client in 100..120 {
            wire.become_machine(client)?;
            let is_leased = udhcpc(&wire.client, wire.path(), &["-t", "1", "-T", "1"]).is_ok();
            let failed = failures()?;
            ensure!(is_leased == (failed == 0), "leased: {is_leased}, failed commits: {failed}");
            if !is_leased {
                break;
            }
        }
        ensure!(failures()? > 0, "no lease was refused on a full disk");
        std::fs::remove_file(state.join("filler"))?;
        udhcpc(&wire.client, wire.path(), &[]).context("no lease after space was freed").map(drop)
    })
}

#[test]
fn dhclient_leases_reboots_into_the_same_address_and_releases_it() -> Result<()> {
    let wire = Wire::new("dhclient")?;
    let _pxed = wire.start(&wire.setup()?)?;
    wire.become_machine(2)?;
    let at = |name: &str| wire.path().join(name);
    std::fs::write(at("conf"), "request subnet-mask, routers, domain-name-servers;\ntimeout 20;\n")?;
    std::fs::write(at("leases"), "")?;
    // Sets the address and the route to it, as the real script would: a release is sent from there.
    let script =
        "#!/bin/sh\nif [ -n \"$new_ip_address\" ]; then ip address replace $new_ip_address/24 dev eth0; fi\n";
    std::fs::write(at("script"), script)?;
    guard::run(Command::new("chmod").arg("755").arg(at("script")))?;
    let dhclient = |mode: &[&str]| {
        let mut command = wire.client.command("dhclient");
        command.args(["-4", "-v"]).args(mode);
        command.arg("-cf").arg(at("conf")).arg("-lf").arg(at("leases"));
        command.arg("-pf").arg(at("pid")).arg("-sf").arg(at("script")).arg("eth0");
        command
    };
    let run = |mode: &[&str], log: &str, until: &str| -> Result<String> {
        let mut process = Process::spawn("dhclient", &mut dhclient(mode), &at(log))?;
        process.wait_said(until, Duration::from_secs(30))?;
        Ok(process.said())
    };
    let bound = |said: &str| {
        let line = said.lines().find(|line| line.starts_with("bound to "));
        line.and_then(|line| line.split(' ').nth(2)).map(str::to_owned).context("not bound")
    };
    let first = run(&["-d", "-1"], "first.log", "bound to")?;
    ensure!(first.contains("DHCPDISCOVER"), "{first}");
    let again = run(&["-d", "-1"], "again.log", "bound to")?;
    ensure!(!again.contains("DHCPDISCOVER"), "no INIT-REBOOT: {again}");
    ensure!(bound(&first)? == bound(&again)?);
    let released = run(&["-d", "-r"], "release.log", "DHCPRELEASE of")?;
    ensure!(released.contains("to 10.7.0.1 port 67"), "{released}");
    Ok(())
}

/// Makes `wire.client` a router with a relay, 10.7.0.2 toward pxed and 10.8.0.1 toward machine 2 in the returned namespace.
fn behind_relay(wire: &Wire) -> Result<(Namespace, Setup, Process)> {
    let behind = Namespace::new("behind")?;
    wire.client.ip("address add 10.7.0.2/24 dev eth0")?;
    wire.client.add_veth("down0", &behind, "eth0")?;
    wire.client.ip("address add 10.8.0.1/24 dev down0")?;
    wire.server.ip("route add 10.8.0.0/24 via 10.7.0.2")?;
    let mut setup = wire.setup()?;
    let subnet = "network = \"10.8.0.0/24\"\nranges = [\"10.8.0.50-10.8.0.59\"]\nrouters = [\"10.8.0.1\"]\n";
    // dhcrelay sends from its address toward pxed.
    setup.subnets.push(format!("{subnet}relays = [\"10.8.0.1\", \"10.7.0.2\"]\n"));
    let mut command = wire.client.command("dhcrelay");
    command.args(["-4", "-d", "--no-pid", "-a", "-id", "down0", "-iu", "eth0", "10.7.0.1"]);
    let mut relay = Process::spawn("dhcrelay", &mut command, &wire.path().join("relay.log"))?;
    relay.wait_said("Sending on   Socket", Duration::from_secs(10))?;
    behind.ip(&format!("link set dev eth0 address {}", Rack::mac(2)))?;
    Ok((behind, setup, relay))
}

#[test]
fn udhcpc_behind_dhcrelay_gets_its_lease_in_the_relays_subnet() -> Result<()> {
    let wire = Wire::new("relay")?;
    let (behind, setup, _relay) = behind_relay(&wire)?;
    let _pxed = wire.start(&setup)?;
    let report = udhcpc(&behind, wire.path(), &[])?;
    ensure!(address_of(&report)?.starts_with("10.8.0.5"), "{report}");
    says(&report, "router", "10.8.0.1")?;
    says(&report, "serverid", "10.7.0.1")
}

#[test]
fn trust_6_relay_with_the_fixed_address_of_a_machine_is_not_believed() -> Result<()> {
    let wire = Wire::new("relay-machine")?;
    let (behind, setup, _relay) = behind_relay(&wire)?;
    let machines = [pxed::manifest(1, "      addresses: [10.7.0.2/24]\n"), pxed::manifest(2, "")];
    let mut pxed = Pxed::start(&setup, &machines, &wire.server, wire.path())?;
    ensure!(udhcpc(&behind, wire.path(), &[]).is_err(), "a relayed message was answered");
    let counted = pxed.metric("bedplate_pxed_dhcp_unanswered_total{reason=\"relay_is_machine\"}")?;
    ensure!(counted > 0, "not counted");
    let named =
        format!("10.7.0.2 is in the relays of 10.8.0.0/24, and it is the fixed address of {}", Rack::mac(1));
    let said = pxed.process().said();
    ensure!(said.contains(&named), "{said}");
    let (_, ready) = pxed.health("/readyz")?;
    ensure!(ready.contains("fixed address 10.7.0.2/24"), "{ready}");
    Ok(())
}

/// Packets that the kernel dropped in this namespace because a socket's receive buffer was full.
fn receive_buffer_errors(namespace: &Namespace) -> Result<u64> {
    let table = guard::run(namespace.command("cat").arg("/proc/net/snmp"))?;
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().context("no names")?, lines.next().context("no values")?);
    let mut columns = names.split(' ').zip(values.split(' '));
    let (_, value) = columns.find(|(name, _)| *name == "RcvbufErrors").context("no RcvbufErrors")?;
    Ok(value.parse()?)
}

#[test]
fn perfdhcp_leases_the_whole_pool_and_sees_no_address_twice() -> Result<()> {
    let wire = Wire::new("perfdhcp")?;
    let mut setup = wire.setup()?;
    setup.discovery = true;
    // perfdhcp's clients are no Machines.
    setup.discovery_reserve_percent = 0;
    setup.subnets = vec![
        // perfdhcp poses as a relay.
        "network = \"10.7.0.0/16\"\nranges = [\"10.7.1.0-10.7.8.255\"]\nrouters = [\"10.7.0.1\"]\n\
         relays = [\"10.7.0.250\"]\n"
            .to_owned(),
    ];
    wire.server.ip("address del 10.7.0.1/24 dev rack0")?;
    wire.server.ip("address add 10.7.0.1/16 dev rack0")?;
    let mut pxed = wire.start(&setup)?;
    wire.client.ip("address add 10.7.0.250/16 dev eth0")?;
    let mut command = wire.client.command("perfdhcp");
    // As many exchanges as the pool has addresses, each by another client, which asks once only: a disk that others keep busy may hold ACKs
    // up for many seconds.
    command.args(["-4", "-l", "eth0", "-r", "150", "-R", "100000", "-n", "2048", "-W", "30000000", "-u"]);
    command.args(["-d", "30", "10.7.0.1"]);
    let mut perfdhcp = Process::spawn("perfdhcp", &mut command, &wire.path().join("perfdhcp.log"))?;
    perfdhcp.wait_said("REQUEST-ACK", Duration::from_secs(120))?;
    bedplate_tests::wait::until("the end of perfdhcp", Duration::from_secs(60), || {
        Ok((!perfdhcp.is_running()).then_some(()))
    })?;
    let said = perfdhcp.said();
    // A report without its numbers has proved nothing: how many there must be is part of the claim.
    let numbers = |name: &str, count: usize| -> Result<Vec<u64>> {
        let values = said.lines().filter_map(|line| line.trim().strip_prefix(name));
        let values: Vec<u64> = values.filter_map(|value| value.trim().parse().ok()).collect();
        ensure!(values.len() == count, "{name} {values:?}: {said}");
        Ok(values)
    };
    // DISCOVER to OFFER, REQUEST to ACK.
    ensure!(numbers("non unique addresses:", 2)? == [0, 0], "{said}");
    // A write that takes seconds releases more ACKs together than perfdhcp's socket holds. The kernel counts what it drops there.
    let dropped = receive_buffer_errors(&wire.client)?;
    let received = numbers("received packets:", 2)?;
    ensure!(received.iter().all(|n| n + dropped >= 2040), "{dropped} dropped by perfdhcp's socket: {said}");
    let acknowledged = pxed.metric("bedplate_pxed_dhcp_sent_total{type=\"ack\"}")?;
    // A client whose OFFER was dropped requests nothing.
    ensure!(acknowledged + dropped >= 2040, "pxed sent {acknowledged} ACKs, {dropped} dropped: {said}");
    ensure!(numbers("Malformed packets:", 1)? == [0], "{said}");
    ensure!(pxed.process().is_running());
    Ok(())
}
