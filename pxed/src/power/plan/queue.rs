//! Which operations are pxed's, for which Machine, in which order, and what is said of those that no worker can take
//! (docs/design/rules.md, O3, O4, O7).
//!
//! Pure: no clock, no file, no socket. Caller: `supervisor`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bedplate_api::id::MachineName;
use bedplate_api::machine::{Machine, PROVIDER_MANUAL, PROVIDER_PXE};
use bedplate_api::operation::{MachineOperationStatus, OperationState};
use bedplate_api::reason::operation::{PendingOperationReason, PowerOutcome};
use jiff::Timestamp;

use super::operation::End;
use super::parameters::Kind;
use crate::power::progress::{self, Ended, ShutDown};
use crate::power::{Operation, OperationKey, OperationUpdate, Origin};

/// Message of an operation while its Machine is paused.
const PAUSED: &str = "the Machine is paused; the operation starts when spec.paused is removed or false";

/// Oldest first.
type Place = (Option<Timestamp>, OperationKey);

/// Operations that are pxed's and have not ended, and of each Machine the newest that has.
#[derive(Debug)]
pub struct Queue {
    /// `pxed/<site>/`.
    executors: String,
    by_machine: HashMap<MachineName, BTreeMap<Place, Operation>>,
    whose: HashMap<OperationKey, (MachineName, Place)>,
    ended: HashMap<MachineName, Ended>,
    /// Newest shutdown of each Machine.
    shut_down: HashMap<MachineName, ShutDown>,
    /// Machines whose shutdown is still in progress.
    shutting_down: HashMap<OperationKey, MachineName>,
}

impl Queue {
    /// None yet; `instance` is `pxed/<site>/<name>`.
    pub fn new(instance: &str) -> Self {
        let site = instance.rsplit_once('/').map_or(instance, |(site, _)| site);
        Self {
            executors: format!("{site}/"),
            by_machine: HashMap::new(),
            whose: HashMap::new(),
            ended: HashMap::new(),
            shut_down: HashMap::new(),
            shutting_down: HashMap::new(),
        }
    }

    /// Takes over what has changed; whose operations have.
    pub fn take(&mut self, update: OperationUpdate) -> BTreeSet<MachineName> {
        match update {
            OperationUpdate::Set(operations) => {
                let mut touched: BTreeSet<_> = self.by_machine.keys().cloned().collect();
                touched.extend(self.shut_down.drain().map(|(machine, _)| machine));
                self.by_machine.clear();
                self.whose.clear();
                self.ended.clear();
                self.shutting_down.clear();
                touched.extend(operations.into_iter().filter_map(|operation| self.put(operation)));
                touched
            }
            OperationUpdate::Put(operation) => {
                let before = self.remove(&operation.key);
                self.put(operation).into_iter().chain(before).collect()
            }
            OperationUpdate::Gone(key) => self.remove(&key).into_iter().collect(),
        }
    }

    fn put(&mut self, operation: Operation) -> Option<MachineName> {
        let machine = operation.object.spec.machine_ref.as_ref()?.name.clone();
        if let Some(ended) = Ended::of(&operation.object, &self.executors)
            && self.ended.get(&machine).is_none_or(|newest| newest.at <= ended.at)
        {
            self.ended.insert(machine.clone(), ended);
        }
        if let Some(shut_down) = ShutDown::of(&operation) {
            self.put_shut_down(&machine, shut_down);
            return Some(machine);
        }
        if !self.is_ours(&operation) {
            return None;
        }
        let created = operation.object.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let place = (created, operation.key.clone());
        self.whose.insert(operation.key.clone(), (machine.clone(), place.clone()));
        self.by_machine.entry(machine.clone()).or_default().insert(place, operation);
        Some(machine)
    }

    fn put_shut_down(&mut self, machine: &MachineName, new: ShutDown) {
        let is_newest = |known: &ShutDown| known.key == new.key || known.is_before(&new);
        if self.shut_down.get(machine).is_none_or(is_newest) {
            if !new.complete {
                self.shutting_down.insert(new.key.clone(), machine.clone());
            }
            self.shut_down.insert(machine.clone(), new);
        }
    }

