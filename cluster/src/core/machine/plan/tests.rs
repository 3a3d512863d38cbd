//! Writes of a Machine that is not deleted, one rule each.

use bedplate_api::cluster::full::condition_type;
use bedplate_api::cluster::full::machine::MachinePhase;
use serde_json::{Value, json};

use super::*;
use crate::core::machine::fixture::{
    ID, apply, change, cluster, merge, node, now, object, observed, referenced, running, settle, shown, write,
};
use crate::core::machine::node::NodeView;
use crate::core::machine::references::{Ownership, ownership};

fn phase_of(world: &Observed) -> MachinePhase {
    let next = plan(world).status.map(|status| *status).or_else(|| world.machine.status.clone());
    next.unwrap().phase.unwrap()
}

fn without_config(bootstrap: &Value) -> Value {
    let mut value = json!({ "spec": { "bootstrap": { "configRef": null } } });
    merge(&mut value, &json!({ "spec": { "bootstrap": bootstrap } }));
    value
}

fn owner(kind: &str, name: &str, controller: bool) -> Value {
    let group =
        if kind == "KubeadmControlPlane" { "controlplane.cluster.x-k8s.io" } else { "cluster.x-k8s.io" };
    json!({ "apiVersion": format!("{group}/v1beta2"), "kind": kind, "name": name, "uid": format!("u-{name}"),
        "controller": controller })
}

/// Names of the acts, in order.
fn names(acts: &[Act]) -> Vec<&'static str> {
    let name = |act: &Act| match act {
        Act::SetMetadata(_) => "metadata",
        Act::Adopt(adoption) if adoption.part == Part::Bootstrap => "adopt bootstrap",
        Act::Adopt(_) => "adopt infrastructure",
        Act::WriteDataSecret(_) => "secret",
        Act::SetSpec(_) => "spec",
        Act::SyncNode(_) => "node",
    };
    acts.iter().map(name).collect()
}

#[test]
fn m12_new_machine_goes_through_each_write_once() {
    let mut world = observed(&json!({}));
    let acts = settle(&mut world);
    assert_eq!(names(&acts), ["metadata", "adopt bootstrap", "adopt infrastructure", "spec", "node"]);
    let spec = &world.machine.spec;
    assert_eq!(spec.bootstrap.data_secret_name.as_deref(), Some("s"));
    assert_eq!((spec.provider_id.as_deref(), spec.failure_domain.as_deref()), (Some(ID), Some("z-1")));
    let status = world.machine.status.as_ref().unwrap();
    assert_eq!(status.node_ref.as_ref().unwrap().name, "n");
    assert_eq!((status.addresses.len(), status.failure_domain.as_deref()), (1, Some("z-1")));
    assert_eq!(status.node_info.as_ref().unwrap().kernel_version, "6.12");
    assert_eq!((status.phase, status.observed_generation), (Some(MachinePhase::Running), Some(3)));
}

#[test]
fn m12_settled_machine_is_not_written_later() {
    let mut world = running(&json!({}));
    world.now = "2026-01-01T09:00:00Z".parse().unwrap();
    world.workload.connection.last_success = Some(world.now);
    assert_eq!(plan(&world), Plan::default());
}

#[test]
fn m12_finalizer_label_and_owner_are_one_write() {
    let world = observed(&json!({ "metadata": { "finalizers": ["other"], "labels": { "a": "b" } } }));
    let Some(Act::SetMetadata(change)) = plan(&world).act else { panic!() };
    assert_eq!(change.finalizers.unwrap(), ["other", FINALIZER]);
    assert_eq!(change.cluster_name.as_deref(), Some("c"));
    let owners = change.owner_references.unwrap();
    assert_eq!((owners.len(), owners[0].kind.as_str(), owners[0].uid.as_str()), (1, "Cluster", "u-c"));
    assert_eq!(owners[0].controller, None, "a set may still become the controller");
}

#[test]
fn m12_machine_of_a_set_or_control_plane_is_not_adopted_by_the_cluster() {
    for metadata in [
        json!({ "ownerReferences": [owner("MachineSet", "s", true)] }),
        json!({ "labels": { "cluster.x-k8s.io/set-name": "s" } }),
        json!({ "labels": { "cluster.x-k8s.io/control-plane-name": "k" } }),
        json!({ "labels": { "cluster.x-k8s.io/pool-name": "p" } }),
    ] {
        let world = observed(&json!({ "metadata": metadata }));
        let Some(Act::SetMetadata(change)) = plan(&world).act else { panic!() };
        assert_eq!(change.owner_references, None, "{metadata}");
    }
}

