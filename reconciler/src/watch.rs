//! The watches: each updates its store and enqueues the objects that a change affects. Spawned by `run`.

pub mod prune;

use std::collections::BTreeSet;

use bedplate_api::claim::MachineClaim;
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::Machine;
use bedplate_api::operation::MachineOperation;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_engine::pulse::Changes;
use bedplate_engine::store::bare;
use bedplate_engine::{Facts, Loops};
use bedplate_rules::operation::is_finished;
use bedplate_rules::selection::was_granted;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::store::Writer;
use kube::{Api, Client, ResourceExt};

use crate::cache::index::makes_versions;
use crate::context::Stores;
use crate::csr;
use crate::enqueue::{Queues, weigh};
use crate::metrics::Counters;
use crate::operation::parent_of;
use crate::rollout::{MachineFacts, NodeFacts};

/// The ends of the stores that watches write to.
#[derive(Default)]
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
    let (writers, (open, index, whose, heard, waits)) = (Writers::default(), Default::default());
    let stores = Stores {
        configurations: writers.configurations.as_reader(),
        versions: writers.versions.as_reader(),
        machines: writers.machines.as_reader(),
        nodes: writers.nodes.as_reader(),
        requests: writers.requests.as_reader(),
        operations: writers.operations.as_reader(),
        claims: writers.claims.as_reader(),
        open,
        index,
        whose,
        heard,
        waits,
    };
    (stores, writers)
}

