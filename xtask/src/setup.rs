//! `cargo xtask setup`: says what is missing, then installs it. Run twice, the second run does nothing.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{deb, deny, host, image, kubernetes, package, progress, python, tool};

/// Rust components that the checks use.
const COMPONENTS: [&str; 2] = ["clippy", "rustfmt"];

fn missing_components() -> Vec<&'static str> {
    let answers = |tool: &str| {
        let output = Command::new("cargo").args([tool, "--version"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    COMPONENTS
        .into_iter()
        .filter(|component| !answers(if *component == "rustfmt" { "fmt" } else { component }))
        .collect()
}

/// What a command needs of the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// The virtual rack: packages and Rust.
    Rack,
    /// The rack, and a real API server that servers join as Nodes, which is built with Go.
    Cluster,
    /// The rack, a real API server, which is built with Go, cargo-deny, cargo-deb, a Redfish emulator, and a Debian for hosts in namespaces.
    Tests,
}

/// Checks the machine, prints the plan, carries it out; then unpacks what the tests' hosts in namespaces run on.
pub(crate) fn run(need: Need) -> Result<()> {
    install(need)?;
    if need == Need::Tests { image::tree() } else { Ok(()) }
}

fn install(need: Need) -> Result<()> {
    host::check()?;
    package::remove_left_over()?;
    tool::remove_left_over();
    let packages = package::missing()?;
    let components = missing_components();
    let directory = kubernetes::directory();
    let programs = if need != Need::Rack { kubernetes::missing(&directory) } else { Vec::new() };
    if !programs.is_empty() {
        host::go()?;
    }
    let built = if need == Need::Tests { vec![deny::TOOL, deb::TOOL] } else { Vec::new() };
    let built: Vec<_> = built.into_iter().filter_map(|tool| Some((tool, tool.missing()?))).collect();
    let python = if need == Need::Tests { python::missing() } else { None };
    let tools: Vec<&String> = built.iter().map(|(_, plan)| plan).chain(&python).collect();
    let loader = !package::arm64_loader().is_file();
    if packages.is_empty() && components.is_empty() && programs.is_empty() && tools.is_empty() && !loader {
        return Ok(());
    }
    progress::heading("Setup: about to install");
    if !packages.is_empty() {
        println!("  {} Debian packages (no service is started): {}", packages.len(), packages.join(" "));
    }
    if !components.is_empty() {
        println!("  Rust components: {}", components.join(" "));
    }
    if loader {
        println!("  {} (from Debian's grub-efi-arm64-bin)", package::arm64_loader().display());
    }
    for tool in tools {
        println!("  {tool}");
    }
    if !programs.is_empty() {
        println!("  into {}: {} (about 5 minutes on 2 cores, once)", directory.display(), programs.join(" "));
    }
    package::install()?;
    if !components.is_empty() {
        install_components(&components)?;
    }
    package::fetch_arm64_loader()?;
    for (tool, _) in &built {
        tool.install()?;
    }
    if python.is_some() {
        python::install()?;
    }
    if programs.is_empty() { Ok(()) } else { kubernetes::build() }
}

fn install_components(components: &[&str]) -> Result<()> {
    let result = progress::step("rustup component add", |step| {
        step.run(Command::new("rustup").args(["component", "add"]).args(components))
    });
    if result.is_err() {
        bail!(
            "Rust's {} could not be installed: with rustup, `rustup component add {}`; with Debian's Rust, its package",
            components.join(" and "),
            components.join(" ")
        );
    }
    Ok(())
}
