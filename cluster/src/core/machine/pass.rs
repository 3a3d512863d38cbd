//! Machines: one turn reads the objects of a Machine, decides, and writes (M1 to M13).
//!
//! ```text
//! observe: stores, watches of named kinds, data Secret, Node -> plan -> life: one write, or the status
//!                                                            -> deletion: plan, read, plan again -> one write, and the status
//! ```
//! Called by the worker of the kind. Not here: decisions (`plan`, `deletion`).

mod deleting;
mod life;
mod read;

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::full::Machine;
use bedplate_api::cluster::full::machine::MachineStatus;
use bedplate_api::cluster::part::Reference;
use bedplate_engine::watches::{self, GroupKind, User};
use bedplate_engine::write::{Failed, WriteError, ask};
use bedplate_engine::{Context as _, object};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ApiResource;
use kube::core::NamespaceResourceScope;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Resource, ResourceExt};

use super::data::{DataSecret, Given, given};
use super::node::Workload;
use super::node_condition::reads_node;
use super::plan::Observed;
use super::references::Part;
use super::refused::Refused;
use super::status::own;
use super::up_to_date;
use crate::core::context::World;
use crate::core::reference::{Lookup, refusal};
use crate::metrics::Kind;
use crate::owner::owner;

/// Delay until a kind that cannot be read is looked up again. Not every cause is watched.
const UNRESOLVED_DELAY: Duration = Duration::from_secs(300);
/// Delay until a turn is repeated that has found no place for requests to its workload cluster.
const PLACE_DELAY: Duration = Duration::from_secs(5);
/// Key of the bootstrap data in its Secret, as providers read it.
const DATA_KEY: &str = "value";

/// Reconciles a Machine.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(object: Arc<Machine>, world: Arc<World>) -> Result<Option<Duration>, WriteError> {
    let user = User::of(&*object);
    if !world.scope.includes(object.labels()) {
        world.watches.release(&user);
        return Ok(None);
    }
    let mut turn = Turn::observe(Arc::clone(&object), &world);
    let done = world.leading(turn.run()).await;
    // The watch releases a Machine that is gone only once, and this turn may have named the kinds after that.
    if world.stores.machines.get(&ObjectRef::from_obj(&*object)).is_none() {
        world.watches.release(&user);
    }
    done
}

/// One turn of a Machine.
struct Turn<'a> {
    world: &'a World,
    observed: Observed,
    /// Object of `controlPlaneRef` of the Cluster. None: the field is not set, or the Machine is not deleted.
    control_plane: Option<Lookup>,
    /// Resource of the bootstrap object, if its kind is watched.
    bootstrap: Option<ApiResource>,
    /// Resource of the infrastructure object, if its kind is watched.
    infrastructure: Option<ApiResource>,
    /// Secret with the data of the Machine, if it was read and exists.
    secret: Option<Secret>,
}

impl<'a> Turn<'a> {
    /// Reads the stores and the watches of named kinds.
    fn observe(machine: Arc<Machine>, world: &'a World) -> Self {
        let namespace = machine.namespace().unwrap_or_default();
        let stores = &world.stores;
        let cluster = ObjectRef::new(&machine.spec.cluster_name).within(&namespace);
        let set = owner_in(&stores.sets, &*machine, "MachineSet");
        let deployment =
            set.as_deref().and_then(|set| owner_in(&stores.deployments, set, "MachineDeployment"));
        let mut turn = Turn {
            world,
            observed: Observed {
                cluster: stores.clusters.get(&cluster),
                bootstrap: Lookup::Absent,
                infrastructure: Lookup::Absent,
                data_secret: DataSecret::NotRead,
                workload: Workload::default(),
                set,
                deployment,
                refused: None,
                now: Timestamp::now(),
                machine,
            },
            control_plane: None,
            bootstrap: None,
            infrastructure: None,
            secret: None,
        };
        turn.observe_named();
        turn
    }

    /// Looks up the objects that the Machine names. While it is deleted, also the control plane of its Cluster.
    fn observe_named(&mut self) {
        let machine = Arc::clone(&self.observed.machine);
        let mut kinds = vec![kind(&machine.spec.infrastructure_ref)];
        (self.observed.infrastructure, self.infrastructure) = self.named(&machine.spec.infrastructure_ref);
        if let Some(reference) = &machine.spec.bootstrap.config_ref {
            kinds.push(kind(reference));
            (self.observed.bootstrap, self.bootstrap) = self.named(reference);
        }
        let cluster = self.observed.cluster.clone().filter(|_| self.observed.is_deleting());
        let control_plane = cluster.as_ref().and_then(|cluster| cluster.spec.control_plane_ref.as_ref());
        // A core kind is not a control plane: the Machines of the control plane decide.
        if let Some(reference) = control_plane.filter(|reference| refusal(reference).is_none()) {
            kinds.push(kind(reference));
            self.control_plane = Some(self.named(reference).0);
        }
        self.world.watches.keep(&User::of(&*machine), &kinds.iter().collect::<Vec<_>>());
    }

