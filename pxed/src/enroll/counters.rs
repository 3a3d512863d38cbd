//! Why an agent is refused, and what is counted of agents.

use bedplate_process::counter::{By, labels};
use hyper::StatusCode;

labels! {
    /// Why an agent is refused: the `reason` of its answer, and of the metric.
    pub enum Reason {
        /// Nothing is under this path.
        UnknownPath => "UnknownPath",
        /// Only POST.
        MethodNotAllowed => "MethodNotAllowed",
        /// An HTTP/1.1 request without `Host`, with several, or with an invalid one (RFC 9112, 3.2).
        BadHost => "BadHost",
        /// Only for who shows a certificate.
        NoClientCertificate => "NoClientCertificate",
        /// The certificate expired after its connection was made.
        CertificateExpired => "CertificateExpired",
        /// The body did not come whole, or says nothing sensible.
        BadBody => "BadBody",
        /// The body is too large.
        BodyTooLarge => "BodyTooLarge",
        /// The body did not come in time.
        BodyTooSlow => "BodyTooSlow",
        /// The certificate signing request.
        BadCertificateRequest => "BadCertificateRequest",
        /// No seed of that boot has gone out.
        UnknownBoot => "UnknownBoot",
        /// The token is another.
        WrongToken => "WrongToken",
        /// The token's time is over.
        TokenExpired => "TokenExpired",
        /// Another key used the token.
        TokenUsed => "TokenUsed",
        /// A host has enrolled since by another token of this Machine.
        TokenSuperseded => "TokenSuperseded",
        /// The machine is unknown.
        NotAMachine => "NotAMachine",
        /// The Machine is gone, or was made anew.
        MachineGone => "MachineGone",
        /// Renewal for a key that is not the certificate's.
        OtherKey => "OtherKey",
        /// Another key was enrolled since.
        KeyReplaced => "KeyReplaced",
        /// The signer failed.
        SignerFailed => "SignerFailed",
        /// What was asked for is the cluster's to answer.
        UseCluster => "UseCluster",
        /// The Machine's selected version does not name that Secret.
        SecretNotNamed => "SecretNotNamed",
        /// No file of that Secret is there.
        SecretMissing => "SecretMissing",
        /// A file of that Secret is there and cannot be used.
        SecretUnreadable => "SecretUnreadable",
        /// The store failed.
        StoreFailed => "StoreFailed",
        /// One host asks more often than any agent does.
        TooOften => "TooOften",
    }
}

impl Reason {
    /// The HTTP status of the answer.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::UnknownPath | Self::MachineGone | Self::SecretMissing => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::NoClientCertificate | Self::CertificateExpired => StatusCode::UNAUTHORIZED,
            Self::BadHost | Self::BadBody | Self::BadCertificateRequest => StatusCode::BAD_REQUEST,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::TooOften => StatusCode::TOO_MANY_REQUESTS,
            Self::UnknownBoot
            | Self::WrongToken
            | Self::TokenExpired
            | Self::NotAMachine
            | Self::OtherKey
            | Self::KeyReplaced
            | Self::SecretNotNamed => StatusCode::FORBIDDEN,
            Self::TokenUsed | Self::TokenSuperseded | Self::UseCluster => StatusCode::CONFLICT,
            Self::SignerFailed | Self::StoreFailed | Self::SecretUnreadable => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }
}

labels! {
    /// What came of an enrolment.
    pub enum Enrolment {
        /// The host has a certificate.
        Enrolled => "enrolled",
        /// The answer was lost, and is given again.
        Repeated => "repeated",
        /// The signer has not signed yet.
        Pending => "pending",
        /// A new key waits, because the key in force is still heard.
        HeardElsewhere => "heard-elsewhere",
        /// Refused: see the reasons.
        Refused => "refused",
    }
}

labels! {
    /// What came of a renewal.
    pub enum Renewal {
        /// A new certificate went out.
        Renewed => "renewed",
        /// The signer has not signed yet.
        Pending => "pending",
        /// Refused: see the reasons.
        Refused => "refused",
    }
}

labels! {
    /// What came of a report.
    pub enum Reported {
        /// It was taken.
        Taken => "taken",
        /// Refused: see the reasons.
        Refused => "refused",
    }
}

/// The counters.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests for a first certificate.
    pub enrolments: By<Enrolment>,
    /// Requests for a further one.
    pub renewals: By<Renewal>,
    /// Reports.
    pub reports: By<Reported>,
    /// Why any of these, or what is none of these, was refused.
    pub refusals: By<Reason>,
}
