//! Tests of the rack: each kind of firmware netboots from dnsmasq. If these tests pass, a boot that fails from pxed is a fault of pxed.

use anyhow::Result;
use bedplate_tests::boot;
use bedplate_tests::guard::{Process, START_TIMEOUT};
use bedplate_tests::qemu::Firmware;
use bedplate_tests::rack::{BRIDGE, LOADERS, Rack};

/// Output of the script on the serial line.
const MARKER: &str = "the stand-in's script runs";

fn serve(rack: &Rack) -> Result<Process> {
    let root = rack.file("tftp");
    std::fs::create_dir_all(&root)?;
    for loader in ["undionly.kpxe", "snponly.efi", "ipxe.efi"] {
        std::fs::copy(format!("{LOADERS}/{loader}"), root.join(loader))?;
    }
    let arm64 = bedplate_tests::pxed::arm64_loader()?;
    std::fs::copy(&arm64, root.join("grubnetaa64.efi"))?;
    std::fs::write(root.join("script.ipxe"), format!("#!ipxe\necho {MARKER}\nshell\n"))?;
    let mut command = rack.network().command("dnsmasq");
    command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--port=0", "--user=root"]);
    command.args([
        "--log-facility=-",
        "--log-dhcp",
        "--leasefile-ro",
        "--enable-tftp",
        "--interface",
        BRIDGE,
    ]);
    command.arg(format!("--tftp-root={}", root.display()));
    command.args(["--dhcp-range=10.7.0.100,10.7.0.199,1h", "--dhcp-no-override"]);
    command.args(["--dhcp-match=set:ipxe,175", "--dhcp-match=set:efi,option:client-arch,7"]);
    command.args(["--dhcp-match=set:arm,option:client-arch,11", "--dhcp-boot=tag:arm,grubnetaa64.efi"]);
    command.args(["--dhcp-option=tag:ipxe,encap:175,176,1b"]);
    command.args(["--dhcp-boot=tag:ipxe,script.ipxe", "--dhcp-boot=tag:!ipxe,tag:efi,snponly.efi"]);
    command.args(["--dhcp-boot=tag:!ipxe,tag:!efi,tag:!arm,undionly.kpxe"]);
    let mut process = Process::spawn("dnsmasq", &mut command, &rack.file("dnsmasq.log"))?;
    process.wait_said("DHCP, IP range", START_TIMEOUT)?;
    Ok(process)
}

fn reaches_script(name: &str, firmware: Firmware) -> Result<()> {
    let rack = Rack::new(name)?;
    let mut server = serve(&rack)?;
    let started = std::time::Instant::now();
    let mut machine = rack.power_on(1, firmware)?;
    server.wait_said("script.ipxe to 10.7.0.", boot::ENROLL_TIMEOUT)?;
    bedplate_tests::timeline::say(&format!("boot {name}: script {:.1} s", started.elapsed().as_secs_f64()));
    machine.wait_serial(MARKER, boot::SCRIPT_TIMEOUT)?;
    rack.succeeded();
    Ok(())
}

#[test]
fn bios_machine_reaches_the_stand_ins_script() -> Result<()> {
    reaches_script("stand-in-bios", Firmware::Bios)
}

#[test]
fn uefi_machine_reaches_the_stand_ins_script() -> Result<()> {
    reaches_script("stand-in-uefi", Firmware::UefiPxe)
}

#[test]
fn arm64_machine_runs_the_packages_loader() -> Result<()> {
    let rack = Rack::new("stand-in-arm64")?;
    let mut server = serve(&rack)?;
    let started = std::time::Instant::now();
    let mut machine = rack.power_on(1, Firmware::Arm64Pxe)?;
    server.wait_said("grubnetaa64.efi to 10.7.0.", boot::ENROLL_TIMEOUT)?;
    bedplate_tests::timeline::say(&format!(
        "boot stand-in-arm64: loader {:.1} s",
        started.elapsed().as_secs_f64()
    ));
    machine.wait_serial("grub>", boot::SCRIPT_TIMEOUT)?;
    rack.succeeded();
    Ok(())
}
