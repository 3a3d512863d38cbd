//! Tests of the contract's fields.

use serde_json::{Value, from_value, json};

use super::*;
use crate::cluster::part::MachineAddressType;

fn read(object: Value) -> Referenced {
    from_value(object).unwrap()
}

#[test]
fn version_is_the_latest_of_the_preferred_contract() {
    let version = |labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        api_version(&labels).map(|found| (found.contract, found.version))
    };
    let (one, two) = ("cluster.x-k8s.io/v1beta1", "cluster.x-k8s.io/v1beta2");
    use ContractGeneration::{V1Beta1, V1Beta2};
    assert_eq!(version(&[(one, "v1"), (two, "v1beta2")]), Some((V1Beta2, "v1beta2".to_owned())));
    assert_eq!(
        version(&[(one, "v1beta2_v1_v2alpha1_v1beta10"), (two, "")]),
        Some((V1Beta1, "v1".to_owned()))
    );
    assert_eq!(version(&[(two, "v1beta2_v1beta10_v1alpha1")]), Some((V1Beta2, "v1beta10".to_owned())));
    assert_eq!(version(&[("cluster.x-k8s.io/v1alpha4", "v1alpha4")]), None);
    assert_eq!(version(&[(two, "_")]), None);
}

#[test]
fn m4_bootstrap_object_is_read_in_both_contracts() {
    let now =
        read(json!({ "status": { "initialization": { "dataSecretCreated": true }, "dataSecretName": "s" } }));
    let earlier = read(json!({ "status": { "ready": true, "dataSecretName": "s" } }));
    for object in [now, earlier] {
        let contract = object.contract;
        assert_eq!(
            (contract.data_secret_created, contract.data_secret_name.as_deref()),
            (Some(true), Some("s"))
        );
    }
    let both = read(
        json!({ "status": { "initialization": { "dataSecretCreated": false }, "ready": true, "dataSecretName": "" } }),
    );
    assert_eq!((both.contract.data_secret_created, both.contract.data_secret_name), (Some(false), None));
}

#[test]
fn m7_infrastructure_machine_is_read_in_both_contracts() {
    let now = json!({ "spec": { "providerID": "p://1" }, "status": { "initialization": { "provisioned": true }, "failureDomain": "a",
        "interruptible": true, "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }, { "type": "Later", "address": "x" },
            { "type": "Hostname", "address": "" }, 7, { "type": "ExternalDNS", "address": "h.example" }] } });
    let contract = read(now).contract;
    assert_eq!((contract.provisioned, contract.provider_id.as_deref()), (Some(true), Some("p://1")));
    assert_eq!((contract.failure_domain.as_deref(), contract.interruptible), (Some("a"), true));
    let types: Vec<_> = contract.addresses.iter().map(|address| address.type_).collect();
    assert_eq!(types, [MachineAddressType::InternalIP, MachineAddressType::ExternalDNS]);
    let earlier =
        json!({ "spec": { "failureDomain": "b" }, "status": { "ready": true, "failureReason": "Lost" } });
    let contract = read(earlier).contract;
    assert_eq!((contract.provisioned, contract.failure_domain.as_deref()), (Some(true), Some("b")));
    assert_eq!(
        contract.failure,
        Some(Failure { reason: "Lost".into(), message: String::new() }),
        "M10: shown only"
    );
}

#[test]
fn k4_endpoint_needs_host_and_port() {
    let endpoint =
        |value: Value| read(json!({ "spec": { "controlPlaneEndpoint": value } })).contract.endpoint;
    assert_eq!(
        endpoint(json!({ "host": "h", "port": 6443 })),
        Some(Endpoint { host: "h".into(), port: 6443 })
    );
    for incomplete in [
        json!({ "host": "h" }),
        json!({ "host": "", "port": 6443 }),
        json!({ "host": "h", "port": 0 }),
        json!({ "host": "h", "port": 70000 }),
        json!("h:6443"),
        json!(null),
    ] {
        assert_eq!(endpoint(incomplete.clone()), None, "{incomplete}");
    }
}

#[test]
fn failure_domains_are_read_as_list_and_as_map() {
    let list = json!([{ "name": "b", "controlPlane": true, "attributes": { "k": "v" } }, { "name": "a" }, { "name": "b" }, {}]);
    let map = json!({ "b": { "controlPlane": true, "attributes": { "k": "v" } }, "a": {}, "": {}, "c": 7 });
    for domains in [list, map] {
        let found = read(json!({ "status": { "failureDomains": domains } })).contract.failure_domains;
        let seen: Vec<_> = found
            .iter()
            .map(|domain| (domain.name.as_str(), domain.control_plane, domain.attributes.len()))
            .collect();
        assert_eq!(seen, [("a", None, 0), ("b", Some(true), 1)]);
    }
}

