//! Steps that only write decisions: records of slots, and the ledger next to them.
//!
//! Called by `apply`.

use bedplate_api::machine::{RolledBack, SlotName, Time, VersionRef};
use jiff::{SignedDuration, Timestamp};

use super::ApplyError;
use super::failure_log::tail;
use crate::fault::advice;
use crate::model::{Log, NodeSeen, Record, Stage, other};
use crate::node::attempt::BACKOFF;
use crate::node::effects::Parts;
use crate::node::log_excerpt::with_log;
use crate::slot::store::Ledger;

/// Maximum length of `status.rolledBack.message`, in characters.
const MAX_REASON_CHARS: usize = 1024;

/// Changes a slot's record, if there is one.
pub(super) async fn change(
    parts: &Parts,
    slot: SlotName,
    with: impl FnOnce(&mut Record) + Send + 'static,
) -> Result<(), ApplyError> {
    let changed = parts.on_disk(move |slots| {
        let Some(mut record) = slots.record(slot)? else { return Ok(()) };
        with(&mut record);
        slots.write_record(slot, &record)
    });
    Ok(changed.await?)
}

/// Starts a trial. The next step stops a node, so the deletion of its Node is verified.
pub(super) async fn begin_trial(
    parts: &Parts,
    slot: SlotName,
    node: &NodeSeen,
    now: Timestamp,
) -> Result<(), ApplyError> {
    // While a slot runs, only the deletion of its own Node is a reason to stop it.
    if *node == NodeSeen::Absent && !parts.node_is_gone().await.map_err(ApplyError::Ask)? {
        return Err(ApplyError::Superseded("the Node exists"));
    }
    restart_trial(parts, slot, now).await
}

/// Starts the time of a trial, in this boot.
pub(super) async fn restart_trial(parts: &Parts, slot: SlotName, now: Timestamp) -> Result<(), ApplyError> {
    let boot_id = parts.boot_id.clone();
    let begin = move |record: &mut Record| {
        let boots = match &record.stage {
            Stage::Trial { boots, .. } => boots.saturating_add(1),
            _ => 0,
        };
        record.stage = Stage::Trial { boot_id, since: now, boots };
    };
    change(parts, slot, begin).await
}

/// Records a passed trial, and clears earlier failures.
pub(super) async fn commit(
    parts: &Parts,
    slot: SlotName,
    node_uid: &str,
    now: Timestamp,
) -> Result<(), ApplyError> {
    let node_uid = node_uid.to_owned();
    let applied = parts.on_disk(move |slots| {
        let Some(mut record) = slots.record(slot)? else { return Ok(()) };
        let before = slots.record(other(slot))?.map_or(0, |before| before.generation);
        record.generation = record.generation.max(before + 1);
        record.stage = Stage::Applied { node_uid, since: now };
        slots.write_record(slot, &record)
    });
    applied.await?;
    let forgiven = parts.on_disk(move |slots| {
        let ledger = slots.ledger()?;
        // A kill in a rollback may have left it refused, and it has passed since.
        let passed = slots.record(slot)?.map(|record| record.version);
        let refused = ledger.refused.iter().filter(|refused| Some(*refused) != passed.as_ref()).cloned();
        let new = Ledger { refused: refused.collect(), ..Ledger::default() };
        if new == ledger { Ok(()) } else { slots.write_ledger(&new) }
    });
    Ok(forgiven.await?)
}

/// Records a failed trial. The version is refused if there is a former slot, and counted otherwise.
pub(super) async fn fail(
    parts: &Parts,
    slot: SlotName,
    reason: &str,
    log: Log,
    back_to: Option<SlotName>,
    now: Timestamp,
) -> Result<(), ApplyError> {
    let said = tail(parts, slot, log).await;
    let advice = advice(&format!("{reason}\n{}", said.log));
    let reason = advice.map_or_else(|| reason.to_owned(), |advice| format!("{reason}; {advice}"));
    let reason = with_log(&reason, &said.log, &said.secrets, MAX_REASON_CHARS);
    tracing::warn!(slot = ?slot, back_to = ?back_to, reason, "health gate of the new node failed");
    let random = rand::random();
    let written = parts.on_disk(move |slots| {
        let seen = slots.look(slot, true)?;
        // Reading the logs takes time, and kubeadm may have finished since.
        if seen.is_kept() {
            return Ok(false);
        }
        let Some(mut record) = seen.record else { return Ok(true) };
        let former = match back_to {
            Some(former) => slots.record(former)?,
            None => None,
        };
        // The ledger first, because it delays the retry; then the record, which ends the trial.
        let ledger = failed(slots.ledger()?, &record, former.as_ref(), &reason, now, random);
        slots.write_ledger(&ledger)?;
        record.stage = Stage::Failed { reason };
        slots.write_record(slot, &record).map(|()| true)
    });
    if written.await? {
        Ok(())
    } else {
        Err(ApplyError::Superseded(
            "kubeadm has created a control plane in \
         the slot",
        ))
    }
}

