//! A cluster that hosts can join as Nodes: a real control plane as `kubeadm init` leaves one, a registry with the node image, and the
//! real bedplate-controller under the role and the policies of `deploy/`. Who tests it is a person with kubectl.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::guard::Process;
use crate::kubernetes::{Kubernetes, Objects};
use crate::netns::Namespace;
use crate::rack::{ADDRESS, Rack};
use crate::registry::Registry;
use crate::site::Site;
use crate::{control_plane, guard, pxed, timeline, wait};

/// The controllers that a cluster with Nodes and Pods needs here. Without the garbage collector nothing depends on a cluster's size.
const CONTROLLERS: [&str; 9] = [
    "csrsigning",
    "csrapproving",
    "bootstrap-signer-controller",
    "serviceaccount-controller",
    "nodelifecycle",
    "podgc",
    "root-ca-certificate-publisher-controller",
    "replicaset-controller",
    "disruption-controller",
];
/// The port of the registry on the rack's address.
const REGISTRY_PORT: u16 = 5000;
/// A token that kubeadm's preparation needs, and that is not used.
const TOKEN: &str = "abcdef.0123456789abcdef";
/// Number of lines of the controller's log that a failure shows.
const MAX_LOG_LINES: usize = 40;
/// The network of a node's Pods. Each node has the same: no node reaches another's Pods here.
pub const POD_NETWORK: &str = "10.99.0.0/24";
/// The configuration that all Machines get.
pub const CONFIGURATION: &str = "workers";
/// Which version a Node is of (H5).
pub const VERSION: &str = "bedplate.dev/machine-configuration-version";

/// A registry and the controller next to a site in a cluster.
pub struct Nodes {
    /// The registry, by TLS.
    pub registry: Registry,
    objects: Objects,
    controller: Process,
    place: PathBuf,
    kubeconfig: PathBuf,
}

impl std::fmt::Debug for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nodes").finish_non_exhaustive()
    }
}

/// A control plane in the rack's network that kubeadm can join, with everything of `deploy/` in force.
///
/// # Errors
/// A program is missing or fails.
pub fn control_plane(rack: &Rack) -> Result<Kubernetes> {
    let mut kubernetes = Kubernetes::installed_inside(rack.network(), ADDRESS.into())?;
    kubernetes.protect_versions()?;
    kubernetes.start_controllers(&CONTROLLERS)?;
    kubernetes.start_scheduler()?;
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
    kubernetes.objects()?.create(&first)?;
    let version = control_plane::version()?;
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
    // User that kubelets obey: `kubectl logs` uses the API server's own certificate.
    let obeyed = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "kubelet-api"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:kubelet-api-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "kube-apiserver-kubelet-client"}]});
    kubernetes.objects()?.apply(&obeyed)?;
    for phase in [["upload-config", "all"].as_slice(), &["bootstrap-token"]] {
        let mut kubeadm = kubernetes.command("kubeadm");
        kubeadm.args(["init", "phase"]).args(phase).arg("--config").arg(&config);
        guard::run(kubeadm.arg("--kubeconfig").arg(&admin))?;
    }
    kubernetes.objects()?.delete("node", "first")
}

/// Starts bedplate-controller as `kubeconfig` says.
fn controller(network: &Namespace, kubeconfig: &Path, place: &Path) -> Result<Process> {
    let mut command = network.command(pxed::binary("bedplate-controller")?);
    command.arg("--kubeconfig").arg(kubeconfig).args(["--instance", "rack", "--log-format", "text"]);
    Process::spawn("bedplate-controller", &mut command, &place.join("controller.log"))
}

impl Nodes {
    /// Begins in a cluster of [`control_plane`].
    ///
    /// # Errors
    /// The node image was not built, or the registry or the controller does not start.
    pub fn start(rack: &Rack, kubernetes: &Kubernetes) -> Result<Self> {
        let layout = pxed::cache()?.join("images/node");
        if !layout.join("index.json").exists() {
            bail!("{} has no image: run `cargo xtask image node`", layout.display());
        }
        let address = (ADDRESS, REGISTRY_PORT).into();
        let registry = Registry::start_tls(&layout, rack.network(), address)?;
        let place = rack.path().to_owned();
        let kubeconfig = kubernetes.service_account("bedplate-system", "bedplate-controller")?;
        let controller = controller(rack.network(), &kubeconfig, &place)?;
        let objects = kubernetes.objects()?.clone();
        Ok(Self { registry, objects, controller, place, kubeconfig })
    }

