//! Reasons of the conditions of a MachineConfiguration and of its versions. `Ready` of a MachineConfiguration has the reason of the first
//! condition that is not met: `Ready` of the newest version, `Progressing`, `Degraded`. If all are met it has the reason of `Progressing`.
//!
//! Pure.

use super::reasons;
use crate::configuration::condition_type;
use crate::version;

reasons! {
    /// Reasons of `Progressing`. Written by bedplate-controller.
    pub enum ProgressingReason: "Condition Progressing of a MachineConfiguration", condition condition_type::PROGRESSING {
        RollingOut: "A rolling update moves Machines. The message names them and those that wait.";
        AwaitingPrefetch: "Hosts do not get the version: an image, a Secret, or PreparationOverdue. No Node is disturbed."
            => User, "See condition Paved of the Machines in the message.";
        MaxUnavailableReached: "A Machine is ready for its turn, and maxUnavailable other Machines are unavailable."
            => User, "Repair the Machines in the message, delete them, or raise maxUnavailable.";
        PausedOnFailure: "A Machine failed, and the rolling update has stopped."
            => User, "See condition Degraded: `bedplate config show CONFIGURATION`.";
        MachinesSkipped: "All Machines are updated but those that were skipped or that failed. The message names them.";
        UpToDate: "All Machines run the version that a repave would select.";
        NoMachines: "No Machine uses the configuration.";
        Paving: "Machines have no Node yet. They are being paved.";
        AwaitingNodeDeletion: "Machines run another version. They are repaved when their Node is deleted (OnDelete).";
        Deleting: "The configuration is being deleted, with its versions.";
        DeletionBlocked: "The configuration is deleted, and Machines still name or run it. The message names them."
            => User, "Move or delete the Machines in the message.";
    }
}

reasons! {
    /// Reasons of `Degraded`. Written by bedplate-controller.
    pub enum DegradedReason: "Condition Degraded of a MachineConfiguration", condition condition_type::DEGRADED {
        AsExpected: "No Machine failed.";
        InvalidTemplate: "No host can make a node of the template, so the edit did not become a version. The message names the fields."
            => User, "Correct the fields of the MachineConfiguration; `bedplate config diff NAME` checks them.";
        VersionInvalid: "The API server rejected the version of an edit. The message has its answer."
            => User, "Correct the fields of the MachineConfiguration.";
        ImageUnresolved: "The image has a tag, and the registry has not resolved it."
            => Registry, "Name the image by its digest, or wait. The message has the registry's answer.";
        RolledBack: "Machines tried the version and returned to the former one."
            => User, "Edit the MachineConfiguration. status.rolledBack of the Machines has the cause.";
        NodeMissing: "Machines have had no Node of the version for longer than the health gate and 30 minutes."
            => User, "See `bedplate machine explain NAME`. Set updateStrategy OnDelete, because a paused Machine does not stop the update. Then repair the host, move the Machine, or delete it.";
        PavingFailed: "A host has no Node. Its condition Paved has the cause."
            => User, "Repair the host, or edit the MachineConfiguration and move the Machine by spec.configurationRef.";
        DrainTimedOut: "Pods were left on the Node after drainTimeoutSeconds. The Node was uncordoned."
            => User, "Check the PodDisruptionBudgets and the Pods in the message, or raise drainTimeoutSeconds.";
        UnmanagedPods: "The Node has a Pod that no controller re-creates."
            => User, "Delete the Pod, move it, or set drain.force.";
        EmptyDirData: "A Pod on the Node has an emptyDir, and drain.deleteEmptyDirData is false."
            => User, "Save its data, then delete the Pod.";
        UncordonedExternally: "Another client uncordoned the Node during its turn."
            => User, "Find the client that uncordons Nodes. The Machine gets another turn after an edit.";
    }
}

reasons! {
    /// Reasons of `Ready` of a version. Written by bedplate-controller.
    pub enum VersionReadyReason: "Condition Ready of a MachineConfigurationVersion", condition version::condition_type::READY {
        ImagePinned: "The image is named by its digest.";
        ImageResolved: "The digest of the image's tag is known. All Machines use it.";
        ImageResolvedByHosts: "Each host resolves the tag: the image needs a Secret, which the controller does not read, or it is on the hosts.";
        ImageUnresolved: "The registry has not resolved the tag. The message has its answer."
            => Registry, "Name the image by its digest, or wait.";
    }
}
