//! Puts power together: operations of the cluster or of manifests, credentials, the election, the engine; and ends them in
//! that order which leaves no step unwritten: the engine, the last writes, the lease.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bedplate_process::exit::Failure;
use bedplate_process::lease::Candidate;
use bedplate_process::liveness::Liveness;
use bedplate_process::tasks::Tasks;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::infallible;
use super::knowledge::{Knowledge, OperationFeed};
use super::liveness::DISK_PATIENCE;
use crate::cluster::client::Access;
use crate::cluster::finalizer::Finalizers;
use crate::cluster::operations::ClusterOperations;
use crate::config::{Config, translate};
use crate::power::bmc::credentials::{ClusterSecrets, SecretFiles};
use crate::power::bmc::dial::NetworkDial;
use crate::power::machine::takeover::{ClusterTokens, StoreTokens, Tokens};
use crate::power::{
    Counters, CredentialsSource, Holding, Limits, OperationDesk, OperationUpdate, OperationWriter, Parts,
    Tenure,
};
use crate::standalone::operations::LocalOperations;
use crate::status::write::WriteCounters;

/// Updates of operations that wait; who tells them waits too when there are more.
const UPDATES: usize = 64;
/// How long the last statuses of a leader may take before it gives the lease back.
const LAST_STATUSES: Duration = Duration::from_secs(3);
/// Between two looks whether they are written.
const LOOK: Duration = Duration::from_millis(200);
/// Where a pod finds the name of its namespace.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// The namespace of the Lease elsewhere.
const NAMESPACE: &str = "bedplate-system";

/// Where operations come from.
enum Feed {
    Local(LocalOperations),
    Cluster(ClusterOperations, mpsc::Sender<OperationUpdate>),
}

/// What differs with and without a cluster.
struct Kind {
    desk: Arc<dyn OperationDesk>,
    writer: Arc<dyn OperationWriter>,
    credentials: Arc<dyn CredentialsSource>,
    holding: Option<Arc<dyn Holding>>,
    tokens: Arc<dyn Tokens>,
    feed: Feed,
    candidate: Option<Candidate>,
}

/// What is to be spawned once.
struct Start {
    feed: Feed,
    candidate: Option<Candidate>,
    parts: Parts,
    statuses: Arc<WriteCounters>,
    knowledge: Knowledge,
}

/// Power, and what others ask of it.
pub(super) struct Power {
    pub(super) desk: Arc<dyn OperationDesk>,
    pub(super) counters: Arc<Counters>,
    tenure: Tenure,
    start: Option<Start>,
}

/// Operations of manifests and of the socket, beside what `path` keeps.
///
/// # Errors
/// The store cannot be read.
pub(super) fn open_local(
    knowledge: &Knowledge,
    path: &Path,
) -> Result<(LocalOperations, mpsc::Receiver<OperationUpdate>), Failure> {
    // What is moved aside stays beside the store, until a person takes it away.
    let lost = std::fs::read_dir(path).is_ok_and(|entries| {
        entries.flatten().any(|e| e.file_name().as_encoded_bytes().starts_with(b"pxed.redb.damaged-"))
    });
    Ok(LocalOperations::open(
        knowledge.store.clone(),
        knowledge.machines.clone(),
        knowledge.registry.clone(),
        lost,
    )?)
}

impl Power {
    /// As operations come.
    pub(super) fn assemble(config: &Config, knowledge: &Knowledge, feed: OperationFeed) -> Self {
        match feed {
            OperationFeed::Local(operations, updates) => Self::local(config, knowledge, operations, updates),
            OperationFeed::Cluster(access) => Self::cluster(config, knowledge, &access),
        }
    }

    fn local(
        config: &Config,
        knowledge: &Knowledge,
        operations: LocalOperations,
        updates: mpsc::Receiver<OperationUpdate>,
    ) -> Self {
        let bmc = &config.bmc;
        let files = SecretFiles::new(bmc.credentials_directory.clone(), bmc.secret_namespaces.clone());
        let shared = Arc::new(operations.clone());
        let kind = Kind {
            desk: shared.clone(),
            writer: shared,
            credentials: Arc::new(files),
            holding: None,
            tokens: Arc::new(StoreTokens::new(knowledge.store.clone(), operations.was_lost())),
            feed: Feed::Local(operations),
            candidate: None,
        };
        Self::new(config, knowledge, kind, updates, Tenure::always())
    }

