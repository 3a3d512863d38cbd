//! MachineClaims: lets the host of a claim start it, ends the right to read the user data, and removes the finalizer once the host is released.
//!
//! Read: the stores. A decision to write is made again by live reads of claimant and host. Decided: `plan`, by the protocol of `bedplate-claim`.

pub mod clock;
pub mod grant;
pub mod interval;
pub mod plan;

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::claim::{MachineClaim, RELEASE_FINALIZER};
use bedplate_api::cluster::infrastructure::BedplateMachine;
use bedplate_api::machine::Machine;
use bedplate_api::operation::MachineOperation;
use bedplate_api::reason::Reason as _;
use bedplate_api::reason::claim::GrantedReason;
use bedplate_api::reason::infrastructure::ProviderEvent;
use bedplate_claim::{ClaimStep, Right};
use bedplate_engine::Context as _;
use bedplate_engine::object;
use bedplate_engine::write::{self, WriteError, ask};
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use self::grant::Grant;
use self::interval::interval;
use self::plan::{
    Observed, end_text, enrollment_annotations, fence, fence_name, is_abandoned, next, reads_right, status,
    withdrawn,
};
use super::context::World;
use crate::metrics::Kind;
use crate::owner::{has_paused_annotation, is_paused};

/// Reconciles a MachineClaim.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(claim: Arc<MachineClaim>, world: Arc<World>) -> Result<Option<Duration>, WriteError> {
    if !world.scope.is_of_namespace(&claim.spec.claimant.namespace) {
        return Ok(None);
    }
    let name = claim.name_any();
    let claimant = &claim.spec.claimant;
    let key = ObjectRef::new(&claimant.name).within(&claimant.namespace);
    let cluster = ObjectRef::new(&claim.spec.cluster_name).within(&claimant.namespace);
    let mut observed = Observed {
        host: world.stores.hosts.get(&ObjectRef::new(&name)),
        claimant: world.stores.machines.get(&key),
        right: Right::NotNeeded,
        operation: None,
        future_heartbeat: None,
        now: Timestamp::now(),
        claim,
    };
    let future_heartbeat = |host: Option<&Arc<Machine>>, now| world.future_heartbeats.see(host?, now);
    observed.future_heartbeat = future_heartbeat(observed.host.as_ref(), observed.now);
    // A claim of another installation, or of an object that only looks like this provider's.
    let claimant = observed.claimant.as_deref().filter(|_| !is_abandoned(&observed));
    if claimant.is_some_and(|claimant| !world.scope.includes(claimant.labels())) {
        return Ok(None);
    }
    let cluster = world.stores.clusters.get(&cluster).filter(|_| !is_abandoned(&observed));
    let is_cluster_paused = is_paused(&*observed.claim, cluster.as_deref());
    if is_cluster_paused || claimant.is_some_and(has_paused_annotation) {
        return Ok(None);
    }
    if reads_right(&observed.claim) {
        observed.right = grant::observe(&world.client, &observed.claim).await?;
    }
    let mut step = next(&observed);
    if asks_operation(step) {
        observed.operation = world.live_operation(&fence_name(&observed.claim)).await?.map(Arc::new);
        step = next(&observed);
    }
    if writes(step) {
        let claimants: Api<BedplateMachine> =
            Api::namespaced(world.client.clone(), &observed.claim.spec.claimant.namespace);
        let claimant_name = &observed.claim.spec.claimant.name;
        let found =
            ask(&format!("BedplateMachine {claimant_name}"), object::get(&claimants, claimant_name)).await?;
        observed.claimant = found.map(Arc::new);
        observed.host = world.live_host(&name).await?.map(Arc::new);
        observed.future_heartbeat = future_heartbeat(observed.host.as_ref(), observed.now);
        step = next(&observed);
    }
    world.leading(apply(&observed, step, &world)).await.map(|()| interval(&observed, step))
}

/// Returns true if the operation that powers the host off decides about a step.
const fn asks_operation(step: ClaimStep) -> bool {
    matches!(step, ClaimStep::PowerOff)
}

/// Returns true if a step writes more than conditions.
const fn writes(step: ClaimStep) -> bool {
    match step {
        ClaimStep::Grant
        | ClaimStep::Withdraw
        | ClaimStep::CorrectEnrollment
        | ClaimStep::Delete
        | ClaimStep::Orphan
        | ClaimStep::CorrectUid
        | ClaimStep::PowerOff
        | ClaimStep::Fence
        | ClaimStep::RemoveFinalizer => true,
        ClaimStep::AwaitDeletion
        | ClaimStep::AwaitProviderId
        | ClaimStep::AwaitAgent
        | ClaimStep::AwaitHost
        | ClaimStep::Overdue
        | ClaimStep::AwaitRelease
        | ClaimStep::AwaitPowerOff
        | ClaimStep::Granted => false,
    }
}

