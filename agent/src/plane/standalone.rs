//! pxed as a [`Decider`] when standalone. One long-poll request returns the host's Machine, its version and
//! its operations; pxed answers on a change. The Node comes from its home,
//! [`SlotHome`](super::slot_home::SlotHome).
//!
//! ```text
//!   pxed --changes, or nothing within 20 s--> Seen <--own Node-- SlotHome
//!        <--status of own operations, state of the node, deletion of the Node--
//! ```
//! The state is current if pxed answers, and the kubelet's API server too, unless that runs in the slot.
//! Called by `service::connections`.

mod report;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_api::configuration::SecretRef;
use bedplate_api::id::MachineName;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};
use bedplate_api::reason::refusal::AgentRefusal;
use bedplate_api::wire::{
    OperationWrite, OperationWritten, Report, SecretRequest, SecretResponse, WatchRequest, WatchResponse,
};
use bedplate_process::exit::chain;
use bedplate_process::liveness::{Liveness, SILENCE_TIMEOUT};
use bedplate_process::reconcile::{Activation, Reconcile, Turn};
use bedplate_process::task_set::TaskSet;
use kube::ResourceExt;
use tokio::sync::{mpsc, watch};
use zeroize::Zeroizing;

use self::report::Reporter;
use super::error::AskServerError;
use super::freshness::{Contact, Counted};
use super::operation::WriteOperationError;
use super::secret::{ReadSecretError, SecretData};
use super::slot_home::{OwnNode, node_state};
use super::status::NodeStatusReport;
use super::{Decider, Seen, Watched};
use crate::https::pxed::PxedClient;
use crate::https::request::AskError;
use crate::model::Api;

/// Maximum time of one question: several endpoints are asked, each for 30 s.
const ASK_PATIENCE: Duration = Duration::from_secs(300);
/// Minimum time of an answer without news.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// pxed, as one Machine's agent sees it. Its tasks end when it is dropped.
pub struct Standalone {
    /// Dropped first, so that no task ends because another field is dropped.
    tasks: TaskSet,
    machine: MachineName,
    client: watch::Sender<PxedClient>,
    seen: watch::Receiver<Seen>,
    node: watch::Sender<Option<NodeStatusReport>>,
}

impl std::fmt::Debug for Standalone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Standalone").field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl Standalone {
    /// Starts to ask pxed. `own`: the Node, from its home.
    pub fn start(
        machine: MachineName,
        client: PxedClient,
        own: watch::Receiver<OwnNode>,
        liveness: &Liveness,
    ) -> Self {
        let (client, current) = watch::channel(client);
        let (reported, seen) = watch::channel(Seen::default());
        let (node, says) = watch::channel(None);
        let (answers, answered) = mpsc::channel(1);
        let mut tasks = TaskSet::default();
        let poller = Poller { client: current.clone(), known: None, answers };
        tasks.reconcile(liveness, "pxed watch", ASK_PATIENCE, poller);
        let view = View::new(Instant::now());
        let publisher =
            Publisher { view, answers: answered, own: own.clone(), reported: Published(reported) };
        tasks.reconcile(liveness, "pxed view", SILENCE_TIMEOUT, publisher);
        let reporter = Reporter::new(current, says, own, seen.clone());
        tasks.reconcile(liveness, "node report", ASK_PATIENCE, reporter);
        Self { tasks, machine, client, seen, node }
    }

    /// Continues with another certificate of the same Machine.
    pub fn renew(&self, client: PxedClient) {
        self.client.send_replace(client);
    }

    /// Returns the Machine whose agent this serves.
    pub fn machine(&self) -> &MachineName {
        &self.machine
    }

    /// Returns the names of the tasks that were started.
    #[cfg(test)]
    pub(crate) fn task_names(&self) -> &[&'static str] {
        self.tasks.names()
    }

    /// Returns the name of a task that ended without a request to stop, as soon as one does.
    pub fn ended(&self) -> impl Future<Output = &'static str> + Send + use<> {
        self.tasks.ended()
    }

    /// Stops the tasks and waits for their end.
    pub async fn stop(mut self: Arc<Self>) {
        // Another holder ends them when it drops its handle.
        if let Some(own) = Arc::get_mut(&mut self) {
            own.tasks.stop().await;
        }
    }

    fn client(&self) -> PxedClient {
        self.client.borrow().clone()
    }
}

