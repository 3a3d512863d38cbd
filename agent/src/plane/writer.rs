//! Writes the agent's own fields of its Machine's status.
//!
//! The host's report is written when it has changed, otherwise every five minutes (the heartbeat). Each write
//! is the complete object, for etcd and for all watchers. The node's report is written as soon as it has
//! changed, but mere progress at most every 5 s. A failed write is retried with backoff. Called by `cluster`.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::id::Digest;
use bedplate_api::machine::{Machine, MachineStatus};
use bedplate_api::wire::Report;
use bedplate_process::reconcile::{Activation, Reconcile, Turn};
use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use super::Seen;
use super::client::Access;
use super::error::{AskServerError, ask};
use super::status::{Change, NodeStatusReport, body, change, compose};
use crate::model::Api as Contact;

/// Field manager of the agent for server-side apply.
pub(super) const FIELD_MANAGER: &str = "bedplate-agent";
/// Minimum interval between two writes of important changes.
const MIN_CHANGE_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval between two writes of progress.
const MIN_PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Interval between two writes of an unchanged status.
const REFRESH_INTERVAL: Duration = Duration::from_secs(300);
/// Maximum time of a write: the first one waits for the first word of the API server, and for a report that is being written.
pub(super) const WRITE_PATIENCE: Duration = Duration::from_secs(180);

/// Writer of the status. Clones share their state.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    access: watch::Receiver<Access>,
    seen: watch::Receiver<Seen>,
    node: Arc<watch::Sender<Option<NodeStatusReport>>>,
    kept: Arc<Mutex<Kept>>,
}

/// State between two writes.
#[derive(Debug, Default)]
struct Kept {
    host: Option<Report>,
    written: Option<MachineStatus>,
    /// Time at which the API server accepted it, and fingerprint of the certificate.
    taken: Option<(Instant, Digest)>,
    /// Time of the last attempt.
    at: Option<Instant>,
}

impl Kept {
    /// Returns true if a report of the host is due: it is new, the last write
    /// is old, or another certificate was not tried yet.
    fn is_due(&self, status: &MachineStatus, fingerprint: Digest, now: Instant) -> bool {
        let (Some(written), Some((taken, shown))) = (&self.written, &self.taken) else { return true };
        change(written, status) != Change::Nothing
            || now.saturating_duration_since(*taken) >= REFRESH_INTERVAL
            || *shown != fingerprint
    }
}

impl Writer {
    pub(super) fn new(access: watch::Receiver<Access>, seen: watch::Receiver<Seen>) -> Self {
        Self { access, seen, node: Arc::new(watch::Sender::new(None)), kept: Arc::default() }
    }

    /// Writes the host's facts and all other fields, if a write is due.
    pub(super) async fn report(&self, report: &Report) -> Result<(), AskServerError> {
        let mut kept = self.kept.lock().await;
        kept.host = Some(report.clone());
        let status = self.compose(&kept).await?;
        let due = kept.is_due(&status, self.access.borrow().fingerprint(), Instant::now());
        if due { self.write(&mut kept, status).await } else { Ok(()) }
    }

    /// Records the current report of the node.
    pub(super) fn report_node(&self, reported: NodeStatusReport) {
        self.node.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&reported);
            *known = Some(reported);
            changed
        });
    }

    /// Returns the loop that writes the node's report.
    pub(super) fn of_node(&self) -> NodeWriter {
        NodeWriter { reported: self.node.subscribe(), writer: self.clone() }
    }

    /// Writes if something has changed. Returns the time of the next attempt if
    /// it is too early; none if all is written.
    async fn write_if_due(&self) -> Result<Option<Instant>, AskServerError> {
        let mut kept = self.kept.lock().await;
        // The first report of the host writes all fields.
        if kept.host.is_none() {
            return Ok(None);
        }
        let status = self.compose(&kept).await?;
        let change = kept.written.as_ref().map_or(Change::Matter, |written| change(written, &status));
        let gap = match change {
            Change::Nothing => return Ok(None),
            Change::Progress => MIN_PROGRESS_INTERVAL,
            Change::Matter => MIN_CHANGE_INTERVAL,
        };
        if let Some(due) = kept.at.map(|at| at + gap).filter(|due| Instant::now() < *due) {
            return Ok(Some(due));
        }
        self.write(&mut kept, status).await.map(|()| None)
    }

    /// Composes all own fields with their desired values.
    async fn compose(&self, kept: &Kept) -> Result<MachineStatus, AskServerError> {
        let before = match &kept.written {
            Some(written) => written.clone(),
            None => self.found().await?,
        };
        let access = self.access.borrow().clone();
        let node = self.node.borrow().clone();
        let unsaid = || AskServerError::NothingSeen { why: String::new() };
        let host = kept.host.as_ref().ok_or_else(unsaid)?;
        Ok(compose(access.machine(), host, node.as_ref(), &before, Timestamp::now()))
    }

    /// Returns the fields that an earlier agent wrote. Waits for the first answer of the API server.
    async fn found(&self) -> Result<MachineStatus, AskServerError> {
        let mut seen = self.seen.clone();
        let answered = |seen: &Seen| seen.machine.is_some() || seen.api != Contact::Unasked;
        let seen = match seen.wait_for(answered).await {
            Ok(seen) => seen.clone(),
            Err(_) => return Err(AskServerError::NothingSeen { why: String::new() }),
        };
        match (&seen.machine, seen.api) {
            (Some(machine), _) => Ok(machine.status.clone().unwrap_or_default()),
            // The Machine does not exist: the refusal of the write is the best message.
            (None, Contact::Live) => Ok(MachineStatus::default()),
            (None, Contact::Unasked | Contact::Away) => {
                let why: Vec<_> = seen.trouble.values().map(String::as_str).collect();
                let why = if why.is_empty() { String::new() } else { format!(": {}", why.join("; ")) };
                Err(AskServerError::NothingSeen { why })
            }
        }
    }

    async fn write(&self, kept: &mut Kept, status: MachineStatus) -> Result<(), AskServerError> {
        let access = self.access.borrow().clone();
        let machine = access.machine();
        let machines: Api<BoundedTimes<Machine>> = Api::all(access.client().clone());
        // Forced, because these fields belong to the agent, whatever other writer set them.
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(body(machine, &status));
        kept.at = Some(Instant::now());
        let write = machines.patch_status(machine.as_str(), &parameters, &patch);
        ask(format!("status of Machine {machine}"), write).await?;
        kept.written = Some(status);
        kept.taken = Some((Instant::now(), access.fingerprint()));
        Ok(())
    }
}

