//! Keeps a store by a watch, and yields each change after the store has it. Called by programs for each kind.
//!
//! The first list fills the store completely, at its end. A later list, after a watch that could not continue, is compared object by
//! object: there is no second store in memory, and objects that have not changed are not yielded.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_process::exit::chain;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::runtime::reflector::{ObjectRef, Store, store::Writer};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::counters::{Counters, Kinds};

/// Change that a watch has seen.
#[derive(Debug)]
pub enum Seen<K> {
    /// The object exists, as in the store.
    There(Arc<K>),
    /// The object was deleted; its last state.
    Gone(Arc<K>),
}

impl<K> Seen<K> {
    /// Returns the object. If it was deleted, this is its last state.
    pub fn object(&self) -> &Arc<K> {
        let (Self::There(object) | Self::Gone(object)) = self;
        object
    }

    /// Returns the object if it exists.
    pub fn there(&self) -> Option<&Arc<K>> {
        match self {
            Self::There(object) => Some(object),
            Self::Gone(_) => None,
        }
    }
}

/// Annotation with which kubectl stores the whole object a second time.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Removes what kubectl and the API server store about the writers of an object.
pub fn bare<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
    if let Some(annotations) = &mut object.meta_mut().annotations {
        annotations.remove(LAST_APPLIED);
    }
}

/// Interval between two checks whether a store is synced.
const SYNC_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Keeps a store by a watch, and yields each change. `kind` names the watch in metrics and logs. `api` makes the API of the objects, such as
/// [`Api::all`]. `strip` removes fields before an object is stored.
pub fn watch<K, A, S, C>(
    client: &Client,
    (kind, api): (&'static str, A),
    config: watcher::Config,
    writer: Writer<K>,
    strip: S,
    counters: Counters<C>,
) -> impl Stream<Item = Seen<K>> + Send + use<K, A, S, C>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    A: FnOnce(Client) -> Api<BoundedTimes<K>>,
    S: Fn(&mut K) + Send + 'static,
    C: Kinds,
{
    watch_of(client, (kind, api), config, (writer, ()), strip, counters, |_| {})
}

/// Keeps a store of a resource by a watch, like [`watch`]. `note` is called with each end of a list, after the store has it, and with each failure.
pub(crate) fn watch_of<K, A, S, C, N>(
    client: &Client,
    (kind, api): (&'static str, A),
    config: watcher::Config,
    (writer, resource): (Writer<K>, K::DynamicType),
    strip: S,
    counters: Counters<C>,
    mut note: N,
) -> impl Stream<Item = Seen<K>> + Send + use<K, A, S, C, N>
where
    K: Resource<DynamicType: Clone + Debug + Eq + Hash + Send + Sync>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + Sync
        + 'static,
    A: FnOnce(Client) -> Api<BoundedTimes<K>>,
    S: Fn(&mut K) + Send + 'static,
    C: Kinds,
    N: FnMut(Result<(), &watcher::Error>) + Send + 'static,
{
    let api = api(heard(client, kind, counters.clone()));
    let mut keeper = Keeper::new(writer, resource);
    watcher(api, config).default_backoff().map_ok(BoundedTimes::event).modify(strip).flat_map(move |event| {
        let seen = match event {
            Ok(event) => {
                let is_list_end = matches!(event, Event::InitDone);
                let seen = keeper.take(event);
                if is_list_end {
                    note(Ok(()));
                }
                seen
            }
            Err(error) => {
                counters.watch_failed();
                let plural = &*K::plural(&keeper.resource);
                tracing::warn!(kind, plural, error = chain(&error), "watch failed, restarted");
                note(Err(&error));
                Vec::new()
            }
        };
        stream::iter(seen)
    })
}

/// Waits until a store has its first list. None: its watch has ended.
///
/// A store wakes only the last of those that wait for it, and the worker of its kind waits too. So this function checks repeatedly.
pub async fn synced<K>(store: &Store<K>) -> Option<()>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    loop {
        if let Ok(ready) = tokio::time::timeout(SYNC_CHECK_INTERVAL, store.wait_until_ready()).await {
            return ready.ok();
        }
    }
}

/// Returns a client that records the time of each part of an answer. The parts of a watch are its events and bookmarks.
fn heard<C: Kinds>(client: &Client, kind: &'static str, counters: Counters<C>) -> Client {
    let client = client.clone();
    counters.heard(kind);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, counters) = (client.clone(), counters.clone());
        async move {
            let answer = client.send(request).await?;
            Ok::<_, kube::Error>(answer.map(|body| {
                body.map_frame(move |frame| {
                    counters.heard(kind);
                    frame
                })
            }))
        }
    });
    Client::new(service, "default")
}