#[async_trait]
impl Decider for Standalone {
    fn seen(&self) -> watch::Receiver<Seen> {
        let mut seen = self.seen.clone();
        seen.mark_changed();
        seen
    }

    async fn report(&self, report: &Report) -> Result<(), AskServerError> {
        self.client().report(report).await.map_err(|error| server_error("the report", error))
    }

    fn report_node(&self, reported: NodeStatusReport) {
        self.node.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&reported);
            *known = Some(reported);
            changed
        });
    }

    async fn write_operation(
        &self,
        operation: &MachineOperation,
        status: MachineOperationStatus,
    ) -> Result<Arc<MachineOperation>, WriteOperationError> {
        let name = operation.name_any();
        let write = OperationWrite {
            name: name.clone(),
            uid: operation.uid().unwrap_or_default(),
            resource_version: operation.resource_version().unwrap_or_default(),
            status,
        };
        match self.client().write_operation(&write).await {
            Ok(OperationWritten::Written { operation }) => Ok(Arc::from(operation)),
            Ok(OperationWritten::Changed { operation }) => Err(WriteOperationError::Conflict(operation)),
            Ok(OperationWritten::Gone) => Err(WriteOperationError::Gone),
            Err(error) => {
                // Requests that this host may never make, as opposed to those that another certificate may.
                let hopeless =
                    matches!(&error, AskError::Refused { status: 400 | 413, .. } | AskError::Answer { .. });
                let error = server_error(&format!("status of MachineOperation {name}"), error);
                let error = chain(&error);
                Err(if hopeless {
                    WriteOperationError::Refused(error)
                } else {
                    WriteOperationError::Later(error)
                })
            }
        }
    }

    async fn secret(&self, secret: &SecretRef) -> Result<SecretData, ReadSecretError> {
        let SecretRef { namespace, name } = secret.clone();
        let what = format!("Secret {namespace}/{name}");
        let request = SecretRequest { namespace: namespace.clone(), name: name.clone() };
        match self.client().secret(&request).await {
            Ok(found) => decoded(found).map_err(|key| {
                let problem = format!("the value of {key} is not base64");
                ReadSecretError::Server(AskServerError::Answer { what, problem })
            }),
            Err(AskError::Refused { reason, .. }) if reason == AgentRefusal::SecretNotFound => {
                Err(ReadSecretError::Missing { namespace, name })
            }
            Err(error) => Err(ReadSecretError::Server(server_error(&what, error))),
        }
    }
}

/// Returns the values of a Secret, or the key of an invalid one.
fn decoded(found: SecretResponse) -> Result<SecretData, String> {
    let data = found.data.into_iter().map(|(key, value)| {
        let value = Zeroizing::new(value.0);
        match STANDARD.decode(value.as_bytes()) {
            Ok(bytes) => Ok((key, Zeroizing::new(bytes))),
            Err(_) => Err(key),
        }
    });
    Ok(SecretData { kind: found.kind, data: data.collect::<Result<_, _>>()? })
}

/// Converts the failure to the error of an API server request.
fn server_error(what: &str, error: AskError) -> AskServerError {
    let what = what.to_owned();
    match error {
        AskError::Transport { source, .. } => AskServerError::Transport { what, source: Box::new(source) },
        AskError::Refused { status, reason, message, .. } => {
            AskServerError::Refused { what, status, reason, message }
        }
        AskError::Answer { problem, .. } => AskServerError::Answer { what, problem },
        error @ (AskError::Prepare(_) | AskError::NoEndpoint) => {
            AskServerError::Answer { what, problem: error.to_string() }
        }
    }
}

/// Publisher of the state. The last state must not count as current after the
/// watch ended, for whatever reason.
struct Published(watch::Sender<Seen>);

impl Drop for Published {
    fn drop(&mut self) {
        self.0.send_modify(|seen| seen.api = Api::Away);
    }
}

