//! Each kind of BMC before a virtual machine, asked by clients of others. The machines come as far as their firmware, which
//! does not listen to the power button.

use std::time::Duration;

use anyhow::{Result, ensure};
use bedplate_tests::bmc::chassis::{Action, Source};
use bedplate_tests::bmc::server::{BmcKind, behind_one};
use bedplate_tests::bmc::tool;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::qemu::{Firmware, Spec};
use bedplate_tests::rack::Rack;
use serde_json::json;

/// Maximum time until the firmware starts a boot source.
const FIRMWARE: Duration = Duration::from_secs(300);

fn switches_a_machine(name: &str, kind: BmcKind) -> Result<()> {
    let rack = Rack::new(name)?;
    let spec = Spec { memory_mib: 64, cpus: 1, ..Rack::spec(1, Firmware::Bios) };
    let server = rack.machine(spec).with_bmc(kind)?;
    ensure!(!server.has_power(), "a machine with a BMC waits for it");

    tool::boot_from_network(rack.network(), &server)?;
    tool::power(rack.network(), &server, Action::On)?;
    server.wait_power(true, FIRMWARE)?;
    server.wait_serial("iPXE", FIRMWARE)?;
    tool::power(rack.network(), &server, Action::GracefulOff)?;
    tool::power(rack.network(), &server, Action::Reset)?;
    ensure!(server.has_power(), "a loader does not listen to the power button");
    tool::power(rack.network(), &server, Action::ForceOff)?;
    server.wait_power(false, FIRMWARE)?;
    // A boot override holds once only.
    tool::power(rack.network(), &server, Action::On)?;
    server.wait_power(true, FIRMWARE)?;
    server.wait_serial("No bootable device", FIRMWARE)?;
    tool::power(rack.network(), &server, Action::ForceOff)?;
    server.wait_power(false, FIRMWARE)?;

    let changes: Vec<_> = server.changes().into_iter().map(|change| (change.on, change.boot)).collect();
    let expected = [(true, Some(Source::Pxe)), (false, None), (true, Some(Source::Disk)), (false, None)];
    ensure!(changes == expected, "{changes:?}");
    ensure!(server.cycles() == 1);
    let asked = server.chassis().lock().asked().to_vec();
    ensure!(asked.iter().any(|asked| asked.action == Action::GracefulOff && asked.was_on), "{asked:?}");
    rack.succeeded();
    Ok(())
}

#[test]
fn simulated_redfish_switches_a_virtual_machine() -> Result<()> {
    switches_a_machine("bmc-redfish", BmcKind::Redfish)
}

#[test]
fn simulated_ipmi_switches_a_virtual_machine() -> Result<()> {
    switches_a_machine("bmc-ipmi", BmcKind::Ipmi)
}

#[test]
fn ipmi_sim_switches_a_virtual_machine() -> Result<()> {
    switches_a_machine("bmc-ipmi-sim", BmcKind::IpmiSim)
}

#[test]
fn sushy_tools_switches_a_virtual_machine() -> Result<()> {
    switches_a_machine("bmc-sushy", BmcKind::Sushy)
}

#[test]
fn each_machine_of_an_enclosure_is_switched_by_its_own_system() -> Result<()> {
    let rack = Rack::new("bmc-enclosure")?;
    let spec = |number| Spec { memory_mib: 64, cpus: 1, ..Rack::spec(number, Firmware::Bios) };
    let servers = behind_one(&rack, vec![spec(1), spec(2)])?;
    let body = json!({"ResetType": "On"});
    let path = "/redfish/v1/Systems/2/Actions/ComputerSystem.Reset";
    tool::curl_json(Some(rack.network()), servers[1].address(), "POST", path, &body)?;
    ensure!(!servers[0].has_power() && servers[1].has_power());
    ensure!(servers[1].bmc_yaml().contains("systemID: \"2\""), "{}", servers[1].bmc_yaml());
    rack.succeeded();
    Ok(())
}

#[test]
fn a_cycle_takes_power_away_once_from_its_own_machine() -> Result<()> {
    let rack = Rack::new("bmc-cycle")?;
    let spec = |number| Spec { memory_mib: 64, cpus: 1, ..Rack::spec(number, Firmware::Bios) };
    let server = rack.machine(spec(1)).with_bmc(BmcKind::Ipmi)?;
    let other = rack.machine(spec(2)).with_bmc(BmcKind::Redfish)?;
    tool::power(rack.network(), &server, Action::On)?;
    tool::power(rack.network(), &server, Action::Cycle)?;
    ensure!(server.has_power() && server.cycles() == 1);
    ensure!(!other.has_power(), "each BMC has its own machine");
    rack.succeeded();
    Ok(())
}

#[test]
fn uefi_machine_starts_from_its_bmcs_boot_override() -> Result<()> {
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
        server.wait_serial(marker, FIRMWARE)?;
        ensure!(target != "None" || !server.serial().contains(">>Start"), "{}", server.serial());
        tool::power(rack.network(), &server, Action::ForceOff)?;
    }
    let boots: Vec<_> = server.changes().into_iter().filter_map(|change| change.boot).collect();
    ensure!(boots == [Source::Http, Source::Pxe, Source::Disk], "{boots:?}");
    rack.succeeded();
    Ok(())
}

#[test]
fn pxed_accepts_a_servers_manifest_and_its_credentials_are_private() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let rack = Rack::new("bmc-manifest")?;
    let server = rack.machine(Rack::spec(1, Firmware::Bios)).with_bmc(BmcKind::Redfish)?;
    let more = format!("  powerPolicy: Unmanaged\n{}", server.bmc_yaml());
    let manifest = pxed::manifest(1, &more);
    ensure!(manifest.contains("    address: https://10.7.0.200\n"), "{manifest}");
    let pin = server.pin().map(|pin| pin.to_string()).unwrap_or_default();
    ensure!(pin.starts_with("sha256:") && manifest.contains(&pin), "{manifest}");
    let directory = pxed::credentials_directory(rack.path());
    server.write_credentials(&directory)?;
    let password = directory.join("bedplate-system/server-1-bmc/password");
    ensure!(std::fs::metadata(&password)?.permissions().mode() & 0o777 == 0o600);
    let setup = Setup::new(pxed::stub_image(rack.path())?);
    let pxed = Pxed::start(&setup, &[manifest], rack.network(), rack.path())?;
    let seen = pxed.machine(server.name())?;
    ensure!(seen.pointer("/spec/bmc/redfish/tls/pins/0").is_some_and(|seen| *seen == pin), "{seen}");
    rack.succeeded();
    Ok(())
}
