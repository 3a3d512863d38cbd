//! Time at which a host whose clock is ahead was heard, by the clock of this process.
//!
//! Root on a host, or a wrong clock, may write any heartbeat. One in the future would keep a silent host from being powered off. A host with such
//! a clock that runs is heard each time its heartbeat changes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bedplate_api::machine::Machine;
use bedplate_rules::claim::eligible::{heartbeat, is_ahead};
use jiff::Timestamp;
use kube::ResourceExt;

/// First sight of the heartbeats that are in the future. At most one for each claimed host.
#[derive(Debug, Default)]
pub struct FutureHeartbeats(Mutex<HashMap<String, Sight>>);

/// Heartbeat, and the time at which this process saw it first.
#[derive(Debug, Clone, Copy)]
struct Sight {
    heartbeat: Timestamp,
    at: Timestamp,
}

impl FutureHeartbeats {
    /// Returns the time at which the present heartbeat of a host was seen first. None: it is not in the future.
    pub fn seen(&self, host: &Machine, now: Timestamp) -> Option<Timestamp> {
        let mut sights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(heartbeat) = heartbeat(host).filter(|time| is_ahead(*time, now)) else {
            sights.remove(&host.name_any());
            return None;
        };
        let sight = sights.entry(host.name_any()).or_insert(Sight { heartbeat, at: now });
        if sight.heartbeat != heartbeat {
            *sight = Sight { heartbeat, at: now };
        }
        Some(sight.at)
    }

    /// Forgets a host whose claim has ended.
    pub fn forget(&self, host: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(host);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn d8_host_whose_clock_is_ahead_is_heard_when_its_heartbeat_changes() {
        let sights = FutureHeartbeats::default();
        let seen = |heartbeat: &str, now: &str| {
            let host = json!({ "metadata": { "name": "host-1" }, "spec": { "provider": "manual" },
                "status": { "agent": { "lastHeartbeatTime": heartbeat } } });
            let host: Machine = serde_json::from_value(host).unwrap();
            sights.seen(&host, now.parse().unwrap()).map(|time| time.to_string())
        };
        let at = |time: &str| Some(time.to_owned());
        assert_eq!(seen("2027-01-01T00:00:00Z", "2026-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z"));
        assert_eq!(seen("2027-01-01T00:00:00Z", "2026-01-01T00:10:00Z"), at("2026-01-01T00:00:00Z"));
        assert_eq!(seen("2027-01-01T00:05:00Z", "2026-01-01T00:10:00Z"), at("2026-01-01T00:10:00Z"));
        assert_eq!(seen("2026-01-01T00:10:00Z", "2026-01-01T00:10:00Z"), None, "its clock was corrected");
        assert_eq!(seen("2027-01-01T00:05:00Z", "2026-01-01T00:20:00Z"), at("2026-01-01T00:20:00Z"));
        sights.forget("host-1");
        assert_eq!(seen("2027-01-01T00:05:00Z", "2026-01-01T00:30:00Z"), at("2026-01-01T00:30:00Z"));
    }
}
