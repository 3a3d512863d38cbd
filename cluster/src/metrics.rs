//! Counts of the program, and how `/metrics` shows them. Labels are closed sets: never the name of an object.

use bedplate_engine::counters::{self, Kinds, Names};
use bedplate_process::counter::labels;

labels! {
    /// Kinds that are reconciled.
    pub enum Kind {
        /// BedplateClusters.
        Cluster => "BedplateCluster",
        /// BedplateMachines.
        Machine => "BedplateMachine",
        /// MachineClaims.
        Claim => "MachineClaim",
        /// BedplateMachineTemplates.
        Template => "BedplateMachineTemplate",
        /// KubeadmConfigs.
        Config => "KubeadmConfig",
        /// Clusters.
        CoreCluster => "Cluster",
        /// Machines.
        CoreMachine => "Machine",
        /// MachineDeployments.
        CoreDeployment => "MachineDeployment",
        /// MachineSets.
        CoreSet => "MachineSet",
        /// MachineHealthChecks.
        HealthCheck => "MachineHealthCheck",
    }
}

impl Kinds for Kind {
    const NAMES: Names = Names {
        reconciles: "bedplate_cluster_reconciles",
        writes: "bedplate_cluster_writes",
        watch_errors: "bedplate_cluster_watch_errors",
        leader: "bedplate_cluster_leader",
        queue_depth: "bedplate_cluster_queue_depth",
        queue_oldest: "bedplate_cluster_queue_oldest_seconds",
        watch_age: "bedplate_cluster_watch_age_seconds",
        reconcile_duration: "bedplate_cluster_reconcile_duration_seconds",
    };
}

/// Counters of the engine.
pub type Counters = counters::Counters<Kind>;
