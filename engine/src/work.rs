//! Worker of one kind: reconciles the objects of a queue, several concurrently, never one object twice concurrently.
//!
//! A failed object is requeued after a delay (`backoff`). While another process leads, objects wait in the queue. The program must start to
//! lead only after all of its stores are synced. Otherwise an object could look unused. Spawned by programs for each kind.

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_process::exit::chain;
use bedplate_process::lease::Tenure;
use bedplate_process::liveness::Pulse;
use bedplate_process::lock::Lock;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use kube::runtime::controller::{self, Action, Config, applier};
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::counters::{Counters, Kinds, Outcome};
use crate::full_name::full_name;
use crate::write::WriteError;

/// Number of concurrent reconciliations of a kind. With 32, 10,000 Machines took the same time, because the API server's processors limit
/// it. An edit of a configuration took three times as long meanwhile (docs/bench.md).
const CONCURRENT_RECONCILIATIONS: u16 = 8;

/// Result of a successful reconciliation: the time of the next one.
pub trait Next {
    /// Returns the delay after which the object is reconciled again, if no change queues it before. None: only a change does.
    fn after(self) -> Option<Duration>;
}

impl Next for () {
    fn after(self) -> Option<Duration> {
        None
    }
}

impl Next for Option<Duration> {
    fn after(self) -> Option<Duration> {
        self
    }
}

/// State of a program that its reconciliations share.
pub trait Context: Send + Sync + 'static {
    /// The kinds that are reconciled.
    type Kind: Kinds;

    /// Returns the counters.
    fn counters(&self) -> &Counters<Self::Kind>;

    /// Returns the tenure, which tells whether this process leads.
    fn tenure(&self) -> &Tenure;

    /// Reports that the API server rejected a write. Called once for each new reason.
    fn rejected(&self, kind: Self::Kind, object: ObjectReference, error: &WriteError);

    /// Carries out work while this process leads. Returns [`WriteError::Deposed`], or the result of the work.
    fn leading<T: Send>(
        &self,
        work: impl Future<Output = Result<T, WriteError>> + Send,
    ) -> impl Future<Output = Result<T, WriteError>> + Send {
        async { self.tenure().during(work).await.unwrap_or(Err(WriteError::Deposed)) }
    }
}

/// Failures of a kind. Clones share them.
#[derive(Clone)]
struct Failures<K> {
    kind: K,
    counters: Counters<K>,
    backoff: Arc<Lock<Backoff>>,
}

impl<N: Kinds> Failures<N> {
    /// Counts a failure. Returns the next step, and true if the failure is a new one.
    fn again(&self, object: &str, error: &WriteError) -> (Action, bool) {
        let retry = self.backoff.lock().failed(object, error, rand::random());
        if retry.is_logged {
            let (kind, after_ms) = (self.kind.word(), retry.after.as_millis());
            tracing::warn!(kind, object, error = chain(error), after_ms, "reconcile failed, requeued");
        }
        let outcome = match error {
            WriteError::Conflict { .. } => Some(Outcome::Conflict),
            WriteError::Later { .. } | WriteError::Forbidden { .. } => Some(Outcome::Retry),
            WriteError::Refused { .. } => Some(Outcome::Refused),
            WriteError::Deposed => None,
        };
        if let Some(outcome) = outcome {
            self.counters.reconciled(self.kind, outcome);
        }
        (Action::requeue(retry.after), retry.is_logged)
    }

    /// Calls [`Self::again`], and reports a rejection.
    fn report<K, W>(&self, object: &K, error: &WriteError, world: &W) -> Action
    where
        K: Resource<DynamicType = ()>,
        W: Context<Kind = N>,
    {
        let (action, is_new) = self.again(&full_name(&ObjectRef::from_obj(object)), error);
        if is_new && error.refusal().is_some() {
            world.rejected(self.kind, object.object_ref(&()), error);
        }
        action
    }
}

/// Waits until this process leads. Later changes of the object do not add to the queue. Returns the object as it is then, or none if it was
/// deleted.
async fn when_leading<K: Resource<DynamicType = ()> + Clone + 'static>(
    object: Arc<K>,
    store: &Store<K>,
    mut tenure: Tenure,
    shutdown: &CancellationToken,
) -> Result<Option<Arc<K>>, WriteError> {
    let mut object = Some(object);
    while !tenure.leads() {
        tokio::select! {
            () = tenure.changed() => {}
            () = shutdown.cancelled() => return Err(WriteError::Deposed),
        }
        object = object.and_then(|object| store.get(&ObjectRef::from_obj(&*object)));
    }
    Ok(object)
}

/// Reconciles the objects of a queue until `shutdown`.
pub async fn work<K, W, F, N>(
    kind: W::Kind,
    world: Arc<W>,
    store: Store<K>,
    queue: mpsc::Receiver<ObjectRef<K>>,
    reconcile: impl Fn(Arc<K>, Arc<W>) -> F + Clone + Send + 'static,
    (pulse, shutdown): (Pulse, CancellationToken),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
    W: Context,
    F: Future<Output = Result<N, WriteError>> + Send + 'static,
    N: Next,
{
    let queue = stream::unfold(queue, async |mut queue| queue.recv().await.map(|object| (object, queue)));
    let queue = Box::pin(queue.map(Ok::<_, Infallible>).take_until(shutdown.clone().cancelled_owned()));
    let failures = Failures { kind, counters: world.counters().clone(), backoff: Arc::default() };
    let one = |object: Arc<K>, world: Arc<W>| {
        let (store, tenure, shutdown) = (store.clone(), world.tenure().clone(), shutdown.clone());
        let (reconcile, counters) = (reconcile.clone(), world.counters().clone());
        Box::pin(async move {
            let led = when_leading(object, &store, tenure, &shutdown).await?;
            let Some(object) = led else { return Ok(Action::await_change()) };
            counters.taken(kind, &full_name(&ObjectRef::from_obj(&*object)));
            let start = Instant::now();
            let done = reconcile(object, world).await;
            counters.took(kind, start.elapsed());
            done.map(|next| next.after().map_or_else(Action::await_change, Action::requeue))
        })
    };
    let again = |it: Arc<K>, error: &WriteError, world: Arc<W>| failures.report(&*it, error, &*world);
    let config = Config::default().concurrency(CONCURRENT_RECONCILIATIONS);
    let mut results = Box::pin(applier(one, again, world, store.clone(), queue, config));
    loop {
        pulse.beat();
        tokio::select! {
            result = results.next() => match result {
                Some(Ok((object, _))) => {
                    failures.backoff.lock().done(&full_name(&object));
                    failures.counters.reconciled(kind, Outcome::Done);
                }
                // Deleted: nothing to reconcile.
                Some(Err(controller::Error::ObjectNotFound(object))) => {
                    failures.counters.taken(kind, &full_name(&object));
                    failures.backoff.lock().done(&full_name(&object));
                }
                // Failed: logged and counted by `again`.
                Some(Err(_)) => {}
                None => return,
            },
            never = pulse.beating() => match never {},
        }
    }
}

#[cfg(test)]
mod tests;
