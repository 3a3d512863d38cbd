//! A cluster that hosts can join as Nodes: a real control plane as `kubeadm init` leaves one, a registry with the node image, and
//! what stands in for bedplate-controller.
//!
//! The stand-in does what api-level rules leave to the controller and nothing of the agent's: approves the certificates of kubelets,
//! notes a Machine's Node in `status.nodeRef` and takes it back when the Node is gone. Which version is selected says the test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::kubernetes::{Kubernetes, programs};
use crate::rack::{ADDRESS, Rack};
use crate::registry::Registry;
use crate::site::Site;
use crate::{guard, pxed, timeline, wait};

/// The controllers that a cluster with Nodes and Pods needs here. Without the garbage collector nothing depends on a cluster's size.
const CONTROLLERS: [&str; 7] = [
    "csrsigning",
    "csrapproving",
    "bootstrap-signer-controller",
    "serviceaccount-controller",
    "nodelifecycle",
    "podgc",
    "root-ca-certificate-publisher-controller",
];
/// The port of the registry on the rack's address.
const REGISTRY_PORT: u16 = 5000;
/// Between two looks of the stand-in.
const LOOK: Duration = Duration::from_millis(500);
/// A token that kubeadm's preparation wants and nobody uses.
const TOKEN: &str = "abcdef.0123456789abcdef";
/// The network of a node's Pods. Each node has the same: no node reaches another's Pods here.
pub const POD_NETWORK: &str = "10.99.0.0/24";
/// The configuration that versions are of.
pub const CONFIGURATION: &str = "workers";

/// What the cluster holds, by kind and name.
type Objects = BTreeMap<(String, String), Value>;

/// The stand-in for bedplate-controller, until it is dropped.
#[derive(Debug)]
pub struct Controller {
    objects: Arc<Mutex<Objects>>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A registry and a stand-in beside a site in a cluster.
pub struct Nodes {
    /// The registry, by TLS.
    pub registry: Registry,
    controller: Controller,
    place: PathBuf,
}

impl std::fmt::Debug for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nodes").finish_non_exhaustive()
    }
}

/// A control plane in the rack's network that kubeadm can join.
///
/// # Errors
/// A program is missing or fails.
pub fn control_plane(rack: &Rack) -> Result<Kubernetes> {
    let mut kubernetes = Kubernetes::start_inside(rack.network(), ADDRESS.into())?;
    kubernetes.install()?;
    kubernetes.start_controllers(&CONTROLLERS)?;
    prepare_join(&kubernetes, rack.path())?;
    Ok(kubernetes)
}

