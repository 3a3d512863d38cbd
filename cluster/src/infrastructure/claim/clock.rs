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

/// First sight of the heartbeats that were in the future. At most one for each Machine that was claimed.
#[derive(Debug, Default)]
pub struct FutureHeartbeats(Mutex<HashMap<String, FutureHeartbeat>>);

/// A heartbeat that was in the future when this process saw it first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FutureHeartbeat {
    /// Time by the clock of the host.
    heartbeat: Timestamp,
    /// Time of the first sight.
    pub seen_at: Timestamp,
    /// This process saw another heartbeat of the future before: the host runs.
    pub is_changed: bool,
}

impl FutureHeartbeats {
    /// Returns the present heartbeat of a host, if it was in the future at its first sight.
    pub fn see(&self, host: &Machine, now: Timestamp) -> Option<FutureHeartbeat> {
        let (name, heartbeat) = (host.name_any(), heartbeat(host)?);
        let mut sights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = sights.get(&name).copied();
        if let Some(same) = before.filter(|before| before.heartbeat == heartbeat) {
            return Some(same);
        }
        if !is_ahead(heartbeat, now) {
            sights.remove(&name);
            return None;
        }
        let sight = FutureHeartbeat { heartbeat, seen_at: now, is_changed: before.is_some() };
        sights.insert(name, sight);
        Some(sight)
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
            sights.see(&host, now.parse().unwrap()).map(|sight| (sight.seen_at.to_string(), sight.is_changed))
        };
        let at = |time: &str, is_changed: bool| Some((time.to_owned(), is_changed));
        let (ahead, later) = ("2026-01-01T00:10:00Z", "2026-01-01T00:15:00Z");
        assert_eq!(seen(ahead, "2026-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z", false));
        assert_eq!(seen(ahead, "2026-01-01T00:01:00Z"), at("2026-01-01T00:00:00Z", false));
        assert_eq!(seen(later, "2026-01-01T00:05:00Z"), at("2026-01-01T00:05:00Z", true));
        // It is not in the future any more, but the host was not heard again.
        assert_eq!(seen(later, "2026-01-01T00:20:00Z"), at("2026-01-01T00:05:00Z", true));
        assert_eq!(seen("2026-01-01T00:20:00Z", "2026-01-01T00:20:00Z"), None, "its clock was corrected");
        let again = "2026-01-01T01:00:00Z";
        assert_eq!(seen(again, "2026-01-01T00:21:00Z"), at("2026-01-01T00:21:00Z", false));
        sights.forget("host-1");
        assert_eq!(seen(again, "2026-01-01T00:22:00Z"), at("2026-01-01T00:22:00Z", false));
    }
}
