//! Pure: values that the provider fills in where the user has set none.

use bedplate_api::cluster::infrastructure::Endpoint;
use serde_json::{Value, json};

use super::kubeadm::{Part, part_or_new};
use super::{ClusterFacts, Fault, Issue, Purpose};
use crate::certificate::{self, CertificatePurpose};

/// Taint of a worker until the core provider has initialized its Node.
const UNINITIALIZED: &str = "node.cluster.x-k8s.io/uninitialized";

/// Returns an endpoint as `host:port`, with an IPv6 address in brackets.
pub(crate) fn host_and_port(endpoint: &Endpoint) -> String {
    let Endpoint { host, port } = endpoint;
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Fills in name, version, endpoint and networks of the cluster.
pub(super) fn fill_cluster(cluster: &mut Part, facts: &ClusterFacts<'_>, version: &str) {
    cluster.insert("clusterName".to_owned(), json!(facts.name));
    cluster.insert("kubernetesVersion".to_owned(), json!(version));
    if let Some(endpoint) = facts.endpoint {
        cluster.entry("controlPlaneEndpoint").or_insert_with(|| json!(host_and_port(endpoint)));
    }
    let networks = [
        ("dnsDomain", facts.service_domain.unwrap_or_default().to_owned()),
        ("podSubnet", facts.pods.join(",")),
        ("serviceSubnet", facts.services.join(",")),
    ];
    for (field, value) in networks.into_iter().filter(|(_, value)| !value.is_empty()) {
        part_or_new(cluster, "networking").insert(field.to_owned(), json!(value));
    }
}

/// Fills in the role: a control plane joins as one, and a worker is tainted until its Node is initialized.
pub(super) fn fill_role(join: &mut Part, purpose: Purpose, faults: &mut Vec<Fault>) {
    if purpose == Purpose::JoinControlPlane {
        part_or_new(join, "controlPlane");
        return;
    }
    if join.contains_key("controlPlane") {
        let path = "spec.joinConfiguration.controlPlane".to_owned();
        faults.push(Fault::Invalid { path, expected: "must not be set for a worker" });
    }
    let taints = part_or_new(join, "nodeRegistration").entry("taints").or_insert_with(|| json!([]));
    let Value::Array(taints) = taints else { return };
    if !taints.iter().any(|taint| taint["key"] == UNINITIALIZED && taint["effect"] == "NoSchedule") {
        taints.push(json!({ "key": UNINITIALIZED, "effect": "NoSchedule" }));
    }
}

/// Fills in the discovery: by the file that the user has chosen, otherwise by token.
pub(super) fn fill_discovery(join: &mut Part, issue: &Issue<'_>, faults: &mut Vec<Fault>) {
    const PATH: &str = "spec.joinConfiguration.discovery.bootstrapToken";
    let discovery = part_or_new(join, "discovery");
    if discovery.contains_key("file") && discovery.contains_key("bootstrapToken") {
        // kubeadm would refuse both on the machine, after a host was claimed.
        faults.push(Fault::Invalid { path: PATH.to_owned(), expected: "must not be set together with file" });
    }
    if let Some(file) = discovery.get_mut("file").and_then(Value::as_object_mut) {
        file.remove("kubeConfig");
        return;
    }
    let token = part_or_new(discovery, "bootstrapToken");
    if !token.contains_key("caCertHashes") {
        match certificate::authority_hashes(issue.certificates) {
            Ok(hashes) => drop(token.insert("caCertHashes".to_owned(), json!(hashes))),
            Err(why) => {
                let name = CertificatePurpose::ClusterAuthority.secret_name(issue.cluster.name);
                faults.push(Fault::Certificate { name, why });
            }
        }
    }
    if !token.contains_key("apiServerEndpoint") {
        match issue.cluster.endpoint {
            Some(endpoint) => {
                token.insert("apiServerEndpoint".to_owned(), json!(host_and_port(endpoint)));
            }
            None => faults.push(Fault::Missing {
                path: format!("{PATH}.apiServerEndpoint"),
                remedy: "wait until the Cluster has its endpoint",
            }),
        }
    }
    if !token.contains_key("token") {
        match issue.token {
            Some(made) => drop(token.insert("token".to_owned(), json!(made.text().as_str()))),
            None => {
                faults
                    .push(Fault::Missing { path: format!("{PATH}.token"), remedy: "make a bootstrap token" });
            }
        }
    }
}
