//! Makes the daemon's parts in the order in which they need each other, binds every socket, and only then spawns.
//!
//!     store -> index, statuses -> kept machines -> loaders, images, boots -> DHCP, TFTP, HTTP, socket, health
//!
//! A failure here ends the program before anybody was answered.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bedplate_process::exit::Failure;
use bedplate_process::health;
use bedplate_process::tasks::Tasks;
use jiff::Timestamp;
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::look::Look;
use crate::admin::{self, AdminState};
use crate::boot_path::{self, BootPath};
use crate::config::{Config, SourceConfig, translate};
use crate::discovered::Discovered;
use crate::machine::Machines;
use crate::metrics::{self, Reloads};
use crate::source::{self, Follower, SourceState, Update, directory::Directory, kubernetes};
use crate::status::write::WriteCounters;
use crate::status::{Sink, StatusRegistry, Writer};
use crate::store::Store;

/// Updates of the source that wait; it waits too when there are more.
const UPDATES: usize = 4;

/// A listener cannot be bound.
#[derive(Debug, Error)]
#[error("cannot listen on {key} {address}")]
struct BindError {
    key: &'static str,
    address: SocketAddr,
    source: std::io::Error,
}

/// The state directory cannot be used.
#[derive(Debug, Error)]
#[error("cannot use the directory {path}")]
struct StateDirectoryError {
    path: PathBuf,
    source: std::io::Error,
}

/// The status writer.
pub(super) type Writing = Writer;

/// The daemon's parts.
pub(super) struct Daemon {
    pub(super) config: Arc<ArcSwap<Config>>,
    pub(super) boot_path: BootPath,
    pub(super) dhcp: Option<bedplate_dhcp::Server>,
    pub(super) tftp: Option<Arc<bedplate_tftp::server::Server>>,
    pub(super) reloads: Arc<Reloads>,
    machines: Machines,
    registry: StatusRegistry,
    discovered: Discovered,
    source: Arc<ArcSwap<SourceState>>,
    store: Store,
    start: Option<Start>,
}

/// What is handed over to tasks once.
struct Start {
    follower: Follower,
    feed: Feed,
    http: TcpListener,
    health: TcpListener,
    socket: UnixListener,
    statuses: Arc<WriteCounters>,
}

/// Where updates come from.
enum Feed {
    Directory(Directory),
    Kubernetes(kube::Client),
}

impl Daemon {
    /// Makes the parts and binds the sockets.
    pub(super) async fn assemble(config: Config) -> Result<(Self, Writing), Failure> {
        let state_directory = config.state_directory.clone();
        std::fs::create_dir_all(&state_directory)
            .map_err(|source| StateDirectoryError { path: state_directory.clone(), source })?;
        let store = Store::open(&state_directory.join("pxed.redb"))?;
        let machines = Machines::default();
        let client = connect(&config).await?;
        let (registry, events) = StatusRegistry::new(machines.clone(), &store, client.is_none())?;
        let (kept, kept_bytes) = source::kept(&store)?;
        let source = Arc::new(ArcSwap::from_pointee(SourceState {
            source: source_name(&config),
            ..SourceState::default()
        }));
        let follower = Follower {
            site: config.site.clone(),
            machines: machines.clone(),
            store: store.clone(),
            registry: registry.clone(),
            state: source.clone(),
            kept: kept_bytes,
        };
        follower.begin(kept.clone());
        let sink = client.clone().map_or(Sink::Store, Sink::Kubernetes);
        let statuses = Arc::default();
        let writing =
            Writer { registry: registry.clone(), store: store.clone(), sink, events, counters: Arc::clone(&statuses) };
        let feed = match (client, &config.source) {
            (Some(client), _) => Feed::Kubernetes(client),
            (None, SourceConfig::Directory(path)) => Feed::Directory(Directory::new(path.clone(), kept)),
            (None, SourceConfig::Kubernetes { .. }) => Feed::Directory(Directory::new(PathBuf::new(), kept)),
        };
        let limit = usize::try_from(config.limits.discovered_machines).unwrap_or(usize::MAX);
        let discovered = Discovered::load(store.clone(), limit)?;
        let record = discovered.clone();
        let brings = boot_path::Daemon {
            machines: machines.clone(),
            registry: registry.clone(),
            store: store.clone(),
            discovered: Arc::new(move |query| record.record(query, Timestamp::now())),
        };
        let boot_path = BootPath::open(&config, brings)?;
        let dhcp = bind_dhcp(&config, &boot_path)?;
        let tftp = bind_tftp(&config, &boot_path)?;
        let http = listen("http.listen", config.http.listen).await?;
        let health = health::bind(config.metrics.listen).await?;
        let socket = admin::bind(&config.socket, config.socket_group.as_deref())?;
        let start = Some(Start { follower, feed, http, health, socket, statuses });
        let config = Arc::new(ArcSwap::from_pointee(config));
        let daemon = Self {
            config,
            boot_path,
            dhcp,
            tftp,
            reloads: Arc::default(),
            machines,
            registry,
            discovered,
            source,
            store,
            start,
        };
        Ok((daemon, writing))
    }

