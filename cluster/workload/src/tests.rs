//! Requests to servers that answer, lie, hang or are not the right ones.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::client::Body;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls_pki_types::PrivatePkcs8KeyDer;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{ClusterKey, ConnectError, Connections, Networks};

const TOKEN: &str = "hush-hush";

/// Authority in base64 of PEM, and the configuration of a server that it vouches for.
fn identity() -> (String, TlsAcceptor) {
    bedplate_process::tls::install_crypto_provider();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::from_ca_cert_pem(&authority, key).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![certificate.der().clone()], key).unwrap();
    (STANDARD.encode(authority), TlsAcceptor::from(Arc::new(config)))
}

/// Serves this answer to each request. Counts the connections.
async fn serve(acceptor: TlsAcceptor, status: u16, body: String) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            let (acceptor, body) = (acceptor.clone(), body.clone());
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut request = vec![0; 4096];
                while stream.read(&mut request).await.is_ok_and(|length| length > 0) {
                    let is_authorized =
                        String::from_utf8_lossy(&request).contains(&format!("Bearer {TOKEN}"));
                    let status = if is_authorized { status } else { 401 };
                    let head = format!(
                        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                        body.len()
                    );
                    if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, count)
}

fn kubeconfig(server: &str, authority: &str) -> Vec<u8> {
    let text = json!({ "current-context": "x",
        "clusters": [{ "name": "c", "cluster": { "server": server, "certificate-authority-data": authority } }],
        "users": [{ "name": "u", "user": { "token": TOKEN } }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }] });
    text.to_string().into_bytes()
}

fn key(name: &str) -> ClusterKey {
    ClusterKey { namespace: "n".to_owned(), name: name.to_owned(), uid: "u".to_owned() }
}

fn loopback() -> Connections {
    Connections::new("127.0.0.0/8,::1/128".parse().unwrap())
}

async fn ask(workload: &Workload) -> Result<Option<ConfigMap>, RequestError> {
    let get = async |client| Api::<ConfigMap>::namespaced(client, "kube-system").get("kubeadm-config").await;
    workload.ask(get).await
}

/// Asks a server that answers so.
async fn asked(status: u16, body: String) -> Result<Option<ConfigMap>, RequestError> {
    let (authority, acceptor) = identity();
    let (address, _) = serve(acceptor, status, body).await;
    let workload =
        loopback().connect(&key("c"), &kubeconfig(&format!("https://{address}"), &authority)).unwrap();
    ask(&workload).await
}

fn status(code: u16) -> String {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": TOKEN, "reason": TOKEN, "code": code })
        .to_string()
}

#[tokio::test]
async fn object_is_read_with_the_credential_of_the_kubeconfig() {
    let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "kubeadm-config" } });
    let found = asked(200, object.to_string()).await.unwrap().unwrap();
    assert_eq!(found.metadata.name.as_deref(), Some("kubeadm-config"));
}

#[tokio::test]
async fn trust_4_no_error_repeats_a_text_of_the_server() {
    for (code, expected) in [
        (404, Ok(None)),
        (401, Err(RequestError::Refused(401))),
        (403, Err(RequestError::Refused(403))),
        (409, Err(RequestError::Conflict)),
        (500, Err(RequestError::Failed(500))),
    ] {
        let found = asked(code, status(code)).await;
        assert_eq!(found, expected, "{code}");
        if let Err(error) = found {
            assert!(!error.to_string().contains(TOKEN) && !format!("{error:?}").contains(TOKEN), "{error:?}");
        }
    }
    assert_eq!(asked(200, format!("{{\"{TOKEN}")).await, Err(RequestError::Answer));
}

#[tokio::test]
async fn answer_above_the_limit_is_not_read() {
    let large =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "x".repeat(17 << 20) } });
    assert_eq!(asked(200, large.to_string()).await, Err(RequestError::Answer));
}

#[tokio::test]
async fn trust_4_server_on_this_host_is_not_dialed_by_default() {
    let (authority, acceptor) = identity();
    let (address, count) = serve(acceptor, 200, "[".to_owned()).await;
    let connections = Connections::new(Networks::default());
    let refused = connections.connect(&key("c"), &kubeconfig(&format!("https://{address}"), &authority));
    assert_eq!(refused.err(), Some(ConnectError::Network(address.ip())));
    // A name is resolved when it is dialed.
    let named = kubeconfig(&format!("https://localhost:{}", address.port()), &authority);
    let workload = connections.connect(&key("c"), &named).unwrap();
    assert_eq!(ask(&workload).await, Err(RequestError::Unreachable));
    assert_eq!(count.load(Ordering::Relaxed), 0, "nothing was dialed");
    let workload = loopback().connect(&key("c"), &named).unwrap();
    assert_eq!(ask(&workload).await, Err(RequestError::Answer));
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn server_of_another_authority_is_not_asked() {
    let ((_, acceptor), (other, _)) = (identity(), identity());
    let (address, _) = serve(acceptor, 200, "{}".to_owned()).await;
    let workload = loopback().connect(&key("c"), &kubeconfig(&format!("https://{address}"), &other)).unwrap();
    assert_eq!(ask(&workload).await, Err(RequestError::Unreachable));
}

/// A cluster that never answers.
fn hanging() -> (Workload, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let service = tower::service_fn(move |_: http::Request<Body>| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::pending::<Result<http::Response<Body>, kube::Error>>()
    });
    (Workload::new(Client::new(service, "default")), count)
}

