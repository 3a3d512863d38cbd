//! The cluster as signer, against a stand-in for its API server.

use bedplate_api::id::Digest;
use bedplate_api::machine::EnrollmentStatus;

use super::*;
use crate::cluster::signer::ClusterSigner;
use crate::enroll::csr::{CertificateRequest, key_digest};
use crate::enroll::signer::{Expected, KeyRecord, SignError, Signed};

/// A stand-in for the API server: keeps one CertificateSigningRequest, signs it when it is approved.
#[derive(Default)]
struct Cluster {
    object: std::sync::Mutex<Option<serde_json::Value>>,
    creates: std::sync::atomic::AtomicU32,
    /// Answers nothing but this status.
    failing: std::sync::atomic::AtomicU16,
}

impl Cluster {
    fn answer(&self, method: &hyper::Method, path: &str, body: &[u8]) -> (u16, serde_json::Value) {
        let failure = |code: u16, reason: &str| {
            let status = serde_json::json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": reason, "reason": reason, "code": code,
            });
            (code, status)
        };
        match self.failing.load(std::sync::atomic::Ordering::Relaxed) {
            0 => {}
            code => return failure(code, "Failing"),
        }
        let mut object = self.object.lock().unwrap();
        if path.ends_with("/configmaps/extension-apiserver-authentication") {
            return (200, serde_json::json!({ "metadata": {}, "data": { "client-ca-file": "PEM" } }));
        }
        if path.ends_with("/machines/node1/status") {
            let sent: serde_json::Value = serde_json::from_slice(body).unwrap();
            let there = object.as_ref().map(|object| object["metadata"]["resourceVersion"].clone());
            let asked = &sent["metadata"]["resourceVersion"];
            if !asked.is_null() && there.as_ref() != Some(asked) {
                return failure(409, "Conflict");
            }
            let mut machine: serde_json::Value = serde_json::from_slice(body).unwrap();
            machine["spec"] = serde_json::json!({ "provider": "manual" });
            *object = Some(machine.clone());
            return (200, machine);
        }
        match *method {
            hyper::Method::POST if object.is_some() => failure(409, "AlreadyExists"),
            hyper::Method::POST => {
                self.creates.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                *object = Some(serde_json::from_slice(body).unwrap());
                (201, object.clone().unwrap())
            }
            hyper::Method::PUT if path.ends_with("/approval") => {
                let mut approved: serde_json::Value = serde_json::from_slice(body).unwrap();
                approved["status"]["certificate"] = "Q0VSVA==".into();
                *object = Some(approved.clone());
                (200, approved)
            }
            _ => object.clone().map_or_else(|| failure(404, "NotFound"), |object| (200, object)),
        }
    }

    /// Makes Machine node1 the object that is there.
    fn set_machine(&self, uid: &str, recorded: &EnrollmentStatus) {
        *self.object.lock().unwrap() = Some(serde_json::json!({ "apiVersion": "bedplate.dev/v1alpha1",
            "kind": "Machine", "metadata": { "name": "node1", "uid": uid, "resourceVersion": "7" },
            "spec": { "provider": "manual" }, "status": { "enrollment": recorded } }));
    }

    fn signer(self: &Arc<Self>) -> ClusterSigner {
        ClusterSigner::new(tokio::sync::watch::channel(Some(self.client())).1, Arc::default())
    }

    fn client(self: &Arc<Self>) -> kube::Client {
        let cluster = self.clone();
        let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
            let cluster = cluster.clone();
            async move {
                use http_body_util::BodyExt;
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let (status, value) = cluster.answer(&parts.method, parts.uri.path(), &body);
                let body = kube::client::Body::from(serde_json::to_vec(&value).unwrap());
                let response = hyper::Response::builder().status(status).body(body).unwrap();
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        kube::Client::new(service, "default")
    }
}

#[tokio::test]
async fn enrollment_is_pending_until_there_is_a_client() {
    let cluster = Arc::new(Cluster::default());
    let (connect, access) = tokio::sync::watch::channel(None);
    let signer = ClusterSigner::new(access, Arc::default());
    let key = KeyPair::generate().unwrap();
    let request = CertificateRequest::read(&csr(&key, Some("node1"))).unwrap();
    let machine = "node1".parse().unwrap();
    let sign = || signer.sign((&machine, "u1"), &request, "boot");
    let Signed::Pending(reason) = sign().await.unwrap() else { panic!("there is no client") };
    assert!(reason.contains("the cluster is not connected yet"), "{reason}");
    connect.send_replace(Some(cluster.client()));
    assert_eq!(sign().await.unwrap(), Signed::Certificate("CERT".to_owned()));
}

