//! Requirements of the other commands. Prints what is missing before anything is installed; `steps` installs it.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{
    cgroup, cloud_init, cluster_api, deb, deny, host, kubernetes, package, progress, python, runner, steps,
    table, tool,
};

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

/// Requirement of a command on the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// The virtual rack: packages and Rust.
    Rack,
    /// The rack, and a real API server that servers join as Nodes, which is built with Go.
    Cluster,
    /// The rack, a real API server, cargo-deny, cargo-deb, a Redfish emulator, and a Debian for hosts in namespaces.
    Tests,
    /// In addition to those of the tests, Cluster API's controllers. `cargo xtask soak` builds them itself.
    Soak,
}

impl Need {
    /// Returns the names of the steps that install it.
    pub(crate) fn steps(self) -> &'static [&'static str] {
        match self {
            Self::Rack => &["packages"],
            Self::Cluster => &["packages", "kubernetes", "etcd", "crictl"],
            Self::Tests | Self::Soak => &[
                "packages",
                "kubernetes",
                "etcd",
                "crictl",
                "debian",
                "redfish-emulator",
                "cloud-init",
                "cargo-deny",
                "cargo-deb",
            ],
        }
    }
}

/// Installs what is missing.
///
/// # Errors
/// The machine cannot be prepared, or something cannot be installed.
pub(crate) fn run(need: Need) -> Result<()> {
    announce(need)?;
    let times = table::Times::read()?;
    runner::run_all("setup", steps::jobs(need.steps(), &times)?, |_| {})
}

/// Checks the machine, removes what killed runs left, and prints what the steps are about to install.
///
/// # Errors
/// The machine cannot be prepared; the message has the remedy.
pub(crate) fn announce(need: Need) -> Result<()> {
    host::check()?;
    package::remove_left_over()?;
    tool::remove_left_over();
    drop(cgroup::Run::create()?);
    let programs =
        if need == Need::Rack { Vec::new() } else { kubernetes::missing(&kubernetes::directory()) };
    if !programs.is_empty() {
        host::go()?;
    }
    let packages = package::missing()?;
    let components = missing_components();
    let tests = matches!(need, Need::Tests | Need::Soak);
    let tools = [deny::TOOL, deb::TOOL].into_iter().filter_map(tool::Tool::missing);
    let tools = tools.chain(python::missing()).chain(cloud_init::missing());
    let mut tools: Vec<String> = if tests { tools.collect() } else { Vec::new() };
    tools.extend((need == Need::Soak).then(cluster_api::plan).flatten());
    let loader = !package::arm64_loader().is_file();
    if packages.is_empty() && components.is_empty() && programs.is_empty() && tools.is_empty() && !loader {
        return Ok(());
    }
    progress::heading("About to install");
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
        let place = kubernetes::directory();
        println!(
            "  into {}: {} (about 17 minutes of processor time, once)",
            place.display(),
            programs.join(" ")
        );
    }
    Ok(())
}

/// Returns true if Debian packages, Rust components or the arm64 loader are missing.
pub(crate) fn packages_missing() -> bool {
    // An error here appears again, with its text, when the step runs.
    package::missing().map_or(true, |missing| !missing.is_empty())
        || !missing_components().is_empty()
        || !package::arm64_loader().is_file()
}

/// Installs the missing Debian packages, Rust components and the arm64 loader.
///
/// # Errors
/// One of them cannot be installed.
pub(crate) fn install_packages() -> Result<()> {
    package::install()?;
    let components = missing_components();
    if !components.is_empty() {
        install_components(&components)?;
    }
    package::fetch_arm64_loader()
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
