//! Pure: decides which transfer of a worker ends when there is no place for another one.
//!
//! ```text
//!   1. its client has not answered yet            the oldest
//!   2. no progress for STALL_TIMEOUT                    the longest
//!   3. less than MIN_BYTES within MEASURE_TIME    the longest
//! ```
//!
//! Ends nothing by itself, and knows neither packets nor sockets. Called by the worker.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

/// Time without progress after which a transfer may lose its place to another: the first two waits for a lost packet.
const STALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Bytes that a client must acknowledge within [`MEASURE_TIME`] to keep its place while others wait: 13 kB/s. Blocks of 512 bytes with a round
/// trip of 10 ms are four times as fast. The HTTP listeners have the same minimum.
const MIN_BYTES: u64 = 128 << 10;

/// Time in which a client must acknowledge [`MIN_BYTES`].
const MEASURE_TIME: Duration = Duration::from_secs(10);

/// Progress of one transfer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// Time of the last new acknowledgment, or of the start.
    pub(crate) at: Instant,
    /// Bytes acknowledged.
    pub(crate) bytes: u64,
}

/// The places of a worker's transfers.
#[derive(Debug, Default)]
pub(crate) struct Places {
    places: HashMap<u64, Place>,
    /// Transfers whose client has not answered yet, the oldest first.
    unheard: BTreeSet<u64>,
    /// All transfers by the progress that was last looked for, the oldest first.
    by_progress: BTreeSet<(Instant, u64)>,
    /// All transfers by the start of their measurement, the oldest first.
    by_mark: BTreeSet<(Instant, u64)>,
}

#[derive(Debug)]
struct Place {
    progressed_at: Instant,
    /// Bytes at the start of the measurement.
    bytes: u64,
    marked_at: Instant,
}

impl Places {
    /// Adds a transfer that starts now.
    pub(crate) fn insert(&mut self, id: u64, now: Instant) {
        self.places.insert(id, Place { progressed_at: now, bytes: 0, marked_at: now });
        self.unheard.insert(id);
        self.by_progress.insert((now, id));
        self.by_mark.insert((now, id));
    }

    /// Notes that the client of a transfer has answered.
    pub(crate) fn heard(&mut self, id: u64) {
        self.unheard.remove(&id);
    }

    /// Removes a transfer.
    pub(crate) fn remove(&mut self, id: u64) {
        self.unheard.remove(&id);
        if let Some(place) = self.places.remove(&id) {
            self.by_progress.remove(&(place.progressed_at, id));
            self.by_mark.remove(&(place.marked_at, id));
        }
    }

    /// Returns the number of transfers.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        assert_eq!((self.places.len(), self.places.len()), (self.by_progress.len(), self.by_mark.len()));
        self.places.len()
    }

    /// Returns the number of transfers whose client has not answered yet.
    #[cfg(test)]
    pub(crate) fn unheard_len(&self) -> usize {
        self.unheard.len()
    }

    /// Returns the transfer of all that is the first to end.
    ///
    /// The orders are corrected here and not with each acknowledgment: a transfer is moved at most once within [`STALL_TIMEOUT`] and
    /// [`MEASURE_TIME`], for any number of requests.
    pub(crate) fn first_to_end(
        &mut self,
        now: Instant,
        progress: impl Fn(u64) -> Option<Progress>,
    ) -> Option<u64> {
        if let Some(unheard) = self.unheard.first() {
            return Some(*unheard);
        }
        while let Some((at, id)) = self.by_progress.first().copied().filter(|(at, _)| is_stalled(*at, now)) {
            let progress = progress(id)?;
            // One that is moved may still have stalled, but for less time than another one.
            if self.has_stalled(id, progress, now) && progress.at <= at {
                return Some(id);
            }
        }
        while let Some((_, id)) = self.by_mark.first().copied().filter(|(at, _)| is_measured(*at, now)) {
            if self.is_slow(id, progress(id)?, now) {
                return Some(id);
            }
        }
        None
    }

    /// Returns the transfer of these that is the first to end. Looks at no others.
    pub(crate) fn first_to_end_of(
        &mut self,
        ids: impl IntoIterator<Item = u64>,
        now: Instant,
        progress: impl Fn(u64) -> Option<Progress>,
    ) -> Option<u64> {
        let weakness = |id: u64| {
            let progress = progress(id)?;
            if self.unheard.contains(&id) {
                return Some((0, progress.at, id));
            }
            if self.has_stalled(id, progress, now) {
                return Some((1, progress.at, id));
            }
            let marked_at = self.places.get(&id)?.marked_at;
            self.is_slow(id, progress, now).then_some((2, marked_at, id))
        };
        ids.into_iter().filter_map(weakness).min().map(|(_, _, id)| id)
    }

    /// Returns true if a transfer has made no progress for too long. Otherwise corrects its place in the order.
    fn has_stalled(&mut self, id: u64, progress: Progress, now: Instant) -> bool {
        let Some(place) = self.places.get_mut(&id) else { return false };
        if progress.at > place.progressed_at {
            self.by_progress.remove(&(place.progressed_at, id));
            self.by_progress.insert((progress.at, id));
            place.progressed_at = progress.at;
        }
        is_stalled(place.progressed_at, now)
    }

    /// Returns true if the client of a transfer has acknowledged too little. Starts a new measurement if it was enough.
    fn is_slow(&mut self, id: u64, progress: Progress, now: Instant) -> bool {
        let Some(place) = self.places.get_mut(&id) else { return false };
        if progress.bytes.saturating_sub(place.bytes) >= MIN_BYTES {
            self.by_mark.remove(&(place.marked_at, id));
            self.by_mark.insert((now, id));
            (place.bytes, place.marked_at) = (progress.bytes, now);
        }
        is_measured(place.marked_at, now)
    }
}

