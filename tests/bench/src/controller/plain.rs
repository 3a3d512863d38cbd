//! The baseline: the same rules in a plain controller. One worker takes one object at a time; whatever it writes it gets first, as a
//! whole, and puts back as a whole. It knows the other objects by watches, as every controller does. In this process.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use anyhow::{Context as _, Result};
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::Machine;
use bedplate_api::version::{MachineConfigurationVersion, version_name};
use bedplate_reconciler::cache::index::Index;
use bedplate_reconciler::machine::{NodeSeen, plan};
use bedplate_rules::selection::{OWN_FINALIZER, Write, is_of, plan_versions};
use futures::StreamExt as _;
use jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Work {
    Configuration(String),
    Machine(String),
}

/// Caches of the watches, and the pending work.
#[derive(Default)]
struct Shared {
    index: RwLock<Index>,
    queue: Mutex<(VecDeque<Work>, HashSet<Work>)>,
    more: Notify,
    /// Number of complete lists.
    whole: AtomicUsize,
    requests: AtomicUsize,
    chosen: AtomicUsize,
}

/// A plain controller that runs until it is dropped.
pub(super) struct Plain {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

impl Plain {
    /// Starts it.
    pub(super) fn start(client: &Client) -> Self {
        let (shared, mut tasks) = (Arc::new(Shared::default()), JoinSet::new());
        tasks.spawn(follow::<MachineConfiguration>(
            client.clone(),
            shared.clone(),
            |object, there, shared| {
                let name = object.name_any();
                shared.index().configuration(&name, there.then(|| object.clone()));
                shared.put(Work::Configuration(name));
            },
        ));
        tasks.spawn(follow::<MachineConfigurationVersion>(
            client.clone(),
            shared.clone(),
            |object, there, shared| {
                let of = object.spec.configuration_name.clone();
                shared.index().version(&of, &object.name_any(), there.then(|| object.clone()));
                let touched = shared.index().touched_by(&of);
                shared.put(Work::Configuration(of));
                touched.into_iter().for_each(|name| shared.put(Work::Machine(name)));
            },
        ));
        tasks.spawn(follow::<Machine>(client.clone(), shared.clone(), |object, there, shared| {
            let name = object.name_any();
            let touched = shared.index().machine(&name, there.then(|| object.clone()));
            shared.put(Work::Machine(name));
            touched.into_iter().for_each(|name| shared.put(Work::Configuration(name)));
        }));
        tasks.spawn(work(client.clone(), shared.clone()));
        Self { shared, _tasks: tasks }
    }

    /// Number of Machines for which a version was chosen.
    pub(super) fn chosen(&self) -> usize {
        self.shared.chosen.load(Ordering::Relaxed)
    }

    /// Reads and writes of single objects.
    pub(super) fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn index(&self) -> std::sync::RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, work: Work) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.1.insert(work.clone()) {
            queue.0.push_back(work);
            self.more.notify_one();
        }
    }

    fn take(&self) -> Option<Work> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let work = queue.0.pop_front()?;
        queue.1.remove(&work);
        Some(work)
    }

    fn asks(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }
}

async fn follow<K>(client: Client, shared: Arc<Shared>, change: fn(&Arc<K>, bool, &Shared))
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + Sync
        + 'static,
{
    let mut events = Box::pin(watcher(Api::<K>::all(client), watcher::Config::default()));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => change(&Arc::new(object), true, &shared),
            Ok(Event::Delete(object)) => change(&Arc::new(object), false, &shared),
            Ok(Event::InitDone) => {
                shared.whole.fetch_add(1, Ordering::Relaxed);
                shared.more.notify_one();
            }
            Ok(Event::Init) | Err(_) => {}
        }
    }
}

async fn work(client: Client, shared: Arc<Shared>) {
    loop {
        let is_whole = shared.whole.load(Ordering::Relaxed) >= 3;
        let Some(work) = is_whole.then(|| shared.take()).flatten() else {
            shared.more.notified().await;
            continue;
        };
        let done = match &work {
            Work::Configuration(name) => configuration(&client, &shared, name).await,
            Work::Machine(name) => machine(&client, &shared, name).await,
        };
        if done.is_err() {
            // Changed meanwhile: again.
            shared.put(work);
        }
    }
}