async fn apply(observed: &Observed, step: ClaimStep, world: &World) -> Result<(), WriteError> {
    let claim = &*observed.claim;
    match step {
        ClaimStep::Withdraw => {
            world.wrote(Kind::Claim);
            grant::withdraw(&world.client, claim).await?;
            let reason = withdrawn(observed).map(|reason| (reason, reason.meaning()));
            put(observed, step, reason, world).await
        }
        ClaimStep::CorrectEnrollment => {
            let Some(annotations) = enrollment_annotations(observed) else { return Ok(()) };
            change(claim, &json!({ "metadata": { "annotations": annotations } }), world).await
        }
        ClaimStep::Grant => start(observed, world).await,
        ClaimStep::Delete => {
            world.wrote(Kind::Claim);
            let claims = Api::<MachineClaim>::all(world.client.clone());
            write::delete(&claims, &claim.name_any(), claim.uid(), claim.resource_version()).await?;
            tracing::info!(claim = claim.name_any(), "claim without a claimant deleted");
            Ok(())
        }
        ClaimStep::CorrectUid => {
            let uid = observed.claimant.as_ref().and_then(|claimant| claimant.metadata.uid.clone());
            change(claim, &json!({ "spec": { "claimant": { "uid": uid } } }), world).await
        }
        ClaimStep::PowerOff => power_off(claim, world).await,
        ClaimStep::RemoveFinalizer => end(claim, observed.host.as_deref(), world).await,
        ClaimStep::Orphan
        | ClaimStep::Fence
        | ClaimStep::AwaitDeletion
        | ClaimStep::AwaitProviderId
        | ClaimStep::AwaitAgent
        | ClaimStep::AwaitHost
        | ClaimStep::Overdue
        | ClaimStep::AwaitRelease
        | ClaimStep::AwaitPowerOff
        | ClaimStep::Granted => put(observed, step, None, world).await,
    }
}

/// Powers a silent host off. An operation of this name is the claim's own: the next reconciliation reads it.
async fn power_off(claim: &MachineClaim, world: &World) -> Result<(), WriteError> {
    let Some(operation) = fence(claim) else { return Ok(()) };
    world.wrote(Kind::Claim);
    let operations = Api::<MachineOperation>::all(world.client.clone());
    let parameters = world.manager.post();
    let made = operations.create(&parameters, &operation);
    ask(&format!("MachineOperation {}", operation.name_any()), made).await?;
    tracing::info!(
        claim = claim.name_any(),
        operation = operation.name_any(),
        "powering off a host that does not report"
    );
    Ok(())
}

/// Changes fields of a claim.
async fn change(claim: &MachineClaim, change: &Value, world: &World) -> Result<(), WriteError> {
    world.wrote(Kind::Claim);
    world.manager.merge(&Api::all(world.client.clone()), claim, change).await
}

/// Removes the finalizer of a claim whose host is released, or whose Machine is gone. No right outlives the claim.
async fn end(claim: &MachineClaim, host: Option<&Machine>, world: &World) -> Result<(), WriteError> {
    world.wrote(Kind::Claim);
    if claim.spec.bootstrap_secret_name.is_some() {
        grant::withdraw(&world.client, claim).await?;
    }
    let (name, claims) = (claim.name_any(), Api::<MachineClaim>::all(world.client.clone()));
    world.manager.set_finalizer(&claims, claim, RELEASE_FINALIZER, false).await?;
    world.future_heartbeats.forget(&name);
    let claimant = &claim.spec.claimant;
    tracing::info!(claim = name, namespace = claimant.namespace, claimant = claimant.name, "host released");
    let text = end_text(claim, host);
    world.news.publish(claim, ProviderEvent::HostReleased, &format!("Machine {name} {text}"));
    Ok(())
}

/// Lets the host read the user data, and start the claim.
async fn start(observed: &Observed, world: &World) -> Result<(), WriteError> {
    let (claim, name) = (&*observed.claim, observed.claim.name_any());
    let grant = observed.claimant.as_ref().and_then(|claimant| Grant::new(claim, claimant));
    if let Some(grant) = grant {
        world.wrote(Kind::Claim);
        if let Err(error) = grant.write(&world.client, world.manager).await {
            // The condition of a host that was allowed to start stays: it may have started.
            if let Some(why) = error.refusal().filter(|_| plan::grant(claim) == bedplate_claim::Grant::Never)
            {
                put(observed, ClaimStep::Grant, Some((GrantedReason::GrantFailed, why)), world).await?;
            }
            return Err(error);
        }
    }
    let reason = GrantedReason::Granted;
    put(observed, ClaimStep::Grant, Some((reason, reason.meaning())), world).await?;
    tracing::info!(claim = name, claimant = claim.spec.claimant.name, "claim granted");
    world.news.publish(claim, ProviderEvent::ClaimGranted, &format!("Machine {name} may start the claim"));
    Ok(())
}

/// Writes the conditions, if they change.
async fn put(
    observed: &Observed,
    step: ClaimStep,
    granted: Option<(GrantedReason, &str)>,
    world: &World,
) -> Result<(), WriteError> {
    let claim = &*observed.claim;
    let status = status(observed, step, granted);
    let before = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    if status.conditions == before {
        return Ok(());
    }
    world.wrote(Kind::Claim);
    let claims = Api::<MachineClaim>::all(world.client.clone());
    world.manager.apply_status(&claims, claim, &status).await?;
    if step == ClaimStep::Orphan {
        world.news.publish(
            claim,
            ProviderEvent::ClaimOrphaned,
            "the claimant does not exist, and the host has started the claim",
        );
    }
    Ok(())
}
