//! `bedplate`, also `kubectl bedplate`: shows Machines as pxed or the cluster knows them, and switches their
//! power.
//!
//! Parses, runs, chooses the exit code (0 done, 1 failed, 64 wrong usage). Its only changes: it creates MachineOperations
//! (`power`, `operation create`), applies the objects of Bedplate (`install`), rolls back to a version (`config rollback`), and
//! annotates Machines (`claim release`, `machine re-enroll`).
//! Requests to a BMC only read.

mod arguments;
mod backend;
mod changes;
mod claim;
mod command;
mod configuration;
mod confirm;
mod desk;
mod diagnosis;
mod diff;
mod docs;
mod error;
mod follow_operation;
mod install;
mod operation;
mod output;
mod password;
mod probe;
mod render;
mod run_operation;
mod selector;
mod standing;
mod step;

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

/// Wrong usage (EX_USAGE of sysexits.h).
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let program = arguments.first().cloned().unwrap_or_default();
    let cli = match arguments::parse(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are not errors. A closed terminal cannot be reported.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match command::run(&cli, &program, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        // `bedplate machine list | head` closes the pipe, which is not a failure.
        Err(error::RunError::Print(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(&error, &cli.global);
            if error.is_usage() { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

fn complain(error: &error::RunError, global: &arguments::Global) {
    let mut text = format!("bedplate: {error}");
    if error.is_unreached()
        && let Some(server) = backend::cluster::server(global)
    {
        text.push_str(&format!(" at {server}"));
    }
    let mut source = error.source();
    while let Some(error) = source {
        // kube's errors repeat their sources.
        let cause = error.to_string();
        if !text.contains(&cause) {
            text.push_str(&format!(": {cause}"));
        }
        source = error.source();
    }
    let mut lines = format!("{}\n", render::clean(&text));
    if let Some(hint) = error.hint() {
        lines.push_str(&format!("hint: {}\n", render::clean(&backend::ask::aimed(&hint, global))));
    }
    // Nothing can be done about a closed or full standard error; the exit code says that it failed.
    let _ = std::io::stderr().write_all(lines.as_bytes());
}
