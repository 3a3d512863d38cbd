//! Reasons of the conditions of the core kinds of Cluster API. The words are upstream's, apart from those of `FieldsSupported`. The group `core`
//! of bedplate-cluster writes them.
//!
//! `InfrastructureReady`, `BootstrapConfigReady` and `ControlPlaneAvailable` show the reason of another object's condition, if it has one.
//! `Paused` has the reasons of the infrastructure provider. `cluster::full::state` has the status of a condition for each reason.
//!
//! Pure.

use super::{Table, reasons, rows};
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
    }
}

reasons! {
    /// Reasons of `InfrastructureReady`.
    pub enum InfrastructureReadyReason: "Condition InfrastructureReady of a Cluster or a Machine of Cluster API", condition condition_type::INFRASTRUCTURE_READY {
        Ready: "The infrastructure is provisioned.";
        NotReady: "The infrastructure is not provisioned yet."
            => Other, "See condition Ready of the object of infrastructureRef.";
        ObjectDoesNotExist: "The object of infrastructureRef does not exist."
            => User, "Create it. Or delete the Machine that names it, so that its owner replaces it.";
        ObjectDeleted: "The object of infrastructureRef was deleted after it had been provisioned."
            => User, "Delete the Machine, so that its owner replaces it. Of a Cluster: restore the object.";
        InvalidConditionReported: "Condition Ready of the object of infrastructureRef has no valid status or time."
            => Other, "Correct the infrastructure provider.";
        InternalError: "The object of infrastructureRef cannot be read or adopted, its endpoint cannot be copied, or it belongs to another object. The message has the cause."
            => User, "Correct the cause in the message.";
    }
}

reasons! {
    /// Reasons of `BootstrapConfigReady`.
    pub enum BootstrapConfigReadyReason: "Condition BootstrapConfigReady of a Machine of Cluster API", condition condition_type::BOOTSTRAP_CONFIG_READY {
        Ready: "The bootstrap data exists.";
        DataSecretProvided: "The Machine names a Secret with the data, and no object that makes it.";
        NotReady: "The bootstrap data does not exist yet."
            => Other, "See condition Ready of the object of configRef. Without configRef, set dataSecretName or data.";
        ObjectDoesNotExist: "The object of configRef does not exist."
            => User, "Create it, or delete the Machine, so that its owner replaces it.";
        ObjectDeleted: "The object of configRef was deleted after it had made the bootstrap data.";
        InvalidConditionReported: "Condition Ready of the object of configRef has no valid status or time."
            => Other, "Correct the bootstrap provider.";
        InternalError: "The object of configRef cannot be read, or it belongs to another object. The message has the cause."
            => User, "Correct the cause in the message.";
    }
}

reasons! {
    /// Reasons of `ControlPlaneInitialized`.
    pub enum ControlPlaneInitializedReason: "Condition ControlPlaneInitialized of a Cluster", condition condition_type::CONTROL_PLANE_INITIALIZED {
        Initialized: "The control plane has accepted requests. The condition stays True.";
        NotInitialized: "The control plane has not accepted requests yet."
            => Other, "See the object of controlPlaneRef, and the first Machine of the control plane.";
        InternalError: "The object of controlPlaneRef cannot be read, or it belongs to another Cluster. The message has the cause."
            => User, "Correct the cause in the message.";
    }
}

reasons! {
    /// Reasons of `ControlPlaneAvailable`.
    pub enum ControlPlaneAvailableReason: "Condition ControlPlaneAvailable of a Cluster", condition condition_type::CONTROL_PLANE_AVAILABLE {
        Available: "The control plane works.";
        NotAvailable: "The control plane does not work."
            => Other, "See condition Available of the object of controlPlaneRef, or of the Machines of the control plane.";
        ObjectDoesNotExist: "The object of controlPlaneRef does not exist."
            => User, "Create it.";
        ObjectDeleted: "The object of controlPlaneRef was deleted after the control plane had been initialized."
            => User, "Restore the object. If the Cluster is deleted, no action is needed.";
        InvalidConditionReported: "Condition Available of the object of controlPlaneRef has no valid status or time."
            => Other, "Correct the control plane provider.";
        InternalError: "The object of controlPlaneRef cannot be read or adopted, its endpoint cannot be copied, or it belongs to another Cluster. The message has the cause."
            => User, "Correct the cause in the message.";
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
    }
}

reasons! {
    /// Reasons of `MachinesUpToDate`, `ControlPlaneMachinesUpToDate` and `WorkerMachinesUpToDate`.
    pub enum MachinesUpToDateReason: "Conditions MachinesUpToDate, ControlPlaneMachinesUpToDate and WorkerMachinesUpToDate" {
        UpToDate: "All Machines have the template of their owner.";
        NoReplicas: "There are no Machines.";
        NotUpToDate: "A Machine has another template. The message names it, and a rollout replaces it."
            => Other, "Wait for the rollout. With the strategy OnDelete, delete the Machine.";
        UpToDateUnknown: "The template of a Machine is not known. The message names it.";
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
    }
}

