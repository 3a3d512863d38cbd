//! Reasons of the conditions of the core kinds of Cluster API. The words are upstream's, apart from those of `FieldsSupported`.
//!
//! No program writes them yet, so they are in no document. The program that writes them adds its tables to `reason::tables`.
//!
//! `InfrastructureReady`, `BootstrapConfigReady` and `ControlPlaneAvailable` show the reason of another object's condition, if it has one.
//! `Paused` has the reasons of the infrastructure provider. `cluster::full::state` has the status of a condition for each reason.
//!
//! Pure.

use super::reasons;
#[cfg(test)]
use super::{Row, rows};
use crate::cluster::full::condition_type;

reasons! {
    /// Reasons of `Available`.
    pub enum AvailableReason: "Condition Available of a Cluster or a MachineDeployment", condition condition_type::AVAILABLE {
        Available: "The object works.";
        NotAvailable: "A part does not work. The message names it."
            => Other, "See the conditions that the message names.";
        AvailableUnknown: "The state of a part is not known. The message names it."
            => Other, "See the conditions that the message names.";
        WaitingForReplicasSet: "spec.replicas is not set yet.";
        WaitingForAvailableReplicasSet: "The number of available Machines is not known yet.";
        InternalError: "The core controller could not compute the condition."
            => Other, "See the log of bedplate-cluster.";
    }
}

reasons! {
    /// Reasons of `InfrastructureReady`.
    pub enum InfrastructureReadyReason: "Condition InfrastructureReady of a Cluster or a Machine", condition condition_type::INFRASTRUCTURE_READY {
        Ready: "The infrastructure is provisioned.";
        NotReady: "The infrastructure is not provisioned yet."
            => Other, "See condition Ready of the object of infrastructureRef.";
        ObjectDoesNotExist: "The object of infrastructureRef does not exist."
            => User, "Create it, or delete the Machine, so that its owner replaces it.";
        ObjectDeleted: "The object of infrastructureRef was deleted after it had been provisioned."
            => User, "Delete the Machine, so that its owner replaces it.";
        InvalidConditionReported: "Condition Ready of the object of infrastructureRef has no valid status or time."
            => Other, "Correct the infrastructure provider.";
        InternalError: "The object of infrastructureRef could not be read. The message has the cause."
            => User, "Check that the kind is installed, and that the core controller may read it.";
    }
}

reasons! {
    /// Reasons of `BootstrapConfigReady`.
    pub enum BootstrapConfigReadyReason: "Condition BootstrapConfigReady of a Machine", condition condition_type::BOOTSTRAP_CONFIG_READY {
        Ready: "The bootstrap data exists.";
        DataSecretProvided: "A user has given the bootstrap data.";
        NotReady: "The bootstrap data does not exist yet."
            => Other, "See condition Ready of the object of configRef.";
        ObjectDoesNotExist: "The object of configRef does not exist."
            => User, "Create it, or delete the Machine, so that its owner replaces it.";
        ObjectDeleted: "The object of configRef was deleted after it had made the bootstrap data.";
        InvalidConditionReported: "Condition Ready of the object of configRef has no valid status or time."
            => Other, "Correct the bootstrap provider.";
        InternalError: "The object of configRef could not be read. The message has the cause."
            => User, "Check that the kind is installed, and that the core controller may read it.";
    }
}

reasons! {
    /// Reasons of `ControlPlaneInitialized`.
    pub enum ControlPlaneInitializedReason: "Condition ControlPlaneInitialized of a Cluster", condition condition_type::CONTROL_PLANE_INITIALIZED {
        Initialized: "The control plane has accepted requests. The condition stays True.";
        NotInitialized: "The control plane has not accepted requests yet."
            => Other, "See the first Machine of the control plane.";
        InternalError: "The object of controlPlaneRef could not be read. The message has the cause."
            => User, "Check that the kind is installed, and that the core controller may read it.";
    }
}

