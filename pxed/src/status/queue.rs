//! Pure: schedule of status writes.
//!
//! ```text
//! clean --mark--> due --take--> writing --done(ok)--> clean, next not before `WRITE_INTERVAL`
//!                  ^               |  \--mark--> writing, again when done
//!                  \--done(retry)--/   backoff doubles from 1 s to 60 s
//! ```
//!
//! The first change of a quiet Machine is due immediately; a busy Machine is written once per `WRITE_INTERVAL`, with
//! its newest state. A queue for ten thousand Machines is a map and a sorted set, without timers.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use bedplate_api::id::MachineName;
use bedplate_process::backoff::Backoff;

/// Minimum time between two writes of one Machine.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Delays between retries.
const BACKOFF: Backoff = Backoff::new(WRITE_INTERVAL, Duration::from_secs(60));

/// Result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Done, or the destination is gone: no more work.
    Settled,
    /// The write is not possible now and is repeated.
    Retry,
}

#[derive(Debug, Default)]
struct Item {
    writing: bool,
    /// Changed while it was being written.
    again: bool,
    /// Time at which it is due; none if it is clean.
    due: Option<Instant>,
    not_before: Option<Instant>,
    failures: u32,
}

/// The queue.
#[derive(Debug, Default)]
pub struct Queue {
    items: HashMap<MachineName, Item>,
    due: BTreeSet<(Instant, MachineName)>,
}

impl Queue {
    /// Something changed.
    pub fn mark(&mut self, name: &MachineName, now: Instant) {
        let item = self.items.entry(name.clone()).or_default();
        if item.writing {
            item.again = true;
        } else if item.due.is_none() {
            let due = item.not_before.map_or(now, |not_before| not_before.max(now));
            item.due = Some(due);
            self.due.insert((due, name.clone()));
        }
    }

    /// The Machine is gone.
    pub fn forget(&mut self, name: &MachineName) {
        if let Some(item) = self.items.remove(name)
            && let Some(due) = item.due
        {
            self.due.remove(&(due, name.clone()));
        }
    }

    /// The next one that is due, now to be written.
    pub fn take(&mut self, now: Instant) -> Option<MachineName> {
        let (due, _) = self.due.first()?;
        if *due > now {
            return None;
        }
        let (_, name) = self.due.pop_first()?;
        let item = self.items.get_mut(&name)?;
        item.due = None;
        item.writing = true;
        item.again = false;
        Some(name)
    }

    /// Time at which the next one is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Takes everything that is dirty as due now, for the last writes before the end.
    pub fn hurry(&mut self, now: Instant) {
        let waiting: Vec<MachineName> = self.due.iter().map(|(_, name)| name.clone()).collect();
        self.due.clear();
        for name in waiting {
            if let Some(item) = self.items.get_mut(&name) {
                item.due = Some(now);
                self.due.insert((now, name));
            }
        }
    }

    /// Records the result of a write. `random` is at least 0 and less than 1; it spreads retries.
    pub fn done(&mut self, name: &MachineName, outcome: Outcome, now: Instant, random: f64) {
        let Some(item) = self.items.get_mut(name) else { return };
        item.writing = false;
        let dirty = match outcome {
            Outcome::Settled => {
                item.failures = 0;
                item.not_before = now.checked_add(WRITE_INTERVAL);
                item.again
            }
            Outcome::Retry => {
                item.failures = item.failures.saturating_add(1);
                item.not_before = now.checked_add(BACKOFF.delay(item.failures, random));
                true
            }
        };
        item.again = false;
        if dirty {
            let due = item.not_before.unwrap_or(now);
            item.due = Some(due);
            self.due.insert((due, name.clone()));
        }
    }

    /// Returns the number of pending writes.
    pub fn waiting(&self) -> usize {
        self.due.len()
    }
}

#[cfg(test)]
mod tests {
    use bedplate_process::backoff::NO_JITTER;

    use super::*;

    fn name(text: &str) -> MachineName {
        text.parse().unwrap()
    }

    #[test]
    fn the_first_change_is_due_at_once_and_a_storm_is_one_write_a_second() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        let mut writes = 0;
        for millisecond in 0..3000_u64 {
            let now = start + Duration::from_millis(millisecond);
            queue.mark(&name("a"), now);
            if let Some(name) = queue.take(now) {
                writes += 1;
                queue.done(&name, Outcome::Settled, now, 0.0);
            }
        }
        assert_eq!(writes, 3);
    }

    #[test]
    fn a_change_during_a_write_is_written_again() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.mark(&name("a"), now);
        assert_eq!(queue.take(now), Some(name("a")));
        queue.mark(&name("a"), now);
        assert_eq!(queue.take(now), None);
        queue.done(&name("a"), Outcome::Settled, now, 0.0);
        assert_eq!(queue.take(now), None);
        assert_eq!(queue.take(now + WRITE_INTERVAL), Some(name("a")));
        queue.done(&name("a"), Outcome::Settled, now + WRITE_INTERVAL, 0.0);
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn in_a_hurry_nothing_waits_for_its_spacing() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.mark(&name("a"), now);
        assert!(queue.take(now).is_some());
        queue.mark(&name("a"), now);
        queue.done(&name("a"), Outcome::Settled, now, 0.0);
        assert_eq!(queue.take(now), None);
        queue.hurry(now);
        assert_eq!(queue.take(now), Some(name("a")));
    }

    #[test]
    fn failures_back_off_to_a_minute_and_success_forgives() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        queue.mark(&name("a"), now);
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert!(queue.take(now).is_some());
            queue.done(&name("a"), Outcome::Retry, now, NO_JITTER);
            waits.push(queue.next_due().unwrap().duration_since(now).as_secs());
            now = queue.next_due().unwrap();
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(queue.take(now).is_some());
        queue.done(&name("a"), Outcome::Settled, now, 0.0);
        queue.mark(&name("a"), now);
        assert_eq!(queue.next_due().unwrap(), now + WRITE_INTERVAL);
    }

    #[test]
    fn one_machine_that_fails_does_not_delay_another() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.mark(&name("a"), now);
        assert!(queue.take(now).is_some());
        queue.done(&name("a"), Outcome::Retry, now, 0.0);
        queue.mark(&name("b"), now);
        assert_eq!(queue.take(now), Some(name("b")));
    }

    #[test]
    fn a_machine_that_is_gone_is_not_written() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.mark(&name("a"), now);
        queue.forget(&name("a"));
        assert_eq!((queue.take(now), queue.waiting()), (None, 0));
        queue.done(&name("a"), Outcome::Retry, now, 0.0);
        assert_eq!(queue.next_due(), None);
    }
}
