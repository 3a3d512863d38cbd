//! Input and output types of the node's plan.
//!
//! Pure: no clock, no file, no socket.

use std::ops::{Index, IndexMut};

use bedplate_api::id::Digest;
use bedplate_api::machine::{SlotName, VersionRef};
use bedplate_api::reason::machine::PavedReason;
use bedplate_process::counter::{Label as _, labels};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// Input of the plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// Now.
    pub now: Timestamp,
    /// The kernel's boot id.
    pub boot_id: String,
    /// Reachability of the API server: the cluster's part is current only if it is live.
    pub api: Api,
    /// The Machine; none: deleted if the API is live, otherwise unknown.
    pub machine: Option<MachineFacts>,
    /// The Node of the Machine's name.
    pub node: NodeSeen,
    /// The version that `selected` names. None: it was not read yet, or does not exist.
    pub version: Option<VersionFacts>,
    /// Slots a and b.
    pub slots: PerSlot<SlotSeen>,
    /// Health of the current slot, if it runs.
    pub health: Health,
    /// Versions that failed on this host and are not retried automatically.
    pub refused: Vec<VersionRef>,
    /// Number of consecutive failed trials without a former slot.
    pub failures: u32,
    /// Earliest time of the next trial.
    pub not_before: Timestamp,
    /// Time of the current trial that does not count, because the API server or
    /// the agent was unavailable, or the clock jumped.
    pub not_counted: SignedDuration,
    /// State of the version's annotations on the applied slot's Node.
    pub annotations: Annotations,
    /// Expiry of the kubelet's certificate in the applied slot, if it has expired.
    pub kubelet_ended: Option<Timestamp>,
    /// True if, when standalone, the version in that slot names a way to request another certificate.
    pub joins_again: bool,
    /// Permission to leave that slot for the selected version.
    pub leave: Leave,
}

/// Permission of etcd for a joined control plane to leave its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Leave {
    /// etcd was not asked: there is no such control plane, or nothing else is selected for it.
    #[default]
    Unasked,
    /// etcd allows the member to leave.
    May,
    /// etcd refuses, or does not answer; with the human-readable reason.
    MayNot(String),
}

/// State of the version's annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Annotations {
    /// The annotations are on the Node, or there is no node.
    Written,
    /// The annotations must be written.
    Due,
    /// A write failed recently: more important steps precede the retry.
    Failing,
}

/// Reachability of the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// The agent has just started, and waits a moment for the first answer.
    Unasked,
    /// The API server answers.
    Live,
    /// The API server does not answer.
    Away,
}

/// Facts of the Machine that the plan uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineFacts {
    /// UID of the Machine.
    pub uid: String,
    /// Generation of the Machine.
    pub generation: Option<i64>,
    /// True if it is the object that this host enrolled for, according to its
    /// certificate. A re-created object of the same name is not.
    pub ours: bool,
    /// `spec.paused`.
    pub paused: bool,
    /// True if the Machine is being deleted.
    pub deleting: bool,
    /// `spec.deletionPolicy` is Drain: deleted, its slot is stopped once its Node is gone.
    pub drain: bool,
    /// Claimant whose MachineClaim manages the node.
    pub claimed_by: Option<String>,
    /// `status.selected`.
    pub selected: Option<VersionRef>,
    /// The UID in `status.nodeRef`.
    pub node_ref: Option<String>,
}

/// Node of the host, as the API server reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeSeen {
    /// Not asked yet, or the answer does not count.
    Unknown,
    /// A live read returned 404.
    Absent,
    /// The Node exists.
    Present {
        /// UID of the Node.
        uid: String,
        /// Time since which it is Ready without a break; none: it is not Ready.
        ready_since: Option<Timestamp>,
    },
}

/// A version that can be paved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionFacts {
    /// Which one.
    pub reference: VersionRef,
    /// Hash of its template: a version re-created under an old name has another one.
    pub template: String,
    /// Timeout of a trial.
    pub timeout: SignedDuration,
    /// Time for which the Node must be Ready.
    pub node_ready: SignedDuration,
}

/// Observed state of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlotSeen {
    /// Record of the slot; none: the slot is empty.
    pub record: Option<Record>,
    /// True if its machine runs.
    pub runs: bool,
    /// True if kubeadm has made a cluster in it. Its etcd is that cluster, and only a user may end it.
    pub made_cluster: bool,
    /// True if it is a control plane that has joined a cluster. Its etcd counts for that cluster's quorum.
    pub joined_control_plane: bool,
    /// True if its etcd member has left the cluster, or is about to.
    pub leaving: bool,
    /// True if former contents of the slot are not removed yet.
    pub has_trash: bool,
}

impl SlotSeen {
    /// Returns true if no failed trial, boot or selection may stop or empty it. A joined control plane is
    /// kept during its trial only. Once it was the node, a user who deletes that Node has it repaved.
    pub fn is_kept(&self) -> bool {
        let stage = self.record.as_ref().map(|record| &record.stage);
        let tried = matches!(stage, Some(Stage::Trial { .. } | Stage::Failed { .. }));
        self.made_cluster || self.joined_control_plane && tried
    }
}

