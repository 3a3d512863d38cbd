//! Cache of all objects of one kind, updated by a watch, with waits for its changes.
//!
//! ```text
//!   list ── objects, version ── watch ──(event)── objects, version ── ...
//!     ^                           |
//!     '── expired (410) ──────────'   anything else: watch again from the same version
//! ```
//! Each attempt is repeated after a delay, also one that the API server refuses. The error of the last attempt is part of
//! [`Store::standing`], for the wait that reaches its deadline.
//!
//! A wait begins with a list of its own, so that it sees each write that was answered before. The store counts only when it has
//! come to a later version: until then nothing of this kind has changed.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow};
use futures::TryStreamExt as _;
use kube::Client;
use kube::core::WatchEvent;
use serde_json::Value;
use tokio::sync::watch;

use super::kind::Kind;

/// Delay between two attempts to list or watch.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Maximum time of a list, and until a watch starts.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which the API server ends a watch.
const WATCH_SECONDS: u32 = 290;
/// Maximum time until the first list, if the API server is busy.
const SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// Namespace (empty: none) and name.
type Key = (String, String);

/// Objects in the order of namespace and name.
pub(super) type Objects = Vec<Arc<Value>>;

/// Store of one kind.
#[derive(Debug, Default)]
pub(super) struct Store {
    state: Mutex<State>,
    changed: Condvar,
    /// Version of the state, for tasks that wait for changes.
    versions: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<Key, Arc<Value>>,
    /// Resource version of the last list or event; 0 before the first list.
    version: u64,
    /// Error of the last list or watch; `None` if it succeeded.
    error: Option<String>,
}

