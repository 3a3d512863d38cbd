//! Restriction of the provider to one namespace (M13). The workload cluster manages itself here, because the provider of the other tests
//! serves all namespaces of the management cluster.

use bedplate_tests::guard::Directory;
use bedplate_tests::kubernetes::Objects;
use http::Method;
use serde_json::{Value, json};

use super::owned::{MACHINE, reference};
use super::site::{PATIENCE, install_on, provider, workload};

/// Creates a namespace with a Cluster whose infrastructure is provisioned, and with a Machine.
fn team(name: &str) -> Objects {
    let objects = workload().objects().unwrap().within(name);
    objects
        .create(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }))
        .unwrap();
    let infrastructure = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateCluster",
        "metadata": { "name": "c" }, "spec": { "controlPlaneEndpoint": { "host": "10.7.0.9", "port": 6443 } } });
    objects.create(&infrastructure).unwrap();
    objects.merge_status("bpc", "c", &json!({ "initialization": { "provisioned": true } })).unwrap();
    let cluster = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": { "name": "c" },
        "spec": { "infrastructureRef": reference("infrastructure", "BedplateCluster", "c") } });
    objects.create(&cluster).unwrap();
    let machine = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": { "name": "m" },
        "spec": { "clusterName": "c", "bootstrap": { "data": "" },
            "infrastructureRef": reference("infrastructure", "BedplateMachine", "m") } });
    let path = format!("/apis/cluster.x-k8s.io/v1beta2/namespaces/{name}/machines");
    objects.request(&Method::POST, &path, "application/json", &machine).unwrap();
    objects
}

#[test]
fn m13_provider_of_one_namespace_leaves_the_others_alone() {
    let kubernetes = workload();
    kubernetes.install().unwrap();
    install_on(kubernetes);
    let (other, own) = (team("m13-other"), team("m13"));
    let place = Directory::new("core-scope").unwrap();
    let log = place.path().join("provider.log");
    let account = kubernetes.service_account("bedplate-system", "bedplate-core").unwrap();
    let _provider = provider(&account, &log, &["--namespace=m13"]);
    for (kind, name, phase) in [("cluster", "c", "Provisioned"), (MACHINE, "m", "Provisioning")] {
        let has_phase = |found: Option<&Value>| {
            found.is_some_and(|found| found["status"]["phase"] == phase).then_some(())
        };
        own.until((kind, name), PATIENCE, has_phase).unwrap_or_else(|error| {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            panic!("{kind} {name}: {error:#}\n{:#?}\n{log}", own.get(kind, name))
        });
        let untouched = other.get(kind, name).unwrap().unwrap();
        let (metadata, status) = (&untouched["metadata"], &untouched["status"]);
        assert!(metadata["finalizers"].is_null() && status.is_null(), "{untouched:#}");
    }
    let infrastructure = other.get("bpc", "c").unwrap().unwrap();
    assert!(infrastructure["metadata"]["ownerReferences"].is_null(), "{infrastructure:#}");
}
