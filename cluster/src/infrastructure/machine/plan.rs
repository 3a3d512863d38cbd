//! Pure: the next write for a BedplateMachine, or what it waits for.
//!
//! ```text
//! owner, Cluster -> finalizer -> Cluster provisioned -> bootstrap data -> configuration -> host chosen -> claim protocol (bedplate-claim)
//! ```
//! Prerequisites count until the claim is made. From then on the protocol decides.

use std::sync::Arc;

use bedplate_api::claim::{
    ClaimState, Claimant, HOST_IS_OFF_ANNOTATION, MachineClaim, MachineClaimSpec, ReleasePolicy,
    condition_type, provider_id,
};
use bedplate_api::cluster::core::{Cluster, Machine as Owner};
use bedplate_api::cluster::infrastructure::{BedplateMachine, FINALIZER, StateDiskRequirement};
use bedplate_api::configuration::{MachineConfiguration, NodeRole};
use bedplate_api::id::MachineName;
use bedplate_api::machine::{ConfigurationRef, Machine};
use bedplate_api::reason::infrastructure::HostClaimedReason;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_claim::{ClaimantStep, HeldBy, Host, next_of_claimant};
use bedplate_rules::claim::eligible::{heartbeat, is_ahead, is_heard};
use jiff::Timestamp;
use kube::ResourceExt;

use crate::infrastructure::choose::{self, Request, Shortage};
use crate::owner::{cluster_name, is_control_plane, is_paused};

/// Objects that decide about a BedplateMachine.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The BedplateMachine.
    pub machine: Arc<BedplateMachine>,
    /// The Machine of Cluster API that owns it.
    pub owner: Option<Arc<Owner>>,
    /// The Cluster.
    pub cluster: Option<Arc<Cluster>>,
    /// The claim with the name of the recorded host.
    pub claim: Option<Arc<MachineClaim>>,
    /// The recorded host.
    pub host: Option<Arc<Machine>>,
    /// The configuration that the host runs.
    pub configuration: Option<Arc<MachineConfiguration>>,
    /// The version that the claim names: that of `configurationRef`, otherwise the newest one. None: there is none yet.
    pub version: Option<Arc<MachineConfigurationVersion>>,
    /// True if the version was read. If not, it is taken to be there: it is read before the write that needs it.
    pub is_version_read: bool,
    /// Label of the Machines whose values are failure domains.
    pub failure_domain_label: Option<String>,
    /// The present time.
    pub now: Timestamp,
}

/// Next write, or what is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it is paused.
    Paused,
    /// Nothing yet.
    Wait(HostClaimedReason, String),
    /// The protocol decides.
    Protocol(ClaimantStep),
}

/// Decides.
pub fn next(observed: &Observed) -> Next {
    let machine = &observed.machine;
    if is_paused(&**machine, observed.cluster.as_deref()) {
        return Next::Paused;
    }
    let is_deleting = machine.metadata.deletion_timestamp.is_some();
    let has_finalizer = machine.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    if !is_deleting && (observed.owner.is_none() || observed.cluster.is_none()) {
        let what = if observed.owner.is_none() {
            "no Machine owns the BedplateMachine"
        } else {
            "the Cluster of the BedplateMachine does not exist"
        };
        return Next::Wait(HostClaimedReason::WaitingForOwner, what.to_owned());
    }
    let claimant = bedplate_claim::Claimant {
        is_deleting,
        has_finalizer,
        machine_name: machine.spec.machine_name.as_ref().map(MachineName::as_str),
        provider_id: machine.spec.provider_id.as_deref(),
    };
    let step = next_of_claimant(&claimant, held_by(observed), host(observed));
    // A host may have been recorded long ago, or by a user. A claim that is made again has met them.
    let is_first = step == ClaimantStep::CreateClaim && machine.spec.provider_id.is_none();
    if step != ClaimantStep::Choose && !is_first {
        return Next::Protocol(step);
    }
    match prerequisites(observed) {
        Ok(()) => Next::Protocol(step),
        Err((reason, message)) => Next::Wait(reason, message),
    }
}

