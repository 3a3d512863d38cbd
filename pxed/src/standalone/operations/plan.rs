//! Pure: the memory of standalone operations, and the changes that a new set of manifests causes.
//!
//! ```text
//! in a manifest, never seen --recorded--> carried out --file gone--> remembered for 24 h --> forgotten
//!                                     started --file gone--> carried out to its end --> remembered for 24 h --> forgotten
//! from the socket --recorded--> carried out --finished, expired, or space is needed--> forgotten
//! ```
//!
//! A record outlives its manifest, because an editor that saves may delete a file and create another one. An
//! operation must not run twice because of that, and a machine in the off phase of a powerCycle must not be
//! abandoned. Caller: `standalone::operations`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bedplate_api::id::{Digest, MachineName};
use bedplate_api::machine::Time;
use bedplate_api::operation::{AGENT_OPERATIONS, MachineOperation, MachineOperationStatus, OperationState};
use bedplate_api::reason::operation::PowerOutcome;
use bedplate_api::selector::MachineSelector;
use bedplate_rules::fan_out::{Now, child, child_name, plan as plan_fan};
use bedplate_rules::operation::{End, ended};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use crate::machines::source::SourcedOperation;
use crate::power::operations::{age, is_finished};
use crate::power::plan::parameters::Kind;
use crate::power::{Operation, OperationKey};

/// Operations remembered at most.
const MAX_OPERATIONS: usize = 4096;
/// Retention of an operation whose manifest is gone.
const RETENTION_PERIOD: SignedDuration = SignedDuration::from_hours(24);

/// One operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The object, with its status; its `metadata.uid` distinguishes objects of the same name.
    pub(crate) object: MachineOperation,
    /// Number of writes of the status.
    pub(crate) writes: u64,
    /// Time of the latest write of its status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) written: Option<Timestamp>,
    /// True if the operation is in a manifest; false if it was created through the socket.
    pub(crate) manifest: bool,
    /// Machines that the selector matched when the operation was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) targets: Option<Vec<MachineName>>,
    /// Name of the operation with a selector that created this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<String>,
}

impl Record {
    /// Creates a record without status writes.
    pub(crate) fn new(mut object: MachineOperation, uid: String, manifest: bool, now: Timestamp) -> Self {
        object.metadata.uid = Some(uid);
        object.metadata.generate_name = None;
        // Whole seconds, as an API server has them.
        object.metadata.creation_timestamp =
            Some(Time(Timestamp::from_second(now.as_second()).unwrap_or(now)));
        object.status = None;
        Self { object, writes: 1, written: None, manifest, targets: None, parent: None }.numbered()
    }

    /// Returns a copy with another status.
    pub(crate) fn with(&self, status: MachineOperationStatus) -> Self {
        let object = MachineOperation { status: Some(status), ..self.object.clone() };
        Self { object, writes: self.writes.saturating_add(1), ..self.clone() }.numbered()
    }

    fn numbered(mut self) -> Self {
        self.object.metadata.resource_version = Some(self.writes.to_string());
        self
    }

    pub(crate) fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn uid(&self) -> &str {
        self.object.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(crate) fn key(&self) -> OperationKey {
        OperationKey { name: self.name().to_owned(), uid: self.uid().to_owned() }
    }

    /// Returns the record with the Machines that its selector matches.
    pub(crate) fn selecting(mut self, select: Select<'_>) -> Self {
        self.targets = self.object.spec.machine_selector.as_ref().map(select);
        self
    }

    /// Returns true if the operation may have changed its Machine and is not finished.
    fn is_under_way(&self) -> bool {
        let state = self.object.status.as_ref().and_then(|status| status.state);
        self.targets.is_none() && state == Some(OperationState::InProgress)
    }

    /// Returns the operation for its executor, unless operations for each Machine carry it out.
    pub(crate) fn to_carry_out(&self) -> Option<Operation> {
        self.targets.is_none().then(|| self.operation())
    }

    /// The operation as its source has it.
    pub(crate) fn operation(&self) -> Operation {
        let (object, version) = (Arc::new(self.object.clone()), self.writes.to_string());
        Operation { key: self.key(), object, version, written: self.written }
    }
}

/// The Machines that a selector matches now.
pub(crate) type Select<'a> = &'a dyn Fn(&MachineSelector) -> Vec<MachineName>;

/// Identity that distinguishes two manifest operations of one name.
fn identity(operation: &MachineOperation) -> String {
    let digest = || {
        let spec = serde_json::to_vec(&operation.spec).unwrap_or_default();
        Digest::from_sha256(sha2::Sha256::digest(spec).into())
    };
    operation.metadata.uid.clone().unwrap_or_else(|| format!("manifest:{}", digest()))
}

/// Recorded operations.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// By name.
    pub(crate) records: BTreeMap<String, Record>,
    /// Operations whose manifest is gone, and since when.
    pub(crate) gone: BTreeMap<String, Timestamp>,
}

