//! `cargo xtask`: everything a developer or CI does with this repository, each from nothing and repeatable.
//!
//! Only the command line and the exit code are here: 0 done, 1 failed, 64 bad usage. Each command has its own file.

mod build;
mod check;
mod deb;
mod demo;
mod deny;
mod host;
mod image;
mod kubernetes;
mod package;
mod pool;
mod programs;
mod progress;
mod python;
mod setup;
mod test;
mod tool;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

/// Builds, tests, demonstrates and measures Bedplate.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Installs what the other commands need: Debian packages, Rust components, cargo-deny, cargo-deb, the tests' Kubernetes programs,
    /// Redfish emulator and Debian.
    Setup,
    /// Builds the release binaries, linked statically.
    Build,
    /// Builds an image.
    Image {
        #[command(subcommand)]
        kind: ImageKind,
    },
    /// Runs the checks and the tests; ends with their count.
    Test {
        /// Only this tier: a without virtual machines, b boots of real firmware, c whole machines.
        #[arg(long, value_enum)]
        tier: Option<Tier>,
        /// Only tests whose name contains this text; leaves the checks out.
        filter: Option<String>,
    },
    /// Makes Nodes of two virtual servers that are off, and brings another version to them: by hand, and by a rolling update.
    Demo {
        /// Leaves the rack running until Ctrl-C.
        #[arg(long)]
        keep: bool,
    },
    /// Measures pxed against its peers; everything after `--` goes to the bench program.
    Bench {
        /// Arguments of the bench program.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Generates the custom resource definitions anew.
    Crds,
    /// Builds the agent's Debian package, for hosts that are not netbooted.
    Deb,
}

#[derive(Subcommand)]
enum ImageKind {
    /// The host image that servers boot, as an OCI layout in the cache.
    Host {
        /// Its kernel.
        #[arg(long, value_enum, default_value = "cloud")]
        kernel: image::Kernel,
        /// Puts the layout there instead.
        #[arg(long)]
        output: Option<PathBuf>,
        /// Another agent than the one that `cargo xtask build` builds.
        #[arg(long)]
        agent: Option<PathBuf>,
        /// Another unit than systemd/bedplate-agent.service.
        #[arg(long)]
        unit: Option<PathBuf>,
        /// Takes the mirrors' newest packages, although the recipe has not changed.
        #[arg(long)]
        fresh: bool,
    },
    /// The node image that hosts run a Node of, as an OCI layout in the cache.
    Node {
        /// Takes kubelet and kubeadm from this directory, instead of building those of tests/kubernetes.
        #[arg(long)]
        kubernetes: Option<PathBuf>,
        /// Puts the layout there instead.
        #[arg(long)]
        output: Option<PathBuf>,
        /// Compression of the layers. Old tools do not read zstd.
        #[arg(long, value_enum, default_value = "zstd")]
        compression: image::node::Compression,
        /// Takes the mirrors' newest packages, although the recipe has not changed.
        #[arg(long)]
        fresh: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Tier {
    /// No virtual machine.
    A,
    /// Boots of real firmware.
    B,
    /// Whole machines.
    C,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(64) } else { ExitCode::SUCCESS };
        }
    };
    let result = match arguments.command {
        Command::Setup => setup::run(setup::Need::Tests),
        Command::Build => build::run(),
        Command::Image { kind } => build_image(kind),
        Command::Test { tier, filter } => test::run(tier, filter.as_deref()),
        Command::Demo { keep } => demo::run(keep),
        Command::Bench { arguments } => demo::bench(&arguments),
        Command::Crds => build::crds(),
        Command::Deb => deb::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn build_image(kind: ImageKind) -> anyhow::Result<()> {
    match kind {
        ImageKind::Host { kernel, output, agent, unit, fresh } => {
            let mut options = image::Options::new(kernel);
            match agent {
                Some(agent) => options.agent = agent,
                None => setup::run(setup::Need::Rack).and_then(|()| build::run())?,
            }
            options.unit = unit.unwrap_or(options.unit);
            options.output = output.unwrap_or(options.output);
            options.fresh = fresh;
            image::build_host(&options).map(drop)
        }
        ImageKind::Node { kubernetes, output, compression, fresh } => {
            let mut options = image::node::Options::new();
            if kubernetes.is_none() {
                setup::run(setup::Need::Rack)?;
            }
            options.kubernetes = kubernetes;
            options.output = output.unwrap_or(options.output);
            options.compression = compression;
            options.fresh = fresh;
            image::node::build(&options).map(drop)
        }
    }
}
