//! Signer if standalone: pxed's own certificate authority.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::enrollment::{AGENT_USER_PREFIX, AGENTS_GROUP};
use bedplate_api::id::MachineName;
use bedplate_api::wire::KubernetesEndpoint;
use futures::future::BoxFuture;
use jiff::Timestamp;

use crate::enroll::authority::Authority;
use crate::enroll::csr::CertificateRequest;
use crate::enroll::signer::{KeyRecord, SignError, Signed, Signer};

/// Lifetime of a certificate.
const CERTIFICATE_LIFETIME: Duration = Duration::from_secs(90 * 86_400);

/// pxed's own authority.
pub(crate) struct LocalSigner {
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
        let name = format!("{AGENT_USER_PREFIX}{machine}");
        let key = &request.params.public_key;
        let groups = [AGENTS_GROUP, &request.key_id().group()];
        let signed = self.authority.client(key, (&name, uid), groups, Timestamp::now(), CERTIFICATE_LIFETIME);
        Box::pin(std::future::ready(signed.map(Signed::Certificate).map_err(SignError::Make)))
    }

    /// Only pxed verifies these certificates, and it records their keys.
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
