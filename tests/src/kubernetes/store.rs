//! Cache of all objects of one kind, updated by a watch, with waits for its changes.
//!
//! ```text
//!   list ── objects, version ── watch ──(event)── objects, version ── ...
//!     ^                           |
//!     '── expired (410) ──────────'   anything else: watch again from the same version
//! ```
//! A wait starts with its own list request, so it sees each write that was answered before. The wait uses the store only after the
//! store has reached a later version. Until then, no object of this kind has changed.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::TryStreamExt as _;
use kube::Client;
use kube::core::WatchEvent;
use serde_json::Value;
use tokio::sync::watch;

use super::kind::Kind;

/// Delay between two attempts to list or watch.
const RETRY_DELAY: Duration = Duration::from_millis(200);
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
}

impl Store {
    /// Follows the kind until the task is dropped.
    pub(super) async fn follow(self: Arc<Self>, client: Client, kind: &'static Kind) {
        loop {
            if self.list(&client, kind).await.is_ok() {
                while self.watch(&client, kind).await.is_ok() {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    async fn list(&self, client: &Client, kind: &Kind) -> Result<()> {
        let request = http::Request::get(kind.path(None)).body(Vec::new())?;
        let list: Value = client.request(request).await?;
        let items = list["items"].as_array().context("a list without items")?;
        let objects = items.iter().map(|item| (key(item), Arc::new(typed(item.clone(), kind)))).collect();
        let version = version(&list)?;
        self.change(|state| *state = State { objects, version });
        Ok(())
    }

    /// Follows one watch to its end.
    ///
    /// # Errors
    /// The version is too old, and a new list is necessary.
    async fn watch(&self, client: &Client, kind: &Kind) -> Result<()> {
        let since = self.state().version;
        let path =
            format!("{}?watch=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={since}", kind.path(None));
        let request = http::Request::get(path).body(Vec::new())?;
        let events = match client.request_events::<Value>(request).await {
            Ok(events) => events,
            Err(kube::Error::Api(status)) if status.code == 410 => {
                return Err(kube::Error::Api(status).into());
            }
            Err(_) => return Ok(()),
        };
        let mut events = Box::pin(events);
        while let Ok(Some(event)) = events.try_next().await {
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
                WatchEvent::Error(status) if status.code == 410 => {
                    return Err(kube::Error::Api(status).into());
                }
                WatchEvent::Error(_) => return Ok(()),
            }
        }
        Ok(())
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
            .context("no list of this kind")
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

/// Returns the resource version of an object or a list.
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
}
