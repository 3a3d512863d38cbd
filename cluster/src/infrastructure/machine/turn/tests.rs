//! Turns by what the stores show.

use std::sync::Arc;

use jiff::SignedDuration;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Stores of one Cluster. Objects are applied as by watches.
struct Site {
    stores: Stores,
    machines: Writer<BedplateMachine>,
    owners: Writer<Owner>,
    hosts: Writer<bedplate_api::machine::Machine>,
    turns: Turns,
}

impl Site {
    fn new() -> Self {
        use kube::runtime::reflector::store;
        let ((machines, machine_writer), (owners, owner_writer), (hosts, host_writer)) =
            (store(), store(), store());
        let stores = Stores {
            infrastructures: store().0,
            machines,
            clusters: store().0,
            owners,
            claims: store().0,
            hosts,
            configurations: store().0,
            templates: store().0,
            changes: Arc::default(),
        };
        let turns = Turns::default();
        Self { stores, machines: machine_writer, owners: owner_writer, hosts: host_writer, turns }
    }

    fn host(&mut self, name: &str) {
        let host = object(json!({ "metadata": { "name": name },
            "spec": { "provider": "manual", "claimPolicy": { "namespaces": ["team-a"] } },
            "status": { "enrollment": { "keyID": "0123456789abcdef0123456789abcdef" },
                "agent": { "features": ["claims"], "lastHeartbeatTime": "2026-01-01T00:55:00Z" } } }));
        self.hosts.apply_watcher_event(&Event::Apply(host));
        self.stores.host_changed();
    }

    /// Applies a BedplateMachine that has found no host, with its owner. `more`: of its metadata and spec.
    fn claimant(&mut self, name: &str, is_control_plane: bool, more: &Value) -> Observed {
        let labels =
            if is_control_plane { json!({ "cluster.x-k8s.io/control-plane": "" }) } else { json!({}) };
        let owner: Owner = object(
            json!({ "metadata": { "name": name, "namespace": "team-a", "uid": name, "labels": labels },
            "spec": { "clusterName": "c", "bootstrap": {} } }),
        );
        let reference =
            json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name, "uid": name });
        let mut value = json!({ "metadata": { "name": name, "namespace": "team-a", "uid": format!("u-{name}"),
                "creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": [reference] },
            "spec": { "configurationRef": { "name": "pool" }, "stateDisk": "Any" },
            "status": { "conditions": [{ "type": "HostClaimed", "status": "False", "reason": "NoEligibleMachine", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }] } });
        for part in ["metadata", "spec"] {
            let more = more[part].as_object().cloned().unwrap_or_default();
            value[part].as_object_mut().unwrap().extend(more);
        }
        let machine: BedplateMachine = object(value);
        self.owners.apply_watcher_event(&Event::Apply(owner.clone()));
        self.machines.apply_watcher_event(&Event::Apply(machine.clone()));
        self.stores.claimant_changed();
        Observed {
            machine: Arc::new(machine),
            owner: Some(Arc::new(owner)),
            cluster: None,
            claim: None,
            host: None,
            configuration: None,
            version: None,
            is_version_read: false,
            failure_domain_label: None,
            now: "2026-01-01T01:00:00Z".parse().unwrap(),
        }
    }

    fn chosen(&self, observed: &Observed) -> Option<String> {
        self.chosen_at(observed, Instant::now())
    }

    fn chosen_at(&self, observed: &Observed, now: Instant) -> Option<String> {
        let chosen = self.turns.choose(observed, (&self.stores, &Scope::default()), now);
        chosen.ok().map(|host| host.to_string())
    }
}

#[test]
fn d1_control_planes_are_first_then_the_oldest() {
    let mut site = Site::new();
    site.host("h-1");
    let young = json!({ "metadata": { "creationTimestamp": "2026-01-01T00:00:01Z" } });
    let seen = [
        site.claimant("d", true, &young),
        site.claimant("c", false, &json!({})),
        site.claimant("a", false, &young),
        site.claimant("b", false, &young),
    ];
    for first in 0..seen.len() {
        for (index, one) in seen.iter().enumerate().skip(first).rev() {
            assert_eq!(site.chosen(one).as_deref(), (index == first).then_some("h-1"), "{first} {index}");
        }
        // It has its host, and the host is released again.
        let held = json!({ "spec": { "machineName": "h-9", "providerID": "bedplate://h-9/u" } });
        let name = seen[first].machine.name_any();
        let one = site.claimant(&name, first == 0, &held);
        site.turns.end(&one.machine);
    }
}

