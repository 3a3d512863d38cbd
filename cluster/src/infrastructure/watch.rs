//! The watches: each keeps its store, and queues the objects that a change concerns. Spawned by [`begin`](super::begin).

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bedplate_api::claim::MachineClaim;
use bedplate_api::cluster::core::{Cluster, Machine as Owner};
use bedplate_api::cluster::infrastructure::{BedplateCluster, BedplateMachine, BedplateMachineTemplate};
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::id::MachineName;
use bedplate_api::machine::{AgentStatus, Machine};
use bedplate_claim::is_free;
use bedplate_engine::pulse::Changes;
use bedplate_engine::store::Seen;
use bedplate_engine::{Loops, Queue};
use bedplate_rules::claim::eligible::is_recent;
use futures::StreamExt;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::{Api, Client, ResourceExt};

use super::context::{Stores, World};
use super::decisive;
use super::prune::prune_host;
use super::wake::{Wake, wake};
use crate::metrics::Kind;
use crate::owner::cluster_name;
use crate::watch::{bare, in_scope};

/// The queues. Clones share them.
#[derive(Debug, Clone)]
pub struct Queues {
    /// BedplateClusters.
    pub infrastructures: Queue<BedplateCluster, Kind>,
    /// BedplateMachines.
    pub machines: Queue<BedplateMachine, Kind>,
    /// MachineClaims.
    pub claims: Queue<MachineClaim, Kind>,
    /// BedplateMachineTemplates.
    pub templates: Queue<BedplateMachineTemplate, Kind>,
    /// Hosts that claimants may take.
    pub wake: Wake,
}

/// The ends of the stores that watches write to.
#[derive(Default)]
pub struct Writers {
    infrastructures: Writer<BedplateCluster>,
    machines: Writer<BedplateMachine>,
    clusters: Writer<Cluster>,
    owners: Writer<Owner>,
    claims: Writer<MachineClaim>,
    hosts: Writer<Machine>,
    configurations: Writer<MachineConfiguration>,
    templates: Writer<BedplateMachineTemplate>,
}

/// Makes empty stores.
pub fn stores() -> (Stores, Writers) {
    let writers = Writers::default();
    let stores = Stores {
        infrastructures: writers.infrastructures.as_reader(),
        machines: writers.machines.as_reader(),
        clusters: writers.clusters.as_reader(),
        owners: writers.owners.as_reader(),
        claims: writers.claims.as_reader(),
        hosts: writers.hosts.as_reader(),
        configurations: writers.configurations.as_reader(),
        templates: writers.templates.as_reader(),
        changes: Arc::default(),
    };
    (stores, writers)
}

/// Spawns the watches, and the task that wakes claimants.
pub fn spawn(client: &Client, (world, writers): (&World, Writers), queues: &Queues, loops: &Loops<'_>) {
    let (stores, scope) = (&world.stores, &world.scope);
    macro_rules! watch {
        ($name:literal, $kind:literal, $writer:ident, $api:expr, $prune:path, $follow:path) => {{
            let (queues, stores) = (queues.clone(), stores.clone());
            let follower = move |seen| $follow(seen, queues, stores);
            let store = (writers.$writer, $prune);
            loops.watch(($name, $kind), (client, $api), store, &world.counters, follower);
        }};
    }
    watch!(
        "watch BedplateClusters",
        "BedplateCluster",
        infrastructures,
        in_scope(scope),
        bare,
        follow_infrastructures
    );
    watch!("watch BedplateMachines", "BedplateMachine", machines, in_scope(scope), bare, follow_machines);
    watch!("watch Clusters", "Cluster", clusters, in_scope(scope), bare, follow_clusters);
    watch!("watch Machines", "Machine", owners, in_scope(scope), bare, follow_owners);
    watch!("watch MachineClaims", "MachineClaim", claims, Api::all, bare, follow_claims);
    watch!("watch hosts", "Host", hosts, Api::all, prune_host, follow_hosts);
    watch!(
        "watch configurations",
        "MachineConfiguration",
        configurations,
        Api::all,
        bare,
        follow_configurations
    );
    watch!("watch templates", "BedplateMachineTemplate", templates, in_scope(scope), bare, follow_templates);
    loops.spawn_beating("wake claimants", wake(queues.clone(), stores.clone()));
}

