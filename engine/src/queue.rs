//! Queue of the objects of a kind that a worker reconciles. Called by the watches of a program.

use kube::runtime::reflector::{Lookup, ObjectRef};
use tokio::sync::mpsc;

use crate::counters::{Counters, Kinds};
use crate::full_name::full_name;

/// Maximum number of changes that wait in a queue. More changes hold up their watch.
const MAX_QUEUED: usize = 1024;

/// Sender of a kind's queue. Clones share the queue.
#[derive(Debug, Clone)]
pub struct Queue<K: Lookup<DynamicType = ()>, N> {
    kind: N,
    sender: mpsc::Sender<ObjectRef<K>>,
    counters: Counters<N>,
}

impl<K: Lookup<DynamicType = ()>, N: Kinds> Queue<K, N> {
    /// Makes a queue. The receiver is for [`work`](crate::work).
    pub fn new(kind: N, counters: &Counters<N>) -> (Self, mpsc::Receiver<ObjectRef<K>>) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED);
        (Self { kind, sender, counters: counters.clone() }, receiver)
    }

    /// Queues an object. Waits while the queue is full. Does nothing after the worker has ended.
    pub async fn put(&self, object: ObjectRef<K>) {
        self.counters.waits(self.kind, &full_name(&object));
        let _ = self.sender.send(object).await;
    }
}
