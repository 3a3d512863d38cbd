//! bedplate-cluster: arguments, log, and the exit code; the rest is `bedplate_cluster::run`.

use std::process::ExitCode;

use bedplate_cluster::cli::Cli;
use bedplate_process::exit::{self, Failure};
use bedplate_process::{logging, tls};
use clap::Parser;

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => exit::finish("bedplate-cluster", start(&cli)),
        Err(error) => exit::usage(&error),
    }
}

fn start(cli: &Cli) -> Result<(), Failure> {
    tls::install_crypto_provider();
    logging::start("bedplate-cluster", &cli.log).map_err(Failure::configuration)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(bedplate_cluster::run::run(cli));
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    result
}
