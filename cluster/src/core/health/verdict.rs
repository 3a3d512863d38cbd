//! Pure: the verdict of all health checks about a Machine. Several checks may select it, and the pass over each of them writes the same conditions.
//! Otherwise the passes would write against each other forever. Called by [`plan`](super::plan).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_api::cluster::full::condition_type::HEALTH_CHECK_SUCCEEDED;
use bedplate_api::cluster::full::{Cluster, MachineHealthCheck};
use bedplate_replicas::{HealthPlan, Judgment, Key, judge};
use jiff::Timestamp;
use kube::ResourceExt;

use super::observe::{Observed, ObservedMachine};
use crate::core::object::{Conditions as _, is_deleting, is_true};
use crate::owner::is_paused;

/// Returns the verdicts about Machines whose conditions may change, by their names. One failed check is enough for a failure. A Machine succeeds if
/// all checks that select it succeed. A check that is paused or being deleted has no vote.
pub(super) fn verdicts(
    observed: &Observed,
    cluster: &Cluster,
    own: &HealthPlan,
    now: Timestamp,
) -> BTreeMap<String, Judgment> {
    let machines = due(observed, own);
    let has_vote =
        |check: &&Arc<MachineHealthCheck>| !is_deleting(&***check) && !is_paused(&***check, Some(cluster));
    let mut checks: Vec<_> = observed.others.iter().filter(has_vote).chain([&observed.check]).collect();
    // The passes of all checks write the failures in one order.
    checks.sort_by_key(|check| check.name_any());
    let mut verdicts = BTreeMap::new();
    for check in checks {
        let seen = Observed {
            check: Arc::clone(check),
            cluster: observed.cluster.clone(),
            machines: machines.clone(),
            others: Vec::new(),
        };
        let rules = seen.health_check(cluster);
        for machine in seen.matched() {
            let name = machine.machine.name_any();
            let judgment = judge(&machine.target(), &rules, now);
            let verdict = match verdicts.remove(&name) {
                Some(before) => both(before, judgment),
                None => judgment,
            };
            verdicts.insert(name, verdict);
        }
    }
    verdicts
}

/// Returns the Machines that the check judges, without those whose condition is True as the check has it.
fn due(observed: &Observed, own: &HealthPlan) -> Vec<ObservedMachine> {
    let healthy: BTreeSet<&Key> = own.healthy.iter().collect();
    let unhealthy: BTreeSet<&Key> = own.unhealthy.iter().map(|(key, _)| key).collect();
    let is_due = |machine: &&ObservedMachine| {
        let (key, conditions) = (Key(machine.machine.name_any()), machine.machine.conditions());
        unhealthy.contains(&key) || healthy.contains(&key) && !is_true(conditions, HEALTH_CHECK_SUCCEEDED)
    };
    observed.matched().into_iter().filter(is_due).cloned().collect()
}

/// Merges the judgments of two checks.
fn both(one: Judgment, other: Judgment) -> Judgment {
    match (one, other) {
        (Judgment::Unhealthy(mut all), Judgment::Unhealthy(more)) => {
            let more: Vec<_> = more.into_iter().filter(|failure| !all.contains(failure)).collect();
            all.extend(more);
            Judgment::Unhealthy(all)
        }
        (Judgment::Unhealthy(all), Judgment::Healthy | Judgment::Undecided(_))
        | (Judgment::Healthy | Judgment::Undecided(_), Judgment::Unhealthy(all)) => Judgment::Unhealthy(all),
        (Judgment::Healthy, Judgment::Healthy) => Judgment::Healthy,
        (Judgment::Undecided(_), _) | (_, Judgment::Undecided(_)) => Judgment::Undecided(None),
    }
}