reasons! {
    /// Reasons of `ControlPlaneAvailable`.
    pub enum ControlPlaneAvailableReason: "Condition ControlPlaneAvailable of a Cluster", condition condition_type::CONTROL_PLANE_AVAILABLE {
        Available: "The control plane works.";
        NotAvailable: "The control plane does not work."
            => Other, "See condition Available of the object of controlPlaneRef.";
        ObjectDoesNotExist: "The object of controlPlaneRef does not exist."
            => User, "Create it.";
        ObjectDeleted: "The object of controlPlaneRef was deleted after the control plane had been initialized.";
        InvalidConditionReported: "Condition Available of the object of controlPlaneRef has no valid status or time."
            => Other, "Correct the control plane provider.";
        InternalError: "The object of controlPlaneRef could not be read. The message has the cause."
            => User, "Check that the kind is installed, and that the core controller may read it.";
    }
}

reasons! {
    /// Reasons of `MachinesReady`, `ControlPlaneMachinesReady` and `WorkerMachinesReady`.
    pub enum MachinesReadyReason: "Conditions MachinesReady, ControlPlaneMachinesReady and WorkerMachinesReady" {
        Ready: "All Machines are ready.";
        NoReplicas: "There are no Machines.";
        NotReady: "A Machine is not ready. The message names it."
            => Other, "See condition Ready of the Machine.";
        ReadyUnknown: "The state of a Machine is not known. The message names it."
            => Other, "See condition Ready of the Machine.";
        InternalError: "The core controller could not compute the condition."
            => Other, "See the log of bedplate-cluster.";
    }
}

reasons! {
    /// Reasons of `MachinesUpToDate`, `ControlPlaneMachinesUpToDate` and `WorkerMachinesUpToDate`.
    pub enum MachinesUpToDateReason: "Conditions MachinesUpToDate, ControlPlaneMachinesUpToDate and WorkerMachinesUpToDate" {
        UpToDate: "All Machines have the template of their owner.";
        NoReplicas: "There are no Machines.";
        NotUpToDate: "A Machine has another template. The message names it.";
        UpToDateUnknown: "The template of a Machine is not known. The message names it.";
        InternalError: "The core controller could not compute the condition."
            => Other, "See the log of bedplate-cluster.";
    }
}

reasons! {
    /// Reasons of `WorkersAvailable`.
    pub enum WorkersAvailableReason: "Condition WorkersAvailable of a Cluster", condition condition_type::WORKERS_AVAILABLE {
        Available: "All MachineDeployments are available.";
        NoWorkers: "There are no MachineDeployments.";
        NotAvailable: "A MachineDeployment is not available. The message names it."
            => Other, "See condition Available of the MachineDeployment.";
        AvailableUnknown: "The state of a MachineDeployment is not known. The message names it."
            => Other, "See condition Available of the MachineDeployment.";
        InternalError: "The core controller could not compute the condition."
            => Other, "See the log of bedplate-cluster.";
    }
}

reasons! {
    /// Reasons of `RemoteConnectionProbe`.
    pub enum RemoteConnectionProbeReason: "Condition RemoteConnectionProbe of a Cluster", condition condition_type::REMOTE_CONNECTION_PROBE {
        ProbeSucceeded: "The API server of the cluster answers.";
        ProbeFailed: "The API server of the cluster has not answered for 50 seconds."
            => User, "Check the endpoint of the control plane, and the Secret with the kubeconfig.";
    }
}

reasons! {
    /// Reasons of `RollingOut`.
    pub enum RollingOutReason: "Condition RollingOut of a Cluster or a MachineDeployment", condition condition_type::ROLLING_OUT {
        RollingOut: "Machines with an earlier template are replaced.";
        NotRollingOut: "All Machines have the template.";
        RollingOutUnknown: "The state of a part is not known.";
        InternalError: "The core controller could not compute the condition."
            => Other, "See the log of bedplate-cluster.";
    }
}