    /// The configuration in force.
    pub(super) fn config(&self) -> Arc<Config> {
        self.config.load_full()
    }

    /// Where to see how things stand.
    pub(super) fn look(&self) -> Look {
        Look {
            config: self.config.clone(),
            machines: self.machines.clone(),
            source: self.source.clone(),
            boot_path: self.boot_path.clone(),
            dhcp: self.dhcp.clone(),
        }
    }

    /// Starts every task. Once.
    pub(super) fn spawn(&mut self, tasks: &Tasks, shutdown: &CancellationToken) -> Result<(), Failure> {
        let Some(start) = self.start.take() else { return Ok(()) };
        let config = self.config();
        let Start { follower, feed, http, health, socket, statuses } = start;
        let (sender, updates) = mpsc::channel::<Update>(UPDATES);
        let stop = shutdown.clone();
        let site = config.site.clone();
        infallible(tasks, "source", async move {
            match feed {
                Feed::Directory(directory) => directory.run(sender, stop).await,
                Feed::Kubernetes(client) => kubernetes::run(client, site, sender, stop).await,
            }
        });
        infallible(tasks, "machines", follower.follow(updates));
        infallible(tasks, "boot path", self.boot_path.clone().run(http, shutdown.clone()));
        if let Some(server) = self.dhcp.clone() {
            let stop = shutdown.clone();
            tasks.spawn("dhcp", async move { server.run(stop).await });
        }
        if let Some(server) = self.tftp.clone() {
            let stop = shutdown.clone();
            tasks.spawn("tftp", async move { server.run(stop).await });
        }
        let look = self.look();
        let state = self.admin_state(&look);
        tasks.spawn("socket", admin::serve(socket, config.socket.clone(), state, shutdown.clone()));
        let registry = self.metrics(&look, statuses);
        let registry = Arc::new(metrics::registry(registry));
        tasks.spawn("health", health::serve(health, Arc::new(look), registry, shutdown.clone()));
        Ok(())
    }

    fn admin_state(&self, look: &Look) -> AdminState {
        let (boot_path, about) = (self.boot_path.clone(), look.clone());
        AdminState {
            machines: self.machines.clone(),
            registry: self.registry.clone(),
            discovered: self.discovered.clone(),
            explain: Arc::new(move |subject| boot_path.explain(subject)),
            health: Arc::new(look.clone()),
            about: Arc::new(move || about.about()),
        }
    }

    fn metrics(&self, look: &Look, statuses: Arc<WriteCounters>) -> metrics::Sources {
        let look = look.clone();
        metrics::Sources {
            store: self.store.clone(),
            statuses,
            dhcp: self.dhcp.clone(),
            tftp: self.tftp.clone(),
            look: Arc::new(move || look.view()),
            reloads: self.reloads.clone(),
            further: Vec::new(),
        }
    }
}

async fn connect(config: &Config) -> Result<Option<kube::Client>, Failure> {
    let SourceConfig::Kubernetes { kubeconfig, context } = &config.source else { return Ok(None) };
    let client = kubernetes::connect(kubeconfig.as_deref(), context.as_deref()).await;
    Ok(Some(client.map_err(Failure::configuration)?))
}

fn source_name(config: &Config) -> String {
    match &config.source {
        SourceConfig::Directory(path) => path.display().to_string(),
        SourceConfig::Kubernetes { .. } => "kubernetes".to_owned(),
    }
}

fn bind_dhcp(config: &Config, boot_path: &BootPath) -> Result<Option<bedplate_dhcp::Server>, Failure> {
    let Some(settings) = translate::dhcp_settings(config) else { return Ok(None) };
    let leases = config.state_directory.join("leases.redb");
    Ok(Some(bedplate_dhcp::Server::bind(settings, Arc::new(boot_path.clients()), &leases)?))
}

fn bind_tftp(
    config: &Config,
    boot_path: &BootPath,
) -> Result<Option<Arc<bedplate_tftp::server::Server>>, Failure> {
    let Some(settings) = translate::tftp_settings(config) else { return Ok(None) };
    Ok(Some(Arc::new(bedplate_tftp::server::Server::bind(settings, Arc::new(boot_path.files()))?)))
}

async fn listen(key: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|source| BindError { key, address, source })
}

/// A task that cannot fail; it stops the program only by a panic.
fn infallible(tasks: &Tasks, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(name, async move {
        task.await;
        Ok::<_, std::convert::Infallible>(())
    });
}
