//! Serving certificates of kubelets, from the request to what is written: which objects the controller asks for, and what they decide (Trust 5).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
mod server;

use std::sync::Arc;

use bedplate_lease::Tenure;
use bedplate_reconciler::request;
use bedplate_reconciler::write::WriteError;
use k8s_openapi::ByteString;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::{Value, json};

use self::server::{Asked, Objects, Server, body, object, refusal};

const APPROVAL: &str = "PUT /apis/certificates.k8s.io/v1/certificatesigningrequests/r/approval";
const ENDPOINTS: &str = "GET /apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
const CLUSTER_INFO: &str = "GET /api/v1/namespaces/kube-public/configmaps/cluster-info";
const OWN: &str = "10.7.0.12";

/// The request of the kubelet of Node `a` for its name and [`OWN`].
fn request() -> Value {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, "system:node:a");
    params.subject_alt_names =
        vec![SanType::DnsName("a".try_into().unwrap()), SanType::IpAddress(OWN.parse().unwrap())];
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    json!({ "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": { "name": "r", "uid": "r", "resourceVersion": "3" },
        "spec": { "request": ByteString(pem.into()), "signerName": "kubernetes.io/kubelet-serving",
            "username": "system:node:a", "groups": ["system:nodes"], "usages": ["digital signature", "server auth"] } })
}

/// A version of `w` with this role.
fn version(number: u32, role: &str) -> Value {
    let mut version = server::version(number, &json!({}));
    version["spec"]["template"]["kubernetes"]["role"] = json!(role);
    version
}

/// A cluster whose API server has this endpoint, and another name or address in kubeadm's public kubeconfig.
struct Cluster {
    versions: Vec<Value>,
    endpoint: &'static str,
    server: &'static str,
}

impl Cluster {
    /// Returns what is written of the request: `Approved` or `Denied` with the message; `Open` with the reason if it is left to a user.
    async fn decide(self) -> (String, String) {
        let reported = json!([{ "type": "InternalIP", "address": OWN }]);
        // The agent says that it runs version 2, whatever was selected for it.
        let machine = server::machine(&json!({ "addresses": reported,
            "selected": { "name": "w", "version": 1, "by": "Reference" },
            "applied": { "name": "w", "version": 2, "slot": "a" } }));
        let objects =
            Objects { versions: self.versions, machines: vec![machine.clone()], ..Objects::default() };
        let kubeconfig =
            format!("clusters: [{{name: c, cluster: {{server: \"https://{}:6443\"}}}}]\n", self.server);
        let answer = move |asked: &Asked| match asked.line.as_str() {
            "GET /machines/a" => (200, machine.clone()),
            "GET /api/v1/nodes/a" => {
                (200, json!({ "metadata": { "name": "a" }, "spec": { "providerID": "bedplate://a" } }))
            }
            ENDPOINTS => (
                200,
                json!({ "metadata": {}, "addressType": "IPv4", "endpoints": [{ "addresses": [self.endpoint] }] }),
            ),
            CLUSTER_INFO => (200, json!({ "metadata": {}, "data": { "kubeconfig": kubeconfig } })),
            "GET /api/v1/services" => (200, json!({ "metadata": {}, "items": [] })),
            APPROVAL => (200, asked.body.clone()),
            _ => refusal(404, "not there"),
        };
        let server = Server::default();
        let world = server.world(&objects, Tenure::always(), answer);
        match request::reconcile(Arc::new(object(&request())), world).await {
            Ok(_) => {
                let written = body(&server.asked(), APPROVAL)["status"]["conditions"][0].clone();
                let text = |key: &str| written[key].as_str().unwrap().to_owned();
                (text("type"), text("message"))
            }
            Err(WriteError::Later { why, .. }) => ("Open".to_owned(), why),
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn trust_5_joined_control_plane_gets_its_serving_certificate_although_it_is_an_endpoint() {
    let (worker, control_plane) = ("worker", "controlPlane");
    for (roles, endpoint, server, verdict, words) in [
        (vec![control_plane], OWN, "api.example", "Approved", ""),
        // The first control plane of a cluster without a controlPlaneEndpoint.
        (vec![control_plane], OWN, OWN, "Approved", ""),
        // The attack: the agent of a worker reports the address, and that it runs a control plane's version.
        (vec![worker, control_plane], OWN, "api.example", "Denied", "10.7.0.12 belongs to the API server"),
        (vec![worker], "10.7.0.1", OWN, "Denied", "10.7.0.12 belongs to the API server"),
        // An address of a load balancer, or its API server does not run yet: read again later.
        (vec![control_plane], "10.7.0.1", OWN, "Open", "10.7.0.12 is also claimed by the API server"),
        // The selected version is not known, so nothing is certain.
        (vec![], OWN, "api.example", "Open", "10.7.0.12 is also claimed by the API server"),
    ] {
        let versions = (1..).zip(&roles).map(|(number, role)| version(number, role)).collect();
        let (decided, why) = Cluster { versions, endpoint, server }.decide().await;
        assert_eq!(decided, verdict, "{roles:?} {endpoint} {server}: {why}");
        assert!(why.contains(words), "{why}");
    }
}
