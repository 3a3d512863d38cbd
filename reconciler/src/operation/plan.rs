//! Pure: the controller's part in an operation of one Machine (docs/design/rules.md, O1, O2, O5). The executor does
//! the rest.
//!
//! ```text
//! new -> Pending -> (its executor: InProgress -> Complete | Failed) -> its time is over: removed
//!        |  no such Machine                     -> Failed MachineNotFound
//!        |  not taken in time                   -> Failed NoExecutor
//!        '- InProgress, 30 s beyond its time    -> Failed TimedOut
//! ```
//! An operation waits without limit while its Machine is paused, and while another operation of the same
//! executor runs first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::condition::{Conditions as _, set_condition};
use bedplate_api::machine::{Condition, Machine, PROVIDER_MANUAL, PROVIDER_PXE};
use bedplate_api::operation::{
    AGENT_OPERATIONS, MachineOperation, MachineOperationStatus, OperationState, POWER_OPERATIONS,
    condition_type,
};
use bedplate_api::reason::operation::{FanOutOutcome, SuspendedReason};
use bedplate_engine::elapsed::later;
use bedplate_rules::claim::claimant;
use bedplate_rules::fan_out::{
    LEFT_TO_EXECUTOR, MACHINE, PARENT, SITE, done_within, parent_label, taken_within,
};
use bedplate_rules::operation::{End, ended, is_finished, state};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::cache::operations::Since;

/// Time that an operation waits for its Machine to appear. Both may have been applied together.
const MACHINE_GRACE_PERIOD: SignedDuration = SignedDuration::from_secs(10);
/// Message of `Suspended` once it no longer depends on the Machine.
const RESUMED: &str = "operation was started or has finished";

/// Inputs of the decision about an operation.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// The operation, which has a `machineRef`.
    pub operation: &'a MachineOperation,
    /// Machine of the operation. `None` if it does not exist.
    pub machine: Option<&'a Machine>,
    /// Time since which the operation has its state.
    pub since: Since,
    /// Operations of the same Machine, which may include this one.
    pub others: &'a [(Arc<MachineOperation>, Since)],
    /// The time.
    pub now: Timestamp,
}

impl Since {
    /// Returns the start of the state, if the executor reports `said`. Not before `made`.
    fn reckon(self, said: Option<Timestamp>, made: Timestamp) -> Timestamp {
        let (said, made) = (said.map(|said| later(said, self.leap)), later(made, self.leap));
        match said.filter(|said| !self.came && (made..=self.seen).contains(said)) {
            Some(said) => said,
            // In doubt the operation gets more time than it should, not less.
            None => self.seen,
        }
    }
}

/// Actions for an operation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// All labels that this controller owns.
    pub labels: Option<BTreeMap<String, String>>,
    /// All status fields that this controller owns.
    pub status: Option<MachineOperationStatus>,
    /// True if the Node is drained for the operation, and may be deleted.
    pub repave: bool,
    /// True if the operation must be deleted because its time has expired.
    pub remove: bool,
    /// Delay before the next reconcile.
    pub again: Option<Duration>,
}

/// Returns name and UID of the parent.
pub fn parent_of(operation: &MachineOperation) -> Option<(&str, &str)> {
    let owners = operation.metadata.owner_references.iter().flatten();
    let mut owners = owners.filter(|owner| owner.controller == Some(true));
    let owner = owners
        .find(|owner| owner.kind == "MachineOperation" && owner.api_version.starts_with("bedplate.dev/"))?;
    Some((&owner.name, &owner.uid))
}

/// Returns true if the operation still waits for its Machine to appear.
pub(super) fn is_early(operation: &MachineOperation, now: Timestamp) -> bool {
    now < later(created(operation, now), MACHINE_GRACE_PERIOD)
}

/// Returns the remaining time until a finished operation is removed. Returns `None` if it stays.
pub(super) fn expiry(
    operation: &MachineOperation,
    since: Since,
    now: Timestamp,
) -> Option<Result<(), Duration>> {
    let status = operation.status.as_ref().filter(|_| is_finished(operation))?;
    let time = SignedDuration::from_secs(operation.spec.ttl_seconds_after_finished?.into());
    // The writer that ended the operation may have omitted the time.
    let said = status.completion_time.as_ref().map(|time| time.0);
    let left = left(later(since.reckon(said, created(operation, now)), time), now);
    Some(if left.is_zero() { Ok(()) } else { Err(left) })
}

/// Plans the writes for an operation.
pub fn plan(seen: &Seen<'_>) -> Plan {
    let Seen { operation, machine, now, .. } = *seen;
    if operation.metadata.deletion_timestamp.is_some() {
        return Plan::default();
    }
    let labels = missing_labels(seen);
    if is_finished(operation) {
        // A child is deleted with its parent.
        let expiry = expiry(operation, seen.since, now).filter(|_| parent_of(operation).is_none());
        let remove = expiry == Some(Ok(()));
        return Plan {
            // An operation that ended at its first reconcile has no labels yet, and users find operations by labels.
            labels: labels.filter(|_| !remove),
            status: seen.resumed(),
            remove,
            again: expiry.and_then(Result::err),
            ..Plan::default()
        };
    }
    let plan = match (state(operation), machine) {
        // An operation with a state of a later version was taken by an executor of that version.
        (Some(OperationState::InProgress | OperationState::Unknown), _) => seen.in_progress(),
        // Its executor has released it, which restarts no time.
        _ if seen.since.taken.is_some() => seen.in_progress(),
        (_, None) => seen.homeless(),
        (_, Some(machine)) => seen.pending(machine),
    };
    Plan { labels, ..plan }
}

