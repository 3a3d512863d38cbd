//! Power by pxed on real parts: a machine that is off comes up because its Machine was made (docs/design/rules.md, H2), and
//! MachineOperations switch it (O1, O3), in a cluster under the roles of `deploy/` and without one.

use anyhow::{Result, ensure};
use bedplate_tests::bmc::chassis::{Action, Source};
use bedplate_tests::bmc::server::BmcKind;
use bedplate_tests::boot::{ENROLL_TIMEOUT, SCRIPT_TIMEOUT};
use bedplate_tests::guest::GuestSlot;
use bedplate_tests::qemu::Firmware;
use bedplate_tests::rack::Rack;
use bedplate_tests::site::{CHANGE_TIMEOUT, Site, has_condition};
use serde_json::json;

/// A machine that boots from its network, and one that goes off.
const PXE: Option<Source> = Some(Source::Pxe);
const OFF: Option<Source> = None;

/// Checks the reports of pxed and the cluster on a machine that pxed has switched on and that has enrolled.
fn check_reports(site: &Site<'_>) -> Result<()> {
    site.has_seen(1, &[Action::On], &[PXE])?;
    let machine = site.until("power and enrollment in the cluster", CHANGE_TIMEOUT, |site| {
        let machine = site.get("machine", "server-1")?;
        let status = &machine["status"];
        let is_complete = has_condition(status, "Enrolled", "True", "Enrolled")
            && has_condition(status, "BMCReachable", "True", "Reachable")
            && has_condition(status, "PoweredOn", "True", "PoweredOn")
            && status["power"]["state"] == "On"
            && status["hardware"]["bmc"]["model"].is_string();
        Ok(is_complete.then_some(machine))
    })?;
    let last = &machine["status"]["power"]["lastAction"];
    site.ensure(last["action"] == "PowerOn", || last.to_string())?;
    site.until("an Event of the power", CHANGE_TIMEOUT, |site| {
        let events = site.kubectl(&["get", "events", "-A", "-o", "wide"])?;
        Ok((events.contains("PowerChanged") && events.contains("machine/server-1")).then_some(()))
    })
}

/// Boots server 1 for the first time and checks the reports of it. Returns the ID of the boot.
fn first_boot(site: &Site<'_>) -> Result<String> {
    let slot = GuestSlot::take()?;
    site.apply(1, "")?;
    let first = site.boots(1, "", "Enrolled", ENROLL_TIMEOUT)?;
    drop(slot);
    check_reports(site)?;
    Ok(first)
}

#[test]
fn h2_machine_of_a_cluster_boots_by_redfish_and_follows_operations() -> Result<()> {
    let rack = Rack::new("power-redfish")?;
    let server = rack.machine(Rack::spec(1, Firmware::Bios)).with_bmc(BmcKind::Redfish)?;
    let site = Site::in_cluster("power-redfish", &rack, vec![server])?;
    let first = first_boot(&site)?;

    // systemd in the host obeys the ACPI shutdown. The server then stays off while pxed polls its power state.
    let off = site.create(1, "powerOff", &json!({}))?;
    site.completes(&off, "PoweredOff")?;
    site.becomes(1, "a machine that is held off", |status| {
        has_condition(status, "PoweredOn", "False", "PoweredOffByOperation")
    })?;
    site.looks_again("redfish", 2)?;
    site.has_seen(1, &[Action::On, Action::GracefulOff], &[PXE, OFF])?;

    let on = site.create(1, "powerOn", &json!({}))?;
    site.completes(&on, "PoweredOn")?;
    let second = site.boots(1, &first, "Script", SCRIPT_TIMEOUT)?;
    site.until("the other boot in the cluster", CHANGE_TIMEOUT, |site| {
        Ok((site.get("machine", "server-1")?["status"]["boot"]["id"] == *second).then_some(()))
    })?;

    let cycle = site.create(1, "powerCycle", &json!({}))?;
    site.completes(&cycle, "PowerCycled")?;
    let mut asked = vec![Action::On, Action::GracefulOff, Action::On, Action::ForceOff, Action::On];
    site.has_seen(1, &asked, &[PXE, OFF, PXE, OFF, PXE])?;
    let table = site.kubectl(&["get", "mop"])?;
    let row = table.lines().find(|line| line.starts_with(&cycle)).unwrap_or_default();
    site.ensure(row.contains("Complete") && row.contains("server-1"), || table.clone())?;

    // The firmware ignores the power button.
    let off = site.create(1, "powerOff", &json!({ "gracePeriodSeconds": "3" }))?;
    site.completes(&off, "PoweredOff")?;
    asked.extend([Action::GracefulOff, Action::ForceOff]);
    site.has_seen(1, &asked, &[PXE, OFF, PXE, OFF, PXE, OFF])?;
    rack.succeeded();
    Ok(())
}

