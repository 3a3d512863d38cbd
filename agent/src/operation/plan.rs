//! Selects the next operation and its next step: from its object, the agent's
//! own note, and the kernel's boot ID (docs/design/rules.md, O1, O7).
//!
//! ```text
//!               object           note             boot ID        next
//!   any         Pending          none             -              take (fail an invalid one, wait while paused)
//!   any         unfinished       finished         -              write that result
//!   reboot      InProgress       -                another        uncordon what the agent cordoned, Complete
//!   reboot      InProgress       none             the same       drain, start: nothing was requested yet
//!   reboot      InProgress       started          the same       wait for the end of this boot; never request it again
//!   shutdown    as reboot; Complete once it was accepted
//!   the others  InProgress       none             the same       start
//!   the others  InProgress       started          the same       inspect the result; never repeat the act
//!   the others  InProgress       -                another        Failed: the result is unknown, or it was interrupted
//! ```
//! A Pending object whose note has a start comes from a restored API server: the note counts.
//!
//! Pure: no clock, no file, no socket. Caller: `run`.

use std::sync::Arc;

use bedplate_api::operation::{MachineOperation, OperationState};
use bedplate_api::reason::operation::{AgentOutcome, PendingOperationReason};
use jiff::{SignedDuration, Timestamp};

use super::guard;
use super::journal::file::Note;
use super::parameters::{Kind, Order, Task};
use super::progress::{End, executor, is_cordoned, is_finished, taken_of};

/// Time after which a running host proves that a killed agent did not send its request for a reboot.
const GOES_DOWN: SignedDuration = SignedDuration::from_secs(120);
/// Time for uncordoning after the deadline, before another writer ends the operation.
const UNCORDON_TIMEOUT: SignedDuration = SignedDuration::from_secs(20);

/// Permission of the Machine for operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Operations are carried out.
    Ready,
    /// The Machine is paused: no operation starts.
    Paused,
    /// The Machine is being deleted: no operation starts.
    Deleting,
    /// The Machine is unknown, missing, or not the one that this host enrolled
    /// for: its operations are ignored.
    Unknown,
}

/// Input of the decision about an operation.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// Now.
    pub now: Timestamp,
    /// Our Machine's name.
    pub machine: &'a str,
    /// The kernel's boot id.
    pub boot_id: &'a str,
    /// Permission of the Machine.
    pub standing: Standing,
    /// The operation.
    pub operation: &'a MachineOperation,
    /// Our note on it.
    pub note: Option<&'a Note>,
    /// True if this process requested the end of this boot, and systemd accepted it.
    pub accepted: bool,
}

/// Next step of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The operation is not for this agent, or not now.
    Ignore,
    /// Report why the operation does not start.
    Wait {
        /// Reason for the status.
        reason: PendingOperationReason,
        /// Human-readable message.
        message: String,
    },
    /// Write that this agent carries it out.
    Take,
    /// Prepare it, note its start, carry it out; until this deadline.
    Begin(Order, Timestamp),
    /// It was started: inspect its result; until this deadline.
    Inspect(Order, Timestamp),
    /// Wait until this time, or until the host has gone down.
    AwaitEnd(Timestamp),
    /// Write how it ended.
    Finish(Finish),
}

/// End of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// Result of the operation.
    pub end: End,
    /// If this operation cordoned the Node: deadline for uncordoning it before the end is written.
    pub uncordon: Option<Timestamp>,
}

impl Finish {
    /// Returns an end without further steps.
    pub fn plain(end: End) -> Self {
        Self { end, uncordon: None }
    }
}

/// Returns the deadline for uncordoning a Node after an operation.
pub(crate) fn cleaned_until(deadline: Timestamp) -> Timestamp {
    later(deadline, UNCORDON_TIMEOUT)
}

