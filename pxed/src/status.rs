//! Status of each Machine as pxed knows it: held in memory, written in the background.
//!
//! [`StatusRegistry::update`] changes memory and returns immediately, so that it may be called on the packet path.
//! `write` brings changes to the store and to the API server, coalesced: the first change immediately, then at most
//! one write a second for each Machine. `conditions`, `display`, `project` and `site_boot` are pure. Only pxed's own
//! fields reach the API (docs/design/rules.md, "Who writes what"). Power is written by the site's leader; the boot is shared
//! by the rule of [`site_boot`].

pub mod display;
pub mod project;
pub mod queue;
pub(crate) mod site_boot;
pub mod write;

pub mod conditions;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use bedplate_api::id::MachineName;
use bedplate_api::machine::{Machine, MachineStatus, PowerAction, PowerActionKind, Time, condition_type};
use bedplate_api::reason::event::{EventReason, PxedEvent, is_warning};
use bedplate_api::reason::machine::BootedReason;
use bedplate_api::wire::Stage;
use bedplate_process::events::{Events, Occurrence, Queue, channel};
use bedplate_process::lease::Tenure;
use bedplate_process::lock::Lock;
use bedplate_process::token_bucket::{Allowances, Rate};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource as _;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

pub use self::conditions::{ConditionState, set_condition};
use self::project::{Part, Parts};
use self::site_boot::{Base, TakenOver};
pub use self::write::{StatusSink, Writer};
use crate::machines::{KnownMachine, Machines, Problem, Snapshot};
use crate::store::{Store, StoreError, Table};
use crate::system_of_record::SystemOfRecord;

/// Log lines of Events. Any client on the boot network can cause some: they must not push other lines out of the journal.
const LOG_RATE: Rate = Rate { burst: 100, each: Duration::from_millis(200) };

/// A status with its Machine, as the store has it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Kept {
    /// UID of the Machine: a later Machine of the same name starts without a status.
    pub uid: String,
    /// The status.
    pub status: MachineStatus,
    /// In a cluster: the boot's part of the object, as this pxed last wrote it or took it over.
    #[serde(default)]
    pub base: Base,
    /// In a cluster: the boot of another pxed that was taken over last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_over: Option<TakenOver>,
}

impl Kept {
    /// Makes this the status of the Machine with this UID. A Machine that was re-created under its old name has no past.
    fn is_of(&mut self, uid: &str) {
        if !self.uid.is_empty() && self.uid != uid {
            *self = Self::default();
        }
        uid.clone_into(&mut self.uid);
    }
}

#[derive(Debug, Default)]
struct State {
    kept: HashMap<MachineName, Kept>,
    /// Time of each BMC's last power state. The stored status has an older time, so that it is written rarely.
    observed: HashMap<MachineName, Timestamp>,
    /// Changed since the writer last took it, and in which parts.
    changed: Vec<(MachineName, Parts)>,
    /// Deleted Machines whose stored status must be deleted too.
    gone: Vec<MachineName>,
    /// Machines of which something has changed that a choice of their version depends on; kept where pxed chooses.
    concerned: BTreeSet<MachineName>,
}

/// The statuses; clones share them.
#[derive(Debug, Clone)]
pub struct StatusRegistry {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Lock<State>,
    machines: Machines,
    /// System with the statuses. pxed fills in `phase` and `Ready` of its own, the controller those of the cluster.
    record: SystemOfRecord,
    /// Leadership of the site, in a cluster.
    tenure: OnceLock<Tenure>,
    wake: Notify,
    /// Wakes who chooses.
    concern: Notify,
    events: Events,
    /// Log lines of Events.
    lines: Allowances<()>,
}

