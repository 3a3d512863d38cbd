//! Reasons of the conditions of a KubeadmConfig. Those of upstream have upstream's words.
//!
//! Called by the group `bootstrap` of bedplate-cluster.
//!
//! Pure.

use super::condition_type;
use crate::reason::event::EventReason;
use crate::reason::reasons;

reasons! {
    /// Reasons of `Ready`.
    pub enum ConfigReadyReason: "Condition Ready of a KubeadmConfig", condition condition_type::READY {
        Ready: "The bootstrap data is stored.";
        NotReady: "The bootstrap data is not stored. The message names the condition that is not met."
            => Other, "See the conditions DataSecretAvailable and CertificatesAvailable.";
        ReadyUnknown: "A condition that counts is not known.";
    }
}

reasons! {
    /// Reasons of `DataSecretAvailable`.
    pub enum DataSecretAvailableReason: "Condition DataSecretAvailable of a KubeadmConfig", condition condition_type::DATA_SECRET_AVAILABLE {
        Available: "The Secret with the bootstrap data exists.";
        NotAvailable: "The bootstrap data is not made. The message has the cause."
            => Other, "Read the message.";
    }
}

reasons! {
    /// Reasons of `CertificatesAvailable`.
    pub enum CertificatesAvailableReason: "Condition CertificatesAvailable of a KubeadmConfig", condition condition_type::CERTIFICATES_AVAILABLE {
        Available: "The certificates that the machine needs exist.";
        InternalError: "A certificate is missing or cannot be read. The message names its Secret."
            => User, "Restore the Secret. Certificates of a running cluster are never made again.";
    }
}

reasons! {
    /// Reasons of `FieldsSupported`.
    pub enum ConfigFieldsSupportedReason: "Condition FieldsSupported of a KubeadmConfig", condition condition_type::FIELDS_SUPPORTED {
        FieldsSupported: "Every field that is set is supported.";
        UnsupportedFields: "Fields are set that are not supported, and no bootstrap data is made. The message names them."
            => User, "Remove the fields, and delete the Machine so that its owner replaces it.";
    }
}

reasons! {
    /// Reasons of `Paused`.
    pub enum ConfigPausedReason: "Condition Paused of a KubeadmConfig", condition condition_type::PAUSED {
        NotPaused: "The object is reconciled.";
        Paused: "The Cluster or the object is paused."
            => User, "Set spec.paused of the Cluster to false, and remove the annotation cluster.x-k8s.io/paused.";
    }
}

reasons! {
    /// Events of the group `bootstrap`.
    pub enum BootstrapEvent: "Events of bedplate-cluster about KubeadmConfigs" {
        BootstrapDataCreated: "The Secret with the bootstrap data was created.";
        BootstrapDataFailed: "No bootstrap data can be made."
            => User, "See condition DataSecretAvailable of the KubeadmConfig.";
        CertificatesCreated: "A certificate of the cluster was created.";
        BootstrapTokenCreated: "A bootstrap token was created in the cluster.";
        BootstrapTokenNotRenewed: "The bootstrap token of a machine that has not joined cannot be renewed. The note has the cause."
            => User, "Correct the cause before the token expires.";
        BootstrapTokenLost: "The bootstrap token expired or was deleted before the machine became a Node."
            => User, "Delete the Machine, so that its owner replaces it.";
        WriteRejected: "The API server rejected a write."
            => User, "Correct the cause in the note.";
    }
}

impl EventReason for BootstrapEvent {
    fn action(self) -> &'static str {
        match self {
            Self::BootstrapDataCreated | Self::BootstrapDataFailed => "Issue",
            Self::CertificatesCreated => "CreateCertificate",
            Self::BootstrapTokenCreated | Self::BootstrapTokenNotRenewed | Self::BootstrapTokenLost => {
                "FollowToken"
            }
            Self::WriteRejected => "Write",
        }
    }

    fn regarding(self) -> &'static [&'static str] {
        match self {
            Self::BootstrapDataCreated
            | Self::BootstrapDataFailed
            | Self::CertificatesCreated
            | Self::BootstrapTokenCreated
            | Self::BootstrapTokenNotRenewed
            | Self::BootstrapTokenLost => &["KubeadmConfig"],
            Self::WriteRejected => &[],
        }
    }
}
