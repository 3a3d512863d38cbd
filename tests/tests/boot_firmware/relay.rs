//! Servers in another network, whose packets reach pxed through a third-party relay agent.

use anyhow::Result;
use bedplate_tests::boot;
use bedplate_tests::guard::{self, Process, START_TIMEOUT};
use bedplate_tests::netns::Namespace;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::qemu::Firmware;
use bedplate_tests::rack::Rack;

/// Adds pxed's network 10.9.0.0/24 next to the rack's. The rack's namespace is the router between them.
fn add_server_network(rack: &Rack) -> Result<Namespace> {
    let server = Namespace::new("server")?;
    rack.network().add_veth("up", &server, "eth0")?;
    rack.network().ip("address add 10.9.0.1/24 dev up")?;
    server.ip("address add 10.9.0.2/24 dev eth0")?;
    server.ip("route add default via 10.9.0.1")?;
    guard::run(rack.network().command("sh").args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]))?;
    Ok(server)
}

fn boots(name: &str, relay: &[&str], started: &str, firmware: Firmware, stage: &str) -> Result<()> {
    let rack = Rack::new(name)?;
    let _capture = rack.capture()?;
    let server = add_server_network(&rack)?;
    let [program, arguments @ ..] = relay else { anyhow::bail!("no relay") };
    let mut command = rack.network().command(program);
    let mut relay = Process::spawn(program, command.args(arguments), &rack.file("relay.log"))?;
    relay.wait_said(started, START_TIMEOUT)?;
    let mut setup = Setup::new(pxed::host_image()?);
    setup.interfaces = vec!["eth0".to_owned()];
    // Its address on the machines' link, and the one that dhcrelay sends from.
    setup.subnets.iter_mut().for_each(|subnet| subnet.push_str("relays = [\"10.7.0.1\", \"10.9.0.1\"]\n"));
    let mut pxed = Pxed::start(&setup, &[pxed::manifest(1, "")], &server, rack.path())?;
    boot::boots(name, &rack, &mut pxed, 1, firmware, stage)?;
    rack.succeeded();
    Ok(())
}

#[test]
fn bios_machine_behind_isc_dhcrelay_boots_to_enrolled() -> Result<()> {
    // -a adds option 82, which the answer has to bring back.
    let relay = ["dhcrelay", "-4", "-d", "--no-pid", "-a", "-id", "br0", "-iu", "up", "10.9.0.2"];
    boots("dhcrelay", &relay, "Sending on   Socket", Firmware::Bios, "Enrolled")
}

#[test]
fn uefi_machine_behind_dnsmasq_as_relay_fetches_its_root_image() -> Result<()> {
    let relay = [
        "dnsmasq",
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--pid-file=",
        "--port=0",
        "--user=root",
        "--log-facility=-",
        "--dhcp-relay=10.7.0.1,10.9.0.2",
    ];
    boots("dnsmasq-relay", &relay, "DHCP relay from 10.7.0.1", Firmware::UefiPxe, "RootFS")
}
