//! The cluster as signer: a CertificateSigningRequest for `kubernetes.io/kube-apiserver-client`, made and approved by
//! pxed, whose certificate kube-controller-manager then signs.
//!
//! Idempotent: the object's name is made of Machine, key and purpose, so that a repeated request finds its own object.
//! Client certificates of agents are believed by the cluster's own client CA, which every cluster publishes in the
//! ConfigMap kube-system/extension-apiserver-authentication for exactly this use.

use std::time::Duration;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::id::{Digest, MachineName};
use bedplate_api::machine::{EnrollmentStatus, Machine};
use bedplate_api::reason::certificate::CertificateDecision;
use bedplate_api::wire::KubernetesEndpoint;
use bedplate_process::exit::chain;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource as _};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use sha2::{Digest as _, Sha256};

use super::client::{Access, Endpoint, connected};
use super::machines::newest;
use crate::boot::issued_seeds::hash;
use crate::enroll::csr::CertificateRequest;
use crate::enroll::identity::has_group;
use crate::enroll::in_force::EnrolledKey;
use crate::enroll::signer::{Expected, KeyRecord, SignError, Signed, Signer};

/// Field manager of `status.enrollment`. It is separate from that of pxed's other fields: of several pxed at one site
/// only one enrolled the host and knows the certificate. The applies of the others must not remove it.
const FIELD_MANAGER: &str = "pxed-enrollment";

const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Maximum time that one request waits for the certificate before it is answered with Pending.
const CERTIFICATE_WAIT: Duration = Duration::from_secs(4);

/// Interval between reads of the CSR.
const CSR_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum duration of one step against the API server. An agent waits 30 s for the answer, which takes two steps.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Cause of a step that took longer.
const NO_ANSWER: &str = "no answer in time";

/// Requested lifetime in seconds; the cluster may grant less.
const LIFETIME_SECONDS: i32 = 90 * 86_400;

/// The cluster. Its client may be connected later.
pub(crate) struct ClusterSigner {
    access: Access,
    endpoint: Endpoint,
}

impl ClusterSigner {
    /// Makes the signer. `endpoint`: the API server for agents.
    pub(crate) fn new(access: Access, endpoint: Endpoint) -> Self {
        Self { access, endpoint }
    }

    /// The certificate authority (PEM) by which the cluster believes client certificates.
    ///
    /// # Errors
    /// The authority cannot be read, with the reason for a log.
    pub(crate) async fn client_ca(&self) -> Result<String, String> {
        let maps: Api<ConfigMap> = Api::namespaced(connected(&self.access)?, "kube-system");
        let read = tokio::time::timeout(ANSWER_LIMIT, maps.get("extension-apiserver-authentication"));
        let map = read.await.map_err(|_| NO_ANSWER.to_owned())?.map_err(|e| chain(&e))?;
        map.data
            .and_then(|mut data| data.remove("client-ca-file"))
            .ok_or_else(|| "the ConfigMap has no client-ca-file".to_owned())
    }

