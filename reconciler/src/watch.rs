//! The watches: each keeps its store and says what a change touches. Spawned by `run`.

pub mod prune;

use std::collections::BTreeMap;

use bedplate_api::claim::MachineClaim;
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::Machine;
use bedplate_api::operation::MachineOperation;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_engine::pulse::{Changes, WATCH_PATIENCE, follow};
use bedplate_engine::store::{Seen, watch};
use bedplate_process::liveness::Liveness;
use futures::StreamExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::store::Writer;
use kube::runtime::{reflector, watcher};
use kube::{Api, Client, ResourceExt};

use crate::cache::index::makes_versions;
use crate::context::Stores;
use crate::enqueue::{Queues, weighs};
use crate::metrics::Counters;
use crate::operation::parent_of;
use crate::{csr, rollout};
use bedplate_rules::operation::is_finished;
use bedplate_rules::selection::was_granted;

/// The ends of the stores that watches write to.
pub struct Writers {
    configurations: Writer<MachineConfiguration>,
    versions: Writer<MachineConfigurationVersion>,
    machines: Writer<Machine>,
    nodes: Writer<Node>,
    requests: Writer<CertificateSigningRequest>,
    operations: Writer<MachineOperation>,
    claims: Writer<MachineClaim>,
}

/// Empty stores.
pub fn stores() -> (Stores, Writers) {
    let (configurations, configuration_writer) = reflector::store();
    let (versions, version_writer) = reflector::store();
    let (machines, machine_writer) = reflector::store();
    let (nodes, node_writer) = reflector::store();
    let (requests, request_writer) = reflector::store();
    let (operations, operation_writer) = reflector::store();
    let (claims, claim_writer) = reflector::store();
    let writers = Writers {
        configurations: configuration_writer,
        versions: version_writer,
        machines: machine_writer,
        nodes: node_writer,
        requests: request_writer,
        operations: operation_writer,
        claims: claim_writer,
    };
    let (open, index, whose, heard, waits) = Default::default();
    let stores = Stores {
        machines,
        configurations,
        versions,
        nodes,
        requests,
        operations,
        claims,
        open,
        index,
        whose,
        heard,
        waits,
    };
    (stores, writers)
}

/// The watches by their names; none ends by itself.
pub fn tasks(
    client: &Client,
    writers: Writers,
    stores: &Stores,
    queues: &Queues,
    counters: &Counters,
    liveness: &Liveness,
) -> [(&'static str, BoxFuture<'static, ()>); 7] {
    macro_rules! follow {
        ($name:literal, $kind:literal, $writer:ident, $prune:path, $follow:path) => {{
            let (config, counters) = (watcher::Config::default(), counters.clone());
            let seen = watch(client, ($kind, Api::all), config, writers.$writer, $prune, counters);
            let (queues, stores, pulse) =
                (queues.clone(), stores.clone(), liveness.part($name, WATCH_PATIENCE));
            let task: BoxFuture<'static, ()> =
                Box::pin(follow(seen, pulse, move |seen| $follow(seen, queues, stores)));
            ($name, task)
        }};
    }
    [
        follow!(
            "watch configurations",
            "MachineConfiguration",
            configurations,
            prune::bare,
            follow_configurations
        ),
        follow!("watch versions", "MachineConfigurationVersion", versions, prune::bare, follow_versions),
        follow!("watch machines", "Machine", machines, prune::machine, follow_machines),
        follow!("watch nodes", "Node", nodes, prune::node, follow_nodes),
        // A field selector names one signer, and kubelets have two.
        follow!("watch requests", "CertificateSigningRequest", requests, prune::request, follow_requests),
        follow!("watch operations", "MachineOperation", operations, prune::bare, follow_operations),
        follow!("watch claims", "MachineClaim", claims, prune::bare, follow_claims),
    ]
}

