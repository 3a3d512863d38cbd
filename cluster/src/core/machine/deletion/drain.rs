//! Pure: cordon and drain of the Node of a Machine, and the report about its Pods. Caller: `plan`; the sender of evictions calls `settle`.
//!
//! ```text
//! start recorded -> cordon -> evict Pods of the lowest order, at most 20 in a turn -> wait until they are gone -> next order
//! ```
//! A rejected eviction is held for a while. Other Pods come first in the next turn, so one budget does not stop the rest.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_api::cluster::full::Machine;
use bedplate_api::cluster::part::annotation;
use bedplate_api::reason::core::MachineDeletingReason as Reason;
use bedplate_rules::drain::{self as rules, Evicted, Pod};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::list;
use super::node::NodeState;
use super::object::is_infrastructure_alive;
use super::plan::{Act, Needed, Observed, Plan, deadline, is_node_served, later, second, until};
use super::pod::{PodsView, Target, Treatment};

/// Maximum number of evictions in a turn.
pub const EVICTIONS_PER_TURN: usize = 20;

/// Interval between turns of a drain or of a wait for volumes.
pub(super) const POLL_INTERVAL: SignedDuration = SignedDuration::from_secs(20);
/// Interval between turns while Pods wait for their first eviction.
const NEXT_BATCH_INTERVAL: SignedDuration = SignedDuration::from_secs(1);
/// Time in seconds that a Pod on an unreachable Node has to end.
const UNREACHABLE_GRACE_SECONDS: u32 = 1;
/// Maximum number of causes of rejected evictions in a message.
const MAX_CAUSES: usize = 3;

/// Rejected eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Time of the next attempt.
    pub until: Timestamp,
    /// Cause, for a user.
    pub why: String,
}

/// Returns the cause for which a Node is not drained, for a user.
pub(super) fn skipped(machine: &Machine) -> Option<String> {
    if machine.annotations().contains_key(annotation::EXCLUDE_NODE_DRAINING) {
        return Some(format!("annotation {} is set", annotation::EXCLUDE_NODE_DRAINING));
    }
    (!is_node_served(machine))
        .then(|| "its etcd member was removed, so its kubelet does not stop Pods".to_owned())
}

/// Drains the Node. None: it is drained, it is not drained by the user's will, or its timeout has expired.
pub(super) fn step(observed: &Observed, name: &str, now: Timestamp) -> Option<Plan> {
    let machine = &*observed.machine;
    if skipped(machine).is_some() {
        return None;
    }
    let spec = machine.spec.deletion.as_ref();
    let start = machine.status.as_ref().and_then(|status| status.deletion.as_ref());
    let start = start.and_then(|deletion| deletion.node_drain_start_time.as_ref()).map(|time| time.0);
    let limit = deadline(start, spec.and_then(|spec| spec.node_drain_timeout_seconds));
    if limit.is_some_and(|limit| limit <= now) {
        return None;
    }
    let Some(answer) = &observed.node else { return Some(Plan::read(Needed::Node(name.to_owned()))) };
    let is_done = match answer {
        Ok(_) => observed.own_node().is_none(),
        Err(_) => !is_infrastructure_alive(observed),
    };
    if is_done {
        return None;
    }
    let Some(start) = start else {
        let message = format!("Node {name} is being drained");
        return Some(Plan::act(Act::RecordDrainStart(now), Reason::DrainingNode, message));
    };
    let turn = Turn { name, now, start, limit };
    match (answer, observed.own_node()) {
        (Err(why), _) => Some(turn.failed("Node", why)),
        (Ok(_), node) => node.and_then(|node| turn.drain(observed, node)),
    }
}

/// Times of a drain.
struct Turn<'a> {
    name: &'a str,
    now: Timestamp,
    start: Timestamp,
    limit: Option<Timestamp>,
}

impl Turn<'_> {
    fn drain(&self, observed: &Observed, node: &NodeState) -> Option<Plan> {
        if !node.is_unschedulable {
            let act = Act::Cordon { name: node.name.clone(), uid: node.uid.clone() };
            return Some(self.report(act, "it is cordoned first"));
        }
        let view = match &observed.pods {
            None => return Some(Plan::read(Needed::Pods(self.name.to_owned()))),
            Some(Err(_)) if !is_infrastructure_alive(observed) => return None,
            Some(Err(why)) => return Some(self.failed("Pods", why)),
            Some(Ok(view)) if view.targets.is_empty() && view.more == 0 => return None,
            Some(Ok(view)) => view,
        };
        let groups = Groups::of(view, &observed.holds, self.now);
        let pods: Vec<Pod> = groups.due.iter().take(EVICTIONS_PER_TURN).map(|pod| (*pod).clone()).collect();
        let grace = node.is_unreachable.then_some(UNREACHABLE_GRACE_SECONDS);
        let act = if pods.is_empty() { Act::Wait } else { Act::Evict { pods, grace } };
        let interval = if groups.due.is_empty() { POLL_INTERVAL } else { NEXT_BATCH_INTERVAL };
        let again = later(self.now, interval).min(groups.next_attempt.unwrap_or(Timestamp::MAX));
        let again = self.limit.map_or(again, |limit| limit.min(again));
        Some(self.report(act, &groups.text(view.more)).again(again))
    }

    fn failed(&self, what: &str, why: &str) -> Plan {
        let again = later(self.now, POLL_INTERVAL);
        let again = self.limit.map_or(again, |limit| limit.min(again));
        self.report(Act::Wait, &format!("{what} cannot be read: {}", list::text(why))).again(again)
    }

    fn report(&self, act: Act, state: &str) -> Plan {
        let (name, start) = (self.name, second(self.start));
        let message = format!("Node {name} is being drained since {start}: {state}{}", until(self.limit));
        Plan::act(act, Reason::DrainingNode, message)
    }
}

