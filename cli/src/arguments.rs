//! The command line, defined once: parser, help, completion and man pages are made from it.

mod claim;
mod configuration;
#[cfg(test)]
mod named_tests;
mod operation;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub(crate) use self::claim::{ClaimCommand, ClaimRelease};
pub(crate) use self::configuration::{ConfigCommand, ConfigDiff, ConfigRollback, InstallArguments};
pub(crate) use self::operation::{
    BmcCommand, Boot, OperationCommand, OperationCreate, PowerAct, PowerCommand, ProbeArguments, Protocol,
};

/// Default path of pxed's socket.
pub(crate) const DEFAULT_SOCKET: &str = "/run/bedplate/pxed.sock";

/// Help heading of the options that every command takes.
const GLOBAL: &str = "Connection and output options";

/// Help text after the list of commands.
const ABOUT: &str = "\
Source of answers, the first that applies: the cluster of --kubeconfig or --context; the pxed of --socket; the pxed whose socket \
/run/bedplate/pxed.sock exists; the cluster that kubectl would use (KUBECONFIG, ~/.kube/config).

Exit codes: 0 done, 1 failed or refused, 64 invalid command line, nothing was requested. Answers go to standard output, everything else to \
standard error. Terminals get colors, unless NO_COLOR is set.";

/// Shows what pxed and the cluster know of Machines, and switches their power.
#[derive(Debug, Parser)]
#[command(name = "bedplate", version, propagate_version = true, subcommand_required = true, after_long_help = ABOUT)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Connection and output options; the same for every command.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Output format
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Human, help_heading = GLOBAL)]
    pub(crate) output: Output,
    /// Socket of the pxed to ask [default: /run/bedplate/pxed.sock if it exists, otherwise the cluster]
    #[arg(long, global = true, env = "BEDPLATE_SOCKET", value_name = "PATH", value_parser = path(), help_heading = GLOBAL)]
    pub(crate) socket: Option<PathBuf>,
    /// Ask the cluster of this kubeconfig (not for what only pxed knows)
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Ask the cluster of this context of the kubeconfig (not for what only pxed knows)
    #[arg(long, global = true, value_name = "NAME", help_heading = GLOBAL)]
    pub(crate) context: Option<String>,
}

/// A form of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Text for users; its form may change
    Human,
    /// Answer of pxed, the cluster or the BMC
    Json,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Machines and how far they are
    #[command(subcommand)]
    Machine(MachineCommand),
    /// The power of a Machine, through its BMC
    #[command(subcommand)]
    Power(PowerCommand),
    /// MachineOperations: one-time actions on Machines
    #[command(subcommand)]
    Operation(OperationCommand),
    /// Hosts of pools and their claims (in a cluster)
    #[command(subcommand)]
    Claim(ClaimCommand),
    /// MachineConfigurations, their versions, and the way back
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Management controllers, before a Machine is written for one
    #[command(subcommand)]
    Bmc(BmcCommand),
    /// Put Bedplate into a cluster, or bring it up to date there: kinds, policies, roles, the controller
    Install(InstallArguments),
    /// Show what pxed would offer a machine now, for each boot method, and why (for what it waits for:
    /// machine explain)
    Explain {
        /// A MAC address in any usual spelling, or a Machine's name
        #[arg(value_name = "MAC|NAME", value_parser = name)]
        subject: String,
    },
    /// Machines that asked to boot and that no Machine object names
    Discovered,
    /// Print a page of the documentation, such as docs/troubleshooting/stuck.md, or list the pages
    Docs {
        /// The page, such as stuck or docs/troubleshooting/stuck.md [default: list all]
        #[arg(value_parser = crate::docs::name)]
        page: Option<String>,
    },
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

