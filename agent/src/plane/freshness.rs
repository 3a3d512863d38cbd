//! Decides whether the observed state is current.
//!
//! Only the watches of Machine and Node count, because decisions depend on them. A watch is *up* once its
//! first list ends. It is *broken* from an error until a list ends again or the API server accepts the watch
//! again. A watch that ends by its own timeout and is reopened immediately is not broken.
//!
//! ```text
//!   Unasked --both were up once--> Live --one broken for MAX_BREAK--> Away --both up--> Live
//!      +---FIRST_TIMEOUT has passed since the start, and one was never up--^
//! ```
//!
//! Pure: the caller passes the time. Called by `view`.

use std::time::{Duration, Instant};

use crate::model::Api;

/// Time for the first answers before the API server counts as unreachable.
pub(super) const FIRST_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time that a watch may be broken before its data is outdated. A
/// restarted API server is back within this time.
pub(super) const MAX_BREAK: Duration = Duration::from_secs(10);

/// State of one watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Never,
    Up,
    Broken { since: Instant },
}

/// The watches that count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contact {
    started: Instant,
    machine: Line,
    node: Line,
}

/// The watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    Machine,
    Node,
}

impl Contact {
    pub(super) fn new(now: Instant) -> Self {
        Self { started: now, machine: Line::Never, node: Line::Never }
    }

    fn line(&mut self, which: Counted) -> &mut Line {
        match which {
            Counted::Machine => &mut self.machine,
            Counted::Node => &mut self.node,
        }
    }

    /// Records that a list has ended.
    pub(super) fn listed(&mut self, which: Counted) {
        *self.line(which) = Line::Up;
    }

    /// Records that the API server has accepted the watch. Earlier changes are known only if there was a
    /// list.
    pub(super) fn taken(&mut self, which: Counted) {
        let line = self.line(which);
        if *line != Line::Never {
            *line = Line::Up;
        }
    }

    /// Records that the watch has failed.
    pub(super) fn broken(&mut self, which: Counted, now: Instant) {
        let line = self.line(which);
        if *line == Line::Up {
            *line = Line::Broken { since: now };
        }
    }

    /// Returns the state, and when it changes if nothing happens.
    pub(super) fn state(&self, now: Instant) -> (Api, Option<Instant>) {
        let lines = [self.machine, self.node];
        if lines.contains(&Line::Never) {
            let until = self.started + FIRST_TIMEOUT;
            return if now < until { (Api::Unasked, Some(until)) } else { (Api::Away, None) };
        }
        let since = lines.iter().filter_map(|line| match line {
            Line::Broken { since } => Some(*since),
            Line::Never | Line::Up => None,
        });
        match since.min().map(|since| since + MAX_BREAK) {
            None => (Api::Live, None),
            Some(until) if now < until => (Api::Live, Some(until)),
            Some(_) => (Api::Away, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Counted::{Machine, Node};

    fn contact() -> (Contact, Instant) {
        let start = Instant::now();
        (Contact::new(start), start)
    }

    #[test]
    fn both_first_answers_make_it_live_and_time_out_after_thirty_seconds() {
        let (mut contact, start) = contact();
        assert_eq!(contact.state(start), (Api::Unasked, Some(start + FIRST_TIMEOUT)));
        contact.listed(Machine);
        contact.broken(Node, start);
        contact.taken(Node);
        assert_eq!(contact.state(start).0, Api::Unasked, "without a list nothing is known");
        assert_eq!(contact.state(start + FIRST_TIMEOUT), (Api::Away, None));
        contact.listed(Node);
        assert_eq!(contact.state(start + FIRST_TIMEOUT), (Api::Live, None), "late is not never");
    }

    #[test]
    fn long_break_makes_it_unreachable_until_both_watches_are_up() {
        let (mut contact, start) = contact();
        contact.listed(Machine);
        contact.listed(Node);
        let at = |seconds| start + Duration::from_secs(seconds);
        contact.broken(Node, at(100));
        contact.broken(Machine, at(105));
        // Each failed attempt is an error, and does not restart the time.
        contact.broken(Node, at(108));
        assert_eq!(contact.state(at(109)), (Api::Live, Some(at(110))));
        assert_eq!(contact.state(at(110)), (Api::Away, None));
        contact.taken(Node);
        assert_eq!(contact.state(at(111)), (Api::Live, Some(at(115))));
        assert_eq!(contact.state(at(115)), (Api::Away, None), "the Machine's is broken still");
        contact.listed(Machine);
        assert_eq!(contact.state(at(200)), (Api::Live, None));
    }
}