/// Changes that a set of manifests causes.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Operations that were never seen.
    pub(crate) new: Vec<Record>,
    /// Operations whose manifest is gone.
    pub(crate) gone: Vec<OperationKey>,
    /// Operations whose manifest is back.
    pub(crate) back: Vec<OperationKey>,
    /// Problems for users, one per line.
    pub(crate) problems: Vec<String>,
}

impl Memory {
    /// Decides what a set of manifests changes. Operations are gone only if the set is complete. `lost`: earlier
    /// records were lost, so pxed cannot know which operations of the manifests already ran.
    pub(crate) fn plan(
        &self,
        (manifests, whole): (&[SourcedOperation], bool),
        select: Select<'_>,
        lost: bool,
        now: Timestamp,
    ) -> Plan {
        let mut plan = Plan::default();
        let mut by_name: BTreeMap<&str, Vec<&SourcedOperation>> = BTreeMap::new();
        for manifest in manifests {
            let name = manifest.operation.metadata.name.as_deref().unwrap_or_default();
            by_name.entry(name).or_default().push(manifest);
        }
        // Names in the manifests, with true if the recorded operation is unchanged.
        let mut there: HashMap<&str, bool> = HashMap::new();
        for (name, places) in by_name {
            let is_same = |m: &&SourcedOperation| {
                self.records.get(name).is_some_and(|record| record.uid() == identity(&m.operation))
            };
            there.insert(name, places.iter().all(is_same));
            let [manifest] = places.as_slice() else {
                let places: Vec<_> = places.iter().map(|m| m.place()).collect();
                plan.problems.push(format!(
                    "MachineOperation {name} is defined in {}; neither is carried out",
                    places.join(" and in ")
                ));
                continue;
            };
            if let Err(problem) = self.take(name, manifest, (select, lost, now), &mut plan) {
                plan.problems.push(format!("{}: {problem}", manifest.place()));
            }
        }
        for (name, record) in self.records.iter().filter(|(_, record)| record.manifest) {
            let is_gone = self.gone.contains_key(name);
            match there.get(name.as_str()) {
                Some(true) if is_gone => plan.back.push(record.key()),
                None if !is_gone && whole && !record.is_under_way() => plan.gone.push(record.key()),
                Some(_) | None => {}
            }
        }
        plan
    }

