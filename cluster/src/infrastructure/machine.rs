//! BedplateMachines: each claims one host, shows the progress of its bootstrap, and releases it when it is deleted (M6, D1).
//!
//! Read: the stores. Steps that could harm with stale reads are decided again by live reads. Decided: `plan`, by the protocol of
//! `bedplate-claim`, and `turn`. One write for each reconciliation: the watch of what was written starts the next one.

pub mod assign;
pub mod checks;
pub mod line;
pub mod plan;
pub mod status;
pub mod tries;
pub mod turn;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_api::claim::{
    CLUSTER_LABEL, ENROLLMENT_ANNOTATION, MachineClaim, NAMESPACE_LABEL, RELEASE_FINALIZER,
};
use bedplate_api::cluster::core::{Cluster, Machine as Owner};
use bedplate_api::cluster::infrastructure::{BedplateMachine, FINALIZER};
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::id::MachineName;
use bedplate_api::machine::Machine;
use bedplate_api::reason::infrastructure::{HostClaimedReason, ProviderEvent};
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_claim::ClaimantStep;
use bedplate_engine::Context as _;
use bedplate_engine::object;
use bedplate_engine::write::{self, WriteError, ask};
use bedplate_process::exit::chain;
use bedplate_rules::fan_out::SITE;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use self::plan::{Next, Observed, claim_id, claim_spec, next, no_host};
use super::context::{Stores, World};
use crate::metrics::Kind;
use crate::owner::{cluster_name, owner};

/// Interval between two choices while no host is eligible.
const NO_HOST_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between two choices of the first claimant for which no host is left, because others come before it.
const MIN_TURN_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of claimants that are far behind.
const MAX_TURN_INTERVAL: Duration = Duration::from_secs(30);
/// Delay after a decision that live reads have not confirmed: the stores are behind.
const STALE_INTERVAL: Duration = Duration::from_secs(1);

/// Reconciles a BedplateMachine.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(
    machine: Arc<BedplateMachine>,
    world: Arc<World>,
) -> Result<Option<Duration>, WriteError> {
    if !world.scope.includes(machine.labels()) {
        return Ok(None);
    }
    let done = advance(machine.clone(), &world).await;
    if let Err(error) = &done
        && !matches!(error, WriteError::Deposed | WriteError::Conflict { .. })
        && world.turns.shows(&machine, Instant::now())
    {
        show(machine, error, &world).await;
    }
    done
}

/// Does the next step of a BedplateMachine.
async fn advance(machine: Arc<BedplateMachine>, world: &World) -> Result<Option<Duration>, WriteError> {
    let mut observed = observe(machine, world).await?;
    let mut decided = next(&observed);
    if let Next::Protocol(step) = decided
        && step.needs_live_read()
    {
        let Some(live) = observe_live(&observed, world).await? else { return Ok(None) };
        if next(&live) != decided {
            return Ok(Some(STALE_INTERVAL));
        }
        observed = live;
    }
    let mut chosen = None;
    if decided == Next::Protocol(ClaimantStep::Choose) {
        match world.turns.choose(&observed, (&world.stores, &world.scope), Instant::now()) {
            Ok(host) => {
                read_version(&mut observed, world).await?;
                decided = next(&observed);
                chosen = Some(host);
            }
            // No write: the host that is left for another claimant is held soon.
            Err(refusal) if refusal.shortage.has_wanted() && turn::waits(&observed.machine) => {
                return Ok(Some(turn_interval(refusal.ahead)));
            }
            Err(refusal) => {
                let namespace = observed.machine.namespace().unwrap_or_default();
                decided = no_host(&refusal.shortage, &namespace);
            }
        }
    }
    match decided {
        // Another claimant has the host that this one had recorded.
        Next::Protocol(ClaimantStep::Forget) => world.turns.lose(&observed.machine, Instant::now()),
        _ if ends_turn(&observed.machine, &decided) => world.turns.end(&observed.machine),
        _ => {}
    }
    world.leading(apply(&observed, &decided, chosen, world)).await?;
    let waits = matches!(decided, Next::Wait(HostClaimedReason::NoEligibleMachine, _));
    Ok(waits.then_some(NO_HOST_INTERVAL))
}

