//! What the plan of the node depends on, and what it says.
//!
//! Pure: no clock, no file, no socket.

use bedplate_api::id::Digest;
use bedplate_api::machine::{SlotName, VersionRef};
use bedplate_api::reason::machine::PavedReason;
use bedplate_process::counter::{Label as _, labels};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// Everything that decides.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// Now.
    pub now: Timestamp,
    /// The kernel's boot id.
    pub boot_id: String,
    /// Whether what follows is as it is now, or as it once was.
    pub api: Api,
    /// The Machine; none: deleted if the API is live, else not known.
    pub machine: Option<MachineFacts>,
    /// The Node of the Machine's name.
    pub node: NodeSeen,
    /// The version that `selected` names; none: not read yet, or not there.
    pub version: Option<VersionFacts>,
    /// Slots a and b.
    pub slots: [SlotSeen; 2],
    /// What the current slot shows, if it runs.
    pub health: Health,
    /// Versions that failed here and are not tried again by themselves.
    pub refused: Vec<VersionRef>,
    /// Trials in a row that failed with no slot to go back to.
    pub failures: u32,
    /// Before this time no new trial is begun.
    pub not_before: Timestamp,
    /// How long of the trial at hand does not count: the API server or the agent was away, or the clock leapt.
    pub not_counted: SignedDuration,
    /// Whether the Node of the slot that is the node has its version's annotations.
    pub annotations: Annotations,
    /// When the kubelet's certificate in the slot that is the node has ended, if it has.
    pub kubelet_ended: Option<Timestamp>,
    /// Without a cluster: the version in that slot names what its kubelet can ask for another one by.
    pub joins_again: bool,
    /// Whether that slot could be left for the version that is selected.
    pub leave: Leave,
}

/// Whether etcd would let a control plane go that has joined, and is the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Leave {
    /// It was not asked: there is no such control plane, or nothing else is selected for it.
    #[default]
    Unasked,
    /// It would.
    May,
    /// It would not, or does not say; why, for a person.
    MayNot(String),
}

/// How far the version's annotations are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Annotations {
    /// They are on the Node, or there is no node.
    Written,
    /// They are to be written.
    Due,
    /// That failed of late: what matters more goes before.
    Failing,
}

/// Whether the API server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// The agent has just started, and waits a moment for the first answer.
    Unasked,
    /// It answers.
    Live,
    /// It does not.
    Away,
}

/// What counts of the Machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineFacts {
    /// Its UID.
    pub uid: String,
    /// Its generation.
    pub generation: Option<i64>,
    /// Whether it is the object that this host enrolled for, by the certificate that this host has: one made anew under the same name is not.
    pub ours: bool,
    /// `spec.paused`.
    pub paused: bool,
    /// It is being deleted.
    pub deleting: bool,
    /// `spec.deletionPolicy` is Drain: deleted, its slot is stopped once its Node is gone.
    pub drain: bool,
    /// Claimant whose MachineClaim decides about its node.
    pub claimed_by: Option<String>,
    /// `status.selected`.
    pub selected: Option<VersionRef>,
    /// The UID in `status.nodeRef`.
    pub node_ref: Option<String>,
}

/// The Node, as the API server says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeSeen {
    /// Not asked yet, or no answer that counts.
    Unknown,
    /// A live read said 404.
    Absent,
    /// It is there.
    Present {
        /// Its UID.
        uid: String,
        /// Since when it is Ready without a break; none: it is not.
        ready_since: Option<Timestamp>,
    },
}

/// A version that can be paved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionFacts {
    /// Which one.
    pub reference: VersionRef,
    /// Hash of its template: a version made anew under an old name is another one.
    pub template: String,
    /// How long a trial may take.
    pub timeout: SignedDuration,
    /// How long the Node must be Ready.
    pub node_ready: SignedDuration,
}

