//! Metrics of the agent for `/metrics` on its socket: contact with the decider, steps and their duration,
//! slots, failed health gates, operations, the certificate, watches.
//!
//! One set per process, like its log. The code that acts also counts. Labels are closed sets of words.
//! Nothing here decides. Called by `service`, `node`, `plane` and `operation`; read by `process::health`.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bedplate_api::machine::{Slot, SlotName, SlotState};
use bedplate_api::operation::AGENT_OPERATIONS;
use bedplate_process::counter::labels;
use bedplate_process::family::{
    EncodeLabelSet, LabelSet, LabelSetEncoder, Row, register_family, register_gauges,
};
use bedplate_process::lock::Lock;
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::model::{Api, StepName};

/// The name of the socket, in the agent's directory below /run.
pub const SOCKET: &str = "metrics.sock";

/// Metrics of this process.
pub(crate) static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::default);

labels! {
    /// Act of the agent on its identity.
    pub enum Act in "act" {
        /// Enrollment.
        Enroll => "enroll",
        /// Renewal of the certificate.
        Renew => "renew",
        /// Report to pxed or to the cluster.
        Report => "report",
        /// Removal of the seed.
        ForgetSeed => "forget_seed",
    }
}

labels! {
    /// Result of an act or a step.
    pub enum Went in "result" {
        /// Finished or started.
        Done => "done",
        /// Another program must act first, or the step is not needed any more.
        Pending => "pending",
        /// Failed; a retry follows.
        Failed => "failed",
    }
}

labels! {
    /// Objects that are watched.
    #[derive(PartialOrd, Ord)]
    pub enum Watched in "watch" {
        /// The Machine of this host.
        Machine => "machine",
        /// The Node of this host.
        Node => "node",
        /// The version that the Machine's `status.selected` names.
        Version => "version",
        /// Operations of the Machine.
        Operations => "operations",
        /// The MachineClaim of this host, if its Machine is in a pool.
        Claim => "claim",
    }
}

impl Watched {
    /// Returns the name for users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Machine => "Machine of this host",
            Self::Node => "Node of this host",
            Self::Version => "the selected version",
            Self::Operations => "operations of this host",
            Self::Claim => "the MachineClaim of this host",
        }
    }
}

labels! {
    /// Event of a watch.
    pub enum WatchResult in "result" {
        /// The watch has started.
        Started => "done",
        /// The watch has failed; a retry follows.
        Failed => "failed",
    }
}

labels! {
    /// Result of a finished operation.
    enum OperationResult in "result" {
        /// Done.
        Complete => "complete",
        /// Not done.
        Failed => "failed",
    }
}

labels! {
    /// Consequence of a failed health gate.
    enum GateFailure in "result" {
        /// The slot of the former version runs again.
        RolledBack => "rolled_back",
        /// There was no such slot; the trial starts again.
        Retried => "retried",
    }
}

/// Name of an operation of the agent. All other names are `other`: users choose them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct OperationName(&'static str);

impl OperationName {
    fn of(name: &str) -> Self {
        Self(AGENT_OPERATIONS.into_iter().find(|known| *known == name).unwrap_or("other"))
    }
}

impl EncodeLabelSet for OperationName {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> std::fmt::Result {
        [("operation", self.0)].encode(encoder)
    }
}

impl LabelSet for OperationName {
    fn all() -> impl Iterator<Item = Self> {
        AGENT_OPERATIONS.into_iter().chain(["other"]).map(Self)
    }
}

/// Counters and gauges.
#[derive(Debug, Default)]
pub struct Metrics {
    acts: Family<(Act, Went), Counter>,
    steps: Family<(StepName, Went), Counter>,
    step_seconds: Family<(StepName, Went), Counter<f64>>,
    operations: Family<(OperationName, OperationResult), Counter>,
    watches: Family<(Watched, WatchResult), Counter>,
    gate_failures: Family<GateFailure, Counter>,
    state: Arc<Lock<State>>,
}

