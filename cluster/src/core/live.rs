//! Live reads of one pass: objects of any kind by name, and all objects of a kind in a namespace. A store may be behind, and a decision to make
//! an object, or to end a deletion, must not depend on it. Called by the passes over Clusters, MachineSets and MachineDeployments.
//!
//! The kind of a template is not watched: templates are read when an object is made, which is rare. Each kind is resolved once in a pass.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::cluster::contract::{Referenced, api_version};
use bedplate_api::cluster::full::Machine;
use bedplate_api::cluster::part::Reference;
use bedplate_engine::object;
use bedplate_engine::watches::{Definitions, GroupKind, Resolve as _};
use bedplate_engine::write::{WriteError, ask};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::{NamespaceResourceScope, ObjectList, Request};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use super::reference::{Lookup, refusal};
use crate::watch::bare;

/// Objects in one page of a list.
const PAGE_SIZE: u32 = 500;

/// Result of a read of an object of any kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Read<T> {
    /// The object, with its resource for writes.
    Found(T, ApiResource),
    /// The object does not exist.
    Absent,
    /// The kind cannot be read. The text is for a user.
    Unresolved(String),
}

/// Reader of objects of any kind in one namespace.
pub struct Reader {
    client: Client,
    namespace: String,
    resources: BTreeMap<GroupKind, Result<ApiResource, String>>,
}

impl Reader {
    /// Makes a reader.
    pub fn new(client: &Client, namespace: &str) -> Self {
        Self { client: client.clone(), namespace: namespace.to_owned(), resources: BTreeMap::new() }
    }

    /// Reads an object with all its fields.
    ///
    /// # Errors
    /// The API server did not answer.
    pub async fn object(&mut self, of: &Reference) -> Result<Read<DynamicObject>, WriteError> {
        self.read(of).await
    }

    /// Reads the fields of the contracts of an object.
    ///
    /// # Errors
    /// The API server did not answer.
    pub async fn referenced(&mut self, of: &Reference) -> Result<Read<Referenced>, WriteError> {
        self.read(of).await
    }

    async fn read<K>(&mut self, of: &Reference) -> Result<Read<K>, WriteError>
    where
        K: Resource<DynamicType = ApiResource> + Clone + DeserializeOwned + Debug,
        K: Resource<Scope = kube::core::DynamicResourceScope>,
    {
        if let Some(why) = refusal(of) {
            return Ok(Read::Unresolved(why));
        }
        let kind = GroupKind::new(&of.api_group, &of.kind);
        if !self.resources.contains_key(&kind) {
            let version = |labels: &_| api_version(labels).map(|found| found.version);
            let resolved = Definitions::new(self.client.clone(), version).resolve(&kind).await;
            self.resources.insert(kind.clone(), resolved.map_err(|why| why.to_string()));
        }
        let resource = match self.resources.get(&kind) {
            Some(Ok(resource)) => resource.clone(),
            Some(Err(why)) => return Ok(Read::Unresolved(why.clone())),
            None => return Ok(Read::Absent),
        };
        let api: Api<K> = Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        match ask(&format!("{} {}", of.kind, of.name), object::get(&api, &of.name)).await {
            Ok(Some(object)) => Ok(Read::Found(object, resource)),
            Ok(None) => Ok(Read::Absent),
            Err(error @ WriteError::Forbidden { .. }) => Ok(Read::Unresolved(error.to_string())),
            Err(error) => Err(error),
        }
    }
}

impl From<&Read<Referenced>> for Lookup {
    fn from(read: &Read<Referenced>) -> Self {
        match read {
            Read::Found(object, _) => Self::Found(Arc::new(object.clone())),
            Read::Absent => Self::Absent,
            Read::Unresolved(why) => Self::Unresolved(why.clone()),
        }
    }
}

/// Lists the objects of a kind in a namespace.
///
/// # Errors
/// The API server did not answer one of the requests.
pub async fn list<K>(client: &Client, namespace: &str) -> Result<Vec<Arc<K>>, WriteError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned,
{
    read_pages(client, &K::url_path(&(), Some(namespace)), &K::plural(&()), Arc::new).await
}

/// Lists the objects of a kind in a namespace, like [`list`]. An object that a store has in this version is that of the store: the list takes no
/// memory for it.
///
/// # Errors
/// The API server did not answer one of the requests.
pub(crate) async fn list_over<K>(
    client: &Client,
    namespace: &str,
    store: &Store<K>,
) -> Result<Vec<Arc<K>>, WriteError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + 'static,
{
    let known = |object: K| {
        let (meta, known) = (object.meta(), store.get(&ObjectRef::from_obj(&object)));
        let is_same = |known: &Arc<K>| {
            known.meta().uid == meta.uid && known.meta().resource_version == meta.resource_version
        };
        known.filter(is_same).unwrap_or_else(|| Arc::new(object))
    };
    read_pages(client, &K::url_path(&(), Some(namespace)), &K::plural(&()), known).await
}

