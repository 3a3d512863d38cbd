//! pxed as a [`Plane`], where there is no cluster: the own Machine, its version and the own operations, by one request that pxed answers
//! when something is new; and the own Node, by the credential of the kubelet in the slot.
//!
//! ```text
//!   pxed --what is new, or nothing within 20 s--> Seen <--watch, live GET-- the API server of the slot's kubelet
//!        <--status of own operations, how the node stands, that the Node is gone--
//! ```
//! Whether what is seen is as of now goes by pxed, and by the kubelet's API server where that is not the slot's own. Called by
//! `service::ways`.

mod own_node;
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
use bedplate_process::backoff::Backoff;
use bedplate_process::exit::chain;
use futures::FutureExt as _;
use kube::ResourceExt;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use self::own_node::{OwnNode, ask_gone, follow_node, node_state};
use super::certificate::CertificateAnswer;
use super::error::AskServerError;
use super::freshness::{Contact, Counted};
use super::operation::WriteOperationError;
use super::secret::{ReadSecretError, SecretData};
use super::status::NodeTold;
use super::{Compared, Plane, Seen, Watched};
use crate::https::pxed::PxedClient;
use crate::https::request::AskError;
use crate::kubelet::credential::{FindKubelet, Kubelet};
use crate::model::Api;

/// Delay after failures.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// An answer that nothing is new takes longer.
const SOON: Duration = Duration::from_secs(1);

/// pxed, as one Machine's agent sees it. Its tasks end when it is dropped.
pub struct Standalone {
    machine: MachineName,
    client: watch::Sender<PxedClient>,
    kubelet: Arc<dyn FindKubelet>,
    seen: watch::Receiver<Seen>,
    node: watch::Sender<Option<NodeTold>>,
    /// Something was done to the slots, perhaps: is there another kubelet?
    look: Arc<Notify>,
    tasks: JoinSet<()>,
    /// One of them has ended.
    over: CancellationToken,
}

impl std::fmt::Debug for Standalone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Standalone").field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl Standalone {
    /// Begins to watch.
    pub fn start(machine: MachineName, client: PxedClient, kubelet: Arc<dyn FindKubelet>) -> Self {
        let (client, current) = watch::channel(client);
        let (told, seen) = watch::channel(Seen::default());
        let (node, says) = watch::channel(None);
        let (own, own_seen) = watch::channel(OwnNode::default());
        let look = Arc::new(Notify::new());
        let (mut tasks, over) = (JoinSet::new(), CancellationToken::new());
        let work = [
            follow(current.clone(), own_seen.clone(), Told(told)).boxed(),
            follow_node(Arc::clone(&kubelet), machine.clone(), Arc::clone(&look), own).boxed(),
            report::tell(current, says, own_seen, seen.clone()).boxed(),
        ];
        for work in work {
            let ends = over.clone().drop_guard();
            tasks.spawn(async move {
                let _ends = ends;
                work.await;
            });
        }
        Self { machine, client, kubelet, seen, node, look, tasks, over }
    }

    /// Goes on with another certificate, of the same Machine.
    pub fn renew(&self, client: PxedClient) {
        self.client.send_replace(client);
    }

    /// Whose agent it serves.
    pub fn machine(&self) -> &MachineName {
        &self.machine
    }

    /// Cancelled once pxed is asked, or told, no more: a task has panicked.
    pub fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Ends the tasks and waits until they have ended.
    pub async fn stop(mut self: Arc<Self>) {
        // Whoever else holds it ends them by letting go.
        if let Some(own) = Arc::get_mut(&mut self) {
            own.tasks.shutdown().await;
        }
    }

    fn client(&self) -> PxedClient {
        self.client.borrow().clone()
    }
}

#[async_trait]
impl Plane for Standalone {
    fn seen(&self) -> watch::Receiver<Seen> {
        let mut seen = self.seen.clone();
        seen.mark_changed();
        seen
    }

    async fn node_is_gone(&self) -> Result<bool, AskServerError> {
        let unknown =
            |problem| AskServerError::Answer { what: "the credential of the kubelet".to_owned(), problem };
        match self.kubelet.find().await.map_err(unknown)? {
            Kubelet::Joined(joined) => ask_gone(&joined, &self.machine).await,
            // Nothing here has a Node, and pxed knows of none.
            Kubelet::Nowhere => Ok(self.seen.borrow().node == super::NodeState::Absent),
            Kubelet::NotJoined | Kubelet::Asleep { .. } => Ok(false),
        }
    }