/// `spec.providerID` of a MachineClaim: unique for each claim, also for one of the same host by the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProviderId(String);

impl ProviderId {
    /// Text of the ID.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for ProviderId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// A slot's record, kept on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Version of the slot.
    pub version: VersionRef,
    /// Hash of the version's template.
    pub template: String,
    /// The node image.
    pub image_digest: Digest,
    /// UID of the Machine that the slot was filled for.
    pub machine_uid: String,
    /// Timeout of a trial, in seconds.
    pub timeout_seconds: i64,
    /// Time for which the Node must be Ready, in seconds.
    pub min_ready_seconds: i64,
    /// Number of slots that were the node before it. Of two slots, the later
    /// node has the higher number, whatever the clock was.
    #[serde(default)]
    pub generation: u64,
    /// Claim that the slot is filled for. None: the slot is for the Machine's own node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ProviderId>,
    /// State of the slot.
    pub stage: Stage,
}

/// State of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum Stage {
    /// The slot is being filled. After a kill, it is filled again.
    Preparing,
    /// Filled, never started.
    Prepared,
    /// On trial: becomes the node if it passes the health gate.
    #[serde(rename_all = "camelCase")]
    Trial {
        /// Boot ID of the start of the trial.
        boot_id: String,
        /// Start of the trial.
        since: Timestamp,
        /// Number of reboots since the trial started.
        #[serde(default)]
        boots: u32,
    },
    /// The node.
    #[serde(rename_all = "camelCase")]
    Applied {
        /// The Node that came of it.
        node_uid: String,
        /// Time at which it was applied.
        since: Timestamp,
    },
    /// The node before the other slot became the node.
    Retired,
    /// Did not pass the gate.
    #[serde(rename_all = "camelCase")]
    Failed {
        /// Human-readable reason.
        reason: String,
    },
}

/// Health of the slot that runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// kubeadm and the version's commands.
    pub bootstrap: Bootstrap,
    /// True if the kubelet has no credential yet, so that the slot cannot have registered a Node.
    pub no_credential: bool,
    /// True if the kubelet reports that it is healthy.
    pub kubelet: bool,
    /// True if the container runtime reports that it and its network are ready.
    pub runtime: bool,
    /// True while the slot's own API server is not ready. Always false for a worker.
    pub waits_for_control_plane: bool,
    /// True if a Pod sandbox was started in this trial.
    pub sandbox: bool,
    /// Human-readable message of the first missing part.
    pub message: Option<String>,
}

/// Progress of a slot's bootstrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bootstrap {
    /// Unknown, not started, or running.
    #[default]
    Running,
    /// Done.
    Done,
    /// Bootstrap failed, and systemd does not retry.
    Failed,
}

/// Step of the plan: an act in one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The slot.
    pub slot: SlotName,
    /// The act.
    pub act: Act,
}

/// Act of a step. Nodes are named by their UIDs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Fill the stopped slot with a version: image and rendered files.
    PrepareSlot {
        /// The version.
        version: VersionRef,
    },
    /// Record that the prepared slot becomes the node.
    BeginTrial,
    /// Restart the time of the trial: the host was rebooted during it, or it was
    /// failed after a control plane had come up.
    RestartTrial,
    /// Stop the slot.
    StopSlot,
    /// Render the host's files and start the slot.
    StartSlot,
    /// Start a Pod sandbox in the slot on trial and remove it.
    ProbeSandbox,
    /// Record that the trial was passed.
    Commit {
        /// The Node that came of it.
        node_uid: String,
    },
    /// Remove the etcd member of a joined control plane from its cluster, and record that its slot is no
    /// longer the node.
    LeaveCluster,
    /// Record that the other slot is the node.
    Retire,
    /// Record that the trial failed. If there is a former slot, the version is not retried automatically.
    Fail {
        /// Human-readable reason.
        reason: String,
        /// Log with the cause.
        log: Log,
        /// The slot that runs again.
        back_to: Option<SlotName>,
    },
    /// Empty the slot of a trial whose version is no longer selected and that has no Node.
    Abandon,
    /// Make the kubelet of the applied slot request a certificate as at its
    /// join, because its own has expired.
    RenewKubelet,
    /// Write the version's annotations to the Node.
    AnnotateNode {
        /// The Node.
        node_uid: String,
    },
    /// Record the Node that the running slot registered again and the controller has adopted.
    AdoptNode {
        /// The Node.
        node_uid: String,
    },
}

