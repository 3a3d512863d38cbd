//! Pure: the fields of objects that decide which claimants wait for a host, and for what. Objects change far more often than these. Called by
//! `watch`.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use bedplate_api::cluster::core::Machine as Owner;
use bedplate_api::cluster::infrastructure::{BedplateCluster, BedplateMachine};
use bedplate_api::id::MachineName;
use bedplate_engine::store::Seen;
use kube::runtime::reflector::{Lookup, ObjectRef};
use kube::{Resource, ResourceExt};

use super::machine::turn::waits;
use crate::owner::{has_paused_annotation, is_control_plane, owner};

/// Kind whose objects decide about claimants.
pub trait Decisive: Resource<DynamicType = ()> + Lookup<DynamicType = ()> {
    /// Hashes the fields that decide.
    fn hash(&self, hasher: &mut DefaultHasher);

    /// Returns true if it is a claimant that waits for a host.
    fn waits(&self) -> bool {
        false
    }
}

impl Decisive for BedplateMachine {
    fn hash(&self, hasher: &mut DefaultHasher) {
        let (metadata, spec) = (&self.metadata, &self.spec);
        let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
        (&metadata.uid, created, metadata.deletion_timestamp.is_some(), self.labels()).hash(hasher);
        (owner(self, "Machine"), has_paused_annotation(self)).hash(hasher);
        (spec.machine_name.as_ref().map(MachineName::as_str), spec.provider_id.is_some()).hash(hasher);
        let requirements = (&spec.machine_selector, &spec.state_disk, &spec.release);
        serde_json::to_vec(&requirements).unwrap_or_default().hash(hasher);
    }

    fn waits(&self) -> bool {
        waits(self)
    }
}

impl Decisive for Owner {
    fn hash(&self, hasher: &mut DefaultHasher) {
        let spec = &self.spec;
        (&self.metadata.uid, is_control_plane(self), &spec.cluster_name, &spec.failure_domain).hash(hasher);
    }
}

impl Decisive for BedplateCluster {
    fn hash(&self, hasher: &mut DefaultHasher) {
        self.spec.failure_domain_label.hash(hasher);
    }
}

/// Objects as the last events have shown them.
#[derive(Debug)]
pub struct Known<K: Decisive>(HashMap<ObjectRef<K>, (u64, bool)>);

impl<K: Decisive> Default for Known<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Decisive> Known<K> {
    /// Returns true if an event changes what decides. A claimant that has found no host does not: it takes none from others, and the line is
    /// made again when a host changes.
    pub fn changes(&mut self, event: &Seen<K>) -> bool {
        match event {
            Seen::Gone(object) => self.0.remove(&ObjectRef::from_obj(&**object)).is_some(),
            Seen::There(object) => {
                let mut hasher = DefaultHasher::new();
                Decisive::hash(&**object, &mut hasher);
                let after = (hasher.finish(), object.waits());
                let before = self.0.insert(ObjectRef::from_obj(&**object), after);
                before.is_none_or(|before| before.0 != after.0 || before.1 && !after.1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn claimant(more: &Value) -> Seen<BedplateMachine> {
        let mut object = json!({ "metadata": { "name": "w-1", "namespace": "team-a", "uid": "u" },
            "spec": { "configurationRef": { "name": "pool" } }, "status": {} });
        for part in ["metadata", "spec", "status"] {
            let more = more[part].as_object().cloned().unwrap_or_default();
            object[part].as_object_mut().unwrap().extend(more);
        }
        Seen::There(Arc::new(serde_json::from_value(object).unwrap()))
    }

    fn status(reason: &str, message: &str) -> Value {
        json!({ "conditions": [{ "type": "HostClaimed", "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z" }] })
    }

    #[test]
    fn d1_only_fields_that_decide_make_the_line_again() {
        let mut known = Known::default();
        assert!(known.changes(&claimant(&json!({}))));
        for (more, is_change) in [
            (json!({ "metadata": { "resourceVersion": "2", "finalizers": ["a"] } }), false),
            (json!({ "status": status("NoEligibleMachine", "none of 1") }), false),
            (json!({ "status": status("NoEligibleMachine", "none of 2") }), false),
            (json!({ "status": status("VersionMismatch", "") }), true),
            (json!({ "spec": { "machineSelector": { "matchLabels": { "rack": "7" } } } }), true),
            (json!({}), true),
            (json!({ "spec": { "machineName": "h-1" } }), true),
            (json!({ "spec": { "machineName": "h-1", "providerID": "bedplate://h-1/u" } }), true),
            (json!({ "metadata": { "annotations": { "cluster.x-k8s.io/paused": "" } } }), true),
            (json!({ "metadata": { "annotations": { "other": "" } } }), true),
            (json!({ "metadata": { "annotations": { "other": "more" } } }), false),
            (json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), true),
            (json!({ "metadata": { "uid": "other" } }), true),
        ] {
            assert_eq!(known.changes(&claimant(&more)), is_change, "{more}");
        }
        let Seen::There(last) = claimant(&json!({})) else { return };
        assert!(known.changes(&Seen::Gone(last.clone())));
        assert!(!known.changes(&Seen::Gone(last)));
    }
}
