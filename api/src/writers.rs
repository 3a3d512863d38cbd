//! Writers and readers of each field of a status.
//!
//! "Who writes what" in docs/design/rules.md is generated from this table. Tests compare it with the definitions, with the policies in deploy/, and
//! with the conditions that each program applies. A new field needs a row with its writer.
//!
//! Pure.

/// Writer of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// bedplate-controller.
    Controller,
    /// bedplate-agent on the Machine's host.
    Agent,
    /// Each pxed of the Machine's site.
    Pxed,
    /// The pxed that leads the site's power, as field manager `pxed-power`.
    PxedPower,
    /// The pxed that enrolls the host, as field manager `pxed-enrollment`.
    PxedEnrollment,
    /// Controller of a provider that is not Bedplate's.
    Provider,
    /// Provider that makes a MachineClaim.
    ClaimProvider,
    /// Program that carries an operation out: pxed, the agent, or one of the user's own.
    Executor,
    /// Core provider of Cluster API.
    Core,
    /// Core provider of Cluster API, as field manager `bedplate-cluster-health`.
    CoreHealth,
    /// Control plane provider of Cluster API.
    ControlPlane,
}

impl Writer {
    /// The writer, for documents.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Controller => "bedplate-controller",
            Self::Agent => "bedplate-agent",
            Self::Pxed => "pxed",
            Self::PxedPower => "pxed, as `pxed-power`",
            Self::PxedEnrollment => "pxed, as `pxed-enrollment`",
            Self::Provider => "controller of another provider",
            Self::ClaimProvider => "provider of claims",
            Self::Executor => "program that carries it out",
            Self::Core => "core provider",
            Self::CoreHealth => "core provider, as `bedplate-cluster-health`",
            Self::ControlPlane => "control plane provider",
        }
    }
}

/// Reader of a field: it decides by the field, or shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// bedplate-controller.
    Controller,
    /// bedplate-agent.
    Agent,
    /// pxed.
    Pxed,
    /// Provider that makes a MachineClaim.
    ClaimProvider,
    /// Other providers of Cluster API: infrastructure, bootstrap, control plane.
    OtherProviders,
    /// `bedplate`.
    Cli,
    /// The API server, in a policy or a rule of a definition.
    Policy,
    /// User, `kubectl wait`, tools that read objects as kstatus does.
    User,
}

impl Reader {
    /// The reader, for documents.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Controller => "bedplate-controller",
            Self::Agent => "bedplate-agent",
            Self::Pxed => "pxed",
            Self::ClaimProvider => "provider of claims",
            Self::OtherProviders => "other providers",
            Self::Cli => "`bedplate`",
            Self::Policy => "policies",
            Self::User => "users",
        }
    }
}

/// Row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Field of the status, such as `power` or `hardware.bmc`. A condition is `conditions.` and its type.
    pub field: &'static str,
    /// Writers.
    pub writers: &'static [Writer],
    /// Readers, other than the writers that continue after a restart.
    pub readers: &'static [Reader],
}

impl Row {
    /// Type of the condition, if the row is that of one.
    pub fn condition(&self) -> Option<&'static str> {
        self.field.strip_prefix("conditions.")
    }
}

const fn row(field: &'static str, writers: &'static [Writer], readers: &'static [Reader]) -> Row {
    Row { field, writers, readers }
}

use Reader::{Agent, ClaimProvider, Cli, Controller, OtherProviders, Policy, Pxed, User};
use Writer as W;