    fn is_standalone(&self) -> bool {
        true
    }

    async fn report(&self, report: &Report) -> Result<(), AskServerError> {
        self.client().report(report).await.map_err(|error| server_error("the report", error))
    }

    fn tell_node(&self, told: NodeTold) {
        self.node.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&told);
            *known = Some(told);
            changed
        });
        self.look.notify_one();
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
                // What this host may not ask at all, another certificate may.
                let hopeless =
                    matches!(&error, AskError::Refused { status: 400 | 413, .. } | AskError::Answer { .. });
                let error = server_error(&format!("status of MachineOperation {name}"), error);
                Err(if hopeless {
                    WriteOperationError::Refused(error)
                } else {
                    WriteOperationError::Later(error)
                })
            }
        }
    }

    async fn compare(&self, _: &str, _: &str) -> Compared {
        Compared::Unknown("this host belongs to no cluster".to_owned())
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

    /// A version without a cluster names its own discovery, so nothing is requested here.
    async fn kubelet_certificate(&self, name: &str, _: &str) -> Result<CertificateAnswer, AskServerError> {
        let problem = "pxed signs no certificates of kubelets".to_owned();
        Err(AskServerError::Answer { what: format!("certificate request {name}"), problem })
    }
}

/// The values of a Secret; or the key of one that is none.
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

/// The same failure in the words of who asks an API server.
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

/// Where it is told. What was told last must not pass for what is, once nobody watches any more, for whatever reason.
struct Told(watch::Sender<Seen>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.send_modify(|seen| seen.api = Api::Away);
    }
}

/// What was told, and whether it is as of now.
struct View {
    contact: Contact,
    revision: Option<String>,
    own: OwnNode,
    seen: Seen,
}

impl View {
    fn new(now: Instant) -> Self {
        Self { contact: Contact::new(now), revision: None, own: OwnNode::default(), seen: Seen::default() }
    }

    /// pxed has answered.
    fn take(&mut self, answer: WatchResponse) {
        self.contact.listed(Counted::Machine);
        self.seen.trouble.remove(&Watched::Machine);
        if let WatchResponse::Changed { revision, machine, version, operations } = answer {
            self.revision = Some(revision);
            self.seen.operations_listed = true;
            (self.seen.machine, self.seen.ours) = (Some(Arc::from(machine)), true);
            self.seen.version = version.map(Arc::from);
            self.seen.operations = operations.into_iter().map(Arc::new).collect();
        }
    }

    /// pxed was not reached, or refused.
    fn fail(&mut self, error: &AskError, now: Instant) {
        let why = chain(error);
        if let AskError::Refused { reason, .. } = error {
            let is_gone = *reason == AgentRefusal::MachineGone;
            // pxed has answered: the Machine does not belong to this host any more.
            if is_gone {
                self.seen.machine = None;
            }
            if is_gone || *reason == AgentRefusal::KeyReplaced {
                self.seen.ours = false;
                self.contact.listed(Counted::Machine);
                self.revision = None;
                self.seen.operations.clear();
                self.seen.trouble.insert(Watched::Machine, why);
                return;
            }
        }
        self.contact.broken(Counted::Machine, now);
        self.seen.trouble.insert(Watched::Machine, why);
    }

    /// The own Node, as its API server says now, or does not.
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

    /// Tells what is known, if that is news; says when it changes by itself.
    fn publish(&mut self, now: Instant, told: &watch::Sender<Seen>) -> Option<Instant> {
        let until;
        (self.seen.api, until) = self.contact.state(now);
        if let Some(node) = node_state(&self.own, self.seen.machine.as_deref()) {
            self.seen.node = node;
        }
        told.send_if_modified(|known| {
            let changed = *known != self.seen;
            if known.api != self.seen.api {
                tracing::info!(pxed = self.seen.describe(), "pxed in the cluster's place");
            }
            known.clone_from(&self.seen);
            changed
        });
        until
    }
}

