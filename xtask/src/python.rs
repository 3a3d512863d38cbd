//! sushy-tools and sushy from PyPI, a third-party Redfish emulator and client. They are installed into an
//! environment of their own in the cache, with every version pinned in `sushy-tools.txt`.
//!
//! The system's Python is not changed. Called by `setup`; the tests start it from there.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{host, progress};

/// Version, which is part of the directory's name, so that another version gets another directory.
const VERSION: &str = "2.2.0";
/// File that lists the installed packages. It is written when the installation is complete.
const MARK: &str = "installed.txt";

fn requirements() -> PathBuf {
    host::root().join("xtask/src/sushy-tools.txt")
}

/// Returns the directory: `<cache>/tools/sushy-tools-2.2.0`.
fn place() -> PathBuf {
    host::cache().join(format!("tools/sushy-tools-{VERSION}"))
}

fn is_whole(place: &Path) -> bool {
    let wanted = std::fs::read(requirements()).ok();
    wanted.is_some() && std::fs::read(place.join(MARK)).ok() == wanted
}

/// Returns the text that `setup` prints before installing it. Returns `None` if it is installed.
pub(crate) fn missing() -> Option<String> {
    let place = place();
    let plan = || {
        format!("into {}: sushy-tools {VERSION} and sushy from PyPI (half a minute, once)", place.display())
    };
    (!is_whole(&place)).then(plan)
}

/// Installs it unless it is there.
pub(crate) fn install() -> Result<()> {
    if missing().is_none() {
        return Ok(());
    }
    progress::step(&format!("pip install sushy-tools {VERSION}"), |step| {
        let place = place();
        // `--clear` empties what an interrupted setup has left.
        step.run(Command::new("/usr/bin/python3").args(["-m", "venv", "--clear"]).arg(&place))?;
        let mut pip = Command::new(place.join("bin/python"));
        pip.args(["-m", "pip", "install", "--no-deps", "--disable-pip-version-check", "--requirement"]);
        step.run(pip.arg(requirements()))?;
        std::fs::copy(requirements(), place.join(MARK))
            .with_context(|| format!("cannot write {}", place.join(MARK).display()))?;
        Ok(())
    })
}
