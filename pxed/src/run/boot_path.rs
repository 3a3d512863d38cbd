//! The boot path put together: policy, boots, images, loaders, HTTP, enrollment, and what the DHCP and TFTP engines ask.
//!
//! One value that `run` opens at start, configures again at SIGHUP, and runs. Not here: the engines themselves.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bedplate_api::id::SiteName;
use bedplate_api::wire::Explanation;
use bedplate_process::listen::{self, Limits, Listening};
use bedplate_process::liveness::{Liveness, PATIENCE};
use jiff::{SignedDuration, Timestamp};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::boot::report::{Teller, tell_heard};
use crate::boot::{Boots, Owner};
use crate::cluster::signer::ClusterSigner;
use crate::config::translate::bmc_reach;
use crate::config::value::HostPort;
use crate::config::{Config, SourceConfig};
use crate::enroll;
use crate::enroll::authority::{Authority, OpenAuthorityError};
use crate::enroll::permission::Permissions;
use crate::enroll::rate_limit::Paces;
use crate::enroll::service::Service;
use crate::enroll::signer::{LocalSigner, Signer};
use crate::enroll::tls::Configurations;
use crate::enroll::token::Tokens;
use crate::heard::{Heard, LISTEN_INTERVAL};
use crate::http::leased::Leases;
use crate::http::queue::Queue;
use crate::http::route::Routes;
use crate::http::serve;
use crate::http::streams::Streams;
use crate::images::Images;
use crate::images::reach::MachineReach;
use crate::machines::Machines;
use crate::machines::source::SourceState;
use crate::metrics::boot_path::Counters;
use crate::netboot::dhcp::{self, BootClients, Discovered, Urls};
use crate::netboot::loaders::Loaders;
use crate::netboot::state::Present;
use crate::netboot::tftp::LoaderFiles;
use crate::standalone::agents::StandIn;
use crate::status::StatusRegistry;
use crate::store::{Store, StoreError};

/// Between two tries to reach the cluster.
const RETRY_CLUSTER: Duration = Duration::from_secs(15);

/// Between two looks at the cluster's client authority, which changes once in years.
const FOLLOW_CLIENT_CA: Duration = Duration::from_secs(600);

