//! Reasons of a MachineOperation: why it waits, how it ended, and of its conditions. `Complete`, `Failed` and `Stalled` have the reason of
//! `status.reason`.
//!
//! Pure.

use super::bmc::{reasons_with, with_bmc_faults};
use super::reasons;
use crate::operation::condition_type;

reasons! {
    /// Reasons of an operation that has not ended.
    pub enum PendingOperationReason: "A MachineOperation that has not ended" {
        InProgress: "A program carries out the operation. The message has its progress.";
        MachinePaused: "spec.paused of the Machine is set. The operation starts when the Machine is not paused."
            => User, "Unpause it: `kubectl patch machine NAME --type=merge -p '{\"spec\":{\"paused\":false}}'`.";
        MachineNotFound: "The Machine does not exist. The operation fails if it is not created soon."
            => User, "Create the Machine, or correct the name in a new operation.";
    }
}

reasons! {
    /// Reasons of `Suspended`. Written by bedplate-controller.
    pub enum SuspendedReason: "Condition Suspended of a MachineOperation", condition condition_type::SUSPENDED {
        MachinePaused: "spec.paused of the Machine is set. The start timeout of the operation is suspended."
            => User, "Unpause it: `kubectl patch machine NAME --type=merge -p '{\"spec\":{\"paused\":false}}'`.";
        Resumed: "The Machine is not paused, and the start timeout of the operation runs; or the operation has started or ended.";
    }
}

reasons! {
    /// Reasons of `Cordoned`. Written by the agent.
    pub enum CordonedReason: "Condition Cordoned of a MachineOperation", condition condition_type::CORDONED {
        Draining: "The Node is cordoned for the operation, and uncordoned after its end.";
    }
}

reasons! {
    /// Reasons of `Drained`. Written by the agent.
    pub enum OperationDrainedReason: "Condition Drained of a MachineOperation", condition condition_type::DRAINED {
        PodsEvicted: "The Pods were evicted from the Node. bedplate-controller deletes the Node, so that the host is repaved.";
    }
}

with_bmc_faults! { reasons_with
    /// Ends of a power operation. Written by pxed.
    pub enum PowerOutcome: "A power operation that has ended" {
        PoweredOn: "The machine is on.";
        PoweredOff: "The machine is off.";
        PowerCycled: "The machine was off and is on again.";
        Reset: "The machine was reset.";
        NotSupported: "The BMC does not support the operation, or the Machine has no BMC."
            => User, "`bedplate bmc probe` shows what this BMC supports.";
        TimedOut: "The operation did not finish in time."
            => User, "Read the message, and `bedplate power status NAME`. After a power cycle that left the machine off: `bedplate power on NAME`. For a power-off, use --grace-period or --force.";
        Refused: "The BMC rejected the request, or the state of the machine does not allow it."
            => User, "Check the log of the BMC. A machine that is off needs powerOn, not reset.";
        InvalidParameters: "A parameter is unknown or invalid. The message names it."
            => User, "Create a new operation: this one cannot be changed.";
        MachineDeleting: "The Machine was deleted before the operation ended.";
        MachineNotFound: "The named Machine does not exist."
            => User, "Create the Machine, or correct the name, then create a new operation.";
        OutcomeUnknown: "Standalone: pxed's store was lost, so it is not known whether the operation was carried out."
            => User, "Check the machine. Create a new operation if it is still needed.";
    }
}