/// Pods of a view by their next step.
#[derive(Default)]
struct Groups<'a> {
    /// Pods that are being deleted.
    leaving: Vec<String>,
    /// Pods that are evicted now. Those without a rejected eviction come first.
    due: Vec<&'a Pod>,
    /// Pods whose eviction was rejected, by cause.
    held: BTreeMap<&'a str, Vec<String>>,
    /// Time of the next attempt at a held Pod.
    next_attempt: Option<Timestamp>,
    /// Pods that are not evicted: the drain waits until they finish.
    completing: Vec<String>,
    /// Pods without a decision, by cause.
    undecided: BTreeMap<&'a str, Vec<String>>,
    /// Number of Pods of a higher order.
    later: usize,
}

impl<'a> Groups<'a> {
    fn of(view: &'a PodsView, holds: &'a BTreeMap<String, Hold>, now: Timestamp) -> Self {
        let mut groups = Self::default();
        let lowest = view.targets.iter().map(|target| target.order).min().unwrap_or_default();
        let mut retried = Vec::new();
        for Target { pod, order, treatment } in &view.targets {
            let hold = holds.get(&pod.uid);
            match treatment {
                _ if pod.leaving => groups.leaving.push(pod.full_name()),
                Treatment::Undecided(why) => groups.undecided.entry(why).or_default().push(pod.full_name()),
                _ if *order > lowest => groups.later += 1,
                Treatment::Complete => groups.completing.push(pod.full_name()),
                Treatment::Evict => match hold {
                    None => groups.due.push(pod),
                    Some(hold) => {
                        groups.held.entry(&hold.why).or_default().push(pod.full_name());
                        if hold.until <= now {
                            retried.push((hold.until, pod));
                        } else {
                            let first = groups.next_attempt.unwrap_or(Timestamp::MAX);
                            groups.next_attempt = Some(first.min(hold.until));
                        }
                    }
                },
            }
        }
        retried.sort_by_key(|(until, pod)| (*until, pod.full_name()));
        groups.due.extend(retried.into_iter().map(|(_, pod)| pod));
        groups
    }

    /// Returns the text of the condition. It does not depend on the time of the turn.
    fn text(&self, more: usize) -> String {
        let mut parts = Vec::new();
        let held: BTreeSet<String> = self.held.values().flatten().cloned().collect();
        let fresh = self.due.iter().map(|pod| pod.full_name()).filter(|name| !held.contains(name));
        let fresh: Vec<String> = fresh.collect();
        for (names, what) in [
            (&self.leaving, "are being deleted"),
            (&fresh, "are evicted next"),
            (&self.completing, "are left to finish"),
        ] {
            if !names.is_empty() {
                parts.push(format!("Pods {} {what}", list::names(names, 0)));
            }
        }
        let causes = self.held.iter().chain(&self.undecided);
        for (why, names) in causes.clone().take(MAX_CAUSES) {
            parts.push(format!("Pods {} are not evicted: {why}", list::names(names, 0)));
        }
        let others: usize = causes.skip(MAX_CAUSES).map(|(_, names)| names.len()).sum();
        for (count, one, many) in [
            (others, "1 Pod is not evicted for another cause", "Pods are not evicted for other causes"),
            (self.later + more, "1 Pod follows after these", "Pods follow after these"),
        ] {
            match count {
                0 => {}
                1 => parts.push(one.to_owned()),
                count => parts.push(format!("{count} {many}")),
            }
        }
        parts.join("; ")
    }
}

impl Observed {
    /// Records the results of evictions, by the UID of the Pod. The next plan reports them.
    pub fn settle(&mut self, results: Vec<(String, Result<Evicted, String>)>, now: Timestamp) {
        let Some(Ok(view)) = &mut self.pods else { return };
        for (uid, result) in results {
            let (named, why) = match result {
                Ok(Evicted::Accepted) => {
                    let pods = view.targets.iter_mut().map(|target| &mut target.pod);
                    pods.filter(|pod| pod.uid == uid).for_each(|pod| pod.leaving = true);
                    continue;
                }
                Ok(Evicted::Gone) => {
                    view.targets.retain(|target| target.pod.uid != uid);
                    continue;
                }
                Ok(Evicted::Held { again, why }) => (again, why),
                Err(why) => (None, why),
            };
            self.holds.insert(uid, Hold { until: rules::again(now, named), why: list::text(&why) });
        }
        let waiting: BTreeSet<&str> = view
            .targets
            .iter()
            .filter(|target| !target.pod.leaving)
            .map(|target| target.pod.uid.as_str())
            .collect();
        self.holds.retain(|uid, _| waiting.contains(uid.as_str()));
    }
}
