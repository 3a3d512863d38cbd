//! Certificate request of the host's kubelet: made once under its name, then read until the cluster has answered.
//!
//! The agent asks as itself. Its policy lets it ask for its own Node alone (docs/design/rules.md, Trust 5). Called by `cluster`.

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

use super::error::{self, AskServerError, find};

const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const RESOURCE: (&str, &str) = ("certificates.k8s.io", "certificatesigningrequests");
/// API servers before 1.27 accept a kubelet's request only with these usages. Later ones accept them too.
const USAGES: [&str; 3] = ["digital signature", "key encipherment", "client auth"];
/// Requested lifetime of the certificate in seconds. The kubelet requests its own certificate within minutes;
/// a health gate may take hours.
const LIFETIME_SECONDS: i32 = 24 * 3600;

/// Answer to a certificate request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateAnswer {
    /// There is no certificate yet.
    Pending {
        /// True if the request is approved, and not signed yet.
        is_approved: bool,
    },
    /// The certificate with its chain (PEM).
    Issued(String),
    /// The request was denied, or the signer failed. It stays so.
    Refused(String),
}

/// Reads the request of this name, and creates it if it does not exist.
pub(super) async fn ask(
    client: &Client,
    name: &str,
    csr_pem: &str,
) -> Result<CertificateAnswer, AskServerError> {
    let what = format!("CertificateSigningRequest {name}");
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    if let Some(found) = find(what.clone(), RESOURCE, name, requests.get(name)).await? {
        return Ok(answer(&found));
    }
    match error::ask(what, requests.create(&PostParams::default(), &object(name, csr_pem))).await {
        Ok(made) => Ok(answer(&made)),
        // An earlier agent was killed after it had created the request.
        Err(error) if error.status() == Some(409) => Ok(CertificateAnswer::Pending { is_approved: false }),
        Err(error) => Err(error),
    }
}

fn object(name: &str, csr_pem: &str) -> CertificateSigningRequest {
    CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(csr_pem.as_bytes().to_vec()),
            signer_name: SIGNER.to_owned(),
            usages: Some(USAGES.map(str::to_owned).to_vec()),
            expiration_seconds: Some(LIFETIME_SECONDS),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    }
}

fn answer(request: &CertificateSigningRequest) -> CertificateAnswer {
    let status = request.status.as_ref();
    let mut is_approved = false;
    for condition in status.iter().flat_map(|status| status.conditions.iter().flatten()) {
        match condition.type_.as_str() {
            "Denied" | "Failed" => {
                let why = condition.message.as_deref().or(condition.reason.as_deref()).unwrap_or_default();
                return CertificateAnswer::Refused(format!("{}: {why}", condition.type_));
            }
            "Approved" => is_approved = true,
            _ => {}
        }
    }
    let certificate = status.and_then(|status| status.certificate.as_ref());
    let certificate = certificate.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
    match certificate.filter(|pem| !pem.is_empty()) {
        Some(pem) => CertificateAnswer::Issued(pem),
        None => CertificateAnswer::Pending { is_approved },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plane::fake::fake;

    fn request(status: &Value) -> Value {
        let spec = json!({ "request": "Q1NS", "signerName": SIGNER });
        json!({ "metadata": { "name": "r" }, "spec": spec, "status": status })
    }

    fn missing() -> Value {
        json!({ "status": "Failure", "reason": "NotFound", "code": 404,
            "details": { "group": RESOURCE.0, "kind": RESOURCE.1, "name": "r" } })
    }

    async fn asked(answers: Vec<(u16, Value)>) -> Result<CertificateAnswer, AskServerError> {
        ask(&fake(answers), "r", "CSR").await
    }

    #[tokio::test]
    async fn request_is_made_once_and_then_read() {
        let pending = CertificateAnswer::Pending { is_approved: false };
        assert_eq!(asked(vec![(404, missing()), (201, request(&json!({})))]).await.unwrap(), pending);
        assert_eq!(asked(vec![(200, request(&json!({})))]).await.unwrap(), pending, "nothing is created");
        let exists = json!({ "status": "Failure", "reason": "AlreadyExists", "code": 409 });
        assert_eq!(asked(vec![(404, missing()), (409, exists)]).await.unwrap(), pending);
        // A proxy's 404 does not prove that the request is missing, so none is created.
        let page = (404, json!({ "code": 404 }));
        assert!(asked(vec![page, (201, request(&json!({})))]).await.is_err());
    }

    #[tokio::test]
    async fn answer_is_read_from_conditions_and_certificate() {
        let approved = json!({ "type": "Approved", "status": "True" });
        let denied = json!({ "type": "Denied", "status": "True", "message": "not this Machine's" });
        let failed = json!({ "type": "Failed", "status": "True", "reason": "SignerValidationFailure" });
        for (status, expected) in [
            (json!({ "conditions": [approved] }), CertificateAnswer::Pending { is_approved: true }),
            (
                json!({ "conditions": [approved], "certificate": "Q0VSVA==" }),
                CertificateAnswer::Issued("CERT".to_owned()),
            ),
            (
                json!({ "conditions": [denied], "certificate": "Q0VSVA==" }),
                CertificateAnswer::Refused("Denied: not this Machine's".to_owned()),
            ),
            (
                json!({ "conditions": [approved, failed] }),
                CertificateAnswer::Refused("Failed: SignerValidationFailure".to_owned()),
            ),
        ] {
            assert_eq!(asked(vec![(200, request(&status))]).await.unwrap(), expected, "{status}");
        }
    }

    #[test]
    fn request_has_the_usages_that_every_release_takes_and_a_short_life() {
        let object = serde_json::to_value(object("r", "CSR")).unwrap();
        assert_eq!(object["spec"]["signerName"], SIGNER);
        assert_eq!(object["spec"]["usages"], json!(["digital signature", "key encipherment", "client auth"]));
        assert_eq!(object["spec"]["expirationSeconds"], 86_400);
    }
}