/// Asks until `client` has no sender any more; anew with every new client.
async fn follow(mut client: watch::Receiver<PxedClient>, mut own: watch::Receiver<OwnNode>, told: Told) {
    let (mut view, mut failures) = (View::new(Instant::now()), 0);
    loop {
        let with = client.borrow_and_update().clone();
        let request = WatchRequest { known: view.revision.clone() };
        let asked = Instant::now();
        let answer = tokio::select! {
            changed = client.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            answer = publishing(&mut view, &mut own, &told.0, with.watch(&request)) => answer,
        };
        match answer {
            Ok(answer) => {
                failures = 0;
                let soon = answer == WatchResponse::Same && asked.elapsed() < SOON;
                view.take(answer);
                if soon {
                    // A pxed that is being stopped, or is no pxed, is not asked in a circle.
                    publishing(&mut view, &mut own, &told.0, tokio::time::sleep(SOON)).await;
                }
                continue;
            }
            Err(error) => {
                failures += 1;
                view.fail(&error, Instant::now());
            }
        }
        let wait = BACKOFF.delay(failures, rand::random());
        tokio::select! {
            changed = client.changed() => if changed.is_err() { return },
            () = publishing(&mut view, &mut own, &told.0, tokio::time::sleep(wait)) => {}
        }
    }
}

/// Waits for `act`, and tells meanwhile what is known as it grows old, and of the own Node as it is.
async fn publishing<T>(
    view: &mut View,
    own: &mut watch::Receiver<OwnNode>,
    told: &watch::Sender<Seen>,
    act: impl Future<Output = T>,
) -> T {
    let mut act = std::pin::pin!(act);
    loop {
        view.take_own(own.borrow_and_update().clone(), Instant::now());
        let until = view.publish(Instant::now(), told);
        let due = async {
            match until {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            done = &mut act => return done,
            () = due => {}
            Ok(()) = own.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::operation::AGENT_OPERATIONS;
    use serde_json::json;

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
    fn what_pxed_told_is_old_ten_seconds_after_it_went_away() {
        let start = Instant::now();
        let told = watch::Sender::new(Seen::default());
        let mut view = View::new(start);
        view.take(changed());
        view.take_own(OwnNode::Nowhere, start);
        assert_eq!(view.publish(start, &told), None);
        assert!(told.borrow().ours && told.borrow().api == Api::Live);
        view.fail(&AskError::NoEndpoint, start);
        let until = view.publish(start, &told);
        assert_eq!(until, Some(start + Duration::from_secs(10)));
        assert_eq!(told.borrow().api, Api::Live);
        view.publish(start + Duration::from_secs(10), &told);
        assert_eq!(told.borrow().api, Api::Away);
        assert!(told.borrow().machine.is_some(), "what runs goes on");
        view.take(WatchResponse::Same);
        view.publish(start + Duration::from_secs(11), &told);
        assert_eq!(told.borrow().api, Api::Live);
    }

    #[test]
    fn a_machine_that_pxed_does_not_know_any_more_is_not_ours() {
        let start = Instant::now();
        for reason in ["MachineGone", "KeyReplaced"] {
            let mut view = View::new(start);
            view.take(changed());
            view.fail(&refused(reason), start);
            assert!(!view.seen.ours && view.revision.is_none(), "{reason}");
        }
        let mut view = View::new(start);
        view.take(changed());
        view.fail(&refused("StoreFailed"), start);
        assert!(view.seen.ours, "it may know it again in a moment");
    }

    #[test]
    fn an_api_server_that_is_away_is_no_fault_of_a_worker_and_one_in_the_slot_is_the_slots() {
        let start = Instant::now();
        let told = watch::Sender::new(Seen::default());
        let later = start + Duration::from_secs(10);
        let silent = |runs_api| OwnNode::Silent { why: "refused".to_owned(), runs_api };
        let node = || OwnNode::Present(Arc::default());
        for (runs_api, api) in [(false, Api::Away), (true, Api::Live)] {
            let mut view = View::new(start);
            view.take(changed());
            view.take_own(node(), start);
            view.take_own(silent(runs_api), start);
            view.take_own(silent(runs_api), later);
            view.publish(later, &told);
            assert_eq!(told.borrow().api, api);
            assert!(told.borrow().describe().contains("the own Node cannot be watched: refused"));
            view.take_own(node(), later);
            view.publish(later, &told);
            assert!(told.borrow().api == Api::Live && told.borrow().trouble.is_empty());
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
