//! The pass over a Cluster with an API server that records requests.

use std::sync::{Arc, Mutex};

use bedplate_api::cluster::full::Cluster;
use bedplate_bootstrap::certificate::CertificatePurpose;
use bedplate_bootstrap::certificate::make::authority;
use bedplate_engine::FieldManager;
use bedplate_engine::events::News;
use bedplate_engine::watches::{GroupKind, Watches};
use bedplate_engine::write::WriteError;
use bedplate_process::lease::Tenure;
use bedplate_workload::Networks;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::client::Body;
use rcgen::KeyPair;
use serde_json::{Value, json};

use super::observed::KubeconfigSecret;
use super::reconcile;
use crate::core::api_server::{ApiServer, CORE};
use crate::core::context::World;
use crate::core::machine::memory::Memory;
use crate::core::watch::stores;
use crate::core::workload::Workloads;
use crate::metrics::Counters;
use crate::scope::Scope;

type Requests = Arc<Mutex<Vec<(String, Value)>>>;

/// A client whose API server records writes. `answer`: code and object for method and path of a request.
fn client(answer: impl Fn(&str) -> Option<Value> + Send + Sync + 'static) -> (Client, Requests) {
    let (requests, answer) = (Requests::default(), Arc::new(answer));
    let recorded = requests.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (recorded, answer) = (recorded.clone(), answer.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let line = format!("{} {}", head.method, head.uri.path());
            let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
            if head.method != "GET" {
                recorded.lock().unwrap().push((line.clone(), sent.clone()));
            }
            let given = if head.method == "GET" { answer(&line) } else { Some(sent) };
            let (code, answer) = given.map_or_else(
                || (404, json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "" })),
                |answer| (200, answer),
            );
            let response = http::Response::builder().status(code);
            Ok::<_, kube::Error>(response.body(Body::from(answer.to_string().into_bytes())).unwrap())
        }
    });
    (Client::new(service, "default"), requests)
}

fn world(client: Client, tenure: Tenure) -> Arc<World> {
    let manager = FieldManager::new("bedplate-cluster-core");
    Arc::new(World {
        workloads: Workloads::new(client.clone(), manager, Networks::default(), Scope::default()),
        lists: crate::core::live::MachineLists::default(),
        memory: Memory::default(),
        client,
        manager,
        scope: Scope::default(),
        stores: stores().0,
        watches: Watches::default(),
        tenure,
        counters: Counters::default(),
        news: News::channel().0,
    })
}

fn cluster(metadata: &Value) -> Arc<Cluster> {
    let mut object = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": { "name": "c1", "namespace": "ns", "uid": "u1", "resourceVersion": "7", "generation": 1 },
        "spec": { "controlPlaneEndpoint": { "host": "h", "port": 6443 } } });
    for (key, value) in metadata.as_object().unwrap() {
        object["metadata"][key] = value.clone();
    }
    Arc::new(serde_json::from_value(object).unwrap())
}

fn lines(requests: &Requests) -> Vec<String> {
    requests.lock().unwrap().iter().map(|(line, _)| line.clone()).collect()
}

const CLUSTER: &str = "PATCH /apis/cluster.x-k8s.io/v1beta2/namespaces/ns/clusters/c1";
const STATUS: &str = "PATCH /apis/cluster.x-k8s.io/v1beta2/namespaces/ns/clusters/c1/status";
const FINALIZER: &str = "cluster.cluster.x-k8s.io";

#[tokio::test]
async fn k5_finalizer_is_the_first_and_only_write() {
    let (client, requests) = client(|_| None);
    reconcile(cluster(&json!({})), world(client, Tenure::always())).await.unwrap();
    assert_eq!(lines(&requests), [CLUSTER]);
    let sent = requests.lock().unwrap()[0].1["metadata"].clone();
    assert_eq!(sent, json!({ "uid": "u1", "resourceVersion": "7", "finalizers": [FINALIZER] }));
}

#[tokio::test]
async fn k5_process_that_does_not_lead_writes_nothing() {
    let (client, requests) = client(|_| None);
    let tenure = Tenure::new(tokio::sync::watch::channel(None).1);
    let result = reconcile(cluster(&json!({})), world(client, tenure)).await;
    assert!(matches!(result, Err(WriteError::Deposed)), "{result:?}");
    assert!(lines(&requests).is_empty());
}

