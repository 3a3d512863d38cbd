//! Whole boots: a server of the rack from power-on to a stage that pxed has seen, its stage times printed.
//!
//! The deadlines are those of a busy machine; an idle one needs a tenth.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::Value;

use crate::guard;
use crate::guest::GuestSlot;
use crate::pxed::Pxed;
use crate::qemu::{Firmware, Machine};
use crate::rack::Rack;
use crate::timeline;

/// Maximum time from power-on to a certificate, on a machine that is busy with something else.
pub const ENROLL_TIMEOUT: Duration = Duration::from_secs(900);
/// Maximum time from power-on to the loader's script.
pub const SCRIPT_TIMEOUT: Duration = Duration::from_secs(300);

/// Switches server `number` on and waits until its boot has reached `stage`.
///
/// # Errors
/// The boot does not reach the stage in time. The message has the timeline, the serial output and pxed's last log lines.
pub fn boots(
    test: &str,
    rack: &Rack,
    pxed: &mut Pxed<'_>,
    number: u8,
    firmware: Firmware,
    stage: &str,
) -> Result<Machine> {
    let _slot = GuestSlot::take()?;
    let since = Timestamp::now();
    let machine = rack.power_on(number, firmware)?;
    reaches(test, pxed, &machine, stage, since, ENROLL_TIMEOUT)?;
    Ok(machine)
}

/// Waits until a server has reached a stage and prints its timeline.
///
/// # Errors
/// It does not in time.
pub fn reaches(
    test: &str,
    pxed: &mut Pxed<'_>,
    machine: &Machine,
    stage: &str,
    since: Timestamp,
    limit: Duration,
) -> Result<Value> {
    let seen = pxed.wait_stage(machine.name(), stage, limit).with_context(|| {
        format!(
            "serial line of {}:\n{}\npxed:\n{}",
            machine.name(),
            guard::last_lines(&machine.serial(), 25),
            guard::last_lines(&pxed.process().said(), 25)
        )
    })?;
    timeline::report(test, &seen, since);
    Ok(seen)
}
