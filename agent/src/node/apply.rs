//! Carries out one step of the plan. Each step may be repeated, and killed at any point: it records its
//! purpose before it acts, and its result afterwards.
//!
//! Called by `run`.

mod annotate;
pub(super) mod claim;
mod destination;
mod failure_log;
mod kubelet;
mod leave_etcd;
mod outcome;
mod packet_filter;
mod prepare;
mod renew_kubelet;
mod start;
mod stop;

use bedplate_api::configuration::SecretRef;
use bedplate_api::machine::{SlotName, VersionRef};
use bedplate_api::reason::machine::PavedReason;
use bedplate_bootstrap::template::CheckTemplateError;
use bedplate_bootstrap::{
    Discovery, InitInput, Input, JOIN_KUBECONFIG, RenderKubeadmError, Rendered, init, join, makes_a_cluster,
};
use bedplate_oci::node::EnsureNodeImageError;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::effects::{Parts, Say};
use super::observe::ObserveError;
use super::trash::make_room;
use crate::bus::{BusError, LoadState, UnitName, UnitNameError};
use crate::fault::is_no_room;
use crate::kubelet::client::AskNodeError;
use crate::model::{Act, Observed, Record, Stage, Step};
use crate::plane::{AskServerError, ReadSecretError};
use crate::slot::contents::MakeContentsError;
use crate::slot::fill_record::Filled;
use crate::slot::render::RenderSlotError;
use crate::slot::store::{KeepSlotError, Slots};

pub use super::etcd_member::LeaveEtcdError;
pub use outcome::allow_again;
pub(super) use prepare::forget_left_access;
pub(super) use renew_kubelet::take_back_left;
pub(crate) use start::host_files;

