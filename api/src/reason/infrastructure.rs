//! Reasons of the conditions of BedplateMachines and BedplateClusters, and of the provider's Events. All are written by `bedplate-cluster`. The
//! core kinds share those of `Paused`.
//! `Ready` has the reason of the first condition that is not met.
//!
//! Pure.

use super::event::EventReason;
use super::reasons;
use crate::cluster::infrastructure::condition_type;

reasons! {
    /// Reasons of `HostClaimed`.
    pub enum HostClaimedReason: "Condition HostClaimed of a BedplateMachine", condition condition_type::HOST_CLAIMED {
        HostClaimed: "A MachineClaim holds the host.";
        WaitingForOwner: "No Machine of Cluster API owns the BedplateMachine, or its Cluster does not exist."
            => Other, "Wait, or create a Machine whose infrastructureRef names the BedplateMachine.";
        WaitingForClusterInfrastructure: "The infrastructure of the Cluster is not provisioned."
            => Other, "See condition Ready of the BedplateCluster.";
        WaitingForBootstrapData: "The bootstrap data of the Machine does not exist yet."
            => Other, "See condition BootstrapConfigReady of the Machine.";
        ConfigurationNotFound: "The MachineConfiguration of configurationRef does not exist, or it has no such version."
            => User, "Create it, or create a new template with another configurationRef.";
        ConfigurationForbidden: "The MachineConfiguration does not allow claims of the namespace."
            => User, "Add the namespace to spec.claimPolicy of the MachineConfiguration, or name another configuration.";
        VersionMismatch: "The MachineConfiguration has another Kubernetes version than the Machine."
            => User, "Create a new template whose configuration has the version of the Machine.";
        NoEligibleMachine: "No host can be claimed. The message counts the hosts by the first requirement that they do not meet."
            => User, "Add hosts, release others, or relax the requirements. The provider tries again every minute.";
        Claiming: "A host is chosen, and the writes of its claim have failed for 30 seconds; the message has the cause.";
        ClaimLost: "The claim of the host is gone, or another claimant has the host."
            => User, "Delete the Machine, so that its owner replaces it.";
        MachineGone: "The host Machine does not exist."
            => User, "Delete the Machine, so that its owner replaces it.";
        Releasing: "The BedplateMachine is deleted, and its host is not released yet. The message has the state."
            => Agent, "Check that the host is up: `bedplate machine explain NAME`.";
    }
}

reasons! {
    /// Reasons of `BootstrapSucceeded`.
    pub enum BootstrapSucceededReason: "Condition BootstrapSucceeded of a BedplateMachine", condition condition_type::BOOTSTRAP_SUCCEEDED {
        Joined: "The host is a Node of the cluster.";
        WaitingForHost: "No host is claimed.";
        Preparing: "The host fetches the image, or waits for permission to read the bootstrap data.";
        Bootstrapping: "The host runs the bootstrap data.";
        Failed: "The bootstrap data failed on the host. The message has the cause."
            => User, "Read the message. Delete the Machine, so that its owner replaces it.";
        Released: "The host is released.";
    }
}

reasons! {
    /// Reasons of `EndpointAvailable`.
    pub enum EndpointAvailableReason: "Condition EndpointAvailable of a BedplateCluster", condition condition_type::ENDPOINT_AVAILABLE {
        EndpointAvailable: "The endpoint of the control plane is known.";
        EndpointMissing: "Neither the BedplateCluster nor the Cluster has an endpoint of the control plane."
            => User, "Set spec.controlPlaneEndpoint of the BedplateCluster to the address of a load balancer.";
    }
}

reasons! {
    /// Reasons of `Ready` of a BedplateCluster that are not those of another condition.
    pub enum ClusterReadyReason: "Condition Ready of a BedplateCluster", condition condition_type::READY {
        Provisioned: "The infrastructure is provisioned.";
        WaitingForOwner: "No Cluster owns the BedplateCluster."
            => Other, "Wait, or create a Cluster whose infrastructureRef names the BedplateCluster.";
        Deleting: "The BedplateCluster is deleted, and BedplateMachines of its Cluster are left. The message names them."
            => Other, "Wait until the Machines are deleted.";
    }
}

reasons! {
    /// Reasons of `Paused`.
    pub enum PausedReason: "Condition Paused of a BedplateMachine, a BedplateCluster or a core kind of Cluster API", condition condition_type::PAUSED {
        NotPaused: "The object is reconciled.";
        Paused: "The Cluster or the object is paused."
            => User, "Set spec.paused of the Cluster to false, and remove the annotation cluster.x-k8s.io/paused.";
    }
}

reasons! {
    /// Events of bedplate-cluster.
    pub enum ProviderEvent: "Events of bedplate-cluster" {
        HostClaimed: "A BedplateMachine claims a host.";
        NoEligibleMachine: "No host can be claimed."
            => User, "See condition HostClaimed of the BedplateMachine.";
        ClaimGranted: "The host may start a claim.";
        ClaimLost: "The claim of a BedplateMachine is lost."
            => User, "Delete the Machine, so that its owner replaces it.";
        ClaimOrphaned: "The claimant of a host does not exist any more."
            => User, "See condition Orphaned of the MachineClaim.";
        HostReleased: "A host was released, and wiped if the claim asks for it.";
        WriteRejected: "The API server rejected a write."
            => User, "Correct the cause in the note.";
    }
}

impl EventReason for ProviderEvent {
    fn action(self) -> &'static str {
        match self {
            Self::HostClaimed | Self::NoEligibleMachine | Self::ClaimLost => "Claim",
            Self::ClaimGranted => "Grant",
            Self::ClaimOrphaned | Self::HostReleased => "Release",
            Self::WriteRejected => "Write",
        }
    }

    fn regarding(self) -> &'static [&'static str] {
        match self {
            Self::HostClaimed | Self::NoEligibleMachine | Self::ClaimLost => &["BedplateMachine"],
            Self::ClaimGranted | Self::ClaimOrphaned | Self::HostReleased => &["MachineClaim"],
            Self::WriteRejected => &[],
        }
    }
}
