//! Clusters: the infrastructure, the control plane and the workers of a cluster (K1 to K8).
//!
//! Read: the stores, and Secrets by name. Decided: `plan`, and `deletion` for a Cluster that is deleted. `status` has the conditions.

pub mod condition;
pub mod deletion;
#[cfg(test)]
mod exploration;
pub mod observed;
#[cfg(test)]
mod pass_tests;
pub mod plan;
pub mod replicas;
pub mod secret;
pub mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::core::GROUP;
use bedplate_api::cluster::full::cluster::FINALIZER;
use bedplate_api::cluster::full::{Cluster, Machine, MachineDeployment, MachineSet, condition_type};
use bedplate_api::cluster::part::{Reference, VERSION, label};
use bedplate_bootstrap::certificate::Certificate;
use bedplate_engine::watches::{self, GroupKind, User};
use bedplate_engine::write::{Failed, WriteError, ask, delete, delete_of};
use bedplate_engine::{Context as _, object};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DynamicObject};
use kube::core::NamespaceResourceScope;
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt};
use rcgen::KeyPair;
use serde::de::DeserializeOwned;
use serde_json::json;

use self::deletion::{Child, ChildKind};
use self::observed::{AuthoritySecret, Component, KubeconfigSecret, Observed, Refused, Unread, is_child};
use self::plan::{Act, Plan, is_paused, makes_kubeconfig, plan};
use super::context::World;
use super::machine::node::Connection;
use super::object::OfCluster;
use super::reference::{Lookup, refusal};
use super::{event, live};
use crate::metrics::Kind;

/// Delay until a kind that cannot be read is looked up again. Not every cause is watched.
const UNRESOLVED_DELAY: Duration = Duration::from_secs(300);
/// Delay until the connection to an unreachable cluster is judged again. It may be one that is not watched, because too many are.
const LOST_DELAY: Duration = Duration::from_secs(30);

/// Parts of the observed state that only the writes need.
#[derive(Default)]
struct Handles {
    infrastructure: Option<ApiResource>,
    control_plane: Option<ApiResource>,
    kubeconfig: Option<Secret>,
    authority: Option<Certificate>,
    /// Failure of a read that the API server has refused.
    unread: Option<WriteError>,
}

