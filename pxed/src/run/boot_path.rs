//! The boot path put together: policy, boots, images, loaders, HTTP, enrollment, and what the DHCP and TFTP engines ask.
//!
//! One value that `run` opens at start, configures again at SIGHUP, and whose tasks it adds. Not here: the engines themselves.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bedplate_api::wire::Explanation;
use bedplate_process::listen::{Counters as ListenCounters, Limits, Listening};
use bedplate_process::liveness::{Pulse, SILENCE_TIMEOUT};
use bedplate_process::program::Program;
use bedplate_process::reconcile::{Activation, Reconcile, Turn};
use bedplate_process::shutdown::Stage;
use jiff::{SignedDuration, Timestamp};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::boot::report::{Teller, tell_heard};
use crate::boot::{Boots, Owner};
use crate::config::Config;
use crate::config::translate::bmc_reach;
use crate::config::value::HostPort;
use crate::enroll;
use crate::enroll::authority::OpenAuthorityError;
use crate::enroll::permission::Permissions;
use crate::enroll::plane::AgentPlane;
use crate::enroll::rate_limit::Paces;
use crate::enroll::service::Service;
use crate::enroll::signer::Signer;
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
use crate::machines::Snapshot;
use crate::metrics::boot_path::Counters;
use crate::netboot::dhcp::{self, BootClients, Urls};
use crate::netboot::loaders::Loaders;
use crate::netboot::state::Present;
use crate::netboot::tftp::LoaderFiles;
use crate::site::Site;
use crate::store::StoreError;

