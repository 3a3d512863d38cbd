//! MachineOperations of the cluster: a watch with back-off, and writes of the status that name the version that was read.
//!
//! What is unfinished is told whoever it is for; of what is finished the newest are remembered for people. Only the fields
//! of an executor are written (docs/rules.md, "MachineOperation"). Spawned by `run`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};
use bedplate_process::exit::chain;
use bedplate_process::liveness::Pulse;
use futures::StreamExt;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{MOST_FINISHED, age, is_finished, sort_by_age, sourced};
use crate::power::{
    CreateOperationError, Operation, OperationDesk, OperationUpdate, OperationWriter, WriteOperationError,
};

/// Who we are to the API server (docs/rules.md, "Who writes what").
const FIELD_MANAGER: &str = "pxed";
/// How long one write may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two looks for access to the cluster.
const RETRY: Duration = Duration::from_secs(1);

/// A client, once there is one.
type Access = Arc<OnceLock<Client>>;

/// The cluster's operations; clones share what is known of them.
#[derive(Clone)]
pub struct ClusterOperations {
    access: Access,
    seen: Arc<Mutex<Seen>>,
}

/// The operations as the watch tells them, by name.
#[derive(Debug, Default)]
struct Seen {
    operations: BTreeMap<String, Operation>,
    /// A list that is being received.
    list: Option<BTreeMap<String, Operation>>,
}

impl ClusterOperations {
    /// By a client that may come later.
    pub fn new(access: Access) -> Self {
        Self { access, seen: Arc::default() }
    }