async fn machine(client: &Client, shared: &Shared, name: &str) -> Result<()> {
    let machines: Api<Machine> = Api::all(client.clone());
    shared.asks();
    let mut machine = machines.get(name).await?;
    let known = shared.index().known(&machine, None);
    let (configurations, versions) = known.slices();
    let objects = (&configurations[..], &versions[..]);
    let plan = plan(&machine, NodeSeen::Absent, None, objects, None, Timestamp::now());
    let Some(status) = &plan.status else { return Ok(()) };
    if let Some((configuration, number)) = &plan.lock {
        update_version(client, shared, &version_name(configuration, *number), |status| {
            (status["deployed"], status["deployedTime"]) = (json!(true), json!(Timestamp::now()));
        })
        .await?;
    }
    let before = machine.status.as_ref().is_some_and(|status| status.selected.is_some());
    let mut whole = json!(machine.status);
    merge(&mut whole, json!(status));
    machine.status = serde_json::from_value(whole)?;
    let after = machine.status.as_ref().is_some_and(|status| status.selected.is_some());
    shared.asks();
    machines.replace_status(name, &PostParams::default(), &machine).await?;
    shared.chosen.fetch_add(usize::from(after && !before), Ordering::Relaxed);
    Ok(())
}

/// Puts ours over what is there; conditions by their type.
fn merge(whole: &mut Value, ours: Value) {
    let Value::Object(ours) = ours else { return };
    for (key, value) in ours {
        if key != "conditions" {
            whole[&key] = value;
            continue;
        }
        let mut all = whole[&key].as_array().cloned().unwrap_or_default();
        for condition in value.as_array().into_iter().flatten() {
            all.retain(|there| there["type"] != condition["type"]);
            all.push(condition.clone());
        }
        whole[&key] = all.into();
    }
}

async fn update_version(
    client: &Client,
    shared: &Shared,
    name: &str,
    change: impl Fn(&mut Value),
) -> Result<()> {
    let versions: Api<MachineConfigurationVersion> = Api::all(client.clone());
    shared.asks();
    let mut version = versions.get(name).await?;
    let before = version.status.clone();
    let mut status = json!(version.status.clone().unwrap_or_default());
    change(&mut status);
    version.status = serde_json::from_value(status)?;
    if version.status != before {
        shared.asks();
        versions.replace_status(name, &PostParams::default(), &version).await?;
    }
    Ok(())
}

async fn configuration(client: &Client, shared: &Shared, name: &str) -> Result<()> {
    let configurations: Api<MachineConfiguration> = Api::all(client.clone());
    shared.asks();
    let mut configuration = configurations.get(name).await?;
    if !configuration.finalizers().iter().any(|held| held == OWN_FINALIZER) {
        configuration.finalizers_mut().push(OWN_FINALIZER.to_owned());
        shared.asks();
        configurations.replace(name, &PostParams::default(), &configuration).await?;
        return Ok(());
    }
    let (plan, counts) = {
        let index = shared.index();
        let versions: Vec<_> = index.versions_of(name).into_iter().map(AsRef::as_ref).collect();
        let own = versions.iter().filter(|version| is_of(version, &configuration));
        let number = |version: &&&MachineConfigurationVersion| version.spec.version;
        let counts = own.map(|v| (number(&v), index.references().machines(name, v.spec.version)));
        (plan_versions(&configuration, &versions, index.references()), counts.collect::<Vec<_>>())
    };
    let versions: Api<MachineConfigurationVersion> = Api::all(client.clone());
    match &plan.write {
        Some(Write::Create(object)) => {
            shared.asks();
            versions.create(&PostParams::default(), object).await?;
        }
        Some(Write::Copy(object)) => {
            shared.asks();
            versions.replace(&object.name_any(), &PostParams::default(), object).await?;
        }
        None => {}
    }
    for (number, machines) in counts {
        update_version(client, shared, &version_name(name, number), |status| {
            status["machines"] = json!(machines);
            status["deployed"] = json!(status["deployed"].as_bool().unwrap_or(false));
        })
        .await?;
    }
    let selected = shared.index().users_of(name).filter(|machine| is_selected(machine, name)).count();
    let before = configuration.status.clone();
    let status = configuration.status.get_or_insert_default();
    (status.latest_version, status.deployed_version) = (Some(plan.latest), plan.deployed);
    let machines = status.machines.get_or_insert_default();
    machines.selected = i32::try_from(selected).context("too many")?;
    machines.unavailable = machines.selected;
    if configuration.status != before {
        shared.asks();
        configurations.replace_status(name, &PostParams::default(), &configuration).await?;
    }
    Ok(())
}

fn is_selected(machine: &Machine, name: &str) -> bool {
    let selected = machine.status.as_ref().and_then(|status| status.selected.as_ref());
    selected.is_some_and(|selected| selected.name == name)
}
