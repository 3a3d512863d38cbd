//! The agent's command line: `run` (also without a word), `enroll`, `rekey`, `status`, `plan`, `facts`, `completion`, `man`.
//!
//! Reads flags and environment once. Called by `main`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bedplate_process::exit::{Failure, chain, finish, usage};
use bedplate_process::health;
use bedplate_process::liveness::{self, Liveness};
use bedplate_process::logging::{self, LogArguments};
use bedplate_process::manual::{self, Shell};
use bedplate_process::notify::Notifier;
use bedplate_process::signals::Signals;
use bedplate_process::tasks::Tasks;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use tokio_util::sync::CancellationToken;

use crate::metrics;
use crate::node::status_file::NodeStanding;
use crate::service::enroll::{EnrollError, Wanted, enroll};
use crate::service::host::observe_facts;
use crate::service::identity::Identity;
use crate::service::run::{TURN_TIMEOUT, run};
use crate::service::state::Places;

/// Bedplate's agent: enrolls this host with pxed and reports about it.
#[derive(Debug, Parser)]
#[command(name = "bedplate-agent", version)]
struct Cli {
    /// Directory that survives restarts: key, certificate, kubeconfig
    #[arg(long, env = "BEDPLATE_AGENT_STATE", default_value = "/var/lib/bedplate/agent", global = true)]
    state_directory: PathBuf,
    /// Directory that is lost at each boot: the seed, and the state of the agent
    #[arg(long, env = "BEDPLATE_AGENT_RUN", default_value = "/run/bedplate", global = true)]
    run_directory: PathBuf,
    /// `run` changes nothing on this host: no slot, no operation; it only enrolls, reports and renews
    #[arg(long, env = "BEDPLATE_AGENT_REPORT_ONLY", global = true)]
    report_only: bool,
    #[command(flatten)]
    log: LogArguments,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Clone, Subcommand)]
enum Command {
    /// Enroll, report, renew, and run a node, until stopped (the default)
    Run,
    /// Enroll this host, which was not netbooted, by a token of `bedplate machine token`; the service must run
    Enroll {
        /// URL of pxed for agents, instead of the token's; may be repeated, the first one that answers is used
        #[arg(long = "server", value_name = "URL")]
        servers: Vec<String>,
        /// File with the token, `-`: standard input. Command lines are readable by other users, so no option takes the token itself
        #[arg(long, value_name = "FILE", default_value = "-")]
        token_file: PathBuf,
        /// Timeout for the service, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        wait: u64,
    },
    /// Create a new key for this host, used from its next enrollment on: its next netboot, or `enroll` with a new token
    Rekey,
    /// Print the state of the agent, its last failure and its next attempt
    Status {
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print the next step for the node's slots, or the reason for waiting
    Plan {
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print the known facts of the hardware, as JSON
    Facts,
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

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Output {
    /// Text for users
    #[default]
    Text,
    /// One JSON object
    Json,
}

/// Runs the command; the exit code is 0 done, 1 failed, 64 wrong usage.
pub fn main() -> ExitCode {
    bedplate_process::tls::install_crypto_provider();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let places = Places {
        state: cli.state_directory.clone(),
        run: cli.run_directory.clone(),
        root: PathBuf::from("/"),
    };
    let result = match cli.command.clone().unwrap_or(Command::Run) {
        Command::Run => serve(&cli.log, places, cli.report_only),
        Command::Enroll { servers, token_file, wait } => {
            enroll_host(&places, &Wanted { servers, token: token_file, wait: Duration::from_secs(wait) })
        }
        Command::Rekey => rekey(&places),
        Command::Status { output } => status(&places, output),
        Command::Plan { output } => node_plan(&places, output),
        Command::Facts => print_json(&observe_facts(&places, None).0),
        Command::Completion { shell } => print(&manual::completion(Cli::command(), shell)),
        Command::Man { directory } => manual::man(Cli::command(), directory.as_deref())
            .map_err(Failure::from)
            .and_then(|page| print(&page)),
    };
    finish("bedplate-agent", result)
}

fn serve(log: &LogArguments, places: Places, report_only: bool) -> Result<(), Failure> {
    logging::start("bedplate-agent", log).map_err(Failure::configuration)?;
    for directory in [&places.state, &places.run] {
        std::fs::create_dir_all(directory)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let signals = Signals::install()?;
        let tasks = Tasks::new(signals.shutdown());
        let notifier = Notifier::from_environment();
        let liveness = Liveness::new(signals.shutdown());
        let pulse = liveness.part("the service loop", TURN_TIMEOUT);
        let known = liveness.clone();
        notifier.spawn_watchdog(&tasks, signals.shutdown(), move || known.check());
        serve_metrics(&tasks, &places.run.join(metrics::SOCKET), liveness.clone(), signals.shutdown());
        let ended = run(places, report_only, notifier, pulse, liveness, signals.shutdown()).await;
        if ended.is_err() {
            signals.shutdown().cancel();
        }
        let drained = tasks.drain(Duration::from_secs(5), signals.hurry()).await;
        ended?;
        Ok(drained?)
    })
}

/// Serves health and metrics on a socket for root. The agent also works without them.
fn serve_metrics(tasks: &Tasks, path: &Path, liveness: Liveness, shutdown: CancellationToken) {
    match health::bind_socket(path) {
        Ok(listener) => {
            let registry = Arc::new(metrics::registry(&metrics::METRICS));
            let pulse = liveness.part("metrics", liveness::SILENCE_TIMEOUT);
            let serving = health::serve(listener, Arc::new(liveness), registry, pulse, shutdown);
            tasks.spawn("metrics", serving);
        }
        Err(error) => tracing::warn!(error = chain(&error), "failed to serve metrics"),
    }
}

fn enroll_host(places: &Places, wanted: &Wanted) -> Result<(), Failure> {
    let machine = enroll(places, wanted).map_err(|error| match error {
        error @ (EnrollError::NoServer | EnrollError::BadServer(_)) => Failure::configuration(error),
        error => Failure::failed(error),
    })?;
    print(format!("this host is Machine {machine}\n").as_bytes())
}

fn rekey(places: &Places) -> Result<(), Failure> {
    Identity::make_next(&places.state).map_err(Failure::failed)?;
    print(
        b"new key created; reboot this host or run `bedplate-agent enroll` with a new token to replace \
            the current key\n",
    )
}

fn status(places: &Places, output: Output) -> Result<(), Failure> {
    let standing = places.read_standing()?;
    let standing = standing.ok_or_else(|| Failure::failed("the agent has not run in this boot"))?;
    let node = NodeStanding::read(&places.run)?;
    match output {
        Output::Json => {
            let mut value = serde_json::to_value(&standing).map_err(Failure::failed)?;
            value["node"] = serde_json::to_value(&node).map_err(Failure::failed)?;
            print_json(&value)
        }
        Output::Text => {
            let node = node.map(|node| node.describe()).unwrap_or_default();
            print(format!("{}{node}", standing.describe()).as_bytes())
        }
    }
}

fn node_plan(places: &Places, output: Output) -> Result<(), Failure> {
    let node = NodeStanding::read(&places.run)?;
    let node = node.ok_or_else(|| {
        Failure::failed("the agent planned no node in this boot because the host is not enrolled")
    })?;
    match output {
        Output::Json => print_json(&node),
        Output::Text => print(node.describe_plan().as_bytes()),
    }
}

fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::failed)?;
    print(format!("{text}\n").as_bytes())
}