/// Returns true if no host is left for a claimant because of another one. `more`: of the other's metadata and spec.
fn keeps_the_host(more: &Value) -> bool {
    let mut site = Site::new();
    site.host("h-1");
    site.claimant("a", false, more);
    let asks = site.claimant("b", false, &json!({}));
    site.chosen(&asks).is_none()
}

#[test]
fn d1_paused_deleted_or_foreign_claimants_have_no_turn() {
    for (metadata, is_first) in [
        (json!({}), true),
        (json!({ "annotations": { "cluster.x-k8s.io/paused": "" } }), false),
        (json!({ "deletionTimestamp": "2026-01-01T00:30:00Z" }), false),
        (json!({ "ownerReferences": [] }), false),
    ] {
        assert_eq!(keeps_the_host(&json!({ "metadata": metadata })), is_first, "{metadata}");
    }
}

#[test]
fn d1_host_that_another_claimant_has_recorded_is_not_free() {
    // The one that asks is older.
    let young = json!({ "creationTimestamp": "2026-01-01T00:00:01Z" });
    for (spec, is_left) in [
        (json!({ "machineName": "h-1" }), true),
        // Its claim is lost: the host runs it or not, as its Machine reports.
        (json!({ "machineName": "h-1", "providerID": "bedplate://h-1/u-a" }), false),
        (json!({ "machineName": "h-2" }), false),
    ] {
        assert_eq!(keeps_the_host(&json!({ "metadata": young, "spec": spec })), is_left, "{spec}");
    }
}

#[test]
fn d1_host_is_left_for_the_one_that_has_just_chosen_it() {
    let mut site = Site::new();
    site.host("h-1");
    let (first, other) = (site.claimant("b", false, &json!({})), site.claimant("a", true, &json!({})));
    // The store does not show the claimant of the control plane yet.
    site.machines.apply_watcher_event(&Event::Delete((*other.machine).clone()));
    site.stores.claimant_changed();
    assert_eq!(site.chosen(&first).as_deref(), Some("h-1"));
    assert_eq!(site.chosen(&other), None);
    assert_eq!(site.chosen(&first).as_deref(), Some("h-1"), "its write has failed");
    site.turns.end(&first.machine);
    assert_eq!(site.chosen(&other).as_deref(), Some("h-1"));
}

#[test]
fn d1_claimant_waits_once_it_has_found_no_host() {
    let mut site = Site::new();
    let mut machine = (*site.claimant("a", false, &json!({})).machine).clone();
    assert!(waits(&machine));
    let recorded = site.claimant("a", false, &json!({ "spec": { "machineName": "h-1" } }));
    assert!(!waits(&recorded.machine));
    machine.status.as_mut().unwrap().conditions[0].reason = "VersionMismatch".to_owned();
    assert!(!waits(&machine));
    machine.status = None;
    assert!(!waits(&machine));
}

#[test]
fn d1_wall_clock_that_jumps_back_extends_no_turn() {
    let mut site = Site::new();
    site.host("h-1");
    let (first, mut other) = (site.claimant("a", false, &json!({})), site.claimant("b", false, &json!({})));
    let start = Instant::now();
    assert_eq!(site.chosen_at(&first, start).as_deref(), Some("h-1"));
    // A heartbeat more than 5 minutes in the future does not count.
    other.now -= SignedDuration::from_mins(5);
    assert_eq!(site.chosen_at(&other, start + Duration::from_secs(59)), None);
    // The writes of the first one have failed for a minute.
    assert_eq!(site.chosen_at(&other, start + Duration::from_secs(60)).as_deref(), Some("h-1"));
}

#[test]
fn d1_claimant_with_an_old_condition_keeps_no_host() {
    let mut site = Site::new();
    site.host("h-1");
    let (first, other) = (site.claimant("a", false, &json!({})), site.claimant("b", false, &json!({})));
    assert_eq!(site.chosen(&other), None);
    // The first one waits for something else, and its status cannot be written.
    site.turns.end(&first.machine);
    assert_eq!(site.chosen(&other).as_deref(), Some("h-1"));
    site.turns.lose(&other.machine, Instant::now());
    // It waits for a host again.
    assert_eq!(site.chosen(&first).as_deref(), Some("h-1"));
    site.turns.lose(&first.machine, Instant::now());
    assert_eq!(site.chosen(&other), None);
}
