//! The command line, defined once: parser, help, completion and man pages are made from it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// Where pxed listens unless told otherwise.
pub(crate) const DEFAULT_SOCKET: &str = "/run/bedplate/pxed.sock";

/// Shows what pxed and the cluster know of Machines.
#[derive(Debug, Parser)]
#[command(name = "bedplate", version, propagate_version = true, subcommand_required = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Whom to ask and how to print; the same for every command.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// How to print
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Human)]
    pub(crate) output: Output,
    /// Socket of the pxed to ask [default: /run/bedplate/pxed.sock if it is there, else the cluster]
    #[arg(long, global = true, env = "BEDPLATE_SOCKET", value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Ask the cluster of this kubeconfig (`machine list` and `machine show`)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Ask the cluster of this context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
}

/// A form of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Text for people; its form may change
    Human,
    /// What pxed or the cluster answered
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Machines and how far they are
    #[command(subcommand)]
    Machine(MachineCommand),
    /// What a machine would be offered now, for each way in which it can ask, and why
    Explain {
        /// A MAC address in any usual spelling, or a Machine's name
        #[arg(value_name = "MAC|NAME")]
        subject: String,
    },
    /// Machines that asked to boot and that no Machine object names
    Discovered,
    /// Print the completion script of a shell
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Print the man page, or write those of all commands
    Man {
        /// Write one file for each command there
        #[arg(long, value_name = "D")]
        directory: Option<PathBuf>,
    },
}

/// What to show of Machines.
#[derive(Debug, Subcommand)]
pub(crate) enum MachineCommand {
    /// One line for each Machine
    List,
    /// One Machine: conditions, and the boot timeline with durations
    Show {
        /// The Machine's name
        name: String,
    },
}

/// The definition, named as the program was called: kubectl runs plugins as `kubectl-<name>`.
pub(crate) fn command(program: &OsStr) -> clap::Command {
    let command = Cli::command();
    let plugin = Path::new(program).file_name().is_some_and(|name| name == "kubectl-bedplate");
    if plugin { command.name("kubectl-bedplate").bin_name("kubectl bedplate") } else { command }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn kubectl_plugin_names_itself_as_it_was_called() {
        let help = |program: &str| command(OsStr::new(program)).render_usage().to_string();
        assert!(help("/usr/bin/kubectl-bedplate").contains("kubectl bedplate"));
        assert!(help("/usr/bin/bedplate").contains("Usage: bedplate"));
    }

    #[test]
    fn global_flags_are_taken_after_the_command_too() {
        let cli = Cli::try_parse_from(["bedplate", "machine", "show", "node-1", "-o", "json"]).unwrap();
        assert_eq!(cli.global.output, Output::Json);
        assert!(Cli::try_parse_from(["bedplate", "machine", "show"]).is_err());
    }
}
