//! Waiting times of queued objects by their full names. Called by `counters`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Objects of a kind that wait, each since it was queued first.
#[derive(Debug, Default)]
pub(crate) struct Waiting(HashMap<String, Instant>);

impl Waiting {
    pub(crate) fn waits(&mut self, object: &str, now: Instant) {
        if !self.0.contains_key(object) {
            self.0.insert(object.to_owned(), now);
        }
    }

    pub(crate) fn taken(&mut self, object: &str) {
        self.0.remove(object);
    }

    pub(crate) fn depth(&self) -> usize {
        self.0.len()
    }

    /// Returns the waiting time of the oldest.
    pub(crate) fn oldest(&self, now: Instant) -> Duration {
        self.0.values().min().map(|first| now.saturating_duration_since(*first)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_waits_since_it_was_queued_first_until_it_is_taken() {
        let (start, mut waiting) = (Instant::now(), Waiting::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        waiting.waits("a", at(0));
        waiting.waits("b", at(3));
        waiting.waits("a", at(5));
        assert_eq!((waiting.depth(), waiting.oldest(at(10))), (2, Duration::from_secs(10)));
        waiting.taken("a");
        assert_eq!((waiting.depth(), waiting.oldest(at(10))), (1, Duration::from_secs(7)));
        waiting.taken("b");
        assert_eq!(waiting.oldest(at(10)), Duration::ZERO);
    }
}
