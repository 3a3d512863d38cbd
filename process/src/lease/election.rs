//! Pure: who leads, from what the Lease was seen to say and when that was, by this program's own monotonic clock.
//!
//! ```text
//! no Lease --still none after 15 s--> create --written--> lead --renewed every 5 s--> lead --not renewed for 10 s, or another's name in it--> wait
//! another's --unchanged for its duration (15 s at least)--> acquire --written--> lead
//! nobody's (released) --acquire at once--> lead
//! lead --it was deleted--> create at once, in the time that is left to lead
//! ```
//!
//! Who sees no Lease does not know whether there was one a moment ago, with somebody who leads by it yet: so it waits as if there
//! were. Only who leads himself knows better: nobody else can have seen it gone for longer than since his own last write.
//!
//! Clocks of other machines are not believed: a record that changed counts as new from when the change was seen. A leader
//! stops 10 s after it *began* its last write that was taken, 5 s before anybody else may begin.

use std::time::{Duration, Instant};

/// How long a Lease holds after its last renewal was seen.
pub(crate) const DURATION: Duration = Duration::from_secs(15);
/// How often the leader renews.
pub(crate) const RENEW: Duration = Duration::from_secs(5);
/// How long after the last renewal the leader still leads.
pub(crate) const HOLD: Duration = Duration::from_secs(10);
/// How often one that does not lead looks.
pub(crate) const LOOK: Duration = Duration::from_secs(2);
/// A Lease that says more is not believed.
const LONGEST: Duration = Duration::from_secs(600);

/// What a Lease says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// `metadata.uid` and `resourceVersion`.
    pub(crate) version: String,
    /// Who holds it; none: released.
    pub(crate) holder: Option<String>,
    /// How long it says that it holds.
    pub(crate) duration: Duration,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is no Lease: make one.
    Create,
    /// Nobody holds it any more: write our name into it.
    Acquire,
    /// It is ours: write it again.
    Renew,
    /// Look again at that time.
    Wait(Instant),
}

/// What is known of the Lease.
#[derive(Debug)]
pub(crate) struct Election {
    me: String,
    /// The record and since when it has been the same.
    seen: Option<(Record, Instant)>,
    /// Since when there has been none.
    gone: Option<Instant>,
    /// When our last write that was taken was begun.
    written: Option<Instant>,
}

impl Election {
    /// Of an instance whose name nobody else has, not even itself before.
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

    /// A write of ours was taken, which was begun at `begun`.
    pub(crate) fn wrote(&mut self, record: Record, begun: Instant) {
        self.written = (record.holder.as_ref() == Some(&self.me)).then_some(begun);
        (self.seen, self.gone) = (Some((record, begun)), None);
    }

    /// Until when this program leads; none: it does not. The time may be over.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.written?.checked_add(HOLD)
    }

    /// Whether the Lease was given up by whoever held it, who may have written shortly before.
    pub(crate) fn is_released(&self) -> bool {
        self.seen.as_ref().is_some_and(|(record, _)| record.holder.is_none())
    }

    /// What to do, if the Lease is as it was seen last.
    pub(crate) fn next(&self, now: Instant) -> Step {
        let Some((record, since)) = &self.seen else { return self.next_without(now) };
        let Some(holder) = &record.holder else { return Step::Acquire };
        if *holder == self.me {
            let due = self.written.and_then(|written| written.checked_add(RENEW));
            return match due {
                Some(due) if due > now => Step::Wait(due),
                Some(_) | None => Step::Renew,
            };
        }
        let ends = since.checked_add(record.duration.clamp(DURATION, LONGEST)).unwrap_or(now);
        if ends <= now {
            return Step::Acquire;
        }
        look_before(ends, now)
    }

    /// There is no Lease.
    fn next_without(&self, now: Instant) -> Step {
        if self.until().is_some_and(|until| now < until) {
            return Step::Create;
        }
        let ends = self.gone.unwrap_or(now).checked_add(DURATION).unwrap_or(now);
        if ends <= now { Step::Create } else { look_before(ends, now) }
    }
}

fn look_before(ends: Instant, now: Instant) -> Step {
    Step::Wait(now.checked_add(LOOK).map_or(ends, |look| look.min(ends)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(version: u32, holder: &str) -> Record {
        let holder = (!holder.is_empty()).then(|| holder.to_owned());
        Record { version: version.to_string(), holder, duration: DURATION }
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_that_is_not_there_is_made_only_when_nobody_can_lead_by_it_any_more() {
        let (mut election, start) = (Election::new("me".to_owned()), Instant::now());
        for seen in [0, 1, 14] {
            election.see(None, after(start, seen));
            assert_ne!(election.next(after(start, seen)), Step::Create, "{seen}");
        }
        assert_eq!(election.next(after(start, 14)), Step::Wait(after(start, 15)));
        assert_eq!(election.next(after(start, 15)), Step::Create);
        // There again and gone again: somebody may have come to lead meanwhile.
        election.see(Some(record(2, "other")), after(start, 16));
        election.see(None, after(start, 17));
        assert_eq!(election.next(after(start, 17)), Step::Wait(after(start, 19)));
    }

    #[test]
    fn a_leader_whose_lease_was_deleted_leads_on_and_makes_it_anew_at_once_while_nobody_else_may() {
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
    fn anothers_lease_is_taken_only_when_it_was_seen_unchanged_for_its_whole_duration() {
        let (mut election, start) = (Election::new("me".to_owned()), Instant::now());
        election.see(Some(record(1, "other")), start);
        assert_eq!(election.next(start), Step::Wait(after(start, 2)));
        election.see(Some(record(1, "other")), after(start, 14));
        assert_eq!(election.next(after(start, 14)), Step::Wait(after(start, 15)));
        // Renewed: the count begins anew, whatever the record's own times say.
        election.see(Some(record(2, "other")), after(start, 14));
        assert_eq!(election.next(after(start, 28)), Step::Wait(after(start, 29)));
        assert_eq!(election.next(after(start, 29)), Step::Acquire);
    }

    #[test]
    fn a_longer_duration_is_honoured_up_to_a_bound_and_a_shorter_one_is_not() {
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
        // Whoever else saw that write no sooner than it was begun waits 5 s longer than this one leads.
        assert!(DURATION >= HOLD + Duration::from_secs(5));
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
    fn a_write_whose_answer_was_lost_does_not_make_a_leader_until_it_is_written_again() {
        let (mut election, start) = (Election::new("me".to_owned()), Instant::now());
        election.see(Some(record(1, "me")), start);
        assert_eq!(election.until(), None);
        assert_eq!(election.next(start), Step::Renew);
    }
}