#[tokio::test]
async fn k7_kubeconfig_is_made_from_the_authority_that_was_read() {
    let (key, now) = (KeyPair::generate().unwrap(), Timestamp::now());
    let made = authority(CertificatePurpose::ClusterAuthority, &key, &rand::random(), None, now).unwrap();
    let data = made.data().into_iter().map(|(key, value)| (key, ByteString(value))).collect();
    let secret = json!(Secret { data: Some(data), ..Secret::default() });
    let path = "GET /api/v1/namespaces/ns/secrets/c1-ca";
    let (client, requests) = client(move |line| (line == path).then(|| secret.clone()));
    reconcile(cluster(&json!({ "finalizers": [FINALIZER] })), world(client, Tenure::always())).await.unwrap();
    assert_eq!(lines(&requests), ["POST /api/v1/namespaces/ns/secrets", STATUS]);
    let sent = requests.lock().unwrap()[0].1.clone();
    assert_eq!(
        (&sent["type"], &sent["metadata"]["name"]),
        (&json!("cluster.x-k8s.io/secret"), &json!("c1-kubeconfig"))
    );
}

#[tokio::test]
async fn k7_missing_authority_is_read_again_after_30_seconds() {
    let (client, requests) = client(|_| None);
    let cluster = cluster(&json!({ "finalizers": [FINALIZER] }));
    let again = reconcile(cluster, world(client, Tenure::always())).await.unwrap();
    assert_eq!(again, Some(std::time::Duration::from_secs(30)));
    assert_eq!(lines(&requests), [STATUS]);
}

/// A Cluster that is being deleted, on an API server in memory.
fn deleting() -> ApiServer {
    let server = ApiServer::default();
    let deleting = json!({ "name": "c1", "namespace": "ns", "uid": "u1", "finalizers": [FINALIZER],
        "deletionTimestamp": "2026-01-01T00:00:00Z" });
    let object = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": deleting, "spec": {} });
    server.put(&format!("{CORE}/clusters/c1"), object);
    server
}

fn put(server: &ApiServer, (kind, name, cluster): (&str, &str, &str), metadata: &Value) {
    let mut object = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind,
        "metadata": { "name": name, "namespace": "ns", "uid": name, "finalizers": ["f"] },
        "spec": { "clusterName": cluster } });
    let template = json!({ "clusterName": cluster, "bootstrap": {},
        "infrastructureRef": { "apiGroup": "g.io", "kind": "Infra", "name": name } });
    match kind {
        "Machine" => object["spec"] = template,
        _ => object["spec"]["template"] = json!({ "spec": template }),
    }
    for (key, value) in metadata.as_object().unwrap() {
        object["metadata"][key] = value.clone();
    }
    server.put(&format!("{CORE}/{}s/{name}", kind.to_lowercase()), object);
}

/// Reconciles the Cluster, and returns the writes that are not its status.
async fn writes(server: &ApiServer, world: Arc<World>) -> Vec<String> {
    let cluster = serde_json::from_value(server.get(&format!("{CORE}/clusters/c1")).unwrap()).unwrap();
    reconcile(Arc::new(cluster), world).await.unwrap();
    let lines = server.lines().into_iter().filter(|line| !line.ends_with("/status"));
    lines.map(|line| line.replace(CORE, "")).collect()
}

/// Any user of the namespace can set the label and an owner.
#[tokio::test]
async fn k5_object_of_another_cluster_with_the_label_is_not_deleted() {
    let label = json!({ "labels": { "cluster.x-k8s.io/cluster-name": "c1" } });
    let owner = json!({ "labels": label["labels"], "ownerReferences": [
        { "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c2", "uid": "u2" }] });
    for kind in ["MachineDeployment", "MachineSet", "Machine", "MachinePool"] {
        let server = deleting();
        put(&server, (kind, "forged", "c2"), &label);
        put(&server, (kind, "owned", "c1"), &owner);
        assert_eq!(
            writes(&server, server.world()).await,
            ["PATCH /clusters/c1"],
            "{kind}: only the finalizer"
        );
    }
}