reasons! {
    /// Reasons of `ScalingUp`.
    pub enum ScalingUpReason: "Condition ScalingUp of a Cluster, a MachineSet or a MachineDeployment", condition condition_type::SCALING_UP {
        ScalingUp: "Machines are made, or must be made. The message has the cause of a delay.";
        NotScalingUp: "No Machine must be made.";
        ScalingUpUnknown: "The state of a part is not known.";
        WaitingForReplicasSet: "spec.replicas is not set yet.";
        InternalError: "No Machine can be made. The message has the cause."
            => User, "Correct the cause in the message.";
    }
}

reasons! {
    /// Reasons of `ScalingDown`.
    pub enum ScalingDownReason: "Condition ScalingDown of a Cluster, a MachineSet or a MachineDeployment", condition condition_type::SCALING_DOWN {
        ScalingDown: "Machines are deleted. The message names those that take long.";
        NotScalingDown: "No Machine must be deleted.";
        ScalingDownUnknown: "The state of a part is not known.";
        WaitingForReplicasSet: "spec.replicas is not set yet.";
        InternalError: "The core controller could not compute the condition."
            => Other, "See the log of bedplate-cluster.";
    }
}

reasons! {
    /// Reasons of `Remediating`.
    pub enum RemediatingReason: "Condition Remediating of a Cluster, a MachineSet or a MachineDeployment", condition condition_type::REMEDIATING {
        Remediating: "Machines that a health check has marked are replaced.";
        NotRemediating: "No Machine is replaced because of a health check.";
        InternalError: "The core controller could not compute the condition."
            => Other, "See the log of bedplate-cluster.";
    }
}

reasons! {
    /// Reasons of `Deleting` of a Cluster.
    pub enum ClusterDeletingReason: "Condition Deleting of a Cluster", condition condition_type::DELETING {
        NotDeleting: "The Cluster is not deleted.";
        WaitingForWorkersDeletion: "Machines of workers are being deleted. The message names them."
            => Other, "See condition Deleting of the Machines.";
        WaitingForControlPlaneDeletion: "The control plane is being deleted."
            => Other, "See the object of controlPlaneRef, and condition Deleting of its Machines.";
        WaitingForInfrastructureDeletion: "The infrastructure of the Cluster is being deleted."
            => Other, "See the object of infrastructureRef.";
        DeletionCompleted: "All objects of the Cluster are deleted.";
        InternalError: "The deletion cannot continue. The message has the cause."
            => User, "Correct the cause in the message.";
    }
}

reasons! {
    /// Reasons of `Available` of a Machine.
    pub enum MachineAvailableReason: "Condition Available of a Machine", condition condition_type::AVAILABLE {
        Available: "The Machine has been ready for minReadySeconds.";
        NotReady: "The Machine is not ready."
            => Other, "See condition Ready of the Machine.";
        WaitingForMinReadySeconds: "The Machine is ready, but not for minReadySeconds yet.";
        InternalError: "The core controller could not compute the condition."
            => Other, "See the log of bedplate-cluster.";
    }
}

reasons! {
    /// Reasons of `Ready` of a Machine.
    pub enum MachineReadyReason: "Condition Ready of a Machine", condition condition_type::READY {
        Ready: "The Machine is part of its cluster and works.";
        NotReady: "A part does not work. The message names it."
            => Other, "See the conditions that the message names.";
        ReadyUnknown: "The state of a part is not known. The message names it."
            => Other, "See the conditions that the message names.";
        InternalError: "The core controller could not compute the condition."
            => Other, "See the log of bedplate-cluster.";
    }
}

reasons! {
    /// Reasons of `UpToDate`.
    pub enum UpToDateReason: "Condition UpToDate of a Machine", condition condition_type::UP_TO_DATE {
        UpToDate: "The Machine has the template of its owner.";
        NotUpToDate: "The Machine has another template. The message has the differences.";
    }
}