#[tokio::test(start_paused = true)]
async fn hanging_cluster_has_few_requests_and_each_ends() {
    let (workload, count) = hanging();
    let start = tokio::time::Instant::now();
    let asking: Vec<_> = (0..20)
        .map(|_| {
            tokio::spawn({
                let workload = workload.clone();
                async move { ask(&workload).await }
            })
        })
        .collect();
    for asking in asking {
        assert_eq!(asking.await.unwrap(), Err(RequestError::Timeout));
    }
    assert_eq!(start.elapsed(), Duration::from_secs(10), "the wait for a turn counts");
    assert_eq!(count.load(Ordering::Relaxed), CONCURRENT_REQUESTS);
}

#[tokio::test(start_paused = true)]
async fn hanging_cluster_is_tried_by_one_request_after_each_pause() {
    let (workload, count) = hanging();
    let asks = async || (ask(&workload).await, count.load(Ordering::Relaxed));
    let start = tokio::time::Instant::now();
    assert_eq!(asks().await, (Err(RequestError::Timeout), 1));
    for _ in 0..10 {
        assert_eq!(asks().await, (Err(RequestError::Timeout), 1), "nothing is sent");
    }
    assert_eq!(start.elapsed(), Duration::from_secs(10), "the others did not wait");
    tokio::time::advance(Duration::from_secs(20)).await;
    let (one, other) = tokio::join!(ask(&workload), ask(&workload));
    assert_eq!((one, other), (Err(RequestError::Timeout), Err(RequestError::Timeout)));
    assert_eq!((count.load(Ordering::Relaxed), start.elapsed()), (2, Duration::from_secs(40)));
}

#[tokio::test(start_paused = true)]
async fn answer_of_any_kind_ends_the_pause() {
    let answers = Arc::new(AtomicUsize::new(0));
    let counted = answers.clone();
    let service = tower::service_fn(move |_: http::Request<Body>| {
        let number = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            if number == 0 {
                std::future::pending::<()>().await;
            }
            let answer = http::Response::builder().status(500).body(Body::from(status(500).into_bytes()));
            Ok::<_, kube::Error>(answer.unwrap())
        }
    });
    let workload = Workload::new(Client::new(service, "default"));
    assert_eq!(ask(&workload).await, Err(RequestError::Timeout));
    tokio::time::advance(Duration::from_secs(20)).await;
    for _ in 0..3 {
        assert_eq!(ask(&workload).await, Err(RequestError::Failed(500)));
    }
    assert_eq!(answers.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn client_is_made_again_when_the_kubeconfig_changes() {
    let ((first, _), (second, _)) = (identity(), identity());
    let connections = loopback();
    let connect = |text: &[u8]| connections.connect(&key("c"), text);
    let (a, b) = (kubeconfig("https://127.0.0.1:1", &first), kubeconfig("https://127.0.0.1:1", &second));
    let is_same = |one: &Workload, other: &Workload| Arc::ptr_eq(&one.turns, &other.turns);
    let (one, same, other) = (connect(&a).unwrap(), connect(&a).unwrap(), connect(&b).unwrap());
    assert!(is_same(&one, &same) && !is_same(&one, &other));
    // Another Cluster of the same name.
    let later = ClusterKey { uid: "v".to_owned(), ..key("c") };
    assert!(!is_same(&other, &connections.connect(&later, &b).unwrap()));
    assert!(connect(b"{}").is_err());
    assert_eq!(connections.len(), 1, "a kubeconfig that is not accepted ends the old client");
    connections.forget(&later);
    assert_eq!(connections.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn number_of_clients_is_bounded() {
    let (authority, _) = identity();
    let (connections, text) = (loopback(), kubeconfig("https://127.0.0.1:1", &authority));
    for number in 0..1030 {
        tokio::time::advance(Duration::from_millis(1)).await;
        connections.connect(&key(&number.to_string()), &text).unwrap();
    }
    assert_eq!(connections.len(), 1024);
}

/// A server that asks for a pause. Counts its requests.
fn busy(code: u16, after: &'static str) -> (Workload, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let service = tower::service_fn(move |_: http::Request<Body>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let answer = http::Response::builder().status(code).header("retry-after", after);
        async move { Ok::<_, kube::Error>(answer.body(Body::from(b"busy".to_vec())).unwrap()) }
    });
    (Workload::new(Client::new(service, "default")), count)
}

#[tokio::test(start_paused = true)]
async fn pause_that_a_busy_server_asks_for_is_kept_and_bounded() {
    for (code, after, expected) in
        [(429, "7", 7), (503, "7", 7), (429, "999999999", 300), (500, "7", 0), (429, "soon", 0)]
    {
        let (workload, count) = busy(code, after);
        assert_eq!(ask(&workload).await, Err(RequestError::Failed(code)));
        assert_eq!(workload.paused().unwrap_or_default().as_secs(), expected, "{code} {after}");
        assert_eq!(ask(&workload).await, Err(RequestError::Failed(code)));
        assert_eq!(count.load(Ordering::Relaxed), if expected > 0 { 1 } else { 2 });
        tokio::time::sleep(Duration::from_secs(expected + 1)).await;
        assert_eq!(workload.paused(), None);
        ask(&workload).await.unwrap_err();
        assert_eq!(count.load(Ordering::Relaxed), if expected > 0 { 2 } else { 3 });
    }
}

#[tokio::test]
async fn pause_of_a_budget_holds_one_pod_and_not_the_server() {
    let (workload, count) = busy(429, "7");
    for _ in 0..2 {
        let request = http::Request::post("/api/v1/namespaces/n/pods/p/eviction").body(Vec::new()).unwrap();
        let evict = async |client: Client| client.request::<serde_json::Value>(request).await;
        assert_eq!(workload.ask(evict).await, Err(RequestError::Failed(429)));
    }
    assert_eq!(count.load(Ordering::Relaxed), 2);
}
