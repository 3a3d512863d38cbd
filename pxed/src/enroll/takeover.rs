//! Decides whether a new key may replace the key in force of a Machine (docs/design/rules.md, Trust 6).
//!
//! A MAC address can be forged, so that a boot alone does not show that the host is gone. While the key in force is heard, a new key
//! waits. Without a cluster the store may have been lost, and with it the record of the key: pxed then listens first. Part of [`Service`];
//! `heard` judges.

use std::net::IpAddr;

use bedplate_api::id::{BootId, Digest};
use bedplate_api::machine::Time;
use bedplate_api::reason::event::PxedEvent;
use bedplate_api::reason::machine::EnrolledReason;
use bedplate_api::wire::{EnrollResponse, SecretText};
use jiff::Timestamp;

use super::alarm::Alarm;
use super::counters::Enrollment;
use super::in_force::{InForce, latest};
use super::permission;
use super::service::{Refused, Service};
use crate::boot::issued_seeds::{CheckTokenError, Taken};
use crate::boot::report::apply_heard_elsewhere;
use crate::heard::Evidence;
use crate::machines::KnownMachine;
use crate::status::set_condition;

/// Delay before a host asks again, in seconds.
const RETRY_SECONDS: u32 = 15;

/// Key that asks to enroll.
pub(super) struct Candidate<'a> {
    /// The key.
    pub(super) key: Digest,
    /// The boot of its token.
    pub(super) boot: BootId,
    /// The token.
    pub(super) token: &'a SecretText,
    /// The token's seed.
    pub(super) seed: &'a Taken,
    /// Address of the host.
    pub(super) peer: IpAddr,
}

/// Decision about a key.
pub(super) enum Admission {
    /// The host may enroll.
    Now(Former),
    /// The host must wait, with this answer.
    Later(Enrollment, EnrollResponse),
}

/// The key before.
pub(super) struct Former {
    /// The key that is in force until then.
    pub(super) force: InForce,
    /// The key that the status names, as 64 hex digits.
    pub(super) recorded: Option<Digest>,
    /// Last heartbeat of a key whose silence decided.
    pub(super) heartbeat: Option<Option<Time>>,
}

impl Service {
    /// Decides whether a key may enroll. A token that an operator issued includes the permission.
    pub(super) async fn admit_key(
        &self,
        known: &KnownMachine,
        candidate: &Candidate<'_>,
        now: Timestamp,
    ) -> Result<Admission, Refused> {
        // A damaged row names no key that could be this one.
        let row = self.row(&known.name).await.ok().flatten().filter(|row| row.uid == known.uid);
        let status = self.enrollment_status(known);
        let force = self.in_force(row.as_ref(), &status);
        let enrolled = latest(row.as_ref(), &status);
        let recorded = status.enrollment.and_then(|enrollment| enrollment.key_fingerprint);
        let former = Former { force, recorded, heartbeat: None };
        let unrecorded = self.heard.last_unrecorded(known, &candidate.key);
        let is_first = force == InForce::Nothing && !self.listens_first && unrecorded.is_none();
        if force == InForce::Key(candidate.key) || is_first {
            return Ok(Admission::Now(former));
        }
        let time = enrolled.as_ref().map_or(Timestamp::MIN, |enrolled| enrolled.time);
        // The store of another pxed does not know that this token is used up. A time in the future is ignored: the clock was set back.
        if candidate.seed.time < time && time <= now {
            return self.bad_token(candidate.boot, candidate.peer, &CheckTokenError::Superseded);
        }
        if candidate.seed.issued {
            return Ok(Admission::Now(former));
        }
        let own = self.registry.get(&known.name).unwrap_or_default();
        let mut evidence = self.heard.evidence(known, &own, time, now);
        if matches!(force, InForce::Lost | InForce::Nothing) || unrecorded.is_some() {
            // The host that runs is refused, and asks less often. A host that kept its key on a state disk does not keep itself out.
            evidence.silent_after = evidence.listen_for;
            evidence.heard = unrecorded.map_or(evidence.heard, |at| at.max(evidence.heard));
        }
        let boot = candidate.boot.public_id().to_string();
        evidence.allowed = permission::latest_for(known, self.permission(&known.name).await?, &boot);
        evidence.used = enrolled.and_then(|enrolled| enrolled.used_permission());
        let Some(until) = evidence.refuses_until(now) else {
            // A heartbeat that pxed has not seen yet, because its watch is late or has stopped, shows that the key is not silent.
            let agent = status.agent.filter(|_| evidence.rests_on_silence(now));
            let heartbeat = agent.map(|agent| agent.last_heartbeat_time);
            return Ok(Admission::Now(Former { heartbeat, ..former }));
        };
        let message = message(known, candidate, (force, &evidence, until), now);
        Ok(if matches!(force, InForce::Nothing | InForce::Lost) && evidence.heard == Timestamp::MIN {
            self.listen_first(known, (message, until), now)
        } else {
            self.hold_back(known, candidate, (message, evidence.heard), now)
        })
    }