/// State from pxed, and whether it is current.
struct View {
    contact: Contact,
    own: OwnNode,
    seen: Seen,
}

impl View {
    fn new(now: Instant) -> Self {
        Self { contact: Contact::new(now), own: OwnNode::default(), seen: Seen::default() }
    }

    /// Records an answer of pxed.
    fn take(&mut self, answer: WatchResponse) {
        self.contact.listed(Counted::Machine);
        self.seen.trouble.remove(&Watched::Machine);
        if let WatchResponse::Changed { machine, version, operations, .. } = answer {
            self.seen.operations_listed = true;
            (self.seen.machine, self.seen.ours) = (Some(Arc::from(machine)), true);
            self.seen.version = version.map(Arc::from);
            self.seen.operations = operations.into_iter().map(Arc::new).collect();
        }
    }

    /// Records that pxed did not answer, or refused.
    fn fail(&mut self, error: &AskError, now: Instant) {
        let why = chain(error);
        if is_not_ours(error) {
            if matches!(error, AskError::Refused { reason, .. } if *reason == AgentRefusal::MachineGone) {
                self.seen.machine = None;
            }
            self.seen.ours = false;
            self.contact.listed(Counted::Machine);
            self.seen.operations.clear();
            self.seen.trouble.insert(Watched::Machine, why);
            return;
        }
        self.contact.broken(Counted::Machine, now);
        self.seen.trouble.insert(Watched::Machine, why);
    }

    /// Records the state of this host's Node, or a failure of its API server.
    fn take_own(&mut self, own: OwnNode, now: Instant) {
        match &own {
            OwnNode::Unasked => {}
            OwnNode::Silent { why, runs_api } => {
                self.seen.trouble.insert(Watched::Node, why.clone());
                if *runs_api {
                    self.contact.listed(Counted::Node);
                } else {
                    self.contact.broken(Counted::Node, now);
                }
            }
            OwnNode::Nowhere
            | OwnNode::NotJoined
            | OwnNode::Asleep { .. }
            | OwnNode::Gone
            | OwnNode::Present(_) => {
                self.seen.trouble.remove(&Watched::Node);
                self.contact.listed(Counted::Node);
            }
        }
        self.own = own;
    }

    /// Publishes the state if it is new. Returns when it changes by itself.
    fn publish(&mut self, now: Instant, reported: &watch::Sender<Seen>) -> Option<Instant> {
        let until;
        (self.seen.api, until) = self.contact.state(now);
        if let Some(node) = node_state(&self.own, self.seen.machine.as_deref()) {
            self.seen.node = node;
        }
        reported.send_if_modified(|known| {
            let changed = *known != self.seen;
            if known.api != self.seen.api {
                tracing::info!(pxed = self.seen.describe(), "pxed state changed");
            }
            known.clone_from(&self.seen);
            changed
        });
        until
    }
}

/// An answer of pxed to a watch.
type Answer = Result<WatchResponse, AskError>;

/// Poller of pxed's changes. It runs as long as `client` has a sender, and starts again with each new client.
struct Poller {
    client: watch::Receiver<PxedClient>,
    /// Revision of the Machine that pxed reported last.
    known: Option<String>,
    answers: mpsc::Sender<Answer>,
}

impl Poller {
    /// Records the revision of this answer.
    fn learn(&mut self, answer: &Answer) {
        match answer {
            Ok(WatchResponse::Changed { revision, .. }) => self.known = Some(revision.clone()),
            Err(error) if is_not_ours(error) => self.known = None,
            Ok(WatchResponse::Same) | Err(_) => {}
        }
    }
}

/// Returns true if pxed has answered that the Machine does not belong to this host any more.
fn is_not_ours(error: &AskError) -> bool {
    let AskError::Refused { reason, .. } = error else { return false };
    *reason == AgentRefusal::MachineGone || *reason == AgentRefusal::KeyReplaced
}

