//! Pure: the init lock: a ConfigMap in upstream's form, so that this program and upstream's exclude each other.
//!
//! The lock belongs to one Machine of the control plane. Creation is atomic by the name. A lock is deleted by its UID only. Called by the
//! planner and by the loop of [`super`].

use bedplate_api::cluster::core::CLUSTER_NAME_LABEL;
use bedplate_api::cluster::full::{Cluster, Machine};
use bedplate_api::cluster::part::label_value;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde::Deserialize;
use serde_json::json;

use crate::owner::owner_reference;

/// Key of the ConfigMap.
const INFORMATION_KEY: &str = "lock-information";

/// State of the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lock {
    /// There is no lock.
    Free,
    /// A Machine holds it.
    Held(Held),
    /// The ConfigMap does not name a Machine.
    Unreadable,
    /// The ConfigMap is being deleted. Another program holds it by a finalizer.
    Deleting,
}

/// A lock that a Machine holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Name of the Machine.
    pub machine: String,
    /// UID of the Machine. None: upstream has made the lock.
    pub machine_uid: Option<String>,
    /// UID of the Cluster that owns the lock.
    pub cluster_uid: Option<String>,
    /// UID of the ConfigMap.
    pub uid: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Information {
    machine_name: String,
    /// Not a field of upstream, which ignores it. A Machine that is made again has the name of the earlier one.
    #[serde(rename = "machineUID")]
    machine_uid: Option<String>,
}

/// Returns the name of the lock of a cluster.
pub fn name(cluster: &str) -> String {
    format!("{cluster}-lock")
}

impl Held {
    /// Returns true if the lock belongs to an earlier Cluster of the name.
    pub(crate) fn is_of_another(&self, cluster: &Cluster) -> bool {
        self.cluster_uid.is_some() && self.cluster_uid != cluster.metadata.uid
    }

    /// Returns true if a Machine holds the lock. The name decides if the lock has no UID.
    pub fn is_of(&self, machine: &Machine) -> bool {
        self.machine == machine.name_any()
            && (self.machine_uid.is_none() || self.machine_uid == machine.metadata.uid)
    }
}

/// Makes the lock of a Machine.
pub(crate) fn config_map(cluster: &Cluster, machine: &Machine) -> ConfigMap {
    let information = json!({ "machineName": machine.name_any(), "machineUID": machine.uid() });
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name(&cluster.name_any())),
            namespace: cluster.namespace(),
            labels: Some(
                [(CLUSTER_NAME_LABEL.to_owned(), label_value(&cluster.name_any()).into_owned())].into(),
            ),
            owner_references: Some(vec![owner_reference(cluster, false)]),
            ..ObjectMeta::default()
        },
        data: Some([(INFORMATION_KEY.to_owned(), information.to_string())].into()),
        ..ConfigMap::default()
    }
}

/// Reads the lock.
pub fn read(object: Option<&ConfigMap>) -> Lock {
    let Some(object) = object else { return Lock::Free };
    if object.metadata.deletion_timestamp.is_some() {
        return Lock::Deleting;
    }
    let text = object.data.as_ref().and_then(|data| data.get(INFORMATION_KEY));
    let information = text.and_then(|text| serde_json::from_str::<Information>(text).ok());
    let Some(information) = information.filter(|one| !one.machine_name.is_empty()) else {
        return Lock::Unreadable;
    };
    let owner = object.owner_references().iter().find(|owner| owner.kind == "Cluster");
    Lock::Held(Held {
        machine: information.machine_name,
        machine_uid: information.machine_uid.filter(|uid| !uid.is_empty()),
        cluster_uid: owner.map(|owner| owner.uid.clone()),
        uid: object.uid(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        let cluster = json!({ "metadata": { "name": "c", "namespace": "team", "uid": "1" }, "spec": {} });
        serde_json::from_value(cluster).unwrap()
    }

    fn machine(uid: &str) -> Machine {
        let reference = json!({ "apiGroup": "g", "kind": "K", "name": "m" });
        let machine = json!({ "metadata": { "name": "m", "uid": uid },
            "spec": { "clusterName": "c", "bootstrap": {}, "infrastructureRef": reference } });
        serde_json::from_value(machine).unwrap()
    }

    #[test]
    fn kb9_lock_has_the_form_of_upstream() {
        let expected = json!({ "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "c-lock", "namespace": "team",
                "labels": { "cluster.x-k8s.io/cluster-name": "c" },
                "ownerReferences": [{ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
                    "name": "c", "uid": "1" }] },
            "data": { "lock-information": "{\"machineName\":\"m\",\"machineUID\":\"7\"}" } });
        assert_eq!(json!(config_map(&cluster(), &machine("7"))), expected);
    }

    #[test]
    fn kb9_lock_without_a_machine_is_not_free() {
        let with = |text: &str| {
            let mut lock = config_map(&cluster(), &machine("7"));
            lock.data = Some([(INFORMATION_KEY.to_owned(), text.to_owned())].into());
            read(Some(&lock))
        };
        let (machine_uid, cluster_uid) = (Some("7".to_owned()), Some("1".to_owned()));
        let held = Held { machine: "m".to_owned(), machine_uid, cluster_uid, uid: None };
        assert_eq!(read(Some(&config_map(&cluster(), &machine("7")))), Lock::Held(held.clone()));
        let by_upstream = Held { machine_uid: None, ..held.clone() };
        assert_eq!(with("{\"machineName\":\"m\",\"later\":1}"), Lock::Held(by_upstream.clone()));
        assert!(held.is_of(&machine("7")) && !held.is_of(&machine("8")) && by_upstream.is_of(&machine("8")));
        for text in ["", "{}", "{\"machineName\":\"\"}", "{\"machineName\":1}"] {
            assert_eq!(with(text), Lock::Unreadable, "{text:?}");
        }
        assert_eq!(read(Some(&ConfigMap::default())), Lock::Unreadable);
        assert_eq!(read(None), Lock::Free);
        let mut deleting = config_map(&cluster(), &machine("7"));
        deleting.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        assert_eq!(read(Some(&deleting)), Lock::Deleting);
    }
}
