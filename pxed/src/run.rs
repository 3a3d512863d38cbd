//! The life of the daemon: start in order, say when ready, reload, drain with a deadline.
//!
//! `knowledge` and `assemble` make the parts, `look` sees how they do, `alive` whether they move at all, `reload` takes on a new configuration. Called by `main`.

mod assemble;
pub mod boot_path;
mod health;
mod image_events;
mod knowledge;
mod liveness;
mod power;
mod reload;

use std::time::Duration;

use bedplate_process::exit::Failure;
use bedplate_process::liveness::{Liveness, Pulse};
use bedplate_process::notify::Notifier;
use bedplate_process::signals::Signals;
use bedplate_process::tasks::Tasks;
use tokio_util::sync::CancellationToken;

use self::assemble::Daemon;
use self::liveness::DISK_PATIENCE;
use crate::config::Config;
use crate::config::cli::Settings;
use crate::readiness::judge;
use crate::status::Writer;

/// How often systemd is told how things stand.
const STATUS_INTERVAL: Duration = Duration::from_secs(10);
/// How long the last status writes may take, after everything else has ended.
const LAST_WRITES: Duration = Duration::from_secs(8);

/// Serves until SIGTERM.
///
/// # Errors
/// Something that is needed cannot be had, or a part failed.
pub async fn run(config: Config, settings: &Settings) -> Result<(), Failure> {
    let mut signals = Signals::install()?;
    let notifier = Notifier::from_environment();
    let tasks = Tasks::new(signals.shutdown());
    let liveness = Liveness::new(signals.shutdown());
    let (mut daemon, writer) = Daemon::assemble(config, liveness.clone()).await?;
    let writing = start_writing(writer, liveness.part("status writer", DISK_PATIENCE));
    daemon.spawn(&tasks, &signals.shutdown());
    notifier.spawn_watchdog(&tasks, signals.shutdown(), move || liveness.check());
    infallible(&tasks, "watch", image_events::tell_of_obstacles(daemon.look(), signals.shutdown()));
    tasks.spawn("status", tell_systemd(notifier.clone(), daemon.look(), signals.shutdown()));
    notifier.ready(&summary(&daemon.look()));
    tracing::info!(site = %daemon.config().site, "serving");
    while signals.reload_requested().await {
        notifier.reloading();
        daemon.reload(settings).await;
        notifier.ready(&summary(&daemon.look()));
    }
    notifier.stopping("finishing transfers");
    // The engines have the configured time for their transfers; what hangs longer is given up.
    let deadline = daemon.config().limits.drain.saturating_add(Duration::from_secs(5));
    let drained = tasks.drain(deadline, signals.hurry()).await;
    drop(daemon);
    writing.finish().await;
    Ok(drained?)
}

/// The status writer outlives the parts whose last words it writes.
struct RunningWriter {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

fn start_writing(writer: Writer, pulse: Pulse) -> RunningWriter {
    let stop = CancellationToken::new();
    let task = tokio::spawn(writer.run(pulse, stop.clone()));
    RunningWriter { stop, task }
}

impl RunningWriter {
    async fn finish(self) {
        self.stop.cancel();
        if tokio::time::timeout(LAST_WRITES, self.task).await.is_err() {
            tracing::warn!("the last status writes were given up");
        }
    }
}

/// A task that cannot fail; it stops the program only by a panic.
fn infallible(tasks: &Tasks, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(name, async move {
        task.await;
        Ok::<_, std::convert::Infallible>(())
    });
}

fn summary(look: &health::Look) -> String {
    let readiness = judge(&look.view());
    let reason = readiness.reasons.first().cloned().unwrap_or_default();
    if readiness.ready { reason } else { format!("not ready: {reason}") }
}

async fn tell_systemd(
    notifier: Notifier,
    look: health::Look,
    shutdown: CancellationToken,
) -> Result<(), std::convert::Infallible> {
    let mut told = String::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(STATUS_INTERVAL) => {}
        }
        let summary = summary(&look);
        if summary != told {
            notifier.status(&summary);
            told = summary;
        }
    }
}