    /// Kills the controller (SIGKILL) and starts it again.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn restart_controller(&mut self, rack: &Rack) -> Result<()> {
        self.controller.kill();
        self.controller = controller(rack.network(), &self.kubeconfig, &self.place)?;
        Ok(())
    }

    /// Returns the current state of an object.
    pub fn object(&self, kind: &str, name: &str) -> Option<Value> {
        self.objects.get(kind, name).unwrap_or_default()
    }

    /// Returns the last state of an object from its watch, for repeated checks. Watches of two kinds may differ slightly.
    pub fn seen(&self, kind: &str, name: &str) -> Option<Value> {
        self.objects.seen(kind, name).ok().flatten().map(|object| (*object).clone())
    }

    /// Returns the last state of all objects of a kind from their watch, by name.
    pub fn objects(&self, kind: &str) -> Vec<Value> {
        let objects = self.objects.all_seen(kind).unwrap_or_default();
        objects.iter().map(|object| (**object).clone()).collect()
    }

    /// Waits until an object is in a state, and says how long it took.
    ///
    /// # Errors
    /// It is not in time; what Machine, configuration and controller say is in the message.
    pub fn until(
        &self,
        what: &str,
        limit: Duration,
        (kind, name): (&str, &str),
        is: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let started = Instant::now();
        let is_so = |object: Option<&Value>| object.filter(|object| is(object)).cloned();
        let found = self.objects.until((kind, name), limit, is_so).with_context(|| {
            let last = self.object(kind, name).unwrap_or_default();
            format!("{kind} {name}: {what}: {last:#}\n{}", self.story())
        })?;
        timeline::say(&format!("  {what}: {:.1} s", started.elapsed().as_secs_f64()));
        Ok(found)
    }

    /// Reports of Machines, configuration and controller.
    pub fn story(&self) -> String {
        let mut parts: Vec<String> = ["Machine", "MachineConfiguration"]
            .into_iter()
            .flat_map(|kind| self.objects(kind))
            .map(|object| {
                format!("{} {}: {:#}", object["kind"], object["metadata"]["name"], object["status"])
            })
            .collect();
        parts.push(format!(
            "bedplate-controller:\n{}",
            guard::last_lines(&self.controller.said(), MAX_LOG_LINES)
        ));
        parts.join("\n")
    }

    /// Waits until `kubectl logs` reaches a Pod: its kubelet serves with a certificate of the cluster for the Node's address, which the
    /// controller approved (Trust 5). The test's API server takes no other.
    ///
    /// # Errors
    /// It does not in time.
    pub fn logs(&self, site: &Site<'_>, pod: &str, limit: Duration) -> Result<()> {
        let started = Instant::now();
        let mut error_text = String::new();
        let found = wait::until("kubectl logs", limit, || {
            let result = site.kubectl(&["logs", pod]);
            error_text = result.as_ref().err().map(|error| format!("{error:#}")).unwrap_or_default();
            Ok(result.ok())
        });
        found.with_context(|| format!("{error_text}\n{}", self.story()))?;
        timeline::say(&format!("  kubectl logs {pod}: {:.1} s", started.elapsed().as_secs_f64()));
        Ok(())
    }

    /// The template of a node of this cluster: the node image, a network of its own for Pods, and what `more` puts over it.
    ///
    /// # Errors
    /// Kubernetes' programs are missing.
    pub fn template(&self, more: &Value) -> Result<Value> {
        let network = json!({"cniVersion": "0.4.0", "name": "pods", "plugins": [
            {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": POD_NETWORK}]], "routes": [{"dst": "0.0.0.0/0"}]}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ]});
        let mut template = json!({
            "image": {"reference": self.registry.reference(), "caBundle": self.registry.authority()},
            "kubernetes": {"version": control_plane::version()?},
            "files": [{"path": "/etc/cni/net.d/05-pods.conflist", "content": network.to_string()}],
            "healthGate": {"timeoutSeconds": 1500, "minReadySeconds": 5},
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            template[name] = value.clone();
        }
        Ok(template)
    }

    /// Returns the one configuration, which selects every Machine: with this strategy of updates, and what `more` puts over the
    /// template.
    ///
    /// # Errors
    /// Kubernetes' programs are missing.
    pub fn configuration(&self, strategy: &Value, more: &Value) -> Result<Value> {
        Ok(json!({"apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration",
            "metadata": {"name": CONFIGURATION}, "spec": {"machineSelector": {}, "updateStrategy": strategy,
            "template": self.template(more)?}}))
    }

    /// Applies [`Nodes::configuration`].
    ///
    /// # Errors
    /// The API server refuses it.
    pub fn configure(&self, site: &Site<'_>, strategy: &Value, more: &Value) -> Result<()> {
        self.apply(site, &self.configuration(strategy, more)?)
    }

    /// Applies an object as the administrator.
    ///
    /// # Errors
    /// The API server refuses it.
    pub fn apply(&self, site: &Site<'_>, object: &Value) -> Result<()> {
        site.objects()?.apply(object).map(drop)
    }
}

/// Returns true if a Node is Ready.
pub fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// Returns true if a Machine's version is applied.
pub fn has_applied(machine: &Value, number: u32) -> bool {
    machine["status"]["applied"]["version"] == number
}

/// Returns true if a Machine's version is selected.
pub fn has_selected(machine: &Value, number: u32) -> bool {
    machine["status"]["selected"]["version"] == number
}

/// Returns true if a Node is Ready, accepts Pods, and is annotated with this version (H5).
pub fn is_of(node: &Value, number: u32) -> bool {
    is_ready(node)
        && node["spec"]["unschedulable"] != true
        && node["metadata"]["annotations"][VERSION].as_str() == Some(&number.to_string())
}

/// A condition of an object; null if it has none of that type.
pub fn condition<'v>(object: &'v Value, kind: &str) -> &'v Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().find(|c| c["type"] == kind).unwrap_or(&Value::Null)
}