#[test]
fn m12_owner_of_a_restored_cluster_gets_its_new_uid() {
    let old =
        json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": "old" });
    let world = observed(&json!({ "metadata": { "ownerReferences": [old] } }));
    let Some(Act::SetMetadata(change)) = plan(&world).act else { panic!() };
    let uids: Vec<String> = change.owner_references.unwrap().into_iter().map(|owner| owner.uid).collect();
    assert_eq!(uids, ["u-c"]);
}

#[test]
fn m12_machine_of_a_missing_cluster_is_only_reported() {
    let mut world = observed(&json!({}));
    world.cluster = None;
    assert_eq!(plan(&world).act, None);
    let (_, reason, message) = shown(&world, condition_type::NODE_READY);
    assert_eq!(reason, "InspectionFailed");
    assert!(message.starts_with("Cluster c does not exist"), "{message}");
}

#[test]
fn m5_objects_get_the_machine_as_controller_in_place_of_their_creators() {
    let creators = json!([owner("MachineSet", "s", true), owner("Cluster", "c", false)]);
    let mut world = observed(&json!({}));
    world.bootstrap = referenced("b", &json!({ "metadata": { "ownerReferences": creators } }));
    settle(&mut world);
    let owners = &world.bootstrap.found().unwrap().metadata.owner_references;
    let shown: Vec<_> = owners.iter().flatten().map(|o| (o.kind.as_str(), o.controller)).collect();
    assert_eq!(shown, [("Cluster", Some(false)), ("Machine", Some(true))]);
    assert_eq!(
        world.bootstrap.found().unwrap().metadata.labels.as_ref().unwrap()["cluster.x-k8s.io/cluster-name"],
        "c"
    );
}

#[test]
fn m5_control_plane_gives_way_only_for_a_machine_of_the_control_plane() {
    let plane = json!({ "metadata": { "ownerReferences": [owner("KubeadmControlPlane", "k", true)] } });
    let mut world = observed(&json!({ "metadata": { "labels": { "cluster.x-k8s.io/control-plane": "" } } }));
    world.infrastructure = referenced("i", &plane);
    let object = world.infrastructure.found().unwrap();
    let cluster = world.cluster.as_deref();
    assert!(
        matches!(ownership(&world.machine, cluster, object), Ownership::Adoptable(owners) if owners.len() == 1)
    );
    let worker = observed(&json!({}));
    let foreign = Ownership::Foreign("KubeadmControlPlane k".to_owned());
    assert_eq!(ownership(&worker.machine, cluster, object), foreign);
}

#[test]
fn m5_object_of_another_machine_is_neither_adopted_nor_read() {
    for controller in [true, false] {
        let mut world = observed(&json!({}));
        let Lookup::Found(object) = &mut world.infrastructure else { panic!() };
        let owner = object_owner("Machine", "other", controller);
        Arc::make_mut(object).metadata.owner_references = Some(vec![owner]);
        let acts = settle(&mut world);
        assert_eq!(names(&acts), ["metadata", "adopt bootstrap", "spec"]);
        assert_eq!(
            (world.machine.spec.provider_id.as_ref(), phase_of(&world)),
            (None, MachinePhase::Provisioning)
        );
        let (state, reason, message) = shown(&world, condition_type::INFRASTRUCTURE_READY);
        assert_eq!((state.as_str(), reason.as_str()), ("Unknown", "InternalError"));
        assert!(message.starts_with("BedplateMachine i belongs to Machine other;"), "{message}");
    }
}

fn object_owner(kind: &str, name: &str, controller: bool) -> OwnerReference {
    object(owner(kind, name, controller))
}

#[test]
fn m5_owner_of_a_restored_machine_gets_its_new_uid() {
    let mut world = running(&json!({}));
    change(&mut world, &json!({ "metadata": { "uid": "restored" } }));
    let Some(Act::Adopt(adoption)) = plan(&world).act else { panic!() };
    let uids: Vec<&str> = adoption.owner_references.iter().map(|owner| owner.uid.as_str()).collect();
    assert_eq!((adoption.part, uids), (Part::Bootstrap, vec!["restored"]));
}

