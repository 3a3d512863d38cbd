//! Record of the Machines, or of the objects of another kind, of a namespace. Its watch shows each change once and in order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, bail};
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::wait;
use futures::TryStreamExt as _;
use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::WatchEvent;
use kube::{Client, Config};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::site::{PATIENCE, condition};

/// The record. It ends when dropped.
pub(crate) struct Recorder {
    seen: Arc<Mutex<Seen>>,
    _runtime: Runtime,
}

#[derive(Default)]
struct Seen {
    objects: BTreeMap<String, Value>,
    bounds: Option<Bounds>,
    /// Names of all objects since the start.
    names: Vec<String>,
    error: Option<String>,
}

/// Extreme numbers of objects that are not being deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Maximum of existing ones.
    pub(crate) existing: usize,
    /// Minimum of those with condition `Available`.
    pub(crate) available: usize,
}

impl Recorder {
    /// Starts the record with the Machines that exist.
    pub(crate) fn start(namespace: &str) -> Self {
        Self::of(namespace, "cluster.x-k8s.io/v1beta2", "machines")
    }

    /// Starts the record with the objects of a kind that exist.
    pub(crate) fn of(namespace: &str, group: &str, plural: &str) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let path = format!("/apis/{group}/namespaces/{namespace}/{plural}");
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (client, since) = runtime.block_on(list(&path, &seen)).unwrap();
        let recorded = seen.clone();
        runtime.spawn(async move {
            if let Err(error) = follow(client, &path, &since, &recorded).await {
                locked(&recorded).error = Some(format!("{error:#}"));
            }
        });
        Self { seen, _runtime: runtime }
    }

    /// Forgets the extremes until now.
    pub(crate) fn restart_bounds(&self) {
        let mut seen = locked(&self.seen);
        seen.bounds = None;
        seen.count();
    }

    /// Forgets the extremes and the names until now.
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) fn restart(&self) {
        locked(&self.seen).names.clear();
        self.restart_bounds();
    }

    /// Waits until the objects, of which none is being deleted, are in a state. Returns them and the extremes until then.
    pub(crate) fn until(&self, what: &str, is: impl Fn(&[&Value]) -> bool) -> (Vec<Value>, Bounds) {
        let found = wait::until(what, PATIENCE, || {
            let seen = locked(&self.seen);
            if let Some(error) = &seen.error {
                bail!("watch: {error}");
            }
            let objects: Vec<&Value> = seen.objects.values().collect();
            let is_settled = objects.iter().all(|object| !is_deleting(object)) && is(&objects);
            let bounds = seen.bounds.context("no extremes")?;
            Ok(is_settled.then(|| (objects.into_iter().cloned().collect(), bounds)))
        });
        found.unwrap_or_else(|error| {
            let seen = locked(&self.seen);
            panic!("{error:#}: {:?}\n{:#?}", seen.bounds, seen.objects.values().collect::<Vec<_>>())
        })
    }

    /// Returns the names of all objects since the start, in the order of their creation.
    pub(crate) fn names(&self) -> Vec<String> {
        locked(&self.seen).names.clone()
    }
}

fn locked(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_deleting(machine: &Value) -> bool {
    machine["metadata"]["deletionTimestamp"].is_string()
}

/// True if a Machine is available.
pub(crate) fn is_available(machine: &Value) -> bool {
    condition(machine, "Available").0 == "True"
}

impl Seen {
    fn put(&mut self, machine: Value) {
        let name = machine["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if self.objects.insert(name.clone(), machine).is_none() {
            self.names.push(name);
        }
    }

    fn count(&mut self) {
        let present = || self.objects.values().filter(|machine| !is_deleting(machine));
        let existing = present().count();
        let available = present().filter(|machine| is_available(machine)).count();
        let before = self.bounds.unwrap_or(Bounds { existing, available });
        self.bounds = Some(Bounds {
            existing: before.existing.max(existing),
            available: before.available.min(available),
        });
    }
}

async fn list(path: &str, seen: &Mutex<Seen>) -> Result<(Client, String)> {
    let kubeconfig = Kubeconfig::read_from(Kubernetes::shared().admin())?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let list: Value = client.request(Request::get(path).body(Vec::new())?).await?;
    let version = list["metadata"]["resourceVersion"].as_str().context("no resourceVersion")?;
    let mut seen = locked(seen);
    for machine in list["items"].as_array().context("no items")? {
        seen.put(machine.clone());
    }
    seen.count();
    Ok((client, version.to_owned()))
}

async fn follow(client: Client, path: &str, since: &str, seen: &Mutex<Seen>) -> Result<()> {
    let path = format!("{path}?watch=true&timeoutSeconds=1800&resourceVersion={since}");
    let events = client.request_events::<Value>(Request::get(path).body(Vec::new())?).await?;
    let mut events = Box::pin(events);
    while let Some(event) = events.try_next().await? {
        let mut seen = locked(seen);
        match event {
            WatchEvent::Added(machine) | WatchEvent::Modified(machine) => seen.put(machine),
            WatchEvent::Deleted(machine) => {
                seen.objects.remove(machine["metadata"]["name"].as_str().unwrap_or_default());
            }
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => bail!("{status:?}"),
        }
        seen.count();
    }
    bail!("it has ended")
}
