//! `cargo xtask deb`: the agent as a Debian package, of the static release binary, its unit, man pages and completion.
//!
//! cargo-deb packs it as agent/Cargo.toml says; what the program says of itself is written by the program. Installs nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::tool::Tool;
use crate::{build, host, progress};

/// Wants Rust 1.85, which is older than ours.
pub(crate) const TOOL: Tool = Tool { name: "cargo-deb", version: "3.6.3" };

/// Where the package lies, and what goes into it; agent/Cargo.toml names it.
fn place() -> PathBuf {
    host::root().join("target/deb")
}

/// Builds the program and the package.
pub(crate) fn run() -> Result<()> {
    TOOL.install()?;
    build::run()?;
    let package = package()?;
    println!("{}", package.display());
    Ok(())
}

/// The package of the release binary that is there.
pub(crate) fn package() -> Result<PathBuf> {
    progress::step("Debian package of the agent", |step| {
        let (agent, place) = (build::release().join("bedplate-agent"), place());
        let man = place.join("man");
        for stale in packages(&place)? {
            std::fs::remove_file(&stale).with_context(|| format!("cannot remove {}", stale.display()))?;
        }
        std::fs::create_dir_all(&man).with_context(|| format!("cannot make {}", man.display()))?;
        step.run(Command::new(&agent).args(["man", "--directory"]).arg(&man))?;
        for (shell, file) in [("bash", "bash"), ("zsh", "zsh"), ("fish", "fish")] {
            let script = Command::new(&agent).args(["completion", shell]).output();
            let script = script.with_context(|| format!("cannot run {}", agent.display()))?;
            if !script.status.success() {
                bail!("no completion for {shell}: {}", String::from_utf8_lossy(&script.stderr).trim());
            }
            let path = place.join(format!("completion.{file}"));
            std::fs::write(&path, script.stdout)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let mut command = Command::new(TOOL.program());
        command.current_dir(host::root()).args(["--package", "bedplate-agent", "--no-build", "--no-strip"]);
        step.run(command.args(["--target", build::TARGET, "--output"]).arg(&place))?;
        packages(&place)?.pop().context("cargo-deb left no package")
    })
}

/// The packages that lie there.
fn packages(place: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(place) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", place.display())),
    };
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths.filter(|path| path.extension().is_some_and(|extension| extension == "deb")).collect())
}
