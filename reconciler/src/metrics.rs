//! Counters of the controller, and their form in `/metrics`. Labels are closed sets, never the name of a Machine.

use bedplate_engine::counters::{self, Kinds, Names};
use bedplate_process::counter::labels;
use bedplate_process::family::register_family;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

labels! {
    /// Kinds that are reconciled.
    pub enum Kind in "kind" {
        /// MachineConfigurations and their versions.
        Configuration => "MachineConfiguration",
        /// Versions whose configuration is deleted.
        Version => "MachineConfigurationVersion",
        /// Machines and their Nodes.
        Machine => "Machine",
        /// Certificate signing requests.
        Request => "CertificateSigningRequest",
        /// MachineOperations.
        Operation => "MachineOperation",
        /// Rolling updates of MachineConfigurations.
        Rollout => "Rollout",
        /// Machines that are drained before they are deleted.
        Deletion => "Deletion",
        /// Images that versions name by a tag.
        Image => "Image",
    }
}

impl Kinds for Kind {
    const NAMES: Names = Names {
        reconciles: "bedplate_controller_reconciles",
        writes: "bedplate_controller_writes",
        watch_errors: "bedplate_controller_watch_errors",
        leader: "bedplate_controller_leader",
        queue_depth: "bedplate_controller_queue_depth",
        queue_oldest: "bedplate_controller_queue_oldest_seconds",
        watch_age: "bedplate_controller_watch_age_seconds",
        reconcile_duration: "bedplate_controller_reconcile_duration_seconds",
    };
}

labels! {
    /// A step of a Machine's turn in a rolling update.
    pub enum Turn in "step" {
        /// The Machine's version is selected, and fetched.
        Select => "select",
        /// The Machine's Node is cordoned.
        Cordon => "cordon",
        /// The Node's Pods are evicted, then the Node is deleted.
        Drain => "drain",
        /// The Node is uncordoned: the turn ended without a result.
        Uncordon => "uncordon",
    }
}

labels! {
    /// Result of a step.
    enum TurnResult in "result" {
        /// Done.
        Done => "done",
        /// Failed.
        Failed => "failed",
    }
}

labels! {
    /// Result of an eviction.
    pub enum Eviction in "result" {
        /// The Pod ends.
        Accepted => "accepted",
        /// A PodDisruptionBudget does not allow it.
        Held => "blocked",
        /// The Pod was already deleted.
        Gone => "not_found",
    }
}

/// Counters of the engine.
pub type Counters = counters::Counters<Kind>;

/// All counts. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Counters of the engine.
    pub counters: Counters,
    /// Steps of rolling updates, and evictions.
    pub turns: Turns,
}

impl Metrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let Turns { steps, evictions } = &self.turns;
        register_family(registry, "bedplate_controller_rollout_steps", "Steps of rolling updates", steps);
        register_family(registry, "bedplate_controller_evictions", "Evictions of Pods", evictions);
        self.counters.register(registry);
    }
}

/// Counts of rolling updates and deletions. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Turns {
    steps: Family<(Turn, TurnResult), Counter>,
    evictions: Family<Eviction, Counter>,
}

impl Turns {
    /// Counts a step of a rolling update.
    pub fn turned(&self, turn: Turn, done: bool) {
        let result = if done { TurnResult::Done } else { TurnResult::Failed };
        self.steps.get_or_create(&(turn, result)).inc();
    }

    /// Counts an eviction.
    pub fn evicted(&self, eviction: Eviction) {
        self.evictions.get_or_create(&eviction).inc();
    }
}