/// What is known of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlotSeen {
    /// What its record says; none: it is empty.
    pub record: Option<Record>,
    /// Whether its machine runs.
    pub runs: bool,
    /// Whether kubeadm has made a cluster in it: its etcd is that cluster, and nothing ends it but a person.
    pub made_cluster: bool,
    /// Whether it is a control plane that has joined a cluster: its etcd counts for that cluster's quorum.
    pub joined_control_plane: bool,
    /// Whether that is being undone: its member of etcd is out of the cluster, or will be in a moment.
    pub leaving: bool,
    /// True if former contents of the slot are not removed yet.
    pub has_trash: bool,
}

impl SlotSeen {
    /// Whether no failed trial, boot or selection stops or empties it. One that has joined is kept on trial alone: once it was the node, who
    /// deletes that Node has it paved anew.
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
    /// The version that it holds.
    pub version: VersionRef,
    /// Hash of the version's template.
    pub template: String,
    /// The node image.
    pub image_digest: Digest,
    /// The Machine (UID) that it was made for.
    pub machine_uid: String,
    /// How long a trial may take, in seconds.
    pub timeout_seconds: i64,
    /// How long the Node must be Ready, in seconds.
    pub min_ready_seconds: i64,
    /// How many slots were the node before it: of two, the one that was made the node later has the higher number, whatever the clock says.
    #[serde(default)]
    pub generation: u64,
    /// Claim that the slot is filled for. None: the slot is for the Machine's own node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ProviderId>,
    /// What it is.
    pub stage: Stage,
}

/// What a slot is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum Stage {
    /// Being filled; a kill leaves it so, and it is filled anew.
    Preparing,
    /// Whole, never started.
    Prepared,
    /// To be the node, if it passes the gate.
    #[serde(rename_all = "camelCase")]
    Trial {
        /// The kernel's boot in which the time began to run.
        boot_id: String,
        /// Since when.
        since: Timestamp,
        /// How often the host was booted anew since it was begun.
        #[serde(default)]
        boots: u32,
    },
    /// The node.
    #[serde(rename_all = "camelCase")]
    Applied {
        /// The Node that came of it.
        node_uid: String,
        /// Since when.
        since: Timestamp,
    },
    /// Was the node until another was.
    Retired,
    /// Did not pass the gate.
    #[serde(rename_all = "camelCase")]
    Failed {
        /// Why, for a person.
        reason: String,
    },
}

/// What the slot that runs shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// kubeadm and the version's commands.
    pub bootstrap: Bootstrap,
    /// The kubelet has no credential yet, so that no Node came of the slot, whoever can be asked.
    pub no_credential: bool,
    /// Whether the kubelet says that it is well.
    pub kubelet: bool,
    /// Whether the container runtime says that it and its network are ready.
    pub runtime: bool,
    /// The slot's own API server is awaited; never, where the slot is no control plane.
    pub awaits_control_plane: bool,
    /// Whether a Pod sandbox was started on this trial.
    pub sandbox: bool,
    /// What the next thing awaited said last, for a person.
    pub message: Option<String>,
}

/// How far a slot's bootstrap is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bootstrap {
    /// Not known, not begun, or at work.
    #[default]
    Running,
    /// Done.
    Done,
    /// Ended in vain, and systemd tries no more.
    Failed,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Fill a slot with a version: image, rendered files. It does not run meanwhile.
    PrepareSlot {
        /// The slot.
        slot: SlotName,
        /// The version.
        version: VersionRef,
    },
    /// Write that a prepared slot is to be the node.
    BeginTrial {
        /// The slot.
        slot: SlotName,
    },
    /// The host was booted anew in a trial, or a control plane was there before its trial was failed: its time begins again.
    RestartTrial {
        /// The slot.
        slot: SlotName,
    },
    /// Stop a slot.
    StopSlot {
        /// The slot.
        slot: SlotName,
    },
    /// Render the host's files and start a slot.
    StartSlot {
        /// The slot.
        slot: SlotName,
    },
    /// Start a Pod sandbox in the slot on trial and remove it.
    ProbeSandbox {
        /// The slot.
        slot: SlotName,
    },
    /// Write that the trial was passed.
    Commit {
        /// The slot.
        slot: SlotName,
        /// The Node that came of it.
        node_uid: String,
    },
    /// Take the etcd member of a joined control plane out of its cluster, and write that its slot is the node no more.
    LeaveCluster {
        /// The slot.
        slot: SlotName,
    },
    /// Write that a slot is the node no more, another is.
    Retire {
        /// The slot.
        slot: SlotName,
    },
    /// Write that the trial failed, and never to try the version again by itself if there is a slot to go back to.
    Fail {
        /// The slot.
        slot: SlotName,
        /// Why.
        reason: String,
        /// Whose log tells more.
        log: Log,
        /// The slot that runs again.
        back_to: Option<SlotName>,
    },
    /// The trial's version is not wanted any more, and no Node came of it: empty the slot.
    Abandon {
        /// The slot.
        slot: SlotName,
    },
    /// Have the kubelet of the slot that is the node ask for a certificate again, as at its join: its own has ended.
    RenewKubelet {
        /// The slot.
        slot: SlotName,
    },
    /// Write the version's annotations to the Node.
    AnnotateNode {
        /// The slot.
        slot: SlotName,
        /// The Node.
        node_uid: String,
    },
    /// The controller took the Node that the running slot registered anew.
    AdoptNode {
        /// The slot.
        slot: SlotName,
        /// The Node.
        node_uid: String,
    },
}