/// Fields of a Machine's status.
pub const MACHINE: &[Row] = &[
    row("observedGeneration", &[W::Controller], &[User]),
    row("phase", &[W::Controller], &[Cli, User]),
    row("selected", &[W::Controller], &[Agent, Cli, Policy]),
    row("nodeRef", &[W::Controller], &[Agent, Pxed, Cli]),
    row("observedNode", &[W::Controller], &[Pxed]),
    row("providerID", &[W::Controller], &[User]),
    row("conditions.ConfigurationPending", &[W::Controller], &[Cli, User]),
    row("conditions.Drained", &[W::Controller], &[Cli, User]),
    row("conditions.Ready", &[W::Controller], &[Cli, User]),
    row("conditions.Stalled", &[W::Controller], &[Cli, User]),
    row("boot", &[W::Pxed, W::Provider], &[Controller, Cli]),
    row("conditions.Booted", &[W::Pxed, W::Provider], &[Controller, Cli]),
    row("conditions.Enrolled", &[W::Pxed], &[Controller, Cli]),
    row("power", &[W::PxedPower, W::Provider], &[Cli, User]),
    row("hardware.bmc", &[W::PxedPower], &[User]),
    row("conditions.BMCReachable", &[W::PxedPower], &[Controller, Cli]),
    row("conditions.PoweredOn", &[W::PxedPower, W::Provider], &[Controller, Pxed, Cli]),
    row("enrollment", &[W::PxedEnrollment], &[Controller, Agent, Policy]),
    row("agent", &[W::Agent], &[Controller, Pxed, Cli]),
    row("hardware.vendor", &[W::Agent], &[Controller, Cli]),
    row("hardware.product", &[W::Agent], &[Controller, Cli]),
    row("hardware.cpu", &[W::Agent], &[Controller, Cli]),
    row("hardware.serial", &[W::Agent], &[Cli, User]),
    row("hardware.memoryBytes", &[W::Agent], &[Cli, User]),
    row("hardware.disks", &[W::Agent], &[Cli, User]),
    row("hardware.nics", &[W::Agent], &[Cli, User]),
    row("hardware.uuid", &[W::Agent], &[User]),
    row("hardware.firmware", &[W::Agent], &[User]),
    row("hardware.tpm", &[W::Agent], &[User]),
    row("hardware.clock", &[W::Agent], &[User]),
    row("stateDisk", &[W::Agent], &[ClaimProvider, Cli]),
    row("addresses", &[W::Agent], &[Controller, Cli]),
    row("applied", &[W::Agent], &[Controller, Cli, Policy]),
    row("slots", &[W::Agent], &[Controller, Policy]),
    row("rolledBack", &[W::Agent], &[Controller, Cli]),
    row("claim", &[W::Agent], &[Controller, ClaimProvider, Pxed, Cli]),
    row("conditions.Paved", &[W::Agent], &[Controller, Cli]),
    row("conditions.NodeReady", &[W::Agent], &[Controller, Cli]),
];

/// Fields of a MachineConfiguration's status.
pub const CONFIGURATION: &[Row] = &[
    row("observedGeneration", &[W::Controller], &[User]),
    row("latestVersion", &[W::Controller], &[Cli, User]),
    row("deployedVersion", &[W::Controller], &[Cli, User]),
    row("machines", &[W::Controller], &[Cli, User]),
    row("rolloutFailures", &[W::Controller], &[Cli]),
    row("conditions.Ready", &[W::Controller], &[Cli, User]),
    row("conditions.Progressing", &[W::Controller], &[Cli]),
    row("conditions.Degraded", &[W::Controller], &[Cli]),
    row("conditions.Stalled", &[W::Controller], &[Cli, User]),
];

/// Fields of a MachineConfigurationVersion's status.
const VERSION: &[Row] = &[
    row("observedGeneration", &[W::Controller], &[User]),
    row("deployed", &[W::Controller], &[Cli, Policy]),
    row("deployedTime", &[W::Controller], &[Cli]),
    row("machines", &[W::Controller], &[Cli, User]),
    row("imageDigest", &[W::Controller], &[Agent, User]),
    row("imageReference", &[W::Controller], &[Agent, User]),
    row("conditions.Ready", &[W::Controller], &[Cli, User]),
];

/// Fields of a MachineOperation's status. bedplate-controller is the executor of an operation with a selector, and ends an operation that no
/// executor ends.
pub const OPERATION: &[Row] = &[
    row("observedGeneration", &[W::Executor, W::Controller], &[User]),
    row("state", &[W::Executor, W::Controller], &[Agent, Pxed, Cli, Policy]),
    row("startTime", &[W::Executor, W::Controller], &[Cli, Policy]),
    row("completionTime", &[W::Executor, W::Controller], &[Pxed, User]),
    row("reason", &[W::Executor, W::Controller], &[Cli]),
    row("message", &[W::Executor, W::Controller], &[Cli, User]),
    row("executor", &[W::Executor], &[Controller, Policy]),
    row("conditions.Complete", &[W::Executor, W::Controller], &[User]),
    row("conditions.Failed", &[W::Executor, W::Controller], &[Cli, User]),
    row("conditions.Stalled", &[W::Executor, W::Controller], &[Cli, User]),
    row("bootID", &[W::Agent], &[Policy]),
    row("conditions.Cordoned", &[W::Agent], &[User]),
    row("conditions.Drained", &[W::Agent], &[Controller, Cli]),
    row("step", &[W::Pxed], &[User]),
    row("counts", &[W::Controller], &[Cli, User]),
    row("machines", &[W::Controller], &[Cli]),
    row("conditions.Suspended", &[W::Controller], &[Cli, User]),
];

