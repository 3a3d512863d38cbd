//! Makes the daemon's parts in the order in which they need each other, and binds every socket. The tasks run afterwards.
//!
//! ```text
//! Site (store, index, statuses) -> Plane (cluster or standalone) -> BootPath -> DHCP, TFTP, HTTP, socket, health
//! ```
//!
//! A failure here ends the program before a client was answered.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bedplate_process::events::{self, EventWriter};
use bedplate_process::exit::Failure;
use bedplate_process::health;
use bedplate_process::liveness::{DISK_PATIENCE, SILENCE_TIMEOUT};
use bedplate_process::program::Program;
use bedplate_process::shutdown::Stage;
use futures::FutureExt as _;
use jiff::Timestamp;
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use super::follow::Follower;
use super::health::Look;
use super::image_events::ImageEvents;
use super::liveness::{ask_store, watch_dhcp, watch_tftp};
use crate::admin::{self, AdminState};
use crate::boot::Owner;
use crate::cluster::client::Access;
use crate::config::{Config, DhcpMode, translate};
use crate::enroll::authority::Authority;
use crate::enroll::tls::Configurations;
use crate::metrics::{self, Reloads};
use crate::plane::{self, Base, Plane};
use crate::power::bmc::dial::NetworkDial;
use crate::power::{self, Limits, OperationDesk, Parts, PowerPlane, Tenure};
use crate::run::boot_path::{BootPath, OpenBootPathError};
use crate::site::{self, Site};
use crate::status::Writer;
use crate::status::write::Statuses;

/// A listener cannot be bound.
#[derive(Debug, Error)]
#[error("cannot listen on {key} {address}")]
struct BindError {
    key: &'static str,
    address: SocketAddr,
    source: std::io::Error,
}

/// The daemon's parts, for reload and for the shutdown.
pub(super) struct Daemon {
    pub(super) config: Arc<ArcSwap<Config>>,
    pub(super) boot_path: BootPath,
    pub(super) dhcp: Option<bedplate_dhcp::Server>,
    pub(super) tftp: Option<Arc<bedplate_tftp::server::Server>>,
    pub(super) reloads: Arc<Reloads>,
    pub(super) look: Look,
    /// Waits for the status writer.
    pub(super) statuses: Statuses,
    /// Releases the Lease, if there is one.
    pub(super) release: CancellationToken,
}

/// The sockets.
struct Sockets {
    http: TcpListener,
    https: TcpListener,
    health: TcpListener,
    admin: UnixListener,
}

/// Parts of power and operations that others read.
struct PowerHandles {
    desk: Arc<dyn OperationDesk>,
    counters: Arc<power::Counters>,
    tenure: Tenure,
}