fn is_stalled(progressed_at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(progressed_at) >= STALL_TIMEOUT
}

fn is_measured(marked_at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(marked_at) >= MEASURE_TIME
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Transfers 0 to 2 start one second after the other, and all clients have answered.
    fn three(start: Instant) -> Places {
        let mut places = Places::default();
        for id in 0..3 {
            places.insert(id, start + Duration::from_secs(id));
            places.heard(id);
        }
        places
    }

    #[test]
    fn slow_transfer_that_progresses_is_the_first_to_end() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut places = three(start);
        // Each has an acknowledgment every moment, and only the first one takes enough.
        let progress = |now| {
            move |id: u64| Some(Progress { at: now, bytes: if id == 0 { MIN_BYTES } else { MIN_BYTES - 1 } })
        };
        assert_eq!(places.first_to_end(at(10), progress(at(10))), None, "each has its time");
        assert_eq!(places.first_to_end(at(12), progress(at(12))), Some(1), "the longest");
        places.remove(1);
        assert_eq!(places.first_to_end(at(12), progress(at(12))), Some(2));
        places.remove(2);
        assert_eq!(places.first_to_end(at(19), progress(at(19))), None, "measured since second 10");
        assert_eq!(places.first_to_end(at(20), progress(at(20))), Some(0));
        places.remove(0);
        assert!(places.by_mark.is_empty() && places.by_progress.is_empty() && places.places.is_empty());
    }

    #[test]
    fn firmware_with_small_blocks_and_slow_round_trips_keeps_its_place() {
        let start = Instant::now();
        let mut places = three(start);
        for second in 1..100 {
            let now = start + Duration::from_secs(second);
            // Blocks of 512 bytes with a round trip of 10 ms.
            let progress = |_| Some(Progress { at: now, bytes: second * 100 * 512 });
            assert_eq!(places.first_to_end(now, progress), None, "{second} s");
            assert_eq!(places.first_to_end_of(0..3, now, progress), None, "{second} s");
        }
    }

    #[test]
    fn silent_clients_go_before_stalled_ones_and_these_before_slow_ones() {
        let start = Instant::now();
        let now = start + Duration::from_secs(20);
        let progress = |id: u64| Some(Progress { at: if id == 1 { start } else { now }, bytes: 0 });
        let mut places = three(start);
        places.insert(3, now);
        let mut left = vec![0, 1, 2, 3];
        for expected in [3, 1, 0, 2] {
            assert_eq!(places.first_to_end_of(left.clone(), now, progress), Some(expected));
            assert_eq!(places.first_to_end(now, progress), Some(expected));
            places.remove(expected);
            left.retain(|id| *id != expected);
        }
        assert_eq!(places.first_to_end_of(left, now, progress), None);
        assert_eq!(places.first_to_end(now, progress), None);
    }
}