/// Fields of a MachineClaim's status.
const CLAIM: &[Row] = &[
    row("providerID", &[W::Agent], &[ClaimProvider, Cli]),
    row("state", &[W::Agent], &[ClaimProvider, Controller, Cli]),
    row("reason", &[W::Agent], &[ClaimProvider, Cli]),
    row("message", &[W::Agent], &[ClaimProvider, Cli]),
    row("node", &[W::Agent], &[ClaimProvider, Cli]),
    row("since", &[W::Agent], &[ClaimProvider, Cli]),
    row("refused", &[W::Agent], &[ClaimProvider, Cli]),
    row("conditions.Granted", &[W::ClaimProvider], &[Agent, Cli]),
    row("conditions.Fenced", &[W::ClaimProvider], &[Cli, User]),
    row("conditions.Orphaned", &[W::ClaimProvider], &[Cli, User]),
    row("conditions.Wiped", &[W::ClaimProvider], &[Cli, User]),
];

/// The tables by the plural names of their kinds.
pub const KINDS: &[(&str, &[Row])] = &[
    ("machines", MACHINE),
    ("machineconfigurations", CONFIGURATION),
    ("machineconfigurationversions", VERSION),
    ("machineoperations", OPERATION),
    ("machineclaims", CLAIM),
];

/// Fields of the status of a Cluster of Cluster API. No program of Bedplate writes `deprecated`.
pub const CLUSTER: &[Row] = &[
    row("observedGeneration", &[W::Core], &[User]),
    row("phase", &[W::Core], &[User]),
    row("controlPlane", &[W::Core], &[User]),
    row("workers", &[W::Core], &[User]),
    row("initialization", &[W::Core], &[OtherProviders, User]),
    row("failureDomains", &[W::Core], &[OtherProviders, User]),
    row("conditions.Paused", &[W::Core], &[User]),
    row("conditions.FieldsSupported", &[W::Core], &[User]),
    row("conditions.Available", &[W::Core], &[User]),
    row("conditions.RemoteConnectionProbe", &[W::Core], &[User]),
    row("conditions.InfrastructureReady", &[W::Core], &[User]),
    row("conditions.ControlPlaneAvailable", &[W::Core], &[User]),
    row("conditions.WorkersAvailable", &[W::Core], &[User]),
    row("conditions.ControlPlaneMachinesReady", &[W::Core], &[User]),
    row("conditions.ControlPlaneMachinesUpToDate", &[W::Core], &[User]),
    row("conditions.WorkerMachinesReady", &[W::Core], &[User]),
    row("conditions.WorkerMachinesUpToDate", &[W::Core], &[User]),
    row("conditions.RollingOut", &[W::Core], &[User]),
    row("conditions.ScalingUp", &[W::Core], &[User]),
    row("conditions.ScalingDown", &[W::Core], &[User]),
    row("conditions.Remediating", &[W::Core], &[User]),
    row("conditions.Deleting", &[W::Core], &[User]),
    row("conditions.ControlPlaneInitialized", &[W::Core], &[OtherProviders, User]),
];

/// Fields of the status of a Machine of Cluster API. A control plane provider writes conditions of its own, too.
pub const CLUSTER_MACHINE: &[Row] = &[
    row("observedGeneration", &[W::Core], &[User]),
    row("phase", &[W::Core], &[User]),
    row("lastUpdated", &[W::Core], &[User]),
    row("nodeInfo", &[W::Core], &[User]),
    row("addresses", &[W::Core], &[User]),
    row("deletion", &[W::Core], &[User]),
    row("initialization", &[W::Core], &[OtherProviders, User]),
    row("nodeRef", &[W::Core], &[OtherProviders, User]),
    row("failureDomain", &[W::Core], &[OtherProviders, User]),
    row("certificatesExpiryDate", &[W::Core], &[OtherProviders, User]),
    row("conditions.Available", &[W::Core], &[OtherProviders, User]),
    row("conditions.Ready", &[W::Core], &[OtherProviders, User]),
    row("conditions.BootstrapConfigReady", &[W::Core], &[User]),
    row("conditions.InfrastructureReady", &[W::Core], &[User]),
    row("conditions.NodeReady", &[W::Core], &[User]),
    row("conditions.NodeHealthy", &[W::Core], &[User]),
    row("conditions.Deleting", &[W::Core], &[User]),
    row("conditions.Paused", &[W::Core], &[User]),
    row("conditions.FieldsSupported", &[W::Core], &[User]),
    row("conditions.UpToDate", &[W::Core, W::ControlPlane], &[User]),
    row("conditions.HealthCheckSucceeded", &[W::CoreHealth], &[OtherProviders, User]),
    row("conditions.OwnerRemediated", &[W::CoreHealth, W::ControlPlane], &[OtherProviders, User]),
];