reasons! {
    /// Reasons of `RemoteConnectionProbe`.
    pub enum RemoteConnectionProbeReason: "Condition RemoteConnectionProbe of a Cluster", condition condition_type::REMOTE_CONNECTION_PROBE {
        ProbeSucceeded: "The API server of the cluster answers.";
        ProbeFailed: "The API server of the cluster has not answered yet, or not for 50 seconds."
            => User, "Check the endpoint of the control plane, and the Secret with the kubeconfig. A new cluster has neither at first.";
    }
}

reasons! {
    /// Reasons of `RollingOut`.
    pub enum RollingOutReason: "Condition RollingOut of a Cluster or a MachineDeployment", condition condition_type::ROLLING_OUT {
        RollingOut: "Machines with an earlier template are replaced.";
        NotRollingOut: "All Machines have the template.";
        RollingOutUnknown: "The state of a part is not known.";
        InternalError: "The object of controlPlaneRef cannot be read. The message has the cause."
            => User, "Check that the kind is installed, and that the core provider may read it.";
    }
}

reasons! {
    /// Reasons of `ScalingUp`.
    pub enum ScalingUpReason: "Condition ScalingUp of a Cluster, a MachineSet or a MachineDeployment", condition condition_type::SCALING_UP {
        ScalingUp: "Machines are being created, or must be created. The message has the cause of a delay."
            => Other, "If the message has a cause, correct it. Otherwise wait.";
        NotScalingUp: "No Machine must be created.";
        ScalingUpUnknown: "The state of a part is not known.";
        WaitingForReplicasSet: "spec.replicas is not set yet.";
        InternalError: "The object of controlPlaneRef cannot be read. The message has the cause."
            => User, "Check that the kind is installed, and that the core provider may read it.";
    }
}

reasons! {
    /// Reasons of `ScalingDown`.
    pub enum ScalingDownReason: "Condition ScalingDown of a Cluster, a MachineSet or a MachineDeployment", condition condition_type::SCALING_DOWN {
        ScalingDown: "Machines are deleted. The message names those that take long.";
        NotScalingDown: "No Machine must be deleted.";
        ScalingDownUnknown: "The state of a part is not known.";
        WaitingForReplicasSet: "spec.replicas is not set yet.";
        InternalError: "The object of controlPlaneRef cannot be read. The message has the cause."
            => User, "Check that the kind is installed, and that the core provider may read it.";
    }
}

reasons! {
    /// Reasons of `Remediating`.
    pub enum RemediatingReason: "Condition Remediating of a Cluster, a MachineSet or a MachineDeployment", condition condition_type::REMEDIATING {
        Remediating: "Machines that a health check has marked are replaced.";
        NotRemediating: "No Machine is replaced because of a health check.";
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
        InternalError: "The deletion cannot continue, or the finalizer cannot be added. The message has the cause."
            => User, "Correct the cause in the message.";
    }
}

reasons! {
    /// Reasons of `Available` of a Machine.
    pub enum MachineAvailableReason: "Condition Available of a Machine of Cluster API", condition condition_type::AVAILABLE {
        Available: "The Machine has been ready for minReadySeconds.";
        NotReady: "The Machine is not ready."
            => Other, "See condition Ready of the Machine.";
        WaitingForMinReadySeconds: "The Machine is ready, but not for minReadySeconds yet.";
    }
}

reasons! {
    /// Reasons of `Ready` of a Machine.
    pub enum MachineReadyReason: "Condition Ready of a Machine of Cluster API", condition condition_type::READY {
        Ready: "The Machine is part of its cluster and works.";
        NotReady: "A part does not work. The message names it."
            => Other, "See the conditions that the message names.";
        ReadyUnknown: "The state of a part is not known. The message names it."
            => Other, "See the conditions that the message names.";
        InternalError: "A readiness gate of the Machine names Ready itself, so it never becomes True."
            => User, "Remove the gate from spec.readinessGates.";
    }
}

reasons! {
    /// Reasons of `UpToDate`.
    pub enum UpToDateReason: "Condition UpToDate of a Machine of Cluster API", condition condition_type::UP_TO_DATE {
        UpToDate: "The Machine has the template of its owner.";
        NotUpToDate: "The Machine has another template. The message has the differences."
            => Other, "Wait for the rollout. With the strategy OnDelete, delete the Machine.";
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
        NodeDoesNotExist: "The Machine is deleted, and it has no Node.";
        NodeDeleted: "The Node was deleted."
            => User, "Delete the Machine, so that its owner replaces it.";
        InspectionFailed: "The Node is not known yet, or several Nodes have the providerID. The message has the cause."
            => Other, "Check the cause in the message: the Cluster, the infrastructure, or the bootstrap of the host.";
        ConnectionDown: "The API server of the cluster does not answer."
            => User, "See condition RemoteConnectionProbe of the Cluster.";
    }
}

