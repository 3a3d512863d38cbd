//! MachineClaims: lets the host of a claim start it, ends the right to read the user data, and removes the finalizer once the host is released.
//!
//! Read: the stores. A decision to write is made again by live reads of claimant and host. Decided: `plan`, by the protocol of `bedplate-claim`.

pub mod grant;
pub mod plan;

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::claim::{ENROLLMENT_ANNOTATION, MachineClaim, RELEASE_FINALIZER};
use bedplate_api::cluster::infrastructure::BedplateMachine;
use bedplate_api::reason::Reason as _;
use bedplate_api::reason::claim::GrantedReason;
use bedplate_api::reason::infrastructure::ProviderEvent;
use bedplate_claim::ClaimStep;
use bedplate_engine::write::{self, WriteError, ask};
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use self::grant::Grant;
use self::plan::{Observed, enrollment, has_started, is_granted, must_withdraw, next, status};
use super::context::World;
use crate::metrics::Kind;

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
    let mut observed = Observed {
        host: world.stores.hosts.get(&ObjectRef::new(&name)),
        claimant: world.stores.machines.get(&key),
        claim,
    };
    // A claim of another installation, or of an object that only looks like this provider's.
    if observed.claimant.as_ref().is_some_and(|claimant| !world.scope.includes(claimant.labels())) {
        return Ok(None);
    }
    let mut step = next(&observed);
    if writes(step) {
        let claimants: Api<BedplateMachine> =
            Api::namespaced(world.client.clone(), &observed.claim.spec.claimant.namespace);
        let claimant_name = &observed.claim.spec.claimant.name;
        let found =
            ask(&format!("BedplateMachine {claimant_name}"), claimants.get_opt(claimant_name)).await?;
        observed.claimant = found.map(Arc::new);
        observed.host = world.live_host(&name).await?.map(Arc::new);
        step = next(&observed);
    }
    world.leading(apply(&observed, step, &world)).await.map(|()| None)
}

/// Returns true if a step writes more than conditions.
const fn writes(step: ClaimStep) -> bool {
    match step {
        ClaimStep::Grant
        | ClaimStep::Delete
        | ClaimStep::Orphan
        | ClaimStep::CorrectUid
        | ClaimStep::RemoveFinalizer => true,
        ClaimStep::AwaitDeletion
        | ClaimStep::AwaitProviderId
        | ClaimStep::AwaitAgent
        | ClaimStep::AwaitRelease
        | ClaimStep::Granted => false,
    }
}

async fn apply(observed: &Observed, step: ClaimStep, world: &World) -> Result<(), WriteError> {
    let claim = &*observed.claim;
    if must_withdraw(claim) {
        world.wrote(Kind::Claim);
        grant::withdraw(&world.client, claim).await?;
        let reason = GrantedReason::GrantWithdrawn;
        // The end of a claim that was never granted changes no condition.
        if is_granted(claim) {
            return put(observed, step, Some((reason, reason.meaning())), world).await;
        }
    }
    if let Some(key) = enrollment(observed).filter(|_| claim.metadata.deletion_timestamp.is_none()) {
        // The former key may read the Secret until the grant names the new one.
        if is_granted(claim) && !has_started(claim) {
            let reason = GrantedReason::AwaitingAgent;
            return put(observed, step, Some((reason, reason.meaning())), world).await;
        }
        let annotations = json!({ ENROLLMENT_ANNOTATION: key.to_string() });
        return change(claim, &json!({ "metadata": { "annotations": annotations } }), world).await;
    }
    match step {
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
        ClaimStep::RemoveFinalizer => end(claim, world).await,
        ClaimStep::Orphan
        | ClaimStep::AwaitDeletion
        | ClaimStep::AwaitProviderId
        | ClaimStep::AwaitAgent
        | ClaimStep::AwaitRelease
        | ClaimStep::Granted => put(observed, step, None, world).await,
    }
}

/// Changes fields of a claim.
async fn change(claim: &MachineClaim, change: &Value, world: &World) -> Result<(), WriteError> {
    world.wrote(Kind::Claim);
    world.manager.merge(&Api::all(world.client.clone()), claim, change).await
}

/// Removes the finalizer of a claim whose host is released.
async fn end(claim: &MachineClaim, world: &World) -> Result<(), WriteError> {
    world.wrote(Kind::Claim);
    let (name, claims) = (claim.name_any(), Api::<MachineClaim>::all(world.client.clone()));
    world.manager.set_finalizer(&claims, claim, RELEASE_FINALIZER, false).await?;
    let claimant = &claim.spec.claimant;
    tracing::info!(claim = name, namespace = claimant.namespace, claimant = claimant.name, "host released");
    world.news.publish(claim, ProviderEvent::HostReleased, &format!("Machine {name} is released"));
    Ok(())
}

/// Lets the host read the user data, and start the claim.
async fn start(observed: &Observed, world: &World) -> Result<(), WriteError> {
    let (claim, name) = (&*observed.claim, observed.claim.name_any());
    let grant = observed.claimant.as_ref().and_then(|claimant| Grant::new(claim, claimant));
    if let Some(grant) = grant {
        world.wrote(Kind::Claim);
        if let Err(error) = grant.write(&world.client, world.manager).await {
            if let Some(why) = error.refusal() {
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
    let status = status(claim, step, granted, Timestamp::now());
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
