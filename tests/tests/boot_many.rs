//! Twenty servers switched on in the same moment.

use anyhow::{Context, Result, ensure};
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::qemu::{Firmware, Spec};
use bedplate_tests::rack::Rack;
use bedplate_tests::{boot, timeline, wait};
use jiff::Timestamp;
use serde_json::Value;

const MACHINES: u8 = 20;

#[test]
fn twenty_bios_machines_at_once_reach_their_script() -> Result<()> {
    let rack = Rack::new("many")?;
    let _capture = rack.capture()?;
    let setup = Setup::new(pxed::stub_image(rack.path())?);
    let manifests: Vec<String> = (1..=MACHINES).map(|number| pxed::manifest(number, "")).collect();
    let pxed = Pxed::start(&setup, &manifests, rack.network(), rack.path())?;
    let since = Timestamp::now();
    let machine = |number| {
        let name = format!("server-{number}");
        let spec = Spec {
            name,
            mac: Rack::mac(number),
            firmware: Firmware::Bios,
            memory_mib: 64,
            cpus: 1,
            disks: Vec::new(),
            clock: None,
        };
        rack.power_on_as(spec)
    };
    let _machines = (1..=MACHINES).map(machine).collect::<Result<Vec<_>>>()?;
    let mut seen = Vec::new();
    wait::until("all scripts", boot::SCRIPT_TIMEOUT, || {
        seen = pxed.machines()?;
        Ok(seen.iter().all(|machine| timeline::has(machine, "Script")).then_some(()))
    })
    .with_context(|| {
        let missing = seen.iter().filter(|machine| !timeline::has(machine, "Script"));
        missing
            .map(|m| format!("{}: {}\n", m["metadata"]["name"], timeline::line(m, since)))
            .collect::<String>()
    })?;
    let mut times: Vec<f64> = seen.iter().filter_map(|m| timeline::seconds_to(m, "Script", since)).collect();
    times.sort_by(f64::total_cmp);
    ensure!(times.len() == usize::from(MACHINES), "{} Machines have a time", times.len());
    let (first, median, last) = (times[0], times[times.len() / 2], times[times.len() - 1]);
    timeline::say(&format!(
        "boot twenty: script after {first:.1} s (first) {median:.1} (median) {last:.1} (last)"
    ));
    for machine in &seen {
        // A machine whose DHCP or TFTP had timed out would have started again.
        let attempts = machine.pointer("/status/boot/attempts").and_then(Value::as_i64);
        ensure!(attempts.is_none_or(|attempts| attempts <= 1), "{machine} began more than once");
    }
    rack.succeeded();
    Ok(())
}
