//! The agent's loop: observe, plan, carry one act out, report.
//!
//! Each act may be killed at any time. Key and request are on disk before the token is used. The certificate
//! is on disk before the seed is removed. A repeated enrollment is the same request. Called by `cli`.

use std::time::Duration;

use bedplate_api::id::MachineName;
use bedplate_api::machine::Hardware;
use bedplate_api::wire::Seed;
use bedplate_process::backoff::{Backoff, spread};
use bedplate_process::counter::Label as _;
use bedplate_process::exit::chain;
use bedplate_process::liveness::{DISK_PATIENCE, Liveness, Pulse};
use bedplate_process::notify::Notifier;
use bedplate_process::reconcile::{Activation, Reconcile, Task, Turn};
use bedplate_process::task_set::TaskSet;
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connections::Ways;
use super::host::{UserspaceReport, blocking, observe_facts};
use super::identity::{Identity, names_enrollment};
use super::outcome::{ActError, Outcome};
use super::plan::{Held, Next, Observed, Pending, plan};
use super::retry_after::HeldBack;
use super::state::{Enrollment, Places, Standing};
use super::text_pages::give_back;
use crate::fault::explained;
use crate::metrics::{Act, METRICS, Went};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Delay after a failed enrollment, renewal or report.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
/// Retry interval after a refused token. The same seed never gets another
/// token, but an operator may repair pxed.
const REFUSED_RETRY_INTERVAL: Duration = Duration::from_secs(300);
/// Timeout of one turn of the loop. The longest act asks several endpoints that do not answer, 30 s each,
/// after it made the host's key on a slow processor.
pub const TURN_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum sleep, because the clock may be set meanwhile.
const MAX_SLEEP: Duration = Duration::from_secs(30);
/// Interval between two attempts to remove a seed that cannot be removed.
const FORGET_INTERVAL: Duration = Duration::from_secs(5);
/// Delay before a certificate that the cluster has lost is renewed.
const RENEWAL_DELAY: Duration = Duration::from_secs(30);
/// Interval between two renewals of a certificate that the cluster does not accept.
const DISOWNED_RENEWAL_INTERVAL: Duration = Duration::from_secs(900);
/// Timeout of the shutdown, which waits for a pending answer.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum time to announce that the host goes down. The sum with
/// [`SHUTDOWN_TIMEOUT`] is less than the unit's TimeoutStopSec=.
const ANNOUNCEMENT_TIMEOUT: Duration = Duration::from_secs(6);
const HEARTBEATS: std::ops::RangeInclusive<u32> = 5..=3600;

/// The agent between two acts.
struct Agent {
    places: Places,
    notifier: Notifier,
    seed: Option<Seed>,
    /// Name of this machine, if it booted as one that no Machine names.
    unknown: Option<MachineName>,
    seed_refused: bool,
    enrollment: Option<Enrollment>,
    ways: Ways,
    last_report: Option<Timestamp>,
    heartbeat: Duration,
    failures: [u32; 3],
    held_back: HeldBack,
    /// True if the cluster has another certificate of this Machine.
    disowned: bool,
    /// True if the certificate names the enrollment group of its key.
    has_group: bool,
    standing: Standing,
    /// Task that ended and should not.
    broken: Option<&'static str>,
}

/// Runs until `shutdown`. With `report_only` nothing of the host is touched. The other loops of the agent give their own pulses to
/// `liveness`.
pub async fn run(
    places: Places,
    report_only: bool,
    notifier: Notifier,
    pulse: Pulse,
    liveness: Liveness,
    shutdown: CancellationToken,
) -> Result<(), RunAgentError> {
    let mut agent = Agent::new(places, report_only, notifier, liveness.clone());
    agent.notifier.ready("starting");
    let mut reports = report_boot(&agent.places, &liveness);
    Task::new(pulse).run(&mut agent, shutdown).await;
    agent.notifier.stopping("stopping");
    reports.stop().await;
    if tokio::time::timeout(ANNOUNCEMENT_TIMEOUT, agent.announce_end()).await.is_err() {
        tracing::debug!("announcement of the host's shutdown timed out");
    }
    let closed = tokio::time::timeout(SHUTDOWN_TIMEOUT, agent.ways.close()).await;
    if closed.is_err() {
        tracing::warn!("shutdown of the connections timed out");
    }
    agent.broken.map_or(Ok(()), |task| Err(RunAgentError(task)))
}

/// Starts the report that this boot has come to its userspace. The set ends with it.
fn report_boot(places: &Places, liveness: &Liveness) -> TaskSet {
    let mut tasks = TaskSet::default();
    tasks.reconcile(liveness, "userspace report", DISK_PATIENCE, UserspaceReport::new(places.root.clone()));
    tasks
}

