//! `MachineOperation`: something to be done once to one Machine, or to all that a selector matches (docs/design/rules.md,
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

/// Default timeout of a powerOn or a reset without `timeoutSeconds`, in seconds (docs/guides/bmc.md).
pub const POWER_ON_TIMEOUT: i32 = 300;
/// Default timeout of a powerOff or a powerCycle without `timeoutSeconds`, in seconds (docs/guides/bmc.md).
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

/// Operation and its Machines. Written by users. It cannot be changed.
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
    doc = "One-time operation on one Machine, or on all Machines that a selector matches. Its spec cannot be changed: create another object.",
    printcolumn(
        name = "Operation",
        type_ = "string",
        description = "Name of the operation.",
        json_path = ".spec.operationName"
    ),
    printcolumn(
        name = "Machine",
        type_ = "string",
        description = "Machine, if the operation is for one.",
        json_path = ".spec.machineRef.name"
    ),
    printcolumn(
        name = "State",
        type_ = "string",
        description = "State of the operation.",
        json_path = ".status.state"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        description = "Reason for the state.",
        json_path = ".status.reason"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        description = "Time since the object was created.",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Executor",
        type_ = "string",
        description = "Program that carries out the operation.",
        json_path = ".status.executor",
        priority = 1
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        description = "Progress or result.",
        json_path = ".status.message",
        priority = 1
    ),
    printcolumn(
        name = "Total",
        type_ = "integer",
        description = "Number of all Machines of the operation.",
        json_path = ".status.counts.total",
        priority = 1
    ),
    printcolumn(
        name = "Complete",
        type_ = "integer",
        description = "Number of Machines whose operation is complete.",
        json_path = ".status.counts.complete",
        priority = 1
    ),
    printcolumn(
        name = "Failed",
        type_ = "integer",
        description = "Number of Machines whose operation failed.",
        json_path = ".status.counts.failed",
        priority = 1
    )
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
    /// Machine that the operation is for. Exactly one of `machineRef` and `machineSelector` must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_ref: Option<MachineRef>,
    /// Machines that the operation is for: those that match when the operation starts, at most 10000. It must have at least one
    /// requirement. Exactly one of `machineRef` and `machineSelector` must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_selector: Option<MachineSelector>,
    /// Name of the operation. At most 63 characters.
    ///
    /// - `reboot`: the agent reboots the host.
    /// - `shutdown`: the agent shuts the host down.
    /// - `restartService`: the agent restarts a service of the node or of the host.
    /// - `packetCapture`: the agent captures packets on the host.
    /// - `applyConfiguration`: the agent applies the selected version to the running node.
    /// - `powerOn`: pxed powers the machine on by its BMC.
    /// - `powerOff`: pxed powers the machine off by its BMC.
    /// - `powerCycle`: pxed forces the machine off and powers it on by its BMC.
    /// - `reset`: pxed resets the machine by its BMC.
    /// - Any other name: a custom program carries it out.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$"))]
    pub operation_name: String,
    /// Parameters of the operation. Each value is text, so quote numbers and `"true"`. At most 64 of 4096 characters.
    ///
    /// - `reboot` and `shutdown`: `drain`, `drainTimeoutSeconds`, `gracePeriodSeconds`, `deleteEmptyDirData`, `force`.
    /// - `restartService`: `service` (required), `in` (`slot` or `host`).
    /// - `packetCapture`: `interface` (required), `filter`, `seconds`, `bytes`.
    /// - `applyConfiguration`: `disruption` (`deny` or `allow`).
    /// - `powerOff`: `force`, `gracePeriodSeconds`.
    /// - `powerOn` and `powerCycle`: `bootSource` (`network` or `default`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "short_values", extend("maxProperties" = 64))]
    pub parameters: BTreeMap<String, String>,
    /// Time after the end at which the object is deleted, in seconds. At least 0. Example: `3600`. If unset, the object is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// Timeout on each Machine, in seconds. At least 1. If unset, it depends on the operation:
    ///
    /// - `powerOn`, `reset` and `restartService`: 300.
    /// - `powerOff` and `powerCycle`: 600, or more with `gracePeriodSeconds`.
    /// - `reboot`: 900, and the time of its drain.
    /// - `shutdown`: 300, and the time of its drain.
    /// - `packetCapture`: `seconds` and 60.
    /// - `applyConfiguration`: 300, or 3600 with `disruption: allow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub timeout_seconds: Option<i32>,
    /// Maximum number of Machines that run the operation concurrently. At least 1. May only be set together with `machineSelector`. If
    /// unset: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_parallel: Option<i32>,
    /// Number of failures after which the operation starts on no further Machine. At least 1. May only be set together with
    /// `machineSelector`. If unset: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub failure_limit: Option<i32>,
}