/// Returns true if a claimant takes no host now, or has one.
fn ends_turn(machine: &BedplateMachine, decided: &Next) -> bool {
    match decided {
        // `turn` has decided.
        Next::Wait(HostClaimedReason::NoEligibleMachine, _)
        | Next::Protocol(
            ClaimantStep::Choose
            | ClaimantStep::CreateClaim
            | ClaimantStep::SetProviderId
            | ClaimantStep::Forget,
        ) => false,
        // The host that it has recorded is left for it for a time.
        Next::Wait(..) => machine.spec.machine_name.is_none(),
        Next::Paused | Next::Protocol(_) => true,
    }
}

/// Interval of a claimant for which no host is left. `ahead`: number of those that wait too, and whose turn is earlier.
fn turn_interval(ahead: u32) -> Duration {
    MIN_TURN_INTERVAL.saturating_mul(ahead.saturating_add(1)).min(MAX_TURN_INTERVAL)
}

/// Shows in the condition of a claimant why its writes fail.
async fn show(machine: Arc<BedplateMachine>, error: &WriteError, world: &World) {
    let Ok(observed) = observe(machine, world).await else { return };
    let text = format!("failed to claim the chosen host: {}", chain(error));
    let decided = Next::Wait(HostClaimedReason::Claiming, text);
    // The caller reports the failure that is shown.
    let _ = world.leading(put_status(&observed, &decided, world)).await;
}

async fn observe(machine: Arc<BedplateMachine>, world: &World) -> Result<Observed, WriteError> {
    let stores = &world.stores;
    let Owners { owner, cluster, failure_domain_label } = Owners::of(&machine, stores);
    let host = machine.spec.machine_name.as_ref().map(MachineName::as_str);
    let reference = &machine.spec.configuration_ref;
    let configuration = stores.configurations.get(&ObjectRef::new(&reference.name));
    let mut observed = Observed {
        claim: host.and_then(|host| stores.claims.get(&ObjectRef::new(host))),
        host: host.and_then(|host| stores.hosts.get(&ObjectRef::new(host))),
        now: Timestamp::now(),
        failure_domain_label,
        configuration,
        version: None,
        is_version_read: false,
        owner,
        cluster,
        machine,
    };
    // A claimant that waits has had its version.
    if observed.machine.spec.provider_id.is_none() && !turn::waits(&observed.machine) {
        read_version(&mut observed, world).await?;
    }
    Ok(observed)
}

/// Reads the version that `configurationRef` names. The newest one is read with the host, before the claim is made.
async fn read_version(observed: &mut Observed, world: &World) -> Result<(), WriteError> {
    let given = observed.machine.spec.configuration_ref.version;
    if let Some(configuration) = observed.configuration.clone().filter(|_| given.is_some()) {
        observed.version = live_version(&configuration, given, world).await?;
        observed.is_version_read = true;
    }
    Ok(())
}

/// Objects that a BedplateMachine belongs to.
struct Owners {
    /// The Machine of Cluster API that owns it.
    owner: Option<Arc<Owner>>,
    /// The Cluster.
    cluster: Option<Arc<Cluster>>,
    /// Label of the Machines whose values are failure domains.
    failure_domain_label: Option<String>,
}

impl Owners {
    fn of(machine: &BedplateMachine, stores: &Stores) -> Self {
        let namespace = machine.namespace().unwrap_or_default();
        let owner = owner(machine, "Machine").and_then(|(name, uid)| {
            let owner = stores.owners.get(&ObjectRef::new(name).within(&namespace))?;
            (owner.metadata.uid.as_deref() == Some(uid)).then_some(owner)
        });
        let name =
            cluster_name(machine).or_else(|| owner.as_ref().map(|owner| owner.spec.cluster_name.as_str()));
        let cluster = name.and_then(|name| stores.clusters.get(&ObjectRef::new(name).within(&namespace)));
        let infrastructure = cluster.as_ref().and_then(|cluster| cluster.spec.infrastructure_ref.as_ref());
        let infrastructure = infrastructure.filter(|reference| reference.is_kind("BedplateCluster"));
        let infrastructure = infrastructure.and_then(|reference| {
            stores.infrastructures.get(&ObjectRef::new(&reference.name).within(&namespace))
        });
        let failure_domain_label = infrastructure.and_then(|found| found.spec.failure_domain_label.clone());
        Self { owner, cluster, failure_domain_label }
    }
}

