//! Pure: the state of each Machine of a configuration in a rolling update (C4).
//!
//! ```text
//! Outdated --take: selected--> Preparing --the other slot is filled--> Prepared --cordon--> Draining --Node deleted--> Repaving --> UpToDate
//!                                                                                     `--failed or timed out: Failed
//! ```
//!
//! All of it is read from objects: `selected` and `slots` of the Machine, its Node and what `mark` has on it.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::condition::{Conditions as _, is_false};
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::{DeletionPolicy, Machine, MachineStatus, Selected, SlotState, condition_type};
use bedplate_api::reason::configuration::DegradedReason;
use bedplate_api::reason::machine::PavedReason;
use bedplate_api::reason::{ConditionReason, Reason};
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_bootstrap::makes_a_cluster;
use bedplate_rules::claim::claimant;
use bedplate_rules::selection::repave;
use k8s_openapi::api::core::v1::Node;

use crate::cache::waits::{Wait, is_late};
use crate::configuration_conditions::is_missing_reported;
use crate::cordon::{self, Cordon, Hold, Purpose, cordon_of, is_ready};
use crate::foreign_node::foreign;

/// Maximum time from the choice of a version to its prepared slot for which no other Machine is taken. An image may need most of it.
const PREPARATION_LIMIT: Duration = Duration::from_secs(3600);
/// Reason of a Machine that does not prepare its version in time and whose agent does not report a cause.
const PREPARATION_OVERDUE: &str = "PreparationOverdue";

/// Meaning of a reason of the agent's condition `Paved` for a rolling update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outlook {
    /// The version is on its way into a slot.
    Preparing,
    /// The agent waits for something that may never come.
    Waiting,
    /// The host did not become a node with its version.
    Failed,
    /// This host cannot take the version.
    Unsupported,
}

impl From<PavedReason> for Outlook {
    fn from(reason: PavedReason) -> Self {
        match reason {
            PavedReason::Applied | PavedReason::Preparing | PavedReason::ClearingSlot => Self::Preparing,
            PavedReason::HealthGateFailed
            | PavedReason::BackOff
            | PavedReason::VersionRejected
            | PavedReason::InvalidConfiguration => Self::Failed,
            PavedReason::HostUnsupported | PavedReason::DiskError | PavedReason::InsufficientSpace => {
                Self::Unsupported
            }
            PavedReason::Starting
            | PavedReason::Stopping
            | PavedReason::Joining
            | PavedReason::CheckingHealth
            | PavedReason::NoVersionSelected
            | PavedReason::VersionUnavailable
            | PavedReason::ApiServerUnreachable
            | PavedReason::Paused
            | PavedReason::MachineDeleting
            | PavedReason::MachineNotFound
            | PavedReason::Claimed
            | PavedReason::AwaitingSelection
            | PavedReason::ControlPlaneProtected
            | PavedReason::NodeStillReady
            | PavedReason::ImageUnavailable
            | PavedReason::SecretForbidden
            | PavedReason::SecretNotFound
            | PavedReason::SecretInvalid
            | PavedReason::KubeletCertificateExpired
            | PavedReason::CertificateApprovalRequired
            | PavedReason::CertificateDenied
            | PavedReason::UnitFailed
            | PavedReason::SandboxFailed
            | PavedReason::DbusError
            | PavedReason::ShutdownInhibited
            | PavedReason::CredentialUnavailable
            // A claimed Machine is skipped. A failure of its user data concerns its claimant, not the version.
            | PavedReason::AwaitingClaim
            | PavedReason::Bootstrapping
            | PavedReason::BootstrapFailed
            | PavedReason::Interrupted
            | PavedReason::UserDataRefused
            | PavedReason::ClaimMissing
            | PavedReason::ClaimRefused
            | PavedReason::Releasing
            | PavedReason::Wiping
            | PavedReason::WipeNotPossible => Self::Waiting,
        }
    }
}

/// Nodes by their names.
pub type Nodes<'a> = &'a dyn Fn(&str) -> Option<Arc<Node>>;

/// Times about Machines, by the controller's own clocks.
#[derive(Clone, Copy)]
pub struct Clocks<'a> {
    /// Returns true if a Machine's agent is unreachable.
    pub silent: &'a dyn Fn(&Machine) -> bool,
    /// Returns the time for which a Machine has waited for its selected version.
    pub wait: &'a dyn Fn(&Machine) -> Wait,
}

impl std::fmt::Debug for Clocks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clocks").finish_non_exhaustive()
    }
}

/// A Machine of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Name of the Machine and its Node.
    pub name: String,
    /// Reason why the Machine is unavailable. `None` if it is available.
    pub unavailable: Option<&'static str>,
    /// State of the Machine in the rolling update.
    pub place: Place,
    /// The controller's own cordon on its Node.
    pub hold: Option<Hold>,
    /// UID of its Node.
    pub node_uid: Option<String>,
    /// True if the Machine is being deleted with `deletionPolicy: Drain`. Its drain (`deletion`) continues
    /// with any cordon of this controller.
    pub departs: bool,
}