/// Loop that writes the node's report.
pub(super) struct NodeWriter {
    writer: Writer,
    reported: watch::Receiver<Option<NodeStatusReport>>,
}

impl Reconcile for NodeWriter {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        self.reported.changed().await.ok()
    }

    async fn turn(&mut self, _: Activation<()>) -> Turn {
        self.reported.mark_unchanged();
        match self.writer.write_if_due().await {
            Ok(due) => due.map_or(Turn::Idle, Turn::At),
            Err(error) => Turn::Retry(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::machine::{AgentStatus, Time};
    use bedplate_api::wire::KubernetesEndpoint;
    use bedplate_process::liveness::Liveness;
    use bedplate_process::task_set::TaskSet;
    use tokio_util::sync::CancellationToken;

    use super::*;

    const OWN: Digest = Digest::from_sha256([1; 32]);

    fn status(version: &str, heartbeat: i64) -> MachineStatus {
        let last_heartbeat_time = Timestamp::from_second(heartbeat).ok().map(Time);
        let agent = AgentStatus {
            version: Some(version.to_owned()),
            boot_id: None,
            last_heartbeat_time,
            features: Vec::new(),
            going_down_time: None,
        };
        MachineStatus { agent: Some(agent), ..MachineStatus::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn write_that_hangs_is_named_by_the_watchdog() {
        let own = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
        let (pem, key) = (own.cert.pem(), own.signing_key.serialize_pem());
        let endpoint = KubernetesEndpoint { server: "https://127.0.0.1:1".to_owned(), ca_pem: pem.clone() };
        let access = Access::new(&endpoint, &"node-1".parse().unwrap(), (&pem, &key)).unwrap();
        let (_access, current) = watch::channel(access);
        let (_seen, seen) = watch::channel(Seen::default());
        let writer = Writer::new(current, seen);
        let liveness = Liveness::new(CancellationToken::new());
        let mut tasks = TaskSet::default();
        tasks.reconcile(&liveness, "status writer", WRITE_PATIENCE, writer.of_node());
        tokio::time::sleep(WRITE_PATIENCE * 2).await;
        assert_eq!(liveness.check(), Ok(()), "it waits");
        let _report = writer.kept.lock().await;
        writer.report_node(NodeStatusReport::default());
        tokio::time::sleep(WRITE_PATIENCE + Duration::from_secs(6)).await;
        assert!(liveness.check().unwrap_err().starts_with("status writer sent no"));
    }

    #[test]
    fn an_unchanged_status_is_written_once_in_five_minutes() {
        let start = Instant::now();
        assert!(Kept::default().is_due(&status("1", 0), OWN, start), "the first one");
        let kept = Kept { written: Some(status("1", 0)), taken: Some((start, OWN)), ..Kept::default() };
        let due = |version, after, fingerprint| {
            let now = start + Duration::from_secs(after);
            kept.is_due(&status(version, 1), fingerprint, now)
        };
        assert!(!due("1", 30, OWN) && !due("1", 299, OWN));
        assert!(due("1", 300, OWN));
        assert!(due("2", 30, OWN), "another agent");
        assert!(due("1", 30, Digest::from_sha256([2; 32])), "another certificate is tried immediately");
    }
}
