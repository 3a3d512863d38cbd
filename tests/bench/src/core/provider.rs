//! Stand-ins for the bootstrap and the infrastructure provider: they answer each step of a core immediately.
//!
//! ```text
//! KubeadmConfig with an owner -> its data exists
//! Machine that has its data   -> BedplateMachine has a host and is provisioned, and the Node joins
//! BedplateMachine deleted     -> its finalizer is removed
//! ```
//! The order is that of real providers: a host starts only with its data.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use bedplate_api::cluster::infrastructure::FINALIZER;
use futures::StreamExt as _;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::objects::{BOOTSTRAP, CLUSTER_LABEL, CORE, DATA, INFRASTRUCTURE, cluster_number, condition, node};
use super::workload::Workloads;
use crate::claims::site::{dynamic, status_of};
use crate::controller::site::AT_ONCE;

/// Kind of the infrastructure objects.
pub(super) const MACHINE: &str = "BedplateMachine";
const CONFIG: &str = "KubeadmConfig";

/// Stand-ins that answer until they are dropped.
pub(super) struct Providers {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    client: Client,
    /// Client with the credentials of our infrastructure provider: policies let no other user write its fields.
    infrastructure: Client,
    workloads: Arc<Workloads>,
    places: Semaphore,
    failures: Mutex<Vec<String>>,
}

/// Answer to an object.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Data,
    Provision,
    Release,
}

impl Providers {
    pub(super) fn start(client: &Client, infrastructure: &Client, workloads: &Arc<Workloads>) -> Self {
        let (client, infrastructure, workloads) = (client.clone(), infrastructure.clone(), workloads.clone());
        let (places, failures) = (Semaphore::new(AT_ONCE), Mutex::default());
        let shared = Arc::new(Shared { client, infrastructure, workloads, places, failures });
        let mut tasks = JoinSet::new();
        tasks.spawn(follow(shared.clone(), (BOOTSTRAP, CONFIG), Answer::Data));
        tasks.spawn(follow(shared.clone(), (CORE, "Machine"), Answer::Provision));
        tasks.spawn(follow(shared.clone(), (INFRASTRUCTURE, MACHINE), Answer::Release));
        Self { shared, _tasks: tasks }
    }

    /// Checks that the API server has accepted all answers.
    pub(super) fn check(&self) -> Result<()> {
        let failures = self.shared.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let first = failures.first().map(String::as_str).unwrap_or_default();
        ensure!(failures.is_empty(), "{} writes of providers failed, the first: {first}", failures.len());
        Ok(())
    }
}

/// Answers each object of a kind once.
async fn follow(shared: Arc<Shared>, (version, kind): (&'static str, &'static str), answer: Answer) {
    let api = dynamic(&shared.client, version, kind);
    let mut events = Box::pin(watcher(api, watcher::Config::default()).default_backoff());
    let (mut answered, mut tasks) = (HashSet::new(), JoinSet::new());
    while let Some(event) = events.next().await {
        while tasks.try_join_next().is_some() {}
        let Ok(Event::Apply(object) | Event::InitApply(object)) = event else { continue };
        if !is_due(&object, answer) || !answered.insert(object.uid()) {
            continue;
        }
        let shared = shared.clone();
        tasks.spawn(async move {
            let Ok(_place) = shared.places.acquire().await else { return };
            if let Err(error) = carry_out(&shared, &object, answer).await {
                let error = format!("{answer:?} for {}: {error:#}", object.name_any());
                shared.failures.lock().unwrap_or_else(PoisonError::into_inner).push(error);
            }
        });
    }
}

fn is_due(object: &DynamicObject, answer: Answer) -> bool {
    let is_deleting = object.metadata.deletion_timestamp.is_some();
    match answer {
        Answer::Data => !is_deleting && object.owner_references().iter().any(|owner| owner.kind == "Machine"),
        Answer::Provision => {
            let spec = &object.data["spec"];
            !is_deleting && spec["bootstrap"]["dataSecretName"].is_string() && spec["providerID"].is_null()
        }
        Answer::Release => is_deleting && !object.finalizers().is_empty(),
    }
}

async fn carry_out(shared: &Shared, object: &DynamicObject, answer: Answer) -> Result<()> {
    match answer {
        Answer::Data => {
            let status = json!({ "initialization": { "dataSecretCreated": true }, "dataSecretName": DATA,
                "conditions": [condition("Ready")] });
            status_of(&shared.client, BOOTSTRAP, (CONFIG, &object.name_any()), &status).await
        }
        Answer::Provision => provision(shared, object).await,
        Answer::Release => {
            merge(shared, &object.name_any(), json!({ "metadata": { "finalizers": null } })).await
        }
    }
}

/// Gives the infrastructure object of a Machine a host, and lets its Node join.
async fn provision(shared: &Shared, machine: &DynamicObject) -> Result<()> {
    let name = infrastructure(machine).context("a Machine without infrastructureRef")?;
    let uid = machine.uid().context("a Machine without UID")?;
    let id = format!("bedplate://{name}/{uid}");
    let host = json!({ "metadata": { "finalizers": [FINALIZER] }, "spec": { "machineName": name, "providerID": id } });
    merge(shared, name, host).await?;
    let status = json!({ "initialization": { "provisioned": true }, "ready": true, "conditions": [condition("Ready")],
        "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }] });
    status_of(&shared.infrastructure, INFRASTRUCTURE, (MACHINE, name), &status).await?;
    let cluster = machine.labels().get(CLUSTER_LABEL).and_then(|name| cluster_number(name));
    shared.workloads.join(cluster.context("a Machine without a Cluster")?, node(name, &uid, &id))
}

async fn merge(shared: &Shared, name: &str, change: serde_json::Value) -> Result<()> {
    let api = dynamic(&shared.infrastructure, INFRASTRUCTURE, MACHINE);
    api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.map(drop)?;
    Ok(())
}

/// Returns the name of the infrastructure object of a Machine.
pub(super) fn infrastructure(machine: &DynamicObject) -> Option<&str> {
    machine.data["spec"]["infrastructureRef"]["name"].as_str()
}
