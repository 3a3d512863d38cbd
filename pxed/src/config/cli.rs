//! pxed's command line and environment: one clap definition. Its overrides go through the same reader as the file, so
//! that their errors are reported with the file's.

use std::path::PathBuf;

use bedplate_process::logging::LogArguments;
use bedplate_process::manual::Shell;
use clap::{Args, Parser, Subcommand};

use super::{DEFAULT_PATH, Override};

/// Boots racks: DHCP, TFTP, HTTP and iPXE for the Machines of one site.
#[derive(Debug, Clone, Parser)]
#[command(name = "pxed", version)]
pub struct Cli {
    /// Command; default: run
    #[command(subcommand)]
    pub command: Option<Command>,
    /// For every command, before or after its name
    #[command(flatten)]
    pub settings: Settings,
    /// Logging
    #[command(flatten)]
    pub log: LogArguments,
}

/// Commands of pxed.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Serve until SIGTERM; SIGHUP reads the configuration again
    Run,
    /// Check the configuration and list every error, with line and remedy; exit 64 if there is one
    Check,
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

/// The configuration's file, and what overrides its top-level keys.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// The configuration file
    #[arg(long, global = true, env = "BEDPLATE_CONFIG", value_name = "FILE", default_value = DEFAULT_PATH)]
    pub config: PathBuf,
    /// Overrides `site`
    #[arg(long, global = true, env = "BEDPLATE_SITE", value_name = "NAME")]
    pub site: Option<String>,
    /// Overrides `state-directory`
    #[arg(long, global = true, env = "BEDPLATE_STATE_DIRECTORY", value_name = "DIRECTORY")]
    pub state_directory: Option<String>,
    /// Overrides `socket`
    #[arg(long, global = true, env = "BEDPLATE_SOCKET", value_name = "PATH")]
    pub socket: Option<String>,
    /// Overrides `socket-group`
    #[arg(long, global = true, env = "BEDPLATE_SOCKET_GROUP", value_name = "GROUP")]
    pub socket_group: Option<String>,
    /// Overrides `socket-admin-group`
    #[arg(long, global = true, env = "BEDPLATE_SOCKET_ADMIN_GROUP", value_name = "GROUP")]
    pub socket_admin_group: Option<String>,
    /// Overrides `default-image`
    #[arg(long, global = true, env = "BEDPLATE_DEFAULT_IMAGE", value_name = "IMAGE")]
    pub default_image: Option<String>,
    /// Overrides `discovery-image`
    #[arg(long, global = true, env = "BEDPLATE_DISCOVERY_IMAGE", value_name = "IMAGE")]
    pub discovery_image: Option<String>,
}

impl Cli {
    /// The command.
    pub fn command(&self) -> Command {
        self.command.clone().unwrap_or(Command::Run)
    }
}

impl Settings {
    /// The top-level keys that are overridden.
    pub fn overrides(&self) -> Vec<Override> {
        let given = [
            ("site", &self.site, "--site or BEDPLATE_SITE"),
            ("state-directory", &self.state_directory, "--state-directory or BEDPLATE_STATE_DIRECTORY"),
            ("socket", &self.socket, "--socket or BEDPLATE_SOCKET"),
            ("socket-group", &self.socket_group, "--socket-group or BEDPLATE_SOCKET_GROUP"),
            (
                "socket-admin-group",
                &self.socket_admin_group,
                "--socket-admin-group or BEDPLATE_SOCKET_ADMIN_GROUP",
            ),
            ("default-image", &self.default_image, "--default-image or BEDPLATE_DEFAULT_IMAGE"),
            ("discovery-image", &self.discovery_image, "--discovery-image or BEDPLATE_DISCOVERY_IMAGE"),
        ];
        let given = given
            .into_iter()
            .filter_map(|(key, value, origin)| Some((key, value.clone()?, origin.to_owned())));
        given.collect()
    }
}

#[cfg(test)]
#[path = "../../../process/tests/commands_page/mod.rs"]
mod commands_page;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_match_the_page_of_commands() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/commands.md");
        commands_page::compare(page, <Cli as clap::CommandFactory>::command());
    }

    #[test]
    fn the_definition_holds_together() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn settings_are_taken_before_and_after_the_command() {
        for line in [
            ["pxed", "--config", "/x", "--log-level", "debug", "check"],
            ["pxed", "check", "--log-level", "debug", "--config", "/x"],
            ["pxed", "--log-level", "debug", "check", "--config", "/x"],
        ] {
            let cli = Cli::try_parse_from(line).unwrap();
            assert_eq!(cli.command(), Command::Check);
            assert_eq!(cli.settings.config, PathBuf::from("/x"));
            assert_eq!(cli.log.log_level.as_deref(), Some("debug"));
        }
        assert!(Cli::try_parse_from(["pxed", "--log-level", "debug", "run"]).is_ok());
    }

    #[test]
    fn completion_and_man_pages_know_every_command() {
        let read = |line: &[&str]| Cli::try_parse_from(line).unwrap().command();
        assert_eq!(read(&["pxed", "completion", "bash"]), Command::Completion { shell: Shell::Bash });
        assert_eq!(read(&["pxed", "man"]), Command::Man { directory: None });
        let definition = <Cli as clap::CommandFactory>::command;
        let script = bedplate_process::manual::completion(definition(), Shell::Bash);
        let page = bedplate_process::manual::man(definition(), None).unwrap();
        for text in [script, page].map(|bytes| String::from_utf8(bytes).unwrap()) {
            for word in ["pxed", "check", "completion"] {
                assert!(text.contains(word), "{word}: {text}");
            }
        }
    }

    #[test]
    fn run_is_the_default() {
        let cli = Cli::parse_from(["pxed", "--config", "/x", "--site", "a"]);
        assert_eq!(cli.command(), Command::Run);
        let settings = cli.settings;
        assert_eq!(settings.overrides(), [("site", "a".to_owned(), "--site or BEDPLATE_SITE".to_owned())]);
        assert_eq!(settings.config, PathBuf::from("/x"));
    }
}
