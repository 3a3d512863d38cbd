//! What the daemon knows: the store, the index, the statuses, the source that feeds them.
//!
//! Opened first, and from the store alone: before the source has spoken, the Machines known from before are served.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bedplate_process::exit::Failure;
use bedplate_process::liveness::Liveness;
use bedplate_process::tasks::Tasks;
use jiff::Timestamp;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::liveness::DISK_PATIENCE;
use super::{infallible, power};
use crate::cluster::client::{Access, Cluster};
use crate::cluster::machines;
use crate::config::{Config, SourceConfig};
use crate::machines::Machines;
use crate::machines::discovered::Discovered;
use crate::machines::source::{self, Follower, SourceEnded, SourceState, Sourced, Update};
use crate::power::OperationUpdate;
use crate::run::boot_path;
use crate::standalone::agents::StandIn;
use crate::standalone::manifests::Directory;
use crate::standalone::node_secrets::NodeSecrets;
use crate::standalone::operations::LocalOperations;
use crate::standalone::versions::{Choosing, NodeChoice};
use crate::status::write::WriteCounters;
use crate::status::{Sink, StatusRegistry, Writer};
use crate::store::Store;

/// Updates of the source that wait; it waits too when there are more.
const UPDATES: usize = 4;

/// The state directory cannot be used.
#[derive(Debug, Error)]
#[error("cannot use the directory {path}")]
struct StateDirectoryError {
    path: PathBuf,
    source: std::io::Error,
}

/// What is known; clones share it.
#[derive(Clone)]
pub(super) struct Knowledge {
    pub(super) store: Store,
    pub(super) machines: Machines,
    pub(super) registry: StatusRegistry,
    pub(super) discovered: Discovered,
    pub(super) source: Arc<ArcSwap<SourceState>>,
    pub(super) statuses: Arc<WriteCounters>,
    /// Which version each Machine gets; none in a cluster.
    pub(super) choice: Option<NodeChoice>,
}

/// The source and what follows it, to be spawned once.
pub(super) struct Feeding {
    feed: Feed,
    follower: Follower,
    choosing: Option<Choosing>,
}

/// Where operations come from, to be handed over once.
pub(super) enum OperationFeed {
    /// Manifests and the socket.
    Local(LocalOperations, mpsc::Receiver<OperationUpdate>),
    /// The cluster.
    Cluster(Access),
}

impl OperationFeed {
    /// Those of manifests and the socket.
    fn local(&self) -> Option<&LocalOperations> {
        match self {
            Self::Local(operations, _) => Some(operations),
            Self::Cluster(_) => None,
        }
    }
}

/// Where updates come from.
enum Feed {
    Directory(Directory),
    Kubernetes(Cluster),
}