/// Checks what must be there before a host is chosen (M6, D2).
fn prerequisites(observed: &Observed) -> Result<(), (HostClaimedReason, String)> {
    let cluster = observed.cluster.as_ref().and_then(|cluster| cluster.status.as_ref());
    if cluster.and_then(|status| status.initialization.infrastructure_provisioned) != Some(true) {
        let text = "the infrastructure of the Cluster is not provisioned".to_owned();
        return Err((HostClaimedReason::WaitingForClusterInfrastructure, text));
    }
    let Some(owner) = &observed.owner else {
        return Err((HostClaimedReason::WaitingForOwner, "no Machine owns the BedplateMachine".to_owned()));
    };
    if owner.spec.bootstrap.data_secret_name.is_none() {
        let text = format!("Machine {} has no bootstrap data", owner.name_any());
        return Err((HostClaimedReason::WaitingForBootstrapData, text));
    }
    let reference = &observed.machine.spec.configuration_ref;
    let name = &reference.name;
    let Some(configuration) = &observed.configuration else {
        let text = format!("MachineConfiguration {name} does not exist");
        return Err((HostClaimedReason::ConfigurationNotFound, text));
    };
    let namespace = observed.machine.namespace().unwrap_or_default();
    if !configuration.spec.claim_policy.as_ref().is_some_and(|policy| policy.allows(&namespace)) {
        let text = format!(
            "MachineConfiguration {name} does not allow claims of namespace {namespace} (spec.claimPolicy)"
        );
        return Err((HostClaimedReason::ConfigurationForbidden, text));
    }
    let offered = match (reference.version, &observed.version) {
        (None, _) => &configuration.spec.template.kubernetes.version,
        (Some(_), Some(version)) => &version.spec.template.kubernetes.version,
        (Some(_), None) if !observed.is_version_read => return Ok(()),
        (Some(version), None) => {
            let text = format!("MachineConfiguration {name} has no version {version}");
            return Err((HostClaimedReason::ConfigurationNotFound, text));
        }
    };
    match &owner.spec.version {
        Some(wanted) if wanted.trim_start_matches('v') != offered.trim_start_matches('v') => {
            let text = format!(
                "Machine {} needs Kubernetes {wanted}, but MachineConfiguration {name} has {offered}",
                owner.name_any()
            );
            Err((HostClaimedReason::VersionMismatch, text))
        }
        _ => Ok(()),
    }
}

/// Returns true if a claim is that of this BedplateMachine, also if one of them was restored from a backup.
pub fn is_own(claim: &MachineClaim, machine: &BedplateMachine) -> bool {
    let claimant = &claim.spec.claimant;
    let is_named = Some(&claimant.namespace) == machine.metadata.namespace.as_ref()
        && claimant.name == machine.name_any();
    let is_same = Some(&claimant.uid) == machine.metadata.uid.as_ref();
    is_named && (is_same || Some(&claim.spec.provider_id) == machine.spec.provider_id.as_ref())
}

/// State of a claim on its host. None if the agent has not reported this claim.
pub fn reported_state(claim: &MachineClaim) -> Option<ClaimState> {
    let status = claim.status.as_ref()?;
    status.state.filter(|_| status.provider_id.as_ref() == Some(&claim.spec.provider_id))
}

fn held_by(observed: &Observed) -> HeldBy {
    match &observed.claim {
        None => HeldBy::Free,
        Some(claim) if !is_own(claim, &observed.machine) => HeldBy::Other,
        Some(claim) => HeldBy::Own {
            is_deleting: claim.metadata.deletion_timestamp.is_some(),
            is_released: reported_state(claim).is_some_and(ClaimState::is_emptied) || is_fenced(claim),
        },
    }
}

fn host(observed: &Observed) -> Host {
    let Some(host) = &observed.host else { return Host::Gone };
    let machine = &*observed.machine;
    let reported = host.status.as_ref().and_then(|status| status.claim.as_ref());
    let runs_own = reported.is_some_and(|claim| {
        Some(&claim.provider_id) == machine.spec.provider_id.as_ref()
            && Some(&claim.claimant.namespace) == machine.metadata.namespace.as_ref()
            && claim.claimant.name == machine.name_any()
            && claim.state.holds_host()
    });
    if !runs_own {
        let is_eligible = host.name_any().parse::<MachineName>().is_ok_and(|name| {
            let namespace = machine.namespace().unwrap_or_default();
            choose::is_eligible(host, &namespace, &claim_id(machine, &name), release(machine))
        });
        return if is_eligible { Host::Eligible } else { Host::Ineligible };
    }
    let id = machine.spec.provider_id.as_deref().unwrap_or_default();
    if machine.metadata.deletion_timestamp.is_some() && is_confirmed_off(host, id) {
        return Host::Ineligible;
    }
    // A host whose clock is ahead may run: the claim that is created again is fenced if the heartbeat does not change.
    let is_clock_ahead = heartbeat(host).is_some_and(|heartbeat| is_ahead(heartbeat, observed.now));
    if is_heard(host, observed.now) || is_clock_ahead { Host::RunsOwn } else { Host::SilentOwn }
}