    /// Watches until `shutdown`.
    pub async fn run(
        self,
        updates: mpsc::Sender<OperationUpdate>,
        pulse: Pulse,
        shutdown: CancellationToken,
    ) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow(&updates, &pulse) => {}
        }
    }

    /// Ends when nobody listens any more.
    async fn follow(&self, updates: &mpsc::Sender<OperationUpdate>, pulse: &Pulse) {
        let client = loop {
            pulse.beat();
            match self.access.get() {
                Some(client) => break client.clone(),
                None => tokio::time::sleep(RETRY).await,
            }
        };
        let operations = Api::<MachineOperation>::all(client);
        let mut stream = Box::pin(watch(operations, watcher::Config::default()).default_backoff());
        let mut told = String::new();
        loop {
            let event = tokio::select! {
                never = pulse.beating() => match never {},
                event = stream.next() => event,
            };
            let update = match event {
                Some(Ok(event)) => {
                    // Init only says that a list is about to be asked for.
                    if !matches!(event, Event::Init) && !std::mem::take(&mut told).is_empty() {
                        tracing::info!("operations can be watched again");
                    }
                    self.lock().take(event)
                }
                Some(Err(error)) => {
                    let error = chain(&error);
                    if told.is_empty() {
                        tracing::warn!(error, "operations cannot be watched");
                    }
                    told = error;
                    None
                }
                None => return,
            };
            if let Some(update) = update
                && tokio::select! {
                    never = pulse.beating() => match never {},
                    sent = updates.send(update) => sent.is_err(),
                }
            {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        // Every change is whole before the lock is let go.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn take(&mut self, event: Event<MachineOperation>) -> Option<OperationUpdate> {
        match event {
            Event::Init => {
                self.list = Some(BTreeMap::new());
                None
            }
            Event::InitApply(object) => {
                let list = self.list.get_or_insert_default();
                let operation = sourced(object);
                list.insert(operation.key.name.clone(), operation);
                // Not at each: to find the oldest is to look at all.
                if list.len() >= 2 * MOST_FINISHED {
                    forget_finished(list);
                }
                None
            }
            Event::InitDone => {
                self.operations = self.list.take().unwrap_or_default();
                forget_finished(&mut self.operations);
                Some(OperationUpdate::Set(self.operations.values().cloned().collect()))
            }
            Event::Apply(object) => {
                let operation = sourced(object);
                self.operations.insert(operation.key.name.clone(), operation.clone());
                if self.operations.len() >= 2 * MOST_FINISHED {
                    forget_finished(&mut self.operations);
                }
                Some(OperationUpdate::Put(operation))
            }
            Event::Delete(object) => {
                let Operation { key, .. } = sourced(object);
                if self.operations.get(&key.name).is_some_and(|known| known.key == key) {
                    self.operations.remove(&key.name);
                }
                Some(OperationUpdate::Gone(key))
            }
        }
    }
}

/// Leaves the newest [`MOST_FINISHED`] of those that have ended.
fn forget_finished(operations: &mut BTreeMap<String, Operation>) {
    let mut finished: Vec<_> =
        operations.values().map(|operation| &operation.object).filter(|o| is_finished(o)).cloned().collect();
    let Some(surplus) = finished.len().checked_sub(MOST_FINISHED) else { return };
    finished.sort_by(|a, b| age(a).cmp(&age(b)));
    for object in finished.into_iter().take(surplus) {
        operations.remove(object.metadata.name.as_deref().unwrap_or_default());
    }
}

/// Pure: an executor's fields of a status, for an object that is still of this uid and version.
fn patch_body(operation: &Operation, status: &MachineOperationStatus) -> Value {
    json!({
        "metadata": { "uid": operation.key.uid, "resourceVersion": operation.version },
        "status": {
            "state": status.state,
            "startTime": status.start_time,
            "completionTime": status.completion_time,
            "reason": status.reason,
            "message": status.message,
            "executor": status.executor,
            "conditions": status.conditions,
        },
    })
}

#[async_trait]
impl OperationWriter for ClusterOperations {
    async fn write(
        &self,
        operation: &Operation,
        status: MachineOperationStatus,
    ) -> Result<Operation, WriteOperationError> {
        let later = |why: String| WriteOperationError::Later(why);
        let client = self.access.get().ok_or_else(|| later("no access to the cluster yet".to_owned()))?;
        let operations: Api<MachineOperation> = Api::all(client.clone());
        let body = Patch::Merge(patch_body(operation, &status));
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let write = operations.patch_status(&operation.key.name, &parameters, &body);
        match tokio::time::timeout(LIMIT, write).await {
            Ok(Ok(object)) => Ok(sourced(object)),
            Ok(Err(kube::Error::Api(answer))) => Err(judge(answer.code, answer.message.clone())),
            Ok(Err(error)) => Err(later(chain(&error))),
            Err(_) => Err(later("the API server did not answer in time".to_owned())),
        }
    }
}

fn judge(code: u16, message: String) -> WriteOperationError {
    match code {
        404 => WriteOperationError::Gone,
        409 => WriteOperationError::Conflict,
        400 | 413 | 415 | 422 => WriteOperationError::Refused(message),
        // 401 and 403 too: credentials are renewed, roles are put right.
        _ => WriteOperationError::Later(format!("{code}: {message}")),
    }
}

#[async_trait]
impl OperationDesk for ClusterOperations {
    async fn create(&self, _object: MachineOperation) -> Result<MachineOperation, CreateOperationError> {
        Err(CreateOperationError::UseCluster)
    }

    fn list(&self) -> Vec<Arc<MachineOperation>> {
        let mut all: Vec<_> = self.lock().operations.values().map(|known| known.object.clone()).collect();
        sort_by_age(&mut all);
        all
    }

    fn get(&self, name: &str) -> Option<Arc<MachineOperation>> {
        self.lock().operations.get(name).map(|known| known.object.clone())
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::operation::{OperationCounts, OperationState};

    use super::*;
    use crate::power::OperationKey;

    fn key(name: &str, uid: &str) -> OperationKey {
        OperationKey { name: name.to_owned(), uid: uid.to_owned() }
    }

    fn object(name: &str, uid: &str, state: Option<OperationState>) -> MachineOperation {
        let value = json!({
            "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation",
            "metadata": { "name": name, "uid": uid, "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{ "manager": "x" }] },
            "spec": { "operationName": "powerOn", "machineRef": { "name": "a" } },
            "status": { "state": state },
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_list_is_a_set_and_what_comes_later_is_told_one_by_one() {
        let mut seen = Seen::default();
        assert_eq!(seen.take(Event::Init), None);
        assert_eq!(seen.take(Event::InitApply(object("x", "1", None))), None);
        let Some(OperationUpdate::Set(set)) = seen.take(Event::InitDone) else { panic!("a set") };
        assert_eq!((set[0].key.clone(), set[0].version.as_str()), (key("x", "1"), "7"));
        assert_eq!(set[0].object.metadata.managed_fields, None);
        assert!(matches!(seen.take(Event::Apply(object("y", "2", None))), Some(OperationUpdate::Put(_))));
        // Made anew under its name: the old one's end does not take the new one away.
        seen.take(Event::Apply(object("x", "3", None)));
        assert_eq!(
            seen.take(Event::Delete(object("x", "1", None))),
            Some(OperationUpdate::Gone(key("x", "1")))
        );
        assert_eq!(seen.operations.keys().collect::<Vec<_>>(), ["x", "y"]);
    }

    #[test]
    fn of_what_is_finished_only_the_newest_are_remembered() {
        let mut seen = Seen::default();
        seen.take(Event::Init);
        for number in 0..3 * MOST_FINISHED {
            let state = (number != 5).then_some(OperationState::Complete);
            seen.take(Event::InitApply(object(&format!("x{number:06}"), "u", state)));
        }
        seen.take(Event::InitDone);
        assert_eq!(seen.operations.len(), MOST_FINISHED + 1);
        assert!(seen.operations.contains_key("x000005"), "what is not finished stays");
        assert!(!seen.operations.contains_key("x000000"));
    }

    #[test]
    fn only_the_executors_fields_are_written_and_only_of_the_version_that_was_read() {
        let status = MachineOperationStatus {
            state: Some(OperationState::InProgress),
            counts: Some(OperationCounts::default()),
            ..MachineOperationStatus::default()
        };
        let body = patch_body(&sourced(object("x", "1", None)), &status);
        assert_eq!(body["metadata"], json!({ "uid": "1", "resourceVersion": "7" }));
        assert_eq!(body["status"].get("counts"), None);
        assert_eq!(body["status"]["state"], "InProgress");
        assert!(body["status"]["reason"].is_null(), "what an earlier step said is taken away");
    }

    #[test]
    fn answers_say_what_to_do() {
        assert_eq!(judge(404, String::new()), WriteOperationError::Gone);
        assert_eq!(judge(409, String::new()), WriteOperationError::Conflict);
        assert!(matches!(judge(422, String::new()), WriteOperationError::Refused(_)));
        for code in [401, 403, 429, 500, 503] {
            assert!(matches!(judge(code, String::new()), WriteOperationError::Later(_)), "{code}");
        }
    }
}