#[test]
fn m3_machine_without_data_waits() {
    let mut world = observed(&without_config(&json!({})));
    let acts = settle(&mut world);
    assert!(!names(&acts).contains(&"secret"));
    assert_eq!(world.machine.spec.bootstrap.data_secret_name, None);
    let (state, _, message) = shown(&world, condition_type::BOOTSTRAP_CONFIG_READY);
    assert_eq!(state, "False");
    assert!(message.starts_with("Machine has no bootstrap data; set "), "{message}");
}

#[test]
fn m3_empty_data_skips_the_bootstrap() {
    let mut world = observed(&without_config(&json!({ "data": "" })));
    let acts = settle(&mut world);
    assert!(!names(&acts).contains(&"secret"));
    assert_eq!(world.machine.spec.bootstrap.data_secret_name.as_deref(), Some(""));
    assert_eq!(shown(&world, condition_type::BOOTSTRAP_CONFIG_READY).1, "DataSecretProvided");
}

#[test]
fn m3_text_becomes_a_secret_before_its_name_is_set() {
    let mut world = observed(&without_config(&json!({ "data": "#cloud-config" })));
    let acts = settle(&mut world);
    assert_eq!(names(&acts)[1..4], ["adopt infrastructure", "secret", "spec"]);
    assert!(acts.contains(&Act::WriteDataSecret("m-user-data".to_owned())));
    assert_eq!(world.machine.spec.bootstrap.data_secret_name.as_deref(), Some("m-user-data"));
    world.data_secret = DataSecret::Own { is_current: false };
    assert!(plan(&world).is_settled(), "the host may have read the Secret");
    assert!(!format!("{acts:?}").contains("#cloud-config"), "an act is logged");
}

#[test]
fn m3_secret_of_another_object_is_not_written() {
    let mut world = observed(&without_config(&json!({ "data": "#cloud-config" })));
    world.data_secret = DataSecret::Foreign;
    assert!(!names(&settle(&mut world)).contains(&"secret"));
    assert_eq!(world.machine.spec.bootstrap.data_secret_name, None);
    let message = shown(&world, condition_type::BOOTSTRAP_CONFIG_READY).2;
    assert!(message.starts_with("Secret m-user-data belongs to another object"), "{message}");
}

#[test]
fn m3_name_that_is_too_long_for_a_secret_is_reported() {
    let mut world = observed(&without_config(&json!({ "data": "x" })));
    change(&mut world, &json!({ "metadata": { "name": "m".repeat(250) } }));
    assert!(!names(&settle(&mut world)).contains(&"secret"));
    assert!(shown(&world, condition_type::BOOTSTRAP_CONFIG_READY).2.contains("is too long for a Secret"));
}

#[test]
fn m3_data_has_no_meaning_with_a_config_or_a_secret_name() {
    let both = json!({ "spec": { "bootstrap": { "data": "x" } } });
    assert!(!names(&settle(&mut observed(&both))).contains(&"secret"));
    let named = without_config(&json!({ "data": "x", "dataSecretName": "given" }));
    let mut world = observed(&named);
    assert!(!names(&settle(&mut world)).contains(&"secret"));
    assert_eq!(world.machine.spec.bootstrap.data_secret_name.as_deref(), Some("given"));
}

#[test]
fn m4_data_is_taken_only_from_a_config_that_has_created_it() {
    for (status, is_taken) in [
        (json!({ "dataSecretName": "s", "initialization": { "dataSecretCreated": true } }), true),
        (json!({ "dataSecretName": "s", "ready": true }), true),
        (json!({ "dataSecretName": "s" }), false),
        (json!({ "initialization": { "dataSecretCreated": true } }), false),
    ] {
        let mut world = observed(&json!({}));
        world.bootstrap = referenced("b", &json!({ "status": status }));
        settle(&mut world);
        assert_eq!(world.machine.spec.bootstrap.data_secret_name.is_some(), is_taken, "{status}");
    }
}