/// Leaves in the cluster what `kubeadm init` does and a join reads: configuration of cluster and kubelets, and their roles.
fn prepare_join(kubernetes: &Kubernetes, place: &Path) -> Result<()> {
    let admin = kubernetes.admin();
    // kubeadm notes the container runtime on the first control plane's Node, which is none here.
    let first = json!({"apiVersion": "v1", "kind": "Node", "metadata": {
        "name": "first", "labels": {"kubernetes.io/hostname": "first"},
        "annotations": {"kubeadm.alpha.kubernetes.io/cri-socket": "unix:///run/containerd/containerd.sock"}}});
    let node = place.join("first-node.json");
    std::fs::write(&node, first.to_string())?;
    kubernetes.kubectl(&admin, &["create", "-f", &node.display().to_string()])?;
    let directory = programs()?;
    let version = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let version = version.split_once("-etcd").map_or(version, |(version, _)| version);
    let config = place.join("init.yaml");
    let text = format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: {{advertiseAddress: {ADDRESS}}}\n\
         nodeRegistration: {{name: first, criSocket: unix:///run/containerd/containerd.sock}}\n\
         bootstrapTokens: [{{token: {TOKEN}}}]\n---\n\
         apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: {version}\n\
         controlPlaneEndpoint: {}\ncertificatesDir: /etc/kubernetes/pki\nencryptionAlgorithm: ECDSA-P256\n",
        kubernetes.address(),
    );
    std::fs::write(&config, text)?;
    for phase in [["upload-config", "all"].as_slice(), &["bootstrap-token"]] {
        let mut kubeadm = kubernetes.command("kubeadm");
        kubeadm.args(["init", "phase"]).args(phase).arg("--config").arg(&config);
        guard::run(kubeadm.arg("--kubeconfig").arg(&admin))?;
    }
    kubernetes.kubectl(&admin, &["delete", "node", "first"]).map(drop)
}

impl Nodes {
    /// Begins beside a site in a cluster of [`control_plane`].
    ///
    /// # Errors
    /// The node image was not built, or the registry does not start.
    pub fn start(rack: &Rack, kubernetes: &Kubernetes) -> Result<Self> {
        let layout = pxed::cache()?.join("images/node");
        if !layout.join("index.json").exists() {
            bail!("{} has no image: run `cargo xtask image node`", layout.display());
        }
        let address = (ADDRESS, REGISTRY_PORT).into();
        let registry = Registry::start_tls(&layout, rack.network(), address)?;
        Ok(Self {
            registry,
            controller: Controller::start(Box::new(kubernetes.access())),
            place: rack.path().to_owned(),
        })
    }

    /// An object as the stand-in saw it last.
    pub fn object(&self, kind: &str, name: &str) -> Option<Value> {
        self.controller.objects().get(&(kind.to_owned(), name.to_owned())).cloned()
    }

    /// Waits until an object is in a state, and says how long it took.
    ///
    /// # Errors
    /// It is not in time.
    pub fn until(
        &self,
        what: &str,
        limit: Duration,
        (kind, name): (&str, &str),
        is: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let started = Instant::now();
        let found = wait::until(what, limit, || Ok(self.object(kind, name).filter(|object| is(object))));
        let found = found.with_context(|| {
            let last = self.object(kind, name).unwrap_or_default();
            let events = self.object("Machine", name).unwrap_or_default()["status"].clone();
            format!("{kind} {name}: {last:#}\nthe Machine's status: {events:#}")
        })?;
        timeline::say(&format!("  {what}: {:.1} s", started.elapsed().as_secs_f64()));
        Ok(found)
    }

    /// Makes version `number` of the one configuration: the node image, a network of its own for Pods, and what `more` adds to
    /// the template.
    ///
    /// # Errors
    /// The API server refuses it.
    pub fn version(&self, site: &Site<'_>, number: u32, more: &Value) -> Result<()> {
        let network = json!({"cniVersion": "0.4.0", "name": "pods", "plugins": [
            {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": POD_NETWORK}]], "routes": [{"dst": "0.0.0.0/0"}]}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ]});
        let directory = programs()?;
        let version = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let version = version.split_once("-etcd").map_or(version, |(version, _)| version);
        let mut template = json!({
            "image": {"reference": self.registry.reference(), "caBundle": self.registry.authority()},
            "kubernetes": {"version": version},
            "files": [{"path": "/etc/cni/net.d/05-pods.conflist", "content": network.to_string()}],
            "healthGate": {"timeoutSeconds": 1500, "nodeReadySeconds": 5},
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            template[name] = value.clone();
        }
        let object = json!({"apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfigurationVersion",
            "metadata": {"name": format!("{CONFIGURATION}-v{number}")},
            "spec": {"configurationName": CONFIGURATION, "version": number, "template": template}});
        self.apply(site, &object)
    }

    /// Applies an object as the administrator.
    ///
    /// # Errors
    /// The API server refuses it.
    pub fn apply(&self, site: &Site<'_>, object: &Value) -> Result<()> {
        let path = self.place.join("object.json");
        std::fs::write(&path, object.to_string())?;
        site.kubectl(&["apply", "--server-side", "-f", &path.display().to_string()]).map(drop)
    }

    /// Selects a version for a Machine, as the controller does.
    ///
    /// # Errors
    /// The API server refuses it.
    pub fn select(&self, site: &Site<'_>, machine: &str, number: u32) -> Result<()> {
        let selected =
            json!({"status": {"selected": {"name": CONFIGURATION, "version": number, "by": "Reference"}}});
        let patch = selected.to_string();
        site.kubectl(&["patch", "machine", machine, "--subresource=status", "--type=merge", "-p", &patch])
            .map(drop)
    }
}

/// What the stand-in needs of the cluster: it runs in a thread of its own.
pub type Access = Box<dyn Fn(&[&str]) -> Result<String> + Send>;

impl Controller {
    fn start(kubectl: Access) -> Self {
        let objects = Arc::new(Mutex::new(Objects::new()));
        let (stop, stopped) = mpsc::channel();
        let shared = objects.clone();
        let thread = std::thread::spawn(move || {
            // Whoever holds the other end lets go when it is over.
            while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK) {
                if let Err(error) = turn(&kubectl, &shared) {
                    timeline::say(&format!("the stand-in for the controller: {error:#}"));
                }
            }
        });
        Self { objects, stop: Some(stop), thread: Some(thread) }
    }

    fn objects(&self) -> std::sync::MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Looks once, and does what is the controller's.
fn turn(kubectl: &Access, shared: &Mutex<Objects>) -> Result<()> {
    let kinds = "machines,nodes,pods,machineoperations,certificatesigningrequests";
    let list: Value = serde_json::from_str(&kubectl(&["get", kinds, "--ignore-not-found", "-o", "json"])?)
        .unwrap_or_default();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let objects: Objects = items
        .into_iter()
        .map(|item| ((text(&item["kind"]), text(&item["metadata"]["name"])), item))
        .collect();
    shared.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&objects);
    for ((kind, name), object) in &objects {
        match kind.as_str() {
            "CertificateSigningRequest" if is_a_kubelets(object) => {
                kubectl(&["certificate", "approve", name])?;
            }
            "Machine" => follow_node(kubectl, name, object, objects.get(&("Node".to_owned(), name.clone())))?,
            _ => {}
        }
    }
    Ok(())
}

/// A Machine's client certificate for its own Node, which a policy of `deploy/` has looked into, and a Node's serving certificate.
fn is_a_kubelets(request: &Value) -> bool {
    let (spec, status) = (&request["spec"], &request["status"]);
    let user = spec["username"].as_str().unwrap_or_default();
    let signer = spec["signerName"].as_str().unwrap_or_default();
    status.get("conditions").is_none()
        && (user.starts_with("bedplate:machine:") && signer == "kubernetes.io/kube-apiserver-client-kubelet"
            || user.starts_with("system:node:") && signer == "kubernetes.io/kubelet-serving")
}

/// `status.nodeRef` follows the Node.
fn follow_node(kubectl: &Access, name: &str, machine: &Value, node: Option<&Value>) -> Result<()> {
    let wanted = node.map(|node| json!({"name": name, "uid": node["metadata"]["uid"]}));
    let current = machine["status"].get("nodeRef").cloned();
    if wanted.is_none() && current.is_none()
        || wanted.as_ref().is_some_and(|w| current.as_ref().is_some_and(|c| c["uid"] == w["uid"]))
    {
        return Ok(());
    }
    let patch = json!({"status": {"nodeRef": wanted}}).to_string();
    kubectl(&["patch", "machine", name, "--subresource=status", "--type=merge", "-p", &patch]).map(drop)
}

/// Whether a Node is Ready.
pub fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// Whether a Machine's version is applied.
pub fn has_applied(machine: &Value, number: u32) -> bool {
    machine["status"]["applied"]["version"] == number
}
