//! Reports to pxed: the state of the node from the node's loop, the current Node, and its deletion.
//!
//! Called by `standalone`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_api::machine::{Applied, Condition, Machine, MachineStatus, NodeRef};
use bedplate_api::wire::NodeReport;
use bedplate_process::reconcile::{Activation, Reconcile, Turn};
use jiff::Timestamp;
use tokio::sync::watch;

use crate::https::pxed::PxedClient;
use crate::plane::Seen;
use crate::plane::slot_home::OwnNode;
use crate::plane::status::{NodeStatusReport, conditions};

/// Minimum interval between two reports about the node.
const MIN_REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// Interval for repeating a report that pxed accepted but does not show. pxed
/// may have stored it after its answer, or does not store it.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// Reports the state of the node when it has changed or pxed has lost it. Ends with the node's loop.
pub(super) struct Reporter {
    client: watch::Receiver<PxedClient>,
    node: watch::Receiver<Option<NodeStatusReport>>,
    own: watch::Receiver<OwnNode>,
    seen: watch::Receiver<Seen>,
    before: MachineStatus,
    taken: Option<Taken>,
}

impl Reporter {
    pub(super) fn new(
        client: watch::Receiver<PxedClient>,
        node: watch::Receiver<Option<NodeStatusReport>>,
        own: watch::Receiver<OwnNode>,
        seen: watch::Receiver<Seen>,
    ) -> Self {
        Self { client, node, own, seen, before: MachineStatus::default(), taken: None }
    }

    /// Returns the report that is due, and the Machine as pxed sent it last.
    fn next(&mut self) -> Option<(Word, Arc<Machine>)> {
        let reported = self.node.borrow_and_update().clone()?;
        let Some(machine) = self.seen.borrow_and_update().machine.clone() else {
            // pxed does not know this Machine, or no longer: it has lost the former reports too.
            self.taken = None;
            return None;
        };
        self.before.conditions = conditions(&reported, &self.before, Timestamp::now());
        let own = self.own.borrow_and_update().clone();
        let word = Word::new(reported, self.before.conditions.clone(), &own, &machine);
        let holds = self.taken.as_mut().is_some_and(|taken| taken.holds(&word, &machine, Instant::now()));
        (!holds).then_some((word, machine))
    }
}

impl Reconcile for Reporter {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        let changed = tokio::select! {
            changed = self.node.changed() => changed,
            changed = self.own.changed() => changed,
            changed = self.seen.changed() => changed,
        };
        changed.ok()
    }

    async fn turn(&mut self, _: Activation<()>) -> Turn {
        let now = Instant::now();
        if let Some(next) =
            self.taken.as_ref().map(|taken| taken.at + MIN_REPORT_INTERVAL).filter(|next| now < *next)
        {
            return Turn::At(next.into());
        }
        if let Some((word, machine)) = self.next() {
            let client = self.client.borrow().clone();
            if let Err(error) = client.report_node(&word.report).await {
                return Turn::Retry(error.into());
            }
            let taken = self.taken.insert(Taken { word, machine, at: Instant::now() });
            return Turn::At((taken.at + MIN_REPORT_INTERVAL).into());
        }
        let again = self.taken.as_ref().and_then(Taken::again);
        again.map_or(Turn::Idle, |again| Turn::At(again.into()))
    }
}

/// The last report that pxed has accepted.
struct Taken {
    word: Word,
    /// Machine that pxed has sent since.
    machine: Arc<Machine>,
    at: Instant,
}

impl Taken {
    /// Returns true if this report is not due: pxed has it, or may not have shown it yet.
    fn holds(&mut self, word: &Word, machine: &Arc<Machine>, now: Instant) -> bool {
        let same = Arc::ptr_eq(&self.machine, machine);
        self.machine.clone_from(machine);
        let fresh = same && now.saturating_duration_since(self.at) < REPEAT_INTERVAL;
        self.word == *word && (fresh || !lacks(machine, &word.report))
    }

    /// Returns the time of the next repetition, if pxed's Machine does not change until then.
    fn again(&self) -> Option<Instant> {
        lacks(&self.machine, &self.word.report).then(|| self.at + REPEAT_INTERVAL)
    }
}

/// Returns true if pxed's Machine lacks this report: its store was lost, or the
/// Machine's manifest was missing for a while.
fn lacks(machine: &Machine, report: &NodeReport) -> bool {
    let status = machine.status.as_ref();
    let version = |applied: &Applied| (applied.name.clone(), applied.version, applied.slot);
    let applied = status.and_then(|status| status.applied.as_ref()).map(version);
    let slots = status.is_some_and(|status| !status.slots.is_empty());
    let node = status.and_then(|status| status.node_ref.as_ref());
    report.applied.is_some() && report.applied.as_ref().map(version) != applied
        || report.node.is_some() && report.node.as_ref() != node
        || !report.slots.is_empty() && !slots
}

/// Report, and the part that makes it new.
#[derive(Debug, Clone, PartialEq)]
struct Word {
    report: NodeReport,
    /// Machine of a deletion report. It is repeated when the Machine has
    /// changed, because a paused one may have been unpaused.
    machine: Option<Arc<Machine>>,
}