/// Error of opening the boot path.
#[derive(Debug, Error)]
pub(crate) enum OpenBootPathError {
    /// The image cache.
    #[error("cannot open the image cache {path}")]
    Images {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The store.
    #[error("cannot read the stored boots")]
    Store(#[from] StoreError),
    /// The certificate authority.
    #[error("no certificate authority")]
    Authority(#[from] OpenAuthorityError),
}

/// The boot path; clones share it.
#[derive(Clone)]
pub(crate) struct BootPath {
    site: Site,
    present: Arc<Present>,
    heard: Heard,
    boots: Boots,
    images: Images,
    loaders: Arc<ArcSwap<Loaders>>,
    urls: Urls,
    agent_urls: Urls,
    configurations: Arc<Configurations>,
    limits: Limits,
    queue: Arc<Queue>,
    streams: Arc<Streams>,
    counters: Counters,
}

impl BootPath {
    /// Opens all parts in the state directory. Blocking: reads loaders and the store.
    ///
    /// # Errors
    /// [`OpenBootPathError`].
    pub(crate) fn open(
        config: &Config,
        site: Site,
        configurations: Arc<Configurations>,
    ) -> Result<Self, OpenBootPathError> {
        let now = Timestamp::now();
        let path = config.state_directory.join("images");
        let cache = bedplate_oci::Store::open_with(&path, image_options(config))
            .map_err(|source| OpenBootPathError::Images { path, source })?;
        let images = Images::new(cache, config);
        let loaders = Arc::new(ArcSwap::from_pointee(Loaders::load(&config.loaders)));
        let present = Arc::new(Present::new(loaders.clone(), images.clone(), config));
        let lifetime =
            SignedDuration::try_from(config.limits.boot_lifetime).unwrap_or(SignedDuration::from_mins(10));
        let heard = Heard::new(site.record);
        let teller =
            Teller { registry: site.registry.clone(), machines: site.machines.clone(), heard: heard.clone() };
        let boots = Boots::load(site.store.clone(), Arc::new(teller), lifetime, now)?;
        let streams = usize::try_from(config.http.max_streams).unwrap_or(64).max(1);
        let counters = Counters::default();
        let path = Self {
            site,
            present,
            heard,
            boots,
            images,
            loaders,
            urls: urls(config.http.advertise.as_ref(), config.http.listen),
            agent_urls: urls(config.https.advertise.as_ref(), config.https.listen),
            configurations,
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
    pub(crate) fn configure(&self, config: &Config) {
        self.images.configure(config);
        self.loaders.store(Arc::new(Loaders::load(&config.loaders)));
        self.present.configure(config);
        self.warn_of_missing_loaders();
    }

    fn warn_of_missing_loaders(&self) {
        for missing in self.loaders.load().missing() {
            tracing::warn!(platform = %missing.platform, problem = missing.problem, "loader missing");
        }
    }

    /// Returns the callbacks of the DHCP engine.
    pub(crate) fn clients(&self) -> BootClients {
        let discovered = self.site.discovered.clone();
        BootClients {
            machines: self.site.machines.clone(),
            boots: self.boots.clone(),
            present: self.present.clone(),
            urls: self.urls.clone(),
            discovered: Arc::new(move |query| discovered.record(query, Timestamp::now())),
        }
    }

    /// Returns the leases that a boot's script and seed need. The caller sets them when the DHCP engine runs.
    pub(crate) fn leases(&self) -> &Leases {
        &self.counters.leases
    }

    /// Returns the files of the TFTP engine.
    pub(crate) fn files(&self) -> LoaderFiles {
        LoaderFiles { loaders: self.loaders.clone(), boots: self.boots.clone() }
    }

    /// The images, for readiness.
    pub(crate) fn images(&self) -> &Images {
        &self.images
    }

    /// The loaders, for readiness.
    pub(crate) fn loaders(&self) -> Arc<Loaders> {
        self.loaders.load_full()
    }

    /// The policy's state, for readiness.
    pub(crate) fn present(&self) -> &Arc<Present> {
        &self.present
    }

    /// The boots.
    pub(crate) fn boots(&self) -> &Boots {
        &self.boots
    }

    /// Explains the current boot decision for a machine; `None` if there is no such name.
    pub(crate) fn explain(&self, subject: &str) -> Option<Explanation> {
        self.clients().explain(subject)
    }

    /// The routes of the plain listener.
    pub(crate) fn routes(&self) -> Routes {
        Routes {
            machines: self.site.machines.clone(),
            boots: self.boots.clone(),
            present: self.present.clone(),
            images: self.images.clone(),
            loaders: self.loaders.clone(),
            urls: self.urls.clone(),
            agent_urls: self.agent_urls.clone(),
            site: self.site.name.clone(),
            ca_pem: self.configurations.authority().pem().into(),
            queue: self.queue.clone(),
            streams: self.streams.clone(),
            counters: self.counters.requests.clone(),
            reports: Arc::default(),
            leases: self.counters.leases.clone(),
        }
    }

    /// Permissions for another key.
    pub(crate) fn permissions(&self) -> Permissions {
        Permissions {
            machines: self.site.machines.clone(),
            store: self.site.store.clone(),
            record: self.site.record,
        }
    }

    /// Tokens for hosts that do not netboot.
    pub(crate) fn tokens(&self) -> Tokens {
        Tokens {
            machines: self.site.machines.clone(),
            boots: self.boots.clone(),
            urls: self.agent_urls.clone(),
            site: self.site.name.clone(),
            ca_pem: self.configurations.authority().pem().to_owned(),
        }
    }

    /// Returns the counters.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Adds the tasks. `plane`: the signer of agents' certificates and the agent API.
    pub(crate) fn run(
        &self,
        http: TcpListener,
        https: TcpListener,
        plane: (Arc<dyn Signer>, Arc<dyn AgentPlane>),
        program: &Program,
    ) {
        // A request that ends after the stop signal is also a stage of a boot.
        program.run("boots", Stage::LastWrites, SILENCE_TIMEOUT, |pulse, stop| {
            self.boots.clone().run(pulse, stop)
        });
        program.run("http", Stage::Draining, SILENCE_TIMEOUT, |pulse, stop| {
            let listening = self.listening("http", &self.counters.plain, pulse);
            serve::serve(http, Arc::new(self.routes()), listening, stop)
        });
        program.run("https", Stage::Draining, SILENCE_TIMEOUT, |pulse, stop| {
            let listening = self.listening("https", &self.counters.agents, pulse);
            let service = Arc::new(self.service(plane));
            enroll::serve::serve(https, self.configurations.clone(), service, listening, stop)
        });
        program.run("images", Stage::Draining, SILENCE_TIMEOUT, |pulse, stop| {
            self.images.clone().run(self.boots.clone(), pulse, stop)
        });
        program.reconcile("follow", Stage::Draining, SILENCE_TIMEOUT, FollowMachines::new(self.clone()));
        program.reconcile("hearing", Stage::Draining, SILENCE_TIMEOUT, Listens(self.clone()));
    }

    fn listening(&self, name: &'static str, counters: &Arc<ListenCounters>, pulse: Pulse) -> Listening {
        Listening { name, limits: self.limits, counters: counters.clone(), pulse }
    }

    fn service(&self, (signer, plane): (Arc<dyn Signer>, Arc<dyn AgentPlane>)) -> Service {
        let site = &self.site;
        let authority = self.configurations.authority();
        Service {
            machines: site.machines.clone(),
            boots: self.boots.clone(),
            registry: site.registry.clone(),
            store: site.store.clone(),
            plane,
            signer,
            counters: self.counters.enroll.clone(),
            paces: Paces::default(),
            heard: self.heard.clone(),
            turns: enroll::turn::Turns::default(),
            listens_first: site.record.is_pxed() && authority.precedes(site.store.path()),
        }
    }
}

/// Records every [`LISTEN_INTERVAL`] that keys can be heard.
struct Listens(BootPath);

impl Reconcile for Listens {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        std::future::pending().await
    }

    async fn turn(&mut self, _: Activation<()>) -> Turn {
        let site = &self.0.site;
        let is_reachable = site.record.is_pxed() || site.source.borrow().unreachable.is_none();
        self.0.heard.listens(is_reachable, Timestamp::now());
        Turn::At(Instant::now() + LISTEN_INTERVAL)
    }
}

/// Fetches the images that Machines name, and forgets the boots of Machines that were deleted. The first set may come from the store, which
/// need not have every Machine with a boot: no boot is forgotten for it.
struct FollowMachines {
    boot_path: BootPath,
    changes: watch::Receiver<u64>,
    before: Arc<Snapshot>,
}

impl FollowMachines {
    fn new(boot_path: BootPath) -> Self {
        let changes = boot_path.site.machines.subscribe();
        Self { boot_path, changes, before: Arc::default() }
    }

    /// Reports the hosts that were heard, and forgets boots.
    fn follow(&mut self, machines: &Arc<Snapshot>) {
        let BootPath { site, heard, boots, .. } = &self.boot_path;
        let now = Timestamp::now();
        for known in heard.follow(&self.before, machines, now) {
            tell_heard(&site.registry, heard, known, now);
        }
        self.before = machines.clone();
        boots.retain(|owner| match owner {
            Owner::Unknown { .. } => true,
            Owner::Machine { name, uid } => machines.by_name(name).is_some_and(|known| known.uid == *uid),
        });
    }
}

impl Reconcile for FollowMachines {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        self.changes.changed().await.ok()
    }

    async fn turn(&mut self, activation: Activation<()>) -> Turn {
        let machines = self.boot_path.site.machines.load();
        if activation != Activation::Start {
            self.follow(&machines);
        }
        let default = self.boot_path.present.default_image();
        let netbooted = machines.iter().filter(|known| known.is_netbooted());
        let named = netbooted.map(|known| dhcp::subject(known, default.as_deref()).image);
        self.boot_path.images.want_references(&named.collect::<HashSet<_>>());
        Turn::Idle
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
