//! One Cluster and its Machines in a namespace, with the objects that they name. Each step of a provider is one call.

use std::collections::BTreeSet;

use bedplate_tests::kubernetes::{Kubernetes, Objects};
use http::Method;
use serde_json::{Value, json};

use super::site::{Site, Team, condition, workload};

/// User that may claim a host for a BedplateMachine (policy `bedplate-claimed-fields`).
const INFRASTRUCTURE: &str = "system:serviceaccount:bedplate-system:bedplate-infrastructure";
/// Kind of a Machine, for the tables of the tests.
pub(crate) const MACHINE: &str = "clustermachine";
/// Label with the name of the cluster.
pub(crate) const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
/// Label of the Machines of the control plane.
pub(crate) const CONTROL_PLANE: &str = "cluster.x-k8s.io/control-plane";

/// A namespace with one Cluster of the same name.
pub(crate) struct Owned {
    pub(crate) team: Team,
    pub(crate) name: &'static str,
    pub(crate) objects: Objects,
}

impl Owned {
    /// Starts the provider if it does not run, and creates a namespace.
    pub(crate) fn new(name: &'static str) -> Self {
        Site::shared();
        let team = Team::without_cluster(name);
        let objects = team.objects.clone();
        Self { team, name, objects }
    }

    /// Creates a namespace with a Cluster whose infrastructure is provisioned, and whose API server is the workload cluster.
    pub(crate) fn provisioned(name: &'static str) -> Self {
        let owned = Self::new(name);
        owned.infrastructure_cluster();
        owned.cluster(&json!({}));
        owned.provision_cluster();
        owned.until("cluster", name, "its infrastructure", |found| found["status"]["phase"] == "Provisioned");
        owned
    }

    /// Creates a namespace with a Cluster whose control plane is initialized.
    pub(crate) fn initialized(name: &'static str) -> Self {
        let owned = Self::provisioned(name);
        owned.team.kubeconfig();
        let status = json!({ "initialization": { "controlPlaneInitialized": true } });
        owned.objects.merge_status("cluster", name, &status).unwrap();
        owned
    }

    /// Creates the Cluster. `more`: further fields of its spec.
    pub(crate) fn cluster(&self, more: &Value) -> Value {
        let mut spec =
            json!({ "infrastructureRef": reference("infrastructure", "BedplateCluster", self.name) });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let cluster = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": { "name": self.name }, "spec": spec });
        self.objects.apply(&cluster).unwrap()
    }

