//! The controller's view of the cluster: one store for each kind, filled by watches, and live reads next to
//! them.
//!
//! A store may lag. A decision that must not rest on old data is bound to the resource version that was read
//! (`write`), or reads again: whether a Node is gone, whether no Machine holds an object whose finalizer is
//! removed.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use bedplate_api::claim::MachineClaim;
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::Machine;
use bedplate_api::operation::MachineOperation;
use bedplate_api::reason::event::ControllerEvent;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_engine::Context;
use bedplate_engine::events::News;
use bedplate_engine::list;
use bedplate_engine::store::synced;
use bedplate_engine::write::{WriteError, read};
use bedplate_process::lease::Tenure;
use bedplate_process::lock::Lock;
use bedplate_rules::selection::References;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::api::ListParams;
use kube::core::Request;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::cache::claims::RecentClaims;
use crate::cache::drains;
use crate::cache::heartbeats::Heard;
use crate::cache::index::Index;
use crate::cache::open_requests::Open;
use crate::cache::operations::Whose;
use crate::cache::waits::Waits;
use crate::metrics::{Counters, Kind, Metrics, Turns};
use crate::reach::RegistryReach;

/// Interval between two checks whether the index has the objects of the first lists.
const INDEX_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The stores.
#[derive(Debug, Clone)]
pub struct Stores {
    /// Machines.
    pub machines: Store<Machine>,
    /// MachineConfigurations.
    pub configurations: Store<MachineConfiguration>,
    /// MachineConfigurationVersions.
    pub versions: Store<MachineConfigurationVersion>,
    /// Nodes, reduced to the fields that this program reads.
    pub nodes: Store<Node>,
    /// Requests for kubelets' certificates.
    pub requests: Store<CertificateSigningRequest>,
    /// MachineOperations.
    pub operations: Store<MachineOperation>,
    /// MachineClaims.
    pub claims: Store<MachineClaim>,
    /// Requests without a decision.
    pub open: Arc<Lock<Open>>,
    /// Lookups by more than a name. The index may lag behind the stores.
    pub index: Arc<RwLock<Index>>,
    /// Lookups of operations by Machine and parent.
    pub whose: Arc<Whose>,
    /// Times of the agents' heartbeats.
    pub heard: Arc<Heard>,
    /// Times since which Machines wait for their selected version.
    pub waits: Arc<Waits>,
}

impl Stores {
    /// Waits until each store has its first list. None: a watch has ended before.
    pub(crate) async fn are_whole(&self) -> Option<()> {
        synced(&self.configurations).await?;
        synced(&self.versions).await?;
        synced(&self.machines).await?;
        synced(&self.nodes).await?;
        synced(&self.requests).await?;
        synced(&self.operations).await?;
        synced(&self.claims).await?;
        // The index must have applied the objects of the first lists. Otherwise a version would look unused.
        while !self.are_indexed() {
            tokio::time::sleep(INDEX_CHECK_INTERVAL).await;
        }
        Some(())
    }

    /// Returns true if the index has the objects of the stores.
    fn are_indexed(&self) -> bool {
        let index = self.index();
        self.machines.state().iter().all(|machine| index.machine_is_known(&machine.name_any()))
            && self.versions.state().iter().all(|version| index.version_is_known(version))
            && self.configurations.state().iter().all(|one| index.configuration_is_known(&one.name_any()))
    }

    /// Returns the operations of a Machine.
    pub(crate) fn operations_of(&self, machine: &str) -> Vec<Arc<MachineOperation>> {
        let names = self.whose.of_machine(machine);
        names.iter().filter_map(|name| self.operations.get(&ObjectRef::new(name))).collect()
    }

    /// Returns the requests without a decision.
    pub fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock()
    }

    /// Returns the index for reading.
    pub fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the index for applying a change.
    pub fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Dependencies of the reconcilers.
