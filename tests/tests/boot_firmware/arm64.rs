//! A 64-bit ARM server is offered the loader for its architecture, fetches it and runs it.
//!
//! Debian 12 has no iPXE for arm64; the loader here is GRUB's for networks, and its prompt is as far as this goes.

use anyhow::Result;
use bedplate_tests::boot;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::qemu::Firmware;
use bedplate_tests::rack::Rack;

#[test]
fn arm64_machine_runs_the_loader_for_its_architecture() -> Result<()> {
    let rack = Rack::new("arm64")?;
    let loaders = rack.file("loaders");
    std::fs::create_dir_all(&loaders)?;
    std::fs::copy(pxed::arm64_loader()?, loaders.join("grubnetaa64.efi"))?;
    let mut setup = Setup::new(pxed::stub_image(rack.path())?);
    setup.loader_directory = loaders;
    setup.loaders = vec![("uefi-arm64", "grubnetaa64.efi")];
    let mut pxed = Pxed::start(&setup, &[pxed::manifest(1, "")], rack.network(), rack.path())?;
    let since = jiff::Timestamp::now();
    let mut machine = rack.power_on(1, Firmware::Arm64Pxe)?;
    boot::reaches("arm64", &mut pxed, &machine, "Loader", since, boot::ENROLL_TIMEOUT)?;
    machine.wait_serial("grub>", boot::SCRIPT_TIMEOUT)?;
    rack.succeeded();
    Ok(())
}