impl Knowledge {
    /// Opens the store, and knows what it kept. The source is not asked yet.
    pub(super) async fn open(config: &Config) -> Result<(Self, Feeding, OperationFeed, Writer), Failure> {
        let directory = &config.state_directory;
        std::fs::create_dir_all(directory)
            .map_err(|source| StateDirectoryError { path: directory.clone(), source })?;
        let store = Store::open(&directory.join("pxed.redb"))?;
        let machines = Machines::default();
        let (kept, kept_bytes) = source::kept(&store)?;
        let (feed, problem) = Feed::new(config, kept.clone()).await?;
        let (name, sink) = match &feed {
            Feed::Directory(directory) => (directory.path().display().to_string(), Sink::Store),
            Feed::Kubernetes(cluster) => ("kubernetes".to_owned(), Sink::Kubernetes(cluster.access())),
        };
        let standalone = matches!(sink, Sink::Store);
        let (registry, events) = StatusRegistry::new(machines.clone(), &store, standalone)?;
        let limit = usize::try_from(config.limits.discovered_machines).unwrap_or(usize::MAX);
        if let Some(reason) = &problem {
            tracing::warn!(source = name, reason, "the source of machines cannot be asked yet");
        }
        let state = SourceState { source: name, unreachable: problem, ..SourceState::default() };
        let choosing = standalone
            .then(|| NodeChoice::open(store.clone(), machines.clone(), registry.clone()))
            .transpose()?;
        let (choice, choosing) = choosing.unzip();
        let knowledge = Self {
            choice,
            discovered: Discovered::load(store.clone(), limit)?,
            source: Arc::new(ArcSwap::from_pointee(state)),
            statuses: Arc::default(),
            store,
            machines,
            registry,
        };
        let operations = match &feed {
            Feed::Directory(_) => {
                let (operations, updates) = power::open_local(&knowledge, directory)?;
                OperationFeed::Local(operations, updates)
            }
            Feed::Kubernetes(cluster) => OperationFeed::Cluster(cluster.access()),
        };
        let mut follower = Follower {
            operations: operations.local().cloned(),
            choice: knowledge.choice.clone(),
            site: config.site.clone(),
            machines: knowledge.machines.clone(),
            store: knowledge.store.clone(),
            registry: knowledge.registry.clone(),
            state: knowledge.source.clone(),
            kept: kept_bytes,
            set: Vec::new(),
        };
        follower.begin(kept);
        let writer = Writer {
            registry: knowledge.registry.clone(),
            store: knowledge.store.clone(),
            sink,
            events,
            counters: knowledge.statuses.clone(),
        };
        Ok((knowledge, Feeding { feed, follower, choosing }, operations, writer))
    }

    /// What the boot path is built on.
    pub(super) fn for_boot_path(&self, config: &Config, operations: &OperationFeed) -> boot_path::Daemon {
        let stand_in = operations.local().zip(self.choice.clone()).map(|(operations, choice)| StandIn {
            operations: operations.clone(),
            choice,
            secrets: NodeSecrets::new(config.secrets_directory.clone()),
        });
        let discovered = self.discovered.clone();
        boot_path::Daemon {
            source: self.source.clone(),
            machines: self.machines.clone(),
            registry: self.registry.clone(),
            store: self.store.clone(),
            discovered: Arc::new(move |query| discovered.record(query, Timestamp::now())),
            stand_in,
        }
    }
}

impl Feed {
    /// With what stands in its way for now.
    async fn new(config: &Config, kept: Vec<Sourced>) -> Result<(Self, Option<String>), Failure> {
        match &config.source {
            SourceConfig::Directory(path) => Ok((Self::Directory(Directory::new(path.clone(), kept)), None)),
            SourceConfig::Kubernetes { kubeconfig, context, .. } => {
                let opened = Cluster::open(kubeconfig.clone(), context.clone()).await;
                let (cluster, problem) = opened.map_err(Failure::configuration)?;
                Ok((Self::Kubernetes(cluster), problem))
            }
        }
    }
}

impl Feeding {
    /// Asks the source from now on.
    pub(super) fn spawn(self, tasks: &Tasks, liveness: &Liveness, shutdown: CancellationToken) {
        let (sender, updates) = mpsc::channel::<Update>(UPDATES);
        let Self { feed, follower, choosing } = self;
        let pulse = liveness.part("source", DISK_PATIENCE);
        if let Some(choosing) = choosing {
            let pulse = liveness.part("node choice", DISK_PATIENCE);
            infallible(tasks, "node choice", choosing.run(pulse, shutdown.clone()));
        }
        let site = follower.site.clone();
        // Its end ends the program, which then begins anew: Machines that are never read again help nobody.
        tasks.spawn("source", async move {
            match feed {
                Feed::Directory(directory) => directory.run(sender, pulse, shutdown).await,
                Feed::Kubernetes(cluster) => match cluster.wait(&sender, &pulse, &shutdown).await {
                    Some(client) => machines::run(client, site, sender, pulse, shutdown).await,
                    None if shutdown.is_cancelled() => Ok(()),
                    None => Err(SourceEnded::Unheard),
                },
            }
        });
        infallible(tasks, "machines", follower.follow(updates));
    }
}
