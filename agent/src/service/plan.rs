//! Decides the next act of the agent.
//!
//! Pure: known state in, one act out. Called by `run`, once for each act.
//!
//! ```text
//!   no seed, no certificate: wait for a seed, or for a Machine if the seed was an unknown machine's
//!   seed of a boot that has no certificate yet ---enroll---> certificate, seed deleted
//!   certificate ---report each heartbeat, renew from 2/3 of its life on--->
//!   certificate without enrollment group ---renew--->
//!   certificate expired, no seed: wait; the next boot brings a seed
//! ```

use std::time::Duration;

use bedplate_api::id::BootId;
use jiff::{SignedDuration, Timestamp};

/// The certificate that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The boot by whose seed it was got.
    pub boot_id: BootId,
    /// From when it counts.
    pub not_before: Timestamp,
    /// When it ends.
    pub not_after: Timestamp,
    /// Interval between two reports.
    pub heartbeat: Duration,
    /// True if the certificate names the enrollment group of its key. An earlier version of Bedplate made certificates without it.
    pub has_group: bool,
}

/// When an act may be tried next; in the past if nothing holds it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotBefore {
    /// Enrollment.
    pub enroll: Timestamp,
    /// Renewal.
    pub renew: Timestamp,
    /// Report after a failed one.
    pub report: Timestamp,
}

/// All that the plan depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// Now.
    pub now: Timestamp,
    /// The boot of the seed, if one is there.
    pub seed: Option<BootId>,
    /// True if pxed has permanently refused that seed.
    pub seed_refused: bool,
    /// True if the seed of this boot has no token, because no Machine names this machine.
    pub unknown: bool,
    /// The certificate, if one is there.
    pub held: Option<Held>,
    /// The last report that was taken.
    pub last_report: Option<Timestamp>,
    /// Earliest times of acts after failures.
    pub not_before: NotBefore,
    /// The cluster's Machine is the one that was enrolled for, and knows another certificate: it is renewed before its time.
    pub disowned: bool,
}

/// Event that the agent waits for if no act is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pending {
    /// The next heartbeat or renewal: all is well.
    Heartbeat,
    /// The time of the next try after a failure, or after "pending".
    Retry,
    /// A Machine that names this machine: it booted the discovery image.
    Machine,
    /// A seed: there is neither seed nor certificate.
    Seed,
    /// A seed: the certificate has expired.
    SeedAfterEnd,
}

/// The next act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Trade the seed's token for a certificate.
    Enroll,
    /// The seed has done its work: remove it.
    ForgetSeed,
    /// Get a new certificate by the one that is there.
    Renew,
    /// Send a report.
    Report,
    /// Wait until then.
    Wait {
        /// Latest time of the next plan.
        until: Timestamp,
        /// Event that ends the wait.
        pending: Pending,
    },
}

/// Interval between two checks for a seed.
const LOOK_FOR_SEED: SignedDuration = SignedDuration::from_secs(5);

/// Decides.
pub fn plan(observed: &Observed) -> Next {
    let Observed { now, seed, seed_refused, unknown, held, last_report, not_before, disowned } = *observed;
    let held_now = held.filter(|held| now < held.not_after);
    match (seed, held) {
        (Some(boot), Some(held)) if boot == held.boot_id => return Next::ForgetSeed,
        (Some(_), _) if now >= not_before.enroll => return Next::Enroll,
        _ => {}
    }
    let retry = Next::Wait { until: not_before.enroll, pending: Pending::Retry };
    let Some(held) = held_now else {
        let until = now.saturating_add(LOOK_FOR_SEED).unwrap_or(Timestamp::MAX);
        return match (seed, held) {
            (Some(_), _) => retry,
            (None, None) if unknown => Next::Wait { until, pending: Pending::Machine },
            (None, None) => Next::Wait { until, pending: Pending::Seed },
            (None, Some(_)) => Next::Wait { until, pending: Pending::SeedAfterEnd },
        };
    };
    if seed.is_some() && !seed_refused {
        return retry;
    }
    let due = if disowned || !held.has_group { held.not_before } else { renewal_time(&held) };
    let renewal = due.max(not_before.renew);
    if now >= renewal {
        return Next::Renew;
    }
    let heartbeat = SignedDuration::try_from(held.heartbeat).unwrap_or(SignedDuration::MAX);
    // A report of the future: the clock was set back.
    let due = last_report
        .filter(|last| *last <= now)
        .map(|last| last.saturating_add(heartbeat).unwrap_or(Timestamp::MAX));
    let due = due.unwrap_or(Timestamp::MIN).max(not_before.report);
    if now >= due {
        return Next::Report;
    }
    Next::Wait { until: due.min(renewal), pending: Pending::Heartbeat }
}

