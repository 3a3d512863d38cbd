//! Interfaces of the node's loop to the outside: traits with real implementations here, fakes in tests.
//!
//! ```text
//!   Parts ── Decider      decides about the host, and takes reports (plane)
//!         ├─ Home         home of the Node (plane)
//!         ├─ Units        systemd of the host (bus)
//!         ├─ Machines     machined, and systemd of a slot (bus)
//!         ├─ Power        logind of the host: the reboot that wipes it (bus)
//!         ├─ Images       node images as directories (bedplate-oci)
//!         ├─ Gate         health of a slot that runs (health_gate)
//!         ├─ NodeApi      this host's Node, as the slot's kubelet (kubelet)
//!         ├─ ClaimedNode  the Node of a claim, as the slot's kubelet (kubelet)
//!         ├─ Credentials  cluster and certificate of the host's enrollment (service)
//!         └─ Slots        records and directories (slot)
//! ```
//! Called by `observe`, `apply` and `run`.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bedplate_api::id::{Digest, MachineName};
use bedplate_api::machine::SlotName;
use bedplate_oci::node::{EnsureNodeImageError, LayerStore, Limits, NodeImage, NodeSource, Tell};
use bedplate_process::lock::Lock;
use tokio::sync::OnceCell;

#[cfg(test)]
use crate::bus::kill_points::KillPoints;
use crate::bus::{BusError, Leader, Machines, Power, Units};
use crate::kubelet::claimed_node::ClaimedNode;
use crate::kubelet::client::NodeApi;
use crate::plane::{AskServerError, Decider, Home, NodeStatusReport, Seen};
use crate::slot::confined_writer::{Inside, WriteInsideError};
use crate::slot::fill_record::Filled;
use crate::slot::paths::machine;
use crate::slot::store::{KeepSlotError, Slots};

/// Receiver of human-readable progress of a long step.
pub(crate) type Say<'a> = &'a (dyn Fn(String) + Send + Sync);

/// Node images on this host.
#[async_trait]
pub trait Images: Send + Sync {
    /// Ensures that an image is complete and verified on disk.
    async fn ensure(&self, source: &NodeSource, tell: Tell<'_>) -> Result<NodeImage, EnsureNodeImageError>;
    /// Removes all other images and their layers. Failures are logged.
    async fn keep_only(&self, keep: Vec<Digest>);
}

/// Health of a slot that runs. Errors are human-readable texts.
#[async_trait]
pub trait Gate: Send + Sync {
    /// Checks that the kubelet is healthy.
    async fn kubelet(&self, leader: Leader, filled: &Filled) -> Result<(), String>;
    /// Checks that the container runtime and its network are ready.
    async fn runtime(&self, leader: Leader, socket: &str) -> Result<(), String>;
    /// Checks that the API server of the slot is ready. A worker has none.
    async fn control_plane(&self, leader: Leader, filled: &Filled) -> Result<(), String>;
    /// Starts a Pod sandbox. `attempt` must differ on each call.
    async fn sandbox(&self, leader: Leader, socket: &str, attempt: u32) -> Result<(), String>;
}

/// The cluster that the host is enrolled in, and the agent's certificate. The agent's key is not part of it, so that nothing here can hand
/// it to a slot.
#[derive(Debug)]
pub struct Credential {
    /// The API server's URL.
    pub server: String,
    /// Certificate authorities of the cluster (PEM).
    pub ca_pem: String,
    /// The agent's certificate chain (PEM).
    pub certificate_pem: String,
}

/// Knows the host's enrollment.
#[async_trait]
pub trait Credentials: Send + Sync {
    /// Returns the current credential. The error is a human-readable text.
    async fn current(&self) -> Result<Credential, String>;
}

/// Interfaces of the loop.
#[derive(Clone)]
pub struct Parts {
    /// Name of this host's Machine and Node.
    pub machine: MachineName,
    /// The kernel's boot id.
    pub boot_id: String,
    /// The host's root directory: `/`.
    pub root: PathBuf,
    /// The slots on disk.
    pub slots: Slots,
    /// systemd of the host.
    pub units: Arc<dyn Units>,
    /// machined of the host.
    pub machines: Arc<dyn Machines>,
    /// logind of the host.
    pub power: Arc<dyn Power>,
    /// Node images.
    pub images: Arc<dyn Images>,
    /// Health checks of a slot.
    pub gate: Arc<dyn Gate>,
    /// Party that decides about this host.
    pub decider: Arc<dyn Decider>,
    /// Cluster in which the Node lives.
    pub home: Arc<dyn Home>,
    /// The Node, as the kubelet of the slot that runs.
    pub node: Arc<dyn NodeApi>,
    /// The Node of a claim, in the cluster of the claimant.
    pub claimed_node: Arc<dyn ClaimedNode>,
    /// The host's enrollment.
    pub credentials: Arc<dyn Credentials>,
    /// Lock of the records. The node's loop and operations read and write them concurrently.
    pub disk: Arc<Disk>,
}

/// Permit for work on the slots' files.
#[derive(Debug, Default)]
pub struct Disk {
    lock: Lock<()>,
    /// Points at which a test kills the agent.
    #[cfg(test)]
    pub(crate) kills: KillPoints,
}

impl Parts {
    /// Returns the latest state of the cluster.
    pub fn seen(&self) -> Seen {
        self.decider.seen().borrow().clone()
    }

