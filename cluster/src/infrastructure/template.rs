//! BedplateMachineTemplates: the least resources of the hosts that objects of a template may claim, for autoscaling from zero.
//!
//! Read: the stores. Decided: [`least`], pure. Free and held hosts count alike: the next free one may be any of them.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::infrastructure::{
    BedplateMachineTemplate, BedplateMachineTemplateStatus, Capacity, NodeInfo,
};
use bedplate_api::machine::Machine;
use bedplate_engine::Context as _;
use bedplate_engine::write::WriteError;
use bedplate_rules::selection::matches;
use kube::{Api, ResourceExt};

use super::context::World;
use crate::metrics::Kind;

/// Reconciles a BedplateMachineTemplate.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(
    template: Arc<BedplateMachineTemplate>,
    world: Arc<World>,
) -> Result<Option<Duration>, WriteError> {
    if !world.scope.includes(template.labels()) || template.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let hosts = world.stores.hosts.state();
    let status = least(&template, hosts.iter().map(|host| &**host));
    if template.status.clone().unwrap_or_default() == status {
        return Ok(None);
    }
    let templates: Api<BedplateMachineTemplate> =
        Api::namespaced(world.client.clone(), &template.namespace().unwrap_or_default());
    let write = async {
        world.wrote(Kind::Template);
        world.manager.apply_status(&templates, &*template, &status).await
    };
    world.leading(write).await.map(|_| None)
}

/// Returns the least of the hosts that objects of the template may claim.
fn least<'a>(
    template: &BedplateMachineTemplate,
    hosts: impl IntoIterator<Item = &'a Machine>,
) -> BedplateMachineTemplateStatus {
    let namespace = template.namespace().unwrap_or_default();
    let selector = template.spec.template.spec.machine_selector.as_ref();
    let may_claim = |host: &&Machine| {
        host.spec.claim_policy.as_ref().is_some_and(|policy| policy.allows(&namespace))
            && selector.is_none_or(|selector| matches(selector, host))
    };
    let reported = hosts.into_iter().filter(may_claim).filter_map(resources);
    let least = reported.reduce(|one, other| {
        let architecture = one.2.filter(|architecture| other.2.as_ref() == Some(architecture));
        (one.0.min(other.0), one.1.min(other.1), architecture)
    });
    let node_info = |architecture| Some(NodeInfo { architecture, operating_system: "linux".to_owned() });
    let Some((threads, memory, architecture)) = least else {
        // An apply that removes each field of a status makes it null, which the API server refuses: the old capacity would stay.
        return BedplateMachineTemplateStatus { capacity: None, node_info: node_info(None) };
    };
    let capacity = Some(Capacity { cpu: threads.to_string(), memory: memory.to_string() });
    BedplateMachineTemplateStatus { capacity, node_info: node_info(architecture) }
}

/// Hardware threads, bytes of memory and architecture of a host. None: it has not reported both numbers.
fn resources(host: &Machine) -> Option<(i32, i64, Option<String>)> {
    let hardware = host.status.as_ref()?.hardware.as_ref()?;
    let cpu = hardware.cpu.as_ref()?;
    let (threads, memory) = (cpu.threads?, hardware.memory_bytes?);
    let architecture = cpu.architecture.clone().filter(|architecture| !architecture.is_empty());
    (threads > 0 && memory > 0).then_some((threads, memory, architecture))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn host(rack: &str, namespace: &str, hardware: &Value) -> Machine {
        let object = json!({ "metadata": { "name": "h", "labels": { "rack": rack } },
            "spec": { "provider": "manual", "claimPolicy": { "namespaces": [namespace] } },
            "status": { "hardware": hardware } });
        serde_json::from_value(object).unwrap()
    }

    fn hardware(threads: i32, memory: i64, architecture: &str) -> Value {
        json!({ "cpu": { "threads": threads, "architecture": architecture }, "memoryBytes": memory })
    }

    #[test]
    fn capacity_is_the_least_of_the_hosts_that_may_be_claimed() {
        let spec = json!({ "configurationRef": { "name": "p" }, "machineSelector": { "matchLabels": { "rack": "7" } } });
        let template: BedplateMachineTemplate =
            serde_json::from_value(json!({ "metadata": { "name": "t", "namespace": "team-a" },
                "spec": { "template": { "spec": spec } } }))
            .unwrap();
        let mut hosts = vec![
            host("7", "team-a", &hardware(16, 200, "amd64")),
            host("7", "team-a", &hardware(32, 100, "amd64")),
            host("7", "team-b", &hardware(1, 1, "amd64")),
            host("8", "team-a", &hardware(1, 1, "amd64")),
            host("7", "team-a", &json!({ "cpu": { "threads": 1 } })),
        ];
        let expected = json!({ "capacity": { "cpu": "16", "memory": "100" },
            "nodeInfo": { "architecture": "amd64", "operatingSystem": "linux" } });
        assert_eq!(json!(least(&template, &hosts)), expected);
        hosts.push(host("7", "team-a", &hardware(64, 400, "arm64")));
        let found = json!(least(&template, &hosts));
        assert_eq!(found["nodeInfo"], json!({ "operatingSystem": "linux" }));
        // No host: a field of the status stays, so that the API server accepts it.
        let none = json!({ "nodeInfo": { "operatingSystem": "linux" } });
        assert_eq!(json!(least(&template, &hosts[2..5])), none);
    }
}
