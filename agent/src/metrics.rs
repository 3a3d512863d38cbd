//! Metrics of the agent for `/metrics` on its socket: contact with the decider, steps and their duration,
//! slots, failed health gates, operations, the certificate, watches.
//!
//! One set per process, like its log. The code that acts also counts. Labels are closed sets of words.
//! Nothing here decides. Called by `service`, `node`, `plane` and `operation`; read by `process::health`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bedplate_api::machine::{Slot, SlotName, SlotState};
use bedplate_api::operation::AGENT_OPERATIONS;
use bedplate_process::counter::{Label, labels};
use bedplate_process::family::{Row, count_rows, gauge_rows, seconds_rows};
use bedplate_process::lock::Lock;
use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use crate::model::{Api, StepName};

/// The name of the socket, in the agent's directory below /run.
pub const SOCKET: &str = "metrics.sock";

/// Metrics of this process.
pub static METRICS: Metrics = Metrics::new();

labels! {
    /// Act of the agent on its identity.
    pub enum Act {
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
    /// Result of an act, a step or a watch.
    pub enum Went {
        /// Finished or started.
        Done => "done",
        /// Another program must act first, or the step is not needed any more.
        Pending => "pending",
        /// Failed; a retry follows.
        Failed => "failed",
    }
}

/// Two words of closed sets.
type Words = (&'static str, &'static str);

/// Counters and gauges.
#[derive(Debug)]
pub struct Metrics {
    inner: Lock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    acts: BTreeMap<Words, u64>,
    steps: BTreeMap<Words, (u64, Duration)>,
    operations: BTreeMap<Words, u64>,
    watches: BTreeMap<Words, u64>,
    rolled_back: u64,
    tried_again: u64,
    live: Option<bool>,
    last_report: Option<Timestamp>,
    certificate_ends: Option<Timestamp>,
    slots: [Option<SlotState>; 2],
}

impl Metrics {
    const fn new() -> Self {
        Self {
            inner: Lock::new(Inner {
                acts: BTreeMap::new(),
                steps: BTreeMap::new(),
                operations: BTreeMap::new(),
                watches: BTreeMap::new(),
                rolled_back: 0,
                tried_again: 0,
                live: None,
                last_report: None,
                certificate_ends: None,
                slots: [None, None],
            }),
        }
    }

    /// Counts an act.
    pub fn act(&self, act: Act, went: Went, now: Timestamp) {
        let mut inner = self.inner.lock();
        *inner.acts.entry((act.word(), went.word())).or_default() += 1;
        if act == Act::Report && went == Went::Done {
            inner.last_report = Some(now);
        }
    }

    /// Counts a step of the node plan, with its duration.
    pub fn step(&self, step: StepName, went: Went, took: Duration) {
        let mut inner = self.inner.lock();
        let (times, total) = inner.steps.entry((step.word(), went.word())).or_default();
        *times += 1;
        *total += took;
    }

    /// A new node did not pass its gate; `rolled_back`: there was a slot to go back to.
    pub fn gate_failed(&self, rolled_back: bool) {
        let mut inner = self.inner.lock();
        if rolled_back { inner.rolled_back += 1 } else { inner.tried_again += 1 }
    }

    /// Counts a finished operation.
    pub fn operation(&self, name: &str, complete: bool) {
        let known = AGENT_OPERATIONS.into_iter().find(|known| *known == name).unwrap_or("other");
        let result = if complete { "complete" } else { "failed" };
        *self.inner.lock().operations.entry((known, result)).or_default() += 1;
    }

    /// Counts a watch that started or failed.
    pub fn watch(&self, watched: impl Label, went: Went) {
        *self.inner.lock().watches.entry((watched.word(), went.word())).or_default() += 1;
    }

    /// Records the expiry of the certificate.
    pub fn certificate(&self, ends: Timestamp) {
        self.inner.lock().certificate_ends = Some(ends);
    }

    /// Records if the decider answers, and the state of the slots.
    pub fn node(&self, api: Api, slots: &[Slot]) {
        let mut inner = self.inner.lock();
        inner.live = match api {
            Api::Unasked => None,
            Api::Live => Some(true),
            Api::Away => Some(false),
        };
        for slot in slots {
            inner.slots[usize::from(slot.name == SlotName::B)] = Some(slot.state);
        }
    }
}

/// Registry that the socket serves.
pub fn registry(metrics: &'static Metrics) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Shown(metrics)));
    registry
}

#[derive(Debug)]
struct Shown(&'static Metrics);

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let inner = self.0.inner.lock();
        inner.encode_contact(&mut encoder)?;
        inner.encode_node(&mut encoder)?;
        let operations = pairs(["operation", "result"], inner.operations.iter());
        count_rows(&mut encoder, "bedplate_agent_operations", "Operations that finished", operations)
    }
}

