//! pxed: boots racks. Arguments, log, configuration, and the exit code; the rest is `pxed::run`.

use std::process::ExitCode;

use bedplate_process::exit::{self, Failure};
use bedplate_process::manual;
use clap::Parser;
use pxed::config::Config;
use pxed::config::cli::{Cli, Command, Settings};

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => exit::finish("pxed", start(&cli)),
        Err(error) => exit::usage(&error),
    }
}

fn start(cli: &Cli) -> Result<(), Failure> {
    let settings = &cli.settings;
    match cli.command() {
        Command::Check => check(settings),
        Command::Completion { shell } => Ok(manual::print(&manual::completion(definition(), shell))?),
        Command::Man { directory } => Ok(manual::print(&manual::man(definition(), directory.as_deref())?)?),
        Command::Run => exit::run("pxed", &cli.log, async {
            let config = load(settings)?;
            pxed::run::run(config, settings).await
        }),
    }
}

/// The command line as it was defined, which help and manual are made from.
fn definition() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

fn load(settings: &Settings) -> Result<Config, Failure> {
    Config::load(&settings.config, &settings.overrides()).map_err(Failure::configuration)
}

fn check(settings: &Settings) -> Result<(), Failure> {
    let config = load(settings)?;
    let path = settings.config.display();
    println!("{path}: valid");
    for line in pxed::config::advice::relays(&config) {
        println!("{path}: note: {line}");
    }
    Ok(())
}