impl StatusRegistry {
    /// Creates a registry with the statuses of the store, and the stream of its Events. `record`: system with the
    /// statuses.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn new(
        machines: Machines,
        store: &Store,
        record: SystemOfRecord,
    ) -> Result<(Self, Queue), StoreError> {
        let mut state = State::default();
        for (key, value) in store.scan(Table::Status)? {
            let name = std::str::from_utf8(&key).ok().and_then(|name| name.parse::<MachineName>().ok());
            match (name, serde_json::from_slice::<Kept>(&value)) {
                (Some(name), Ok(kept)) => {
                    let base = kept.base.clone().stored_with(&kept.status);
                    state.kept.insert(name, Kept { base, ..kept });
                }
                _ => {
                    let name = String::from_utf8_lossy(&key);
                    tracing::warn!(machine = %name, "skipping unreadable stored status");
                }
            }
        }
        let (events, queue) = channel();
        let state = Lock::new(state);
        let (tenure, wake, concern) = (OnceLock::new(), Notify::new(), Notify::new());
        let inner =
            Inner { state, machines, record, tenure, wake, concern, events, lines: Allowances::default() };
        Ok((Self { inner: Arc::new(inner) }, queue))
    }

    /// Changes a Machine's status. What leaves it as it was causes no write.
    pub fn update(&self, name: &MachineName, change: impl FnOnce(&mut MachineStatus)) {
        let machine = self.inner.machines.load().by_name(name).cloned();
        let mut state = self.lock();
        let kept = state.kept.entry(name.clone()).or_default();
        let before = kept.clone();
        if let Some(machine) = &machine {
            kept.is_of(&machine.uid);
        }
        change(&mut kept.status);
        if let Some(known) = machine.filter(|_| self.inner.record.is_pxed()) {
            display::derive(&known.machine, &mut kept.status, Timestamp::now());
        }
        if *kept != before {
            let same = kept.uid == before.uid;
            let parts = if same { Parts::changed(&before.status, &kept.status) } else { Parts::BOTH };
            let concerns =
                self.inner.record.is_pxed() && (!same || concerns_choice(&before.status, &kept.status));
            state.changed.push((name.clone(), parts));
            if concerns {
                state.concerned.insert(name.clone());
                self.inner.concern.notify_one();
            }
            drop(state);
            self.inner.wake.notify_one();
        }
    }

    /// Records that a BMC reported its power state. Causes no write; [`Self::describe`] shows the time.
    pub(crate) fn observed_power(&self, name: &MachineName, now: Timestamp) {
        self.lock().observed.insert(name.clone(), now);
    }

    /// Power is this pxed's to write while `tenure` says that it leads.
    pub(crate) fn lead_with(&self, tenure: Tenure) {
        // Once, before anything is written.
        let _ = self.inner.tenure.set(tenure);
    }

    /// Returns true if this pxed writes power.
    pub(crate) fn writes_power(&self) -> bool {
        self.inner.record.is_pxed() || self.inner.tenure.get().is_some_and(Tenure::leads)
    }

    /// Does work while power is this pxed's to write. `None`: it is not, or not any more, and the rest was dropped.
    pub(crate) async fn while_it_writes_power<F: Future>(&self, work: F) -> Option<F::Output> {
        if self.inner.record.is_pxed() {
            return Some(work.await);
        }
        self.inner.tenure.get()?.during(work).await
    }

    /// Removes the reports about a BMC that a Machine no longer has.
    pub(crate) fn forget_bmc(&self, known: &KnownMachine) {
        self.lock().observed.remove(&known.name);
        self.update(&known.name, |status| project::forget_bmc(&known.machine, status));
    }

    /// Takes up what the object of a Machine says of its power, which another pxed led before. Without a cluster there is
    /// no other.
    fn adopt_power(&self, name: &MachineName) {
        if self.inner.record.is_pxed() {
            return;
        }
        let Some(machine) = self.inner.machines.load().by_name(name).cloned() else { return };
        let there = machine.machine.status.as_ref();
        let there = there.map(|status| project::owned(&machine.machine, status)).unwrap_or_default();
        let mut state = self.lock();
        let kept = state.kept.entry(name.clone()).or_default();
        kept.is_of(&machine.uid);
        Part::Power.put(&mut kept.status, &there);
        // For the store: the object says so already.
        state.changed.push((name.clone(), Parts::default()));
        drop(state);
        self.inner.wake.notify_one();
    }

    /// [`Self::adopt_power`] of every Machine that is known: before this pxed leads.
    pub(crate) fn adopt_all_power(&self) {
        for known in self.inner.machines.load().iter() {
            self.adopt_power(&known.name);
        }
    }

    /// A Machine's status, if there is any.
    pub fn get(&self, name: &MachineName) -> Option<MachineStatus> {
        self.lock().kept.get(name).map(|kept| kept.status.clone())
    }

    /// Returns the result of `read` on a Machine's status, if there is one.
    pub fn read<T>(&self, name: &MachineName, read: impl FnOnce(&MachineStatus) -> T) -> Option<T> {
        self.lock().kept.get(name).map(|kept| read(&kept.status))
    }

    /// Waits until something may have changed that a choice of a version depends on.
    pub(crate) async fn concerned(&self) {
        self.inner.concern.notified().await;
    }

    /// The Machines of which it has since this was last asked.
    pub(crate) fn take_concerned(&self) -> BTreeSet<MachineName> {
        std::mem::take(&mut self.lock().concerned)
    }

    /// The Machine as its source gave it, with its status filled in: what `bedplate machine show` shows.
    pub fn describe(&self, known: &KnownMachine) -> Machine {
        let mut machine = Machine::clone(&known.machine);
        if let Some(status) = self.get(&known.name) {
            machine.status = Some(match machine.status.take() {
                // Fields of other writers are read from the API server; power from the leader of the site.
                Some(mut others) if !self.inner.record.is_pxed() => {
                    project::put_owned(&known.machine, &mut others, &status, self.writes_power());
                    others
                }
                _ => status,
            });
        }
        let observed = self.lock().observed.get(&known.name).copied().filter(|_| self.writes_power());
        let power = machine.status.as_mut().and_then(|status| status.power.as_mut());
        if let (Some(power), Some(observed)) = (power, observed) {
            let later = power.observed_time.as_ref().is_none_or(|time| time.0 < observed);
            power.observed_time = Some(Time(observed)).filter(|_| later).or(power.observed_time.take());
        }
        machine
    }

    /// Returns the number of Machines by the stage of their latest boot; `None`: those that never booted.
    pub(crate) fn boots_by_stage(&self) -> HashMap<Option<Stage>, u64> {
        let mut counts = HashMap::new();
        for kept in self.lock().kept.values() {
            let stage = kept.status.boot.as_ref().and_then(|boot| boot.stage);
            *counts.entry(stage).or_default() += 1;
        }
        counts
    }

    /// Publishes news of a Machine for users, and logs it. Never waits.
    pub fn event(&self, machine: &MachineName, reason: PxedEvent, message: impl Into<String>) {
        let uid = self.inner.machines.load().by_name(machine).map(|known| known.uid.clone());
        let about = ObjectReference {
            api_version: Some(Machine::api_version(&()).into_owned()),
            kind: Some(Machine::kind(&()).into_owned()),
            name: Some(machine.to_string()),
            uid,
            ..ObjectReference::default()
        };
        let (note, is_warning) = (message.into(), is_warning(reason));
        let (action, reason) = (reason.action(), reason.as_str());
        let occurrence = Occurrence { about, reason, action, is_warning, note: note.clone() };
        let is_new = self.inner.events.publish(occurrence);
        if is_new && self.inner.lines.take((), LOG_RATE, Instant::now()).is_ok() {
            tracing::info!(%machine, reason, message = note, "event");
        }
    }

    /// Returns the Events, for their writer and for metrics.
    pub fn events(&self) -> Events {
        self.inner.events.clone()
    }

    /// Follows a new set of Machines: forgets those that are gone, takes over what the API server knows of those that
    /// are new here, and keeps the condition of contested addresses. Looks only at what changed since `before`.
    pub fn follow(&self, before: &Snapshot, snapshot: &Snapshot) {
        self.forget_gone(snapshot);
        for known in snapshot.changed_since(before) {
            self.adopt(known);
            self.compare_boot(known);
            self.report_contested(before, snapshot, known);
        }
    }

    /// A name that stands in two files is not gone. Without a cluster a manifest that comes back is the same Machine (Trust 7): what holds it
    /// off stays, as people may be working in it.
    fn forget_gone(&self, snapshot: &Snapshot) {
        let twice: HashSet<&MachineName> = snapshot
            .problems()
            .iter()
            .filter_map(|problem| match problem {
                Problem::DuplicateName { name } => Some(name),
                Problem::BadName { .. } | Problem::DuplicateMac { .. } | Problem::DuplicateAddress { .. } => {
                    None
                }
            })
            .collect();
        let mut state = self.lock();
        let gone: Vec<MachineName> = state
            .kept
            .iter()
            .filter(|(name, kept)| match snapshot.by_name(name) {
                Some(known) => !kept.uid.is_empty() && kept.uid != known.uid,
                None => {
                    let stays = self.inner.record.is_pxed() && is_held_off(&kept.status);
                    !stays && !twice.contains(name)
                }
            })
            .map(|(name, _)| name.clone())
            .collect();
        for name in &gone {
            state.kept.remove(name);
            state.observed.remove(name);
        }
        if !gone.is_empty() {
            state.gone.extend(gone);
            drop(state);
            self.inner.wake.notify_one();
        }
    }

    /// Without a status of our own, what pxed wrote earlier into the object is taken up again (a lost store).
    fn adopt(&self, known: &KnownMachine) {
        let status = known.machine.status.as_ref();
        let status = status.map(|status| project::owned(&known.machine, status)).unwrap_or_default();
        if self.inner.record.is_pxed() {
            if self.get(&known.name).is_none() {
                self.update(&known.name, |current| *current = status);
            }
            return;
        }
        let mut state = self.lock();
        if state.kept.contains_key(&known.name) {
            return;
        }
        let (base, taken_over) = (Base::of(&status), TakenOver::of(&status, Timestamp::now()));
        let kept = Kept { uid: known.uid.clone(), status, base, taken_over };
        state.kept.insert(known.name.clone(), kept);
        // For the store: the object says so already.
        state.changed.push((known.name.clone(), Parts::default()));
        drop(state);
        self.inner.wake.notify_one();
    }

    /// Has the writer compare the boot with the object, if the object may have that of another pxed. An object from the watch can be older than
    /// the last write: the writer reads it again.
    fn compare_boot(&self, known: &KnownMachine) {
        if self.inner.record.is_pxed() {
            return;
        }
        let there = known.machine.status.as_ref();
        let there = there.map(|status| project::owned(&known.machine, status)).unwrap_or_default();
        let mut state = self.lock();
        if state.kept.get(&known.name).is_some_and(|kept| !kept.base.is_in(&there)) {
            state.changed.push((known.name.clone(), Parts { boot: true, power: false }));
            drop(state);
            self.inner.wake.notify_one();
        }
    }

    /// Records that the object has this part of the boot, by a write of this pxed.
    pub(crate) fn wrote_boot(&self, name: &MachineName, uid: &str, there: &MachineStatus) {
        if let Some(kept) = self.lock().kept.get_mut(name).filter(|kept| kept.uid == uid) {
            kept.base = Base::of(there);
        }
    }

    /// Takes over the boot of another pxed from the object. Not if this pxed's own has changed since `sent`: that change is still to be written, and
    /// compared again.
    pub(crate) fn take_over_boot(
        &self,
        name: &MachineName,
        sent: &Kept,
        there: &MachineStatus,
        now: Timestamp,
    ) {
        let mut state = self.lock();
        let kept = state.kept.get_mut(name).filter(|kept| kept.uid == sent.uid);
        let Some(kept) = kept.filter(|kept| Part::Boot.of(&kept.status) == Part::Boot.of(&sent.status))
        else {
            return;
        };
        Part::Boot.put(&mut kept.status, there);
        (kept.base, kept.taken_over) = (Base::of(there), TakenOver::of(there, now));
        state.changed.push((name.clone(), Parts::default()));
        drop(state);
        self.inner.wake.notify_one();
    }

    /// Returns the boot of another pxed that is shown, if it is one.
    pub(crate) fn taken_over(&self, name: &MachineName) -> Option<TakenOver> {
        let state = self.lock();
        let kept = state.kept.get(name)?;
        let shown = kept.status.boot.as_ref().and_then(|boot| boot.id);
        kept.taken_over.clone().filter(|taken_over| shown == Some(taken_over.boot))
    }

    fn report_contested(&self, before: &Snapshot, snapshot: &Snapshot, known: &KnownMachine) {
        let contested = snapshot.contested(&known.name);
        let has_changed = before.by_name(&known.name).is_some() && before.contested(&known.name) != contested;
        let message = conditions::contested_message(&contested);
        let is_reported = self.read(&known.name, |status| {
            conditions::booted(status).is_some_and(|c| c.reason == BootedReason::DuplicateMacAddress)
        });
        let new = has_changed || is_reported != Some(true);
        let now = Timestamp::now();
        self.update(&known.name, |status| conditions::apply_contested(status, message.as_deref(), now));
        if let Some(message) = message.filter(|_| new) {
            tracing::warn!(machine = %known.name, message, "machine is not served");
            self.event(&known.name, PxedEvent::DuplicateMacAddress, message);
        }
    }

    /// Marks every Machine whose own fields differ from its object, so that changes from a time without API server
    /// are not lost.
    pub(crate) fn resync(&self, snapshot: &Snapshot) {
        let mut state = self.lock();
        for known in snapshot.iter() {
            let there = known.machine.status.as_ref();
            let there = there.map(|status| project::owned(&known.machine, status)).unwrap_or_default();
            let parts = state.kept.get(&known.name).map(|kept| Parts::changed(&there, &kept.status));
            if let Some(parts) = parts.filter(|parts| *parts != Parts::default()) {
                state.changed.push((known.name.clone(), parts));
            }
        }
        drop(state);
        self.inner.wake.notify_one();
    }

    /// Marks every status, for a store that was re-created empty.
    pub fn mark_all(&self) {
        let mut state = self.lock();
        let State { kept, changed, .. } = &mut *state;
        changed.extend(kept.keys().map(|name| (name.clone(), Parts::default())));
        drop(state);
        self.inner.wake.notify_one();
    }

    /// Returns the changes since the last call: names with their changed parts, and names of deleted Machines.
    pub(crate) fn take_changes(&self) -> (Vec<(MachineName, Parts)>, Vec<MachineName>) {
        let mut state = self.lock();
        (std::mem::take(&mut state.changed), std::mem::take(&mut state.gone))
    }

    /// Returns the number of Machines that have changed since this was last asked.
    fn changed_machines(&self) -> u64 {
        self.lock().changed.iter().map(|(name, _)| name).collect::<HashSet<_>>().len() as u64
    }

    /// Waits until something may have changed.
    pub(crate) async fn changed(&self) {
        self.inner.wake.notified().await;
    }

    pub(crate) fn kept(&self, name: &MachineName) -> Option<Kept> {
        self.lock().kept.get(name).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in a caller's closure loses only that change.
        self.inner.state.lock()
    }
}

