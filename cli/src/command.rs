//! Runs one command: asks, and gives what is to be printed. Prints nothing itself, apart from man pages into files.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use bedplate_api::machine::Machine;
use bedplate_api::wire::Explanation;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::arguments::{self, Cli, Command, Global, MachineCommand, Output};
use crate::ask::{self, Asked};
use crate::cluster::{self, AskClusterError};
use crate::render::{self, Discovered, Look};
use crate::socket::{self, AskPxedError};

/// Why a command failed.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    #[error(transparent)]
    Pxed(#[from] AskPxedError),
    /// What the cluster cannot answer instead.
    #[error(transparent)]
    OnlyPxed(AskPxedError),
    #[error(transparent)]
    Cluster(#[from] AskClusterError),
    #[error("the answer is not what this version of bedplate understands")]
    Answer(#[source] serde_json::Error),
    #[error("cannot start")]
    Start(#[source] std::io::Error),
    #[error("cannot write to {}", .path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot print")]
    Print(#[source] std::io::Error),
}

impl RunError {
    /// What the caller can do about it.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Pxed(error) => error.hint(true),
            Self::OnlyPxed(error) => error.hint(false),
            Self::Cluster(error) => error.hint(),
            Self::Answer(_) => {
                Some("--output json prints it as it is; bedplate and pxed should be of one version")
            }
            Self::Start(_) | Self::Write { .. } | Self::Print(_) => None,
        }
    }
}

/// Runs what was asked for and gives the output.
pub(crate) fn run(cli: &Cli, program: &OsStr) -> Result<Vec<u8>, RunError> {
    match &cli.command {
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut arguments::command(program), "bedplate", &mut script);
            Ok(script)
        }
        Command::Man { directory } => man(&arguments::command(program), directory.as_deref()),
        command => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let answer = runtime.map_err(RunError::Start)?.block_on(answer(&cli.global, command))?;
            print(&cli.global, command, &answer).map(String::into_bytes)
        }
    }
}

/// The man page of the program, or a page for each command as a file.
fn man(command: &clap::Command, directory: Option<&Path>) -> Result<Vec<u8>, RunError> {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command.clone()).render(&mut page).map_err(RunError::Print)?;
        return Ok(page);
    };
    let failed = |source| RunError::Write { path: directory.to_owned(), source };
    std::fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(command.clone(), directory).map_err(failed)?;
    Ok(Vec::new())
}

async fn answer(global: &Global, command: &Command) -> Result<Value, RunError> {
    let pxed =
        async |path: String| socket::get(&ask::socket(global), &path).await.map_err(RunError::OnlyPxed);
    let asked = ask::choose(global, Path::exists);
    Ok(match (command, asked) {
        (Command::Machine(MachineCommand::List), Asked::Pxed(path)) => {
            socket::get(&path, "/v1/machines").await?
        }
        (Command::Machine(MachineCommand::List), Asked::Cluster) => cluster::list(global).await?,
        (Command::Machine(MachineCommand::Show { name }), Asked::Pxed(path)) => {
            socket::get(&path, &format!("/v1/machines/{}", socket::escape(name))).await?
        }
        (Command::Machine(MachineCommand::Show { name }), Asked::Cluster) => {
            cluster::get(global, name).await?
        }
        (Command::Explain { subject }, _) => pxed(format!("/v1/explain/{}", socket::escape(subject))).await?,
        (Command::Discovered, _) => pxed("/v1/discovered".to_owned()).await?,
        (Command::Completion { .. } | Command::Man { .. }, _) => Value::Null,
    })
}

fn print(global: &Global, command: &Command, answer: &Value) -> Result<String, RunError> {
    if global.output == Output::Json {
        return serde_json::to_string_pretty(answer).map(|text| text + "\n").map_err(RunError::Answer);
    }
    let look = Look {
        now: Timestamp::now(),
        colour: std::io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    };
    Ok(match command {
        Command::Machine(MachineCommand::List) => {
            render::list(&read::<Vec<Machine>>(&answer["items"])?, look)
        }
        Command::Machine(MachineCommand::Show { .. }) => render::show(&read::<Machine>(answer)?, look),
        Command::Explain { .. } => render::explain(&read::<Explanation>(answer)?, look),
        Command::Discovered => render::discovered(&read::<Vec<Discovered>>(&answer["items"])?, look),
        Command::Completion { .. } | Command::Man { .. } => String::new(),
    })
}

fn read<T: DeserializeOwned>(value: &Value) -> Result<T, RunError> {
    T::deserialize(value).map_err(RunError::Answer)
}
