//! Order of the claimants that wait for a host: control planes first, then the oldest.
//!
//! Each claimant that waits has a host left, if there is one for it, until its turn. If there are enough hosts, all of them choose immediately.
//! Read: the stores, once for each change of them that decides. A claimant that has not looked for a host yet does not wait. Decided: `checks`,
//! `line`, `tries`. Called by `machine`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_api::cluster::core::Machine as Owner;
use bedplate_api::cluster::infrastructure::{BedplateMachine, condition_type};
use bedplate_api::id::MachineName;
use bedplate_api::machine::Machine;
use bedplate_api::reason::infrastructure::HostClaimedReason;
use bedplate_process::lock::Lock;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use super::Owners;
use super::checks::{Checks, Host, Requirements};
use super::line::{Line, Refusal, Turn, Waiting};
use super::plan::{Observed, request};
use super::tries::{Key, Tries};
use crate::infrastructure::context::Stores;
use crate::owner::{is_control_plane, is_paused};
use crate::scope::Scope;

/// Maximum age of a line. Claimants get their lost turns back without a change of the stores.
const MAX_LINE_AGE: Duration = Duration::from_secs(5);
/// Maximum age of the checks of hosts. They become silent without a change of the stores, after 15 minutes.
const MAX_CHECK_AGE: Duration = Duration::from_secs(30);

/// The line and the claimants that write a claim. The reconciliations share it.
#[derive(Debug, Default)]
pub struct Turns(Lock<State>);

#[derive(Debug, Default)]
struct State {
    made: Option<Made>,
    tries: Tries,
    /// Claimants that do not wait for a host, although their condition says so: it could not be written since.
    away: HashSet<Key>,
    /// True if the line must be made again, without a change of the stores.
    is_old: bool,
}

/// The line, and the state of the stores for which it was made.
#[derive(Debug)]
struct Made {
    line: Line,
    /// Numbers of changes of claimants and of hosts.
    changes: (u64, u64),
    time: Instant,
    /// Time at which all hosts were checked.
    checked: Instant,
}

impl Turns {
    /// Returns the host that is left for a claimant. `now`: the present time of the monotonic clock.
    ///
    /// # Errors
    /// There is none.
    pub fn choose(
        &self,
        observed: &Observed,
        (stores, scope): (&Stores, &Scope),
        now: Instant,
    ) -> Result<MachineName, Refusal> {
        let owner = observed.owner.as_deref();
        let asks = waiting(&observed.machine, owner, observed.failure_domain_label.as_deref());
        let state = &mut *self.0.lock();
        if state.away.remove(&asks.turn.key) {
            state.is_old = true;
        }
        let made = state.made((stores, scope), (observed.now, now));
        let made = state.made.insert(made);
        let chosen = made.line.choose(&asks, &state.tries, now);
        match &chosen {
            Ok(host) => state.tries.begin(asks.turn.key, host.clone(), now),
            Err(_) => state.tries.lose(&asks.turn.key, now),
        }
        chosen
    }

    /// Notes that a claimant writes no claim, or has one.
    pub fn end(&self, machine: &BedplateMachine) {
        let (state, key) = (&mut *self.0.lock(), key(machine));
        state.tries.end(&key);
        if waits(machine) && state.away.insert(key) {
            state.is_old = true;
        }
    }

    /// Notes that another claimant has the host of this one.
    pub fn lose(&self, machine: &BedplateMachine, now: Instant) {
        self.0.lock().tries.lose(&key(machine), now);
    }

    /// Returns true if the condition of a claimant must show now why its write has failed.
    pub fn shows(&self, machine: &BedplateMachine, now: Instant) -> bool {
        self.0.lock().tries.shows(&key(machine), now)
    }
}

fn key(machine: &BedplateMachine) -> Key {
    (machine.namespace().unwrap_or_default(), machine.name_any())
}

