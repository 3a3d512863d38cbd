//! A real API server with the core provider, namespaces with Clusters of Cluster API, and a workload cluster.

use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_tests::cluster_api::{PROVIDER_TIMEOUT, Provider};
use bedplate_tests::guard::Process;
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use serde_json::{Value, json};

pub(crate) const PATIENCE: Duration = PROVIDER_TIMEOUT;

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
            Self { provider: Provider::start("core", &[NETWORKS]).unwrap() }
        })
    }

    /// Installs the provider, which the test itself starts with this log.
    pub(crate) fn installed(log: &Path) -> Self {
        install();
        Self { provider: Provider::of_log(log) }
    }

    /// Log of the provider.
    pub(crate) fn log(&self) -> String {
        self.provider.log()
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
}

/// Kubeconfig of the provider's ServiceAccount.
pub(crate) fn account() -> PathBuf {
    Provider::kubeconfig("core").unwrap()
}

/// Starts the provider with the rights of this kubeconfig.
pub(crate) fn provider(kubeconfig: &Path, log: &Path, more: &[&str]) -> Process {
    Provider::spawn("core", kubeconfig, log, &[&[NETWORKS], more].concat()).unwrap()
}

/// Installs the providers. Later calls wait for the first one.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| install_on(Kubernetes::shared()));
}

/// Installs the providers on a cluster that has our own kinds.
pub(crate) fn install_on(kubernetes: &Kubernetes) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cluster-api");
    let mut established =
        vec!["wait".to_owned(), "--for=condition=Established".to_owned(), "--timeout=60s".to_owned()];
    for file in ["core-components.yaml", "bootstrap-components.yaml", "infrastructure-components.yaml"] {
        let path = root.join(file).display().to_string();
        let said = kubernetes.kubectl(&kubernetes.admin(), &["apply", "--server-side", "-f", &path]).unwrap();
        let definitions = said.lines().filter_map(|line| {
            line.strip_prefix("customresourcedefinition.apiextensions.k8s.io/")?.split_whitespace().next()
        });
        established.extend(definitions.map(|name| format!("crd/{name}")));
    }
    let established: Vec<&str> = established.iter().map(String::as_str).collect();
    kubernetes.kubectl(&kubernetes.admin(), &established).unwrap();
}

/// The workload cluster, an API server without nodes.
pub(crate) fn workload() -> &'static Kubernetes {
    static WORKLOAD: OnceLock<Kubernetes> = OnceLock::new();
    WORKLOAD.get_or_init(|| Kubernetes::start().unwrap())
}

/// One Cluster of a namespace of the same name.
pub(crate) struct Team {
    pub(crate) name: &'static str,
    pub(crate) objects: Objects,
}

impl Team {
    /// Creates a namespace.
    pub(crate) fn without_cluster(name: &'static str) -> Self {
        let objects = Kubernetes::shared().objects().unwrap().within(name);
        objects
            .apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }))
            .unwrap();
        Self { name, objects }
    }

    /// Creates a namespace with a Cluster that is initialized, and the kubeconfig of the workload cluster.
    pub(crate) fn initialized(name: &'static str) -> Self {
        let team = Self::without_cluster(name);
        team.kubeconfig();
        team.cluster();
        team
    }

    /// Creates a Cluster that is initialized.
    pub(crate) fn cluster(&self) {
        let name = self.name;
        let endpoint = json!({ "host": "10.7.0.9", "port": 6443 });
        let infrastructure =
            json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateCluster", "name": name });
        let infrastructure_cluster = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateCluster",
            "metadata": { "name": name }, "spec": { "controlPlaneEndpoint": endpoint } });
        self.objects.apply(&infrastructure_cluster).unwrap();
        self.objects
            .merge_status("bpc", name, &json!({ "initialization": { "provisioned": true } }))
            .unwrap();
        let cluster = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": { "name": name },
            "spec": { "infrastructureRef": infrastructure, "controlPlaneEndpoint": endpoint } });
        self.objects.apply(&cluster).unwrap();
        let status = json!({ "initialization": { "controlPlaneInitialized": true } });
        self.objects.merge_status("cluster", name, &status).unwrap();
    }

    /// Creates the Secret with the kubeconfig of the workload cluster.
    pub(crate) fn kubeconfig(&self) {
        self.kubeconfig_with(&std::fs::read_to_string(workload().admin()).unwrap());
    }

    /// Creates the Secret with a kubeconfig.
    pub(crate) fn kubeconfig_with(&self, text: &str) {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": { "name": format!("{}-kubeconfig", self.name), "labels": { "cluster.x-k8s.io/cluster-name": self.name } },
            "stringData": { "value": text } });
        self.objects.apply(&secret).unwrap();
    }
}

/// Status, reason and message of a condition.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> (&'a str, &'a str, &'a str) {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|condition| condition["type"] == kind));
    let text = |field: &str| found.and_then(|condition| condition[field].as_str()).unwrap_or_default();
    (text("status"), text("reason"), text("message"))
}

/// Returns a value of a Secret.
pub(crate) fn decoded(secret: &Value, key: &str) -> String {
    let value = secret["data"][key].as_str().unwrap_or_else(|| panic!("no key {key}"));
    String::from_utf8(STANDARD.decode(value).unwrap()).unwrap()
}