fn print(text: &[u8]) -> Result<(), Failure> {
    Ok(manual::print(text)?)
}

#[cfg(test)]
#[path = "../../process/tests/commands_page/mod.rs"]
mod commands_page;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn report_only_counts_with_the_word_run_and_without_it() {
        for words in [&["--report-only"][..], &["run", "--report-only"], &["--report-only", "run"]] {
            let cli = Cli::try_parse_from([&["bedplate-agent"], words].concat()).unwrap();
            assert!(cli.report_only && matches!(cli.command, None | Some(Command::Run)), "{words:?}");
        }
        assert!(!Cli::try_parse_from(["bedplate-agent"]).unwrap().report_only);
    }

    #[tokio::test(start_paused = true)]
    async fn healthz_names_the_listener_of_the_metrics_if_it_stops() {
        let directory = tempfile::tempdir().unwrap();
        let shutdown = CancellationToken::new();
        let (tasks, liveness) = (Tasks::held(shutdown.clone()), Liveness::new(shutdown.clone()));
        serve_metrics(&tasks, &directory.path().join("metrics.sock"), liveness.clone(), shutdown);
        assert_eq!((tasks.running(), liveness.names()), (vec!["metrics"], vec!["metrics".to_owned()]));
        tokio::time::advance(liveness::SILENCE_TIMEOUT + Duration::from_secs(1)).await;
        assert!(liveness.check().unwrap_err().starts_with("metrics sent no"));
    }

    #[test]
    fn commands_match_the_page_of_commands() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/commands.md");
        commands_page::compare(page, Cli::command());
    }

    #[test]
    fn completion_and_man_pages_know_every_command() {
        let script = manual::completion(Cli::command(), Shell::Bash);
        let page = manual::man(Cli::command(), None).unwrap();
        for text in [script, page].map(|bytes| String::from_utf8(bytes).unwrap()) {
            for word in ["bedplate-agent", "enroll", "rekey", "status", "plan", "facts", "completion"] {
                assert!(text.contains(word), "{word}: {text}");
            }
        }
    }
}
