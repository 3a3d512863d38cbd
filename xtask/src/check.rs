//! Checks that are not tests: format and size of the agent. `deny` checks dependencies, `programs` lints, `fuzz` parsers.
//!
//! Generated files (api/tests/generated.rs) and units (tests/tests/images/units.rs) are tests.

use anyhow::{Context, Result, ensure};

use crate::{build, progress};

/// Maximum size of the agent in bytes. Every host fetches it at every boot and keeps it in memory. Claims and user data take 0.7 MB of it.
const MAX_AGENT_BYTES: u64 = 20_500_000;

/// Checks the format of all Rust files.
///
/// # Errors
/// A file is not formatted.
pub(crate) fn format() -> Result<()> {
    progress::step("cargo fmt --check", |step| step.run(build::cargo().args(["fmt", "--all", "--check"])))
}

/// Checks the size of the released agent.
///
/// # Errors
/// The agent is missing or too large.
pub(crate) fn size() -> Result<()> {
    let path = build::release().join("bedplate-agent");
    let size = std::fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?.len();
    println!("  {size} bytes");
    ensure!(
        size < MAX_AGENT_BYTES,
        "{} has {size} bytes, at most {MAX_AGENT_BYTES} are allowed; see `cargo tree -d -p bedplate-agent`, `nm --size-sort`",
        path.display()
    );
    Ok(())
}
