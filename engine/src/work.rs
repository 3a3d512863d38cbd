//! Worker of one kind: reconciles the objects of a queue, several concurrently, never one object twice concurrently.
//!
//! A failed object is requeued after a delay (`backoff`). While another process leads, objects wait in the queue. The program must start to
//! lead only after all of its stores are synced. Otherwise an object could look unused. Spawned by programs for each kind.

mod turns;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bedplate_process::exit::chain;
use bedplate_process::lease::Tenure;
use bedplate_process::liveness::Pulse;
use bedplate_process::lock::Lock;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::backoff::Backoff;
use crate::counters::{Counters, Kinds, Outcome};
use crate::full_name::full_name;
use crate::write::WriteError;
use turns::Turns;

/// Number of concurrent reconciliations of a kind. With 32, 10,000 Machines took the same time, because the API server's processors limit
/// it. An edit of a configuration took three times as long meanwhile (docs/design/bench.md).
const CONCURRENT_RECONCILIATIONS: usize = 8;

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
    /// Counts a failure. Returns the delay until the next try, and true if the failure is a new one.
    fn again(&self, object: &str, error: &WriteError) -> (Duration, bool) {
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
        (retry.after, retry.is_logged)
    }

    /// Calls [`Self::again`], and reports a rejection. Returns the delay until the next try.
    fn report<K, W>(&self, object: &K, error: &WriteError, world: &W) -> Duration
    where
        K: Resource<DynamicType = ()>,
        W: Context<Kind = N>,
    {
        let (after, is_new) = self.again(&full_name(&ObjectRef::from_obj(object)), error);
        if is_new && error.refusal().is_some() {
            world.rejected(self.kind, object.object_ref(&()), error);
        }
        after
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

/// Reconciles the objects of a queue until `shutdown`. Reconciliations that have started then are finished.
pub async fn work<K, W, F, N>(
    kind: W::Kind,
    world: Arc<W>,
    store: Store<K>,
    mut queue: mpsc::Receiver<ObjectRef<K>>,
    reconcile: impl Fn(Arc<K>, Arc<W>) -> F + Send + Sync + 'static,
    (pulse, shutdown): (Pulse, CancellationToken),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
    W: Context,
    F: Future<Output = Result<N, WriteError>> + Send + 'static,
    N: Next,
{
    let failures = Failures { kind, counters: world.counters().clone(), backoff: Arc::default() };
    // The only wait: a store wakes only one of those that wait for it. Any event of this task checks again.
    let (filled, mut is_ready) = (store.clone(), false);
    let mut ready = std::pin::pin!(filled.wait_until_ready());
    let one = Reconciler { world, store, reconcile, failures, shutdown: shutdown.clone() };
    let (mut turns, mut running) = (Turns::new(CONCURRENT_RECONCILIATIONS), FuturesUnordered::new());
    loop {
        pulse.beat();
        let is_ending = shutdown.is_cancelled() || queue.is_closed() && queue.is_empty();
        if is_ending && running.is_empty() {
            return;
        }
        if is_ready && !is_ending {
            turns.pass(Instant::now().into_std());
            while let Some(object) = turns.start() {
                let span = tracing::info_span!("reconciliation", object = %full_name(&object));
                running.push(one.run(object).instrument(span));
            }
        }
        let next = turns.next();
        let due = async {
            match next {
                Some(next) => sleep_until(next.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // An error: the watch has ended before its first list, and the store stays empty.
            _ = &mut ready, if !is_ready => is_ready = true,
            () = shutdown.cancelled(), if !is_ending => {}
            received = queue.recv(), if !is_ending => {
                if let Some(object) = received {
                    turns.put(object);
                }
            }
            Some((object, after)) = running.next() => {
                turns.finished(object, after.map(|after| (Instant::now() + after).into_std()));
            }
            () = due, if is_ready && !is_ending => {}
            never = pulse.beating() => match never {},
        }
    }
}

/// Reconciler of one object at a time.
struct Reconciler<K: Resource<DynamicType = ()> + 'static, W: Context, R> {
    world: Arc<W>,
    store: Store<K>,
    reconcile: R,
    failures: Failures<W::Kind>,
    shutdown: CancellationToken,
}

impl<K, W, R> Reconciler<K, W, R>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
    W: Context,
{
    /// Reconciles an object, and counts the result. Returns the object with the delay until its next turn. None: only a change queues it.
    async fn run<F, N>(&self, object: ObjectRef<K>) -> (ObjectRef<K>, Option<Duration>)
    where
        R: Fn(Arc<K>, Arc<W>) -> F,
        F: Future<Output = Result<N, WriteError>>,
        N: Next,
    {
        let Failures { kind, counters, backoff } = &self.failures;
        let name = full_name(&object).into_owned();
        let Some(found) = self.store.get(&object) else {
            // Deleted: nothing to reconcile.
            counters.taken(*kind, &name);
            backoff.lock().done(&name);
            return (object, None);
        };
        let after = match self.lead(Arc::clone(&found), &name).await {
            Ok(after) => {
                backoff.lock().done(&name);
                counters.reconciled(*kind, Outcome::Done);
                after
            }
            Err(error) => Some(self.failures.report(&*found, &error, &*self.world)),
        };
        (object, after)
    }

    /// Reconciles an object once this process leads.
    async fn lead<F, N>(&self, object: Arc<K>, name: &str) -> Result<Option<Duration>, WriteError>
    where
        R: Fn(Arc<K>, Arc<W>) -> F,
        F: Future<Output = Result<N, WriteError>>,
        N: Next,
    {
        let (world, Failures { kind, counters, .. }) = (&self.world, &self.failures);
        let led = when_leading(object, &self.store, world.tenure().clone(), &self.shutdown).await?;
        let Some(object) = led else { return Ok(None) };
        counters.taken(*kind, name);
        let start = Instant::now();
        let done = (self.reconcile)(object, Arc::clone(world)).await;
        counters.took(*kind, start.elapsed());
        done.map(Next::after)
    }
}

#[cfg(test)]
pub(crate) mod tests;
