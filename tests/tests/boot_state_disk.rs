//! BIOS boot to `enrolled` with a state disk. The wipe that the Machine requests creates it once. The disk survives a reset that acts
//! like a power cut, and no other disk is changed. The wipe that an agent requests at the release of a claim creates it again.
//!
//! Disks are read by e2fsprogs, from copies that are taken while the machine stands still.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use bedplate_agent::node::claim_record::{ClaimRecord, ClaimStage, Claimant, ReleasePolicy};
use bedplate_agent::node::host_state::request_wipe;
use bedplate_agent::stage1::new_root;
use bedplate_agent::stage1::state_plan::{CLAIM_RECORD, LABEL, MARKER, Marker, WIPE_REQUEST};
use bedplate_tests::guard;
use bedplate_tests::guest::GuestSlot;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::qemu::{Disk, Firmware, Machine, Spec};
use bedplate_tests::rack::Rack;
use bedplate_tests::{boot, timeline, wait};
use jiff::Timestamp;
use serde_json::Value;

const SELECTED: &str = "bed-state";
const OTHER: &str = "bed-other";
const STATE: &str = "    stateDisk:\n      serial: bed-state\n      wipe: Once\n      wipeToken: first\n";

/// Properties of a state disk that a test can read from outside.
#[derive(Debug)]
struct State {
    /// UUID of the file system: another one would mean that it was made again.
    file_system: String,
    marker: Value,
    key: String,
    machine_id: String,
    enrollment: Value,
}

/// Stages of a boot by BIOS. The card has iPXE, so no loader is fetched.
const STAGES: [&str; 9] =
    ["Discover", "Offered", "Acknowledged", "Script", "Kernel", "Initrd", "RootFS", "Userspace", "Enrolled"];

/// A disk of `size` MiB that begins with another partition table and data.
fn disk(rack: &Rack, serial: &str, size: u64) -> Result<Disk> {
    let image = rack.file(&format!("{serial}.disk"));
    let mut file = File::create(&image)?;
    let mut head = vec![0xa5; 1 << 20];
    head[510..512].copy_from_slice(&[0x55, 0xaa]);
    file.write_all(&head)?;
    file.set_len(size << 20)?;
    Ok(Disk { image, serial: serial.to_owned() })
}

