//! Server for its owner: bind, run until it is stopped, reload, count.
//!
//! Starts and joins the workers' threads; serves nothing itself.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    admit::Shared, content::Files, counters::Snapshot, endpoint::Endpoint, settings::Settings, worker::Worker,
};

/// TFTP server: bound, and running while the future of [`Self::run`] is polled.
pub struct Server {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    /// One set of sockets for each worker, until they run.
    endpoints: Mutex<Vec<Vec<Endpoint>>>,
}

/// Error of starting a server.
#[derive(Debug, thiserror::Error)]
pub enum BindServerError {
    /// No address was given.
    #[error("no address to listen on for TFTP")]
    NoAddress,
    /// An address is not to be had.
    #[error("cannot listen on {address} for TFTP")]
    Address {
        /// The address.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
}

/// Reason why a server ended without being stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunServerError {
    /// The server runs already, or has run.
    #[error("TFTP server can run only once")]
    Twice,
    /// A thread could not be set up.
    #[error("cannot start a TFTP worker")]
    Start(#[source] io::Error),
    /// A thread ended in an error.
    #[error("TFTP worker failed")]
    Worker(#[source] io::Error),
    /// A thread panicked.
    #[error("TFTP worker panicked")]
    Panicked,
}

/// Reason why new settings were rejected; the old ones stay in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReloadSettingsError {
    /// The sockets are bound for the life of the server.
    #[error("TFTP addresses change only by a restart")]
    Listen,
    /// The number of worker threads is fixed at start.
    #[error("TFTP workers change only by a restart")]
    Workers,
}

impl Server {
    /// Binds the request port on every address.
    ///
    /// # Errors
    /// [`BindServerError`].
    pub fn bind(settings: Settings, files: Arc<dyn Files>) -> Result<Self, BindServerError> {
        if settings.listen.is_empty() {
            return Err(BindServerError::NoAddress);
        }
        let workers = settings.workers.max(1);
        let mut endpoints: Vec<Vec<Endpoint>> = (0..workers).map(|_| Vec::new()).collect();
        let mut addresses = Vec::new();
        for address in settings.listen.iter().copied() {
            let refused = |source| BindServerError::Address { address, source };
            let group = Endpoint::bind_group(address, workers).map_err(refused)?;
            addresses.extend(group.first().map(Endpoint::address));
            for (of_worker, endpoint) in endpoints.iter_mut().zip(group) {
                of_worker.push(endpoint);
            }
        }
        Ok(Self {
            shared: Arc::new(Shared::new(settings, files)),
            addresses,
            endpoints: Mutex::new(endpoints),
        })
    }

    /// The addresses bound, in the order of the settings, with the port where 0 was asked for.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves until `shutdown`; then takes no new request and lets running transfers finish within the settings' drain time. When the
    /// future is dropped, transfers are cut off.
    ///
    /// # Errors
    /// [`RunServerError`]: a worker ended that should not have.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<(), RunServerError> {
        let endpoints = std::mem::take(&mut *self.endpoints.lock().unwrap_or_else(PoisonError::into_inner));
        if endpoints.is_empty() {
            return Err(RunServerError::Twice);
        }
        let mut stop = StopOnDrop { shared: self.shared.clone(), wakes: Vec::new(), ended: false };
        let (ended, mut endings) = mpsc::unbounded_channel();
        let mut running = 0_usize;
        for (number, endpoints) in endpoints.into_iter().enumerate() {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            let wake = EventFd::from_value_and_flags(0, flags)
                .map_err(|error| RunServerError::Start(error.into()))?;
            let wake = Arc::new(wake);
            let worker = Worker::new(number, self.shared.clone(), wake.clone(), endpoints)
                .map_err(RunServerError::Start)?;
            let ending = Ending(ended.clone(), None);
            std::thread::Builder::new()
                .name(format!("tftp-{number}"))
                .spawn(move || ending.of(worker))
                .map_err(RunServerError::Start)?;
            stop.wakes.push(wake);
            running += 1;
        }
        let mut result = Ok(());
        let mut is_stopping = false;
        while running > 0 {
            tokio::select! {
                () = shutdown.cancelled(), if !is_stopping => {
                    is_stopping = true;
                    stop.wake();
                }
                Some(ending) = endings.recv() => {
                    running -= 1;
                    if let Err(error) = ending && result.is_ok() {
                        result = Err(error);
                        self.shared.hurry();
                        is_stopping = true;
                        stop.wake();
                    }
                }
            }
        }
        stop.ended = true;
        result
    }

    /// Applies new settings to later requests. Running transfers keep theirs.
    ///
    /// # Errors
    /// A setting changed that needs a restart; nothing was taken.
    pub fn reload(&self, settings: Settings) -> Result<(), ReloadSettingsError> {
        let old = self.shared.settings();
        if old.listen != settings.listen {
            return Err(ReloadSettingsError::Listen);
        }
        if old.workers != settings.workers {
            return Err(ReloadSettingsError::Workers);
        }
        self.shared.replace_settings(settings);
        Ok(())
    }

    /// For how long each worker has not come round, by its number; it does so every few seconds, also with nothing to do.
    pub fn silences(&self) -> Vec<Duration> {
        self.shared.silences(Instant::now())
    }

    /// Returns the counters.
    pub fn counters(&self) -> Snapshot {
        self.shared.counters.snapshot(self.shared.active())
    }
}

/// Tells how a worker's thread ended, a panic included.
struct Ending(mpsc::UnboundedSender<Result<(), RunServerError>>, Option<Result<(), RunServerError>>);

impl Ending {
    fn of(mut self, worker: Worker) {
        self.1 = Some(worker.run().map_err(RunServerError::Worker));
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        // Without a receiver the result is not needed any more.
        let _ = self.0.send(self.1.take().unwrap_or(Err(RunServerError::Panicked)));
    }
}

/// The workers never outlive the future that runs them.
struct StopOnDrop {
    shared: Arc<Shared>,
    wakes: Vec<Arc<EventFd>>,
    ended: bool,
}

impl StopOnDrop {
    fn wake(&self) {
        for wake in &self.wakes {
            // A full counter wakes as well.
            let _ = wake.write(1);
        }
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if !self.ended {
            self.shared.hurry();
            self.wake();
        }
    }
}
