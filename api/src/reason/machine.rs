//! Reasons of the conditions of a Machine.
//!
//! Pure.

use super::bmc::{reasons_with, with_bmc_faults};
use super::reasons;
use crate::machine::condition_type;

with_bmc_faults! { reasons_with
    /// Reasons of `BMCReachable`. Written by pxed.
    pub enum BmcReachableReason: "Condition BMCReachable of a Machine", condition condition_type::BMC_REACHABLE {
        Reachable: "The BMC answers.";
        CertificateNotVerified: "The BMC answers. Its certificate is not verified, because bmc.redfish.tls.mode is Insecure.";
        NotSupported: "The BMC does not support the request."
            => User, "`bedplate bmc probe` shows what this BMC supports.";
        TimedOut: "The BMC accepted a request and did not answer in time."
            => Bmc, "See `bedplate power status NAME`, then the load and the log of the BMC.";
        Refused: "The BMC rejected the request. The message has its answer."
            => Bmc, "Check the log of the BMC and the privilege of the account.";
    }
}

reasons! {
    /// Reasons of `PoweredOn`. Written by pxed.
    pub enum PoweredOnReason: "Condition PoweredOn of a Machine", condition condition_type::POWERED_ON {
        PoweredOn: "The machine is on.";
        PoweredOff: "The machine is off, and pxed powers it on only by an operation."
            => User, "Power it on: `bedplate power on NAME`.";
        PoweringOn: "pxed powered the machine on, and it is not on yet."
            => Bmc, "No action needed.";
        PoweringOff: "pxed powered the machine off, and it is not off yet."
            => Bmc, "No action needed.";
        FoundRunning: "The machine was on before pxed knew it. pxed does not change its power."
            => User, "`bedplate power cycle NAME` boots it from the network; or set spec.pxe.takeover to allow one power cycle (docs/guides/machine.md).";
        ClaimPending: "The machine is off, and powerPolicy is OnClaim: pxed powers it on for a MachineClaim."
            => Other, "No action needed: a MachineClaim powers it on (docs/guides/bmc.md). `bedplate power on NAME` lets a new host enroll.";
        PoweredOffByOperation: "An operation powered the machine off or shut it down."
            => User, "Power it on when it should run: `bedplate power on NAME`.";
        PowerStateUnknown: "The BMC does not report the power state."
            => Bmc, "See `bedplate power status NAME` (docs/guides/bmc.md).";
        PowerOnAttemptsExhausted: "pxed powered the machine on five times, and it did not come up."
            => User, "See its boots: `bedplate machine show NAME`. Then `bedplate power on NAME` starts new attempts.";
    }
}

reasons! {
    /// Reasons of `Booted`. Written by pxed.
    pub enum BootedReason: "Condition Booted of a Machine", condition condition_type::BOOTED {
        AwaitingBoot: "pxed has not heard the machine since the Machine was created, or since its MAC address is unique."
            => Host, "Boot it from the network; `bedplate explain NAME` shows what pxed would offer.";
        Booting: "The machine boots. The message has the stage."
            => Host, "No action needed; `bedplate machine show NAME` has the timeline.";
        BootStalled: "pxed heard nothing for longer than the stage may take."
            => User, "See the timeline: `bedplate machine show NAME`, and `bedplate explain NAME` (docs/troubleshooting/boot.md, \"By stage\").";
        ImagePending: "pxed holds the boot while it fetches the image."
            => Registry, "No action needed: the machine asks again every 10 s.";
        ImageUnavailable: "pxed holds the boot: the image cannot be fetched, is not configured, or is not for this machine."
            => User, "If the registry does not answer, no action is needed on the machine: it asks again every 10 s. Otherwise correct the image that the message names (docs/guides/images.md).";
        InvalidKernelArguments: "pxed holds the boot: a kernel argument of the image or of the Machine cannot be passed on."
            => User, "Correct the arguments that the message names. The machine asks again every 10 s.";
        MachinePaused: "pxed holds the boot: spec.paused is set."
            => User, "Unpause it: `kubectl patch mach NAME --type=merge -p '{\"spec\":{\"paused\":false}}'`.";
        StageFailed: "A step on the machine fails, and the machine tries again. The message has its text."
            => Host, "Read the message (docs/troubleshooting/boot.md).";
        DuplicateMacAddress = "DuplicateMACAddress": "Several Machines claim the MAC address. pxed serves none of them."
            => User, "Remove the MAC address from all of these Machines but one.";
        UserspaceStarted: "systemd and the agent run on the host.";
    }
}