/// A loop of the agent has ended, for example by a panic. systemd restarts the agent.
#[derive(Debug, thiserror::Error)]
#[error("task {0} ended unexpectedly; see the journal above")]
pub struct RunAgentError(&'static str);

impl Reconcile for Agent {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        if self.broken.is_some() {
            return None;
        }
        let broken = self.ways.broken();
        tokio::select! {
            () = self.ways.changed() => Some(()),
            task = broken => {
                self.broken = Some(task);
                None
            }
        }
    }

    /// Each act ends within [`TURN_TIMEOUT`], even if servers do not answer.
    async fn turn(&mut self, _: Activation<()>) -> Turn {
        let broken = self.ways.broken();
        let now = Timestamp::now();
        self.observe();
        let next = plan(&self.observed(now));
        tokio::select! {
            next_turn = self.apply(next, now) => Turn::At(next_turn),
            task = broken => {
                self.broken = Some(task);
                Turn::Idle
            }
        }
    }
}

impl Agent {
    fn new(places: Places, report_only: bool, notifier: Notifier, liveness: Liveness) -> Self {
        let standing = places.begin_standing(VERSION);
        Self {
            ways: Ways::new(places.clone(), report_only, liveness),
            places,
            notifier,
            seed: None,
            unknown: None,
            seed_refused: false,
            enrollment: None,
            last_report: None,
            heartbeat: Duration::from_secs(60),
            failures: [0; 3],
            held_back: HeldBack::default(),
            disowned: false,
            has_group: true,
            standing,
            broken: None,
        }
    }

    /// Reads seed and enrollment. A file that cannot be read is logged, and counts as missing.
    fn observe(&mut self) {
        let seed = self.places.read_seed().unwrap_or_else(|error| {
            self.note_error(&chain(&error));
            None
        });
        if seed.as_ref().map(|seed| seed.boot_id) != self.seed.as_ref().map(|seed| seed.boot_id) {
            self.seed_refused = false;
            self.held_back.free(0);
            self.failures[0] = 0;
        }
        self.unknown = seed.as_ref().filter(|seed| seed.token.is_none()).map(|seed| seed.machine.clone());
        // A seed without a token is nothing to enroll with.
        self.seed = seed.filter(|seed| seed.token.is_some());
        if self.enrollment.is_none() {
            let enrollment = self.places.read_enrollment().unwrap_or_else(|error| {
                self.note_error(&chain(&error));
                None
            });
            // An agent before this one may have been killed between certificate and key.
            if let Some(Enrollment { machine, certificate_pem, .. }) = &enrollment
                && let Err(error) = Identity::adopt_next(&self.places.state, machine, certificate_pem)
            {
                self.note_error(&chain(&error));
            }
            self.adopt(enrollment);
        }
        self.compare();
    }

    /// Checks that the cluster's Machine is the one that this host enrolled for and has its certificate. A
    /// restored API server has an older one.
    fn compare(&mut self) {
        let (seen, Some(enrollment)) = (self.ways.machine(), &mut self.enrollment) else { return };
        let known = seen.filter(|(_, ours)| !ours).map(|(uid, _)| uid);
        let disowned = known.is_some() && known == enrollment.machine_uid;
        if disowned && !self.disowned {
            tracing::warn!("Machine has another certificate in the cluster, requesting a new one");
            // Spread, so that the hosts of a rack do not ask concurrently.
            self.held_back.hold(1, spread(RENEWAL_DELAY, rand::random()));
        }
        self.disowned = disowned;
        if let Some((uid, true)) = self.ways.machine()
            && enrollment.machine_uid.as_ref() != Some(&uid)
        {
            enrollment.machine_uid = Some(uid);
            if let Err(error) = self.places.write_enrollment(enrollment) {
                tracing::warn!(error = chain(&error), "failed to store the UID of the Machine");
            }
        }
    }

    fn adopt(&mut self, enrollment: Option<Enrollment>) {
        let seconds = enrollment.as_ref().map_or(60, |e| e.heartbeat_seconds);
        let seconds = seconds.clamp(*HEARTBEATS.start(), *HEARTBEATS.end());
        self.heartbeat = spread(Duration::from_secs(u64::from(seconds)), rand::random());
        self.ways.forget();
        // The next report goes out with this certificate, and the cluster's watches with it.
        self.last_report = None;
        self.has_group =
            enrollment.as_ref().is_none_or(|enrollment| names_enrollment(&enrollment.certificate_pem));
        self.enrollment = enrollment;
    }

    fn observed(&self, now: Timestamp) -> Observed {
        let held = self.enrollment.as_ref().map(|enrollment| Held {
            boot_id: enrollment.boot_id,
            not_before: enrollment.not_before,
            not_after: enrollment.not_after,
            heartbeat: self.heartbeat,
            has_group: self.has_group,
        });
        Observed {
            now,
            seed: self.seed.as_ref().map(|seed| seed.boot_id),
            seed_refused: self.seed_refused,
            unknown: self.unknown.is_some(),
            held,
            last_report: self.last_report,
            not_before: self.held_back.not_before(now),
            disowned: self.disowned,
        }
    }

