//! Approvals of certificate signing requests that pxed may give on a real API server (docs/design/rules.md, "Trust" 3).

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bedplate_tests::guard::Directory;
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::wait;
use http::Method;
use serde_json::json;

const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
const AGENT: &str =
    "/O=bedplate:machines/O=bedplate:enrollment:0123456789abcdef0123456789abcdef/CN=bedplate:machine:node-1";
/// Enrollment group of another key.
const OTHER: &str = "/O=bedplate:enrollment:fedcba9876543210fedcba9876543210";
/// Groups of an agent.
const GROUPS: &str = "/O=bedplate:machines/O=bedplate:enrollment:0123456789abcdef0123456789abcdef";

/// Requests with a key of their own.
struct Requests {
    admin: Objects,
    pxed: Objects,
    directory: Directory,
}

/// All tests share one API server.
static COUNT: AtomicU32 = AtomicU32::new(0);

impl Requests {
    fn new() -> Self {
        let kubernetes = Kubernetes::shared();
        let account = kubernetes.service_account("bedplate-system", "pxed").unwrap();
        let (admin, pxed) = (kubernetes.objects().unwrap().clone(), kubernetes.objects_of(&account).unwrap());
        Self { admin, pxed, directory: Directory::new("csr").unwrap() }
    }

    /// A new request (PEM); `key` as `openssl req -newkey` takes it.
    fn pem(&self, subject: &str, key: &[&str]) -> Vec<u8> {
        let mut command = Command::new("openssl");
        command.args(["req", "-new", "-nodes", "-subj", subject, "-newkey"]).args(key);
        let made = command.arg("-keyout").arg(self.directory.path().join("key.pem")).output().unwrap();
        assert!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
        made.stdout
    }

    /// Makes the object by pxed or by another user, and has pxed approve it.
    fn approve(&self, pem: Vec<u8>, signer: &str, usages: &[&str], by_pxed: bool) -> Result<(), String> {
        let name = format!("tried-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let csr = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": name },
            "spec": { "request": k8s_openapi::ByteString(pem), "signerName": signer, "usages": usages }
        });
        let maker = if by_pxed { &self.pxed } else { &self.admin };
        let mut approved = maker.create(&csr).unwrap();
        approved["status"]["conditions"] =
            json!([{ "type": "Approved", "status": "True", "reason": "Tried", "message": "by a test" }]);
        let path = format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}/approval");
        let approved = self.pxed.request(&Method::PUT, &path, "application/json", &approved);
        approved.map(drop).map_err(|error| error.to_string())
    }

    fn approve_subject(&self, subject: &str) -> Result<(), String> {
        self.approve(self.pem(subject, &P256), CLIENT, &["client auth"], true)
    }
}

const P256: [&str; 3] = ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
const NOT_AN_AGENT: &str = "pxed approves only agents' certificates";

/// Nothing in the API says when a policy takes effect.
fn in_force(requests: &Requests) {
    wait::until_asked("the policy of approvals", Duration::from_secs(60), || {
        Ok(requests
            .approve_subject("/CN=somebody")
            .is_err_and(|why| why.contains(NOT_AN_AGENT))
            .then_some(()))
    })
    .unwrap();
}

#[test]
fn pxed_approves_client_certificates_of_agents() {
    let requests = Requests::new();
    in_force(&requests);
    // openssl takes no more than 64 characters of a name.
    let name = |name: &str| format!("{GROUPS}/CN=bedplate:machine:{name}");
    // A subject of more than 127 bytes has another form of length.
    for subject in [AGENT, &name("0"), &name("12345678"), &name("123456789"), &name(&"a-9".repeat(15))] {
        requests.approve_subject(subject).unwrap_or_else(|why| panic!("{subject}: {why}"));
    }
    let both = ["client auth", "digital signature"];
    requests.approve(requests.pem(AGENT, &P256), CLIENT, &both, true).unwrap();
}