#[test]
fn h2_machines_of_a_cluster_come_up_over_ipmi_and_operations_switch_them() -> Result<()> {
    let rack = Rack::new("power-ipmi")?;
    let servers = vec![
        rack.machine(Rack::spec(1, Firmware::Bios)).with_bmc(BmcKind::IpmiSim)?,
        rack.machine(Rack::spec(2, Firmware::Bios)).with_bmc(BmcKind::Ipmi)?,
    ];
    let site = Site::in_cluster("power-ipmi", &rack, servers)?;
    // openipmi's BMC, which has cipher suite 3.
    let first = first_boot(&site)?;
    let off = site.create(1, "powerOff", &json!({}))?;
    site.completes(&off, "PoweredOff")?;
    let cycle = site.create(1, "powerCycle", &json!({}))?;
    let status = site.completes(&cycle, "PowerCycled")?;
    site.ensure(status["message"].to_string().contains("only powered on"), || status.to_string())?;
    site.boots(1, &first, "Script", SCRIPT_TIMEOUT)?;
    let off = site.create(1, "powerOff", &json!({ "force": "true" }))?;
    site.completes(&off, "PoweredOff")?;
    let asked = [Action::On, Action::GracefulOff, Action::On, Action::ForceOff];
    site.has_seen(1, &asked, &[PXE, OFF, PXE, OFF])?;

    // The simulator, with suite 17.
    site.apply(2, "    ipmi:\n      cipherSuite: 17\n")?;
    let first = site.boots(2, "", "Script", SCRIPT_TIMEOUT)?;
    let cycle = site.create(2, "powerCycle", &json!({}))?;
    site.completes(&cycle, "PowerCycled")?;
    site.boots(2, &first, "Script", SCRIPT_TIMEOUT)?;
    site.has_seen(2, &[Action::On, Action::ForceOff, Action::On], &[PXE, OFF, PXE])?;
    rack.succeeded();
    Ok(())
}

/// Runs `bedplate power ACT server-1 --wait`; fails unless the operation completes with that reason.
fn power(site: &Site<'_>, act: &str, reason: &str) -> Result<()> {
    let output = site.bedplate(&["power", act, "server-1", "--wait"])?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    site.ensure(output.status.success() && said.contains(&format!("Complete ({reason})")), || {
        format!("bedplate printed {said:?}, {}", String::from_utf8_lossy(&output.stderr))
    })
}

#[test]
fn h2_standalone_machine_boots_and_follows_power_operations() -> Result<()> {
    let rack = Rack::new("power-standalone")?;
    let server = rack.machine(Rack::spec(1, Firmware::Bios)).with_bmc(BmcKind::Sushy)?;
    let slot = GuestSlot::take()?;
    let mut site = Site::standalone("power-standalone", &rack, vec![server])?;
    let first = site.boots(1, "", "Enrolled", ENROLL_TIMEOUT)?;
    drop(slot);
    site.has_seen(1, &[Action::On], &[PXE])?;

    // The host's systemd obeys the power button of sushy-tools.
    power(&site, "off", "PoweredOff")?;
    site.has_seen(1, &[Action::On, Action::GracefulOff], &[PXE, OFF])?;
    power(&site, "on", "PoweredOn")?;
    let second = site.boots(1, &first, "Script", SCRIPT_TIMEOUT)?;
    power(&site, "cycle", "PowerCycled")?;
    let third = site.boots(1, &second, "Script", SCRIPT_TIMEOUT)?;
    let mut asked = vec![Action::On, Action::GracefulOff, Action::On, Action::ForceOff, Action::On];
    site.has_seen(1, &asked, &[PXE, OFF, PXE, OFF, PXE])?;

    let manifest = "apiVersion: bedplate.dev/v1alpha1\nkind: MachineOperation\nmetadata: {name: for-the-night}\nspec:\n  \
                    machineRef: {name: server-1}\n  operationName: powerOff\n  parameters: {force: \"true\"}\n";
    site.put_manifest("off.yaml", manifest)?;
    site.completes("for-the-night", "PoweredOff")?;
    asked.push(Action::ForceOff);
    let switched = [PXE, OFF, PXE, OFF, PXE, OFF];
    site.has_seen(1, &asked, &switched)?;

    // A restarted pxed knows which operation switched the server off, and that the operation is complete.
    site.kill_and_restart()?;
    site.becomes(1, "a machine that is held off", |status| {
        has_condition(status, "PoweredOn", "False", "PoweredOffByOperation")
    })?;
    site.looks_again("redfish", 2)?;
    site.completes("for-the-night", "PoweredOff")?;
    site.has_seen(1, &asked, &switched)?;
    ensure!(site.pxed()?.machine("server-1")?["status"]["boot"]["id"] == *third, "another boot");
    rack.succeeded();
    Ok(())
}
