//! Pure: the delay until a claim is decided again, if no watch shows what it waits for: a deadline, an operation, or a right that another writer
//! removes. Called by `claim`.

use std::time::Duration;

use bedplate_claim::ClaimStep;
use jiff::{SignedDuration, Timestamp};

use super::plan::{Observed, grant_deadline, reads_right, release_deadline};

/// Interval between two looks for the operation that powers a host off.
const OPERATION_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between two reads of a right.
const RIGHT_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum interval to a deadline. While the wall clock is behind, a deadline seems to be far.
const MAX_DEADLINE_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// Time from a deadline to the decision: both are compared in seconds.
const AFTER_DEADLINE: SignedDuration = SignedDuration::from_secs(1);

/// Returns the delay after a step.
pub fn interval(observed: &Observed, step: ClaimStep) -> Option<Duration> {
    match step {
        ClaimStep::PowerOff | ClaimStep::AwaitPowerOff => Some(OPERATION_INTERVAL),
        // After the deadline a change of the claimant or of the host decides.
        ClaimStep::AwaitRelease => until(release_deadline(observed), observed.now),
        ClaimStep::Grant | ClaimStep::Granted if reads_right(&observed.claim) => {
            let deadline = until(grant_deadline(&observed.claim), observed.now);
            Some(deadline.map_or(RIGHT_INTERVAL, |deadline| deadline.min(RIGHT_INTERVAL)))
        }
        _ => None,
    }
}

/// Returns the time to a deadline that has not passed.
fn until(deadline: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    let left = deadline?.duration_since(now) + AFTER_DEADLINE;
    let left: Duration = left.try_into().ok()?;
    (left > Duration::ZERO).then_some(left.min(MAX_DEADLINE_INTERVAL))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bedplate_claim::Right;
    use serde_json::{Value, json};

    use super::*;

    fn observed(status: &Value, heartbeat: &str) -> Observed {
        let claim = json!({ "metadata": { "name": "host-1", "deletionTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "claimant": { "namespace": "team-a", "name": "w-1", "uid": "u" }, "clusterName": "c", "role": "Worker",
                "nodeName": "w-1", "providerID": "bedplate://host-1/u", "configurationRef": { "name": "pool" },
                "bootstrapSecretName": "data", "release": "Empty" }, "status": status });
        let host = json!({ "metadata": { "name": "host-1" }, "spec": { "provider": "manual" },
            "status": { "agent": { "lastHeartbeatTime": heartbeat } } });
        Observed {
            claim: Arc::new(serde_json::from_value(claim).unwrap()),
            host: Some(Arc::new(serde_json::from_value(host).unwrap())),
            claimant: None,
            right: Right::NotNeeded,
            operation: None,
            future_heartbeat: None,
            now: "2026-01-01T00:10:00Z".parse().unwrap(),
        }
    }

    #[test]
    fn d8_claim_is_decided_again_when_its_deadline_has_passed() {
        let seconds = |observed: &Observed, step| interval(observed, step).map(|delay| delay.as_secs());
        for (heartbeat, expected) in
            [("2025-12-31T00:00:00Z", Some(5 * 60 + 1)), ("2026-01-01T00:09:50Z", Some(15 * 60 - 10 + 1))]
        {
            assert_eq!(
                seconds(&observed(&json!({}), heartbeat), ClaimStep::AwaitRelease),
                expected,
                "{heartbeat}"
            );
        }
        let mut late = observed(&json!({}), "2025-12-31T00:00:00Z");
        late.now = "2026-01-01T00:20:00Z".parse().unwrap();
        assert_eq!(seconds(&late, ClaimStep::AwaitRelease), None);
        assert_eq!(seconds(&late, ClaimStep::AwaitPowerOff), Some(10));
    }

    #[test]
    fn d8_deadline_is_checked_again_after_the_wall_clock_jumps_back() {
        let mut behind = observed(&json!({}), "2026-01-01T00:09:50Z");
        behind.now = "2025-12-25T00:00:00Z".parse().unwrap();
        let delay = interval(&behind, ClaimStep::AwaitRelease).map(|delay| delay.as_secs());
        assert_eq!(delay, Some(15 * 60));
    }

    #[test]
    fn d4_right_is_read_each_minute_and_when_it_expires() {
        for (granted, expected) in [("2026-01-01T00:09:00Z", 60), ("2025-12-31T23:55:30Z", 31)] {
            let status = json!({ "conditions": [{ "type": "Granted", "status": "True", "reason": "Granted", "message": "",
                "lastTransitionTime": granted }] });
            let seen = observed(&status, "2026-01-01T00:00:00Z");
            let delay = interval(&seen, ClaimStep::Granted).map(|delay| delay.as_secs());
            assert_eq!(delay, Some(expected), "{granted}");
        }
    }
}
