//! Servers in a network where another DHCP server assigns the addresses and pxed only answers boot requests.

use anyhow::Result;
use bedplate_tests::boot;
use bedplate_tests::guard::{Process, START_TIMEOUT};
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
    process.wait_said("DHCP, IP range", START_TIMEOUT)?;
    Ok((host, process))
}

fn boots(name: &str, firmware: Firmware, stage: &str) -> Result<()> {
    let rack = Rack::new(name)?;
    let _capture = rack.capture()?;
    let (_host, _server) = add_address_server(&rack)?;
    let mut setup = Setup::new(pxed::host_image()?);
    setup.mode = "proxy";
    setup.subnets = vec!["network = \"10.7.0.0/24\"\n".to_owned()];
    let mut pxed = Pxed::start(&setup, &[pxed::manifest(1, "")], rack.network(), rack.path())?;
    boot::boots(name, &rack, &mut pxed, 1, firmware, stage)?;
    rack.succeeded();
    Ok(())
}

#[test]
fn bios_machine_fetches_its_root_image_next_to_another_dhcp_server() -> Result<()> {
    boots("proxy-bios", Firmware::Bios, "RootFS")
}

#[test]
fn uefi_machine_boots_to_enrolled_next_to_another_dhcp_server() -> Result<()> {
    boots("proxy-uefi", Firmware::UefiPxe, "Enrolled")
}