impl Reconcile for Poller {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        self.client.changed().await.ok()
    }

    async fn urgent(&mut self) -> Option<()> {
        self.changed().await
    }

    async fn turn(&mut self, _: Activation<()>) -> Turn {
        let client = self.client.borrow_and_update().clone();
        let (request, asked) = (WatchRequest { known: self.known.clone() }, Instant::now());
        let answer = tokio::select! {
            answer = client.watch(&request) => answer,
            changed = self.client.changed() => {
                return if changed.is_ok() { Turn::At(Instant::now().into()) } else { Turn::Idle };
            }
        };
        self.learn(&answer);
        let failure = answer.as_ref().err().map(|error| chain(error));
        // Without this pause, a pxed that is being stopped, or another server,
        // would be asked in a tight loop.
        let soon = matches!(answer, Ok(WatchResponse::Same)) && asked.elapsed() < MIN_POLL_INTERVAL;
        if self.answers.send(answer).await.is_err() {
            return Turn::Idle;
        }
        match failure {
            Some(failure) => Turn::Retry(failure.into()),
            None => Turn::At((Instant::now() + if soon { MIN_POLL_INTERVAL } else { Duration::ZERO }).into()),
        }
    }
}

/// Publisher of the state, when it changes and when it becomes outdated.
struct Publisher {
    view: View,
    answers: mpsc::Receiver<Answer>,
    own: watch::Receiver<OwnNode>,
    reported: Published,
}

impl Reconcile for Publisher {
    /// Answer of pxed; none: the host's Node has changed.
    type Event = Option<Answer>;

    async fn changed(&mut self) -> Option<Option<Answer>> {
        tokio::select! {
            answer = self.answers.recv() => answer.map(Some),
            Ok(()) = self.own.changed() => Some(None),
        }
    }

