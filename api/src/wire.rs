//! Messages between pxed, the stage-1 of a booting host and its agent: the seed, enrollment, reports.
//!
//! JSON over HTTP(S). Released bytes have a frozen test; a field is added with a default, never renamed.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{BootId, Digest, MachineName, SiteName};
use crate::machine::{Applied, Condition, Hardware, Machine, NodeRef, RolledBack, Slot, StateDiskStatus};
use crate::operation::{MachineOperation, MachineOperationStatus};
use crate::version::MachineConfigurationVersion;

/// A text that must not reach a log, a status or an error: `Debug` hides it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretText(pub String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Path of the seed in the initramfs. The boot's loader adds it as an extra cpio archive with mode 0600.
pub const SEED_PATH: &str = "/bedplate/seed.json";

/// The kernel argument that names this boot's base URL, `http://host:port/b/<boot id>`.
pub const BOOT_URL_ARGUMENT: &str = "bedplate.url";

/// The kernel argument that names the MAC address of the interface that netboots.
pub const BOOT_MAC_ARGUMENT: &str = "bedplate.mac";

/// Data that one boot of a known Machine gets once, in addition to the public initrd (docs/design/rules.md, Trust
/// 2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seed {
    /// The Machine that boots, or how an unknown machine is called; it becomes the host name.
    pub machine: MachineName,
    /// The site whose pxed serves it.
    pub site: SiteName,
    /// This boot.
    pub boot_id: BootId,
    /// One-time enrollment token. Absent: no Machine names the machine that boots, which cannot enroll.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretText>,
    /// The certificate authority (PEM) that signed pxed's TLS certificate.
    pub ca_pem: String,
    /// Base URLs of pxed's TLS listener, in the order to try, without a slash at the end.
    pub endpoints: Vec<String>,
    /// The root file system to fetch.
    pub rootfs: Option<RootFs>,
    /// Which disk holds state; absent: state in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_disk: Option<StateDiskRequest>,
}

/// A root file system image (squashfs), public content, verified by its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RootFs {
    /// URL of the image, plain HTTP.
    pub url: String,
    /// Its digest.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
}

/// The Machine's stateDisk, as stage-1 needs it: exactly one way to name the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateDiskRequest {
    /// Selector of the disk.
    pub select: DiskSelector,
    /// Permission to wipe the disk.
    pub wipe: WipeRequest,
    /// Token of the wipe that is due at the release of a claim (D7). With `wipe: IfBlank` a disk whose wipe was interrupted is made again. It
    /// wipes no disk with state: that needs the request on the disk itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
}

/// Selector of one disk. Every form must match exactly one disk, otherwise none is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DiskSelector {
    /// Name below /dev/disk/by-id.
    ById(String),
    /// Serial number as the drive reports it.
    Serial(String),
    /// World wide name.
    Wwn(String),
    /// SCSI host:channel:target:lun.
    Hctl(String),
    /// A rule that must match exactly one disk.
    #[serde(rename_all = "camelCase")]
    Rule {
        /// Smallest size in bytes.
        min_size_bytes: Option<u64>,
        /// Largest size in bytes.
        max_size_bytes: Option<u64>,
        /// Spinning (true) or solid (false).
        rotational: Option<bool>,
        /// Model text, compared whole.
        model: Option<String>,
    },
}

/// Permission to wipe the state disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WipeRequest {
    /// Only if nothing is on it.
    IfBlank,
    /// Never.
    Never,
    /// Once for this token, which is remembered on the disk.
    Once(String),
}

/// Stage of a boot, in order. A stage of a later version comes before all others: nothing is known to be reached by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
pub enum Stage {
    /// The first DHCP packet of the boot arrived.
    Discover = 1,
    /// An address was offered.
    Offered,
    /// The address was acknowledged.
    Acknowledged,
    /// The loader was fetched.
    Loader,
    /// The loader fetched its script.
    Script,
    /// The kernel was fetched.
    Kernel,
    /// The initrd was fetched.
    Initrd,
    /// The root file system was fetched.
    #[serde(rename = "RootFS")]
    RootFs,
    /// systemd runs and the agent has started.
    Userspace,
    /// The host has its certificate.
    Enrolled,
    /// A value of a later version of Bedplate, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown = 0,
}

impl Stage {
    /// Returns the stage in lower case, for messages, metrics and the command line.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Discover => "discover",
            Self::Offered => "offered",
            Self::Acknowledged => "acknowledged",
            Self::Loader => "loader",
            Self::Script => "script",
            Self::Kernel => "kernel",
            Self::Initrd => "initrd",
            Self::RootFs => "rootfs",
            Self::Userspace => "userspace",
            Self::Enrolled => "enrolled",
            Self::Unknown => "unknown",
        }
    }
}

/// `POST <boot url>/stage`: stage-1 or the agent says how far it has come, or at what it failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StageReport {
    /// The stage that was reached, or that is being tried when `failure` is set.
    pub stage: Stage,
    /// Error that will be retried, for users; at most 1024 bytes are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// Maximum size of the body of `POST /v1/enroll`, in bytes. Facts that do not fit follow with the first report.
pub const MAX_ENROLL_BYTES: usize = 64 << 10;

/// `POST /v1/enroll` over TLS: the agent trades its token for a certificate.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnrollRequest {
    /// The boot whose seed held the token.
    pub boot_id: BootId,
    /// The seed's token.
    pub token: SecretText,
    /// PKCS#10 request (PEM), made with a key that never leaves the host.
    pub csr_pem: String,
    /// The agent's version.
    pub agent_version: String,
    /// Hardware as the host has found it; `bmc` is ignored. Empty if they would exceed [`MAX_ENROLL_BYTES`].
    pub facts: Hardware,
    /// Answer to a challenge of an earlier round, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenge_answer: Option<String>,
}

