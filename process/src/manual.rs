//! Completion scripts and man pages of a program, made from the same definition as its parser and its help.
//!
//! Called for the commands `completion` and `man` of pxed and the agent.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use clap_complete::Shell;
use thiserror::Error;

/// Error of writing a man page.
#[derive(Debug, Error)]
#[error("cannot write man pages to {}", .path.display())]
pub struct WriteManError {
    path: PathBuf,
    source: io::Error,
}

/// The completion script of `shell` for the program that `command` defines.
pub fn completion(mut command: clap::Command, shell: Shell) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// The man page of the program; with a `directory`, pages for the program and each of its commands go there instead.
///
/// # Errors
/// The directory cannot be made or written to.
pub fn man(command: clap::Command, directory: Option<&Path>) -> Result<Vec<u8>, WriteManError> {
    let mut page = Vec::new();
    let (result, path) = match directory {
        None => (clap_mangen::Man::new(command).render(&mut page), Path::new("memory")),
        Some(path) => {
            let made = std::fs::create_dir_all(path);
            (made.and_then(|()| clap_mangen::generate_to(command, path)), path)
        }
    };
    result.map(|()| page).map_err(|source| WriteManError { path: path.to_owned(), source })
}

/// Writes a command's output to standard output. A reader that closes the pipe
/// early (`| head`) is not a failure.
///
/// # Errors
/// Standard output cannot be written to.
pub fn print(text: &[u8]) -> io::Result<()> {
    match io::stdout().lock().write_all(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> clap::Command {
        clap::Command::new("tester").about("Tests things").subcommand(clap::Command::new("run").about("Runs"))
    }

    #[test]
    fn completion_is_for_the_program_by_its_name() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(completion(command(), shell)).expect("text");
            assert!(script.contains("tester") && script.contains("run"), "{shell}: {script}");
        }
    }

    #[test]
    fn man_is_one_page_or_a_page_for_each_command() {
        let page = String::from_utf8(man(command(), None).expect("a page")).expect("text");
        assert!(page.contains(".TH tester 1") && page.contains("Tests things"), "{page}");
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("man1");
        assert_eq!(man(command(), Some(&path)).expect("pages"), b"");
        assert!(path.join("tester.1").is_file() && path.join("tester-run.1").is_file());
        let file = path.join("tester.1");
        let error = man(command(), Some(&file)).expect_err("a file is no directory");
        assert!(error.to_string().contains("tester.1"), "{error}");
    }
}
