//! The harness itself: several control planes at once, in a network namespace too; a restart keeps what is there; the
//! cluster's signer works; nothing runs on.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::netns::Namespace;
use bedplate_tests::wait;

#[test]
fn restarted_api_server_has_what_it_had() {
    let mut kubernetes = Kubernetes::start().unwrap();
    let admin = kubernetes.admin();
    kubernetes.kubectl(&admin, &["create", "namespace", "kept"]).unwrap();
    kubernetes.stop_server();
    kubernetes.kubectl(&admin, &["get", "namespace", "kept"]).expect_err("nobody is there");
    kubernetes.start_server().unwrap();
    kubernetes.kubectl(&admin, &["get", "namespace", "kept"]).unwrap();
}

#[test]
fn control_plane_in_a_namespace_signs_an_agents_certificate_and_ends_with_the_test() {
    let namespace = Namespace::new("kubernetes").unwrap();
    namespace.add_bridge("br0", Some(("10.77.0.1".parse().unwrap(), 24))).unwrap();
    let mut kubernetes = Kubernetes::start_inside(&namespace, "10.77.0.1".parse().unwrap()).unwrap();
    kubernetes.install().unwrap();
    kubernetes.start_controllers(&["csrsigning"]).unwrap();

    let directory = bedplate_tests::guard::Directory::new("csr").unwrap();
    let key = directory.path().join("key.pem").display().to_string();
    let made = std::process::Command::new("openssl")
        .args([
            "req",
            "-new",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            &key,
        ])
        .args(["-subj", "/O=bedplate:machines/CN=bedplate:machine:node-1"])
        .output()
        .unwrap();
    let request = k8s_openapi::ByteString(made.stdout);
    let csr = serde_json::json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": "node-1" },
        "spec": { "request": request, "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"] }
    });
    let file = directory.path().join("csr.json");
    std::fs::write(&file, csr.to_string()).unwrap();
    let account = kubernetes.service_account("bedplate-system", "pxed").unwrap();
    kubernetes.kubectl(&account, &["create", "-f", &file.display().to_string()]).unwrap();
    kubernetes.kubectl(&account, &["certificate", "approve", "node-1"]).unwrap();
    wait::until("the certificate", Duration::from_secs(60), || {
        let got = kubernetes
            .kubectl(&account, &["get", "csr", "node-1", "-o", "jsonpath={.status.certificate}"])?;
        Ok((!got.is_empty()).then_some(()))
    })
    .unwrap();

    let address = kubernetes.address();
    drop(kubernetes);
    let taken = namespace.inside(|| Ok(std::net::TcpListener::bind(address).is_err())).unwrap();
    assert!(!taken, "something still listens on {address}");
}