/// Returns all labels of this controller if the operation lacks one of them (O5).
fn missing_labels(seen: &Seen<'_>) -> Option<BTreeMap<String, String>> {
    let operation = seen.operation;
    let mut labels = BTreeMap::new();
    let mut put = |key: &str, value: String| labels.insert(key.to_owned(), value);
    if let Some(reference) = &operation.spec.machine_ref {
        put(MACHINE, reference.name.to_string());
    }
    // The site of a Machine that is gone, or of an operation that has ended, stays.
    let present = seen.machine.map(|machine| machine.spec.site.to_string());
    let recorded = operation.labels().get(SITE).cloned();
    let site = if is_finished(operation) { recorded.or(present) } else { present.or(recorded) };
    if let Some(site) = site {
        put(SITE, site);
    }
    if let Some((name, uid)) = parent_of(operation) {
        put(PARENT, parent_label(name, uid));
    }
    let is_labeled = labels.iter().all(|(key, value)| operation.labels().get(key) == Some(value));
    (!is_labeled).then_some(labels)
}

impl Seen<'_> {
    fn in_progress(&self) -> Plan {
        let (operation, now) = (self.operation, self.now);
        let said = operation.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0);
        let start = self.since.reckon(said, created(operation, now));
        // Its time never restarts. Otherwise the host that carries it out could hold its parent forever.
        let start = self.since.taken.map_or(start, |taken| taken.min(start));
        let left = left(later(later(start, done_within(&operation.spec)), LEFT_TO_EXECUTOR), now);
        if left.is_zero() {
            return self.timed_out();
        }
        let plan = self.repave();
        Plan { status: plan.status.or_else(|| self.resumed()), again: Some(left), ..plan }
    }

    fn timed_out(&self) -> Plan {
        let status = self.operation.status.as_ref();
        let executor = status.and_then(|status| status.executor.as_deref()).unwrap_or("an unknown executor");
        let message = format!(
            "{executor} started the operation and did not report its end within {} s; check the machine. {}",
            done_within(&self.operation.spec).as_secs(),
            executors(self.machine)
        );
        self.failed(FanOutOutcome::TimedOut, &message)
    }

    /// Plans the deletion of the Node, which the agent must not do (O8).
    fn repave(&self) -> Plan {
        let (operation, Some(machine)) = (self.operation, self.machine) else { return Plan::default() };
        let allows = operation.spec.operation_name == "applyConfiguration"
            && operation.spec.parameters.get("disruption").is_some_and(|value| value == "allow");
        if !allows || !operation.is_true(condition_type::DRAINED) || machine.spec.paused {
            return Plan::default();
        }
        if let Some(by) = claimant(machine) {
            let name = machine.name_any();
            let message = format!("{by} has claimed Machine {name}; only the claimant may repave it");
            return self.failed(FanOutOutcome::Claimed, &message);
        }
        Plan { repave: true, ..Plan::default() }
    }

    /// Returns the plan for an operation without a Machine.
    fn homeless(&self) -> Plan {
        let left = left(later(created(self.operation, self.now), MACHINE_GRACE_PERIOD), self.now);
        if left.is_zero() {
            let machine = self.operation.spec.machine_ref.as_ref();
            let name = machine.map_or("", |machine| machine.name.as_str());
            let message = format!("Machine {name} does not exist; create it, then create a new operation");
            return self.failed(FanOutOutcome::MachineNotFound, &message);
        }
        Plan { again: Some(left), ..self.begin() }
    }

    fn pending(&self, machine: &Machine) -> Plan {
        let (operation, now) = (self.operation, self.now);
        if machine.spec.paused {
            let message = "Machine is paused; the start timeout begins when it is unpaused";
            let mut status = self.ours(OperationState::Pending);
            self.suspend(&mut status, SuspendedReason::MachinePaused, message);
            return Plan { status: (!self.is_suspended()).then_some(status), ..Plan::default() };
        }
        if self.is_suspended() {
            let mut status = self.ours(OperationState::Pending);
            self.suspend(&mut status, SuspendedReason::Resumed, "Machine is no longer paused");
            return Plan { status: Some(status), ..Plan::default() };
        }
        // If the start of the state was seen, the end of the pause was seen, too.
        let mut since = self.since.seen;
        if !self.since.came {
            let made = created(operation, now);
            let free = self.suspended().map_or(made, |suspended| suspended.last_transition_time.0);
            since = later(made.max(free), self.since.leap).min(since);
        }
        for (other, other_since) in self.others.iter().filter(|(other, _)| self.goes_before(other)) {
            let status = other.status.as_ref();
            match state(other) {
                // The end of the other operation enqueues this one.
                Some(OperationState::InProgress | OperationState::Unknown) => return self.begin(),
                Some(OperationState::Complete | OperationState::Failed) => {
                    let said = status.and_then(|status| status.completion_time.as_ref()).map(|time| time.0);
                    since = since.max(other_since.reckon(said, created(other, now)));
                }
                Some(OperationState::Pending) | None => {}
            }
        }
        let limit = taken_within(&operation.spec);
        let left = left(later(since.min(now), limit), now);
        if left.is_zero() {
            let name = &operation.spec.operation_name;
            let message = format!(
                "no executor started {name} within {} s. {}",
                limit.as_secs(),
                executors(Some(machine))
            );
            return self.failed(FanOutOutcome::NoExecutor, &message);
        }
        Plan { again: Some(left), ..self.begin() }
    }

    /// Returns true if the other operation has the same executor, which runs one at a time, and runs first.
    fn goes_before(&self, other: &MachineOperation) -> bool {
        let group = |operation: &MachineOperation| {
            let name = operation.spec.operation_name.as_str();
            (POWER_OPERATIONS.contains(&name), AGENT_OPERATIONS.contains(&name))
        };
        let is_other = other.metadata.uid != self.operation.metadata.uid;
        is_other && group(other) == group(self.operation) && group(other) != (false, false)
    }

    fn suspended(&self) -> Option<&Condition> {
        self.operation.condition(condition_type::SUSPENDED)
    }

    /// Writes state `Pending`, if there is no state yet.
    fn begin(&self) -> Plan {
        let status = state(self.operation).is_none().then(|| self.ours(OperationState::Pending));
        Plan { status, ..Plan::default() }
    }

    fn suspend(&self, status: &mut MachineOperationStatus, reason: SuspendedReason, message: &str) {
        let is_suspended = reason == SuspendedReason::MachinePaused;
        let generation = self.operation.metadata.generation;
        set_condition(status, is_suspended, reason, message, generation, self.now);
    }

    fn is_suspended(&self) -> bool {
        self.operation.is_true(condition_type::SUSPENDED)
    }

    /// Status with `Suspended` False, if it is True. The executor takes an operation without waiting for the controller's report that its Machine
    /// is no longer paused.
    fn resumed(&self) -> Option<MachineOperationStatus> {
        let suspended = self.suspended().filter(|_| self.is_suspended())?.clone();
        let mut status =
            MachineOperationStatus { conditions: vec![suspended], ..MachineOperationStatus::default() };
        self.suspend(&mut status, SuspendedReason::Resumed, RESUMED);
        Some(status)
    }

    /// Returns the end with all conditions. Conditions of other programs stay.
    fn failed(&self, reason: FanOutOutcome, message: &str) -> Plan {
        let conditions = self.operation.conditions().to_vec();
        let mut before = MachineOperationStatus { conditions, ..MachineOperationStatus::default() };
        if self.is_suspended() {
            self.suspend(&mut before, SuspendedReason::Resumed, RESUMED);
        }
        let end = End { complete: false, reason: reason.as_str(), message };
        let status = ended(before, end, self.operation.metadata.generation, self.now);
        Plan { status: Some(status), ..Plan::default() }
    }

    /// Returns the status fields that this controller owns, including those that stay.
    fn ours(&self, state: OperationState) -> MachineOperationStatus {
        MachineOperationStatus {
            state: Some(state),
            conditions: self.suspended().cloned().into_iter().collect(),
            ..MachineOperationStatus::default()
        }
    }
}

