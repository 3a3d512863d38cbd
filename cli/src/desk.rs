//! The place where MachineOperations are created and read: the cluster, or the socket of pxed. Changes are one stream of both.
//!
//! The cluster is watched, pxed is asked once a second.

mod configuration;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::configuration::{MachineConfiguration, UpdateStrategyType};
use bedplate_api::machine::{Machine, RE_ENROLL_ANNOTATION};
use bedplate_api::operation::MachineOperation;
use bedplate_api::reason::refusal::AdminRefusal;
use futures::{Stream, StreamExt, TryStreamExt};
use jiff::Timestamp;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::arguments::Global;
use crate::backend::ask::{self, Asked};
use crate::backend::{cluster, socket};
use crate::diagnosis::{Rolling, Stopped};

use crate::backend::socket::AskPxedError;
use crate::error::RunError;

/// Interval between polls of pxed.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Place where operations are created and watched.
pub(crate) enum Desk {
    /// The pxed behind this socket.
    Pxed(PathBuf),
    /// The cluster.
    Cluster(Client),
}

impl Desk {
    /// Returns the place that the caller has named, or the existing one.
    pub(crate) async fn open(global: &Global) -> Result<Self, RunError> {
        Ok(match ask::choose(global, Path::exists) {
            Asked::Pxed(path) => Self::Pxed(path),
            Asked::Cluster => Self::Cluster(cluster::client(global).await?),
        })
    }

    /// Returns a Machine in the form of the answer.
    pub(crate) async fn machine(&self, name: &str) -> Result<Value, RunError> {
        Ok(match self {
            Self::Pxed(path) => socket::get(path, &format!("/v1/machines/{}", socket::escape(name))).await?,
            Self::Cluster(client) => json!(cluster::get::<Machine>(client, name).await?),
        })
    }

    /// Returns every Machine in the form of the answer.
    pub(crate) async fn machines(&self) -> Result<Value, RunError> {
        Ok(match self {
            Self::Pxed(path) => socket::get(path, "/v1/machines").await?,
            Self::Cluster(client) => cluster::list::<Machine>(client).await?,
        })
    }

    /// Returns a MachineConfiguration with its versions and its Machines.
    pub(crate) async fn configuration(&self, name: &str) -> Result<Value, RunError> {
        match self {
            Self::Pxed(path) => {
                Ok(socket::get(path, &format!("/v1/configurations/{}", socket::escape(name))).await?)
            }
            Self::Cluster(client) => configuration::of_cluster(client, name).await,
        }
    }

    /// Returns the configurations of a cluster with a rolling update, as far as the user may read them.
    pub(crate) async fn rolling(&self) -> Rolling {
        let Self::Cluster(client) = self else { return Rolling::new() };
        let found = cluster::objects::<MachineConfiguration>(client).await;
        let rolls =
            |c: &MachineConfiguration| c.spec.update_strategy.type_ == UpdateStrategyType::RollingUpdate;
        let found = found.unwrap_or_default().into_iter().filter(rolls);
        found.filter_map(|c| Some((c.metadata.name.clone()?, Stopped::of(&c)))).collect()
    }

    /// Permits one enrollment of another key for a Machine. `boot`: only for the boot with this public ID.
    pub(crate) async fn allow_key(&self, name: &str, boot: Option<&str>) -> Result<Value, RunError> {
        Ok(match self {
            Self::Pxed(path) => {
                let query = boot.map(|boot| format!("?boot={boot}")).unwrap_or_default();
                let route = format!("/v1/machines/{}/re-enroll{query}", socket::escape(name));
                let answer = socket::post(path, &route, &Value::Null).await?;
                // An earlier version of pxed ignores the parameter and does not name the boot.
                match boot.filter(|boot| answer["boot"] != **boot) {
                    Some(boot) => {
                        return Err(RunError::Unbound { machine: name.to_owned(), boot: boot.to_owned() });
                    }
                    None => answer,
                }
            }
            Self::Cluster(client) => {
                let boot = boot.map(|boot| format!("/{boot}")).unwrap_or_default();
                let now = format!("{}{boot}", Timestamp::now().strftime("%FT%TZ"));
                json!(cluster::annotate::<Machine>(client, name, RE_ENROLL_ANNOTATION, &now).await?)
            }
        })
    }

    /// Creates an operation.
    pub(crate) async fn create(&self, operation: &MachineOperation) -> Result<MachineOperation, RunError> {
        let error_of = |error: RunError, unclear: bool| {
            if unclear { RunError::MaybeMade(Box::new(error)) } else { error }
        };
        match self {
            Self::Pxed(path) => match socket::post(path, "/v1/operations", operation).await {
                Ok(made) => read(made),
                Err(error) => {
                    let unclear = error.may_have_happened();
                    Err(error_of(error.into(), unclear))
                }
            },
            Self::Cluster(client) => cluster::create(client, operation).await.map_err(|error| {
                let unclear = error.may_have_happened();
                error_of(error.into(), unclear)
            }),
        }
    }