/// Commands on Machines.
#[derive(Debug, Subcommand)]
pub(crate) enum MachineCommand {
    /// One line for each Machine
    List,
    /// One Machine: conditions, and the boot timeline with durations
    Show {
        /// The Machine's name
        #[arg(value_parser = name)]
        name: String,
    },
    /// Show what each Machine waits for, for which program or user, since when, and the next step (for its boot offers: explain)
    Explain {
        /// The Machine's name [default: all of them]
        #[arg(value_parser = name)]
        name: Option<String>,
    },
    /// A token for a host that pxed does not boot (every provider but pxe). It is a secret, valid once, for an hour
    Token {
        /// The Machine's name
        #[arg(value_parser = name)]
        name: String,
    },
    /// Let a replaced or reinstalled host enroll immediately, although the former host's key is still heard: one key, within an hour
    #[command(name = "re-enroll")]
    ReEnroll {
        /// The Machine's name
        #[arg(value_parser = name)]
        name: String,
        /// Only the host of this boot, as the message of the condition Enrolled names it [default: the first host that asks]
        #[arg(long, value_name = "ID", value_parser = boot_id)]
        boot: Option<String>,
    },
}

/// Public ID of a boot.
fn boot_id(text: &str) -> Result<String, String> {
    let is_id = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if is_id { Ok(text.to_ascii_lowercase()) } else { Err("the ID of a boot has 32 hex digits".to_owned()) }
}

/// An object's name, or a MAC address where one may stand in its place: what can be neither is refused before anybody is asked.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-.:".contains(c);
    let ends = |c: char| c.is_ascii_alphanumeric();
    if text.len() <= 253 && text.chars().all(plain) && text.starts_with(ends) && text.ends_with(ends) {
        return Ok(text.to_owned());
    }
    Err("a name has 1 to 253 of a-z, 0-9, '-' and '.', not first or last '-' or '.'".to_owned())
}

/// A path; empty in the environment it counts as not set.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// The definition, named as the program was called: kubectl runs plugins as `kubectl-<name>`.
pub(crate) fn command(program: &OsStr) -> clap::Command {
    let command = Cli::command();
    let plugin = Path::new(program).file_name().is_some_and(|name| name == "kubectl-bedplate");
    if plugin { command.name("kubectl-bedplate").bin_name("kubectl bedplate") } else { command }
}

/// Parses the command line. In addition to clap's own errors, rejects flags that contradict each other or the
/// command. clap checks conflicts of global flags only on one side of the command, and treats the environment
/// as a flag.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Cli, clap::Error> {
    let mut command = command(arguments.first().map_or(OsStr::new("bedplate"), OsString::as_os_str));
    let matches = command.try_get_matches_from_mut(arguments)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    if cli.global.socket.as_ref().is_some_and(|socket| socket.as_os_str().is_empty()) {
        if matches.value_source("socket") == Some(ValueSource::CommandLine) {
            return Err(command.error(ErrorKind::InvalidValue, "--socket is empty: name a path, or omit it"));
        }
        cli.global.socket = None;
    }
    let only_cluster = match &cli.command {
        Command::Install(_) => Some("install"),
        Command::Claim(_) => Some("claim"),
        _ => None,
    };
    if let (Some(name), Some(ValueSource::CommandLine)) = (only_cluster, matches.value_source("socket")) {
        let message = format!("`{name}` asks the cluster: omit --socket");
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
            let message = format!("`bmc` asks the BMC itself, from here: omit {cluster}");
            return Err(command.error(ErrorKind::ArgumentConflict, message));
        }
        Command::Machine(MachineCommand::Token { .. }) => Some("machine token"),
        Command::Machine(
            MachineCommand::List
            | MachineCommand::Show { .. }
            | MachineCommand::Explain { .. }
            | MachineCommand::ReEnroll { .. },
        )
        | Command::Claim(_)
        | Command::Config(_)
        | Command::Install(_)
        | Command::Power(_)
        | Command::Operation(_)
        | Command::Docs { .. }
        | Command::Completion { .. }
        | Command::Man { .. } => None,
    };
    let message = match only_pxed {
        Some(name) => format!("`{name}` asks pxed through its socket, not the cluster: omit {cluster}"),
        None if matches.value_source("socket") == Some(ValueSource::CommandLine) => {
            format!("--socket asks pxed, {cluster} asks the cluster: omit one of them")
        }
        None => return Ok(cli),
    };
    Err(command.error(ErrorKind::ArgumentConflict, message))
}

