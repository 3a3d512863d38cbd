//! Pure: the claimants that are writing a claim, and the hosts that they have chosen.
//!
//! Such a host is left for its claimant until the store shows the claim. A claimant whose writes fail loses its turn after a time, so that it
//! does not block a host. It gets its turn back later, and each time later than before. Times are those of the monotonic clock: the wall clock may
//! jump. Kept in memory by `turn`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bedplate_api::id::MachineName;

/// Namespace and name of a BedplateMachine.
pub type Key = (String, String);

/// Time for which a chosen host is left for its claimant.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which a claimant gets a lost turn back for the first time. It doubles with each loss.
const TURN_PAUSE: Duration = Duration::from_secs(600);
/// Number of losses after which the time no longer doubles: 21 hours.
const MAX_DOUBLINGS: u32 = 7;
/// Time after which the condition of a claimant shows why its writes fail, and interval between two causes that are shown: each write of the
/// condition starts the next attempt.
const SHOWN_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Try {
    host: MachineName,
    since: Instant,
    /// Time at which the cause of a failure was shown last.
    shown: Option<Instant>,
}

impl Try {
    fn is_late(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= TURN_TIMEOUT
    }
}

/// Claimants that are writing a claim.
#[derive(Debug, Default)]
pub struct Tries {
    tries: HashMap<Key, Try>,
    /// Number of lost turns of each claimant that has got its turn back.
    losses: HashMap<Key, u32>,
    /// Number of changes of the choices.
    changes: u64,
}

impl Tries {
    /// Notes that a claimant has chosen a host. The time of an earlier choice stays.
    pub fn begin(&mut self, key: Key, host: MachineName, now: Instant) {
        self.changes += 1;
        let (since, shown) = self.tries.get(&key).map_or((now, None), |one| (one.since, one.shown));
        self.tries.insert(key, Try { host, since, shown });
    }

    /// Notes the host that the object of a claimant names. The claimant may have chosen it under another process.
    pub fn see(&mut self, key: Key, host: &MachineName, now: Instant) {
        let changes = &mut self.changes;
        self.tries.entry(key).or_insert_with(|| {
            *changes += 1;
            Try { host: host.clone(), since: now, shown: None }
        });
    }

    /// Notes that a claimant writes no claim, or has one.
    pub fn end(&mut self, key: &Key) {
        self.changes += u64::from(self.tries.remove(key).is_some());
        self.losses.remove(key);
    }

    /// Notes that no host is left for a claimant, or that another one has its host. One that has lost its turn does not get it back by that.
    pub fn lose(&mut self, key: &Key, now: Instant) {
        if self.tries.get(key).is_some_and(|one| !one.is_late(now)) {
            self.tries.remove(key);
            self.changes += 1;
        }
    }

    /// Removes the claimants that do not exist, and gives their turn back to those that have lost it long ago.
    pub fn retain(&mut self, exists: impl Fn(&Key) -> bool, now: Instant) {
        let Self { tries, losses, changes } = self;
        losses.retain(|key, _| exists(key));
        tries.retain(|key, one| {
            let lost = losses.get(key).copied().unwrap_or_default();
            let pause = TURN_PAUSE * (1 << lost.min(MAX_DOUBLINGS));
            let stays = exists(key) && now.saturating_duration_since(one.since) < pause;
            if !stays && exists(key) {
                losses.insert(key.clone(), lost.saturating_add(1));
            }
            *changes += u64::from(!stays);
            stays
        });
    }

    /// Returns a mark. While it stays the same, so do the claimants of [`Self::contains`] and the hosts of [`Self::hosts`].
    pub fn mark(&self, now: Instant) -> (u64, usize) {
        (self.changes, self.hosts(now).count())
    }

    /// Returns true if a claimant has chosen a host, or has lost its turn.
    pub fn contains(&self, key: &Key) -> bool {
        self.tries.contains_key(key)
    }

    /// Returns the host that is left for a claimant.
    pub fn host(&self, key: &Key, now: Instant) -> Option<&MachineName> {
        self.tries.get(key).filter(|one| !one.is_late(now)).map(|one| &one.host)
    }

