//! The init lock: one machine of a cluster initializes the control plane, and the others join (B1). Its form is that of upstream.

use serde_json::{Value, json};

use super::data::PKI;
use super::site::{Site, Team, condition};

#[test]
fn b1_one_of_two_control_planes_initializes_and_the_other_joins() {
    let site = Site::shared();
    let team = Team::new("two", &json!({}));
    for name in ["cp-0", "cp-1"] {
        team.control_plane(name, &json!({}));
    }
    team.provision();
    let waits = |found: &Value| {
        let (status, _, message) = condition(found, "DataSecretAvailable");
        status == "False" && message.contains("is being initialized by Machine")
    };
    let is_settled = |found: &Value| waits(found) || condition(found, "DataSecretAvailable").0 == "True";
    let configs = ["cp-0", "cp-1"]
        .map(|name| (name, site.until(&team, ("kubeadmconfig", name), "data or the lock", is_settled)));
    let (waiting, first): (Vec<_>, Vec<_>) = configs.iter().partition(|(_, config)| waits(config));
    let ([(second, config)], [(first, _)]) = (&waiting[..], &first[..]) else {
        panic!("not one of two initializes: {configs:#?}")
    };
    assert!(condition(config, "DataSecretAvailable").2.contains(first), "{config:#}");
    assert!(team.data(first).runs("kubeadm init") && !team.has_secret(second));
    let lock = team.get("configmap", "two-lock");
    assert_eq!(lock["data"], held_by(&team, first));
    assert_eq!(lock["metadata"]["labels"], json!({ "cluster.x-k8s.io/cluster-name": "two" }));
    let owner = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "two", "uid": team.uid() });
    assert_eq!(lock["metadata"]["ownerReferences"], json!([owner]));

    team.kubeconfig();
    team.initialize();
    site.until_ready(&team, second);
    site.until_gone(&team, ("configmap", "two-lock"));
    let (init, join) = (team.data(first), team.data(second));
    assert!(join.runs("kubeadm join") && !join.runs("kubeadm init"));
    assert!(join.file("/run/kubeadm/kubeadm-join-config.yaml").contains("controlPlane:"));
    for (path, mode, ..) in PKI {
        assert_eq!((join.file(path), join.mode(path)), (init.file(path), Some(mode)), "{path}");
    }
}

#[test]
fn b1_lock_of_a_machine_that_is_gone_is_taken_over() {
    let site = Site::shared();
    let team = Team::new("orphaned", &json!({}));
    let owner = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": team.name, "uid": team.uid() });
    let lock = json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "orphaned-lock", "labels": { "cluster.x-k8s.io/cluster-name": "orphaned" },
            "ownerReferences": [owner] },
        "data": { "lock-information": "{\"machineName\":\"gone\"}" } });
    team.objects.apply(&lock).unwrap();
    team.provision();
    team.control_plane("cp-0", &json!({}));
    site.until_ready(&team, "cp-0");
    let lock = team.get("configmap", "orphaned-lock");
    assert_eq!(lock["data"], held_by(&team, "cp-0"));
}

/// The data of a lock that a Machine holds.
fn held_by(team: &Team, machine: &str) -> Value {
    let uid = team.get("clustermachine", machine)["metadata"]["uid"].clone();
    json!({ "lock-information": json!({ "machineName": machine, "machineUID": uid }).to_string() })
}
