//! Counts of the controller, and how `/metrics` shows them. Labels are closed sets: never the name of a Machine.

mod rollout;

use std::fmt;

use bedplate_engine::counters::{self, Kinds, Names};
use bedplate_process::counter::labels;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

pub use self::rollout::{Eviction, Turn, Turns};

labels! {
    /// Kinds that are reconciled.
    pub enum Kind {
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

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.turns.encode(&mut encoder)?;
        self.counters.encode(encoder)
    }
}
