//! Standalone operations that agents carry out (docs/design/rules.md, O7): the operations that an agent gets, its status
//! writes, and the end of operations that no agent carries out.
//!
//! Carries nothing out. Called by `standalone::agents`, and by `tidy` for the end.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::id::MachineName;
use bedplate_api::operation::{AGENT_OPERATIONS, MachineOperation, MachineOperationStatus, OperationState};
use bedplate_api::reason::operation::FanOutOutcome;
use bedplate_api::wire::{OperationWrite, OperationWritten};
use bedplate_rules::fan_out::{LEFT_TO_EXECUTOR, taken_within};
use bedplate_rules::operation::{End, ended};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use super::LocalOperations;
use crate::power::operations::{is_finished, sort_by_age};
use crate::power::{Operation, OperationKey, OperationUpdate, OperationWriter as _, WriteOperationError};

/// Period after the start of pxed in which it ends no operation of an agent.
pub(super) const AGENT_GRACE_PERIOD: Duration = Duration::from_secs(60);
/// Maximum length of stored texts in characters, as in the CRD.
const MOST_REASON: usize = 63;
const MOST_MESSAGE: usize = 4096;
const MOST_EXECUTOR: usize = 253;

impl LocalOperations {
    /// Told at each change of any operation.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.inner.changed.subscribe()
    }

    /// A Machine's operations that its agent carries out and that have not ended, the oldest first.
    pub(crate) fn of_agent(&self, machine: &MachineName) -> Vec<Arc<MachineOperation>> {
        let mut all: Vec<_> = {
            let state = self.lock();
            let there = state.memory.records.values().filter(|record| {
                record.targets.is_none()
                    && is_agents(&record.object, machine)
                    && !is_finished(&record.object)
                    && !state.memory.gone.contains_key(record.name())
            });
            there.map(|record| Arc::new(record.object.clone())).collect()
        };
        sort_by_age(&mut all);
        all
    }

    /// Stores the agent's progress report on an operation, if the operation is still the version that the agent read.
    ///
    /// # Errors
    /// The report cannot be stored now.
    pub(crate) async fn write_of_agent(
        &self,
        machine: &MachineName,
        write: OperationWrite,
    ) -> Result<OperationWritten, String> {
        let known = self.of_uid(&write.name, &write.uid).filter(|now| is_agents(now, machine));
        let Some(object) = known else { return Ok(OperationWritten::Gone) };
        if is_finished(&object) {
            return Ok(changed(&object));
        }
        let key = OperationKey { name: write.name.clone(), uid: write.uid.clone() };
        let read = Operation { key, object, version: write.resource_version, written: None };
        match self.write(&read, bounded(write.status)).await {
            Ok(now) => {
                // A shutdown holds the power of its machine.
                self.tell(OperationUpdate::Put(now.clone())).await;
                Ok(OperationWritten::Written { operation: Box::new(MachineOperation::clone(&now.object)) })
            }
            Err(WriteOperationError::Conflict) => {
                let now = self.of_uid(&write.name, &write.uid);
                Ok(now.map_or(OperationWritten::Gone, |now| changed(&now)))
            }
            Err(WriteOperationError::Gone) => Ok(OperationWritten::Gone),
            Err(WriteOperationError::Refused(why) | WriteOperationError::Later(why)) => Err(why),
        }
    }

    /// Ends what no agent takes, and what an agent that is gone has left.
    pub(super) async fn expire(&self, now: Timestamp) {
        let ended: Vec<(Operation, MachineOperationStatus)> = {
            let state = self.lock();
            let there =
                state.memory.records.values().filter(|record| {
                    record.targets.is_none() && !state.memory.gone.contains_key(record.name())
                });
            there.filter_map(|record| Some((record.operation(), expired(&record.object, now)?))).collect()
        };
        for (operation, status) in ended {
            tracing::info!(
                operation = operation.key.name,
                reason = status.reason,
                "operation of an agent timed out"
            );
            // Conflict: the agent wrote meanwhile, so the operation is read again. Store error: the next round
            // retries.
            if let Err(error) = self.write(&operation, status).await {
                tracing::debug!(operation = operation.key.name, %error, "failed to end an operation");
            }
        }
    }

    fn of_uid(&self, name: &str, uid: &str) -> Option<Arc<MachineOperation>> {
        let state = self.lock();
        let record = state.memory.records.get(name).filter(|record| record.uid() == uid)?;
        Some(Arc::new(record.object.clone()))
    }
}