    fn remove(&mut self, key: &OperationKey) -> Option<MachineName> {
        // A shutdown that failed or was deleted holds nothing off. A complete one stays: its host is down.
        if let Some(machine) = self.shutting_down.remove(key) {
            if self.shut_down.get(&machine).is_some_and(|known| known.key == *key) {
                self.shut_down.remove(&machine);
            }
            return Some(machine);
        }
        let (machine, place) = self.whose.remove(key)?;
        if let Some(operations) = self.by_machine.get_mut(&machine) {
            operations.remove(&place);
            if operations.is_empty() {
                self.by_machine.remove(&machine);
            }
        }
        Some(machine)
    }

    fn is_ours(&self, operation: &Operation) -> bool {
        let object = &operation.object;
        let status = object.status.as_ref();
        let executor = status.and_then(|status| status.executor.as_deref());
        let state = match status.and_then(|status| status.state) {
            None | Some(OperationState::Pending) => true,
            Some(OperationState::InProgress) => executor.is_none_or(|by| by.starts_with(&self.executors)),
            Some(OperationState::Complete | OperationState::Failed | OperationState::Unknown) => false,
        };
        state && Kind::of(&object.spec.operation_name).is_some() && object.spec.machine_ref.is_some()
    }

    /// A Machine's, oldest first.
    pub fn of(&self, machine: &MachineName) -> impl Iterator<Item = &Operation> {
        self.by_machine.get(machine).into_iter().flat_map(BTreeMap::values)
    }

    /// The newest of a Machine that has ended.
    pub fn ended(&self, machine: &MachineName) -> Option<&Ended> {
        self.ended.get(machine)
    }

    /// Returns the newest shutdown of a Machine that its agent has taken and that has not failed.
    pub fn shut_down(&self, machine: &MachineName) -> Option<&ShutDown> {
        self.shut_down.get(machine)
    }

    /// Returns the Machines that have operations.
    pub fn machines(&self) -> impl Iterator<Item = MachineName> + '_ {
        self.by_machine.keys().cloned()
    }

    /// Returns the number of operations.
    pub fn depth(&self) -> u64 {
        u64::try_from(self.whose.len()).unwrap_or(u64::MAX)
    }
}

/// Status that is written to an operation that no worker takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The operation has failed.
    Failed(End),
    /// The operation waits.
    Waits {
        /// In one word.
        reason: PendingOperationReason,
        /// Text for users with the cause of the wait.
        message: String,
    },
}

impl Answer {
    /// Returns true if the answer ends the operation.
    pub const fn is_end(&self) -> bool {
        match self {
            Self::Failed(_) => true,
            Self::Waits { .. } => false,
        }
    }

    /// Status with the answer.
    pub fn status(&self, operation: &Operation, executor: &str, now: Timestamp) -> MachineOperationStatus {
        let before = operation.object.status.as_ref();
        match self {
            Self::Failed(end) => progress::ended(&operation.object, end, executor, now),
            Self::Waits { reason, message } => MachineOperationStatus {
                state: Some(OperationState::Pending),
                reason: Some(reason.as_str().to_owned()),
                message: Some(message.clone()),
                ..before.cloned().unwrap_or_default()
            },
        }
    }
}

/// Destination of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// The Machine's worker.
    Worker,
    /// Not an operation for this pxed.
    LeftAlone,
    /// It is answered.
    Answer(Answer),
}

/// Meaning of the absence of an operation's Machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// The Machine belongs to another site or does not exist yet: in a cluster other programs answer.
    Elsewhere,
    /// The Machine was deleted.
    Gone,
    /// Standalone: the manifest of the Machine may still be added.
    Pending,
    /// Standalone: the manifest was not added in time.
    Missing,
}

/// Decides which program takes this operation of the site. `absence` applies if there is no Machine.
pub fn route(operation: &Operation, machine: Option<&Machine>, absence: Absence, origin: Origin) -> Route {
    let status = operation.object.status.as_ref();
    let is_in_progress = status.and_then(|status| status.state) == Some(OperationState::InProgress);
    let Some(machine) = machine else { return route_without(operation, is_in_progress, absence) };
    if machine.spec.bmc.is_none() {
        // The program that provisions the machine may switch it, too. Manifests have no other program.
        if origin == Origin::Cluster
            && ![PROVIDER_PXE, PROVIDER_MANUAL].contains(&machine.spec.provider.as_str())
        {
            return Route::LeftAlone;
        }
        return failed(
            PowerOutcome::NotSupported,
            "the Machine has no BMC; add spec.bmc, or change its power by hand",
        );
    }
    if is_in_progress {
        return Route::Worker;
    }
    if machine.metadata.deletion_timestamp.is_some() {
        return failed(PowerOutcome::MachineDeleting, "the Machine is being deleted");
    }
    if machine.spec.paused {
        return waits(operation, PendingOperationReason::MachinePaused, PAUSED.to_owned());
    }
    Route::Worker
}

