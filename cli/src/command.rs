//! Runs one command: sends its requests, and prints the result.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;

use base64::Engine as _;
use bedplate_api::machine::Machine;
use bedplate_api::wire::{Explanation, Seed};
use serde_json::Value;

use crate::arguments::{self, BmcCommand, Cli, Command, Global, MachineCommand};
use crate::backend::ask;
use crate::backend::socket;
use crate::claim;
use crate::configuration;
use crate::desk::Desk;
use crate::diagnosis::{Rolling, diagnose, runs_another};
use crate::docs;
use crate::error::{RunError, read};
use crate::install;
use crate::output::Page;
use crate::probe;
use crate::render::{self, Discovered};
use crate::run_operation;

/// Runs a command and prints its result.
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
                    Command::Claim(command) => claim::run(global, command, &mut page).await,
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

/// Writes the man page of the program, or a page for each command as a file.
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
        // These commands print their own output.
        Command::Machine(MachineCommand::Explain { .. })
        | Command::Claim(_)
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

/// Prints what one Machine or all Machines wait for.
async fn explain(global: &Global, name: Option<&str>, page: &mut Page<'_>) -> Result<(), RunError> {
    let desk = Desk::open(global).await?;
    let machines = match name {
        Some(name) => vec![read::<Machine>(&desk.machine(name).await?)?],
        None => read::<Vec<Machine>>(&desk.machines().await?["items"])?,
    };
    let rolling = if machines.iter().any(runs_another) { desk.rolling().await } else { Rolling::new() };
    let look = page.look();
    let mut found: Vec<_> = machines.iter().map(|machine| diagnose(machine, &rolling, look.now)).collect();
    found.sort_by(|a, b| a.machine.cmp(&b.machine));
    for one in &mut found {
        one.next = ask::aimed(&one.next, global);
    }
    if page.is_json() {
        return page.json(&serde_json::json!({ "items": found }));
    }
    page.print(render::diagnosis(&found, look))
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
        | Command::Claim(_)
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

/// Returns the text about a permission for another key.
fn permission(machine: &str, boot: Option<&str>) -> String {
    let whose = match boot {
        Some(boot) => format!("the host of boot {boot}"),
        None => "the first host that asks".to_owned(),
    };
    format!("Machine {}: {whose} may enroll one new key within an hour\n", render::clean(machine))
}

/// Returns a token as one word, with all that a host needs to enroll. `bedplate-agent enroll` reads it.
fn token(answer: &Value) -> Result<String, RunError> {
    let seed = read::<Seed>(answer)?;
    let bytes = serde_json::to_vec(&seed).map_err(RunError::Answer)?;
    Ok(format!("{}\n", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)))
}
