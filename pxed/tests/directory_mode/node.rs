//! A host becomes a node without a cluster, as far as pxed decides it: by the real binary, with an agent that is a TLS client.

#![allow(clippy::panic, reason = "a test that cannot go on has failed")]

use std::net::TcpListener;
use std::sync::Arc;

use base64::Engine as _;
use bedplate_api::machine::{Applied, Hardware, Machine, NodeRef};
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_api::wire::{
    EnrollRequest, EnrollResponse, NodeReport, SecretRequest, SecretResponse, Seed, WatchRequest,
    WatchResponse,
};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::*;

const MACHINE: &str = "apiVersion: bedplate.dev/v1alpha1\nkind: Machine\nmetadata:\n  name: cp1\n  labels: {role: first}\nspec:\n  \
                       provider: manual\n";

/// A configuration for the hosts of a role, with a file from a Secret.
fn configuration(kubernetes: &str) -> String {
    format!(
        "apiVersion: bedplate.dev/v1alpha1\nkind: MachineConfiguration\nmetadata:\n  name: nodes\nspec:\n  machineSelector:\n    \
         matchLabels: {{role: first}}\n  template:\n    image: {{reference: 'r.example/node:1', allowTag: true}}\n    \
         kubernetes:\n      version: {kubernetes}\n      joinConfiguration: {{discovery: {{file: {{kubeConfigPath: /etc/join}}}}}}\n    \
         files:\n    - path: /etc/join\n      contentFrom:\n        secret: {{namespace: nodes, name: join, key: kubeconfig}}\n"
    )
}

/// Stand-in for the agent of `cp1`.
struct Agent {
    url: String,
    client: reqwest::Client,
}

/// Answer for the agent.
struct Answer {
    revision: String,
    machine: Machine,
    version: Option<MachineConfigurationVersion>,
}

impl Answer {
    fn selected(&self) -> Option<i64> {
        self.machine.status.as_ref()?.selected.as_ref().map(|selected| selected.version)
    }

    fn node(&self) -> Option<String> {
        self.machine.status.as_ref()?.node_ref.as_ref().map(|node| node.uid.clone())
    }

    /// Selected, version that came with it and whether that is locked, Node.
    fn all(&self) -> (Option<i64>, Option<(String, bool)>, Option<String>) {
        let version = self.version.as_ref().map(|version| {
            let deployed = version.status.as_ref().and_then(|status| status.deployed);
            (version.metadata.name.clone().unwrap(), deployed == Some(true))
        });
        (self.selected(), version, self.node())
    }
}

fn client(ca: &str, identity: Option<(&str, &KeyPair)>) -> reqwest::Client {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    // No connection outlives the pxed that is killed.
    let builder = reqwest::Client::builder().tls_backend_preconfigured(config).no_proxy();
    builder.pool_max_idle_per_host(0).build().unwrap()
}

