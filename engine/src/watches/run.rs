//! Loop that starts and ends the watches of kinds. Spawned once by a program.

use std::sync::Arc;
use std::time::Duration;

use bedplate_process::liveness::{Liveness, SILENCE_TIMEOUT};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::kind::{Shared, Task};
use super::resolve::silent;
use super::{Change, MAX_WATCHED, NAME, Named, Resolve, Setup, Unresolved, Watches};
use crate::counters::Kinds;

/// Interval between two checks for unused kinds.
const UNUSED_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Timeout of a resolver.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(30);

impl<K> Watches<K>
where
    K: Named,
{
    /// Runs the watches until `shutdown`. All of them have ended when it returns.
    pub async fn run<R, C, H, F>(
        self,
        setup: Setup<R, C, H>,
        (liveness, shutdown): (Liveness, CancellationToken),
    ) where
        R: Resolve,
        C: Kinds,
        H: Fn(Change<K>) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let pulse = liveness.part(NAME, SILENCE_TIMEOUT);
        let shared = Arc::new(share(setup, liveness));
        let mut running = JoinSet::new();
        let mut check = tokio::time::interval(UNUSED_CHECK_INTERVAL);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = self.0.named.notified() => {}
                _ = check.tick() => {}
                Some(ended) = running.join_next() => pass_panic(ended),
                never = pulse.beating() => match never {},
            }
            self.end_unused();
            for (kind, shown, stop) in self.unstarted(&shutdown) {
                running.spawn(Task { kind, shown, stop, shared: Arc::clone(&shared) }.run());
            }
            if running.is_empty() {
                shared.counters.forget_watch(NAME);
            }
        }
        while let Some(ended) = running.join_next().await {
            pass_panic(ended);
        }
    }
}

/// Returns the inputs that the watches share.
fn share<K, R, C, H, F>(setup: Setup<R, C, H>, liveness: Liveness) -> Shared<K, C>
where
    R: Resolve,
    H: Fn(Change<K>) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let Setup { client, namespace, resolve, counters, handle } = setup;
    let resolve = Arc::new(resolve);
    Shared {
        client,
        namespace,
        resolve: Box::new(move |kind| {
            let resolve = Arc::clone(&resolve);
            Box::pin(async move {
                let resolved = tokio::time::timeout(RESOLVE_TIMEOUT, resolve.resolve(&kind)).await;
                let late = || Unresolved::unavailable(&kind.to_string(), &silent(RESOLVE_TIMEOUT));
                resolved.unwrap_or_else(|_| Err(late()))
            })
        }),
        counters,
        handle: Box::new(move |change| Box::pin(handle(change))),
        liveness,
        slots: Semaphore::new(MAX_WATCHED),
    }
}

/// Continues the panic of a watch, which stops the program.
fn pass_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}
