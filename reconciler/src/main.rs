//! bedplate-controller: arguments, log, and the exit code; the rest is `bedplate_reconciler::run`.

use std::process::ExitCode;

use bedplate_process::exit;
use bedplate_reconciler::cli::Cli;
use clap::Parser;

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => exit::finish(
            "bedplate-controller",
            exit::run("bedplate-controller", &cli.log, bedplate_reconciler::run::run(&cli)),
        ),
        Err(error) => exit::usage(&error),
    }
}
