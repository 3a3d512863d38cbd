//! Counters of power control: operations, calls of BMCs, breakers, the queue. Written by the workers, read at a
//! scrape.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bedplate_api::machine::BmcProtocol;
use bedplate_bmc::BmcFault;
use bedplate_process::counter::{By, Level, labels, one, read};

use super::plan::breaker::Shown;
use super::plan::parameters::Kind;
use crate::reason_label::ReasonLabel;

labels! {
    /// Result of an operation.
    pub enum OperationResult {
        /// The operation was carried out.
        Complete => "complete",
        /// The operation was not carried out, or its result is not known.
        Failed => "failed",
    }
}

/// Upper bounds of the buckets of calls, in seconds.
pub const BOUNDS: [f64; 9] = [0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// Durations of calls.
#[derive(Debug, Default)]
pub struct Histogram {
    /// Calls by the first bound that they are not beyond; the last is without bound.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    microseconds: AtomicU64,
}

/// Snapshot of a [`Histogram`] for a scrape.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// The sum of all, in seconds.
    pub sum: f64,
    /// Number of calls.
    pub count: u64,
    /// Upper bounds in seconds, with how many calls fall between the bound before and this one.
    pub buckets: Vec<(f64, u64)>,
}

impl Histogram {
    /// Adds a call.
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let place = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.buckets.get(place).into_iter().for_each(one);
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.microseconds.fetch_add(microseconds, Ordering::Relaxed);
    }

    /// Returns a snapshot.
    pub fn now(&self) -> Distribution {
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(self.buckets.iter().map(read)).collect();
        let sum = Duration::from_micros(read(&self.microseconds)).as_secs_f64();
        Distribution { sum, count: buckets.iter().map(|(_, n)| n).sum(), buckets }
    }
}

/// Counters since start, and levels now.
#[derive(Debug, Default)]
pub struct Counters {
    operations: [By<OperationResult>; Kind::ALL.len()],
    redfish: Histogram,
    ipmi: Histogram,
    /// Requests that a BMC did not carry out, by reason.
    pub failures: By<ReasonLabel<BmcFault>>,
    breakers: [Level; Shown::ALL.len()],
    /// Operations that are known and not finished.
    pub queue: AtomicU64,
}

impl Counters {
    /// An operation ended.
    pub fn operation(&self, kind: Kind, result: OperationResult) {
        self.operations.get(kind as usize).into_iter().for_each(|by| by.one(result));
    }

    /// Operations by kind and result.
    pub fn operations(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        Kind::ALL
            .iter()
            .zip(&self.operations)
            .flat_map(|(kind, by)| by.all().map(move |(result, count)| (kind.as_str(), result, count)))
    }

    /// A BMC was asked.
    pub fn call(&self, protocol: BmcProtocol, took: Duration) {
        self.calls(protocol).observe(took);
    }

    /// Returns the durations of BMC calls over this protocol.
    pub fn calls(&self, protocol: BmcProtocol) -> &Histogram {
        match protocol {
            BmcProtocol::Redfish => &self.redfish,
            BmcProtocol::Ipmi => &self.ipmi,
        }
    }

    /// A BMC's breaker is in another state; `None`: the BMC is new, or gone.
    pub(crate) fn breaker(&self, before: Option<Shown>, now: Option<Shown>) {
        let level = |shown: Shown| self.breakers.get(shown as usize);
        before.and_then(level).into_iter().for_each(Level::down);
        now.and_then(level).into_iter().for_each(Level::up);
    }

    /// Breakers by state.
    pub(crate) fn breakers(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Shown::ALL.iter().zip(&self.breakers).map(|(shown, level)| (shown.as_str(), level.now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_falls_into_the_bucket_that_holds_it() {
        let histogram = Histogram::default();
        for millis in [20, 50, 51, 90_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let shown = histogram.now();
        assert_eq!((shown.count, shown.sum), (4, 90.121));
        let full: Vec<_> = shown.buckets.iter().filter(|(_, n)| *n > 0).map(|(bound, _)| *bound).collect();
        assert_eq!(full, [0.025, 0.05, 0.1, f64::INFINITY]);
    }
}
