//! Makes the daemon's parts in the order in which they need each other, binds every socket, and only then spawns.
//!
//! ```text
//! knowledge (store, index, statuses) -> boot path -> DHCP, TFTP, HTTP, socket, health
//! ```
//!
//! A failure here ends the program before anybody was answered.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bedplate_process::exit::Failure;
use bedplate_process::health;
use bedplate_process::liveness::Liveness;
use bedplate_process::tasks::Tasks;
use jiff::Timestamp;
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use super::health::Look;
use super::infallible;
use super::knowledge::{Feeding, Knowledge};
use super::liveness::{DISK_PATIENCE, ask_store, watch_dhcp, watch_tftp};
use super::power::Power;
use crate::admin::{self, AdminState};
use crate::boot::Owner;
use crate::config::{Config, DhcpMode, translate};
use crate::metrics::{self, Reloads};
use crate::run::boot_path::BootPath;
use crate::status::Writer;

/// A listener cannot be bound.
#[derive(Debug, Error)]
#[error("cannot listen on {key} {address}")]
struct BindError {
    key: &'static str,
    address: SocketAddr,
    source: std::io::Error,
}

/// The daemon's parts.
pub(super) struct Daemon {
    pub(super) config: Arc<ArcSwap<Config>>,
    pub(super) boot_path: BootPath,
    pub(super) dhcp: Option<bedplate_dhcp::Server>,
    pub(super) tftp: Option<Arc<bedplate_tftp::server::Server>>,
    pub(super) reloads: Arc<Reloads>,
    liveness: Liveness,
    knowledge: Knowledge,
    power: Power,
    rights: admin::Rights,
    start: Option<Start>,
}

/// What is handed over to tasks once.
struct Start {
    feeding: Feeding,
    http: TcpListener,
    https: TcpListener,
    health: TcpListener,
    socket: UnixListener,
}

impl Daemon {
    /// Makes the parts and binds the sockets.
    pub(super) async fn assemble(config: Config, liveness: Liveness) -> Result<(Self, Writer), Failure> {
        let (knowledge, feeding, operations, writer) = Knowledge::open(&config).await?;
        let boot_path = BootPath::open(&config, knowledge.for_boot_path(&config, &operations))?;
        let dhcp = bind_dhcp(&config, &boot_path)?;
        let tftp = bind_tftp(&config, &boot_path)?;
        let http = listen("http.listen", config.http.listen).await?;
        let https = listen("https.listen", config.https.listen).await?;
        let health = health::bind(config.metrics.listen).await?;
        let socket = admin::bind(&config.socket, config.socket_group.as_deref())?;
        let rights = admin::rights(config.socket_admin_group.as_deref())?;
        let power = Power::assemble(&config, &knowledge, operations);
        let daemon = Self {
            config: Arc::new(ArcSwap::from_pointee(config)),
            boot_path,
            dhcp,
            tftp,
            reloads: Arc::default(),
            liveness,
            knowledge,
            power,
            rights,
            start: Some(Start { feeding, http, https, health, socket }),
        };
        Ok((daemon, writer))
    }

    /// The configuration in force.
    pub(super) fn config(&self) -> Arc<Config> {
        self.config.load_full()
    }

    /// Where to see how things stand.
    pub(super) fn look(&self) -> Look {
        Look {
            config: self.config.clone(),
            knowledge: self.knowledge.clone(),
            boot_path: self.boot_path.clone(),
            dhcp: self.dhcp.clone(),
            liveness: self.liveness.clone(),
        }
    }

    /// Starts every task. Once.
    pub(super) fn spawn(&mut self, tasks: &Tasks, shutdown: &CancellationToken) {
        let Some(Start { feeding, http, https, health, socket }) = self.start.take() else { return };
        feeding.spawn(tasks, &self.liveness, shutdown.clone());
        infallible(
            tasks,
            "boot path",
            self.boot_path.clone().run(http, https, self.liveness.clone(), shutdown.clone()),
        );
        self.power.spawn(tasks, &self.liveness, shutdown.clone());
        let pulse = self.liveness.part("store", DISK_PATIENCE);
        infallible(tasks, "store", ask_store(self.knowledge.store.clone(), pulse, shutdown.clone()));
        if let Some(server) = self.dhcp.clone() {
            let stop = shutdown.clone();
            watch_dhcp(&self.liveness, server.clone());
            tasks.spawn("dhcp", async move { server.run(stop).await });
        }
        if let Some(server) = self.tftp.clone() {
            let stop = shutdown.clone();
            watch_tftp(&self.liveness, server.clone());
            tasks.spawn("tftp", async move { server.run(stop).await });
        }
        let path = self.config().socket.clone();
        tasks.spawn("socket", admin::serve(socket, path, self.admin_state(), shutdown.clone()));
        let registry = Arc::new(metrics::registry(self.metrics()));
        tasks.spawn("health", health::serve(health, Arc::new(self.look()), registry, shutdown.clone()));
    }

    fn admin_state(&self) -> AdminState {
        let (explainer, look) = (self.look(), self.look());
        let (boots, tokens) = (self.boot_path.boots().clone(), self.boot_path.tokens());
        let permissions = self.boot_path.permissions();
        AdminState {
            machines: self.knowledge.machines.clone(),
            registry: self.knowledge.registry.clone(),
            discovered: self.knowledge.discovered.clone(),
            stage: Arc::new(move |mac| boots.timeline(&Owner::Unknown { mac }).map(|t| t.stage)),
            explain: Arc::new(move |subject| explainer.explain(subject)),
            operations: self.power.desk.clone(),
            choice: self.knowledge.choice.clone(),
            token: Arc::new(move |name| {
                let tokens = tokens.clone();
                Box::pin(async move { tokens.issue(&name, Timestamp::now()).await })
            }),
            rights: self.rights.clone(),
            allow_key: Arc::new(move |name, boot| {
                let permissions = permissions.clone();
                Box::pin(async move { permissions.allow(&name, boot, Timestamp::now()).await })
            }),
            health: Arc::new(look.clone()),
            about: Arc::new(move || look.about()),
        }
    }

    fn metrics(&self) -> metrics::Sources {
        let look = self.look();
        metrics::Sources {
            store: self.knowledge.store.clone(),
            registry: self.knowledge.registry.clone(),
            statuses: self.knowledge.statuses.clone(),
            dhcp: self.dhcp.clone(),
            tftp: self.tftp.clone(),
            look: Arc::new(move || look.view()),
            reloads: self.reloads.clone(),
            power: metrics::power::Source {
                counters: self.power.counters.clone(),
                leads: self.power.leads(),
            },
            boot_path: metrics::boot_path::Source {
                counters: self.boot_path.counters().clone(),
                images: self.boot_path.images().clone(),
                boots: self.boot_path.boots().clone(),
            },
        }
    }
}

fn bind_dhcp(config: &Config, boot_path: &BootPath) -> Result<Option<bedplate_dhcp::Server>, Failure> {
    let Some(settings) = translate::dhcp_settings(config) else { return Ok(None) };
    let leases = config.state_directory.join("leases.redb");
    let gives_addresses = config.dhcp.mode == DhcpMode::Server;
    let server = bedplate_dhcp::Server::bind(settings, Arc::new(boot_path.clients()), &leases)?;
    if gives_addresses && config.http.require_leased_address {
        let server = server.clone();
        boot_path.leases().ask(Box::new(move |mac| server.leased_to(mac)));
    }
    Ok(Some(server))
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
