//! The plane: the origin of Machines, operations and credentials, and the place of statuses and keys. A cluster, or pxed itself (standalone).
//!
//! Opened once, by `run`. Only this file asks whether there is a cluster. Every other module gets a trait of which `cluster` and `standalone`
//! each have an implementation, or a value that is named after its decision: [`SystemOfRecord`] and [`Origin`].

use std::path::Path;
use std::sync::Arc;

use bedplate_process::exit::Failure;
use bedplate_process::lease::{Candidate, Tenure};
use bedplate_process::liveness::DISK_PATIENCE;
use bedplate_process::program::Program;
use bedplate_process::shutdown::Stage;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::cluster::agents::AskApiServer;
use crate::cluster::client::{Access, Connector};
use crate::cluster::client_authority::ClientAuthority;
use crate::cluster::finalizer::Finalizers;
use crate::cluster::operations::ClusterOperations;
use crate::cluster::secrets::ClusterSecrets;
use crate::cluster::signer::ClusterSigner;
use crate::cluster::status::ClusterStatuses;
use crate::cluster::takeover_tokens::ClusterTokens;
use crate::cluster::{NoManifests, claims, machines};
use crate::config::{Config, SourceConfig};
use crate::enroll::plane::AgentPlane;
use crate::enroll::signer::Signer;
use crate::enroll::tls::Configurations;
use crate::machines::source::{SourceEnded, Sourced, TakeManifests, Update};
use crate::power::plan::claim::Claims;
use crate::power::{OperationDesk, Origin, PowerPlane};
use crate::site::Site;
use crate::standalone::Manifested;
use crate::standalone::agents::LocalAgents;
use crate::standalone::bmc_secrets::SecretFiles;
use crate::standalone::departures::StoredDepartures;
use crate::standalone::manifests::Directory;
use crate::standalone::node_secrets::NodeSecrets;
use crate::standalone::operations::LocalOperations;
use crate::standalone::signer::LocalSigner;
use crate::standalone::statuses::StoreOnly;
use crate::standalone::takeover_tokens::StoreTokens;
use crate::standalone::versions::NodeChoice;
use crate::status::StatusSink;
use crate::system_of_record::SystemOfRecord;

/// Maximum number of updates of Machines that wait. The source waits when there are more.
const MAX_MACHINE_UPDATES: usize = 4;
/// Maximum number of updates of operations that wait. The source waits when there are more.
const MAX_OPERATION_UPDATES: usize = 64;
/// File with the namespace of a pod.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Namespace of the Lease outside of a pod.
const DEFAULT_NAMESPACE: &str = "bedplate-system";

/// The parts that a plane supplies.
pub(crate) struct Plane {
    /// Updates of the source of Machines.
    pub(crate) machines: mpsc::Receiver<Update>,
    /// Receiver of the other objects in manifests.
    pub(crate) manifests: Arc<dyn TakeManifests>,
    /// Sink of statuses.
    pub(crate) statuses: Arc<dyn StatusSink>,
    /// Access to the API server that Events are written to.
    pub(crate) access: Option<Access>,
    /// Signer of agents' certificates.
    pub(crate) signer: Arc<dyn Signer>,
    /// Agent API.
    pub(crate) agents: Arc<dyn AgentPlane>,
    /// Operations for users.
    pub(crate) desk: Arc<dyn OperationDesk>,
    /// Operations, credentials, finalizer and leadership for power.
    pub(crate) power: PowerPlane,
    /// Configurations and selected versions, if pxed selects them.
    pub(crate) choice: Option<NodeChoice>,
    /// Releases the Lease, if there is one.
    pub(crate) release: CancellationToken,
}

/// The parts that a plane is built on.
pub(crate) struct Base<'a> {
    pub(crate) config: &'a Config,
    pub(crate) site: &'a Site,
    pub(crate) configurations: &'a Arc<Configurations>,
    pub(crate) program: &'a Program,
}

