//! Pure: which Events are written anew, which are counted in one that is there, and how fast.
//!
//! The same of an object within 50 minutes is one Event, whose count is brought up to date once a minute. A rack that comes up is no
//! storm: what is above the rate waits, and what the queue does not hold is dropped.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bedplate_api::reason::event::ControllerEvent;

use super::Item;

/// How long the same thing is counted in the same Event; API servers forget Events after an hour.
const SAME: Duration = Duration::from_secs(3000);
/// Between two writes of a count.
const COUNT: Duration = Duration::from_secs(60);
/// Events at once, before the rate applies.
const BURST: f64 = 100.0;
/// Events a second.
const RATE: f64 = 20.0;
/// Remembered Events at most.
const REMEMBERED: usize = 20_000;

/// What is done with one thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Telling {
    /// A new Event.
    Anew,
    /// This Event happened so often by now.
    Again { event: String, count: i32 },
    /// Remembered, and not written yet.
    Counted,
}

#[derive(Debug)]
struct Told {
    /// None: it could not be written.
    event: Option<String>,
    count: i32,
    first: Instant,
    written: Instant,
}

/// By what things are the same: the object, the reason, the text.
type Key = (String, ControllerEvent, String);

/// What was told, and how fast.
#[derive(Debug)]
pub(super) struct Gate {
    told: HashMap<Key, Told>,
    tokens: f64,
    filled: Instant,
}

fn key(item: &Item) -> Key {
    let about = &item.about;
    let object = [&about.kind, &about.name, &about.uid].map(|part| part.as_deref().unwrap_or_default());
    (object.join("/"), item.reason, item.note.clone())
}

impl Gate {
    pub(super) fn new(now: Instant) -> Self {
        Self { told: HashMap::new(), tokens: BURST, filled: now }
    }

    /// What is done with this.
    pub(super) fn admit(&mut self, item: &Item, now: Instant) -> Telling {
        let is_same = |told: &Told| now.saturating_duration_since(told.first) < SAME;
        let Some(told) = self.told.get_mut(&key(item)).filter(|told| is_same(told)) else {
            return Telling::Anew;
        };
        told.count = told.count.saturating_add(1);
        let Some(event) = told.event.clone() else { return Telling::Anew };
        if now.saturating_duration_since(told.written) < COUNT {
            return Telling::Counted;
        }
        told.written = now;
        Telling::Again { event, count: told.count }
    }

    /// It was told anew, by the Event of this name; none: it was not.
    pub(super) fn told(&mut self, item: &Item, event: Option<String>, now: Instant) {
        if self.told.len() >= REMEMBERED {
            self.told.retain(|_, told| now.saturating_duration_since(told.first) < SAME / 2);
            if self.told.len() >= REMEMBERED {
                self.told.clear();
            }
        }
        self.told.insert(key(item), Told { event, count: 1, first: now, written: now });
    }

    /// How long the next write waits; it counts as done then.
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        let elapsed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + elapsed * RATE).min(BURST) - 1.0;
        self.filled = now;
        Duration::from_secs_f64((-self.tokens / RATE).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;

    fn item(name: &str, note: &str) -> Item {
        let about = ObjectReference { name: Some(name.to_owned()), ..ObjectReference::default() };
        Item { about, reason: ControllerEvent::VersionSelected, note: note.to_owned() }
    }

    #[test]
    fn the_same_is_one_event_whose_count_is_written_once_a_minute() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        let mut tell = |item: &Item, after: u64| {
            let now = now + Duration::from_secs(after);
            let telling = gate.admit(item, now);
            if telling == Telling::Anew {
                gate.told(item, Some("e".to_owned()), now);
            }
            telling
        };
        assert_eq!(tell(&item("a", "w-v1"), 0), Telling::Anew);
        assert_eq!(tell(&item("a", "w-v1"), 1), Telling::Counted);
        assert_eq!(tell(&item("a", "w-v1"), 61), Telling::Again { event: "e".to_owned(), count: 3 });
        assert_eq!(tell(&item("a", "w-v1"), 62), Telling::Counted);
        assert_eq!(tell(&item("a", "w-v2"), 62), Telling::Anew, "another text is another Event");
        assert_eq!(tell(&item("b", "w-v1"), 62), Telling::Anew);
        assert_eq!(tell(&item("a", "w-v1"), 4000), Telling::Anew);
    }

    #[test]
    fn what_could_not_be_written_is_tried_when_it_happens_again() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        gate.told(&item("a", "x"), None, now);
        assert_eq!(gate.admit(&item("a", "x"), now), Telling::Anew);
    }

    #[test]
    fn a_rack_that_comes_up_is_no_storm() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        let waits: Vec<Duration> = (0..200).map(|_| gate.wait(now)).collect();
        assert!(waits[..100].iter().all(Duration::is_zero));
        assert!(
            (Duration::from_millis(4990)..Duration::from_millis(5010)).contains(&waits[199]),
            "{:?}",
            waits[199]
        );
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        for number in 0..REMEMBERED + 10 {
            gate.told(&item(&number.to_string(), "x"), Some(String::new()), now);
        }
        assert!(gate.told.len() <= REMEMBERED);
    }
}
