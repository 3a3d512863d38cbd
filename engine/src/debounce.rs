//! Pure: when a configuration is looked at whose Machines change: at once the first time, later and later while it goes on.
//!
//! What is counted of ten thousand Machines that come up would else be written ten thousand times. A person's edit does not come
//! this way (`enqueue`). Asked by `enqueue::coalesce`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between the first change and the look.
const FIRST: Duration = Duration::from_secs(1);
/// The longest that a change waits.
const LONGEST: Duration = Duration::from_secs(8);

/// Configurations that have changed, or did a moment ago.
#[derive(Debug, Default)]
pub struct Coalescer(BTreeMap<String, Wait>);

#[derive(Debug)]
struct Wait {
    /// When it is looked at; `None`: it was.
    due: Option<Instant>,
    /// How long this wait is, or was.
    wait: Duration,
    /// When it was looked at last.
    looked: Option<Instant>,
}

impl Wait {
    /// Whether changes come faster than looks.
    fn goes_on(&self, now: Instant) -> bool {
        self.looked.is_some_and(|looked| now.saturating_duration_since(looked) < self.wait)
    }
}

impl Coalescer {
    /// A configuration has changed.
    pub fn touched(&mut self, name: &str, now: Instant) {
        let Some(known) = self.0.get_mut(name) else {
            self.0.insert(name.to_owned(), Wait { due: Some(now + FIRST), wait: FIRST, looked: None });
            return;
        };
        if known.due.is_none() {
            let wait = if known.goes_on(now) { known.wait.saturating_mul(2).min(LONGEST) } else { FIRST };
            (known.wait, known.due) = (wait, Some(now + wait));
        }
    }

    /// When the next one is due.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|wait| wait.due).min()
    }

    /// Those that are to be looked at now, each once.
    pub fn due(&mut self, now: Instant) -> Vec<String> {
        self.0.retain(|_, wait| wait.due.is_some() || wait.goes_on(now));
        let due = self.0.iter_mut().filter(|(_, wait)| wait.due.is_some_and(|due| due <= now));
        let looked = due.map(|(name, wait)| {
            (wait.due, wait.looked) = (None, Some(now));
            name.clone()
        });
        looked.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When one is looked at that is touched so often, in milliseconds since the beginning.
    fn looks(every: u64, until: u64) -> Vec<u64> {
        let (begun, mut coalescer, mut looks) = (Instant::now(), Coalescer::default(), Vec::new());
        for at in 0..until {
            let now = begun + Duration::from_millis(at);
            if at.is_multiple_of(every) {
                coalescer.touched("w", now);
            }
            if coalescer.next().is_some_and(|next| next <= now) {
                assert_eq!(coalescer.due(now), ["w"]);
                looks.push(at);
            }
        }
        looks
    }

    #[test]
    fn a_change_waits_a_second_and_those_that_go_on_up_to_eight() {
        assert_eq!(looks(1, 40_000), [1000, 3001, 7002, 15_003, 23_004, 31_005, 39_006]);
        assert_eq!(looks(u64::MAX, 40_000), [1000]);
        assert_eq!(looks(5000, 20_000), [1000, 6000, 11_000, 16_000], "each after a rest");
    }

    #[test]
    fn each_configuration_waits_for_itself_and_none_is_kept_that_rests() {
        let (begun, mut coalescer) = (Instant::now(), Coalescer::default());
        let at = |ms| begun + Duration::from_millis(ms);
        coalescer.touched("a", at(0));
        coalescer.touched("b", at(500));
        assert_eq!((coalescer.due(at(1000)), coalescer.next()), (vec!["a".to_owned()], Some(at(1500))));
        assert_eq!(coalescer.due(at(1500)), ["b"]);
        assert!(coalescer.due(at(60_000)).is_empty() && coalescer.0.is_empty());
    }
}
