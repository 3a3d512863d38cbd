//! Who signs an agent's certificate: pxed's own authority (directory mode), or the cluster (`cluster`).

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::id::{Digest, MachineName};
use bedplate_api::machine::{EnrollmentStatus, Time};
use bedplate_api::wire::KubernetesEndpoint;
use futures::future::BoxFuture;
use jiff::Timestamp;
use thiserror::Error;

use super::authority::Authority;
use super::csr::CertificateRequest;
use super::{GROUP, USER_PREFIX};

/// How long a certificate of pxed's own authority is good.
pub const LIFETIME: Duration = Duration::from_secs(90 * 86_400);

/// What a signer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signed {
    /// The certificate (PEM).
    Certificate(String),
    /// Not yet: what is awaited, for a person. To be asked again with the same request.
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

/// Why there will be no certificate.
#[derive(Debug, Error)]
pub enum SignError {
    /// The certificate cannot be made.
    #[error("the certificate cannot be made")]
    Make(#[source] rcgen::Error),
    /// The API server did not answer as it should.
    #[error("the cluster's signer cannot be asked")]
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
    /// Signs the request of a Machine, which is its name and UID. `purpose` tells this signing from a later one for the same key; asked again with the
    /// same, it goes on where it was.
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

    /// Whether the request's subject is taken as it is.
    fn needs_whole_subject(&self) -> bool;

    /// The API server that the certificate is good for.
    fn kubernetes(&self) -> Option<KubernetesEndpoint>;
}

/// pxed's own authority.
pub struct LocalSigner {
    /// The authority.
    pub authority: Arc<Authority>,
}

impl Signer for LocalSigner {
    fn sign<'a>(
        &'a self,
        (machine, uid): (&'a MachineName, &'a str),
        request: &'a CertificateRequest,
        _purpose: &'a str,
    ) -> BoxFuture<'a, Result<Signed, SignError>> {
        let name = format!("{USER_PREFIX}{machine}");
        let key = &request.params.public_key;
        let signed = self.authority.client(key, (&name, uid), GROUP, Timestamp::now(), LIFETIME);
        Box::pin(std::future::ready(signed.map(Signed::Certificate).map_err(SignError::Make)))
    }

    /// pxed alone takes these, and remembers their keys.
    fn put_in_force<'a>(
        &'a self,
        _machine: (&'a MachineName, &'a str),
        _key: KeyRecord,
        certificate: String,
    ) -> BoxFuture<'a, Result<Signed, SignError>> {
        Box::pin(std::future::ready(Ok(Signed::Certificate(certificate))))
    }

    fn needs_whole_subject(&self) -> bool {
        false
    }

    fn kubernetes(&self) -> Option<KubernetesEndpoint> {
        None
    }
}