    /// Reports the state of the node after a step.
    pub(crate) fn report_node(&self, reported: NodeStatusReport) {
        self.decider.report_node(reported);
        self.home.slots_changed();
    }

    /// Returns process 1 of a slot, if machined knows it already.
    pub(crate) async fn leader(&self, slot: SlotName) -> Result<Option<Leader>, BusError> {
        let Ok(name) = machine(slot).parse() else { return Ok(None) };
        Ok(self.machines.get(&name).await?.map(|container| container.leader))
    }

    /// Verifies that the Node is deleted, by a live read. Returns true only if that is certain.
    ///
    /// # Errors
    /// The API server does not answer.
    pub(crate) async fn node_is_gone(&self) -> Result<bool, AskServerError> {
        self.home.node_is_gone(&self.seen()).await
    }

    /// Works on the slots' files in a thread that may block. Calls are serialized, so the files do not change
    /// while `work` runs.
    pub(crate) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Slots) -> Result<T, KeepSlotError> + Send + 'static,
    ) -> Result<T, KeepSlotError> {
        #[cfg(test)]
        self.disk.kills.reach("disk").await;
        let (slots, disk) = (self.slots.clone(), Arc::clone(&self.disk));
        let work = move || {
            let _held = disk.lock.lock();
            work(&slots)
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Works on the files of a slot that runs as its own processes see them, and on the slots' files, as [`Self::on_disk`] does.
    pub(crate) async fn in_slot<T: Send + 'static>(
        &self,
        leader: Leader,
        work: impl FnOnce(&Slots, &Inside) -> Result<T, KeepSlotError> + Send + 'static,
    ) -> Result<T, KeepSlotError> {
        let host = self.root.clone();
        let failed = |source| WriteInsideError::Act { act: "open", path: "/".to_owned(), source };
        self.on_disk(move |slots| work(slots, &leader.open_root(&host).map_err(failed)?)).await
    }
}

/// Store of node images, opened at its first use, because opening it removes incomplete data of a killed
/// agent.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    store: OnceCell<LayerStore>,
}

impl Store {
    /// Creates a store in `directory`, which must not be on an overlay.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, store: OnceCell::new() }
    }

    async fn opened(&self, image: &str) -> Result<&LayerStore, EnsureNodeImageError> {
        let open = || async {
            let directory = self.directory.clone();
            let opened =
                tokio::task::spawn_blocking(move || LayerStore::open(directory, Limits::default())).await;
            opened.unwrap_or_else(|error| Err(std::io::Error::other(error)))
        };
        self.store.get_or_try_init(open).await.map_err(|source| EnsureNodeImageError::UseStore {
            image: image.to_owned(),
            path: self.directory.clone(),
            source,
        })
    }
}

#[async_trait]
impl Images for Store {
    async fn ensure(&self, source: &NodeSource, tell: Tell<'_>) -> Result<NodeImage, EnsureNodeImageError> {
        self.opened(&source.reference).await?.ensure(source, tell).await
    }

    async fn keep_only(&self, keep: Vec<Digest>) {
        // This process has fetched no image yet, or the store is not usable, which `ensure` reports.
        let Ok(store) = self.opened("").await.cloned() else { return };
        let collected = tokio::task::spawn_blocking(move || store.collect(&keep)).await;
        match collected.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(collected) if collected.images + collected.layers > 0 => {
                let (images, layers, bytes) = (collected.images, collected.layers, collected.bytes);
                tracing::info!(images, layers, bytes, "node images that no slot needs were removed");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "failed to remove unused node images"),
        }
    }
}
