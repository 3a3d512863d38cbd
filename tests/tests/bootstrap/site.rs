//! A real API server with the bootstrap provider, namespaces with Clusters and Machines of Cluster API, and a workload cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_bootstrap::jinja::Facts;
use bedplate_bootstrap::user_data::{self, Plan, Unsupported, UserData, WriteFile, plan_user_data};
use bedplate_tests::cluster_api::{PROVIDER_TIMEOUT, Provider};
use bedplate_tests::guard::Process;
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use http::Method;
use serde_json::{Value, json};

pub(crate) const PATIENCE: Duration = PROVIDER_TIMEOUT;

/// User of the provider.
pub(crate) const PROVIDER: &str = "system:serviceaccount:bedplate-system:bedplate-bootstrap";
const CLUSTER_NAME_LABEL: &str = "cluster.x-k8s.io/cluster-name";

/// The workload cluster of the tests is on this host.
const NETWORKS: &str = "--workload-networks=127.0.0.0/8";

/// The cluster with its provider; both end with the test program.
pub(crate) struct Site {
    provider: Provider,
}

impl Site {
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Site> = OnceLock::new();
        SHARED.get_or_init(|| {
            install();
            Self { provider: Provider::start("bootstrap", &[NETWORKS]).unwrap() }
        })
    }

    /// Installs the provider, which the test itself starts with this log.
    pub(crate) fn installed(log: &Path) -> Self {
        install();
        Self { provider: Provider::of_log(log) }
    }

    /// Waits until an object is in a state.
    pub(crate) fn until(
        &self,
        team: &Team,
        of: (&str, &str),
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        self.provider.until(&team.objects, of, what, is)
    }

    /// Waits until an object does not exist.
    pub(crate) fn until_gone(&self, team: &Team, of: (&str, &str)) {
        self.provider.until_gone(&team.objects, of);
    }

    /// Waits until a KubeadmConfig has bootstrap data. Returns the KubeadmConfig.
    pub(crate) fn until_ready(&self, team: &Team, name: &str) -> Value {
        self.until(team, ("kubeadmconfig", name), "its data", |found| {
            found["status"]["initialization"]["dataSecretCreated"] == true
        })
    }

    /// Waits until a KubeadmConfig has no bootstrap data for a cause. Returns the KubeadmConfig.
    pub(crate) fn until_waiting(&self, team: &Team, name: &str, cause: &str) -> Value {
        self.until(team, ("kubeadmconfig", name), cause, |found| {
            let (status, _, message) = condition(found, "DataSecretAvailable");
            status == "False" && message.contains(cause)
        })
    }
}

/// Kubeconfig of the provider's ServiceAccount.
pub(crate) fn account() -> PathBuf {
    Provider::kubeconfig("bootstrap").unwrap()
}

/// Starts the provider with the rights of this kubeconfig.
pub(crate) fn provider(kubeconfig: &Path, log: &Path, more: &[&str]) -> Process {
    Provider::spawn("bootstrap", kubeconfig, log, &[&[NETWORKS], more].concat()).unwrap()
}

/// Installs the provider and the core kinds of Cluster API. Later calls wait for the first one.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let kubernetes = Kubernetes::shared();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cluster-api");
        for file in ["core-components.yaml", "bootstrap-components.yaml"] {
            let path = root.join(file).display().to_string();
            kubernetes.kubectl(&kubernetes.admin(), &["apply", "--server-side", "-f", &path]).unwrap();
        }
        let established = [
            "wait",
            "--for=condition=Established",
            "--timeout=60s",
            "crd/clusters.cluster.x-k8s.io",
            "crd/machines.cluster.x-k8s.io",
            "crd/kubeadmconfigs.bootstrap.cluster.x-k8s.io",
        ];
        kubernetes.kubectl(&kubernetes.admin(), &established).unwrap();
    });
}

/// The workload cluster, an API server without nodes.
pub(crate) fn workload() -> &'static Kubernetes {
    static WORKLOAD: OnceLock<Kubernetes> = OnceLock::new();
    WORKLOAD.get_or_init(|| Kubernetes::start().unwrap())
}

/// Access to the Secrets of bootstrap tokens in the workload cluster.
pub(crate) fn tokens() -> Objects {
    workload().objects().unwrap().within("kube-system")
}

/// A KubeadmControlPlane as controlPlaneRef of a Cluster.
pub(crate) fn control_plane(name: &str) -> Value {
    json!({ "controlPlaneRef": { "apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": name } })
}

/// One Cluster of a namespace, with its Machines.
pub(crate) struct Team {
    /// Name of the Cluster.
    pub(crate) name: String,
    namespace: &'static str,
    pub(crate) objects: Objects,
    cluster: Value,
}

