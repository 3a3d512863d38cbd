//! Signals as values: one shutdown token (SIGTERM, SIGINT), a wish to hurry (a second one), reload requests (SIGHUP).
//!
//! Never ends the process itself. Called once, by the program's `run`.

use std::io;

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tokio_util::sync::CancellationToken;

/// The signals of this process.
#[derive(Debug)]
pub struct Signals {
    shutdown: CancellationToken,
    hurry: CancellationToken,
    reloads: watch::Receiver<u64>,
}

/// The signal handlers could not be installed.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for signals")]
pub struct InstallSignalsError(#[from] io::Error);

impl Signals {
    /// Listens for SIGTERM, SIGINT and SIGHUP from now on. Needs a tokio runtime.
    ///
    /// # Errors
    /// The system refused a signal handler.
    pub fn install() -> Result<Self, InstallSignalsError> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let (shutdown, hurry) = (CancellationToken::new(), CancellationToken::new());
        let (reload, reloads) = watch::channel(0_u64);
        let tokens = (shutdown.clone(), hurry.clone());
        // Lives as long as the process: a second signal must be heard during the drain.
        spawn_listener(shutdown.clone(), async move {
            loop {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                    _ = hangup.recv() => {
                        tracing::info!(signal = "SIGHUP", "reload requested");
                        reload.send_modify(|count| *count = count.wrapping_add(1));
                        continue;
                    }
                };
                let (token, message) = if tokens.0.is_cancelled() {
                    (&tokens.1, "second stop signal, not waiting for running transfers")
                } else {
                    (&tokens.0, "stop requested")
                };
                tracing::info!(signal = name, "{message}");
                token.cancel();
            }
        });
        Ok(Self { shutdown, hurry, reloads })
    }

    /// The process's one shutdown token: cancelled by the first SIGTERM or SIGINT, or by a task that failed.
    pub fn shutdown(&self) -> CancellationToken {
        self.shutdown.clone()
    }

    /// Returns the token that the second SIGTERM or SIGINT cancels: draining code stops waiting.
    pub fn hurry(&self) -> CancellationToken {
        self.hurry.clone()
    }

    /// Waits for the next SIGHUP: true to reload, false when the process stops.
    /// Several signals in short time are one reload.
    pub async fn reload_requested(&mut self) -> bool {
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => false,
            changed = self.reloads.changed() => changed.is_ok(),
        }
    }
}

/// Spawns the task that listens. If it ends, also by a panic, the program stops: no signal would reach it any more.
fn spawn_listener(shutdown: CancellationToken, listener: impl Future<Output = ()> + Send + 'static) {
    let guard = shutdown.drop_guard();
    tokio::spawn(async move {
        let _guard = guard;
        listener.await;
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::sys::signal::{Signal, raise};

    use super::*;

    #[tokio::test]
    async fn program_stops_if_its_listener_panics() {
        let shutdown = CancellationToken::new();
        spawn_listener(shutdown.clone(), async { panic!("as a bug does") });
        tokio::time::timeout(Duration::from_secs(20), shutdown.cancelled()).await.expect("it stops");
    }

    /// A single test, because signals belong to the process, which all tests share.
    #[tokio::test]
    async fn hangup_reloads_first_stop_drains_second_hurries() {
        let mut signals = Signals::install().expect("a test may listen for signals");
        let deadline = Duration::from_secs(20);
        raise(Signal::SIGHUP).expect("raise");
        assert_eq!(tokio::time::timeout(deadline, signals.reload_requested()).await, Ok(true));
        raise(Signal::SIGTERM).expect("raise");
        let shutdown = signals.shutdown();
        tokio::time::timeout(deadline, shutdown.cancelled()).await.expect("SIGTERM cancels");
        assert!(!signals.hurry().is_cancelled());
        assert!(!signals.reload_requested().await);
        raise(Signal::SIGINT).expect("raise");
        let hurry = signals.hurry();
        tokio::time::timeout(deadline, hurry.cancelled()).await.expect("a second signal hurries");
    }
}