#[test]
fn m4_config_that_is_deleted_gives_nothing() {
    let mut world = observed(&json!({}));
    let Lookup::Found(object) = &mut world.bootstrap else { panic!() };
    Arc::make_mut(object).metadata.deletion_timestamp = Some(object_time());
    settle(&mut world);
    assert_eq!(world.machine.spec.bootstrap.data_secret_name, None);
}

fn object_time() -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
    object(json!("2026-01-01T00:59:00Z"))
}

#[test]
fn m7_provider_id_is_copied_only_from_provisioned_infrastructure() {
    let mut world = observed(&json!({}));
    world.infrastructure = referenced("i", &json!({ "spec": { "providerID": ID } }));
    settle(&mut world);
    assert_eq!(
        (world.machine.spec.provider_id.clone(), phase_of(&world)),
        (None, MachinePhase::Provisioning)
    );
    world.infrastructure = referenced("i", &json!({ "status": { "ready": true } }));
    settle(&mut world);
    assert_eq!(phase_of(&world), MachinePhase::Provisioning, "without an ID it is not synced");
}

#[test]
fn m7_provider_id_never_changes() {
    let mut world = running(&json!({}));
    let Lookup::Found(object) = &mut world.infrastructure else { panic!() };
    Arc::make_mut(object).contract.provider_id = Some("other".to_owned());
    assert!(settle(&mut world).is_empty());
    assert_eq!(world.machine.spec.provider_id.as_deref(), Some(ID));
    let message = shown(&world, condition_type::INFRASTRUCTURE_READY).2;
    assert!(message.contains("reports providerID other, and the Machine has"), "{message}");
}

#[test]
fn m7_failure_domain_of_the_user_stays() {
    let world = running(&json!({ "spec": { "failureDomain": "given" } }));
    assert_eq!(world.machine.spec.failure_domain.as_deref(), Some("given"));
    assert_eq!(world.machine.status.as_ref().unwrap().failure_domain.as_deref(), Some("z-1"));
}

#[test]
fn m7_latches_and_addresses_stay_when_infrastructure_goes_back() {
    let mut world = running(&json!({}));
    let Lookup::Found(object) = &mut world.infrastructure else { panic!() };
    let contract = &mut Arc::make_mut(object).contract;
    (contract.provisioned, contract.addresses) = (Some(false), Vec::new());
    settle(&mut world);
    let status = world.machine.status.as_ref().unwrap();
    let latches = status.initialization.as_ref().unwrap();
    assert_eq!(latches.infrastructure_provisioned, Some(true));
    assert_eq!(latches.bootstrap_data_secret_created, Some(true));
    assert_eq!(status.addresses.len(), 1);
}

#[test]
fn m8_running_needs_a_node_that_is_ready() {
    let mut world = running(&json!({}));
    assert_eq!(phase_of(&world), MachinePhase::Running);
    let NodeView::Found(found) = &mut world.workload.node else { panic!() };
    let status = Arc::make_mut(found).status.as_mut().unwrap();
    status.conditions.as_mut().unwrap()[0].status = "False".to_owned();
    assert_eq!(phase_of(&world), MachinePhase::Provisioned);
}

#[test]
fn m8_node_with_another_provider_id_is_not_the_machines() {
    let mut world = observed(&json!({}));
    world.workload.node = node(&json!({ "spec": { "providerID": "other" } }));
    let acts = settle(&mut world);
    assert!(!names(&acts).contains(&"node"));
    assert_eq!(world.machine.status.as_ref().unwrap().node_ref, None);
}

#[test]
fn m8_ambiguous_nodes_give_no_node_ref() {
    let mut world = observed(&json!({}));
    world.workload.node = NodeView::Ambiguous(vec!["a".to_owned(), "b".to_owned()]);
    settle(&mut world);
    assert_eq!(world.machine.status.as_ref().unwrap().node_ref, None);
    let (_, reason, message) = shown(&world, condition_type::NODE_READY);
    assert_eq!(reason, "InspectionFailed");
    assert!(message.ends_with("delete all but one of a, b"), "{message}");
}

#[test]
fn m8_node_ref_stays_when_the_node_has_another_name() {
    let mut world = running(&json!({}));
    world.workload.node = node(&json!({ "metadata": { "name": "renamed" } }));
    settle(&mut world);
    assert_eq!(world.machine.status.as_ref().unwrap().node_ref.as_ref().unwrap().name, "n");
}