/// State of a Machine in a rolling update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The Machine has the version that a repave would select.
    UpToDate,
    /// The Machine has no Node of its former version. It is being paved with the selected version.
    Repaving,
    /// The Machine does not have the version that a repave would select, and is skipped.
    Skipped(Skip),
    /// The expected change failed.
    Failed(Failure),
    /// The Machine has another version than this one (`<configuration>-v<N>`), which is not selected yet.
    Outdated(String),
    /// This version is selected, and on its way into a slot.
    Preparing(String),
    /// This version is selected and not prepared, by this reason of the agent's `Paved` or because it takes too long. It may still be prepared, and
    /// no other Machine waits for that.
    Awaiting(String, String),
    /// This version is in a slot. The Machine may have its turn.
    Prepared(String),
    /// The Pods are leaving, so that this version can be paved.
    Draining(String),
}

/// Reason why an outdated Machine is skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Skip {
    /// The Machine is being deleted.
    Deleting,
    /// `spec.paused`.
    Paused,
    /// Another writer decides about the Machine's node.
    Claimed(String),
    /// The cluster was created in its slot, or its etcd member cannot leave. The agent neither stops nor
    /// replaces the slot.
    ClusterMade,
    /// An operation has cordoned its Node.
    Operation,
    /// A user or another program has cordoned its Node.
    Cordoned,
    /// The Node is not Ready.
    Down,
    /// The Node of its name belongs to another host.
    NodeNameConflict,
    /// The agent is unreachable.
    AgentSilent,
    /// The host cannot take the version. Holds the reason of the agent's `Paved`.
    Unfit(String),
    /// The Machine has no Node, and its host did not become one with this version, which is not the newest.
    Behind(String),
}

impl Skip {
    /// Returns the reason and the remedy, for users.
    pub fn message(&self) -> String {
        match self {
            Self::Deleting => "Machine is being deleted".to_owned(),
            Self::Paused => "spec.paused is set".to_owned(),
            Self::Claimed(by) => format!("Machine is claimed by {by}"),
            Self::ClusterMade => {
                "slot is protected: the cluster was created in it, or its etcd member is the last one or cannot leave; see condition Paved and docs/concepts/node.md"
                    .to_owned()
            }
            Self::Operation => "an operation cordoned its Node".to_owned(),
            Self::Cordoned => "a user cordoned its Node; uncordon it to continue: `kubectl uncordon NAME`".to_owned(),
            Self::Down => "its Node is not Ready; repair the host, or delete the Node".to_owned(),
            Self::NodeNameConflict => "Node of the same name does not have providerID bedplate://NAME".to_owned(),
            Self::AgentSilent => "its agent has not reported for 15 minutes".to_owned(),
            Self::Unfit(reason) => {
                format!("host cannot run the version: {reason}; see condition Paved")
            }
            Self::Behind(version) => format!(
                "host has no Node with {version}; repair the host, or set name and version in spec.configurationRef to move the Machine"
            ),
        }
    }
}

/// Failure of an expected change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Reason of `Degraded`.
    pub reason: DegradedReason,
    /// Cause, for users.
    pub message: String,
    /// Remedy, for users.
    pub remedy: &'static str,
}

/// The Machines of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollout {
    /// Name of the configuration.
    pub configuration: String,
    /// Generation of the configuration.
    pub generation: i64,
    /// Machines, sorted by name.
    pub members: Vec<Member>,
}

/// Judges the Machines whose `selected` names the configuration. `versions`: those of the configuration, and those that its Machines run.
pub fn judge(
    configuration: &MachineConfiguration,
    machines: &[&Machine],
    nodes: Nodes<'_>,
    versions: &[&MachineConfigurationVersion],
    clocks: Clocks<'_>,
) -> Rollout {
    let name = configuration.metadata.name.clone().unwrap_or_default();
    let known = Known { configuration, versions, clocks };
    let is_member = |machine: &&&Machine| machine.selected().is_some_and(|selected| selected.name == name);
    let mut members: Vec<Member> =
        machines.iter().filter(is_member).map(|machine| known.member(machine, nodes)).collect();
    members.sort_by(|one, other| one.name.cmp(&other.name));
    let generation = configuration.metadata.generation.unwrap_or(0);
    Rollout { configuration: name, generation, members }
}

struct Known<'a> {
    configuration: &'a MachineConfiguration,
    versions: &'a [&'a MachineConfigurationVersion],
    clocks: Clocks<'a>,
}