/// Reads the version that a claim names: the given one, or the newest one. None: there is no such version.
async fn live_version(
    configuration: &MachineConfiguration,
    given: Option<i64>,
    world: &World,
) -> Result<Option<Arc<MachineConfigurationVersion>>, WriteError> {
    let newest = configuration.status.as_ref().and_then(|status| status.latest_version);
    let Some(version) = given.or(newest.filter(|version| *version > 0)) else { return Ok(None) };
    world.live_version(&configuration.name_any(), version).await.map(|found| found.map(Arc::new))
}

/// Reads the BedplateMachine, its claim and its host again. None: the BedplateMachine is gone.
async fn observe_live(observed: &Observed, world: &World) -> Result<Option<Observed>, WriteError> {
    let (name, namespace) = (observed.machine.name_any(), observed.machine.namespace().unwrap_or_default());
    let machines: Api<BedplateMachine> = Api::namespaced(world.client.clone(), &namespace);
    let found = ask(&format!("BedplateMachine {namespace}/{name}"), object::get(&machines, &name)).await?;
    let Some(machine) = found.filter(|found| found.metadata.uid == observed.machine.metadata.uid) else {
        return Ok(None);
    };
    let mut live = Observed { claim: None, host: None, machine: Arc::new(machine), ..observed.clone() };
    if let Some(host) = live.machine.spec.machine_name.as_ref().map(MachineName::as_str) {
        let claims: Api<MachineClaim> = Api::all(world.client.clone());
        live.claim = ask(&format!("MachineClaim {host}"), object::get(&claims, host)).await?.map(Arc::new);
        live.host = world.live_host(host).await?.map(Arc::new);
    }
    if live.claim.is_none() && live.machine.spec.provider_id.is_none() && live.host.is_some() {
        let reference = live.machine.spec.configuration_ref.clone();
        live.configuration = world.live_configuration(&reference.name).await?.map(Arc::new);
        live.version = match &live.configuration {
            Some(configuration) => live_version(configuration, reference.version, world).await?,
            None => None,
        };
        live.is_version_read = true;
    }
    Ok(Some(live))
}

async fn apply(
    observed: &Observed,
    decided: &Next,
    chosen: Option<MachineName>,
    world: &World,
) -> Result<(), WriteError> {
    let machine = &*observed.machine;
    let namespace = machine.namespace().unwrap_or_default();
    let machines: Api<BedplateMachine> = Api::namespaced(world.client.clone(), &namespace);
    let Next::Protocol(step) = decided else { return put_status(observed, decided, world).await };
    let host = chosen.or_else(|| machine.spec.machine_name.clone());
    match step {
        ClaimantStep::AddFinalizer | ClaimantStep::RemoveFinalizer => {
            world.wrote(Kind::Machine);
            let held = *step == ClaimantStep::AddFinalizer;
            world.manager.set_finalizer(&machines, machine, FINALIZER, held).await
        }
        ClaimantStep::Choose => {
            world.wrote(Kind::Machine);
            world.manager.merge(&machines, machine, &json!({ "spec": { "machineName": host } })).await
        }
        ClaimantStep::Forget => {
            world.wrote(Kind::Machine);
            world.manager.merge(&machines, machine, &json!({ "spec": { "machineName": null } })).await
        }
        ClaimantStep::SetProviderId => {
            let Some(host) = host else { return Ok(()) };
            let id = claim_id(machine, &host);
            world.wrote(Kind::Machine);
            world.manager.merge(&machines, machine, &json!({ "spec": { "providerID": id } })).await?;
            tracing::info!(namespace, machine = machine.name_any(), host = host.as_str(), "host claimed");
            world.news.publish(machine, ProviderEvent::HostClaimed, &format!("claims Machine {host}"));
            Ok(())
        }
        ClaimantStep::CreateClaim => create_claim(observed, world).await,
        ClaimantStep::DeleteClaim => {
            let Some(claim) = &observed.claim else { return Ok(()) };
            world.wrote(Kind::Machine);
            let claims: Api<MachineClaim> = Api::all(world.client.clone());
            write::delete(&claims, &claim.name_any(), claim.uid(), None).await
        }
        ClaimantStep::Claimed
        | ClaimantStep::Lost
        | ClaimantStep::AwaitRelease
        | ClaimantStep::AwaitHost
        | ClaimantStep::Done => put_status(observed, decided, world).await,
    }
}

