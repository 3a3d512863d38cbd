//! Order of the claimants that wait for a host: control planes first, then the oldest.
//!
//! Each claimant that waits has a host left, if there is one for it, until its turn. If there are enough hosts, all of them choose immediately.
//! Read: the stores, once for each change of them. A claimant that has not looked for a host yet does not wait. Decided: `line`, `tries`. Called
//! by `machine`.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use bedplate_api::cluster::core::Machine as Owner;
use bedplate_api::cluster::infrastructure::{BedplateMachine, condition_type};
use bedplate_api::id::MachineName;
use bedplate_api::reason::infrastructure::HostClaimedReason;
use bedplate_process::lock::Lock;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use super::Owners;
use super::line::{Host, Line, Refusal, Requirements, Turn, Waiting};
use super::plan::{Observed, request};
use super::tries::{Key, Tries};
use crate::infrastructure::context::Stores;
use crate::infrastructure::owner::{is_control_plane, is_paused};
use crate::scope::Scope;

/// Maximum age of a line. Hosts become silent without a change of the stores.
const MAX_LINE_AGE: Duration = Duration::from_secs(5);

/// The line and the claimants that write a claim. The reconciliations share it.
#[derive(Debug, Default)]
pub struct Turns(Lock<State>);

#[derive(Debug, Default)]
struct State {
    /// The line, the number of changes of the stores for which it was made, and its time.
    line: Option<(Line, u64, Instant)>,
    tries: Tries,
    /// Claimants that do not wait for a host, although their condition says so: it could not be written since.
    away: HashSet<Key>,
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
            state.line = None;
        }
        let changes = stores.changes();
        let is_current = |(line, of, made): &(Line, u64, Instant)| {
            *of == changes && now.saturating_duration_since(*made) < MAX_LINE_AGE && line.knows(&asks)
        };
        let line = state.line.take().filter(is_current);
        let (line, ..) = state.line.insert(line.unwrap_or_else(|| {
            let times = (observed.now, now);
            (line_of((stores, scope), &asks, (&mut state.tries, &mut state.away), times), changes, now)
        }));
        let chosen = line.choose(&asks, &state.tries, now);
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
            state.line = None;
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

/// Makes the line, and notes the claimants that have recorded a host: another process may have led until now.
fn line_of(
    (stores, scope): (&Stores, &Scope),
    asks: &Waiting,
    (tries, away): (&mut Tries, &mut HashSet<Key>),
    (wall, now): (Timestamp, Instant),
) -> Line {
    let machines = stores.machines.state();
    let keys: HashSet<Key> = machines.iter().map(|machine| key(machine)).collect();
    tries.retain(|key| keys.contains(key), now);
    away.retain(|key| keys.contains(key));
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
            Some(host) => tries.see(key(&machine), host, now),
            None if away.contains(&key(&machine)) => {}
            None => all.push(waiting(&machine, owner.as_deref(), failure_domain_label.as_deref())),
        }
    }
    let pool = stores.hosts.state().into_iter().filter(|host| host.spec.claim_policy.is_some());
    let hosts = pool.map(|machine| {
        let is_claimed = stores.claims.get(&ObjectRef::new(&machine.name_any())).is_some();
        Host { machine, is_claimed }
    });
    Line::new(&hosts.collect::<Vec<_>>(), all, asks, wall)
}

#[cfg(test)]
mod tests;
