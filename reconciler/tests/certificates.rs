//! Serving certificates of kubelets, from the request to what is written: which objects the controller asks for, and what they decide (Trust 5).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
mod server;

use std::sync::Arc;
use std::time::Duration;

use bedplate_engine::write::WriteError;
use bedplate_process::lease::Tenure;
use bedplate_reconciler::context::World;
use bedplate_reconciler::csr;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
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
    /// Returns a world whose API server answers for this cluster. `r` is the request that can be decided about.
    fn world(self, server: &Server) -> Arc<World> {
        let reported = json!([{ "type": "InternalIP", "address": OWN }]);
        // The agent says that it runs version 2, whatever was selected for it.
        let machine = server::machine(&json!({ "addresses": reported,
            "selected": { "name": "w", "version": 1, "source": "Reference" },
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
        server.world(&objects, Tenure::always(), answer)
    }

    /// Returns what is written of the request: `Approved` or `Denied` with the message; `Open` with the reason if it is left to a user.
    async fn decide(self) -> (String, String) {
        let server = Server::default();
        let world = self.world(&server);
        match csr::reconcile(Arc::new(object(&request())), world).await {
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
async fn trust_5_joined_control_plane_endpoint_gets_its_serving_certificate() {
    let (worker, control_plane) = ("Worker", "ControlPlane");
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

/// A cluster that leaves the request to a user: the API server's address is another one's.
fn undecided() -> Cluster {
    Cluster { versions: vec![version(1, "ControlPlane")], endpoint: "10.7.0.1", server: OWN }
}

/// The attack: a kubelet makes requests that are left to a user, each of which is read again for as long as it exists.
#[tokio::test(start_paused = true)]
async fn trust_5_services_are_read_once_in_ten_seconds_for_all_requests() {
    let server = Server::default();
    let world = undecided().world(&server);
    let reads = || {
        ["GET /api/v1/services", ENDPOINTS, CLUSTER_INFO]
            .map(|line| server.lines().iter().filter(|asked| *asked == line).count())
    };
    for (seconds, expected) in [(0, 1), (5, 1), (4, 1), (1, 2), (9, 2)] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        let (one, other) = (Arc::new(object(&request())), Arc::new(object(&request())));
        let (one, other) =
            tokio::join!(csr::reconcile(one, world.clone()), csr::reconcile(other, world.clone()));
        assert!(one.is_err() && other.is_err(), "{one:?} {other:?}");
        assert_eq!(reads(), [expected; 3], "after {seconds} s more");
    }
}

#[tokio::test]
async fn trust_5_older_open_requests_of_a_kubelet_are_not_read() {
    let server = Server::default();
    let world = undecided().world(&server);
    let made = |number: u32| {
        let mut made = request();
        made["metadata"]["name"] = json!(format!("r{number}"));
        made["metadata"]["creationTimestamp"] = json!(format!("2026-01-01T00:00:{number:02}Z"));
        object::<CertificateSigningRequest>(&made)
    };
    for number in 0..20 {
        world.stores.open().put(&made(number));
    }
    for number in 0..20 {
        let before = server.lines().len();
        let done = csr::reconcile(Arc::new(made(number)), world.clone()).await;
        let is_read = server.lines().len() > before;
        assert_eq!((is_read, done.is_err()), (number >= 16, number >= 16), "{number}: {done:?}");
    }
}