reasons! {
    /// Reasons of `NodeHealthy`.
    pub enum NodeHealthyReason: "Condition NodeHealthy of a Machine of Cluster API", condition condition_type::NODE_HEALTHY {
        NodeHealthy: "The Node is ready and has enough memory, disk space and process IDs.";
        NodeNotHealthy: "The Node is not ready, or it lacks memory, disk space or process IDs."
            => Host, "See the conditions of the Node.";
        NodeHealthyUnknown: "The state of the Node is not known."
            => Host, "Check that the host is up.";
        NodeDoesNotExist: "The Machine is deleted, and it has no Node.";
        NodeDeleted: "The Node was deleted."
            => User, "Delete the Machine, so that its owner replaces it.";
        InspectionFailed: "The Node is not known yet, or several Nodes have the providerID. The message has the cause."
            => Other, "Check the cause in the message: the Cluster, the infrastructure, or the bootstrap of the host.";
        ConnectionDown: "The API server of the cluster does not answer."
            => User, "See condition RemoteConnectionProbe of the Cluster.";
    }
}

reasons! {
    /// Reasons of `HealthCheckSucceeded`.
    pub enum HealthCheckSucceededReason: "Condition HealthCheckSucceeded of a Machine of Cluster API", condition condition_type::HEALTH_CHECK_SUCCEEDED {
        HealthCheckSucceeded: "Every health check of the Machine succeeds.";
        UnhealthyNode: "A condition of the Node has had a status that the health check names, for its timeout."
            => Other, "See condition OwnerRemediated of the Machine.";
        UnhealthyMachine: "A condition of the Machine has had a status that the health check names, for its timeout."
            => Other, "See condition OwnerRemediated of the Machine.";
        NodeStartupTimeout: "The machine has not become a Node in time."
            => Other, "See condition OwnerRemediated of the Machine.";
        NodeDeleted: "The Node was deleted."
            => Other, "See condition OwnerRemediated of the Machine.";
        HasRemediateAnnotation: "A user has asked for the replacement of the Machine by an annotation."
            => Other, "See condition OwnerRemediated of the Machine.";
    }
}

reasons! {
    /// Reasons of `OwnerRemediated`.
    pub enum OwnerRemediatedReason: "Condition OwnerRemediated of a Machine of Cluster API", condition condition_type::OWNER_REMEDIATED {
        WaitingForRemediation: "A health check has marked the Machine. Its owner has not acted yet."
            => Other, "Wait. A Machine that no MachineSet and no control plane owns is not replaced: delete it.";
        CannotBeRemediated: "The owner does not replace the Machine because of the health check. The message has the cause, such as a rollout that removes it."
            => Other, "Wait for the rollout, or correct the cause in the message.";
        RemediationDeferred: "The owner replaces the Machine later. The message has the cause."
            => Other, "Wait, or correct the cause in the message.";
        MachineDeleting: "The Machine is deleted, so that its owner replaces it.";
    }
}

reasons! {
    /// Reasons of `Deleting` of a Machine.
    pub enum MachineDeletingReason: "Condition Deleting of a Machine of Cluster API", condition condition_type::DELETING {
        NotDeleting: "The Machine is not deleted.";
        Deleting: "The deletion has started.";
        WaitingForPreDrainHook: "An annotation blocks the deletion before the drain. The message names it."
            => Other, "Wait until its program removes the annotation.";
        DrainingNode: "Pods are evicted from the Node. The message names those that stay."
            => Cluster, "Check the Pods and their PodDisruptionBudgets. Set nodeDrainTimeoutSeconds to stop waiting.";
        WaitingForVolumeDetach: "Volumes are still attached to the Node. The message names them."
            => Cluster, "Check the VolumeAttachments of the Node. Set nodeVolumeDetachTimeoutSeconds to stop waiting.";
        WaitingForPreTerminateHook: "An annotation blocks the deletion after the drain. The message names it."
            => Other, "Wait until its program removes the annotation.";
        WaitingForInfrastructureDeletion: "The object of infrastructureRef is being deleted."
            => Other, "See the object of infrastructureRef.";
        WaitingForBootstrapDeletion: "The object of configRef is being deleted."
            => Other, "See the object of configRef.";
        DeletingNode: "The Node is being deleted."
            => Cluster, "If it takes long, read the message. The deletion continues without the Node after nodeDeletionTimeoutSeconds.";
        DeletionCompleted: "All objects of the Machine are deleted.";
        InternalError: "The deletion cannot continue. The message has the cause."
            => User, "Correct the cause in the message.";
    }
}

reasons! {
    /// Reasons of `Deleting` of a MachineSet or a MachineDeployment.
    pub enum SetDeletingReason: "Condition Deleting of a MachineSet or a MachineDeployment", condition condition_type::DELETING {
        NotDeleting: "The object is not deleted.";
        Deleting: "Machines of the object are being deleted. The message counts them, and names those that take long."
            => Other, "See condition Deleting of the Machines.";
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

/// Tables of the core kinds.
pub(super) fn tables() -> [Table; 25] {
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