reasons! {
    /// Reasons of `NodeReady` of a Machine of Cluster API.
    pub enum MachineNodeReadyReason: "Condition NodeReady of a Machine of Cluster API", condition condition_type::NODE_READY {
        NodeReady: "The Node is ready.";
        NodeNotReady: "The Node is not ready."
            => Host, "See the conditions of the Node.";
        NodeReadyUnknown: "The Node has not reported for a while."
            => Host, "Check that the host is up.";
        NodeDoesNotExist: "The machine is not a Node yet."
            => Host, "Check that the machine is up, and that its bootstrap data has succeeded.";
        NodeDeleted: "The Node was deleted."
            => User, "Delete the Machine, so that its owner replaces it.";
        InspectionFailed: "The Node could not be read. The message has the cause.";
        ConnectionDown: "The API server of the cluster does not answer."
            => User, "See condition RemoteConnectionProbe of the Cluster.";
        InternalError: "The core controller could not compute the condition."
            => Other, "See the log of bedplate-cluster.";
    }
}

reasons! {
    /// Reasons of `NodeHealthy`.
    pub enum NodeHealthyReason: "Condition NodeHealthy of a Machine", condition condition_type::NODE_HEALTHY {
        NodeHealthy: "The Node is ready and has enough memory, disk space and process IDs.";
        NodeNotHealthy: "The Node is not ready, or it lacks memory, disk space or process IDs."
            => Host, "See the conditions of the Node.";
        NodeHealthyUnknown: "The state of the Node is not known."
            => Host, "Check that the host is up.";
        NodeDoesNotExist: "The machine is not a Node yet."
            => Host, "Check that the machine is up, and that its bootstrap data has succeeded.";
        NodeDeleted: "The Node was deleted."
            => User, "Delete the Machine, so that its owner replaces it.";
        InspectionFailed: "The Node could not be read. The message has the cause.";
        ConnectionDown: "The API server of the cluster does not answer."
            => User, "See condition RemoteConnectionProbe of the Cluster.";
        InternalError: "The core controller could not compute the condition."
            => Other, "See the log of bedplate-cluster.";
    }
}

reasons! {
    /// Reasons of `HealthCheckSucceeded`.
    pub enum HealthCheckSucceededReason: "Condition HealthCheckSucceeded of a Machine", condition condition_type::HEALTH_CHECK_SUCCEEDED {
        HealthCheckSucceeded: "Every health check of the Machine succeeds.";
        UnhealthyNode: "A condition of the Node is one that a health check names.";
        UnhealthyMachine: "A condition of the Machine is one that a health check names.";
        NodeStartupTimeout: "The machine has not become a Node in time.";
        NodeDeleted: "The Node was deleted.";
        HasRemediateAnnotation: "A user has asked for the replacement of the Machine by an annotation.";
    }
}

reasons! {
    /// Reasons of `OwnerRemediated`.
    pub enum OwnerRemediatedReason: "Condition OwnerRemediated of a Machine", condition condition_type::OWNER_REMEDIATED {
        WaitingForRemediation: "A health check has marked the Machine. Its owner has not acted yet."
            => Other, "Wait. A Machine without an owner is not replaced: delete it.";
        CannotBeRemediated: "The owner does not replace the Machine. The message has the cause."
            => User, "Correct the cause in the message.";
        RemediationDeferred: "The owner replaces the Machine later. The message has the cause.";
        MachineDeleting: "The Machine is deleted, so that its owner replaces it.";
    }
}

