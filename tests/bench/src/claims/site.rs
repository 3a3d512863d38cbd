//! The management cluster of this bench: the kinds, the hosts, the claimants, and the provider as a process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bedplate_api::cluster::infrastructure::BedplateMachine;
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::pxed;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::controller::site::{AT_ONCE, Controller, STEP_TIMEOUT, client, free_port, sum};

/// Namespace, Cluster and configuration have one name.
pub(crate) const TEAM: &str = "bench";
const MANAGER: &str = "bench";

/// Number of objects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) hosts: usize,
    pub(super) claims: usize,
}

/// Hosts that claimants select. Each may have all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Selectors {
    /// No claimant has a selector.
    None,
    /// Each claimant has a selector of its own.
    Own,
}

/// The provider's objects as a watch shows them.
#[derive(Debug, Default)]
pub(super) struct Seen(BTreeMap<String, BedplateMachine>);

impl Seen {
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Claimants with a providerID.
    pub(super) fn placed(&self) -> impl Iterator<Item = &BedplateMachine> {
        self.0.values().filter(|machine| machine.spec.provider_id.is_some())
    }

    /// Claimants that have found no host.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &BedplateMachine> {
        self.0.values().filter(|machine| {
            let mut conditions = machine.status.iter().flat_map(|status| &status.conditions);
            conditions.any(|found| found.type_ == "HostClaimed" && found.reason == "NoEligibleMachine")
        })
    }

    /// Claimants that are Ready.
    pub(super) fn ready(&self) -> impl Iterator<Item = &BedplateMachine> {
        let is_ready = |machine: &&BedplateMachine| {
            let conditions = machine.status.iter().flat_map(|status| &status.conditions);
            conditions.into_iter().any(|found| found.type_ == "Ready" && found.status == "True")
        };
        self.0.values().filter(is_ready)
    }
}

/// An API server with hosts of a pool, and claimants that wait for the infrastructure of their Cluster.
pub(super) struct Site {
    pub(super) kubernetes: Kubernetes,
    pub(super) client: Client,
    pub(super) size: Size,
    selectors: Selectors,
    /// Client with the credentials of the provider.
    pub(super) provider: Client,
    /// Names of the hosts.
    pub(super) hosts: Vec<String>,
    seen: Arc<Mutex<Seen>>,
    _watch: JoinSet<()>,
}

impl Site {
    pub(super) async fn start(size: Size, selectors: Selectors) -> Result<Self> {
        let kubernetes = Kubernetes::start()?;
        kubernetes.install()?;
        let client = client(&kubernetes.admin()).await?;
        install(&kubernetes)?;
        let user = kubernetes.service_account("bedplate-system", "bedplate-infrastructure")?;
        let provider = self::client(&user).await?;
        let hosts: Vec<String> = (0..size.hosts).map(|number| format!("server-{number:05}")).collect();
        let (seen, mut watch) = (Arc::new(Mutex::new(Seen::default())), JoinSet::new());
        let (_watch, shared) = (JoinSet::new(), seen.clone());
        let site = Self { kubernetes, client, provider, size, selectors, hosts, seen: shared, _watch };
        site.fill().await?;
        watch.spawn(follow(Api::all(site.client.clone()), seen));
        Ok(Self { _watch: watch, ..site })
    }

    async fn fill(&self) -> Result<()> {
        let make = |number: usize| self.host(number);
        stream::iter((0..self.size.hosts).map(make)).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        self.put("v1", "Namespace", TEAM, &json!({})).await?;
        let template = json!({ "image": { "reference": format!("registry.example/node@sha256:{:064x}", 7) },
            "kubernetes": { "version": "v1.34.4" } });
        let spec = json!({ "spec": { "claimPolicy": { "namespaces": [TEAM] }, "template": template } });
        self.put("bedplate.dev/v1alpha1", "MachineConfiguration", TEAM, &spec).await?;
        let secret = json!({ "stringData": { "value": "#cloud-config", "format": "cloud-config" } });
        self.put("v1", "Secret", "data", &secret).await?;
        let reference =
            json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateCluster", "name": TEAM });
        let cluster = self
            .put(
                "cluster.x-k8s.io/v1beta2",
                "Cluster",
                TEAM,
                &json!({ "spec": { "infrastructureRef": reference } }),
            )
            .await?;
        let owner = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": TEAM, "uid": cluster.uid() });
        let spec = json!({ "metadata": { "labels": { "cluster.x-k8s.io/cluster-name": TEAM }, "ownerReferences": [owner] },
            "spec": { "controlPlaneEndpoint": { "host": "192.0.2.9", "port": 6443 } } });
        self.put("infrastructure.cluster.x-k8s.io/v1alpha1", "BedplateCluster", TEAM, &spec).await?;
        let make = |number: usize| self.claimant(number);
        stream::iter((0..self.size.claims).map(make)).buffer_unordered(AT_ONCE).try_collect::<()>().await
    }