/// Returns true if an operation is for this agent and not finished.
pub fn is_ours(operation: &MachineOperation, machine: &str) -> bool {
    let (spec, status) = (&operation.spec, operation.status.as_ref());
    let named = spec.machine_ref.as_ref().is_some_and(|reference| reference.name.as_str() == machine);
    let known = Kind::of(&spec.operation_name).is_some();
    let by = status.and_then(|status| status.executor.as_deref());
    let taken = match status.and_then(|status| status.state) {
        None | Some(OperationState::Pending) => true,
        Some(OperationState::InProgress) => by == Some(executor(machine).as_str()),
        Some(OperationState::Complete | OperationState::Failed | OperationState::Unknown) => false,
    };
    named && spec.machine_selector.is_none() && known && taken
}

/// Returns true if the operation was taken.
pub fn is_started(operation: &MachineOperation) -> bool {
    operation.status.as_ref().and_then(|status| status.state) == Some(OperationState::InProgress)
}

/// Returns the current operation: one that was taken, otherwise the oldest.
pub fn choose<'a>(
    operations: &'a [Arc<MachineOperation>],
    machine: &str,
    standing: Standing,
) -> Option<&'a Arc<MachineOperation>> {
    let may_begin = |operation: &MachineOperation| match standing {
        Standing::Ready | Standing::Deleting => true,
        Standing::Paused => is_started(operation),
        // An operation in progress under this agent's name may belong to another
        // host, which is the Machine by now.
        Standing::Unknown => false,
    };
    let ours = operations.iter().filter(|operation| is_ours(operation, machine) && may_begin(operation));
    ours.min_by_key(|operation| {
        let created = operation.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (!is_started(operation), created, operation.metadata.name.clone())
    })
}

/// Returns true if the operation may run while another one drains.
pub(crate) fn runs_concurrently(operation: &MachineOperation) -> bool {
    match Kind::of(&operation.spec.operation_name) {
        Some(Kind::RestartService | Kind::PacketCapture) => true,
        Some(Kind::Reboot | Kind::Shutdown | Kind::ApplyConfiguration) | None => false,
    }
}

/// Returns the operation that precedes one that waits for the node. It may be the repair that the node needs.
pub(crate) fn overtaking<'a>(
    operations: &'a [Arc<MachineOperation>],
    machine: &str,
    standing: Standing,
    waiting: &MachineOperation,
) -> Option<&'a Arc<MachineOperation>> {
    let kind = |operation: &MachineOperation| Kind::of(&operation.spec.operation_name);
    if standing != Standing::Ready || kind(waiting) != Some(Kind::ApplyConfiguration) {
        return None;
    }
    let before = |operation: &&Arc<MachineOperation>| match kind(operation) {
        Some(Kind::Reboot | Kind::Shutdown | Kind::RestartService) => is_ours(operation, machine),
        Some(Kind::ApplyConfiguration | Kind::PacketCapture) | None => false,
    };
    operations.iter().filter(before).min_by_key(|operation| {
        let created = operation.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (created, operation.metadata.name.clone())
    })
}

/// Returns the next step of this operation.
pub fn next(observed: &Observed<'_>) -> Next {
    let Observed { now, operation, note, .. } = *observed;
    let Some(kind) = Kind::of(&operation.spec.operation_name) else { return Next::Ignore };
    if !is_ours(operation, observed.machine) || is_finished(operation.status.as_ref()) {
        return Next::Ignore;
    }
    if let Some(end) = note.and_then(|note| note.end.clone()) {
        return Next::Finish(Finish::plain(end));
    }
    let taken = taken_of(operation.status.as_ref(), now);
    if taken.is_none()
        && note.is_none()
        && let Some(next) = not_started(observed)
    {
        return next;
    }
    let order = match Order::parse(kind, &operation.spec) {
        Ok(order) => order,
        Err(problem) => return failed(AgentOutcome::InvalidParameters, problem),
    };
    if let Task::RestartService { unit, place } = &order.task
        && let Some(why) = guard::refusal(unit, *place)
    {
        return failed(AgentOutcome::Refused, why);
    }
    let (start, noted) = match (&taken, note) {
        (Some(taken), note) => {
            (taken.start, taken.boot_id.as_deref().or(note.map(|note| note.boot_id.as_str())))
        }
        (None, Some(note)) => (note.started, Some(note.boot_id.as_str())),
        (None, None) => return Next::Take,
    };
    let Some(noted) = noted else {
        let message = "this agent has accepted the operation, but neither its status nor the agent's note \
                       has the boot ID, so the result is unknown; check the host, then create a new \
                       operation";
        return failed(AgentOutcome::OutcomeUnknown, message);
    };
    let case =
        Case { observed, deadline: later(start, order.timeout), order, rebooted: noted != observed.boot_id };
    match &case.order.task {
        Task::Reboot(_) | Task::Shutdown(_) => case.power(),
        Task::RestartService { .. } | Task::PacketCapture(_) => case.once(),
        Task::ApplyConfiguration { .. } => case.again(),
    }
}

