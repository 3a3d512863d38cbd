//! The life of the program: start in order, lead or wait for the Lease, end in order. Called by `main`.

use std::time::Duration;

use bedplate_engine::connect::connect;
use bedplate_engine::life::{ReconcilerHealth, elect, infallible};
use bedplate_engine::process::Process;
use bedplate_process::exit::Failure;
use bedplate_process::health::{self, Health, Readiness};
use bedplate_process::lease::{Candidate, Tenure};
use bedplate_process::liveness::{Liveness, Pulse, SILENCE_TIMEOUT};
use bedplate_process::shutdown::{Stage, Stages};
use bedplate_process::tasks::Tasks;
use kube::Client;
use tokio::sync::watch::{self, Receiver};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cli::Cli;
use crate::group::Group;
use crate::life::Started;
use crate::{bootstrap, core, infrastructure};

/// Duration of a tenure without an election.
const ENDLESS_TENURE: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Runs until SIGTERM.
///
/// # Errors
/// The configuration cannot be used, or a part failed.
pub async fn run(cli: &Cli) -> Result<(), Failure> {
    let process = Process::start()?;
    let client = connect(cli.kubeconfig.as_deref()).await?;
    let listener = health::bind(cli.listen).await?;
    let (tenure, election) = Election::new(cli, &client);
    let begin = match cli.controllers {
        Group::Infrastructure => infrastructure::begin,
        Group::Bootstrap => bootstrap::begin,
        Group::Core => core::begin,
    };
    let Started { started, missing, registry } = begin(&client, cli, &tenure, process.running());
    let common = ReconcilerHealth { liveness: process.liveness.clone(), started: started.clone(), tenure };
    process.serve(listener, ProviderHealth { common, missing }, registry);
    election.spawn(started, process.running());
    process.finish().await
}

/// Health of a group: it is not ready while policies are missing that bound its rights.
struct ProviderHealth {
    common: ReconcilerHealth,
    missing: Receiver<String>,
}

impl Health for ProviderHealth {
    fn readiness(&self) -> Readiness {
        let missing = self.missing.borrow().clone();
        if missing.is_empty() {
            return self.common.readiness();
        }
        Readiness { ready: false, reasons: vec![missing] }
    }

    fn liveness(&self) -> Result<(), String> {
        self.common.liveness()
    }
}

/// Election of a leader, or its replacement if there is only one process.
enum Election {
    /// The Lease decides.
    Lease(Box<Candidate>),
    /// The tenure starts when the stores are synced, and ends after the last writes of the reconcilers.
    Alone(watch::Sender<Option<Instant>>),
}

impl Election {
    fn new(cli: &Cli, client: &Client) -> (Tenure, Self) {
        if !cli.leader_elect {
            let (tenure, receiver) = watch::channel(None);
            return (Tenure::new(receiver), Self::Alone(tenure));
        }
        let lease = (cli.lease_namespace.clone(), cli.controllers.lease().to_owned());
        let field_manager = cli.controllers.field_manager().name();
        let access = watch::channel(Some(client.clone())).1;
        let (candidate, tenure) = Candidate::new(access, lease, &cli.instance, field_manager);
        (tenure, Self::Lease(Box::new(candidate)))
    }

    /// Spawns the election. It starts once the stores are synced.
    fn spawn(self, started: Receiver<bool>, running: (&Tasks, &Liveness, &Stages)) {
        let (tasks, liveness, stages) = running;
        match self {
            Self::Lease(candidate) => elect(*candidate, started, running),
            Self::Alone(tenure) => {
                let (pulse, stop) =
                    (liveness.part("lease", SILENCE_TIMEOUT), stages.token(Stage::LastWrites));
                infallible(tasks, "lease", alone(tenure, started, pulse, stop));
            }
        }
    }
}

/// Leads without an election, from the time at which the stores are synced until `stop`.
async fn alone(
    tenure: watch::Sender<Option<Instant>>,
    mut started: Receiver<bool>,
    pulse: Pulse,
    stop: CancellationToken,
) {
    let lead = async {
        if started.wait_for(|is_started| *is_started).await.is_ok() {
            tenure.send_replace(Some(Instant::now() + ENDLESS_TENURE));
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = lead => {}
        never = pulse.beating() => match never {},
        () = stop.cancelled() => {}
    }
    tenure.send_replace(None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tenure_without_an_election_starts_after_the_stores_are_synced() {
        let (sender, receiver) = watch::channel(None);
        let tenure = Tenure::new(receiver);
        let ((started, is_started), stop) = (watch::channel(false), CancellationToken::new());
        let task = tokio::spawn(alone(sender, is_started, Pulse::unwatched(), stop.clone()));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!tenure.leads());
        started.send_replace(true);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(tenure.leads());
        stop.cancel();
        task.await.unwrap();
        assert!(!tenure.leads());
    }
}
