//! Waiting times of queued objects by their full names, and durations of reconciliations. Called by `counters`.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bedplate_process::family::describe;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

/// Upper bounds of the histogram, in milliseconds. One more bucket is above all.
const BOUNDS: [u64; 9] = [1, 5, 10, 50, 100, 500, 1000, 5000, 10_000];

/// Objects of a kind that wait, each since it was queued first.
#[derive(Debug, Default)]
pub(crate) struct Waiting(HashMap<String, Instant>);

impl Waiting {
    pub(crate) fn waits(&mut self, object: &str, now: Instant) {
        if !self.0.contains_key(object) {
            self.0.insert(object.to_owned(), now);
        }
    }

    pub(crate) fn taken(&mut self, object: &str) {
        self.0.remove(object);
    }

    pub(crate) fn depth(&self) -> usize {
        self.0.len()
    }

    /// Returns the waiting time of the oldest.
    pub(crate) fn oldest(&self, now: Instant) -> Duration {
        self.0.values().min().map(|first| now.saturating_duration_since(*first)).unwrap_or_default()
    }
}

/// Durations of reconciliations.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    counts: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Durations {
    pub(crate) fn took(&self, time: Duration) {
        let place =
            BOUNDS.iter().position(|bound| time <= Duration::from_millis(*bound)).unwrap_or(BOUNDS.len());
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(time.as_micros().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Writes the histogram of each kind.
pub(crate) fn encode_durations(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    each: &[(&str, &Durations)],
) -> fmt::Result {
    let help = "Duration of one reconciliation, including its writes";
    let mut family = describe(encoder, name, help, MetricType::Histogram)?;
    for (kind, durations) in each {
        let counts = durations.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let bounds = BOUNDS.iter().map(|bound| Duration::from_millis(*bound).as_secs_f64());
        let bounds = bounds.chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let sum = Duration::from_micros(durations.micros.load(Ordering::Relaxed)).as_secs_f64();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let labels = [("kind", *kind)];
        family.encode_family(&labels)?.encode_histogram::<[(&str, &str); 0]>(sum, count, &buckets, None)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_waits_since_it_was_queued_first_until_it_is_taken() {
        let (start, mut waiting) = (Instant::now(), Waiting::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        waiting.waits("a", at(0));
        waiting.waits("b", at(3));
        waiting.waits("a", at(5));
        assert_eq!((waiting.depth(), waiting.oldest(at(10))), (2, Duration::from_secs(10)));
        waiting.taken("a");
        assert_eq!((waiting.depth(), waiting.oldest(at(10))), (1, Duration::from_secs(7)));
        waiting.taken("b");
        assert_eq!(waiting.oldest(at(10)), Duration::ZERO);
    }
}
