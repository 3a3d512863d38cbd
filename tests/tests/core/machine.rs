//! The life of Machines until they run (M1 to M8, M10 to M12).

use serde_json::{Value, json};

use super::owned::{CLUSTER_NAME, MACHINE, Owned, conditions, from_config, nodes, owner, reference, writers};
use super::site::{condition, decoded};

#[test]
fn m1_infrastructure_is_required_and_the_rest_is_optional() {
    let owned = Owned::provisioned("m1");
    let machine = |spec: Value| json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": { "name": "m" }, "spec": spec });
    let error = owned
        .create_machine(&machine(json!({ "clusterName": "m1", "bootstrap": { "data": "" } })))
        .unwrap_err();
    assert!(format!("{error:#}").contains("infrastructureRef"), "{error:#}");
    let least = json!({ "clusterName": "m1", "bootstrap": { "data": "" },
        "infrastructureRef": reference("infrastructure", "BedplateMachine", "m") });
    owned.create_machine(&machine(least)).unwrap();
    let text = "BedplateMachine m does not exist";
    owned.until_condition((MACHINE, "m"), "InfrastructureReady", ["False", "ObjectDoesNotExist", text]);
}

#[test]
fn m2_status_shows_the_whole_life_of_a_machine() {
    let owned = Owned::initialized("m2");
    owned.config("m");
    owned.machine("m", &from_config("m"), &json!({}));
    owned.until_phase("m", "Pending");
    owned.until_condition((MACHINE, "m"), "BootstrapConfigReady", ["False", "NotReady", "KubeadmConfig m"]);
    owned.make_data("m");
    let found = owned.until_phase("m", "Provisioning");
    assert_eq!(found["spec"]["bootstrap"]["dataSecretName"], "m-data");
    assert_eq!(found["status"]["initialization"]["bootstrapDataSecretCreated"], true);
    owned.provision("m");
    owned.identify("m");
    let found = owned.until_phase("m", "Provisioned");
    assert_eq!(found["spec"]["providerID"], owned.id("m"));
    assert_eq!(found["status"]["addresses"][0]["address"], "10.7.0.5");
    assert_eq!(found["status"]["initialization"]["infrastructureProvisioned"], true);
    owned.until_condition(
        (MACHINE, "m"),
        "NodeReady",
        ["Unknown", "InspectionFailed", "no Node has providerID"],
    );
    owned.join("m", "True");
    let found = owned.until_phase("m", "Running");
    assert_eq!(found["status"]["nodeRef"]["name"], owned.node("m"));
    for (type_, reason) in [
        ("BootstrapConfigReady", "Ready"),
        ("InfrastructureReady", "Ready"),
        ("NodeReady", "NodeReady"),
        ("NodeHealthy", "NodeHealthy"),
        ("Ready", "Ready"),
        ("Available", "Available"),
        ("FieldsSupported", "FieldsSupported"),
    ] {
        owned.until_condition((MACHINE, "m"), type_, ["True", reason, ""]);
    }
    let shown = owned.kubectl(&["get", "machines.cluster.x-k8s.io", "m", "--no-headers"]);
    assert!(shown.contains("Running") && shown.contains(&owned.node("m")), "{shown}");
    let mut info = json!({ "kubeletVersion": "v1.34.4" });
    for field in [
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ] {
        info[field] = json!("x");
    }
    nodes().merge_status("node", &owned.node("m"), &json!({ "nodeInfo": info })).unwrap();
    owned.until(MACHINE, "m", "its version", |found| {
        found["status"]["nodeInfo"]["kubeletVersion"] == "v1.34.4"
    });
}

#[test]
fn m3_machine_without_data_waits_for_it() {
    let owned = Owned::provisioned("m3");
    owned.machine("m", &json!({}), &json!({}));
    let text = "Machine has no bootstrap data; set spec.bootstrap.dataSecretName or spec.bootstrap.data";
    let found = owned.until_condition((MACHINE, "m"), "BootstrapConfigReady", ["False", "NotReady", text]);
    assert_eq!(found["status"]["phase"], "Pending");
    // A user gives it by hand.
    owned
        .objects
        .merge(MACHINE, "m", &json!({ "spec": { "bootstrap": { "dataSecretName": "given" } } }))
        .unwrap();
    let found = owned.until_phase("m", "Provisioning");
    assert_eq!(found["spec"]["bootstrap"]["dataSecretName"], "given");
}

#[test]
fn m3_empty_data_skips_the_bootstrap_step() {
    let owned = Owned::provisioned("m3-empty");
    owned.machine("m", &json!({ "data": "" }), &json!({}));
    let found = owned.until_phase("m", "Provisioning");
    assert_eq!(found["spec"]["bootstrap"]["dataSecretName"], "");
    assert!(owned.objects.list("secret", "").unwrap().is_empty());
}