#[tokio::test]
async fn k5_object_without_the_label_is_deleted_and_waited_for() {
    for kind in ["MachineDeployment", "MachineSet", "Machine"] {
        let server = deleting();
        let stale = server.world();
        put(&server, (kind, "bare", "c1"), &json!({}));
        let path = format!("/{}s/bare", kind.to_lowercase());
        assert_eq!(writes(&server, stale).await, [""; 0], "{kind}: the store does not show it yet");
        assert_eq!(writes(&server, server.world()).await, [format!("DELETE {path}")]);
        server.remove(&format!("{CORE}{path}"));
        assert_eq!(writes(&server, server.world()).await, ["PATCH /clusters/c1"]);
    }
}

#[tokio::test]
async fn k5_machine_pool_without_the_label_is_waited_for() {
    let server = deleting();
    put(&server, ("MachinePool", "pool", "c1"), &json!({}));
    assert_eq!(writes(&server, server.world()).await, [""; 0]);
}

/// Returns status, reason and message of a condition of the Cluster.
fn condition(server: &ApiServer, type_: &str) -> (String, String, String) {
    let cluster = server.get(&format!("{CORE}/clusters/c1")).unwrap();
    let conditions = cluster["status"]["conditions"].as_array().unwrap().clone();
    let found = conditions.iter().find(|condition| condition["type"] == type_).unwrap().clone();
    let text = |field: &str| found[field].as_str().unwrap().to_owned();
    (text("status"), text("reason"), text("message"))
}

/// A Cluster that is not deleted, on an API server in memory.
fn live(finalizers: &[&str], spec: &Value) -> ApiServer {
    let server = ApiServer::default();
    let metadata = json!({ "name": "c1", "namespace": "ns", "uid": "u1", "finalizers": finalizers });
    let object = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": metadata, "spec": spec });
    server.put(&format!("{CORE}/clusters/c1"), object);
    server
}

#[tokio::test]
async fn k1_core_kind_is_refused_as_a_component_by_name() {
    for kind in ["Cluster", "Machine", "MachineSet"] {
        let reference = json!({ "apiGroup": "cluster.x-k8s.io", "kind": kind, "name": "x" });
        let server =
            live(&[FINALIZER], &json!({ "infrastructureRef": reference, "controlPlaneRef": reference }));
        let world = server.world();
        assert_eq!(writes(&server, world.clone()).await, [""; 0]);
        for type_ in ["InfrastructureReady", "ControlPlaneAvailable"] {
            let (status, reason, message) = condition(&server, type_);
            assert_eq!((status.as_str(), reason.as_str()), ("Unknown", "InternalError"), "{kind}");
            let words = format!("{kind} is a kind of cluster.x-k8s.io");
            assert!(message.contains(&words), "{message}");
        }
        let named = GroupKind::new("cluster.x-k8s.io", kind);
        assert!(world.watches.users(&named).is_empty(), "the kind is not watched");
    }
}

#[tokio::test]
async fn k5_refused_finalizer_is_shown_once() {
    let server = live(&[], &json!({}));
    server.reject(&format!("PATCH {CORE}/clusters/c1"));
    for expected in [2, 1] {
        let cluster = serde_json::from_value(server.get(&format!("{CORE}/clusters/c1")).unwrap()).unwrap();
        let done = reconcile(Arc::new(cluster), server.world()).await;
        assert!(done.is_err_and(|error| error.refusal().is_some()), "it is tried again");
        assert_eq!(server.lines().len(), expected, "the status is written once");
    }
    let (status, reason, message) = condition(&server, "Deleting");
    assert_eq!((status.as_str(), reason.as_str()), ("Unknown", "InternalError"));
    assert!(message.starts_with("finalizer cannot be added: Invalid; "), "{message}");
    let status = server.get(&format!("{CORE}/clusters/c1")).unwrap()["status"].clone();
    assert!(status["initialization"].is_null(), "nothing starts before the finalizer: {status}");
}

#[tokio::test]
async fn k5_refused_removal_of_the_finalizer_is_shown() {
    let server = deleting();
    server.reject(&format!("PATCH {CORE}/clusters/c1"));
    let cluster = serde_json::from_value(server.get(&format!("{CORE}/clusters/c1")).unwrap()).unwrap();
    assert!(reconcile(Arc::new(cluster), server.world()).await.is_err());
    let (status, reason, message) = condition(&server, "Deleting");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "InternalError"));
    assert!(message.starts_with("finalizer cannot be removed: Invalid; "), "{message}");
}

