//! A drain before a reboot, as the kubelet of the Node, with a real API server: Node authorizer, NodeRestriction and
//! PodDisruptionBudgets are real. The operation's loop is the agent's own; only the reboot itself is not.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bedplate_agent::bus::{
    Bus, BusError, Container, ContainerName, Inhibitor, Leader, Machines, Power, Units,
};
use bedplate_agent::kubelet::client::{AskNodeError, NodeApi, SlotKubelet};
use bedplate_agent::operation::apply::{ApplyError, Configuration};
use bedplate_agent::operation::configuration::Standing as Configured;
use bedplate_agent::operation::journal::file::NoteDirectory;
use bedplate_agent::operation::ledger::{Ledger, View, WriteOperationError};
use bedplate_agent::operation::plan::Standing;
use bedplate_agent::operation::run::{Parts, run};
use bedplate_api::machine::VersionRef;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus, OperationState};
use bedplate_bootstrap::diff::{Edit, InPlace};
use bedplate_process::liveness::Pulse;
use bedplate_rules::drain::Pod;
use bedplate_tests::guard::Directory;
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::wait;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const LIMIT: Duration = Duration::from_secs(120);
const LEADER: u32 = 4242;

/// A host with a slot that runs, whose kubelet has joined.
struct Slot {
    root: PathBuf,
}

#[async_trait]
impl Machines for Slot {
    async fn get(&self, name: &ContainerName) -> Result<Option<Container>, BusError> {
        Ok((name.as_str() == "bedplate-a")
            .then(|| Container { name: name.clone(), leader: Leader::new(LEADER).unwrap() }))
    }
    async fn terminate(&self, _: &ContainerName) -> Result<bool, BusError> {
        Ok(false)
    }
    fn units(&self, _: Leader) -> Arc<dyn Units> {
        Arc::new(Bus::at(&self.root).manager())
    }
}

#[derive(Default)]
struct Switch(AtomicU32);

#[async_trait]
impl Power for Switch {
    async fn blocker(&self) -> Result<Option<Inhibitor>, BusError> {
        Ok(None)
    }
    async fn reboot(&self) -> Result<(), BusError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    async fn power_off(&self) -> Result<(), BusError> {
        Ok(())
    }
}

struct NoConfiguration;

#[async_trait]
impl Configuration for NoConfiguration {
    async fn standing(&self) -> Result<Configured, String> {
        Err("not asked for".to_owned())
    }
    async fn change(&self, _: &[InPlace]) -> Result<(), ApplyError> {
        Ok(())
    }
    async fn may_repave(&self, _: &VersionRef) -> Result<(), ApplyError> {
        Ok(())
    }
    async fn repave(&self, _: &VersionRef) -> Result<(), ApplyError> {
        Ok(())
    }
}

/// Store of the written operations, in memory.
struct Book {
    views: watch::Sender<View>,
    writes: Mutex<u32>,
}

#[async_trait]
impl Ledger for Book {
    async fn write(
        &self,
        operation: &MachineOperation,
        status: MachineOperationStatus,
    ) -> Result<Arc<MachineOperation>, WriteOperationError> {
        let mut writes = self.writes.lock().unwrap();
        *writes += 1;
        let mut after = operation.clone();
        after.status = Some(status);
        after.metadata.resource_version = Some(writes.to_string());
        let after = Arc::new(after);
        self.views.send_modify(|view| view.operations = vec![Arc::clone(&after)]);
        Ok(after)
    }
}

impl Book {
    fn status(&self) -> MachineOperationStatus {
        self.views.borrow().operations[0].status.clone().unwrap_or_default()
    }
}

/// A cluster's side of it: a namespace, Nodes and Pods on them.
struct Site {
    kubernetes: &'static Kubernetes,
    directory: Directory,
    node: String,
}