#[test]
fn m3_text_of_a_machine_is_used_as_it_is() {
    let owned = Owned::provisioned("m3-text");
    owned.machine("m", &json!({ "data": "#cloud-config\n{}" }), &json!({}));
    let found = owned.until_phase("m", "Provisioning");
    assert_eq!(found["spec"]["bootstrap"]["dataSecretName"], "m-user-data");
    let secret = owned.get("secret", "m-user-data");
    assert_eq!(decoded(&secret, "value"), "#cloud-config\n{}");
    assert_eq!(owner(&secret, "Machine").unwrap()["uid"], found["metadata"]["uid"]);
}

#[test]
fn m3_secret_of_another_owner_is_not_overwritten() {
    let owned = Owned::provisioned("m3-foreign");
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "m-user-data" },
        "stringData": { "value": "of the user" } });
    owned.objects.apply(&secret).unwrap();
    owned.machine("m", &json!({ "data": "text" }), &json!({}));
    let found = owned.until(MACHINE, "m", "the report", |found| {
        condition(found, "BootstrapConfigReady").2.contains("m-user-data")
    });
    assert_eq!(found["status"]["phase"], "Pending");
    assert_eq!(decoded(&owned.get("secret", "m-user-data"), "value"), "of the user");
}

#[test]
fn m4_machine_is_provisioning_once_config_and_data_are_there() {
    let owned = Owned::provisioned("m4");
    owned.config("m");
    owned.machine("m", &from_config("m"), &json!({}));
    owned.objects.merge_status("kubeadmconfig", "m", &json!({ "dataSecretName": "m-data" })).unwrap();
    // Named, and not created.
    let ready = json!([{ "type": "Ready", "status": "False", "reason": "Rendering", "message": "seen",
        "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    owned.objects.merge_status("kubeadmconfig", "m", &json!({ "conditions": ready })).unwrap();
    let found = owned.until_condition((MACHINE, "m"), "BootstrapConfigReady", ["False", "Rendering", "seen"]);
    assert!(found["spec"]["bootstrap"]["dataSecretName"].is_null(), "{found:#}");
    let created = json!({ "dataSecretName": null, "conditions": null, "initialization": { "dataSecretCreated": true } });
    owned.objects.merge_status("kubeadmconfig", "m", &created).unwrap();
    // Created, and the name of the Secret is missing.
    let text = "KubeadmConfig m has no status.dataSecretName yet";
    owned.until_condition((MACHINE, "m"), "BootstrapConfigReady", ["False", "NotReady", text]);
    assert_eq!(owned.get(MACHINE, "m")["status"]["phase"], "Pending");
    owned.make_data("m");
    owned.until_phase("m", "Provisioning");
}

#[test]
fn m5_machine_owns_its_objects_and_watches_whatever_kinds_they_are() {
    let owned = Owned::provisioned("m5");
    let machine = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": { "name": "m" },
        "spec": { "clusterName": "m5", "bootstrap": { "configRef": reference("bootstrap", "KubeadmConfig", "m") },
            "infrastructureRef": reference("infrastructure", "BladeMachine", "m") } });
    owned.config("m");
    owned.create_machine(&machine).unwrap();
    let text = "CustomResourceDefinition blademachines.infrastructure.cluster.x-k8s.io does not exist";
    owned.until(MACHINE, "m", "the report", |found| condition(found, "InfrastructureReady").2.contains(text));
    let config = owned.until("kubeadmconfig", "m", "its owner", |found| owner(found, "Machine").is_some());
    assert_eq!(owner(&config, "Machine").unwrap()["controller"], true);
    assert_eq!(config["metadata"]["labels"][CLUSTER_NAME], "m5");
    // The provider is installed later.
    owned.define("BladeMachine", "v1beta2", "m");
    owned.until(MACHINE, "m", "the blade", |found| {
        condition(found, "InfrastructureReady").2.contains("BladeMachine m")
    });
    let provisioned = json!({ "spec": { "providerID": "blade://m5" }, "status": { "initialization": { "provisioned": true } } });
    owned.patch("BladeMachine", "m", &provisioned);
    owned.make_data("m");
    let found = owned.until_phase("m", "Provisioned");
    assert_eq!(found["spec"]["providerID"], "blade://m5");
}

#[test]
fn m5_object_of_another_machine_is_not_adopted() {
    let owned = Owned::provisioned("m5-foreign");
    owned.machine("first", &json!({ "data": "" }), &json!({}));
    owned.provision("first");
    owned.identify("first");
    owned.until_phase("first", "Provisioned");
    let machine = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": { "name": "second" },
        "spec": { "clusterName": "m5-foreign", "bootstrap": { "data": "" },
            "infrastructureRef": reference("infrastructure", "BedplateMachine", "first") } });
    owned.create_machine(&machine).unwrap();
    let found = owned.until(MACHINE, "second", "the report", |found| {
        condition(found, "InfrastructureReady").2.contains("Machine first")
    });
    assert!(found["spec"]["providerID"].is_null(), "{found:#}");
    let host = owned.get("bpm", "first");
    assert_eq!(owner(&host, "Machine").unwrap()["name"], "first");
}