#[tokio::test]
async fn the_cluster_signs_what_pxed_made_and_approved_and_is_asked_once() {
    let cluster = Arc::new(Cluster::default());
    let signer = cluster.signer();
    let key = KeyPair::generate().unwrap();
    let request = CertificateRequest::read(&csr(&key, Some("node1"))).unwrap();
    let machine = "node1".parse().unwrap();
    for _ in 0..2 {
        let signed = signer.sign((&machine, "u1"), &request, "boot").await.unwrap();
        assert_eq!(signed, Signed::Certificate("CERT".to_owned()));
    }
    assert_eq!(cluster.creates.load(std::sync::atomic::Ordering::Relaxed), 1);
    let object = cluster.object.lock().unwrap().clone().unwrap();
    assert_eq!(object["spec"]["signerName"], "kubernetes.io/kube-apiserver-client");
    assert_eq!(object["spec"]["usages"], serde_json::json!(["client auth", "digital signature"]));
    assert_eq!(object["status"]["conditions"][0]["type"], "Approved");
    assert!(object["metadata"]["name"].as_str().unwrap().starts_with("bedplate-machine-node1-"));
    assert_eq!(signer.client_ca().await.unwrap(), "PEM");
}

#[tokio::test]
async fn cluster_knows_certificate_of_current_machine_before_its_agent() {
    let cluster = Arc::new(Cluster::default());
    let signer = cluster.signer();
    let machine = "node1".parse().unwrap();
    let certificate = with_group("x");
    let key_id = KeyId::of_fingerprint(digest("ab"));
    let enrollment = EnrollmentStatus {
        key_fingerprint: Some(digest("ab")),
        key_id: Some(key_id),
        ..EnrollmentStatus::default()
    };
    let key = KeyRecord { enrollment, expected: Expected::Former { key: None, heartbeat: None } };
    let put = async || signer.put_in_force((&machine, "u1"), key.clone(), certificate.pem()).await;
    let refused = put().await;
    assert!(matches!(refused, Err(SignError::Refused(_))), "it is gone: {refused:?}");
    cluster.set_machine("u0", &EnrollmentStatus::default());
    let refused = put().await;
    assert!(matches!(refused, Err(SignError::Refused(_))), "it was re-created: {refused:?}");
    cluster.set_machine("u1", &EnrollmentStatus::default());
    cluster.failing.store(503, std::sync::atomic::Ordering::Relaxed);
    let pending = put().await;
    assert!(matches!(pending, Ok(Signed::Pending(_))), "{pending:?}");
    cluster.failing.store(0, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(put().await.unwrap(), Signed::Certificate(certificate.pem()));
    let written = cluster.object.lock().unwrap().clone().unwrap();
    let certificate_digest = key_digest(certificate.der());
    let metadata = serde_json::json!({ "name": "node1", "uid": "u1", "resourceVersion": "7" });
    assert_eq!(written["metadata"], metadata, "written over what was read, and nothing later");
    let enrollment = serde_json::json!({ "enrollment": { "certificateFingerprint": certificate_digest,
        "keyFingerprint": digest("ab") } });
    assert_eq!(written["status"], enrollment, "no keyID: the signer dropped the group");
    let certificate = with_group(&key_id.group());
    signer.put_in_force((&machine, "u1"), key.clone(), certificate.pem()).await.unwrap();
    let written = cluster.object.lock().unwrap().clone().unwrap();
    assert_eq!(written["status"]["enrollment"]["keyID"], "ab".repeat(16));
}

/// A certificate with this group.
fn with_group(group: &str) -> rcgen::Certificate {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, group);
    params.self_signed(&KeyPair::generate().unwrap()).unwrap()
}

#[tokio::test]
async fn trust_3_renewal_is_checked_against_the_machine_of_the_api_server() {
    let cluster = Arc::new(Cluster::default());
    let signer = cluster.signer();
    let machine = "node1".parse().unwrap();
    let certificate = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap().cert;
    let renew_as = async |own: EnrollmentStatus, recorded: EnrollmentStatus| {
        cluster.set_machine("u1", &recorded);
        let key = KeyRecord { enrollment: own, expected: Expected::Earlier };
        signer.put_in_force((&machine, "u1"), key, certificate.pem()).await
    };
    let renew = async |recorded| renew_as(enrollment("ab", 100), recorded).await;
    for recorded in [enrollment("ab", 100), enrollment("cd", 99), EnrollmentStatus::default()] {
        let renewed = renew(recorded.clone()).await;
        assert!(matches!(renewed, Ok(Signed::Certificate(_))), "{recorded:?}: {renewed:?}");
        let written = cluster.object.lock().unwrap().clone().unwrap();
        assert_eq!(
            written["metadata"]["resourceVersion"], "7",
            "written over what was read, and nothing later"
        );
    }
    let replaced = renew(enrollment("cd", 101)).await;
    assert!(matches!(replaced, Err(SignError::Replaced(_))), "{replaced:?}");
    // Numbers count, whatever the clocks of two pxed say.
    let numbered = |generation, key, second| EnrollmentStatus {
        generation: Some(generation),
        ..enrollment(key, second)
    };
    let replaced = renew_as(numbered(1, "ab", 300), numbered(2, "cd", 180)).await;
    assert!(matches!(replaced, Err(SignError::Replaced(_))), "{replaced:?}");
    let renewed = renew_as(numbered(2, "ab", 180), numbered(1, "cd", 300)).await;
    assert!(matches!(renewed, Ok(Signed::Certificate(_))), "{renewed:?}");
}

