//! Pure: decides about leadership from the observed Lease and the time of each
//! observation, by this program's own monotonic clock.
//!
//! ```text
//! no Lease --still none after 15 s--> create --written--> lead --renewed every 5 s--> lead --not renewed for 10 s, or another's name in it--> wait
//! another's --unchanged for its duration (15 s at least)--> acquire --written--> lead
//! released --acquire immediately--> lead
//! lead --it was deleted--> create immediately, in the time that is left to lead
//! ```
//!
//! A candidate that sees no Lease does not know if one was deleted a moment ago, whose holder still leads. So
//! it waits as if there were one. Only the leader itself knows better: another candidate cannot have missed
//! the Lease for longer than since the leader's last write.
//!
//! Clocks of other machines are not trusted: a changed record counts from the
//! time at which the change was observed. A leader stops 10 s after it
//! *started* its last accepted write, 5 s before another candidate may start.

use std::time::{Duration, Instant};

/// Time for which a Lease is valid after its last renewal was observed.
pub(crate) const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Interval between renewals by the leader.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// Time for which the leader still leads after its last renewal.
const TENURE_DURATION: Duration = Duration::from_secs(10);
/// Poll interval of a candidate that does not lead.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum duration of a Lease; a longer one in a record is not trusted.
const MAX_DURATION: Duration = Duration::from_secs(600);

/// Content of a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// `metadata.uid` and `resourceVersion`.
    pub(crate) version: String,
    /// Holder of the Lease; none: released.
    pub(crate) holder: Option<String>,
    /// Duration of the Lease in the record.
    pub(crate) duration: Duration,
}

/// Next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is no Lease: create it.
    Create,
    /// The Lease is released or expired: write our name into it.
    Acquire,
    /// The Lease is ours: write it again.
    Renew,
    /// Look again at that time.
    Wait(Instant),
}

/// Observed state of the Lease.
#[derive(Debug)]
pub(crate) struct Election {
    me: String,
    /// The record and since when it has been the same.
    seen: Option<(Record, Instant)>,
    /// Time since which there has been no Lease.
    gone: Option<Instant>,
    /// Start time of our last accepted write.
    written: Option<Instant>,
}

impl Election {
    /// Creates the election of an instance. Its name must be unique, also across restarts.
    pub(crate) fn new(me: String) -> Self {
        Self { me, seen: None, gone: None, written: None }
    }

    /// The Lease was read.
    pub(crate) fn see(&mut self, record: Option<Record>, now: Instant) {
        let stays = match &record {
            Some(record) => record.holder.as_ref() == Some(&self.me),
            None => self.until().is_some_and(|until| now < until),
        };
        if !stays {
            self.written = None;
        }
        self.gone = if record.is_none() { self.gone.or(Some(now)) } else { None };
        self.seen = match (record, self.seen.take()) {
            (Some(record), Some((before, since))) if record == before => Some((record, since)),
            (Some(record), _) => Some((record, now)),
            (None, _) => None,
        };
    }

    /// Records an accepted write of ours, with its start time.
    pub(crate) fn wrote(&mut self, record: Record, started: Instant) {
        self.written = (record.holder.as_ref() == Some(&self.me)).then_some(started);
        (self.seen, self.gone) = (Some((record, started)), None);
    }

    /// Returns the time until which this program leads; none: it does not. The time may have passed.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.written?.checked_add(TENURE_DURATION)
    }

    /// Returns true if the former holder released the Lease. It may have written shortly before.
    pub(crate) fn is_released(&self) -> bool {
        self.seen.as_ref().is_some_and(|(record, _)| record.holder.is_none())
    }

    /// Returns the next step, if the Lease is as last observed.
    pub(crate) fn next(&self, now: Instant) -> Step {
        let Some((record, since)) = &self.seen else { return self.next_without(now) };
        let Some(holder) = &record.holder else { return Step::Acquire };
        if *holder == self.me {
            let due = self.written.and_then(|written| written.checked_add(RENEW_INTERVAL));
            return match due {
                Some(due) if due > now => Step::Wait(due),
                Some(_) | None => Step::Renew,
            };
        }
        let ends = since.checked_add(record.duration.clamp(LEASE_DURATION, MAX_DURATION)).unwrap_or(now);
        if ends <= now {
            return Step::Acquire;
        }
        look_before(ends, now)
    }

    /// Returns the next step while there is no Lease.
    fn next_without(&self, now: Instant) -> Step {
        if self.until().is_some_and(|until| now < until) {
            return Step::Create;
        }
        let ends = self.gone.unwrap_or(now).checked_add(LEASE_DURATION).unwrap_or(now);
        if ends <= now { Step::Create } else { look_before(ends, now) }
    }
}

