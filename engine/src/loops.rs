//! Loops of a program that reconciles: its workers, its watches, and tasks between them. Each sends a pulse, and ends when the program drains.
//! Called by `run`.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_process::liveness::{Liveness, SILENCE_TIMEOUT};
use bedplate_process::shutdown::{Stage, Stages};
use bedplate_process::tasks::Tasks;
use kube::runtime::reflector::Store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::counters::{Counters, Kinds};
use crate::later::{Later, later};
use crate::life::{beating, infallible};
use crate::pulse::{Changes, WATCH_PATIENCE, follow};
use crate::queue::Queue;
use crate::store;
use crate::work::{Context, Next, work};
use crate::write::WriteError;

/// Parts of the program in which loops run.
pub struct Loops<'a> {
    /// Tasks of the program.
    pub tasks: &'a Tasks,
    /// Pulses of the program.
    pub liveness: &'a Liveness,
    /// Cancelled when the program drains.
    pub shutdown: CancellationToken,
}

impl<'a> Loops<'a> {
    /// Makes the value from parts of the program.
    pub fn new((tasks, liveness, stages): (&'a Tasks, &'a Liveness, &Stages)) -> Self {
        Self { tasks, liveness, shutdown: stages.token(Stage::Draining) }
    }

    /// Spawns a task that has a pulse. It is dropped when the program drains.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let shutdown = self.shutdown.clone();
        infallible(self.tasks, name, async move {
            shutdown.run_until_cancelled(task).await;
        });
    }

    /// Spawns a task that waits for other loops of this program only. It is dropped when the program drains.
    pub fn spawn_beating(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn(name, beating(task, self.liveness.part(name, SILENCE_TIMEOUT)));
    }

    /// Spawns the watch of a kind. It keeps a store by `writer`, which gets the objects as `strip` leaves them, and calls `follower` with the
    /// changes. `api` makes the API of the objects, such as [`Api::all`].
    pub fn watch<K, A, S, C, F>(
        &self,
        (name, kind): (&'static str, &'static str),
        (client, api): (&Client, A),
        (writer, strip): (Writer<K>, S),
        counters: &Counters<C>,
        follower: impl FnOnce(Changes<K>) -> F + Send + 'static,
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        A: FnOnce(Client) -> Api<BoundedTimes<K>> + 'static,
        S: Fn(&mut K) + Send + 'static,
        C: Kinds,
        F: Future<Output = ()> + Send + 'static,
    {
        let config = watcher::Config::default();
        let seen = store::watch(client, (kind, api), config, writer, strip, counters.clone());
        self.spawn(name, follow(seen, self.liveness.part(name, WATCH_PATIENCE), follower));
    }

    /// Spawns the worker of a kind, which finishes what it has started. Returns the queue of its objects.
    pub fn work<K, W, F, N>(
        &self,
        (name, kind): (&'static str, W::Kind),
        world: &Arc<W>,
        store: &Store<K>,
        reconcile: impl Fn(Arc<K>, Arc<W>) -> F + Send + Sync + 'static,
    ) -> Queue<K, W::Kind>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
        W: Context,
        F: Future<Output = Result<N, WriteError>> + Send + 'static,
        N: Next + Send + 'static,
    {
        let (queue, received) = Queue::new(kind, world.counters());
        let life = (self.liveness.part(name, SILENCE_TIMEOUT), self.shutdown.clone());
        infallible(self.tasks, name, work(kind, Arc::clone(world), store.clone(), received, reconcile, life));
        queue
    }

    /// Spawns the task that queues objects some time after they were touched.
    pub fn later<K, N>(&self, name: &'static str, queue: &Queue<K, N>) -> Later<K>
    where
        K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
        N: Kinds,
    {
        let (later, task) = later(queue.clone());
        self.spawn_beating(name, task);
        later
    }
}
