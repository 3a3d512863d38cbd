//! `MachineOperation`: something to be done once to one Machine, or to all that a selector matches (docs/rules.md,
//! "Operations"; O1 to O8).
//!
//! Types and validation only.
//!
//! Pure: no clock, no file, no socket.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::MachineName;
use crate::schema::short_values;
use crate::selector::MachineSelector;

/// Default timeout of a powerOn or a reset without `timeoutSeconds`, in seconds (docs/bmc.md).
pub const POWER_ON_TIMEOUT: i32 = 300;
/// Default timeout of a powerOff or a powerCycle without `timeoutSeconds`, in seconds (docs/bmc.md).
pub const POWER_OFF_TIMEOUT: i32 = 600;

/// Machines of one operation with a selector, at most; a selector that matches more is refused.
pub const MOST_MACHINES: usize = 10_000;

/// The operations that pxed carries out (O7).
pub const POWER_OPERATIONS: [&str; 4] = ["powerOn", "powerOff", "powerCycle", "reset"];
/// The operations that the agent on the machine carries out (O7).
pub const AGENT_OPERATIONS: [&str; 5] =
    ["reboot", "shutdown", "restartService", "packetCapture", "applyConfiguration"];

/// Types of conditions.
pub mod condition_type {
    /// The operation is Complete. Written with the state.
    pub const COMPLETE: &str = "Complete";
    /// The operation has Failed. Written with the state.
    pub const FAILED: &str = "Failed";
    /// The operation has Failed, for tools that read objects as kstatus does. Written with the state.
    pub const STALLED: &str = "Stalled";
    /// The Machine is paused, so that the time in which the operation must be taken does not run. Written by bedplate-controller.
    pub const SUSPENDED: &str = "Suspended";
    /// The Node is cordoned for the operation. Written by the agent.
    pub const CORDONED: &str = "Cordoned";
    /// The Pods of an applyConfiguration with `disruption=allow` were evicted. bedplate-controller deletes the Node, so that the host is
    /// repaved: an agent may not. Written by the agent.
    pub const DRAINED: &str = "Drained";
}

/// One-time operation.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "bedplate.dev",
    version = "v1alpha1",
    kind = "MachineOperation",
    plural = "machineoperations",
    shortname = "mop",
    category = "bedplate",
    status = "MachineOperationStatus",
    derive = "PartialEq",
    cel,
    doc = "One-time operation on one Machine, or on all that a selector matches. Its spec cannot be changed.",
    printcolumn(name = "Operation", type_ = "string", json_path = ".spec.operationName"),
    printcolumn(name = "Machine", type_ = "string", json_path = ".spec.machineRef.name"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Executor", type_ = "string", json_path = ".status.executor", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "Total", type_ = "integer", json_path = ".status.counts.total", priority = 1),
    printcolumn(name = "Complete", type_ = "integer", json_path = ".status.counts.complete", priority = 1),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.counts.failed", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self == oldSelf").message("the spec of a MachineOperation cannot be changed: make a new one"),
    validation = Rule::new("has(self.machineRef) != has(self.machineSelector)")
        .message("exactly one of machineRef and machineSelector must be set"),
    validation = Rule::new(
        "!has(self.machineSelector) || \
         (has(self.machineSelector.matchLabels) && size(self.machineSelector.matchLabels) > 0) || \
         (has(self.machineSelector.matchExpressions) && size(self.machineSelector.matchExpressions) > 0) || \
         (has(self.machineSelector.matchFields) && size(self.machineSelector.matchFields) > 0)"
    )
    .message("machineSelector must have at least one requirement: an empty selector would match all Machines"),
    validation = Rule::new("has(self.machineSelector) || (!has(self.maxParallel) && !has(self.failureLimit))")
        .message("maxParallel and failureLimit may only be set when machineSelector is set")
)]
pub struct MachineOperationSpec {
    /// The one Machine that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_ref: Option<MachineRef>,
    /// The Machines that it is for; at least one requirement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_selector: Option<MachineSelector>,
    /// Name of the operation: `reboot`, `shutdown`, `restartService`, `powerOn`, `powerOff`, `powerCycle`,
    /// `reset`, `applyConfiguration`, `packetCapture`, or a name that a controller of your own takes. At most
    /// 63 characters.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$"))]
    pub operation_name: String,
    /// Parameters of the operation, at most 64, each with at most 4096 characters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "short_values", extend("maxProperties" = 64))]
    pub parameters: BTreeMap<String, String>,
    /// Time that the object is kept after its end, in seconds. If unset, it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// Timeout on one Machine, in seconds. If unset, the operation's own default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub timeout_seconds: Option<i32>,
    /// Maximum number of Machines that run the operation concurrently, with a selector. If unset, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_parallel: Option<i32>,
    /// With a selector: no more are started after this many failures. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub failure_limit: Option<i32>,
}