reasons! {
    /// Reasons of `Enrolled`. Written by pxed.
    pub enum EnrolledReason: "Condition Enrolled of a Machine", condition condition_type::ENROLLED {
        Enrolled: "The host has its certificate.";
        AwaitingEnrollment: "No pxed has reported the Machine, the host boots, its agent has not asked for a certificate yet, or pxed listens before the first key. The message says which."
            => Agent, "See the timeline of its boot: `bedplate machine show NAME`. If there is none, see docs/troubleshooting/stuck.md, \"No pxed has reported the Machine\".";
        HeardElsewhere: "Another host asks to enroll with a new key, and the key in force is still heard."
            => User, "If the host was replaced: `bedplate machine re-enroll NAME`. If it crashed, wait until the time in the message. Otherwise see docs/troubleshooting/boot.md, \"Another host asks to enroll\".";
        SeedRequestedTwice: "The seed of the boot was requested a second time."
            => User, "Boot it again: it gets a new seed. The message has the address of the other request (docs/troubleshooting/boot.md).";
    }
}

reasons! {
    /// Reasons of `ConfigurationPending`. Written by bedplate-controller, or by pxed if standalone.
    pub enum ConfigurationPendingReason: "Condition ConfigurationPending of a Machine", condition condition_type::CONFIGURATION_PENDING {
        Matched: "A configuration matches. The host is not enrolled yet.";
        Selected: "A version is selected.";
        NoConfiguration: "No MachineConfiguration names or matches the Machine. The message has the nearest selectors."
            => User, "Add a label that a MachineConfiguration selects, or set spec.configurationRef; `bedplate config list` shows them.";
        HardwareNotReported: "A selector needs hardware facts that the agent has not reported yet."
            => Agent, "The agent reports the hardware after it has enrolled: `bedplate machine show NAME`.";
        ConfigurationNotFound: "spec.configurationRef names a MachineConfiguration that does not exist."
            => User, "Correct spec.configurationRef; `bedplate config list` shows the names.";
        VersionNotFound: "The named version does not exist, or the configuration has no version yet."
            => User, "Correct spec.configurationRef; `bedplate config list` shows the versions.";
        ImageUnresolved: "The image of the version has a tag, and the registry has not resolved it."
            => Registry, "Name the image by its digest, or wait. The message has the registry's answer.";
        Claimed: "A MachineClaim holds the host, and its provider decides about the node."
            => Other, "See the claim: `kubectl describe machineclaim NAME` (docs/guides/claims.md).";
        ClaimPending: "The Machine is in a pool (spec.claimPolicy), and no claim holds it."
            => Other, "No action needed: a MachineClaim chooses the configuration (docs/guides/claims.md).";
        ClaimForbidden: "claimPolicy of the Machine or of the MachineConfiguration does not allow the claimant of the MachineClaim."
            => User, "Add the claimant's namespace to the claimPolicy that the message names, or delete the claimant (docs/guides/claims.md).";
        ControlPlaneProtected: "The cluster was created on this host, so its slot is kept."
            => User, "Restart the kubelet in the slot (docs/concepts/node.md, \"The first control plane\").";
    }
}