impl Agent {
    /// Enrolls by a token of the socket.
    async fn enroll(pxed: &Pxed, port: u16) -> Self {
        let seed: Seed =
            serde_json::from_value(ask(&pxed.path("pxed.sock"), "POST", "/v1/machines/cp1/token").unwrap())
                .unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "bedplate:machines");
        params.distinguished_name.push(DnType::CommonName, "bedplate:machine:cp1");
        let request = EnrollRequest {
            boot_id: seed.boot_id,
            token: seed.token.unwrap(),
            csr_pem: params.serialize_request(&key).unwrap().pem().unwrap(),
            agent_version: "0.1.0".to_owned(),
            facts: Hardware::default(),
            challenge_answer: None,
        };
        let url = format!("https://127.0.0.1:{port}");
        let stranger = Self { url: url.clone(), client: client(&seed.ca_pem, None) };
        let EnrollResponse::Enrolled { certificate_pem, .. } = stranger.asks("/v1/enroll", &request).await
        else {
            panic!("not enrolled")
        };
        Self { url, client: client(&seed.ca_pem, Some((&certificate_pem, &key))) }
    }

    async fn post(&self, path: &str, body: &impl Serialize) -> (u16, String) {
        let answer = self.client.post(format!("{}{path}", self.url)).json(body).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    async fn asks<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> T {
        let (status, text) = self.post(path, body).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Waits for an answer that differs from the known one.
    async fn watch(&self, known: Option<&Answer>) -> Answer {
        let request = WatchRequest { known: known.map(|answer| answer.revision.clone()) };
        loop {
            match self.asks("/v1/watch", &request).await {
                WatchResponse::Same => {}
                WatchResponse::Changed { revision, machine, version, .. } => {
                    return Answer { revision, machine: *machine, version: version.map(|version| *version) };
                }
            }
        }
    }

    async fn says(&self, applied: i64, node: Option<&str>, gone: Option<&str>) {
        let applied: Applied =
            serde_json::from_value(json!({ "name": "nodes", "version": applied, "slot": "a" })).unwrap();
        let report = NodeReport {
            applied: Some(applied),
            node: node.map(|uid| NodeRef::new("cp1", uid)),
            node_gone: gone.map(str::to_owned),
            ..NodeReport::default()
        };
        assert_eq!(self.post("/v1/node", &report).await.0, 204);
    }
}

fn names(pxed: &Pxed) -> Vec<(String, bool)> {
    let shown = pxed.try_get("/v1/configurations/nodes").unwrap_or_default();
    let versions = shown["versions"].as_array().cloned().unwrap_or_default();
    let version = |v: &Value| {
        (v["metadata"]["name"].as_str().unwrap_or_default().to_owned(), v["status"]["deployed"] == true)
    };
    versions.iter().map(version).collect()
}

fn pending(pxed: &Pxed) -> (String, String) {
    let machine = pxed.try_get("/v1/machines/cp1").unwrap_or_default();
    let conditions = machine["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|c| c["type"] == "ConfigurationPending");
    let text = |key: &str| found.and_then(|c| c[key].as_str()).unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

fn with_agents() -> (Pxed, u16) {
    let pxed = Pxed::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let file = pxed.path("pxed.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let directory = format!("directory = \"{}\"", pxed.path("machines.d").display());
    let secrets = format!("{directory}\nsecrets-directory = \"{}\"", pxed.path("secrets").display());
    let listen = format!("[https]\nlisten = \"127.0.0.1:{port}\"");
    let text = text.replace(&directory, &secrets).replace("[https]\nlisten = \"127.0.0.1:0\"", &listen);
    std::fs::write(&file, text).unwrap();
    (pxed, port)
}

fn pair(a: &str, b: &str) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

fn version(number: i64, deployed: bool) -> (String, bool) {
    (format!("nodes-v{number}"), deployed)
}

#[tokio::test]
async fn h4_h6_host_keeps_its_version_until_its_node_is_gone() {
    let (mut pxed, port) = with_agents();
    pxed.write("cp1.yaml", MACHINE);
    pxed.start();
    pxed.until("h3: nothing matches", || pending(&pxed) == pair("True", "NoConfiguration"));
    pxed.write("nodes.yaml", &configuration("v1.34.0"));
    pxed.until("h3: it will be", || pending(&pxed) == pair("False", "Matched"));
    assert_eq!(names(&pxed), [version(1, false)], "c1");
    let agent = Agent::enroll(&pxed, port).await;
    let mut answer = agent.watch(None).await;
    while answer.selected().is_none() {
        answer = agent.watch(Some(&answer)).await;
    }
    assert_eq!(answer.all(), (Some(1), Some(version(1, true)), None), "h4: locked before it is published");
    pxed.until("users see it", || pending(&pxed) == pair("False", "Selected"));

    agent.says(1, Some("node-1"), None).await;
    pxed.write("nodes.yaml", &configuration("v1.34.1"));
    pxed.until("c2: the next version", || names(&pxed) == [version(2, false), version(1, true)]);
    let answer = agent.watch(None).await;
    assert_eq!(answer.all(), (Some(1), Some(version(1, true)), Some("node-1".to_owned())), "c4");

    agent.says(1, None, Some("node-1")).await;
    let after = agent.watch(Some(&answer)).await;
    assert_eq!(after.all(), (Some(2), Some(version(2, true)), None), "h6: both in one change");
    agent.says(1, None, Some("node-1")).await;

    for round in ["kill -9", "again"] {
        pxed.signal(Signal::SIGKILL);
        pxed.wait();
        pxed.start();
        let answer = agent.watch(None).await;
        assert_eq!(answer.all(), after.all(), "{round}");
        assert_eq!(names(&pxed), [version(2, true), version(1, true)], "{round}");
    }
}

#[tokio::test]
async fn v3_configuration_in_use_outlives_manifest_and_secrets_stay_private() {
    let (mut pxed, port) = with_agents();
    pxed.write("cp1.yaml", MACHINE);
    pxed.write("nodes.yaml", &configuration("v1.34.0"));
    pxed.start();
    pxed.until("the Machine is known", || pxed.machines() == ["cp1"]);
    let agent = Agent::enroll(&pxed, port).await;
    let mut answer = agent.watch(None).await;
    while answer.selected().is_none() {
        answer = agent.watch(Some(&answer)).await;
    }
    std::fs::remove_file(pxed.path("machines.d/nodes.yaml")).unwrap();
    pxed.until("it is said", || {
        let problems = pxed.status()["source"]["problems"].to_string();
        problems.contains("MachineConfiguration nodes was removed from its manifest")
            && problems.contains("in use by cp1")
    });
    assert_eq!(agent.watch(None).await.all(), answer.all());

    let secret = |name: &str| SecretRequest { namespace: "nodes".to_owned(), name: name.to_owned() };
    let (status, text) = agent.post("/v1/secret", &secret("other")).await;
    assert_eq!((status, text.contains("SecretNotReferenced")), (403, true), "{text}");
    let (status, text) = agent.post("/v1/secret", &secret("join")).await;
    assert_eq!((status, text.contains("SecretNotFound")), (404, true), "{text}");
    let file = pxed.path("secrets/nodes/join/kubeconfig");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "s3cret").unwrap();
    let permit = |mode| {
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    permit(0o644);
    let (status, text) = agent.post("/v1/secret", &secret("join")).await;
    assert_eq!((status, text.contains("chmod 600")), (503, true), "{text}");
    permit(0o600);
    let given: SecretResponse = agent.asks("/v1/secret", &secret("join")).await;
    let value = base64::engine::general_purpose::STANDARD.decode(&given.data["kubeconfig"].0).unwrap();
    assert_eq!((given.data.len(), value.as_slice()), (1, b"s3cret".as_slice()));
    assert!(!pxed.log().contains("s3cret") && !pxed.log().contains(&given.data["kubeconfig"].0));
}

#[tokio::test]
async fn trust_6_an_administrator_permits_another_key_through_the_socket() {
    let (mut pxed, _) = with_agents();
    pxed.write("cp1.yaml", MACHINE);
    pxed.start();
    pxed.until("the Machine is known", || pxed.machines() == ["cp1"]);
    let permit =
        |name: &str| ask(&pxed.path("pxed.sock"), "POST", &format!("/v1/machines/{name}/re-enroll")).unwrap();
    assert_eq!(permit("cp1"), json!({ "machine": "cp1" }));
    assert_eq!(permit("cp2")["reason"], "NotFound");
}

#[test]
fn v1_version_in_a_manifest_is_refused_with_its_line_only() {
    let mut pxed = Pxed::new();
    pxed.write("cp1.yaml", MACHINE);
    pxed.write("nodes.yaml", &configuration("v1.34.0"));
    let by_hand = configuration("v1.34.0").replace("MachineConfiguration\n", "MachineConfigurationVersion\n");
    pxed.write("v1.yaml", &by_hand);
    pxed.write("typo.yaml", &configuration("v1.34.0").replace("template:", "templat:"));
    pxed.start();
    pxed.until("both are named", || {
        let problems = pxed.status()["source"]["problems"].to_string();
        problems.contains("v1.yaml:2: kind: a version cannot be in a manifest; write a MachineConfiguration")
            && problems.contains("typo.yaml:9: spec.templat: is not a known field; did you mean")
    });
    pxed.until("the others count", || names(&pxed) == [version(1, false)] && pxed.machines() == ["cp1"]);
    let list = pxed.try_get("/v1/configurations").unwrap();
    assert_eq!(list["items"][0]["status"]["latestVersion"], 1);
}
