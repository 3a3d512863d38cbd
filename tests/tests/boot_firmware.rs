//! Boots of each kind of firmware in each kind of network.
//!
//! UEFI firmware boots to `enrolled` here; `boot_state_disk` tests BIOS. Next to another DHCP server and behind a relay, one firmware
//! boots to `enrolled`. The other one stops at the root image, because the network makes no difference after that.

mod boot_firmware {
    mod arm64;
    mod discovery;
    mod proxy;
    mod relay;
}

use anyhow::Result;
use bedplate_tests::boot;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::qemu::Firmware;
use bedplate_tests::rack::Rack;

fn enrolls(name: &str, firmware: Firmware) -> Result<()> {
    let rack = Rack::new(name)?;
    let _capture = rack.capture()?;
    let setup = Setup::new(pxed::host_image()?);
    let mut pxed = Pxed::start(&setup, &[pxed::manifest(1, "")], rack.network(), rack.path())?;
    boot::boots(name, &rack, &mut pxed, 1, firmware, "Enrolled")?;
    rack.succeeded();
    Ok(())
}

#[test]
fn uefi_machine_boots_to_enrolled_by_pxe() -> Result<()> {
    enrolls("uefi-pxe", Firmware::UefiPxe)
}

#[test]
fn uefi_machine_boots_to_enrolled_by_http() -> Result<()> {
    enrolls("uefi-http", Firmware::UefiHttp)
}

#[test]
fn uefi_machine_with_ipxe_in_its_card_boots_to_enrolled() -> Result<()> {
    enrolls("uefi-ipxe", Firmware::UefiIpxe)
}