    /// Creates a host of the pool with an enrolled agent that was just heard.
    async fn host(&self, number: usize) -> Result<()> {
        let name = &self.hosts.get(number).context("no such host")?;
        let spec = json!({ "spec": { "provider": "manual", "claimPolicy": { "namespaces": [TEAM] } } });
        self.put("bedplate.dev/v1alpha1", "Machine", name, &spec).await?;
        let enrollment = json!({ "certificateFingerprint": format!("sha256:{number:064x}"), "keyID": format!("{number:032x}") });
        let status = json!({ "enrollment": enrollment, "agent": { "lastHeartbeatTime": jiff::Timestamp::now(), "features": ["claims"] },
            "addresses": [{ "type": "InternalIP", "address": format!("10.7.{}.{}", number / 250, number % 250 + 1) }] });
        status_of(&self.client, "bedplate.dev/v1alpha1", ("Machine", name), &status).await
    }

    /// Creates a Machine of Cluster API with its BedplateMachine.
    async fn claimant(&self, number: usize) -> Result<()> {
        let name = format!("worker-{number:04}");
        let labels = json!({ "cluster.x-k8s.io/cluster-name": TEAM });
        let reference =
            json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateMachine", "name": name });
        let spec = json!({ "metadata": { "labels": labels }, "spec": { "clusterName": TEAM, "version": "v1.34.4",
            "infrastructureRef": reference, "bootstrap": { "dataSecretName": "data" } } });
        let made = self.put("cluster.x-k8s.io/v1beta2", "Machine", &name, &spec).await?;
        let owner = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name,
            "uid": made.uid(), "controller": true });
        let mut spec = json!({ "metadata": { "labels": labels, "ownerReferences": [owner] },
            "spec": { "configurationRef": { "name": TEAM } } });
        if self.selectors == Selectors::Own {
            let other = json!({ "key": "owner", "operator": "NotIn", "values": [name] });
            spec["spec"]["machineSelector"] = json!({ "matchExpressions": [other] });
        }
        self.put("infrastructure.cluster.x-k8s.io/v1alpha1", "BedplateMachine", &name, &spec).await.map(drop)
    }

    async fn put(&self, version: &str, kind: &str, name: &str, more: &Value) -> Result<DynamicObject> {
        let mut object = more.clone();
        object["metadata"]["name"] = name.into();
        (object["apiVersion"], object["kind"]) = (version.into(), kind.into());
        let api = dynamic(&self.client, version, kind);
        let made = api.create(&PostParams::default(), &serde_json::from_value(object)?).await;
        made.with_context(|| format!("{kind} {name}"))
    }

    /// Reports what the controller of Cluster API reports once the infrastructure of the Cluster is provisioned.
    pub(super) async fn provision(&self) -> Result<()> {
        let status = json!({ "initialization": { "infrastructureProvisioned": true } });
        status_of(&self.client, "cluster.x-k8s.io/v1beta2", ("Cluster", TEAM), &status).await
    }

    pub(super) async fn delete_claimants(&self) -> Result<()> {
        let machines: Api<BedplateMachine> = Api::namespaced(self.client.clone(), TEAM);
        machines.delete_collection(&DeleteParams::default(), &kube::api::ListParams::default()).await?;
        Ok(())
    }

    /// Deletes the claimants that have a host.
    pub(super) async fn delete_holders(&self) -> Result<()> {
        let machines: Api<BedplateMachine> = Api::namespaced(self.client.clone(), TEAM);
        let names: Vec<String> = {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.placed().map(kube::ResourceExt::name_any).collect()
        };
        for name in names {
            machines.delete(&name, &DeleteParams::default()).await?;
        }
        Ok(())
    }

    /// Reports the version that bedplate-controller would make of the configuration.
    pub(super) async fn publish_version(&self) -> Result<()> {
        let status = json!({ "latestVersion": 1 });
        status_of(&self.client, "bedplate.dev/v1alpha1", ("MachineConfiguration", TEAM), &status).await
    }

    /// Waits for a state of the claimants.
    pub(super) async fn until(&self, state: &str, is_reached: impl Fn(&Seen) -> bool) -> Result<()> {
        let started = Instant::now();
        while !is_reached(&self.seen.lock().unwrap_or_else(PoisonError::into_inner)) {
            let count = |seen: &Seen| (seen.count(), seen.placed().count(), seen.ready().count());
            let now = count(&self.seen.lock().unwrap_or_else(PoisonError::into_inner));
            ensure!(started.elapsed() < STEP_TIMEOUT, "{state}: of all, with a host, Ready: {now:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    pub(super) fn ensure_no_host_twice(&self) -> Result<()> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let hosts: BTreeSet<_> =
            seen.placed().filter_map(|machine| machine.spec.machine_name.as_ref()).collect();
        ensure!(hosts.len() == self.size.claims, "{} claimants have {} hosts", self.size.claims, hosts.len());
        Ok(())
    }

    /// Requests that the API server has answered with 409, by resource and verb.
    pub(super) async fn conflicts(&self) -> Result<BTreeMap<String, f64>> {
        self.requests("code=\"409\"").await
    }

    /// Reads of single objects of a resource.
    pub(super) async fn reads(&self, resource: &str) -> Result<f64> {
        let all = self.requests("verb=\"GET\"").await?;
        let of = format!("GET {resource} ");
        Ok(all.into_iter().filter(|(who, _)| *who == of).map(|(_, number)| number).sum())
    }

    /// Requests to the API server whose labels have this part, by resource and verb.
    async fn requests(&self, part: &str) -> Result<BTreeMap<String, f64>> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = self.client.request_text(request).await?;
        let is_meant = |line: &&str| line.starts_with("apiserver_request_total{") && line.contains(part);
        let label = |line: &str, name: &str| {
            let (_, rest) = line.split_once(&format!(",{name}=\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        let mut all = BTreeMap::new();
        for line in text.lines().filter(is_meant) {
            let who = ["verb", "resource", "subresource"].map(|name| label(line, name).unwrap_or_default());
            let number = line.rsplit(' ').next().and_then(|number| number.parse::<f64>().ok());
            *all.entry(who.join(" ")).or_default() += number.unwrap_or_default();
        }
        Ok(all)
    }
}

/// Kinds of the provider, with the two kinds of Cluster API that it reads.
fn install(kubernetes: &Kubernetes) -> Result<()> {
    for kind in ["Cluster", "Machine"] {
        let plural = format!("{}s", kind.to_lowercase());
        let free = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let schema = json!({ "openAPIV3Schema": { "type": "object", "properties": { "spec": free, "status": free } } });
        let definition = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.cluster.x-k8s.io"),
                "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/cluster-api" } },
            "spec": { "group": "cluster.x-k8s.io", "scope": "Namespaced",
                "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List") },
                "versions": [{ "name": "v1beta2", "served": true, "storage": true, "schema": schema, "subresources": { "status": {} } }] } });
        kubernetes.objects()?.apply(&definition)?;
    }
    let components =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/cluster-api/infrastructure-components.yaml");
    let components = components.display().to_string();
    kubernetes.kubectl(&kubernetes.admin(), &["apply", "--server-side", "-f", &components])?;
    let mut established = vec!["wait", "--for=condition=Established", "--timeout=60s"];
    established.extend([
        "crd/clusters.cluster.x-k8s.io",
        "crd/machines.cluster.x-k8s.io",
        "crd/bedplatemachines.infrastructure.cluster.x-k8s.io",
        "crd/bedplateclusters.infrastructure.cluster.x-k8s.io",
    ]);
    kubernetes.kubectl(&kubernetes.admin(), &established).map(drop)
}