#[test]
fn k6_control_plane_is_read_in_both_contracts() {
    let now = json!({ "spec": { "replicas": 3, "version": "v1.34.2" }, "status": { "initialization": { "controlPlaneInitialized": true },
        "version": "v1.33.0", "replicas": 3, "readyReplicas": 2, "availableReplicas": 1, "upToDateReplicas": 0 } });
    let earlier = json!({ "spec": { "replicas": 3, "version": "v1.34.2" }, "status": { "initialized": true, "ready": false,
        "version": "v1.33.0", "replicas": 3, "readyReplicas": 2, "availableReplicas": 1, "updatedReplicas": 0 } });
    for object in [now, earlier] {
        let contract = read(object).contract;
        assert_eq!(contract.initialized, Some(true));
        assert_eq!(
            (contract.version.as_deref(), contract.status_version.as_deref()),
            (Some("v1.34.2"), Some("v1.33.0"))
        );
        let counts = CountsView {
            desired: Some(3),
            existing: Some(3),
            ready: Some(2),
            available: Some(1),
            up_to_date: Some(0),
        };
        assert_eq!(contract.replicas, counts);
        assert!(!contract.is_externally_managed);
    }
    let external = read(json!({ "status": { "externalManagedControlPlane": true } }));
    assert!(external.contract.is_externally_managed);
}

#[test]
fn condition_without_status_or_time_is_invalid_and_hides_no_other() {
    let time = "2026-01-01T00:00:00Z";
    let object = read(json!({ "status": { "conditions": [
        { "type": "Ready", "status": "True", "severity": "", "lastTransitionTime": time },
        { "type": "Available", "status": "Maybe", "lastTransitionTime": time },
        { "type": "ScalingUp", "status": "False", "reason": "NotScalingUp" },
        { "type": "Other", "status": "True", "lastTransitionTime": time },
        { "status": "True" },
        "text",
    ] } }));
    let Mirrored::Is(ready) = object.condition("Ready") else { panic!("Ready is valid") };
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("True", ""));
    assert_eq!(object.condition("Available"), Mirrored::Invalid);
    assert_eq!(object.condition("ScalingUp"), Mirrored::Invalid);
    assert_eq!(object.condition("Other"), Mirrored::Absent, "only the types that are read are kept");
    assert_eq!(object.condition("RollingOut"), Mirrored::Absent);
}

#[test]
fn conditions_of_v1beta2_are_preferred_in_an_object_of_v1beta1() {
    let time = "2026-01-01T00:00:00Z";
    let condition =
        |status| json!([{ "type": "Ready", "status": status, "reason": "R", "lastTransitionTime": time }]);
    let object = read(
        json!({ "status": { "conditions": condition("True"), "v1beta2": { "conditions": condition("False") } } }),
    );
    let Mirrored::Is(ready) = object.condition("Ready") else { panic!("Ready is valid") };
    assert_eq!(ready.status, "False");
}

#[test]
fn field_of_another_form_counts_as_absent() {
    let object = read(json!({
        "metadata": { "name": "m", "annotations": { "cluster.x-k8s.io/paused": "", "x.cluster.x-k8s.io/y": "", "kubectl.kubernetes.io/last-applied-configuration": "{}" },
            "managedFields": [{ "manager": "m", "operation": "Update" }] },
        "spec": { "providerID": 7, "replicas": "3", "version": [], "failureDomain": {} },
        "status": { "initialization": true, "ready": "yes", "addresses": {}, "failureDomains": 1, "conditions": "none", "v1beta2": [],
            "deprecated": 1, "failureReason": 1, "version": 1.34, "replicas": 1e20 },
    }));
    assert_eq!(object.contract, Contract::default());
    let annotations: Vec<_> = object.metadata.annotations.unwrap().into_keys().collect();
    assert_eq!(annotations, ["cluster.x-k8s.io/paused", "x.cluster.x-k8s.io/y"]);
    assert_eq!(object.metadata.managed_fields, None);
    for value in
        [json!(null), json!("text"), json!(7), json!(-7), json!(1.5), json!(true), json!([{ "a": 1 }])]
    {
        let object = read(json!({ "metadata": { "name": "m" }, "spec": value, "status": value }));
        assert_eq!(object.contract, Contract::default(), "{value}");
    }
}

#[test]
fn long_message_of_a_condition_is_shortened() {
    let condition = json!({ "type": "Ready", "status": "False", "reason": "R", "message": "\u{1f6e0}".repeat(40_000),
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let object = read(json!({ "status": { "conditions": [condition] } }));
    let Mirrored::Is(ready) = object.condition("Ready") else { panic!("Ready is valid") };
    assert_eq!(ready.message.chars().count(), 32_768);
}

/// The API server would refuse each write of such a text, for ever.
#[test]
fn text_that_no_machine_can_show_counts_as_absent() {
    let object = |characters: usize| {
        let text = "a".repeat(characters);
        let endpoint = json!({ "host": text, "port": 1 });
        read(json!({ "spec": { "providerID": text, "controlPlaneEndpoint": endpoint },
            "status": { "dataSecretName": text, "failureDomain": text } }))
        .contract
    };
    let (short, long) = (object(253), object(513));
    assert!(short.provider_id.is_some() && short.endpoint.is_some() && short.data_secret_name.is_some());
    assert!(short.failure_domain.is_some());
    assert_eq!(long, Contract::default());
}