impl Known<'_> {
    fn member(&self, machine: &Machine, nodes: Nodes<'_>) -> Member {
        let name = machine.metadata.name.clone().unwrap_or_default();
        let found = nodes(&name);
        let is_foreign = found.as_deref().is_some_and(|node| foreign(machine, node).is_some());
        let node = found.filter(|_| !is_foreign);
        let none = MachineStatus::default();
        let status = machine.status.as_ref().unwrap_or(&none);
        let hold = match node.as_deref().map(cordon_of) {
            Some(Cordon::Ours(hold)) => Some(hold),
            _ => None,
        };
        Member {
            unavailable: unavailable(status, node.as_deref()),
            place: match self.place(machine, status, node.as_deref(), hold.as_ref()) {
                Place::Repaving if is_foreign => Place::Skipped(Skip::NodeNameConflict),
                place => place,
            },
            hold,
            node_uid: node.as_ref().and_then(|node| node.metadata.uid.clone()),
            departs: departs(machine),
            name,
        }
    }

    fn place(
        &self,
        machine: &Machine,
        status: &MachineStatus,
        node: Option<&Node>,
        hold: Option<&Hold>,
    ) -> Place {
        let (Some(applied), Some(next)) =
            (&status.applied, repave(machine, &[self.configuration], self.versions))
        else {
            return claimant(machine).map_or(Place::Repaving, |by| Place::Skipped(Skip::Claimed(by)));
        };
        if applied.key() == next.key() {
            return Place::UpToDate;
        }
        let version = next.version_name();
        let aside = self.aside(machine, status, &next);
        // Checked before the node. A failure stays a failure while the node is added and removed.
        if aside.is_none()
            && let Some(failure) = self.failure(status, node, &next, &version)
        {
            return Place::Failed(failure);
        }
        let came_back = |node: &&Node| applied.node_uid.is_none() || applied.node_uid == node.metadata.uid;
        let Some(node) = node.filter(came_back) else {
            return aside.map_or_else(|| self.without_node(machine, status, &version), Place::Skipped);
        };
        if let Some(skip) = aside.or_else(|| self.skip(machine, status, node)) {
            return Place::Skipped(skip);
        }
        let ours = Purpose::Rollout(version.clone());
        if hold.is_some_and(|hold| hold.purpose == ours) {
            return Place::Draining(version);
        }
        if machine.selected() != Some(&next) {
            return Place::Outdated(version);
        }
        let is_prepared = status.slots.iter().any(|slot| {
            let held = slot.configuration_name.as_deref().zip(slot.version);
            slot.state == SlotState::Prepared && held == Some(next.key())
        });
        if is_prepared {
            return Place::Prepared(version);
        }
        match outlook(status) {
            (Outlook::Unsupported, reason) => Place::Skipped(Skip::Unfit(reason.to_owned())),
            (Outlook::Waiting | Outlook::Failed, reason) => Place::Awaiting(version, reason.to_owned()),
            // An agent that never finishes its preparation would block the update of all others.
            (Outlook::Preparing, _) if (self.clocks.wait)(machine).chosen > PREPARATION_LIMIT => {
                Place::Awaiting(version, PREPARATION_OVERDUE.to_owned())
            }
            (Outlook::Preparing, _) => Place::Preparing(version),
        }
    }

    /// Returns the reason why a Machine with the former version did not get this version.
    fn failure(
        &self,
        status: &MachineStatus,
        node: Option<&Node>,
        next: &Selected,
        version: &str,
    ) -> Option<Failure> {
        let refused = status.rolled_back.as_ref().filter(|back| back.from.key() == next.key());
        if let Some(back) = refused {
            let why = first(&back.message);
            return Some(Failure {
                reason: DegradedReason::RolledBack,
                message: format!("{version} failed and was rolled back: {why}"),
                remedy: "edit the MachineConfiguration",
            });
        }
        let failed = cordon::failed(node?)?;
        let counts =
            failed.version == version && Some(failed.generation) == self.configuration.metadata.generation;
        counts.then(|| Failure {
            reason: failed.reason.into(),
            message: failed.message,
            remedy: "resolve the cause, then run `kubectl annotate node NAME bedplate.dev/drain-failed-`, or edit the MachineConfiguration",
        })
    }

    /// Returns the reason why an outdated Machine is skipped, for reasons that do not depend on its node.
    fn aside(&self, machine: &Machine, status: &MachineStatus, next: &Selected) -> Option<Skip> {
        if machine.metadata.deletion_timestamp.is_some() {
            return Some(Skip::Deleting);
        }
        if machine.spec.paused {
            return Some(Skip::Paused);
        }
        if let Some(by) = claimant(machine) {
            return Some(Skip::Claimed(by));
        }
        let is_kept = status.applied.as_ref().is_some_and(|applied| self.makes_cluster(applied.key()))
            || self.makes_cluster(next.key())
            || outlook(status).1 == PavedReason::ControlPlaneProtected.as_str();
        is_kept.then_some(Skip::ClusterMade)
    }

    /// Returns the reason why the node of an outdated Machine is skipped.
    fn skip(&self, machine: &Machine, status: &MachineStatus, node: &Node) -> Option<Skip> {
        match cordon_of(node) {
            Cordon::Operation => return Some(Skip::Operation),
            Cordon::Foreign => return Some(Skip::Cordoned),
            // A started drain continues until it finishes or times out.
            Cordon::Ours(hold) if matches!(hold.purpose, Purpose::Rollout(_)) => return None,
            Cordon::Ours(_) | Cordon::Free => {}
        }
        if unavailable(status, Some(node)).is_some() {
            return Some(Skip::Down);
        }
        (self.clocks.silent)(machine).then_some(Skip::AgentSilent)
    }

    /// Returns the state of a Machine whose former Node is gone. `version` is the newest. A Machine without a Node keeps an older choice, whose
    /// failure does not concern the newest version.
    fn without_node(&self, machine: &Machine, status: &MachineStatus, version: &str) -> Place {
        let Some(failure) = self.not_paved(machine, status) else { return Place::Repaving };
        let tried = machine.selected().map(Selected::version_name);
        match tried.filter(|tried| tried != version) {
            Some(tried) => Place::Skipped(Skip::Behind(tried)),
            None => Place::Failed(failure),
        }
    }

    /// Returns why a host has no Node: its agent reports a failure, or the Node is overdue.
    fn not_paved(&self, machine: &Machine, status: &MachineStatus) -> Option<Failure> {
        if let (Outlook::Failed | Outlook::Unsupported, known) = outlook(status) {
            return Some(Failure {
                reason: DegradedReason::PavingFailed,
                message: format!("host is not paved ({known}; see condition Paved)"),
                remedy: "repair the host, or edit the MachineConfiguration and set name and version in spec.configurationRef to move the Machine",
            });
        }
        let (wait, is_reported) = ((self.clocks.wait)(machine), is_missing_reported(self.configuration));
        is_late(machine, self.versions.iter().copied(), wait, is_reported).then(|| Failure {
            reason: DegradedReason::NodeMissing,
            message:
                "host is not paved and has no Node for longer than its health gate and 30 minutes"
                    .to_owned(),
            remedy: "see `bedplate machine explain NAME`; repair the host (set spec.paused meanwhile), set name and version in spec.configurationRef to \
                     move the Machine, or delete it",
        })
    }

    /// Returns true if a version is that of a control plane that creates the cluster instead of joining it.
    fn makes_cluster(&self, version: (&str, i64)) -> bool {
        let found = self.versions.iter().find(|found| found.key() == version);
        found.is_some_and(|version| makes_a_cluster(&version.spec.template.kubernetes))
    }
}