/// Reconciles the Cluster, whose pass fails because of a refusal. Returns the number of writes.
async fn refused(server: &ApiServer) -> usize {
    let cluster = serde_json::from_value(server.get(&format!("{CORE}/clusters/c1")).unwrap()).unwrap();
    let done = reconcile(Arc::new(cluster), server.world()).await;
    assert!(done.is_err_and(|error| error.refusal().is_some()), "it is tried again");
    server.lines().len()
}

#[tokio::test]
async fn k8_refused_read_of_a_secret_is_shown_and_the_rest_continues() {
    for name in ["c1-kubeconfig", "c1-ca"] {
        let server = live(&[FINALIZER], &json!({ "controlPlaneEndpoint": { "host": "h", "port": 6443 } }));
        let read = |name: &str| format!("GET /api/v1/namespaces/ns/secrets/{name}");
        server.reject_as(&read("c1-kubeconfig"), (404, "NotFound"));
        server.reject_as(&read(name), (403, "Forbidden"));
        assert_eq!((refused(&server).await, refused(&server).await), (1, 0), "the status is written once");
        let (status, reason, message) = condition(&server, "RemoteConnectionProbe");
        assert_eq!((status.as_str(), reason.as_str()), ("False", "ProbeFailed"));
        assert_eq!(message, format!("Secret {name} cannot be read: 403: Forbidden; permit it"));
        assert_eq!(condition(&server, "InfrastructureReady").0, "True");
    }
}

#[tokio::test]
async fn k5_refused_read_of_machine_pools_holds_the_deletion() {
    let server = deleting();
    server.reject_as(&format!("GET {CORE}/machinepools"), (403, "Forbidden"));
    assert_eq!((refused(&server).await, refused(&server).await), (1, 0), "the status is written once");
    let (status, reason, message) = condition(&server, "Deleting");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "InternalError"));
    assert_eq!(message, "MachinePools cannot be read: 403: Forbidden; permit it");
}

/// Makes an authority, and a kubeconfig that is due for its renewal.
fn due() -> (Secret, Secret) {
    let (key, now) = (KeyPair::generate().unwrap(), "2025-01-01T00:00:00Z".parse().unwrap());
    let made = authority(CertificatePurpose::ClusterAuthority, &key, &rand::random(), None, now).unwrap();
    let data = made.data().into_iter().map(|(key, value)| (key, ByteString(value))).collect();
    let key = KeyPair::generate().unwrap();
    let due = super::secret::make(&cluster(&json!({})), &made, &key, &rand::random(), now);
    (Secret { data: Some(data), ..Secret::default() }, due.unwrap().unwrap())
}

#[tokio::test]
async fn k8_own_kubeconfig_is_renewed_and_that_of_a_user_stays() {
    let path = "/api/v1/namespaces/ns/secrets/c1-kubeconfig";
    let (ca, own) = due();
    let mut users = own.clone();
    users.metadata.annotations = None;
    for (secret, expected) in [(own, 1), (users, 0)] {
        let (ca, before) = (json!(ca), json!(secret));
        let (client, requests) = client(move |line| match line.strip_prefix("GET ") {
            Some("/api/v1/namespaces/ns/secrets/c1-ca") => Some(ca.clone()),
            Some(line) if line == path => Some(before.clone()),
            _ => None,
        });
        let world = world(client, Tenure::always());
        reconcile(cluster(&json!({ "finalizers": [FINALIZER] })), world).await.unwrap();
        let requests = requests.lock().unwrap();
        let sent: Vec<_> = requests.iter().filter(|(line, _)| line.ends_with(path)).collect();
        assert_eq!(sent.len(), expected, "{requests:?}");
        for (_, body) in sent {
            let mut renewed = secret.clone();
            renewed.data = serde_json::from_value(body["data"].clone()).unwrap();
            renewed.metadata.annotations =
                serde_json::from_value(body["metadata"]["annotations"].clone()).unwrap();
            let state = super::secret::kubeconfig(Some(&renewed), &cluster(&json!({})));
            let KubeconfigSecret::Made { renews_at } = state else { panic!("{state:?}") };
            assert!(renews_at > Timestamp::now(), "it is renewed once");
        }
    }
}
