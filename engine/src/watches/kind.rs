//! Watch of one kind: resolves it, keeps its store, and resolves it again once a minute. Spawned by `run`.
//!
//! ```text
//!      +---- backoff ---+
//!      v                |
//! Resolving -> Unresolved
//!      |  ^
//!      v  | definition absent, or of another version
//!   Watching (its first list: pending, pending with a reason, done)
//! ```

use std::sync::Arc;
use std::time::Duration;

use bedplate_process::backoff::{Backoff, spread};
use bedplate_process::exit::chain;
use bedplate_process::liveness::Liveness;
use bedplate_process::lock::Lock;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use kube::api::ApiResource;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use super::resolve::silent;
use super::{Change, GroupKind, Lookup, NAME, Named, Reference, Unresolved};
use crate::counters::{Counters, Kinds};
use crate::pulse::{WATCH_PATIENCE, follow};
use crate::store::watch_of;

/// Delays between two attempts to resolve a kind.
const RESOLVE_DELAYS: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

/// Interval between two checks of the definition of a watched kind.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Time after which the reason of a first list without an answer is shown.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// State of a kind, which lookups read.
pub(super) struct Shown<K: Named> {
    phase: Lock<Phase<K>>,
    changed: Notify,
}

enum Phase<K: Named> {
    Resolving,
    Unresolved(Unresolved),
    Watching { resource: ApiResource, store: Store<K>, first: FirstList },
}

/// First list of a store.
enum FirstList {
    Pending,
    Failed(Unresolved),
    Done,
}

impl<K: Named> Default for Shown<K> {
    fn default() -> Self {
        Self { phase: Lock::new(Phase::Resolving), changed: Notify::new() }
    }
}

impl<K: Named> Shown<K> {
    /// Looks an object up.
    pub(super) fn look(&self, of: Reference<'_>) -> Lookup<K> {
        let phase = self.phase.lock();
        let (resource, store) = match &*phase {
            Phase::Resolving | Phase::Watching { first: FirstList::Pending, .. } => return Lookup::NotSynced,
            Phase::Unresolved(why) | Phase::Watching { first: FirstList::Failed(why), .. } => {
                return Lookup::Unresolved(why.clone());
            }
            Phase::Watching { resource, store, first: FirstList::Done } => (resource.clone(), store.clone()),
        };
        drop(phase);
        let name = ObjectRef::new_with(of.name, resource.clone()).within(of.namespace);
        // A store also finds a cluster-scoped object of the name.
        let in_namespace = |object: &Arc<K>| object.meta().namespace.as_deref() == Some(of.namespace);
        match store.get(&name).filter(in_namespace) {
            Some(object) => Lookup::Found { resource, object },
            None => Lookup::Absent,
        }
    }

    /// Returns the resource of the kind, if it is watched.
    pub(super) fn resource(&self) -> Option<ApiResource> {
        match &*self.phase.lock() {
            Phase::Watching { resource, .. } => Some(resource.clone()),
            Phase::Resolving | Phase::Unresolved(_) => None,
        }
    }

    /// Forgets the store. The end of the resolution is reported, so this is not.
    fn resolving(&self) {
        *self.phase.lock() = Phase::Resolving;
    }

    fn unresolved(&self, why: Unresolved) {
        let mut phase = self.phase.lock();
        if !matches!(&*phase, Phase::Unresolved(known) if *known == why) {
            *phase = Phase::Unresolved(why);
            self.changed.notify_one();
        }
    }

    fn watching(&self, resource: ApiResource, store: Store<K>) {
        *self.phase.lock() = Phase::Watching { resource, store, first: FirstList::Pending };
    }

    fn listed(&self) {
        if let Phase::Watching { first, .. } = &mut *self.phase.lock()
            && !matches!(first, FirstList::Done)
        {
            *first = FirstList::Done;
            self.changed.notify_one();
        }
    }

    /// Records why the first list is not done.
    fn not_listed(&self, why: Unresolved) {
        if let Phase::Watching { first, .. } = &mut *self.phase.lock() {
            let is_known = match first {
                FirstList::Pending => false,
                FirstList::Failed(known) => *known == why,
                FirstList::Done => true,
            };
            if !is_known {
                *first = FirstList::Failed(why);
                self.changed.notify_one();
            }
        }
    }

    /// Records that the first list has no answer yet, unless a reason is known.
    fn late(&self, what: &str) {
        let is_pending = matches!(&*self.phase.lock(), Phase::Watching { first: FirstList::Pending, .. });
        if is_pending {
            self.not_listed(Unresolved::unavailable(what, &silent(FIRST_LIST_TIMEOUT)));
        }
    }
}

/// Resolver of kinds, with a timeout.
pub(super) type Resolver =
    Box<dyn Fn(GroupKind) -> BoxFuture<'static, Result<ApiResource, Unresolved>> + Send + Sync>;

/// Inputs that the watches share.
pub(super) struct Shared<K, C> {
    pub(super) client: Client,
    pub(super) namespace: Option<String>,
    pub(super) resolve: Resolver,
    pub(super) counters: Counters<C>,
    pub(super) handle: Box<dyn Fn(Change<K>) -> BoxFuture<'static, ()> + Send + Sync>,
    pub(super) liveness: Liveness,
    /// Permits of watches.
    pub(super) slots: Semaphore,
}

