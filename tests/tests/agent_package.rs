//! The agent's Debian package on a Debian 12 whose systemd runs: what it puts there, and what an upgrade leaves alone.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bedplate_tests::host::Host;

const UNIT: &str = "bedplate-agent.service";
const SLOT: &str = "systemd-nspawn@bedplate-a.service";

/// The package that `cargo xtask deb` built.
fn package() -> Result<PathBuf> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/deb");
    let entries = std::fs::read_dir(&place).into_iter().flatten().flatten();
    let mut packages =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "deb"));
    let package = packages.next().context("no package: run `cargo xtask deb`")?;
    package.canonicalize().context("no package")
}

fn show(host: &Host, unit: &str, property: &str) -> Result<String> {
    let shown = host.run("systemctl", &["show", &format!("--property={property}"), "--value", unit])?;
    Ok(shown.trim().to_owned())
}

/// The units of both programs refuse one machine: with the agent's program there pxed would not start again.
#[test]
fn package_refuses_the_machine_of_a_pxed() -> Result<()> {
    let host = Host::prepare("package-pxed")?.bind(&package()?, "/srv/agent.deb").start()?;
    host.put("/etc/bedplate/pxed.toml", b"site = \"default\"\n", 0o640)?;
    let said = host.run("dpkg", &["--install", "/srv/agent.deb"]).err().context("it was installed")?;
    ensure!(format!("{said:#}").contains("/etc/bedplate/pxed.toml"), "{said:#}");
    host.run("test", &["!", "-e", "/usr/bin/bedplate-agent"])?;
    host.run("rm", &["/etc/bedplate/pxed.toml"])?;
    host.run("dpkg", &["--install", "/srv/agent.deb"])?;
    assert_eq!(show(&host, UNIT, "ActiveState")?, "active");
    // An upgrade of what is there already changes nothing for pxed, and must not fail.
    host.put("/etc/bedplate/pxed.toml", b"site = \"default\"\n", 0o640)?;
    host.run("dpkg", &["--install", "/srv/agent.deb"])?;
    Ok(())
}

#[test]
fn package_starts_the_service_and_upgrade_does_not_change_the_slot() -> Result<()> {
    let host = Host::prepare("package")?.bind(&package()?, "/srv/agent.deb").start()?;
    let install = || host.run("dpkg", &["--install", "/srv/agent.deb"]);
    install()?;
    assert_eq!(host.run("systemctl", &["is-enabled", UNIT])?.trim(), "enabled");
    assert_eq!(show(&host, UNIT, "ActiveState")?, "active");
    let said = host.run("bedplate-agent", &["status"])?;
    ensure!(said.contains("waiting for a seed"), "{said}");
    // The host image takes no man pages; the package has them.
    let contents = host.run("dpkg-deb", &["--contents", "/srv/agent.deb"])?;
    for path in [
        "./usr/share/man/man1/bedplate-agent.1.gz",
        "./usr/share/bash-completion/completions/bedplate-agent",
        "./usr/share/doc/bedplate-agent/copyright",
    ] {
        ensure!(contents.lines().any(|line| line.ends_with(path)), "{path} is missing: {contents}");
    }
    let maintainer = host.run("dpkg-deb", &["--field", "/srv/agent.deb", "Maintainer"])?;
    ensure!(
        maintainer.contains(" <") && !maintainer.contains("bedplate.dev"),
        "nobody reads that: {maintainer}"
    );
    host.run("systemd-analyze", &["verify", UNIT])?;

    host.add_container("bedplate-a")?;
    host.run("systemctl", &["start", SLOT])?;
    let slot = show(&host, SLOT, "InvocationID")?;
    let agent = show(&host, UNIT, "InvocationID")?;
    // Installing the same package again is an upgrade: the scripts get the version that was installed.
    install()?;
    assert_ne!(show(&host, UNIT, "InvocationID")?, agent, "the new agent runs");
    assert_eq!(show(&host, UNIT, "ActiveState")?, "active");
    assert_eq!(show(&host, SLOT, "InvocationID")?, slot, "the slot runs on");

    // A service that a user has disabled stays disabled after an upgrade.
    host.run("systemctl", &["disable", UNIT])?;
    install()?;
    let enabled = host.run("systemctl", &["show", "--property=UnitFileState", "--value", UNIT])?;
    assert_eq!(enabled.trim(), "disabled");

    host.run("dpkg", &["--remove", "bedplate-agent"])?;
    assert_eq!(show(&host, UNIT, "ActiveState")?, "inactive");
    assert_eq!(show(&host, SLOT, "InvocationID")?, slot, "what the agent made is not the package's");
    host.run("machinectl", &["terminate", "bedplate-a"])?;
    Ok(())
}
