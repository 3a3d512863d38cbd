//! Clusters (K1 to K8).

use std::io::Write as _;
use std::process::Command;

use bedplate_tests::cluster_api::Provider;
use bedplate_tests::guard::run;
use bedplate_tests::kubernetes::Kubernetes;
use serde_json::{Value, json};

use super::doomed::disconnect;
use super::owned::{CLUSTER_NAME, CONTROL_PLANE, Owned, owner, reference, writers};
use super::site::{condition, decoded, workload};

#[test]
fn k1_reference_to_a_kind_without_a_definition_is_reported() {
    let owned = Owned::new("k1");
    owned.cluster(&json!({ "infrastructureRef": reference("infrastructure", "RackCluster", "k1") }));
    let text = "CustomResourceDefinition rackclusters.infrastructure.cluster.x-k8s.io does not exist; install the provider";
    let expected = ["Unknown", "InternalError", text];
    owned.until_condition(("cluster", "k1"), "InfrastructureReady", expected);
    // The schema of the provider judges its object early.
    let invalid = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateCluster",
        "metadata": { "name": "k1" }, "spec": { "controlPlaneEndpoint": { "host": "h", "port": 70000 } } });
    assert!(owned.objects.try_create(&invalid).is_err());
}

#[test]
fn k2_infrastructure_gets_label_and_owner_and_is_watched() {
    let owned = Owned::new("k2");
    let cluster = owned.cluster(&json!({}));
    let text = "BedplateCluster k2 does not exist";
    owned.until_condition(("cluster", "k2"), "InfrastructureReady", ["False", "ObjectDoesNotExist", text]);
    owned.infrastructure_cluster();
    let is_owned = |found: &Value| owner(found, "Cluster").is_some();
    let infrastructure = owned.until("bpc", "k2", "its owner", is_owned);
    assert_eq!(infrastructure["metadata"]["labels"][CLUSTER_NAME], "k2");
    let found = owner(&infrastructure, "Cluster").unwrap();
    assert_eq!((&found["name"], &found["uid"]), (&json!("k2"), &cluster["metadata"]["uid"]));
    assert_eq!(found["apiVersion"], "cluster.x-k8s.io/v1beta2");
    // Its condition is shown as it is.
    let ready = json!([{ "type": "Ready", "status": "False", "reason": "HostsMissing", "message": "no hosts",
        "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    owned.objects.merge_status("bpc", "k2", &json!({ "conditions": ready })).unwrap();
    owned.until_condition(("cluster", "k2"), "InfrastructureReady", ["False", "HostsMissing", "no hosts"]);
}

#[test]
fn k2_infrastructure_of_another_cluster_is_not_adopted() {
    let owned = Owned::new("k2-foreign");
    owned.infrastructure_cluster();
    let other =
        json!([{ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "other", "uid": "1" }]);
    let change = json!({ "metadata": { "ownerReferences": other } });
    owned.objects.merge("bpc", "k2-foreign", &change).unwrap();
    owned.cluster(&json!({}));
    let found = owned.until("cluster", "k2-foreign", "the report", |found| {
        condition(found, "InfrastructureReady").2.contains("Cluster other")
    });
    assert_ne!(condition(&found, "InfrastructureReady").0, "True");
    let infrastructure = owned.get("bpc", "k2-foreign");
    assert_eq!(infrastructure["metadata"]["ownerReferences"].as_array().unwrap().len(), 1);
}

/// Both providers are real here.
#[test]
fn k3_infrastructure_provider_waits_for_the_owner_that_the_core_sets() {
    let owned = Owned::new("k3");
    let _provider = Provider::start("infrastructure", &["--namespace=k3"]).unwrap();
    owned.infrastructure_cluster();
    let found = owned.until_condition(("bpc", "k3"), "Ready", ["False", "WaitingForOwner", ""]);
    assert!(found["metadata"]["finalizers"].is_null() && found["status"]["initialization"].is_null());
    owned.cluster(&json!({}));
    owned.until("cluster", "k3", "Provisioned", |found| found["status"]["phase"] == "Provisioned");
    let expected = ["True", "Provisioned", ""];
    owned.until_condition(("bpc", "k3"), "Ready", expected);
    owned.until_condition(("cluster", "k3"), "InfrastructureReady", expected);
}

#[test]
fn k4_phases_follow_the_infrastructure_and_its_endpoint_is_copied() {
    let owned = Owned::new("k4");
    owned.cluster(&json!({}));
    owned.until("cluster", "k4", "Pending", |found| found["status"]["phase"] == "Pending");
    owned.infrastructure_cluster();
    let found =
        owned.until("cluster", "k4", "Provisioning", |found| found["status"]["phase"] == "Provisioning");
    assert!(found["spec"]["controlPlaneEndpoint"].is_null(), "the infrastructure is not provisioned yet");
    owned.provision_cluster();
    let found =
        owned.until("cluster", "k4", "Provisioned", |found| found["status"]["phase"] == "Provisioned");
    assert_eq!(found["spec"]["controlPlaneEndpoint"]["port"], workload().address().port());
    assert_eq!(found["status"]["initialization"]["infrastructureProvisioned"], true);
    let shown = owned.kubectl(&["get", "clusters.cluster.x-k8s.io", "k4", "--no-headers"]);
    assert!(shown.contains("Provisioned"), "{shown}");
    // The infrastructure is replaced: progress stays, and the endpoint of the Cluster too.
    owned.objects.merge_status("bpc", "k4", &json!({ "initialization": { "provisioned": false } })).unwrap();
    owned.until_condition(
        ("cluster", "k4"),
        "ControlPlaneInitialized",
        ["False", "NotInitialized", "no Machine of the control plane has a Node yet"],
    );
    let found = owned.get("cluster", "k4");
    assert_eq!(found["status"]["initialization"]["infrastructureProvisioned"], true);
}

#[test]
fn k4_endpoint_of_a_user_is_not_replaced() {
    let owned = Owned::new("k4-given");
    owned.infrastructure_cluster();
    owned.provision_cluster();
    let given = json!({ "host": "10.7.0.9", "port": 6443 });
    owned.cluster(&json!({ "controlPlaneEndpoint": given }));
    let found =
        owned.until("cluster", "k4-given", "Provisioned", |found| found["status"]["phase"] == "Provisioned");
    assert_eq!(found["spec"]["controlPlaneEndpoint"], given);
}

#[test]
fn k5_controller_is_the_only_writer_and_owns_the_finalizer() {
    let owned = Owned::provisioned("k5");
    let found = owned.get("cluster", "k5");
    assert_eq!(found["metadata"]["finalizers"], json!(["cluster.cluster.x-k8s.io"]));
    let writers = writers(&found);
    assert_eq!(writers.len(), 2, "the test and the controller: {writers:?}");
    assert!(writers.contains("bedplate-cluster-core"), "{writers:?}");
}

#[test]
fn k6_latches_follow_the_control_plane_object_and_never_go_back() {
    let owned = Owned::new("k6");
    owned.infrastructure_cluster();
    owned.provision_cluster();
    super::workers::control_plane(&owned.objects, "k6", "v1.34.4", None);
    owned.cluster(&json!({ "controlPlaneRef": reference("controlplane", "KubeadmControlPlane", "k6") }));
    owned.until_condition(("cluster", "k6"), "ControlPlaneInitialized", ["True", "Initialized", ""]);
    let plane = owned.until("kcp", "k6", "its owner", |found| owner(found, "Cluster").is_some());
    assert_eq!(plane["metadata"]["labels"][CLUSTER_NAME], "k6");
    let condition = json!([{ "type": "Available", "status": "False", "reason": "NoQuorum", "message": "etcd is down",
        "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    let status = json!({ "initialization": { "controlPlaneInitialized": false }, "conditions": condition });
    owned.objects.merge_status("kcp", "k6", &status).unwrap();
    let expected = ["False", "NoQuorum", "etcd is down"];
    let found = owned.until_condition(("cluster", "k6"), "ControlPlaneAvailable", expected);
    assert_eq!(found["status"]["initialization"]["controlPlaneInitialized"], true);
    // The control plane controller makes the kubeconfig (K7).
    assert_eq!(owned.objects.get("secret", "k6-kubeconfig").unwrap(), None);
}

#[test]
fn k7_kubeconfig_is_made_without_a_control_plane_object_and_works() {
    let owned = Owned::provisioned("k7");
    let read = |name: &str| std::fs::read_to_string(workload().pki().join(name)).unwrap();
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
        "metadata": { "name": "k7-ca", "labels": { CLUSTER_NAME: "k7" } },
        "stringData": { "tls.crt": read("ca.crt"), "tls.key": read("ca.key") } });
    owned.objects.apply(&secret).unwrap();
    let made = owned.until("secret", "k7-kubeconfig", "it exists", |_| true);
    assert_eq!(made["type"], "cluster.x-k8s.io/secret");
    assert_eq!(made["metadata"]["labels"][CLUSTER_NAME], "k7");
    assert_eq!(owner(&made, "Cluster").unwrap()["uid"], owned.get("cluster", "k7")["metadata"]["uid"]);
    // As the README of every cluster has it: the user takes the kubeconfig and asks the cluster.
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(decoded(&made, "value").as_bytes()).unwrap();
    let mut kubectl: Command = Kubernetes::shared().command("kubectl");
    kubectl.arg("--kubeconfig").arg(file.path()).args(["get", "namespace", "default", "--output", "name"]);
    assert_eq!(run(&mut kubectl).unwrap().trim(), "namespace/default");
}

#[test]
fn k7_kubeconfig_of_a_user_is_not_overwritten() {
    let owned = Owned::new("k7-given");
    let given = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "k7-given-kubeconfig" },
        "stringData": { "value": "of the user" } });
    owned.objects.apply(&given).unwrap();
    owned.infrastructure_cluster();
    owned.provision_cluster();
    owned.cluster(&json!({}));
    owned.until("cluster", "k7-given", "Provisioned", |found| found["status"]["phase"] == "Provisioned");
    owned.until_condition(
        ("cluster", "k7-given"),
        "ControlPlaneInitialized",
        ["False", "NotInitialized", ""],
    );
    assert_eq!(decoded(&owned.get("secret", "k7-given-kubeconfig"), "value"), "of the user");
}

#[test]
fn k8_unreachable_cluster_is_reported_and_becomes_reachable() {
    let owned = Owned::initialized("k8");
    disconnect(&owned);
    owned.machine("m", &json!({ "data": "" }), &json!({}));
    owned.until_condition(
        ("cluster", "k8"),
        "RemoteConnectionProbe",
        ["False", "ProbeFailed", "API server of the cluster"],
    );
    owned.until_condition(
        ("cluster", "k8"),
        "Available",
        ["False", "NotAvailable", "* RemoteConnectionProbe: "],
    );
    // The kubeconfig is corrected.
    owned.team.kubeconfig();
    owned.until_condition(("cluster", "k8"), "RemoteConnectionProbe", ["True", "ProbeSucceeded", ""]);
}

#[test]
fn paused_cluster_changes_nothing_until_it_is_unpaused() {
    let owned = Owned::new("k-paused");
    owned.infrastructure_cluster();
    owned.provision_cluster();
    owned.cluster(&json!({ "paused": true }));
    owned.until_condition(("cluster", "k-paused"), "Paused", ["True", "Paused", ""]);
    owned.machine("m", &json!({ "data": "" }), &json!({}));
    owned.until_condition(("clustermachine", "m"), "Paused", ["True", "Paused", ""]);
    assert!(owned.get("bpc", "k-paused")["metadata"]["ownerReferences"].is_null());
    let cluster = owned.get("cluster", "k-paused");
    assert!(
        cluster["metadata"]["finalizers"].is_null() && cluster["status"]["phase"].is_null(),
        "{cluster:#}"
    );
    owned.objects.merge("cluster", "k-paused", &json!({ "spec": { "paused": null } })).unwrap();
    owned.until("cluster", "k-paused", "Provisioned", |found| found["status"]["phase"] == "Provisioned");
    owned.until_phase("m", "Provisioning");
}

#[test]
fn topology_is_reported_and_nothing_else_is_done() {
    let owned = Owned::new("k-topology");
    let topology = json!({ "classRef": { "name": "c" }, "version": "v1.34.4" });
    owned.cluster(&json!({ "topology": topology }));
    let text = "spec.topology";
    owned.until_condition(("cluster", "k-topology"), "FieldsSupported", ["False", "UnsupportedFields", text]);
    assert!(owned.get("cluster", "k-topology")["metadata"]["finalizers"].is_null());
}

/// Without a control plane object the first Node of a control plane Machine initializes the cluster (K6).
#[test]
fn k6_first_node_of_the_control_plane_initializes_the_cluster() {
    let owned = Owned::provisioned("k6-first");
    owned.team.kubeconfig();
    owned.machine("cp-0", &json!({ "data": "" }), &json!({ CONTROL_PLANE: "" }));
    owned.provision("cp-0");
    owned.identify("cp-0");
    owned.until_phase("cp-0", "Provisioned");
    let waits = ["False", "NotInitialized", "no Machine of the control plane has a Node yet"];
    owned.until_condition(("cluster", "k6-first"), "ControlPlaneInitialized", waits);
    owned.join("cp-0", "True");
    owned.until_phase("cp-0", "Running");
    owned.until_condition(("cluster", "k6-first"), "ControlPlaneInitialized", ["True", "Initialized", ""]);
    owned.until_condition(("cluster", "k6-first"), "ControlPlaneAvailable", ["True", "Available", ""]);
    owned.until_condition(("cluster", "k6-first"), "Available", ["True", "Available", ""]);
    let counts = owned.get("cluster", "k6-first")["status"]["controlPlane"].clone();
    assert_eq!((&counts["replicas"], &counts["readyReplicas"]), (&json!(1), &json!(1)), "{counts}");
}
