//! Which certificates an agent may ask for on a real API server (docs/rules.md, "Trust" 5).

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bedplate_tests::guard::Directory;
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::wait;
use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};
use serde_json::json;

const KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const USAGES: [&str; 2] = ["digital signature", "client auth"];
const NOT_OWN: &str = "asks only for its own Node";

/// All tests share one API server.
static COUNT: AtomicU32 = AtomicU32::new(0);

struct Agent {
    kubernetes: &'static Kubernetes,
    kubeconfig: PathBuf,
    directory: Directory,
}

impl Agent {
    fn new(user: &str) -> Self {
        let kubernetes = Kubernetes::shared();
        let kubeconfig = kubernetes.user(user, &["bedplate:machines"]).unwrap();
        let agent = Self { kubernetes, kubeconfig, directory: Directory::new("request").unwrap() };
        // Nothing in the API says when a policy takes effect.
        wait::until("the policy of requests", Duration::from_secs(60), || {
            let refused = agent.ask(&subject(&["x"], "x", false), KUBELET, &USAGES);
            Ok(refused.is_err_and(|why| why.contains(NOT_OWN)).then_some(()))
        })
        .unwrap();
        agent
    }

    fn ask(&self, subject: &DistinguishedName, signer: &str, usages: &[&str]) -> Result<(), String> {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        self.ask_with(&key, subject, signer, usages)
    }

    fn ask_with(
        &self,
        key: &KeyPair,
        subject: &DistinguishedName,
        signer: &str,
        usages: &[&str],
    ) -> Result<(), String> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = subject.clone();
        let pem = params.serialize_request(key).unwrap().pem().unwrap().into_bytes();
        let name = format!("asked-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let request = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": name },
            "spec": { "request": k8s_openapi::ByteString(pem), "signerName": signer, "usages": usages }
        });
        let path = self.directory.path().join(format!("{name}.json"));
        std::fs::write(&path, request.to_string()).unwrap();
        let made = self.kubernetes.kubectl(&self.kubeconfig, &["create", "-f", &path.display().to_string()]);
        made.map(drop).map_err(|error| error.to_string())
    }
}

/// A subject; `printable`: in the kind of text that kubelets use, else UTF-8.
fn subject(organizations: &[&str], name: &str, printable: bool) -> DistinguishedName {
    let text = |text: &str| match printable {
        true => DnValue::PrintableString(text.try_into().unwrap()),
        false => DnValue::Utf8String(text.to_owned()),
    };
    let mut subject = DistinguishedName::new();
    for organization in organizations {
        subject.push(DnType::OrganizationName, text(organization));
    }
    subject.push(DnType::CommonName, text(name));
    subject
}

#[test]
fn agent_asks_for_its_own_nodes_certificate_and_for_no_other() {
    let agent = Agent::new("bedplate:machine:node-1");
    let nodes = ["system:nodes"];
    for printable in [true, false] {
        agent.ask(&subject(&nodes, "system:node:node-1", printable), KUBELET, &USAGES).unwrap();
    }
    let with_rsa_usage = ["key encipherment", "digital signature", "client auth"];
    agent.ask(&subject(&nodes, "system:node:node-1", true), KUBELET, &with_rsa_usage).unwrap();
    for (organization, name) in [
        ("system:nodes", "system:node:node-2"),
        ("system:nodes", "system:node:node-10"),
        ("system:nodes", "system:node:node-"),
        ("system:nodes", "system:node:"),
        ("system:nodes", "bedplate:machine:node-1"),
        ("system:masters", "system:node:node-1"),
        ("kubeadm:cluster-admins", "system:node:node-1"),
    ] {
        let why = agent.ask(&subject(&[organization], name, true), KUBELET, &USAGES).expect_err(name);
        assert!(why.contains(NOT_OWN), "{organization} {name}: {why}");
    }
    let own = subject(&nodes, "system:node:node-1", true);
    let p384 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let why = agent.ask_with(&p384, &own, KUBELET, &USAGES).unwrap_err();
    assert!(why.contains(NOT_OWN), "{why}");
    for signer in ["kubernetes.io/kube-apiserver-client", "kubernetes.io/kubelet-serving", "example.com/any"]
    {
        let why = agent.ask(&own, signer, &USAGES).expect_err(signer);
        assert!(why.contains("an agent asks for a kubelet's client certificate and no other"), "{why}");
    }
    let why = agent.ask(&own, KUBELET, &["server auth"]).unwrap_err();
    assert!(why.contains("an agent asks for a client certificate"), "{why}");
}

#[test]
fn who_has_no_name_of_an_agent_asks_for_nothing() {
    let agent = Agent::new("somebody");
    for name in ["system:node:", "system:node:somebody", "system:node:nobody"] {
        let why = agent.ask(&subject(&["system:nodes"], name, true), KUBELET, &USAGES).expect_err(name);
        assert!(why.contains(NOT_OWN), "{name}: {why}");
    }
}
