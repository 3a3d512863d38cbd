//! Adds pxed's finalizer to Machines with `deletionPolicy: PowerOff` and a BMC, and removes it when the policy changes, while this pxed leads.
//!
//! A worker removes the finalizer of a deleted Machine whose machine is off. One loop of `supervisor`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::id::MachineName;
use bedplate_api::machine::{DeletionPolicy, Machine, POWER_OFF_FINALIZER};
use bedplate_process::backoff::Backoff;
use bedplate_process::reconcile::{Activation, Reconcile, Turn};
use futures::StreamExt as _;
use tokio::sync::watch;
use tokio::time::Instant;

use super::assignment::Shared;
use crate::machines::{KnownMachine, Machines};

/// Maximum number of concurrent writes.
const MAX_CONCURRENT_WRITES: usize = 16;
/// Maximum duration of a turn. The rest has its turn immediately afterwards.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);
/// Delays before failed writes are tried again.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(300));

/// The loop.
pub(super) struct Finalizers {
    shared: Arc<Shared>,
    machines: Machines,
    changes: watch::Receiver<u64>,
    leads: watch::Receiver<bool>,
    /// Machines whose write failed. They wait for `retry`, the others do not.
    failed: BTreeSet<MachineName>,
    retry: Option<Instant>,
    /// Number of retries in a row that did not succeed.
    failures: u32,
}

impl Finalizers {
    /// Makes the loop. `leads`: true while this pxed leads.
    pub(super) fn new(shared: Arc<Shared>, machines: Machines, leads: watch::Receiver<bool>) -> Self {
        let changes = machines.subscribe();
        Self { shared, machines, changes, leads, failed: BTreeSet::new(), retry: None, failures: 0 }
    }

    /// Writes one finalizer. Without the leadership it is the next leader's write.
    async fn write(&self, known: &KnownMachine, held: bool) -> Result<(), String> {
        let write = self.shared.holding.hold(&known.name, &known.uid, held);
        self.shared.tenure.during(write).await.unwrap_or(Ok(()))
    }

    /// Writes all finalizers that are due. Returns true if none was left for lack of time.
    async fn write_all(&mut self) -> bool {
        let machines = self.machines.load();
        let due = machines.iter().filter(|known| !self.failed.contains(&known.name));
        let due = due.filter_map(|known| Some((known.clone(), due_change(&known.machine)?)));
        let due: Vec<_> = due.collect();
        let mut failed = BTreeMap::new();
        let is_complete = {
            let this = &*self;
            let writes = futures::stream::iter(due).map(|(known, held)| async move {
                let written = this.write(&known, held).await;
                written.err().map(|error| (known.name.clone(), error))
            });
            let mut writes = std::pin::pin!(writes.buffer_unordered(MAX_CONCURRENT_WRITES));
            let all = async {
                while let Some(failure) = writes.next().await {
                    failed.extend(failure);
                }
            };
            tokio::time::timeout(TURN_TIMEOUT, all).await.is_ok()
        };
        if let Some((machine, error)) = failed.first_key_value() {
            let machines = failed.len();
            tracing::warn!(%machine, machines, error, "failed to change finalizers, retrying");
            self.failed.extend(failed.into_keys());
            if self.retry.is_none() {
                self.failures = self.failures.saturating_add(1);
                self.retry = Some(Instant::now() + BACKOFF.delay(self.failures, rand::random()));
            }
        }
        is_complete
    }
}

impl Reconcile for Finalizers {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        tokio::select! {
            changed = self.changes.changed() => changed.ok(),
            changed = self.leads.changed() => changed.ok(),
        }
    }

    async fn turn(&mut self, _: Activation<()>) -> Turn {
        let leads = *self.leads.borrow_and_update();
        if !leads || self.retry.is_some_and(|retry| retry <= Instant::now()) {
            self.failed.clear();
            self.retry = None;
        }
        if !leads {
            self.failures = 0;
            return Turn::Idle;
        }
        let is_complete = self.write_all().await;
        if self.failed.is_empty() {
            self.failures = 0;
        }
        match (is_complete, self.retry) {
            (false, _) => Turn::At(Instant::now()),
            (true, Some(retry)) => Turn::At(retry),
            (true, None) => Turn::Idle,
        }
    }
}

/// Returns true if pxed's finalizer is on a Machine.
pub(crate) fn is_held(machine: &Machine) -> bool {
    let finalizers = machine.metadata.finalizers.iter().flatten();
    finalizers.into_iter().any(|finalizer| finalizer == POWER_OFF_FINALIZER)
}

/// Pure: returns true to add the finalizer, false to remove it, `None` to leave it. It cannot be added to a deleted Machine.
fn due_change(machine: &Machine) -> Option<bool> {
    let wanted = machine.spec.deletion_policy == DeletionPolicy::PowerOff && machine.spec.bmc.is_some();
    let is_deleted = machine.metadata.deletion_timestamp.is_some();
    (wanted != is_held(machine) && !(wanted && is_deleted)).then_some(wanted)
}