labels! {
    /// Name of a step in logs and metrics.
    pub enum StepName {
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

impl Step {
    /// Word of its name.
    pub fn name(&self) -> &'static str {
        self.label().word()
    }

    /// Name of the step.
    pub fn label(&self) -> StepName {
        match self {
            Self::PrepareSlot { .. } => StepName::PrepareSlot,
            Self::BeginTrial { .. } => StepName::BeginTrial,
            Self::RestartTrial { .. } => StepName::RestartTrial,
            Self::StopSlot { .. } => StepName::StopSlot,
            Self::StartSlot { .. } => StepName::StartSlot,
            Self::ProbeSandbox { .. } => StepName::ProbeSandbox,
            Self::Commit { .. } => StepName::Commit,
            Self::LeaveCluster { .. } => StepName::LeaveCluster,
            Self::Retire { .. } => StepName::Retire,
            Self::Fail { .. } => StepName::Fail,
            Self::Abandon { .. } => StepName::Abandon,
            Self::RenewKubelet { .. } => StepName::RenewKubelet,
            Self::AnnotateNode { .. } => StepName::AnnotateNode,
            Self::AdoptNode { .. } => StepName::AdoptNode,
        }
    }

    /// The slot that it is about.
    pub fn slot(&self) -> SlotName {
        match self {
            Self::PrepareSlot { slot, .. }
            | Self::BeginTrial { slot }
            | Self::RestartTrial { slot }
            | Self::StopSlot { slot }
            | Self::StartSlot { slot }
            | Self::ProbeSandbox { slot }
            | Self::Commit { slot, .. }
            | Self::LeaveCluster { slot }
            | Self::Retire { slot }
            | Self::Fail { slot, .. }
            | Self::Abandon { slot }
            | Self::RenewKubelet { slot }
            | Self::AnnotateNode { slot, .. }
            | Self::AdoptNode { slot, .. } => *slot,
        }
    }
}

/// Whose log tells why a trial failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Log {
    /// kubeadm's, and that of the version's commands.
    Kubeadm,
    /// The kubelet's.
    Kubelet,
    /// The container runtime's.
    Runtime,
    /// That of the unit that runs the slot.
    Slot,
}

/// What is done now, or what is awaited. Done and seen, the plan is made anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Do this.
    Do(Step),
    /// Nothing to do but wait.
    Wait(Wait),
}

/// What is awaited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Why.
    pub reason: PavedReason,
    /// For a person: what is awaited, and from whom.
    pub message: String,
    /// When to look again, if nothing changes before.
    pub until: Option<Timestamp>,
}

/// The other slot.
pub fn other(slot: SlotName) -> SlotName {
    match slot {
        SlotName::A => SlotName::B,
        SlotName::B => SlotName::A,
    }
}

/// Where a slot stands in [`Observed::slots`].
pub fn index(slot: SlotName) -> usize {
    match slot {
        SlotName::A => 0,
        SlotName::B => 1,
    }
}
