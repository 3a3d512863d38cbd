//! Pure: the time at which an object is reconciled whose dependents change: soon after the first change, later while changes continue.
//!
//! Otherwise a count over ten thousand objects would be written ten thousand times while they start. Called by programs between a watch
//! and a queue.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Delay of the first change.
const MIN_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay of a change.
const MAX_DELAY: Duration = Duration::from_secs(8);

/// Keys of objects that have changed, now or recently. A key is a name, or a namespace with a name.
#[derive(Debug)]
pub(crate) struct Coalescer<K>(BTreeMap<K, Wait>);

impl<K> Default for Coalescer<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

#[derive(Debug)]
struct Wait {
    /// Time at which it is due. None: no change is pending.
    due: Option<Instant>,
    /// Delay of the pending change, or of the last one.
    wait: Duration,
    /// Time at which it was due last.
    last: Option<Instant>,
}

impl Wait {
    /// Returns true if changes arrive faster than they are due.
    fn is_busy(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_duration_since(last) < self.wait)
    }
}

impl<K: Ord + Clone> Coalescer<K> {
    /// Records a change.
    pub(crate) fn touched(&mut self, key: K, now: Instant) {
        let Some(known) = self.0.get_mut(&key) else {
            self.0.insert(key, Wait { due: Some(now + MIN_DELAY), wait: MIN_DELAY, last: None });
            return;
        };
        if known.due.is_none() {
            let wait =
                if known.is_busy(now) { known.wait.saturating_mul(2).min(MAX_DELAY) } else { MIN_DELAY };
            (known.wait, known.due) = (wait, Some(now + wait));
        }
    }

    /// Returns the time at which the next one is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|wait| wait.due).min()
    }

    /// Takes those that are due, each once.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<K> {
        self.0.retain(|_, wait| wait.due.is_some() || wait.is_busy(now));
        let due = self.0.iter_mut().filter(|(_, wait)| wait.due.is_some_and(|due| due <= now));
        let taken = due.map(|(key, wait)| {
            (wait.due, wait.last) = (None, Some(now));
            key.clone()
        });
        taken.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times at which one is due that changes at this interval, in milliseconds since the start.
    fn due_times(every: u64, until: u64) -> Vec<u64> {
        let (start, mut coalescer, mut times) = (Instant::now(), Coalescer::default(), Vec::new());
        for at in 0..until {
            let now = start + Duration::from_millis(at);
            if at.is_multiple_of(every) {
                coalescer.touched("w", now);
            }
            if coalescer.next().is_some_and(|next| next <= now) {
                assert_eq!(coalescer.due(now), ["w"]);
                times.push(at);
            }
        }
        times
    }

    #[test]
    fn first_change_waits_a_second_and_later_ones_up_to_eight() {
        assert_eq!(due_times(1, 40_000), [1000, 3001, 7002, 15_003, 23_004, 31_005, 39_006]);
        assert_eq!(due_times(u64::MAX, 40_000), [1000]);
        assert_eq!(due_times(5000, 20_000), [1000, 6000, 11_000, 16_000], "each after a rest");
    }

    #[test]
    fn each_name_waits_for_itself_and_is_forgotten_at_rest() {
        let (start, mut coalescer) = (Instant::now(), Coalescer::default());
        let at = |ms| start + Duration::from_millis(ms);
        coalescer.touched("a", at(0));
        coalescer.touched("b", at(500));
        assert_eq!((coalescer.due(at(1000)), coalescer.next()), (vec!["a"], Some(at(1500))));
        assert_eq!(coalescer.due(at(1500)), ["b"]);
        assert!(coalescer.due(at(60_000)).is_empty() && coalescer.0.is_empty());
    }
}
