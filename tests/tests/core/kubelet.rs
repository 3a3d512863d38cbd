//! Stand-in for the kubelet and for the controllers of one Node in the workload cluster: its Pods and its volumes.
//!
//! No kubelet runs, so a Pod that is evicted stays until the test ends it.

use bedplate_tests::kubernetes::Objects;
use http::Method;
use serde_json::{Value, json};

use super::owned::nodes;
use super::site::PATIENCE;
use super::workers::merge;

/// The stand-in. Its Pods are in a namespace with the name of the Node.
pub(crate) struct Kubelet {
    node: String,
    objects: Objects,
}

impl Kubelet {
    /// Creates the namespace of the Pods of a Node.
    pub(crate) fn of(node: &str) -> Self {
        let objects = nodes().within(node);
        objects
            .create(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": node } }))
            .unwrap();
        // Every Pod needs it.
        objects
            .create(
                &json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" } }),
            )
            .unwrap();
        Self { node: node.to_owned(), objects }
    }

    /// Creates a Pod that runs, with the label `app` of its name. `owner`: kind of its controller.
    pub(crate) fn pod_of(&self, owner: &str, name: &str, more: &Value) {
        let owner =
            json!({ "apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "0", "controller": true });
        let mut pod = json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "labels": { "app": name }, "ownerReferences": [owner] },
            "spec": { "nodeName": self.node, "automountServiceAccountToken": false,
                "containers": [{ "name": "c", "image": "registry.example/c" }] } });
        merge(&mut pod, more);
        self.objects.create(&pod).unwrap();
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        self.objects.merge_status("pod", name, &json!({ "phase": "Running", "conditions": ready })).unwrap();
    }

    /// Creates a Pod of a ReplicaSet.
    pub(crate) fn pod(&self, name: &str) {
        self.pod_of("ReplicaSet", name, &json!({}));
    }

    /// Returns a Pod that exists.
    pub(crate) fn get(&self, name: &str) -> Value {
        self.objects.get("pod", name).unwrap().unwrap_or_else(|| panic!("Pod {name} does not exist"))
    }

    /// True if a Pod exists and is not being deleted.
    pub(crate) fn stays(&self, name: &str) -> bool {
        self.get(name)["metadata"]["deletionTimestamp"].is_null()
    }

    /// Waits until a Pod is being deleted. Returns it.
    pub(crate) fn until_leaving(&self, name: &str) -> Value {
        let leaving =
            |pod: Option<&Value>| pod.filter(|pod| pod["metadata"]["deletionTimestamp"].is_string()).cloned();
        let found = self.objects.until(("pod", name), PATIENCE, leaving);
        found.unwrap_or_else(|error| panic!("eviction of Pod {name}: {error:#}\n{:#}", self.get(name)))
    }

    /// Ends a Pod that is being deleted.
    pub(crate) fn end(&self, name: &str) {
        assert!(!self.stays(name), "Pod {name} was not evicted");
        let path = format!("/api/v1/namespaces/{}/pods/{name}?gracePeriodSeconds=0", self.node);
        self.objects.request(&Method::DELETE, &path, "application/json", &Value::Null).unwrap();
    }

    /// Reports that a Pod has done its work.
    pub(crate) fn finish(&self, name: &str) {
        self.objects.merge_status("pod", name, &json!({ "phase": "Succeeded" })).unwrap();
    }

    /// Creates a PodDisruptionBudget for a Pod, that permits this number of disruptions.
    pub(crate) fn budget(&self, name: &str, disruptions: u32) {
        let selector = json!({ "matchLabels": { "app": name } });
        let budget = json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": name },
            "spec": { "minAvailable": 1, "selector": selector } });
        self.objects.create(&budget).unwrap();
        self.permit(name, disruptions);
    }

    /// Changes the number of permitted disruptions.
    pub(crate) fn permit(&self, name: &str, disruptions: u32) {
        let status = json!({ "disruptionsAllowed": disruptions, "currentHealthy": 1, "desiredHealthy": 1,
            "expectedPods": 1, "observedGeneration": 1 });
        self.objects.merge_status("pdb", name, &status).unwrap();
    }

    /// Attaches a volume with a claim of this name.
    pub(crate) fn attach(&self, claim: &str) {
        let volume = self.volume(claim);
        let reference = json!({ "kind": "PersistentVolumeClaim", "namespace": self.node, "name": claim });
        let object = json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": volume },
            "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "claimRef": reference,
                "csi": { "driver": "disk.example", "volumeHandle": volume } } });
        self.objects.create(&object).unwrap();
        let attachment = json!({ "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": { "name": volume },
            "spec": { "attacher": "disk.example", "nodeName": self.node, "source": { "persistentVolumeName": volume } } });
        self.objects.create(&attachment).unwrap();
        self.objects.merge_status("volumeattachment", &volume, &json!({ "attached": true })).unwrap();
    }

    /// Detaches the volume with a claim of this name.
    pub(crate) fn detach(&self, claim: &str) {
        self.objects.delete("volumeattachment", &self.volume(claim)).unwrap();
    }

    fn volume(&self, claim: &str) -> String {
        format!("{}-{claim}", self.node)
    }
}