    /// Returns the hosts that are left for their claimants.
    pub fn hosts(&self, now: Instant) -> impl Iterator<Item = &MachineName> {
        self.tries.values().filter(move |one| !one.is_late(now)).map(|one| &one.host)
    }

    /// Returns true if the condition of a claimant must show now why its write has failed: its writes have failed for 30 s, and no cause was
    /// shown for as long. So the last cause is shown in the end.
    pub fn shows(&mut self, key: &Key, now: Instant) -> bool {
        let Some(one) = self.tries.get_mut(key) else { return false };
        let is_due = now.saturating_duration_since(one.shown.unwrap_or(one.since)) >= SHOWN_AFTER;
        if is_due {
            one.shown = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d1_claimant_whose_writes_fail_loses_its_turn_after_a_minute() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let key = ("team-a".to_owned(), "w-1".to_owned());
        let host = |name: &str| -> MachineName { name.parse().unwrap() };
        let mut tries = Tries::default();
        tries.begin(key.clone(), host("a"), at(0));
        tries.begin(key.clone(), host("b"), at(20));
        assert_eq!((tries.host(&key, at(59)), tries.hosts(at(59)).count()), (Some(&host("b")), 1));
        assert!(!tries.shows(&key, at(29)) && tries.shows(&key, at(30)));
        assert_eq!((tries.host(&key, at(60)), tries.hosts(at(60)).count()), (None, 0));
        tries.lose(&key, at(61));
        assert!(tries.contains(&key), "its turn does not come back");
        tries.end(&key);
        assert!(!tries.contains(&key));
        tries.begin(key.clone(), host("a"), at(100));
        tries.lose(&key, at(101));
        assert!(!tries.contains(&key), "it has not lost its turn");
        tries.begin(key.clone(), host("a"), at(100));
        tries.retain(|_| true, at(699));
        assert!(tries.contains(&key));
        tries.retain(|_| true, at(700));
        assert!(!tries.contains(&key), "its turn comes back");
        tries.begin(key.clone(), host("a"), at(700));
        tries.retain(|_| false, at(700));
        assert!(!tries.contains(&key));
    }

    #[test]
    fn d1_last_cause_of_failing_writes_is_shown_in_the_end() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let key = ("team-a".to_owned(), "w-1".to_owned());
        let mut tries = Tries::default();
        assert!(!tries.shows(&key, at(100)), "it writes no claim");
        tries.begin(key.clone(), "a".parse().unwrap(), at(0));
        for (time, is_shown) in
            [(29, false), (30, true), (31, false), (59, false), (70, true), (99, false), (100, true)]
        {
            // A choice of another host changes no time.
            tries.begin(key.clone(), "b".parse().unwrap(), at(time));
            assert_eq!(tries.shows(&key, at(time)), is_shown, "{time}");
        }
        tries.end(&key);
        tries.begin(key.clone(), "a".parse().unwrap(), at(200));
        assert!(!tries.shows(&key, at(229)) && tries.shows(&key, at(230)));
    }

    #[test]
    fn d1_claimant_whose_writes_always_fail_waits_longer_each_time() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let key = ("team-a".to_owned(), "w-1".to_owned());
        let (mut tries, mut time) = (Tries::default(), 0);
        for pause in [600, 1200, 2400, 4800, 9600, 19_200, 38_400, 76_800, 76_800] {
            tries.begin(key.clone(), "a".parse().unwrap(), at(time));
            tries.retain(|_| true, at(time + pause - 1));
            assert!(tries.contains(&key), "{pause}");
            tries.retain(|_| true, at(time + pause));
            assert!(!tries.contains(&key), "{pause}");
            time += pause;
        }
        // A claim that is made ends that.
        tries.end(&key);
        tries.begin(key.clone(), "a".parse().unwrap(), at(time));
        tries.retain(|_| true, at(time + 600));
        assert!(!tries.contains(&key));
    }
}
