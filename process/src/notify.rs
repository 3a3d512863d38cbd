//! Notifications to systemd: ready, reloading, status, stopping, watchdog
//! (sd_notify(3)). No effect when not under systemd.
//!
//! A notification that cannot be sent never disturbs the program. Called by the program's `run`.

use std::{
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::Arc,
    time::Duration,
};

use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;

use crate::{BoxError, tasks::Tasks};

/// The way to systemd, if there is one. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Notifier {
    socket: Option<Arc<UnixDatagram>>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. A socket that
    /// cannot be reached is logged and ignored.
    pub fn from_environment() -> Self {
        let path = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty());
        let socket = path.and_then(|path| match connect(path.as_bytes()) {
            Ok(socket) => Some(Arc::new(socket)),
            Err(error) => {
                tracing::warn!(%error, ?path, "cannot reach the service manager");
                None
            }
        });
        Self { socket, watchdog: sd_notify::watchdog_enabled() }
    }

    /// Start or reload is done; `status` is the line that `systemctl status` shows.
    pub fn ready(&self, status: &str) {
        self.send(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// The configuration is being read again; follow it by [`Self::ready`], whatever came of it.
    pub fn reloading(&self) {
        // Type=notify-reload (systemd 253) wants the time at which reloading began.
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.send(&[NotifyState::Reloading, now]),
            Err(error) => tracing::debug!(%error, "no monotonic clock"),
        }
    }

    /// A line for `systemctl status`.
    pub fn status(&self, status: &str) {
        self.send(&[NotifyState::Status(status)]);
    }

    /// The program is draining.
    pub fn stopping(&self, status: &str) {
        self.send(&[NotifyState::Stopping, NotifyState::Status(status)]);
    }

    /// Notifies the watchdog twice per interval while `alive` succeeds, if WatchdogSec= is set.
    ///
    /// `alive` runs on the runtime that it checks, and must return immediately. Runs as a task of `tasks`,
    /// until `shutdown`; during the drain, systemd's own TimeoutStopSec= applies.
    pub fn spawn_watchdog<F>(&self, tasks: &Tasks, shutdown: CancellationToken, alive: F)
    where
        F: Fn() -> Result<(), String> + Send + 'static,
    {
        let Some(interval) = self.watchdog else {
            return;
        };
        let notifier = self.clone();
        tasks.spawn("watchdog", async move {
            let mut ticks = tokio::time::interval(interval / 2);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    () = shutdown.cancelled() => return Ok::<_, BoxError>(()),
                    _ = ticks.tick() => match alive() {
                        Ok(()) => notifier.send(&[NotifyState::Watchdog]),
                        Err(reason) => tracing::error!(reason, "loop stalled, watchdog keep-alive withheld"),
                    },
                }
            }
        });
    }

    fn send(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else {
            return;
        };
        // A line break inside a status would begin another assignment.
        let lines: Vec<String> = states.iter().map(|state| state.to_string().replace('\n', " ")).collect();
        if let Err(error) = socket.send(lines.join("\n").as_bytes()) {
            tracing::debug!(%error, "service manager was not notified");
        }
    }
}

/// A leading `@` is an abstract address.
fn connect(path: &[u8]) -> std::io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    match path.strip_prefix(b"@") {
        Some(name) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        None => socket.connect(std::ffi::OsStr::from_bytes(path))?,
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn pair(watchdog: Option<Duration>) -> (tempfile::TempDir, UnixDatagram, Notifier) {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("bind");
        manager.set_read_timeout(Some(Duration::from_secs(20))).expect("time-out");
        let socket = connect(path.as_os_str().as_bytes()).expect("connect");
        (directory, manager, Notifier { socket: Some(Arc::new(socket)), watchdog })
    }

    fn heard(manager: &UnixDatagram) -> String {
        let mut buffer = [0; 512];
        let length = manager.recv(&mut buffer).expect("a notification");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn states_reach_the_manager_in_its_words() {
        let (_directory, manager, notifier) = pair(None);
        notifier.ready("serving 3 machines");
        assert_eq!(heard(&manager), "READY=1\nSTATUS=serving 3 machines");
        notifier.reloading();
        assert!(heard(&manager).starts_with("RELOADING=1\nMONOTONIC_USEC="));
        notifier.status("two\nlines");
        assert_eq!(heard(&manager), "STATUS=two lines");
        notifier.stopping("draining");
        assert_eq!(heard(&manager), "STOPPING=1\nSTATUS=draining");
    }

    #[test]
    fn abstract_address_is_reached() {
        let name = format!("bedplate-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("name");
        let manager = UnixDatagram::bind_addr(&address).expect("bind");
        let notifier = Notifier {
            socket: Some(Arc::new(connect(format!("@{name}").as_bytes()).expect("connect"))),
            watchdog: None,
        };
        notifier.status("here");
        assert_eq!(heard(&manager), "STATUS=here");
    }

    #[test]
    fn without_systemd_nothing_happens() {
        Notifier::default().ready("serving");
    }

    #[tokio::test]
    async fn watchdog_is_fed_only_while_alive() {
        let (_directory, manager, notifier) = pair(Some(Duration::from_millis(20)));
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let alive = Arc::new(AtomicBool::new(false));
        let asked = Arc::new(tokio::sync::Notify::new());
        let (reader, teller) = (alive.clone(), asked.clone());
        notifier.spawn_watchdog(&tasks, shutdown.clone(), move || {
            teller.notify_one();
            if reader.load(Ordering::SeqCst) { Ok(()) } else { Err("a loop stands still".to_owned()) }
        });
        for _ in 0..3 {
            asked.notified().await;
        }
        manager.set_nonblocking(true).expect("non-blocking");
        assert!(manager.recv(&mut [0; 64]).is_err(), "nothing is said while not alive");
        manager.set_nonblocking(false).expect("blocking");
        alive.store(true, Ordering::SeqCst);
        let said = tokio::task::spawn_blocking(move || heard(&manager)).await.expect("join");
        assert_eq!(said, "WATCHDOG=1");
        shutdown.cancel();
        tasks.drain(Duration::from_secs(20), CancellationToken::new()).await.expect("drained");
    }
}