#[test]
fn pxed_is_refused_every_other_user_and_group() {
    let requests = Requests::new();
    in_force(&requests);
    let subjects = [
        "/O=kubeadm:cluster-admins/CN=bedplate:machine:node-1".to_owned(),
        format!("{GROUPS}/CN=system:kube-controller-manager"),
        format!("{GROUPS}/O=kubeadm:cluster-admins/CN=bedplate:machine:node-1"),
        format!("/O=kubeadm:cluster-admins{GROUPS}/CN=bedplate:machine:node-1"),
        format!("{AGENT}/O=kubeadm:cluster-admins"),
        format!("{AGENT}/CN=system:kube-scheduler"),
        format!("{GROUPS}+O=kubeadm:cluster-admins/CN=bedplate:machine:node-1"),
        format!("{GROUPS}/CN=bedplate:machine:"),
        format!("{GROUPS}/CN=bedplate:machine:Node"),
        GROUPS.to_owned(),
        "/CN=bedplate:machine:node-1".to_owned(),
        // The enrollment group: none, two, one in another place, malformed ones.
        "/O=bedplate:machines/CN=bedplate:machine:node-1".to_owned(),
        format!("{GROUPS}{OTHER}/CN=bedplate:machine:node-1"),
        format!("/O=bedplate:machines/CN=bedplate:machine:node-1{OTHER}"),
        format!("{OTHER}/O=bedplate:machines/CN=bedplate:machine:node-1"),
        "/O=bedplate:machines/O=bedplate:enrollment:0123456789ABCDEF0123456789ABCDEF/CN=bedplate:machine:node-1".to_owned(),
        "/O=bedplate:machines/O=bedplate:enrollment:0123456789abcdef0123456789abcde/CN=bedplate:machine:node-1".to_owned(),
        "/O=bedplate:machines/O=bedplate:enrollment:0123456789abcdef0123456789abcdef0/CN=bedplate:machine:node-1".to_owned(),
        "/O=bedplate:machines/O=bedplate:enrollment:system:masters/CN=bedplate:machine:node-1".to_owned(),
    ];
    for subject in &subjects {
        let pem = {
            let mut key = P256.to_vec();
            if subject.contains('+') {
                key.push("-multivalue-rdn");
            }
            requests.pem(subject, &key)
        };
        let why = requests.approve(pem, CLIENT, &["client auth"], true).expect_err(subject);
        assert!(why.contains(NOT_AN_AGENT), "{subject}: {why}");
    }
}

#[test]
fn pxed_is_refused_a_request_that_could_be_read_in_two_ways() {
    let requests = Requests::new();
    in_force(&requests);
    let good = requests.pem(AGENT, &P256);
    let other = requests.pem("/O=kubeadm:cluster-admins/CN=x", &P256);
    let header =
        |pem: &[u8]| String::from_utf8(pem.to_vec()).unwrap().replace("QUEST-----\n", "QUEST-----\nA: b\n\n");
    for pem in [
        [&good[..], &other[..]].concat(),
        [&other[..], &good[..]].concat(),
        [b"a line before\n", &good[..]].concat(),
        [header(&good).as_bytes(), &other[..]].concat(),
        requests.pem(AGENT, &["rsa:2048"]),
    ] {
        let text = String::from_utf8_lossy(&pem).into_owned();
        let why = requests.approve(pem, CLIENT, &["client auth"], true).expect_err(&text);
        assert!(why.contains(NOT_AN_AGENT), "{why}\n{text}");
    }
}

#[test]
fn pxed_is_refused_requests_of_others_other_signers_and_other_uses() {
    let requests = Requests::new();
    in_force(&requests);
    let refused = |signer: &str, usages: &[&str], by_pxed: bool| {
        requests.approve(requests.pem(AGENT, &P256), signer, usages, by_pxed).unwrap_err()
    };
    let why = refused(CLIENT, &["client auth"], false);
    assert!(why.contains("only certificate signing requests that it made itself"), "{why}");
    let why = refused("example.com/other", &["client auth"], true);
    assert!(why.contains("user not permitted to approve requests with signerName"), "{why}");
    let why = refused(CLIENT, &["client auth", "key encipherment"], true);
    assert!(why.contains("only client certificates"), "{why}");
}
