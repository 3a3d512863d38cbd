//! Pure: whether a worker looks again instead of sleeping, and where. A client that answers within microseconds is answered sooner that
//! way than by waking up, which a virtual processor takes tens of microseconds for.
//!
//! Looks at the socket of the client that answered last, which costs half of asking for any event, and between that at everything. On a
//! processor that others want, it sleeps: looking takes time from the very clients that are waited for. Called by the worker.

use std::time::{Duration, Instant};

/// Looks at one transfer before everything has its turn.
const TURNS: u8 = 8;

/// Duration of a yield from which on the processor counts as contended: another thread ran. Polling pauses then.
const CONTENDED_YIELD: Duration = Duration::from_micros(20);
const POLLING_PAUSE: Duration = Duration::from_millis(100);

/// Socket to poll now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// At this transfer's socket.
    Transfer(u64),
    /// At every socket; then the processor is offered to others.
    Everything,
    /// Nowhere: sleep until something is due.
    Sleep,
}

/// Polling state of a worker.
#[derive(Debug)]
pub(crate) struct Spin {
    /// For how long after an answer; zero: never.
    time: Duration,
    /// The transfer that answered last, and until when its next answer is looked for.
    hot: Option<(u64, Instant)>,
    turns: u8,
    not_before: Option<Instant>,
}

impl Spin {
    pub(crate) const fn new(time: Duration) -> Self {
        Self { time, hot: None, turns: 0, not_before: None }
    }

    /// A client answered, with this round trip so far.
    pub(crate) fn answered(&mut self, mark: u64, round_trip: Option<Duration>, now: Instant) {
        let is_fast = !self.time.is_zero() && round_trip.is_some_and(|time| time <= self.time * 2);
        if is_fast && self.not_before.is_none_or(|until| now >= until) {
            self.hot = Some((mark, now + self.time));
        }
    }

    /// Returns the socket to poll.
    pub(crate) fn look(&mut self, now: Instant) -> Look {
        let Some((mark, _)) = self.hot.filter(|(_, until)| now < *until) else {
            self.hot = None;
            return Look::Sleep;
        };
        self.turns = (self.turns + 1) % TURNS;
        if self.turns == 0 { Look::Everything } else { Look::Transfer(mark) }
    }

    /// Records the duration of a yield of the processor.
    pub(crate) fn yielded(&mut self, took: Duration, now: Instant) {
        if took > CONTENDED_YIELD {
            self.hot = None;
            self.not_before = Some(now + POLLING_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_micros(50);

    fn fast(now: Instant) -> Spin {
        let mut spin = Spin::new(TIME);
        spin.answered(7, Some(TIME), now);
        spin
    }

    #[test]
    fn only_a_fast_client_is_looked_for_and_only_for_a_while() {
        let now = Instant::now();
        assert_eq!(fast(now).look(now), Look::Transfer(7));
        assert_eq!(fast(now).look(now + TIME), Look::Sleep);
        for (time, round_trip) in
            [(TIME, None), (TIME, Some(Duration::from_millis(1))), (Duration::ZERO, Some(Duration::ZERO))]
        {
            let mut spin = Spin::new(time);
            spin.answered(7, round_trip, now);
            assert_eq!(spin.look(now), Look::Sleep, "{time:?} {round_trip:?}");
        }
    }

    #[test]
    fn everything_has_its_turn_however_fast_one_client_answers() {
        let now = Instant::now();
        let mut spin = fast(now);
        let mut looks = Vec::new();
        for _ in 0..16 {
            looks.push(spin.look(now));
            spin.answered(7, Some(TIME), now);
        }
        assert_eq!(looks.iter().filter(|look| **look == Look::Everything).count(), 2);
    }

    #[test]
    fn a_wanted_processor_is_left_to_others_for_a_while() {
        let now = Instant::now();
        let mut spin = fast(now);
        spin.yielded(Duration::from_micros(5), now);
        assert_ne!(spin.look(now), Look::Sleep);
        spin.yielded(Duration::from_millis(1), now);
        assert_eq!(spin.look(now), Look::Sleep);
        spin.answered(7, Some(TIME), now);
        assert_eq!(spin.look(now), Look::Sleep, "not yet");
        spin.answered(7, Some(TIME), now + POLLING_PAUSE);
        assert_ne!(spin.look(now + POLLING_PAUSE), Look::Sleep);
    }
}