reasons! {
    /// Reasons of `Deleting` of a Machine.
    pub enum MachineDeletingReason: "Condition Deleting of a Machine", condition condition_type::DELETING {
        NotDeleting: "The Machine is not deleted.";
        Deleting: "The deletion has started.";
        WaitingForPreDrainHook: "An annotation holds the deletion before the drain. The message names it."
            => Other, "Wait until its program removes the annotation.";
        DrainingNode: "Pods are evicted from the Node. The message names those that stay."
            => Cluster, "Check the Pods and their PodDisruptionBudgets.";
        WaitingForVolumeDetach: "Volumes are still attached to the Node. The message names them."
            => Cluster, "Check the VolumeAttachments of the Node.";
        WaitingForPreTerminateHook: "An annotation holds the deletion after the drain. The message names it."
            => Other, "Wait until its program removes the annotation.";
        WaitingForInfrastructureDeletion: "The object of infrastructureRef is being deleted."
            => Other, "See the object of infrastructureRef.";
        WaitingForBootstrapDeletion: "The object of configRef is being deleted."
            => Other, "See the object of configRef.";
        DeletingNode: "The Node is being deleted."
            => Cluster, "See condition RemoteConnectionProbe of the Cluster.";
        DeletionCompleted: "All objects of the Machine are deleted.";
        InternalError: "The deletion cannot continue. The message has the cause."
            => User, "Correct the cause in the message.";
    }
}

reasons! {
    /// Reasons of `Deleting` of a MachineSet or a MachineDeployment.
    pub enum SetDeletingReason: "Condition Deleting of a MachineSet or a MachineDeployment", condition condition_type::DELETING {
        NotDeleting: "The object is not deleted.";
        Deleting: "Machines of the object are being deleted. The message names them."
            => Other, "See condition Deleting of the Machines.";
        InternalError: "The deletion cannot continue. The message has the cause."
            => User, "Correct the cause in the message.";
    }
}

reasons! {
    /// Reasons of `RemediationAllowed`.
    pub enum RemediationAllowedReason: "Condition RemediationAllowed of a MachineHealthCheck", condition condition_type::REMEDIATION_ALLOWED {
        RemediationAllowed: "Machines that are not healthy are marked.";
        TooManyUnhealthy: "The number of Machines that are not healthy is outside of triggerIf. None is marked."
            => User, "Find the common cause. Change triggerIf if the Machines must be replaced.";
        ConnectionDown: "The Nodes of the cluster cannot be read. Machines with an unknown Node are not judged."
            => Other, "See condition RemoteConnectionProbe of the Cluster.";
    }
}

reasons! {
    /// Reasons of `FieldsSupported`.
    pub enum FieldsSupportedReason: "Condition FieldsSupported of the core kinds of Cluster API", condition condition_type::FIELDS_SUPPORTED {
        FieldsSupported: "Bedplate carries out every field that is set.";
        UnsupportedFields: "Bedplate does not carry out fields that are set. The message names them."
            => User, "Remove the fields.";
    }
}

/// Tables of the core kinds, for the tests of their texts.
#[cfg(test)]
pub(super) fn tables() -> [(&'static str, Vec<Row>); 25] {
    [
        rows::<AvailableReason>(),
        rows::<InfrastructureReadyReason>(),
        rows::<BootstrapConfigReadyReason>(),
        rows::<ControlPlaneInitializedReason>(),
        rows::<ControlPlaneAvailableReason>(),
        rows::<MachinesReadyReason>(),
        rows::<MachinesUpToDateReason>(),
        rows::<WorkersAvailableReason>(),
        rows::<RemoteConnectionProbeReason>(),
        rows::<RollingOutReason>(),
        rows::<ScalingUpReason>(),
        rows::<ScalingDownReason>(),
        rows::<RemediatingReason>(),
        rows::<ClusterDeletingReason>(),
        rows::<MachineAvailableReason>(),
        rows::<MachineReadyReason>(),
        rows::<UpToDateReason>(),
        rows::<MachineNodeReadyReason>(),
        rows::<NodeHealthyReason>(),
        rows::<HealthCheckSucceededReason>(),
        rows::<OwnerRemediatedReason>(),
        rows::<MachineDeletingReason>(),
        rows::<SetDeletingReason>(),
        rows::<RemediationAllowedReason>(),
        rows::<FieldsSupportedReason>(),
    ]
}
