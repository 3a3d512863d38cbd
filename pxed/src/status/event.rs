//! What a person would want to know as it happens: Events in the cluster, log lines everywhere.
//!
//! [`Gate`] is pure: the same thing is told once in ten minutes, a rack that comes up is not a storm of Events, and one Machine leaves room
//! for the Events of others.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bedplate_api::id::MachineName;
use bedplate_api::reason::event::PxedEvent;

use crate::token_bucket::{Allowances, Rate};

/// One thing that happened to a Machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The Machine.
    pub machine: MachineName,
    /// Its uid, if it is known.
    pub uid: Option<String>,
    /// What happened.
    pub reason: PxedEvent,
    /// What happened, for a person.
    pub message: String,
}

/// How long the same event of a Machine is not told again.
const QUIET: Duration = Duration::from_secs(600);
/// Events at once, before the rate applies.
const BURST: f64 = 100.0;
/// Events a second.
const RATE: f64 = 5.0;
/// Events of one Machine: at most half of all, as any client on the boot network can cause some.
const SHARE: Rate = Rate { burst: 50, each: Duration::from_millis(400) };
/// Remembered events at most; the oldest half goes when there are more.
const REMEMBERED: usize = 20_000;

/// Lets through what is new, at a bounded rate.
#[derive(Debug)]
pub struct Gate {
    told: HashMap<(MachineName, PxedEvent), (String, Instant)>,
    tokens: f64,
    filled: Instant,
    shares: Allowances<MachineName>,
}

impl Gate {
    /// A gate that has let nothing through yet.
    pub fn new(now: Instant) -> Self {
        Self { told: HashMap::new(), tokens: BURST, filled: now, shares: Allowances::default() }
    }

    /// Whether this event is to be published.
    pub fn admit(&mut self, event: &Event, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + elapsed * RATE).min(BURST);
        self.filled = now;
        let key = (event.machine.clone(), event.reason);
        let repeated = self.told.get(&key).is_some_and(|(message, time)| {
            *message == event.message && now.saturating_duration_since(*time) < QUIET
        });
        if repeated || self.tokens < 1.0 || self.shares.take(event.machine.clone(), SHARE, now).is_err() {
            return false;
        }
        self.tokens -= 1.0;
        if self.told.len() >= REMEMBERED {
            self.told.retain(|_, (_, time)| now.saturating_duration_since(*time) < QUIET / 2);
            if self.told.len() >= REMEMBERED {
                self.told.clear();
            }
        }
        self.told.insert(key, (event.message.clone(), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(machine: &str, message: &str) -> Event {
        let machine = machine.parse().unwrap();
        Event { machine, uid: None, reason: PxedEvent::BootStalled, message: message.to_owned() }
    }

    #[test]
    fn the_same_event_is_told_once_in_ten_minutes() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        assert!(gate.admit(&event("a", "at kernel"), now));
        assert!(!gate.admit(&event("a", "at kernel"), now + QUIET / 2));
        assert!(gate.admit(&event("a", "at initrd"), now));
        assert!(gate.admit(&event("b", "at kernel"), now));
        assert!(gate.admit(&event("b", "at kernel"), now + QUIET));
    }

    #[test]
    fn a_rack_that_fails_at_once_is_no_storm() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        let admitted = (0..1000).filter(|n| gate.admit(&event(&format!("m{n}"), "x"), now)).count();
        assert_eq!(admitted, 100);
        assert!(gate.admit(&event("later", "x"), now + Duration::from_secs(1)));
    }

    #[test]
    fn one_machines_events_leave_room_for_those_of_others() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        let mut flood =
            |now| (0..1000).filter(|n| gate.admit(&event("a", &format!("{now:?} {n}")), now)).count();
        assert_eq!((flood(now), flood(now + Duration::from_secs(4))), (50, 10));
        assert!(gate.admit(&event("b", "x"), now + Duration::from_secs(4)));
    }
}