/// Returns true if this action leaves the machine on. It stays off after an action of a later version: it may be a kind of power-off.
pub(crate) fn leaves_on(action: &PowerAction) -> bool {
    match action.action {
        PowerActionKind::PowerOn
        | PowerActionKind::PowerCycle
        | PowerActionKind::Reset
        | PowerActionKind::Takeover => true,
        PowerActionKind::PowerOff
        | PowerActionKind::GracefulPowerOff
        | PowerActionKind::Shutdown
        | PowerActionKind::IdlePowerOff
        | PowerActionKind::Unknown => false,
    }
}

/// Returns true if the last action on the machine's power keeps it off.
fn is_held_off(status: &MachineStatus) -> bool {
    status.power.as_ref().and_then(|power| power.last_action.as_ref()).is_some_and(|last| !leaves_on(last))
}

/// Returns true if the host's enrollment or its versions changed: the choice of a version depends on them.
fn concerns_choice(before: &MachineStatus, after: &MachineStatus) -> bool {
    let enrolled = |status: &MachineStatus| conditions::is_true(status, condition_type::ENROLLED);
    enrolled(before) != enrolled(after)
        || before.applied != after.applied
        || selectable(before) != selectable(after)
}

/// Returns the hardware that a `machineSelector` may name.
fn selectable(status: &MachineStatus) -> (Option<&str>, Option<&str>, Option<&str>, bool) {
    let hardware = status.hardware.as_ref();
    let cpu = hardware.and_then(|hardware| hardware.cpu.as_ref());
    (
        hardware.and_then(|hardware| hardware.vendor.as_deref()),
        hardware.and_then(|hardware| hardware.product.as_deref()),
        cpu.and_then(|cpu| cpu.architecture.as_deref()),
        cpu.is_some(),
    )
}

/// The boot in a status, made if there is none.
#[cfg(test)]
pub(crate) fn boot_mut(status: &mut MachineStatus) -> &mut bedplate_api::machine::BootStatus {
    status.boot.get_or_insert_with(|| bedplate_api::machine::BootStatus {
        id: None,
        start_time: None,
        seed_time: None,
        stage: None,
        attempts: None,
        timeline: Vec::new(),
        previous: None,
    })
}
