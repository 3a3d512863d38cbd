//! `cargo xtask`: everything a developer or CI does with this repository, each from nothing and repeatable.
//!
//! Only the command line and the exit code are here: 0 done, 1 failed, 64 bad usage. Each command has its own file.

mod affected;
mod build;
mod cgroup;
mod check;
mod cloud_init;
mod cluster_api;
mod deb;
mod demo;
mod deny;
mod fuzz;
mod host;
mod image;
mod kubernetes;
mod mutants;
mod package;
mod pictures;
mod programs;
mod progress;
mod python;
mod runner;
mod schedule;
mod setup;
mod soak;
mod steps;
mod table;
mod test;
mod times;
mod tool;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Redfish emulator, cloud-init and Debian.
    Setup,
    /// Builds the release binaries, linked statically.
    Build,
    /// Builds an image.
    Image {
        #[command(subcommand)]
        kind: ImageKind,
    },
    /// Checks format and lints, and runs the unit tests of the crates that changed and of those that depend on them.
    Check {
        /// Compares with this commit.
        #[arg(long, default_value = "HEAD", value_name = "COMMIT")]
        since: String,
    },
    /// Runs the checks and the tests; ends with the times and the count.
    Test {
        /// Only this tier: a without virtual machines, b boots of real firmware, c whole machines.
        #[arg(long, value_enum)]
        tier: Option<programs::Tier>,
        /// Writes tests/times.toml from this run if it succeeds.
        #[arg(long)]
        record: bool,
        /// Only tests whose name contains this text; no checks.
        filter: Option<String>,
    },
    /// Runs the long tests that need not run each time; the test with the oldest result first.
    Soak {
        /// Starts no further task after this number of minutes.
        #[arg(long)]
        minutes: Option<u64>,
        /// Lists the tasks with their last results.
        #[arg(long)]
        list: bool,
        /// Only tasks whose name contains this text.
        filter: Option<String>,
    },
    /// Runs one step of the other commands, as they run it.
    #[command(hide = true)]
    Step {
        /// Name of the step.
        name: String,
        /// Targets for the step `test-programs`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Makes Nodes of two virtual servers that are off, and brings another version to them: by hand, and by a rolling update.
    Demo {
        /// Leaves the rack running until Ctrl-C.
        #[arg(long)]
        keep: bool,
        /// Stores transcripts in docs/getting-started/demo.
        #[arg(long)]
        record: bool,
    },
    /// Draws the transcripts of docs/getting-started/demo as pictures.
    Pictures,
    /// Measures pxed against its peers; everything after `--` goes to the bench program.
    Bench {
        /// Arguments of the bench program.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Writes the files that are generated from `api/`: custom resource definitions, and the pages of kinds, reasons and Events in docs/reference.
    Generate,
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
        Command::Check { since } => affected::run(&since),
        Command::Test { tier, record, filter } => {
            test::run(test::Options { tier, filter: filter.as_deref(), record })
        }
        Command::Soak { minutes, list, filter } => soak::run(&soak::Options { minutes, filter, list }),
        Command::Step { name, arguments } => steps::run(&name, &arguments),
        Command::Demo { keep, record } => demo::run(&demo::Options { keep, record }),
        Command::Pictures => pictures::run(),
        Command::Bench { arguments } => demo::bench(&arguments),
        Command::Generate => build::generate(),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the commands in a document, from code blocks and from inline code.
    fn commands(text: &str) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        for rest in text.split("cargo xtask ").skip(1) {
            let command = rest.split(['`', '\n', '#', '>']).next().unwrap_or_default().split(" -> ").next();
            let words = command.unwrap_or_default().split_whitespace();
            // Sentences may contain "cargo xtask" without a command.
            found.push(words.map(|word| word.trim_matches('"').to_owned()).collect());
        }
        found
    }

    #[test]
    fn documented_commands_are_accepted() {
        let mut files = ["README.md", "CONTRIBUTING.md"].map(|name| host::root().join(name)).to_vec();
        let mut folders = vec![host::root().join("docs")];
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                match path.extension().is_some_and(|extension| extension == "md") {
                    true => files.push(path),
                    false if path.is_dir() => folders.push(path),
                    false => {}
                }
            }
        }
        let mut count = 0;
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            for words in commands(&text).into_iter().filter(|words| !words.is_empty()) {
                let arguments = ["cargo xtask".to_owned()].into_iter().chain(words);
                let result = Arguments::try_parse_from(arguments.clone());
                let shown: Vec<String> = arguments.collect();
                assert!(
                    result.is_ok(),
                    "{}: {}: {:?}",
                    file.display(),
                    shown.join(" "),
                    result.err().unwrap().kind()
                );
                count += 1;
            }
        }
        assert!(count > 15, "only {count} commands were found");
    }
}
