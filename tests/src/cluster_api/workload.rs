//! The objects that nodes and kubeadm create in a workload cluster, and the authorities of such a cluster.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::kubernetes::Objects;

/// Static Pods of a control plane that has an external etcd.
const STATIC_PODS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Returns the Secrets with which the KubeadmControlPlane of a cluster uses existing authorities, and an external etcd.
///
/// # Errors
/// A file is missing in the directory `pki` of kubeadm.
pub fn authorities(cluster: &str, pki: &Path) -> Result<Vec<Value>> {
    let files = [
        ("ca", "ca.crt", Some("ca.key")),
        ("proxy", "front-proxy-ca.crt", Some("front-proxy-ca.key")),
        ("sa", "sa.pub", Some("sa.key")),
        ("etcd", "etcd/ca.crt", None),
        ("apiserver-etcd-client", "apiserver-etcd-client.crt", Some("apiserver-etcd-client.key")),
    ];
    let read = |name: &str| std::fs::read_to_string(pki.join(name)).with_context(|| format!("no {name}"));
    let secret = |(purpose, certificate, key): (&str, &str, Option<&str>)| {
        let mut data = json!({ "tls.crt": read(certificate)? });
        // The authority of an etcd that kubeadm does not run has no key here.
        if let Some(key) = key {
            data["tls.key"] = read(key)?.into();
        }
        Ok(json!({ "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": { "name": format!("{cluster}-{purpose}"), "labels": { "cluster.x-k8s.io/cluster-name": cluster } },
            "stringData": data }))
    };
    files.into_iter().map(secret).collect()
}

/// A node that joins.
pub(super) struct Joining<'a> {
    /// Name of the Node.
    pub(super) name: &'a str,
    /// ID of the claim.
    pub(super) provider_id: &'a str,
    /// True for a control plane.
    pub(super) is_control_plane: bool,
    /// `ClusterConfiguration`, if kubeadm creates the cluster.
    pub(super) configuration: Option<&'a str>,
}

/// Creates what kubeadm and the kubelet create. Returns the Node.
pub(super) fn join(objects: &Objects, joining: &Joining<'_>) -> Result<Value> {
    let system = objects.within("kube-system");
    if let Some(configuration) = joining.configuration {
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "kubeadm-config" },
            "data": { "ClusterConfiguration": configuration } });
        system.apply(&map)?;
    }
    let mut labels = json!({ "kubernetes.io/hostname": joining.name });
    if joining.is_control_plane {
        labels["node-role.kubernetes.io/control-plane"] = "".into();
        STATIC_PODS.into_iter().try_for_each(|component| static_pod(&system, component, joining.name))?;
    }
    let mut node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": joining.name, "labels": labels },
        "spec": { "providerID": joining.provider_id } });
    if joining.is_control_plane {
        node["spec"]["taints"] =
            json!([{ "key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule" }]);
    }
    let made = objects.apply(&node)?;
    ready(objects, joining.name, "True")?;
    Ok(made)
}

/// Sets the condition `Ready` of a Node.
pub(super) fn ready(objects: &Objects, node: &str, status: &str) -> Result<()> {
    let now = jiff::Timestamp::now().to_string();
    let condition = |kind: &str, status: &str| {
        json!({ "type": kind, "status": status, "reason": "Simulated", "message": "",
        "lastHeartbeatTime": now, "lastTransitionTime": now })
    };
    let pressure = ["MemoryPressure", "DiskPressure", "PIDPressure"].map(|kind| condition(kind, "False"));
    let conditions: Vec<Value> = pressure.into_iter().chain([condition("Ready", status)]).collect();
    objects.merge_status("node", node, &json!({ "conditions": conditions })).map(drop)
}

fn static_pod(system: &Objects, component: &str, node: &str) -> Result<()> {
    let name = format!("{component}-{node}");
    let metadata = json!({ "name": name, "labels": { "component": component, "tier": "control-plane" },
        "annotations": { "kubernetes.io/config.mirror": "simulated" } });
    let container = json!({ "name": component, "image": "registry.example/simulated" });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": { "nodeName": node, "hostNetwork": true, "containers": [container] } });
    system.apply(&pod)?;
    let status = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
    system.merge_status("pod", &name, &status).map(drop)
}