    /// Writes the fingerprints of a certificate and its key into the status of its Machine. The policy of agents and every pxed of the
    /// site read them there.
    async fn write_fingerprint(
        client: Client,
        (machine, uid): (&MachineName, &str),
        key: KeyRecord,
        pem: String,
    ) -> Result<Signed, SignError> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| SignError::Refused(format!("the signer returned no certificate: {error}")))?;
        let fingerprint = Digest::from_sha256(Sha256::digest(&der).into());
        let version = match Self::version_for(&client, (machine, uid), &key).await {
            Err(SignError::Replaced(_)) if key.expected != Expected::Earlier => {
                return Ok(Signed::Pending(format!(
                    "another key was enrolled for Machine {machine} meanwhile, or the key in force was heard"
                )));
            }
            version => version?,
        };
        let enrollment = key.enrollment;
        // The provider of claims builds on the group, so that a signer which drops it must not be covered up.
        let key_id = enrollment.key_id.filter(|id| has_group(&der, &id.group()));
        let body = serde_json::json!({
            "apiVersion": Machine::api_version(&()),
            "kind": Machine::kind(&()),
            "metadata": { "name": machine, "uid": uid, "resourceVersion": version },
            "status": {
                "enrollment": EnrollmentStatus { certificate_fingerprint: Some(fingerprint), key_id, ..enrollment }
            },
        });
        let machines: Api<BoundedTimes<Machine>> = Api::all(client);
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        match machines.patch_status(machine.as_str(), &parameters, &Patch::Apply(&body)).await {
            Ok(_) => Ok(Signed::Certificate(pem)),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                Ok(Signed::Pending(format!("Machine {machine} was changed by another writer")))
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                Err(SignError::Refused(format!("Machine {machine} does not exist any more")))
            }
            Err(error) => Err(cluster(error)),
        }
    }

    /// The version of this very Machine in which no other key is in force than the expected one, as the API server has it now.
    async fn version_for(
        client: &Client,
        (machine, uid): (&MachineName, &str),
        key: &KeyRecord,
    ) -> Result<String, SignError> {
        let found = newest(client, machine, uid).await.map_err(cluster)?;
        let gone = || SignError::Refused(format!("Machine {machine} was deleted or re-created"));
        let found = found.ok_or_else(gone)?;
        let status = found.status.unwrap_or_default();
        let enrollment = status.enrollment.unwrap_or_default();
        let beats = status.agent.and_then(|agent| agent.last_heartbeat_time);
        let is_expected = match &key.expected {
            Expected::Former { key, heartbeat } => {
                enrollment.key_fingerprint == *key && heartbeat.as_ref().is_none_or(|seen| *seen == beats)
            }
            Expected::Earlier => EnrolledKey::of(Some(&enrollment))
                .zip(EnrolledKey::of(Some(&key.enrollment)))
                .is_some_and(|(recorded, own)| recorded.cmp_row(&own).is_lt()),
        };
        let is_other = enrollment.key_fingerprint.is_some()
            && enrollment.key_fingerprint != key.enrollment.key_fingerprint;
        if is_other && !is_expected {
            return Err(SignError::Replaced(machine.clone()));
        }
        Ok(found.metadata.resource_version.unwrap_or_default())
    }

    async fn ask(client: Client, name: &str, request: &CertificateRequest) -> Result<Signed, SignError> {
        let api: Api<CertificateSigningRequest> = Api::all(client);
        let object = match api.create(&PostParams::default(), &object(name, &request.pem)).await {
            Ok(object) => object,
            Err(kube::Error::Api(status)) if status.code == 409 => api.get(name).await.map_err(cluster)?,
            Err(error) => return Err(cluster(error)),
        };
        // An object of another writer under this name is never approved.
        if object.spec.request.0 != request.pem.as_bytes() || object.spec.signer_name != SIGNER {
            return Err(SignError::Refused(format!(
                "CertificateSigningRequest {name} belongs to another client"
            )));
        }
        if let Some(signed) = outcome(&object)? {
            return Ok(signed);
        }
        if !has_condition(&object, "Approved") {
            approve(&api, name, object).await?;
        }
        let deadline = tokio::time::Instant::now() + CERTIFICATE_WAIT;
        while tokio::time::Instant::now() < deadline {
            tokio::time::sleep(CSR_POLL_INTERVAL).await;
            if let Some(signed) = outcome(&api.get(name).await.map_err(cluster)?)? {
                return Ok(signed);
            }
        }
        Ok(Signed::Pending(format!(
            "CertificateSigningRequest {name} is approved; waiting for kube-controller-manager to sign it"
        )))
    }
}