#[test]
fn m7_machine_without_an_id_is_not_provisioned() {
    let owned = Owned::provisioned("m7");
    owned.machine("m", &json!({ "data": "" }), &json!({}));
    owned.until_phase("m", "Provisioning");
    owned.provision("m");
    let text = "BedplateMachine m has no spec.providerID yet";
    let found = owned.until_condition((MACHINE, "m"), "InfrastructureReady", ["False", "NotReady", text]);
    assert_eq!(found["status"]["phase"], "Provisioning", "{found:#}");
    owned.identify("m");
    owned.until_phase("m", "Provisioned");
}

#[test]
fn m7_id_of_infrastructure_that_is_not_provisioned_is_not_copied() {
    let owned = Owned::provisioned("m7-early");
    owned.machine("m", &json!({ "data": "" }), &json!({}));
    owned.until_phase("m", "Provisioning");
    owned.identify("m");
    let ready = json!([{ "type": "Ready", "status": "False", "reason": "HostStarts", "message": "seen",
        "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    owned.objects.merge_status("bpm", "m", &json!({ "conditions": ready })).unwrap();
    let found = owned.until_condition((MACHINE, "m"), "InfrastructureReady", ["False", "HostStarts", "seen"]);
    let shown = (&found["spec"]["providerID"], &found["status"]["phase"]);
    assert_eq!(shown, (&Value::Null, &json!("Provisioning")), "{found:#}");
    owned.provision("m");
    let found = owned.until_phase("m", "Provisioned");
    assert_eq!(found["spec"]["providerID"], owned.id("m"));
}

#[test]
fn m8_machine_runs_while_its_node_is_ready() {
    let owned = Owned::initialized("m8");
    let labels = json!({ "node.cluster.x-k8s.io/pool": "a", "other": "b" });
    owned.machine("m", &json!({ "data": "" }), &labels);
    owned.provision("m");
    owned.identify("m");
    owned.join("m", "False");
    owned.until_condition((MACHINE, "m"), "NodeReady", ["False", "NodeNotReady", ""]);
    assert_eq!(owned.get(MACHINE, "m")["status"]["phase"], "Provisioned");
    owned.ready("m", "True");
    owned.until_phase("m", "Running");
    let node = nodes().get("node", &owned.node("m")).unwrap().unwrap();
    assert_eq!(node["metadata"]["labels"]["node.cluster.x-k8s.io/pool"], "a");
    assert!(node["metadata"]["labels"]["other"].is_null(), "a label outside of the contract");
    assert_eq!(node["metadata"]["annotations"]["cluster.x-k8s.io/machine"], "m");
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    assert!(taints.iter().all(|taint| taint["key"] != "node.cluster.x-k8s.io/uninitialized"), "{taints:?}");
    // The Machine keeps its reference when the Node fails.
    owned.ready("m", "Unknown");
    let found = owned.until_condition((MACHINE, "m"), "NodeReady", ["Unknown", "NodeReadyUnknown", ""]);
    assert_eq!(found["status"]["nodeRef"]["name"], owned.node("m"));
    assert_eq!(found["status"]["phase"], "Provisioned", "it does not run");
}

#[test]
fn m8_node_of_the_same_name_with_another_id_is_not_taken() {
    let owned = Owned::initialized("m8-name");
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": owned.node("m") },
        "spec": { "providerID": "bedplate://other/claim" }, "status": { "conditions": conditions("True") } });
    nodes().create(&node).unwrap();
    // Its Node is later, so the provider has read the other one.
    owned.machine("later", &json!({ "data": "" }), &json!({}));
    owned.provision("later");
    owned.identify("later");
    owned.join("later", "True");
    owned.until_phase("later", "Running");
    owned.machine("m", &json!({ "data": "" }), &json!({}));
    owned.provision("m");
    owned.identify("m");
    let text = format!("no Node has providerID {}", owned.id("m"));
    let found = owned.until_condition((MACHINE, "m"), "NodeReady", ["Unknown", "InspectionFailed", &text]);
    let shown = (&found["status"]["nodeRef"], &found["status"]["phase"]);
    assert_eq!(shown, (&Value::Null, &json!("Provisioned")), "{found:#}");
    let other = nodes().get("node", &owned.node("m")).unwrap().unwrap();
    assert!(other["metadata"]["annotations"]["cluster.x-k8s.io/machine"].is_null(), "{other:#}");
}

#[test]
fn m8_two_nodes_with_one_id_are_reported() {
    let owned = Owned::initialized("m8-twice");
    owned.machine("m", &json!({ "data": "" }), &json!({}));
    for node in ["m8-twice-a", "m8-twice-b"] {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node }, "spec": { "providerID": owned.id("m") } });
        nodes().create(&node).unwrap();
    }
    // The Machine gets its ID after the provider has read both: it reads the Nodes of a cluster together, and has read a later one.
    owned.machine("later", &json!({ "data": "" }), &json!({}));
    owned.provision("later");
    owned.identify("later");
    owned.join("later", "True");
    owned.until_phase("later", "Running");
    owned.provision("m");
    owned.identify("m");
    let found = owned.until(MACHINE, "m", "the report", |found| {
        let message = condition(found, "NodeHealthy").2;
        message.contains("m8-twice-a") && message.contains("m8-twice-b")
    });
    assert!(found["status"]["nodeRef"].is_null());
}

