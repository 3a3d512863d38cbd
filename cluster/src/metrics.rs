//! Counts of the program, and how `/metrics` shows them. Labels are closed sets: never the name of an object.

use bedplate_engine::counters::{self, Kinds, Names};
use bedplate_process::counter::labels;

labels! {
    /// Kinds that are reconciled.
    pub enum Kind in "kind" {
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

#[cfg(test)]
#[allow(dead_code, reason = "this program has several registries")]
#[path = "../../process/tests/metrics_page/mod.rs"]
mod metrics_page;

#[cfg(test)]
mod tests {
    use bedplate_process::lease::Tenure;
    use bedplate_process::liveness::Liveness;
    use bedplate_process::shutdown::Stages;
    use bedplate_process::tasks::Tasks;
    use clap::Parser;
    use kube::Client;
    use kube::client::Body;
    use prometheus_client::registry::Registry;
    use tokio::sync::watch;
    use tokio_util::sync::CancellationToken;

    use super::metrics_page;
    use crate::cli::Cli;
    use crate::life::Started;
    use crate::{bootstrap, core, infrastructure};

    type Begin = fn(&Client, &Cli, &Tenure, (&Tasks, &Liveness, &Stages)) -> Started;

    /// Returns the registry of a group.
    fn registry(group: &str, begin: Begin) -> Registry {
        let service = tower::service_fn(|_: http::Request<Body>| {
            std::future::pending::<Result<http::Response<Body>, kube::Error>>()
        });
        let client = Client::new(service, "default");
        let shutdown = CancellationToken::new();
        let (tasks, liveness) = (Tasks::new(shutdown.clone()), Liveness::new(shutdown.clone()));
        let cli = Cli::parse_from(["bedplate-cluster", &format!("--controllers={group}")]);
        let (tenure, stages) = (Tenure::new(watch::channel(None).1), Stages::new(shutdown.clone()));
        let Started { registry, .. } = begin(&client, &cli, &tenure, (&tasks, &liveness, &stages));
        shutdown.cancel();
        registry
    }

    /// docs/reference/metrics.md has one section for the program.
    #[tokio::test]
    async fn scrape_matches_the_page_of_metrics() {
        let registries = [
            registry("infrastructure", infrastructure::begin),
            registry("bootstrap", bootstrap::begin),
            registry("core", core::begin),
        ];
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/metrics.md");
        metrics_page::compare_all(page, "bedplate-cluster", &registries.each_ref());
    }
}