/// A Machine by name.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MachineRef {
    /// The Machine's name.
    pub name: MachineName,
}

/// State of an operation.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "['Complete', 'Failed'].all(t, (has(self.state) && self.state == t) == \
         (has(self.conditions) && self.conditions.exists(c, c.type == t && c.status == 'True')))"
    )
    .message("conditions Complete and Failed must be True when state is the same word, and may only be True then")
)]
pub struct MachineOperationStatus {
    /// Generation of the spec whose end the conditions report. -1 before the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// State of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<OperationState>,
    /// Start time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Reason for the state, in CamelCase, such as `NoExecutor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub reason: Option<String>,
    /// Human-readable form of the reason; at most 4096 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
    /// Program that carries out the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub executor: Option<String>,
    /// Kernel boot ID of the host when its agent took the operation. Written and read by the agent.
    #[serde(default, rename = "bootID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub boot_id: Option<String>,
    /// Step of a power operation. pxed writes it before it sends the first request of the step, and reads it after a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<OperationStep>,
    /// On an operation with a selector: how many Machines are how far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<OperationCounts>,
    /// On an operation with a selector: its Machines, as the selector matched them when it was taken, by how far they are. No other
    /// is added later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<OperationMachines>,
    /// `Complete` or `Failed`, with the reason of `reason`, after the end; with `Failed` also `Stalled`. `Suspended` while the Machine is
    /// paused; `Cordoned` and `Drained` of an operation that drains. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Step of a power operation.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OperationStep {
    /// The step.
    pub name: StepName,
    /// Start of the step.
    pub start_time: Time,
    /// True if the machine was off when a `powerCycle` started, so that it is only powered on.
    #[serde(default)]
    pub was_off: bool,
}

/// Request of pxed to the BMC in a step.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepName {
    /// Power on, until the BMC reports On.
    On,
    /// Power off without a shutdown, until the BMC reports Off.
    Off,
    /// Ask the operating system to shut down.
    GracefulOff,
    /// Reset, once.
    Reset,
    /// A value of a later version of Bedplate, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// State of an operation.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationState {
    /// No executor has taken it.
    Pending,
    /// Its executor has taken it.
    InProgress,
    /// It was done.
    Complete,
    /// It was not done, or its success is not known.
    Failed,
    /// A value of a later version of Bedplate, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Number of an operation's Machines by state.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct OperationCounts {
    /// All.
    #[serde(default)]
    pub total: i32,
    /// Machines whose operation no executor has taken.
    #[serde(default)]
    pub pending: i32,
    /// Taken.
    #[serde(default)]
    pub in_progress: i32,
    /// Done.
    #[serde(default)]
    pub complete: i32,
    /// Failed.
    #[serde(default)]
    pub failed: i32,
}

/// The Machines of an operation with a selector; each is in one of these, 10000 at most.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct OperationMachines {
    /// Not started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10000))]
    pub not_started: Vec<MachineName>,
    /// Started: each has an operation of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10000))]
    pub started: Vec<MachineName>,
    /// Done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10000))]
    pub complete: Vec<MachineName>,
    /// Machines whose operation failed, or whose result is unknown; also those whose operation a client
    /// deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10000))]
    pub failed: Vec<MachineName>,
}
