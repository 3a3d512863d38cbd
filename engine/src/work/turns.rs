//! Pure: the order in which the objects of a kind are reconciled. The object that has waited longest is next.
//!
//! ```text
//! put, or a delay that has passed -> waiting, first in first out -> start -> running -> finished
//!                                           ^                                  |  put meanwhile
//!                                           +----------------------------------+
//! ```
//! An object waits once, however often it is queued, and never runs twice concurrently. kube's scheduler takes any waiting object instead, in the order of
//! a hash: while more objects came than were reconciled, the same objects waited for minutes, and others ran many times. Called by `work`.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Instant;

/// Objects that wait, run, or run later.
#[derive(Debug)]
pub(super) struct Turns<T> {
    /// Maximum number that runs concurrently.
    limit: usize,
    waiting: VecDeque<T>,
    /// Objects in `waiting`.
    queued: HashSet<T>,
    /// Objects that run. True: the object was queued meanwhile.
    running: HashMap<T, bool>,
    /// Objects with a delay, in the order of its end. The number tells objects of one time apart.
    delayed: BTreeMap<(Instant, u64), T>,
    /// End of the delay of each object in `delayed`.
    delays: HashMap<T, (Instant, u64)>,
    /// Number of delays until now.
    count: u64,
}

impl<T: Clone + Eq + Hash> Turns<T> {
    /// Makes an empty order.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            waiting: VecDeque::new(),
            queued: HashSet::new(),
            running: HashMap::new(),
            delayed: BTreeMap::new(),
            delays: HashMap::new(),
            count: 0,
        }
    }

    /// Queues an object. A delay of the object ends.
    pub(super) fn put(&mut self, object: T) {
        if let Some(end) = self.delays.remove(&object) {
            self.delayed.remove(&end);
        }
        if let Some(again) = self.running.get_mut(&object) {
            *again = true;
        } else if self.queued.insert(object.clone()) {
            self.waiting.push_back(object);
        }
    }

    /// Queues an object at a time. An object that waits, or that has an earlier time, keeps its place.
    pub(super) fn put_at(&mut self, object: T, at: Instant) {
        if self.queued.contains(&object) {
            return;
        }
        if let Some(end) = self.delays.get(&object) {
            if end.0 <= at {
                return;
            }
            self.delayed.remove(end);
        }
        self.count += 1;
        self.delays.insert(object.clone(), (at, self.count));
        self.delayed.insert((at, self.count), object);
    }

    /// Queues the objects whose time has come.
    pub(super) fn pass(&mut self, now: Instant) {
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let object = entry.get().clone();
            self.put(object);
        }
    }

    /// Returns the next time at which [`Self::pass`] queues an object.
    pub(super) fn next(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|((at, _), _)| *at)
    }

    /// Starts the next object, if another one may run.
    pub(super) fn start(&mut self) -> Option<T> {
        if self.running.len() >= self.limit {
            return None;
        }
        let object = self.waiting.pop_front()?;
        self.queued.remove(&object);
        self.running.insert(object.clone(), false);
        Some(object)
    }

    /// Ends a run. An object that was queued meanwhile waits again, otherwise until its time, if it has one.
    pub(super) fn finished(&mut self, object: T, again_at: Option<Instant>) {
        if self.running.remove(&object) == Some(true) {
            self.put(object);
        } else if let Some(at) = again_at {
            self.put_at(object, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn started(turns: &mut Turns<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| turns.start()).collect()
    }

    #[test]
    fn object_that_has_waited_longest_is_next() {
        let mut turns = Turns::new(1);
        ["a", "b", "c", "a"].into_iter().for_each(|object| turns.put(object));
        let mut order = Vec::new();
        for _ in 0..6 {
            let object = turns.start().unwrap();
            assert_eq!(turns.start(), None, "one runs");
            // Each object changes while it runs, and does not overtake the others.
            turns.put(object);
            turns.finished(object, None);
            order.push(object);
        }
        assert_eq!(order, ["a", "b", "c", "a", "b", "c"]);
    }

    #[test]
    fn object_never_runs_twice_concurrently() {
        let mut turns = Turns::new(3);
        turns.put("a");
        assert_eq!(started(&mut turns), ["a"]);
        turns.put("a");
        turns.put("a");
        assert_eq!(started(&mut turns), [""; 0]);
        turns.finished("a", None);
        assert_eq!(started(&mut turns), ["a"], "once for both changes");
        turns.finished("a", None);
        assert_eq!(started(&mut turns), [""; 0]);
    }

    #[test]
    fn earliest_time_of_an_object_counts() {
        let (mut turns, now) = (Turns::new(3), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        turns.put_at("a", at(20));
        turns.put_at("a", at(10));
        turns.put_at("a", at(30));
        turns.put_at("b", at(10));
        assert_eq!(turns.next(), Some(at(10)));
        turns.pass(at(9));
        assert_eq!(started(&mut turns), [""; 0]);
        turns.pass(at(10));
        assert_eq!((started(&mut turns), turns.next()), (vec!["a", "b"], None));
        turns.finished("a", Some(at(40)));
        turns.put("a");
        assert_eq!((started(&mut turns), turns.next()), (vec!["a"], None), "a change ends the delay");
        turns.put("a");
        turns.finished("a", Some(at(50)));
        assert_eq!((started(&mut turns), turns.next()), (vec!["a"], None), "it was queued while it ran");
    }
}
