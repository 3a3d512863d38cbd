//! Standalone Machines with `deletionPolicy: PowerOff` whose manifest is gone, until their machine is off.
//!
//! They are in the store, so that a restart does not forget them. A manifest that returns within [`DELETION_DELAY`],
//! or a Machine of another name with the same BMC, keeps the machine on: an editor's pause or a rename is not a
//! deletion. Neither is a change of site or provider. Caller: `supervisor`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_api::id::{MachineName, SiteName};
use bedplate_api::machine::{DeletionPolicy, Machine};
use jiff::{SignedDuration, Timestamp};

use super::duplicates::Contested;
use super::grace_timers::Ripening;
use crate::machines::{KnownMachine, Problem, Snapshot};
use crate::power::plan::breaker::later;
use crate::store::{Change, Store, Table};

/// Period for which a manifest must be gone.
const DELETION_DELAY: SignedDuration = SignedDuration::from_secs(60);

/// Departing Machines.
#[derive(Debug, Default)]
pub(crate) struct Departing {
    machines: BTreeMap<MachineName, Arc<KnownMachine>>,
    /// Time at which they are switched off.
    ripening: Ripening,
}

impl Departing {
    /// Loads the departing Machines of the store.
    pub(crate) fn load(store: &Store) -> Self {
        let mut departing = Self::default();
        let kept = store.scan(Table::Departing).unwrap_or_else(|error| {
            tracing::warn!(%error, "failed to read machines to power off, they stay on");
            Vec::new()
        });
        for (_, value) in kept {
            if let Some(known) = serde_json::from_slice::<Machine>(&value).ok().and_then(known) {
                departing.insert(known, Timestamp::MIN);
            }
        }
        departing
    }

    /// Follows a new set of Machines, in which `gone` are not any more and `claims` says whose BMC is whose; what the store is
    /// to keep of it.
    pub(crate) fn follow(
        &mut self,
        gone: &[Arc<KnownMachine>],
        after: &Snapshot,
        claims: &Contested,
        now: Timestamp,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        for known in gone.iter().filter(|known| has_gone(known, after, claims)) {
            if let Ok(value) = serde_json::to_vec(&*known.machine) {
                tracing::info!(machine = %known.name, "manifest removed, powering the machine off");
                self.insert(known.clone(), later(now, DELETION_DELAY));
                changes.push(Change::Put(Table::Departing, known.name.as_str().into(), value));
            }
        }
        let back = self.machines.values().filter(|known| !has_gone(known, after, claims));
        for known in back.cloned().collect::<Vec<_>>() {
            self.departed(&known.name);
            changes.push(Change::Delete(Table::Departing, known.name.as_str().into()));
        }
        changes
    }

    /// Everyone.
    pub(crate) fn names(&self) -> impl Iterator<Item = MachineName> + '_ {
        self.machines.keys().cloned()
    }

    /// Returns a machine whose grace period has ended.
    pub(crate) fn ripe(&self, name: &MachineName) -> Option<Arc<KnownMachine>> {
        self.machines.get(name).filter(|_| self.ripening.is_ripe(name)).cloned()
    }

    /// Returns the next end of a grace period.
    pub(crate) fn next_ripe(&self) -> Option<Timestamp> {
        self.ripening.next()
    }

    /// Gives those that are not being switched off yet more time.
    pub(crate) fn postpone(&mut self, now: Timestamp) {
        self.ripening.postpone(later(now, DELETION_DELAY));
    }

    /// Returns the Machines whose delay has ended since the last call.
    pub(crate) fn ripen(&mut self, now: Timestamp) -> Vec<MachineName> {
        self.ripening.ripen(now)
    }

    fn insert(&mut self, known: Arc<KnownMachine>, at: Timestamp) {
        self.ripening.begin(&known.name, at);
        self.machines.insert(known.name.clone(), known);
    }

    /// Forgets one.
    pub(crate) fn departed(&mut self, name: &MachineName) {
        self.machines.remove(name);
        self.ripening.forget(name);
    }
}

/// Returns true if a Machine is gone and its machine must be switched off.
fn has_gone(known: &KnownMachine, after: &Snapshot, claims: &Contested) -> bool {
    let spec = &known.machine.spec;
    let Some(bmc) = &spec.bmc else { return false };
    let wanted = spec.deletion_policy == DeletionPolicy::PowerOff && !spec.paused;
    let twice = after
        .problems()
        .iter()
        .any(|problem| matches!(problem, Problem::DuplicateName { name } if *name == known.name));
    let is_there = after.by_name(&known.name).is_some() || after.is_elsewhere(&known.name);
    // If another Machine claims the BMC, the Machine was renamed.
    wanted && !is_there && !twice && !claims.is_claimed(bmc)
}

fn known(machine: Machine) -> Option<Arc<KnownMachine>> {
    let name: MachineName = machine.metadata.name.as_deref()?.parse().ok()?;
    let site: SiteName = machine.spec.site.clone();
    Snapshot::build(&site, [machine]).by_name(&name).cloned()
}