fn changed(now: &MachineOperation) -> OperationWritten {
    OperationWritten::Changed { operation: Box::new(now.clone()) }
}

/// Returns true if the agent of this Machine must carry out the operation.
fn is_agents(operation: &MachineOperation, machine: &MachineName) -> bool {
    let spec = &operation.spec;
    spec.machine_ref.as_ref().is_some_and(|reference| reference.name == *machine)
        && AGENT_OPERATIONS.contains(&spec.operation_name.as_str())
}

/// Returns the end of an agent's operation that timed out; `None` if it has not.
fn expired(operation: &MachineOperation, now: Timestamp) -> Option<MachineOperationStatus> {
    let machine = operation.spec.machine_ref.as_ref().map(|reference| &reference.name)?;
    if !is_agents(operation, machine) || is_finished(operation) {
        return None;
    }
    let before = operation.status.clone().unwrap_or_default();
    // No less than any of the agent's own defaults, too.
    let limit = taken_within(&operation.spec);
    let seconds = limit.as_secs();
    let taken = before.state == Some(OperationState::InProgress);
    let (since, left) = if taken {
        (before.start_time.as_ref(), LEFT_TO_EXECUTOR)
    } else {
        (operation.metadata.creation_timestamp.as_ref(), SignedDuration::ZERO)
    };
    if now < later(later(since?.0, limit), left) {
        return None;
    }
    let (reason, message) = if taken {
        let text = format!(
            "the agent of Machine {machine} started the operation and did not report a result within {seconds} s; check the machine"
        );
        (FanOutOutcome::TimedOut, text)
    } else {
        let text = format!(
            "the agent of Machine {machine} did not start the operation within {seconds} s; check that the \
             host is up and enrolled (`bedplate machine show {machine}`)"
        );
        (FanOutOutcome::NoExecutor, text)
    };
    let end = End { complete: false, reason: reason.as_str(), message: &message };
    let at = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Some(ended(before, end, operation.metadata.generation, at))
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// No more than the definition takes, and nothing of what is the controller's.
fn bounded(status: MachineOperationStatus) -> MachineOperationStatus {
    let cut = |text: Option<String>, most| text.map(|text| text.chars().take(most).collect::<String>());
    let mut conditions = status.conditions;
    conditions.truncate(16);
    MachineOperationStatus {
        observed_generation: status.observed_generation,
        state: status.state,
        start_time: status.start_time,
        completion_time: status.completion_time,
        reason: cut(status.reason, MOST_REASON),
        message: cut(status.message, MOST_MESSAGE),
        executor: cut(status.executor, MOST_EXECUTOR),
        boot_id: cut(status.boot_id, MOST_REASON),
        step: None,
        counts: None,
        machines: None,
        conditions,
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::machine::Time;

    use super::*;
    use crate::standalone::operations::plan::tests::object;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn o7_operation_that_no_agent_takes_or_finishes_expires() {
        let mut waiting = object("x", "reboot");
        waiting.metadata.creation_timestamp = Some(Time(at(0)));
        assert_eq!(expired(&waiting, at(3599)), None);
        let ended = expired(&waiting, at(3600)).unwrap();
        assert_eq!(
            (ended.state, ended.reason.as_deref()),
            (Some(OperationState::Failed), Some("NoExecutor"))
        );
        waiting.spec.parameters.insert("drainTimeoutSeconds".to_owned(), "100".to_owned());
        assert_eq!(expired(&waiting, at(3600)), None);
        waiting.spec.timeout_seconds = Some(10);
        assert!(expired(&waiting, at(10)).is_some());

        let mut taken = waiting;
        taken.status = Some(MachineOperationStatus {
            state: Some(OperationState::InProgress),
            start_time: Some(Time(at(100))),
            executor: Some("bedplate-agent/a".to_owned()),
            ..MachineOperationStatus::default()
        });
        assert_eq!(expired(&taken, at(139)), None, "the agent ends it itself");
        let ended = expired(&taken, at(140)).unwrap();
        assert_eq!(ended.reason.as_deref(), Some("TimedOut"));
        assert_eq!(ended.executor.as_deref(), Some("bedplate-agent/a"));
        taken.status = Some(ended);
        assert_eq!(expired(&taken, at(9999)), None);
    }

    #[test]
    fn o7_operation_of_pxed_does_not_expire_here() {
        let mut power = object("x", "powerCycle");
        power.metadata.creation_timestamp = Some(Time(at(0)));
        assert_eq!(expired(&power, at(99_999)), None);
    }
}