#[cfg(test)]
#[path = "../../process/tests/commands_page/mod.rs"]
mod commands_page;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_match_the_page_of_commands() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/commands.md");
        commands_page::compare(page, Cli::command());
    }

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
        let message = refusal("bedplate explain node-1 --context lab");
        assert!(
            message.contains("`explain` asks pxed through its socket") && message.contains("--context"),
            "{message}"
        );
        assert!(refusal("bedplate --kubeconfig /k discovered").contains("omit --kubeconfig"));
    }

    #[test]
    fn socket_and_cluster_flags_conflict_on_either_side_of_the_command() {
        for line in [
            "bedplate --socket /s machine list --context lab",
            "bedplate machine --context lab list --socket /s",
            "bedplate --socket /s --kubeconfig /k machine show x",
        ] {
            assert!(refusal(line).contains("omit one of them"), "{line}");
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
        assert!(refusal("bedplate install --socket /s").contains("omit --socket"));
        assert!(refusal("bedplate claim list --socket /s").contains("omit --socket"));
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
    fn invalid_name_is_rejected_before_any_request() {
        let long = "x".repeat(70_000);
        for wrong in ["", " ", "..", "-a", "a/status", "a b", "a\n", "\u{1b}[31m", "ä", &long] {
            for command in [
                &["machine", "show"][..],
                &["machine", "explain"],
                &["machine", "token"],
                &["machine", "re-enroll"],
                &["explain"],
                &["power", "status"],
                &["operation", "watch"],
                &["config", "show"],
                &["config", "history"],
                &["config", "diff"],
                &["config", "rollback"],
                &["claim", "explain"],
                &["claim", "release"],
            ] {
                let line = [&["bedplate"], command, &["--", wrong]].concat();
                let line = line.into_iter().map(OsString::from).collect();
                assert!(parse(line).is_err(), "{command:?} {wrong:.20}");
            }
        }
        for right in ["a", "rack7-node-12", "a.b", "52:54:00:00:00:01", "5254.0000.0001", "52-54-00-00-00-01"]
        {
            assert!(name(right).is_ok(), "{right}");
        }
    }

    #[test]
    fn boot_of_a_permission_is_accepted_in_either_case() {
        assert_eq!(boot_id(&"Ab".repeat(16)), Ok("ab".repeat(16)));
        for wrong in ["", "ab", &"xy".repeat(16), &"ab".repeat(17)] {
            assert_eq!(boot_id(wrong).unwrap_err(), "the ID of a boot has 32 hex digits", "{wrong}");
        }
    }

    #[test]
    fn an_empty_socket_is_refused_on_the_command_line() {
        let line = ["bedplate", "--socket", "", "machine", "list"].map(OsString::from);
        assert!(parse(line.to_vec()).unwrap_err().to_string().contains("--socket is empty"));
    }

    #[test]
    fn a_command_s_own_flags_stand_apart_from_those_of_all() {
        let mut definition = command(OsStr::new("bedplate"));
        let help = definition.render_long_help().to_string();
        assert!(help.contains("Exit codes: 0 done") && help.contains("--context"), "{help}");
        let install = definition.find_subcommand_mut("install").unwrap();
        let options: Vec<_> = install.get_arguments().filter(|a| a.get_help_heading().is_none()).collect();
        assert!(options.iter().any(|a| a.get_id() == "dry_run"), "{options:?}");
    }

    #[test]
    fn a_bmc_is_asked_from_here() {
        let message = refusal("bedplate bmc probe 10.0.0.1 --context lab");
        assert!(message.contains("asks the BMC itself"), "{message}");
    }

    #[test]
    fn an_operation_is_for_one_machine_or_for_a_selector() {
        let wrong =
            |line: &str| parse(line.split(' ').map(OsString::from).collect()).unwrap_err().to_string();
        assert!(wrong("bedplate operation create reboot").contains("--machine"));
        for line in [
            "bedplate operation create reboot --machine a --selector b=c",
            "bedplate operation create reboot --machine a --field-selector spec.site=b",
            "bedplate operation create reboot --machine a --max-parallel 1",
            "bedplate operation create reboot --machine a --parameter b",
            "bedplate operation create reboot --machine Node_1",
            "bedplate operation create re_boot --machine a",
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
            "claim list",
            "claim explain",
            "claim release",
            "machine explain",
            "machine re-enroll",
        ] {
            let (first, second) = words.split_once(' ').unwrap();
            let function =
                format!("bedplate__subcmd__{first}__subcmd__{}", second.replace('-', "__subcmd__"));
            assert!(script.contains(&function), "{words}");
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