async fn follow_configurations(mut seen: Changes<MachineConfiguration>, queues: Queues, stores: Stores) {
    // Fields that users write matter to the version and to Machines, its finalizers only to the version. This
    // controller writes its status.
    let mut known = BTreeMap::new();
    while let Some(event) = seen.next().await {
        let (Seen::There(object) | Seen::Gone(object)) = &event;
        let (name, is_there) = (object.name_any(), matches!(event, Seen::There(_)));
        stores.index_mut().configuration(&name, is_there.then(|| object.clone()));
        let meta = &object.metadata;
        let deletion = meta.deletion_timestamp.clone();
        let written = is_there.then(|| (meta.uid.clone(), meta.generation, deletion, makes_versions(object)));
        let held = meta.finalizers.clone();
        let before = known.insert(name.clone(), (written.clone(), held.clone()));
        if before != Some((written.clone(), held)) {
            queues.configuration(&name).await;
            queues.leaving_of(&name, &stores).await;
        } else {
            queues.configuration_later(&name).await;
        }
        if before.is_none_or(|(before, _)| before != written) {
            queues.dependents_of(&name, &stores).await;
            queues.rollout(&name).await;
        }
        if !is_there {
            known.remove(&name);
        }
    }
}

async fn follow_versions(mut seen: Changes<MachineConfigurationVersion>, queues: Queues, stores: Stores) {
    let mut weights = BTreeMap::new();
    while let Some(event) = seen.next().await {
        let (Seen::There(object) | Seen::Gone(object)) = &event;
        let (name, is_there) = (object.name_any(), matches!(event, Seen::There(_)));
        let configuration = &object.spec.configuration_name;
        stores.index_mut().version(configuration, &name, is_there.then(|| object.clone()));
        if is_there {
            queues.version(object).await;
        }
        let weight = is_there.then(|| weighs(object));
        if weights.insert(name.clone(), weight.clone()) != Some(weight) {
            if is_there {
                queues.image(object).await;
            }
            queues.configuration(configuration).await;
            queues.dependents_of(configuration, &stores).await;
            queues.rollout(configuration).await;
        } else {
            queues.configuration_later(configuration).await;
        }
        if !is_there {
            weights.remove(&name);
        }
    }
}

async fn follow_machines(mut seen: Changes<Machine>, queues: Queues, stores: Stores) {
    // Properties of each Machine that its operations depend on.
    let mut hosts = BTreeMap::new();
    let mut turns = rollout::Weights::default();
    while let Some(event) = seen.next().await {
        let (Seen::There(object) | Seen::Gone(object)) = &event;
        let (name, is_there) = (object.name_any(), matches!(event, Seen::There(_)));
        let host = is_there.then(|| (object.spec.paused, object.spec.site.clone()));
        let before = match &host {
            Some(host) => hosts.insert(name.clone(), host.clone()),
            None => hosts.remove(&name),
        };
        if before != host {
            queues.operations_of(&name, &stores).await;
        }
        // Applied before the Machine is enqueued.
        match is_there {
            true => {
                stores.heard.put(object, Timestamp::now());
                stores.waits.put(object);
            }
            false => {
                stores.heard.remove(&name);
                stores.waits.remove(&name);
            }
        }
        let touched = stores.index_mut().machine(&name, is_there.then(|| object.clone()));
        if is_there {
            queues.machine(&name).await;
            queues.departure(object).await;
        }
        for configuration in turns.touched(&name, is_there.then_some(&**object)) {
            queues.rollout(&configuration).await;
            queues.configuration_later(&configuration).await;
        }
        for configuration in touched {
            queues.configuration_later(&configuration).await;
            queues.leaving_of(&configuration, &stores).await;
        }
    }
}

async fn follow_nodes(mut seen: Changes<Node>, queues: Queues, stores: Stores) {
    // A kubelet writes its Node's status every few minutes, and ten thousand of them all the time.
    let mut weights = rollout::NodeWeights::default();
    while let Some(event) = seen.next().await {
        let (Seen::There(object) | Seen::Gone(object)) = &event;
        let (name, is_there) = (object.name_any(), matches!(event, Seen::There(_)));
        if weights.is_other(&name, is_there.then_some(&**object)) {
            queues.machine(&name).await;
            queues.dependents_of_node(&name, &stores).await;
        }
    }
}

