//! Tasks that live and end together, for a part of a program that is started and stopped several times.
//!
//! One task that ends ends the set: its shutdown token is cancelled, and the owner reads the name of that task. A dropped set aborts its
//! tasks. The root of a program is [`Tasks`](crate::tasks::Tasks), which drains. Called by the agent.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::liveness::Liveness;
use crate::reconcile::{Reconcile, Task};

/// The tasks of a set.
#[derive(Debug)]
pub struct TaskSet {
    tasks: JoinSet<()>,
    names: Vec<&'static str>,
    shutdown: CancellationToken,
    /// Task that ended first without a request to stop.
    ended: watch::Sender<Option<&'static str>>,
}

/// Ends the set when a task ends, also by a panic or an abort.
struct EndGuard {
    name: &'static str,
    shutdown: CancellationToken,
    ended: watch::Sender<Option<&'static str>>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        if !self.shutdown.is_cancelled() {
            self.ended.send_replace(Some(self.name));
            self.shutdown.cancel();
        }
    }
}

impl Default for TaskSet {
    fn default() -> Self {
        let (shutdown, ended) = (CancellationToken::new(), watch::Sender::new(None));
        Self { tasks: JoinSet::new(), names: Vec::new(), shutdown, ended }
    }
}

impl TaskSet {
    /// Token of this set. A task must end soon after it is cancelled.
    pub fn shutdown(&self) -> CancellationToken {
        self.shutdown.clone()
    }

    /// Names of the tasks that were started.
    pub fn names(&self) -> &[&'static str] {
        &self.names
    }

    /// Runs `task` in the background.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.names.push(name);
        let guard = EndGuard { name, shutdown: self.shutdown.clone(), ended: self.ended.clone() };
        self.tasks.spawn(async move {
            let _guard = guard;
            task.await;
        });
    }

    /// Runs a loop of turns, with a liveness pulse of this name that may be silent for `patience`.
    pub fn reconcile<R: Reconcile + 'static>(
        &mut self,
        liveness: &Liveness,
        name: &'static str,
        patience: Duration,
        mut reconciler: R,
    ) {
        let shutdown = self.shutdown();
        let task = Task::new(liveness.until(shutdown.clone()).part(name, patience));
        self.spawn(name, async move {
            task.run(&mut reconciler, shutdown).await;
        });
    }

    /// Returns the name of the task that ended the set, as soon as one does. Never ends if the set is stopped or dropped by its owner.
    pub fn ended(&self) -> impl Future<Output = &'static str> + Send + use<> {
        let mut ended = self.ended.subscribe();
        async move {
            match ended.wait_for(Option::is_some).await.map(|name| *name) {
                Ok(Some(name)) => name,
                Ok(None) | Err(_) => std::future::pending().await,
            }
        }
    }

    /// Cancels the shutdown token and waits for the end of all tasks.
    pub async fn stop(&mut self) {
        self.shutdown.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Drop for TaskSet {
    /// Aborts the tasks. The token marks the end as intended.
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn task_that_ends_ends_the_set_and_is_named_each_time() {
        let mut set = TaskSet::default();
        let shutdown = set.shutdown();
        set.spawn("waits", async move { shutdown.cancelled().await });
        set.spawn("dies", async { panic!("as a bug does") });
        for _ in 0..3 {
            assert_eq!(set.ended().await, "dies");
        }
        tokio::time::timeout(Duration::from_secs(20), set.stop()).await.expect("the other one ended too");
    }

    #[tokio::test]
    async fn set_that_is_stopped_or_dropped_names_no_task() {
        let mut set = TaskSet::default();
        let shutdown = set.shutdown();
        set.spawn("waits", async move { shutdown.cancelled().await });
        let ended = set.ended();
        set.stop().await;
        assert_eq!(ended.now_or_never(), None);
        assert_eq!(set.names(), ["waits"]);
        let mut set = TaskSet::default();
        let (alive, mut gone) = watch::channel(());
        set.spawn("waits", async move {
            let _alive = alive;
            std::future::pending::<()>().await;
        });
        let ended = set.ended();
        drop(set);
        assert!(gone.changed().await.is_err(), "the task was aborted");
        assert_eq!(ended.now_or_never(), None);
    }
}
