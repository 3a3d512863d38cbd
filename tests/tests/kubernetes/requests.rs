//! Which certificates an agent may ask for on a real API server (docs/design/rules.md, "Trust" 5).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base64::Engine as _;
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::wait;
use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, SigningKey};
use serde_json::json;

const KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const USAGES: [&str; 2] = ["digital signature", "client auth"];
const NOT_OWN: &str = "may request only a certificate of its own Node";

/// All tests share one API server.
static COUNT: AtomicU32 = AtomicU32::new(0);

struct Agent {
    kubernetes: &'static Kubernetes,
    objects: Objects,
}

impl Agent {
    fn new(user: &str) -> Self {
        let kubernetes = Kubernetes::shared();
        let kubeconfig = kubernetes.user(user, &["bedplate:machines"]).unwrap();
        let agent = Self { kubernetes, objects: kubernetes.objects_of(&kubeconfig).unwrap() };
        // Nothing in the API says when a policy takes effect.
        wait::until_asked("the policy of requests", Duration::from_secs(60), || {
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
        self.make(&self.objects, pem, signer, usages)
    }

    /// Creates the object with the access `objects`.
    fn make(&self, objects: &Objects, pem: Vec<u8>, signer: &str, usages: &[&str]) -> Result<(), String> {
        let name = format!("asked-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let request = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": name },
            "spec": { "request": k8s_openapi::ByteString(pem), "signerName": signer, "usages": usages }
        });
        objects.create(&request).map(drop).map_err(|error| error.to_string())
    }
}

/// A subject; `printable`: in the kind of text that kubelets use, otherwise UTF-8.
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
        assert!(why.contains("an agent may request only a client certificate for its kubelet"), "{why}");
    }
    let why = agent.ask(&own, KUBELET, &["server auth"]).unwrap_err();
    assert!(why.contains("the usages of an agent's request must be those of a client certificate"), "{why}");
}

/// A request (PEM) for the Node `name` whose text is said to be `cut` bytes shorter than it is, rightly signed.
fn shortened(name: &str, cut: u8) -> Vec<u8> {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let name = format!("system:node:{name}");
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = subject(&["system:nodes"], &name, true);
    let der = params.serialize_request(&key).unwrap().der().to_vec();
    // RFC 2986: a sequence of what is asked for, the kind of signature (12 bytes for ECDSA with SHA-256), and the signature.
    let length = |at: usize| match der[at + 1] {
        short @ 0..=0x7f => (2, usize::from(short)),
        0x81 => (3, usize::from(der[at + 2])),
        _ => (4, usize::from(der[at + 2]) << 8 | usize::from(der[at + 3])),
    };
    let start = length(0).0;
    let (header, content) = length(start);
    let mut asked = der[start..start + header + content].to_vec();
    let at = asked.windows(name.len()).position(|bytes| bytes == name.as_bytes()).unwrap();
    asked[at - 1] -= cut;
    let kind = &der[start + header + content..][..12];
    let signature = key.sign(&asked).unwrap();
    let signature = [&[0x03, u8::try_from(signature.len() + 1).unwrap(), 0][..], &signature].concat();
    let content = [&asked[..], kind, &signature].concat();
    let length = u16::try_from(content.len()).unwrap();
    let header = if length < 0x100 { vec![0x30, 0x81] } else { vec![0x30, 0x82] };
    let length = length.to_be_bytes();
    let whole = [&header[..], if header[1] == 0x81 { &length[1..] } else { &length }, &content].concat();
    let text = base64::engine::general_purpose::STANDARD.encode(whole);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n", lines.join("\n"))
        .into_bytes()
}

#[test]
fn agent_gets_no_prefix_of_its_name_by_a_length_that_is_too_short() {
    let agent = Agent::new("bedplate:machine:node-10");
    agent.make(&agent.objects, shortened("node-10", 0), KUBELET, &USAGES).expect("encoded by hand, valid");
    // The API server reads it, as one of node-1.
    agent.make(agent.kubernetes.objects().unwrap(), shortened("node-10", 1), KUBELET, &USAGES).unwrap();
    for cut in [1, 2, 8] {
        let made = agent.make(&agent.objects, shortened("node-10", cut), KUBELET, &USAGES);
        let why = made.expect_err("shortened");
        assert!(why.contains(NOT_OWN), "{cut}: {why}");
    }
    let longest = "a".repeat(63);
    let long = Agent::new(&format!("bedplate:machine:{longest}"));
    long.make(&long.objects, shortened(&longest, 0), KUBELET, &USAGES).unwrap();
}

#[test]
fn user_without_a_name_of_an_agent_gets_no_certificate_request() {
    let agent = Agent::new("somebody");
    for name in ["system:node:", "system:node:somebody", "system:node:nobody"] {
        let why = agent.ask(&subject(&["system:nodes"], name, true), KUBELET, &USAGES).expect_err(name);
        assert!(why.contains(NOT_OWN), "{name}: {why}");
    }
}
