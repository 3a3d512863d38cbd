//! One server of each kind of firmware, from power-on to enrolled, pxed being the DHCP server of their network.

use anyhow::Result;
use bedplate_tests::boot;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::qemu::Firmware;
use bedplate_tests::rack::Rack;

fn enrols(name: &str, firmware: Firmware) -> Result<()> {
    let rack = Rack::new(name)?;
    let _capture = rack.capture()?;
    let setup = Setup::new(pxed::host_image()?);
    let mut pxed = Pxed::start(&setup, &[pxed::manifest(1, "")], rack.network(), rack.path())?;
    boot::enrols(name, &rack, &mut pxed, 1, firmware)?;
    rack.succeeded();
    Ok(())
}

#[test]
fn bios_machine_boots_to_enrolled() -> Result<()> {
    enrols("bios", Firmware::Bios)
}

#[test]
fn uefi_machine_boots_to_enrolled_by_pxe() -> Result<()> {
    enrols("uefi-pxe", Firmware::UefiPxe)
}

#[test]
fn uefi_machine_boots_to_enrolled_by_http() -> Result<()> {
    enrols("uefi-http", Firmware::UefiHttp)
}

#[test]
fn uefi_machine_with_ipxe_in_its_card_boots_to_enrolled() -> Result<()> {
    enrols("uefi-ipxe", Firmware::UefiIpxe)
}
