//! A machine that no Machine object names, with discovery on: it boots the discovery image up to its userspace, is
//! remembered with what it said of itself, and cannot enroll.

use anyhow::{Context, Result, ensure};
use bedplate_tests::guest::GuestSlot;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::qemu::{self, Firmware};
use bedplate_tests::rack::Rack;
use bedplate_tests::{boot, guard, timeline, wait};
use jiff::Timestamp;
use serde_json::Value;

/// The machine's number in the rack: 4d in its addresses.
const NUMBER: u8 = 77;

#[test]
fn unknown_machine_boots_the_discovery_image_and_is_remembered() -> Result<()> {
    let rack = Rack::new("discovery")?;
    let mut setup = Setup::new(pxed::host_image()?);
    setup.discovery = true;
    // Another server has a Machine, so this pxed knows at least one Machine.
    let mut pxed = Pxed::start(&setup, &[pxed::manifest(1, "")], rack.network(), rack.path())?;
    let slot = GuestSlot::take()?;
    let since = Timestamp::now();
    let mut machine = rack.power_on(NUMBER, Firmware::Bios)?;
    let mut seen = Value::Null;
    wait::until("the unknown machine's userspace", boot::ENROLL_TIMEOUT, || {
        ensure!(machine.has_power(), "the machine has lost power");
        let items = pxed::ask(&pxed.socket(), "/v1/discovered")?["items"].clone();
        seen = items.get(0).cloned().unwrap_or_default();
        Ok((seen["stage"] == "Userspace").then_some(()))
    })
    .with_context(|| {
        let serial = guard::last_lines(&machine.serial(), 25);
        format!("{seen}\nserial line:\n{serial}\npxed:\n{}", guard::last_lines(&pxed.process().said(), 25))
    })?;
    drop(slot);
    let took = (Timestamp::now() - since).total(jiff::Unit::Second)?;
    timeline::say(&format!("boot discovery: userspace {took:.1} s"));

    ensure!(seen["macAddress"] == Rack::mac(NUMBER).to_string(), "{seen}");
    ensure!(seen["uuid"] == qemu::uuid(Rack::mac(NUMBER)), "{seen}");
    ensure!(seen["architectures"][0] == 0, "{seen}");
    let time = |key: &str| seen[key].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let (first, last) =
        (time("firstSeen").context("no firstSeen")?, time("lastSeen").context("no lastSeen")?);
    ensure!(since <= first && first < last && last <= Timestamp::now(), "{seen}");

    machine.wait_serial("no Machine has the MAC address of unknown-525400bed04d", boot::SCRIPT_TIMEOUT)?;
    let (said, all) = (pxed.process().said(), pxed.machines()?);
    ensure!(!said.contains("enrollment refused"), "it tried to enroll");
    ensure!(all.len() == 1 && all[0].pointer("/status/boot").is_none(), "a Machine was told of it: {all:?}");
    rack.succeeded();
    Ok(())
}
