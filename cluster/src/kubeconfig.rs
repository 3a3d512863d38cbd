//! Secret `<cluster>-kubeconfig` of a workload cluster, read live: no program watches Secrets. Called by the groups that ask workload clusters.

use bedplate_api::cluster::full::Cluster;
use bedplate_bootstrap::kubeconfig_secret::{KUBECONFIG_KEY, secret_name};
use bedplate_engine::object;
use bedplate_engine::write::ask;
use bedplate_workload::{ClusterKey, Workload};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt};

/// Returns the key of the connection to a cluster.
pub fn key(cluster: &Cluster) -> ClusterKey {
    ClusterKey {
        namespace: cluster.namespace().unwrap_or_default(),
        name: cluster.name_any(),
        uid: cluster.uid().unwrap_or_default(),
    }
}

/// Reads the kubeconfig of a cluster, and connects by it. `connect` sends no request.
///
/// # Errors
/// The cause for a user. It names the Secret, and has no value of it.
pub async fn connect(
    client: &Client,
    key: &ClusterKey,
    connect: impl FnOnce(&ClusterKey, &[u8]) -> Result<Workload, String>,
) -> Result<Workload, String> {
    let name = secret_name(&key.name);
    let api: Api<Secret> = Api::namespaced(client.clone(), &key.namespace);
    let found = ask(&format!("Secret {name}"), object::get(&api, &name)).await;
    let secret = found.map_err(|_| format!("Secret {name} cannot be read"))?;
    let secret = secret.ok_or_else(|| format!("Secret {name} does not exist"))?;
    let value = secret.data.as_ref().and_then(|data| data.get(KUBECONFIG_KEY));
    let value = value.ok_or_else(|| format!("Secret {name} has no key {KUBECONFIG_KEY}"))?;
    connect(key, &value.0).map_err(|why| format!("Secret {name} is not usable: {why}"))
}
