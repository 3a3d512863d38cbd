//! Hosts that have failed a claim in the last hour: they are chosen last. Kept in memory, so a new leader does not know them.
//!
//! Written by the reconciliation of claims, read by the choice of a host.

use std::collections::BTreeMap;

use bedplate_process::lock::Lock;
use jiff::{SignedDuration, Timestamp};

/// Time for which a host that has failed a claim is chosen last.
const FAILED_HOST_PENALTY: SignedDuration = SignedDuration::from_hours(1);

/// Time of the last failure of each host.
#[derive(Debug, Default)]
pub struct Failures(Lock<BTreeMap<String, Timestamp>>);

impl Failures {
    /// Notes the failure of a host, and forgets old ones.
    pub fn note(&self, host: &str, now: Timestamp) {
        let mut hosts = self.0.lock();
        hosts.retain(|_, failed| now.duration_since(*failed) < FAILED_HOST_PENALTY);
        hosts.insert(host.to_owned(), now);
    }

    /// Returns true if a host has failed a claim in the last hour.
    pub fn has_failed(&self, host: &str, now: Timestamp) -> bool {
        self.0.lock().get(host).is_some_and(|failed| now.duration_since(*failed) < FAILED_HOST_PENALTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d1_failure_of_a_host_counts_for_one_hour() {
        let (failures, start) = (Failures::default(), "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap());
        failures.note("a", start);
        let later = start + SignedDuration::from_secs(3599);
        assert!(failures.has_failed("a", later) && !failures.has_failed("b", later));
        let later = later + SignedDuration::from_secs(1);
        assert!(!failures.has_failed("a", later));
        failures.note("b", later);
        assert_eq!(failures.0.lock().len(), 1);
    }
}
