//! MachineOperations of the cluster: a watch with back-off, and writes of the status that name the version that was read.
//!
//! Only operations with the label of this site are watched, and those without the label, which the controller sets. Operations with a
//! selector have another label and are not watched. The newest finished operations are kept for users. Only the fields of an executor are written (docs/design/rules.md, "MachineOperation"). Spawned by `run`.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::id::SiteName;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};
use bedplate_process::exit::chain;
use bedplate_process::liveness::Pulse;
use bedplate_process::lock::Lock;
use bedplate_process::reconcile::until;
use bedplate_rules::fan_out::{CHILDREN, SITE};
use futures::{StreamExt, TryStreamExt};
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::client::{self, Access, connected};
use crate::power::operations::{MOST_FINISHED, age, is_finished, sort_by_age, sourced};
use crate::power::{
    CreateOperationError, Operation, OperationDesk, OperationKey, OperationUpdate, OperationWriter,
    WriteOperationError,
};

/// Field manager of pxed (docs/design/rules.md, "Who writes what").
const FIELD_MANAGER: &str = "pxed";
/// Timeout of one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which an operation that left the unlabeled watch counts as deleted, unless the other watch shows it.
const LEAVING_TIMEOUT: Duration = Duration::from_secs(5);

/// The cluster's operations; clones share what is known of them.
#[derive(Clone)]
pub(crate) struct ClusterOperations {
    access: Access,
    site: SiteName,
    seen: Arc<Lock<Seen>>,
}

/// The two watches: an operation gets its label from the controller a moment after it was created, and is taken before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watched {
    /// Operations with the label of this site.
    Labeled,
    /// Operations without a label of any site.
    Unlabeled,
}

impl Watched {
    /// Returns the label selector of the watch. The controller labels an operation with a selector before it writes the names of its Machines.
    fn selector(self, site: &SiteName) -> String {
        match self {
            Self::Labeled => format!("{SITE}={site}"),
            Self::Unlabeled => format!("!{SITE},!{CHILDREN}"),
        }
    }
}

/// The operations that one watch shows, by name.
#[derive(Debug, Default)]
struct Half {
    operations: BTreeMap<String, Operation>,
    /// A list that is being received.
    list: Option<BTreeMap<String, Operation>>,
    /// True after the first complete list.
    listed: bool,
}

/// The operations of both watches. The labeled one wins, as each has its own pace.
#[derive(Debug, Default)]
struct Seen {
    labeled: Half,
    unlabeled: Half,
    /// Operations that left the unlabeled watch: deleted, or labeled and not shown by the other watch yet. With the time at
    /// which they count as deleted.
    leaving: BTreeMap<String, (Operation, Instant)>,
}

impl ClusterOperations {
    /// Creates the set of operations of `site`. The client may be connected later.
    pub(crate) fn new(access: Access, site: SiteName) -> Self {
        Self { access, site, seen: Arc::default() }
    }

