//! Queues objects whose status counts others: a second after the first change, and at most every 8 s while changes continue.
//!
//! Otherwise each of the some ten changes of each new Machine would write the status of its Cluster and of its MachineDeployment. These were half
//! of all writes while Machines start (docs/bench.md, `core`). Called by `watch`.

use std::future::Future;

use bedplate_engine::Queue;
use bedplate_engine::debounce::Coalescer;
use kube::Resource;
use kube::runtime::reflector::{Lookup, ObjectRef};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::metrics::Kind;

/// Maximum number of changes that wait for [`later`]. More changes hold up their watch.
const MAX_CHANGES: usize = 1024;

/// Sender of changes. Clones share the delays.
#[derive(Debug, Clone)]
pub struct Later<K: Lookup<DynamicType = ()>>(mpsc::Sender<ObjectRef<K>>);

impl<K: Lookup<DynamicType = ()>> Later<K> {
    /// Queues an object after its delay.
    pub async fn put(&self, object: ObjectRef<K>) {
        let _ = self.0.send(object).await;
    }
}

/// Makes a sender, and the task that queues the objects. The task ends after the last sender.
pub fn later<K>(queue: Queue<K, Kind>) -> (Later<K>, impl Future<Output = ()> + Send + 'static)
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
{
    let (sender, changes) = mpsc::channel(MAX_CHANGES);
    (Later(sender), run(changes, queue))
}

async fn run<K>(mut changes: mpsc::Receiver<ObjectRef<K>>, queue: Queue<K, Kind>)
where
    K: Resource<DynamicType = ()>,
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
                queue.put(ObjectRef::new(&name).within(namespace.as_deref().unwrap_or_default())).await;
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bedplate_api::cluster::full::Cluster;

    use super::*;
    use crate::metrics::Counters;

    #[tokio::test(start_paused = true)]
    async fn object_is_queued_once_for_all_changes_of_a_second() {
        let (queue, mut queued) = Queue::<Cluster, Kind>::new(Kind::CoreCluster, &Counters::default());
        let (later, task) = later(queue);
        let task = tokio::spawn(task);
        let object = |name: &str| ObjectRef::<Cluster>::new(name).within("team");
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
}
