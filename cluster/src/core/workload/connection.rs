//! Pure: the connection to one workload cluster, as its task finds it. [`Probe`] alone decides if the cluster is unreachable.
//!
//! Called by `state`. Not here: requests and clocks.

use std::time::Duration;

use bedplate_workload::{PROBE_INTERVAL, Probe, Reachability, RequestError};
use jiff::Timestamp;

use super::remote::RemoteError;
use crate::core::machine::node::Connection;

/// Interval between tries to reach a cluster that counts as unreachable.
const UNREACHABLE_INTERVAL: Duration = Duration::from_secs(30);

/// Connection to one workload cluster.
#[derive(Debug, Clone, Default)]
pub struct Link {
    probe: Probe,
    last_success: Option<Timestamp>,
}

impl Link {
    /// Records an answer of the API server. `elapsed`: time since the start of this process. Returns true if it has become reachable.
    pub fn answered(&mut self, now: Timestamp, elapsed: Duration) -> bool {
        self.last_success = Some(now);
        self.probe.record(Ok(()), elapsed)
    }

    /// Records a failure. Returns true if the cluster has become unreachable.
    pub fn failed(&mut self, error: RemoteError, elapsed: Duration) -> bool {
        let error = match error {
            RemoteError::Request(error) => error,
            RemoteError::Kubeconfig(_) | RemoteError::TooMany(_) => RequestError::Unreachable,
        };
        self.probe.record(Err(error), elapsed)
    }

    /// Returns the connection, as planners read it.
    pub fn connection(&self) -> Connection {
        Connection { last_success: self.last_success, is_lost: self.lost().is_some() }
    }

    /// Returns the last failure of a cluster that is unreachable.
    pub fn lost(&self) -> Option<&RequestError> {
        match self.probe.reachability() {
            Reachability::Unreachable { reason, .. } => Some(reason),
            Reachability::Reachable { .. } | Reachability::Unknown => None,
        }
    }

    /// Returns the delay after a failure.
    pub fn delay(&self) -> Duration {
        if self.lost().is_some() { UNREACHABLE_INTERVAL } else { PROBE_INTERVAL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn k8_five_failures_make_a_cluster_unreachable_and_slow_its_tries() {
        let mut link = Link::default();
        let answered: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert!(link.answered(answered, at(0)) && !link.answered(answered, at(1)));
        let error = RemoteError::Kubeconfig("no Secret".to_owned());
        for n in 1..5 {
            assert!(!link.failed(error.clone(), at(n * 10)));
            assert_eq!((link.lost(), link.delay()), (None, PROBE_INTERVAL));
        }
        assert!(link.failed(error.clone(), at(50)) && !link.failed(error, at(60)));
        assert_eq!((link.lost(), link.delay()), (Some(&RequestError::Unreachable), UNREACHABLE_INTERVAL));
        assert_eq!(link.connection(), Connection { last_success: Some(answered), is_lost: true });
        assert!(link.answered(answered, at(70)));
        assert_eq!((link.lost(), link.connection().is_lost), (None, false));
    }
}