    /// By a client that may come later.
    fn cluster(config: &Config, knowledge: &Knowledge, access: &Access) -> Self {
        let operations = ClusterOperations::new(access.clone(), config.site.clone());
        let (sender, updates) = mpsc::channel(UPDATES);
        let namespace = config.bmc.lease_namespace.clone().unwrap_or_else(pod_namespace);
        let lease = (namespace, format!("bedplate-pxed-{}", config.site));
        let (candidate, tenure) = Candidate::new(access.clone(), lease, &instance(), "pxed");
        knowledge.registry.lead_with(tenure.clone());
        let shared = Arc::new(operations.clone());
        let kind = Kind {
            desk: shared.clone(),
            writer: shared,
            credentials: Arc::new(ClusterSecrets::new(access.clone(), config.bmc.secret_namespaces.clone())),
            holding: Some(Arc::new(Finalizers::new(access.clone()))),
            tokens: Arc::new(ClusterTokens::new(access.clone(), knowledge.store.clone())),
            feed: Feed::Cluster(operations, sender),
            candidate: Some(candidate),
        };
        Self::new(config, knowledge, kind, updates, tenure)
    }

    fn new(
        config: &Config,
        knowledge: &Knowledge,
        kind: Kind,
        operations: mpsc::Receiver<OperationUpdate>,
        tenure: Tenure,
    ) -> Self {
        let Kind { desk, writer, credentials, holding, tokens, feed, candidate } = kind;
        let counters = Arc::<Counters>::default();
        let parts = Parts {
            machines: knowledge.machines.clone(),
            source: knowledge.source.clone(),
            registry: knowledge.registry.clone(),
            store: knowledge.store.clone(),
            operations,
            writer,
            credentials,
            dial: Arc::new(NetworkDial { reach: translate::bmc_reach(config), ..NetworkDial::default() }),
            holding,
            tokens,
            tenure: tenure.clone(),
            limits: Limits {
                connections: usize::try_from(config.bmc.connections).unwrap_or(usize::MAX),
                poll: config.bmc.poll,
                allow_insecure: config.bmc.allow_insecure,
            },
            instance: format!("pxed/{}/{}", config.site, instance()),
            counters: counters.clone(),
        };
        let (statuses, knowledge) = (knowledge.statuses.clone(), knowledge.clone());
        let start = Some(Start { feed, candidate, parts, statuses, knowledge });
        Self { desk, counters, tenure, start }
    }

    /// Whether this pxed leads its site.
    pub(super) fn leads(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        let tenure = self.tenure.clone();
        Arc::new(move || tenure.leads())
    }

    /// Starts every task. Once.
    pub(super) fn spawn(&mut self, tasks: &Tasks, liveness: &Liveness, shutdown: CancellationToken) {
        let Some(Start { feed, candidate, parts, statuses, knowledge }) = self.start.take() else {
            return;
        };
        // What the engine needs outlives it.
        let stop = CancellationToken::new();
        let pulse = liveness.part("operations", DISK_PATIENCE);
        match feed {
            Feed::Local(operations) => infallible(tasks, "operations", operations.run(pulse, stop.clone())),
            Feed::Cluster(operations, updates) => {
                infallible(tasks, "operations", operations.run(updates, pulse, stop.clone()));
            }
        }
        if let Some(candidate) = candidate {
            let registry = knowledge.registry.clone();
            let begins = move || registry.adopt_all_power();
            // What Machines there are, and what is known of their power, is known only then.
            let ready = move || knowledge.source.load().synced;
            let pulse = liveness.part("lease", DISK_PATIENCE);
            infallible(tasks, "lease", candidate.run(ready, begins, pulse, stop.clone()));
        }
        let pulse = liveness.part("power", DISK_PATIENCE);
        let driving = async move {
            crate::power::run(parts, pulse, shutdown.clone()).await;
            shutdown.cancelled().await;
            if tokio::time::timeout(LAST_STATUSES, written(&statuses)).await.is_err() {
                tracing::warn!("statuses wait to be written while the lease is given back");
            }
            stop.cancel();
        };
        infallible(tasks, "power", driving);
    }
}

/// Until no status waits to be written: what the next leader begins with.
async fn written(statuses: &WriteCounters) {
    loop {
        tokio::time::sleep(LOOK).await;
        if statuses.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
    }
}

/// The pod's name, else this machine's.
fn instance() -> String {
    let pod = std::env::var("POD_NAME").ok().filter(|name| !name.is_empty());
    let host = || nix::unistd::gethostname().ok()?.into_string().ok().filter(|name| !name.is_empty());
    pod.or_else(host).unwrap_or_else(|| "unnamed".to_owned())
}

fn pod_namespace() -> String {
    let variable = std::env::var("POD_NAMESPACE").ok();
    let found = variable.or_else(|| std::fs::read_to_string(POD_NAMESPACE).ok());
    let found = found.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    found.unwrap_or_else(|| NAMESPACE.to_owned())
}
