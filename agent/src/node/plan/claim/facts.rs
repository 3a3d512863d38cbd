//! Input and output of the plan of a claimed host.
//!
//! Pure: plain data. Part of `claim`.

use jiff::{SignedDuration, Timestamp};

use crate::model::{Api, StepName};
use crate::node::claim_record::{ClaimRecord, ClaimStage, Claimant, FailureCause, ProviderId, ReleasePolicy};
pub use crate::node::host_state::HostState;

/// Input of the plan.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimObserved {
    /// Now.
    pub now: Timestamp,
    /// Time since the host was booted.
    pub uptime: SignedDuration,
    /// The kernel's boot ID.
    pub boot_id: String,
    /// State of the management API server. Machine and claim are current only if it is live.
    pub api: Api,
    /// The Machine.
    pub machine: PoolMachine,
    /// The MachineClaim of the Machine's name.
    pub claim: ClaimSeen,
    /// Answer whether the configuration of the claim lets its claimant run it.
    pub configuration: Admission,
    /// Maximum time of a bootstrap, by the version that is selected for the claim. None: it is not selected or not read yet.
    pub timeout: Option<SignedDuration>,
    /// `claim.json`.
    pub record: Option<ClaimRecord>,
    /// Place of the host's state.
    pub state: HostState,
    /// The slots.
    pub slot: ClaimSlot,
    /// User data of the recorded claim, in memory.
    pub user_data: UserData,
    /// The Node in the claimant's cluster.
    pub node: JoinedNode,
    /// Part of the time since the bootstrap was started that does not count: the slot was not started yet, or the clock leapt.
    pub not_counted: SignedDuration,
    /// True if a report failed a short time ago, so that it waits.
    pub is_report_delayed: bool,
}

/// Answer of a MachineConfiguration to a claimant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Admission {
    /// The Machine was not asked, or does not answer.
    Unknown,
    /// The `claimPolicy` of the Machine lists the claimant's namespace.
    Allowed,
    /// The `claimPolicy` does not list it, or the Machine does not exist.
    Refused,
}

/// The Machine, as far as claims depend on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolMachine {
    /// The Machine does not exist.
    Absent,
    /// The Machine is not the one that this host enrolled for.
    Foreign,
    /// The Machine is this host's.
    Own {
        /// Namespaces of `claimPolicy`. Empty: the host is not in a pool.
        namespaces: Vec<String>,
        /// `spec.paused`.
        paused: bool,
        /// True if it is being deleted.
        deleting: bool,
        /// Value of the annotation by which a user releases a claim.
        release: Option<ProviderId>,
        /// `claimPolicy.release`.
        policy: ReleasePolicy,
        /// True if `pxe.stateDisk.wipe` has no other rule for the disk.
        may_wipe: bool,
        /// True if `pxe.stateDisk` selects a disk: otherwise the next boot keeps the state in memory, and makes no disk again.
        selects_disk: bool,
        /// `status.claim`: the latest report of this host there.
        last: Option<ClaimReport>,
    },
}

/// The claim object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimSeen {
    /// The claim was not listed yet.
    Unknown,
    /// The claim does not exist.
    Absent,
    /// The claim exists.
    Present(ClaimFacts),
}

/// Part of a claim object that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimFacts {
    /// UID of the object.
    pub uid: String,
    /// `spec.release`.
    pub release: ReleasePolicy,
    /// `spec.providerID`.
    pub provider_id: ProviderId,
    /// `spec.claimant`.
    pub claimant: Claimant,
    /// True if it names a Secret with user data.
    pub has_user_data: bool,
    /// True if condition `Granted` is True.
    pub granted: bool,
    /// True if the provider has ever let the host start the claim.
    pub was_granted: bool,
    /// True if it is being deleted.
    pub deleting: bool,
    /// Report of this host in its status.
    pub reported: Option<ClaimReport>,
}

/// Report of this host on a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimReport {
    /// Claim that the host holds, or refuses.
    pub provider_id: ProviderId,
    /// State of that claim. None if the host has not accepted it.
    pub state: Option<ReportedState>,
    /// Cause of the state.
    pub cause: Option<ReportedCause>,
}

