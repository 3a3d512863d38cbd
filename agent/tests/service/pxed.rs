//! Fake pxed: a TLS listener with its own authority that answers the agent's three requests, with faults on
//! request. In addition, a fake API server that takes status writes.
//!
//! Only the parts that the agent can see. Called by the tests in this directory.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bedplate_api::machine::Hardware;
use bedplate_api::wire::{EnrollRequest, EnrollResponse, KubernetesEndpoint, Refusal, RenewRequest, Report};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair,
    PublicKeyData as _,
};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Fault of the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// "Ask again in a second".
    Pending,
    /// An error that may pass.
    Unavailable,
    /// The request takes effect, the answer never arrives.
    NoAnswer,
    /// The certificate is for another key.
    ForeignCertificate,
}

/// Requests that arrived, and configured answers.
#[derive(Debug, Default)]
pub struct Seen {
    /// Faults of the next requests, in order.
    pub faults: VecDeque<Fault>,
    /// Paths in the order of their arrival.
    pub paths: Vec<String>,
    /// The request that has used the token.
    pub token_used_by: Option<String>,
    /// Ages of the next certificates at issue. If the queue is empty, a certificate is new.
    pub ages: VecDeque<Duration>,
    /// Issued certificates.
    pub issued: Vec<Issued>,
    /// The facts of the last enrollment.
    pub facts: Option<Hardware>,
    /// Enrollments that were answered with a certificate.
    pub enrolled: usize,
    /// Reports that were taken.
    pub reports: Vec<Report>,
    /// True if the token is permanently refused.
    pub refuse_token: bool,
    /// The API server that an enrollment names.
    pub kubernetes: Option<KubernetesEndpoint>,
    /// As the API server: statuses of the next writes that are refused, in order.
    pub refusals: VecDeque<u16>,
    /// As the API server: the writes that were taken.
    pub writes: Vec<StatusWrite>,
}

/// Certificate of an agent.
#[derive(Debug, Clone)]
pub struct Issued {
    /// PEM text of the certificate.
    pub pem: String,
    /// Public key of the certificate.
    pub key: Vec<u8>,
}

/// A status write as the API server sees it.
#[derive(Debug, Clone)]
pub struct StatusWrite {
    /// Method, path and query.
    pub request: String,
    /// The form of the body.
    pub content_type: String,
    /// The body.
    pub body: serde_json::Value,
}

/// A pxed on loopback.
pub struct Pxed {
    /// Base URL.
    pub url: String,
    /// Its authority.
    pub ca_pem: String,
    /// Requests that it saw.
    pub seen: Arc<Mutex<Seen>>,
    address: std::net::SocketAddr,
    authority: Arc<Authority>,
    task: tokio::task::JoinHandle<()>,
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    server: Arc<ServerConfig>,
    life: Duration,
}

/// A new authority: its certificate (PEM, DER) and the key to sign with.
pub fn authority() -> (String, CertificateDer<'static>, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    (certificate.pem(), certificate.der().clone(), Issuer::new(params, key))
}

impl Pxed {
    /// Starts one whose certificates live for `life`.
    pub async fn start(life: Duration) -> Self {
        let (ca_pem, ca_der, issuer) = authority();
        let key = KeyPair::generate().unwrap();
        let own =
            CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(ca_der).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .unwrap();
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![own.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        let authority = Arc::new(Authority { issuer, server: Arc::new(server), life });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let task = tokio::spawn(serve(listener, authority.clone(), seen.clone()));
        Self { url: format!("https://{address}"), ca_pem, seen, address, authority, task }
    }

    /// Starts an API server that trusts the same certificates. Enrollments name it from now on.
    pub async fn start_api_server(&self) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (authority, seen) = (self.authority.clone(), Arc::new(Mutex::new(Seen::default())));
        let task = tokio::spawn(serve(listener, authority.clone(), seen.clone()));
        let (url, ca_pem) = (format!("https://{address}"), self.ca_pem.clone());
        let endpoint = KubernetesEndpoint { server: url.clone(), ca_pem: ca_pem.clone() };
        self.seen.lock().unwrap().kubernetes = Some(endpoint);
        Self { url, ca_pem, seen, address, authority, task }
    }

    /// Stops listening, as if the host were gone.
    pub fn stop(&self) {
        self.task.abort();
    }

    /// Listens again at the same address.
    pub async fn start_again(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.task = tokio::spawn(serve(listener, self.authority.clone(), self.seen.clone()));
    }
}

async fn serve(listener: TcpListener, authority: Arc<Authority>, seen: Arc<Mutex<Seen>>) {
    // Connections end with the listener, as they do when a process dies.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (authority, seen) = (authority.clone(), seen.clone());
        connections.spawn(async move {
            let Ok(tls) = TlsAcceptor::from(authority.server.clone()).accept(stream).await else { return };
            let known = tls.get_ref().1.peer_certificates().is_some();
            let service = hyper::service::service_fn(move |request| {
                let (authority, seen) = (authority.clone(), seen.clone());
                async move { answer(request, known, &authority, &seen).await }
            });
            let _ =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(tls), service).await;
        });
    }
}