/// Answer to an enrollment or renewal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "result")]
pub enum EnrollResponse {
    /// The certificate is there.
    #[serde(rename_all = "camelCase")]
    Enrolled {
        /// The certificate chain (PEM), leaf first.
        certificate_pem: String,
        /// Trust settings for requests to `kubernetes`; absent in directory mode.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kubernetes: Option<KubernetesEndpoint>,
        /// Seconds between heartbeats.
        heartbeat_seconds: u32,
    },
    /// There is no certificate yet: ask again with the same request.
    #[serde(rename_all = "camelCase")]
    Pending {
        /// Cause of the wait, for a user.
        message: String,
        /// Seconds to wait before the next try.
        retry_seconds: u32,
    },
    /// One more round is needed (room for TPM attestation).
    #[serde(rename_all = "camelCase")]
    Challenge {
        /// Challenge that must be answered.
        challenge: String,
    },
}

/// The API server that the agent's certificate is good for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubernetesEndpoint {
    /// Base URL.
    pub server: String,
    /// Its certificate authority (PEM).
    pub ca_pem: String,
}

/// `POST /v1/renew` over mutual TLS: a new certificate for the key that is there.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RenewRequest {
    /// PKCS#10 request (PEM) by the same key.
    pub csr_pem: String,
}

/// `POST /v1/report` over mutual TLS: heartbeat, and facts when they changed. The Machine is the certificate's.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The agent's version.
    pub agent_version: String,
    /// The kernel's boot id (/proc/sys/kernel/random/boot_id).
    pub kernel_boot_id: String,
    /// The boot of pxed's that brought this host up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<BootId>,
    /// Hardware facts (`status.hardware` without `bmc`); absent when unchanged since the last report that was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Hardware>,
    /// The host's addresses.
    pub addresses: Vec<std::net::IpAddr>,
    /// The state disk in use; absent: state is in memory, or the host was not netbooted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_disk: Option<StateDiskStatus>,
    /// True if the host goes down or reboots now: the key in force is not heard again before the next boot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub going_down: bool,
}

/// Maximum time that `POST /v1/watch` waits for a change, in seconds: less than a client's request timeout.
pub const WATCH_SECONDS: u64 = 20;

/// `POST /v1/watch` over mutual TLS, when standalone: the state of the certificate's Machine. Answered
/// immediately if the state differs from the agent's, otherwise when it changes, or after [`WATCH_SECONDS`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct WatchRequest {
    /// The revision of the last [`WatchResponse::Changed`]; absent: nothing is known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<String>,
}

/// Answer to a [`WatchRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "result")]
pub enum WatchResponse {
    /// It is as the agent knows it.
    Same,
    /// It is so now.
    #[serde(rename_all = "camelCase")]
    Changed {
        /// Opaque mark of this state. It may only be compared with an earlier one.
        revision: String,
        /// The Machine; of its status what pxed decides in the controller's place (`selected`, `nodeRef`) and `applied`.
        machine: Box<Machine>,
        /// The version that the Machine's `status.selected` names.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<Box<MachineConfigurationVersion>>,
        /// The Machine's operations that are the agent's and have not ended.
        operations: Vec<MachineOperation>,
    },
}

/// `POST /v1/operation` over mutual TLS, without a cluster: how one of the Machine's operations goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperationWrite {
    /// The operation's name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version of it that was read: another one is not written over.
    pub resource_version: String,
    /// Desired status of the operation.
    pub status: MachineOperationStatus,
}

/// Answer to an [`OperationWrite`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "result")]
pub enum OperationWritten {
    /// It was written.
    Written {
        /// The operation now.
        operation: Box<MachineOperation>,
    },
    /// Another writer changed it meanwhile, or it has finished.
    Changed {
        /// The operation now.
        operation: Box<MachineOperation>,
    },
    /// It is not there any more, or another one has its name.
    Gone,
}

/// `POST /v1/node` over mutual TLS, without a cluster: how the host's node stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Running version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<Applied>,
    /// Contents of the slots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<Slot>,
    /// Last update that was rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
    /// `Paved` and `NodeReady`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Current Node; absent if there is none, or if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeRef>,
    /// The UID of the Node that a live read has just said to be gone: the one thing that makes pxed choose again (docs/design/rules.md,
    /// H6).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_gone: Option<String>,
}

/// `POST /v1/secret` over mutual TLS, without a cluster: a Secret that the Machine's selected version names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretRequest {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Answer to a [`SecretRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretResponse {
    /// Its type, such as `kubernetes.io/dockerconfigjson`.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Its values by their keys, in base64.
    pub data: BTreeMap<String, SecretText>,
}

/// Every refusal on pxed's HTTP(S) listeners has this body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// Stable name in CamelCase, such as `TokenUsed`.
    pub reason: String,
    /// Cause and remedy, for users.
    pub message: String,
}

/// Boot offer for a machine now, and the reasons (`bedplate explain`). Made by the function that answers boot
/// requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The MAC address or Machine name that was asked for.
    pub subject: String,
    /// The Machine, if one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineName>,
    /// One entry for each kind of request that such a machine can send.
    pub decisions: Vec<ExplainedDecision>,
    /// Causes outside of these decisions, each with its remedy: ignored messages, addresses that cannot be given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// One kind of request and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedDecision {
    /// The request, such as `UEFI x64, PXE`.
    pub request: String,
    /// The answer, such as `TFTP snponly.efi`.
    pub decision: String,
    /// Reasons, in the order of the decision.
    pub reasons: Vec<String>,
}