/// Fills a store.
struct Keeper<K: Resource<DynamicType: Clone + Eq + Hash> + Clone + 'static> {
    writer: Writer<K>,
    resource: K::DynamicType,
    store: Store<K>,
    /// True if the first list is complete.
    is_synced: bool,
    /// Objects of a later list.
    listed: HashSet<ObjectRef<K>>,
}

impl<K: Resource<DynamicType: Clone + Eq + Hash> + Clone + 'static> Keeper<K> {
    fn new(writer: Writer<K>, resource: K::DynamicType) -> Self {
        let store = writer.as_reader();
        Self { writer, resource, store, is_synced: false, listed: HashSet::new() }
    }

    /// Applies an event of a watch, and returns the changes.
    fn take(&mut self, event: Event<K>) -> Vec<Seen<K>> {
        match event {
            Event::Init => {
                self.listed.clear();
                if !self.is_synced {
                    self.writer.apply_watcher_event(&event);
                }
                Vec::new()
            }
            Event::InitApply(_) if !self.is_synced => {
                self.writer.apply_watcher_event(&event);
                Vec::new()
            }
            Event::InitApply(object) => {
                let name = self.name(&object);
                let same = self.store.get(&name).is_some_and(|known| {
                    known.uid() == object.uid() && known.resource_version() == object.resource_version()
                });
                self.listed.insert(name);
                if same { Vec::new() } else { self.put(object) }
            }
            Event::InitDone if !self.is_synced => {
                self.writer.apply_watcher_event(&event);
                self.is_synced = true;
                self.store.state().into_iter().map(Seen::There).collect()
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                let is_gone = |object: &Arc<K>| !listed.contains(&self.name(object));
                let gone: Vec<_> = self.store.state().into_iter().filter(is_gone).collect();
                for object in &gone {
                    self.writer.apply_watcher_event(&Event::Delete((**object).clone()));
                }
                gone.into_iter().map(Seen::Gone).collect()
            }
            Event::Apply(object) => self.put(object),
            Event::Delete(_) => {
                self.writer.apply_watcher_event(&event);
                let Event::Delete(object) = event else { return Vec::new() };
                vec![Seen::Gone(Arc::new(object))]
            }
        }
    }

    fn name(&self, object: &K) -> ObjectRef<K> {
        ObjectRef::from_obj_with(object, self.resource.clone())
    }

    fn put(&mut self, object: K) -> Vec<Seen<K>> {
        let name = self.name(&object);
        self.writer.apply_watcher_event(&Event::Apply(object));
        // Shared with the store: there is one copy of each object.
        self.store.get(&name).map(Seen::There).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use kube::runtime::reflector;
    use serde_json::json;

    use super::*;

    fn node(name: &str, version: u32) -> Node {
        let object =
            json!({ "metadata": { "name": name, "uid": name, "resourceVersion": version.to_string() } });
        serde_json::from_value(object).unwrap()
    }

    fn shown(seen: Vec<Seen<Node>>) -> Vec<String> {
        let mut shown: Vec<String> = seen
            .into_iter()
            .map(|seen| match seen {
                Seen::There(object) => {
                    format!("{} {}", object.name_any(), object.resource_version().unwrap())
                }
                Seen::Gone(object) => format!("{} gone", object.name_any()),
            })
            .collect();
        shown.sort();
        shown
    }

    #[test]
    fn later_list_yields_only_changes_and_never_empties_the_store() {
        let (store, writer) = reflector::store();
        let mut keeper = Keeper::new(writer, ());
        let mut list = |objects: &[(&str, u32)]| {
            let mut seen = keeper.take(Event::Init);
            for (name, version) in objects {
                seen.extend(keeper.take(Event::InitApply(node(name, *version))));
                assert_eq!(store.is_empty(), !keeper.is_synced);
            }
            seen.extend(keeper.take(Event::InitDone));
            shown(seen)
        };
        assert_eq!(list(&[("a", 1), ("b", 1), ("c", 1)]), ["a 1", "b 1", "c 1"]);
        assert_eq!(list(&[("a", 1), ("b", 2), ("d", 3)]), ["b 2", "c gone", "d 3"]);
        assert_eq!(shown(keeper.take(Event::Apply(node("a", 4)))), ["a 4"]);
        assert_eq!(shown(keeper.take(Event::Delete(node("a", 5)))), ["a gone"]);
        assert_eq!(store.len(), 2);
    }
}