impl Team {
    /// Creates a namespace with a Cluster of the same name. `more` has further fields of its spec.
    pub(crate) fn new(name: &'static str, more: &Value) -> Self {
        Self::within(name, name, more)
    }

    /// Creates a Cluster in a namespace.
    pub(crate) fn within(namespace: &'static str, name: &str, more: &Value) -> Self {
        let objects = Kubernetes::shared().objects().unwrap().within(namespace);
        objects
            .apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }))
            .unwrap();
        let server = json!({ "host": "10.7.0.9", "port": 6443 });
        let infrastructure =
            json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateCluster", "name": name });
        let mut spec = json!({ "infrastructureRef": infrastructure, "controlPlaneEndpoint": server });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let cluster = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": { "name": name, "namespace": namespace }, "spec": spec });
        let cluster = objects.apply(&cluster).unwrap();
        Self { name: name.to_owned(), namespace, objects, cluster }
    }

    /// UID of the Cluster.
    pub(crate) fn uid(&self) -> &Value {
        &self.cluster["metadata"]["uid"]
    }

    /// Does for the Cluster what its controller does once the infrastructure is provisioned.
    pub(crate) fn provision(&self) {
        let status = json!({ "initialization": { "infrastructureProvisioned": true } });
        self.objects.merge_status("cluster", &self.name, &status).unwrap();
    }

    /// Does for the Cluster what its controller does once the control plane is initialized.
    pub(crate) fn initialize(&self) {
        let status = json!({ "initialization": { "infrastructureProvisioned": true, "controlPlaneInitialized": true } });
        self.objects.merge_status("cluster", &self.name, &status).unwrap();
    }

    fn machines(&self, rest: &str) -> String {
        format!("/apis/cluster.x-k8s.io/v1beta2/namespaces/{}/machines{rest}", self.namespace)
    }

    /// Creates a Machine of the control plane with its KubeadmConfig.
    pub(crate) fn control_plane(&self, name: &str, spec: &Value) {
        self.machine(name, spec, json!({ "cluster.x-k8s.io/control-plane": "" }), &json!({}));
    }

    /// Creates a worker Machine with its KubeadmConfig.
    pub(crate) fn worker(&self, name: &str, spec: &Value) {
        self.machine(name, spec, json!({}), &json!({}));
    }

    /// Creates a worker Machine with its KubeadmConfig. `more`: fields of the spec of the Machine. Null removes a field.
    pub(crate) fn worker_with(&self, name: &str, spec: &Value, more: &Value) {
        self.machine(name, spec, json!({}), more);
    }

    fn machine(&self, name: &str, spec: &Value, mut labels: Value, more: &Value) {
        labels[CLUSTER_NAME_LABEL] = self.name.clone().into();
        let config =
            json!({ "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": name });
        let host =
            json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateMachine", "name": name });
        let mut machine = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": { "name": name, "labels": labels },
            "spec": { "clusterName": self.name, "version": "v1.34.4", "bootstrap": { "configRef": config },
                "infrastructureRef": host } });
        for (field, value) in more.as_object().unwrap() {
            machine["spec"][field] = value.clone();
        }
        let made =
            self.objects.request(&Method::POST, &self.machines(""), "application/json", &machine).unwrap();
        let owner = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name,
            "uid": made["metadata"]["uid"], "controller": true });
        let mut config = json!({ "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfig",
            "metadata": { "name": name, "labels": labels, "ownerReferences": [owner] } });
        // A spec without fields is not valid.
        if *spec != json!({}) {
            config["spec"] = spec.clone();
        }
        self.objects.apply(&config).unwrap();
    }

    /// Sets the version of a Machine, as a user does.
    pub(crate) fn has_version(&self, name: &str, version: &str) {
        let patch = json!({ "spec": { "version": version } });
        let path = self.machines(&format!("/{name}"));
        self.objects.request(&Method::PATCH, &path, "application/merge-patch+json", &patch).unwrap();
    }

    /// Reports the Node of a Machine.
    pub(crate) fn has_node(&self, name: &str) {
        let patch = json!({ "status": { "nodeRef": { "name": name } } });
        let path = self.machines(&format!("/{name}/status"));
        self.objects.request(&Method::PATCH, &path, "application/merge-patch+json", &patch).unwrap();
    }

    /// Changes an annotation of a KubeadmConfig, so that the provider reconciles it.
    pub(crate) fn touch(&self, name: &str) {
        let now = jiff::Timestamp::now().to_string();
        let patch = json!({ "metadata": { "annotations": { "tests.bedplate.dev/touched": now } } });
        self.objects.merge("kubeadmconfig", name, &patch).unwrap();
    }

    /// Returns an object that exists.
    pub(crate) fn get(&self, kind: &str, name: &str) -> Value {
        self.objects.get(kind, name).unwrap().unwrap_or_else(|| panic!("{kind} {name} does not exist"))
    }

    /// True if a Secret exists.
    pub(crate) fn has_secret(&self, name: &str) -> bool {
        self.objects.get("secret", name).unwrap().is_some()
    }

    /// Name of a Secret of the Cluster.
    pub(crate) fn secret_name(&self, purpose: &str) -> String {
        format!("{}-{purpose}", self.name)
    }

    /// Creates a Secret of the Cluster, as the control plane controller does.
    pub(crate) fn secret(&self, purpose: &str, values: &Value) {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": { "name": self.secret_name(purpose), "labels": { CLUSTER_NAME_LABEL: self.name } }, "stringData": values });
        self.objects.apply(&secret).unwrap();
    }

    /// Creates the Secrets with the authorities of the workload cluster.
    pub(crate) fn authorities(&self) {
        for (purpose, certificate, key) in [
            ("ca", "ca.crt", "ca.key"),
            ("etcd", "etcd/ca.crt", "etcd/ca.key"),
            ("proxy", "front-proxy-ca.crt", "front-proxy-ca.key"),
            ("sa", "sa.pub", "sa.key"),
        ] {
            let read = |name: &str| std::fs::read_to_string(workload().pki().join(name)).unwrap();
            self.secret(purpose, &json!({ "tls.crt": read(certificate), "tls.key": read(key) }));
        }
    }

    /// Creates the Secret with the kubeconfig of the workload cluster.
    pub(crate) fn kubeconfig(&self) {
        let text = std::fs::read_to_string(workload().admin()).unwrap();
        self.secret("kubeconfig", &json!({ "value": text }));
    }

    /// Creates a Cluster that is initialized, and that has the authorities and the kubeconfig of the workload cluster.
    pub(crate) fn initialized(name: &'static str) -> Self {
        let team = Self::new(name, &control_plane(name));
        team.authorities();
        team.kubeconfig();
        team.initialize();
        team
    }

    /// Reads the bootstrap data of a KubeadmConfig.
    pub(crate) fn data(&self, name: &str) -> Data {
        let secret = self.get("secret", name);
        let (value, format) = (decoded(&secret, "value"), decoded(&secret, "format"));
        let facts = Facts {
            provider_id: "bedplate://host/1",
            node_name: name,
            local_hostname: name,
            instance_id: "1",
            platform: "bedplate",
        };
        let data = UserData { value: value.as_bytes(), format: Some(format.as_bytes()) };
        let accepted = plan_user_data(data, &facts, Unsupported::Refuse);
        Data { plan: accepted.unwrap_or_else(|error| panic!("data of {name}: {error}")).plan }
    }
}