/// Error of a step. The step is retried.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The host could not be observed to verify that the step is still planned.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The slot's files.
    #[error(transparent)]
    Slot(#[from] KeepSlotError),
    /// D-Bus.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The unit name is not valid.
    #[error(transparent)]
    Name(#[from] UnitNameError),
    /// The version cannot be rendered for the host.
    #[error(transparent)]
    Host(#[from] RenderSlotError),
    /// The version's files cannot be made.
    #[error(transparent)]
    Contents(#[from] MakeContentsError),
    /// The template, for each host of this plane.
    #[error("spec.template.{0}")]
    Template(#[from] CheckTemplateError),
    /// The node would be one of another cluster.
    #[error(
        "kubernetes.{field} leads to another cluster than this Machine's: {why}; correct the \
         MachineConfiguration, or omit the field to join this Machine's cluster \
         (docs/reference/kubeadm.md, \"Which cluster a node joins\")"
    )]
    OtherCluster {
        /// Field of the version.
        field: &'static str,
        /// Result of the comparison.
        why: String,
    },
    /// The node may belong to another cluster.
    #[error(
        "kubernetes.{field} may lead to another cluster than this Machine's: {why}; set a value that the \
         host can verify, or omit the field to join this Machine's cluster (docs/reference/kubeadm.md, \
         \"Which cluster a node joins\")"
    )]
    ClusterUnverified {
        /// Field of the version.
        field: &'static str,
        /// The missing part.
        why: String,
    },
    /// The version cannot be rendered for kubeadm.
    #[error("the MachineConfiguration is not valid for kubeadm; correct it")]
    Kubeadm(#[from] RenderKubeadmError),
    /// The node image is not available.
    #[error(transparent)]
    Image(#[from] EnsureNodeImageError),
    /// A Secret that the version names.
    #[error(transparent)]
    Secret(#[from] ReadSecretError),
    /// A Secret does not have the required key.
    #[error("Secret {}/{} has no key {key}; a pull secret must have the type kubernetes.io/dockerconfigjson", secret.namespace, secret.name)]
    NoPullSecret {
        /// The Secret.
        secret: SecretRef,
        /// The key that it lacks.
        key: &'static str,
    },
    /// The Node does not have its annotations.
    #[error("failed to write the version's annotations to the Node")]
    Annotate(#[source] AskNodeError),
    /// The provider did not get the state of the claim.
    #[error("failed to write the status of the MachineClaim")]
    Report(#[source] AskServerError),
    /// The Node does not have the provider ID and the label of its claim.
    #[error("failed to write providerID and label to the Node")]
    Mark(#[source] AskNodeError),
    /// The deletion of the Node is not verified.
    #[error("failed to verify that the Node is deleted")]
    Ask(#[source] AskServerError),
    /// A job of systemd failed.
    #[error("{unit} ended with {result:?}{said}; see `systemctl status {unit}` on the host")]
    Job {
        /// Unit of the job.
        unit: UnitName,
        /// Result in the words of systemd.
        result: String,
        /// Cause from the unit's state, after a colon; may be empty.
        said: String,
    },
    /// The slot cannot start Pods.
    #[error("failed to start a Pod sandbox: {0}")]
    Sandbox(String),
    /// The kubelet's certificate was not renewed.
    #[error(
        "the certificate of the kubelet expired and was not renewed; `kubectl get csr` shows whether its \
         request is pending approval; when standalone, the token or kubeconfig that the version joins by \
         may have expired (docs/concepts/node.md, \"Without a cluster\")"
    )]
    KubeletCertificate,
    /// The version has no data to request another certificate with.
    #[error(
        "the certificate of the kubelet expired, and the version's join configuration cannot request \
         another one: {0}; docs/concepts/node.md, \"Without a cluster\", describes how to renew it or \
         repave the host"
    )]
    KubeletWay(String),
    /// The etcd member of a control plane that should leave its cluster.
    #[error("the etcd member of this host has not left its cluster, so its slot is kept")]
    Leave(#[from] LeaveEtcdError),
    /// The cluster was not asked for the kubelet's certificate.
    #[error("failed to request the kubelet's certificate")]
    AskCertificate(#[source] AskServerError),
    /// The kubelet's certificate is not issued yet.
    #[error(
        "certificate request {name} is not {missing} yet; bedplate-controller approves it (before Kubernetes 1.32 a user: \
         `kubectl certificate approve {name}`), kube-controller-manager signs it"
    )]
    CertificatePending {
        /// Name of the request.
        name: String,
        /// The next step that is missing: `approved` or `signed`.
        missing: &'static str,
    },
    /// The kubelet's certificate is refused.
    #[error(
        "certificate request {name} was refused ({why}); correct the cause, then run `kubectl delete csr {name}`"
    )]
    CertificateRefused {
        /// Name of the request.
        name: String,
        /// Condition of the request.
        why: String,
    },
    /// No credential to join with.
    #[error("no credential for the join: {0}")]
    Credential(String),
    /// The host lacks something.
    #[error("{0}")]
    Unfit(String),
    /// The plan has changed.
    #[error("step canceled: {0}")]
    Superseded(&'static str),
}

impl ApplyError {
    /// Reason for the condition `Paved`. None if the step was superseded, which is not a failure.
    pub fn reason(&self) -> Option<PavedReason> {
        Some(match self {
            error if is_no_room(error) => PavedReason::InsufficientSpace,
            Self::Observe(error) => error.reason(),
            Self::Slot(_) => PavedReason::DiskError,
            Self::Bus(BusError::Inhibited { .. }) => PavedReason::ShutdownInhibited,
            Self::Bus(_) | Self::Name(_) => PavedReason::DbusError,
            Self::Host(RenderSlotError::NoUplink) => PavedReason::HostUnsupported,
            Self::Host(_)
            | Self::Contents(_)
            | Self::Kubeadm(_)
            | Self::Template(_)
            | Self::OtherCluster { .. }
            | Self::ClusterUnverified { .. } => PavedReason::InvalidConfiguration,
            Self::Image(EnsureNodeImageError::NoRoom { .. }) => PavedReason::InsufficientSpace,
            Self::Image(_) => PavedReason::ImageUnavailable,
            Self::Secret(error) => error.reason(),
            Self::NoPullSecret { .. } => PavedReason::SecretInvalid,
            Self::Ask(_) | Self::Annotate(_) | Self::AskCertificate(_) | Self::Report(_) | Self::Mark(_) => {
                PavedReason::ApiServerUnreachable
            }
            Self::Job { .. } => PavedReason::UnitFailed,
            Self::Sandbox(_) => PavedReason::SandboxFailed,
            Self::KubeletCertificate | Self::KubeletWay(_) => PavedReason::KubeletCertificateExpired,
            Self::CertificatePending { .. } => PavedReason::CertificateApprovalRequired,
            Self::CertificateRefused { .. } => PavedReason::CertificateDenied,
            Self::Leave(_) => PavedReason::ControlPlaneProtected,
            Self::Credential(_) => PavedReason::CredentialUnavailable,
            Self::Unfit(_) => PavedReason::HostUnsupported,
            Self::Superseded(_) => return None,
        })
    }
}

/// Carries out a step. `observed`: input of its plan.
///
/// # Errors
/// It did not succeed, and may be tried again.
pub async fn apply(
    parts: &Parts,
    step: &Step,
    observed: &Observed,
    now: Timestamp,
    cancel: &CancellationToken,
    say: Say<'_>,
) -> Result<(), ApplyError> {
    let slot = step.slot;
    match &step.act {
        Act::PrepareSlot { version } => fill(parts, slot, version, cancel, say).await,
        Act::BeginTrial => outcome::begin_trial(parts, slot, &observed.node, now).await,
        Act::RestartTrial => outcome::restart_trial(parts, slot, now).await,
        Act::StopSlot => stop::stop(parts, slot).await,
        Act::StartSlot => start::start(parts, slot, say).await,
        Act::ProbeSandbox => probe(parts, slot).await,
        Act::Commit { node_uid } => outcome::commit(parts, slot, node_uid, now).await,
        Act::LeaveCluster => leave_etcd::leave(parts, slot, observed.slots[slot].leaving).await,
        Act::Retire => outcome::change(parts, slot, |record| record.stage = Stage::Retired).await,
        Act::Fail { reason, log, back_to } => outcome::fail(parts, slot, reason, *log, *back_to, now).await,
        Act::Abandon => {
            // Before the record is removed, by which a restarted agent would repeat the step.
            if parts.seen().machine_facts().is_some_and(|machine| machine.deleting) {
                parts.on_disk(Slots::discard_failed_logs).await?;
            }
            empty(parts, slot).await
        }
        Act::RenewKubelet => renew_kubelet::renew(parts, slot, say).await,
        Act::AnnotateNode { node_uid } => annotate::annotate(parts, slot, node_uid).await,
        Act::AdoptNode { node_uid } => {
            let uid = node_uid.clone();
            outcome::change(parts, slot, move |record: &mut Record| {
                if let Stage::Applied { node_uid, .. } = &mut record.stage {
                    *node_uid = uid;
                }
            })
            .await
        }
    }
}

/// Fills a slot. A slot that does not fit is emptied, because the running node may be on the same disk. It is filled again once former contents
/// of the slots and the logs of failed trials, which are removed in the background, have made room.
async fn fill(
    parts: &Parts,
    slot: SlotName,
    version: &VersionRef,
    cancel: &CancellationToken,
    say: Say<'_>,
) -> Result<(), ApplyError> {
    let has_no_room = |filled: &Result<(), ApplyError>| {
        filled.as_ref().is_err_and(|error| error.reason() == Some(PavedReason::InsufficientSpace))
    };
    let mut filled = prepare::prepare(parts, slot, version, cancel, say).await;
    if has_no_room(&filled) {
        empty(parts, slot).await?;
        parts.on_disk(Slots::discard_failed_logs).await?;
        if make_room(parts, cancel, say).await? {
            filled = prepare::prepare(parts, slot, version, cancel, say).await;
            if has_no_room(&filled) {
                empty(parts, slot).await?;
            }
        }
    }
    filled
}

/// Empties a slot that does not run.
async fn empty(parts: &Parts, slot: SlotName) -> Result<(), ApplyError> {
    stop::unmount(parts, slot).await?;
    Ok(parts.on_disk(move |slots| slots.clear(slot)).await?)
}

/// Renders the kubeadm configuration of a slot.
fn rendered(parts: &Parts, filled: &Filled) -> Result<Rendered, RenderKubeadmError> {
    let provider_id = format!("bedplate://{}", parts.machine);
    let kubernetes = &filled.template.kubernetes;
    let (node_name, cri_socket) = (&parts.machine, filled.cri_socket.as_str());
    if makes_a_cluster(kubernetes) {
        return init(&InitInput { node_name, provider_id: &provider_id, kubernetes, cri_socket });
    }
    let discovery = Discovery::File { kubeconfig_path: JOIN_KUBECONFIG };
    join(&Input { node_name, provider_id: &provider_id, kubernetes, cri_socket, discovery })
}

/// Makes systemd read unit files again, if `changed` or if an earlier agent was killed before it did.
async fn reload(parts: &Parts, unit: &UnitName, changed: bool) -> Result<(), ApplyError> {
    let state = parts.units.state(unit).await?;
    if changed || state.needs_reload != Some(false) || state.load != LoadState::Loaded {
        parts.units.daemon_reload().await?;
    }
    Ok(())
}

/// Returns the error of a failed systemd job.
async fn job_error(parts: &Parts, unit: UnitName, result: String) -> ApplyError {
    let state = parts.units.state(&unit).await.ok();
    let said = state.map(|state| {
        let words = [state.result.filter(|word| word != "success"), state.status_text];
        words.into_iter().flatten().map(|word| format!(": {word}")).collect::<String>()
    });
    ApplyError::Job { unit, result, said: said.unwrap_or_default() }
}

async fn probe(parts: &Parts, slot: SlotName) -> Result<(), ApplyError> {
    let none = || ApplyError::Sandbox("the slot no longer runs".to_owned());
    let leader = parts.leader(slot).await?.ok_or_else(none)?;
    let filled = parts.on_disk(move |slots| slots.filled(slot)).await?.ok_or_else(none)?;
    let attempt = rand::random::<u32>() >> 1;
    parts.gate.sandbox(leader, &filled.cri_socket, attempt).await.map_err(ApplyError::Sandbox)
}