impl Handles {
    /// Returns the result of a read. One that was refused is noted, so that a condition shows the cause, and gives nothing.
    ///
    /// # Errors
    /// The read has failed otherwise. A retry may succeed.
    fn noted<T>(&mut self, result: Result<T, WriteError>) -> Result<Option<T>, WriteError> {
        match result {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.refusal().is_some() => {
                self.unread = Some(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Reconciles a Cluster.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(object: Arc<Cluster>, world: Arc<World>) -> Result<Option<Duration>, WriteError> {
    if !world.scope.includes(object.labels()) {
        return Ok(None);
    }
    let (mut observed, mut handles) = observe(object, &world).await?;
    let plan = plan(&observed, Timestamp::now());
    let is_unresolved = [&observed.infrastructure, &observed.control_plane]
        .into_iter()
        .any(|lookup| matches!(lookup, Lookup::Unresolved(_)));
    let again = plan.again.or(is_unresolved.then_some(UNRESOLVED_DELAY));
    let lost = observed.connection.is_lost.then_some(LOST_DELAY);
    let again = [again, lost].into_iter().flatten().min();
    let mut failed = Failed::default();
    failed.note(handles.unread.take().map_or(Ok(()), Err));
    failed.note(world.leading(apply(&mut observed, &handles, plan, &world)).await);
    failed.end().map(|()| again)
}

async fn observe(cluster: Arc<Cluster>, world: &World) -> Result<(Observed, Handles), WriteError> {
    let mut handles = Handles::default();
    let spec = &cluster.spec;
    let infrastructure =
        look_up(&cluster, spec.infrastructure_ref.as_ref(), &mut handles.infrastructure, world);
    let control_plane = look_up(&cluster, spec.control_plane_ref.as_ref(), &mut handles.control_plane, world);
    let kinds: Vec<GroupKind> =
        [&spec.infrastructure_ref, &spec.control_plane_ref].into_iter().flatten().map(kind).collect();
    world.watches.keep(&User::of(&*cluster), &kinds.iter().collect::<Vec<_>>());
    let is_deleting = cluster.metadata.deletion_timestamp.is_some();
    let pools = if is_deleting { handles.noted(pools(&cluster, world).await)? } else { None };
    let mut unread = refused_read(&handles, condition_type::DELETING, "MachinePools");
    let (mut kubeconfig, mut authority) = (KubeconfigSecret::NotRead, AuthoritySecret::NotRead);
    if makes_kubeconfig(&cluster) && !is_deleting && !is_paused(&cluster) {
        let secrets = secrets(&cluster, world);
        let name = secret::kubeconfig_name(&cluster);
        if let Some(found) = handles.noted(read(&secrets, &name).await)? {
            handles.kubeconfig = found;
            kubeconfig = secret::kubeconfig(handles.kubeconfig.as_ref(), &cluster);
        }
        let probe = condition_type::REMOTE_CONNECTION_PROBE;
        unread = refused_read(&handles, probe, &format!("Secret {name}"));
        if ![KubeconfigSecret::Given, KubeconfigSecret::NotRead].contains(&kubeconfig) {
            let name = secret::authority_name(&cluster);
            if let Some(found) = handles.noted(read(&secrets, &name).await)? {
                (authority, handles.authority) = secret::authority(found);
            }
            unread = refused_read(&handles, probe, &format!("Secret {name}"));
        }
    }
    let connection = connection(&cluster, world);
    let observed = Observed {
        infrastructure,
        control_plane,
        deployments: children(&world.stores.deployments, &cluster),
        sets: children(&world.stores.sets, &cluster),
        machines: children(&world.stores.machines, &cluster),
        pools: pools.unwrap_or_default(),
        kubeconfig,
        authority,
        connection,
        refused: None,
        unread,
        cluster,
    };
    Ok((observed, handles))
}

/// Returns the record of a read that was refused, for the condition that shows it.
fn refused_read(handles: &Handles, type_: &'static str, what: &str) -> Option<Unread> {
    let cause = handles.unread.as_ref().and_then(WriteError::refusal)?;
    Some(Unread::new(type_, what, cause))
}

/// Returns the state of the connection to the API server of a cluster. Its task probes it, and queues the Cluster when it is lost or found.
fn connection(cluster: &Cluster, world: &World) -> Connection {
    let latches = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
    let is_initialized = latches.is_some_and(|latches| latches.control_plane_initialized == Some(true));
    if !is_initialized || is_paused(cluster) || cluster.metadata.deletion_timestamp.is_some() {
        return Connection::default();
    }
    world.workloads.connection(cluster)
}

fn kind(reference: &Reference) -> GroupKind {
    GroupKind::new(&reference.api_group, &reference.kind)
}

/// Looks a named object up, and keeps its resource for writes.
fn look_up(
    cluster: &Cluster,
    reference: Option<&Reference>,
    handle: &mut Option<ApiResource>,
    world: &World,
) -> Lookup {
    let Some(reference) = reference else { return Lookup::Absent };
    if let Some(why) = refusal(reference) {
        return Lookup::Unresolved(why);
    }
    let namespace = cluster.namespace().unwrap_or_default();
    let of = watches::Reference { kind: &kind(reference), namespace: &namespace, name: &reference.name };
    let found = world.watches.get(&User::of(cluster), of);
    if let watches::Lookup::Found { resource, .. } = &found {
        *handle = Some(resource.clone());
    }
    Lookup::from(&found)
}

/// Returns the objects of a store that belong to the cluster, sorted by name.
fn children<K>(store: &Store<K>, cluster: &Cluster) -> Vec<Arc<K>>
where
    K: OfCluster<DynamicType = ()> + Clone + 'static,
{
    let mut found: Vec<Arc<K>> =
        store.state().into_iter().filter(|object| is_child(&**object, cluster)).collect();
    found.sort_by_key(|object| object.name_any());
    found
}

fn namespace(cluster: &Cluster) -> String {
    cluster.namespace().unwrap_or_default()
}

fn secrets(cluster: &Cluster, world: &World) -> Api<Secret> {
    Api::namespaced(world.client.clone(), &namespace(cluster))
}

async fn read(secrets: &Api<Secret>, name: &str) -> Result<Option<Secret>, WriteError> {
    ask(&format!("Secret {name}"), object::get(secrets, name)).await
}

/// Counts the MachinePools of a cluster. Their kind may not be installed.
async fn pools(cluster: &Cluster, world: &World) -> Result<usize, WriteError> {
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{}/machinepools", namespace(cluster));
    match live::pages::<DynamicObject>(&world.client, &path, "machinepools").await {
        Ok(pools) => Ok(pools.iter().filter(|pool| is_child(*pool, cluster)).count()),
        // 404: the kind is not installed.
        Err(WriteError::Conflict { .. }) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Writes the act, then the status. The status is written even if the act has failed. It shows why the API server has refused the act.
async fn apply(
    observed: &mut Observed,
    handles: &Handles,
    Plan { act, mut status, .. }: Plan,
    world: &World,
) -> Result<(), WriteError> {
    let mut failed = Failed::default();
    if act != Act::None {
        world.counters.wrote(Kind::CoreCluster);
        let change = event::of_cluster(&act);
        let done = carry_out(observed, handles, act.clone(), world).await;
        let cause = done.as_ref().err().and_then(WriteError::refusal).map(str::to_owned);
        if failed.note(done) {
            world.publish(&*observed.cluster, change);
        }
        if let Some(cause) = cause {
            observed.refused = Some(Refused::new(act, &cause));
            status = plan::plan(observed, Timestamp::now()).status;
        }
    }
    let cluster = &*observed.cluster;
    if let Some(status) = status {
        world.counters.wrote(Kind::CoreCluster);
        let written = world.manager.apply_status(&clusters(cluster, world), cluster, &*status).await;
        if failed.note(written.map(drop)) {
            let before = cluster.status.as_ref().map_or(&[][..], |status| &status.conditions);
            world.publish(cluster, event::of_deletion(before, &status.conditions));
        }
    }
    failed.end()
}

fn clusters(cluster: &Cluster, world: &World) -> Api<Cluster> {
    Api::namespaced(world.client.clone(), &namespace(cluster))
}

async fn carry_out(
    observed: &Observed,
    handles: &Handles,
    act: Act,
    world: &World,
) -> Result<(), WriteError> {
    let cluster = &*observed.cluster;
    let api = clusters(cluster, world);
    match act {
        Act::None => Ok(()),
        Act::AddFinalizer => world.manager.set_finalizer(&api, cluster, FINALIZER, true).await,
        Act::RemoveFinalizer if has_children(cluster, world).await? => Ok(()),
        Act::RemoveFinalizer => world.manager.set_finalizer(&api, cluster, FINALIZER, false).await,
        Act::SetEndpoint { endpoint, .. } => {
            let endpoint = json!({ "host": endpoint.host, "port": endpoint.port });
            let change = json!({ "spec": { "controlPlaneEndpoint": endpoint } });
            world.manager.merge(&api, cluster, &change).await
        }
        Act::Adopt { component, owners } => {
            let labels = json!({ label::CLUSTER_NAME: cluster.name_any() });
            let change = json!({ "metadata": { "labels": labels, "ownerReferences": owners } });
            let Some((api, resource, object)) = component_of(observed, handles, component, world) else {
                return Ok(());
            };
            world.manager.merge_of(&api, resource, object, &change).await
        }
        Act::DeleteComponent(component) => {
            let Some((api, resource, object)) = component_of(observed, handles, component, world) else {
                return Ok(());
            };
            delete_of(&api, resource, &object.name_any(), object.uid(), None).await
        }
        Act::DeleteChildren(children) => delete_children(cluster, children, world).await,
        Act::MakeKubeconfig | Act::RenewKubeconfig => make_kubeconfig(cluster, handles, world).await,
    }
}

/// Returns the API, the resource and the object of a component that was found.
fn component_of<'a>(
    observed: &'a Observed,
    handles: &'a Handles,
    component: Component,
    world: &World,
) -> Option<(Api<Referenced>, &'a ApiResource, &'a Referenced)> {
    let resource = match component {
        Component::Infrastructure => handles.infrastructure.as_ref()?,
        Component::ControlPlane => handles.control_plane.as_ref()?,
    };
    let object = observed.component(component)?.1.found()?;
    let namespace = observed.cluster.namespace().unwrap_or_default();
    Some((Api::namespaced_with(world.client.clone(), &namespace, resource), resource, object))
}

/// Reads from the API server whether a child is left: a store may be behind.
async fn has_children(cluster: &Cluster, world: &World) -> Result<bool, WriteError> {
    Ok(any::<MachineDeployment>(cluster, world).await?
        || any::<MachineSet>(cluster, world).await?
        || any::<Machine>(cluster, world).await?)
}

async fn any<K>(cluster: &Cluster, world: &World) -> Result<bool, WriteError>
where
    K: OfCluster<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned,
{
    let objects = live::list::<K>(&world.client, &namespace(cluster)).await?;
    Ok(objects.iter().any(|object| is_child(&**object, cluster)))
}

/// Deletes children. The failure of one does not hold up the others.
async fn delete_children(cluster: &Cluster, children: Vec<Child>, world: &World) -> Result<(), WriteError> {
    let (client, namespace) = (&world.client, cluster.namespace().unwrap_or_default());
    let mut failed = Failed::default();
    for Child { kind, name, uid } in children {
        let uid = Some(uid);
        failed.note(match kind {
            ChildKind::MachineDeployment => {
                let api: Api<MachineDeployment> = Api::namespaced(client.clone(), &namespace);
                delete(&api, &name, uid, None).await
            }
            ChildKind::MachineSet => {
                let api: Api<MachineSet> = Api::namespaced(client.clone(), &namespace);
                delete(&api, &name, uid, None).await
            }
            ChildKind::Machine => {
                let api: Api<Machine> = Api::namespaced(client.clone(), &namespace);
                delete(&api, &name, uid, None).await
            }
        });
    }
    failed.end()
}

/// Creates the Secret with the kubeconfig, or changes the one that was read.
async fn make_kubeconfig(cluster: &Cluster, handles: &Handles, world: &World) -> Result<(), WriteError> {
    let what = format!("Secret {}", secret::kubeconfig_name(cluster));
    let later = |why: String| WriteError::Later { what: what.clone(), why, again: None };
    let Some(authority) = &handles.authority else { return Ok(()) };
    let key = KeyPair::generate().map_err(|error| later(error.to_string()))?;
    let made = secret::make(cluster, authority, &key, &rand::random(), Timestamp::now());
    let Some(made) = made.map_err(|error| later(error.to_string()))? else { return Ok(()) };
    let secrets = secrets(cluster, world);
    match &handles.kubeconfig {
        None => ask(&what, secrets.create(&world.manager.post(), &made)).await.map(drop),
        Some(before) => {
            let annotations = json!({ "annotations": made.metadata.annotations });
            let change = json!({ "metadata": annotations, "data": made.data });
            world.manager.merge(&secrets, before, &change).await
        }
    }
}
