//! Objects of one name in two namespaces.

use std::sync::Mutex;

use bedplate_process::counter::labels;
use bedplate_process::liveness::{Liveness, SILENCE_TIMEOUT};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector;
use kube::runtime::watcher::Event;
use serde_json::json;

use super::*;
use crate::counters::Names;
use crate::queue::Queue;

labels! {
    /// Kinds of this program.
    pub(crate) enum Kind in "kind" {
        /// Pods.
        Pod => "Pod",
    }
}

impl Kinds for Kind {
    const NAMES: Names = Names {
        reconciles: "reconciles",
        writes: "writes",
        watch_errors: "watch_errors",
        leader: "leader",
        queue_depth: "queue_depth",
        queue_oldest: "queue_oldest_seconds",
        watch_age: "watch_age_seconds",
        reconcile_duration: "reconcile_duration_seconds",
    };
}

struct World {
    counters: Counters<Kind>,
    tenure: Tenure,
    /// Namespaces of the objects that were rejected.
    rejected: Mutex<Vec<Option<String>>>,
}

impl Context for World {
    type Kind = Kind;

    fn counters(&self) -> &Counters<Kind> {
        &self.counters
    }

    fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    fn rejected(&self, _: Kind, object: ObjectReference, _: &WriteError) {
        self.rejected.lock().unwrap().push(object.namespace);
    }
}

/// A store with the Pod `web` in each of these namespaces.
fn store(namespaces: &[&str]) -> Store<Pod> {
    let (store, mut writer) = reflector::store();
    writer.apply_watcher_event(&Event::Init);
    for namespace in namespaces {
        let pod = json!({ "metadata": { "name": "web", "namespace": namespace } });
        writer.apply_watcher_event(&Event::InitApply(serde_json::from_value(pod).unwrap()));
    }
    writer.apply_watcher_event(&Event::InitDone);
    store
}

/// Rejected in namespace `a`.
async fn reconcile(pod: Arc<Pod>, _: Arc<World>) -> Result<(), WriteError> {
    let (what, why) = ("Pod".to_owned(), "422".to_owned());
    if pod.namespace().as_deref() == Some("a") { Err(WriteError::Refused { what, why }) } else { Ok(()) }
}

#[tokio::test(start_paused = true)]
async fn success_of_an_object_does_not_end_the_backoff_of_its_namesake() {
    let (shutdown, counters) = (CancellationToken::new(), Counters::default());
    let (queue, receiver) = Queue::new(Kind::Pod, &counters);
    let world = Arc::new(World { counters, tenure: Tenure::always(), rejected: Mutex::default() });
    let life = (Liveness::new(shutdown.clone()).part("pods", SILENCE_TIMEOUT), shutdown.clone());
    let worker = tokio::spawn(work(Kind::Pod, world.clone(), store(&["a", "b"]), receiver, reconcile, life));
    let web = |namespace| ObjectRef::new("web").within(namespace);
    queue.put(web("a")).await;
    for _ in 0..600 {
        queue.put(web("b")).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    shutdown.cancel();
    worker.await.unwrap();
    assert_eq!(*world.rejected.lock().unwrap(), [Some("a".to_owned())], "reported once for each reason");
}

#[tokio::test]
async fn objects_of_one_name_in_two_namespaces_wait_separately() {
    let counters = Counters::default();
    let (queue, _receiver) = Queue::<Pod, _>::new(Kind::Pod, &counters);
    for namespace in ["a", "b", "a"] {
        queue.put(ObjectRef::new("web").within(namespace)).await;
    }
    assert_eq!(counters.depth(Kind::Pod), 2);
}