#[test]
fn m10_reported_failure_is_phase_failed() {
    let mut world = running(&json!({}));
    let Lookup::Found(object) = &mut world.infrastructure else { panic!() };
    Arc::make_mut(object).contract.failure = Some(bedplate_api::cluster::contract::Failure {
        reason: "CreateError".to_owned(),
        message: "no disk".to_owned(),
    });
    assert_eq!(phase_of(&world), MachinePhase::Failed);
    let (state, _, message) = shown(&world, condition_type::INFRASTRUCTURE_READY);
    assert_eq!(state, "False");
    assert_eq!(message, "BedplateMachine i has failed: CreateError: no disk; delete the Machine");
    let old = json!({ "status": { "deprecated": { "v1beta1": { "failureReason": "CreateError" } } } });
    assert_eq!(phase_of(&observed(&old)), MachinePhase::Failed);
}

#[test]
fn m10_infrastructure_that_is_gone_is_phase_failed() {
    let mut world = running(&json!({}));
    world.infrastructure = Lookup::Absent;
    assert_eq!(phase_of(&world), MachinePhase::Failed);
    assert_eq!(shown(&world, condition_type::INFRASTRUCTURE_READY).1, "ObjectDeleted");
}

#[test]
fn m11_phase_decides_nothing() {
    use MachinePhase as P;
    let all = [
        P::Pending,
        P::Provisioning,
        P::Provisioned,
        P::Running,
        P::Updating,
        P::Deleting,
        P::Deleted,
        P::Failed,
        P::Unknown,
    ];
    let mut world = observed(&json!({}));
    for _ in 0..12 {
        let expected = plan(&world);
        for phase in all.map(Some).into_iter().chain([None]) {
            let mut other = world.clone();
            Arc::make_mut(&mut other.machine).status.get_or_insert_default().phase = phase;
            let next = plan(&other);
            assert_eq!((&next.act, next.recheck), (&expected.act, expected.recheck), "{phase:?}");
            let without_phase =
                |status: MachineStatus| MachineStatus { phase: None, last_updated: None, ..status };
            let left = |next: Plan, world: &Observed| {
                let status = next.status.map(|status| *status).or_else(|| world.machine.status.clone());
                (status.clone().unwrap().phase, without_phase(status.unwrap()))
            };
            assert_eq!(left(next, &other), left(expected.clone(), &world), "{phase:?}");
        }
        apply(&mut world, &expected);
    }
    assert_eq!(phase_of(&world), P::Running);
}

#[test]
fn m11_last_updated_is_the_time_of_the_change_of_phase() {
    let mut world = running(&json!({}));
    let before = world.machine.status.as_ref().unwrap().last_updated.clone().unwrap();
    assert_eq!(before.0, now());
    world.now = "2026-01-01T02:00:00Z".parse().unwrap();
    world.workload.connection.last_success = Some(world.now);
    change(&mut world, &json!({ "spec": { "minReadySeconds": 4000 } }));
    assert_eq!(plan(&world).status.unwrap().last_updated.unwrap(), before);
    world.workload.node = NodeView::Absent;
    assert_eq!(plan(&world).status.unwrap().last_updated.unwrap().0, world.now);
}

#[test]
fn paused_machine_gets_one_condition() {
    for (metadata, spec) in [
        (json!({ "annotations": { "cluster.x-k8s.io/paused": "" } }), json!({})),
        (json!({}), json!({ "paused": true })),
    ] {
        let mut world = observed(&json!({ "metadata": metadata }));
        world.cluster = Some(cluster(&json!({ "spec": spec })));
        let next = plan(&world);
        assert_eq!((next.act, next.recheck), (None, None));
        let status = next.status.unwrap();
        let types: Vec<&str> = status.conditions.iter().map(|condition| condition.type_.as_str()).collect();
        assert_eq!((types, status.phase), (vec!["Paused"], None));
        assert_eq!(status.conditions[0].status, "True");
        Arc::make_mut(&mut world.machine).status = Some(*status);
        assert!(plan(&world).is_settled());
    }
}

#[test]
fn objects_that_are_not_synced_cause_no_write() {
    let mut world = running(&json!({}));
    (world.bootstrap, world.infrastructure) = (Lookup::NotSynced, Lookup::NotSynced);
    world.workload = Workload::default();
    assert!(plan(&world).is_settled(), "{:?}", plan(&world));
}

