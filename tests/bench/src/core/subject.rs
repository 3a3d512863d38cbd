//! The cores that are measured, as programs under their own roles: ours, and upstream's manager with its webhooks.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use bedplate_tests::cluster_api::CoreManager;
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::pxed;

use super::site::Size;
use crate::controller::site::{Controller, free_port, sum};
use crate::measurement::OURS;

/// Subject of upstream's rows.
pub(super) const UPSTREAM: &str = "Cluster API core";
/// User of our core.
const OUR_USER: &str = "system:serviceaccount:bedplate-system:bedplate-core";
/// Results of a reconciliation of controller-runtime that has not failed.
const RESULTS: [&str; 3] = ["success", "requeue", "requeue_after"];

/// A core.
pub(super) enum Subject {
    Ours,
    Upstream(CoreManager),
}

impl Subject {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Ours => OURS,
            Self::Upstream(_) => UPSTREAM,
        }
    }

    /// Returns a note about the program, for its first row.
    pub(super) fn about(&self) -> String {
        match self {
            Self::Ours => "elected by a Lease".to_owned(),
            Self::Upstream(manager) => format!("{}, no election", manager.version()),
        }
    }

    /// Returns the user of the core.
    pub(super) fn user(&self) -> &'static str {
        match self {
            Self::Ours => OUR_USER,
            Self::Upstream(_) => CoreManager::USER,
        }
    }

    /// Installs the kinds of the core.
    pub(super) fn install_kinds(&self, kubernetes: &Kubernetes) -> Result<()> {
        match self {
            Self::Ours => install(kubernetes, &["core-components.yaml"]),
            Self::Upstream(manager) => manager.install_kinds(kubernetes),
        }
    }

    /// Installs what the core needs to start.
    pub(super) fn install_rest(&self, kubernetes: &Kubernetes) -> Result<()> {
        match self {
            Self::Ours => install(kubernetes, &["core-policy.yaml", "core-provider.yaml"]),
            Self::Upstream(manager) => manager.install_rest(kubernetes),
        }
    }

    /// Starts the core.
    pub(super) fn spawn(&self, kubernetes: &Kubernetes, place: &Path) -> Result<Controller> {
        let listen = free_port()?;
        let (mut command, counter) = match self {
            Self::Ours => {
                let kubeconfig = kubernetes.service_account("bedplate-system", "bedplate-core")?;
                let mut command = Command::new(pxed::binary("bedplate-cluster")?);
                command.args(["--controllers=core", "--workload-networks=127.0.0.0/8"]);
                command.arg("--kubeconfig").arg(kubeconfig).arg(format!("--listen={listen}"));
                (command, "bedplate_cluster_writes_total")
            }
            Self::Upstream(manager) => (manager.command(kubernetes, listen)?, "rest_client_requests_total"),
        };
        Controller::spawn(&mut command, place, listen, counter)
    }

    /// Returns true if the core has reconciled as many objects as there are, and none waits.
    pub(super) fn is_idle(&self, metrics: &BTreeMap<String, f64>, size: Size) -> bool {
        let (clusters, machines) = (size.clusters, size.machines());
        let kinds = [
            ("Cluster", clusters),
            ("MachineDeployment", clusters),
            ("MachineSet", clusters),
            ("Machine", machines),
        ];
        kinds.into_iter().all(|(kind, number)| {
            let (done, waiting) = match self {
                Self::Ours => ours(metrics, kind),
                Self::Upstream(_) => upstream(metrics, &kind.to_lowercase()),
            };
            done >= crate::controller::count(number) && waiting == 0.0
        })
    }
}

/// Returns the number of reconciliations of a kind, and of objects that wait.
fn ours(metrics: &BTreeMap<String, f64>, kind: &str) -> (f64, f64) {
    let done = sum(metrics, "bedplate_cluster_reconciles_total", &format!("kind=\"{kind}\",result=\"done\""));
    (done, sum(metrics, "bedplate_cluster_queue_depth", &format!("kind=\"{kind}\"")))
}

fn upstream(metrics: &BTreeMap<String, f64>, controller: &str) -> (f64, f64) {
    let of = |result| {
        let labels = format!("controller=\"{controller}\",result=\"{result}\"");
        sum(metrics, "controller_runtime_reconcile_total", &labels)
    };
    (RESULTS.map(of).iter().sum(), sum(metrics, "workqueue_depth", &format!("name=\"{controller}\"")))
}

/// Applies files of deploy/cluster-api.
pub(super) fn install(kubernetes: &Kubernetes, files: &[&str]) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/cluster-api");
    for file in files {
        let path = folder.join(file).display().to_string();
        kubernetes.kubectl(&kubernetes.admin(), &["apply", "--server-side", "-f", &path])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(samples: &[(&str, f64)]) -> BTreeMap<String, f64> {
        samples.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
    }

    #[test]
    fn reconciliations_of_similar_kinds_are_not_mixed() {
        let metrics = metrics(&[
            ("bedplate_cluster_reconciles_total{kind=\"Machine\",result=\"done\"}", 3.0),
            ("bedplate_cluster_reconciles_total{kind=\"Machine\",result=\"conflict\"}", 1.0),
            ("bedplate_cluster_reconciles_total{kind=\"MachineSet\",result=\"done\"}", 7.0),
            ("bedplate_cluster_queue_depth{kind=\"Machine\"}", 2.0),
            ("controller_runtime_reconcile_total{controller=\"machine\",result=\"error\"}", 9.0),
            ("controller_runtime_reconcile_total{controller=\"machine\",result=\"requeue_after\"}", 4.0),
            ("workqueue_depth{controller=\"machine\",name=\"machine\",priority=\"0\"}", 5.0),
        ]);
        assert_eq!(ours(&metrics, "Machine"), (3.0, 2.0));
        assert_eq!(upstream(&metrics, "machine"), (4.0, 5.0));
    }
}