impl Word {
    fn new(
        reported: NodeStatusReport,
        conditions: Vec<Condition>,
        own: &OwnNode,
        machine: &Arc<Machine>,
    ) -> Self {
        let node_ref = machine.status.as_ref().and_then(|status| status.node_ref.as_ref());
        let (mut node, mut node_gone) = (None, None);
        match own {
            OwnNode::Present(found) => {
                let name = found.metadata.name.clone();
                node = name.zip(found.metadata.uid.clone()).map(|(name, uid)| NodeRef::new(name, uid));
            }
            OwnNode::Gone => node_gone = node_ref.map(|node| node.uid.clone()),
            OwnNode::Unasked
            | OwnNode::Nowhere
            | OwnNode::NotJoined
            | OwnNode::Asleep { .. }
            | OwnNode::Silent { .. } => {}
        }
        let machine = node_gone.is_some().then(|| Arc::clone(machine));
        let report = NodeReport {
            applied: reported.applied,
            slots: reported.slots,
            rolled_back: reported.rolled_back,
            conditions,
            node,
            node_gone,
        };
        Self { report, machine }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine(status: &serde_json::Value) -> Arc<Machine> {
        let object =
            json!({ "metadata": { "name": "a" }, "spec": { "provider": "manual" }, "status": status });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn with_node() -> Arc<Machine> {
        machine(&json!({ "nodeRef": { "name": "a", "uid": "n" } }))
    }

    fn nothing() -> Arc<Machine> {
        machine(&json!({}))
    }

    fn present() -> OwnNode {
        let node = serde_json::from_value(json!({ "metadata": { "name": "a", "uid": "n" } })).unwrap();
        OwnNode::Present(Arc::new(node))
    }

    fn word(own: &OwnNode, machine: &Arc<Machine>) -> Word {
        Word::new(NodeStatusReport::default(), Vec::new(), own, machine)
    }

    #[test]
    fn h6_only_a_deleted_node_is_reported_deleted_with_the_uid_pxed_knows() {
        let gone = word(&OwnNode::Gone, &with_node());
        assert_eq!((gone.report.node_gone.as_deref(), gone.report.node), (Some("n"), None));
        assert_eq!(word(&OwnNode::Gone, &nothing()).report.node_gone, None, "pxed knows already");
        let silent = OwnNode::Silent { why: "refused".to_owned(), runs_api: true };
        let asleep = OwnNode::Asleep { node_uid: "n".to_owned() };
        for own in [OwnNode::Unasked, OwnNode::Nowhere, OwnNode::NotJoined, silent, asleep] {
            let report = word(&own, &with_node()).report;
            assert_eq!((report.node, report.node_gone), (None, None), "{own:?}");
        }
    }

    #[test]
    fn deletion_is_reported_again_when_the_machine_changes_and_health_is_not() {
        let mut other = Machine::clone(&with_node());
        other.spec.paused = true;
        let other = Arc::new(other);
        assert_eq!(word(&present(), &with_node()), word(&present(), &other));
        assert_eq!(word(&present(), &nothing()).report.node.map(|node| node.uid).as_deref(), Some("n"));
        assert_ne!(word(&OwnNode::Gone, &with_node()), word(&OwnNode::Gone, &other));
    }

    /// A node that runs and is in its cluster.
    fn healthy(machine: &Arc<Machine>) -> Word {
        let reported = NodeStatusReport {
            applied: serde_json::from_value(json!({ "name": "w", "version": 1, "slot": "a" })).unwrap(),
            slots: serde_json::from_value(json!([{ "name": "a", "state": "Running" }])).unwrap(),
            ..NodeStatusReport::default()
        };
        Word::new(reported, Vec::new(), &present(), machine)
    }

    #[test]
    fn node_report_that_pxed_lost_is_repeated() {
        let (start, node) = (Instant::now(), json!({ "name": "a", "uid": "n" }));
        let applied = json!({ "name": "w", "version": 1, "slot": "a" });
        let slots = json!([{ "name": "a", "state": "Running" }]);
        let whole = machine(&json!({ "applied": applied, "slots": slots, "nodeRef": node }));
        for forgot in [
            json!({}),
            json!({ "slots": slots, "nodeRef": node }),
            json!({ "applied": { "name": "w", "version": 2, "slot": "b" }, "slots": slots, "nodeRef": node }),
            json!({ "applied": applied, "nodeRef": node }),
            json!({ "applied": applied, "slots": slots }),
            json!({ "applied": applied, "slots": slots, "nodeRef": { "name": "a", "uid": "before" } }),
        ] {
            let mut taken = Taken { word: healthy(&nothing()), machine: nothing(), at: start };
            assert!(taken.holds(&healthy(&whole), &whole, start), "it tells of all");
            assert_eq!(taken.again(), None);
            let forgot = machine(&forgot);
            assert!(!taken.holds(&healthy(&forgot), &forgot, start), "{forgot:?}");
        }
    }

    #[test]
    fn report_that_pxed_accepts_but_never_shows_is_repeated_at_an_interval() {
        let (start, before) = (Instant::now(), nothing());
        let mut taken = Taken { word: healthy(&before), machine: Arc::clone(&before), at: start };
        assert!(taken.holds(&healthy(&before), &before, start), "it has not come to tell of it");
        assert_eq!(taken.again(), Some(start + REPEAT_INTERVAL));
        assert!(!taken.holds(&healthy(&before), &before, start + REPEAT_INTERVAL));
        assert!(!taken.holds(&word(&OwnNode::Gone, &before), &before, start), "news");
    }
}
