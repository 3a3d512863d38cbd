//! Name, connection and requests of the kubelet client, against a TLS server that records what it is asked.

use std::sync::Mutex;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::bus::Leader;
use crate::bus::fake::FakeMachines;

/// Subject of the kubelet of Node `w-1.team-a`.
const NODE: [(DnType, &str); 2] =
    [(DnType::OrganizationName, "system:nodes"), (DnType::CommonName, "system:node:w-1.team-a")];
/// Answer of the API server: it is read as a Node, and as an empty list.
const ANSWER: &str = r#"{"metadata":{"resourceVersion":"7"},"spec":{}}"#;

/// An API server that records requests.
struct Server {
    address: String,
    ca_pem: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start() -> Self {
        let own = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
        let config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![own.cert.der().clone()], key)
                .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut read = Vec::new();
                while !is_complete(&read) {
                    if stream.read_buf(&mut read).await.unwrap() == 0 {
                        break;
                    }
                }
                let read = String::from_utf8(read).unwrap();
                let line = read.lines().next().unwrap_or_default();
                record.lock().unwrap().push(line.trim_end_matches(" HTTP/1.1").to_owned());
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{ANSWER}",
                    ANSWER.len()
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
                let _ = stream.shutdown().await;
            }
        });
        Self { address, ca_pem: own.cert.pem(), requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// Returns true if all of a request was read. A close before that would reset the connection.
fn is_complete(read: &[u8]) -> bool {
    let text = String::from_utf8_lossy(read);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let mut lengths = head.lines().filter_map(|line| line.strip_prefix("content-length: "));
    body.len() >= lengths.next().map_or(0, |length| length.parse().unwrap())
}

/// A host of Machine `host-1`. Slot a runs, and its kubelet has a client certificate with this subject.
fn kubelet(server: &Server, subject: &[(DnType, &str)]) -> (tempfile::TempDir, SlotKubelet) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = DistinguishedName::new();
    for (type_, text) in subject {
        params.distinguished_name.push(type_.clone(), *text);
    }
    let pem = params.self_signed(&key).unwrap().pem() + &key.serialize_pem();
    let host = tempfile::tempdir().unwrap();
    let current = "/var/lib/kubelet/pki/kubelet-client-current.pem";
    let config = format!(
        "clusters:\n- cluster:\n    certificate-authority-data: {}\n    server: https://{}\nusers:\n- user:\n    \
         client-certificate: {current}\n    client-key: {current}\n",
        STANDARD.encode(&server.ca_pem),
        server.address
    );
    for (path, text) in [(KUBECONFIG, &config), (current, &pem)] {
        let path = host.path().join("proc/7/root").join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let machines = FakeMachines::default();
    machines.add(&"bedplate-a".parse().unwrap(), Leader::new(7).unwrap());
    let kubelet = SlotKubelet::new(Arc::new(machines), host.path(), "host-1".parse().unwrap());
    (host, kubelet)
}

/// On a claimed host the Node has the name of the claim. The API server may know a Node of the Machine's name too.
#[tokio::test]
async fn d5_node_is_that_of_the_kubelets_certificate() {
    let server = Server::start().await;
    let (_host, kubelet) = kubelet(&server, &NODE);
    let seen = kubelet.node().await.unwrap().unwrap();
    kubelet.cordon(&seen, Some("u")).await.unwrap();
    kubelet.cordon(&seen, None).await.unwrap();
    kubelet.edit(None, None).await.unwrap();
    assert!(kubelet.pods().await.unwrap().is_empty());
    let patch = "PATCH /api/v1/nodes/w-1.team-a?fieldManager=bedplate-agent";
    let pods = "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dw-1.team-a&limit=25&continue=";
    assert_eq!(server.requests(), ["GET /api/v1/nodes/w-1.team-a", patch, patch, patch, pods]);
}

#[tokio::test]
async fn d5_node_is_not_guessed_without_a_valid_certificate() {
    let server = Server::start().await;
    let nodes = (DnType::OrganizationName, "system:nodes");
    for subject in [
        vec![(DnType::CommonName, "system:node:w-1")],
        vec![nodes.clone(), (DnType::CommonName, "host-1")],
        vec![nodes, (DnType::CommonName, "system:node:../nodes/host-1")],
    ] {
        let (_host, kubelet) = kubelet(&server, &subject);
        let seen = NodeView { cordoned: false, cordoned_by: None, version: "7".into(), taints: Vec::new() };
        let results = [
            kubelet.node().await.map(drop),
            kubelet.cordon(&seen, Some("u")).await,
            kubelet.edit(None, None).await,
            kubelet.pods().await.map(drop),
        ];
        for error in results.map(Result::unwrap_err) {
            assert!(error.is_of_certificate(), "{subject:?}: {error}");
            let text = error.to_string();
            assert!(
                text.contains("Machine host-1") && text.contains("check /etc/kubernetes/kubelet.conf"),
                "{text}"
            );
        }
        assert_eq!(kubelet.name().await, None);
    }
    assert_eq!(server.requests(), [""; 0]);
}

#[test]
fn rejection_is_what_the_api_server_answered_and_a_forbidden_one_is_final() {
    let refused =
        |status, again| AskNodeError::Refused { url: "u".into(), status, message: "budget".into(), again };
    let held = Rejection { status: 429, message: "budget".into(), again: Some(10) };
    assert_eq!(Way::rejection(&refused(429, Some(10))), Some(held));
    assert_eq!(Way::rejection(&AskNodeError::Answer("u".into())), None);
    assert!(refused(403, None).is_final());
    assert!(!refused(503, None).is_final());
}
