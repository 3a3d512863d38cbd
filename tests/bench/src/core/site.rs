//! The management cluster of this bench: its kinds, its objects, the stand-ins around the core, and the state of the Machines.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bedplate_tests::kubernetes::{Kubernetes, Writes};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::task::JoinSet;

use super::objects::{CLUSTER_LABEL, CORE, Object, cluster, cluster_number, control_plane_definition};
use super::provider::{Providers, infrastructure};
use super::subject::{Subject, install};
use super::workload::Workloads;
use crate::claims::site::{TEAM, dynamic, status_of};
use crate::controller::site::{AT_ONCE, client, processor};

/// Timeout of each phase.
const PHASE_TIMEOUT: Duration = Duration::from_secs(1800);
/// Interval between reads of the audit log.
const READ_INTERVAL: Duration = Duration::from_millis(500);
/// Resources whose writes are not counted: elections, Events, and the upkeep of its own definitions by upstream's manager.
const UNCOUNTED: [&str; 5] =
    ["leases", "events", "customresourcedefinitions", "tokenreviews", "subjectaccessreviews"];

/// Number of objects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) clusters: usize,
    /// Machines of a Cluster.
    pub(super) replicas: usize,
}

impl Size {
    pub(super) fn machines(self) -> usize {
        self.clusters * self.replicas
    }
}

/// A Machine, as a watch shows it.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) name: String,
    /// Number of its Cluster.
    pub(super) cluster: usize,
    /// Name of its infrastructure object.
    pub(super) infrastructure: String,
    pub(super) is_running: bool,
}

type Seen = Arc<Mutex<BTreeMap<String, Machine>>>;

/// A management cluster with one core.
pub(super) struct Site {
    pub(super) kubernetes: Kubernetes,
    pub(super) client: Client,
    /// Client of the infrastructure provider.
    pub(super) infrastructure: Client,
    pub(super) size: Size,
    pub(super) workloads: Arc<Workloads>,
    providers: Providers,
    writes: Writes,
    seen: Seen,
    _watch: JoinSet<()>,
}