fn not_started(observed: &Observed<'_>) -> Option<Next> {
    if observed.operation.metadata.deletion_timestamp.is_some() {
        return Some(Next::Ignore);
    }
    match observed.standing {
        Standing::Ready => None,
        Standing::Unknown => Some(Next::Ignore),
        Standing::Deleting => Some(failed(AgentOutcome::MachineDeleting, "the Machine is being deleted")),
        Standing::Paused => {
            let message = "the Machine is paused; set spec.paused to false to start the operation".to_owned();
            let status = observed.operation.status.as_ref();
            let reported = status.and_then(|status| status.reason.as_ref());
            let reported = reported.is_some_and(|reason| *reason == PendingOperationReason::MachinePaused);
            Some(if reported {
                Next::Ignore
            } else {
                Next::Wait { reason: PendingOperationReason::MachinePaused, message }
            })
        }
    }
}

struct Case<'a> {
    observed: &'a Observed<'a>,
    order: Order,
    deadline: Timestamp,
    rebooted: bool,
}

impl Case<'_> {
    /// Reboot and shutdown.
    fn power(&self) -> Next {
        let Observed { now, note, accepted, boot_id, .. } = *self.observed;
        let reboots = matches!(self.order.task, Task::Reboot(_));
        if self.rebooted {
            let end = if reboots {
                End::done(AgentOutcome::Rebooted, format!("the host has rebooted; its boot ID is {boot_id}"))
            } else {
                End::done(
                    AgentOutcome::ShutDown,
                    format!("the host shut down and has booted again; its boot ID is {boot_id}"),
                )
            };
            // After a shutdown, the user who switches the host on again decides when to uncordon the Node.
            let uncordon = self.uncordon().filter(|_| reboots);
            return Next::Finish(Finish { end, uncordon });
        }
        let Some(note) = note else {
            return if now < self.deadline {
                self.begin()
            } else {
                self.late(
                    "the operation was not started \
                 in time",
                )
            };
        };
        if accepted && !reboots {
            let message = "the host is shutting down; it stays off until a user switches it on";
            return Next::Finish(Finish::plain(End::done(AgentOutcome::ShutDown, message)));
        }
        let gives_up =
            if accepted { self.deadline } else { later(note.started, GOES_DOWN).min(self.deadline) };
        if now < gives_up {
            return Next::AwaitEnd(gives_up);
        }
        if accepted || now >= self.deadline {
            return self.late(
                "the host accepted the request but still runs; see `systemctl list-jobs` on \
                              the host",
            );
        }
        let message = "the agent was interrupted during the request, and the host still runs; the request \
                       is not repeated; create a new operation";
        self.fail(AgentOutcome::Interrupted, message.to_owned())
    }

    /// Plans an act that must run only once and has a result to inspect.
    fn once(&self) -> Next {
        let Observed { now, note, .. } = *self.observed;
        match (self.rebooted, note) {
            (true, _) => {
                let message = "the host rebooted during the operation, so the result is unknown; create a new \
                     operation";
                self.fail(AgentOutcome::HostRebooted, message.to_owned())
            }
            (false, Some(_)) => Next::Inspect(self.order.clone(), self.deadline),
            (false, None) if now >= self.deadline => self.late("the operation was not started in time"),
            (false, None) => self.begin(),
        }
    }

    /// Plans an act that may be repeated.
    fn again(&self) -> Next {
        if self.observed.now >= self.deadline {
            return self.late(
                "see the Machine's status for the applied version, and its condition Paved for the cause",
            );
        }
        self.begin()
    }

    fn begin(&self) -> Next {
        Next::Begin(self.order.clone(), self.deadline)
    }

    /// Returns the deadline for uncordoning, if the Node may have been cordoned for this operation.
    fn uncordon(&self) -> Option<Timestamp> {
        is_cordoned(self.observed.operation.status.as_ref()).then(|| cleaned_until(self.deadline))
    }

    fn late(&self, why: &str) -> Next {
        self.fail(
            AgentOutcome::TimedOut,
            format!("not done within {} s: {why}", self.order.timeout.as_secs()),
        )
    }

    fn fail(&self, reason: AgentOutcome, message: String) -> Next {
        let uncordon = self.uncordon();
        Next::Finish(Finish { end: End::failed(reason, message), uncordon })
    }
}

