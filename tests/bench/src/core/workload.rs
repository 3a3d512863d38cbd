//! Stand-ins for the API servers of workload clusters: one TLS socket for each, all in this process.
//!
//! ```text
//! socket -> TLS -> hyper -> api: the answer to a request -> nodes: the store
//! ```
//! Each serves the requests of both cores: Nodes with lists, watches, patches and deletions, and empty lists of other kinds. It checks no
//! credential. A cluster that hangs accepts connections and answers nothing.

mod api;
mod nodes;

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use self::api::Body;
use self::nodes::Shared;

/// All workload clusters. They end when dropped.
pub(super) struct Workloads {
    clusters: Vec<Arc<Cluster>>,
    authority: String,
    _tasks: JoinSet<()>,
}

/// One workload cluster.
struct Cluster {
    address: SocketAddr,
    nodes: Shared,
    /// True while it answers nothing.
    hangs: watch::Sender<bool>,
    writes: AtomicU64,
}

impl Workloads {
    /// Starts this number of clusters without Nodes.
    pub(super) async fn start(number: usize) -> Result<Self> {
        let (tls, authority) = certificates()?;
        let (mut clusters, mut tasks) = (Vec::new(), JoinSet::new());
        for _ in 0..number {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let cluster = Arc::new(Cluster {
                address: listener.local_addr()?,
                nodes: Shared::default(),
                hangs: watch::Sender::new(false),
                writes: AtomicU64::default(),
            });
            tasks.spawn(accept(listener, cluster.clone(), TlsAcceptor::from(tls.clone())));
            clusters.push(cluster);
        }
        Ok(Self { clusters, authority, _tasks: tasks })
    }

    fn of(&self, number: usize) -> Result<&Arc<Cluster>> {
        self.clusters.get(number).context("no such workload cluster")
    }

    /// Returns the port of a cluster on loopback.
    pub(super) fn port(&self, number: usize) -> Result<u16> {
        Ok(self.of(number)?.address.port())
    }

    /// Returns a kubeconfig for a cluster. JSON is YAML too.
    pub(super) fn kubeconfig(&self, number: usize) -> Result<String> {
        let server = format!("https://{}", self.of(number)?.address);
        let cluster =
            json!({ "server": server, "certificate-authority-data": STANDARD.encode(&self.authority) });
        let named = |field: &str, value: Value| json!([{ "name": "bench", field: value }]);
        let kubeconfig = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "bench",
            "clusters": named("cluster", cluster), "users": named("user", json!({ "token": "bench" })),
            "contexts": named("context", json!({ "cluster": "bench", "user": "bench" })) });
        Ok(kubeconfig.to_string())
    }

    /// Adds a Node to a cluster.
    pub(super) fn join(&self, number: usize, node: Value) -> Result<()> {
        self.of(number)?.nodes.add(node);
        Ok(())
    }

    /// Lets a cluster hang, or answer again.
    pub(super) fn hang(&self, number: usize, hangs: bool) -> Result<()> {
        self.of(number)?.hangs.send_replace(hangs);
        Ok(())
    }

    /// Returns the number of writes to all clusters.
    pub(super) fn writes(&self) -> u64 {
        self.clusters.iter().map(|cluster| cluster.writes.load(Ordering::Relaxed)).sum()
    }

    /// Returns the number of Nodes of all clusters.
    pub(super) fn nodes(&self) -> usize {
        self.clusters.iter().map(|cluster| cluster.nodes.count()).sum()
    }
}

impl Cluster {
    /// Waits while the cluster hangs.
    async fn answers(&self) {
        // The sender lives as long as this cluster.
        let _ = self.hangs.subscribe().wait_for(|hangs| !hangs).await;
    }
}

async fn accept(listener: TcpListener, cluster: Arc<Cluster>, tls: TlsAcceptor) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve(stream, cluster.clone(), tls.clone()));
        }
    }
}

async fn serve(stream: TcpStream, cluster: Arc<Cluster>, tls: TlsAcceptor) {
    cluster.answers().await;
    // Errors of a connection concern its client.
    let _ = stream.set_nodelay(true);
    let Ok(stream) = tls.accept(stream).await else { return };
    let service = service_fn(|request| answer(request, cluster.clone()));
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>, cluster: Arc<Cluster>) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_else(|_| Bytes::new());
    cluster.answers().await;
    Ok(api::answer(&parts, &body, &cluster))
}

/// Returns the TLS of all clusters, and the certificate of their authority (PEM).
fn certificates() -> Result<(Arc<ServerConfig>, String)> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "authority of the workload clusters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let authority = params.self_signed(&key)?.pem();
    let issuer = Issuer::from_ca_cert_pem(&authority, key)?;
    let key = KeyPair::generate()?;
    let serving = CertificateParams::new(vec![Ipv4Addr::LOCALHOST.to_string()])?.signed_by(&key, &issuer)?;
    let secret = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
    let chain = vec![serving.der().clone()];
    let mut config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, secret)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((Arc::new(config), authority))
}