    /// Reports that pxed listens before the first key that it knows of a Machine enrolls.
    fn listen_first(
        &self,
        known: &KnownMachine,
        (message, until): (String, Timestamp),
        now: Timestamp,
    ) -> Admission {
        self.registry.update(&known.name, |status| {
            set_condition(status, false, EnrolledReason::AwaitingEnrollment, &message, None, now);
        });
        let left = u32::try_from(until.duration_since(now).as_secs()).unwrap_or_default();
        let retry_seconds = left.saturating_add(1).min(RETRY_SECONDS);
        Admission::Later(Enrollment::Pending, EnrollResponse::Pending { message, retry_seconds })
    }

    /// Reports a host that must wait, and answers it.
    fn hold_back(
        &self,
        known: &KnownMachine,
        candidate: &Candidate<'_>,
        (message, heard): (String, Timestamp),
        now: Timestamp,
    ) -> Admission {
        self.heard.refused(known, now);
        self.alarm(&Alarm {
            event: PxedEvent::HeardElsewhere,
            machine: Some(&known.name),
            boot: Some(candidate.boot),
            peer: candidate.peer,
            message: "another host asks to enroll with a new key while the key in force is heard".to_owned(),
        });
        let is_up = heard > candidate.seed.time;
        self.registry.update(&known.name, |status| apply_heard_elsewhere(status, is_up, &message, now));
        let answer = EnrollResponse::Pending { message, retry_seconds: RETRY_SECONDS };
        Admission::Later(Enrollment::HeardElsewhere, answer)
    }
}

/// Returns the message for the condition and for the host that waits.
fn message(
    known: &KnownMachine,
    candidate: &Candidate<'_>,
    (force, evidence, until): (InForce, &Evidence, Timestamp),
    now: Timestamp,
) -> String {
    let second = |time: Timestamp| time.strftime("%FT%TZ").to_string();
    let (boot, peer, name) = (candidate.boot.public_id(), candidate.peer, &known.name);
    let heard = if evidence.heard == Timestamp::MIN {
        "pxed has no record of the key in force, and listens first".to_owned()
    } else if matches!(force, InForce::Lost | InForce::Nothing) {
        let at = second(evidence.heard);
        format!(
            "pxed has no record of the key in force; a host with a certificate of this Machine was heard at {at}"
        )
    } else {
        format!("the key in force was heard at {}", second(evidence.heard))
    };
    let (deaf, after) = match evidence.interruption(now) {
        Some((since, None)) => (
            format!("; pxed has not listened since {}", second(since)),
            format!("{} s after pxed listens again", evidence.listen_for.as_secs()),
        ),
        Some((since, Some(end))) => {
            let deaf = format!("; pxed did not listen from {} to {}", second(since), second(end));
            (deaf, format!("after {}", second(until)))
        }
        None => (String::new(), format!("after {}", second(until))),
    };
    format!(
        "host at {peer} (boot {boot}) asks to enroll with a new key and waits: {heard}{deaf}; the new key is \
         accepted {after} if the key in force is not heard again; if the host was replaced or reinstalled, \
         run `bedplate machine re-enroll {name} --boot {boot}`, otherwise identify that host"
    )
}
