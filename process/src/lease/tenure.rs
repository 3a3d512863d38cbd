//! Tenure of a leader. Set by a [`Candidate`](crate::lease::Candidate), read by
//! code that only a leader may run.

use std::fmt;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Time until which this program leads, by the monotonic clock. Checked immediately before each write that
/// only a leader may send. A former leader has stopped by then.
#[derive(Clone)]
pub struct Tenure(watch::Receiver<Option<Instant>>);

impl Tenure {
    /// Returns a tenure that never ends, for use where another mechanism excludes a second program.
    pub fn always() -> Self {
        let far = Instant::now() + Duration::from_secs(100 * 365 * 86_400);
        Self(watch::channel(Some(far)).1)
    }

    /// Creates a tenure whose end `receiver` has; `None`: this program does not lead.
    pub fn new(receiver: watch::Receiver<Option<Instant>>) -> Self {
        Self(receiver)
    }

    /// Returns true if the program leads now.
    pub fn leads(&self) -> bool {
        self.0.borrow().is_some_and(|end| Instant::now() < end)
    }

    /// Waits until the leadership changes. Waits forever if the candidate is gone.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends when it does not lead any more.
    pub async fn lost(&mut self) {
        loop {
            let end = *self.0.borrow_and_update();
            let Some(end) = end.filter(|end| Instant::now() < *end) else { return };
            tokio::select! {
                () = self.changed() => {}
                () = tokio::time::sleep_until(end) => {}
            }
        }
    }

    /// Does work while this program leads. The tenure is checked before each part of the work, because a
    /// process that was stopped for a while finds both an answer and the end of its tenure. `None`: the
    /// tenure has ended. The rest of the work was dropped at that time, even if it waited for an answer.
    pub async fn during<F: Future>(&self, work: F) -> Option<F::Output> {
        let mut lost = self.clone();
        let mut work = std::pin::pin!(work);
        let parts = std::future::poll_fn(|context| match self.leads() {
            true => work.as_mut().poll(context).map(Some),
            false => Poll::Ready(None),
        });
        tokio::select! {
            biased;
            () = lost.lost() => None,
            done = parts => done,
        }
    }
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tenure(leads: {})", self.leads())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn program_stopped_beyond_its_tenure_does_not_continue_its_writes() {
        let end = Instant::now() + Duration::from_millis(20);
        let (_sender, receiver) = watch::channel(Some(end));
        let tenure = Tenure::new(receiver);
        let parts = std::cell::Cell::new(0);
        let work = std::future::poll_fn(|_| {
            parts.set(parts.get() + 1);
            // No timer fires meanwhile, because the process is stopped.
            while Instant::now() < end {}
            if parts.get() < 2 { Poll::Pending } else { Poll::Ready(()) }
        });
        let mut whole = Box::pin(tenure.during(work));
        assert_eq!(futures::poll!(&mut whole), Poll::Pending);
        assert_eq!((futures::poll!(&mut whole), parts.get()), (Poll::Ready(None), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenure_that_is_not_renewed_ends_by_itself() {
        let (sender, receiver) = watch::channel(None);
        let mut tenure = Tenure::new(receiver);
        assert!(!tenure.leads());
        let now = Instant::now();
        sender.send_replace(Some(now + Duration::from_secs(10)));
        assert!(tenure.leads());
        tenure.lost().await;
        assert!(!tenure.leads());
        assert_eq!(now.elapsed(), Duration::from_secs(10));
    }
    #[tokio::test(start_paused = true)]
    async fn work_that_waits_is_dropped_when_the_tenure_ends() {
        let (sender, receiver) = watch::channel(Some(Instant::now() + Duration::from_secs(10)));
        let tenure = Tenure::new(receiver);
        let started = Instant::now();
        assert_eq!(tenure.during(std::future::pending::<()>()).await, None);
        assert_eq!(started.elapsed(), Duration::from_secs(10), "not renewed");
        sender.send_replace(Some(Instant::now() + Duration::from_secs(10)));
        let released = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            sender.send_replace(None);
        };
        let (done, ()) = tokio::join!(tenure.during(std::future::pending::<()>()), released);
        assert_eq!((done, started.elapsed()), (None, Duration::from_secs(11)));
    }
}