/// Returns true if a user has confirmed that the host of a claim is off (D8).
pub(crate) fn is_confirmed_off(host: &Machine, provider_id: &str) -> bool {
    host.annotations().get(HOST_IS_OFF_ANNOTATION).is_some_and(|id| id == provider_id)
}

/// Returns true if condition `Fenced` of a claim is True.
pub fn is_fenced(claim: &MachineClaim) -> bool {
    let conditions = claim.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|one| one.type_ == condition_type::FENCED && one.status == "True")
}

/// Cleanup at the release that a BedplateMachine asks for.
fn release(machine: &BedplateMachine) -> ReleasePolicy {
    machine.spec.release.unwrap_or_default()
}

/// Cleanup at the release of a claim that is made now: the stronger one of claimant and host. A claim that is in place does not change.
fn effective_release(observed: &Observed) -> ReleasePolicy {
    let asked = release(&observed.machine);
    let policy = observed.host.as_ref().and_then(|host| host.spec.claim_policy.as_ref());
    policy.map_or(asked, |policy| policy.release_of(asked))
}

/// Returns the requirements of a claimant on a host. `label`: label of the Machines whose values are failure domains.
pub fn request<'a>(
    machine: &'a BedplateMachine,
    owner: Option<&'a Owner>,
    label: Option<&'a str>,
    namespace: &'a str,
) -> Request<'a> {
    let is_control_plane = owner.is_some_and(is_control_plane);
    let default = if is_control_plane { StateDiskRequirement::Required } else { StateDiskRequirement::Any };
    let domain = owner.and_then(|owner| owner.spec.failure_domain.as_deref());
    Request {
        uid: machine.metadata.uid.as_deref().unwrap_or_default(),
        namespace,
        selector: machine.spec.machine_selector.as_ref(),
        failure_domain: label.zip(domain),
        needs_state_disk: machine.spec.state_disk.unwrap_or(default) == StateDiskRequirement::Required,
        release: release(machine),
    }
}

/// Returns what is waited for if no host is eligible.
pub(crate) fn no_host(shortage: &Shortage, namespace: &str) -> Next {
    Next::Wait(HostClaimedReason::NoEligibleMachine, shortage.message(namespace))
}

/// Returns the ID of the claim of a host.
pub(crate) fn claim_id(machine: &BedplateMachine, host: &MachineName) -> String {
    let uid = machine.metadata.uid.as_deref().unwrap_or_default();
    machine.spec.provider_id.clone().unwrap_or_else(|| provider_id(host, uid))
}

/// Returns the claim of the recorded host. None if there is no owner or no host.
pub(crate) fn claim_spec(observed: &Observed) -> Option<MachineClaimSpec> {
    let machine = &observed.machine;
    let (owner, host) = (observed.owner.as_deref()?, machine.spec.machine_name.as_ref()?);
    let secret = owner.spec.bootstrap.data_secret_name.as_ref().filter(|name| !name.is_empty());
    Some(MachineClaimSpec {
        claimant: Claimant {
            namespace: machine.namespace()?,
            name: machine.name_any(),
            uid: machine.metadata.uid.clone()?,
        },
        cluster_name: cluster_name(&**machine).map_or_else(|| owner.spec.cluster_name.clone(), str::to_owned),
        role: if is_control_plane(owner) { NodeRole::ControlPlane } else { NodeRole::Worker },
        node_name: node_name(&machine.name_any()),
        provider_id: claim_id(machine, host),
        configuration_ref: configuration_ref(observed),
        bootstrap_secret_name: secret.cloned(),
        release: effective_release(observed),
        vip: None,
    })
}

/// Returns the configuration of a claim, with the version that was checked. A later change of the configuration does not change the claim.
fn configuration_ref(observed: &Observed) -> ConfigurationRef {
    let mut reference = observed.machine.spec.configuration_ref.clone();
    let template = observed.configuration.as_ref().map(|configuration| &configuration.spec.template);
    let newest = observed.version.as_ref().filter(|version| Some(&version.spec.template) == template);
    reference.version = reference.version.or_else(|| newest.map(|version| version.spec.version));
    reference
}

/// Returns the name of the Node: that of the BedplateMachine, or its start and a hash if it is not a DNS label (D5).
fn node_name(name: &str) -> MachineName {
    if let Ok(name) = name.parse() {
        return name;
    }
    // FNV-1a: the name must not change with a version of Bedplate.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let start: String = name.chars().map(|c| if c == '.' { '-' } else { c }).take(46).collect();
    let text = format!("{}-{hash:016x}", start.trim_end_matches('-'));
    text.parse().expect("the name of an object begins with a letter or a digit")
}

#[cfg(test)]
mod tests;
