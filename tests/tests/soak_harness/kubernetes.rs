//! Control planes of the harness: several run concurrently, also in a network namespace. A restart keeps the objects, and no process
//! remains after the test. The tests `kubernetes_enroll` and `kubernetes_roles` show that the cluster signs certificates.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::netns::Namespace;

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
fn control_plane_in_a_namespace_ends_with_the_test() {
    let namespace = Namespace::new("kubernetes").unwrap();
    namespace.add_bridge("br0", Some(("10.77.0.1".parse().unwrap(), 24))).unwrap();
    let mut kubernetes = Kubernetes::start_inside(&namespace, "10.77.0.1".parse().unwrap()).unwrap();
    kubernetes.start_controllers(&["namespace"]).unwrap();
    kubernetes.kubectl(&kubernetes.admin(), &["get", "namespace", "default"]).unwrap();

    let address = kubernetes.address();
    let bind = || namespace.inside(|| Ok(std::net::TcpListener::bind(address).is_err())).unwrap();
    assert!(bind(), "nothing listens on {address}");
    drop(kubernetes);
    assert!(!bind(), "something still listens on {address}");
}
