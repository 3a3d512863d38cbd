//! Servers in a network where somebody else's DHCP server gives the addresses and pxed only says what to boot.

use std::time::Duration;

use anyhow::Result;
use bedplate_tests::boot;
use bedplate_tests::guard::Process;
use bedplate_tests::netns::Namespace;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::qemu::Firmware;
use bedplate_tests::rack::{BRIDGE, Rack};

/// A DHCP server that knows nothing of booting, a host of its own on the bridge.
fn add_address_server(rack: &Rack) -> Result<(Namespace, Process)> {
    let host = Namespace::new("dhcp")?;
    rack.network().add_veth("dhcp", &host, "eth0")?;
    rack.network().ip(&format!("link set dev dhcp master {BRIDGE}"))?;
    host.ip("address add 10.7.0.2/24 dev eth0")?;
    let mut command = host.command("dnsmasq");
    command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--port=0", "--user=root"]);
    command.args([
        "--log-facility=-",
        "--log-dhcp",
        "--leasefile-ro",
        "--dhcp-range=10.7.0.100,10.7.0.199,1h",
    ]);
    let mut process = Process::spawn("dnsmasq", &mut command, &rack.file("dnsmasq.log"))?;
    process.wait_said("DHCP, IP range", Duration::from_secs(10))?;
    Ok((host, process))
}

fn enrols(name: &str, firmware: Firmware) -> Result<()> {
    let rack = Rack::new(name)?;
    let _capture = rack.capture()?;
    let (_host, _server) = add_address_server(&rack)?;
    let mut setup = Setup::new(pxed::host_image()?);
    setup.mode = "proxy";
    setup.subnets = vec!["network = \"10.7.0.0/24\"\n".to_owned()];
    let mut pxed = Pxed::start(&setup, &[pxed::manifest(1, "")], rack.network(), rack.path())?;
    boot::enrols(name, &rack, &mut pxed, 1, firmware)?;
    rack.succeeded();
    Ok(())
}

#[test]
fn bios_machine_boots_to_enrolled_beside_another_dhcp_server() -> Result<()> {
    enrols("proxy-bios", Firmware::Bios)
}

#[test]
fn uefi_machine_boots_to_enrolled_beside_another_dhcp_server() -> Result<()> {
    enrols("proxy-uefi", Firmware::UefiPxe)
}