fn route_without(operation: &Operation, is_in_progress: bool, absence: Absence) -> Route {
    let machine = operation.object.spec.machine_ref.as_ref();
    let name = machine.map_or("", |machine| machine.name.as_str());
    match (absence, is_in_progress) {
        (Absence::Gone | Absence::Missing, true) => failed(
            PowerOutcome::MachineDeleting,
            "the Machine was deleted or moved to another site; the progress of the operation is not known",
        ),
        (Absence::Missing, false) => failed(
            PowerOutcome::MachineNotFound,
            &format!("this site has no Machine {name}; write its manifest, then create a new operation"),
        ),
        (Absence::Pending, false) => {
            let message = format!(
                "this site has no Machine {name}; the operation waits for its manifest, and fails after 30 s \
                 without it while no manifest has an error; create a new operation if another Machine is \
                 meant"
            );
            waits(operation, PendingOperationReason::MachineNotFound, message)
        }
        (Absence::Pending, true) | (Absence::Gone, false) | (Absence::Elsewhere, _) => Route::LeftAlone,
    }
}

fn failed(reason: PowerOutcome, message: &str) -> Route {
    Route::Answer(Answer::Failed(End { complete: false, reason, message: message.to_owned() }))
}

/// Said once.
fn waits(operation: &Operation, reason: PendingOperationReason, message: String) -> Route {
    let status = operation.object.status.as_ref();
    let is_reported = status.is_some_and(|status| {
        let is_pending = status.state == Some(OperationState::Pending);
        is_pending && status.reason.as_ref().is_some_and(|reported| *reported == reason)
    });
    if is_reported { Route::LeftAlone } else { Route::Answer(Answer::Waits { reason, message }) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "rows of tables are written in place")]
    fn operation(name: &str, created: i64, spec: Value, status: Value) -> Operation {
        let object = json!({"apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation",
            "metadata": {"name": name, "creationTimestamp": Timestamp::from_second(created).unwrap().to_string()},
            "spec": spec, "status": status});
        let key = OperationKey { name: name.to_owned(), uid: name.to_owned() };
        let object = Arc::new(serde_json::from_value(object).unwrap());
        Operation { key, object, version: "1".to_owned(), written: None }
    }

    fn power(name: &str, created: i64, status: Value) -> Operation {
        let spec = json!({"machineRef": {"name": "node1"}, "operationName": "powerCycle"});
        operation(name, created, spec, status)
    }

    fn names(queue: &Queue) -> Vec<&str> {
        queue.of(&"node1".parse().unwrap()).map(|operation| operation.key.name.as_str()).collect()
    }

    #[test]
    fn o7_operations_of_a_machine_are_taken_oldest_first_others_ignored() {
        let mut queue = Queue::new("pxed/site/a");
        let selector = json!({"machineSelector": {"matchLabels": {"a": "b"}}, "operationName": "powerOn"});
        let reboot = json!({"machineRef": {"name": "node1"}, "operationName": "reboot"});
        let touched = queue.take(OperationUpdate::Set(vec![
            power("b", 2, Value::Null),
            power("a", 2, json!({"state": "Pending"})),
            power("z", 1, json!({"state": "InProgress", "executor": "pxed/site/other"})),
            power("done", 1, json!({"state": "Complete"})),
            power("theirs", 1, json!({"state": "InProgress", "executor": "pxed/elsewhere/a"})),
            operation("many", 1, selector, Value::Null),
            operation("agent", 1, reboot, Value::Null),
        ]));
        assert_eq!(touched.len(), 1);
        assert_eq!(names(&queue), ["z", "a", "b"]);
        queue.take(OperationUpdate::Put(power("z", 1, json!({"state": "Failed"}))));
        queue.take(OperationUpdate::Gone(power("a", 2, Value::Null).key));
        assert_eq!((names(&queue), queue.depth()), (vec!["b"], 1));
    }

    #[test]
    fn the_newest_operation_that_this_site_has_ended_is_known() {
        let status = |state: &str, by: &str, second: i64| {
            let at = Timestamp::from_second(second).unwrap().to_string();
            json!({"state": state, "executor": by, "startTime": at, "completionTime": at, "message": "done"})
        };
        let mut queue = Queue::new("pxed/site/a");
        queue.take(OperationUpdate::Set(vec![
            power("new", 1, status("Complete", "pxed/site/b", 20)),
            power("old", 2, status("Complete", "pxed/site/a", 10)),
            power("theirs", 3, status("Complete", "pxed/elsewhere/a", 30)),
            power("never-begun", 4, status("Failed", "pxed/site/a", 40)),
        ]));
        let node = "node1".parse().unwrap();
        assert_eq!(queue.ended(&node).unwrap().message, "powerCycle by operation new: done");
        queue.take(OperationUpdate::Put(power("newer", 5, status("Complete", "pxed/site/a", 21))));
        assert_eq!(queue.ended(&node).unwrap().at, Timestamp::from_second(21).unwrap());
        queue.take(OperationUpdate::Set(Vec::new()));
        assert_eq!(queue.ended(&node), None);
    }

    #[test]
    fn o4_a_shutdown_counts_from_its_start_until_it_fails() {
        let shutdown = |name: &str, created: i64, state: &str, reason: &str, start: i64| {
            let spec = json!({"machineRef": {"name": "node1"}, "operationName": "shutdown"});
            let start = Timestamp::from_second(start).unwrap().to_string();
            operation(name, created, spec, json!({"state": state, "reason": reason, "startTime": start}))
        };
        let node: MachineName = "node1".parse().unwrap();
        let mut queue = Queue::new("pxed/site/a");
        let known = |queue: &Queue| {
            let since = |shut_down: &ShutDown| shut_down.since(Timestamp::from_second(1000).unwrap());
            queue
                .shut_down(&node)
                .map(|known| (known.key.name.clone(), since(known).as_second(), known.complete))
        };
        let found = |name: &str, since: i64, complete: bool| Some((name.to_owned(), since, complete));
        for (state, reason) in [("Pending", ""), ("Failed", "DrainTimedOut"), ("Complete", "Other")] {
            queue.take(OperationUpdate::Set(vec![shutdown("a", 1, state, reason, 5)]));
            assert_eq!(known(&queue), None, "{state} {reason}");
        }
        let touched = queue.take(OperationUpdate::Put(shutdown("a", 1, "InProgress", "InProgress", 5)));
        assert_eq!((touched.len(), known(&queue)), (1, found("a", 5, false)));
        let touched = queue.take(OperationUpdate::Put(shutdown("a", 1, "Failed", "TimedOut", 5)));
        assert_eq!((touched.len(), known(&queue)), (1, None));
        queue.take(OperationUpdate::Put(shutdown("b", 2, "InProgress", "InProgress", 6)));
        queue.take(OperationUpdate::Gone(shutdown("b", 2, "InProgress", "InProgress", 6).key));
        assert_eq!(known(&queue), None, "deleted while it drained");
        queue.take(OperationUpdate::Put(shutdown("c", 3, "Complete", "ShutDown", 7)));
        queue.take(OperationUpdate::Put(shutdown("old", 2, "Complete", "ShutDown", 6)));
        queue.take(OperationUpdate::Gone(shutdown("c", 3, "Complete", "ShutDown", 7).key));
        assert_eq!(known(&queue), found("c", 7, true), "the host is down although the object is deleted");
        // The clock of a host is behind, then ahead.
        queue.take(OperationUpdate::Set(vec![shutdown("d", 100, "Complete", "ShutDown", 9)]));
        assert_eq!(known(&queue), found("d", 100, true));
        queue.take(OperationUpdate::Set(vec![shutdown("e", 100, "Complete", "ShutDown", 99_999)]));
        assert_eq!(known(&queue), found("e", 1000, true));
        let late = shutdown("f", 100, "Complete", "ShutDown", 99_999);
        queue.take(OperationUpdate::Set(vec![Operation {
            written: Timestamp::from_second(150).ok(),
            ..late
        }]));
        assert_eq!(known(&queue), found("f", 150, true), "seen long after it was written");
        let before = queue.shut_down(&node).unwrap();
        assert!(before.is_of(None) && before.is_of(Timestamp::from_second(100).ok()));
        assert!(!before.is_of(Timestamp::from_second(101).ok()), "the Machine is newer than the operation");
    }

    fn routed(machine: Option<Value>, status: Value) -> Route {
        routed_where(Absence::Gone, machine, status)
    }

    fn routed_where(absence: Absence, machine: Option<Value>, status: Value) -> Route {
        let machine = machine.map(|spec| {
            let mut object = json!({"apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
                "metadata": {"name": "node1"},
                "spec": {"provider": "pxe", "pxe": {"interfaces": []}, "bmc": {"protocol": "Redfish",
                    "address": "bmc", "credentialsSecretRef": {"namespace": "n", "name": "s"}}}});
            for (key, value) in spec.as_object().unwrap() {
                object["spec"][key] = value.clone();
            }
            serde_json::from_value::<Machine>(object).unwrap()
        });
        route(&power("a", 1, status), machine.as_ref(), absence, Origin::Cluster)
    }

    #[test]
    fn o7_power_of_every_provider_with_a_bmc_is_pxeds() {
        let routed = |provider: &str, has_bmc: bool, origin: Origin| {
            let mut machine: Machine = serde_json::from_value(json!({"apiVersion": "bedplate.dev/v1alpha1",
                "kind": "Machine", "metadata": {"name": "node1"}, "spec": {"provider": provider,
                    "bmc": {"protocol": "Redfish", "address": "bmc",
                        "credentialsSecretRef": {"namespace": "n", "name": "s"}}}}))
            .unwrap();
            machine.spec.bmc = machine.spec.bmc.filter(|_| has_bmc);
            let route = route(&power("a", 1, Value::Null), Some(&machine), Absence::Elsewhere, origin);
            match route {
                Route::Answer(Answer::Failed(end)) => end.reason.as_str(),
                Route::Worker => "worker",
                Route::LeftAlone => "left alone",
                Route::Answer(Answer::Waits { .. }) => "waits",
            }
        };
        for provider in ["pxe", "manual", "azure"] {
            assert_eq!(routed(provider, true, Origin::Cluster), "worker", "{provider}");
        }
        assert_eq!(routed("manual", false, Origin::Cluster), "NotSupported");
        assert_eq!(routed("azure", false, Origin::Cluster), "left alone", "its own controller may switch it");
        assert_eq!(
            routed("azure", false, Origin::Manifests),
            "NotSupported",
            "without a cluster there is none"
        );
    }

    #[test]
    fn operations_that_no_worker_can_take_are_answered() {
        let in_progress = json!({"state": "InProgress"});
        let reason = |route| match route {
            Route::Answer(Answer::Failed(end)) => end.reason.as_str(),
            other => panic!("{other:?}"),
        };
        assert_eq!(reason(routed(Some(json!({"bmc": null})), Value::Null)), "NotSupported");
        assert_eq!(reason(routed(None, in_progress.clone())), "MachineDeleting");
        assert_eq!(routed(None, Value::Null), Route::LeftAlone);
        assert_eq!(routed(Some(json!({})), Value::Null), Route::Worker);
        let paused = Some(json!({"paused": true}));
        let waits =
            Answer::Waits { reason: PendingOperationReason::MachinePaused, message: PAUSED.to_owned() };
        assert_eq!(routed(paused.clone(), Value::Null), Route::Answer(waits));
        assert_eq!(
            routed(paused.clone(), json!({"state": "Pending", "reason": "MachinePaused"})),
            Route::LeftAlone
        );
        assert_eq!(routed(paused, in_progress), Route::Worker);
    }

    #[test]
    fn standalone_operation_without_machine_waits_reports_once_and_fails() {
        let in_progress = json!({"state": "InProgress"});
        let Route::Answer(Answer::Waits { reason, message }) =
            routed_where(Absence::Pending, None, Value::Null)
        else {
            panic!("it waits");
        };
        assert!(
            reason == PendingOperationReason::MachineNotFound && message.contains("no Machine node1"),
            "{message}"
        );
        let waiting = json!({"state": "Pending", "reason": "MachineNotFound", "message": message});
        assert_eq!(routed_where(Absence::Pending, None, waiting.clone()), Route::LeftAlone);
        assert_eq!(routed_where(Absence::Pending, None, in_progress.clone()), Route::LeftAlone);
        for (status, expected) in
            [(waiting, PowerOutcome::MachineNotFound), (in_progress, PowerOutcome::MachineDeleting)]
        {
            let Route::Answer(Answer::Failed(end)) = routed_where(Absence::Missing, None, status) else {
                panic!("{expected}");
            };
            assert_eq!(end.reason, expected);
        }
    }
}