/// Creates the claim of the recorded host. If there is one already, the next reconciliation decides whose it is.
async fn create_claim(observed: &Observed, world: &World) -> Result<(), WriteError> {
    let Some((spec, host)) = claim_spec(observed).zip(observed.host.as_deref()) else { return Ok(()) };
    world.wrote(Kind::Machine);
    let claims: Api<MachineClaim> = Api::all(world.client.clone());
    let claim = claim(spec, host);
    let parameters = world.manager.post();
    let created = claims.create(&parameters, &claim);
    ask(&format!("MachineClaim {}", claim.name_any()), created).await.map(drop)
}

fn claim(spec: bedplate_api::claim::MachineClaimSpec, host: &Machine) -> MachineClaim {
    let site = host.spec.site.to_string();
    let labels =
        [(CLUSTER_LABEL, &spec.cluster_name), (NAMESPACE_LABEL, &spec.claimant.namespace), (SITE, &site)];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.clone())).into();
    let enrollment = host.status.as_ref().and_then(|status| status.enrollment.as_ref());
    let key = enrollment.and_then(|enrollment| enrollment.key_id.as_ref());
    let mut claim = MachineClaim::new(&host.name_any(), spec);
    claim.metadata.labels = Some(labels);
    claim.metadata.annotations = key.map(|key| [(ENROLLMENT_ANNOTATION.to_owned(), key.to_string())].into());
    claim.metadata.finalizers = Some(vec![RELEASE_FINALIZER.to_owned()]);
    claim.metadata.owner_references = Some(host.owner_ref(&()).into_iter().collect());
    claim
}

/// Writes the status, if it changes.
async fn put_status(observed: &Observed, decided: &Next, world: &World) -> Result<(), WriteError> {
    let machine = &*observed.machine;
    if *decided == Next::Protocol(ClaimantStep::Done) {
        return Ok(());
    }
    let status = status::status(observed, decided, Timestamp::now());
    if machine.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let machines: Api<BedplateMachine> =
        Api::namespaced(world.client.clone(), &machine.namespace().unwrap_or_default());
    world.wrote(Kind::Machine);
    world.manager.apply_status(&machines, machine, &status).await?;
    let (reason, message) = host_claimed(&status.conditions);
    let before = machine.status.as_ref().map(|status| host_claimed(&status.conditions).0);
    let event = match decided {
        Next::Wait(HostClaimedReason::NoEligibleMachine, _) => ProviderEvent::NoEligibleMachine,
        Next::Protocol(ClaimantStep::Lost) => ProviderEvent::ClaimLost,
        Next::Paused | Next::Wait(..) | Next::Protocol(_) => return Ok(()),
    };
    if before != Some(reason) {
        world.news.publish(machine, event, message);
    }
    Ok(())
}

/// Reason and message of condition `HostClaimed`.
fn host_claimed(conditions: &[bedplate_api::machine::Condition]) -> (&str, &str) {
    use bedplate_api::cluster::infrastructure::condition_type::HOST_CLAIMED;
    let found = conditions.iter().find(|condition| condition.type_ == HOST_CLAIMED);
    found.map_or(("", ""), |condition| (&condition.reason, &condition.message))
}
