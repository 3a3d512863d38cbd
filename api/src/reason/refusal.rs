//! Reasons of refusals on pxed's HTTP listeners. Each has one HTTP status.
//!
//! Pure.

use super::reasons;

reasons! {
    /// Refusals to loaders and booting hosts.
    pub enum BootRefusal: "Refusals to loaders and booting hosts" {
        UnknownBoot: "The boot is over, or it never existed."
            => User, "Boot the machine again.";
        Held: "The image is not available yet, or not for this machine. The machine asks again."
            => User, "Wait; `bedplate explain NAME` has the cause.";
        AddressNotLeased: "The script or seed was requested from an address that pxed did not lease to this Machine."
            => User, "Boot the machine again. With address translation in between see docs/reference/configuration.md.";
        SeedAlreadyIssued: "The seed of this boot was issued already."
            => User, "Boot the machine again.";
        SeedUnavailable: "pxed failed to issue the seed."
            => User, "See pxed's log.";
        ImageUnreadable: "pxed failed to read the image."
            => User, "See pxed's log.";
        Internal: "pxed failed."
            => User, "See pxed's log.";
        TooManyStreams: "Two root file systems of this boot are already being sent.";
        RateLimited: "This boot has sent more reports than allowed. Later reports are accepted again.";
        NoRootfs: "The image has no root file system."
            => User, "Build the image again (docs/guides/images.md).";
        UnknownLoader: "No loader of this name is configured."
            => User, "Correct loaders in pxed's configuration.";
        MachineGone: "The Machine of this boot does not exist any more."
            => User, "Create the Machine, then boot it again.";
        RangeNotSatisfiable: "The requested range is not in the file.";
        UnknownPath: "pxed does not serve this path.";
        MethodNotAllowed: "The method is not allowed for this path.";
        InvalidHost: "The request has no Host field, several, or an invalid one (RFC 9112, section 3.2).";
        InvalidReport: "The body is not a stage report.";
        StageNotReported: "Hosts do not report this stage.";
        InvalidBody: "The body is incomplete.";
        BodyTooLarge: "The body is too large.";
        BodyTooSlow: "The body did not arrive in time.";
    }
}

impl BootRefusal {
    /// HTTP status of the answer.
    pub const fn status(self) -> u16 {
        match self {
            Self::InvalidHost | Self::InvalidReport | Self::StageNotReported | Self::InvalidBody => 400,
            Self::AddressNotLeased => 403,
            Self::UnknownBoot
            | Self::NoRootfs
            | Self::UnknownLoader
            | Self::MachineGone
            | Self::UnknownPath => 404,
            Self::MethodNotAllowed => 405,
            Self::BodyTooSlow => 408,
            Self::SeedAlreadyIssued => 410,
            Self::BodyTooLarge => 413,
            Self::RangeNotSatisfiable => 416,
            Self::RateLimited | Self::TooManyStreams => 429,
            Self::Internal | Self::ImageUnreadable => 500,
            Self::Held | Self::SeedUnavailable => 503,
        }
    }
}