async fn follow_operations(mut seen: Changes<MachineOperation>, queues: Queues, stores: Stores) {
    while let Some(event) = seen.next().await {
        let (Seen::There(object) | Seen::Gone(object)) = &event;
        if matches!(event, Seen::There(_)) {
            stores.whose.put(object, Timestamp::now());
            queues.operation(&object.name_any()).await;
            // Others of its Machine have waited for its end.
            if let Some(reference) = object.spec.machine_ref.as_ref().filter(|_| is_finished(object)) {
                queues.operations_of(reference.name.as_str(), &stores).await;
            }
        } else {
            stores.whose.remove(object);
        }
        if let Some((parent, _)) = parent_of(object) {
            queues.operation(parent).await;
        }
    }
}

async fn follow_claims(mut seen: Changes<MachineClaim>, queues: Queues, _: Stores) {
    // Creation, grant, deletion and removal of a claim decide. Its spec cannot change, and the rest of its status is for others.
    let mut known = BTreeMap::new();
    while let Some(event) = seen.next().await {
        let (Seen::There(object) | Seen::Gone(object)) = &event;
        let (name, is_there) = (object.name_any(), matches!(event, Seen::There(_)));
        let meta = &object.metadata;
        let weight =
            is_there.then(|| (meta.uid.clone(), meta.deletion_timestamp.is_some(), was_granted(object)));
        if known.insert(name.clone(), weight.clone()) != Some(weight) {
            queues.machine(&name).await;
        }
        if !is_there {
            known.remove(&name);
        }
    }
}

async fn follow_requests(mut seen: Changes<CertificateSigningRequest>, queues: Queues, stores: Stores) {
    while let Some(event) = seen.next().await {
        let (Seen::There(object) | Seen::Gone(object)) = &event;
        if !csr::is_for_a_kubelet(object) {
            continue;
        }
        let (name, is_there) = (object.name_any(), matches!(event, Seen::There(_)));
        // Before it is reconciled.
        let next = match is_there && csr::is_open(object) {
            true => stores.open().put(object),
            false => stores.open().remove(&name),
        };
        if is_there {
            queues.request(&name).await;
        }
        // An older one of the same user takes its place.
        if let Some(next) = next {
            queues.request(&next).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::enqueue::Queue;
    use crate::metrics::Kind;

    fn request(number: i64, status: &Value) -> CertificateSigningRequest {
        let made = Timestamp::from_second(number).unwrap().to_string();
        let spec = json!({ "request": "", "signerName": "kubernetes.io/kubelet-serving", "username": "system:node:a" });
        let meta = json!({ "name": format!("r{number}"), "creationTimestamp": made });
        serde_json::from_value(json!({ "metadata": meta, "spec": spec, "status": status })).unwrap()
    }

    /// Queues the newest four of six requests of a user.
    #[tokio::test]
    async fn trust_5_older_request_is_queued_once_it_is_one_of_the_newest() {
        let counters = Counters::default();
        let (requests, mut queued) = Queue::new(Kind::Request, &counters);
        let queues = Queues {
            configurations: Queue::new(Kind::Configuration, &counters).0,
            versions: Queue::new(Kind::Version, &counters).0,
            machines: Queue::new(Kind::Machine, &counters).0,
            requests,
            operations: Queue::new(Kind::Operation, &counters).0,
            images: Queue::new(Kind::Image, &counters).0,
            rollouts: Queue::new(Kind::Rollout, &counters).0,
            departures: Queue::new(Kind::Deletion, &counters).0,
            later: crate::enqueue::later().0,
        };
        let approved = json!({ "conditions": [{ "type": "Approved", "status": "True" }] });
        let open = (0..6).map(|number| Seen::There(request(number, &json!({})).into()));
        let decided = Seen::There(request(5, &approved).into());
        let deleted = Seen::Gone(request(4, &json!({})).into());
        let events: Vec<_> = open.chain([decided, deleted]).collect();
        let stores = stores().0;
        follow_requests(Box::pin(futures::stream::iter(events)), queues, stores.clone()).await;
        let mut names = Vec::new();
        while let Some(name) = queued.recv().await {
            names.push(name.name);
        }
        assert_eq!(names, ["r0", "r1", "r2", "r3", "r4", "r5", "r5", "r1", "r0"]);
        assert!((0..4).all(|number| stores.open().is_new(&format!("r{number}"))));
    }
}
