//! `bedplate`, also `kubectl bedplate`: what pxed or the cluster knows of Machines, for people.
//!
//! Parses, runs, prints, chooses the exit code (0 done, 1 failed, 64 wrong usage). It changes nothing anywhere.

mod arguments;
mod ask;
mod cluster;
mod command;
mod render;
mod socket;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

/// Wrong usage (EX_USAGE of sysexits.h).
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let program = arguments.first().cloned().unwrap_or_default();
    let cli = match arguments::parse(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no mistakes. Nothing can be done for a closed terminal.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let result = command::run(&cli, &program);
    match result.and_then(|text| write(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn write(text: &[u8]) -> Result<(), command::RunError> {
    match std::io::stdout().lock().write_all(text) {
        // `bedplate machine list | head` is no failure.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(command::RunError::Print),
    }
}

fn complain(error: &command::RunError) {
    let mut text = format!("bedplate: {error}");
    let mut source = error.source();
    while let Some(error) = source {
        // kube's errors repeat their sources.
        let cause = error.to_string();
        if !text.contains(&cause) {
            text.push_str(&format!(": {cause}"));
        }
        source = error.source();
    }
    eprintln!("{}", render::clean(&text));
    if let Some(hint) = error.hint() {
        eprintln!("hint: {hint}");
    }
}