/// Lists the objects of a path, page by page.
///
/// # Errors
/// The API server did not answer one of the requests.
pub async fn pages<K>(client: &Client, path: &str, what: &str) -> Result<Vec<K>, WriteError>
where
    K: Resource + Clone + DeserializeOwned,
{
    read_pages(client, path, what, |object| object).await
}

/// Reads the pages of a path. `keep`: form in which an object is kept, before the next page is read.
async fn read_pages<K, T>(
    client: &Client,
    path: &str,
    what: &str,
    keep: impl Fn(K) -> T,
) -> Result<Vec<T>, WriteError>
where
    K: Resource + Clone + DeserializeOwned,
{
    let request = Request::new(path);
    let mut parameters = ListParams::default().limit(PAGE_SIZE);
    let mut objects = Vec::new();
    loop {
        let page = async {
            let request = request.list(&parameters).map_err(kube::Error::BuildRequest)?;
            client.request::<ObjectList<Listed<K>>>(request).await
        };
        let page = ask(what, page).await?;
        objects.extend(page.items.into_iter().map(|Listed(object)| keep(object)));
        let Some(next) = page.metadata.continue_.filter(|next| !next.is_empty()) else { return Ok(objects) };
        parameters = parameters.continue_token(&next);
    }
}

/// Object of a list. `managedFields`, which may be larger than the rest of the object, are dropped before the next object is parsed.
#[derive(Clone)]
struct Listed<K>(K);

impl<'de, K: Resource + DeserializeOwned> Deserialize<'de> for Listed<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let BoundedTimes(mut object) = BoundedTimes::<K>::deserialize(deserializer)?;
        bare(&mut object);
        Ok(Self(object))
    }
}

/// The Machines of a namespace, as turns share them.
type Machines = Vec<Arc<Machine>>;

/// Lists of Machines that turns share. A turn gets a list whose first request was sent after the turn has asked, so the list shows each earlier
/// write. One list of a namespace is read concurrently.
#[derive(Debug, Default)]
pub struct MachineLists {
    /// Number of questions and of lists.
    clock: AtomicU64,
    /// Latest list of each namespace, with the time of its first request. None: it has failed. It exists while a turn waits for it.
    latest: Mutex<HashMap<String, Weak<tokio::sync::Mutex<Latest>>>>,
}

#[derive(Debug, Default)]
struct Latest {
    /// Time of the first request.
    began: u64,
    machines: Option<Machines>,
}

impl MachineLists {
    /// Lists the Machines of a namespace.
    ///
    /// # Errors
    /// The API server did not answer one of the requests.
    pub async fn read(
        &self,
        client: &Client,
        namespace: &str,
        store: &Store<Machine>,
    ) -> Result<Machines, WriteError> {
        let asked = self.tick();
        let latest = self.latest(namespace);
        let mut latest = latest.lock().await;
        if latest.began > asked {
            return match latest.machines.clone() {
                Some(machines) => Ok(machines),
                None => {
                    // The turns that wait must not fail one after another.
                    drop(latest);
                    list_over(client, namespace, store).await
                }
            };
        }
        *latest = Latest { began: self.tick(), machines: None };
        let machines = list_over(client, namespace, store).await?;
        latest.machines = Some(machines.clone());
        Ok(machines)
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn latest(&self, namespace: &str) -> Arc<tokio::sync::Mutex<Latest>> {
        let mut all = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(latest) = all.get(namespace).and_then(Weak::upgrade) {
            return latest;
        }
        all.retain(|_, latest| latest.strong_count() > 0);
        let latest = Arc::default();
        all.insert(namespace.to_owned(), Arc::downgrade(&latest));
        latest
    }
}

/// Reads an object again. None: it was deleted, or another object has its name.
///
/// # Errors
/// The API server did not answer.
pub async fn again<K>(client: &Client, object: &K) -> Result<Option<Arc<K>>, WriteError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let name = object.name_any();
    let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let found = ask(&format!("{} {name}", K::kind(&())), object::get(&api, &name)).await?;
    let same = found.filter(|found| found.meta().uid == object.meta().uid);
    Ok(same.map(|mut found| {
        bare(&mut found);
        Arc::new(found)
    }))
}

/// Returns the objects of a store in a namespace.
pub fn stored<K>(store: &Store<K>, namespace: &str) -> Vec<Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let is_of = |object: &Arc<K>| object.meta().namespace.as_deref() == Some(namespace);
    store.state().into_iter().filter(is_of).collect()
}

#[cfg(test)]
mod tests;