    /// Watches until `shutdown`.
    pub(crate) async fn run(
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

    /// Follows operations until the receiver is closed.
    async fn follow(&self, updates: &mpsc::Sender<OperationUpdate>, pulse: &Pulse) {
        let client = tokio::select! {
            never = pulse.beating() => match never {},
            client = client::wait(self.access.clone()) => client,
        };
        let operations = Api::<BoundedTimes<MachineOperation>>::all(client);
        let half = |selector: String, half: Watched| {
            let config = watcher::Config::default().labels(&selector);
            let stream = watch(operations.clone(), config).default_backoff().map_ok(BoundedTimes::event);
            Box::pin(stream.map(move |event| (half, event)))
        };
        let of = |watched: Watched| half(watched.selector(&self.site), watched);
        let mut stream = futures::stream::select(of(Watched::Labeled), of(Watched::Unlabeled));
        let mut last_error = String::new();
        loop {
            let leaves = self.lock().next_leaving();
            let found: Vec<OperationUpdate> = tokio::select! {
                never = pulse.beating() => match never {},
                event = stream.next() => match event {
                    Some((half, Ok(event))) => {
                        // Init only announces a list.
                        if !matches!(event, Event::Init) && !std::mem::take(&mut last_error).is_empty() {
                            tracing::info!("watch of operations restored");
                        }
                        self.lock().take(half, event, Instant::now()).into_iter().collect()
                    }
                    Some((_, Err(error))) => {
                        let error = chain(&error);
                        if last_error.is_empty() {
                            tracing::warn!(error, "failed to watch operations, retrying");
                        }
                        last_error = error;
                        Vec::new()
                    }
                    None => return,
                },
                () = until(leaves) => self.lock().left(Instant::now()),
            };
            for update in found {
                let heard = tokio::select! {
                    never = pulse.beating() => match never {},
                    sent = updates.send(update) => sent.is_ok(),
                };
                if !heard {
                    return;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }
}

impl Half {
    fn put(operations: &mut BTreeMap<String, Operation>, operation: Operation) {
        operations.insert(operation.key.name.clone(), operation);
        // Not at each change, because the search for the oldest reads all.
        if operations.len() >= 2 * MOST_FINISHED {
            forget_finished(operations);
        }
    }

    /// Returns true if the watch shows exactly this operation.
    fn has(&self, key: &OperationKey) -> bool {
        self.operations.get(&key.name).is_some_and(|known| known.key == *key)
    }

    fn remove(&mut self, key: &OperationKey) -> Option<Operation> {
        if self.has(key) { self.operations.remove(&key.name) } else { None }
    }
}

impl Seen {
    fn take(
        &mut self,
        watched: Watched,
        event: Event<MachineOperation>,
        now: Instant,
    ) -> Option<OperationUpdate> {
        let half = match watched {
            Watched::Labeled => &mut self.labeled,
            Watched::Unlabeled => &mut self.unlabeled,
        };
        match event {
            Event::Init => {
                half.list = Some(BTreeMap::new());
                None
            }
            Event::InitApply(object) => {
                Half::put(half.list.get_or_insert_default(), sourced(object));
                None
            }
            Event::InitDone => {
                let mut list = half.list.take().unwrap_or_default();
                forget_finished(&mut list);
                half.listed = true;
                let before = std::mem::replace(&mut half.operations, list);
                if watched == Watched::Unlabeled {
                    before.into_values().for_each(|operation| self.leave(operation, now));
                }
                let whole = self.labeled.listed && self.unlabeled.listed;
                whole.then(|| OperationUpdate::Set(self.all().into_values().cloned().collect()))
            }
            Event::Apply(object) => {
                let operation = sourced(object);
                Half::put(&mut half.operations, operation.clone());
                self.leaving.remove(&operation.key.name);
                let is_old = watched == Watched::Unlabeled && self.labeled.has(&operation.key);
                (!is_old).then_some(OperationUpdate::Put(operation))
            }
            Event::Delete(object) => {
                let Operation { key, .. } = sourced(object);
                let removed = half.remove(&key);
                match watched {
                    Watched::Unlabeled => {
                        removed.into_iter().for_each(|operation| self.leave(operation, now));
                        None
                    }
                    // Another writer has removed its label.
                    Watched::Labeled if self.unlabeled.has(&key) => None,
                    Watched::Labeled => Some(OperationUpdate::Gone(key)),
                }
            }
        }
    }

    /// Records that the unlabeled watch shows an operation no longer.
    fn leave(&mut self, operation: Operation, now: Instant) {
        if !self.labeled.has(&operation.key) && !self.unlabeled.has(&operation.key) {
            self.leaving.insert(operation.key.name.clone(), (operation, now + LEAVING_TIMEOUT));
        }
    }

    fn next_leaving(&self) -> Option<Instant> {
        self.leaving.values().map(|(_, until)| *until).min()
    }

    /// Returns the deleted operations: no watch has shown them in time.
    fn left(&mut self, now: Instant) -> Vec<OperationUpdate> {
        let mut gone = Vec::new();
        self.leaving.retain(|_, (operation, until)| {
            let stays = *until > now;
            if !stays {
                gone.push(OperationUpdate::Gone(operation.key.clone()));
            }
            stays
        });
        gone
    }

    /// Returns every known operation, by name.
    fn all(&self) -> BTreeMap<&str, &Operation> {
        let leaving = self.leaving.values().map(|(operation, _)| operation);
        let of = [&self.unlabeled, &self.labeled].into_iter().flat_map(|half| half.operations.values());
        leaving.chain(of).map(|operation| (operation.key.name.as_str(), operation)).collect()
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
    let mut body = json!({
        "metadata": { "uid": operation.key.uid, "resourceVersion": operation.version },
        "status": {
            "state": status.state,
            "startTime": status.start_time,
            "completionTime": status.completion_time,
            "reason": status.reason,
            "message": status.message,
            "executor": status.executor,
            "step": status.step,
            "conditions": status.conditions,
        },
    });
    // Without the default of the definition, an operation in progress would look like one that has ended.
    if let Some(generation) = status.observed_generation {
        body["status"]["observedGeneration"] = json!(generation);
    }
    body
}

#[async_trait]
impl OperationWriter for ClusterOperations {
    async fn write(
        &self,
        operation: &Operation,
        status: MachineOperationStatus,
    ) -> Result<Operation, WriteOperationError> {
        let later = |why: String| WriteOperationError::Later(why);
        let client = connected(&self.access).map_err(|why| later(why.to_owned()))?;
        let operations: Api<BoundedTimes<MachineOperation>> = Api::all(client);
        let body = Patch::Merge(patch_body(operation, &status));
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let write = operations.patch_status(&operation.key.name, &parameters, &body);
        match tokio::time::timeout(WRITE_TIMEOUT, write).await {
            Ok(Ok(BoundedTimes(object))) => Ok(sourced(object)),
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
        // Also 401 and 403: credentials are renewed, roles are corrected.
        _ => WriteOperationError::Later(format!("{code}: {message}")),
    }
}

#[async_trait]
impl OperationDesk for ClusterOperations {
    async fn create(&self, _object: MachineOperation) -> Result<MachineOperation, CreateOperationError> {
        Err(CreateOperationError::UseKubernetesApi)
    }

    fn list(&self) -> Vec<Arc<MachineOperation>> {
        let mut all: Vec<_> = self.lock().all().into_values().map(|known| known.object.clone()).collect();
        sort_by_age(&mut all);
        all
    }

    fn get(&self, name: &str) -> Option<Arc<MachineOperation>> {
        self.lock().all().get(name).map(|known| known.object.clone())
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
                "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [
                    { "manager": "x", "time": "2026-01-01T00:00:09Z" },
                    { "manager": "agent", "subresource": "status", "time": "2026-01-01T00:00:05Z" }] },
            "spec": { "operationName": "powerOn", "machineRef": { "name": "a" } },
            "status": { "state": state },
        });
        serde_json::from_value(value).unwrap()
    }

    const LABELED: Watched = Watched::Labeled;
    const UNLABELED: Watched = Watched::Unlabeled;

    fn listed() -> Seen {
        let (mut seen, now) = (Seen::default(), Instant::now());
        for half in [LABELED, UNLABELED] {
            seen.take(half, Event::Init, now);
            seen.take(half, Event::InitDone, now);
        }
        seen
    }

    #[test]
    fn list_is_sent_as_a_set_and_later_changes_one_by_one() {
        let (mut seen, now) = (Seen::default(), Instant::now());
        assert_eq!(seen.take(LABELED, Event::Init, now), None);
        assert_eq!(seen.take(LABELED, Event::InitApply(object("x", "1", None)), now), None);
        assert_eq!(seen.take(LABELED, Event::InitDone, now), None, "the other list is not complete yet");
        seen.take(UNLABELED, Event::Init, now);
        let Some(OperationUpdate::Set(set)) = seen.take(UNLABELED, Event::InitDone, now) else {
            panic!("a set")
        };
        assert_eq!((set[0].key.clone(), set[0].version.as_str()), (key("x", "1"), "7"));
        assert_eq!(set[0].object.metadata.managed_fields, None);
        assert_eq!(set[0].written, "2026-01-01T00:00:05Z".parse().ok(), "the status was written then");
        let put = seen.take(LABELED, Event::Apply(object("y", "2", None)), now);
        assert!(matches!(put, Some(OperationUpdate::Put(_))));
        // The object was re-created: the deletion of the old one does not remove the new one.
        seen.take(LABELED, Event::Apply(object("x", "3", None)), now);
        assert_eq!(
            seen.take(LABELED, Event::Delete(object("x", "1", None)), now),
            Some(OperationUpdate::Gone(key("x", "1")))
        );
        assert_eq!(seen.all().into_keys().collect::<Vec<_>>(), ["x", "y"]);
    }

    /// A parent has up to 10,000 names, which are written about once a second: each pxed of each site would receive all of them.
    #[test]
    fn o3_operations_with_a_selector_are_not_watched() {
        let site = "north".parse().unwrap();
        assert_eq!(LABELED.selector(&site), "bedplate.dev/site=north");
        assert_eq!(UNLABELED.selector(&site), "!bedplate.dev/site,!bedplate.dev/children");
        // One that was seen before it was labeled.
        let (mut seen, now) = (listed(), Instant::now());
        let mut parent = object("all", "1", None);
        parent.spec.machine_ref = None;
        seen.take(UNLABELED, Event::Apply(parent.clone()), now);
        assert_eq!(seen.take(UNLABELED, Event::Delete(parent), now), None);
        assert_eq!(seen.left(now + LEAVING_TIMEOUT), [OperationUpdate::Gone(key("all", "1"))]);
        assert!(seen.all().is_empty());
    }

    #[test]
    fn o5_an_operation_that_gets_its_label_is_never_gone() {
        let new = || object("x", "1", None);
        for labeled_first in [true, false] {
            let (mut seen, now) = (listed(), Instant::now());
            let put = seen.take(UNLABELED, Event::Apply(new()), now);
            assert!(matches!(put, Some(OperationUpdate::Put(_))), "it is taken before it has its label");
            let gets = |seen: &mut Seen| seen.take(LABELED, Event::Apply(new()), now);
            if labeled_first {
                assert!(matches!(gets(&mut seen), Some(OperationUpdate::Put(_))));
                assert_eq!(seen.take(UNLABELED, Event::Apply(new()), now), None, "older than what is known");
                assert_eq!(seen.take(UNLABELED, Event::Delete(new()), now), None);
            } else {
                assert_eq!(seen.take(UNLABELED, Event::Delete(new()), now), None);
                assert_eq!(seen.all().len(), 1, "it may have its label by now");
                assert!(matches!(gets(&mut seen), Some(OperationUpdate::Put(_))));
            }
            assert_eq!(seen.left(now + LEAVING_TIMEOUT), []);
            assert_eq!(seen.all().len(), 1);
            let gone = seen.take(LABELED, Event::Delete(new()), now);
            assert_eq!(gone, Some(OperationUpdate::Gone(key("x", "1"))));
        }
    }

    #[test]
    fn o5_an_operation_that_is_deleted_before_its_label_is_gone() {
        let (mut seen, now) = (listed(), Instant::now());
        seen.take(UNLABELED, Event::Apply(object("x", "1", None)), now);
        seen.take(UNLABELED, Event::Delete(object("x", "1", None)), now);
        assert_eq!(seen.next_leaving(), Some(now + LEAVING_TIMEOUT));
        assert_eq!(seen.left(now), []);
        assert_eq!(seen.left(now + LEAVING_TIMEOUT), [OperationUpdate::Gone(key("x", "1"))]);
        assert!(seen.all().is_empty() && seen.next_leaving().is_none());
        // Not in a new list either.
        seen.take(UNLABELED, Event::Apply(object("y", "2", None)), now);
        seen.take(UNLABELED, Event::Init, now);
        let Some(OperationUpdate::Set(set)) = seen.take(UNLABELED, Event::InitDone, now) else {
            panic!("a set")
        };
        assert_eq!(set.len(), 1, "it may have its label by now");
        assert_eq!(seen.left(now + LEAVING_TIMEOUT), [OperationUpdate::Gone(key("y", "2"))]);
    }

    #[test]
    fn of_what_is_finished_only_the_newest_are_remembered() {
        let (mut seen, now) = (Seen::default(), Instant::now());
        seen.take(LABELED, Event::Init, now);
        for number in 0..3 * MOST_FINISHED {
            let state = (number != 5).then_some(OperationState::Complete);
            seen.take(LABELED, Event::InitApply(object(&format!("x{number:06}"), "u", state)), now);
        }
        seen.take(LABELED, Event::InitDone, now);
        assert_eq!(seen.all().len(), MOST_FINISHED + 1);
        assert!(seen.all().contains_key("x000005"), "what is not finished stays");
        assert!(!seen.all().contains_key("x000000"));
    }

    #[test]
    fn only_executor_fields_of_the_version_read_are_written() {
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
