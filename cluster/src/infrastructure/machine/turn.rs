//! Order of the claimants that wait for a host: control planes first, then the oldest.
//!
//! A claimant leaves one host to each one that waits, that may claim it, and whose turn is earlier. If there are enough hosts, all choose at
//! once. Read: the stores, once for each choice that finds a host. A claimant that has not looked for a host yet does not wait. Called by
//! `machine`.

use std::sync::Arc;

use bedplate_api::cluster::core::Machine as Owner;
use bedplate_api::cluster::infrastructure::{BedplateMachine, condition_type};
use bedplate_api::machine::Machine;
use bedplate_api::reason::infrastructure::HostClaimedReason;
use jiff::Timestamp;
use kube::ResourceExt;

use super::Owners;
use super::plan::{Observed, request};
use crate::infrastructure::choose::fits;
use crate::infrastructure::context::World;
use crate::infrastructure::owner::{is_control_plane, is_paused};

/// Turn of a claimant, ordered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    /// True if it is not of a control plane.
    is_worker: bool,
    created: Option<Timestamp>,
    namespace: Option<String>,
    name: String,
}

impl Turn {
    fn of(machine: &BedplateMachine, owner: Option<&Owner>) -> Self {
        Self {
            is_worker: !owner.is_some_and(is_control_plane),
            created: machine.metadata.creation_timestamp.as_ref().map(|time| time.0),
            namespace: machine.namespace(),
            name: machine.name_any(),
        }
    }
}

/// Claimant that waits for a host.
pub(super) struct Waiting {
    machine: Arc<BedplateMachine>,
    owner: Option<Arc<Owner>>,
    failure_domain_label: Option<String>,
}

impl Waiting {
    /// Returns true if it may claim a host that no MachineClaim holds.
    pub(super) fn fits(&self, host: &Machine, now: Timestamp) -> bool {
        let namespace = self.machine.namespace().unwrap_or_default();
        let label = self.failure_domain_label.as_deref();
        fits(&request(&self.machine, self.owner.as_deref(), label, &namespace), host, now)
    }
}

/// Returns true if a claimant has found no host, and has met everything else.
pub(super) fn waits(machine: &BedplateMachine) -> bool {
    let conditions = machine.status.iter().flat_map(|status| &status.conditions);
    let mut claimed = conditions.filter(|condition| condition.type_ == condition_type::HOST_CLAIMED);
    let is_without = claimed.any(|condition| condition.reason == HostClaimedReason::NoEligibleMachine);
    is_without && machine.spec.machine_name.is_none() && machine.metadata.deletion_timestamp.is_none()
}

/// Returns the claimants that wait, and whose turn is earlier.
pub(super) fn earlier(observed: &Observed, world: &World) -> Vec<Waiting> {
    let own = Turn::of(&observed.machine, observed.owner.as_deref());
    let machines = world.stores.machines.state();
    let waiting =
        machines.into_iter().filter(|machine| waits(machine) && world.scope.includes(machine.labels()));
    let found = waiting.filter_map(|machine| {
        let Owners { owner, cluster, failure_domain_label } = Owners::of(&machine, &world.stores);
        let is_earlier = Turn::of(&machine, owner.as_deref()) < own;
        let is_live = owner.is_some() && !is_paused(&*machine, cluster.as_deref());
        (is_earlier && is_live).then_some(Waiting { machine, owner, failure_domain_label })
    });
    found.collect()
}

/// Leaves a host to one of the claimants that may claim it, and removes that one. Returns false if there is none.
pub(super) fn is_left(earlier: &mut Vec<Waiting>, host: &Machine, now: Timestamp) -> bool {
    let first = earlier.iter().position(|waiting| waiting.fits(host, now));
    first.map(|first| earlier.swap_remove(first)).is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(name: &str, created: &str, more: &Value) -> BedplateMachine {
        let mut object = json!({ "metadata": { "name": name, "namespace": "team-a", "creationTimestamp": created },
            "spec": { "configurationRef": { "name": "pool" } } });
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn owner(labels: &Value) -> Owner {
        serde_json::from_value(json!({ "metadata": { "name": "m", "labels": labels },
            "spec": { "clusterName": "c", "bootstrap": {} } }))
        .unwrap()
    }

    #[test]
    fn d1_control_planes_are_first_then_the_oldest() {
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
        let control_plane = owner(&json!({ "cluster.x-k8s.io/control-plane": "" }));
        let turn = |name: &str, created: &str, owner: &Owner| {
            Turn::of(&machine(name, created, &json!({})), Some(owner))
        };
        let worker = owner(&json!({}));
        let expected = [
            turn("d", late, &control_plane),
            turn("c", early, &worker),
            turn("a", late, &worker),
            turn("b", late, &worker),
        ];
        let mut sorted = expected.clone();
        sorted.reverse();
        sorted.sort();
        assert_eq!(sorted, expected);
    }

    #[test]
    fn d1_claimant_waits_once_it_has_found_no_host() {
        let status = |reason: &str| {
            json!({ "status": { "conditions": [{ "type": "HostClaimed", "status": "False", "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }] } })
        };
        let of = |more: &Value| waits(&machine("a", "2026-01-01T00:00:00Z", more));
        assert!(of(&status("NoEligibleMachine")));
        assert!(!of(&json!({})) && !of(&status("VersionMismatch")));
        let mut chosen = status("NoEligibleMachine");
        chosen["spec"] = json!({ "configurationRef": { "name": "pool" }, "machineName": "host-1" });
        assert!(!of(&chosen));
    }

    #[test]
    fn d1_each_earlier_claimant_is_left_one_host() {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let host = |namespace: &str| -> Machine {
            serde_json::from_value(json!({ "metadata": { "name": "host-1" },
                "spec": { "provider": "manual", "claimPolicy": { "namespaces": [namespace] } },
                "status": { "enrollment": { "keyID": "0123456789abcdef0123456789abcdef" },
                    "agent": { "features": ["claims"], "lastHeartbeatTime": "2026-01-01T00:55:00Z" } } }))
            .unwrap()
        };
        let waiting = || Waiting {
            machine: Arc::new(machine("a", "2026-01-01T00:00:00Z", &json!({}))),
            owner: None,
            failure_domain_label: None,
        };
        let mut earlier = vec![waiting(), waiting()];
        let mut is_left = |namespace: &str| is_left(&mut earlier, &host(namespace), now);
        assert!(!is_left("team-b"), "none of them may claim it");
        assert!(is_left("team-a") && is_left("team-a"));
        assert!(!is_left("team-a"), "a third host is for the next one");
    }
}