/// Returns a value of a Secret.
pub(crate) fn decoded(secret: &Value, key: &str) -> String {
    let value = secret["data"][key].as_str().unwrap_or_else(|| panic!("no key {key}"));
    String::from_utf8(STANDARD.decode(value).unwrap()).unwrap()
}

/// Bootstrap data, as the agent reads it.
pub(crate) struct Data {
    plan: Plan,
}

impl Data {
    fn files(&self) -> BTreeMap<&str, &WriteFile> {
        self.plan.files.iter().map(|file| (file.path.as_str(), file)).collect()
    }

    /// Mode of a file, if it is written.
    pub(crate) fn mode(&self, path: &str) -> Option<u32> {
        self.files().get(path).map(|file| file.mode)
    }

    /// Content of a file. Absent files are empty.
    pub(crate) fn file(&self, path: &str) -> String {
        let content = self.files().get(path).map(|file| file.content.to_vec());
        String::from_utf8(content.unwrap_or_default()).unwrap()
    }

    /// User and group of a file, if it is written.
    pub(crate) fn owner(&self, path: &str) -> Option<(&str, &str)> {
        let owner = &self.files().get(path)?.owner;
        Some((owner.user.as_deref()?, owner.group.as_deref()?))
    }

    /// Lines of the commands, in their order.
    pub(crate) fn commands(&self) -> Vec<&str> {
        let lines = self.plan.run_commands.iter().filter_map(|command| match command {
            user_data::Command::Shell(line) => Some(line.as_str()),
            user_data::Command::Arguments(_) => None,
        });
        lines.collect()
    }

    /// True if a command has this text.
    pub(crate) fn runs(&self, text: &str) -> bool {
        self.commands().iter().any(|line| line.contains(text))
    }
}

/// Status, reason and message of a condition.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> (&'a str, &'a str, &'a str) {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|condition| condition["type"] == kind));
    let text = |field: &str| found.and_then(|condition| condition[field].as_str()).unwrap_or_default();
    (text("status"), text("reason"), text("message"))
}
