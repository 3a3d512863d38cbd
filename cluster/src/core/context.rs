//! State that the reconciliations of the group share: the client, the stores, the watches of named kinds, the workload clusters, the tenure,
//! counts and Events.
//!
//! No store has Secrets: they are read by name when a step needs them.

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::full::{Cluster, Machine, MachineDeployment, MachineHealthCheck, MachineSet};
use bedplate_api::reason::core_event::CoreEvent;
use bedplate_engine::events::News;
use bedplate_engine::store::synced;
use bedplate_engine::watches::Watches;
use bedplate_engine::write::WriteError;
use bedplate_engine::{Context, FieldManager};
use bedplate_process::lease::Tenure;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::reflector::Store;
use kube::{Client, Resource};

use super::event;
use super::live::MachineLists;
use super::machine::memory::Memory;
use super::workload::Workloads;
use crate::metrics::{Counters, Kind};
use crate::scope::Scope;

/// Objects that watches have read.
#[derive(Clone)]
pub struct Stores {
    /// Clusters.
    pub clusters: Store<Cluster>,
    /// MachineDeployments.
    pub deployments: Store<MachineDeployment>,
    /// MachineSets.
    pub sets: Store<MachineSet>,
    /// Machines.
    pub machines: Store<Machine>,
    /// MachineHealthChecks.
    pub checks: Store<MachineHealthCheck>,
}

impl Stores {
    /// Waits until all stores are synced. None: a watch has ended.
    pub async fn synced(&self) -> Option<()> {
        synced(&self.clusters).await?;
        synced(&self.deployments).await?;
        synced(&self.sets).await?;
        synced(&self.machines).await?;
        synced(&self.checks).await
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
    /// Objects of the kinds that Clusters and Machines name.
    pub watches: Watches<Referenced>,
    /// Workload clusters.
    pub workloads: Workloads,
    /// Lists of Machines that turns share.
    pub lists: MachineLists,
    /// State of Machines that are being deleted.
    pub memory: Memory,
    /// Tenure of this process.
    pub tenure: Tenure,
    /// Counters of the engine.
    pub counters: Counters,
    /// Events of this process.
    pub news: News,
}

impl World {
    /// Publishes the Event of a change, if it has one.
    pub fn publish<K: Resource<DynamicType = ()>>(&self, about: &K, change: Option<event::Change>) {
        if let Some((reason, note)) = change {
            self.news.publish(about, reason, &note);
        }
    }
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
        self.news.publish_about(object, CoreEvent::WriteRejected, &error.to_string());
    }
}