/// State that a scrape shows. A value that is not known is not shown, and a scrape shows one state of a slot: neither is possible with
/// gauges that are set.
#[derive(Debug, Default)]
struct State {
    live: Option<bool>,
    last_report: Option<Timestamp>,
    certificate_ends: Option<Timestamp>,
    slots: [Option<SlotState>; 2],
}

impl Metrics {
    /// Counts an act.
    pub fn act(&self, act: Act, went: Went, now: Timestamp) {
        self.acts.get_or_create(&(act, went)).inc();
        if (act, went) == (Act::Report, Went::Done) {
            self.state.lock().last_report = Some(now);
        }
    }

    /// Counts a step of the node plan, with its duration.
    pub fn step(&self, step: StepName, went: Went, took: Duration) {
        self.steps.get_or_create(&(step, went)).inc();
        self.step_seconds.get_or_create(&(step, went)).inc_by(took.as_secs_f64());
    }

    /// Counts a node that did not pass its gate. `rolled_back`: a former slot runs again.
    pub(crate) fn gate_failed(&self, rolled_back: bool) {
        let failure = if rolled_back { GateFailure::RolledBack } else { GateFailure::Retried };
        self.gate_failures.get_or_create(&failure).inc();
    }

    /// Counts a finished operation.
    pub fn operation(&self, name: &str, complete: bool) {
        let result = if complete { OperationResult::Complete } else { OperationResult::Failed };
        self.operations.get_or_create(&(OperationName::of(name), result)).inc();
    }

    /// Counts a watch that started or failed.
    pub fn watch(&self, watched: Watched, result: WatchResult) {
        self.watches.get_or_create(&(watched, result)).inc();
    }

    /// Records the expiry of the certificate.
    pub fn certificate(&self, ends: Timestamp) {
        self.state.lock().certificate_ends = Some(ends);
    }

    /// Records if the decider answers, and the state of the slots.
    pub fn node(&self, api: Api, slots: &[Slot]) {
        let mut state = self.state.lock();
        state.live = match api {
            Api::Unasked => None,
            Api::Live => Some(true),
            Api::Away => Some(false),
        };
        for slot in slots {
            state.slots[usize::from(slot.name == SlotName::B)] = Some(slot.state);
        }
    }
}

/// Registry that the socket serves.
pub fn registry(metrics: &Metrics) -> Registry {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    registry
}

impl Metrics {
    fn register(&self, registry: &mut Registry) {
        let help = "1 if the API server or pxed answers, otherwise 0";
        self.register_known(registry, "bedplate_agent_plane_live", help, |state| state.live.map(u64::from));
        let help = "Enrollments, renewals, reports and removals of the seed";
        register_family(registry, "bedplate_agent_acts", help, &self.acts);
        let help = "Watches that started (done) or failed";
        register_family(registry, "bedplate_agent_watches", help, &self.watches);
        let seconds = |time: Timestamp| u64::try_from(time.as_second()).unwrap_or(0);
        let name = "bedplate_agent_last_report_timestamp_seconds";
        let help = "Unix time of the last accepted report";
        self.register_known(registry, name, help, move |state| state.last_report.map(seconds));
        let name = "bedplate_agent_certificate_end_timestamp_seconds";
        let help = "Unix time at which the certificate of the host expires";
        self.register_known(registry, name, help, move |state| state.certificate_ends.map(seconds));
        register_family(registry, "bedplate_agent_node_steps", "Steps of the node plan", &self.steps);
        let help = "Total duration of the steps of the node plan";
        register_family(registry, "bedplate_agent_node_step_duration_seconds", help, &self.step_seconds);
        let help = "New nodes that failed the health gate";
        register_family(registry, "bedplate_agent_health_gate_failures", help, &self.gate_failures);
        let (help, state) = ("1 if the slot is in this state, otherwise 0", self.state.clone());
        register_gauges(registry, "bedplate_agent_slot", help, move || slot_rows(state.lock().slots));
        register_family(registry, "bedplate_agent_operations", "Operations that finished", &self.operations);
    }

