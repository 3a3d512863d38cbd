//! The life of the daemon: start in order, report readiness, reload, stop in order.
//!
//! `assemble` makes the parts and adds their tasks, `health` says how they are, `reload` applies a new configuration, `shutdown` has the
//! order of the end. Called by `main`.

mod assemble;
pub(crate) mod boot_path;
mod follow;
mod health;
mod image_events;
mod liveness;
mod reload;
mod shutdown;

use std::time::Duration;

use bedplate_process::exit::Failure;
use bedplate_process::liveness::SILENCE_TIMEOUT;
use bedplate_process::notify::Notifier;
use bedplate_process::program::Program;
use bedplate_process::reconcile::{Activation, Reconcile, Turn};
use bedplate_process::shutdown::{Shutdown, Stage};
use bedplate_process::signals::Signals;
use tokio::time::Instant;

use self::assemble::Daemon;
use self::health::Look;
use crate::config::Config;
use crate::config::cli::Settings;
use crate::readiness::judge;

/// Interval between two status lines for systemd.
const STATUS_INTERVAL: Duration = Duration::from_secs(10);

/// Serves until SIGTERM.
///
/// # Errors
/// A part cannot be started, failed, or had not ended in time.
pub async fn run(config: Config, settings: &Settings) -> Result<(), Failure> {
    let mut signals = Signals::install()?;
    let notifier = Notifier::from_environment();
    let program = Program::new(signals.shutdown());
    let daemon = Daemon::assemble(config, &program).await?;
    let (tasks, liveness) = (&program.tasks, program.liveness.clone());
    notifier.spawn_watchdog(tasks, signals.shutdown(), move || liveness.check());
    program.reconcile("status", Stage::Draining, SILENCE_TIMEOUT, StatusLine::new(&notifier, &daemon.look));
    program.start();
    notifier.ready(&summary(&daemon.look));
    tracing::info!(site = %daemon.look.site.name, "serving");
    while signals.reload_requested().await {
        notifier.reloading();
        daemon.reload(settings).await;
        notifier.ready(&summary(&daemon.look));
    }
    notifier.stopping("finishing transfers");
    let drain = daemon.config.load().limits.drain;
    let Daemon { statuses, release, .. } = daemon;
    let shutdown = Shutdown::new(tasks.clone(), program.stages.clone(), signals.hurry());
    Ok(shutdown::shut_down(shutdown, tasks, statuses.idle(), &release, drain).await?)
}

fn summary(look: &Look) -> String {
    let readiness = judge(&look.view());
    let reason = readiness.reasons.first().cloned().unwrap_or_default();
    if readiness.ready { reason } else { format!("not ready: {reason}") }
}

/// Keeps the status line of `systemctl status` current.
struct StatusLine {
    notifier: Notifier,
    look: Look,
    line: String,
}

impl StatusLine {
    fn new(notifier: &Notifier, look: &Look) -> Self {
        Self { notifier: notifier.clone(), look: look.clone(), line: String::new() }
    }
}

impl Reconcile for StatusLine {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        std::future::pending().await
    }

    async fn turn(&mut self, activation: Activation<()>) -> Turn {
        let line = summary(&self.look);
        if activation != Activation::Start && line != self.line {
            self.notifier.status(&line);
            self.line = line;
        }
        Turn::At(Instant::now() + STATUS_INTERVAL)
    }
}
