//! Watches of the kinds that objects name: one for each kind, from its first use until 10 minutes after its last one.
//!
//! ```text
//! get (a reconciliation) -> named kind -> run: resolve -> watch -> store -> get
//!                                                           |
//!                                                           +-> Change -> handler (queues the objects that name the kind)
//! ```
//! A lookup never waits and never sends a request. A kind that is not installed, forbidden or silent is a value with its reason, and it delays no
//! other kind. Users choose the kinds, so their number is limited: see [`Watches::get`]. The module knows no kind and no contract: the caller gives the type of the objects and the choice of the version. Called by
//! programs whose objects name objects of any kind.

mod kind;
mod resolve;
mod run;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bedplate_process::lock::Lock;
use kube::api::ApiResource;
use kube::core::DynamicResourceScope;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::counters::Counters;
use crate::store::Seen;
use kind::Shown;
pub use resolve::{Definitions, Resolve, Unresolved};

/// Name of these watches in metrics and logs. The kinds are chosen by users, so they cannot be labels.
pub const NAME: &str = "referenced kinds";

/// Maximum number of kinds that are watched concurrently.
pub(crate) const MAX_WATCHED: usize = 64;

/// Maximum number of kinds that are named concurrently. Most of those above [`MAX_WATCHED`] are not installed.
const MAX_NAMED: usize = 256;

/// Maximum number of kinds that the users of one namespace add, also of kinds that do not exist. It leaves places for other namespaces.
const MAX_NAMED_BY_NAMESPACE: usize = 32;

/// Number of kinds that each namespace may add even if [`MAX_NAMED`] is reached: the objects of a cluster name four kinds of providers.
const RESERVED_BY_NAMESPACE: usize = 4;

/// Time from the last use of a kind to the end of its watch.
const UNUSED_TIMEOUT: Duration = Duration::from_secs(600);

/// Group and kind of an object, without a version.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKind {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
}

impl GroupKind {
    /// Makes a group and kind.
    pub fn new(group: &str, kind: &str) -> Self {
        Self { group: group.to_owned(), kind: kind.to_owned() }
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kind, self.group)
    }
}

/// Type of the objects that are named: it reads any kind.
pub trait Named:
    Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>
    + Clone
    + DeserializeOwned
    + Debug
    + Send
    + Sync
    + 'static
{
}

impl<K> Named for K where
    K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + Sync
        + 'static
{
}

/// Object that names kinds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct User {
    /// Kind of the object.
    pub kind: String,
    /// Namespace of the object.
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
}

impl User {
    /// Returns an object as a user.
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        Self {
            kind: K::kind(&()).into_owned(),
            namespace: object.meta().namespace.clone(),
            name: object.name_any(),
        }
    }
}

/// Object that a user names.
#[derive(Debug, Clone, Copy)]
pub struct Reference<'a> {
    /// Kind of the object.
    pub kind: &'a GroupKind,
    /// Namespace of the object.
    pub namespace: &'a str,
    /// Name of the object.
    pub name: &'a str,
}

/// Result of a lookup.
#[derive(Debug, Clone, PartialEq)]
pub enum Lookup<K> {
    /// The object exists.
    Found {
        /// Resource of the kind, for writes.
        resource: ApiResource,
        /// The object, as in the store.
        object: Arc<K>,
    },
    /// The store of the kind is synced, and the object does not exist.
    Absent,
    /// The kind is being resolved or listed.
    NotSynced,
    /// The kind cannot be read.
    Unresolved(Unresolved),
}

/// Change that a handler receives.
#[derive(Debug)]
pub enum Change<K> {
    /// An object has changed. The store shows it.
    Object {
        /// Resource of the object.
        resource: ApiResource,
        /// The object.
        seen: Seen<K>,
    },
    /// The store of a kind is synced now, or the reason why it cannot be read has changed. All of its users must be reconciled.
    Kind(GroupKind),
}

/// Inputs of the watches. `handle` is called with each change. It may wait for a place in a queue, which holds up its kind only.
pub struct Setup<R, C, H> {
    /// Client of the API server.
    pub client: Client,
    /// Namespace of the objects. None: all namespaces.
    pub namespace: Option<String>,
    /// Resolver of kinds.
    pub resolve: R,
    /// Counters of the program.
    pub counters: Counters<C>,
    /// Handler of changes.
    pub handle: H,
}

/// The watches. Clones share them.
pub struct Watches<K: Named>(Arc<Inner<K>>);

impl<K: Named> Clone for Watches<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Named> Default for Watches<K> {
    fn default() -> Self {
        Self(Arc::new(Inner { kinds: Lock::default(), named: Notify::new() }))
    }
}

struct Inner<K: Named> {
    kinds: Lock<HashMap<GroupKind, Entry<K>>>,
    /// Notified when a kind is added.
    named: Notify,
}