#[tokio::test]
async fn anothers_request_under_the_same_name_is_never_approved() {
    let cluster = Arc::new(Cluster::default());
    let signer = cluster.signer();
    let key = KeyPair::generate().unwrap();
    *cluster.object.lock().unwrap() = Some(serde_json::json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": "x" },
        "spec": { "request": "ZXZpbA==", "signerName": "kubernetes.io/kube-apiserver-client", "usages": [] },
    }));
    let request = CertificateRequest::read(&csr(&key, Some("node1"))).unwrap();
    let result = signer.sign((&"node1".parse().unwrap(), "u1"), &request, "boot").await;
    assert!(matches!(result, Err(SignError::Refused(_))), "{result:?}");
    assert!(cluster.object.lock().unwrap().as_ref().unwrap().get("status").is_none());
}

#[tokio::test]
async fn a_cluster_that_is_away_is_waited_for_and_one_that_forbids_is_an_error() {
    let cluster = Arc::new(Cluster::default());
    let signer = cluster.signer();
    let key = KeyPair::generate().unwrap();
    let request = CertificateRequest::read(&csr(&key, Some("node1"))).unwrap();
    let machine = "node1".parse().unwrap();
    for (code, waits) in [(503, true), (429, true), (403, false)] {
        cluster.failing.store(code, std::sync::atomic::Ordering::Relaxed);
        let signed = signer.sign((&machine, "u1"), &request, "boot").await;
        assert_eq!(matches!(signed, Ok(Signed::Pending(_))), waits, "{code}: {signed:?}");
        assert_eq!(matches!(signed, Err(SignError::Cluster(_))), !waits, "{code}: {signed:?}");
    }
    cluster.failing.store(0, std::sync::atomic::Ordering::Relaxed);
    assert!(matches!(signer.sign((&machine, "u1"), &request, "boot").await, Ok(Signed::Certificate(_))));
}

fn digest(byte: &str) -> Digest {
    format!("sha256:{}", byte.repeat(32)).parse().unwrap()
}

fn enrollment(key: &str, second: i64) -> EnrollmentStatus {
    let time = Timestamp::from_second(second).unwrap();
    EnrollmentStatus {
        key_fingerprint: Some(digest(key)),
        key_time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time)),
        ..EnrollmentStatus::default()
    }
}

#[tokio::test]
async fn trust_6_enrollment_is_checked_against_the_machine_of_the_api_server() {
    let cluster = Arc::new(Cluster::default());
    let signer = cluster.signer();
    let machine = "node1".parse().unwrap();
    let certificate = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap().cert;
    let enroll = async |recorded: EnrollmentStatus| {
        cluster.set_machine("u1", &recorded);
        let expected = Expected::Former { key: Some(digest("cd")), heartbeat: None };
        let key = KeyRecord { enrollment: enrollment("ab", 100), expected };
        signer.put_in_force((&machine, "u1"), key, certificate.pem()).await
    };
    // The key that was checked, with any time; the Machine's own key; none.
    for recorded in [enrollment("cd", 900), enrollment("ab", 100), EnrollmentStatus::default()] {
        let enrolled = enroll(recorded.clone()).await;
        assert!(matches!(enrolled, Ok(Signed::Certificate(_))), "{recorded:?}: {enrolled:?}");
        let written = cluster.object.lock().unwrap().clone().unwrap();
        assert_eq!(written["metadata"]["resourceVersion"], "7");
    }
    let meanwhile = enroll(enrollment("ef", 1)).await;
    assert!(matches!(meanwhile, Ok(Signed::Pending(_))), "another pxed was faster: {meanwhile:?}");
    let there = cluster.object.lock().unwrap().clone().unwrap();
    assert_eq!(there["status"]["enrollment"]["keyFingerprint"], serde_json::json!(digest("ef")));
}

#[tokio::test]
async fn trust_6_a_heartbeat_that_pxed_has_not_seen_keeps_a_new_key_out() {
    let cluster = Arc::new(Cluster::default());
    let signer = cluster.signer();
    let machine = "node1".parse().unwrap();
    let certificate = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap().cert;
    let time = |second| {
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::from_second(second).unwrap())
    };
    for (seen, is_enrolled) in [(Some(Some(time(900))), true), (None, true), (Some(Some(time(600))), false)] {
        cluster.set_machine("u1", &enrollment("cd", 100));
        if let Some(machine) = cluster.object.lock().unwrap().as_mut() {
            machine["status"]["agent"] = serde_json::json!({ "lastHeartbeatTime": time(900) });
        }
        let expected = Expected::Former { key: Some(digest("cd")), heartbeat: seen.clone() };
        let key = KeyRecord { enrollment: enrollment("ab", 100), expected };
        let put = signer.put_in_force((&machine, "u1"), key, certificate.pem()).await.unwrap();
        assert_eq!(matches!(put, Signed::Certificate(_)), is_enrolled, "{seen:?}: {put:?}");
    }
}
