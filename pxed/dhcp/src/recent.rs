//! A bounded memory of recent values, by key. The oldest entry is removed if the memory is full.
//!
//! Pure: time comes in as seconds since 1970. An entry from the future is as old as it is far away: a clock that was set back
//! keeps entries for twice their lifetime at most, and never more of them.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use crate::lease::Seconds;

/// Values by key, each for a limited time.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    entries: HashMap<K, (V, Seconds)>,
    /// Insertions in their order; an entry that was inserted again has an outdated one.
    order: VecDeque<(K, Seconds)>,
    capacity: usize,
    lifetime: Seconds,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    /// Makes an empty memory of at most `capacity` entries, each for `lifetime` seconds.
    pub(crate) fn new(capacity: usize, lifetime: Seconds) -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new(), capacity, lifetime }
    }

    /// Stores a value in place of the key's former one.
    pub(crate) fn insert(&mut self, key: K, value: V, now: Seconds) {
        let before = self.entries.insert(key, (value, now));
        if before.is_none_or(|(_, at)| at != now) {
            self.order.push_back((key, now));
        }
        while let Some(&(oldest, at)) = self.order.front() {
            if self.order.len() <= self.capacity && self.is_young(at, now) {
                break;
            }
            self.order.pop_front();
            if self.entries.get(&oldest).is_some_and(|(_, last)| *last == at) {
                self.entries.remove(&oldest);
            }
        }
    }

    /// Returns the key's value unless it is too old.
    pub(crate) fn get(&self, key: &K, now: Seconds) -> Option<&V> {
        let (value, at) = self.entries.get(key)?;
        self.is_young(*at, now).then_some(value)
    }

    /// Returns true if the key has no value now and there is room for it. Stores the value then.
    pub(crate) fn insert_new(&mut self, key: K, value: V, now: Seconds) -> bool {
        let full = self.order.len() >= self.capacity
            && self.order.front().is_some_and(|(_, at)| self.is_young(*at, now));
        if full || self.get(&key, now).is_some() {
            return false;
        }
        self.insert(key, value, now);
        true
    }

    fn is_young(&self, at: Seconds, now: Seconds) -> bool {
        now.abs_diff(at) < self.lifetime
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_entry_is_gone_and_can_be_stored_again() {
        let mut recent = Recent::new(8, 300);
        recent.insert(1, 'a', 1000);
        assert_eq!((recent.get(&1, 1299), recent.get(&1, 1300)), (Some(&'a'), None));
        recent.insert(1, 'b', 1200);
        assert_eq!(recent.get(&1, 1499), Some(&'b'), "the former insertion does not end it");
        assert_eq!(recent.get(&1, 1100), Some(&'b'), "a clock that was set back a little");
    }

    #[test]
    fn memory_of_any_number_of_keys_is_bounded() {
        let mut recent = Recent::new(8, 300);
        for key in 0..10_000_u64 {
            recent.insert(key, (), 1000 + key / 100);
            recent.insert(3, (), 1000 + key / 100);
            assert!(recent.entries.len() <= 9 && recent.order.len() <= 9, "{recent:?}");
        }
        assert!(recent.get(&9_999, 1100).is_some() && recent.get(&9_000, 1100).is_none());
    }

    #[test]
    fn a_full_gate_lets_nothing_through_until_there_is_room() {
        let mut recent = Recent::new(2, 60);
        let mut admitted = |key, now| recent.insert_new(key, (), now);
        assert_eq!(
            [admitted(1, 0), admitted(1, 1), admitted(2, 1), admitted(3, 1)],
            [true, false, true, false]
        );
        assert_eq!([admitted(1, 60), admitted(3, 60), admitted(3, 61)], [true, false, true]);
    }
    #[test]
    fn a_gate_opens_again_after_the_clock_was_set_back() {
        let mut recent = Recent::new(2, 60);
        assert!(recent.insert_new(1, (), 30_000) && recent.insert_new(2, (), 30_000));
        assert!(!recent.insert_new(3, (), 29_990), "the other threads' clocks differ by a moment");
        assert!(recent.insert_new(3, (), 1000) && recent.insert_new(1, (), 1000));
        assert!(!recent.insert_new(2, (), 1000), "it is as full as before");
        assert_eq!(recent.order.len(), 2);
    }
}
