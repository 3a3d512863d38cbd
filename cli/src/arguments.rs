//! The command line, defined once: parser, help, completion and man pages are made from it.

mod configuration;
mod operation;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub(crate) use self::configuration::{ConfigCommand, ConfigDiff, ConfigRollback, InstallArguments};
pub(crate) use self::operation::{
    BmcCommand, Boot, OperationCommand, OperationCreate, PowerAct, PowerCommand, ProbeArguments, Protocol,
};

/// Where pxed listens unless told otherwise.
pub(crate) const DEFAULT_SOCKET: &str = "/run/bedplate/pxed.sock";

/// Shows what pxed and the cluster know of Machines, and switches their power.
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
    /// Ask the cluster of this kubeconfig (not for what only pxed knows)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Ask the cluster of this context of the kubeconfig (not for what only pxed knows)
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
}

/// A form of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Text for people; its form may change
    Human,
    /// What pxed, the cluster or the BMC answered
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Machines and how far they are
    #[command(subcommand)]
    Machine(MachineCommand),
    /// The power of a Machine, through its BMC
    #[command(subcommand)]
    Power(PowerCommand),
    /// MachineOperations: what is to be done once
    #[command(subcommand)]
    Operation(OperationCommand),
    /// MachineConfigurations, their versions, and the way back
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Management controllers, before a Machine is written for one
    #[command(subcommand)]
    Bmc(BmcCommand),
    /// Put Bedplate into a cluster, or bring it up to date there: kinds, policies, roles, the controller
    Install(InstallArguments),
    /// What a machine would be offered now, for each way in which it can ask, and why (what it waits for: machine explain)
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
        #[arg(long, value_name = "DIRECTORY")]
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
    /// What each Machine waits for, from whom, since when, and what to do (what it would be offered at boot: explain)
    Explain {
        /// The Machine's name [default: all of them]
        name: Option<String>,
    },
    /// A token for a host that a person installs the agent on (provider manual), good once and for an hour: a secret
    Token {
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

/// Reads the command line. Beside clap's own mistakes, flags that contradict each other or the command are refused:
/// clap looks for conflicts of global flags on either side of the command apart, and takes the environment for a flag.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Cli, clap::Error> {
    let mut command = command(arguments.first().map_or(OsStr::new("bedplate"), OsString::as_os_str));
    let matches = command.try_get_matches_from_mut(arguments)?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    if let (Command::Install(_), Some(ValueSource::CommandLine)) =
        (&cli.command, matches.value_source("socket"))
    {
        let message = "`install` asks the cluster: leave out --socket";
        return Err(command.error(ErrorKind::ArgumentConflict, message));
    }
    let cluster = match &cli.global {
        Global { kubeconfig: Some(_), .. } => "--kubeconfig",
        Global { context: Some(_), .. } => "--context",
        Global { .. } => return Ok(cli),
    };
    let only_pxed = match &cli.command {
        Command::Explain { .. } => Some("explain"),
        Command::Discovered => Some("discovered"),
        Command::Bmc(_) => {
            let message = format!("`bmc` asks the BMC itself, from here: leave out {cluster}");
            return Err(command.error(ErrorKind::ArgumentConflict, message));
        }
        Command::Machine(MachineCommand::Token { .. }) => Some("machine token"),
        Command::Machine(
            MachineCommand::List | MachineCommand::Show { .. } | MachineCommand::Explain { .. },
        )
        | Command::Config(_)
        | Command::Install(_)
        | Command::Power(_)
        | Command::Operation(_)
        | Command::Completion { .. }
        | Command::Man { .. } => None,
    };
    let message = match only_pxed {
        Some(name) => format!("`{name}` asks pxed through its socket, not the cluster: leave out {cluster}"),
        None if matches.value_source("socket") == Some(ValueSource::CommandLine) => {
            format!("--socket asks pxed, {cluster} asks the cluster: leave out one of them")
        }
        None => return Ok(cli),
    };
    Err(command.error(ErrorKind::ArgumentConflict, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    fn refusal(line: &str) -> String {
        let error = parse(line.split(' ').map(OsString::from).collect()).unwrap_err();
        assert!(error.use_stderr() && error.kind() == ErrorKind::ArgumentConflict, "{error}");
        error.to_string()
    }

    #[test]
    fn a_cluster_is_refused_for_what_only_pxed_knows() {
        let said = refusal("bedplate explain node-1 --context lab");
        assert!(
            said.contains("`explain` asks pxed through its socket") && said.contains("--context"),
            "{said}"
        );
        assert!(refusal("bedplate --kubeconfig /k discovered").contains("leave out --kubeconfig"));
    }

    #[test]
    fn a_socket_and_a_cluster_are_not_asked_at_once_on_either_side_of_the_command() {
        for line in [
            "bedplate --socket /s machine list --context lab",
            "bedplate machine --context lab list --socket /s",
            "bedplate --socket /s --kubeconfig /k machine show x",
        ] {
            assert!(refusal(line).contains("leave out one of them"), "{line}");
        }
        for line in ["bedplate machine list --context lab", "bedplate explain x --socket /s"] {
            assert!(parse(line.split(' ').map(OsString::from).collect()).is_ok(), "{line}");
        }
    }

    #[test]
    fn install_is_in_completion_and_in_the_manual_and_asks_the_cluster_alone() {
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut command(OsStr::new("bedplate")), "bedplate", &mut script);
        assert!(String::from_utf8(script).unwrap().contains("--force-conflicts"));
        let directory = tempfile::tempdir().unwrap();
        clap_mangen::generate_to(command(OsStr::new("bedplate")), directory.path()).unwrap();
        assert!(directory.path().join("bedplate-install.1").exists());
        assert!(refusal("bedplate install --socket /s").contains("leave out --socket"));
        for line in [
            "bedplate install --image a --without-controller",
            "bedplate install --timeout 0",
            "bedplate config rollback w --delete-node",
            "bedplate config rollback w --to 0",
        ] {
            assert!(parse(line.split(' ').map(OsString::from).collect()).is_err(), "{line}");
        }
    }

    #[test]
    fn a_bmc_is_asked_from_here() {
        let said = refusal("bedplate bmc probe 10.0.0.1 --context lab");
        assert!(said.contains("asks the BMC itself"), "{said}");
    }

    #[test]
    fn an_operation_is_for_one_machine_or_for_a_selector() {
        let wrong =
            |line: &str| parse(line.split(' ').map(OsString::from).collect()).unwrap_err().to_string();
        assert!(wrong("bedplate operation create reboot").contains("--machine"));
        for line in [
            "bedplate operation create reboot --machine a --selector b=c",
            "bedplate operation create reboot --machine a --max-parallel 1",
            "bedplate operation create reboot --machine a --parameter b",
            "bedplate operation create reboot --machine Node_1",
            "bedplate operation create reboot --machine a --timeout 0",
            "bedplate power off a --grace-period -1",
            "bedplate power on a --force",
            "bedplate power cycle a --boot disk",
            "bedplate bmc probe 10.0.0.1 --password-file -",
            "bedplate bmc probe 10.0.0.1 --insecure --ca-file f",
            "bedplate bmc probe 10.0.0.1 --username u --password p",
        ] {
            wrong(line);
        }
    }

    #[test]
    fn new_commands_are_in_completion_and_in_the_manual() {
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut command(OsStr::new("bedplate")), "bedplate", &mut script);
        let script = String::from_utf8(script).unwrap();
        let directory = tempfile::tempdir().unwrap();
        clap_mangen::generate_to(command(OsStr::new("bedplate")), directory.path()).unwrap();
        for words in [
            "power status",
            "power on",
            "power off",
            "power cycle",
            "power reset",
            "operation create",
            "operation list",
            "operation watch",
            "bmc probe",
            "config list",
            "config show",
            "config diff",
            "config history",
            "config rollback",
            "machine explain",
        ] {
            let (first, second) = words.split_once(' ').unwrap();
            assert!(script.contains(&format!("bedplate__subcmd__{first}__subcmd__{second}")), "{words}");
            assert!(directory.path().join(format!("bedplate-{first}-{second}.1")).exists(), "{words}");
        }
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
