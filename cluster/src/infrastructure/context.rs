//! State that the reconciliations of the group share: the client, the stores, the tenure, counts and Events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_api::claim::MachineClaim;
use bedplate_api::cluster::core::{Cluster, Machine as Owner};
use bedplate_api::cluster::infrastructure::{BedplateCluster, BedplateMachine, BedplateMachineTemplate};
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::Machine;
use bedplate_api::operation::MachineOperation;
use bedplate_api::reason::infrastructure::ProviderEvent;
use bedplate_api::version::{MachineConfigurationVersion, version_name};
use bedplate_engine::events::News;
use bedplate_engine::object;
use bedplate_engine::store::synced;
use bedplate_engine::write::{WriteError, ask};
use bedplate_engine::{Context, FieldManager};
use bedplate_process::lease::Tenure;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::reflector::Store;
use kube::{Api, Client};

use super::claim::clock::FutureHeartbeats;
use super::machine::turn::Turns;
use crate::metrics::{Counters, Kind};
use crate::scope::Scope;

/// Objects that watches have read.
#[derive(Clone)]
pub struct Stores {
    /// BedplateClusters.
    pub infrastructures: Store<BedplateCluster>,
    /// BedplateMachines.
    pub machines: Store<BedplateMachine>,
    /// Clusters of Cluster API.
    pub clusters: Store<Cluster>,
    /// Machines of Cluster API.
    pub owners: Store<Owner>,
    /// MachineClaims.
    pub claims: Store<MachineClaim>,
    /// Hosts.
    pub hosts: Store<Machine>,
    /// MachineConfigurations.
    pub configurations: Store<MachineConfiguration>,
    /// BedplateMachineTemplates.
    pub templates: Store<BedplateMachineTemplate>,
    /// Changes that decide about the choice of hosts.
    pub changes: Arc<Changes>,
}

/// Numbers of changes that decide about the choice of hosts.
#[derive(Debug, Default)]
pub struct Changes {
    claimants: AtomicU64,
    hosts: AtomicU64,
}

impl Stores {
    /// Notes a change that decides which claimants wait, and for what. Called once the store shows it.
    pub(crate) fn claimant_changed(&self) {
        self.changes.claimants.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes a change that decides which hosts may be claimed. Called once the store shows it.
    pub(crate) fn host_changed(&self) {
        self.changes.hosts.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the numbers of changes of claimants and of hosts until now.
    pub fn changes(&self) -> (u64, u64) {
        (self.changes.claimants.load(Ordering::Acquire), self.changes.hosts.load(Ordering::Acquire))
    }

    /// Waits until all stores are synced. None: a watch has ended.
    pub async fn synced(&self) -> Option<()> {
        synced(&self.infrastructures).await?;
        synced(&self.machines).await?;
        synced(&self.clusters).await?;
        synced(&self.owners).await?;
        synced(&self.claims).await?;
        synced(&self.hosts).await?;
        synced(&self.configurations).await?;
        synced(&self.templates).await
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
    /// Turns of the claimants that wait for a host.
    pub turns: Turns,
    /// Heartbeats of claimed hosts whose clocks are ahead.
    pub future_heartbeats: FutureHeartbeats,
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
        self.news.publish_about(object, ProviderEvent::WriteRejected, &error.to_string());
    }
}

impl World {
    /// Counts a write.
    pub fn wrote(&self, kind: Kind) {
        self.counters.wrote(kind);
    }

    /// Reads a host.
    ///
    /// # Errors
    /// [`WriteError`]
    pub(crate) async fn live_host(&self, name: &str) -> Result<Option<Machine>, WriteError> {
        let hosts: Api<Machine> = Api::all(self.client.clone());
        ask(&format!("Machine {name}"), object::get(&hosts, name)).await
    }

    /// Reads a MachineConfiguration.
    ///
    /// # Errors
    /// [`WriteError`]
    pub(crate) async fn live_configuration(
        &self,
        name: &str,
    ) -> Result<Option<MachineConfiguration>, WriteError> {
        let configurations: Api<MachineConfiguration> = Api::all(self.client.clone());
        ask(&format!("MachineConfiguration {name}"), object::get(&configurations, name)).await
    }

    /// Reads a MachineOperation.
    ///
    /// # Errors
    /// [`WriteError`]
    pub(crate) async fn live_operation(&self, name: &str) -> Result<Option<MachineOperation>, WriteError> {
        let operations: Api<MachineOperation> = Api::all(self.client.clone());
        ask(&format!("MachineOperation {name}"), object::get(&operations, name)).await
    }

    /// Reads a version of a MachineConfiguration. None: there is no such version.
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn live_version(
        &self,
        configuration: &str,
        version: i64,
    ) -> Result<Option<MachineConfigurationVersion>, WriteError> {
        let versions: Api<MachineConfigurationVersion> = Api::all(self.client.clone());
        let name = version_name(configuration, version);
        ask(&format!("MachineConfigurationVersion {name}"), object::get(&versions, &name)).await
    }
}