    /// Adds a gauge that is not shown before its value is known.
    fn register_known(
        &self,
        registry: &mut Registry,
        name: &'static str,
        help: &'static str,
        value: impl Fn(&State) -> Option<u64> + Send + Sync + 'static,
    ) {
        let state = self.state.clone();
        register_gauges(registry, name, help, move || value(&state.lock()).map(|value| (Vec::new(), value)));
    }
}

const SLOT_STATES: [(SlotState, &str); 6] = [
    (SlotState::Empty, "empty"),
    (SlotState::Preparing, "preparing"),
    (SlotState::Prepared, "prepared"),
    (SlotState::Running, "running"),
    (SlotState::Failed, "failed"),
    (SlotState::Emptying, "emptying"),
];

/// Returns a row for each state of each slot.
fn slot_rows(slots: [Option<SlotState>; 2]) -> Vec<Row> {
    let rows = ["a", "b"].into_iter().zip(slots).flat_map(|(slot, is)| {
        SLOT_STATES.map(|(state, word)| (vec![("slot", slot), ("state", word)], u64::from(is == Some(state))))
    });
    rows.collect()
}

#[cfg(test)]
#[path = "../../process/tests/metrics_page/mod.rs"]
mod metrics_page;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn scrape_matches_the_page_of_metrics() {
        let (all, time) = (Metrics::default(), Timestamp::UNIX_EPOCH);
        all.act(Act::Report, Went::Done, time);
        all.certificate(time);
        all.node(Api::Live, &[]);
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/metrics.md");
        metrics_page::compare(page, "bedplate-agent", &registry(&all));
    }

    #[test]
    fn counts_are_shown_with_labels_of_closed_sets() {
        let some = Metrics::default();
        let time: Timestamp = "2026-11-22T07:00:00Z".parse().unwrap();
        some.act(Act::Report, Went::Done, time);
        some.act(Act::Renew, Went::Failed, time);
        some.step(StepName::StartSlot, Went::Done, Duration::from_millis(1500));
        some.step(StepName::StartSlot, Went::Done, Duration::from_millis(500));
        some.gate_failed(true);
        some.operation("reboot", true);
        some.operation("an unknown name", false);
        some.watch(Watched::Machine, WatchResult::Failed);
        some.certificate(time);
        let (configuration_name, version, image_digest) = Default::default();
        let slot =
            Slot { name: SlotName::B, configuration_name, version, image_digest, state: SlotState::Running };
        some.node(Api::Live, &[slot]);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry(&some)).unwrap();
        for line in [
            "bedplate_agent_plane_live 1",
            "bedplate_agent_acts_total{act=\"report\",result=\"done\"} 1",
            "bedplate_agent_acts_total{act=\"renew\",result=\"failed\"} 1",
            "bedplate_agent_last_report_timestamp_seconds 1795330800",
            "bedplate_agent_certificate_end_timestamp_seconds 1795330800",
            "bedplate_agent_node_steps_total{step=\"start_slot\",result=\"done\"} 2",
            "bedplate_agent_node_step_duration_seconds_total{step=\"start_slot\",result=\"done\"} 2.0",
            "bedplate_agent_health_gate_failures_total{result=\"rolled_back\"} 1",
            "bedplate_agent_health_gate_failures_total{result=\"retried\"} 0",
            "bedplate_agent_operations_total{operation=\"reboot\",result=\"complete\"} 1",
            "bedplate_agent_operations_total{operation=\"other\",result=\"failed\"} 1",
            "bedplate_agent_watches_total{watch=\"machine\",result=\"failed\"} 1",
            "bedplate_agent_slot{slot=\"b\",state=\"running\"} 1",
            "bedplate_agent_slot{slot=\"b\",state=\"failed\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn counters_are_shown_from_the_start_and_unknown_values_are_not() {
        let none = Metrics::default();
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry(&none)).unwrap();
        assert!(text.contains("\nbedplate_agent_acts_total{act=\"enroll\",result=\"failed\"} 0\n"), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("bedplate_agent_plane_live ")), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("bedplate_agent_certificate")), "{text}");
    }
}