impl Site {
    /// Starts one whose objects no core has seen.
    pub(super) async fn start(size: Size, subject: &Subject) -> Result<Self> {
        let kubernetes = Kubernetes::start()?;
        let client = client(&kubernetes.admin()).await?;
        install(&kubernetes, &["infrastructure-components.yaml", "bootstrap-components.yaml"])?;
        kubernetes.objects()?.apply(&control_plane_definition())?;
        subject.install_kinds(&kubernetes)?;
        let established = ["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"];
        kubernetes.kubectl(&kubernetes.admin(), &established)?;
        let workloads = Arc::new(Workloads::start(size.clusters).await?);
        fill(&client, size, &workloads).await?;
        // Only now: upstream's webhooks refuse all writes until its manager runs.
        subject.install_rest(&kubernetes)?;
        let (writes, seen) = (kubernetes.writes_of(subject.user()), Seen::default());
        let user = kubernetes.service_account("bedplate-system", "bedplate-infrastructure")?;
        let infrastructure = self::client(&user).await?;
        let providers = Providers::start(&client, &infrastructure, &workloads);
        let mut watch = JoinSet::new();
        watch.spawn(follow(dynamic(&client, CORE, "Machine"), seen.clone()));
        Ok(Self {
            kubernetes,
            client,
            infrastructure,
            size,
            workloads,
            providers,
            writes,
            seen,
            _watch: watch,
        })
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<String, Machine>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the Machines in the order of their names.
    pub(super) fn machines(&self) -> Vec<Machine> {
        self.seen().values().cloned().collect()
    }

    /// Waits until all Machines are Running.
    pub(super) async fn until_running(&self) -> Result<()> {
        let all = self.size.machines();
        self.until(|seen| seen.values().filter(|machine| machine.is_running).count() == all).await
    }

    /// Waits until no Machine is left.
    pub(super) async fn until_gone(&self) -> Result<()> {
        self.until(BTreeMap::is_empty).await
    }

    async fn until(&self, is_reached: impl Fn(&BTreeMap<String, Machine>) -> bool) -> Result<()> {
        let started = Instant::now();
        while !is_reached(&self.seen()) {
            let running = self.seen().values().filter(|machine| machine.is_running).count();
            let (all, nodes) = (self.seen().len(), self.workloads.nodes());
            self.providers.check()?;
            ensure!(
                started.elapsed() < PHASE_TIMEOUT,
                "after {} s there are {all} Machines, {running} of them Running, and {nodes} Nodes",
                PHASE_TIMEOUT.as_secs()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Returns the counted writes of the core since the start, by verb and resource.
    pub(super) fn writes(&mut self) -> Result<BTreeMap<String, u64>> {
        let is_counted = |key: &&String| {
            let resource = key.split([' ', '/']).nth(1).unwrap_or_default();
            !UNCOUNTED.contains(&resource)
        };
        let all = self.writes.count()?.iter().filter(|(key, _)| is_counted(key));
        Ok(all.map(|(key, number)| (key.clone(), *number)).collect())
    }

    /// Waits until the core has written nothing for a while. Returns its writes since the start.
    pub(super) async fn until_quiet(&mut self, quiet: Duration) -> Result<BTreeMap<String, u64>> {
        let (mut since, mut before, started) = (Instant::now(), BTreeMap::new(), Instant::now());
        while since.elapsed() < quiet {
            let now = self.writes()?;
            if now != before {
                ensure!(started.elapsed() < PHASE_TIMEOUT, "the core does not stop writing: {now:?}");
                (since, before) = (Instant::now(), now);
            }
            tokio::time::sleep(READ_INTERVAL).await;
        }
        Ok(before)
    }

    /// Deletes all MachineDeployments.
    pub(super) async fn delete_deployments(&self) -> Result<()> {
        let deployments = dynamic(&self.client, CORE, "MachineDeployment");
        deployments.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        Ok(())
    }

    /// Returns the processor time of API server and etcd in seconds.
    pub(super) fn processor(&self) -> Result<f64> {
        self.kubernetes.pids().into_iter().map(processor).sum()
    }
}

async fn fill(client: &Client, size: Size, workloads: &Workloads) -> Result<()> {
    put(
        client,
        &Object { version: "v1", kind: "Namespace", name: TEAM.to_owned(), body: json!({}), status: None },
    )
    .await?;
    let make = |number: usize| async move {
        let (kubeconfig, port) = (workloads.kubeconfig(number)?, workloads.port(number)?);
        for object in cluster(number, size.replicas, &kubeconfig, port) {
            put(client, &object).await?;
        }
        anyhow::Ok(())
    };
    stream::iter((0..size.clusters).map(make)).buffer_unordered(AT_ONCE).try_collect::<()>().await
}

async fn put(client: &Client, object: &Object) -> Result<()> {
    let Object { version, kind, name, body, status } = object;
    let mut body = body.clone();
    (body["apiVersion"], body["kind"]) = ((*version).into(), (*kind).into());
    body["metadata"]["name"] = name.clone().into();
    let made =
        dynamic(client, version, kind).create(&PostParams::default(), &serde_json::from_value(body)?).await;
    made.with_context(|| format!("{kind} {name}"))?;
    match status {
        Some(status) => status_of(client, version, (kind, name), status).await,
        None => Ok(()),
    }
}

async fn follow(machines: Api<DynamicObject>, seen: Seen) {
    let mut events = Box::pin(watcher(machines, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => {
                if let Some(machine) = machine(&object) {
                    seen.insert(machine.name.clone(), machine);
                }
            }
            Ok(Event::Delete(object)) => {
                seen.remove(&object.name_any());
            }
            Ok(Event::Init | Event::InitDone) | Err(_) => {}
        }
    }
}

fn machine(object: &DynamicObject) -> Option<Machine> {
    Some(Machine {
        name: object.name_any(),
        cluster: cluster_number(object.labels().get(CLUSTER_LABEL)?)?,
        infrastructure: infrastructure(object)?.to_owned(),
        is_running: object.data["status"]["phase"] == "Running",
    })
}
