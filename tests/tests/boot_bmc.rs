//! Servers with a BMC, asked by clients of others: on from the network as far as enrolled, then shut down by their
//! operating system when the power button is pressed. pxed has no part in their power; where it has, with the other kinds
//! of BMC, is boot_power.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bedplate_tests::bmc::chassis::{Action, Source};
use bedplate_tests::bmc::server::BmcKind;
use bedplate_tests::bmc::tool;
use bedplate_tests::boot::{ENROLLED, SCRIPT};
use bedplate_tests::guard;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::qemu::{Firmware, GuestSlot, Spec};
use bedplate_tests::rack::Rack;
use bedplate_tests::timeline;
use jiff::Timestamp;
use serde_json::json;

/// Until one of the places for Linux guests is free.
const SLOT: Duration = Duration::from_secs(1200);
/// From the power button to no power.
const SHUTDOWN: Duration = Duration::from_secs(120);

fn shuts_down(name: &str, kind: BmcKind) -> Result<()> {
    let rack = Rack::new(name)?;
    let server = rack.machine(Rack::spec(1, Firmware::Bios)).with_bmc(kind)?;
    let setup = Setup::new(pxed::host_image()?);
    let mut pxed = Pxed::start(&setup, &[pxed::manifest(1, "")], rack.network(), rack.path())?;
    let _slot = GuestSlot::take(SLOT)?;
    let since = Timestamp::now();
    tool::boot_from_network(rack.network(), &server)?;
    tool::power(rack.network(), &server, Action::On)?;
    let seen = pxed
        .wait_stage(server.name(), "enrolled", ENROLLED)
        .with_context(|| guard::last_lines(&server.serial(), 25))?;
    timeline::report(name, &seen, since);
    tool::power(rack.network(), &server, Action::GracefulOff)?;
    server.wait_power(false, SHUTDOWN)?;
    let changes: Vec<_> = server.changes().into_iter().map(|change| (change.on, change.boot)).collect();
    ensure!(changes == [(true, Some(Source::Pxe)), (false, None)], "{changes:?}");
    rack.succeeded();
    Ok(())
}

#[test]
fn host_shuts_down_when_simulated_ipmi_asks_it_to() -> Result<()> {
    shuts_down("acpi-ipmi", BmcKind::Ipmi)
}

#[test]
fn host_shuts_down_when_sushy_tools_asks_it_to() -> Result<()> {
    shuts_down("acpi-sushy", BmcKind::Sushy)
}

#[test]
fn uefi_machine_starts_what_its_bmc_was_told() -> Result<()> {
    let rack = Rack::new("bmc-uefi")?;
    let spec = Spec { memory_mib: 256, cpus: 1, ..Rack::spec(1, Firmware::UefiPxe) };
    let server = rack.machine(spec).with_bmc(BmcKind::Redfish)?;
    let system = "/redfish/v1/Systems/1";
    let network = Some(rack.network());
    for (target, marker) in [
        ("UefiHttp", ">>Start HTTP Boot over IPv4"),
        ("Pxe", ">>Start PXE over IPv4"),
        ("None", "EFI Internal Shell"),
    ] {
        let boot = json!({"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": target}});
        tool::curl_json(network, server.address(), "PATCH", system, &boot)?;
        tool::power(rack.network(), &server, Action::On)?;
        server.wait_serial(marker, SCRIPT)?;
        ensure!(target != "None" || !server.serial().contains(">>Start"), "{}", server.serial());
        tool::power(rack.network(), &server, Action::ForceOff)?;
    }
    let boots: Vec<_> = server.changes().into_iter().filter_map(|change| change.boot).collect();
    ensure!(boots == [Source::Http, Source::Pxe, Source::Disk], "{boots:?}");
    rack.succeeded();
    Ok(())
}
