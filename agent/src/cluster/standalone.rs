//! pxed as a [`Plane`], where there is no cluster: the own Machine and the own operations, by one request that pxed answers when
//! something is new.
//!
//! ```text
//!   pxed --what is new, or nothing within 20 s--> Seen
//!        <--status of own operations, how the node stands--
//! ```
//! Nobody there knows a Node or chooses a version: the Node is never said to be gone, and nothing is selected. Called by
//! `service::ways`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bedplate_api::configuration::SecretRef;
use bedplate_api::id::MachineName;
use bedplate_api::machine::MachineStatus;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};
use bedplate_api::wire::{NodeReport, OperationWrite, OperationWritten, Report, WatchRequest, WatchResponse};
use bedplate_process::exit::chain;
use futures::FutureExt as _;
use jiff::Timestamp;
use kube::ResourceExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::answer::AskServerError;
use super::contact::{Contact, Counted};
use super::operation::WriteOperationError;
use super::secret::{ReadSecretError, SecretData};
use super::status::{NodeTold, conditions};
use super::{Plane, Seen, Watched};
use crate::node::model::Api;
use crate::service::ask::AskError;
use crate::service::client::PxedClient;
use crate::service::plan::back_off;

/// Longest wait after failures.
const MOST: Duration = Duration::from_secs(60);
/// An answer that nothing is new takes longer.
const SOON: Duration = Duration::from_secs(1);
/// Between two words about the node.
const GAP: Duration = Duration::from_secs(5);

/// pxed, as one Machine's agent sees it. Its tasks end when it is dropped.
#[derive(Debug)]
pub struct Standalone {
    machine: MachineName,
    client: watch::Sender<PxedClient>,
    seen: watch::Receiver<Seen>,
    node: watch::Sender<Option<NodeTold>>,
    tasks: JoinSet<()>,
    /// One of them has ended.
    over: CancellationToken,
}

impl Standalone {
    /// Begins to watch.
    pub fn start(machine: MachineName, client: PxedClient) -> Self {
        let (client, current) = watch::channel(client);
        let (told, seen) = watch::channel(Seen::default());
        let (node, says) = watch::channel(None);
        let (mut tasks, over) = (JoinSet::new(), CancellationToken::new());
        for work in [follow(current.clone(), Told(told)).boxed(), tell(current, says).boxed()] {
            let ends = over.clone().drop_guard();
            tasks.spawn(async move {
                let _ends = ends;
                work.await;
            });
        }
        Self { machine, client, seen, node, tasks, over }
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
        // pxed knows no Nodes.
        Ok(false)
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

    async fn secret(&self, secret: &SecretRef) -> Result<SecretData, ReadSecretError> {
        Err(ReadSecretError::Missing { namespace: secret.namespace.clone(), name: secret.name.clone() })
    }
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
    seen: Seen,
}

impl View {
    fn new(now: Instant) -> Self {
        Self { contact: Contact::new(now), revision: None, seen: Seen::default() }
    }

    /// pxed has answered.
    fn take(&mut self, answer: WatchResponse) {
        self.contact.listed(Counted::Machine);
        self.contact.listed(Counted::Node);
        self.seen.trouble.clear();
        if let WatchResponse::Changed { revision, machine, operations } = answer {
            self.revision = Some(revision);
            self.seen.operations_listed = true;
            (self.seen.machine, self.seen.ours) = (Some(Arc::from(machine)), true);
            self.seen.operations = operations.into_iter().map(Arc::new).collect();
        }
    }

    /// pxed was not reached, or refused.
    fn fail(&mut self, error: &AskError, now: Instant) {
        let why = chain(error);
        if let AskError::Refused { reason, .. } = error {
            match reason.as_str() {
                // It has answered: nothing there is this host's any more.
                "MachineGone" => (self.seen.machine, self.seen.ours) = (None, false),
                "KeyReplaced" => self.seen.ours = false,
                _ => {}
            }
            if matches!(reason.as_str(), "MachineGone" | "KeyReplaced") {
                self.contact.listed(Counted::Machine);
                self.contact.listed(Counted::Node);
                self.revision = None;
                self.seen.operations.clear();
                self.seen.trouble.insert(Watched::Machine, why);
                return;
            }
        }
        self.contact.broken(Counted::Machine, now);
        self.contact.broken(Counted::Node, now);
        self.seen.trouble.insert(Watched::Machine, why);
    }

    /// Tells what is known, if that is news; says when it changes by itself.
    fn publish(&mut self, now: Instant, told: &watch::Sender<Seen>) -> Option<Instant> {
        let until;
        (self.seen.api, until) = self.contact.state(now);
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
async fn follow(mut client: watch::Receiver<PxedClient>, told: Told) {
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
            answer = publishing(&mut view, &told.0, with.watch(&request)) => answer,
        };
        match answer {
            Ok(answer) => {
                failures = 0;
                let soon = answer == WatchResponse::Same && asked.elapsed() < SOON;
                view.take(answer);
                if soon {
                    // A pxed that is being stopped, or is no pxed, is not asked in a circle.
                    publishing(&mut view, &told.0, tokio::time::sleep(SOON)).await;
                }
                continue;
            }
            Err(error) => {
                failures += 1;
                view.fail(&error, Instant::now());
            }
        }
        let wait = back_off(failures, MOST, rand::random());
        tokio::select! {
            changed = client.changed() => if changed.is_err() { return },
            () = publishing(&mut view, &told.0, tokio::time::sleep(wait)) => {}
        }
    }
}

/// Waits for `act`, and tells meanwhile what is known as it grows old.
async fn publishing<T>(view: &mut View, told: &watch::Sender<Seen>, act: impl Future<Output = T>) -> T {
    let mut act = std::pin::pin!(act);
    loop {
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
        }
    }
}

/// Says how the node stands, when that has changed and until nobody can say anything any more.
async fn tell(client: watch::Receiver<PxedClient>, mut node: watch::Receiver<Option<NodeTold>>) {
    let (mut before, mut failures) = (MachineStatus::default(), 0);
    while node.changed().await.is_ok() {
        loop {
            let Some(told) = node.borrow_and_update().clone() else { break };
            before.conditions = conditions(&told, &before, Timestamp::now());
            let report = NodeReport {
                applied: told.applied,
                slots: told.slots,
                rolled_back: told.rolled_back,
                conditions: before.conditions.clone(),
            };
            let with = client.borrow().clone();
            match with.tell_node(&report).await {
                Ok(()) => {
                    failures = 0;
                    tokio::time::sleep(GAP).await;
                    break;
                }
                Err(error) => {
                    failures += 1;
                    let wait = back_off(failures, MOST, rand::random());
                    tracing::info!(
                        error = chain(&error),
                        "how the node stands is not told, will be tried again"
                    );
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::operation::AGENT_OPERATIONS;
    use serde_json::json;

    use super::*;
    use crate::operation::order::Kind;

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
}
