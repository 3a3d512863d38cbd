//! Pure: Events that are created, Events that are counted in an earlier one, and the rate of writes.
//!
//! The same Event within 50 minutes is one object, whose count is updated once a minute. One object leaves space for Events of the others:
//! clients that are not trusted can cause some. What is above the rate waits in the queue.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Occurrence;
use crate::token_bucket::{self, Allowances};

/// Time in which the same occurrence is counted in one Event. API servers delete Events after an hour.
const SERIES_DURATION: Duration = Duration::from_secs(3000);
/// Minimum interval between two writes of a count.
const COUNT_INTERVAL: Duration = Duration::from_secs(60);
/// Events that are written without waiting for the rate.
const BURST_EVENTS: f64 = 100.0;
/// Events a second.
const EVENTS_PER_SECOND: f64 = 20.0;
/// New Events of one object.
const SHARE: token_bucket::Rate = token_bucket::Rate { burst: 50, each: Duration::from_millis(400) };
/// Maximum number of Events that are remembered.
const MAX_REMEMBERED: usize = 20_000;

/// Decision about one occurrence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Create a new Event.
    Create,
    /// Update a known Event to this count.
    Count { event: String, count: i32 },
    /// Write nothing: the Event is recent, or its object has had too many Events.
    Omit,
}

#[derive(Debug)]
struct Known {
    event: String,
    count: i32,
    first: Instant,
    written: Instant,
}

/// Object, reason and note: occurrences that share them are the same.
type Key = (String, &'static str, String);

/// Events that were published.
#[derive(Debug, Default)]
pub(super) struct Gate {
    known: HashMap<Key, Known>,
    shares: Allowances<String>,
}

fn object(occurrence: &Occurrence) -> String {
    let about = &occurrence.about;
    let parts = [&about.kind, &about.namespace, &about.name, &about.uid];
    parts.map(|part| part.as_deref().unwrap_or_default()).join("/")
}

fn key(occurrence: &Occurrence) -> Key {
    (object(occurrence), occurrence.reason, occurrence.note.clone())
}

impl Gate {
    /// Decides about an occurrence. `event`: name of its Event if it is new.
    pub(super) fn admit(&mut self, occurrence: &Occurrence, event: &str, now: Instant) -> Verdict {
        let key = key(occurrence);
        let is_same = |known: &Known| now.saturating_duration_since(known.first) < SERIES_DURATION;
        if let Some(known) = self.known.get_mut(&key).filter(|known| is_same(known)) {
            known.count = known.count.saturating_add(1);
            if now.saturating_duration_since(known.written) < COUNT_INTERVAL {
                return Verdict::Omit;
            }
            known.written = now;
            return Verdict::Count { event: known.event.clone(), count: known.count };
        }
        if self.shares.take(key.0.clone(), SHARE, now).is_err() {
            return Verdict::Omit;
        }
        self.make_space(now);
        self.known.insert(key, Known { event: event.to_owned(), count: 1, first: now, written: now });
        Verdict::Create
    }

    /// Forgets an Event that was not written: the same occurrence is a new one.
    pub(super) fn forget(&mut self, occurrence: &Occurrence) {
        self.known.remove(&key(occurrence));
    }

    fn make_space(&mut self, now: Instant) {
        if self.known.len() < MAX_REMEMBERED {
            return;
        }
        self.known.retain(|_, known| now.saturating_duration_since(known.first) < SERIES_DURATION / 2);
        // A search at each of the next Events would take the publisher's time.
        if self.known.len() > MAX_REMEMBERED / 2 {
            self.known.clear();
        }
    }
}

/// Rate of the writes.
#[derive(Debug)]
pub(super) struct Rate {
    tokens: f64,
    filled: Instant,
}

impl Rate {
    pub(super) fn new(now: Instant) -> Self {
        Self { tokens: BURST_EVENTS, filled: now }
    }

    /// Returns the time until the next write, which counts from now on.
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        let elapsed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + elapsed * EVENTS_PER_SECOND).min(BURST_EVENTS) - 1.0;
        self.filled = now;
        Duration::from_secs_f64((-self.tokens / EVENTS_PER_SECOND).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;

    fn occurrence(name: &str, note: &str) -> Occurrence {
        let about = ObjectReference { name: Some(name.to_owned()), ..ObjectReference::default() };
        Occurrence { about, reason: "BootStalled", action: "Boot", is_warning: true, note: note.to_owned() }
    }

    #[test]
    fn same_event_is_one_object_whose_count_is_written_once_a_minute() {
        let (mut gate, start) = (Gate::default(), Instant::now());
        let mut admit = |name: &str, note: &str, after: u64| {
            gate.admit(&occurrence(name, note), "e", start + Duration::from_secs(after))
        };
        assert_eq!(admit("a", "at kernel", 0), Verdict::Create);
        assert_eq!(admit("a", "at kernel", 1), Verdict::Omit);
        assert_eq!(admit("a", "at kernel", 61), Verdict::Count { event: "e".to_owned(), count: 3 });
        assert_eq!(admit("a", "at kernel", 62), Verdict::Omit);
        assert_eq!(admit("a", "at initrd", 62), Verdict::Create, "another note is another Event");
        assert_eq!(admit("b", "at kernel", 62), Verdict::Create);
        assert_eq!(admit("a", "at kernel", 4000), Verdict::Create);
    }

    #[test]
    fn objects_of_one_name_in_two_namespaces_have_their_own_events() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        for namespace in ["team-a", "team-b"] {
            let mut one = occurrence("web", "x");
            one.about.namespace = Some(namespace.to_owned());
            assert_eq!(gate.admit(&one, "e", now), Verdict::Create, "{namespace}");
        }
    }

    #[test]
    fn event_that_was_not_written_is_new_when_it_happens_again() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        let one = occurrence("a", "x");
        assert_eq!(gate.admit(&one, "e", now), Verdict::Create);
        gate.forget(&one);
        assert_eq!(gate.admit(&one, "f", now), Verdict::Create);
    }

    #[test]
    fn events_of_one_object_leave_space_for_those_of_others() {
        let (mut gate, start) = (Gate::default(), Instant::now());
        let mut flood = |after: u64| {
            let now = start + Duration::from_secs(after);
            let notes = (0..1000).map(|number| format!("{after} {number}"));
            notes.filter(|note| gate.admit(&occurrence("a", note), "e", now) == Verdict::Create).count()
        };
        assert_eq!((flood(0), flood(4)), (50, 10));
        assert_eq!(gate.admit(&occurrence("b", "x"), "e", start), Verdict::Create);
    }

    #[test]
    fn events_of_a_whole_rack_wait_for_the_rate() {
        let now = Instant::now();
        let mut rate = Rate::new(now);
        let waits: Vec<Duration> = (0..200).map(|_| rate.wait(now)).collect();
        assert!(waits[..100].iter().all(Duration::is_zero));
        let last = waits[199];
        assert!((Duration::from_millis(4990)..Duration::from_millis(5010)).contains(&last), "{last:?}");
    }

    #[test]
    fn remembered_events_are_bounded() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        for number in 0..MAX_REMEMBERED + 10 {
            gate.admit(&occurrence(&number.to_string(), "x"), "e", now);
        }
        assert!(gate.known.len() <= MAX_REMEMBERED);
    }
}