/// Fields of the status of a MachineSet of Cluster API.
pub const MACHINE_SET: &[Row] = &[
    row("observedGeneration", &[W::Core], &[User]),
    row("selector", &[W::Core], &[User]),
    row("replicas", &[W::Core], &[User]),
    row("readyReplicas", &[W::Core], &[User]),
    row("availableReplicas", &[W::Core], &[User]),
    row("upToDateReplicas", &[W::Core], &[User]),
    row("conditions.ScalingUp", &[W::Core], &[User]),
    row("conditions.ScalingDown", &[W::Core], &[User]),
    row("conditions.MachinesReady", &[W::Core], &[User]),
    row("conditions.MachinesUpToDate", &[W::Core], &[User]),
    row("conditions.Remediating", &[W::Core], &[User]),
    row("conditions.Deleting", &[W::Core], &[User]),
    row("conditions.Paused", &[W::Core], &[User]),
    row("conditions.FieldsSupported", &[W::Core], &[User]),
];

/// Fields of the status of a MachineDeployment of Cluster API.
pub const MACHINE_DEPLOYMENT: &[Row] = &[
    row("observedGeneration", &[W::Core], &[User]),
    row("phase", &[W::Core], &[User]),
    row("selector", &[W::Core], &[User]),
    row("replicas", &[W::Core], &[User]),
    row("readyReplicas", &[W::Core], &[User]),
    row("availableReplicas", &[W::Core], &[User]),
    row("upToDateReplicas", &[W::Core], &[User]),
    row("conditions.Available", &[W::Core], &[User]),
    row("conditions.RollingOut", &[W::Core], &[User]),
    row("conditions.ScalingUp", &[W::Core], &[User]),
    row("conditions.ScalingDown", &[W::Core], &[User]),
    row("conditions.MachinesReady", &[W::Core], &[User]),
    row("conditions.MachinesUpToDate", &[W::Core], &[User]),
    row("conditions.Remediating", &[W::Core], &[User]),
    row("conditions.Deleting", &[W::Core], &[User]),
    row("conditions.Paused", &[W::Core], &[User]),
    row("conditions.FieldsSupported", &[W::Core], &[User]),
];

/// Fields of the status of a MachineHealthCheck of Cluster API.
pub const HEALTH_CHECK: &[Row] = &[
    row("observedGeneration", &[W::Core], &[User]),
    row("expectedMachines", &[W::Core], &[User]),
    row("currentHealthy", &[W::Core], &[User]),
    row("remediationsAllowed", &[W::Core], &[User]),
    row("targets", &[W::Core], &[User]),
    row("conditions.RemediationAllowed", &[W::Core], &[User]),
    row("conditions.Paused", &[W::Core], &[User]),
    row("conditions.FieldsSupported", &[W::Core], &[User]),
];

/// Tables of the core kinds of Cluster API by the plural names of the kinds.
pub const CORE_KINDS: &[(&str, &[Row])] = &[
    ("clusters", CLUSTER),
    ("machines", CLUSTER_MACHINE),
    ("machinesets", MACHINE_SET),
    ("machinedeployments", MACHINE_DEPLOYMENT),
    ("machinehealthchecks", HEALTH_CHECK),
];

/// Returns the types of the conditions that one of these writers writes.
pub fn conditions(rows: &[Row], writers: &[Writer]) -> Vec<&'static str> {
    written(rows, writers).filter_map(Row::condition).collect()
}

/// Returns the rows that one of these writers writes.
pub fn written<'a>(rows: &'a [Row], writers: &'a [Writer]) -> impl Iterator<Item = &'a Row> {
    rows.iter().filter(|row| row.writers.iter().any(|writer| writers.contains(writer)))
}
