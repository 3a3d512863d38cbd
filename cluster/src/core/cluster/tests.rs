//! Rules of the planner of Clusters, by cases.

use std::time::Duration;

use bedplate_api::cluster::contract::{Endpoint, Referenced};
use bedplate_api::cluster::full::cluster::{ClusterPhase, ClusterStatus};
use bedplate_api::cluster::full::{Cluster, Machine, MachineDeployment, MachineSet};
use bedplate_api::reason::core::ClusterDeletingReason;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::deletion::{Child, ChildKind, step};
use super::observed::{AuthoritySecret, Component, KubeconfigSecret, Observed, Refused};
use super::plan::{Act, Plan, plan};
use crate::core::machine::node::Connection;
use crate::core::reference::Lookup;

const TIME: &str = "2026-01-01T00:00:00Z";

pub(super) fn now() -> Timestamp {
    TIME.parse().unwrap()
}

fn read<K: DeserializeOwned>(value: Value) -> std::sync::Arc<K> {
    std::sync::Arc::new(serde_json::from_value(value).unwrap())
}

/// Merges a change into an object (RFC 7386).
fn merge(object: &mut Value, change: Value) {
    match (object, change) {
        (Value::Object(object), Value::Object(change)) => {
            for (key, value) in change {
                if value.is_null() {
                    object.remove(&key);
                } else {
                    merge(object.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (object, change) => *object = change,
    }
}

/// A Cluster with both references and its finalizer.
fn cluster(change: Value) -> Cluster {
    let mut object = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": { "name": "c1", "namespace": "ns", "uid": "u1", "generation": 3,
            "finalizers": ["cluster.cluster.x-k8s.io"] },
        "spec": {
            "infrastructureRef": { "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateCluster", "name": "i1" },
            "controlPlaneRef": { "apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "k1" } } });
    merge(&mut object, change);
    serde_json::from_value(object).unwrap()
}

fn owned() -> Value {
    json!({ "name": "o", "uid": "o", "labels": { "cluster.x-k8s.io/cluster-name": "c1" }, "ownerReferences": [
        { "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c1", "uid": "u1" }] })
}

pub(super) fn referenced(change: Value) -> Lookup {
    let mut object = json!({ "metadata": owned() });
    merge(&mut object, change);
    Lookup::Found(read::<Referenced>(object))
}

fn infrastructure() -> Lookup {
    referenced(json!({ "spec": { "controlPlaneEndpoint": { "host": "10.0.0.1", "port": 6443 } },
        "status": { "initialization": { "provisioned": true }, "failureDomains": [{ "name": "a", "controlPlane": true }] } }))
}

fn control_plane() -> Lookup {
    referenced(
        json!({ "spec": { "controlPlaneEndpoint": { "host": "10.0.0.2", "port": 6443 }, "replicas": 3 },
        "status": { "initialization": { "controlPlaneInitialized": true }, "replicas": 3, "readyReplicas": 2 } }),
    )
}

pub(super) fn observed(change: Value) -> Observed {
    Observed {
        cluster: std::sync::Arc::new(cluster(change)),
        infrastructure: infrastructure(),
        control_plane: control_plane(),
        deployments: Vec::new(),
        sets: Vec::new(),
        machines: Vec::new(),
        pools: 0,
        kubeconfig: KubeconfigSecret::NotRead,
        authority: AuthoritySecret::NotRead,
        connection: Connection { last_success: Some(now()), is_lost: false },
        refused: None,
        unread: None,
    }
}

fn with_endpoint() -> Value {
    json!({ "spec": { "controlPlaneEndpoint": { "host": "user", "port": 443 } } })
}

fn without_control_plane() -> Value {
    json!({ "spec": { "controlPlaneRef": null, "controlPlaneEndpoint": { "host": "user", "port": 443 } } })
}

fn deleting() -> Value {
    json!({ "metadata": { "deletionTimestamp": TIME } })
}

pub(super) fn machine(name: &str, change: Value) -> std::sync::Arc<Machine> {
    let mut object = json!({ "metadata": { "name": name, "uid": name, "namespace": "ns", "labels": {},
        "creationTimestamp": "2025-12-31T00:00:00Z" },
        "spec": { "clusterName": "c1", "infrastructureRef": { "apiGroup": "g", "kind": "K", "name": name } } });
    merge(&mut object, change);
    read(object)
}

fn is_control_plane() -> Value {
    json!({ "metadata": { "labels": { "cluster.x-k8s.io/control-plane": "" } } })
}

fn managed_by(kind: &str) -> Value {
    json!({ "metadata": { "ownerReferences": [{ "apiVersion": "g/v1", "kind": kind, "name": "x", "uid": "x",
        "controller": true }] } })
}

fn template() -> Value {
    json!({ "spec": { "clusterName": "c1", "infrastructureRef": { "apiGroup": "g", "kind": "K", "name": "t" } } })
}

pub(super) fn deployment(name: &str, change: Value) -> std::sync::Arc<MachineDeployment> {
    let mut object = json!({ "metadata": { "name": name, "uid": name },
        "spec": { "clusterName": "c1", "template": template() } });
    merge(&mut object, change);
    read(object)
}

pub(super) fn set(name: &str, change: Value) -> std::sync::Arc<MachineSet> {
    let mut object = json!({ "metadata": { "name": name, "uid": name },
        "spec": { "clusterName": "c1", "template": template() } });
    merge(&mut object, change);
    read(object)
}

fn planned(observed: &Observed) -> Plan {
    plan(observed, now())
}

fn status(observed: &Observed) -> ClusterStatus {
    super::status::status(observed, None, now())
}

fn condition<'a>(status: &'a ClusterStatus, type_: &str) -> &'a Condition {
    status.conditions.iter().find(|condition| condition.type_ == type_).unwrap()
}

/// Returns status, reason and message of a condition.
fn shown(observed: &Observed, type_: &str) -> (String, String, String) {
    let status = status(observed);
    let condition = condition(&status, type_).clone();
    (condition.status, condition.reason, condition.message)
}

fn words(observed: &Observed, type_: &str) -> (String, String) {
    let (status, reason, _) = shown(observed, type_);
    (status, reason)
}

fn pair(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[test]
fn k5_finalizer_comes_before_every_other_act() {
    let observed = observed(json!({ "metadata": { "finalizers": null } }));
    let plan = planned(&observed);
    assert_eq!(plan.act, Act::AddFinalizer);
    assert_eq!(plan.status, None, "the status would be bound to the version before");
}

#[test]
fn k2_object_without_cluster_owner_is_adopted_and_labeled() {
    let free = json!({ "metadata": { "labels": null, "ownerReferences": [
        { "apiVersion": "g/v1", "kind": "Other", "name": "x", "uid": "x", "controller": true },
        { "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster", "name": "c1", "uid": "before" }] } });
    for component in [Component::Infrastructure, Component::ControlPlane] {
        let mut observed = observed(with_endpoint());
        match component {
            Component::Infrastructure => observed.infrastructure = referenced(free.clone()),
            Component::ControlPlane => observed.control_plane = referenced(free.clone()),
        }
        let Act::Adopt { component: adopted, owners } = planned(&observed).act else {
            panic!("{component:?}")
        };
        assert_eq!(adopted, component);
        let owners: Vec<_> =
            owners.iter().map(|owner| (owner.uid.as_str(), owner.controller.is_some())).collect();
        assert_eq!(
            owners,
            [("x", true), ("u1", false)],
            "the controller of a user stays, a stale Cluster goes"
        );
    }
}

#[test]
fn k2_owned_object_without_label_gets_the_label_once() {
    let mut observed = observed(with_endpoint());
    observed.infrastructure = referenced(json!({ "metadata": { "labels": null } }));
    let Act::Adopt { owners, .. } = planned(&observed).act else { panic!() };
    assert_eq!(owners.len(), 1);
    observed.infrastructure = infrastructure();
    assert_eq!(planned(&observed).act, Act::None);
}

#[test]
fn k2_object_of_another_cluster_is_not_adopted_followed_or_deleted() {
    let foreign = json!({ "metadata": { "ownerReferences": [
        { "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c2", "uid": "u2" }] },
        "spec": { "controlPlaneEndpoint": { "host": "other", "port": 1 } },
        "status": { "initialization": { "provisioned": true, "controlPlaneInitialized": true } } });
    let mut live = observed(json!({}));
    live.infrastructure = referenced(foreign.clone());
    live.control_plane = referenced(foreign.clone());
    assert_eq!(planned(&live).act, Act::None);
    let status = status(&live);
    assert_eq!(status.initialization, None);
    let message = "BedplateCluster i1 belongs to Cluster c2; change spec.infrastructureRef".to_owned();
    assert_eq!(
        shown(&live, "InfrastructureReady"),
        ("Unknown".to_owned(), "InternalError".to_owned(), message)
    );
    let mut deleted = observed(deleting());
    deleted.infrastructure = referenced(foreign.clone());
    deleted.control_plane = referenced(foreign);
    assert_eq!(planned(&deleted).act, Act::RemoveFinalizer);
}

/// One such reason would keep the whole status from being stored, with the latches.
#[test]
fn k2_reason_that_the_api_server_rejects_is_replaced() {
    let mut observed = observed(with_endpoint());
    for (status, expected) in [("False", "NotReady"), ("True", "Ready"), ("Unknown", "NotReady")] {
        observed.infrastructure = referenced(
            json!({ "status": { "conditions": [{ "type": "Ready", "status": status,
            "reason": "Waiting for load balancer", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z" }] } }),
        );
        let expected = (status.to_owned(), expected.to_owned(), "m".to_owned());
        assert_eq!(shown(&observed, "InfrastructureReady"), expected);
    }
}

#[test]
fn k2_deleted_object_is_not_adopted() {
    let mut observed = observed(with_endpoint());
    observed.infrastructure =
        referenced(json!({ "metadata": { "ownerReferences": null, "deletionTimestamp": TIME } }));
    assert_eq!(planned(&observed).act, Act::None);
}

#[test]
fn k4_endpoint_is_copied_once_the_infrastructure_is_provisioned() {
    let mut world = observed(json!({}));
    let endpoint = Endpoint { host: "10.0.0.1".to_owned(), port: 6443 };
    let component = Component::Infrastructure;
    assert_eq!(planned(&world).act, Act::SetEndpoint { component, endpoint });
    world.infrastructure =
        referenced(json!({ "spec": { "controlPlaneEndpoint": { "host": "a", "port": 1 } } }));
    world.control_plane = referenced(json!({}));
    assert_eq!(planned(&world).act, Act::None, "it is not provisioned");
    let world = observed(with_endpoint());
    assert_eq!(planned(&world).act, Act::None, "an endpoint that is set stays");
    let partial = observed(json!({ "spec": { "controlPlaneEndpoint": { "host": "user" } } }));
    assert!(matches!(planned(&partial).act, Act::SetEndpoint { .. }), "half an endpoint is none");
}

#[test]
fn k4_endpoint_of_the_control_plane_is_copied_once_it_is_initialized() {
    let mut world = observed(json!({}));
    world.infrastructure = referenced(json!({ "status": { "initialization": { "provisioned": true } } }));
    let (component, endpoint) =
        (Component::ControlPlane, Endpoint { host: "10.0.0.2".to_owned(), port: 6443 });
    assert_eq!(planned(&world).act, Act::SetEndpoint { component, endpoint });
    world.control_plane =
        referenced(json!({ "spec": { "controlPlaneEndpoint": { "host": "b", "port": 1 } } }));
    assert_eq!(planned(&world).act, Act::None);
}

/// Otherwise only an Event has the cause.
#[test]
fn k4_refused_write_is_shown_by_the_condition_that_it_serves() {
    let endpoint = || Endpoint { host: "h".to_owned(), port: 1 };
    let (infrastructure, plane) = (Component::Infrastructure, Component::ControlPlane);
    for (act, type_, start, remedy) in [
        (
            Act::SetEndpoint { component: infrastructure, endpoint: endpoint() },
            "InfrastructureReady",
            "endpoint of BedplateCluster i1 cannot be copied",
            "permit it, or set spec.controlPlaneEndpoint",
        ),
        (
            Act::SetEndpoint { component: plane, endpoint: endpoint() },
            "ControlPlaneAvailable",
            "endpoint of KubeadmControlPlane k1 cannot be copied",
            "permit it, or set spec.controlPlaneEndpoint",
        ),
        (
            Act::Adopt { component: infrastructure, owners: Vec::new() },
            "InfrastructureReady",
            "BedplateCluster i1 cannot be adopted",
            "permit it",
        ),
        (Act::MakeKubeconfig, "RemoteConnectionProbe", "kubeconfig cannot be made", "permit it"),
        (Act::DeleteComponent(plane), "Deleting", "KubeadmControlPlane k1 cannot be deleted", "permit it"),
    ] {
        let mut world = observed(json!({}));
        world.connection = Connection::default();
        world.refused = Some(Refused::new(act, "policy says no"));
        let (status, _, message) = shown(&world, type_);
        assert_eq!(status == "True", type_ == "Deleting", "{type_}");
        assert_eq!(message, format!("{start}: policy says no; {remedy}"));
        let refused =
            planned(&world).status.expect("the status is written, although the act changes the Cluster");
        let mut cluster = (*world.cluster).clone();
        cluster.status = Some(*refused);
        world.cluster = std::sync::Arc::new(cluster);
        assert_eq!(plan(&world, now() + jiff::SignedDuration::from_secs(9)).status, None, "once");
    }
}

#[test]
fn k4_failure_domains_follow_the_infrastructure_and_stay_without_it() {
    let mut world = observed(with_endpoint());
    let names = |observed: &Observed| -> Vec<String> {
        status(observed).failure_domains.into_iter().map(|domain| domain.name).collect()
    };
    assert_eq!(names(&world), ["a"]);
    let kept = json!({ "status": { "failureDomains": [{ "name": "b" }], "initialization": { "infrastructureProvisioned": true } } });
    for lookup in [Lookup::Absent, Lookup::NotSynced, Lookup::Unresolved("no".to_owned())] {
        world = observed(kept.clone());
        world.infrastructure = lookup;
        assert_eq!(names(&world), ["b"]);
    }
    world.infrastructure = referenced(json!({}));
    assert!(names(&world).is_empty(), "the infrastructure has none any more");
}

#[test]
fn k4_phase_is_pending_provisioning_provisioned_deleting() {
    let phase = |observed: &Observed| status(observed).phase.unwrap();
    let mut world = observed(json!({}));
    world.control_plane = Lookup::Absent;
    world.infrastructure = referenced(json!({ "metadata": { "ownerReferences": null } }));
    assert_eq!(phase(&world), ClusterPhase::Pending);
    world.infrastructure = referenced(json!({}));
    assert_eq!(phase(&world), ClusterPhase::Provisioning);
    world.infrastructure = infrastructure();
    assert_eq!(phase(&world), ClusterPhase::Provisioning, "the endpoint is not copied yet");
    assert_eq!(phase(&observed(with_endpoint())), ClusterPhase::Provisioned);
    assert_eq!(phase(&observed(deleting())), ClusterPhase::Deleting);
}

#[test]
fn k4_provisioned_latches_and_needs_no_infrastructure_reference() {
    let provisioned = |observed: &Observed| {
        status(observed).initialization.and_then(|latched| latched.infrastructure_provisioned)
    };
    let mut world = observed(json!({}));
    assert_eq!(provisioned(&world), Some(true));
    world.infrastructure = referenced(json!({}));
    assert_eq!(provisioned(&world), None);
    world = observed(json!({ "status": { "initialization": { "infrastructureProvisioned": true } } }));
    for lookup in [referenced(json!({})), Lookup::Absent, Lookup::NotSynced] {
        world.infrastructure = lookup;
        assert_eq!(provisioned(&world), Some(true));
    }
    assert_eq!(provisioned(&observed(json!({ "spec": { "infrastructureRef": null } }))), Some(true));
}

#[test]
fn k6_initialized_follows_the_reference_and_stays() {
    let mut world = observed(json!({}));
    assert_eq!(words(&world, "ControlPlaneInitialized"), pair("True", "Initialized"));
    world.control_plane = referenced(json!({}));
    // A Machine with a Node does not count: the control plane decides.
    let node = json!({ "metadata": { "labels": { "cluster.x-k8s.io/control-plane": "" } }, "status": { "nodeRef": { "name": "n" } } });
    world.machines = vec![machine("m", node)];
    assert_eq!(words(&world, "ControlPlaneInitialized"), pair("False", "NotInitialized"));
    world.control_plane = Lookup::Unresolved("kind is not installed".to_owned());
    assert_eq!(words(&world, "ControlPlaneInitialized"), pair("Unknown", "InternalError"));
    let latched = json!({ "status": { "initialization": { "controlPlaneInitialized": true } } });
    for lookup in [referenced(json!({})), Lookup::Absent, Lookup::Unresolved(String::new())] {
        world = observed(latched.clone());
        world.control_plane = lookup;
        assert_eq!(words(&world, "ControlPlaneInitialized"), pair("True", "Initialized"));
    }
}

#[test]
fn k6_without_reference_a_control_plane_machine_with_node_initializes() {
    let cases = [
        (json!({ "status": { "nodeRef": { "name": "n" } } }), is_control_plane(), true),
        (json!({}), is_control_plane(), false),
        (json!({ "status": { "nodeRef": { "name": "n" } } }), json!({}), false),
        (
            json!({ "metadata": { "deletionTimestamp": TIME }, "status": { "nodeRef": { "name": "n" } } }),
            is_control_plane(),
            false,
        ),
    ];
    for (mut change, label, is_initialized) in cases {
        merge(&mut change, label);
        let mut world = observed(without_control_plane());
        world.machines = vec![machine("m", change.clone())];
        let latched = status(&world).initialization.unwrap();
        assert_eq!(latched.control_plane_initialized == Some(true), is_initialized, "{change}");
    }
}

#[test]
fn k6_available_shows_the_condition_of_the_control_plane() {
    let mut world = observed(json!({}));
    assert_eq!(words(&world, "ControlPlaneAvailable"), pair("True", "Available"), "fallback");
    world.control_plane = referenced(json!({}));
    assert_eq!(shown(&world, "ControlPlaneAvailable").2, "KubeadmControlPlane k1 is not initialized yet");
    let with = |condition: Value| referenced(json!({ "status": { "conditions": [condition] } }));
    world.control_plane = with(
        json!({ "type": "Available", "status": "False", "reason": "R", "message": "m", "lastTransitionTime": TIME }),
    );
    assert_eq!(shown(&world, "ControlPlaneAvailable"), ("False".to_owned(), "R".to_owned(), "m".to_owned()));
    world.control_plane = with(json!({ "type": "Available", "status": "True", "lastTransitionTime": TIME }));
    assert_eq!(words(&world, "ControlPlaneAvailable"), pair("True", "Available"));
    world.control_plane = with(json!({ "type": "Available", "status": "Yes" }));
    assert_eq!(words(&world, "ControlPlaneAvailable"), pair("Unknown", "InvalidConditionReported"));
    world.control_plane = Lookup::Absent;
    assert_eq!(words(&world, "ControlPlaneAvailable"), pair("False", "ObjectDoesNotExist"));
    world = observed(json!({ "status": { "initialization": { "controlPlaneInitialized": true } } }));
    world.control_plane = Lookup::Absent;
    assert_eq!(words(&world, "ControlPlaneAvailable"), pair("False", "ObjectDeleted"));
}

#[test]
fn k6_available_without_reference_needs_one_available_machine() {
    let mut world = observed(without_control_plane());
    assert_eq!(words(&world, "ControlPlaneAvailable"), pair("False", "NotAvailable"));
    let mut change = is_control_plane();
    merge(
        &mut change,
        json!({ "status": { "conditions": [{ "type": "Available", "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": TIME }] } }),
    );
    world.machines = vec![machine("m", change)];
    assert_eq!(words(&world, "ControlPlaneAvailable"), pair("True", "Available"));
}

#[test]
fn k4_infrastructure_ready_has_a_reason_for_every_state() {
    let provisioned = json!({ "status": { "initialization": { "infrastructureProvisioned": true } } });
    let absent = Lookup::Absent;
    let unresolved = Lookup::Unresolved("kind is not installed".to_owned());
    for (change, lookup, expected) in [
        (json!({}), infrastructure(), ("True", "Ready")),
        (json!({}), referenced(json!({})), ("False", "NotReady")),
        (json!({}), absent.clone(), ("False", "ObjectDoesNotExist")),
        (provisioned, absent.clone(), ("False", "ObjectDeleted")),
        (json!({}), unresolved, ("Unknown", "InternalError")),
        (json!({}), Lookup::NotSynced, ("Unknown", "InternalError")),
        (json!({ "spec": { "infrastructureRef": null } }), absent, ("True", "Ready")),
    ] {
        let mut world = observed(change);
        world.infrastructure = lookup;
        assert_eq!(words(&world, "InfrastructureReady"), pair(expected.0, expected.1));
    }
}

#[test]
fn k7_kubeconfig_is_made_only_without_control_plane_reference() {
    let mut world = observed(without_control_plane());
    (world.kubeconfig, world.authority) = (KubeconfigSecret::Absent, AuthoritySecret::Usable);
    assert_eq!(planned(&world).act, Act::MakeKubeconfig);
    world.authority = AuthoritySecret::Absent;
    assert_eq!((planned(&world).act, planned(&world).again), (Act::None, Some(Duration::from_secs(30))));
    world = observed(with_endpoint());
    (world.kubeconfig, world.authority) = (KubeconfigSecret::Absent, AuthoritySecret::Usable);
    assert_eq!((planned(&world).act, planned(&world).again), (Act::None, None), "the control plane makes it");
    world = observed(json!({ "spec": { "controlPlaneRef": null } }));
    world.infrastructure = referenced(json!({}));
    (world.kubeconfig, world.authority) = (KubeconfigSecret::Absent, AuthoritySecret::Usable);
    assert_eq!(planned(&world).act, Act::None, "there is no endpoint");
}

#[test]
fn k8_own_kubeconfig_is_renewed_in_time_and_that_of_a_user_never() {
    let mut world = observed(without_control_plane());
    world.authority = AuthoritySecret::Usable;
    let later = now() + jiff::SignedDuration::from_secs(60);
    for (secret, act, again) in [
        (KubeconfigSecret::Made { renews_at: now() }, Act::RenewKubeconfig, None),
        (KubeconfigSecret::Made { renews_at: later }, Act::None, Some(Duration::from_secs(60))),
        (KubeconfigSecret::Given, Act::None, None),
        (KubeconfigSecret::NotRead, Act::None, None),
    ] {
        world.kubeconfig = secret;
        let plan = planned(&world);
        assert_eq!((plan.act, plan.again), (act, again), "{secret:?}");
    }
    world.kubeconfig = KubeconfigSecret::Made { renews_at: now() };
    world.authority = AuthoritySecret::Absent;
    assert_eq!((planned(&world).act, planned(&world).again), (Act::None, Some(Duration::from_secs(30))));
}

#[test]
fn k8_missing_authority_is_named_in_the_probe() {
    let mut world = observed(without_control_plane());
    world.connection = Connection { last_success: None, is_lost: true };
    for (authority, word) in
        [(AuthoritySecret::Absent, "does not exist"), (AuthoritySecret::Unusable, "has no certificate")]
    {
        (world.kubeconfig, world.authority) = (KubeconfigSecret::Absent, authority);
        let (status, reason, message) = shown(&world, "RemoteConnectionProbe");
        assert_eq!((status.as_str(), reason.as_str()), ("False", "ProbeFailed"));
        assert!(message.contains("Secret c1-ca") && message.contains(word), "{message}");
    }
}

/// Without a kubeconfig no Machine has a Node, so nothing is probed.
#[test]
fn k8_cause_without_kubeconfig_is_named_before_any_probe() {
    let mut world = observed(without_control_plane());
    world.connection = Connection::default();
    (world.kubeconfig, world.authority) = (KubeconfigSecret::Absent, AuthoritySecret::Unusable);
    let (status, reason, message) = shown(&world, "RemoteConnectionProbe");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ProbeFailed"));
    assert!(message.contains("Secret c1-ca") && message.ends_with("restore it"), "{message}");
}

#[test]
fn k8_kubeconfig_that_cannot_be_renewed_is_named() {
    let mut world = observed(without_control_plane());
    (world.kubeconfig, world.authority) =
        (KubeconfigSecret::Made { renews_at: now() }, AuthoritySecret::Absent);
    let (status, _, message) = shown(&world, "RemoteConnectionProbe");
    assert_eq!(status, "True", "its certificate is still valid");
    assert!(message.contains("cannot be renewed") && message.contains("Secret c1-ca"), "{message}");
}

#[test]
fn k8_probe_condition_follows_the_decision_of_the_probes() {
    let last = Some(now() - jiff::SignedDuration::from_secs(600));
    let mut world = observed(json!({}));
    for (last_success, is_lost, expected, text) in [
        (last, false, ("True", "ProbeSucceeded"), ""),
        (last, true, ("False", "ProbeFailed"), "does not answer, it answered last at"),
        (None, false, ("False", "ProbeFailed"), "has not answered yet"),
        (None, true, ("False", "ProbeFailed"), "does not answer; check Secret"),
    ] {
        world.connection = Connection { last_success, is_lost };
        assert_eq!(words(&world, "RemoteConnectionProbe"), pair(expected.0, expected.1));
        let message = shown(&world, "RemoteConnectionProbe").2;
        assert!(message.contains(text), "{message}");
    }
    world = observed(json!({ "status": { "conditions": [{ "type": "RemoteConnectionProbe", "status": "True",
        "reason": "ProbeSucceeded", "message": "", "lastTransitionTime": TIME }] } }));
    world.connection = Connection::default();
    assert_eq!(
        words(&world, "RemoteConnectionProbe"),
        pair("True", "ProbeSucceeded"),
        "a restart changes nothing"
    );
}

#[test]
fn paused_cluster_gets_the_condition_only() {
    let changes = [
        json!({ "spec": { "paused": true } }),
        json!({ "metadata": { "annotations": { "cluster.x-k8s.io/paused": "" } } }),
    ];
    for mut change in changes {
        merge(&mut change, json!({ "metadata": { "deletionTimestamp": TIME } }));
        let plan = planned(&observed(change));
        let status = plan.status.unwrap();
        assert_eq!((plan.act, status.conditions.len(), status.phase), (Act::None, 1, None));
        assert_eq!(condition(&status, "Paused").status, "True");
    }
}

#[test]
fn topology_forbids_every_act_but_the_deletion() {
    let topology = json!({ "spec": { "topology": { "classRef": { "name": "x" } } }, "metadata": { "finalizers": null } });
    let plan = planned(&observed(topology));
    let status = plan.status.unwrap();
    assert_eq!((plan.act, status.conditions.len()), (Act::None, 2));
    let fields = condition(&status, "FieldsSupported");
    assert_eq!((fields.status.as_str(), fields.reason.as_str()), ("False", "UnsupportedFields"));
    assert!(fields.message.contains("spec.topology"), "{}", fields.message);
    let deleted = json!({ "spec": { "topology": {} }, "metadata": { "deletionTimestamp": TIME } });
    assert_eq!(planned(&observed(deleted)).act, Act::DeleteComponent(Component::ControlPlane));
}

#[test]
fn settled_cluster_causes_no_write() {
    let mut world = observed(with_endpoint());
    let first = planned(&world);
    assert_eq!(first.act, Act::None);
    let mut cluster = (*world.cluster).clone();
    cluster.status = first.status.map(|status| *status);
    world.cluster = std::sync::Arc::new(cluster);
    assert_eq!(planned(&world), Plan::default());
    // A restart: no watch is synced, and nothing is probed.
    (world.infrastructure, world.control_plane) = (Lookup::NotSynced, Lookup::NotSynced);
    world.connection = Connection::default();
    assert_eq!(planned(&world), Plan::default());
}

#[test]
fn conditions_of_other_programs_are_not_written() {
    let foreign = json!({ "type": "Backup", "status": "True", "reason": "R", "message": "", "lastTransitionTime": TIME });
    let world = observed(json!({ "status": { "conditions": [foreign], "deprecated": {} } }));
    let status = status(&world);
    assert!(status.conditions.iter().all(|condition| condition.type_ != "Backup"));
    assert_eq!((status.deprecated, status.conditions.len()), (None, super::plan::CONDITION_TYPES.len()));
}

#[test]
fn available_is_the_summary_with_gates() {
    let world = observed(with_endpoint());
    assert_eq!(words(&world, "Available"), pair("True", "Available"));
    let gates = json!([{ "conditionType": "Backup" }, { "conditionType": "Broken", "polarity": "Negative" }]);
    let mut change = json!({ "spec": { "availabilityGates": gates } });
    let missing = shown(&observed(change.clone()), "Available");
    assert_eq!((missing.0.as_str(), missing.1.as_str()), ("Unknown", "AvailableUnknown"));
    let given = |type_: &str, status: &str| json!({ "type": type_, "status": status, "reason": "R", "message": "m", "lastTransitionTime": TIME });
    merge(
        &mut change,
        json!({ "status": { "conditions": [given("Backup", "True"), given("Broken", "True")] } }),
    );
    let broken = shown(&observed(change), "Available");
    assert_eq!(
        (broken.0.as_str(), broken.1.as_str(), broken.2.as_str()),
        ("False", "NotAvailable", "* Broken: m")
    );
}

#[test]
fn k6_counts_and_movements_cover_control_plane_and_workers() {
    let mut world = observed(with_endpoint());
    let scaling = json!({ "type": "ScalingUp", "status": "True", "reason": "ScalingUp", "message": "1 of 3", "lastTransitionTime": TIME });
    world.deployments = vec![deployment(
        "d",
        json!({ "spec": { "replicas": 3 }, "status": { "replicas": 1, "readyReplicas": 1, "conditions": [scaling] } }),
    )];
    world.sets = vec![
        set("managed", managed_by("MachineDeployment")),
        set("alone", json!({ "spec": { "replicas": 2 } })),
    ];
    world.machines = vec![machine("managed", managed_by("MachineSet")), machine("alone", json!({}))];
    let shown_status = status(&world);
    let workers = shown_status.workers.unwrap();
    assert_eq!(
        (workers.desired_replicas, workers.replicas, workers.ready_replicas, workers.available_replicas),
        (Some(6), Some(2), Some(1), None)
    );
    let control_plane = shown_status.control_plane.unwrap();
    assert_eq!((control_plane.desired_replicas, control_plane.ready_replicas), (Some(3), Some(2)));
    let (state, reason, message) = shown(&world, "ScalingUp");
    assert_eq!((state.as_str(), reason.as_str()), ("True", "ScalingUp"));
    assert!(message.contains("* MachineDeployment d: 1 of 3"), "{message}");
    assert_eq!(words(&world, "WorkersAvailable"), pair("Unknown", "AvailableUnknown"));
    world.control_plane = Lookup::Unresolved("no kind".to_owned());
    assert_eq!(words(&world, "RollingOut"), pair("Unknown", "InternalError"));
}

#[test]
fn k6_new_machine_without_up_to_date_does_not_count_yet() {
    let mut world = observed(with_endpoint());
    world.machines = vec![machine("old", json!({}))];
    assert_eq!(words(&world, "WorkerMachinesUpToDate"), pair("Unknown", "UpToDateUnknown"));
    world.machines = vec![machine("new", json!({ "metadata": { "creationTimestamp": TIME } }))];
    assert_eq!(words(&world, "WorkerMachinesUpToDate"), pair("True", "NoReplicas"));
    assert_eq!(words(&world, "WorkerMachinesReady"), pair("Unknown", "ReadyUnknown"));
    assert_eq!(words(&world, "ControlPlaneMachinesReady"), pair("True", "NoReplicas"));
}

#[test]
fn remediating_names_marked_and_unhealthy_machines() {
    let bad = |type_: &str| json!({ "type": type_, "status": "False", "reason": "R", "message": "why", "lastTransitionTime": TIME });
    let mut world = observed(with_endpoint());
    world.machines = vec![machine("m", json!({ "status": { "conditions": [bad("HealthCheckSucceeded")] } }))];
    let (state, _, message) = shown(&world, "Remediating");
    assert_eq!(
        (state.as_str(), message.as_str()),
        ("False", "Machine m is not healthy, and not marked for remediation")
    );
    let both = json!({ "status": { "conditions": [bad("HealthCheckSucceeded"), bad("OwnerRemediated")] } });
    world.machines = vec![machine("m", both)];
    let (state, _, message) = shown(&world, "Remediating");
    assert_eq!((state.as_str(), message.as_str()), ("True", "* Machine m: why"));
}

#[test]
fn p8_deletion_takes_workers_then_control_plane_then_infrastructure() {
    let mut world = observed(deleting());
    world.deployments = vec![deployment("d", json!({}))];
    world.sets = vec![set("alone", json!({})), set("managed", managed_by("MachineDeployment"))];
    world.machines = vec![
        machine("cp", is_control_plane()),
        machine("alone", json!({})),
        machine("managed", managed_by("MachineSet")),
    ];
    let child = |kind, name: &str| {
        Act::DeleteChildren(vec![Child { kind, name: name.to_owned(), uid: name.to_owned() }])
    };
    let workers = ClusterDeletingReason::WaitingForWorkersDeletion;
    let first = step(&world);
    assert_eq!((first.act, first.reason), (child(ChildKind::MachineDeployment, "d"), workers));
    assert_eq!(
        first.message,
        "* MachineDeployment d\n* MachineSets alone, managed\n* Machines alone, managed"
    );
    world.deployments = vec![deployment("d", deleting())];
    assert_eq!(step(&world).act, Act::None, "the former step has left an object");
    world.deployments.clear();
    assert_eq!(step(&world).act, child(ChildKind::MachineSet, "alone"));
    world.sets.clear();
    assert_eq!(step(&world).act, child(ChildKind::Machine, "alone"));
    world.machines.truncate(1);
    world.pools = 2;
    let pools = step(&world);
    assert_eq!((pools.act, pools.reason), (Act::None, workers));
    assert_eq!(pools.message, "* 2 MachinePools: delete them, they are not supported");
    assert_eq!(planned(&world).again, Some(Duration::from_secs(30)), "their kind is not watched");
    world.pools = 0;
    let control_plane = step(&world);
    assert_eq!(control_plane.act, Act::DeleteComponent(Component::ControlPlane));
    assert_eq!(control_plane.reason, ClusterDeletingReason::WaitingForControlPlaneDeletion);
    world.control_plane = referenced(deleting());
    assert_eq!(step(&world).act, Act::None);
    world.control_plane = Lookup::Absent;
    assert_eq!(step(&world).act, child(ChildKind::Machine, "cp"), "no other program deletes it");
    world.machines.clear();
    let infrastructure = step(&world);
    assert_eq!(infrastructure.act, Act::DeleteComponent(Component::Infrastructure));
    assert_eq!(infrastructure.reason, ClusterDeletingReason::WaitingForInfrastructureDeletion);
    world.infrastructure = referenced(deleting());
    assert_eq!(step(&world).act, Act::None);
    world.infrastructure = Lookup::Absent;
    assert_eq!(step(&world).act, Act::RemoveFinalizer);
    assert_eq!(planned(&world).status, None);
}

#[test]
fn p8_machines_of_a_control_plane_without_reference_are_deleted() {
    let mut change = deleting();
    merge(&mut change, json!({ "spec": { "controlPlaneRef": null } }));
    let mut world = observed(change);
    world.machines = vec![machine("cp", is_control_plane())];
    assert!(matches!(step(&world).act, Act::DeleteChildren(children) if children.len() == 1));
    let mut managed = is_control_plane();
    merge(&mut managed, managed_by("KubeadmControlPlane"));
    world.machines = vec![machine("cp", managed)];
    let waiting = step(&world);
    assert_eq!((waiting.act, waiting.message.as_str()), (Act::None, "* Machine cp"), "its owner deletes it");
}

#[test]
fn k1_unresolved_component_holds_the_deletion_with_its_cause() {
    for component in [Component::Infrastructure, Component::ControlPlane] {
        for (lookup, reason) in [
            (Lookup::NotSynced, None),
            (
                Lookup::Unresolved("kind is not installed".to_owned()),
                Some(ClusterDeletingReason::InternalError),
            ),
        ] {
            let mut world = observed(deleting());
            (world.infrastructure, world.control_plane) = (Lookup::Absent, Lookup::Absent);
            match component {
                Component::Infrastructure => world.infrastructure = lookup,
                Component::ControlPlane => world.control_plane = lookup,
            }
            let waiting = step(&world);
            assert_eq!(waiting.act, Act::None);
            assert!(reason.is_none_or(|reason| waiting.reason == reason) && !waiting.message.is_empty());
        }
    }
}

/// Every user of the namespace may name a Machine of another Cluster.
#[test]
fn k2_core_kind_is_not_deleted_as_a_component() {
    let mut change = deleting();
    let of = |kind: &str| json!({ "apiGroup": "cluster.x-k8s.io", "kind": kind, "name": "x" });
    merge(
        &mut change,
        json!({ "spec": { "infrastructureRef": of("Cluster"), "controlPlaneRef": of("Machine") } }),
    );
    let mut world = observed(change);
    assert_eq!(step(&world).act, Act::RemoveFinalizer);
    world.infrastructure = Lookup::Unresolved("it is refused".to_owned());
    world.control_plane = world.infrastructure.clone();
    assert_eq!(step(&world).act, Act::RemoveFinalizer, "nothing is waited for");
}

#[test]
fn k5_cluster_without_finalizer_is_left_to_its_deletion() {
    let gone = json!({ "metadata": { "deletionTimestamp": TIME, "finalizers": ["other"] } });
    assert_eq!(planned(&observed(gone)), Plan::default());
}

#[test]
fn deletion_is_no_issue_for_objects_that_are_gone() {
    let mut world = observed(deleting());
    (world.infrastructure, world.control_plane) = (Lookup::Absent, Lookup::Absent);
    let now_deleting = step(&world);
    let status = super::status::status(&world, Some(&now_deleting), now());
    let available = condition(&status, "Available");
    assert_eq!(
        (available.status.as_str(), available.message.as_str()),
        ("False", "* Deleting: DeletionCompleted")
    );
}

#[test]
fn messages_are_bounded() {
    let mut world = observed(deleting());
    world.machines =
        (0..2000).map(|number| machine(&format!("{}{number:04}", "m".repeat(60)), json!({}))).collect();
    let waiting = step(&world);
    assert!(
        waiting.message.ends_with("... (1995 more)") && waiting.message.len() < 500,
        "{}",
        waiting.message
    );
    let status = super::status::status(&world, Some(&waiting), now());
    assert!(status.conditions.iter().all(|condition| condition.message.chars().count() <= 1024));
}
