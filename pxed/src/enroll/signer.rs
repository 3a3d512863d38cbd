//! Signer of agents' certificates: pxed's own authority (`standalone::signer`), or the cluster (`cluster::signer`).

use bedplate_api::id::{Digest, MachineName};
use bedplate_api::machine::{EnrollmentStatus, Time};
use bedplate_api::wire::KubernetesEndpoint;
use futures::future::BoxFuture;
use thiserror::Error;

use super::csr::CertificateRequest;

/// Answer of a signer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signed {
    /// The certificate (PEM).
    Certificate(String),
    /// Not signed yet: the pending step, for users. The same request must be repeated.
    Pending(String),
}

/// Record of a key for the status of its Machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// The record, without the certificate.
    pub enrollment: EnrollmentStatus,
    /// Key that the status must name when the record is written.
    pub expected: Expected,
}

/// Key that the status must name before a record is written into it. Each may be the record's own key, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// An enrollment: what it named when the new one was admitted.
    Former {
        /// The key, as 64 hex digits.
        key: Option<Digest>,
        /// The heartbeat by which that key was found silent; none: the decision did not depend on it.
        heartbeat: Option<Option<Time>>,
    },
    /// A renewal: a key that was enrolled before. That is the status of an API server which was restored from a backup.
    Earlier,
}

/// Reason why there will be no certificate.
#[derive(Debug, Error)]
pub enum SignError {
    /// The certificate cannot be made.
    #[error("the certificate cannot be created")]
    Make(#[source] rcgen::Error),
    /// The API server did not answer as it should.
    #[error("the signer of the cluster is unavailable")]
    Cluster(#[source] Box<kube::Error>),
    /// Another key is in force.
    #[error("another key is in force for Machine {0}")]
    Replaced(MachineName),
    /// The cluster refused.
    #[error("the cluster refused the certificate: {0}")]
    Refused(String),
}

/// Signs requests that were checked before.
pub trait Signer: Send + Sync + 'static {
    /// Signs the request of a Machine of this name and UID. `purpose` distinguishes this signing from a later one for
    /// the same key; a repeated call with the same purpose continues.
    fn sign<'a>(
        &'a self,
        machine: (&'a MachineName, &'a str),
        request: &'a CertificateRequest,
        purpose: &'a str,
    ) -> BoxFuture<'a, Result<Signed, SignError>>;

    /// Puts this certificate (PEM) and the record of its key in force before the agent gets the certificate. Repeated like `sign`.
    fn put_in_force<'a>(
        &'a self,
        machine: (&'a MachineName, &'a str),
        key: KeyRecord,
        certificate: String,
    ) -> BoxFuture<'a, Result<Signed, SignError>>;

    /// Returns true if the subject of the request is used unchanged.
    fn needs_whole_subject(&self) -> bool;

    /// The API server that the certificate is good for.
    fn kubernetes(&self) -> Option<KubernetesEndpoint>;
}
