//! Runs reconciliations: watches fill the stores (`store`) and tell what is touched; for each kind a queue, a few at a time, never one
//! object twice at once; what fails is tried again (`backoff`).
//!
//! Nothing is reconciled before every store is whole, or a version would look unused because its Machines were not read yet; and
//! nothing while another controller leads. Changes that arrive meanwhile wait. Spawned by `run`.

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
use kube::runtime::controller::{self, Action, Config, applier};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::counters::{Counters, Kinds, Outcome};
use crate::write::WriteError;

/// So many of a kind are reconciled at once. With 32 of them 10,000 Machines took as long, since the API server's processors decide, and an
/// edit of a configuration meanwhile three times as long (docs/bench.md).
const AT_ONCE: u16 = 8;

/// What a reconciliation that has ended says of the next one.
pub trait Next {
    /// It is looked at again after this time, if nothing touches it before; `None`: only then.
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

/// What the engine needs of its program.
pub trait Context: Send + Sync + 'static {
    /// The kinds that are reconciled.
    type Kind: Kinds;

    /// Returns the counters.
    fn counters(&self) -> &Counters<Self::Kind>;

    /// Returns whether this controller leads.
    fn tenure(&self) -> &Tenure;

    /// Reports that the API server has rejected a write for another reason than before.
    fn rejected(&self, kind: Self::Kind, object: ObjectReference, error: &WriteError);
}

/// Who of a kind has failed; clones share it.
#[derive(Clone)]
struct Failures<K> {
    kind: K,
    counters: Counters<K>,
    backoff: Arc<Lock<Backoff>>,
}

impl<N: Kinds> Failures<N> {
    /// What is done about a failure, and whether it is another one than before.
    fn again(&self, object: &str, error: &WriteError) -> (Action, bool) {
        let again = self.backoff.lock().failed(object, error, rand::random());
        if again.told {
            let (kind, after_ms) = (self.kind.word(), again.after.as_millis());
            tracing::warn!(
                kind,
                object,
                error = chain(error),
                after_ms,
                "it is tried again, until it is done"
            );
        }
        let outcome = match error {
            WriteError::Conflict { .. } => Some(Outcome::Conflict),
            WriteError::Later { .. } => Some(Outcome::Retry),
            WriteError::Refused { .. } => Some(Outcome::Refused),
            WriteError::Deposed => None,
        };
        if let Some(outcome) = outcome {
            self.counters.reconciled(self.kind, outcome);
        }
        (Action::requeue(again.after), again.told)
    }

    /// Calls [`Self::again`], and reports a rejection.
    fn report<K, W>(&self, object: &K, error: &WriteError, world: &W) -> Action
    where
        K: Resource<DynamicType = ()>,
        W: Context<Kind = N>,
    {
        let (action, is_new) = self.again(&object.name_any(), error);
        if is_new && error.refusal().is_some() {
            world.rejected(self.kind, object.object_ref(&()), error);
        }
        action
    }
}

/// Waits in the queue until this controller leads: later changes wait behind it, each object once. Returns the object as it is then, or
/// none if it is deleted.
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

/// Reconciles what a queue says, until `shutdown`.
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
            counters.taken(kind, &object.name_any());
            let begun = Instant::now();
            let done = reconcile(object, world).await;
            counters.took(kind, begun.elapsed());
            done.map(|next| next.after().map_or_else(Action::await_change, Action::requeue))
        })
    };
    let again = |it: Arc<K>, error: &WriteError, world: Arc<W>| failures.report(&*it, error, &*world);
    let config = Config::default().concurrency(AT_ONCE);
    let mut results = Box::pin(applier(one, again, world, store.clone(), queue, config));
    loop {
        pulse.beat();
        tokio::select! {
            result = results.next() => match result {
                Some(Ok((object, _))) => {
                    failures.backoff.lock().done(&object.name);
                    failures.counters.reconciled(kind, Outcome::Done);
                }
                // Not there any more: nothing is to be done.
                Some(Err(controller::Error::ObjectNotFound(object))) => {
                    failures.counters.taken(kind, &object.name);
                    failures.backoff.lock().done(&object.name);
                }
                // Failed: told and counted above.
                Some(Err(_)) => {}
                None => return,
            },
            never = pulse.beating() => match never {},
        }
    }
}
