//! The group `infrastructure`: claims of hosts for the Machines of Cluster API (docs/reference/infrastructure-provider.md).
//!
//! ```text
//! watch -> stores, queues -> cluster: BedplateClusters; machine: BedplateMachines (choose); claim: MachineClaims (grant)
//! ```

pub mod choose;
pub mod claim;
pub mod cluster;
pub mod context;
pub mod decisive;
pub mod machine;
mod prune;
pub mod template;
pub mod wake;
pub mod watch;

use std::sync::Arc;

use bedplate_engine::Loops;
use bedplate_engine::events::News;
use bedplate_engine::life::write_events;
use bedplate_process::lease::Tenure;
use bedplate_process::liveness::Liveness;
use bedplate_process::shutdown::Stages;
use bedplate_process::tasks::Tasks;
use kube::Client;
use kube::runtime::reflector::ObjectRef;

use self::claim::clock::FutureHeartbeats;
use self::context::{Stores, World};
use self::machine::turn::Turns;
use self::wake::Wake;
use self::watch::Queues;
use crate::cli::Cli;
use crate::life::{self, Parts, Started};
use crate::metrics::{Counters, Kind};

/// Policies that bound the rights of the group.
const POLICIES: [&str; 5] = [
    "bedplate-claims",
    "bedplate-claim-grants",
    "bedplate-claimed-fields",
    "bedplate-release-operations",
    "bedplate-templates",
];

/// Spawns watches and workers.
pub fn begin(client: &Client, cli: &Cli, tenure: &Tenure, running: (&Tasks, &Liveness, &Stages)) -> Started {
    let (news, queue) = News::channel();
    write_events(news.writer(queue, cli.controllers.event_source(&cli.instance), client.clone()), running);
    let ((stores, writers), counters) = (watch::stores(), Counters::default());
    let world = Arc::new(World {
        client: client.clone(),
        manager: cli.controllers.field_manager(),
        scope: cli.scope(),
        stores,
        tenure: tenure.clone(),
        counters: counters.clone(),
        news: news.clone(),
        turns: Turns::default(),
        future_heartbeats: FutureHeartbeats::default(),
    });
    let loops = Loops::new(running);
    let queues = spawn_workers(&world, &loops);
    watch::spawn(client, (&world, writers), &queues, &loops);
    let parts = Parts { client: client.clone(), policies: &POLICIES, tenure: tenure.clone(), counters, news };
    let synced = {
        let world = world.clone();
        async move { world.stores.synced().await }
    };
    let queue_all = move || queue_all(world.clone(), queues.clone());
    life::begin(parts, synced, queue_all, running)
}

/// Spawns a worker for each kind, and returns their queues.
fn spawn_workers(world: &Arc<World>, loops: &Loops<'_>) -> Queues {
    let stores = &world.stores;
    macro_rules! work {
        ($name:literal, $kind:ident, $store:ident, $reconcile:path) => {
            loops.work(($name, Kind::$kind), world, &stores.$store, $reconcile)
        };
    }
    Queues {
        infrastructures: work!("BedplateClusters", Cluster, infrastructures, cluster::reconcile),
        machines: work!("BedplateMachines", Machine, machines, machine::reconcile),
        claims: work!("MachineClaims", Claim, claims, claim::reconcile),
        templates: work!("BedplateMachineTemplates", Template, templates, template::reconcile),
        wake: Wake::default(),
    }
}

/// Queues every object of the stores.
async fn queue_all(world: Arc<World>, queues: Queues) {
    let stores: &Stores = &world.stores;
    for infrastructure in stores.infrastructures.state() {
        queues.infrastructures.put(ObjectRef::from_obj(&*infrastructure)).await;
    }
    for machine in stores.machines.state() {
        queues.machines.put(ObjectRef::from_obj(&*machine)).await;
    }
    for claim in stores.claims.state() {
        queues.claims.put(ObjectRef::from_obj(&*claim)).await;
    }
    for template in stores.templates.state() {
        queues.templates.put(ObjectRef::from_obj(&*template)).await;
    }
}

#[cfg(test)]
mod tests;
