//! The kinds on a real API server: every validation rule with an object that it accepts and one that it refuses,
//! defaults, immutability, columns.

use std::collections::BTreeSet;

use bedplate_tests::kstatus::{self, Kstatus};
use bedplate_tests::kubernetes::Kubernetes;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use pxed::standalone::manifests::parse::read_manifest;
use serde_json::{Value, json};

use super::cluster::{
    admin, api, claim, configuration, create, machine, operation, try_create, version, with,
};
use super::rules::{self, Case, OutsideSchema};

#[tokio::test]
async fn each_rule_accepts_one_object_and_refuses_another_saying_why() {
    let client = admin().await;
    let mut problems = Vec::new();
    for case in rules::all() {
        if let Err(why) = try_create(&client, &case.accepted).await {
            problems.push(format!("{}: refused what it should accept: {why}", case.message));
        }
        match try_create(&client, &case.refused).await {
            Ok(_) => problems.push(format!("{}: accepted {}", case.message, case.refused["spec"])),
            Err(why) if !why.contains(&case.message) => {
                problems.push(format!("{}: refused for another reason: {why}", case.message));
            }
            Err(_) => {}
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

const NO_CLAIMS: &str = "claims need a cluster: pxed reads no MachineClaim";

/// Rules that compare with the object as it was, or of statuses, with the reason why no manifest of a directory can break them. Each has a test of its
/// own below.
const TRANSITIONS: [(&str, &str); 13] = [
    (
        "the texts of all disks must have at most 98304 characters together",
        "the status in a manifest is ignored",
    ),
    (
        "spec.claimPolicy can be added or removed only while no version is selected: release the host, or create the Machine again",
        NO_CLAIMS,
    ),
    (
        "spec.pxe.stateDisk of a Machine with claimPolicy can be added, removed or name another disk only while no version is selected: release the host first",
        NO_CLAIMS,
    ),
    ("claimant.namespace and claimant.name cannot be changed; only claimant.uid can", NO_CLAIMS),
    (
        "clusterName, role, nodeName, providerID and release cannot be changed: delete the claim and create another one",
        NO_CLAIMS,
    ),
    ("configurationRef cannot be changed: delete the claim and create another one", NO_CLAIMS),
    ("bootstrapSecretName cannot be changed: delete the claim and create another one", NO_CLAIMS),
    ("vip cannot be changed: delete the claim and create another one", "no claim has a vip yet"),
    ("vip.address must be an IPv4 address: IPv6 is not supported", "no claim has a vip yet"),
    (
        "conditions Complete and Failed must be True when state is the same word, and may only be True then",
        "the status in a manifest is ignored",
    ),
    (
        "a deployed version cannot be changed: edit the MachineConfiguration, which makes a new version",
        "a manifest of a version is refused as a whole (V1)",
    ),
    ("status.deployed never goes back to false", "a manifest of a version is refused as a whole (V1)"),
    (
        "the spec of a MachineOperation cannot be changed: make a new one",
        "pxed reports another spec under a known name and does not carry it out",
    ),
];

#[test]
fn every_rule_of_the_definitions_is_tried() {
    let transitions = TRANSITIONS.map(|(message, _)| message.to_owned());
    let tried: BTreeSet<String> =
        rules::all().into_iter().map(|case| case.message).chain(transitions).collect();
    let mut stated = BTreeSet::new();
    for definition in bedplate_api::crds::definitions() {
        messages(&serde_json::to_value(definition).unwrap(), &mut stated);
    }
    // These kinds share types, so the same rule is tried for each kind.
    let tried = &tried | &rules::infrastructure().iter().map(Case::title).collect();
    for definition in bedplate_api::crds::infrastructure_definitions() {
        let mut own = BTreeSet::new();
        messages(&serde_json::to_value(&definition).unwrap(), &mut own);
        let kind = &definition.spec.names.kind;
        stated.extend(own.iter().map(|message| format!("{kind}: {message}")));
    }
    let untried: Vec<_> = stated.difference(&tried).collect();
    assert!(untried.is_empty(), "no accepted and refused object for: {untried:#?}");
}

/// Returns true if pxed reads such an object without a cluster. It refuses manifests of versions as a whole (V1), and claims need a cluster.
fn is_of_manifests(object: &Value) -> bool {
    let is_claimed = object["spec"]["claimPolicy"].is_object();
    !is_claimed && object["kind"] != "MachineClaim" && object["kind"] != "MachineConfigurationVersion"
}

/// Reads an object as pxed reads a manifest when it runs without a cluster.
fn read_standalone(object: &Value) -> Result<(), String> {
    let mut object = object.clone();
    if object["kind"] == "MachineConfiguration"
        && object["spec"]["template"]["kubernetes"]["role"] != "ControlPlane"
    {
        let discovery = json!({ "file": { "kubeConfigPath": "/etc/join.conf" } });
        object["spec"]["template"]["kubernetes"]["joinConfiguration"] = json!({ "discovery": discovery });
    }
    let read = read_manifest(&object.to_string());
    read.map(|_| ()).map_err(|problems| problems.iter().map(|problem| format!("{problem}\n")).collect())
}

#[test]
fn directory_refuses_each_object_that_a_rule_refuses() {
    let mut problems = Vec::new();
    let cases = rules::all();
    for case in
        cases.into_iter().filter(|case| [&case.accepted, &case.refused].into_iter().all(is_of_manifests))
    {
        if let Err(why) = read_standalone(&case.accepted) {
            problems.push(format!("{}: refused what it should accept: {why}", case.message));
        }
        match read_standalone(&case.refused) {
            Ok(()) => problems.push(format!("{}: accepted {}", case.message, case.refused["spec"])),
            Err(why) if !why.contains(&case.message) => {
                problems.push(format!("{}: refused for another reason: {why}", case.message));
            }
            Err(_) => {}
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn directory_refuses_each_value_outside_a_schema_with_its_field() {
    for OutsideSchema { description, object } in rules::outside_the_schema() {
        if is_of_manifests(&object) {
            let why = read_standalone(&object).expect_err(&description);
            assert!(why.contains(": spec."), "{description}: {why}");
        }
    }
}

fn messages(value: &Value, found: &mut BTreeSet<String>) {
    for rule in value["x-kubernetes-validations"].as_array().into_iter().flatten() {
        found.insert(rule["message"].as_str().expect("every rule says what is wrong").to_owned());
    }
    let inner = value.as_object().into_iter().flat_map(|object| object.values());
    inner.chain(value.as_array().into_iter().flatten()).for_each(|value| messages(value, found));
}

#[tokio::test]
async fn values_outside_a_schema_are_refused() {
    let client = admin().await;
    let mut accepted = Vec::new();
    for OutsideSchema { description, object } in rules::outside_the_schema() {
        match try_create(&client, &object).await {
            Ok(_) => accepted.push(description),
            Err(why) => assert!(
                why.contains("Invalid")
                    || why.contains("Unsupported value")
                    || why.contains("Required")
                    || why.contains("Duplicate value")
                    || why.contains("Too "),
                "{description}: {why}"
            ),
        }
    }
    assert!(accepted.is_empty(), "accepted: {accepted:#?}");
}

#[tokio::test]
async fn machine_without_choices_gets_the_documented_defaults() {
    let client = admin().await;
    let object = with(
        &machine("defaults"),
        &json!({ "spec": { "bmc": { "protocol": "IPMI", "address": "10.0.0.1", "ipmi": {}, "credentialsSecretRef": {
            "namespace": "bmc", "name": "node-1" } }, "pxe": { "stateDisk": { "serial": "S1" } } } }),
    );
    let spec = &try_create(&client, &object).await.unwrap()["spec"];
    assert_eq!(spec["site"], "default");
    assert_eq!(spec["paused"], false);
    assert_eq!(spec["powerPolicy"], "Managed");
    assert_eq!(spec["deletionPolicy"], "Retain");
    assert_eq!(spec["pxe"]["firmware"], "Auto");
    assert_eq!(spec["pxe"]["bootProtocol"], "Auto");
    assert_eq!(spec["pxe"]["stateDisk"]["wipe"], "IfBlank");
    assert_eq!(spec["bmc"]["bootSource"], "PXE");
    assert_eq!(spec["bmc"]["ipmi"]["privilege"], "Operator");
    assert_eq!(spec["pxe"]["interfaces"][0], json!({ "macAddress": "52:54:00:00:00:01" }));
}

#[tokio::test]
async fn configuration_without_choices_gets_the_documented_defaults() {
    let client = admin().await;
    let object = with(
        &configuration("defaults"),
        &json!({ "spec": { "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": {} }, "template": {
            "healthGate": {}, "container": {}, "files": [{ "path": "/etc/motd", "content": "" }] } } }),
    );
    let spec = &try_create(&client, &object).await.unwrap()["spec"];
    assert_eq!(spec["priority"], 0);
    assert_eq!(spec["revisionHistoryLimit"], 10);
    let rolling = &spec["updateStrategy"]["rollingUpdate"];
    assert_eq!(*rolling, json!({ "maxUnavailable": 1, "drainTimeoutSeconds": 600, "pauseOnFailure": true }));
    let drains = json!({ "spec": { "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "drain": {} } } } });
    let drains = try_create(&client, &with(&configuration("defaults"), &drains)).await.unwrap();
    let drain = &drains["spec"]["updateStrategy"]["rollingUpdate"]["drain"];
    assert_eq!(*drain, json!({ "force": false, "deleteEmptyDirData": true }));
    let template = &spec["template"];
    assert_eq!(template["healthGate"], json!({ "timeoutSeconds": 600, "minReadySeconds": 30 }));
    assert_eq!(template["kubernetes"]["role"], "Worker");
    assert_eq!(template["container"]["network"], "Host");
    let file = &template["files"][0];
    assert_eq!((&file["owner"], &file["permissions"]), (&json!("root:root"), &json!("0644")));
    let plain = try_create(&client, &configuration("defaults")).await.unwrap();
    assert_eq!(plain["spec"]["updateStrategy"]["type"], "OnDelete");
}

#[tokio::test]
async fn d1_a_pool_is_entered_and_left_only_while_nothing_is_selected() {
    let client = admin().await;
    let object = machine("pool-entry");
    create(&client, &object).await;
    let machines = api(&client, &object);
    let policy = async |policy: Value| {
        let patch = Patch::Merge(json!({ "spec": { "claimPolicy": policy } }));
        let patched = machines.patch("pool-entry", &PatchParams::default(), &patch).await;
        patched.map(drop).map_err(|error| error.to_string())
    };
    let selected = async |selected: Value| {
        let patch = Patch::Merge(json!({ "status": { "selected": selected } }));
        machines.patch_status("pool-entry", &PatchParams::default(), &patch).await.unwrap();
    };
    let own = json!({ "namespaces": ["team-a"] });
    selected(json!({ "name": "workers", "version": 1, "source": "Selector" })).await;
    let words = "spec.claimPolicy can be added or removed only while no version is selected";
    let why = policy(own.clone()).await.expect_err("it runs a version");
    assert!(why.contains(words), "{why}");
    selected(Value::Null).await;
    policy(own).await.unwrap();
    selected(json!({ "name": "pool", "version": 1, "source": "Claim" })).await;
    let why = policy(Value::Null).await.expect_err("it is claimed");
    assert!(why.contains(words), "{why}");
    policy(json!({ "release": "Wipe" }))
        .await
        .expect("an operator may strengthen the release of a claimed host");
    selected(Value::Null).await;
    policy(Value::Null).await.unwrap();
}

#[tokio::test]
async fn d7_a_host_of_a_pool_keeps_its_state_disk_while_a_version_is_selected() {
    let client = admin().await;
    let object =
        with(&machine("pool-disk"), &json!({ "spec": { "claimPolicy": { "namespaces": ["team-a"] } } }));
    create(&client, &object).await;
    let machines = api(&client, &object);
    let disk = async |disk: Value| {
        let patch = Patch::Merge(json!({ "spec": { "pxe": { "stateDisk": disk } } }));
        let patched = machines.patch("pool-disk", &PatchParams::default(), &patch).await;
        patched.map(drop).map_err(|error| error.to_string())
    };
    let selected = async |selected: Value| {
        let patch = Patch::Merge(json!({ "status": { "selected": selected } }));
        machines.patch_status("pool-disk", &PatchParams::default(), &patch).await.unwrap();
    };
    let claimed = json!({ "name": "pool", "version": 1, "source": "Claim" });
    let refused = async |change: Value| {
        let why = disk(change.clone()).await.expect_err("it is claimed");
        assert!(why.contains("can be added, removed or name another disk only"), "{change}: {why}");
    };
    disk(Value::Null).await.unwrap();
    selected(claimed.clone()).await;
    refused(json!({ "serial": "S1" })).await;
    selected(Value::Null).await;
    disk(json!({ "serial": "S1" })).await.unwrap();
    selected(claimed.clone()).await;
    for change in [Value::Null, json!({ "serial": "S2" }), json!({ "serial": null, "wwn": "0x1" })] {
        refused(change).await;
    }
    disk(json!({ "serial": "S1", "wipe": "Never" })).await.expect("the disk is the same");
    selected(Value::Null).await;
    disk(json!({ "serial": null, "rule": { "rotational": false } })).await.unwrap();
    selected(claimed).await;
    refused(json!({ "rule": { "rotational": true } })).await;
    selected(Value::Null).await;
    disk(Value::Null).await.unwrap();
}

#[tokio::test]
async fn d1_of_a_claim_only_the_uid_of_its_claimant_changes() {
    let client = admin().await;
    let all = json!({ "spec": { "bootstrapSecretName": "s", "configurationRef": { "version": 1 } } });
    let (plain, full) = (claim("fixed-plain"), with(&claim("fixed-full"), &all));
    for object in [&plain, &full] {
        create(&client, object).await;
    }
    let change = async |name: &str, spec: Value| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let patched = api(&client, &plain).patch(name, &PatchParams::default(), &patch).await;
        patched.map(drop).map_err(|error| error.to_string())
    };
    for name in ["fixed-plain", "fixed-full"] {
        change(name, json!({ "claimant": { "uid": "u-2" } })).await.unwrap();
        for spec in [
            json!({ "claimant": { "namespace": "team-b" } }),
            json!({ "claimant": { "name": "w-2" } }),
            json!({ "clusterName": "d" }),
            json!({ "role": "ControlPlane" }),
            json!({ "nodeName": "w-2" }),
            json!({ "providerID": format!("bedplate://{name}/u-2") }),
            json!({ "release": "Wipe" }),
            json!({ "configurationRef": { "name": "other" } }),
            json!({ "configurationRef": { "version": 2 } }),
            json!({ "bootstrapSecretName": "t" }),
        ] {
            let why = change(name, spec.clone()).await.expect_err(&spec.to_string());
            assert!(why.contains("cannot be changed"), "{name} {spec}: {why}");
        }
    }
    for spec in [json!({ "configurationRef": { "version": null } }), json!({ "bootstrapSecretName": null })] {
        let why = change("fixed-full", spec.clone()).await.expect_err(&spec.to_string());
        assert!(why.contains("cannot be changed"), "{spec}: {why}");
    }
}

/// Tools such as kstatus take an object for a finished one whose status does not say which generation it was derived from.
#[tokio::test]
async fn status_that_no_program_has_written_is_of_no_generation() {
    let client = admin().await;
    for object in [configuration("unseen"), version("unseen", 1), operation("unseen")] {
        create(&client, &object).await;
        let name = object["metadata"]["name"].as_str().unwrap();
        let made = api(&client, &object).get(name).await.unwrap();
        assert_eq!(made.data["status"], json!({ "observedGeneration": -1 }), "{name}");
    }
}

#[tokio::test]
async fn explicit_null_counts_as_absent() {
    let client = admin().await;
    let mut object = machine("nulls");
    object["spec"]["bmc"] = Value::Null;
    object["spec"]["pxe"]["image"] = json!({ "name": "host", "reference": null });
    let made = try_create(&client, &object).await.unwrap();
    assert!(made["spec"].get("bmc").is_none(), "{made}");
}

#[tokio::test]
async fn free_form_kubelet_settings_are_kept_whole() {
    let client = admin().await;
    let made = try_create(&client, &configuration("free")).await.unwrap();
    assert_eq!(made["spec"]["template"]["kubernetes"]["kubeletConfiguration"], json!({ "maxPods": 20 }));
}

/// V2: the API server itself holds a deployed version, against the cluster's administrator too.
#[tokio::test]
async fn v2_deployed_version_is_immutable_even_for_cluster_admin() {
    let client = admin().await;
    let object = version("immutable", 1);
    create(&client, &object).await;
    let versions = api(&client, &object);
    let spec = async |patch: Value| {
        versions
            .patch("immutable-v1", &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(|e| e.to_string())
    };
    let status = async |patch: Value| {
        let patch = Patch::Merge(json!({ "status": patch }));
        versions
            .patch_status("immutable-v1", &PatchParams::default(), &patch)
            .await
            .map_err(|e| e.to_string())
    };
    let image =
        |tag: &str| json!({ "spec": { "template": { "image": { "reference": tag, "allowTag": true } } } });
    let max_pods = |count: u32| json!({ "spec": { "template": { "kubernetes": { "kubeletConfiguration": { "maxPods": count } } } } });

    status(json!({ "deployed": false })).await.unwrap();
    spec(image("registry.example/node:2")).await.expect("not deployed yet: an edit still goes in");
    status(json!({ "deployed": true, "machines": 1 })).await.unwrap();

    for change in [image("registry.example/node:3"), max_pods(21)] {
        let why = spec(change).await.expect_err("deployed");
        assert!(why.contains("a deployed version cannot be changed"), "{why}");
    }
    status(json!({ "machines": 2 })).await.expect("the status may change");
    for back in [json!({ "deployed": false }), json!({ "deployed": null })] {
        let why = status(back).await.expect_err("deployed");
        assert!(why.contains("status.deployed never goes back"), "{why}");
    }
    spec(json!({ "metadata": { "labels": { "a": "b" } } })).await.expect("metadata may change");
}

#[tokio::test]
async fn operation_spec_is_immutable_and_its_status_is_not() {
    let client = admin().await;
    let object = operation("immutable");
    create(&client, &object).await;
    let operations = api(&client, &object);
    let patch = Patch::Merge(json!({ "spec": { "parameters": { "delay": "5" } } }));
    let why = operations.patch("immutable", &PatchParams::default(), &patch).await.unwrap_err().to_string();
    assert!(why.contains("the spec of a MachineOperation cannot be changed"), "{why}");
    let patch = Patch::Merge(json!({ "status": { "state": "Pending" } }));
    operations.patch_status("immutable", &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn o1_conditions_of_an_end_agree_with_the_state() {
    let client = admin().await;
    let object = operation("agree");
    create(&client, &object).await;
    let operations = api(&client, &object);
    let write = async |state: &str, type_: &str, status: &str| {
        let condition = json!({ "type": type_, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let patch = Patch::Merge(json!({ "status": { "state": state, "conditions": [condition] } }));
        operations
            .patch_status("agree", &PatchParams::default(), &patch)
            .await
            .map_err(|error| error.to_string())
    };
    for (state, type_, status, is_accepted) in [
        ("InProgress", "Complete", "True", false),
        ("Failed", "Complete", "True", false),
        ("Failed", "Failed", "False", false),
        ("InProgress", "Complete", "False", true),
        ("Failed", "Failed", "True", true),
        ("Complete", "Complete", "True", true),
        // Without its condition, an end is one that `kubectl wait` does not see.
        ("Complete", "Suspended", "True", false),
        ("Failed", "Suspended", "True", false),
        ("InProgress", "Suspended", "True", true),
    ] {
        let written = write(state, type_, status).await;
        assert_eq!(written.is_ok(), is_accepted, "{state} {type_} {status}: {written:?}");
        if let Err(why) = written {
            assert!(
                why.contains("conditions Complete and Failed must be True when state is the same word"),
                "{why}"
            );
        }
    }
}

/// The attack: a compromised host makes its Machine so large that the writes of pxed and the controller are refused.
#[tokio::test]
async fn trust_4_texts_of_a_status_have_bounds() {
    let client = admin().await;
    let object = machine("bounds");
    create(&client, &object).await;
    let machines = api(&client, &object);
    let disks = |count: usize, length: usize| {
        let disks = vec![json!({ "name": "x".repeat(length), "byID": ["y".repeat(length)] }); count];
        json!({ "hardware": { "disks": disks } })
    };
    let condition = |status: &str, reason: usize, message: usize| {
        json!({ "conditions": [{ "type": "Paved", "status": status, "reason": "R".repeat(reason), "message": "m".repeat(message),
            "lastTransitionTime": "2026-01-01T00:00:00Z" }] })
    };
    let product = |length: usize| json!({ "hardware": { "product": "p".repeat(length) } });
    let heard_at = |time: &str| json!({ "agent": { "lastHeartbeatTime": time } });
    let heard = |digits: usize| heard_at(&format!("2026-01-01T00:00:00.{}Z", "0".repeat(digits)));
    for (status, is_accepted) in [
        (product(256), true),
        (product(257), false),
        (disks(192, 256), true),
        (disks(193, 256), false),
        (heard(9), true),
        (heard(10), false),
        (heard(100), false),
        (heard_at("2999-12-31T23:59:59+23:59"), true),
        // Programs cannot count these times.
        (heard_at("9999-12-31T23:59:59Z"), false),
        (heard_at("2026-01-01T00:00:00+99:99"), false),
        (condition("True", 1024, 4096), true),
        (condition("True", 1025, 1), false),
        (condition("True", 1, 4097), false),
        (condition("Perhaps", 1, 1), false),
    ] {
        let patch = Patch::Merge(json!({ "status": status }));
        let written = machines.patch_status("bounds", &PatchParams::default(), &patch).await;
        let why = written.map(drop).map_err(|error| error.to_string());
        assert_eq!(
            why.is_ok(),
            is_accepted,
            "{why:?}: {}",
            status.to_string().chars().take(80).collect::<String>()
        );
    }
}

#[tokio::test]
async fn conditions_of_several_writers_are_merged_by_type() {
    let client = admin().await;
    let object = machine("conditions");
    create(&client, &object).await;
    let machines = api(&client, &object);
    for (writer, condition) in [("pxed", "Booted"), ("bedplate-agent", "Paved")] {
        let status = json!({
            "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "conditions" },
            "status": { "conditions": [{ "type": condition, "status": "True", "reason": "Done", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }] }
        });
        machines
            .patch_status("conditions", &PatchParams::apply(writer), &Patch::Apply(status))
            .await
            .unwrap();
    }
    let made = machines.get("conditions").await.unwrap();
    let types: Vec<_> =
        made.data["status"]["conditions"].as_array().unwrap().iter().map(|c| &c["type"]).collect();
    assert_eq!(types, ["Booted", "Paved"]);
}

#[tokio::test]
async fn machines_are_selected_by_provider_and_site() {
    let client = admin().await;
    for (name, site) in [("selected-a", "select-a"), ("selected-b", "select-b")] {
        create(&client, &with(&machine(name), &json!({ "spec": { "site": site } }))).await;
    }
    let parameters = kube::api::ListParams::default().fields("spec.provider=pxe,spec.site=select-a");
    let found = api(&client, &machine("any")).list(&parameters).await.unwrap();
    assert_eq!(found.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["selected-a"]);
}

#[tokio::test]
async fn kubectl_knows_short_names_category_and_columns() {
    let client = admin().await;
    let object = with(
        &machine("columns"),
        &json!({ "spec": { "site": "columns", "bmc": { "protocol": "Redfish", "address": "https://bmc-7.example",
            "credentialsSecretRef": { "namespace": "bmc", "name": "node-7" } }, "pxe": { "image": { "name": "host" } } } }),
    );
    create(&client, &object).await;
    let status = json!({ "status": {
        "phase": "Booting", "selected": { "name": "workers", "version": 3, "source": "Selector" },
        "nodeRef": { "name": "columns", "uid": "u" }, "power": { "state": "On" }, "boot": { "stage": "Kernel" },
        "conditions": [{ "type": "Ready", "status": "False", "reason": "Booting", "lastTransitionTime": "2026-01-01T00:00:00Z",
            "message": "waiting for the initrd" }] } });
    api(&client, &object)
        .patch_status("columns", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
    let kubernetes = Kubernetes::shared();
    let get = |arguments: &[&str]| kubernetes.kubectl(&kubernetes.admin(), arguments).unwrap();

    let narrow = get(&["get", "mach", "columns"]);
    let (head, row) = narrow.split_once('\n').unwrap();
    assert_eq!(
        head.split_whitespace().collect::<Vec<_>>(),
        ["NAME", "PHASE", "CONFIG", "VERSION", "NODE", "POWER", "WAITING", "AGE"]
    );
    assert!(row.starts_with("columns"), "{row}");
    for text in ["Booting", "workers", "On", "waiting for the initrd"] {
        assert!(row.contains(text), "{text} is missing: {row}");
    }
    let wide = get(&["get", "mach", "columns", "-o", "wide"]);
    let titles = wide.lines().next().unwrap();
    assert!(
        titles
            .split_once("AGE")
            .unwrap()
            .1
            .split_whitespace()
            .eq(["REASON", "CLAIM", "SITE", "BOOT", "STAGE", "MAC", "BMC", "IMAGE"])
    );
    for text in ["MAC", "BMC", "IMAGE", "BOOT STAGE", "52:54:00:00:00:01", "https://bmc-7.example", "Kernel"]
    {
        assert!(wide.contains(text), "{text} is missing: {wide}");
    }
    create(&client, &configuration("columns")).await;
    create(&client, &version("columns", 1)).await;
    create(&client, &operation("columns")).await;
    create(&client, &claim("columns")).await;
    let state =
        Patch::Merge(json!({ "status": { "state": "Joined", "node": { "name": "w-1", "uid": "n" } } }));
    api(&client, &claim("columns")).patch_status("columns", &PatchParams::default(), &state).await.unwrap();
    let ready = json!({ "type": "Ready", "status": "False", "reason": "DrainTimedOut", "message": "Pods are left",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    for object in [configuration("columns"), version("columns", 1)] {
        let name = object["metadata"]["name"].as_str().unwrap();
        let status = Patch::Merge(json!({ "status": { "conditions": [ready] } }));
        api(&client, &object).patch_status(name, &PatchParams::default(), &status).await.unwrap();
    }
    for (arguments, texts) in [
        (&["get", "mc", "columns"][..], &["READY", "False", "REASON", "DrainTimedOut"][..]),
        (&["get", "mc", "columns", "-o", "wide"], &["MESSAGE", "Pods are left", "STRATEGY", "OnDelete"]),
        (&["get", "mcv", "columns-v1"], &["columns", "READY", "False"]),
        (&["get", "mop", "columns"], &["reboot"]),
        (&["get", "mcl", "columns"], &["NAMESPACE", "team-a", "CLAIMANT", "w-1", "STATE", "Joined", "NODE"]),
        (
            &["get", "mcl", "columns", "-o", "wide"],
            &["RELEASE", "Empty", "PROVIDERID", "bedplate://columns/u-1"],
        ),
        (&["get", "mop", "columns", "-o", "wide"], &["EXECUTOR", "MESSAGE", "TOTAL", "COMPLETE", "FAILED"]),
    ] {
        let row = get(arguments);
        for text in texts {
            assert!(row.contains(text), "{text} is missing: {row}");
        }
    }
    let all = get(&["get", "bedplate", "-o", "name"]);
    for name in ["machine.bedplate.dev/columns", "machineconfiguration.bedplate.dev/columns"] {
        assert!(all.contains(name), "{all}");
    }
}

/// kstatus takes an object without `observedGeneration` and without `Ready` for a reconciled one.
#[tokio::test]
async fn kstatus_waits_for_a_machine_from_its_creation_on() {
    let client = admin().await;
    let object = machine("kstatus");
    let machines = api(&client, &object);
    let now = async || serde_json::to_value(machines.get("kstatus").await.unwrap()).unwrap();
    let ready = async |status: &str, generation: i64| {
        let condition = json!({ "type": "Ready", "status": status, "reason": "R", "message": "",
            "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let status = json!({ "status": { "observedGeneration": generation, "conditions": [condition] } });
        machines.patch_status("kstatus", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    };
    create(&client, &object).await;
    let new = now().await;
    assert_eq!(new["status"], json!({ "observedGeneration": -1 }));
    assert_eq!(kstatus::of(&new), Kstatus::InProgress);
    ready("False", 1).await;
    assert_eq!(kstatus::of(&now().await), Kstatus::InProgress);
    ready("True", 1).await;
    assert_eq!(kstatus::of(&now().await), Kstatus::Current);
    let edit = Patch::Merge(json!({ "spec": { "paused": true } }));
    machines.patch("kstatus", &PatchParams::default(), &edit).await.unwrap();
    assert_eq!(kstatus::of(&now().await), Kstatus::InProgress, "the edit is not observed");
    ready("True", 2).await;
    assert_eq!(kstatus::of(&now().await), Kstatus::Current);
}
