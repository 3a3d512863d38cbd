//! Permits to boot Linux guests. At most two guests boot concurrently on one machine, in all test runs together. More guests slow each
//! other down until they time out.
//!
//! A permit is a file lock, so it ends with its process. Take it right before the power-on and drop it when the guest has booted.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::wait;

/// Directory of the lock files, common to all runs on this machine.
const DIRECTORY: &str = "/run/lock";
/// Number of guests that may boot concurrently.
const MAX_GUESTS: usize = 2;
/// Maximum wait for a permit. A node of another run holds its permit for minutes.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(2400);

/// Permit to boot one Linux guest, or two.
///
/// A caller that holds a permit must not take another one. Two such callers would wait for each other.
#[derive(Debug)]
#[must_use]
pub struct GuestSlot {
    _locks: Vec<File>,
}

impl GuestSlot {
    /// Waits for a permit to boot one guest.
    ///
    /// # Errors
    /// All slots stay occupied for 40 minutes, or the lock files cannot be created.
    pub fn take() -> Result<Self> {
        Self::take_in(Path::new(DIRECTORY), 1, PERMIT_TIMEOUT)
    }

    /// Waits for a permit to boot two guests.
    ///
    /// # Errors
    /// A slot stays occupied for 40 minutes, or the lock files cannot be created.
    pub fn take_two() -> Result<Self> {
        Self::take_in(Path::new(DIRECTORY), 2, PERMIT_TIMEOUT)
    }

    /// Callers queue at the lock of the file `bedplate-guests`. Only the first caller acquires slots. So a caller that has one of two
    /// slots waits only for a guest, and callers for two slots do not starve behind callers for one.
    fn take_in(directory: &Path, count: usize, timeout: Duration) -> Result<Self> {
        // A container may have an empty /run.
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let open = |name: String| {
            let path = directory.join(name);
            File::options()
                .create(true)
                .append(true)
                .open(&path)
                .with_context(|| format!("cannot open {}", path.display()))
        };
        let queue = open("bedplate-guests".to_owned())?;
        let mut free =
            (0..MAX_GUESTS).map(|slot| open(format!("bedplate-guest-{slot}"))).collect::<Result<Vec<_>>>()?;
        let mut locks = Vec::new();
        let mut is_first = false;
        wait::until("a free slot to boot a guest", timeout, || {
            is_first = is_first || queue.try_lock().is_ok();
            while is_first && locks.len() < count {
                let Some(slot) = free.iter().position(|file| file.try_lock().is_ok()) else { break };
                locks.push(free.remove(slot));
            }
            Ok((locks.len() == count).then_some(()))
        })?;
        Ok(Self { _locks: locks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Directory;

    /// Maximum time of each wait in these tests.
    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    /// Waits until another caller has locked this file, or `is_over` returns true.
    fn await_lock(directory: &Directory, name: &str, is_over: impl Fn() -> bool) -> Result<()> {
        let file = File::open(directory.path().join(name))?;
        wait::until("a lock", TEST_TIMEOUT, || {
            let is_free = file.try_lock().is_ok();
            if is_free {
                file.unlock()?;
            }
            Ok((!is_free || is_over()).then_some(()))
        })
    }

    #[test]
    fn callers_for_both_slots_do_not_deadlock() -> Result<()> {
        let directory = Directory::new("slots")?;
        let take = |count| GuestSlot::take_in(directory.path(), count, TEST_TIMEOUT);
        for _ in 0..5 {
            let first = take(1)?;
            std::thread::scope(|scope| {
                let callers = [2, 2, 2, 2].map(|count| scope.spawn(move || take(count).map(drop)));
                // One of the callers has slot 1, and all of them compete for slot 0.
                await_lock(&directory, "bedplate-guest-1", || false)?;
                drop(first);
                callers.into_iter().try_for_each(|caller| caller.join().expect("no panic"))
            })?;
        }
        Ok(())
    }

    #[test]
    fn two_guests_boot_and_a_third_one_waits() -> Result<()> {
        let directory = Directory::new("slots")?;
        let take = || GuestSlot::take_in(directory.path(), 1, TEST_TIMEOUT);
        let (first, _second) = (take()?, take()?);
        std::thread::scope(|scope| {
            let third = scope.spawn(take);
            // A waiting caller holds the lock of the queue.
            await_lock(&directory, "bedplate-guests", || third.is_finished())?;
            assert!(!third.is_finished());
            drop(first);
            third.join().expect("no panic").map(drop)
        })
    }
}