/// Adds a failed trial to the ledger. Pure.
fn failed(
    mut ledger: Ledger,
    record: &Record,
    former: Option<&Record>,
    reason: &str,
    now: Timestamp,
    random: f64,
) -> Ledger {
    match former {
        Some(former) => {
            if !ledger.refused.contains(&record.version) {
                ledger.refused.push(record.version.clone());
            }
            ledger.rolled_back = Some(RolledBack {
                from: record.version.clone(),
                to: former.version.clone(),
                message: reason.chars().take(MAX_REASON_CHARS).collect(),
                time: Time(now),
            });
        }
        None => {
            ledger.failures = ledger.failures.saturating_add(1);
            ledger.last_failure = Some(reason.to_owned());
            let wait = BACKOFF.delay(ledger.failures.saturating_add(2), random);
            let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
            ledger.not_before = Some(now.saturating_add(wait).unwrap_or(Timestamp::MAX));
        }
    }
    ledger
}

/// Allows a version that failed on this host again: a user requested it, or
/// another version was selected since.
///
/// # Errors
/// The ledger cannot be written.
pub async fn allow_again(parts: &Parts, version: &VersionRef) -> Result<(), ApplyError> {
    let version = version.clone();
    let forgiven = parts.on_disk(move |slots| {
        let mut ledger = slots.ledger()?;
        let before = ledger.refused.len();
        ledger.refused.retain(|refused| *refused != version);
        if ledger.refused.len() == before { Ok(()) } else { slots.write_ledger(&ledger) }
    });
    Ok(forgiven.await?)
}

#[cfg(test)]
mod tests {
    use bedplate_process::backoff::NO_JITTER;

    use bedplate_api::id::Digest;

    use super::*;
    use crate::node::attempt::not_before;

    fn record(version: i64) -> Record {
        Record {
            version: VersionRef { name: "workers".to_owned(), version },
            template: "t".to_owned(),
            image_digest: Digest::from_sha256([1; 32]),
            machine_uid: "uid".to_owned(),
            timeout_seconds: 600,
            min_ready_seconds: 30,
            generation: 0,
            claim: None,
            stage: Stage::Prepared,
        }
    }

    #[test]
    fn version_is_refused_with_a_former_slot_and_backs_off_without_one() {
        let now = Timestamp::UNIX_EPOCH;
        let mut ledger = Ledger::default();
        for _ in 0..2 {
            ledger = failed(ledger, &record(2), Some(&record(1)), &"x".repeat(5000), now, NO_JITTER);
        }
        assert_eq!(ledger.refused, [record(2).version]);
        let back = ledger.rolled_back.clone().unwrap();
        assert_eq!((back.from.version, back.to.version, back.message.len()), (2, 1, 1024));
        assert_eq!((ledger.failures, ledger.not_before), (0, None));
        let mut waits = Vec::new();
        for _ in 0..8 {
            ledger = failed(ledger, &record(2), None, "why", now, NO_JITTER);
            waits.push(ledger.not_before.unwrap().as_second());
        }
        assert_eq!(waits, [4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(ledger.failures, 8);
    }

    #[test]
    fn a_back_off_that_a_wrong_clock_wrote_holds_nothing_once_it_is_right() {
        let now: Timestamp = "2026-11-22T00:00:00Z".parse().unwrap();
        let mut ledger = Ledger::default();
        assert_eq!(not_before(&ledger, now), Timestamp::MIN);
        for _ in 0..12 {
            ledger = failed(ledger, &record(2), None, "why", now, 1.0);
            assert_eq!(not_before(&ledger, now), ledger.not_before.unwrap(), "{}", ledger.failures);
        }
        let wrong: Timestamp = "2036-02-07T06:28:16Z".parse().unwrap();
        ledger = failed(ledger, &record(2), None, "why", wrong, NO_JITTER);
        assert_eq!(not_before(&ledger, now), Timestamp::MIN);
    }
}