impl Daemon {
    /// Makes the parts, binds the sockets and adds the tasks to the program.
    pub(super) async fn assemble(config: Config, program: &Program) -> Result<Self, Failure> {
        let site::Opened { site, kept, rows, events } =
            Site::open(&config, plane::system_of_record(&config.source))?;
        let configurations = configurations(&config)?;
        let base = Base { config: &config, site: &site, configurations: &configurations, program };
        let plane = plane::open(base, kept.clone()).await?;
        let Plane {
            machines,
            manifests,
            statuses: sink,
            access,
            signer,
            agents,
            desk,
            power,
            choice,
            release,
        } = plane;
        let boot_path = BootPath::open(&config, site.clone(), configurations)?;
        let dhcp = bind_dhcp(&config, &boot_path)?;
        let tftp = bind_tftp(&config, &boot_path)?;
        let sockets = Sockets::bind(&config).await?;
        let rights = admin::rights(config.socket_admin_group.as_deref())?;

        let follower = Follower::new(site.clone(), machines, manifests, kept, rows);
        program.reconcile("machines", Stage::Draining, DISK_PATIENCE, follower);
        let (writer, statuses) =
            Writer::new(site.registry.clone(), site.store.clone(), sink, site.writes.clone());
        program.run("status writer", Stage::Done, DISK_PATIENCE, |pulse, stop| writer.run(pulse, stop));
        let events = event_writer(&site, events, access);
        program.run("events", Stage::Done, SILENCE_TIMEOUT, |pulse, stop| events.run(pulse, stop));
        program.run("store", Stage::Draining, DISK_PATIENCE, |pulse, stop| {
            ask_store(site.store.clone(), pulse, stop)
        });
        let power = drive_power(&config, &site, power, desk, program);
        run_engines(program, dhcp.as_ref(), tftp.as_ref());
        boot_path.run(sockets.http, sockets.https, (signer, agents), program);

        let config = Arc::new(ArcSwap::from_pointee(config));
        let look = Look {
            config: config.clone(),
            site,
            choice,
            boot_path: boot_path.clone(),
            dhcp: dhcp.clone(),
            liveness: program.liveness.clone(),
        };
        program.reconcile("image events", Stage::Draining, SILENCE_TIMEOUT, ImageEvents::new(look.clone()));
        let daemon = Self { config, boot_path, dhcp, tftp, reloads: Arc::default(), look, statuses, release };
        daemon.serve_admin(sockets.admin, &power, rights, program);
        daemon.serve_health(sockets.health, &power, program);
        Ok(daemon)
    }

    fn serve_admin(
        &self,
        listener: UnixListener,
        power: &PowerHandles,
        rights: admin::Rights,
        program: &Program,
    ) {
        let (explainer, look) = (self.look.clone(), self.look.clone());
        let (boots, tokens) = (self.boot_path.boots().clone(), self.boot_path.tokens());
        let permissions = self.boot_path.permissions();
        let state = AdminState {
            machines: look.site.machines.clone(),
            registry: look.site.registry.clone(),
            discovered: look.site.discovered.clone(),
            stage: Arc::new(move |mac| boots.timeline(&Owner::Unknown { mac }).map(|t| t.stage)),
            explain: Arc::new(move |subject| explainer.explain(subject)),
            operations: power.desk.clone(),
            choice: look.choice.clone(),
            token: Arc::new(move |name| {
                let tokens = tokens.clone();
                Box::pin(async move { tokens.issue(&name, Timestamp::now()).await })
            }),
            rights,
            allow_key: Arc::new(move |name, boot| {
                let permissions = permissions.clone();
                Box::pin(async move { permissions.allow(&name, boot, Timestamp::now()).await })
            }),
            health: Arc::new(look.clone()),
            about: Arc::new(move || look.about()),
        };
        let path = self.config.load().socket.clone();
        program.run("socket", Stage::Draining, SILENCE_TIMEOUT, |pulse, stop| {
            admin::serve(listener, path, state, pulse, stop)
        });
    }

    fn serve_health(&self, listener: TcpListener, power: &PowerHandles, program: &Program) {
        let look = self.look.clone();
        let registry = metrics::registry(metrics::Sources {
            store: look.site.store.clone(),
            registry: look.site.registry.clone(),
            statuses: look.site.writes.clone(),
            dhcp: self.dhcp.clone(),
            tftp: self.tftp.clone(),
            reloads: self.reloads.clone(),
            power: metrics::power::Source {
                counters: power.counters.clone(),
                leads: {
                    let tenure = power.tenure.clone();
                    Arc::new(move || tenure.leads())
                },
            },
            boot_path: metrics::boot_path::Source {
                counters: self.boot_path.counters().clone(),
                images: self.boot_path.images().clone(),
                boots: self.boot_path.boots().clone(),
            },
            look: Arc::new(move || look.view()),
        });
        let look = Arc::new(self.look.clone());
        program.run("health", Stage::Draining, SILENCE_TIMEOUT, |pulse, stop| {
            health::serve(listener, look, Arc::new(registry), pulse, stop).map(|Ok(())| ())
        });
    }
}