#[test]
fn m10_machine_whose_infrastructure_was_deleted_has_failed() {
    let owned = Owned::provisioned("m10");
    owned.machine("m", &json!({ "data": "" }), &json!({}));
    owned.provision("m");
    owned.identify("m");
    owned.until_phase("m", "Provisioned");
    owned.objects.delete("bpm", "m").unwrap();
    owned.until_phase("m", "Failed");
    let text = "BedplateMachine m";
    owned.until_condition((MACHINE, "m"), "InfrastructureReady", ["False", "ObjectDeleted", text]);
}

/// Contract v1beta1 has fields for a failure that a user must repair.
#[test]
fn m10_machine_whose_infrastructure_reports_a_failure_has_failed() {
    let owned = Owned::provisioned("m10-failure");
    owned.define("SledMachine", "v1beta1", "m");
    let machine = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": { "name": "m" },
        "spec": { "clusterName": "m10-failure", "bootstrap": { "data": "" },
            "infrastructureRef": reference("infrastructure", "SledMachine", "m") } });
    owned.create_machine(&machine).unwrap();
    owned.until_phase("m", "Provisioning");
    let failure =
        json!({ "status": { "failureReason": "FanStopped", "failureMessage": "fan 2 does not turn" } });
    owned.patch("SledMachine", "m", &failure);
    let found = owned.until_phase("m", "Failed");
    let text = "SledMachine m has failed: FanStopped: fan 2 does not turn; delete the Machine";
    assert_eq!(condition(&found, "InfrastructureReady"), ("False", "NotReady", text));
    // The provider leaves the Machine to a user.
    assert!(found["metadata"]["deletionTimestamp"].is_null(), "{found:#}");
}

#[test]
fn m11_phase_of_another_writer_changes_nothing() {
    let owned = Owned::initialized("m11");
    owned.machine("m", &json!({ "data": "" }), &json!({}));
    owned.provision("m");
    owned.identify("m");
    owned.join("m", "True");
    let before = owned.until_phase("m", "Running");
    owned.objects.merge_status(MACHINE, "m", &json!({ "phase": "Deleting" })).unwrap();
    let after = owned.until_phase("m", "Running");
    assert_eq!(
        (&before["spec"], &before["status"]["nodeRef"]),
        (&after["spec"], &after["status"]["nodeRef"])
    );
    assert!(owned.get("bpm", "m")["metadata"]["deletionTimestamp"].is_null());
}

#[test]
fn m12_controller_sets_owner_label_and_finalizer() {
    let owned = Owned::provisioned("m12");
    owned.machine("m", &json!({ "data": "" }), &json!({}));
    let found = owned.until_phase("m", "Provisioning");
    let metadata = &found["metadata"];
    assert_eq!(metadata["finalizers"], json!(["machine.cluster.x-k8s.io"]));
    assert_eq!(metadata["labels"][CLUSTER_NAME], "m12");
    assert_eq!(owner(&found, "Cluster").unwrap()["name"], "m12");
    let writers = writers(&found);
    assert_eq!(writers.len(), 2, "the test and the controller: {writers:?}");
    assert!(writers.contains("bedplate-cluster-core"), "{writers:?}");
}

#[test]
fn machine_without_a_cluster_waits_for_it() {
    let owned = Owned::new("m-alone");
    owned.machine("m", &json!({ "data": "" }), &json!({}));
    let text = "Cluster m-alone does not exist";
    owned.until(MACHINE, "m", "the report", |found| condition(found, "NodeReady").2.contains(text));
    assert!(owned.get("bpm", "m")["metadata"]["ownerReferences"].is_null());
    owned.infrastructure_cluster();
    owned.provision_cluster();
    owned.cluster(&json!({}));
    owned.until_phase("m", "Provisioning");
}