#[test]
fn kind_that_cannot_be_read_is_reported() {
    let mut world = running(&json!({}));
    world.infrastructure = Lookup::Unresolved("kind BedplateMachine is not installed".to_owned());
    let shown = shown(&world, condition_type::INFRASTRUCTURE_READY);
    assert_eq!((shown.0.as_str(), shown.1.as_str()), ("Unknown", "InternalError"));
    assert_eq!(shown.2, "kind BedplateMachine is not installed");
}

#[test]
fn m9_deletion_waits_for_provider_id_and_node_ref() {
    let deleted = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:59:00Z" } });
    let mut world = running(&json!({ "spec": { "providerID": ID } }));
    change(&mut world, &deleted);
    change(&mut world, &json!({ "spec": { "providerID": null }, "status": { "nodeRef": null } }));
    let deleting = Deleting {
        reason: bedplate_api::reason::core::MachineDeletingReason::Deleting,
        message: "deletion started".to_owned(),
        status: None,
    };
    let next = plan_deleted(&world, &deleting);
    assert!(matches!(&next.act, Some(Act::SetSpec(change)) if change.provider_id.as_deref() == Some(ID)));
    assert!(next.holds_deletion(&world.machine));
    write(&mut world, &next.act.unwrap());
    let next = plan_deleted(&world, &deleting);
    assert!(next.act.is_none() && next.holds_deletion(&world.machine));
    apply(&mut world, &next);
    let next = plan_deleted(&world, &deleting);
    assert!(!next.holds_deletion(&world.machine) && next.is_settled(), "{next:?}");
    assert_eq!(next.recheck, Some(Duration::from_secs(14 * 60)), "the summary changes after 15 minutes");
    assert_eq!(phase_of_deleted(&world), MachinePhase::Deleting);
}

fn phase_of_deleted(world: &Observed) -> MachinePhase {
    world.machine.status.as_ref().unwrap().phase.unwrap()
}

#[test]
fn m9_deleted_machine_is_adopted_by_nothing() {
    let world = observed(&json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:59:00Z" } }));
    let deleting = Deleting {
        reason: bedplate_api::reason::core::MachineDeletingReason::Deleting,
        message: String::new(),
        status: None,
    };
    assert_eq!(plan_deleted(&world, &deleting).act, None);
}

#[test]
fn certificates_expire_by_the_annotation_of_the_machine_first() {
    let key = "machine.cluster.x-k8s.io/certificates-expiry";
    let label = json!({ "cluster.x-k8s.io/control-plane": "" });
    let expiry = |world: &Observed| plan(world).status.and_then(|status| status.certificates_expiry_date);
    let mut world = observed(&json!({ "metadata": { "labels": label } }));
    world.bootstrap =
        referenced("b", &json!({ "metadata": { "annotations": { key: "2027-01-01T00:00:00.5Z" } } }));
    assert_eq!(expiry(&world).unwrap().0.to_string(), "2027-01-01T00:00:00Z");
    change(&mut world, &json!({ "metadata": { "annotations": { key: "2028-01-01T00:00:00Z" } } }));
    assert_eq!(expiry(&world).unwrap().0.to_string(), "2028-01-01T00:00:00Z");
    change(&mut world, &json!({ "metadata": { "annotations": { key: "soon" } } }));
    assert_eq!(expiry(&world), None);
    let mut worker = observed(&json!({}));
    worker.bootstrap = world.bootstrap;
    assert_eq!(expiry(&worker), None);
}

#[test]
fn own_status_has_no_condition_of_another_writer() {
    let mut world = running(&json!({}));
    change(&mut world, &json!({ "status": { "deprecated": { "v1beta1": { "failureReason": "x" } } } }));
    let mut status = world.machine.status.clone().unwrap();
    let count = status.conditions.len();
    let other = k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition {
        type_: "UpToDate".to_owned(),
        ..status.conditions[0].clone()
    };
    status.conditions.push(other);
    let own = status::own(status, &world);
    assert_eq!((own.conditions.len(), own.deprecated), (count, None));
    assert_eq!(count, status::OWN_CONDITIONS.len());
}