fn waiting(machine: &BedplateMachine, owner: Option<&Owner>, label: Option<&str>) -> Waiting {
    let key = key(machine);
    let requirements = Requirements::new(&request(machine, owner, label, &key.0));
    let created = machine.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let turn = Turn { is_worker: !owner.is_some_and(is_control_plane), created, key };
    Waiting { turn, uid: machine.metadata.uid.clone().unwrap_or_default(), requirements }
}

/// Returns true if a claimant has found no host, and has met everything else.
pub fn waits(machine: &BedplateMachine) -> bool {
    let conditions = machine.status.iter().flat_map(|status| &status.conditions);
    let mut claimed = conditions.filter(|condition| condition.type_ == condition_type::HOST_CLAIMED);
    let is_without = claimed.any(|condition| condition.reason == HostClaimedReason::NoEligibleMachine);
    is_without && machine.spec.machine_name.is_none() && machine.metadata.deletion_timestamp.is_none()
}

/// Returns the host that a claimant has recorded, and whose claim it must still create.
fn recorded<'a>(machine: &'a BedplateMachine, stores: &Stores) -> Option<&'a MachineName> {
    let is_going = machine.metadata.deletion_timestamp.is_some() || machine.spec.provider_id.is_some();
    let host = machine.spec.machine_name.as_ref().filter(|_| !is_going)?;
    stores.claims.get(&ObjectRef::new(host.as_str())).is_none().then_some(host)
}

impl State {
    /// Returns the line, made again if the stores have changed.
    fn made(&mut self, (stores, scope): (&Stores, &Scope), (wall, now): (Timestamp, Instant)) -> Made {
        let (changes, is_old) = (stores.changes(), std::mem::take(&mut self.is_old));
        let age = |time| now.saturating_duration_since(time);
        match self.made.take() {
            Some(made) if made.changes == changes && !is_old && age(made.time) < MAX_LINE_AGE => made,
            Some(made) if age(made.checked) < MAX_CHECK_AGE => {
                let has_hosts = made.changes.1 == changes.1;
                let checks = made.line.into_checks();
                let checks = if has_hosts { checks } else { checks.renewed(hosts(stores), wall) };
                let line = Line::new(checks, self.waiting(stores, scope, now));
                Made { line, changes, time: now, checked: made.checked }
            }
            Some(_) | None => {
                let line = Line::new(Checks::new(hosts(stores), wall), self.waiting(stores, scope, now));
                Made { line, changes, time: now, checked: now }
            }
        }
    }

    /// Returns the claimants that wait, and notes those that have recorded a host: another process may have led until now.
    fn waiting(&mut self, stores: &Stores, scope: &Scope, now: Instant) -> Vec<Waiting> {
        let machines = stores.machines.state();
        let keys: HashSet<Key> = machines.iter().map(|machine| key(machine)).collect();
        self.tries.retain(|key| keys.contains(key), now);
        self.away.retain(|key| keys.contains(key));
        let mut all = Vec::new();
        for machine in machines {
            let recorded = recorded(&machine, stores);
            if !scope.includes(machine.labels()) || !(waits(&machine) || recorded.is_some()) {
                continue;
            }
            let Owners { owner, cluster, failure_domain_label } = Owners::of(&machine, stores);
            if owner.is_none() || is_paused(&*machine, cluster.as_deref()) {
                continue;
            }
            match recorded {
                Some(host) => self.tries.see(key(&machine), host, now),
                None if self.away.contains(&key(&machine)) => {}
                None => all.push(waiting(&machine, owner.as_deref(), failure_domain_label.as_deref())),
            }
        }
        all
    }
}

/// Returns the hosts of the pool.
fn hosts(stores: &Stores) -> Vec<Host> {
    let pool = stores.hosts.state().into_iter().filter(|host| host.spec.claim_policy.is_some());
    let with_claim = |machine: Arc<Machine>| {
        let is_claimed = stores.claims.get(&ObjectRef::new(&machine.name_any())).is_some();
        Host { machine, is_claimed }
    };
    pool.map(with_claim).collect()
}

#[cfg(test)]
mod tests;
