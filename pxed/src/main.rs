//! pxed: boots racks. Arguments, log, configuration, and the exit code; the rest is `pxed::run`.

use std::process::ExitCode;

use bedplate_process::exit::{self, Failure};
use bedplate_process::{logging, manual, tls};
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
        Command::Run => {
            tls::install_crypto_provider();
            logging::start("pxed", &cli.log).map_err(Failure::configuration)?;
            let config = load(settings)?;
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            let result = runtime.block_on(pxed::run::run(config, settings));
            // A file system that hangs must not keep a stopped program alive.
            runtime.shutdown_timeout(std::time::Duration::from_secs(2));
            result
        }
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