    /// Returns every operation in the form of the answer.
    pub(crate) async fn list(&self) -> Result<Value, RunError> {
        Ok(match self {
            Self::Pxed(path) => socket::get(path, "/v1/operations").await?,
            Self::Cluster(client) => cluster::list::<MachineOperation>(client).await?,
        })
    }

    /// Returns the changes of one operation, or of all. An error of the first poll ends the stream, because
    /// nothing was seen before.
    pub(crate) fn changes(&self, name: Option<&str>) -> Changes {
        let from = match self {
            Self::Pxed(path) => From::Pxed { path: path.clone(), name: name.map(str::to_owned) },
            Self::Cluster(client) => {
                let mut config = watcher::Config::default();
                if let Some(name) = name {
                    config = config.fields(&format!("metadata.name={name}"));
                }
                let operations = Api::<BoundedTimes<MachineOperation>>::all(client.clone());
                let stream = watcher(operations, config).default_backoff();
                From::Cluster(Box::pin(stream.map_ok(BoundedTimes::event)))
            }
        };
        Changes { from, seen: Seen::default(), looked: false }
    }
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T, RunError> {
    serde_json::from_value(value).map_err(RunError::Answer)
}

/// Change of operations.
#[derive(Debug)]
pub(crate) enum Change {
    /// The operation exists, and is new or changed.
    Now(Box<MachineOperation>),
    /// The operation was deleted.
    Gone(Box<MachineOperation>),
    /// All initial operations were reported.
    Complete,
    /// Changes cannot be read for now, with the reason. The stream continues on its own.
    Interrupted(RunError),
}

type Events = Pin<Box<dyn Stream<Item = watcher::Result<Event<MachineOperation>>> + Send>>;

enum From {
    Pxed { path: PathBuf, name: Option<String> },
    Cluster(Events),
}

/// Stream of changes of operations.
pub(crate) struct Changes {
    from: From,
    seen: Seen,
    /// True if a full poll has succeeded.
    looked: bool,
}

impl Changes {
    /// Returns the next change.
    pub(crate) async fn next(&mut self) -> Result<Change, RunError> {
        loop {
            if let Some(change) = self.seen.changes.pop_front() {
                return Ok(change);
            }
            let looked = match &mut self.from {
                From::Pxed { path, name } => {
                    if self.looked {
                        tokio::time::sleep(POLL_INTERVAL).await;
                    }
                    look(path, name.as_deref()).await.map(|all| self.seen.set(all))
                }
                From::Cluster(events) => match events.next().await {
                    Some(Ok(event)) => {
                        self.seen.event(event);
                        Ok(())
                    }
                    Some(Err(error)) => Err(cluster::watched(error).into()),
                    None => Err(RunError::Ended),
                },
            };
            match looked {
                Ok(()) => self.looked |= self.seen.complete,
                Err(error) if !self.looked || error.is_final() => return Err(error),
                Err(error) => return Ok(Change::Interrupted(error)),
            }
        }
    }
}

/// Returns every operation that a pxed knows, or the one of this name.
async fn look(path: &Path, name: Option<&str>) -> Result<Vec<MachineOperation>, RunError> {
    let Some(name) = name else {
        let mut list = socket::get(path, "/v1/operations").await?;
        return read(list["items"].take());
    };
    match socket::get(path, &format!("/v1/operations/{}", socket::escape(name))).await {
        Ok(operation) => Ok(vec![read(operation)?]),
        Err(AskPxedError::Refused { reason, .. }) if reason == AdminRefusal::OperationNotFound.as_str() => {
            Ok(Vec::new())
        }
        Err(error) => Err(error.into()),
    }
}

/// Operations seen so far, so that only changes are reported.
#[derive(Default)]
struct Seen {
    known: BTreeMap<String, MachineOperation>,
    /// Operations found so far by a running full poll.
    listed: Vec<MachineOperation>,
    complete: bool,
    changes: VecDeque<Change>,
}

impl Seen {
    fn event(&mut self, event: Event<MachineOperation>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(operation) => self.listed.push(operation),
            Event::InitDone => {
                let all = std::mem::take(&mut self.listed);
                self.set(all);
            }
            Event::Apply(operation) => self.put(operation),
            Event::Delete(operation) => {
                self.known.remove(operation.metadata.name.as_deref().unwrap_or_default());
                self.changes.push_back(Change::Gone(Box::new(operation)));
            }
        }
    }