async fn follow_infrastructures(mut seen: Changes<BedplateCluster>, queues: Queues, stores: Stores) {
    let mut known = decisive::Known::default();
    while let Some(event) = seen.next().await {
        if known.changes(&event) {
            stores.claimant_changed();
        }
        let (Seen::There(object) | Seen::Gone(object)) = event;
        queues.infrastructures.put(ObjectRef::from_obj(&*object)).await;
        // The label of failure domains decides about machines.
        for machine in stores.machines.state() {
            let is_waiting = machine.spec.provider_id.is_none() && machine.namespace() == object.namespace();
            if is_waiting {
                queues.machines.put(ObjectRef::from_obj(&*machine)).await;
            }
        }
    }
}

async fn follow_machines(mut seen: Changes<BedplateMachine>, queues: Queues, stores: Stores) {
    let mut known = decisive::Known::default();
    while let Some(event) = seen.next().await {
        if known.changes(&event) {
            stores.claimant_changed();
        }
        let (Seen::There(object) | Seen::Gone(object)) = &event;
        queues.machines.put(ObjectRef::from_obj(&**object)).await;
        if let Some(host) = object.spec.machine_name.as_ref().map(MachineName::as_str) {
            queues.claims.put(ObjectRef::new(host)).await;
        }
        // The last one lets its BedplateCluster go.
        if matches!(event, Seen::Gone(_)) {
            for infrastructure in stores.infrastructures.state() {
                let is_deleting = infrastructure.metadata.deletion_timestamp.is_some();
                if is_deleting && infrastructure.namespace() == object.namespace() {
                    queues.infrastructures.put(ObjectRef::from_obj(&*infrastructure)).await;
                }
            }
        }
    }
}

async fn follow_clusters(mut seen: Changes<Cluster>, queues: Queues, stores: Stores) {
    let mut known = HashMap::new();
    while let Some(event) = seen.next().await {
        let (Seen::There(object) | Seen::Gone(object)) = &event;
        let key = ObjectRef::from_obj(&**object);
        if matches!(event, Seen::Gone(_)) {
            known.remove(&key);
        } else {
            let provisioned =
                object.status.as_ref().and_then(|status| status.initialization.infrastructure_provisioned);
            let weight = (
                object.metadata.uid.clone(),
                object.metadata.generation,
                provisioned,
                object.annotations().clone(),
            );
            if known.insert(key, weight.clone()) == Some(weight) {
                continue;
            }
        }
        stores.claimant_changed();
        let namespace = object.namespace().unwrap_or_default();
        if let Some(reference) = &object.spec.infrastructure_ref
            && reference.is_kind("BedplateCluster")
        {
            queues.infrastructures.put(ObjectRef::new(&reference.name).within(&namespace)).await;
        }
        let name = object.name_any();
        for machine in stores.machines.state() {
            if machine.namespace().as_ref() == Some(&namespace) && cluster_name(&*machine) == Some(&name) {
                queues.machines.put(ObjectRef::from_obj(&*machine)).await;
            }
        }
        // The Cluster may be unpaused.
        for claim in stores.claims.state() {
            if claim.spec.claimant.namespace == namespace && claim.spec.cluster_name == name {
                queues.claims.put(ObjectRef::from_obj(&*claim)).await;
            }
        }
    }
}

async fn follow_owners(mut seen: Changes<Owner>, queues: Queues, stores: Stores) {
    let mut known = decisive::Known::default();
    while let Some(event) = seen.next().await {
        if known.changes(&event) {
            stores.claimant_changed();
        }
        let (Seen::There(object) | Seen::Gone(object)) = event;
        let namespace = object.namespace().unwrap_or_default();
        if let Some(reference) = &object.spec.infrastructure_ref
            && reference.is_kind("BedplateMachine")
        {
            queues.machines.put(ObjectRef::new(&reference.name).within(&namespace)).await;
        }
    }
}

async fn follow_claims(mut seen: Changes<MachineClaim>, queues: Queues, stores: Stores) {
    let mut known = HashSet::new();
    while let Some(event) = seen.next().await {
        let (Seen::There(object) | Seen::Gone(object)) = &event;
        let is_changed = match event {
            Seen::There(_) => known.insert(object.name_any()),
            Seen::Gone(_) => known.remove(&object.name_any()),
        };
        // A choice of hosts depends on the names of claims alone.
        if is_changed {
            stores.host_changed();
        }
        let claimant = &object.spec.claimant;
        queues.claims.put(ObjectRef::from_obj(&**object)).await;
        queues.machines.put(ObjectRef::new(&claimant.name).within(&claimant.namespace)).await;
        // A host may be free.
        if matches!(event, Seen::Gone(_)) {
            queues.wake.note();
        }
    }
}