/// Kind that is named.
struct Entry<K: Named> {
    /// Namespace of the user that added the kind. The kind counts for its limit until the watch ends, also after a release.
    added_by: Option<String>,
    users: HashSet<User>,
    /// Time of the last use, if there are no users.
    unused_since: Option<Instant>,
    shown: Arc<Shown<K>>,
    /// Ends the watch. None: it is not started yet.
    stop: Option<CancellationToken>,
}

impl<K: Named> Entry<K> {
    fn new(user: &User) -> Self {
        let (added_by, users) = (user.namespace.clone(), HashSet::new());
        Self { added_by, users, unused_since: None, shown: Arc::default(), stop: None }
    }
}

/// Returns the limit that another kind of a user would exceed.
fn limit<K: Named>(kinds: &HashMap<GroupKind, Entry<K>>, user: &User) -> Option<Unresolved> {
    let added = kinds.values().filter(|entry| entry.added_by == user.namespace).count();
    if added >= MAX_NAMED_BY_NAMESPACE {
        return Some(Unresolved::TooManyKindsOfNamespace);
    }
    (added >= RESERVED_BY_NAMESPACE && kinds.len() >= MAX_NAMED).then_some(Unresolved::TooManyKinds)
}

impl<K> Watches<K>
where
    K: Named,
{
    /// Looks an object up for a user. The user keeps the watch of the kind until it is released ([`Self::keep`], [`Self::release`]).
    ///
    /// A kind that is named already takes no further place. The users of a namespace add up to 32 kinds while fewer than 256 are named. The first
    /// four of them always have a place, so a few namespaces that name many kinds cannot exclude the others.
    ///
    /// A change is reported by [`Change`], except the end of [`Unresolved::TooManyKinds`] and
    /// [`Unresolved::TooManyKindsOfNamespace`]: reconcile the user again after some minutes.
    pub fn get(&self, user: &User, of: Reference<'_>) -> Lookup<K> {
        let mut kinds = self.0.kinds.lock();
        if !kinds.contains_key(of.kind) {
            if let Some(why) = limit(&kinds, user) {
                return Lookup::Unresolved(why);
            }
            kinds.insert(of.kind.clone(), Entry::new(user));
            self.0.named.notify_one();
        }
        let Some(entry) = kinds.get_mut(of.kind) else { return Lookup::NotSynced };
        if !entry.users.contains(user) {
            entry.users.insert(user.clone());
        }
        entry.unused_since = None;
        let shown = Arc::clone(&entry.shown);
        drop(kinds);
        shown.look(of)
    }

    /// Returns the resource of a kind that is watched, for live reads of objects that the store does not show.
    pub fn resource(&self, kind: &GroupKind) -> Option<ApiResource> {
        let shown = self.0.kinds.lock().get(kind).map(|entry| Arc::clone(&entry.shown))?;
        shown.resource()
    }

    /// Releases the uses of all other kinds: the user names only `kinds` now.
    pub fn keep(&self, user: &User, kinds: &[&GroupKind]) {
        for (kind, entry) in self.0.kinds.lock().iter_mut() {
            if !kinds.contains(&kind) && entry.users.remove(user) && entry.users.is_empty() {
                entry.unused_since = Some(Instant::now());
            }
        }
    }

    /// Releases all uses of a user that was deleted.
    pub fn release(&self, user: &User) {
        self.keep(user, &[]);
    }

    /// Returns the users of a kind, sorted.
    pub fn users(&self, kind: &GroupKind) -> Vec<User> {
        let kinds = self.0.kinds.lock();
        let mut users: Vec<User> =
            kinds.get(kind).map(|entry| entry.users.iter().cloned().collect()).unwrap_or_default();
        users.sort_unstable();
        users
    }

    /// Forgets the kinds that have been unused for too long, and ends their watches.
    fn end_unused(&self) {
        self.0.kinds.lock().retain(|_, entry| {
            let is_unused = entry.unused_since.is_some_and(|since| since.elapsed() >= UNUSED_TIMEOUT);
            if let Some(stop) = entry.stop.as_ref().filter(|_| is_unused) {
                stop.cancel();
            }
            !is_unused
        });
    }

    /// Returns the kinds whose watches must start.
    fn unstarted(&self, shutdown: &CancellationToken) -> Vec<(GroupKind, Arc<Shown<K>>, CancellationToken)> {
        let mut kinds = self.0.kinds.lock();
        let new = kinds.iter_mut().filter(|(_, entry)| entry.stop.is_none());
        new.map(|(kind, entry)| {
            let stop = shutdown.child_token();
            entry.stop = Some(stop.clone());
            (kind.clone(), Arc::clone(&entry.shown), stop)
        })
        .collect()
    }
}
