//! Pure: the objects of this bench, the same for both cores. All defaults are written out, because webhooks set them for one core only.

use serde_json::{Value, json};

use crate::claims::site::TEAM;

/// API version of the core kinds.
pub(super) const CORE: &str = "cluster.x-k8s.io/v1beta2";
/// API version of the bootstrap kinds.
pub(super) const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io/v1beta2";
/// API version of our infrastructure kinds.
pub(super) const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io/v1alpha1";
/// API version of the stand-in for a control plane.
pub(super) const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io/v1alpha1";
/// Secret that the stand-in for the bootstrap provider names.
pub(super) const DATA: &str = "data";
/// Label with the name of the Cluster.
pub(super) const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";
const DEPLOYMENT_LABEL: &str = "cluster.x-k8s.io/deployment-name";
/// Kubernetes version of all Machines.
const KUBERNETES: &str = "v1.34.4";
/// Images in the status of a Node.
const MAX_IMAGES: usize = 20;

/// An object, and its status if the bench writes it.
pub(super) struct Object {
    pub(super) version: &'static str,
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) body: Value,
    pub(super) status: Option<Value>,
}

/// Returns the name of a Cluster. Its MachineDeployment and templates have it too.
pub(super) fn cluster_name(number: usize) -> String {
    format!("cluster-{number:02}")
}

/// Returns the number of the Cluster with this name.
pub(super) fn cluster_number(name: &str) -> Option<usize> {
    name.strip_prefix("cluster-")?.parse().ok()
}

/// Returns the objects of a Cluster. `kubeconfig` and `port`: those of its workload cluster.
pub(super) fn cluster(number: usize, replicas: usize, kubeconfig: &str, port: u16) -> Vec<Object> {
    let name = cluster_name(number);
    let labels = json!({ CLUSTER_LABEL: name });
    let object =
        |version, kind, body: Value, status| Object { version, kind, name: name.clone(), body, status };
    let endpoint = json!({ "host": "127.0.0.1", "port": port });
    let secret = json!({ "metadata": { "labels": labels }, "type": "cluster.x-k8s.io/secret", "stringData": { "value": kubeconfig } });
    let provisioned = json!({ "initialization": { "provisioned": true }, "ready": true, "conditions": [condition("Ready")] });
    let template = json!({ "spec": { "template": { "spec": { "configurationRef": { "name": TEAM } } } } });
    let files = json!([{ "path": "/etc/bench", "content": "bench" }]);
    let config_template = json!({ "spec": { "template": { "spec": { "files": files } } } });
    let [infrastructure, plane] = [(INFRASTRUCTURE, "BedplateCluster"), (CONTROL_PLANE, "BenchControlPlane")]
        .map(|(version, kind)| reference(version, kind, &name));
    let spec = json!({ "infrastructureRef": infrastructure, "controlPlaneRef": plane });
    vec![
        Object { name: format!("{name}-kubeconfig"), ..object("v1", "Secret", secret, None) },
        object(
            CONTROL_PLANE,
            "BenchControlPlane",
            json!({ "spec": { "version": KUBERNETES, "replicas": 3 } }),
            Some(plane_status()),
        ),
        object(
            INFRASTRUCTURE,
            "BedplateCluster",
            json!({ "spec": { "controlPlaneEndpoint": endpoint } }),
            Some(provisioned),
        ),
        object(INFRASTRUCTURE, "BedplateMachineTemplate", template, None),
        object(BOOTSTRAP, "KubeadmConfigTemplate", config_template, None),
        object(CORE, "Cluster", json!({ "spec": spec }), None),
        object(CORE, "MachineDeployment", deployment(&name, replicas), None),
    ]
}