impl Sockets {
    async fn bind(config: &Config) -> Result<Self, Failure> {
        let http = listen("http.listen", config.http.listen).await?;
        let https = listen("https.listen", config.https.listen).await?;
        let health = health::bind(config.metrics.listen).await?;
        let admin = admin::bind(&config.socket, config.socket_group.as_deref())?;
        for (listener, socket) in [("http", &http), ("https", &https), ("metrics", &health)] {
            if let Ok(address) = socket.local_addr() {
                tracing::info!(listener, %address, "listening");
            }
        }
        tracing::info!(listener = "socket", address = %config.socket.display(), "listening");
        Ok(Self { http, https, health, admin })
    }
}

/// Opens pxed's own certificate authority, which signs the certificates of the TLS listener.
fn configurations(config: &Config) -> Result<Arc<Configurations>, OpenBootPathError> {
    let directory = config.state_directory.join("ca");
    let authority = Authority::open(&directory, config.site.as_str(), Timestamp::now())?;
    let host = config.https.advertise.as_ref().map(|advertise| advertise.host.clone());
    Ok(Arc::new(Configurations::new(Arc::new(authority), host)))
}

/// Adds the engine that drives the BMCs of the site.
fn drive_power(
    config: &Config,
    site: &Site,
    plane: PowerPlane,
    desk: Arc<dyn OperationDesk>,
    program: &Program,
) -> PowerHandles {
    let (counters, tenure) = (Arc::<power::Counters>::default(), plane.tenure.clone());
    let parts = Parts {
        machines: site.machines.clone(),
        source: site.source.clone(),
        registry: site.registry.clone(),
        store: site.store.clone(),
        plane,
        dial: Arc::new(NetworkDial { reach: translate::bmc_reach(config), ..NetworkDial::default() }),
        limits: Limits {
            connections: usize::try_from(config.bmc.connections).unwrap_or(usize::MAX),
            poll: config.bmc.poll,
            allow_insecure: config.bmc.allow_insecure,
        },
        instance: format!("pxed/{}/{}", site.name, site.instance),
        counters: counters.clone(),
    };
    program.try_run(POWER, Stage::Draining, |stop| {
        power::run(parts, &program.liveness, stop).map(Ok::<_, std::convert::Infallible>)
    });
    PowerHandles { desk, counters, tenure }
}

/// Makes the writer of Events.
fn event_writer(site: &Site, queue: events::Queue, access: Option<Access>) -> EventWriter {
    let instance = format!("pxed/{}/{}", site.name, site.instance);
    let source = events::Source { controller: "bedplate.dev/pxed", instance, field_manager: "pxed" };
    let events = site.registry.events();
    match access {
        Some(access) => EventWriter::new(source, events, queue, access),
        None => EventWriter::discarding(source, events, queue),
    }
}

/// Name of the task that drives power.
pub(super) const POWER: &str = "power";

/// Adds the DHCP and TFTP engines, whose threads have liveness pulses of their own.
fn run_engines(
    program: &Program,
    dhcp: Option<&bedplate_dhcp::Server>,
    tftp: Option<&Arc<bedplate_tftp::server::Server>>,
) {
    if let Some(server) = dhcp.cloned() {
        watch_dhcp(&program.liveness, server.clone());
        program.try_run("dhcp", Stage::Draining, |stop| async move { server.run(stop).await });
    }
    if let Some(server) = tftp.cloned() {
        watch_tftp(&program.liveness, server.clone());
        program.try_run("tftp", Stage::Draining, |stop| async move { server.run(stop).await });
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
    let addresses = settings.listen.clone();
    let server = bedplate_tftp::server::Server::bind(settings, Arc::new(boot_path.files()))?;
    for address in addresses {
        tracing::info!(listener = "tftp", %address, "listening");
    }
    Ok(Some(Arc::new(server)))
}

async fn listen(key: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|source| BindError { key, address, source })
}

#[cfg(test)]
mod tests;
