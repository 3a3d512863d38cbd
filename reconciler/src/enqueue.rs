//! Queues of objects to reconcile, and which changes enqueue which objects.
//!
//! A user's edit is reconciled immediately. A change of a Machine reconciles the Machine immediately. It
//! reconciles the configurations only if it matters to them (`index`), and once for many Machines
//! (`coalesce`).

use std::time::Instant;

use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::Machine;
use bedplate_api::operation::MachineOperation;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_engine::debounce::Coalescer;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;

use crate::context::Stores;
use crate::image;
use crate::metrics::Kind;
use crate::version::is_leaving;
use crate::{deletion, rollout};
use bedplate_rules::operation::is_finished;

/// Maximum number of configurations that wait for [`coalesce`].
const MAX_LATER: usize = 1024;

/// Sender of a kind's queue. Clones share the queue.
pub type Queue<K> = bedplate_engine::Queue<K, Kind>;

/// The ends to send into; clones share them.
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
    /// Configurations to reconcile after a delay ([`coalesce`]).
    pub later: mpsc::Sender<String>,
}

/// Creates the queue of delayed configurations, and its receiver.
pub fn later() -> (mpsc::Sender<String>, mpsc::Receiver<String>) {
    mpsc::channel(MAX_LATER)
}

impl Queues {
    /// Enqueues a configuration by its name, without delay.
    pub async fn configuration(&self, name: &str) {
        self.configurations.put(ObjectRef::new(name)).await;
    }

    /// A configuration by its name, in a while.
    pub async fn configuration_later(&self, name: &str) {
        let _ = self.later.send(name.to_owned()).await;
    }

    /// A version, if it is being deleted.
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

    /// The versions of a configuration that are being deleted.
    pub async fn leaving_of(&self, configuration: &str, stores: &Stores) {
        let versions: Vec<_> = stores.index().versions_of(configuration).into_iter().cloned().collect();
        for version in versions {
            self.version(&version).await;
        }
    }

    /// A Machine by its name.
    pub async fn machine(&self, name: &str) {
        self.machines.put(ObjectRef::new(name)).await;
    }

    /// The rolling update of a configuration.
    pub async fn rollout(&self, configuration: &str) {
        self.rollouts.put(ObjectRef::new(configuration)).await;
    }

    /// A Machine, if it is drained before it goes.
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
        let selected = machine.status.as_ref().and_then(|status| status.selected.as_ref());
        if let Some(selected) = selected {
            self.configuration_later(&selected.name).await;
        }
    }

    /// A request by its name.
    pub async fn request(&self, name: &str) {
        self.requests.put(ObjectRef::new(name)).await;
    }

    /// An operation by its name.
    pub async fn operation(&self, name: &str) {
        self.operations.put(ObjectRef::new(name)).await;
    }

    /// The operations of a Machine that have not ended.
    pub async fn operations_of(&self, machine: &str, stores: &Stores) {
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
            (index.touched_by(configuration), index.beside(configuration))
        };
        for machine in machines {
            self.machine(&machine).await;
        }
        for other in others {
            self.configuration_later(&other).await;
        }
    }
}

/// Sends configurations on that were touched a while ago, each once.
pub async fn coalesce(mut touched: mpsc::Receiver<String>, queues: Queues) {
    let mut coalescer = Coalescer::default();
    loop {
        let next = coalescer.next();
        let due = async {
            match next {
                Some(next) => tokio::time::sleep_until(next.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            name = touched.recv() => match name {
                Some(name) => coalescer.touched(name, Instant::now()),
                None => return,
            },
            () = due => for name in coalescer.due(Instant::now()) {
                queues.configuration(&name).await;
            },
        }
    }
}

/// Returns the properties of a version that decide about Machines: it exists, it is locked, and its image is
/// known. If the image is unknown, includes the reason.
pub fn weighs(version: &MachineConfigurationVersion) -> Weight {
    Weight {
        generation: version.metadata.generation,
        goes: version.metadata.deletion_timestamp.is_some(),
        is_deployed: bedplate_rules::selection::is_deployed(version),
        is_open: image::is_open(version),
        failure: image::failure(version).map(str::to_owned),
    }
}

/// Properties of a version that decide about other objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    generation: Option<i64>,
    goes: bool,
    is_deployed: bool,
    /// True if the image is not known.
    is_open: bool,
    failure: Option<String>,
}