reasons! {
    /// Refusals to agents.
    pub enum AgentRefusal: "Refusals to agents" {
        UnknownPath: "pxed does not serve this path."
            => User, "Update the host image.";
        MethodNotAllowed: "The method is not allowed for this path."
            => User, "Update the host image.";
        InvalidHost: "The request has no Host field, several, or an invalid one (RFC 9112, section 3.2)."
            => User, "Update the host image.";
        NoClientCertificate: "The request needs a client certificate."
            => User, "Update the host image.";
        CertificateExpired: "The client certificate expired on an open connection."
            => User, "Boot the machine again.";
        InvalidBody: "The body is incomplete or invalid."
            => User, "Update the host image.";
        BodyTooLarge: "The body is too large."
            => User, "Update the host image.";
        BodyTooSlow: "The body did not arrive in time."
            => User, "Check the network of the host.";
        InvalidCertificateRequest: "The certificate signing request is not for this Machine."
            => User, "Update the host image.";
        UnknownBoot: "No seed of this boot was issued, or it was issued more than an hour ago."
            => User, "Boot the machine again.";
        WrongToken: "The token belongs to another boot."
            => User, "Boot the machine again.";
        TokenExpired: "The token expired one hour after its seed was issued."
            => User, "Boot the machine again.";
        TokenUsed: "Another key enrolled with the token."
            => User, "Boot the machine again, or create a new token. If you did not enroll that host, identify it.";
        TokenSuperseded: "A host has enrolled by a newer token of this Machine."
            => User, "Boot the machine again.";
        UnknownMachine: "No Machine has the MAC address of this boot."
            => User, "Create a Machine with its MAC address.";
        MachineGone: "The Machine was deleted, or created again under its name."
            => User, "Create the Machine, then boot it again.";
        KeyMismatch: "The request renews a certificate for another key."
            => User, "Boot the machine again.";
        KeyReplaced: "Another key was enrolled for the Machine, or pxed has lost its record of the key. The message says which."
            => User, "Boot that host again if it is this Machine's. Otherwise stop it.";
        SignerFailed: "The signer failed. The agent tries again."
            => User, "See pxed's log.";
        UseKubernetesApi = "UseKubernetesAPI": "The cluster answers this request, not pxed."
            => User, "Boot the machine again, so that its seed names the cluster.";
        SecretNotReferenced: "The selected version of the Machine does not name the Secret.";
        SecretNotFound: "pxed has no file of the Secret."
            => User, "Create the file. The message has its path (docs/getting-started/first-control-plane.md).";
        SecretInvalid: "A file of the Secret has a wrong owner, mode or size."
            => User, "Correct the file. The message has the remedy (docs/getting-started/first-control-plane.md).";
        StoreFailed: "pxed's store failed. The agent tries again."
            => User, "See pxed's log.";
        RateLimited: "The host asks more often than an agent does. It is accepted again after Retry-After."
            => User, "Identify the program that sends the requests.";
    }
}

impl AgentRefusal {
    /// HTTP status of the answer.
    pub const fn status(self) -> u16 {
        match self {
            Self::InvalidHost | Self::InvalidBody | Self::InvalidCertificateRequest => 400,
            Self::NoClientCertificate | Self::CertificateExpired => 401,
            Self::UnknownBoot
            | Self::WrongToken
            | Self::TokenExpired
            | Self::UnknownMachine
            | Self::KeyMismatch
            | Self::KeyReplaced
            | Self::SecretNotReferenced => 403,
            Self::UnknownPath | Self::MachineGone | Self::SecretNotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::BodyTooSlow => 408,
            Self::TokenUsed | Self::TokenSuperseded | Self::UseKubernetesApi => 409,
            Self::BodyTooLarge => 413,
            Self::RateLimited => 429,
            Self::SignerFailed | Self::StoreFailed | Self::SecretInvalid => 503,
        }
    }
}

reasons! {
    /// Refusals on pxed's admin socket.
    pub enum AdminRefusal: "Refusals on pxed's admin socket" {
        Malformed: "The body is not JSON, the object is not a MachineOperation, or the query is invalid.";
        Forbidden: "The user is not in the admin group."
            => User, "Follow the message: use sudo, or join the group.";
        NotFound: "The object or the path does not exist here."
            => User, "`bedplate machine list` shows the known Machines, `bedplate discovered` unknown ones.";
        MachineNotFound: "The Machine of the operation does not exist here."
            => User, "`bedplate machine list` shows the known Machines.";
        OperationNotFound: "The operation does not exist here, or it was removed after its end."
            => User, "`bedplate operation list` shows the known operations.";
        MethodNotAllowed: "The method is not allowed for this path.";
        AlreadyExists: "An object has this name."
            => User, "Choose another name, or set generateName.";
        Netbooted: "A Machine of provider pxe gets its token when it boots."
            => User, "Boot the machine from the network.";
        UseKubernetesApi = "UseKubernetesAPI": "This pxed belongs to a cluster, which has the objects."
            => User, "Name the cluster with --context or --kubeconfig, without --socket.";
        BodyTooSlow: "The body did not arrive in time.";
        BodyTooLarge: "The body is too large or incomplete.";
        Invalid: "A field of the object is invalid. The message names each field."
            => User, "Correct the fields in the message.";
        Unavailable: "pxed cannot store the object now."
            => User, "Try again. See pxed's log.";
    }
}

impl AdminRefusal {
    /// HTTP status of the answer.
    pub const fn status(self) -> u16 {
        match self {
            Self::Malformed => 400,
            Self::Forbidden => 403,
            Self::NotFound | Self::MachineNotFound | Self::OperationNotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::BodyTooSlow => 408,
            Self::AlreadyExists | Self::Netbooted | Self::UseKubernetesApi => 409,
            Self::BodyTooLarge => 413,
            Self::Invalid => 422,
            Self::Unavailable => 503,
        }
    }
}
