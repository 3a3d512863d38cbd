//! Waiting for a state, never for a time: polls until something is there or a deadline has passed.
//!
//! Used by everything in this crate that waits.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Interval between two checks of memory or a file.
const CHECK_INTERVAL: Duration = Duration::from_millis(25);
/// Interval between two checks that send a request or start a process.
const ASKING_INTERVAL: Duration = Duration::from_millis(250);

/// Polls `state` until it returns a value. Fails after `limit` with an error that names `what`. For checks of memory or a file.
///
/// # Errors
/// The deadline has passed, or `state` failed itself (which ends the waiting immediately).
pub fn until<T>(what: &str, limit: Duration, state: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    until_every(CHECK_INTERVAL, what, limit, state)
}

/// Like [`until`], for checks that send a request, start a process or draw a table. Such checks use CPU time that the tested program
/// needs.
///
/// # Errors
/// As for [`until`].
pub fn until_asked<T>(what: &str, limit: Duration, state: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    until_every(ASKING_INTERVAL, what, limit, state)
}

fn until_every<T>(
    interval: Duration,
    what: &str,
    limit: Duration,
    mut state: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(value) = state()? {
            return Ok(value);
        }
        let waited = started.elapsed();
        if waited > limit {
            bail!("waited {:.1} s in vain for {what}", waited.as_secs_f64());
        }
        std::thread::sleep(interval);
    }
}