impl Site {
    fn new(node: &str) -> Self {
        let site = Self {
            kubernetes: Kubernetes::shared(),
            directory: Directory::new("drain").unwrap(),
            node: node.to_owned(),
        };
        site.create(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": node } }));
        // Object that a controller would create in the namespace.
        site.create(&json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default", "namespace": node } }));
        site.create(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node } }));
        site
    }

    fn objects(&self) -> Objects {
        self.kubernetes.objects().unwrap().within(&self.node)
    }

    fn create(&self, object: &Value) {
        self.objects().create(object).unwrap();
    }

    fn status(&self, kind: &str, name: &str, status: &Value) {
        self.objects().merge_status(kind, name, status).unwrap();
    }

    /// A Pod that runs on this Node, made by a controller of this kind.
    fn pod(&self, name: &str, node: &str, controller: &str) {
        let owner = json!({ "apiVersion": "apps/v1", "kind": controller, "name": "o", "uid": "0", "controller": true });
        self.create(&json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": self.node, "labels": { "app": name }, "ownerReferences": [owner] },
            "spec": { "nodeName": node, "automountServiceAccountToken": false,
                "containers": [{ "name": "c", "image": "registry.example/c" }] } }));
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        self.status("pod", name, &json!({ "phase": "Running", "conditions": ready }));
    }

    /// Writes the status of the budget, as the disruption controller would.
    fn allow(&self, name: &str, disruptions: u32) {
        let status = json!({ "disruptionsAllowed": disruptions, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1,
            "observedGeneration": 1 });
        self.status("poddisruptionbudget", name, &status);
    }

    fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.objects().get(kind, name).unwrap()
    }

    /// A host's root in which kubeadm has left what the kubelet of the Node shows.
    fn joined(&self) -> PathBuf {
        let root = self.directory.path().join("root");
        let kubeconfig =
            self.kubernetes.user(&format!("system:node:{}", self.node), &["system:nodes"]).unwrap();
        let kubernetes = root.join(format!("proc/{LEADER}/root/etc/kubernetes"));
        std::fs::create_dir_all(&kubernetes).unwrap();
        std::fs::copy(kubeconfig, kubernetes.join("kubelet.conf")).unwrap();
        root
    }
}

fn kubelet(root: &Path, node: &str) -> SlotKubelet {
    SlotKubelet::new(Arc::new(Slot { root: root.to_owned() }), root, node.parse().unwrap())
}

