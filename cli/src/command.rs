//! Runs one command: asks, or has something done, and prints what came of it.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use bedplate_api::machine::Machine;
use bedplate_api::wire::{Explanation, Seed};
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::arguments::{self, BmcCommand, Cli, Command, Global, MachineCommand};
use crate::backend::Desk;
use crate::backend::ask;
use crate::backend::cluster::AskClusterError;
use crate::backend::socket::{self, AskPxedError};
use crate::configuration::{self, ConfigureError};
use crate::diagnosis::{Rolling, awaited, runs_another};
use crate::docs;
use crate::install::{self, InstallError};
use crate::operation;
use crate::output::Page;
use crate::probe::{self, ProbeError};
use crate::render::{self, Discovered};
use crate::run_operation;

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
    /// The permission was given, but for any boot.
    #[error(
        "pxed did not bind the permission for Machine {machine:?} to boot {boot}; for an hour any host may enroll"
    )]
    Unbound { machine: String, boot: String },
    #[error("the operation cannot be made: {0}")]
    Selector(String),
    #[error("{name} failed: {reason}: {message}")]
    Failed { name: String, operation: String, reason: String, message: String },
    #[error("the operation has not ended after {after} s: {line}")]
    NotEnded { name: String, line: String, after: u64 },
    #[error("it is not known whether the MachineOperation was made")]
    MaybeMade(#[source] Box<RunError>),
    #[error("there is no MachineOperation {name:?}")]
    NoOperation { name: String },
    #[error("the MachineOperation {name:?} is gone: deleted, or its time after its end is over")]
    Gone { name: String },
    #[error("the cluster tells no changes any more")]
    Ended,
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error(transparent)]
    Configure(#[from] ConfigureError),
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error("cannot start")]
    Start(#[source] std::io::Error),
    #[error("cannot write to {}", .path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot print")]
    Print(#[source] std::io::Error),
}

impl RunError {
    /// What the caller can do about it.
    pub(crate) fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Pxed(error) => error.hint(true).map(Cow::from),
            Self::OnlyPxed(error) => error.hint(false).map(Cow::from),
            Self::Cluster(error) => error.hint(),
            Self::Probe(error) => error.hint(),
            Self::Configure(error) => error.hint().map(Cow::from),
            Self::Install(error) => error.hint().map(Cow::from),
            Self::Failed { operation, reason, .. } => {
                operation::remedy_of(operation, reason).map(Cow::from)
            }
            Self::NotEnded { name, .. } => Some(
                format!("nothing is undone, it goes on by itself: does a pxed of the Machine's site run? `bedplate operation watch {name}` waits on")
                    .into(),
            ),
            Self::MaybeMade(_) => Some(
                "made again it would be carried out twice: see with `bedplate operation list` whether it is there".into(),
            ),
            Self::NoOperation { .. } => Some("`bedplate operation list` shows those that are there".into()),
            Self::Answer(_) => {
                Some("--output json prints it as it is; bedplate and pxed should be of one version".into())
            }
            Self::Unbound { .. } => Some(
                "this pxed is older than --boot: upgrade it, and check whose key enrolls by then (`bedplate machine show NAME`)".into(),
            ),
            Self::Selector(_)
            | Self::Gone { .. }
            | Self::Ended
            | Self::Start(_)
            | Self::Write { .. }
            | Self::Print(_) => None,
        }
    }

    /// Whether it is the command line that is wrong.
    pub(crate) fn is_usage(&self) -> bool {
        match self {
            Self::Selector(_) => true,
            Self::Probe(error) => error.is_usage(),
            Self::Configure(error) => error.is_usage(),
            Self::Install(error) => error.is_usage(),
            _ => false,
        }
    }

    /// Whether trying again would be of no use.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Pxed(error) | Self::OnlyPxed(error) => error.is_final(),
            Self::Cluster(error) => error.is_final(),
            _ => true,
        }
    }

    /// Whether the cluster was asked and has not answered.
    pub(crate) fn is_unreached(&self) -> bool {
        match self {
            Self::Cluster(error) => matches!(error, AskClusterError::Reach { .. }),
            Self::MaybeMade(error) => error.is_unreached(),
            _ => false,
        }
    }

    /// Whether the cluster does not let this user see it.
    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Cluster(AskClusterError::Refused { code: 403, .. }))
    }
}

