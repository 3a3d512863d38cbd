//! Reasons of Events, with the type, the action and the regarding object that the Events API asks for.
//!
//! Pure.

use super::bmc::{reasons_with, with_bmc_faults};
use super::core_event::CoreEvent;
use super::infrastructure::ProviderEvent;
use super::{Reason, Row, reasons, row};
use crate::cluster::kubeadm::reason::BootstrapEvent;

reasons! {
    /// Events of bedplate-controller.
    pub enum ControllerEvent: "Events of bedplate-controller" {
        VersionCreated: "An edit created a version.";
        VersionUpdated: "An edit changed the newest version, which no Machine uses.";
        VersionDeleted: "A version was deleted: more than revisionHistoryLimit, or with its configuration.";
        VersionLocked: "A Machine uses the version, which is immutable from now on.";
        VersionSelected: "A version was selected for a Machine.";
        SelectionFailed: "No version can be selected, or the due selection is not possible."
            => User, "See `bedplate machine explain NAME`.";
        NodeRegistered: "The Machine's Node has registered.";
        NodeDeleted: "The Machine's Node was deleted. The host is repaved.";
        NodeNameConflict: "The Node of the Machine's name belongs to another host."
            => User, "See docs/troubleshooting/stuck.md, \"A Node of the Machine's name exists\".";
        NodeReregistered: "The Node was deleted and registered again before the host was repaved."
            => User, "To repave the host, delete the Node again: `kubectl delete node NAME`.";
        CertificateApproved: "A kubelet certificate request was approved.";
        CertificateDenied: "A kubelet certificate request was denied."
            => User, "Correct the cause in the note, then delete the request.";
        CertificateApprovalRequired: "A kubelet certificate request needs the approval of a user."
            => User, "Check the request: `kubectl get csr`. Then approve or deny it.";
        DeletionBlocked: "The object is deleted, and Machines still use it."
            => User, "Move or delete the Machines in the note.";
        FinalizerRemoved: "No Machine uses the deleted object any more. Its finalizer was removed.";
        WriteRejected: "The API server rejected a write."
            => User, "Correct the cause in the note.";
        ImageResolved: "The digest of a tag is known.";
        ImageUnresolved: "The registry does not resolve a tag."
            => User, "Check the reference and the registry, or name the image by its digest.";
        UpdateStarted: "A Machine's turn in a rolling update started.";
        UpdateInterrupted: "A Machine's turn ended early. No step failed.";
        UpdateFailed: "A Machine's turn failed, or cannot start."
            => User, "See condition Degraded of the MachineConfiguration.";
        RolledBack: "The agent returned to the former version."
            => User, "Edit the MachineConfiguration. status.rolledBack of the Machine has the cause.";
        VersionApplied: "A Node runs the version and has passed its health gate.";
        DrainStarted: "The Node of a deleted Machine is drained.";
        DrainBlocked: "Pods of a Node that is drained cannot be evicted."
            => User, "Check the PodDisruptionBudgets and the Pods in the note.";
        NodeDrained: "A drained Node was deleted.";
        RolloutStarted: "A rolling update started.";
        RolloutPaused: "A Machine failed, and the rolling update has stopped."
            => User, "See condition Degraded of the MachineConfiguration.";
        RolloutFinished: "A rolling update finished.";
        OperationComplete: "An operation is complete.";
        OperationFailed: "An operation failed."
            => User, "See its reason: `bedplate operation list`.";
    }
}

/// A reason of Events.
pub trait EventReason: Reason {
    /// The `action` of the Event.
    fn action(self) -> &'static str;

    /// Kinds of the objects that have the Event. Empty: any object that the program writes.
    fn regarding(self) -> &'static [&'static str];
}

/// Row of a table of Events, for documents and tests.
#[derive(Debug, Clone, Copy)]
pub struct EventRow {
    /// The reason.
    pub row: Row,
    /// True if the type of the Event is `Warning`.
    pub is_warning: bool,
    /// Kinds of the objects that have the Event. Empty: any object that the program writes.
    pub regarding: &'static [&'static str],
}

/// A table of Events with its title.
pub type EventTable = (&'static str, Vec<EventRow>);

/// All tables of Events with their titles, in the order of docs/reference/events.md.
pub fn tables() -> Vec<EventTable> {
    vec![
        rows::<ControllerEvent>(),
        rows::<PxedEvent>(),
        rows::<ProviderEvent>(),
        rows::<BootstrapEvent>(),
        rows::<CoreEvent>(),
    ]
}

/// Rows of a set.
fn rows<R: EventReason>() -> EventTable {
    let event = |reason: &R| EventRow {
        row: row(*reason),
        is_warning: is_warning(*reason),
        regarding: reason.regarding(),
    };
    (R::TITLE, R::ALL.iter().map(event).collect())
}

impl EventReason for ControllerEvent {
    fn action(self) -> &'static str {
        match self {
            Self::VersionCreated | Self::VersionUpdated | Self::VersionDeleted | Self::WriteRejected => {
                "Write"
            }
            Self::VersionLocked | Self::VersionSelected | Self::SelectionFailed => "Select",
            Self::NodeRegistered | Self::NodeDeleted | Self::NodeNameConflict | Self::NodeReregistered => {
                "FollowNode"
            }
            Self::CertificateApproved | Self::CertificateDenied | Self::CertificateApprovalRequired => {
                "Approve"
            }
            Self::DeletionBlocked | Self::FinalizerRemoved => "Release",
            Self::ImageResolved | Self::ImageUnresolved => "ResolveImage",
            Self::UpdateStarted
            | Self::UpdateInterrupted
            | Self::UpdateFailed
            | Self::RolledBack
            | Self::VersionApplied
            | Self::RolloutStarted
            | Self::RolloutPaused
            | Self::RolloutFinished => "Update",
            Self::DrainStarted | Self::DrainBlocked | Self::NodeDrained => "Drain",
            Self::OperationComplete | Self::OperationFailed => "Operate",
        }
    }

    fn regarding(self) -> &'static [&'static str] {
        match self {
            Self::VersionCreated
            | Self::VersionUpdated
            | Self::VersionDeleted
            | Self::DeletionBlocked
            | Self::RolloutStarted
            | Self::RolloutPaused
            | Self::RolloutFinished => &["MachineConfiguration"],
            Self::VersionLocked | Self::ImageResolved | Self::ImageUnresolved => {
                &["MachineConfigurationVersion"]
            }
            Self::FinalizerRemoved => &["MachineConfiguration", "MachineConfigurationVersion"],
            Self::VersionSelected
            | Self::SelectionFailed
            | Self::NodeRegistered
            | Self::NodeDeleted
            | Self::NodeNameConflict
            | Self::NodeReregistered
            | Self::UpdateStarted
            | Self::UpdateInterrupted
            | Self::UpdateFailed
            | Self::RolledBack
            | Self::VersionApplied
            | Self::DrainStarted
            | Self::DrainBlocked
            | Self::NodeDrained => &["Machine"],
            Self::CertificateApproved | Self::CertificateDenied | Self::CertificateApprovalRequired => {
                &["Machine", "CertificateSigningRequest"]
            }
            Self::OperationComplete | Self::OperationFailed => &["MachineOperation"],
            Self::WriteRejected => &[],
        }
    }
}