/// Returns the time from which the certificate is renewed: two thirds of its life.
pub(crate) fn renewal_time(held: &Held) -> Timestamp {
    let third = held.not_after.duration_since(held.not_before) / 3;
    held.not_before.saturating_add(third * 2).unwrap_or(held.not_after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    const OLD: BootId = BootId::from_random([1; 16]);
    const NEW: BootId = BootId::from_random([2; 16]);

    /// A certificate of 300 s, reports every 60 s, nothing held back.
    fn observed(now: i64, seed: Option<BootId>, held: Option<BootId>, last_report: Option<i64>) -> Observed {
        let held = held.map(|boot_id| Held {
            boot_id,
            not_before: at(0),
            not_after: at(300),
            heartbeat: Duration::from_secs(60),
            has_group: true,
        });
        let free = Timestamp::MIN;
        Observed {
            now: at(now),
            seed,
            seed_refused: false,
            unknown: false,
            held,
            last_report: last_report.map(at),
            not_before: NotBefore { enroll: free, renew: free, report: free },
            disowned: false,
        }
    }

    fn wait(until: i64, pending: Pending) -> Next {
        Next::Wait { until: at(until), pending }
    }

    #[test]
    fn host_with_an_expired_certificate_enrolls_with_the_seed_of_its_boot() {
        assert_eq!(plan(&observed(10_000, Some(NEW), Some(OLD), Some(9))), Next::Enroll);
        let none = plan(&observed(10_000, None, Some(OLD), Some(9)));
        assert_eq!(none, wait(10_005, Pending::SeedAfterEnd), "without a seed a person is asked for one");
    }

    #[test]
    fn every_state_has_its_act() {
        for (observed, expected) in [
            (observed(10, None, None, None), wait(15, Pending::Seed)),
            (observed(10, Some(NEW), None, None), Next::Enroll),
            (observed(10, Some(NEW), Some(OLD), Some(9)), Next::Enroll),
            (observed(10, Some(NEW), Some(NEW), Some(9)), Next::ForgetSeed),
            (observed(400, Some(NEW), Some(OLD), None), Next::Enroll),
            (observed(10, None, Some(OLD), None), Next::Report),
            (observed(10, None, Some(OLD), Some(10)), wait(70, Pending::Heartbeat)),
            (observed(70, None, Some(OLD), Some(10)), Next::Report),
            (observed(10, None, Some(OLD), Some(999)), Next::Report),
            (observed(199, None, Some(OLD), Some(190)), wait(200, Pending::Heartbeat)),
            (observed(200, None, Some(OLD), Some(190)), Next::Renew),
            (observed(299, None, Some(OLD), None), Next::Renew),
            (observed(300, None, Some(OLD), None), wait(305, Pending::SeedAfterEnd)),
        ] {
            assert_eq!(plan(&observed), expected, "{observed:?}");
        }
    }

    #[test]
    fn an_unknown_machine_waits_for_a_machine_object() {
        let mut unknown = observed(10, None, None, None);
        unknown.unknown = true;
        assert_eq!(plan(&unknown), wait(15, Pending::Machine));
    }

    #[test]
    fn failures_hold_back_only_their_own_act() {
        let mut renewing = observed(210, None, Some(OLD), Some(100));
        renewing.not_before.renew = at(220);
        assert_eq!(plan(&renewing), Next::Report, "a renewal that fails does not stop reports");
        renewing.last_report = Some(at(209));
        assert_eq!(plan(&renewing), wait(220, Pending::Heartbeat));
        let mut enrolling = observed(10, Some(NEW), None, None);
        enrolling.not_before.enroll = at(20);
        assert_eq!(plan(&enrolling), wait(20, Pending::Retry));
        let mut reporting = observed(10, None, Some(OLD), None);
        reporting.not_before.report = at(30);
        assert_eq!(plan(&reporting), wait(30, Pending::Heartbeat));
    }

    #[test]
    fn certificate_that_the_cluster_lost_is_renewed_early() {
        let mut restored = observed(20, None, Some(OLD), Some(19));
        assert_eq!(plan(&restored), wait(79, Pending::Heartbeat));
        restored.disowned = true;
        assert_eq!(plan(&restored), Next::Renew);
        restored.not_before.renew = at(50);
        assert_eq!(plan(&restored), wait(50, Pending::Heartbeat), "once in a while");
    }

    #[test]
    fn d4_a_certificate_without_enrollment_group_is_renewed_immediately() {
        let mut earlier = observed(20, None, Some(OLD), Some(19));
        earlier.held.as_mut().unwrap().has_group = false;
        assert_eq!(plan(&earlier), Next::Renew);
        earlier.not_before.renew = at(50);
        assert_eq!(plan(&earlier), wait(50, Pending::Heartbeat), "not in a circle");
    }

    #[test]
    fn a_refused_seed_leaves_an_older_certificate_in_use() {
        let mut refused = observed(10, Some(NEW), Some(OLD), None);
        refused.not_before.enroll = at(300);
        assert_eq!(plan(&refused), wait(300, Pending::Retry));
        refused.seed_refused = true;
        assert_eq!(plan(&refused), Next::Report);
    }
}