impl Signer for ClusterSigner {
    fn sign<'a>(
        &'a self,
        (machine, _): (&'a MachineName, &'a str),
        request: &'a CertificateRequest,
        purpose: &'a str,
    ) -> BoxFuture<'a, Result<Signed, SignError>> {
        let what = hash(&format!("{}\n{purpose}\n{}", request.key, request.pem)).hex();
        let name = format!("bedplate-machine-{machine}-{}", what.get(..16).unwrap_or_default());
        Box::pin(async move {
            let client = match connected(&self.access) {
                Ok(client) => client,
                Err(why) => return Ok(Signed::Pending(why.to_owned())),
            };
            in_time(machine, Self::ask(client, &name, request)).await
        })
    }

    fn put_in_force<'a>(
        &'a self,
        (machine, uid): (&'a MachineName, &'a str),
        key: KeyRecord,
        certificate: String,
    ) -> BoxFuture<'a, Result<Signed, SignError>> {
        Box::pin(async move {
            let client = match connected(&self.access) {
                Ok(client) => client,
                Err(why) => return Ok(Signed::Pending(why.to_owned())),
            };
            in_time(machine, Self::write_fingerprint(client, (machine, uid), key, certificate)).await
        })
    }

    fn needs_whole_subject(&self) -> bool {
        true
    }

    fn kubernetes(&self) -> Option<KubernetesEndpoint> {
        self.endpoint.get().cloned()
    }
}

/// Waits for an answer of the API server. Without one the agent asks again.
async fn in_time(
    machine: &MachineName,
    asked: impl Future<Output = Result<Signed, SignError>>,
) -> Result<Signed, SignError> {
    let text = match tokio::time::timeout(ANSWER_LIMIT, asked).await {
        Ok(Err(SignError::Cluster(error))) if passes(&error) => chain(&error),
        Ok(outcome) => return outcome,
        Err(_) => NO_ANSWER.to_owned(),
    };
    tracing::warn!(%machine, error = text, "API server unavailable, certificate pending");
    Ok(Signed::Pending(format!("the cluster's API server does not answer: {text}")))
}

/// Returns true if a later attempt may succeed without a change.
fn passes(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::HyperError(_) | kube::Error::Service(_) => true,
        _ => false,
    }
}

fn cluster(error: kube::Error) -> SignError {
    SignError::Cluster(Box::new(error))
}

fn object(name: &str, pem: &str) -> CertificateSigningRequest {
    CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.as_bytes().to_vec()),
            signer_name: SIGNER.to_owned(),
            usages: Some(vec!["client auth".to_owned(), "digital signature".to_owned()]),
            expiration_seconds: Some(LIFETIME_SECONDS),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    }
}

fn has_condition(object: &CertificateSigningRequest, type_: &str) -> bool {
    let conditions = object.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|conditions| conditions.iter().any(|c| c.type_ == type_ && c.status == "True"))
}

/// The certificate or the refusal that the object holds; `None`: neither yet.
fn outcome(object: &CertificateSigningRequest) -> Result<Option<Signed>, SignError> {
    let status = object.status.clone().unwrap_or_default();
    for condition in status.conditions.iter().flatten() {
        if matches!(condition.type_.as_str(), "Denied" | "Failed") {
            let message = condition.message.clone().unwrap_or_default();
            return Err(SignError::Refused(format!("{}: {message}", condition.type_)));
        }
    }
    let certificate = status.certificate.map(|bytes| String::from_utf8(bytes.0));
    Ok(certificate.and_then(Result::ok).filter(|pem| !pem.is_empty()).map(Signed::Certificate))
}

async fn approve(
    api: &Api<CertificateSigningRequest>,
    name: &str,
    mut object: CertificateSigningRequest,
) -> Result<(), SignError> {
    let now = Time(Timestamp::now());
    let status = object.status.get_or_insert_default();
    status.conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
        type_: "Approved".to_owned(),
        status: "True".to_owned(),
        reason: Some(CertificateDecision::BedplateEnrollment.to_string()),
        message: Some("pxed checked the one-time token of the machine's boot".to_owned()),
        last_update_time: Some(now.clone()),
        last_transition_time: Some(now),
    });
    match api.replace_subresource("approval", name, &PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        // Approved meanwhile by another request for the same certificate.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(cluster(error)),
    }
}