/// An error closes the connection without an answer.
async fn answer(
    request: Request<Incoming>,
    known: bool,
    authority: &Authority,
    seen: &Mutex<Seen>,
) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let path = request.uri().path().to_owned();
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    if head.method == hyper::Method::GET && path.starts_with("/api") {
        return take_read(&head).await;
    }
    let mut seen = seen.lock().unwrap();
    seen.paths.push(path.clone());
    if path.starts_with("/apis/") {
        return Ok(take_write(&head, &body, known, &mut seen));
    }
    let fault = seen.faults.pop_front();
    match fault {
        Some(Fault::Pending) => {
            let pending =
                EnrollResponse::Pending { message: "the signer is asleep".to_owned(), retry_seconds: 1 };
            return Ok(json(200, &pending));
        }
        Some(Fault::Unavailable) => return Ok(refusal(503, "Busy")),
        Some(Fault::NoAnswer | Fault::ForeignCertificate) | None => {}
    }
    let response = respond(&path, &body, known, authority, &mut seen, fault);
    if fault == Some(Fault::NoAnswer) { Err(std::io::Error::other("gone")) } else { Ok(response) }
}

/// The API server's part: a list holds the agent's own Machine or nothing, and a watch has nothing to tell.
async fn take_read(head: &hyper::http::request::Parts) -> Result<Response<Full<Bytes>>, std::io::Error> {
    if head.uri.query().is_some_and(|query| query.contains("watch=true")) {
        return std::future::pending().await;
    }
    let items = if head.uri.path().ends_with("/machines") { vec![own_machine()] } else { Vec::new() };
    let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" },
        "items": items });
    Ok(json(200, &list))
}

fn own_machine() -> serde_json::Value {
    serde_json::json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
        "metadata": { "name": "node-1", "uid": "uid-1", "resourceVersion": "1" }, "spec": { "provider": "manual" } })
}

/// The API server's part.
fn take_write(
    head: &hyper::http::request::Parts,
    body: &[u8],
    known: bool,
    seen: &mut Seen,
) -> Response<Full<Bytes>> {
    assert!(known, "a write without a certificate");
    if let Some(code) = seen.refusals.pop_front() {
        let status = serde_json::json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "reason": "Refusal", "message": "refused by the test" });
        return json(code, &status);
    }
    let header = head.headers.get(hyper::header::CONTENT_TYPE);
    seen.writes.push(StatusWrite {
        request: format!("{} {}", head.method, head.uri),
        content_type: header.unwrap().to_str().unwrap().to_owned(),
        body: serde_json::from_slice(body).unwrap(),
    });
    json(200, &own_machine())
}

fn respond(
    path: &str,
    body: &[u8],
    known: bool,
    authority: &Authority,
    seen: &mut Seen,
    fault: Option<Fault>,
) -> Response<Full<Bytes>> {
    match (path, known) {
        ("/v1/enroll", _) => {
            let request: EnrollRequest = serde_json::from_slice(body).unwrap();
            let used = seen.token_used_by.get_or_insert_with(|| request.csr_pem.clone());
            if *used != request.csr_pem || request.token.0 != "token" || seen.refuse_token {
                return refusal(409, "TokenUsed");
            }
            seen.enrolled += 1;
            seen.facts = Some(request.facts.clone());
            let foreign = KeyPair::generate().unwrap();
            let csr = match fault {
                Some(Fault::ForeignCertificate) => CertificateParams::new(vec![])
                    .unwrap()
                    .serialize_request(&foreign)
                    .unwrap()
                    .pem()
                    .unwrap(),
                _ => request.csr_pem,
            };
            json(200, &authority.sign(&csr, seen))
        }
        ("/v1/renew", true) => {
            let request: RenewRequest = serde_json::from_slice(body).unwrap();
            json(200, &authority.sign(&request.csr_pem, seen))
        }
        ("/v1/report", true) => {
            seen.reports.push(serde_json::from_slice(body).unwrap());
            json(200, &serde_json::json!({}))
        }
        ("/v1/renew" | "/v1/report", false) => refusal(401, "NoCertificate"),
        _ => refusal(404, "UnknownPath"),
    }
}

impl Authority {
    fn sign(&self, csr_pem: &str, seen: &mut Seen) -> EnrollResponse {
        let mut csr = CertificateSigningRequestParams::from_pem(csr_pem).unwrap();
        let begins = SystemTime::now() - seen.ages.pop_front().unwrap_or_default();
        csr.params.not_before = begins.into();
        csr.params.not_after = (begins + self.life).into();
        let certificate_pem = csr.signed_by(&self.issuer).unwrap().pem();
        let key = csr.public_key.der_bytes().to_vec();
        seen.issued.push(Issued { pem: certificate_pem.clone(), key });
        EnrollResponse::Enrolled {
            certificate_pem,
            kubernetes: seen.kubernetes.clone(),
            heartbeat_seconds: 5,
        }
    }
}

fn refusal(status: u16, reason: &str) -> Response<Full<Bytes>> {
    json(status, &Refusal { reason: reason.to_owned(), message: "refused by the test".to_owned() })
}

fn json(status: u16, body: &impl serde::Serialize) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::from(serde_json::to_vec(body).unwrap())).unwrap()
}

/// A plain HTTP listener for stage reports; gives its address and what it gets.
pub async fn stage_listener() -> (std::net::SocketAddr, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (send, receive) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let send = send.clone();
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let send = send.clone();
                async move {
                    let path = request.uri().path().to_owned();
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let _ = send.send(format!("{path} {}", String::from_utf8_lossy(&body)));
                    Ok::<_, Infallible>(
                        Response::builder().status(204).body(Full::<Bytes>::default()).unwrap(),
                    )
                }
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    });
    (address, receive)
}