/// Runs what was asked for and prints what came of it.
pub(crate) fn run(cli: &Cli, program: &OsStr, out: &mut dyn Write) -> Result<(), RunError> {
    let global = &cli.global;
    let mut page = Page::new(out, global.output);
    match &cli.command {
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut arguments::command(program), "bedplate", &mut script);
            page.print(script)
        }
        Command::Docs { page: None } => page.print(docs::list()),
        Command::Docs { page: Some(name) } => page.print(docs::page(name).unwrap_or_default()),
        Command::Man { directory } => page.print(man(&arguments::command(program), directory.as_deref())?),
        command => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(RunError::Start)?.block_on(async {
                match command {
                    Command::Power(command) => run_operation::power(global, command, &mut page).await,
                    Command::Operation(command) => {
                        run_operation::operations(global, command, &mut page).await
                    }
                    Command::Config(command) => configuration::run(global, command, &mut page).await,
                    Command::Install(arguments) => install::run(global, arguments, &mut page).await,
                    Command::Machine(MachineCommand::Explain { name }) => {
                        explain(global, name.as_deref(), &mut page).await
                    }
                    Command::Bmc(BmcCommand::Probe(arguments)) => probe::run(arguments, &mut page).await,
                    command => {
                        let answer = answer(global, command).await?;
                        print(command, &answer, &mut page)
                    }
                }
            })
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
    Ok(match command {
        Command::Machine(MachineCommand::List) => Desk::open(global).await?.machines().await?,
        Command::Machine(MachineCommand::Show { name }) => Desk::open(global).await?.machine(name).await?,
        Command::Machine(MachineCommand::Token { name }) => {
            let path = format!("/v1/machines/{}/token", socket::escape(name));
            let asked = socket::post(&ask::socket(global), &path, &Value::Null).await;
            asked.map_err(RunError::OnlyPxed)?
        }
        Command::Machine(MachineCommand::ReEnroll { name, boot }) => {
            Desk::open(global).await?.allow_key(name, boot.as_deref()).await?
        }
        Command::Explain { subject } => pxed(format!("/v1/explain/{}", socket::escape(subject))).await?,
        Command::Discovered => pxed("/v1/discovered".to_owned()).await?,
        // These print for themselves.
        Command::Machine(MachineCommand::Explain { .. })
        | Command::Config(_)
        | Command::Install(_)
        | Command::Power(_)
        | Command::Operation(_)
        | Command::Bmc(_)
        | Command::Docs { .. }
        | Command::Completion { .. }
        | Command::Man { .. } => Value::Null,
    })
}

/// What Machines wait for, one or all.
async fn explain(global: &Global, name: Option<&str>, page: &mut Page<'_>) -> Result<(), RunError> {
    let desk = Desk::open(global).await?;
    let machines = match name {
        Some(name) => vec![read::<Machine>(&desk.machine(name).await?)?],
        None => read::<Vec<Machine>>(&desk.machines().await?["items"])?,
    };
    let rolling = if machines.iter().any(runs_another) { desk.rolling().await } else { Rolling::new() };
    let look = page.look();
    let mut found: Vec<_> = machines.iter().map(|machine| awaited(machine, &rolling, look.now)).collect();
    found.sort_by(|a, b| a.machine.cmp(&b.machine));
    for one in &mut found {
        one.next = ask::aimed(&one.next, global);
    }
    if page.is_json() {
        return page.json(&serde_json::json!({ "items": found }));
    }
    page.print(render::awaited(&found, look))
}

fn print(command: &Command, answer: &Value, page: &mut Page<'_>) -> Result<(), RunError> {
    if page.is_json() {
        return page.json(answer);
    }
    let look = page.look();
    let text = match command {
        Command::Machine(MachineCommand::List) => {
            render::list(&read::<Vec<Machine>>(&answer["items"])?, look)
        }
        Command::Machine(MachineCommand::Show { .. }) => render::show(&read::<Machine>(answer)?, look),
        Command::Machine(MachineCommand::Token { .. }) => token(answer)?,
        Command::Machine(MachineCommand::ReEnroll { name, boot }) => permission(name, boot.as_deref()),
        Command::Explain { .. } => render::explain(&read::<Explanation>(answer)?, look),
        Command::Discovered => render::discovered(&read::<Vec<Discovered>>(&answer["items"])?, look),
        Command::Machine(MachineCommand::Explain { .. })
        | Command::Config(_)
        | Command::Install(_)
        | Command::Power(_)
        | Command::Operation(_)
        | Command::Bmc(_)
        | Command::Docs { .. }
        | Command::Completion { .. }
        | Command::Man { .. } => String::new(),
    };
    page.print(text)
}

/// Text about a permission for another key.
fn permission(machine: &str, boot: Option<&str>) -> String {
    let whose = match boot {
        Some(boot) => format!("the host of boot {boot}"),
        None => "the first host that asks".to_owned(),
    };
    format!("Machine {}: {whose} may enroll one new key within an hour\n", render::clean(machine))
}

/// A token as one word, which says all that a host needs to enroll: `bedplate-agent enroll` reads it.
fn token(answer: &Value) -> Result<String, RunError> {
    let seed = read::<Seed>(answer)?;
    let bytes = serde_json::to_vec(&seed).map_err(RunError::Answer)?;
    Ok(format!("{}\n", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)))
}

/// A part of an answer as what it has to be.
pub(crate) fn read<T: DeserializeOwned>(value: &Value) -> Result<T, RunError> {
    T::deserialize(value).map_err(RunError::Answer)
}
