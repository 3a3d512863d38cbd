//! Liveness pulse of a watch.
//!
//! kube's watcher reports changes only, and a quiet cluster has none. But each wake-up polls the watch: a frame of its answer (a change,
//! or a bookmark about once a minute), the end of a watch, a failure, the end of a backoff. Each poll sends a pulse. So a watch that
//! never wakes again is reported, and a quiet one is not.
//!
//! Pulses are also sent while a change is handled. A change waits for a place in a queue as long as the controller does not lead, and each
//! queue has a worker with its own pulse. Called by the watches of a program.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bedplate_process::liveness::{PULSE_INTERVAL, Pulse};
use futures::future::BoxFuture;
use futures::stream::{self, FuturesUnordered, StreamExt as _};

use crate::store::Seen;

/// Maximum time between two wake-ups of a watch. A quiet watch ends after 295 s at the API server or after 330 s at the client (`connect`), and
/// the next one starts after a backoff.
pub const WATCH_PATIENCE: Duration = Duration::from_secs(600);

/// Changes of the objects of a kind.
pub type Changes<K> = Pin<Box<dyn futures::Stream<Item = Seen<K>> + Send>>;

/// Runs `follower` on the changes of a watch, and sends the pulse.
pub async fn follow<K, S, F>(seen: S, pulse: Pulse, follower: impl FnOnce(Changes<K>) -> F)
where
    K: 'static,
    S: futures::Stream<Item = Seen<K>> + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let is_waiting = Arc::new(AtomicBool::new(false));
    let (beat, waits, mut seen) = (pulse.handle(), is_waiting.clone(), Box::pin(seen));
    let woken = stream::poll_fn(move |context| {
        beat.beat();
        let next = seen.as_mut().poll_next(context);
        waits.store(next.is_pending(), Ordering::Relaxed);
        next
    });
    let handling = async {
        loop {
            tokio::time::sleep(PULSE_INTERVAL).await;
            if !is_waiting.load(Ordering::Relaxed) {
                pulse.beat();
            }
        }
    };
    // Polls only the future that was woken: the timer of one does not poll the watch of the other.
    let both: [BoxFuture<'_, ()>; 2] = [Box::pin(follower(Box::pin(woken))), Box::pin(handling)];
    both.into_iter().collect::<FuturesUnordered<_>>().next().await;
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use bedplate_process::liveness::Liveness;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// Follows a watch until the end of the test. `hangs`: a change is never handled.
    fn start<S>(seen: S, hangs: bool) -> Liveness
    where
        S: futures::Stream<Item = Seen<u8>> + Send + 'static,
    {
        let liveness = Liveness::new(CancellationToken::new());
        let pulse = liveness.part("watch", WATCH_PATIENCE);
        tokio::spawn(follow(seen, pulse, move |mut seen| async move {
            while seen.next().await.is_some() {
                if hangs {
                    std::future::pending::<()>().await;
                }
            }
        }));
        liveness
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_watch_that_is_restarted_every_295_s_is_alive() {
        let mut ends = tokio::time::interval(Duration::from_secs(295));
        let quiet = stream::poll_fn(move |context| {
            while ends.poll_tick(context).is_ready() {}
            Poll::Pending
        });
        let liveness = start(quiet, false);
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(liveness.check(), Ok(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn watch_that_never_wakes_again_is_named() {
        let liveness = start(stream::iter([Seen::There(Arc::new(1))]).chain(stream::pending()), false);
        tokio::time::sleep(WATCH_PATIENCE).await;
        assert_eq!(liveness.check(), Ok(()));
        tokio::time::sleep(Duration::from_secs(2)).await;
        let silent = liveness.check().unwrap_err();
        assert!(silent.starts_with("watch sent no pulse for 60"), "{silent}");
    }

    #[tokio::test(start_paused = true)]
    async fn change_that_waits_for_a_place_in_a_queue_is_no_silence() {
        let liveness = start(stream::iter([Seen::There(Arc::new(1))]), true);
        tokio::time::sleep(WATCH_PATIENCE * 3).await;
        assert_eq!(liveness.check(), Ok(()));
    }
}