/// Returns the system of record, on which the site is opened before the plane is.
pub(crate) fn system_of_record(source: &SourceConfig) -> SystemOfRecord {
    match source {
        SourceConfig::Directory(_) => SystemOfRecord::Pxed,
        SourceConfig::Kubernetes { .. } => SystemOfRecord::Cluster,
    }
}

/// Opens the plane, and adds its tasks to the program. `kept`: the Machines of the last run.
///
/// # Errors
/// The store cannot be read, or the access to the cluster is wrongly configured.
pub(crate) async fn open(base: Base<'_>, kept: Vec<Sourced>) -> Result<Plane, Failure> {
    match &base.config.source {
        SourceConfig::Directory(path) => base.standalone(Directory::new(path.clone(), kept)),
        SourceConfig::Kubernetes { kubeconfig, context, advertise } => {
            let advertise = advertise.as_ref().map(ToString::to_string);
            let opened = Connector::open(kubeconfig.clone(), context.clone(), advertise).await;
            let (connector, problem) = opened.map_err(Failure::configuration)?;
            if let Some(reason) = problem {
                tracing::warn!(reason, "failed to connect to the cluster, retrying");
                base.site.source.send_modify(|state| state.unreachable = Some(reason));
            }
            Ok(base.cluster(connector))
        }
    }
}

impl Base<'_> {
    fn standalone(self, directory: Directory) -> Result<Plane, Failure> {
        let Self { config, site, configurations, program } = self;
        let (store, registry) = (&site.store, &site.registry);
        let (sender, machines) = mpsc::channel(MAX_MACHINE_UPDATES);
        // Its end ends the program, which is then restarted: without a source, changes of Machines would be missed.
        let pulse = program.liveness.part("source", DISK_PATIENCE);
        program.try_run("source", Stage::Draining, |stop| directory.run(sender, pulse, stop));
        let (choice, versions) = NodeChoice::open(store.clone(), site.machines.clone(), registry.clone())?;
        program.run("versions", Stage::Draining, DISK_PATIENCE, |pulse, stop| versions.run(pulse, stop));
        let lost = was_damaged(&config.state_directory);
        let (operations, updates) =
            LocalOperations::open(store.clone(), site.machines.clone(), registry.clone(), lost)?;
        program.run("operations", Stage::LastWrites, DISK_PATIENCE, |pulse, stop| {
            operations.clone().run(pulse, stop)
        });
        let authority = configurations.authority().clone();
        configurations.believe(authority.pem());
        let bmc = &config.bmc;
        Ok(Plane {
            machines,
            manifests: Arc::new(Manifested { operations: operations.clone(), choice: choice.clone() }),
            statuses: Arc::new(StoreOnly),
            access: None,
            signer: Arc::new(LocalSigner { authority }),
            agents: Arc::new(LocalAgents {
                machines: site.machines.clone(),
                registry: registry.clone(),
                operations: operations.clone(),
                choice: choice.clone(),
                secrets: NodeSecrets::new(config.secrets_directory.clone()),
            }),
            desk: Arc::new(operations.clone()),
            power: PowerPlane {
                origin: Origin::Manifests,
                updates,
                credentials: Arc::new(SecretFiles::new(
                    bmc.credentials_directory.clone(),
                    bmc.secret_namespaces.clone(),
                )),
                holding: Arc::new(StoredDepartures::new(store.clone())),
                tokens: Arc::new(StoreTokens::new(store.clone(), operations.was_lost())),
                writer: Arc::new(operations),
                tenure: Tenure::always(),
                claims: watch::Sender::default().subscribe(),
            },
            choice: Some(choice),
            release: CancellationToken::new(),
        })
    }

    fn cluster(self, connector: Connector) -> Plane {
        let Self { config, site, configurations, program } = self;
        let (access, endpoint) = (connector.access(), connector.endpoint());
        let operations = ClusterOperations::new(access.clone(), site.name.clone());
        let (sender, updates) = mpsc::channel(MAX_OPERATION_UPDATES);
        program.run("operations", Stage::LastWrites, DISK_PATIENCE, |pulse, stop| {
            operations.clone().run(sender, pulse, stop)
        });
        let claims = watch_claims(&access, site, program);
        let namespace = config.bmc.lease_namespace.clone().unwrap_or_else(pod_namespace);
        let lease = (namespace, format!("bedplate-pxed-{}", site.name));
        let (candidate, tenure) = Candidate::new(access.clone(), lease, &site.instance, "pxed");
        site.registry.lead_with(tenure.clone());
        let release = program.stages.token(Stage::LastWrites).child_token();
        program.run("lease", Stage::LastWrites, DISK_PATIENCE, |pulse, _| {
            let (mut source, registry) = (site.source.subscribe(), site.registry.clone());
            // Not before the Machines, and with them the state of their power, were read.
            let ready = async move {
                if source.wait_for(|source| source.synced).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            candidate.run(ready, move || registry.adopt_all_power(), pulse, release.clone())
        });
        let signer = Arc::new(ClusterSigner::new(access.clone(), endpoint));
        program.reconcile(
            "client authority",
            Stage::Draining,
            DISK_PATIENCE,
            ClientAuthority::new(access.clone(), signer.clone(), configurations.clone()),
        );
        Plane {
            machines: self::watch_machines(connector, site, program),
            manifests: Arc::new(NoManifests),
            statuses: Arc::new(ClusterStatuses::new(access.clone())),
            access: Some(access.clone()),
            signer,
            agents: Arc::new(AskApiServer),
            desk: Arc::new(operations.clone()),
            power: PowerPlane {
                origin: Origin::Cluster,
                updates,
                credentials: Arc::new(ClusterSecrets::new(
                    access.clone(),
                    config.bmc.secret_namespaces.clone(),
                )),
                holding: Arc::new(Finalizers::new(access.clone())),
                tokens: Arc::new(ClusterTokens::new(access, site.store.clone())),
                writer: Arc::new(operations),
                tenure,
                claims,
            },
            choice: None,
            release,
        }
    }
}