with_bmc_faults! { reasons_with
    /// Events of pxed.
    pub enum PxedEvent: "Events of pxed" {
        DuplicateMacAddress = "DuplicateMACAddress": "Several Machines claim the MAC address. pxed serves none of them."
            => User, "Remove the MAC address from all of these Machines but one.";
        AddressOutsideSubnets: "No subnet of pxed contains a fixed address of the Machine, so it gets no address."
            => User, "Correct addresses of the interface, or add a subnet (docs/reference/configuration.md).";
        ImageUnavailable: "The image that the Machine boots is not available. The note has the cause."
            => User, "See docs/guides/images.md, \"Serve the host image\".";
        BootStalled: "pxed heard nothing of a boot for longer than its stage may take."
            => User, "See the timeline: `bedplate machine show NAME` (docs/troubleshooting/boot.md, \"By stage\").";
        Enrolled: "The host has its certificate.";
        SeedRequestedTwice: "The seed of a boot was requested a second time."
            => User, "Boot the machine again. The note has the address of the other request (docs/troubleshooting/boot.md).";
        KeyChanged: "A new key was enrolled and replaces the former one. The note has the address and the boot.";
        KeyReplaced: "A host was refused: another key was enrolled for the Machine, or pxed has lost its record of the key."
            => User, "Boot that host again if it is this Machine's. Otherwise stop it.";
        HeardElsewhere: "A host with a new key waits, because the key in force is heard."
            => User, "See docs/troubleshooting/boot.md, \"Another host asks to enroll\".";
        TokenRefused: "An enrollment token of the Machine was refused. The note has the refusal."
            => User, "See the refusal in docs/troubleshooting/boot.md.";
        PowerChanged: "pxed changed the power of the machine. The note has the cause.";
        PowerOnAttemptsExhausted: "pxed powered the machine on five times, and it did not come up."
            => User, "See its boots: `bedplate machine show NAME`. Then `bedplate power on NAME` starts new attempts.";
        PowerOffPending: "The Machine is deleted with deletionPolicy PowerOff, and it is paused, or its BMC does not report that it is off."
            => User, "Unpause the Machine, repair the BMC, or set deletionPolicy to Retain.";
        BmcReachable = "BMCReachable": "The BMC answers again.";
        NotSupported: "The BMC does not support a request."
            => User, "`bedplate bmc probe` shows what this BMC supports.";
        TimedOut: "The BMC did not answer in time."
            => User, "See docs/guides/bmc.md, \"Troubleshoot a BMC\".";
        Refused: "The BMC rejected a request."
            => User, "Check the log of the BMC and the privilege of the account.";
        OperationFailed: "A power operation failed. The note has its reason."
            => User, "See its reason: `bedplate operation list`.";
    }
}

impl EventReason for PxedEvent {
    fn action(self) -> &'static str {
        match self {
            Self::DuplicateMacAddress
            | Self::AddressOutsideSubnets
            | Self::ImageUnavailable
            | Self::BootStalled
            | Self::SeedRequestedTwice => "Boot",
            Self::Enrolled
            | Self::KeyChanged
            | Self::KeyReplaced
            | Self::HeardElsewhere
            | Self::TokenRefused => "Enroll",
            Self::PowerChanged | Self::PowerOnAttemptsExhausted | Self::PowerOffPending => "SwitchPower",
            Self::BmcReachable
            | Self::NotSupported
            | Self::TimedOut
            | Self::Refused
            | Self::BmcUnreachable
            | Self::AuthenticationFailed
            | Self::CertificateChanged
            | Self::CertificateUntrusted
            | Self::AmbiguousSystem
            | Self::SystemNotFound
            | Self::AddressNotAllowed
            | Self::ProtocolError
            | Self::CredentialsUnavailable
            | Self::CredentialsNotForThisAddress
            | Self::InsecureNotAllowed
            | Self::DuplicateBmc => "AskBMC",
            Self::OperationFailed => "Operate",
        }
    }

    fn regarding(self) -> &'static [&'static str] {
        &["Machine"]
    }
}

/// Type of the Event, by the Events API: `Warning` if a user must act.
pub fn is_warning(reason: impl Reason) -> bool {
    reason.remedy().is_some()
}
