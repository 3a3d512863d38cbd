//! Access of foreign BMCs to a chassis: a Unix socket that takes a line as `ipmi_sim` calls its
//! `chassis_control` program (`get power boot`, `set power 1`), and answers as that program prints.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::chassis::{ActError, Action, By, Override, Shared, Source};

/// A socket that is served until this is dropped.
#[derive(Debug)]
pub(super) struct Door {
    path: PathBuf,
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    pub(super) fn open(path: PathBuf, chassis: Shared) -> Result<Self> {
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
        let closed = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let closed = Arc::clone(&closed);
            move || {
                for stream in listener.incoming().flatten() {
                    if closed.load(Ordering::Relaxed) {
                        return;
                    }
                    // A client that has disconnected needs no answer.
                    let _ = serve(stream, &chassis);
                }
            }
        });
        Ok(Self { path, closed, thread: Some(thread) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        // Wakes the thread up.
        if UnixStream::connect(&self.path).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: UnixStream, chassis: &Shared) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut line = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut line)?;
    let answer = carry_out(&line, chassis).unwrap_or_else(|error| format!("error: {error:#}\n"));
    stream.write_all(answer.as_bytes())?;
    Ok(())
}

fn carry_out(line: &str, chassis: &Shared) -> Result<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.split_first() {
        Some((&"get", names)) => names.iter().map(|name| get(name, chassis)).collect(),
        Some((&"set", pairs)) => {
            for pair in pairs.chunks(2) {
                let &[name, value] = pair else { bail!("{pair:?} without a value") };
                set(name, value, chassis)?;
            }
            Ok(String::new())
        }
        _ => bail!("{line:?} is neither get nor set"),
    }
}

fn get(name: &str, chassis: &Shared) -> Result<String> {
    let mut chassis = chassis.lock();
    let now = Instant::now();
    let value = match name {
        "power" => u8::from(chassis.is_on(now)).to_string(),
        "boot" => match chassis.boot_override(now).map(|boot| boot.source) {
            Some(Source::Pxe) => "pxe".to_owned(),
            Some(Source::Http) => "http".to_owned(),
            Some(Source::Disk) | None => "default".to_owned(),
        },
        _ => bail!("{name:?} cannot be asked for"),
    };
    Ok(format!("{name}:{value}\n"))
}

fn set(name: &str, value: &str, chassis: &Shared) -> Result<()> {
    let mut chassis = chassis.lock();
    let now = Instant::now();
    let action = match (name, value) {
        ("power", "1") => Action::On,
        ("power", "0") => Action::ForceOff,
        ("reset", _) => Action::Reset,
        ("shutdown", _) => Action::GracefulOff,
        ("boot", source) => {
            let source = match source {
                "pxe" => Some(Source::Pxe),
                "http" => Some(Source::Http),
                _ => None,
            };
            chassis.set_boot(source.map(|source| Override { source, once: true }), false, now);
            return Ok(());
        }
        _ => bail!("{name:?} cannot be set to {value:?}"),
    };
    match chassis.act(action, By::Peer, Duration::ZERO, now) {
        Ok(()) => Ok(()),
        Err(ActError::State) => bail!("not while the machine is off"),
        Err(ActError::Hardware(error)) => Err(error),
    }
}