    fn take(
        &self,
        name: &str,
        manifest: &SourcedOperation,
        (select, lost, now): (Select<'_>, bool, Timestamp),
        plan: &mut Plan,
    ) -> Result<(), String> {
        let operation = &*manifest.operation;
        let uid = identity(operation);
        match self.records.get(name) {
            Some(record) if record.uid() == uid => return Ok(()),
            Some(_) => {
                return Err(format!(
                    "another operation {name} existed before, and names are not reused; choose a new name"
                ));
            }
            None => {}
        }
        if !is_known(&operation.spec.operation_name) {
            return Err(unknown_name(&operation.spec.operation_name));
        }
        if self.records.len().saturating_add(plan.new.len()) >= MAX_OPERATIONS {
            return Err(format!(
                "operation {name} exceeds the limit of {MAX_OPERATIONS} operations; remove manifests of finished operations"
            ));
        }
        let record = Record::new(operation.clone(), uid, true, now).selecting(select);
        plan.new.push(if lost { record.with(unknown(now)) } else { record });
        Ok(())
    }

    /// Returns operations whose retention has ended. `whole`: every manifest is known, so a missing one is gone.
    pub(crate) fn expired(&self, whole: bool, now: Timestamp) -> Vec<OperationKey> {
        let is_expired = |record: &&Record| {
            // It is removed with its parent.
            if record.parent.as_ref().is_some_and(|parent| self.records.contains_key(parent)) {
                return false;
            }
            let since = |then: Timestamp, time: SignedDuration| now.duration_since(then) >= time;
            if record.manifest {
                return whole
                    && self.gone.get(record.name()).is_some_and(|gone| since(*gone, RETENTION_PERIOD));
            }
            let status = record.object.status.as_ref();
            let ended = status.and_then(|status| status.completion_time.as_ref());
            let time = record.object.spec.ttl_seconds_after_finished;
            is_finished(&record.object)
                && ended
                    .zip(time)
                    .is_some_and(|(ended, time)| since(ended.0, SignedDuration::from_secs(time.into())))
        };
        self.records.values().filter(is_expired).flat_map(|record| self.family(record)).collect()
    }

    /// Returns the operations to forget so that one more fits: the oldest that is finished and not in a manifest.
    /// `None` if there is no space.
    pub(crate) fn make_room(&self) -> Option<Vec<OperationKey>> {
        if self.records.len() < MAX_OPERATIONS {
            return Some(Vec::new());
        }
        let alone =
            |record: &&Record| record.parent.is_none() && !record.manifest && is_finished(&record.object);
        let oldest = self.records.values().filter(alone).min_by(|a, b| age(&a.object).cmp(&age(&b.object)));
        oldest.map(|record| self.family(record))
    }

    /// An operation and those that were made for it.
    fn family(&self, record: &Record) -> Vec<OperationKey> {
        let children = self.records.values().filter(|other| other.parent.as_deref() == Some(record.name()));
        std::iter::once(record).chain(children).map(Record::key).collect()
    }

    /// Advances operations with selectors: creates operations for their Machines and sums up their states. `uid`
    /// returns a new UID at each call.
    pub(crate) fn fan_out(&self, uid: impl Fn() -> String, now: Timestamp) -> Vec<Record> {
        let mut changed = Vec::new();
        for (name, record) in &self.records {
            let Some(targets) = &record.targets else { continue };
            if is_finished(&record.object) || self.gone.contains_key(name) {
                continue;
            }
            let progress = |machine: &MachineName| {
                let child = self.records.get(&child_name(&record.object, machine))?;
                if child.parent.as_ref() != Some(name) {
                    // Another operation has that name, so this Machine is skipped and counted as failed.
                    return Some(OperationState::Failed);
                }
                let state = child.object.status.as_ref().and_then(|status| status.state);
                Some(state.unwrap_or(OperationState::Pending))
            };
            let targets: Vec<_> =
                targets.iter().map(|machine| (machine.clone(), progress(machine))).collect();
            let room = MAX_OPERATIONS.saturating_sub(self.records.len()).saturating_sub(changed.len());
            let fan = plan_fan(&record.object, &targets, Now { room, stopped: false, time: now });
            let made = |machine: &MachineName| {
                let made = Record::new(child(&record.object, machine), uid(), false, now);
                Record { parent: Some(name.clone()), ..made }
            };
            changed.extend(fan.start.iter().map(made));
            if record.object.status.as_ref() != Some(&fan.status) {
                changed.push(record.with(fan.status));
            }
        }
        changed
    }
}

/// Returns true if operations of that name are carried out standalone: by pxed, or by the agent (O7).
pub(crate) fn is_known(name: &str) -> bool {
    Kind::of(name).is_some() || AGENT_OPERATIONS.contains(&name)
}

/// Explains why an operation of that name is not carried out here.
pub(crate) fn unknown_name(name: &str) -> String {
    let known: Vec<_> = Kind::ALL.map(Kind::as_str).into_iter().chain(AGENT_OPERATIONS).collect();
    let known = known.join(", ");
    format!("operation {name:?} is not available without a cluster; use one of {known}")
}

fn unknown(now: Timestamp) -> MachineOperationStatus {
    let message = "pxed's record of operations was damaged and re-created, so it is not known whether this one was carried \
                   out; check the machine, and create a new operation if it is still needed";
    let end = End { complete: false, reason: PowerOutcome::OutcomeUnknown.as_str(), message };
    ended(MachineOperationStatus::default(), end, None, now)
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn object(name: &str, operation: &str) -> MachineOperation {
        serde_json::from_value(json!({
            "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation", "metadata": { "name": name },
            "spec": { "operationName": operation, "machineRef": { "name": "a" } },
        }))
        .unwrap()
    }

    pub(crate) fn manifest(line: u64, operation: MachineOperation) -> SourcedOperation {
        SourcedOperation { origin: "ops.yaml".to_owned(), line, operation: Arc::new(operation) }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn finished(at: Timestamp) -> MachineOperationStatus {
        MachineOperationStatus {
            state: Some(OperationState::Complete),
            completion_time: Some(Time(at)),
            ..MachineOperationStatus::default()
        }
    }

    /// Carries a plan out.
    fn take(memory: &mut Memory, manifests: &[SourcedOperation], now: Timestamp) -> Plan {
        follow(memory, (manifests, true), now)
    }

    fn follow(memory: &mut Memory, (manifests, whole): (&[SourcedOperation], bool), now: Timestamp) -> Plan {
        let plan = memory.plan((manifests, whole), &|_| Vec::new(), false, now);
        memory.records.extend(plan.new.iter().map(|record| (record.name().to_owned(), record.clone())));
        memory.gone.extend(plan.gone.iter().map(|key| (key.name.clone(), now)));
        plan.back.iter().for_each(|key| memory.gone.retain(|name, _| *name != key.name));
        plan
    }

    #[test]
    fn manifest_is_recorded_once_although_editor_replaces_it() {
        let (mut memory, one) = (Memory::default(), [manifest(1, object("x", "powerCycle"))]);
        assert_eq!(take(&mut memory, &one, at(0)).new.len(), 1);
        assert_eq!(take(&mut memory, &one, at(1)), Plan::default());
        assert_eq!(take(&mut memory, &[], at(2)).gone.len(), 1);
        assert_eq!(memory.expired(true, at(86_401)), []);
        let again = take(&mut memory, &one, at(3));
        assert_eq!((again.new.len(), again.back.len()), (0, 1));
        assert_eq!(take(&mut memory, &[], at(10)).gone.len(), 1);
        assert_eq!(memory.expired(true, at(10 + 86_400)).len(), 1);
    }

    #[test]
    fn unreadable_file_stops_removal_but_not_new_operations() {
        let mut memory = Memory::default();
        let [x, y, z] = ["x", "y", "z"].map(|name| manifest(1, object(name, "powerCycle")));
        take(&mut memory, &[x.clone(), y.clone()], at(0));
        take(&mut memory, std::slice::from_ref(&x), at(1));
        let plan = follow(&mut memory, (std::slice::from_ref(&z), false), at(2));
        assert_eq!((plan.gone.len(), plan.new[0].name()), (0, "z"));
        assert_eq!(memory.expired(false, at(86_500)), [], "y may stand in that file");
        assert_eq!(follow(&mut memory, (&[y, z.clone()], false), at(86_501)).back.len(), 1);
        let plan = take(&mut memory, &[z], at(86_502));
        assert_eq!((plan.new.len(), plan.gone.len()), (0, 2), "now it is known");
    }

    #[test]
    fn other_spec_under_known_name_is_a_problem_and_not_run() {
        let mut memory = Memory::default();
        take(&mut memory, &[manifest(1, object("x", "powerCycle"))], at(0));
        let plan = take(&mut memory, &[manifest(3, object("x", "powerOff"))], at(1));
        assert_eq!((plan.new.len(), plan.gone.len()), (0, 0));
        assert!(
            plan.problems[0].starts_with("ops.yaml:3: ") && plan.problems[0].ends_with("choose a new name")
        );
        let twice = [manifest(1, object("y", "powerOn")), manifest(9, object("y", "powerOn"))];
        let plan = take(&mut memory, &twice, at(1));
        assert!(plan.new.is_empty() && plan.problems[0].contains("ops.yaml:1 and in ops.yaml:9"));
        assert!(
            memory.plan((&[manifest(1, object("z", "dance"))], true), &|_| Vec::new(), false, at(1)).problems
                [0]
            .contains("powerOn")
        );
    }

    #[test]
    fn after_store_loss_manifest_operations_fail_and_do_not_run_again() {
        let plan = Memory::default().plan(
            (&[manifest(1, object("x", "powerCycle"))], true),
            &|_| Vec::new(),
            true,
            at(0),
        );
        let status = plan.new[0].object.status.clone().unwrap();
        assert_eq!(
            (status.state, status.reason.as_deref()),
            (Some(OperationState::Failed), Some(PowerOutcome::OutcomeUnknown.as_str()))
        );
    }

    #[test]
    fn socket_operations_expire_or_are_evicted_oldest_finished_first() {
        let mut memory = Memory::default();
        let mut timed = object("timed", "powerOn");
        timed.spec.ttl_seconds_after_finished = Some(60);
        for (object, end) in
            [(timed, Some(5)), (object("old", "powerOn"), Some(6)), (object("busy", "powerOn"), None)]
        {
            let record = Record::new(object, "u".to_owned(), false, at(0));
            let record = end.map_or(record.clone(), |end| record.with(finished(at(end))));
            memory.records.insert(record.name().to_owned(), record);
        }
        assert_eq!(memory.expired(true, at(64)), []);
        assert_eq!(memory.expired(true, at(65))[0].name, "timed");
        assert_eq!(memory.make_room(), Some(Vec::new()));
        for number in memory.records.len()..MAX_OPERATIONS {
            let record = Record::new(object(&format!("n{number}"), "powerOn"), "u".to_owned(), true, at(0));
            memory.records.insert(record.name().to_owned(), record);
        }
        assert_eq!(memory.make_room().unwrap()[0].name, "old");
        memory.records.retain(|_, record| !is_finished(&record.object));
        memory.records.insert("m".to_owned(), memory.records["n9"].with(finished(at(0))));
        memory.records.insert("k".to_owned(), memory.records["n10"].clone());
        assert_eq!(memory.make_room(), None, "a manifest's record stays, or it would be carried out again");
    }

    #[test]
    fn o3_selector_runs_few_machines_concurrently_and_ends_with_parent() {
        let mut memory = Memory::default();
        let mut parent = object("all", "powerOn");
        parent.spec.machine_ref = None;
        parent.spec.machine_selector = Some(MachineSelector::default());
        (parent.spec.max_parallel, parent.spec.ttl_seconds_after_finished) = (Some(1), Some(60));
        let select = |_: &MachineSelector| ["a", "b"].map(|name| name.parse().unwrap()).to_vec();
        let record = Record::new(parent, "p".to_owned(), false, at(0)).selecting(&select);
        assert_eq!(record.to_carry_out(), None);
        let put = |memory: &mut Memory, records: Vec<Record>| {
            memory.records.extend(records.into_iter().map(|record| (record.name().to_owned(), record)));
        };
        put(&mut memory, vec![record]);
        let fan = |memory: &mut Memory, second| {
            let changed = memory.fan_out(|| "u".to_owned(), at(second));
            put(memory, changed.clone());
            changed.iter().map(|record| record.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(fan(&mut memory, 1), ["all-a", "all"]);
        assert_eq!(fan(&mut memory, 2), Vec::<String>::new(), "nothing has changed");
        for (child, next) in [("all-a", vec!["all-b", "all"]), ("all-b", vec!["all"])] {
            let done = memory.records[child].with(finished(at(3)));
            put(&mut memory, vec![done]);
            assert_eq!(fan(&mut memory, 4), next);
        }
        let status = memory.records["all"].object.status.clone().unwrap();
        assert_eq!((status.state, status.counts.unwrap().complete), (Some(OperationState::Complete), 2));
        let names: Vec<_> = memory.expired(true, at(64)).into_iter().map(|key| key.name).collect();
        assert_eq!(names, ["all", "all-a", "all-b"]);
    }
}