/// Why the boot path cannot be opened.
#[derive(Debug, Error)]
pub enum OpenBootPathError {
    /// The image cache.
    #[error("cannot open the image cache {path}")]
    Images {
        /// Its directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The store.
    #[error("cannot read the boots that were kept")]
    Store(#[from] StoreError),
    /// The certificate authority.
    #[error("no certificate authority")]
    Authority(#[from] OpenAuthorityError),
}

/// What the daemon brings.
#[derive(Clone)]
pub struct Daemon {
    /// The index of Machines.
    pub machines: Machines,
    /// The statuses.
    pub registry: StatusRegistry,
    /// The store.
    pub store: Store,
    /// Told of each unknown machine that asks, while discovery is on.
    pub discovered: Discovered,
    /// What stands in for a cluster, where there is none.
    pub stand_in: Option<StandIn>,
    /// State of the source of Machines.
    pub source: Arc<ArcSwap<SourceState>>,
}

/// The boot path; clones share it.
#[derive(Clone)]
pub struct BootPath {
    daemon: Daemon,
    site: SiteName,
    present: Arc<Present>,
    heard: Heard,
    boots: Boots,
    images: Images,
    loaders: Arc<ArcSwap<Loaders>>,
    urls: Urls,
    agent_urls: Urls,
    authority: Arc<Authority>,
    configurations: Arc<Configurations>,
    source: SourceConfig,
    limits: Limits,
    queue: Arc<Queue>,
    streams: Arc<Streams>,
    counters: Counters,
}

impl BootPath {
    /// Opens everything that lies in the state directory. Blocking: reads loaders and the store.
    ///
    /// # Errors
    /// [`OpenBootPathError`].
    pub fn open(config: &Config, daemon: Daemon) -> Result<Self, OpenBootPathError> {
        let now = Timestamp::now();
        let path = config.state_directory.join("images");
        let cache = bedplate_oci::Store::open_with(&path, image_options(config))
            .map_err(|source| OpenBootPathError::Images { path, source })?;
        let images = Images::new(cache, config);
        let loaders = Arc::new(ArcSwap::from_pointee(Loaders::load(&config.loaders)));
        let present = Arc::new(Present::new(loaders.clone(), images.clone(), config));
        let lifetime =
            SignedDuration::try_from(config.limits.boot_lifetime).unwrap_or(SignedDuration::from_mins(10));
        let heard = Heard::new(matches!(config.source, SourceConfig::Directory(_)));
        let teller = Teller {
            registry: daemon.registry.clone(),
            machines: daemon.machines.clone(),
            heard: heard.clone(),
        };
        let boots = Boots::load(daemon.store.clone(), Arc::new(teller), lifetime, now)?;
        let authority =
            Arc::new(Authority::open(&config.state_directory.join("ca"), config.site.as_str(), now)?);
        let host = config.https.advertise.as_ref().map(|advertise| advertise.host.clone());
        let streams = usize::try_from(config.http.max_streams).unwrap_or(64).max(1);
        let counters = Counters::default();
        let path = Self {
            daemon,
            site: config.site.clone(),
            present,
            heard,
            boots,
            images,
            loaders,
            urls: urls(config.http.advertise.as_ref(), config.http.listen),
            agent_urls: urls(config.https.advertise.as_ref(), config.https.listen),
            configurations: Arc::new(Configurations::new(authority.clone(), host)),
            authority,
            source: config.source.clone(),
            limits: Limits {
                connections_per_client: usize::try_from(config.http.connections_per_client).unwrap_or(64),
                stall: config.http.stall,
                ..Limits::default()
            },
            queue: Arc::new(Queue::new(streams, counters.requests.clone())),
            streams: Arc::default(),
            counters,
        };
        path.warn_of_missing_loaders();
        Ok(path)
    }

    /// Takes over a changed configuration: images, loaders, default and discovery image. Blocking: reads loaders.
    pub fn configure(&self, config: &Config) {
        self.images.configure(config);
        self.loaders.store(Arc::new(Loaders::load(&config.loaders)));
        self.present.configure(config);
        self.warn_of_missing_loaders();
    }

    fn warn_of_missing_loaders(&self) {
        for missing in self.loaders.load().missing() {
            tracing::warn!(platform = %missing.platform, problem = missing.problem, "a loader is missing");
        }
    }

    /// What the DHCP engine asks.
    pub fn clients(&self) -> BootClients {
        BootClients {
            machines: self.daemon.machines.clone(),
            boots: self.boots.clone(),
            present: self.present.clone(),
            urls: self.urls.clone(),
            discovered: self.daemon.discovered.clone(),
        }
    }

    /// Returns the leases that a boot's script and seed need. The caller sets them when the DHCP engine runs.
    pub fn leases(&self) -> &Leases {
        &self.counters.leases
    }

    /// What the TFTP engine asks.
    pub fn files(&self) -> LoaderFiles {
        LoaderFiles { loaders: self.loaders.clone(), boots: self.boots.clone() }
    }

    /// The images, for readiness.
    pub fn images(&self) -> &Images {
        &self.images
    }

    /// The loaders, for readiness.
    pub fn loaders(&self) -> Arc<Loaders> {
        self.loaders.load_full()
    }

    /// The policy's state, for readiness.
    pub fn present(&self) -> &Arc<Present> {
        &self.present
    }

    /// The boots.
    pub fn boots(&self) -> &Boots {
        &self.boots
    }

    /// What a machine would be offered now, and why; `None`: no such name.
    pub fn explain(&self, subject: &str) -> Option<Explanation> {
        self.clients().explain(subject)
    }

    /// The routes of the plain listener.
    pub fn routes(&self) -> Routes {
        Routes {
            machines: self.daemon.machines.clone(),
            boots: self.boots.clone(),
            present: self.present.clone(),
            images: self.images.clone(),
            loaders: self.loaders.clone(),
            urls: self.urls.clone(),
            agent_urls: self.agent_urls.clone(),
            site: self.site.clone(),
            ca_pem: self.authority.pem().into(),
            queue: self.queue.clone(),
            streams: self.streams.clone(),
            counters: self.counters.requests.clone(),
            reports: Arc::default(),
            leases: self.counters.leases.clone(),
        }
    }

    /// Permissions for another key.
    pub fn permissions(&self) -> Permissions {
        Permissions {
            machines: self.daemon.machines.clone(),
            store: self.daemon.store.clone(),
            standalone: self.heard.is_standalone(),
        }
    }

    /// Tokens for hosts that do not netboot.
    pub fn tokens(&self) -> Tokens {
        Tokens {
            machines: self.daemon.machines.clone(),
            boots: self.boots.clone(),
            urls: self.agent_urls.clone(),
            site: self.site.clone(),
            ca_pem: self.authority.pem().to_owned(),
        }
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Serves until `shutdown`, then ends what is being sent; returns when all is done.
    pub async fn run(
        self,
        http: TcpListener,
        https: TcpListener,
        liveness: Liveness,
        shutdown: CancellationToken,
    ) {
        let routes = Arc::new(self.routes());
        // Boots are written last: what still ends after `shutdown` is a stage, too.
        let served = CancellationToken::new();
        let part = |name| liveness.part(name, PATIENCE);
        let boots = tokio::spawn(self.boots.clone().run(part("boots"), served.clone()));
        let plain = self.listening("http", &self.counters.plain, &liveness);
        tokio::join!(
            serve::serve(http, routes, plain, shutdown.clone()),
            self.serve_agents(https, &liveness, shutdown.clone()),
            self.images.clone().run(self.boots.clone(), part("images"), shutdown.clone()),
            self.follow_machines(shutdown.clone()),
            self.listen(shutdown.clone()),
        );
        served.cancel();
        if boots.await.is_err() {
            tracing::error!("the task that writes boots has panicked");
        }
    }

    fn listening(
        &self,
        name: &'static str,
        counters: &Arc<listen::Counters>,
        liveness: &Liveness,
    ) -> Listening {
        let pulse = liveness.part(name, PATIENCE);
        Listening { name, limits: self.limits, counters: counters.clone(), pulse }
    }

    /// Enrolls agents: with a cluster its signer signs, else pxed's own authority.
    async fn serve_agents(&self, https: TcpListener, liveness: &Liveness, shutdown: CancellationToken) {
        let cluster = match &self.source {
            SourceConfig::Directory(_) => None,
            SourceConfig::Kubernetes { kubeconfig, context, advertise } => loop {
                let advertise = advertise.as_ref().map(ToString::to_string);
                let signer =
                    ClusterSigner::connect(kubeconfig.as_deref(), context.as_deref(), advertise.as_deref());
                match signer.await {
                    Ok(signer) => break Some(Arc::new(signer)),
                    Err(error) => tracing::error!(error, "the cluster's signer cannot be set up"),
                }
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(RETRY_CLUSTER) => {}
                }
            },
        };
        let signer: Arc<dyn Signer> = match &cluster {
            Some(signer) => signer.clone(),
            None => {
                self.configurations.believe(self.authority.pem());
                Arc::new(LocalSigner { authority: self.authority.clone() })
            }
        };
        let service = Service {
            machines: self.daemon.machines.clone(),
            boots: self.boots.clone(),
            registry: self.daemon.registry.clone(),
            store: self.daemon.store.clone(),
            stand_in: self.daemon.stand_in.clone(),
            signer,
            counters: self.counters.enroll.clone(),
            paces: Paces::default(),
            heard: self.heard.clone(),
            turns: enroll::turn::Turns::default(),
            listens_first: self.heard.is_standalone() && self.authority.precedes(self.daemon.store.path()),
        };
        let configurations = self.configurations.clone();
        let agents = self.listening("https", &self.counters.agents, liveness);
        tokio::join!(
            enroll::serve::serve(https, configurations, Arc::new(service), agents, shutdown.clone()),
            self.follow_client_ca(cluster, shutdown),
        );
    }

    /// Believes the client certificates that the cluster believes.
    async fn follow_client_ca(&self, cluster: Option<Arc<ClusterSigner>>, shutdown: CancellationToken) {
        let Some(cluster) = cluster else { return };
        loop {
            let wait = match cluster.client_ca().await {
                Ok(pem) if self.configurations.believe(&pem) > 0 => FOLLOW_CLIENT_CA,
                Ok(_) => {
                    tracing::error!("the cluster's client authority holds no certificate");
                    RETRY_CLUSTER
                }
                Err(error) => {
                    tracing::warn!(
                        error,
                        "the cluster's client authority cannot be read: agents cannot report yet"
                    );
                    RETRY_CLUSTER
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Records every [`LISTEN_INTERVAL`] that keys can be heard.
    async fn listen(&self, shutdown: CancellationToken) {
        loop {
            // Without a cluster agents report to pxed itself.
            let is_reachable = self.heard.is_standalone() || self.daemon.source.load().unreachable.is_none();
            self.heard.listens(is_reachable, Timestamp::now());
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(LISTEN_INTERVAL) => {}
            }
        }
    }

    /// Fetches the images that Machines name, and forgets the boots of Machines that are gone. The first set may be what
    /// the store kept, which need not have every Machine that has a boot: nothing is forgotten for it.
    async fn follow_machines(&self, shutdown: CancellationToken) {
        let mut changes = self.daemon.machines.subscribe();
        let mut before = Arc::default();
        loop {
            let machines = self.daemon.machines.load();
            let default = self.present.default_image();
            let netbooted = machines.iter().filter(|known| known.is_netbooted());
            let named = netbooted.map(|known| dhcp::subject(known, default.as_deref()).image);
            self.images.want_references(&named.collect::<HashSet<_>>());
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = changes.changed() => if changed.is_err() { return },
            }
            let machines = self.daemon.machines.load();
            let now = Timestamp::now();
            for known in self.heard.follow(&before, &machines, now) {
                tell_heard(&self.daemon.registry, &self.heard, known, now);
            }
            before = machines.clone();
            self.boots.retain(|owner| match owner {
                Owner::Unknown { .. } => true,
                Owner::Machine { name, uid } => machines.by_name(name).is_some_and(|known| known.uid == *uid),
            });
        }
    }
}

/// Returns the options of the image cache.
fn image_options(config: &Config) -> bedplate_oci::Options {
    bedplate_oci::Options {
        largest_store: config.limits.image_cache,
        reach: Some(Arc::new(MachineReach(bmc_reach(config)))),
        ..bedplate_oci::Options::default()
    }
}

fn urls(advertise: Option<&HostPort>, listen: SocketAddr) -> Urls {
    // A listener on one address is reached at that address, whichever one the client's packet came to.
    let fixed = Some(listen).filter(|listen| !listen.ip().is_unspecified()).map(|listen| listen.to_string());
    Urls { advertise: advertise.map(ToString::to_string).or(fixed), port: listen.port() }
}