fn failed(reason: AgentOutcome, message: impl Into<String>) -> Next {
    Next::Finish(Finish::plain(End::failed(reason, message)))
}

/// Returns the saturating sum of a time and a duration.
pub(super) fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::operation::progress::{ended, taken};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[allow(clippy::needless_pass_by_value, reason = "rows of tables are written in place")]
    fn operation(name: &str, parameters: Value) -> MachineOperation {
        let object = json!({"apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation",
            "metadata": {"name": "o", "uid": "u", "creationTimestamp": at(0).to_string()},
            "spec": {"machineRef": {"name": "a"}, "operationName": name, "parameters": parameters}});
        serde_json::from_value(object).unwrap()
    }

    fn in_progress(mut operation: MachineOperation, boot: &str) -> MachineOperation {
        operation.status = Some(taken(None, "bedplate-agent/a", boot, at(0)));
        operation
    }

    fn note(boot: &str, end: Option<End>) -> Note {
        Note { uid: "u".into(), name: "o".into(), boot_id: boot.into(), started: at(10), end }
    }

    /// Decides in the boot `b0`.
    fn decide(operation: &MachineOperation, note: Option<&Note>, now: i64) -> Next {
        decide_as(operation, note, now, Standing::Ready, false)
    }

    fn decide_as(
        operation: &MachineOperation,
        note: Option<&Note>,
        now: i64,
        standing: Standing,
        accepted: bool,
    ) -> Next {
        next(&Observed { now: at(now), machine: "a", boot_id: "b0", standing, operation, note, accepted })
    }

    fn reason(next: Next) -> (bool, String) {
        match next {
            Next::Finish(finish) => (finish.end.complete, finish.end.reason),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn o1_a_new_operation_is_taken_before_anything_is_done() {
        for (name, parameters) in [
            ("reboot", json!({})),
            ("shutdown", json!({"drain": "true"})),
            ("restartService", json!({"service": "kubelet"})),
            ("packetCapture", json!({"interface": "lo"})),
            ("applyConfiguration", json!({})),
        ] {
            assert_eq!(decide(&operation(name, parameters), None, 1), Next::Take, "{name}");
        }
    }

    #[test]
    fn o7_what_is_anothers_is_left_alone() {
        let mut other = operation("reboot", json!({}));
        other.spec.machine_ref = Some(serde_json::from_value(json!({"name": "b"})).unwrap());
        assert_eq!(decide(&other, None, 1), Next::Ignore);
        for name in ["powerCycle", "theirs"] {
            assert_eq!(decide(&operation(name, json!({})), None, 1), Next::Ignore, "{name}");
        }
        let mut parent = operation("reboot", json!({}));
        parent.spec.machine_ref = None;
        parent.spec.machine_selector =
            Some(serde_json::from_value(json!({"matchLabels": {"x": "y"}})).unwrap());
        assert_eq!(decide(&parent, None, 1), Next::Ignore);
        let mut taken_by_other = in_progress(operation("reboot", json!({})), "b0");
        taken_by_other.status.as_mut().unwrap().executor = Some("another agent".to_owned());
        assert_eq!(decide(&taken_by_other, None, 1), Next::Ignore);
    }

    #[test]
    fn o1_what_has_ended_is_left_alone() {
        let mut over = in_progress(operation("reboot", json!({})), "b1");
        over.status = Some(ended(&over, &End::failed(AgentOutcome::TimedOut, "late"), "x", at(1)));
        assert_eq!(decide(&over, None, 2), Next::Ignore);
    }

    #[test]
    fn o6_wrong_parameters_and_refused_services_fail_before_they_are_taken() {
        let wrong = operation("reboot", json!({"why": "x"}));
        assert_eq!(reason(decide(&wrong, None, 1)), (false, "InvalidParameters".to_owned()));
        let own = operation("restartService", json!({"service": "dbus", "in": "host"}));
        assert_eq!(reason(decide(&own, None, 1)), (false, "Refused".to_owned()));
    }

    #[test]
    fn paused_machine_starts_no_operation_and_continues_a_started_one() {
        let mut new = operation("reboot", json!({}));
        let Next::Wait { reason, message } = decide_as(&new, None, 1, Standing::Paused, false) else {
            panic!()
        };
        assert_eq!(reason, PendingOperationReason::MachinePaused);
        new.status = Some(crate::operation::progress::waits(None, reason, &message));
        assert_eq!(decide_as(&new, None, 1, Standing::Paused, false), Next::Ignore);
        assert_eq!(decide_as(&new, None, 1, Standing::Ready, false), Next::Take);
        let started = in_progress(operation("reboot", json!({})), "b0");
        assert!(matches!(decide_as(&started, None, 1, Standing::Paused, false), Next::Begin(..)));
        let list = [Arc::new(new.clone()), Arc::new(started.clone())];
        assert_eq!(choose(&list, "a", Standing::Paused).map(|one| is_started(one)), Some(true));
        assert_eq!(choose(&list[..1], "a", Standing::Paused), None);
        assert_eq!(decide_as(&new, None, 1, Standing::Unknown, false), Next::Ignore);
        assert!(!super::tests::reason(decide_as(&new, None, 1, Standing::Deleting, false)).0);
    }

    #[test]
    fn o7_replaced_host_ignores_the_operations_of_its_successor() {
        let of_another = [Arc::new(in_progress(operation("reboot", json!({"drain": "true"})), "b1"))];
        assert_eq!(choose(&of_another, "a", Standing::Unknown), None);
        assert!(choose(&of_another, "a", Standing::Ready).is_some());
    }

    #[test]
    fn a_reboot_is_not_held_up_by_a_configuration_that_waits_for_the_node() {
        let waiting = in_progress(operation("applyConfiguration", json!({})), "b0");
        let list = ["packetCapture", "reboot", "applyConfiguration"]
            .map(|kind| Arc::new(operation(kind, json!({}))))
            .to_vec();
        let before = |waiting, standing| overtaking(&list, "a", standing, waiting).cloned();
        assert_eq!(before(&waiting, Standing::Ready), Some(Arc::clone(&list[1])));
        assert_eq!(before(&waiting, Standing::Paused), None);
        let draining = in_progress(operation("reboot", json!({})), "b0");
        assert_eq!(before(&draining, Standing::Ready), None);
    }

    #[test]
    fn o1_another_boot_id_proves_a_reboot_however_late_and_whatever_is_noted() {
        let one = in_progress(operation("reboot", json!({})), "b1");
        for note in [None, Some(note("b1", None))] {
            for now in [5, 100_000] {
                assert_eq!(reason(decide(&one, note.as_ref(), now)), (true, "Rebooted".to_owned()));
            }
        }
        let mut drained = in_progress(operation("reboot", json!({"drain": "true"})), "b1");
        let Next::Finish(finish) = decide(&drained, None, 5) else { panic!() };
        assert_eq!(finish.uncordon, None, "there was no node to cordon");
        drained.status = Some(crate::operation::progress::cordoned(&drained, at(1)));
        let Next::Finish(finish) = decide(&drained, None, 5) else { panic!() };
        assert_eq!(finish.uncordon, Some(at(1520)));
    }

    #[test]
    fn o1_started_reboot_is_never_started_again_in_the_same_boot() {
        let one = in_progress(operation("reboot", json!({})), "b0");
        assert!(matches!(decide(&one, None, 899), Next::Begin(..)));
        let started = note("b0", None);
        assert_eq!(decide(&one, Some(&started), 20), Next::AwaitEnd(at(130)), "killed during the request");
        assert_eq!(reason(decide(&one, Some(&started), 130)), (false, "Interrupted".to_owned()));
        let asked = |now| decide_as(&one, Some(&started), now, Standing::Ready, true);
        assert_eq!(asked(200), Next::AwaitEnd(at(900)), "it was accepted");
        assert_eq!(reason(asked(900)), (false, "TimedOut".to_owned()));
        assert_eq!(reason(decide(&one, None, 900)), (false, "TimedOut".to_owned()));
        let restored = operation("reboot", json!({}));
        assert_eq!(decide(&restored, Some(&started), 20), Next::AwaitEnd(at(130)), "restored from a backup");
        let done = note("b1", Some(End::done(AgentOutcome::Rebooted, "x")));
        assert_eq!(reason(decide(&restored, Some(&done), 20)), (true, "Rebooted".to_owned()));
    }

    #[test]
    fn o1_shutdown_is_complete_once_accepted_or_after_another_boot() {
        let one = in_progress(operation("shutdown", json!({})), "b0");
        let started = note("b0", None);
        let accepted = decide_as(&one, Some(&started), 20, Standing::Ready, true);
        assert_eq!(reason(accepted), (true, "ShutDown".to_owned()));
        assert_eq!(decide(&one, Some(&started), 20), Next::AwaitEnd(at(130)));
        let after = in_progress(operation("shutdown", json!({"drain": "true"})), "b1");
        assert_eq!(decide(&after, None, 20), decide(&after, None, 99_999));
        let Next::Finish(finish) = decide(&after, None, 20) else { panic!() };
        assert_eq!((finish.end.complete, finish.uncordon), (true, None));
    }

    #[test]
    fn o1_what_leaves_traces_is_looked_at_and_not_done_again() {
        for (name, parameters) in
            [("restartService", json!({"service": "kubelet"})), ("packetCapture", json!({"interface": "lo"}))]
        {
            let here = in_progress(operation(name, parameters.clone()), "b0");
            assert!(matches!(decide(&here, None, 20), Next::Begin(..)), "{name}");
            assert!(matches!(decide(&here, Some(&note("b0", None)), 20), Next::Inspect(..)), "{name}");
            let rebooted = in_progress(operation(name, parameters), "b1");
            assert_eq!(reason(decide(&rebooted, Some(&note("b1", None)), 20)).1, "HostRebooted");
            assert_eq!(reason(decide(&rebooted, None, 20)).1, "HostRebooted", "notes in memory are gone");
        }
    }

    #[test]
    fn o8_applying_goes_on_in_another_boot() {
        let one = in_progress(operation("applyConfiguration", json!({})), "b1");
        assert!(matches!(decide(&one, None, 20), Next::Begin(..)));
        assert_eq!(reason(decide(&one, None, 300)).1, "TimedOut");
    }

    #[test]
    fn o1_taken_object_without_a_boot_id_has_an_unknown_outcome() {
        let mut one = in_progress(operation("reboot", json!({})), "b0");
        one.status.as_mut().unwrap().boot_id = None;
        assert_eq!(reason(decide(&one, None, 20)), (false, "OutcomeUnknown".to_owned()));
        assert_eq!(decide(&one, Some(&note("b0", None)), 20), Next::AwaitEnd(at(130)));
    }

    #[test]
    fn operations_run_one_at_a_time_taken_first_then_oldest() {
        let mut list: Vec<MachineOperation> = Vec::new();
        for (name, created) in [("c", 2), ("b", 1), ("a", 1)] {
            let mut one = operation("reboot", json!({}));
            one.metadata.name = Some(name.to_owned());
            one.metadata.creation_timestamp = Some(bedplate_api::machine::Time(at(created)));
            list.push(one);
        }
        let chosen = |list: &[MachineOperation]| {
            let list: Vec<_> = list.iter().cloned().map(Arc::new).collect();
            choose(&list, "a", Standing::Ready).and_then(|one| one.metadata.name.clone())
        };
        assert_eq!(chosen(&list).as_deref(), Some("a"));
        list[0] = in_progress(list[0].clone(), "b0");
        assert_eq!(chosen(&list).as_deref(), Some("c"));
    }
}