    /// Carries an act out. Returns the time of the next turn.
    async fn apply(&mut self, next: Next, now: Timestamp) -> Instant {
        let (act, index, result) = match next {
            Next::Wait { until, pending } => return self.wait(until, pending, now),
            Next::ForgetSeed => {
                let forgotten = self.places.forget_seed();
                let failed = forgotten.is_err();
                self.settle(Act::ForgetSeed, 0, forgotten.map(|()| Outcome::Done).map_err(ActError::from));
                // Nothing else is done before the secret is gone, but not in a circle either.
                return Instant::now() + if failed { FORGET_INTERVAL } else { Duration::ZERO };
            }
            Next::Enroll => (Act::Enroll, 0, self.enroll().await),
            Next::Renew => (Act::Renew, 1, self.renew().await),
            Next::Report => (Act::Report, 2, self.report().await),
        };
        self.settle(act, index, result);
        Instant::now()
    }

    /// Notes how an act went, and until when it is held back.
    fn settle(&mut self, counted: Act, index: usize, result: Result<Outcome, ActError>) {
        let went = match &result {
            Ok(Outcome::Done) => Went::Done,
            Ok(Outcome::Pending { .. }) => Went::Pending,
            Err(_) => Went::Failed,
        };
        METRICS.act(counted, went, Timestamp::now());
        let act = counted.word();
        let wait = match result {
            Ok(Outcome::Done) => {
                self.failures[index] = 0;
                if counted == Act::Report {
                    tracing::debug!(act, "done");
                    // The loop mostly sleeps after a report.
                    if let Err(error) = give_back() {
                        tracing::debug!(error = chain(&error), "failed to unmap the program's text");
                    }
                } else {
                    tracing::info!(act, "done");
                }
                // A new certificate that is not known either, or has no enrollment group either, is not replaced in a circle.
                let is_in_vain = self.disowned || !self.has_group;
                if index == 1 && is_in_vain {
                    spread(DISOWNED_RENEWAL_INTERVAL, rand::random())
                } else {
                    Duration::ZERO
                }
            }
            Ok(Outcome::Pending { message, wait }) => {
                tracing::info!(act, reason = message, wait_seconds = wait.as_secs(), "pending");
                self.say(&format!("{act}: pxed reports: {message}"), None);
                wait
            }
            Err(error) => {
                self.failures[index] = self.failures[index].saturating_add(1);
                let refused = matches!(&error, ActError::Pxed(error) if error.is_final());
                self.seed_refused |= refused && index == 0;
                let wait = if refused {
                    REFUSED_RETRY_INTERVAL
                } else {
                    BACKOFF.delay(self.failures[index], rand::random())
                };
                let text = explained(&error);
                tracing::warn!(act, error = text, wait_seconds = wait.as_secs(), "act failed, retrying");
                self.note_error(&format!("{act}: {text}"));
                wait
            }
        };
        self.held_back.hold(index, wait);
    }

    /// Reports why nothing is done now. Returns the time of the next turn.
    fn wait(&mut self, until: Timestamp, pending: Pending, now: Timestamp) -> Instant {
        let unknown;
        let doing = match pending {
            Pending::Machine => {
                let name = self.unknown.as_ref().map_or("this machine", MachineName::as_str);
                unknown = format!(
                    "no Machine has the MAC address of {name}, which booted the discovery image; create a \
                     Machine with that address, then reboot {name}"
                );
                &unknown
            }
            Pending::Heartbeat => "enrolled, waiting for the next report or renewal",
            Pending::Retry => "waiting to retry the enrollment",
            Pending::Seed => "waiting for a seed: stage-1 left none, and this host has no certificate",
            Pending::SeedAfterEnd => {
                "waiting for a seed: the certificate expired; reboot the host, or enroll it with a token: \
                 `bedplate-agent enroll`"
            }
        };
        self.say(doing, Some(until));
        let left = Duration::try_from(until.duration_since(now)).unwrap_or(Duration::ZERO);
        Instant::now() + left.clamp(Duration::from_millis(10), MAX_SLEEP)
    }

    async fn observe_facts(&mut self) -> Hardware {
        let (places, known) = (self.places.clone(), self.standing.state_disk.take());
        let (facts, state_disk) = blocking(move || observe_facts(&places, known)).await;
        self.standing.state_disk = state_disk;
        facts
    }

    fn note_error(&mut self, text: &str) {
        self.standing.last_error = Some(text.to_owned());
        self.standing.last_error_time = Some(Timestamp::now());
    }

    /// Reports the state of the agent in its file and to systemd.
    fn say(&mut self, doing: &str, next_try: Option<Timestamp>) {
        let now = Timestamp::now();
        let standing = &mut self.standing;
        if standing.doing != doing {
            doing.clone_into(&mut standing.doing);
            standing.since = Some(now);
            tracing::info!(doing, "state changed");
            self.notifier.status(doing);
        }
        standing.next_try = next_try;
        if let Some(enrollment) = &self.enrollment {
            standing.machine = Some(enrollment.machine.clone());
            standing.site = Some(enrollment.site.clone());
            standing.certificate_ends = Some(enrollment.not_after);
            METRICS.certificate(enrollment.not_after);
        }
        standing.cluster = self.ways.describe_cluster();
        standing.enrolled = self.enrollment.as_ref().is_some_and(|enrollment| now < enrollment.not_after);
        if let Err(error) = self.places.write_standing(standing) {
            tracing::warn!(error = chain(&error), "failed to write the agent status file");
        }
    }
}

mod act;
#[cfg(test)]
mod tests;
