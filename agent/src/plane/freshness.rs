//! Whether what is seen is as it is now.
//!
//! The watches of Machine and Node count, for they decide. A watch is *up* from the end of its first list on, and *broken* from an
//! error on, until a list has ended again or the API server has taken the watch again. A watch that ends by its own time-out and is
//! taken up at once is not broken.
//!
//! ```text
//!   Unasked --both were up once--> Live --one broken for BREAK--> Away --both up--> Live
//!      +------FIRST has passed since the start, and one was never up-----^
//! ```
//!
//! Pure: the caller says what time it is. Called by `view`.

use std::time::{Duration, Instant};

use crate::model::Api;

/// How long the first answers are awaited before the API server counts as away.
pub(super) const FIRST: Duration = Duration::from_secs(30);
/// How long a watch may be broken before what it told is old: an API server that is started anew is back by then.
pub(super) const BREAK: Duration = Duration::from_secs(10);

/// One watch.
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

/// Which of them.
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

    /// A list has ended.
    pub(super) fn listed(&mut self, which: Counted) {
        *self.line(which) = Line::Up;
    }

    /// The API server has taken the watch: what came before it is known only if there was a list.
    pub(super) fn taken(&mut self, which: Counted) {
        let line = self.line(which);
        if *line != Line::Never {
            *line = Line::Up;
        }
    }

    /// The watch has failed.
    pub(super) fn broken(&mut self, which: Counted, now: Instant) {
        let line = self.line(which);
        if *line == Line::Up {
            *line = Line::Broken { since: now };
        }
    }

    /// How it stands, and when that changes if nothing happens.
    pub(super) fn state(&self, now: Instant) -> (Api, Option<Instant>) {
        let lines = [self.machine, self.node];
        if lines.contains(&Line::Never) {
            let until = self.started + FIRST;
            return if now < until { (Api::Unasked, Some(until)) } else { (Api::Away, None) };
        }
        let since = lines.iter().filter_map(|line| match line {
            Line::Broken { since } => Some(*since),
            Line::Never | Line::Up => None,
        });
        match since.min().map(|since| since + BREAK) {
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
    fn the_first_answers_of_both_make_it_live_and_are_awaited_for_thirty_seconds() {
        let (mut contact, start) = contact();
        assert_eq!(contact.state(start), (Api::Unasked, Some(start + FIRST)));
        contact.listed(Machine);
        contact.broken(Node, start);
        contact.taken(Node);
        assert_eq!(contact.state(start).0, Api::Unasked, "without a list nothing is known");
        assert_eq!(contact.state(start + FIRST), (Api::Away, None));
        contact.listed(Node);
        assert_eq!(contact.state(start + FIRST), (Api::Live, None), "late is not never");
    }

    #[test]
    fn a_short_break_changes_nothing_and_a_longer_one_makes_it_away_until_both_are_up() {
        let (mut contact, start) = contact();
        contact.listed(Machine);
        contact.listed(Node);
        let at = |seconds| start + Duration::from_secs(seconds);
        contact.broken(Node, at(100));
        contact.broken(Machine, at(105));
        // Every try that fails is an error, and does not begin the time anew.
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