    /// Creates the BedplateCluster. Its endpoint is that of the workload cluster.
    pub(crate) fn infrastructure_cluster(&self) {
        let address = workload().address();
        let endpoint = json!({ "host": address.ip().to_string(), "port": address.port() });
        let cluster = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateCluster",
            "metadata": { "name": self.name }, "spec": { "controlPlaneEndpoint": endpoint } });
        self.objects.apply(&cluster).unwrap();
    }

    /// Does what the infrastructure provider does for the Cluster.
    pub(crate) fn provision_cluster(&self) {
        let status = json!({ "initialization": { "provisioned": true } });
        self.objects.merge_status("bpc", self.name, &status).unwrap();
    }

    /// Creates a BedplateMachine, as a user does.
    pub(crate) fn host(&self, name: &str) {
        let host = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateMachine",
            "metadata": { "name": name }, "spec": { "configurationRef": { "name": "workers" } } });
        self.objects.create(&host).unwrap();
    }

    /// Creates a KubeadmConfig, as a user does.
    pub(crate) fn config(&self, name: &str) {
        let config = json!({ "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfig",
            "metadata": { "name": name } });
        self.objects.create(&config).unwrap();
    }

    /// Creates a Machine, without the objects that it names. `bootstrap`: where its data is. `labels`: its labels.
    pub(crate) fn bare_machine(&self, name: &str, bootstrap: &Value, labels: &Value) -> Value {
        let machine = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": { "name": name, "labels": labels },
            "spec": { "clusterName": self.name, "version": "v1.34.4", "bootstrap": bootstrap,
                "infrastructureRef": reference("infrastructure", "BedplateMachine", name) } });
        self.create_machine(&machine).unwrap()
    }

    /// Sends a Machine to the API server.
    pub(crate) fn create_machine(&self, machine: &Value) -> anyhow::Result<Value> {
        let path = format!("/apis/cluster.x-k8s.io/v1beta2/namespaces/{}/machines", self.name);
        self.objects.request(&Method::POST, &path, "application/json", machine)
    }

    /// Creates a Machine with its BedplateMachine.
    pub(crate) fn machine(&self, name: &str, bootstrap: &Value, labels: &Value) {
        self.host(name);
        self.bare_machine(name, bootstrap, labels);
    }

    /// Does what the bootstrap provider does at the end.
    pub(crate) fn make_data(&self, name: &str) {
        let status = json!({ "dataSecretName": format!("{name}-data"), "initialization": { "dataSecretCreated": true } });
        self.objects.merge_status("kubeadmconfig", name, &status).unwrap();
    }

    /// Reports a host as provisioned, without its ID.
    pub(crate) fn provision(&self, name: &str) {
        let addresses = json!([{ "type": "InternalIP", "address": "10.7.0.5" }]);
        let status = json!({ "initialization": { "provisioned": true }, "addresses": addresses });
        self.objects.merge_status("bpm", name, &status).unwrap();
    }

    /// Sets the ID of a host.
    pub(crate) fn identify(&self, name: &str) {
        let host = format!("{}-{name}", self.name);
        let claim = json!({ "spec": { "machineName": host, "providerID": self.id(name) } });
        self.objects.impersonating(INFRASTRUCTURE, &["system:masters"]).merge("bpm", name, &claim).unwrap();
    }

    /// ID of the host of a Machine.
    pub(crate) fn id(&self, name: &str) -> String {
        format!("bedplate://{}-{name}/claim", self.name)
    }

    /// Name of the Node of a Machine.
    pub(crate) fn node(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    /// Creates the Node of a Machine in the workload cluster.
    pub(crate) fn join(&self, name: &str, ready: &str) {
        let taints = json!([{ "key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule" }]);
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": self.node(name) },
            "spec": { "providerID": self.id(name), "taints": taints }, "status": { "conditions": conditions(ready) } });
        nodes().create(&node).unwrap();
    }

    /// Sets condition `Ready` of a Node.
    pub(crate) fn ready(&self, name: &str, ready: &str) {
        let status = json!({ "conditions": conditions(ready) });
        nodes().merge_status("node", &self.node(name), &status).unwrap();
    }

    /// Waits until an object is in a state.
    pub(crate) fn until(&self, kind: &str, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        Site::shared().until(&self.team, (kind, name), what, is)
    }

    /// Waits until a condition has this status, reason and part of the message.
    pub(crate) fn until_condition(
        &self,
        (kind, name): (&str, &str),
        type_: &str,
        expected: [&str; 3],
    ) -> Value {
        let [status, reason, text] = expected;
        self.until(kind, name, &format!("{type_} {expected:?}"), |found| {
            let found = condition(found, type_);
            (found.0, found.1) == (status, reason) && found.2.contains(text)
        })
    }

    /// Waits until a Machine has a phase.
    pub(crate) fn until_phase(&self, name: &str, phase: &str) -> Value {
        self.until(MACHINE, name, phase, |found| found["status"]["phase"] == phase)
    }

    /// Returns an object that exists.
    pub(crate) fn get(&self, kind: &str, name: &str) -> Value {
        self.objects.get(kind, name).unwrap().unwrap_or_else(|| panic!("{kind} {name} does not exist"))
    }

    /// Installs the definition of a kind of another infrastructure provider, and creates an object of it. `kind`: in the singular, such as
    /// `BladeMachine`. `contract`: such as `v1beta2`.
    pub(crate) fn define(&self, kind: &str, contract: &str, name: &str) {
        let definition = definition(kind, contract);
        let crd = format!("crd/{}", definition["metadata"]["name"].as_str().unwrap());
        self.objects.apply(&definition).unwrap();
        self.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", &crd]);
        let object = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1", "kind": kind, "metadata": { "name": name } });
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), object.to_string()).unwrap();
        self.kubectl(&["apply", "--filename", &path.path().display().to_string()]);
    }

    /// Changes an object of a kind of another infrastructure provider.
    pub(crate) fn patch(&self, kind: &str, name: &str, patch: &Value) {
        let plural = format!("{}s.infrastructure.cluster.x-k8s.io", kind.to_lowercase());
        self.kubectl(&["patch", &plural, name, "--type=merge", "--patch", &patch.to_string()]);
    }

    /// Runs kubectl in the namespace, as its administrator.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        let kubernetes = Kubernetes::shared();
        let all: Vec<&str> = ["--namespace", self.name].iter().chain(arguments).copied().collect();
        kubernetes.kubectl(&kubernetes.admin(), &all).unwrap()
    }
}

/// Definition of a kind of another infrastructure provider. `contract`: label and value, such as `v1beta2`.
fn definition(kind: &str, contract: &str) -> Value {
    let singular = kind.to_lowercase();
    let plural = format!("{singular}s");
    let schema =
        json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.infrastructure.cluster.x-k8s.io"),
            "labels": { format!("cluster.x-k8s.io/{contract}"): "v1" },
            "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/cluster-api" } },
        "spec": { "group": "infrastructure.cluster.x-k8s.io", "scope": "Namespaced",
            "names": { "kind": kind, "plural": plural, "singular": singular, "listKind": format!("{kind}List") },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": schema }] } })
}

/// Programs that have written the spec or the metadata of an object.
pub(crate) fn writers(object: &Value) -> BTreeSet<&str> {
    let fields = object["metadata"]["managedFields"].as_array().unwrap().iter();
    let is_of_object = |entry: &&Value| entry["subresource"].is_null();
    fields.filter(is_of_object).filter_map(|entry| entry["manager"].as_str()).collect()
}

/// Access to the Nodes of the workload cluster.
pub(crate) fn nodes() -> Objects {
    workload().objects().unwrap().clone()
}

/// Reference to an object of a provider.
pub(crate) fn reference(provider: &str, kind: &str, name: &str) -> Value {
    json!({ "apiGroup": format!("{provider}.cluster.x-k8s.io"), "kind": kind, "name": name })
}

/// Bootstrap data that comes from a KubeadmConfig.
pub(crate) fn from_config(name: &str) -> Value {
    json!({ "configRef": reference("bootstrap", "KubeadmConfig", name) })
}

/// Owner of a kind: its name and its UID.
pub(crate) fn owner<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["metadata"]["ownerReferences"].as_array()?.iter().find(|owner| owner["kind"] == kind)
}

/// Conditions of a Node.
pub(crate) fn conditions(ready: &str) -> Value {
    let condition = |kind: &str, status: &str| {
        let time = "2026-01-01T00:00:00Z";
        json!({ "type": kind, "status": status, "reason": "Simulated", "message": "",
            "lastHeartbeatTime": time, "lastTransitionTime": time })
    };
    let pressures = ["MemoryPressure", "DiskPressure", "PIDPressure"].map(|kind| condition(kind, "False"));
    pressures.into_iter().chain([condition("Ready", ready)]).collect()
}