/// Machine by its name.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MachineRef {
    /// Name of the Machine. At most 63 characters. Example: `node-4`.
    pub name: MachineName,
}

/// Progress of the operation. Written by its executor (pxed, the agent or a custom program), and by bedplate-controller.
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
    /// `metadata.generation` of the operation whose end the conditions report. -1 before the end. Written by the executor or
    /// bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// State of the operation. Written by the executor or bedplate-controller.
    ///
    /// - `Pending`: no executor has taken the operation.
    /// - `InProgress`: the executor carries it out.
    /// - `Complete`: it was carried out.
    /// - `Failed`: it was not carried out, or its result is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OperationState")]
    pub state: Option<OperationState>,
    /// Time at which the executor took the operation. Written by the executor or bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time of the end. Written by the executor or bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Reason for the state in CamelCase, such as `NoExecutor`. At most 63 characters. Written by the executor or bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub reason: Option<String>,
    /// Progress or result, for users. At most 4096 characters. Written by the executor or bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
    /// Program that carries out the operation, such as `bedplate-agent/node-4`. At most 253 characters. Written by the executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub executor: Option<String>,
    /// Boot ID of the kernel when the agent took the operation. Another boot ID proves a reboot. At most 63 characters. Written by the
    /// agent.
    #[serde(default, rename = "bootID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub boot_id: Option<String>,
    /// Step of a power operation. pxed writes it before the first request of the step, and continues from it after a restart. Written by
    /// pxed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<OperationStep>,
    /// Number of Machines by state, for an operation with `spec.machineSelector`. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<OperationCounts>,
    /// Machines by state, for an operation with `spec.machineSelector`. They are those that matched when the operation started. No other
    /// Machine is added later. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<OperationMachines>,
    /// Conditions by type. At most 16.
    ///
    /// - `Complete`: True if the state is `Complete`. Written by the executor or bedplate-controller.
    /// - `Failed`: True if the state is `Failed`. Written by the executor or bedplate-controller.
    /// - `Stalled`: True if the state is `Failed`. Written by the executor or bedplate-controller.
    /// - `Suspended`: True while the Machine is paused, so that the operation does not time out. Written by bedplate-controller.
    /// - `Cordoned`: True if the Node was cordoned for the operation. Written by the agent.
    /// - `Drained`: True if the Pods were evicted, so that bedplate-controller deletes the Node. Written by the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Step of a power operation.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OperationStep {
    /// Request to the BMC in this step.
    ///
    /// - `On`: power on, until the BMC reports On.
    /// - `Off`: power off without a shutdown, until the BMC reports Off.
    /// - `GracefulOff`: request for a shutdown of the operating system.
    /// - `Reset`: reset, once.
    pub name: StepName,
    /// Start of the step.
    pub start_time: Time,
    /// True if the machine was off when a `powerCycle` started, so that it is only powered on. Default: false.
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
    /// Number of all Machines of the operation. Default: 0.
    #[serde(default)]
    pub total: i32,
    /// Number of Machines whose operation no executor has taken. Default: 0.
    #[serde(default)]
    pub pending: i32,
    /// Number of Machines whose operation is in progress. Default: 0.
    #[serde(default)]
    pub in_progress: i32,
    /// Number of Machines whose operation is complete. Default: 0.
    #[serde(default)]
    pub complete: i32,
    /// Number of Machines whose operation failed. Default: 0.
    #[serde(default)]
    pub failed: i32,
}

/// Machines of an operation with a selector. Each is in one of the lists. At most 10000 in all.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct OperationMachines {
    /// Machines without an operation of their own yet. At most 10000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10000))]
    pub not_started: Vec<MachineName>,
    /// Machines whose operation was created and has not ended. At most 10000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10000))]
    pub started: Vec<MachineName>,
    /// Machines whose operation is complete. At most 10000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10000))]
    pub complete: Vec<MachineName>,
    /// Machines whose operation failed, has an unknown result, or was deleted by a client. At most 10000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10000))]
    pub failed: Vec<MachineName>,
}
