//! Queues of objects to reconcile, and which changes enqueue which objects.
//!
//! A user's edit is reconciled immediately. A change of a Machine reconciles the Machine immediately. It
//! reconciles the configurations only if it matters to them (`index`), and once for many Machines
//! (`later`).

use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::Machine;
use bedplate_api::operation::MachineOperation;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_engine::later::Later;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::runtime::reflector::ObjectRef;

use crate::context::Stores;
use crate::image;
use crate::metrics::Kind;
use crate::version::is_leaving;
use crate::{deletion, rollout};
use bedplate_rules::operation::is_finished;
use bedplate_rules::selection::is_deployed;

/// Sender of a kind's queue. Clones share the queue.
pub type Queue<K> = bedplate_engine::Queue<K, Kind>;

/// Senders of all queues. Clones share them.
#[derive(Debug, Clone)]
pub struct Queues {
    /// Configurations to reconcile.
    pub configurations: Queue<MachineConfiguration>,
    /// Versions that are being deleted.
    pub versions: Queue<MachineConfigurationVersion>,
    /// Machines to reconcile.
    pub machines: Queue<Machine>,
    /// Requests to reconcile.
    pub requests: Queue<CertificateSigningRequest>,
    /// Operations to reconcile.
    pub operations: Queue<MachineOperation>,
    /// Versions with an image tag to resolve.
    pub images: Queue<MachineConfigurationVersion>,
    /// Configurations with a rolling update to reconcile.
    pub rollouts: Queue<MachineConfiguration>,
    /// Machines that are drained before they are deleted.
    pub departures: Queue<Machine>,
    /// Configurations to reconcile after a delay.
    pub later: Later<MachineConfiguration>,
}

impl Queues {
    /// Enqueues a configuration by its name, without delay.
    pub async fn configuration(&self, name: &str) {
        self.configurations.put(ObjectRef::new(name)).await;
    }

    /// Enqueues a configuration by its name, after a delay.
    pub(crate) async fn configuration_later(&self, name: &str) {
        self.later.put(ObjectRef::new(name)).await;
    }

    /// Enqueues a version, if it is being deleted.
    pub async fn version(&self, version: &MachineConfigurationVersion) {
        if is_leaving(version) {
            self.versions.put(ObjectRef::from_obj(version)).await;
        }
    }

    /// Enqueues a version if its image tag must be resolved.
    pub async fn image(&self, version: &MachineConfigurationVersion) {
        if image::is_open(version) {
            self.images.put(ObjectRef::from_obj(version)).await;
        }
    }

    /// Enqueues the versions of a configuration that are being deleted.
    pub(crate) async fn leaving_of(&self, configuration: &str, stores: &Stores) {
        let versions: Vec<_> = stores.index().versions_of(configuration).into_iter().cloned().collect();
        for version in versions {
            self.version(&version).await;
        }
    }

    /// Enqueues a Machine by its name.
    pub async fn machine(&self, name: &str) {
        self.machines.put(ObjectRef::new(name)).await;
    }

    /// Enqueues the rolling update of a configuration.
    pub async fn rollout(&self, configuration: &str) {
        self.rollouts.put(ObjectRef::new(configuration)).await;
    }

    /// Enqueues a Machine, if it is drained before its deletion.
    pub async fn departure(&self, machine: &Machine) {
        if deletion::concerns(machine) {
            self.departures.put(ObjectRef::from_obj(machine)).await;
        }
    }

    /// Enqueues objects that depend on the Node of a Machine, except the Machine itself.
    pub async fn dependents_of_node(&self, name: &str, stores: &Stores) {
        let Some(machine) = stores.machines.get(&ObjectRef::new(name)) else { return };
        self.departure(&machine).await;
        if let Some(configuration) = rollout::governs(&machine, stores) {
            self.rollout(&configuration).await;
        }
        // The number of unavailable Machines depends on their Nodes.
        if let Some(selected) = machine.selected() {
            self.configuration_later(&selected.name).await;
        }
    }

    /// Enqueues a request by its name.
    pub async fn request(&self, name: &str) {
        self.requests.put(ObjectRef::new(name)).await;
    }

    /// Enqueues an operation by its name.
    pub async fn operation(&self, name: &str) {
        self.operations.put(ObjectRef::new(name)).await;
    }

    /// Enqueues the unfinished operations of a Machine.
    pub(crate) async fn operations_of(&self, machine: &str, stores: &Stores) {
        for operation in stores.operations_of(machine) {
            if !is_finished(&operation) {
                self.operations.put(ObjectRef::from_obj(&*operation)).await;
            }
        }
    }

    /// Enqueues objects that depend on a configuration and its versions: Machines that wait for any version,
    /// Machines that have or name this configuration, and other configurations that count them.
    pub async fn dependents_of(&self, configuration: &str, stores: &Stores) {
        let (machines, others) = {
            let index = stores.index();
            (index.touched_by(configuration), index.related_configurations(configuration))
        };
        for machine in machines {
            self.machine(&machine).await;
        }
        for other in others {
            self.configuration_later(&other).await;
        }
    }
}

/// Returns the facts of a version that decide about Machines: it exists, it is locked, and its image is known. If the image is unknown,
/// includes the reason.
pub fn weigh(version: &MachineConfigurationVersion) -> impl PartialEq + Clone + use<> {
    let (generation, is_going) = (version.metadata.generation, version.metadata.deletion_timestamp.is_some());
    let failure = image::failure(version).map(str::to_owned);
    (generation, is_going, is_deployed(version), image::is_open(version), failure)
}