reasons! {
    /// Reasons of `Paved`. Written by the agent.
    pub enum PavedReason: "Condition Paved of a Machine", condition condition_type::PAVED {
        Applied: "The selected version runs. The message says if another version is prepared.";
        Preparing: "The agent fills a slot."
            => Agent, "No action needed.";
        Starting: "The agent starts the slot."
            => Agent, "No action needed.";
        Stopping: "The agent stops the slot."
            => Agent, "No action needed.";
        Joining: "kubeadm has not joined the node yet."
            => Agent, "No action needed.";
        CheckingHealth: "The node has not passed its health gate yet."
            => Agent, "No action needed.";
        ClearingSlot: "The agent empties a slot whose version is not selected any more, or whose Machine was drained."
            => Agent, "No action needed.";
        NoVersionSelected: "No version is selected. See condition ConfigurationPending."
            => Controller, "In a cluster, check that it runs: `kubectl -n bedplate-system get deployment bedplate-controller`. Standalone, see pxed's log.";
        VersionUnavailable: "The agent cannot read the selected version."
            => Cluster, "Check that the version exists: `kubectl get mcv`; on the host: `bedplate-agent status`.";
        ApiServerUnreachable = "APIServerUnreachable": "The API server does not answer the agent."
            => Cluster, "Check that the host reaches the API server: `bedplate-agent status` on the host.";
        Paused: "spec.paused is set, so the agent changes nothing."
            => User, "Unpause it: `kubectl patch mach NAME --type=merge -p '{\"spec\":{\"paused\":false}}'`.";
        MachineDeleting: "The Machine is being deleted, so the agent changes nothing."
            => Agent, "See docs/concepts/node.md, \"To give it up\".";
        MachineNotFound: "The Machine does not exist any more, or another one has its name."
            => Agent, "See docs/concepts/node.md, \"To give it up\".";
        Claimed: "A MachineClaim holds the host, and its provider decides about the node."
            => Other, "See the claim: `kubectl describe machineclaim NAME` (docs/guides/claims.md).";
        AwaitingSelection: "The Node was deleted, and no version is selected again yet."
            => Controller, "In a cluster, check that it runs: `kubectl -n bedplate-system get deployment bedplate-controller`. Standalone, see pxed's log.";
        ControlPlaneProtected: "The slot has the cluster's etcd, or an etcd member that cannot leave. The agent keeps it."
            => User, "See docs/concepts/node.md, \"The first control plane\". Do not delete its Node to repave it.";
        NodeStillReady: "A Node of this name is Ready, and no slot runs on this host."
            => Cluster, "Check that no other host has this name. Otherwise wait until its Node is not Ready.";
        VersionRejected: "The selected version failed on this host."
            => User, "Correct the MachineConfiguration. `bedplate machine explain NAME` has the cause. To go back, see docs/guides/rolling-updates.md, \"Roll back\".";
        HealthGateFailed: "The new node did not pass its health gate in time."
            => User, "Correct the MachineConfiguration. `bedplate machine explain NAME` has the cause. To go back, see docs/guides/rolling-updates.md, \"Roll back\".";
        BackOff: "Trials fail, and no former slot can run instead. The message has the last cause."
            => User, "The agent tries again. To end it, correct the MachineConfiguration.";
        ImageUnavailable: "The node image cannot be fetched."
            => Registry, "Check that the host reaches the registry, and that the reference is right (docs/guides/images.md).";
        InsufficientSpace: "The disk or the memory has too little space."
            => User, "Add a larger state disk, or memory. The message has the size that is needed.";
        InvalidConfiguration: "The version cannot be rendered, or it leads to another cluster."
            => User, "Correct the MachineConfiguration (docs/reference/kubeadm.md).";
        SecretForbidden: "The agent may not read a Secret that the version names."
            => User, "Create the Role that the message names (docs/getting-started/install.md, \"Secrets that a version names\").";
        SecretNotFound: "A Secret that the version names does not exist."
            => User, "Create the Secret that the message names (docs/getting-started/install.md, \"Secrets that a version names\").";
        SecretInvalid: "A Secret that the version names cannot be used."
            => User, "Correct the Secret that the message names (docs/getting-started/install.md, \"Secrets that a version names\").";
        KubeletCertificateExpired: "The kubelet's client certificate expired."
            => Cluster, "Approve the kubelet's request: `kubectl get csr` (docs/concepts/node.md, \"Faults\").";
        CertificateApprovalRequired: "The request for the kubelet's certificate is not approved or signed."
            => Controller, "Check that bedplate-controller runs. Before Kubernetes 1.32: `kubectl certificate approve NAME`, with the name from the message.";
        CertificateDenied: "The request for the kubelet's certificate was denied."
            => User, "Correct the cause in the message, then run `kubectl delete csr NAME`, with the name from the message.";
        UnitFailed: "A unit of the host failed."
            => User, "On the host: `systemctl status` of the unit in the message (docs/concepts/node.md).";
        SandboxFailed: "The container runtime cannot start a Pod sandbox in the slot."
            => User, "Check the container runtime and the network plug-in in the slot (docs/concepts/node.md).";
        DbusError = "DBusError": "systemd does not answer on D-Bus, or it rejected a call."
            => User, "On the host: `bedplate-agent status`, `journalctl -u bedplate-agent` (docs/concepts/node.md).";
        ShutdownInhibited: "A program on the host blocks the reboot that wipes the host. The message names it."
            => User, "Wait for that program, or stop it; `systemd-inhibit --list` on the host shows it.";
        DiskError: "A file of a slot cannot be read or written."
            => User, "On the host: `bedplate-agent status`, `journalctl -u bedplate-agent` (docs/concepts/node.md).";
        HostUnsupported: "The host cannot run the version. The message has the cause."
            => User, "On the host: `bedplate-agent status`, `journalctl -u bedplate-agent` (docs/concepts/node.md).";
        CredentialUnavailable: "The slot has no credential for its cluster."
            => User, "On the host: `bedplate-agent status`, `journalctl -u bedplate-agent` (docs/concepts/node.md).";
        AwaitingClaim: "The host is in a pool, and no MachineClaim holds it."
            => Other, "No action needed: a claimant's provider creates the claim (docs/guides/claims.md).";
        Bootstrapping: "The slot of the claim runs the user data."
            => Agent, "No action needed.";
        BootstrapFailed: "The user data of the claim failed, or the host did not join in time. The slot is stopped and kept. The message has the end of the log."
            => Other, "The owner of the claim replaces the host. Correct the user data that the message names.";
        Interrupted: "The host booted, or its state was lost, while the user data ran. It is not run a second time."
            => Other, "The owner of the claim replaces the host.";
        UserDataRefused: "The user data has a part that Bedplate does not carry out. Nothing was started."
            => User, "Remove the parts that status.refused of the MachineClaim names, then replace the claimant (docs/guides/claims.md).";
        ClaimMissing: "The host runs a claim whose MachineClaim does not exist. It is not emptied."
            => User, "After a restore the provider creates the claim again. To release the host: `bedplate claim release NAME`.";
        ClaimRefused: "spec.claimPolicy does not allow the MachineClaim, or the host holds another claim that is not released."
            => User, "Correct spec.claimPolicy, or delete the claimant. The message has the cause.";
        Releasing: "The claim has ended, and the agent empties the slots."
            => Agent, "No action needed.";
        Wiping: "The slots are empty, and the host boots to be wiped. The MachineClaim stays until the host has enrolled with another key. A boot that did not wipe is repeated after 10 minutes."
            => Agent, "Wait for the boot: `bedplate machine show NAME`. If the host does not boot, power-cycle it.";
        WipeNotPossible: "The claim has ended, and the host cannot be wiped. pxed must boot the host, and pxe.stateDisk must select its disk with wipe IfBlank. No slot may have a node that no claim has selected."
            => User, "Set pxe.stateDisk.wipe of the Machine to IfBlank. Remove a node that no claim has selected. Otherwise reboot the host, so that pxed boots it.";
    }
}