fn run(command: &mut Command, codes: &[i32]) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.code().is_some_and(|code| codes.contains(&code)) {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

fn sum(path: &Path) -> Result<Vec<u8>> {
    run(Command::new("sha256sum").arg("--binary").arg(path), &[0])
}

/// Copies the disk of a machine that stands still, and replays the journal of the copy, as it would be after a power cut.
fn replayed(rack: &Rack, disk: &Disk, name: &str) -> Result<PathBuf> {
    let copy = rack.file(name);
    run(Command::new("cp").arg("--sparse=always").args([&disk.image, &copy]), &[0])?;
    // 1: corrected.
    run(Command::new("e2fsck").arg("-fp").arg(&copy), &[0, 1])?;
    Ok(copy)
}

/// Reads the state of a machine that stands still.
fn read_state(rack: &Rack, disk: &Disk, name: &str) -> Result<State> {
    let copy = replayed(rack, disk, name)?;
    let ask = |what: &str| run(Command::new("debugfs").arg("-R").arg(what).arg(&copy), &[0]);
    let text = |path: &str| -> Result<String> {
        let text = String::from_utf8(ask(&format!("cat {path}"))?)?;
        ensure!(!text.is_empty(), "{path} is not on the state disk, or empty");
        Ok(text)
    };
    let stats = String::from_utf8(ask("stats")?)?;
    let uuid = stats.lines().find_map(|line| line.strip_prefix("Filesystem UUID:"));
    let overlay = String::from_utf8(ask("ls -p overlay")?)?;
    let image = overlay.lines().filter_map(|line| line.split('/').nth(5)).find(|name| name.len() == 16);
    let image = image.with_context(|| format!("no overlay: {overlay}"))?;
    let state = State {
        file_system: uuid.context("no UUID")?.trim().to_owned(),
        marker: serde_json::from_str(&text(".bedplate-state.json")?)?,
        key: text("bedplate/agent/key.pem")?,
        machine_id: text(&format!("overlay/{image}/upper/etc/machine-id"))?,
        enrollment: serde_json::from_str(&text("bedplate/agent/enrollment.json")?)?,
    };
    fs::remove_file(&copy)?;
    Ok(state)
}

/// Waits until the agent of a boot other than `before` has reported that its disk has this token; gives the Machine.
fn reported(pxed: &mut Pxed<'_>, machine: &Machine, before: Option<&Value>, token: &str) -> Result<Value> {
    let mut seen = Value::Null;
    wait::until("a report of the agent", boot::ENROLL_TIMEOUT, || {
        seen = pxed.machine(machine.name())?;
        let boot = seen.pointer("/status/agent/bootID");
        Ok((boot.is_some() && boot != before && timeline::has(&seen, "Enrolled")).then_some(()))
    })
    .with_context(|| {
        let serial = guard::last_lines(&machine.serial(), 25);
        format!("{seen}\nserial line:\n{serial}\npxed:\n{}", guard::last_lines(&pxed.process().said(), 25))
    })?;
    ensure!(
        seen.pointer("/status/stateDisk")
            == Some(&serde_json::json!({ "name": "virtio-bed-state", "wipeToken": token })),
        "status.stateDisk: {seen}"
    );
    Ok(seen)
}

/// Fails unless the boot has come through all stages in their order.
fn has_all_stages(machine: &Value, since: Timestamp) -> Result<()> {
    let time = |stage: &&str| {
        timeline::seconds_to(machine, stage, since).with_context(|| format!("no stage {stage}: {machine}"))
    };
    let times = STAGES.iter().map(time).collect::<Result<Vec<f64>>>()?;
    ensure!(times.is_sorted() && times[0] >= 0.0, "{}", timeline::line(machine, since));
    Ok(())
}

#[test]
fn state_survives_reset_wipe_happens_once_and_no_other_disk_is_touched() -> Result<()> {
    let rack = Rack::new("state-disk")?;
    let (selected, other) = (disk(&rack, SELECTED, 512)?, disk(&rack, OTHER, 512)?);
    let untouched = sum(&other.image)?;
    let setup = Setup::new(pxed::host_image()?);
    let mut pxed = Pxed::start(&setup, &[pxed::manifest(1, STATE)], rack.network(), rack.path())?;
    let _slot = GuestSlot::take()?;
    let since = Timestamp::now();
    let machine = rack.power_on_as(Spec {
        name: "server-1".to_owned(),
        mac: Rack::mac(1),
        firmware: Firmware::Bios,
        memory_mib: 1024,
        cpus: 2,
        // The one that is not selected is the first, which a program that takes just any would take.
        disks: vec![other.clone(), selected.clone()],
        // The battery is empty: pxed's time counts, otherwise no certificate would be valid.
        clock: Some("2020-01-01T00:00:00"),
    })?;
    let first = reported(&mut pxed, &machine, None, "first")?;
    timeline::report("state-disk", &first, since);
    has_all_stages(&first, since)?;
    let disks = first.pointer("/status/hardware/disks").and_then(Value::as_array).context("no disks")?;
    for serial in [SELECTED, OTHER] {
        ensure!(disks.iter().any(|disk| disk["serial"] == serial), "{serial} was not seen: {disks:?}");
    }
    let offset = first.pointer("/status/hardware/clock/bootOffsetSeconds").and_then(Value::as_i64);
    ensure!(offset.is_some_and(|seconds| seconds < -100_000_000), "the clock was off by {offset:?}");
    machine.freeze()?;
    let before = read_state(&rack, &selected, "first.copy")?;
    ensure!(before.marker["wipeToken"] == "first", "{}", before.marker);

    let since = Timestamp::now();
    machine.reset()?;
    machine.thaw()?;
    let second = reported(&mut pxed, &machine, first.pointer("/status/agent/bootID"), "first")?;
    timeline::report("state-disk again", &second, since);
    machine.freeze()?;
    let after = read_state(&rack, &selected, "second.copy")?;
    ensure!(after.file_system == before.file_system, "the wipe was done again");
    ensure!(after.marker == before.marker, "{} {}", before.marker, after.marker);
    ensure!(after.key == before.key, "the host has another key");
    ensure!(after.machine_id == before.machine_id, "the host has another machine-id");
    let boot = |state: &State| state.enrollment["bootId"].clone();
    ensure!(boot(&after) != boot(&before), "the second boot's seed was not used");
    let serial = machine.serial();
    for (marker, count) in [(" formatted (", 1), (" reused (", 1)] {
        ensure!(
            serial.matches(marker).count() == count,
            "{marker:?} is not on the serial line {count} times"
        );
    }
    ensure!(sum(&other.image)? == untouched, "a disk was written that no Machine selected");
    rack.succeeded();
    Ok(())
}

/// A state disk of the Machine, as an agent leaves it at the release of its claim.
fn released_disk(rack: &Rack) -> Result<Disk> {
    let (root, image) = (rack.file("released"), rack.file("released.disk"));
    let state = root.join(new_root::STATE.trim_start_matches('/'));
    fs::create_dir_all(&state)?;
    let marker = Marker { version: 1, machine: "server-1".parse()?, wipe_token: None };
    fs::write(state.join(MARKER), serde_json::to_vec(&marker)?)?;
    fs::write(state.join("left by a tenant"), "x")?;
    let record = ClaimRecord {
        provider_id: "bedplate://server-1/u-1".to_owned().into(),
        claimant: Claimant { namespace: "team-a".to_owned(), name: "w-1".to_owned() },
        has_user_data: true,
        claim_uid: "claim-1".to_owned(),
        release: ReleasePolicy::Wipe,
        since: Timestamp::UNIX_EPOCH,
        failed: None,
        refused: Vec::new(),
        stage: ClaimStage::Wiping { token: "claim-1".to_owned(), boot_id: "b".to_owned() },
    };
    record.write(&state.join("bedplate"))?;
    request_wipe(&root, "claim-1")?;
    File::create(&image)?.set_len(512 << 20)?;
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-F", "-t", "ext4", "-L", LABEL, "-d"]).arg(&state).arg(&image);
    run(&mut make, &[0])?;
    Ok(Disk { image, serial: SELECTED.to_owned() })
}

/// The boot is the only effect of the release that no unit test has: 55 CPU seconds.
#[test]
fn d7_boot_makes_the_disk_again_that_an_agent_has_released() -> Result<()> {
    let rack = Rack::new("released-disk")?;
    let disk = released_disk(&rack)?;
    let setup = Setup::new(pxed::host_image()?);
    let selects = "    stateDisk:\n      serial: bed-state\n";
    let mut pxed = Pxed::start(&setup, &[pxed::manifest(1, selects)], rack.network(), rack.path())?;
    let _slot = GuestSlot::take()?;
    let machine = rack.power_on_as(Spec {
        name: "server-1".to_owned(),
        mac: Rack::mac(1),
        firmware: Firmware::Bios,
        memory_mib: 1024,
        cpus: 2,
        disks: vec![disk.clone()],
        clock: None,
    })?;
    reported(&mut pxed, &machine, None, "claim-1")?;
    machine.freeze()?;
    let state = read_state(&rack, &disk, "wiped.copy")?;
    ensure!(state.marker["wipeToken"] == "claim-1", "{}", state.marker);
    let copy = replayed(&rack, &disk, "released.copy")?;
    for gone in [WIPE_REQUEST, CLAIM_RECORD, "left by a tenant"] {
        let stat = Command::new("debugfs").arg("-R").arg(format!("stat \"{gone}\"")).arg(&copy).output()?;
        let said = String::from_utf8_lossy(&stat.stderr);
        ensure!(said.contains("not found"), "{gone} is left: {said}");
    }
    ensure!(machine.serial().matches(" formatted (").count() == 1, "it was not made by one boot");
    rack.succeeded();
    Ok(())
}
