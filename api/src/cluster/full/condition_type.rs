//! Types of the conditions of the core kinds, as upstream has them, and `FieldsSupported` of Bedplate.
//!
//! Pure: no clock, no file, no socket.

/// The object works. Summary of other conditions.
pub const AVAILABLE: &str = "Available";
/// The Machine is part of its cluster and works. Summary of other conditions.
pub const READY: &str = "Ready";
/// The object has the template of its owner.
pub const UP_TO_DATE: &str = "UpToDate";
/// The infrastructure is provisioned. Mirror of `Ready` of the infrastructure object.
pub const INFRASTRUCTURE_READY: &str = "InfrastructureReady";
/// The bootstrap data exists. Mirror of `Ready` of the bootstrap object.
pub const BOOTSTRAP_CONFIG_READY: &str = "BootstrapConfigReady";
/// The control plane has accepted requests once.
pub const CONTROL_PLANE_INITIALIZED: &str = "ControlPlaneInitialized";
/// The control plane works. Mirror of `Available` of the control plane object.
pub const CONTROL_PLANE_AVAILABLE: &str = "ControlPlaneAvailable";
/// The Machines of the control plane are ready.
pub const CONTROL_PLANE_MACHINES_READY: &str = "ControlPlaneMachinesReady";
/// The Machines of the control plane are up to date.
pub const CONTROL_PLANE_MACHINES_UP_TO_DATE: &str = "ControlPlaneMachinesUpToDate";
/// The MachineDeployments are available.
pub const WORKERS_AVAILABLE: &str = "WorkersAvailable";
/// The Machines of workers are ready.
pub const WORKER_MACHINES_READY: &str = "WorkerMachinesReady";
/// The Machines of workers are up to date.
pub const WORKER_MACHINES_UP_TO_DATE: &str = "WorkerMachinesUpToDate";
/// The API server of the cluster answers.
pub const REMOTE_CONNECTION_PROBE: &str = "RemoteConnectionProbe";
/// Machines with an earlier template are replaced.
pub const ROLLING_OUT: &str = "RollingOut";
/// Machines are made.
pub const SCALING_UP: &str = "ScalingUp";
/// Machines are deleted.
pub const SCALING_DOWN: &str = "ScalingDown";
/// Machines that a health check has marked are replaced.
pub const REMEDIATING: &str = "Remediating";
/// The object is deleted.
pub const DELETING: &str = "Deleting";
/// No controller changes the object.
pub const PAUSED: &str = "Paused";
/// The Machines of a set are ready.
pub const MACHINES_READY: &str = "MachinesReady";
/// The Machines of a set are up to date.
pub const MACHINES_UP_TO_DATE: &str = "MachinesUpToDate";
/// The Node is ready.
pub const NODE_READY: &str = "NodeReady";
/// The Node is ready and has enough memory, disk space and process IDs.
pub const NODE_HEALTHY: &str = "NodeHealthy";
/// Every health check of the Machine succeeds.
pub const HEALTH_CHECK_SUCCEEDED: &str = "HealthCheckSucceeded";
/// The owner of the Machine has replaced it. False while it has not.
pub const OWNER_REMEDIATED: &str = "OwnerRemediated";
/// The health check may mark Machines.
pub const REMEDIATION_ALLOWED: &str = "RemediationAllowed";
/// Bedplate carries out every field that is set. A condition of Bedplate.
pub const FIELDS_SUPPORTED: &str = "FieldsSupported";
