//! BedplateClusters: the endpoint and the failure domains of a cluster (K3, K4).
//!
//! Read: the stores. Decided: `plan`. A BedplateCluster stays until no BedplateMachine of its cluster is left.

pub mod plan;

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::core::BLOCK_MOVE_ANNOTATION;
use bedplate_api::cluster::infrastructure::{BedplateCluster, FINALIZER};
use bedplate_engine::Context as _;
use bedplate_engine::write::WriteError;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::json;

use self::plan::{Act, Observed, plan};
use super::context::World;
use crate::metrics::Kind;
use crate::owner::{cluster_name, owner};

/// Reconciles a BedplateCluster.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(
    object: Arc<BedplateCluster>,
    world: Arc<World>,
) -> Result<Option<Duration>, WriteError> {
    if !world.scope.includes(object.labels()) {
        return Ok(None);
    }
    let observed = observe(object, &world);
    let act = plan(&observed, Timestamp::now());
    world.leading(apply(&observed, act, &world)).await.map(|()| None)
}

fn observe(object: Arc<BedplateCluster>, world: &World) -> Observed {
    let namespace = object.namespace().unwrap_or_default();
    let cluster = owner(&*object, "Cluster").and_then(|(name, uid)| {
        let cluster = world.stores.clusters.get(&ObjectRef::new(name).within(&namespace))?;
        (cluster.metadata.uid.as_deref() == Some(uid)).then_some(cluster)
    });
    let name = owner(&*object, "Cluster").map(|(name, _)| name).or_else(|| cluster_name(&*object));
    let is_of_cluster = |machine: &&Arc<bedplate_api::cluster::infrastructure::BedplateMachine>| {
        machine.namespace().as_deref() == Some(&namespace)
            && name.is_some()
            && cluster_name(&***machine) == name
    };
    let mut machines: Vec<String> = world
        .stores
        .machines
        .state()
        .iter()
        .filter(is_of_cluster)
        .map(|machine| machine.name_any())
        .collect();
    machines.sort();
    let label = object.spec.failure_domain_label.as_ref();
    let may_claim = |host: &&Arc<bedplate_api::machine::Machine>| {
        host.spec.claim_policy.as_ref().is_some_and(|policy| policy.allows(&namespace))
    };
    let domains = label.map(|label| {
        let hosts = world.stores.hosts.state();
        let values = hosts.iter().filter(may_claim).filter_map(|host| host.labels().get(label).cloned());
        values.filter(|value| !value.is_empty()).collect()
    });
    Observed { domains: domains.unwrap_or_default(), machines, cluster, object }
}

async fn apply(observed: &Observed, act: Act, world: &World) -> Result<(), WriteError> {
    let object = &*observed.object;
    let objects: Api<BedplateCluster> =
        Api::namespaced(world.client.clone(), &object.namespace().unwrap_or_default());
    match act {
        Act::None => Ok(()),
        Act::AddFinalizer => {
            world.wrote(Kind::Cluster);
            world.manager.set_finalizer(&objects, object, FINALIZER, true).await
        }
        Act::RemoveFinalizer => {
            world.wrote(Kind::Cluster);
            world.manager.set_finalizer(&objects, object, FINALIZER, false).await
        }
        Act::BlockMove => {
            world.wrote(Kind::Cluster);
            let annotations = json!({ BLOCK_MOVE_ANNOTATION: "true" });
            world
                .manager
                .merge(&objects, object, &json!({ "metadata": { "annotations": annotations } }))
                .await
        }
        Act::Status(status) => {
            world.wrote(Kind::Cluster);
            world.manager.apply_status(&objects, object, &*status).await.map(drop)
        }
    }
}
