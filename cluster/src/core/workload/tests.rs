//! Requests to a workload cluster whose API server is in this process.

use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_rules::drain::{Evicted, Pod};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// A client of an API server that answers with a code and an object.
fn client(answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> Client {
    let answer = Arc::new(answer);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (code, body) = answer(&format!("{} {}", request.method(), request.uri()));
        async move {
            let response = http::Response::builder().status(code);
            Ok::<_, kube::Error>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
        }
    });
    Client::new(service, "default")
}

const MANAGER: FieldManager = FieldManager::new("bedplate-test");

fn remote(answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> Remote {
    Remote::new(Workload::new(client(answer)), MANAGER)
}

fn cluster() -> Cluster {
    serde_json::from_value(json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": { "namespace": "ns", "name": "c", "uid": "u" }, "spec": {} }))
    .unwrap()
}

fn list(number: usize, next: &str) -> Value {
    let node = |number| json!({ "metadata": { "name": format!("n{number}") }, "spec": { "providerID": format!("p://{number}") } });
    json!({ "kind": "NodeList", "apiVersion": "v1", "metadata": { "continue": next }, "items": [node(number)] })
}

fn secret() -> Value {
    json!({ "kind": "Secret", "apiVersion": "v1", "metadata": { "name": "c-kubeconfig" }, "data": { "value": "eA==" } })
}

/// Workload clusters with an API server that counts the lists of Nodes.
fn workloads(code: u16, has_secret: bool) -> (Workloads, Arc<AtomicUsize>) {
    let lists = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&lists);
    let workload = Workload::new(client(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        (code, list(1, ""))
    }));
    let management =
        client(
            move |_| {
                if has_secret { (200, secret()) } else { (404, json!({ "code": 404, "status": "Failure" })) }
            },
        );
    (Workloads::with(management, MANAGER, Box::new(move |_, _| Ok(workload.clone()))), lists)
}

#[tokio::test]
async fn m8_machines_of_a_cluster_share_one_list_of_nodes() {
    let (workloads, lists) = workloads(200, true);
    let cluster = cluster();
    for id in [Some("p://1"), Some("p://2"), None] {
        let seen = workloads.look(&cluster, id).await;
        assert_eq!(matches!(seen.node, NodeView::Found(_)), id == Some("p://1"));
        assert!(seen.connection.last_success.is_some() && seen.connection.failures == 0);
    }
    assert_eq!(lists.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn m8_failed_list_is_not_repeated_for_each_machine() {
    for (code, has_secret, requests) in [(500, true, 1), (200, false, 0)] {
        let (workloads, lists) = workloads(code, has_secret);
        for _ in 0..3 {
            let seen = workloads.look(&cluster(), Some("p://1")).await;
            assert_eq!((seen.node, seen.connection.failures), (NodeView::Unknown, 1));
        }
        assert_eq!(lists.load(Ordering::Relaxed), requests);
    }
}

#[tokio::test]
async fn m8_cluster_that_is_gone_is_forgotten() {
    let (workloads, lists) = workloads(200, true);
    workloads.look(&cluster(), None).await;
    workloads.forget(&cluster());
    assert!(workloads.clusters.lock().is_empty());
    workloads.look(&cluster(), None).await;
    assert_eq!(lists.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn m8_nodes_are_listed_page_by_page_up_to_a_limit() {
    let found =
        remote(|line| if line.contains("continue=2") { (200, list(2, "")) } else { (200, list(1, "2")) });
    let index = found.nodes().await.unwrap();
    for id in ["p://1", "p://2"] {
        assert!(matches!(index.get(Some(id)), NodeView::Found(_)), "{id}");
    }
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let endless = remote(move |_| (200, list(counted.fetch_add(1, Ordering::Relaxed), "x")));
    assert_eq!(endless.nodes().await.unwrap().get(Some("p://x")), NodeView::Unknown);
    assert_eq!(requests.load(Ordering::Relaxed), remote::MAX_PAGES);
}

#[tokio::test]
async fn m9_budget_holds_an_eviction_for_the_time_that_it_names() {
    let status = |causes: Value| {
        json!({ "kind": "Status", "status": "Failure", "reason": "TooManyRequests", "code": 429, "message": "secret",
            "details": { "retryAfterSeconds": 7, "causes": causes } })
    };
    let named = json!([{ "reason": "DisruptionBudget", "message": "The disruption budget web needs 2 healthy pods and has 2 currently" }]);
    for (causes, text) in [
        (named, "PodDisruptionBudget web does not allow the eviction"),
        (
            json!([{ "message": "The disruption budget Secret.Token holds it" }]),
            "API server does not allow the eviction now (HTTP status 429)",
        ),
    ] {
        let answer = status(causes);
        let remote = remote(move |line| {
            assert!(line.starts_with("POST /api/v1/namespaces/n/pods/p/eviction"), "{line}");
            (429, answer.clone())
        });
        let pod = Pod { namespace: "n".into(), name: "p".into(), uid: "u".into(), ..Pod::default() };
        let held = Evicted::Held { again: Some(7), why: text.to_owned() };
        assert_eq!(remote.evict(&pod, None).await, Ok(held));
    }
}

#[tokio::test]
async fn m9_eviction_of_a_pod_that_is_gone_is_done() {
    let pod = Pod { namespace: "n".into(), name: "p".into(), uid: "u".into(), ..Pod::default() };
    let status = |code: u16| json!({ "kind": "Status", "status": "Failure", "reason": "x", "code": code, "message": "secret" });
    for (code, expected) in [
        (404, Ok(Evicted::Gone)),
        (409, Ok(Evicted::Gone)),
        (403, Err("API server of the workload cluster refused the credential of the kubeconfig (HTTP status 403)".to_owned())),
    ] {
        let remote = remote(move |_| (code, status(code)));
        assert_eq!(remote.evict(&pod, None).await, expected);
    }
}