fn reboot(node: &str) -> MachineOperation {
    serde_json::from_value(json!({
        "metadata": { "name": "reboot-1", "uid": "op-uid", "resourceVersion": "0", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": { "bedplate.dev/machine": node } },
        "spec": { "machineRef": { "name": node }, "operationName": "reboot",
            "parameters": { "drain": "true", "gracePeriodSeconds": "0", "drainTimeoutSeconds": "300" } },
        "status": { "state": "Pending" },
    }))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_waits_for_a_budget_and_node_is_uncordoned_after_the_reboot() {
    let site = Site::new("drained");
    site.pod("web", "drained", "ReplicaSet");
    site.pod("network", "drained", "DaemonSet");
    site.create(&json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": "web", "namespace": "drained" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "web" } } } }));
    site.allow("web", 0);
    let root = site.joined();
    let view = View {
        operations: vec![Arc::new(reboot("drained"))],
        complete: true,
        standing: Standing::Ready,
        ..View::default()
    };
    let (views, seen) = watch::channel(view);
    let book = Arc::new(Book { views, writes: Mutex::default() });
    let power = Arc::<Switch>::default();
    let parts = |boot: &str| Parts {
        machine: "drained".parse().unwrap(),
        boot_id: boot.to_owned(),
        clock: Arc::new(jiff::Timestamp::now),
        ledger: book.clone(),
        notes: Arc::new(NoteDirectory::new(&site.directory.path().join("operations"))),
        units: Arc::new(Bus::at(&root).manager()),
        machines: Arc::new(Slot { root: root.clone() }),
        power: power.clone(),
        node: Arc::new(kubelet(&root, "drained")),
        configuration: Arc::new(NoConfiguration),
        captures: site.directory.path().join("captures"),
    };
    let shutdown = CancellationToken::new();
    let agent = tokio::spawn(run(parts("boot-1"), seen.clone(), Pulse::unwatched(), shutdown.clone()));

    let held = |text: &str| book.status().message.is_some_and(|message| message.contains(text));
    wait::until("the budget holds the Pod", LIMIT, || {
        Ok(held("draining: waiting for drained/web (Cannot evict pod as it would violate").then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}", book.status()));
    let node = site.get("node", "drained").unwrap();
    assert_eq!(node["spec"]["unschedulable"], true);
    assert_eq!(node["metadata"]["annotations"]["bedplate.dev/cordoned-by"], "op-uid");
    assert_eq!(power.0.load(Ordering::SeqCst), 0, "not before the Pod has left");

    site.allow("web", 1);
    wait::until("the reboot", LIMIT, || Ok((power.0.load(Ordering::SeqCst) == 1).then_some(())))
        .unwrap_or_else(|error| panic!("{error}: {:?}", book.status()));
    assert!(site.get("pod", "web").is_none());
    assert!(site.get("pod", "network").is_some(), "a DaemonSet's Pod stays");
    shutdown.cancel();
    agent.await.unwrap();

    // The host has booted.
    let shutdown = CancellationToken::new();
    let agent = tokio::spawn(run(parts("boot-2"), seen, Pulse::unwatched(), shutdown.clone()));
    wait::until("the end", LIMIT, || {
        Ok((book.status().state == Some(OperationState::Complete)).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}", book.status()));
    let node = site.get("node", "drained").unwrap();
    assert_ne!(node["spec"]["unschedulable"], true);
    assert!(node["metadata"]["annotations"]["bedplate.dev/cordoned-by"].is_null());
    assert_eq!(power.0.load(Ordering::SeqCst), 1, "once");
    shutdown.cancel();
    agent.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn kubelet_changes_its_own_node_but_neither_taints_nor_other_nodes() {
    let site = Site::new("own");
    let others = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "another" } });
    site.create(&others);
    site.pod("foreign", "another", "ReplicaSet");
    let root = site.joined();
    let kubelet = kubelet(&root, "own");
    let edit = |name: &str| Edit { set: [(name.to_owned(), "1".to_owned())].into(), remove: Vec::new() };
    kubelet.edit(Some(&edit("example.com/row")), Some(&edit("example.com/note"))).await.unwrap();
    let node = site.get("node", "own").unwrap();
    assert_eq!(node["metadata"]["labels"]["example.com/row"], "1");
    assert_eq!(node["metadata"]["annotations"]["example.com/note"], "1");
    let taint =
        json!({ "spec": { "taints": [{ "key": "dedicated", "value": "gpu", "effect": "NoSchedule" }] } });
    site.objects().merge("node", "own", &taint).unwrap();
    let seen = kubelet.node().await.unwrap().unwrap();
    assert_eq!(serde_json::to_value(&seen.taints).unwrap(), taint["spec"]["taints"]);

    let foreign = site.get("pod", "foreign").unwrap();
    let foreign = Pod {
        namespace: "own".to_owned(),
        name: "foreign".to_owned(),
        uid: foreign["metadata"]["uid"].as_str().unwrap().to_owned(),
        ..Pod::default()
    };
    let refused = kubelet.evict(&foreign, None).await.unwrap_err();
    assert!(matches!(refused, AskNodeError::Refused { status: 403, .. }) && refused.is_final(), "{refused}");
    let kubeconfig = root.join(format!("proc/{LEADER}/root/etc/kubernetes/kubelet.conf"));
    let as_kubelet = site.kubernetes.objects_of(&kubeconfig).unwrap();
    // Hence taints are a person's, and Nodes are deleted by a person or bedplate-controller.
    let untaint = json!({ "spec": { "taints": null } });
    let said = as_kubelet.merge("node", "own", &untaint).unwrap_err().to_string();
    assert!(said.contains("is not allowed to modify taints"), "{said}");
    let said = as_kubelet.begin_delete("node", "own").unwrap_err().to_string();
    assert!(said.contains("Forbidden"), "{said}");
}
