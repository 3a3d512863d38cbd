//! Pure: the objects that decide about a KubeadmConfig, and the steps that the planner chooses from.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::full::{Cluster, Machine};
use bedplate_api::cluster::kubeadm::file::SecretKeyRef;
use bedplate_api::cluster::kubeadm::{KubeadmConfig, KubeadmConfigStatus};
use bedplate_bootstrap::capi::{CertificatePurpose, UserData};
use bedplate_bootstrap::certificate::Certificate;
use bedplate_bootstrap::token::Token;
use zeroize::Zeroizing;

use super::lock::{Held, Lock};
use super::status::Situation;

/// Maximum total size of the values that a KubeadmConfig takes from Secrets. No Secret could hold the data with more.
pub const MAX_CONTENTS: usize = 1024 * 1024;

/// Object that owns a KubeadmConfig.
#[derive(Debug, Clone, PartialEq)]
pub enum Owner {
    /// No Machine owns it, or the Machine is not the one that names it.
    None,
    /// A MachinePool owns it.
    Pool,
    /// The Machine.
    Machine(Arc<Machine>),
}

/// Objects that decide about a KubeadmConfig.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The KubeadmConfig.
    pub config: Arc<KubeadmConfig>,
    /// The owner.
    pub owner: Owner,
    /// The Cluster of the Machine.
    pub cluster: Option<Arc<Cluster>>,
    /// Objects that were read in this turn.
    pub live: Live,
}

/// Objects that were read in this turn. None: not read.
#[derive(Debug, Clone, Default)]
pub struct Live {
    /// The Secret with the bootstrap data.
    pub data: Option<Data>,
    /// Values of the keys of Secrets that the spec names.
    pub contents: Option<Contents>,
    /// The init lock.
    pub lock: Option<Lock>,
    /// True if the Machine that holds the lock exists.
    pub holder_exists: Option<bool>,
    /// True if the Cluster is the one of the store, and its control plane is not initialized.
    pub may_init: Option<bool>,
    /// Secrets of certificates.
    pub certificates: BTreeMap<CertificatePurpose, Found>,
    /// The bootstrap token in the workload cluster.
    pub token: Option<TokenState>,
}

/// State of the Secret with the bootstrap data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// There is no Secret of the name.
    Absent,
    /// The KubeadmConfig owns it.
    Own,
    /// Another object, or none, owns it.
    Foreign,
}

/// Values of the keys of Secrets.
#[derive(Clone, PartialEq)]
pub enum Contents {
    /// Values of the keys that exist.
    Read(BTreeMap<SecretKeyRef, Zeroizing<Vec<u8>>>),
    /// They are larger than [`MAX_CONTENTS`].
    TooLarge,
}

/// Shows no value.
impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read(_) => "Read(..)",
            Self::TooLarge => "TooLarge",
        })
    }
}

/// State of the Secret of a certificate.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// There is no Secret of the name.
    Absent,
    /// The Secret has no certificate.
    Empty,
    /// The certificate.
    Certificate(Certificate),
}

/// State of a bootstrap token in the workload cluster.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenState {
    /// There is no token with the recorded ID.
    Absent,
    /// It exists, with this expiration. Its secret is not read.
    There(Option<String>),
    /// This turn has made it.
    Made(Token),
    /// The workload cluster does not answer. The text has the cause.
    Unknown(String),
}

/// Read of one turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Read {
    /// The Secret with the bootstrap data.
    Data,
    /// The Secrets that the spec names.
    Contents,
    /// The init lock.
    Lock,
    /// The Machine that holds this lock.
    Holder(Held),
    /// The Cluster.
    Cluster,
    /// The Secret of a certificate.
    Certificate(CertificatePurpose),
    /// The token with this ID.
    Token(String),
}

/// Next step.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Nothing until this delay has passed, or until a change.
    Done(Option<Duration>),
    /// Read an object.
    Read(Read),
    /// Create the init lock for the Machine.
    TakeLock,
    /// Delete the init lock that was read.
    ReleaseLock(Held),
    /// Create the Secret of a certificate.
    MakeCertificate(CertificatePurpose),
    /// Record the ID of a new token at the KubeadmConfig. The change starts the next turn.
    RecordToken,
    /// Create the token of this ID in the workload cluster.
    MakeToken(String),
    /// Extend the life of the token of this ID in the workload cluster.
    RenewToken(String),
    /// Create the Secret with the bootstrap data.
    Store(UserData),
    /// Write the status. The change starts the next turn; the delay is that of a turn without a write.
    Status(Box<KubeadmConfigStatus>, Situation),
}
