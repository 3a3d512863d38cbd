//! Status of a condition for each of its reasons. A writer gives the reason, so that status and reason cannot contradict each other.
//!
//! Not here: the choice of the reason. Called by the writers of conditions.
//!
//! Pure: no clock, no file, no socket.

use crate::condition::ConditionState::{self, False, True, Unknown};
use crate::reason::core::{
    AvailableReason, BootstrapConfigReadyReason, ClusterDeletingReason, ControlPlaneAvailableReason,
    ControlPlaneInitializedReason, FieldsSupportedReason, HealthCheckSucceededReason,
    InfrastructureReadyReason, MachineAvailableReason, MachineDeletingReason, MachineNodeReadyReason,
    MachineReadyReason, MachinesReadyReason, MachinesUpToDateReason, NodeHealthyReason,
    OwnerRemediatedReason, RemediatingReason, RemediationAllowedReason, RemoteConnectionProbeReason,
    RollingOutReason, ScalingDownReason, ScalingUpReason, SetDeletingReason, UpToDateReason,
    WorkersAvailableReason,
};

impl From<AvailableReason> for ConditionState {
    fn from(reason: AvailableReason) -> Self {
        match reason {
            AvailableReason::Available => True,
            AvailableReason::NotAvailable => False,
            AvailableReason::AvailableUnknown | AvailableReason::WaitingForReplicasSet => Unknown,
        }
    }
}

impl From<InfrastructureReadyReason> for ConditionState {
    fn from(reason: InfrastructureReadyReason) -> Self {
        match reason {
            InfrastructureReadyReason::Ready => True,
            InfrastructureReadyReason::NotReady
            | InfrastructureReadyReason::ObjectDoesNotExist
            | InfrastructureReadyReason::ObjectDeleted => False,
            InfrastructureReadyReason::InvalidConditionReported
            | InfrastructureReadyReason::InternalError => Unknown,
        }
    }
}

impl From<BootstrapConfigReadyReason> for ConditionState {
    fn from(reason: BootstrapConfigReadyReason) -> Self {
        match reason {
            BootstrapConfigReadyReason::Ready | BootstrapConfigReadyReason::DataSecretProvided => True,
            BootstrapConfigReadyReason::NotReady
            | BootstrapConfigReadyReason::ObjectDoesNotExist
            | BootstrapConfigReadyReason::ObjectDeleted => False,
            BootstrapConfigReadyReason::InvalidConditionReported
            | BootstrapConfigReadyReason::InternalError => Unknown,
        }
    }
}

impl From<ControlPlaneInitializedReason> for ConditionState {
    fn from(reason: ControlPlaneInitializedReason) -> Self {
        match reason {
            ControlPlaneInitializedReason::Initialized => True,
            ControlPlaneInitializedReason::NotInitialized => False,
            ControlPlaneInitializedReason::InternalError => Unknown,
        }
    }
}

impl From<ControlPlaneAvailableReason> for ConditionState {
    fn from(reason: ControlPlaneAvailableReason) -> Self {
        match reason {
            ControlPlaneAvailableReason::Available => True,
            ControlPlaneAvailableReason::NotAvailable
            | ControlPlaneAvailableReason::ObjectDoesNotExist
            | ControlPlaneAvailableReason::ObjectDeleted => False,
            ControlPlaneAvailableReason::InvalidConditionReported
            | ControlPlaneAvailableReason::InternalError => Unknown,
        }
    }
}

impl From<MachinesReadyReason> for ConditionState {
    fn from(reason: MachinesReadyReason) -> Self {
        match reason {
            MachinesReadyReason::Ready | MachinesReadyReason::NoReplicas => True,
            MachinesReadyReason::NotReady => False,
            MachinesReadyReason::ReadyUnknown => Unknown,
        }
    }
}

impl From<MachinesUpToDateReason> for ConditionState {
    fn from(reason: MachinesUpToDateReason) -> Self {
        match reason {
            MachinesUpToDateReason::UpToDate | MachinesUpToDateReason::NoReplicas => True,
            MachinesUpToDateReason::NotUpToDate => False,
            MachinesUpToDateReason::UpToDateUnknown => Unknown,
        }
    }
}

impl From<WorkersAvailableReason> for ConditionState {
    fn from(reason: WorkersAvailableReason) -> Self {
        match reason {
            WorkersAvailableReason::Available | WorkersAvailableReason::NoWorkers => True,
            WorkersAvailableReason::NotAvailable => False,
            WorkersAvailableReason::AvailableUnknown => Unknown,
        }
    }
}

impl From<RemoteConnectionProbeReason> for ConditionState {
    fn from(reason: RemoteConnectionProbeReason) -> Self {
        match reason {
            RemoteConnectionProbeReason::ProbeSucceeded => True,
            RemoteConnectionProbeReason::ProbeFailed => False,
        }
    }
}

impl From<RollingOutReason> for ConditionState {
    fn from(reason: RollingOutReason) -> Self {
        match reason {
            RollingOutReason::RollingOut => True,
            RollingOutReason::NotRollingOut => False,
            RollingOutReason::RollingOutUnknown | RollingOutReason::InternalError => Unknown,
        }
    }
}

impl From<ScalingUpReason> for ConditionState {
    fn from(reason: ScalingUpReason) -> Self {
        match reason {
            ScalingUpReason::ScalingUp => True,
            ScalingUpReason::NotScalingUp => False,
            ScalingUpReason::ScalingUpUnknown
            | ScalingUpReason::WaitingForReplicasSet
            | ScalingUpReason::InternalError => Unknown,
        }
    }
}