/// Objects of a kind; of namespace [`TEAM`], if the kind has namespaces.
pub(crate) fn dynamic(client: &Client, version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    if group == "bedplate.dev" || kind == "Namespace" {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), TEAM, &resource)
    }
}

/// Merges fields into the status of an object.
pub(crate) async fn status_of(
    client: &Client,
    version: &str,
    (kind, name): (&str, &str),
    status: &Value,
) -> Result<()> {
    let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let body = Patch::Merge(json!({ "status": status }));
    let done = dynamic(client, version, kind).patch_status(name, &parameters, &body).await;
    done.map(drop).with_context(|| format!("status of {kind} {name}"))
}

async fn follow(machines: Api<BedplateMachine>, seen: Arc<Mutex<Seen>>) {
    let mut events = Box::pin(watcher(machines, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Ok(Event::Apply(machine) | Event::InitApply(machine)) => {
                seen.0.insert(machine.name_any(), machine);
            }
            Ok(Event::Delete(machine)) => {
                seen.0.remove(&machine.name_any());
            }
            Ok(Event::Init | Event::InitDone) | Err(_) => {}
        }
    }
}

/// The provider as a process.
pub(super) struct Provider(Controller);

impl Provider {
    /// Starts it, and waits until it leads.
    pub(super) async fn start(site: &Site, place: &Path) -> Result<Self> {
        let kubeconfig = site.kubernetes.service_account("bedplate-system", "bedplate-infrastructure")?;
        let listen = free_port()?;
        let mut command = Command::new(pxed::binary("bedplate-cluster")?);
        command.arg("--controllers=infrastructure").arg("--kubeconfig").arg(kubeconfig);
        command.arg(format!("--listen={listen}"));
        let mut process = Controller::spawn(&mut command, place, listen, "bedplate_cluster_writes_total")?;
        process.until(|metrics| sum(metrics, "bedplate_cluster_leader", "") > 0.0).await?;
        Ok(Self(process))
    }

    pub(super) async fn until_quiet(&mut self, quiet: Duration) -> Result<f64> {
        self.0.until_quiet(quiet).await
    }

    pub(super) fn processor(&self) -> Result<f64> {
        self.0.processor()
    }

    pub(super) fn memory(&self, line: &str) -> Result<f64> {
        self.0.memory(line)
    }

    pub(super) fn end(self) -> Result<()> {
        self.0.end()
    }
}