fn deployment(name: &str, replicas: usize) -> Value {
    let labels = json!({ CLUSTER_LABEL: name, DEPLOYMENT_LABEL: name });
    let machine = json!({ "clusterName": name, "version": KUBERNETES,
        "bootstrap": { "configRef": reference(BOOTSTRAP, "KubeadmConfigTemplate", name) },
        "infrastructureRef": reference(INFRASTRUCTURE, "BedplateMachineTemplate", name) });
    let rollout = json!({ "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } } });
    json!({ "metadata": { "labels": { CLUSTER_LABEL: name } },
        "spec": { "clusterName": name, "replicas": replicas, "rollout": rollout, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": machine } } })
}

fn reference(version: &str, kind: &str, name: &str) -> Value {
    let group = version.split('/').next().unwrap_or_default();
    json!({ "apiGroup": group, "kind": kind, "name": name })
}

/// Status of a control plane that is initialized and has its replicas. It is managed elsewhere: otherwise a core deletes no
/// Node of a cluster whose control plane has no Machines.
fn plane_status() -> Value {
    let replicas = ["replicas", "readyReplicas", "availableReplicas", "upToDateReplicas"];
    let mut status = json!({ "version": KUBERNETES, "initialization": { "controlPlaneInitialized": true },
        "externalManagedControlPlane": true,
        "conditions": [condition("Available")] });
    replicas.into_iter().for_each(|field| status[field] = 3.into());
    status
}

/// A condition that is True.
pub(super) fn condition(kind: &str) -> Value {
    json!({ "type": kind, "status": "True", "reason": "Simulated", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

/// Returns the definition of the stand-in for a control plane.
pub(super) fn control_plane_definition() -> Value {
    let free = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let schema =
        json!({ "openAPIV3Schema": { "type": "object", "properties": { "spec": free, "status": free } } });
    json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "benchcontrolplanes.controlplane.cluster.x-k8s.io", "labels": { "cluster.x-k8s.io/v1beta2": "v1alpha1" } },
        "spec": { "group": "controlplane.cluster.x-k8s.io", "scope": "Namespaced",
            "names": { "kind": "BenchControlPlane", "plural": "benchcontrolplanes", "singular": "benchcontrolplane",
                "listKind": "BenchControlPlaneList" },
            "versions": [{ "name": "v1alpha1", "served": true, "storage": true, "schema": schema, "subresources": { "status": {} } }] } })
}

/// Returns the Node of a machine, with as many images as a small node has.
pub(super) fn node(name: &str, uid: &str, provider_id: &str) -> Value {
    let image = |number: usize| {
        let digest = format!("registry.example/image-{number}@sha256:{number:064x}");
        json!({ "names": [digest, format!("registry.example/image-{number}:v1")], "sizeBytes": 50_000_000 + number })
    };
    let pressure = ["MemoryPressure", "DiskPressure", "PIDPressure"].map(|kind| (kind, "False"));
    let conditions: Vec<Value> =
        pressure.into_iter().chain([("Ready", "True")]).map(node_condition).collect();
    let resources =
        json!({ "cpu": "64", "memory": "527942280Ki", "pods": "110", "ephemeral-storage": "1844284980Ki" });
    let info = json!({ "architecture": "amd64", "bootID": uid, "containerRuntimeVersion": "containerd://2.1.4",
        "kernelVersion": "6.12.43", "kubeProxyVersion": "", "kubeletVersion": KUBERNETES, "machineID": uid,
        "operatingSystem": "linux", "osImage": "Debian GNU/Linux 13", "systemUUID": uid });
    json!({ "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": { "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64" } },
        "spec": { "providerID": provider_id },
        "status": { "capacity": resources, "allocatable": resources, "nodeInfo": info, "conditions": conditions,
            "addresses": [{ "type": "Hostname", "address": name }], "images": (0..MAX_IMAGES).map(image).collect::<Vec<_>>() } })
}

fn node_condition((kind, status): (&str, &str)) -> Value {
    json!({ "type": kind, "status": status, "reason": "Simulated", "message": "",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_is_found_by_its_name() {
        for number in [0, 7, 49] {
            assert_eq!(cluster_number(&cluster_name(number)), Some(number));
        }
        assert_eq!(cluster_number("other"), None);
    }

    #[test]
    fn machines_have_the_labels_that_their_deployment_selects() {
        let spec = &deployment("cluster-01", 40)["spec"];
        assert_eq!(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]);
        assert_eq!(
            spec["template"]["spec"]["infrastructureRef"]["apiGroup"],
            "infrastructure.cluster.x-k8s.io"
        );
    }
}