/// Queues the BedplateMachines that have no host and for which this holds.
pub async fn waiting(queues: &Queues, stores: &Stores, concerns: impl Fn(&BedplateMachine) -> bool) {
    for machine in stores.machines.state() {
        if machine.spec.machine_name.is_none() && concerns(&machine) {
            queues.machines.put(ObjectRef::from_obj(&*machine)).await;
        }
    }
}

async fn follow_hosts(mut seen: Changes<Machine>, queues: Queues, stores: Stores) {
    let mut known = HashMap::new();
    while let Some(event) = seen.next().await {
        let (Seen::There(object) | Seen::Gone(object)) = &event;
        let name = object.name_any();
        let now = Timestamp::now();
        let after = Known::of(object);
        let decides = after.at(now);
        let before = match event {
            Seen::There(_) => known.insert(name.clone(), after),
            Seen::Gone(_) => known.remove(&name),
        };
        // A claim that waits for its agent follows each heartbeat.
        let claim = stores.claims.get(&ObjectRef::new(&name));
        if claim.is_some() {
            queues.claims.put(ObjectRef::new(&name)).await;
        }
        if matches!(event, Seen::There(_)) && before.as_ref().map(|before| before.at(now)) == Some(decides) {
            continue;
        }
        stores.host_changed();
        if let Some(claimant) = claim.as_ref().map(|claim| &claim.spec.claimant) {
            queues.machines.put(ObjectRef::new(&claimant.name).within(&claimant.namespace)).await;
        }
        if object.spec.claim_policy.is_none() && before.is_none() {
            continue;
        }
        let record = object.status.as_ref().and_then(|status| status.claim.as_ref());
        if claim.is_none() && is_free(record.map(|record| record.state)) {
            queues.wake.note();
        }
        for template in stores.templates.state() {
            queues.templates.put(ObjectRef::from_obj(&*template)).await;
        }
        for infrastructure in stores.infrastructures.state() {
            if infrastructure.spec.failure_domain_label.is_some() {
                queues.infrastructures.put(ObjectRef::from_obj(&*infrastructure)).await;
            }
        }
    }
}

/// Host as the last event has shown it.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// Hash of all that decides about claimants, but the time of the heartbeat.
    hash: u64,
    heartbeat: Option<Timestamp>,
}

impl Known {
    fn of(host: &Machine) -> Self {
        let mut host = host.clone();
        (host.metadata.resource_version, host.metadata.generation) = (None, None);
        let agent = host.status.as_mut().and_then(|status| status.agent.as_mut());
        let heartbeat = agent.and_then(|agent| {
            let features = std::mem::take(&mut agent.features);
            let seen = std::mem::replace(agent, AgentStatus { features, ..AgentStatus::default() });
            seen.last_heartbeat_time.map(|time| time.0)
        });
        let mut hasher = DefaultHasher::new();
        serde_json::to_vec(&host).unwrap_or_default().hash(&mut hasher);
        Self { hash: hasher.finish(), heartbeat }
    }

    /// Returns all that decides about claimants at a time. A host becomes silent without an event.
    fn at(self, now: Timestamp) -> (u64, bool) {
        let is_heard = self.heartbeat.is_some_and(|time| is_recent(time, now));
        (self.hash, is_heard)
    }
}

async fn follow_templates(mut seen: Changes<BedplateMachineTemplate>, queues: Queues, _: Stores) {
    while let Some(event) = seen.next().await {
        let (Seen::There(object) | Seen::Gone(object)) = event;
        queues.templates.put(ObjectRef::from_obj(&*object)).await;
    }
}

