//! The group `bootstrap`: bootstrap data of machines that become Nodes by kubeadm (docs/reference/bootstrap.md).
//!
//! ```text
//! watch -> stores, queue -> config: KubeadmConfigs -> Secrets; tokens in workload clusters
//! ```

pub mod config;
pub mod context;
pub mod tokens;
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

use self::context::World;
use self::tokens::Tokens;
use self::watch::Configs;
use crate::cli::Cli;
use crate::life::{self, Parts, Started};
use crate::metrics::{Counters, Kind};

/// Policies that bound the rights of the group.
const POLICIES: [&str; 1] = ["bedplate-cluster-secrets"];

/// Spawns watches and the worker.
pub fn begin(client: &Client, cli: &Cli, tenure: &Tenure, running: (&Tasks, &Liveness, &Stages)) -> Started {
    let (news, events) = News::channel();
    write_events(news.writer(events, cli.controllers.event_source(&cli.instance), client.clone()), running);
    let ((stores, writers), counters) = (watch::stores(), Counters::default());
    let world = Arc::new(World {
        client: client.clone(),
        manager: cli.controllers.field_manager(),
        scope: cli.scope(),
        stores,
        tenure: tenure.clone(),
        counters: counters.clone(),
        news: news.clone(),
        tokens: Tokens::new(client.clone(), cli.workload_networks.clone().unwrap_or_default()),
    });
    let loops = Loops::new(running);
    let store = &world.stores.configs;
    let configs = loops.work(("KubeadmConfigs", Kind::Config), &world, store, config::reconcile);
    watch::spawn(client, (&world, writers), &configs, &loops);
    let parts = Parts { client: client.clone(), policies: &POLICIES, tenure: tenure.clone(), counters, news };
    let synced = {
        let world = world.clone();
        async move { world.stores.synced().await }
    };
    life::begin(parts, synced, move || queue_all(world.clone(), configs.clone()), running)
}

/// Queues every KubeadmConfig of the store.
async fn queue_all(world: Arc<World>, configs: Configs) {
    for config in world.stores.configs.state() {
        configs.put(ObjectRef::from_obj(&*config)).await;
    }
}

#[cfg(test)]
mod tests;