reasons! {
    /// Ends of an operation that the agent carries out. Written by the agent.
    pub enum AgentOutcome: "An operation of the agent that has ended" {
        Applied: "The node runs the version.";
        Captured: "The capture is complete. The message has its file.";
        Rebooted: "The host has booted again.";
        Restarted: "The service was restarted and runs.";
        ShutDown: "The host was shut down.";
        InvalidParameters: "A parameter is unknown or invalid. The message names it."
            => User, "Create a new operation: this one cannot be changed.";
        MachineDeleting: "The Machine is being deleted.";
        Claimed: "A MachineClaim holds the host, and its provider decides about the node."
            => Other, "See the claim: `kubectl describe machineclaim` with the Machine's name (docs/guides/claims.md).";
        TimedOut: "The operation did not finish in time."
            => User, "On the host: `systemctl list-jobs` and `journalctl -u bedplate-agent` show what hangs.";
        Refused: "The operation does not support this, or systemd rejected it. The message has the cause."
            => User, "Make the change on the host.";
        NotSupported: "The host image lacks a tool, or the agent cannot make this change."
            => User, "Read the message: it names what is missing, or what to do instead.";
        ProtocolError: "systemd sent an answer that the agent does not understand."
            => User, "On the host: `systemctl status dbus.service`.";
        DbusError = "DBusError": "systemd does not answer on D-Bus."
            => User, "On the host: `systemctl status dbus.service`.";
        NoRunningSlot: "No slot runs on the host."
            => User, "Use `--parameter in=host` for a service of the host.";
        ServiceNotFound: "The unit does not exist."
            => User, "Check its name with `systemctl status` there, or use `--parameter in=host` for a service of the host.";
        ServiceMasked: "The unit is masked."
            => User, "Check its name with `systemctl status` there, or use `--parameter in=host` for a service of the host.";
        ServiceNotLoaded: "The unit file is invalid."
            => User, "Check its name with `systemctl status` there, or use `--parameter in=host` for a service of the host.";
        ServiceFailed: "The unit was restarted and does not stay up. The message has the end of its journal."
            => User, "On the host: `journalctl -M bedplate-a -u UNIT`.";
        InterfaceNotFound: "The host does not have the interface."
            => User, "See status.hardware.nics: `bedplate machine show NAME --output json`.";
        InsufficientSpace: "The disk has too little space for the capture."
            => User, "Reduce the parameter bytes, or give the host a larger state disk.";
        CaptureFailed: "tcpdump failed. The message has its output."
            => User, "Read the message.";
        NoVersionSelected: "No version is selected for the Machine."
            => User, "See the cause: `bedplate machine explain NAME`.";
        ControlPlaneProtected: "The slot has the cluster's etcd, or an etcd member that cannot leave. Nothing was changed."
            => User, "Run `kubeadm upgrade` in the slot (docs/concepts/node.md, \"The first control plane\"), or let another control plane join first.";
        RepaveRequired: "The difference needs a repave."
            => User, "To repave the host, run `kubectl drain`, then `kubectl delete node`.";
        TaintChangeRequired: "The taints of the Node differ. Nothing was changed."
            => User, "Run the `kubectl taint` of the message, then create a new operation.";
        ChangeFailed: "A change was made and does not hold. The former version is still applied."
            => User, "Correct the MachineConfiguration, then create a new operation.";
        RolledBack: "The version failed on this host, and the former version runs again."
            => User, "Correct the MachineConfiguration. status.rolledBack of the Machine has the cause.";
        UnmanagedPods: "The Node has Pods that no controller re-creates. No Pod was evicted."
            => User, "Move them, or set the parameter force=true.";
        EmptyDirData: "Pods on the Node have an emptyDir. No Pod was evicted."
            => User, "Set the parameter deleteEmptyDirData=true if its data is not needed.";
        DrainTimedOut: "The Pods in the message did not leave in time."
            => User, "Check the PodDisruptionBudgets and the Pods in the message, or raise drainTimeoutSeconds.";
        DrainFailed: "The API server rejected the kubelet's credential, or the credential names no Node."
            => User, "Check that kubelet.conf in the slot belongs to this cluster. The message has the API server's answer.";
        UncordonFailed: "The host has booted again, and its Node could not be uncordoned in time."
            => User, "Check the kubelet, then `kubectl uncordon` the Node.";
        ShutdownInhibited: "A program on the host blocks the shutdown. The message names it."
            => User, "Wait for that program; `systemd-inhibit --list` on the host shows it.";
        Interrupted: "The agent was stopped during the operation, so its end is not known."
            => User, "Check the machine. Create a new operation if it is still needed.";
        HostRebooted: "The host booted during the operation, so its end is not known."
            => User, "Check the machine. Create a new operation if it is still needed.";
        OutcomeUnknown: "The agent lost its record of the operation, so it is not known whether it was carried out."
            => User, "Check the machine. Create a new operation if it is still needed.";
    }
}

reasons! {
    /// Ends of an operation on several Machines, and of operations that no program took. Written by bedplate-controller, or by pxed if standalone.
    pub enum FanOutOutcome: "An operation on several Machines, or without an executor, that has ended" {
        AllComplete: "The operation is complete on all matched Machines.";
        NothingMatched: "No Machine matched when the operation was first seen."
            => User, "Correct the labels or the selector, then create a new operation.";
        MachinesFailed: "The operation failed on Machines. The message names some of them."
            => User, "See `bedplate operation list`: each Machine's own operation has its reason. Create a new operation for those.";
        Canceled: "The operation was deleted before it started on all Machines."
            => User, "Create a new operation for the Machines that are left.";
        TooManyMachines: "The selector matches more than 10000 Machines."
            => User, "Narrow --selector or --field-selector in a new operation.";
        InvalidSelector: "The API server rejected the selector."
            => User, "Correct --selector or --field-selector in a new operation.";
        NoExecutor: "No program started the operation in time: no pxed of the site drives the BMC, the host is off, its agent does not run, or the name is wrong."
            => User, "Check the name of the operation, and the Machine: `bedplate machine show NAME`. For a power operation, check pxed (docs/guides/machine-operations.md, \"Troubleshoot an operation\"). Then create a new operation.";
        MachineNotFound: "The Machine does not exist."
            => User, "Create the Machine, or correct the name, then create a new operation.";
        TimedOut: "The executor did not finish the operation in time."
            => User, "Check the machine. Create a new operation if it is still needed.";
        Claimed: "A MachineClaim holds the host, and its provider decides about the node."
            => Other, "See the claim: `kubectl describe machineclaim` with the Machine's name (docs/guides/claims.md).";
    }
}
