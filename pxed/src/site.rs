//! State of a site that both planes share: the store, the Machines, their statuses, unknown machines, the state of the source.
//!
//! Opened first, from the store alone: until the source has answered, the Machines of the last run are served. Called by `run`.

use std::sync::Arc;

use bedplate_api::id::SiteName;
use bedplate_process::events::Queue;
use bedplate_process::exit::Failure;
use thiserror::Error;
use tokio::sync::watch;

use crate::config::Config;
use crate::machines::Machines;
use crate::machines::discovered::Discovered;
use crate::machines::source::{self, Kept, SourceState, Sourced};
use crate::status::StatusRegistry;
use crate::status::write::WriteCounters;
use crate::store::Store;
use crate::system_of_record::SystemOfRecord;

/// The state directory cannot be used.
#[derive(Debug, Error)]
#[error("cannot use the directory {path}")]
struct StateDirectoryError {
    path: std::path::PathBuf,
    source: std::io::Error,
}

/// The state. Clones share it.
#[derive(Clone)]
pub struct Site {
    /// Name of the site.
    pub name: SiteName,
    /// Name of this pxed: that of its pod or host.
    pub instance: String,
    /// System with the statuses of the Machines.
    pub record: SystemOfRecord,
    /// The store.
    pub store: Store,
    /// The index of Machines.
    pub machines: Machines,
    /// The statuses.
    pub registry: StatusRegistry,
    /// Unknown machines.
    pub discovered: Discovered,
    /// State of the source of Machines.
    pub source: watch::Sender<SourceState>,
    /// Counters of status writes.
    pub writes: Arc<WriteCounters>,
}

/// A site that was opened, and the values that its tasks take.
pub struct Opened {
    /// The site.
    pub site: Site,
    /// The Machines of the last run.
    pub kept: Vec<Sourced>,
    /// Contents of the store's table of Machines.
    pub rows: Kept,
    /// Events to publish.
    pub events: Queue,
}

impl Site {
    /// Opens the store in the state directory.
    ///
    /// # Errors
    /// The directory or the store cannot be used.
    pub fn open(config: &Config, record: SystemOfRecord) -> Result<Opened, Failure> {
        let directory = &config.state_directory;
        std::fs::create_dir_all(directory)
            .map_err(|source| StateDirectoryError { path: directory.clone(), source })?;
        let store = Store::open(&directory.join("pxed.redb"))?;
        let machines = Machines::default();
        let (kept, rows) = source::kept(&store)?;
        let source = config.source.to_string();
        let (registry, events) = StatusRegistry::new(machines.clone(), &store, record)?;
        let limit = usize::try_from(config.limits.discovered_machines).unwrap_or(usize::MAX);
        let site = Self {
            name: config.site.clone(),
            instance: instance(),
            record,
            discovered: Discovered::load(store.clone(), limit)?,
            source: watch::Sender::new(SourceState { source, ..SourceState::default() }),
            writes: Arc::default(),
            store,
            machines,
            registry,
        };
        Ok(Opened { site, kept, rows, events })
    }
}

/// Returns the name of the pod, or of the host if this is not a pod.
fn instance() -> String {
    let pod = std::env::var("POD_NAME").ok().filter(|name| !name.is_empty());
    let host = || nix::unistd::gethostname().ok()?.into_string().ok().filter(|name| !name.is_empty());
    pod.or_else(host).unwrap_or_else(|| "unnamed".to_owned())
}