/// Returns the start of a text that may contain the end of a log.
fn first(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}

/// Reads condition `Paved`: its meaning and its reason. Its message is not used: it changes while the agent prepares, and each change
/// would write the configuration. The reason of a newer agent counts as waiting.
fn outlook(status: &MachineStatus) -> (Outlook, &str) {
    let Some(found) = status.condition(PavedReason::TYPE) else {
        return (Outlook::Preparing, "");
    };
    (PavedReason::parse(&found.reason).map_or(Outlook::Waiting, Outlook::from), &found.reason)
}

/// Returns the reason why a Machine is unavailable.
fn unavailable(status: &MachineStatus, node: Option<&Node>) -> Option<&'static str> {
    let Some(node) = node else { return Some("no Node") };
    let applied = status.applied.as_ref();
    if node.metadata.deletion_timestamp.is_some() {
        Some("its Node is being deleted")
    } else if applied
        .is_none_or(|applied| applied.node_uid.is_some() && applied.node_uid != node.metadata.uid)
    {
        Some("its Node is new and not confirmed by its agent yet")
    } else if !is_ready(node) || is_false(&status.conditions, condition_type::NODE_READY) {
        Some("its Node is not Ready")
    } else if cordon::is_cordoned(node) {
        Some("its Node is cordoned")
    } else {
        None
    }
}

impl Member {
    /// Returns true if a rolling update's cordon is no longer needed. The cordon of a Machine that is deleted
    /// with `deletionPolicy: Drain` is kept and changes its purpose.
    pub(crate) fn is_held_in_vain(&self) -> bool {
        let held = self.hold.as_ref().is_some_and(|hold| matches!(hold.purpose, Purpose::Rollout(_)));
        held && !self.departs && !matches!(self.place, Place::Draining(_))
    }
}

/// Returns true if a Machine is being deleted and must be drained for that. The drain of the deletion then
/// does all steps.
fn departs(machine: &Machine) -> bool {
    machine.metadata.deletion_timestamp.is_some() && machine.spec.deletion_policy == DeletionPolicy::Drain
}