    async fn turn(&mut self, activation: Activation<Option<Answer>>) -> Turn {
        let now = Instant::now();
        match activation {
            Activation::Changed(Some(Ok(answer))) => self.view.take(answer),
            Activation::Changed(Some(Err(error))) => self.view.fail(&error, now),
            Activation::Start | Activation::Changed(None) | Activation::Due => {}
        }
        self.view.take_own(self.own.borrow_and_update().clone(), now);
        let until = self.view.publish(now, &self.reported.0);
        until.map_or(Turn::Idle, |until| Turn::At(until.into()))
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::operation::AGENT_OPERATIONS;
    use bedplate_process::liveness::PULSE_INTERVAL;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::operation::parameters::Kind;

    fn changed() -> WatchResponse {
        let machine = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "a" },
            "spec": { "provider": "manual" } });
        serde_json::from_value(
            json!({ "result": "changed", "revision": "r", "machine": machine, "operations": [] }),
        )
        .unwrap()
    }

    fn refused(reason: &str) -> AskError {
        AskError::Refused {
            url: String::new(),
            status: 404,
            reason: reason.to_owned(),
            message: String::new(),
        }
    }

    #[test]
    fn o7_pxed_hands_to_agents_what_agents_carry_out() {
        assert_eq!(Kind::ALL.map(Kind::as_str), AGENT_OPERATIONS);
    }

    #[test]
    fn state_of_pxed_is_outdated_ten_seconds_after_it_became_unreachable() {
        let start = Instant::now();
        let reported = watch::Sender::new(Seen::default());
        let mut view = View::new(start);
        view.take(changed());
        view.take_own(OwnNode::Nowhere, start);
        assert_eq!(view.publish(start, &reported), None);
        assert!(reported.borrow().ours && reported.borrow().api == Api::Live);
        view.fail(&AskError::NoEndpoint, start);
        let until = view.publish(start, &reported);
        assert_eq!(until, Some(start + Duration::from_secs(10)));
        assert_eq!(reported.borrow().api, Api::Live);
        view.publish(start + Duration::from_secs(10), &reported);
        assert_eq!(reported.borrow().api, Api::Away);
        assert!(reported.borrow().machine.is_some(), "what runs goes on");
        view.take(WatchResponse::Same);
        view.publish(start + Duration::from_secs(11), &reported);
        assert_eq!(reported.borrow().api, Api::Live);
    }

    /// A pxed that takes connections and never answers.
    async fn silent_pxed() -> (tokio::net::TcpListener, PxedClient) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let client = PxedClient::new(&[url], &own.cert.pem(), None).unwrap();
        (listener, client)
    }

    #[test]
    fn revision_is_forgotten_with_the_machine_and_kept_over_failures() {
        let (answers, client) = (mpsc::channel(1).0, PxedClient::new(&[], "", None));
        let mut poller = Poller { client: watch::channel(client.unwrap()).1, known: None, answers };
        let mut learn = |answer: &Answer| {
            poller.learn(answer);
            poller.known.is_some()
        };
        for reason in ["MachineGone", "KeyReplaced"] {
            assert!(learn(&Ok(changed())) && learn(&Ok(WatchResponse::Same)));
            assert!(learn(&Err(AskError::NoEndpoint)) && learn(&Err(refused("StoreFailed"))));
            assert!(!learn(&Err(refused(reason))), "{reason}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn question_or_report_that_hangs_is_named_by_the_watchdog() {
        let (_listener, client) = silent_pxed().await;
        let liveness = Liveness::new(CancellationToken::new());
        let (_client, current) = watch::channel(client);
        let (answers, _answered) = mpsc::channel(1);
        let mut tasks = TaskSet::default();
        let poller = Poller { client: current.clone(), known: None, answers };
        tasks.reconcile(&liveness, "pxed watch", PULSE_INTERVAL, poller);
        let mut view = View::new(Instant::now());
        view.take(changed());
        let (_node, node) = watch::channel(Some(NodeStatusReport::default()));
        let (_own, own) = watch::channel(OwnNode::default());
        let (_seen, seen) = watch::channel(view.seen);
        tasks.reconcile(&liveness, "node report", PULSE_INTERVAL, Reporter::new(current, node, own, seen));
        assert_eq!(liveness.check(), Ok(()));
        tokio::time::sleep(PULSE_INTERVAL + Duration::from_secs(1)).await;
        let named = liveness.check().unwrap_err();
        assert!(named.contains("pxed watch sent no") && named.contains("node report sent no"), "{named}");
    }

    #[test]
    fn a_machine_that_pxed_does_not_know_any_more_is_not_ours() {
        let start = Instant::now();
        for reason in ["MachineGone", "KeyReplaced"] {
            let mut view = View::new(start);
            view.take(changed());
            view.fail(&refused(reason), start);
            assert!(!view.seen.ours, "{reason}");
        }
        let mut view = View::new(start);
        view.take(changed());
        view.fail(&refused("StoreFailed"), start);
        assert!(view.seen.ours, "it may know it again in a moment");
    }

    #[test]
    fn unreachable_api_server_is_a_fault_only_if_it_runs_in_the_slot() {
        let start = Instant::now();
        let reported = watch::Sender::new(Seen::default());
        let later = start + Duration::from_secs(10);
        let silent = |runs_api| OwnNode::Silent { why: "refused".to_owned(), runs_api };
        let node = || OwnNode::Present(Arc::default());
        for (runs_api, api) in [(false, Api::Away), (true, Api::Live)] {
            let mut view = View::new(start);
            view.take(changed());
            view.take_own(node(), start);
            view.take_own(silent(runs_api), start);
            view.take_own(silent(runs_api), later);
            view.publish(later, &reported);
            assert_eq!(reported.borrow().api, api);
            assert!(reported.borrow().describe().contains("watch of Node of this host failed: refused"));
            view.take_own(node(), later);
            view.publish(later, &reported);
            assert!(reported.borrow().api == Api::Live && reported.borrow().trouble.is_empty());
        }
    }

    #[test]
    fn a_secrets_values_are_taken_out_of_base64_or_named_by_their_key() {
        let found = |value: &str| {
            let answer = json!({ "type": "Opaque", "data": { "conf": value } });
            decoded(serde_json::from_value(answer).unwrap())
        };
        assert_eq!(found("aHVudGVyMg==").unwrap().data["conf"].as_slice(), b"hunter2");
        assert_eq!(found("!").unwrap_err(), "conf");
    }
}