impl Store {
    /// Follows the kind until the task is dropped.
    pub(super) async fn follow(self: Arc<Self>, client: Client, kind: &'static Kind) {
        loop {
            match self.list(&client, kind).await {
                Ok(()) => self.watch_until_expired(&client, kind).await,
                Err(error) => self.failed("list", &error),
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    async fn list(&self, client: &Client, kind: &Kind) -> Result<()> {
        let request = http::Request::get(kind.path(None)).body(Vec::new())?;
        let answer = tokio::time::timeout(LIST_TIMEOUT, client.request::<Value>(request)).await;
        let list = answer.context("no answer")??;
        let items = list["items"].as_array().context("a list without items")?;
        let objects = items.iter().map(|item| (key(item), Arc::new(typed(item.clone(), kind)))).collect();
        let version = version(&list)?;
        self.change(|state| *state = State { objects, version, error: None });
        Ok(())
    }

    /// Starts watches one after the other until the API server does not know the store's version any more.
    async fn watch_until_expired(&self, client: &Client, kind: &Kind) {
        loop {
            if let Err(error) = self.watch(client, kind).await {
                self.failed("watch", &error);
                if is_expired(&error) {
                    return;
                }
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Follows one watch to its end.
    ///
    /// # Errors
    /// The watch does not start, breaks or sends an error.
    async fn watch(&self, client: &Client, kind: &Kind) -> Result<()> {
        let since = self.state().version;
        let path =
            format!("{}?watch=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={since}", kind.path(None));
        let request = http::Request::get(path).body(Vec::new())?;
        let answer = tokio::time::timeout(LIST_TIMEOUT, client.request_events::<Value>(request)).await;
        let mut events = Box::pin(answer.context("no answer")??);
        self.state().error = None;
        while let Some(event) = events.try_next().await? {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let version = version(&object)?;
                    let object = Arc::new(typed(object, kind));
                    self.change(|state| {
                        state.objects.insert(key(&object), object.clone());
                        state.version = version;
                    });
                }
                WatchEvent::Deleted(object) => {
                    let version = version(&object)?;
                    self.change(|state| {
                        state.objects.remove(&key(&object));
                        state.version = version;
                    });
                }
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
            }
        }
        Ok(())
    }

    fn failed(&self, what: &str, error: &Error) {
        self.state().error = Some(format!("{what}: {error:#}"));
    }

    /// Returns the version of the store and the error of its last list or watch, for a message.
    pub(super) fn standing(&self) -> String {
        let state = self.state();
        let error = state.error.as_deref().map_or_else(String::new, |error| format!(", last error: {error}"));
        format!("store at {}{error}", state.version)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        self.versions.send_replace(state.version);
        drop(state);
        self.changed.notify_all();
    }

    /// Returns a receiver of the store's version.
    pub(super) fn versions(&self) -> watch::Receiver<u64> {
        self.versions.subscribe()
    }

    /// Returns all objects after the first list was received.
    ///
    /// # Errors
    /// The API server does not return a list in time.
    pub(super) fn all(&self) -> Result<Objects> {
        self.wait(0, Instant::now() + SYNC_TIMEOUT, |objects| Some(objects.clone()))
            .ok_or_else(|| anyhow!("no list of this kind: {}", self.standing()))
    }

    /// Returns one object after the first list was received. The namespace is empty if the kind is not namespaced.
    ///
    /// # Errors
    /// The API server does not return a list in time.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Result<Option<Arc<Value>>> {
        if self.state().version == 0 {
            self.all()?;
        }
        Ok(self.state().objects.get(&(namespace.to_owned(), name.to_owned())).cloned())
    }

    /// Waits until `look` returns a value for the objects of a version after `since`; `None` after the deadline.
    ///
    /// `look` runs without the lock, so it may read this store.
    pub(super) fn wait<T>(
        &self,
        since: u64,
        deadline: Instant,
        mut look: impl FnMut(&Objects) -> Option<T>,
    ) -> Option<T> {
        let mut last = since;
        loop {
            let mut state = self.state();
            while state.version <= last {
                let left = deadline.checked_duration_since(Instant::now())?;
                let woken = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
                state = woken.0;
            }
            last = state.version;
            let objects = state.objects.values().cloned().collect();
            drop(state);
            if let Some(found) = look(&objects) {
                return Some(found);
            }
        }
    }
}

fn key(object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

/// Returns true if the API server does not know a version any more: only a list helps then.
fn is_expired(error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 410)
}

/// The resource version of an object or a list.
pub(super) fn version(object: &Value) -> Result<u64> {
    let version = object["metadata"]["resourceVersion"].as_str().context("no resourceVersion")?;
    version.parse().with_context(|| format!("resourceVersion {version}"))
}

/// Adds the type (`apiVersion` and `kind`) to an object of a list.
pub(super) fn typed(mut object: Value, kind: &Kind) -> Value {
    object["apiVersion"] = kind.version.into();
    object["kind"] = kind.kind.into();
    object
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use kube::client::Body;
    use serde_json::json;

    use super::*;

    fn put(store: &Store, name: &str, version: u64) {
        let object = Arc::new(json!({ "metadata": { "name": name } }));
        store.change(|state| {
            state.objects.insert(key(&object), object.clone());
            state.version = version;
        });
    }

    #[test]
    fn wait_ignores_the_store_until_it_is_newer_than_the_list() {
        let store = Arc::new(Store::default());
        put(&store, "old", 5);
        let soon = || Instant::now() + Duration::from_millis(20);
        assert_eq!(store.wait(5, soon(), |objects| Some(objects.len())), None);
        assert_eq!(store.wait(4, soon(), |objects| Some(objects.len())), Some(1));
        let waiting = {
            let store = store.clone();
            let late = Instant::now() + SYNC_TIMEOUT;
            std::thread::spawn(move || store.wait(5, late, |objects| (objects.len() == 3).then_some(())))
        };
        put(&store, "second", 6);
        put(&store, "third", 7);
        assert_eq!(waiting.join().unwrap(), Some(()));
    }

    #[tokio::test(start_paused = true)]
    async fn refused_list_is_repeated_and_expired_watch_is_followed_by_a_list() {
        let status = |code: u16| {
            json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "denied",
                "reason": "Test", "code": code })
        };
        let list = |version: &str| json!({ "metadata": { "resourceVersion": version }, "items": [] });
        let answers = [(403, status(403)), (200, list("5")), (200, status(410)), (200, list("9"))];
        let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
        let (store, asked) = (Arc::new(Store::default()), Arc::new(Mutex::new(Vec::new())));
        let (known, recorded) = (store.clone(), asked.clone());
        let service = tower::service_fn(move |_: http::Request<Body>| {
            recorded.lock().unwrap().push(known.standing());
            let answer = answers.lock().unwrap().pop_front();
            async move {
                let Some((code, body)) = answer else { return std::future::pending().await };
                let body = Body::from(format!("{body}\n").into_bytes());
                Ok::<_, kube::Error>(http::Response::builder().status(code).body(body).unwrap())
            }
        });
        let (client, kind) = (Client::new(service, "default"), Kind::named("node").unwrap());
        let mut versions = store.versions();
        let task = tokio::spawn(store.follow(client, kind));
        versions.wait_for(|version| *version == 9).await.unwrap();
        task.abort();
        let asked = asked.lock().unwrap();
        assert_eq!((asked[0].as_str(), asked[2].as_str()), ("store at 0", "store at 5"));
        for (place, start) in [(1, "store at 0, last error: list: "), (3, "store at 5, last error: watch: ")]
        {
            assert!(asked[place].starts_with(start) && asked[place].contains("denied"), "{}", asked[place]);
        }
    }
}
