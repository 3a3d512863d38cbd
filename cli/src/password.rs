//! Reads a password from a file, from standard input, or from a user at a terminal without echo. Never reads
//! it from the command line or the environment, where other users could see it.

use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use secrecy::SecretString;
use thiserror::Error;
use zeroize::Zeroizing;

/// Maximum length of a password in bytes.
const MAX_PASSWORD_BYTES: u64 = 4096;

/// Reason why there is no password.
#[derive(Debug, Error)]
pub(crate) enum ReadPasswordError {
    #[error("cannot read the password from {}", .path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("cannot read the password from standard input")]
    Stdin(#[source] std::io::Error),
    #[error("cannot ask for the password")]
    Terminal(#[source] std::io::Error),
    #[error("there is no terminal to ask for the password on")]
    NoTerminal,
    #[error("the password is longer than {MAX_PASSWORD_BYTES} bytes, or not UTF-8")]
    NoPassword,
    #[error("the password has several lines")]
    Lines,
    #[error("no password was given")]
    Empty,
}

/// Reads the password from this file (`-`: standard input), or from the user at the terminal.
pub(crate) fn read(file: Option<&Path>, user: &str) -> Result<SecretString, ReadPasswordError> {
    match file {
        Some(path) if path == Path::new("-") => {
            taken(std::io::stdin().lock()).map_err(ReadPasswordError::Stdin).and_then(|bytes| kept(&bytes))
        }
        Some(path) => {
            let failed = |source| ReadPasswordError::File { path: path.to_owned(), source };
            taken(File::open(path).map_err(failed)?).map_err(failed).and_then(|bytes| kept(&bytes))
        }
        None => ask(user),
    }
}

/// Reads at most one byte more than the limit, so that a longer password is detected.
fn taken(from: impl Read) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let most = MAX_PASSWORD_BYTES.saturating_add(3);
    // The buffer does not grow: growth would leave copies in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(most).unwrap_or_default()));
    from.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the first line, which must be the only one.
fn kept(bytes: &[u8]) -> Result<SecretString, ReadPasswordError> {
    let text = std::str::from_utf8(bytes).map_err(|_| ReadPasswordError::NoPassword)?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if u64::try_from(text.len()).is_ok_and(|length| length > MAX_PASSWORD_BYTES) {
        return Err(ReadPasswordError::NoPassword);
    }
    // With a line break the password would be wrong, and BMCs accept few wrong passwords.
    if text.contains(['\n', '\r']) {
        return Err(ReadPasswordError::Lines);
    }
    if text.is_empty() { Err(ReadPasswordError::Empty) } else { Ok(SecretString::from(text)) }
}

fn ask(user: &str) -> Result<SecretString, ReadPasswordError> {
    let tty = File::options().read(true).write(true).open("/dev/tty").ok().filter(File::is_terminal);
    let Some(tty) = tty else { return Err(ReadPasswordError::NoTerminal) };
    let quiet = Quiet::make(&tty).map_err(|error| ReadPasswordError::Terminal(error.into()))?;
    let asked = write!(&tty, "password of {}: ", crate::render::clean(user)).and_then(|()| typed(&mut &tty));
    let ended = writeln!(&tty);
    drop(quiet);
    let bytes = asked.and_then(|bytes| ended.map(|()| bytes)).map_err(ReadPasswordError::Terminal)?;
    kept(&bytes)
}

/// Terminal mode without echo that delivers each key immediately, until this is dropped.
struct Quiet<'a> {
    tty: &'a File,
    before: Termios,
}

impl<'a> Quiet<'a> {
    fn make(tty: &'a File) -> rustix::io::Result<Quiet<'a>> {
        let before = tcgetattr(tty)?;
        let mut quiet = before.clone();
        // Signals are read as keys, too: a signal would end the program and leave the terminal without echo.
        quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        tcsetattr(tty, OptionalActions::Flush, &quiet)?;
        Ok(Quiet { tty, before })
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.tty, OptionalActions::Flush, &self.before);
    }
}

/// Reads a line that a user types. Enter ends it, Backspace and Ctrl-U correct it, Ctrl-C and Ctrl-D cancel.
fn typed(from: &mut impl Read) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let most = usize::try_from(MAX_PASSWORD_BYTES).unwrap_or_default();
    let mut line = Zeroizing::new(Vec::with_capacity(most.saturating_add(3)));
    let mut key = [0; 1];
    loop {
        if from.read(&mut key)? == 0 {
            return Ok(line);
        }
        match key {
            [b'\r' | b'\n'] => return Ok(line),
            [0x03 | 0x04] => return Err(std::io::ErrorKind::Interrupted.into()),
            [0x15] => line.clear(),
            [0x08 | 0x7f] => {
                // A whole character: its later bytes begin with 10.
                while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            [byte] if line.len() <= most => line.push(byte),
            [_] => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn a_file_is_a_password_without_its_last_line_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        for (content, expected) in
            [("s3cret", Some("s3cret")), ("s3cret \r\n", Some("s3cret ")), ("\n", None), ("", None)]
        {
            std::fs::write(&path, content).unwrap();
            let found = read(Some(&path), "root").ok();
            assert_eq!(found.as_ref().map(ExposeSecret::expose_secret), expected, "{content:?}");
        }
        for several in ["s3cret\nother\n", "s3cret\n\n"] {
            std::fs::write(&path, several).unwrap();
            assert!(matches!(read(Some(&path), "root"), Err(ReadPasswordError::Lines)), "{several:?}");
        }
        std::fs::write(&path, "x".repeat(5000)).unwrap();
        assert!(matches!(read(Some(&path), "root"), Err(ReadPasswordError::NoPassword)));
        assert!(matches!(
            read(Some(&directory.path().join("none")), "root"),
            Err(ReadPasswordError::File { .. })
        ));
    }

    #[test]
    fn typed_line_can_be_corrected_and_canceled() {
        let line =
            |keys: &str| typed(&mut keys.as_bytes()).map(|line| String::from_utf8(line.to_vec()).unwrap());
        assert_eq!(line("s3cret\rmore").unwrap(), "s3cret");
        assert_eq!(line("ab\u{15}s3creü\u{7f}t\n").unwrap(), "s3cret");
        assert_eq!(line("\u{7f}a").unwrap(), "a");
        for up in ["ab\u{3}", "\u{4}"] {
            assert!(line(up).is_err());
        }
    }
}
