//! Waiting for a state, never for a time: polls until something is there or a deadline has passed.
//!
//! Used by everything in this crate that waits.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How often a state is looked at. Short against everything that is waited for, long against the cost of looking.
const INTERVAL: Duration = Duration::from_millis(25);

/// Looks until `state` gives a value; fails after `limit`, naming `what` was awaited.
///
/// # Errors
/// The deadline has passed, or `state` failed itself (which ends the waiting at once).
pub fn until<T>(what: &str, limit: Duration, mut state: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(value) = state()? {
            return Ok(value);
        }
        if started.elapsed() > limit {
            bail!("waited {} s in vain for {what}", limit.as_secs());
        }
        std::thread::sleep(INTERVAL);
    }
}