labels! {
    /// Name of a step in logs and metrics.
    pub enum StepName in "step" {
        /// Preparation of a slot.
        PrepareSlot => "prepare_slot",
        /// Start of a trial.
        BeginTrial => "begin_trial",
        /// Restart of a trial.
        RestartTrial => "restart_trial",
        /// Stop of a slot.
        StopSlot => "stop_slot",
        /// Start of a slot.
        StartSlot => "start_slot",
        /// Probe of the container sandbox.
        ProbeSandbox => "probe_sandbox",
        /// Commit of a trial.
        Commit => "commit",
        /// Removal of the Node from the cluster.
        LeaveCluster => "leave_cluster",
        /// Removal of the content of a slot.
        Retire => "retire",
        /// Record of a failed trial.
        Fail => "fail",
        /// End of a trial that is not needed.
        Abandon => "abandon",
        /// Renewal of the kubelet certificate.
        RenewKubelet => "renew_kubelet",
        /// Annotation of the Node.
        AnnotateNode => "annotate_node",
        /// Adoption of the Node.
        AdoptNode => "adopt_node",
        /// Record of a claim.
        AcceptClaim => "accept_claim",
        /// Report on a claim.
        ReportClaim => "report_claim",
        /// Fetch of the image of a claim.
        FetchImage => "fetch_image",
        /// Read of the user data of a claim.
        RenderUserData => "render_user_data",
        /// Record of the start of the user data.
        BeginBootstrap => "begin_bootstrap",
        /// Removal of the user data from memory.
        ForgetUserData => "forget_user_data",
        /// Provider ID and label of the Node of a claim.
        MarkNode => "mark_node",
        /// Record of a claim that has joined.
        JoinClaim => "join_claim",
        /// Record of a failed claim.
        FailClaim => "fail_claim",
        /// Record of the start of a release.
        BeginRelease => "begin_release",
        /// Removal of the virtual IP address.
        DropAddress => "drop_address",
        /// Removal of network links.
        ClearLinks => "clear_links",
        /// Removal of the content of both slots.
        EmptySlots => "empty_slots",
        /// Record that a host must be wiped.
        BeginWipe => "begin_wipe",
        /// Request of a wipe on the state disk, and the reboot.
        RequestWipe => "request_wipe",
        /// Record of a released claim.
        EndRelease => "end_release",
    }
}

impl Act {
    /// Word of its name.
    pub fn name(&self) -> &'static str {
        self.label().word()
    }

    /// Name of the step.
    pub fn label(&self) -> StepName {
        match self {
            Self::PrepareSlot { .. } => StepName::PrepareSlot,
            Self::BeginTrial => StepName::BeginTrial,
            Self::RestartTrial => StepName::RestartTrial,
            Self::StopSlot => StepName::StopSlot,
            Self::StartSlot => StepName::StartSlot,
            Self::ProbeSandbox => StepName::ProbeSandbox,
            Self::Commit { .. } => StepName::Commit,
            Self::LeaveCluster => StepName::LeaveCluster,
            Self::Retire => StepName::Retire,
            Self::Fail { .. } => StepName::Fail,
            Self::Abandon => StepName::Abandon,
            Self::RenewKubelet => StepName::RenewKubelet,
            Self::AnnotateNode { .. } => StepName::AnnotateNode,
            Self::AdoptNode { .. } => StepName::AdoptNode,
        }
    }
}

/// Log that explains a failed trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Log {
    /// kubeadm's, and that of the version's commands.
    Kubeadm,
    /// The kubelet's.
    Kubelet,
    /// The container runtime's.
    Runtime,
    /// Log of the unit that runs the slot.
    Slot,
}

/// Current step or wait. After the step, the plan is computed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Do this.
    Do(Step),
    /// Wait: no step is due.
    Wait(Wait),
}

impl Plan {
    /// Plans an act in a slot.
    pub fn step(slot: SlotName, act: Act) -> Self {
        Self::Do(Step { slot, act })
    }
}

/// Event that the plan waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Reason for the condition.
    pub reason: PavedReason,
    /// Human-readable description of the event, and of the program or user that causes it.
    pub message: String,
    /// Latest time of the next plan.
    pub until: Option<Timestamp>,
}

/// The other slot.
pub fn other(slot: SlotName) -> SlotName {
    match slot {
        SlotName::A => SlotName::B,
        SlotName::B => SlotName::A,
    }
}

/// A value for each slot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PerSlot<T>([T; 2]);

impl<T> PerSlot<T> {
    /// Returns each slot with its value.
    pub fn iter(&self) -> impl Iterator<Item = (SlotName, &T)> {
        SlotName::ALL.into_iter().zip(&self.0)
    }
}

impl<T> Index<SlotName> for PerSlot<T> {
    type Output = T;

    fn index(&self, slot: SlotName) -> &T {
        match slot {
            SlotName::A => &self.0[0],
            SlotName::B => &self.0[1],
        }
    }
}

impl<T> IndexMut<SlotName> for PerSlot<T> {
    fn index_mut(&mut self, slot: SlotName) -> &mut T {
        match slot {
            SlotName::A => &mut self.0[0],
            SlotName::B => &mut self.0[1],
        }
    }
}