    fn set(&mut self, mut all: Vec<MachineOperation>) {
        all.sort_by(|a, b| {
            let key = |o: &MachineOperation| {
                (o.metadata.creation_timestamp.as_ref().map(|time| time.0), o.metadata.name.clone())
            };
            key(a).cmp(&key(b))
        });
        let mut before = std::mem::take(&mut self.known);
        for operation in &all {
            let name = operation.metadata.name.clone().unwrap_or_default();
            if let Some(known) = before.remove(&name) {
                self.known.insert(name, known);
            }
        }
        self.changes.extend(before.into_values().map(|gone| Change::Gone(Box::new(gone))));
        for operation in all {
            self.put(operation);
        }
        if !std::mem::replace(&mut self.complete, true) {
            self.changes.push_back(Change::Complete);
        }
    }

    fn put(&mut self, operation: MachineOperation) {
        let name = operation.metadata.name.clone().unwrap_or_default();
        let known = self.known.get(&name);
        let same = known.is_some_and(|known| {
            known.metadata.uid == operation.metadata.uid
                && known.spec == operation.spec
                && known.status == operation.status
        });
        if !same {
            self.known.insert(name, operation.clone());
            self.changes.push_back(Change::Now(Box::new(operation)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(name: &str, state: &str) -> MachineOperation {
        serde_json::from_value(json!({
            "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation", "metadata": { "name": name },
            "spec": { "operationName": "powerOn", "machineRef": { "name": "a" } }, "status": { "state": state }
        }))
        .unwrap()
    }

    fn take_changes(seen: &mut Seen) -> Vec<String> {
        seen.changes
            .drain(..)
            .map(|change| match change {
                Change::Now(o) => {
                    format!("{} {:?}", o.metadata.name.unwrap(), o.status.unwrap().state.unwrap())
                }
                Change::Gone(o) => format!("{} gone", o.metadata.name.unwrap()),
                Change::Complete => "all".to_owned(),
                Change::Interrupted(error) => error.to_string(),
            })
            .collect()
    }

    #[tokio::test]
    async fn trust_6_permission_that_is_not_bound_to_the_boot_is_an_error() {
        let boot = "ab".repeat(16);
        for (answered, asked, is_bound) in [
            (json!({ "machine": "a" }), Some(&boot), false),
            (json!({ "machine": "a", "boot": "cd".repeat(16) }), Some(&boot), false),
            (json!({ "machine": "a", "boot": boot }), Some(&boot), true),
            (json!({ "machine": "a" }), None, true),
        ] {
            let body = answered.to_string();
            let head = format!("HTTP/1.1 201 Created\r\nContent-Length: {}\r\n\r\n", body.len());
            let (_directory, path, server) = socket::tests::pxed(Box::leak((head + &body).into_boxed_str()));
            let permitted = Desk::Pxed(path).allow_key("a", asked.map(String::as_str)).await;
            let line = server.join().unwrap();
            assert_eq!(
                line.starts_with(&format!("POST /v1/machines/a/re-enroll?boot={boot} ")),
                asked.is_some()
            );
            match permitted {
                Ok(answer) => assert!(is_bound && answer == answered, "{answered}"),
                Err(error) => {
                    assert!(!is_bound && error.to_string().contains(&format!("to boot {boot}")), "{error}");
                    assert!(error.hint().unwrap().contains("upgrade it"));
                }
            }
        }
    }

    #[test]
    fn only_changes_are_reported() {
        let mut seen = Seen::default();
        seen.set(vec![operation("b", "Pending"), operation("a", "Complete")]);
        assert_eq!(take_changes(&mut seen), ["a Complete", "b Pending", "all"]);
        seen.set(vec![operation("b", "InProgress"), operation("c", "Pending")]);
        assert_eq!(take_changes(&mut seen), ["a gone", "b InProgress", "c Pending"]);
        seen.set(vec![operation("b", "InProgress"), operation("c", "Pending")]);
        assert_eq!(take_changes(&mut seen), Vec::<String>::new());
    }

    #[test]
    fn restarted_watch_reports_missed_changes() {
        let mut seen = Seen::default();
        for event in [Event::Init, Event::InitApply(operation("a", "Pending")), Event::InitDone] {
            seen.event(event);
        }
        seen.event(Event::Apply(operation("a", "InProgress")));
        seen.event(Event::Apply(operation("a", "InProgress")));
        assert_eq!(take_changes(&mut seen), ["a Pending", "all", "a InProgress"]);
        for event in [Event::Init, Event::InitApply(operation("b", "Pending")), Event::InitDone] {
            seen.event(event);
        }
        assert_eq!(take_changes(&mut seen), ["a gone", "b Pending"]);
        seen.event(Event::Delete(operation("b", "Complete")));
        assert_eq!(take_changes(&mut seen), ["b gone"]);
    }
}