fn look_before(ends: Instant, now: Instant) -> Step {
    Step::Wait(now.checked_add(POLL_INTERVAL).map_or(ends, |look| look.min(ends)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(version: u32, holder: &str) -> Record {
        let holder = (!holder.is_empty()).then(|| holder.to_owned());
        Record { version: version.to_string(), holder, duration: LEASE_DURATION }
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn missing_lease_is_created_only_after_any_tenure_has_ended() {
        let (mut election, start) = (Election::new("me".to_owned()), Instant::now());
        for seen in [0, 1, 14] {
            election.see(None, after(start, seen));
            assert_ne!(election.next(after(start, seen)), Step::Create, "{seen}");
        }
        assert_eq!(election.next(after(start, 14)), Step::Wait(after(start, 15)));
        assert_eq!(election.next(after(start, 15)), Step::Create);
        // It returned and was deleted again: another candidate may have become the leader meanwhile.
        election.see(Some(record(2, "other")), after(start, 16));
        election.see(None, after(start, 17));
        assert_eq!(election.next(after(start, 17)), Step::Wait(after(start, 19)));
    }

    #[test]
    fn leader_re_creates_its_deleted_lease_immediately_and_leads_on() {
        let (mut election, start) = (Election::new("me".to_owned()), Instant::now());
        election.wrote(record(1, "me"), start);
        election.see(None, after(start, 5));
        assert_eq!(election.until(), Some(after(start, 10)));
        assert_eq!(election.next(after(start, 5)), Step::Create);
        assert_eq!(election.next(after(start, 10)), Step::Wait(after(start, 12)), "it expired");
        // Too late: another may have seen that it is gone as long ago as it was written.
        election.see(None, after(start, 10));
        assert_eq!(election.until(), None);
        assert_eq!(election.next(after(start, 12)), Step::Wait(after(start, 14)));
        assert_eq!(election.next(after(start, 20)), Step::Create);
    }

    #[test]
    fn a_lease_that_was_released_is_taken_at_once() {
        let (mut election, now) = (Election::new("me".to_owned()), Instant::now());
        assert!(!election.is_released(), "no record was seen");
        election.see(Some(record(1, "other")), now);
        assert!(!election.is_released());
        election.see(Some(record(1, "")), now);
        assert_eq!(election.next(now), Step::Acquire);
        assert!(election.is_released());
        assert_eq!(election.until(), None);
    }

    #[test]
    fn lease_is_acquired_only_if_unchanged_for_its_complete_duration() {
        let (mut election, start) = (Election::new("me".to_owned()), Instant::now());
        election.see(Some(record(1, "other")), start);
        assert_eq!(election.next(start), Step::Wait(after(start, 2)));
        election.see(Some(record(1, "other")), after(start, 14));
        assert_eq!(election.next(after(start, 14)), Step::Wait(after(start, 15)));
        // Renewed: the count starts again, whatever the record's own times are.
        election.see(Some(record(2, "other")), after(start, 14));
        assert_eq!(election.next(after(start, 28)), Step::Wait(after(start, 29)));
        assert_eq!(election.next(after(start, 29)), Step::Acquire);
    }

    #[test]
    fn a_longer_duration_is_honored_up_to_a_bound_and_a_shorter_one_is_not() {
        for (says, waits) in [(1, 15), (60, 60), (1_000_000, 600)] {
            let (mut election, start) = (Election::new("me".to_owned()), Instant::now());
            let duration = Duration::from_secs(says);
            election.see(Some(Record { duration, ..record(1, "other") }), start);
            assert_ne!(election.next(after(start, waits - 1)), Step::Acquire, "{says}");
            assert_eq!(election.next(after(start, waits)), Step::Acquire, "{says}");
        }
    }

    #[test]
    fn a_leader_renews_every_5_s_and_stops_10_s_after_it_began_its_last_write() {
        let (mut election, start) = (Election::new("me".to_owned()), Instant::now());
        election.wrote(record(1, "me"), start);
        assert_eq!(election.until(), Some(after(start, 10)));
        assert_eq!(election.next(after(start, 3)), Step::Wait(after(start, 5)));
        assert_eq!(election.next(after(start, 5)), Step::Renew);
        election.wrote(record(2, "me"), after(start, 5));
        assert_eq!(election.until(), Some(after(start, 15)));
        // Another candidate cannot see that write before it was started, so it
        // waits 5 s longer than this one leads.
        assert!(LEASE_DURATION >= TENURE_DURATION + Duration::from_secs(5));
    }

    #[test]
    fn a_leader_that_sees_anothers_name_or_none_does_not_lead() {
        for seen in [Some(record(2, "other")), Some(record(2, ""))] {
            let (mut election, start) = (Election::new("me".to_owned()), Instant::now());
            election.wrote(record(1, "me"), start);
            election.see(seen, after(start, 1));
            assert_eq!(election.until(), None);
        }
    }

    #[test]
    fn write_with_a_lost_answer_does_not_lead_until_it_is_repeated() {
        let (mut election, start) = (Election::new("me".to_owned()), Instant::now());
        election.see(Some(record(1, "me")), start);
        assert_eq!(election.until(), None);
        assert_eq!(election.next(start), Step::Renew);
    }
}