    /// Returns the state of a named object, and its resource if its kind is watched.
    fn named(&self, reference: &Reference) -> (Lookup, Option<ApiResource>) {
        if let Some(why) = refusal(reference) {
            return (Lookup::Unresolved(why), None);
        }
        let machine = &*self.observed.machine;
        let namespace = machine.namespace().unwrap_or_default();
        let of = watches::Reference { kind: &kind(reference), namespace: &namespace, name: &reference.name };
        let found = self.world.watches.get(&User::of(machine), of);
        let lookup = Lookup::from(&found);
        let resource = match found {
            watches::Lookup::Found { resource, .. } => Some(resource),
            watches::Lookup::Absent => self.world.watches.resource(of.kind),
            watches::Lookup::NotSynced | watches::Lookup::Unresolved(_) => None,
        };
        (lookup, resource)
    }

    async fn run(&mut self) -> Result<Option<Duration>, WriteError> {
        if self.observed.is_paused() {
            return self.live().await;
        }
        let mut unread = Failed::default();
        if let Err(error) = self.read_data_secret().await {
            let Some(cause) = error.refusal() else { return Err(error) };
            self.observed.refused = Some(Refused::read(&self.observed, cause));
            unread.note(Err(error));
        }
        self.read_node();
        let done = if self.observed.is_deleting() { self.delete().await } else { self.live().await };
        let again = done.as_ref().ok().copied().flatten();
        unread.note(done.map(drop));
        unread.end().map(|()| again)
    }

    /// Reads the Secret for `spec.bootstrap.data`, if it is needed.
    async fn read_data_secret(&mut self) -> Result<(), WriteError> {
        let machine = &*self.observed.machine;
        let Given::Text(name) = given(machine) else { return Ok(()) };
        self.secret = ask(&format!("Secret {name}"), object::get(&self.api(), &name)).await?;
        self.observed.data_secret = data_secret(machine, self.secret.as_ref());
        Ok(())
    }

    /// Looks the Node up, once there can be one.
    fn read_node(&mut self) {
        let Some(cluster) = self.observed.cluster.clone() else { return };
        if reads_node(&self.observed) {
            let id = self.observed.provider_id();
            self.observed.workload = self.world.workloads.look(&cluster, id);
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let namespace = self.observed.machine.namespace().unwrap_or_default();
        Api::namespaced(self.world.client.clone(), &namespace)
    }

    /// Returns the API and the resource of a part whose kind is watched.
    fn part_api(&self, part: Part) -> Option<(Api<Referenced>, &ApiResource)> {
        let resource = match part {
            Part::Bootstrap => self.bootstrap.as_ref()?,
            Part::Infrastructure => self.infrastructure.as_ref()?,
        };
        let namespace = self.observed.machine.namespace().unwrap_or_default();
        Some((Api::namespaced_with(self.world.client.clone(), &namespace, resource), resource))
    }

    /// Returns the API, the resource and the object of a part that was found.
    fn part(&self, part: Part) -> Option<(Api<Referenced>, &ApiResource, &Referenced)> {
        let object = part.lookup(&self.observed).found()?;
        self.part_api(part).map(|(api, resource)| (api, resource, object))
    }

    fn wrote(&self) {
        self.world.counters.wrote(Kind::CoreMachine);
    }

    async fn apply_status(&self, status: MachineStatus) -> Result<(), WriteError> {
        self.wrote();
        let machine = &*self.observed.machine;
        self.world.manager.apply_status(&self.api(), machine, &own(status, &self.observed)).await.map(drop)
    }

    /// Returns the delay until the next turn, if no event arrives before.
    fn recheck(&self, planned: Option<Duration>) -> Option<Duration> {
        let named = [&self.observed.bootstrap, &self.observed.infrastructure];
        let is_unresolved = |lookup: &&Lookup| matches!(lookup, Lookup::Unresolved(_));
        let is_unresolved = named.into_iter().chain(&self.control_plane).any(|lookup| is_unresolved(&lookup));
        let unresolved = is_unresolved.then_some(UNRESOLVED_DELAY);
        let outdated = up_to_date::until(&self.observed);
        [planned, unresolved, outdated].into_iter().flatten().min()
    }
}

fn kind(reference: &Reference) -> GroupKind {
    GroupKind::new(&reference.api_group, &reference.kind)
}

/// Returns the owner of a kind, as the store shows it.
fn owner_in<K, O>(store: &Store<K>, object: &O, kind: &str) -> Option<Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
    O: Resource,
{
    let (name, uid) = owner(object, kind)?;
    let found = store.get(&ObjectRef::new(name).within(object.meta().namespace.as_deref()?))?;
    (found.meta().uid.as_deref() == Some(uid)).then_some(found)
}

/// Returns the state of the Secret that holds `spec.bootstrap.data`.
fn data_secret(machine: &Machine, secret: Option<&Secret>) -> DataSecret {
    let Some(secret) = secret else { return DataSecret::Absent };
    let is_own =
        owner(secret, "Machine").is_some_and(|(_, uid)| Some(uid) == machine.metadata.uid.as_deref());
    if !is_own {
        return DataSecret::Foreign;
    }
    let held = secret.data.as_ref().and_then(|data| data.get(DATA_KEY)).map(|value| value.0.as_slice());
    DataSecret::Own { is_current: held == machine.spec.bootstrap.data.as_deref().map(str::as_bytes) }
}

#[cfg(test)]
mod tests;