async fn follow_configurations(mut seen: Changes<MachineConfiguration>, queues: Queues, stores: Stores) {
    while let Some(event) = seen.next().await {
        let (Seen::There(object) | Seen::Gone(object)) = event;
        let name = object.name_any();
        waiting(&queues, &stores, |machine| machine.spec.configuration_ref.name == name).await;
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher;
    use serde_json::{Value, json};

    use super::*;
    use crate::infrastructure::choose::{Check, Request, check};
    use crate::metrics::Counters;

    fn host(power: &Value) -> Machine {
        let object = json!({ "metadata": { "name": "a" },
            "spec": { "provider": "pxe", "powerPolicy": "OnClaim", "claimPolicy": { "namespaces": ["team-a"] } },
            "status": { "enrollment": { "keyID": "0123456789abcdef0123456789abcdef" }, "agent": { "features": ["claims"] },
                "conditions": [power, { "type": "Ready", "status": "True", "reason": "Ready", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z" }] } });
        let mut host = serde_json::from_value(object).unwrap();
        prune_host(&mut host);
        host
    }

    /// The store keeps a part of each host only.
    #[test]
    fn m6_stored_host_that_is_off_until_it_is_claimed_is_chosen() {
        let power = |reason: &str, message: &str| {
            json!({ "type": "PoweredOn", "status": "False", "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z" })
        };
        let request = Request {
            uid: "u-1",
            namespace: "team-a",
            selector: None,
            failure_domain: None,
            needs_state_disk: false,
            release: bedplate_api::claim::ReleasePolicy::Empty,
        };
        let chosen = |host: Machine| check(&request, &host, false, Timestamp::UNIX_EPOCH) == Check::Eligible;
        assert!(chosen(host(&power("ClaimPending", "no claim"))));
        assert!(!chosen(host(&power("PoweredOffByOperation", ""))));
        let same = host(&power("ClaimPending", "another text"));
        let decides = |host: &Machine| Known::of(host).at(Timestamp::UNIX_EPOCH);
        assert_eq!(decides(&host(&power("ClaimPending", "no claim"))), decides(&same));
    }

    #[test]
    fn d1_host_that_is_heard_again_wakes_claimants() {
        let at = |time: &str| -> Timestamp { time.parse().unwrap() };
        let known = |agent: &Value| {
            let mut host =
                host(&json!({ "type": "PoweredOn", "status": "True", "reason": "PoweredOn", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }));
            host.status.as_mut().unwrap().agent = serde_json::from_value(agent.clone()).unwrap();
            Known::of(&host)
        };
        let heard = |time: &str| json!({ "features": ["claims"], "lastHeartbeatTime": time, "bootID": time });
        let before = known(&heard("2026-01-01T00:00:00Z"));
        // Each heartbeat is an event. The host was silent before the second one.
        for (time, is_same) in [("2026-01-01T00:10:00Z", true), ("2026-01-01T00:16:00Z", false)] {
            let after = known(&heard(time));
            assert_eq!(before.at(at(time)) == after.at(at(time)), is_same, "{time}");
        }
        let now = at("2026-01-01T00:00:00Z");
        let updated = json!({ "features": ["claims", "wipe"], "lastHeartbeatTime": "2026-01-01T00:00:00Z" });
        assert_ne!(before.at(now), known(&updated).at(now));
    }

    #[tokio::test(start_paused = true)]
    async fn d1_burst_of_hosts_wakes_each_claimant_once() {
        let ((stores, mut writers), counters) = (stores(), Counters::default());
        for name in ["a", "b", "c"] {
            let claimant = json!({ "metadata": { "name": name, "namespace": "team-a" },
                "spec": { "configurationRef": { "name": "pool" } } });
            let claimant = serde_json::from_value(claimant).unwrap();
            writers.machines.apply_watcher_event(&watcher::Event::Apply(claimant));
        }
        let (machines, mut queued) = Queue::new(Kind::Machine, &counters);
        let queues = Queues {
            infrastructures: Queue::new(Kind::Cluster, &counters).0,
            machines,
            claims: Queue::new(Kind::Claim, &counters).0,
            templates: Queue::new(Kind::Template, &counters).0,
            wake: Wake::default(),
        };
        let burst = |time: &'static str| {
            (0..50).map(move |number| {
                let mut host = host(
                    &json!({ "type": "PoweredOn", "status": "True", "reason": "PoweredOn", "message": "",
                    "lastTransitionTime": time }),
                );
                host.metadata.name = Some(format!("host-{number}"));
                Seen::There(Arc::new(host))
            })
        };
        let pause = futures::stream::once(async {
            tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        });
        let later = pause.flat_map(move |()| futures::stream::iter(burst("2026-01-02T00:00:00Z")));
        let seen = futures::stream::iter(burst("2026-01-01T00:00:00Z")).chain(later);
        let seen: Changes<Machine> = Box::pin(seen.chain(futures::stream::pending()));
        tokio::spawn(wake(queues.clone(), stores.clone()));
        tokio::spawn(follow_hosts(seen, queues, stores));
        for _ in 0..2 {
            tokio::time::sleep(std::time::Duration::from_secs(50)).await;
            let mut woken: Vec<String> =
                std::iter::from_fn(|| queued.try_recv().ok()).map(|one| one.name).collect();
            woken.sort_unstable();
            assert_eq!(woken, ["a", "b", "c"]);
        }
    }
}
