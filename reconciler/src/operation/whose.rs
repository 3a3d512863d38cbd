//! Which operations are whose: by Machine, and when a parent was written last. What the store of operations has is known here, no more.
//!
//! Kept by `follow`, asked by `operation` and by `trigger`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bedplate_api::operation::MachineOperation;
use kube::ResourceExt;
use tokio::time::Instant;

/// Shared by the watch of operations and those who ask.
#[derive(Debug, Default)]
pub struct Whose(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    by_machine: HashMap<String, BTreeSet<String>>,
    /// By the operation's name.
    machine_of: HashMap<String, String>,
    /// By the parent's UID.
    parents: BTreeMap<String, Written>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Written {
    status: Option<Instant>,
    children: Option<Instant>,
}

impl Whose {
    /// An operation is there.
    pub fn put(&self, operation: &MachineOperation) {
        let name = operation.name_any();
        let machine = operation.spec.machine_ref.as_ref().map(|machine| machine.name.to_string());
        let mut inner = self.lock();
        if inner.machine_of.get(&name) == machine.as_ref() {
            return;
        }
        inner.forget(&name);
        if let Some(machine) = machine {
            inner.by_machine.entry(machine.clone()).or_default().insert(name.clone());
            inner.machine_of.insert(name, machine);
        }
    }

    /// An operation is gone.
    pub fn remove(&self, operation: &MachineOperation) {
        let mut inner = self.lock();
        inner.forget(&operation.name_any());
        inner.parents.remove(&operation.uid().unwrap_or_default());
    }

    /// Names of a Machine's operations.
    pub fn of_machine(&self, machine: &str) -> Vec<String> {
        self.lock().by_machine.get(machine).into_iter().flatten().cloned().collect()
    }

    /// A parent's sums are written: until when the next ones wait, if they may.
    pub fn wrote(&self, uid: &str) {
        self.lock().parents.entry(uid.to_owned()).or_default().status = Some(Instant::now());
    }

    /// Children of a parent are made.
    pub fn made(&self, uid: &str) {
        self.lock().parents.entry(uid.to_owned()).or_default().children = Some(Instant::now());
    }

    /// How long a parent's sums are still young, that are not to be written again before they are `pace` old.
    pub fn rests(&self, uid: &str, pace: Duration) -> Duration {
        let written = self.lock().parents.get(uid).and_then(|written| written.status);
        written.map_or(Duration::ZERO, |at| pace.saturating_sub(at.elapsed()))
    }

    /// How long the store may still not have seen children that were made here, for at most `lag`.
    pub fn lags(&self, uid: &str, lag: Duration) -> Duration {
        let made = self.lock().parents.get(uid).and_then(|written| written.children);
        made.map_or(Duration::ZERO, |at| lag.saturating_sub(at.elapsed()))
    }

    /// A parent has ended.
    pub fn ended(&self, uid: &str) {
        self.lock().parents.remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is whole before the lock is let go.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn forget(&mut self, name: &str) {
        let Some(machine) = self.machine_of.remove(name) else { return };
        if let Some(names) = self.by_machine.get_mut(&machine) {
            names.remove(name);
            if names.is_empty() {
                self.by_machine.remove(&machine);
            }
        }
    }
}
