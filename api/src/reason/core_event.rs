//! Reasons of the Events that the core group of bedplate-cluster publishes about Clusters, Machines, MachineSets and
//! MachineDeployments.
//!
//! Pure.

use super::event::EventReason;
use super::reasons;

reasons! {
    /// Events of the core group.
    pub enum CoreEvent: "Events of bedplate-cluster about Clusters and their Machines" {
        MachineCreated: "A MachineSet created a Machine.";
        MachineDeleted: "A MachineSet deleted a Machine.";
        MachineRemediated: "A MachineSet replaces a Machine that failed its health check.";
        DrainBlocked: "The Node of a deleted Machine is not drained after 10 minutes. The note names the Pods."
            => User, "Check the PodDisruptionBudgets and the Pods in the note.";
        RolloutStarted: "A MachineDeployment replaces Machines that do not have its template.";
        RolloutFinished: "All Machines of a MachineDeployment have its template.";
        KubeconfigCreated: "The Secret with the kubeconfig of the cluster was created.";
        KubeconfigRenewed: "The kubeconfig of the cluster has a new certificate.";
        DeletionWaiting: "The deletion of a Cluster waits until other objects are gone. The note names them.";
        DeletionBlocked: "The deletion of a Cluster cannot continue. The note has the cause."
            => User, "See condition Deleting of the Cluster.";
        WriteRejected: "The API server rejected a write."
            => User, "Correct the cause in the note.";
    }
}

impl EventReason for CoreEvent {
    fn action(self) -> &'static str {
        match self {
            Self::MachineCreated | Self::MachineDeleted => "Scale",
            Self::MachineRemediated => "Remediate",
            Self::DrainBlocked => "Drain",
            Self::RolloutStarted | Self::RolloutFinished => "Update",
            Self::KubeconfigCreated | Self::KubeconfigRenewed => "Connect",
            Self::DeletionWaiting | Self::DeletionBlocked => "Delete",
            Self::WriteRejected => "Write",
        }
    }

    fn regarding(self) -> &'static [&'static str] {
        match self {
            Self::MachineCreated | Self::MachineDeleted | Self::MachineRemediated => &["MachineSet"],
            Self::DrainBlocked => &["Machine of Cluster API"],
            Self::RolloutStarted | Self::RolloutFinished => &["MachineDeployment"],
            Self::KubeconfigCreated
            | Self::KubeconfigRenewed
            | Self::DeletionWaiting
            | Self::DeletionBlocked => &["Cluster"],
            Self::WriteRejected => &[],
        }
    }
}