/// State of a claim in a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the stages of the record have the same names")]
pub enum ReportedState {
    Preparing,
    Bootstrapping,
    Joined,
    Failed,
    Releasing,
    Wiping,
    Released,
}

impl From<&ClaimStage> for ReportedState {
    fn from(stage: &ClaimStage) -> Self {
        match stage {
            ClaimStage::Preparing => Self::Preparing,
            ClaimStage::Bootstrapping { .. } => Self::Bootstrapping,
            ClaimStage::Joined { .. } => Self::Joined,
            ClaimStage::Failed { .. } => Self::Failed,
            ClaimStage::Releasing => Self::Releasing,
            ClaimStage::Wiping { .. } => Self::Wiping,
            ClaimStage::Released => Self::Released,
        }
    }
}

/// Cause in a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReportedCause {
    /// The claim is not the one that the host holds, or its Machine does not allow it.
    ClaimRefused,
    /// The host did not join.
    Failure(FailureCause),
}

/// The slots of the host. A claim uses slot a.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimSlot {
    /// True if a slot has the node of a configuration that no claim has selected.
    pub is_foreign: bool,
    /// True if both slots are empty.
    pub is_empty: bool,
    /// True if the image of the selected version is on disk.
    pub has_image: bool,
    /// Claim that the slot is completely filled for.
    pub filled: Option<ProviderId>,
    /// True if a slot runs. Read before the marks of the user data: they are written before the slot stops.
    pub runs: bool,
    /// The user data.
    pub script: Script,
    /// True if the sentinel exists, or the user data does not name one.
    pub has_sentinel: bool,
    /// True if the kubelet is healthy.
    pub is_kubelet_healthy: bool,
    /// True if network links of the slot are left.
    pub has_links: bool,
}

/// Execution of the user data, by its marks in the slot. A mark survives boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Script {
    /// The user data was never started.
    #[default]
    NotStarted,
    /// The user data was started, and has not ended.
    Started,
    /// The user data ended with this exit code.
    Ended(i32),
}

/// User data of the recorded claim, in memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum UserData {
    /// The user data was not read in this boot, or is removed.
    Absent,
    /// The user data was read and rendered.
    Rendered,
    /// The user data was read and cannot be carried out.
    Refused {
        /// Text for a user.
        why: String,
    },
}

/// The Node, as the claimant's API server reports it to the slot's kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum JoinedNode {
    /// The API server was not asked, or does not answer.
    Unknown,
    /// The Node does not exist.
    Absent,
    /// The Node exists.
    Present {
        /// UID.
        uid: String,
        /// `spec.providerID`. None: it is empty.
        provider_id: Option<ProviderId>,
        /// True if it has the label with the name of this host.
        is_labeled: bool,
    },
}

/// Evidence that a claim has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Evidence {
    /// The claim object is being deleted.
    Deleted,
    /// Another claim of the host is granted, and nothing of this one has run.
    Replaced,
    /// A user has released the claim by its ID.
    Requested,
}

/// Step of the claim plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimStep {
    /// Write the record of the claim object: `Preparing`.
    Accept,
    /// Write the status of the claim object.
    Report(ClaimReport),
    /// Fetch the image of the selected version.
    FetchImage,
    /// Read the Secret with the user data, and render it into memory of this boot.
    RenderUserData,
    /// Fill the slot with image and files.
    FillSlot,
    /// Write the record: `Bootstrapping`, in this boot.
    BeginBootstrap {
        /// Maximum time until the host has joined.
        timeout: SignedDuration,
    },
    /// Start the slot, with the user data from memory. It runs unless its mark says that it was started before.
    StartSlot,
    /// Remove the user data from memory.
    ForgetUserData,
    /// Set `spec.providerID` of the Node, and its label with the name of this host.
    SetProviderId {
        /// UID of the Node.
        node_uid: String,
    },
    /// Write the record: `Joined`.
    Join {
        /// UID of the Node. None if there is no user data.
        node_uid: Option<String>,
    },
    /// Write the record: `Failed`, with the end of the log.
    Fail {
        /// Cause.
        cause: FailureCause,
        /// Text for a user.
        message: String,
    },
    /// Write the record: `Releasing`.
    BeginRelease {
        /// Evidence that the claim has ended.
        evidence: Evidence,
    },
    /// Stop the slots.
    StopSlot,
    /// Remove the network links that the slot has left.
    ClearLinks,
    /// Empty both slots.
    EmptySlots,
    /// Write the record: `Wiping`, in this boot.
    BeginWipe {
        /// Token of the wipe.
        token: String,
    },
    /// Write the request of the wipe to the state disk, and reboot.
    RequestWipe {
        /// Token of the wipe.
        token: String,
    },
    /// Write the record: `Released`.
    EndRelease,
}

