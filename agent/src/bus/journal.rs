//! Last lines of a unit in the journal of its own systemd.
//!
//! journalctl reads them in a separate unit, because the journal has no interface on the bus. Called by
//! `node` and `operation`.

use std::path::Path;
use std::time::Duration;

use super::{BusError, Output, Setting, TransientCommand, UnitName, Units};

/// Maximum bytes read from the end.
const MAX_BYTES: usize = 8 * 1024;
/// Timeout of journalctl: a journal may be large, and its disk slow.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the last lines of a unit in the journal of this systemd, or in the journal in `directory`. May be
/// empty.
pub async fn last_lines(
    units: &dyn Units,
    unit: &UnitName,
    lines: u32,
    directory: Option<&Path>,
) -> Result<String, BusError> {
    let Ok(own) = "bedplate-journal.service".parse() else { return Ok(String::new()) };
    let mut argv =
        ["/usr/bin/journalctl", "--no-pager", "--quiet", "--output=cat"].map(str::to_owned).to_vec();
    argv.push(format!("--lines={lines}"));
    argv.extend(directory.map(|directory| format!("--directory={}", directory.display())));
    argv.extend(["--unit".to_owned(), unit.to_string()]);
    let command = TransientCommand {
        unit: own,
        description: format!("Last lines of {unit} for bedplate-agent"),
        argv,
        environment: Vec::new(),
        output: Output::Tail,
        limit: READ_TIMEOUT,
        settings: if directory.is_some() { strangers() } else { Vec::new() },
    };
    let ran = units.run(&command).await?;
    let text = ran.output.trim();
    let start = (text.len().saturating_sub(MAX_BYTES)..=text.len()).find(|at| text.is_char_boundary(*at));
    Ok(text.get(start.unwrap_or_default()..).unwrap_or_default().to_owned())
}

/// Returns the sandbox of journalctl for files of a slot, which any process of the slot may have written:
/// read access only. A link in the slot cannot lead to the host's own journal.
fn strangers() -> Vec<(&'static str, Setting)> {
    vec![
        ("NoNewPrivileges", Setting::Flag(true)),
        ("ProtectSystem", Setting::Word("strict")),
        ("ProtectHome", Setting::Word("yes")),
        ("PrivateDevices", Setting::Flag(true)),
        ("PrivateNetwork", Setting::Flag(true)),
        ("PrivateTmp", Setting::Flag(true)),
        // CAP_DAC_READ_SEARCH, and no other.
        ("CapabilityBoundingSet", Setting::Number(1 << 2)),
        ("InaccessiblePaths", Setting::List(vec!["-/var/log/journal", "-/run/log/journal"])),
    ]
}
