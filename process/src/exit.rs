//! Exit codes of a program: 0 done, 1 failed, 64 wrong usage or configuration.
//! The chain of causes is printed once, here.
//!
//! Does not end the process: the `ExitCode` is returned to `main`, so that every destructor runs.

use std::time::Duration;
use std::{error::Error, fmt::Write as _, process::ExitCode};

use crate::logging::LogArguments;
use crate::{BoxError, logging, tls};

/// The exit code of wrong usage or configuration (`EX_USAGE` of sysexits.h).
pub const USAGE: u8 = 64;

/// Maximum duration of blocking work after a program has ended.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Failure that ends a program.
#[derive(Debug)]
pub enum Failure {
    /// The caller or the configuration is wrong, so that a restart cannot help. Exit code 64.
    Configuration(BoxError),
    /// Something failed. Exit code 1.
    Failed(BoxError),
}

impl Failure {
    /// Wrong usage or configuration, exit code 64.
    pub fn configuration(error: impl Into<BoxError>) -> Self {
        Self::Configuration(error.into())
    }

    /// A failure at work, exit code 1. For what is no `Error` itself (`anyhow::Error`, texts); errors convert by `?`.
    pub fn failed(error: impl Into<BoxError>) -> Self {
        Self::Failed(error.into())
    }

    fn code(&self) -> u8 {
        match self {
            Self::Configuration(_) => USAGE,
            Self::Failed(_) => 1,
        }
    }

    fn error(&self) -> &(dyn Error + 'static) {
        match self {
            Self::Configuration(error) | Self::Failed(error) => error.as_ref(),
        }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(Box::new(error))
    }
}

/// Reports once why `program` ends, with each cause, and returns the exit code for `main`.
///
/// Writes to standard error for users, and to the log if its lines are records (JSON, journal).
pub fn finish(program: &str, result: Result<(), Failure>) -> ExitCode {
    let Err(failure) = result else {
        return ExitCode::SUCCESS;
    };
    let text = chain(failure.error());
    if logging::writes_records() {
        tracing::error!(error = text, exit_code = failure.code(), "program failed");
    } else {
        eprintln!("{program}: {text}");
    }
    ExitCode::from(failure.code())
}

/// Runs a program with its log: `run` in a runtime of several threads.
///
/// # Errors
/// The log or the runtime cannot be made, or the failure of `run`.
pub fn run(
    program: &'static str,
    log: &LogArguments,
    run: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    tls::install_crypto_provider();
    logging::start(program, log).map_err(Failure::configuration)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(run);
    // A file system that hangs must not keep a stopped program alive.
    runtime.shutdown_timeout(STOP_TIMEOUT);
    result
}

/// Prints the message of clap and returns the exit code: 64 for wrong usage, 0 for `--help` and `--version`.
pub fn usage(error: &clap::Error) -> ExitCode {
    // The error cannot be reported when the terminal is gone.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}

/// An error and its causes in one line, outermost first.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // Writing to a String cannot fail.
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("reading {path}")]
    struct ReadError {
        path: &'static str,
        source: std::io::Error,
    }

    fn read_error() -> ReadError {
        ReadError { path: "/x", source: std::io::Error::other("no such thing") }
    }

    #[test]
    fn chain_names_every_cause_once() {
        assert_eq!(chain(&read_error()), "reading /x: no such thing");
    }

    #[test]
    fn configuration_is_64_and_failure_is_1() {
        assert_eq!(Failure::configuration("no interface").code(), 64);
        assert_eq!(Failure::from(read_error()).code(), 1);
        assert_eq!(finish("test", Ok(())), ExitCode::SUCCESS);
        assert_eq!(finish("test", Err(Failure::configuration(read_error()))), ExitCode::from(64));
    }

    #[test]
    fn wrong_usage_is_64_and_help_is_0() {
        let parse =
            |flag| clap::Command::new("test").try_get_matches_from(["test", flag]).expect_err("no such flag");
        assert_eq!(usage(&parse("--wrong")), ExitCode::from(64));
        assert_eq!(usage(&parse("--help")), ExitCode::SUCCESS);
    }
}
