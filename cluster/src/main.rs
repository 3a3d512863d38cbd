//! bedplate-cluster: arguments, log, and the exit code; the rest is `bedplate_cluster::run`.

use std::process::ExitCode;

use bedplate_cluster::cli::Cli;
use bedplate_process::exit;
use clap::Parser;

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => exit::finish(
            "bedplate-cluster",
            exit::run("bedplate-cluster", &cli.log, bedplate_cluster::run::run(&cli)),
        ),
        Err(error) => exit::usage(&error),
    }
}
