//! `bedplate-agent`: as process 1 of an initramfs it is stage-1, in the host it is the agent.
//!
//! Chooses between the two and the exit code; everything else is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    if let Some(code) = bedplate_agent::stage1::enter(&arguments) {
        return ExitCode::from(code);
    }
    bedplate_agent::cli::main()
}
