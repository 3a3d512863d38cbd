//! State that the reconciliations of the group share: the client, the stores, the tenure, counts and Events.
//!
//! No store has Secrets or ConfigMaps: they are read by name when a step needs them.

use bedplate_api::cluster::full::{Cluster, Machine};
use bedplate_api::cluster::kubeadm::KubeadmConfig;
use bedplate_api::cluster::kubeadm::reason::BootstrapEvent;
use bedplate_engine::events::News;
use bedplate_engine::store::synced;
use bedplate_engine::write::WriteError;
use bedplate_engine::{Context, FieldManager};
use bedplate_process::lease::Tenure;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::reflector::Store;

use super::tokens::Tokens;
use crate::metrics::{Counters, Kind};
use crate::scope::Scope;

/// Objects that watches have read.
#[derive(Clone)]
pub struct Stores {
    /// KubeadmConfigs.
    pub configs: Store<KubeadmConfig>,
    /// Machines.
    pub machines: Store<Machine>,
    /// Clusters.
    pub clusters: Store<Cluster>,
}

impl Stores {
    /// Waits until all stores are synced. None: a watch has ended.
    pub async fn synced(&self) -> Option<()> {
        synced(&self.configs).await?;
        synced(&self.machines).await?;
        synced(&self.clusters).await
    }
}

/// State that the reconciliations share.
pub struct World {
    /// Client of the API server.
    pub client: Client,
    /// Field manager of all writes.
    pub manager: FieldManager,
    /// Objects of this process.
    pub scope: Scope,
    /// Objects that were read.
    pub stores: Stores,
    /// Tenure of this process.
    pub tenure: Tenure,
    /// Counters of the engine.
    pub counters: Counters,
    /// Events of this process.
    pub news: News,
    /// Bootstrap tokens in workload clusters.
    pub tokens: Tokens,
}

impl Context for World {
    type Kind = Kind;

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    fn rejected(&self, _: Kind, object: ObjectReference, error: &WriteError) {
        self.news.publish_about(object, BootstrapEvent::WriteRejected, &error.to_string());
    }
}