/// Returns the text that names the executors of this Machine's operations.
fn executors(machine: Option<&Machine>) -> String {
    let Some(machine) = machine else { return "The Machine does not exist".to_owned() };
    let status = machine.status.as_ref();
    let agent = status.and_then(|status| status.agent.as_ref());
    let agent_operations = AGENT_OPERATIONS.join(", ");
    let agent = match agent.map(|agent| agent.last_heartbeat_time.as_ref()) {
        Some(Some(heard)) => format!("bedplate-agent ({agent_operations}), last heartbeat at {}", heard.0),
        Some(None) => format!("bedplate-agent ({agent_operations})"),
        None => format!("no bedplate-agent yet ({agent_operations})"),
    };
    let power = POWER_OPERATIONS.join(", ");
    let pxed = match (&machine.spec.bmc, machine.spec.provider.as_str()) {
        (Some(_), _) => format!("pxed of site {} ({power})", machine.spec.site),
        (None, PROVIDER_PXE | PROVIDER_MANUAL) => {
            format!("no program for {power}, because spec.bmc is not set")
        }
        (None, provider) => format!(
            "for {power} the controller of provider {provider}, if it supports them, because spec.bmc is not set"
        ),
    };
    format!("Executors of Machine {}: {agent}; {pxed}", machine.name_any())
}

fn created(operation: &MachineOperation, now: Timestamp) -> Timestamp {
    operation.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0)
}

/// Returns the remaining time. Zero: the time has expired.
fn left(until: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