impl Inner {
    fn encode_contact(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let alone = |value: Option<u64>| value.map(|value| (Vec::new(), value));
        let live = alone(self.live.map(u64::from));
        let help = "1 if the API server or pxed answers, otherwise 0";
        gauge_rows(encoder, "bedplate_agent_plane_live", help, live)?;
        let acts = pairs(["act", "result"], self.acts.iter());
        count_rows(
            encoder,
            "bedplate_agent_acts",
            "Enrollments, renewals, reports and removals of the seed",
            acts,
        )?;
        let watches = pairs(["watch", "result"], self.watches.iter());
        count_rows(encoder, "bedplate_agent_watches", "Watches that started (done) or failed", watches)?;
        let seconds = |time: Timestamp| u64::try_from(time.as_second()).unwrap_or(0);
        let help = "Unix time of the last accepted report";
        let reported = alone(self.last_report.map(seconds));
        gauge_rows(encoder, "bedplate_agent_last_report_timestamp_seconds", help, reported)?;
        let help = "Unix time at which the certificate of the host expires";
        let ends = alone(self.certificate_ends.map(seconds));
        gauge_rows(encoder, "bedplate_agent_certificate_end_timestamp_seconds", help, ends)
    }

    fn encode_node(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let times: Vec<_> = self.steps.iter().map(|(words, (times, _))| (words, times)).collect();
        let steps = pairs(["step", "result"], times);
        count_rows(encoder, "bedplate_agent_node_steps", "Steps of the node plan", steps)?;
        let taken = self.steps.iter().map(|(words, (_, total))| (words, total));
        let taken = pairs(["step", "result"], taken);
        seconds_rows(
            encoder,
            "bedplate_agent_node_step_duration_seconds",
            "Total duration of the steps of the node plan",
            taken,
        )?;
        let failures = [("rolled_back", self.rolled_back), ("retried", self.tried_again)];
        let failures = failures.map(|(result, times)| (vec![("result", result)], times));
        let help = "New nodes that failed the health gate";
        count_rows(encoder, "bedplate_agent_health_gate_failures", help, failures)?;
        let slots = ["a", "b"].into_iter().zip(self.slots).flat_map(|(slot, is)| {
            let row = move |state| {
                (vec![("slot", slot), ("state", state_word(state))], u64::from(is == Some(state)))
            };
            STATES.map(row)
        });
        gauge_rows(encoder, "bedplate_agent_slot", "1 if the slot is in this state, otherwise 0", slots)
    }
}

/// Rows of two labels.
fn pairs<'a, N: Copy + 'a>(
    names: [&'static str; 2],
    counted: impl IntoIterator<Item = (&'a Words, &'a N)>,
) -> Vec<Row<N>> {
    let row = |((one, other), value): (&Words, &N)| (vec![(names[0], *one), (names[1], *other)], *value);
    counted.into_iter().map(row).collect()
}

const STATES: [SlotState; 6] = [
    SlotState::Empty,
    SlotState::Preparing,
    SlotState::Prepared,
    SlotState::Running,
    SlotState::Failed,
    SlotState::Emptying,
];

fn state_word(state: SlotState) -> &'static str {
    match state {
        SlotState::Empty => "empty",
        SlotState::Preparing => "preparing",
        SlotState::Prepared => "prepared",
        SlotState::Running => "running",
        SlotState::Failed => "failed",
        SlotState::Emptying => "emptying",
        SlotState::Unknown => "unknown",
    }
}

#[cfg(test)]
#[path = "../../process/tests/metrics_page/mod.rs"]
mod metrics_page;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use crate::plane::Watched;

    #[test]
    fn scrape_matches_the_page_of_metrics() {
        static ALL: Metrics = Metrics::new();
        let time = Timestamp::UNIX_EPOCH;
        for went in Went::ALL.iter().copied() {
            Act::ALL.iter().for_each(|act| ALL.act(*act, went, time));
            StepName::ALL.iter().for_each(|step| ALL.step(*step, went, Duration::ZERO));
        }
        for watched in Watched::ALL.iter().copied() {
            ALL.watch(watched, Went::Done);
            ALL.watch(watched, Went::Failed);
        }
        for operation in AGENT_OPERATIONS.into_iter().chain(["other"]) {
            ALL.operation(operation, true);
            ALL.operation(operation, false);
        }
        ALL.certificate(time);
        ALL.node(Api::Live, &[]);
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
        metrics_page::compare(page, "bedplate-agent", &registry(&ALL));
    }

    #[test]
    fn counts_are_shown_with_labels_of_closed_sets() {
        static SOME: Metrics = Metrics::new();
        let time: Timestamp = "2026-11-22T07:00:00Z".parse().unwrap();
        SOME.act(Act::Report, Went::Done, time);
        SOME.act(Act::Renew, Went::Failed, time);
        SOME.step(StepName::StartSlot, Went::Done, Duration::from_millis(1500));
        SOME.step(StepName::StartSlot, Went::Done, Duration::from_millis(500));
        SOME.gate_failed(true);
        SOME.operation("reboot", true);
        SOME.operation("a word of somebody's", false);
        SOME.watch(Watched::Machine, Went::Failed);
        SOME.certificate(time);
        let (configuration_name, version, image_digest) = Default::default();
        let slot =
            Slot { name: SlotName::B, configuration_name, version, image_digest, state: SlotState::Running };
        SOME.node(Api::Live, &[slot]);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry(&SOME)).unwrap();
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
    fn unknown_values_are_not_shown() {
        static NONE: Metrics = Metrics::new();
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry(&NONE)).unwrap();
        assert!(!text.lines().any(|line| line.starts_with("bedplate_agent_plane_live ")), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("bedplate_agent_certificate")), "{text}");
    }
}
