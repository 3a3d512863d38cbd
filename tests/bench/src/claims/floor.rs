//! The floor: the writes of the protocol alone, by a loop that knows the host of each claimant. No watch, no decision, no queue.

use anyhow::Result;
use bedplate_api::cluster::infrastructure::BedplateMachine;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::site::{Site, TEAM, dynamic};

/// Subject of its rows.
pub(super) const FLOOR: &str = "the writes alone, 8 concurrent";
/// Workers of the provider for a kind.
const CONCURRENT_CLAIMS: usize = 8;

/// Claims a host for each claimant. Returns the number of writes.
pub(super) async fn place(site: &Site) -> Result<usize> {
    let machines: Api<BedplateMachine> = Api::namespaced(site.provider.clone(), TEAM);
    let claimants = machines.list(&kube::api::ListParams::default()).await?;
    let place = |(machine, host): (BedplateMachine, String)| {
        let machines = machines.clone();
        async move {
            let (name, id) =
                (machine.name_any(), format!("bedplate://{host}/{}", machine.uid().unwrap_or_default()));
            let merge = |change| {
                let (machines, name) = (machines.clone(), name.clone());
                async move { machines.patch(&name, &PatchParams::default(), &Patch::Merge(change)).await }
            };
            merge(json!({ "metadata": { "finalizers": ["bench.bedplate.dev/held"] } })).await?;
            merge(json!({ "spec": { "machineName": host } })).await?;
            let claim = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineClaim", "metadata": { "name": host },
                "spec": { "claimant": { "namespace": TEAM, "name": name, "uid": machine.uid() }, "clusterName": TEAM,
                    "role": "Worker", "nodeName": name, "providerID": id, "bootstrapSecretName": "data",
                    "configurationRef": { "name": TEAM }, "release": "Empty" } });
            let claims = dynamic(&site.provider, "bedplate.dev/v1alpha1", "MachineClaim");
            claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
            merge(json!({ "spec": { "providerID": id } })).await?;
            anyhow::Ok(4)
        }
    };
    let all = claimants.items.into_iter().zip(site.hosts.iter().cloned()).map(place);
    stream::iter(all)
        .buffer_unordered(CONCURRENT_CLAIMS)
        .try_fold(0, |all, more| async move { Ok(all + more) })
        .await
}
