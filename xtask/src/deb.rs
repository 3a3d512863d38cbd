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

/// Debian requires a name and an address where users of the package can write. The package has no archive of
/// origin, so its builder is the maintainer. Debian's tools take name and address from the environment
/// (debuild(1)). Without them the value of agent/Cargo.toml applies. The installing administrator reads
/// root's mail on a host.
fn maintainer(name: Option<&str>, address: Option<&str>) -> Result<Option<String>> {
    let given = |text: Option<&str>| text.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
    let Some(address) = given(address) else { return Ok(None) };
    let Some(name) = given(name) else {
        bail!("DEBEMAIL is set, and DEBFULLNAME is not: whose address is it?")
    };
    if name.contains(['<', '>', ',', '\n'])
        || address.contains(['<', '>', '\n', ' '])
        || !address.contains('@')
    {
        bail!("DEBFULLNAME {name:?} and DEBEMAIL {address:?} are not a name and an address");
    }
    Ok(Some(format!("{name} <{address}>")))
}

/// Directory of the package and its contents; agent/Cargo.toml names it.
fn place() -> PathBuf {
    host::root().join("target/deb")
}

/// Builds the program and the package.
pub(crate) fn run() -> Result<()> {
    TOOL.install()?;
    let package = package()?;
    println!("{}", package.display());
    Ok(())
}

/// Builds the package of the release binary. cargo-deb reads the binary from Cargo's directory, so the release is built there first.
pub(crate) fn package() -> Result<PathBuf> {
    build::run()?;
    let variable = |name: &str| std::env::var(name).ok();
    let maintainer = maintainer(variable("DEBFULLNAME").as_deref(), variable("DEBEMAIL").as_deref())?;
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
        if let Some(maintainer) = &maintainer {
            command.args(["--maintainer", maintainer]);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_its_builders_where_the_environment_says_who_that_is() {
        let given = maintainer(Some("Ada Lovelace"), Some("ada@example.org")).unwrap();
        assert_eq!(given.as_deref(), Some("Ada Lovelace <ada@example.org>"));
        assert_eq!(maintainer(Some("Ada Lovelace"), None).unwrap(), None);
        assert_eq!(maintainer(None, Some(" ")).unwrap(), None);
        assert!(maintainer(None, Some("ada@example.org")).is_err());
        assert!(maintainer(Some("Ada <a@b>"), Some("ada@example.org")).is_err());
        assert!(maintainer(Some("Ada"), Some("nowhere")).is_err());
    }
}