impl ClaimStep {
    /// Name of the step.
    pub fn label(&self) -> StepName {
        match self {
            Self::Accept => StepName::AcceptClaim,
            Self::Report(_) => StepName::ReportClaim,
            Self::FetchImage => StepName::FetchImage,
            Self::RenderUserData => StepName::RenderUserData,
            Self::FillSlot => StepName::PrepareSlot,
            Self::BeginBootstrap { .. } => StepName::BeginBootstrap,
            Self::StartSlot => StepName::StartSlot,
            Self::ForgetUserData => StepName::ForgetUserData,
            Self::SetProviderId { .. } => StepName::MarkNode,
            Self::Join { .. } => StepName::JoinClaim,
            Self::Fail { .. } => StepName::FailClaim,
            Self::BeginRelease { .. } => StepName::BeginRelease,
            Self::StopSlot => StepName::StopSlot,
            Self::ClearLinks => StepName::ClearLinks,
            Self::EmptySlots => StepName::EmptySlots,
            Self::BeginWipe { .. } => StepName::BeginWipe,
            Self::RequestWipe { .. } => StepName::RequestWipe,
            Self::EndRelease => StepName::EndRelease,
        }
    }

    /// Text for a user.
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Accept => "accepts the claim",
            Self::Report(_) => "reports on the claim",
            Self::FetchImage => "fetches the node image",
            Self::RenderUserData => "reads the user data",
            Self::FillSlot => "fills slot a",
            Self::BeginBootstrap { .. } => "records that the user data starts",
            Self::StartSlot => "starts slot a",
            Self::ForgetUserData => "removes the user data from memory",
            Self::SetProviderId { .. } => "sets providerID and label of the Node",
            Self::Join { .. } => "records that the host has joined",
            Self::Fail { .. } => "records that the claim failed",
            Self::BeginRelease { .. } => "records the end of the claim",
            Self::StopSlot => "stops the slots",
            Self::ClearLinks => "removes network links of the slot",
            Self::EmptySlots => "empties both slots",
            Self::BeginWipe { .. } => "records that the host must be wiped",
            Self::RequestWipe { .. } => "reboots the host for the wipe",
            Self::EndRelease => "records that the host is released",
        }
    }
}

/// Cause of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pending {
    /// A claim of this host.
    Claim,
    /// An answer of the management API server.
    ApiServer,
    /// The Machine that this host enrolled for.
    Machine,
    /// The end of a pause.
    Unpause,
    /// The end of the Machine, which is being deleted.
    MachineDeletion,
    /// The return of the claim object, or a user's release.
    MissingClaim,
    /// The removal of a claim that the host refuses.
    RefusedClaim,
    /// The version that is selected for the claim.
    Version,
    /// Condition `Granted` of the claim.
    Grant,
    /// The status of the claim object, which failed to be written.
    Report,
    /// The end of the user data.
    UserData,
    /// The sentinel of the user data.
    Sentinel,
    /// The kubelet.
    Kubelet,
    /// The Node.
    Node,
    /// The removal of another provider ID from the Node.
    ProviderId,
    /// The end of the claim: the host has joined.
    End,
    /// The release of a claim that failed.
    FailedClaim,
    /// The removal of the claim object: the host is released.
    Removal,
    /// The next boot, because the latest one did not wipe the host.
    Wipe,
    /// A change of the Machine: the host cannot be wiped.
    WipeNotPossible,
    /// The end of a node that no claim has selected: the host is not wiped under it.
    ForeignSlot,
}

/// Next step, or cause of a wait. The plan is made again after each step and each change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimPlan {
    /// Do this.
    Do(ClaimStep),
    /// Wait.
    Wait {
        /// Cause of the wait.
        pending: Pending,
        /// Time of the next plan, if nothing changes before.
        until: Option<Timestamp>,
    },
}