/// Spawns the watches.
pub fn spawn(
    client: &Client,
    writers: Writers,
    stores: &Stores,
    queues: &Queues,
    (counters, loops): (&Counters, &Loops<'_>),
) {
    macro_rules! watch {
        ($name:literal, $kind:literal, $writer:ident, $prune:path, $follow:path) => {{
            let (queues, stores) = (queues.clone(), stores.clone());
            let follower = move |seen| $follow(seen, queues, stores);
            loops.watch(($name, $kind), (client, Api::all), (writers.$writer, $prune), counters, follower);
        }};
    }
    watch!("watch configurations", "MachineConfiguration", configurations, bare, follow_configurations);
    watch!("watch versions", "MachineConfigurationVersion", versions, bare, follow_versions);
    watch!("watch machines", "Machine", machines, prune::machine, follow_machines);
    watch!("watch nodes", "Node", nodes, prune::node, follow_nodes);
    // A field selector names one signer, and kubelets have two.
    watch!("watch requests", "CertificateSigningRequest", requests, prune::request, follow_requests);
    watch!("watch operations", "MachineOperation", operations, bare, follow_operations);
    watch!("watch claims", "MachineClaim", claims, bare, follow_claims);
}

async fn follow_configurations(mut seen: Changes<MachineConfiguration>, queues: Queues, stores: Stores) {
    // Fields that users write matter to the version and to Machines, its finalizers only to the version. This
    // controller writes its status.
    let written = |object: &MachineConfiguration| {
        let meta = &object.metadata;
        (meta.uid.clone(), meta.generation, meta.deletion_timestamp.clone(), makes_versions(object))
    };
    let mut facts = Facts::default();
    while let Some(event) = seen.next().await {
        let name = event.object().name_any();
        stores.index_mut().configuration(&name, event.there().cloned());
        let change = facts.change(&event, |object| (written(object), object.metadata.finalizers.clone()));
        let Some((before, after)) = change else {
            queues.configuration_later(&name).await;
            continue;
        };
        queues.configuration(&name).await;
        queues.leaving_of(&name, &stores).await;
        if before.map(|(written, _)| written) != after.map(|(written, _)| written) {
            queues.dependents_of(&name, &stores).await;
            queues.rollout(&name).await;
        }
    }
}

async fn follow_versions(mut seen: Changes<MachineConfigurationVersion>, queues: Queues, stores: Stores) {
    let mut facts = Facts::default();
    while let Some(event) = seen.next().await {
        let (object, there) = (event.object(), event.there());
        let configuration = &object.spec.configuration_name;
        stores.index_mut().version(configuration, &object.name_any(), there.cloned());
        if let Some(version) = there {
            queues.version(version).await;
        }
        if !facts.changes(&event, weigh) {
            queues.configuration_later(configuration).await;
            continue;
        }
        if let Some(version) = there {
            queues.image(version).await;
        }
        queues.configuration(configuration).await;
        queues.dependents_of(configuration, &stores).await;
        queues.rollout(configuration).await;
    }
}

async fn follow_machines(mut seen: Changes<Machine>, queues: Queues, stores: Stores) {
    // Facts of each Machine that its operations depend on.
    let mut hosts = Facts::default();
    let mut turns = Facts::default();
    while let Some(event) = seen.next().await {
        let name = event.object().name_any();
        if hosts.changes(&event, |machine| (machine.spec.paused, machine.spec.site.clone())) {
            queues.operations_of(&name, &stores).await;
        }
        // Applied before the Machine is enqueued.
        match event.there() {
            Some(machine) => {
                stores.heard.put(machine, Timestamp::now());
                stores.waits.put(machine);
            }
            None => {
                stores.heard.remove(&name);
                stores.waits.remove(&name);
            }
        }
        let touched = stores.index_mut().machine(&name, event.there().cloned());
        if let Some(machine) = event.there() {
            queues.machine(&name).await;
            queues.departure(machine).await;
        }
        if let Some((before, after)) = turns.change(&event, MachineFacts::of) {
            let both = before.iter().chain(&after).filter_map(MachineFacts::configuration);
            for configuration in both.collect::<BTreeSet<_>>() {
                queues.rollout(configuration).await;
                queues.configuration_later(configuration).await;
            }
        }
        for configuration in touched {
            queues.configuration_later(&configuration).await;
            queues.leaving_of(&configuration, &stores).await;
        }
    }
}

async fn follow_nodes(mut seen: Changes<Node>, queues: Queues, stores: Stores) {
    // Each kubelet writes its Node's status every few minutes. Ten thousand kubelets write all the time.
    let mut facts = Facts::default();
    while let Some(event) = seen.next().await {
        if facts.changes(&event, NodeFacts::of) {
            let name = event.object().name_any();
            queues.machine(&name).await;
            queues.dependents_of_node(&name, &stores).await;
        }
    }
}

async fn follow_operations(mut seen: Changes<MachineOperation>, queues: Queues, stores: Stores) {
    while let Some(event) = seen.next().await {
        let object = event.object();
        if event.there().is_some() {
            stores.whose.put(object, Timestamp::now());
            queues.operation(&object.name_any()).await;
            // Other operations of the Machine may wait for this end.
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
    let mut facts = Facts::default();
    while let Some(event) = seen.next().await {
        let decisive = |claim: &MachineClaim| {
            let meta = &claim.metadata;
            (meta.uid.clone(), meta.deletion_timestamp.is_some(), was_granted(claim))
        };
        if facts.changes(&event, decisive) {
            queues.machine(&event.object().name_any()).await;
        }
    }
}

async fn follow_requests(mut seen: Changes<CertificateSigningRequest>, queues: Queues, stores: Stores) {
    while let Some(event) = seen.next().await {
        let object = event.object();
        if !csr::is_for_a_kubelet(object) {
            continue;
        }
        let name = object.name_any();
        // Updated before the object is reconciled.
        let next = match event.there().filter(|request| csr::is_open(request)) {
            Some(request) => stores.open().put(request),
            None => stores.open().remove(&name),
        };
        if event.there().is_some() {
            queues.request(&name).await;
        }
        // An older request of the same user takes its place.
        if let Some(next) = next {
            queues.request(&next).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use bedplate_engine::later::Later;
    use bedplate_engine::store::Seen;
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
            later: Later::channel().0,
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