impl From<ScalingDownReason> for ConditionState {
    fn from(reason: ScalingDownReason) -> Self {
        match reason {
            ScalingDownReason::ScalingDown => True,
            ScalingDownReason::NotScalingDown => False,
            ScalingDownReason::ScalingDownUnknown
            | ScalingDownReason::WaitingForReplicasSet
            | ScalingDownReason::InternalError => Unknown,
        }
    }
}

impl From<RemediatingReason> for ConditionState {
    fn from(reason: RemediatingReason) -> Self {
        match reason {
            RemediatingReason::Remediating => True,
            RemediatingReason::NotRemediating => False,
        }
    }
}

impl From<ClusterDeletingReason> for ConditionState {
    fn from(reason: ClusterDeletingReason) -> Self {
        match reason {
            ClusterDeletingReason::WaitingForWorkersDeletion
            | ClusterDeletingReason::WaitingForControlPlaneDeletion
            | ClusterDeletingReason::WaitingForInfrastructureDeletion
            | ClusterDeletingReason::DeletionCompleted
            | ClusterDeletingReason::InternalError => True,
            ClusterDeletingReason::NotDeleting => False,
        }
    }
}

impl From<MachineAvailableReason> for ConditionState {
    fn from(reason: MachineAvailableReason) -> Self {
        match reason {
            MachineAvailableReason::Available => True,
            MachineAvailableReason::NotReady | MachineAvailableReason::WaitingForMinReadySeconds => False,
        }
    }
}

impl From<MachineReadyReason> for ConditionState {
    fn from(reason: MachineReadyReason) -> Self {
        match reason {
            MachineReadyReason::Ready => True,
            MachineReadyReason::NotReady => False,
            MachineReadyReason::ReadyUnknown | MachineReadyReason::InternalError => Unknown,
        }
    }
}

impl From<UpToDateReason> for ConditionState {
    fn from(reason: UpToDateReason) -> Self {
        match reason {
            UpToDateReason::UpToDate => True,
            UpToDateReason::NotUpToDate => False,
        }
    }
}

impl From<MachineNodeReadyReason> for ConditionState {
    fn from(reason: MachineNodeReadyReason) -> Self {
        match reason {
            MachineNodeReadyReason::NodeReady => True,
            MachineNodeReadyReason::NodeNotReady | MachineNodeReadyReason::NodeDeleted => False,
            MachineNodeReadyReason::NodeReadyUnknown
            | MachineNodeReadyReason::NodeDoesNotExist
            | MachineNodeReadyReason::InspectionFailed
            | MachineNodeReadyReason::ConnectionDown => Unknown,
        }
    }
}

impl From<NodeHealthyReason> for ConditionState {
    fn from(reason: NodeHealthyReason) -> Self {
        match reason {
            NodeHealthyReason::NodeHealthy => True,
            NodeHealthyReason::NodeNotHealthy | NodeHealthyReason::NodeDeleted => False,
            NodeHealthyReason::NodeHealthyUnknown
            | NodeHealthyReason::NodeDoesNotExist
            | NodeHealthyReason::InspectionFailed
            | NodeHealthyReason::ConnectionDown => Unknown,
        }
    }
}

impl From<HealthCheckSucceededReason> for ConditionState {
    fn from(reason: HealthCheckSucceededReason) -> Self {
        match reason {
            HealthCheckSucceededReason::HealthCheckSucceeded => True,
            HealthCheckSucceededReason::UnhealthyNode
            | HealthCheckSucceededReason::UnhealthyMachine
            | HealthCheckSucceededReason::NodeStartupTimeout
            | HealthCheckSucceededReason::NodeDeleted
            | HealthCheckSucceededReason::HasRemediateAnnotation => False,
        }
    }
}

impl From<OwnerRemediatedReason> for ConditionState {
    fn from(reason: OwnerRemediatedReason) -> Self {
        match reason {
            OwnerRemediatedReason::WaitingForRemediation
            | OwnerRemediatedReason::CannotBeRemediated
            | OwnerRemediatedReason::RemediationDeferred
            | OwnerRemediatedReason::MachineDeleting => False,
        }
    }
}

impl From<MachineDeletingReason> for ConditionState {
    fn from(reason: MachineDeletingReason) -> Self {
        match reason {
            MachineDeletingReason::Deleting
            | MachineDeletingReason::WaitingForPreDrainHook
            | MachineDeletingReason::DrainingNode
            | MachineDeletingReason::WaitingForVolumeDetach
            | MachineDeletingReason::WaitingForPreTerminateHook
            | MachineDeletingReason::WaitingForInfrastructureDeletion
            | MachineDeletingReason::WaitingForBootstrapDeletion
            | MachineDeletingReason::DeletingNode
            | MachineDeletingReason::DeletionCompleted
            | MachineDeletingReason::InternalError => True,
            MachineDeletingReason::NotDeleting => False,
        }
    }
}

impl From<SetDeletingReason> for ConditionState {
    fn from(reason: SetDeletingReason) -> Self {
        match reason {
            SetDeletingReason::Deleting => True,
            SetDeletingReason::NotDeleting => False,
        }
    }
}

impl From<RemediationAllowedReason> for ConditionState {
    fn from(reason: RemediationAllowedReason) -> Self {
        match reason {
            RemediationAllowedReason::RemediationAllowed => True,
            RemediationAllowedReason::TooManyUnhealthy => False,
            RemediationAllowedReason::ConnectionDown => Unknown,
        }
    }
}

impl From<FieldsSupportedReason> for ConditionState {
    fn from(reason: FieldsSupportedReason) -> Self {
        match reason {
            FieldsSupportedReason::FieldsSupported => True,
            FieldsSupportedReason::UnsupportedFields => False,
        }
    }
}