/// Watch of one kind.
pub(super) struct Task<K: Named, C> {
    pub(super) kind: GroupKind,
    pub(super) shown: Arc<Shown<K>>,
    pub(super) stop: CancellationToken,
    pub(super) shared: Arc<Shared<K, C>>,
}

impl<K, C> Task<K, C>
where
    K: Named,
    C: Kinds,
{
    /// Watches the kind until its end.
    pub(super) async fn run(self) {
        let stopped = self.stop.cancelled();
        first([Box::pin(stopped), Box::pin(self.report()), Box::pin(self.keep())]).await;
    }

    /// Reports each change of the state to the handler.
    async fn report(&self) {
        loop {
            self.shown.changed.notified().await;
            (self.shared.handle)(Change::Kind(self.kind.clone())).await;
        }
    }

    /// Resolves the kind and watches it. Requests and delays are bounded, so only the watch has a pulse.
    async fn keep(&self) {
        let mut failures = 0;
        loop {
            let resolved = (self.shared.resolve)(self.kind.clone()).await;
            let slot = self.shared.slots.try_acquire().map_err(|_| Unresolved::TooManyKinds);
            match resolved.and_then(|resource| Ok((resource, slot?))) {
                Ok((resource, _slot)) => {
                    failures = 0;
                    self.watch(resource).await;
                    // Nothing keeps the store any more.
                    self.shown.resolving();
                }
                Err(why) => {
                    failures += 1;
                    self.shown.unresolved(why);
                    tokio::time::sleep(RESOLVE_DELAYS.delay(failures, rand::random())).await;
                }
            }
        }
    }

    /// Watches a resource until the kind must be resolved again.
    async fn watch(&self, resource: ApiResource) {
        let writer = Writer::new(resource.clone());
        self.shown.watching(resource.clone(), writer.as_reader());
        let part = self.stop.child_token();
        let what = format!("{}.{}", resource.plural, resource.group);
        let pulse = self.shared.liveness.until(part.clone()).part(format!("watch {what}"), WATCH_PATIENCE);
        let seen = self.changes(writer, &resource, what.clone());
        let following = follow(seen, pulse, |mut seen| async move {
            while let Some(seen) = seen.next().await {
                let resource = resource.clone();
                (self.shared.handle)(Change::Object { resource, seen }).await;
            }
        });
        let lateness = async {
            tokio::time::sleep(FIRST_LIST_TIMEOUT).await;
            self.shown.late(&what);
            std::future::pending::<()>().await;
        };
        let checked = async {
            self.checked().await;
            // The pulse ends after this.
            part.cancel();
        };
        first([Box::pin(following), Box::pin(lateness), Box::pin(checked)]).await;
        part.cancel();
    }

    /// Returns the changes of the objects.
    fn changes(
        &self,
        writer: Writer<K>,
        resource: &ApiResource,
        what: String,
    ) -> impl futures::Stream<Item = crate::store::Seen<K>> + Send + use<K, C> {
        let (of, namespace) = (resource.clone(), self.shared.namespace.clone());
        let api = move |client: Client| match namespace {
            Some(namespace) => Api::namespaced_with(client, &namespace, &of),
            None => Api::all_with(client, &of),
        };
        let shown = Arc::clone(&self.shown);
        let note = move |result: Result<(), &watcher::Error>| match result {
            Ok(()) => shown.listed(),
            Err(error) => shown.not_listed(reason(&what, error)),
        };
        let (config, counters) = (watcher::Config::default(), self.shared.counters.clone());
        let store = (writer, resource.clone());
        watch_of(&self.shared.client, (NAME, api), config, store, |_| {}, counters, note)
    }

    /// Returns once the definition is absent, or names another version.
    async fn checked(&self) {
        loop {
            tokio::time::sleep(spread(CHECK_INTERVAL, rand::random())).await;
            match (self.shared.resolve)(self.kind.clone()).await {
                Ok(resource) if self.shown.is_of(&resource) => {}
                Err(why) if !why.is_definite() => {}
                Ok(_) | Err(_) => return,
            }
        }
    }
}

impl<K: Named> Shown<K> {
    /// Returns true if this resource is watched.
    fn is_of(&self, other: &ApiResource) -> bool {
        matches!(&*self.phase.lock(), Phase::Watching { resource, .. } if resource == other)
    }
}

/// Returns the reason of a failed watch.
fn reason(what: &str, error: &watcher::Error) -> Unresolved {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Unresolved::failed(what, error),
        watcher::Error::WatchError(status) if status.code == 403 => {
            Unresolved::forbidden(what, &status.message)
        }
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => {
            Unresolved::unavailable(what, &chain(error))
        }
    }
}

/// Waits for the first future that ends. Polls only those that were woken: a pulse beats when its watch is polled.
async fn first(futures: [BoxFuture<'_, ()>; 3]) {
    futures.into_iter().collect::<FuturesUnordered<_>>().next().await;
}