pub struct World {
    /// The API server.
    pub client: Client,
    /// Stores of the watches.
    pub stores: Stores,
    /// Leadership of this controller.
    pub tenure: Tenure,
    /// Counters of the engine.
    pub counters: Counters,
    /// Counts of rolling updates.
    pub turns: Turns,
    /// Recorder of Events.
    pub news: News,
    /// Networks in which registries may be.
    pub reach: Arc<RegistryReach>,
    /// Drain state beyond the objects.
    pub drains: drains::Memory,
    /// Addresses of the API server and the Services, which were read last.
    pub claims: RecentClaims,
    /// Versions that are being selected for Machines while the stores do not show it yet. Each entry has its own
    /// number: a user's edit and a rolling update may concurrently select two versions for one Machine.
    giving: Lock<BTreeMap<u64, (String, i64)>>,
}

impl Context for World {
    type Kind = Kind;

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    fn rejected(&self, kind: Kind, object: ObjectReference, error: &WriteError) {
        // `image` reports its own.
        if kind != Kind::Image {
            self.news.publish_about(object, ControllerEvent::WriteRejected, &error.to_string());
        }
    }
}

impl World {
    /// Creates the dependencies from their parts.
    pub fn new(client: Client, stores: Stores, tenure: Tenure, metrics: Metrics) -> Self {
        let Metrics { counters, turns } = metrics;
        Self {
            client,
            stores,
            tenure,
            counters,
            turns,
            news: News::channel().0,
            reach: Arc::default(),
            drains: drains::Memory::default(),
            claims: RecentClaims::default(),
            giving: Lock::default(),
        }
    }

    /// Returns the dependencies with a recorder of Events.
    #[must_use]
    pub fn telling(self, news: News) -> Self {
        Self { news, ..self }
    }

    /// Returns this world with the networks where registries may be.
    #[must_use]
    pub fn reaching(self, reach: RegistryReach) -> Self {
        Self { reach: Arc::new(reach), ..self }
    }

    /// Returns a MachineConfiguration by its name.
    pub fn configuration(&self, name: &str) -> Option<Arc<MachineConfiguration>> {
        self.stores.configurations.get(&ObjectRef::new(name))
    }

    /// Returns the API of a kind for one write, which is counted.
    pub fn write<K: Resource<DynamicType = ()>>(&self, kind: Kind) -> Api<K> {
        self.counters.wrote(kind);
        Api::all(self.client.clone())
    }

    /// Reads an object live. None: it does not exist.
    ///
    /// # Errors
    /// The API server did not answer.
    pub async fn live<K>(&self, name: &str) -> Result<Option<K>, WriteError>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        read(&Api::all(self.client.clone()), name).await
    }

    /// Reads the holders of versions live. A Machine for which a version is being selected counts, too.
    ///
    /// # Errors
    /// The API server did not answer.
    pub async fn live_references(&self) -> Result<(References, Vec<(String, i64)>), WriteError> {
        // The order matters: an entry that is no longer in the memory is in the list.
        let giving = self.giving.lock().values().cloned().collect();
        let mut references = References::default();
        let add = |machine: Machine| references.add(&machine);
        list::each(&self.client, "the Machines", Request::list, ListParams::default(), add).await?;
        Ok((references, giving))
    }

    /// Records that a version is being selected for a Machine, until the returned guard is dropped.
    pub fn give(&self, configuration: &str, version: i64) -> Giving<'_> {
        let mut giving = self.giving.lock();
        let number = giving.last_key_value().map_or(0, |(last, _)| last.wrapping_add(1));
        giving.insert(number, (configuration.to_owned(), version));
        Giving { world: self, number }
    }
}

/// Guard of a version that is being selected for a Machine.
pub struct Giving<'a> {
    world: &'a World,
    number: u64,
}

impl Drop for Giving<'_> {
    fn drop(&mut self) {
        self.world.giving.lock().remove(&self.number);
    }
}