/// Watches the MachineClaims of the site.
fn watch_claims(access: &Access, site: &Site, program: &Program) -> watch::Receiver<Claims> {
    let (sender, claims) = watch::channel(Claims::default());
    let (access, site) = (access.clone(), site.name.clone());
    program.run("claims", Stage::LastWrites, DISK_PATIENCE, |pulse, stop| {
        claims::run(access, site, sender, pulse, stop)
    });
    claims
}

/// Connects, then watches Machines.
fn watch_machines(connector: Connector, site: &Site, program: &Program) -> mpsc::Receiver<Update> {
    let (sender, updates) = mpsc::channel(MAX_MACHINE_UPDATES);
    let pulse = program.liveness.part("source", DISK_PATIENCE);
    let site = site.name.clone();
    // Its end ends the program, which is then restarted: without a source, changes of Machines would be missed.
    program.try_run("source", Stage::Draining, |stop| async move {
        match connector.run(&sender, &pulse, &stop).await {
            Some(client) => machines::run(client, site, sender, pulse, stop).await,
            None if stop.is_cancelled() => Ok(()),
            None => Err(SourceEnded::Unheard),
        }
    });
    updates
}

/// Returns true if a damaged store was moved aside at some time. Its file stays next to the store until an operator removes it.
fn was_damaged(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|entries| {
        entries.flatten().any(|e| e.file_name().as_encoded_bytes().starts_with(b"pxed.redb.damaged-"))
    })
}

fn pod_namespace() -> String {
    let variable = std::env::var("POD_NAMESPACE").ok();
    let found = variable.or_else(|| std::fs::read_to_string(POD_NAMESPACE).ok());
    let found = found.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    found.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned())
}
