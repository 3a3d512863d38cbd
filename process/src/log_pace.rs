//! Pure: at most one log line per reason, subject and minute. Requests that anyone can send must not push other lines out of the journal.
//!
//! The caller writes the line, with the number of lines that were omitted before it. Called by pxed and by `listen`.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::lock::Lock;

/// Interval between two lines of one reason and subject.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum number of subjects that have lines of their own. Further ones share the line of their reason.
const MAX_SUBJECTS: usize = 1024;

/// Reason of a line, and the object that it is about, such as a Machine.
type Key = (&'static str, Option<String>);

/// Lines of the last minute.
#[derive(Debug, Default)]
pub struct LogPace {
    lines: Lock<HashMap<Key, Line>>,
}

#[derive(Debug)]
struct Line {
    written: Instant,
    omitted: u64,
}

/// Lines that were omitted, and that no later line has counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Omitted {
    /// Their reason.
    pub reason: &'static str,
    /// Their subject, where it is known.
    pub subject: Option<String>,
    /// Number of lines.
    pub count: u64,
}

impl LogPace {
    /// Returns the number of lines omitted since the last one if a line may be written now. `None`: omit this line.
    pub fn admit(&self, reason: &'static str, subject: Option<&str>, now: Instant) -> Option<u64> {
        // Each change is complete before the lock is released.
        let mut lines = self.lines.lock();
        let mut key = (reason, subject.map(str::to_owned));
        if lines.len() >= MAX_SUBJECTS && !lines.contains_key(&key) {
            lines.retain(|_, line| line.omitted > 0 || !line.is_over(now));
            if lines.len() >= MAX_SUBJECTS {
                key.1 = None;
            }
        }
        let Some(line) = lines.get_mut(&key) else {
            lines.insert(key, Line { written: now, omitted: 0 });
            return Some(0);
        };
        if line.is_over(now) {
            line.written = now;
            return Some(std::mem::take(&mut line.omitted));
        }
        line.omitted = line.omitted.saturating_add(1);
        None
    }

    /// Takes the lines that were omitted before the current minute. Call it periodically: no later line counts the last lines of a flood.
    pub fn overdue(&self, now: Instant) -> Vec<Omitted> {
        let mut lines = self.lines.lock();
        let mut overdue = Vec::new();
        lines.retain(|(reason, subject), line| {
            if !line.is_over(now) {
                return true;
            }
            if line.omitted > 0 {
                overdue.push(Omitted { reason, subject: subject.clone(), count: line.omitted });
            }
            false
        });
        overdue
    }
}

impl Line {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.written) >= LINE_INTERVAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_flood_writes_one_line_a_minute_that_counts_the_others() {
        let (pace, start) = (LogPace::default(), Instant::now());
        assert_eq!(pace.admit("TokenUsed", Some("a"), start), Some(0));
        for _ in 0..5000 {
            assert_eq!(pace.admit("TokenUsed", Some("a"), at(start, 59)), None);
        }
        assert_eq!(pace.admit("TokenUsed", Some("b"), at(start, 59)), Some(0), "another Machine");
        assert_eq!(pace.admit("WrongToken", Some("a"), at(start, 59)), Some(0), "another reason");
        assert_eq!(pace.admit("TokenUsed", Some("a"), at(start, 60)), Some(5000));
        assert_eq!(pace.admit("TokenUsed", Some("a"), at(start, 61)), None);
    }

    #[test]
    fn the_end_of_a_flood_is_counted_once() {
        let (pace, start) = (LogPace::default(), Instant::now());
        for _ in 0..3 {
            pace.admit("TokenUsed", None, start);
        }
        assert_eq!(pace.overdue(at(start, 59)), []);
        let omitted = Omitted { reason: "TokenUsed", subject: None, count: 2 };
        assert_eq!(pace.overdue(at(start, 60)), [omitted]);
        assert_eq!(pace.overdue(at(start, 60)), []);
        assert_eq!(pace.admit("TokenUsed", None, at(start, 60)), Some(0));
    }

    #[test]
    fn memory_is_bounded_and_further_subjects_share_a_line() {
        let (pace, start) = (LogPace::default(), Instant::now());
        let written = (0..10_000).filter(|n| {
            let subject = n.to_string();
            pace.admit("TokenUsed", Some(&subject), start).is_some()
        });
        assert_eq!(written.count(), MAX_SUBJECTS + 1);
        assert_eq!(pace.lines.lock().len(), MAX_SUBJECTS + 1);
        assert_eq!(pace.admit("WrongToken", Some("x"), start), Some(0), "another reason has a line");
    }
}