reasons! {
    /// Reasons of `NodeReady`. Written by the agent.
    pub enum NodeReadyReason: "Condition NodeReady of a Machine", condition condition_type::NODE_READY {
        NodeReady: "The Node is Ready.";
        NodeNotReady: "The Node is not Ready."
            => Cluster, "Check the kubelet and the network plug-in: `kubectl describe node NAME`.";
        NodeNotFound: "No Node has this name. The agent creates it."
            => Agent, "No action needed.";
        NodeStatusUnknown: "The agent has not read the Node yet."
            => Agent, "On the host: `bedplate-agent status`.";
    }
}

reasons! {
    /// Reasons of `Drained`: a Machine with `deletionPolicy: Drain` is being deleted. Written by bedplate-controller.
    pub enum DrainedReason: "Condition Drained of a Machine", condition condition_type::DRAINED {
        Draining: "The Node is being drained. The message names the remaining Pods."
            => Controller, "Wait for the drain: `kubectl get node NAME`, `kubectl get events`.";
        NodeNameConflict: "The Node of this name belongs to another host, so it is not drained."
            => Controller, "No action needed: the Machine is removed at its deadline.";
        Paused: "spec.paused is set, so the Node is not drained."
            => User, "Unpause it: `kubectl patch mach NAME --type=merge -p '{\"spec\":{\"paused\":false}}'`.";
        Claimed: "A MachineClaim holds the host, and its provider decides about the node."
            => Other, "See the claim: `kubectl describe machineclaim NAME` (docs/guides/claims.md).";
        StoppingSlot: "The Node is deleted, and the agent empties the slot. The message has the deadline."
            => Agent, "Check that the host is up: `bedplate-agent status` on it. After the deadline the Machine is removed.";
    }
}

reasons! {
    /// Reasons of `Ready` that no other condition has. Written by bedplate-controller, or by pxed if standalone.
    pub enum ReadyReason: "Condition Ready of a Machine", condition condition_type::READY {
        Ready: "The Node is Ready with the selected version.";
        Joined: "The host has joined the cluster of its claimant, which checks the Node from then on.";
        Deleting: "The Machine is being deleted."
            => Controller, "See its finalizers: `kubectl get machine NAME -o yaml`.";
        Paused: "spec.paused is set, so no program changes the machine."
            => User, "Unpause it: `kubectl patch mach NAME --type=merge -p '{\"spec\":{\"paused\":false}}'`.";
        AwaitingAgent: "The agent has not started to make the node."
            => Agent, "No action needed; `bedplate machine show NAME` has the agent's report.";
        RolledBack: "The selected version failed, and the former version runs again."
            => User, "Correct the MachineConfiguration. `bedplate machine explain NAME` has the cause. To go back, see docs/guides/rolling-updates.md, \"Roll back\".";
        Updating: "A rolling update cordoned the Node and drains it."
            => Controller, "See the remaining Pods: `kubectl describe node NAME`, annotation bedplate.dev/drain-pending.";
        NodeNameConflict: "The Node of this name belongs to another host."
            => User, "See docs/troubleshooting/stuck.md, \"A Node of the Machine's name exists\".";
        NodeReregistered: "The Node was deleted and registered again before the host was repaved."
            => User, "To repave the host, delete the Node again: `kubectl delete node NAME`.";
    }
}
