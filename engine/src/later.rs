//! Queues objects whose status counts others: a second after the first change, and at most every 8 s while changes continue.
//!
//! Otherwise each change of each counted object would write such a status. These were half of all writes while objects start (docs/design/bench.md,
//! `core`). Called by the watches of a program.

use std::future::Future;

use kube::runtime::reflector::{Lookup, ObjectRef};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::counters::Kinds;
use crate::debounce::Coalescer;
use crate::queue::Queue;

/// Maximum number of changes that wait for their delay. More changes hold up their watch.
const MAX_CHANGES: usize = 1024;

/// Sender of changes. Clones share the delays.
#[derive(Debug, Clone)]
pub struct Later<K: Lookup<DynamicType = ()>>(mpsc::Sender<ObjectRef<K>>);

impl<K: Lookup<DynamicType = ()>> Later<K> {
    /// Makes a sender, and the receiver of its changes.
    pub fn channel() -> (Self, mpsc::Receiver<ObjectRef<K>>) {
        let (sender, changes) = mpsc::channel(MAX_CHANGES);
        (Self(sender), changes)
    }

    /// Queues an object after its delay.
    pub async fn put(&self, object: ObjectRef<K>) {
        let _ = self.0.send(object).await;
    }
}

/// Makes a sender, and the task that queues the objects. The task ends after the last sender.
pub fn later<K, N>(queue: Queue<K, N>) -> (Later<K>, impl Future<Output = ()> + Send + 'static)
where
    K: Lookup<DynamicType = ()> + Send + Sync + 'static,
    N: Kinds,
{
    let (sender, changes) = Later::channel();
    (sender, run(changes, queue))
}

/// Queues the objects that have changed, each once after its delay.
async fn run<K, N>(mut changes: mpsc::Receiver<ObjectRef<K>>, queue: Queue<K, N>)
where
    K: Lookup<DynamicType = ()>,
    N: Kinds,
{
    let mut coalescer = Coalescer::default();
    loop {
        let next = coalescer.next();
        let due = async {
            match next {
                Some(next) => sleep_until(next.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = changes.recv() => match changed {
                Some(object) => coalescer.touched((object.namespace, object.name), Instant::now().into_std()),
                None => return,
            },
            () = due => for (namespace, name) in coalescer.due(Instant::now().into_std()) {
                let mut object = ObjectRef::new(&name);
                object.namespace = namespace;
                queue.put(object).await;
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::{Node, Pod};

    use super::*;
    use crate::counters::Counters;
    use crate::work::tests::Kind;

    #[tokio::test(start_paused = true)]
    async fn object_is_queued_once_for_all_changes_of_a_second() {
        let (queue, mut queued) = Queue::<Pod, Kind>::new(Kind::Pod, &Counters::default());
        let (later, task) = later(queue);
        let task = tokio::spawn(task);
        let object = |name: &str| ObjectRef::<Pod>::new(name).within("team");
        for name in ["a", "b", "a", "a"] {
            later.put(object(name)).await;
        }
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert!(queued.try_recv().is_err(), "the first change waits a second");
        tokio::time::sleep(Duration::from_millis(200)).await;
        let first = [queued.try_recv().unwrap(), queued.try_recv().unwrap()];
        assert_eq!(first, [object("a"), object("b")]);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(queued.try_recv().is_err(), "each object is queued once");
        drop(later);
        task.await.unwrap();
    }

    /// The store finds a cluster-scoped object only without a namespace.
    #[tokio::test(start_paused = true)]
    async fn cluster_scoped_object_is_queued_without_a_namespace() {
        let (queue, mut queued) = Queue::<Node, Kind>::new(Kind::Pod, &Counters::default());
        let (later, task) = later(queue);
        let task = tokio::spawn(task);
        later.put(ObjectRef::new("a")).await;
        assert_eq!(queued.recv().await, Some(ObjectRef::new("a")));
        task.abort();
    }
}
