//! A team whose Cluster is initialized, with hosts, and with templates from which sets and deployments make Machines.

use std::collections::BTreeSet;

use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::wait;
use http::Method;
use serde_json::{Value, json};

use super::hosts::Hosts;
use super::site::{PATIENCE, Site, Team};

/// Label with the name of the set of a Machine.
pub(crate) const SET_NAME: &str = "cluster.x-k8s.io/set-name";
/// Label with the name of the deployment of a Machine.
pub(crate) const DEPLOYMENT_NAME: &str = "cluster.x-k8s.io/deployment-name";
/// Label with the name of the cluster.
pub(crate) const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
/// Version of the first Machines.
pub(crate) const VERSION: &str = "v1.34.4";
/// Version of a rollout.
pub(crate) const NEXT_VERSION: &str = "v1.34.5";
/// Plural that kubectl knows among two kinds `machinesets`.
const GROUP: &str = "cluster.x-k8s.io";

/// A team with hosts.
pub(crate) struct Workers<'a> {
    site: &'a Site,
    pub(crate) team: Team,
    pub(crate) name: &'static str,
    pub(crate) objects: Objects,
    pub(crate) hosts: Hosts,
}

impl Workers<'static> {
    /// Creates a namespace with an initialized Cluster of the same name, this number of hosts, and templates with the name `workers`.
    pub(crate) fn new(name: &'static str, hosts: usize) -> Self {
        Self::with(Site::shared(), name, hosts)
    }
}

impl<'a> Workers<'a> {
    /// Does what [`Self::new`] does, with another site.
    pub(crate) fn with(site: &'a Site, name: &'static str, hosts: usize) -> Self {
        let workers = Self::of(site, Team::initialized(name), Hosts::start(name, hosts));
        workers.templates();
        workers
    }

    /// Creates the templates.
    pub(crate) fn templates(&self) {
        self.objects.apply(&infrastructure_template("workers")).unwrap();
        self.objects.apply(&bootstrap_template("workers")).unwrap();
    }

    /// A team with its hosts, without templates.
    pub(crate) fn of(site: &'a Site, team: Team, hosts: Hosts) -> Self {
        let (name, objects) = (team.name, team.objects.clone());
        Self { site, team, name, objects, hosts }
    }

    /// Spec of a template of Machines.
    pub(crate) fn machine_spec(&self) -> Value {
        json!({ "clusterName": self.name, "version": VERSION,
            "bootstrap": { "configRef": { "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfigTemplate", "name": "workers" } },
            "infrastructureRef": { "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateMachineTemplate", "name": "workers" } })
    }

    fn owner(&self, kind: &str, name: &str, replicas: u32, more: &Value) -> Value {
        let mut object = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind,
            "metadata": { "name": name, "namespace": self.name },
            "spec": { "clusterName": self.name, "replicas": replicas, "template": { "spec": self.machine_spec() } } });
        merge(&mut object, more);
        self.objects.create(&object).unwrap()
    }

    /// Creates a MachineSet. `more` has further fields.
    pub(crate) fn set(&self, name: &str, replicas: u32, more: &Value) -> Value {
        self.owner("MachineSet", name, replicas, more)
    }

    /// Creates a MachineDeployment. `more` has further fields.
    pub(crate) fn deployment(&self, name: &str, replicas: u32, more: &Value) -> Value {
        self.owner("MachineDeployment", name, replicas, more)
    }

    /// Creates a Machine with its BedplateMachine, as a user does. `metadata`: further metadata of the Machine.
    pub(crate) fn machine(&self, name: &str, metadata: &Value) -> Value {
        let infrastructure =
            json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateMachine", "name": name });
        let host = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateMachine",
            "metadata": { "name": name }, "spec": { "configurationRef": { "name": "workers" } } });
        self.objects.create(&host).unwrap();
        let mut machine = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": { "name": name },
            "spec": { "clusterName": self.name, "version": VERSION, "bootstrap": { "data": "" }, "infrastructureRef": infrastructure } });
        merge(&mut machine["metadata"], metadata);
        let path = format!("/apis/cluster.x-k8s.io/v1beta2/namespaces/{}/machines", self.name);
        self.objects.request(&Method::POST, &path, "application/json", &machine).unwrap()
    }

    /// Waits until an Event of a type has a text.
    pub(crate) fn until_event(&self, kind: &str, text: &str) {
        let has_text = |event: &&&Value| {
            event["type"] == kind && event["note"].as_str().is_some_and(|note| note.contains(text))
        };
        let found =
            self.objects.until_among("event", PATIENCE, |events| events.iter().find(has_text).map(drop));
        found.unwrap_or_else(|error| {
            panic!("Event {text:?}: {error:#}\n{:#?}", self.objects.list("event", "").unwrap())
        });
    }

    /// Waits until an object is in a state.
    pub(crate) fn until(&self, of: (&str, &str), what: &str, is: impl Fn(&Value) -> bool) -> Value {
        self.site.until(&self.team, of, what, is)
    }

    /// Waits until an object does not exist.
    pub(crate) fn until_gone(&self, of: (&str, &str)) {
        self.site.until_gone(&self.team, of);
    }

    /// Waits until a set or a deployment has this number of Machines, all available and none being deleted.
    pub(crate) fn until_complete(&self, of: (&str, &str), replicas: u64) -> Value {
        let found = self.until(of, "its replicas", |found| {
            let (status, generation) = (&found["status"], &found["metadata"]["generation"]);
            let count = |field: &&str| status[*field] == replicas;
            // A set without a deployment has no template that could change.
            let is_up_to_date = of.0 != "machinedeployment" || count(&"upToDateReplicas");
            ["replicas", "readyReplicas", "availableReplicas"].iter().all(count)
                && is_up_to_date
                && status["observedGeneration"] == *generation
        });
        self.until_machines(of.1, "none is being deleted", |machines| {
            machines.iter().all(|machine| machine["metadata"]["deletionTimestamp"].is_null())
        });
        found
    }

    /// Returns the Machines that a set or a deployment of this name has made.
    pub(crate) fn machines(&self, owner: &str) -> Vec<Value> {
        let machines = self.objects.list("clustermachine", "").unwrap();
        machines.into_iter().filter(|machine| is_made_for(machine, owner)).collect()
    }

    /// Waits until the Machines of a set or a deployment are in a state.
    pub(crate) fn until_machines(
        &self,
        owner: &str,
        what: &str,
        is: impl Fn(&[&Value]) -> bool,
    ) -> Vec<Value> {
        let state = |all: &[&Value]| {
            let machines: Vec<&Value> =
                all.iter().copied().filter(|machine| is_made_for(machine, owner)).collect();
            is(&machines).then(|| machines.into_iter().cloned().collect())
        };
        self.objects.until_among("clustermachine", PATIENCE, state).unwrap_or_else(|error| {
            panic!("Machines of {owner}: {what}: {error:#}\n{:#?}\n{}", self.machines(owner), self.site.log())
        })
    }

    /// Returns an object that exists.
    pub(crate) fn get(&self, kind: &str, name: &str) -> Value {
        self.objects.get(kind, name).unwrap().unwrap_or_else(|| panic!("{kind} {name} does not exist"))
    }

    /// Changes an object.
    pub(crate) fn merge(&self, (kind, name): (&str, &str), patch: &Value) {
        self.objects.merge(kind, name, patch).unwrap();
    }

    /// Changes the version of the template of a deployment.
    pub(crate) fn roll_out(&self, name: &str, version: &str) {
        let patch = json!({ "spec": { "template": { "spec": { "version": version } } } });
        self.merge(("machinedeployment", name), &patch);
    }

    /// Runs kubectl in the namespace, as its administrator.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        let kubernetes = Kubernetes::shared();
        let all: Vec<&str> =
            ["--namespace", self.name].into_iter().chain(arguments.iter().copied()).collect();
        kubernetes.kubectl(&kubernetes.admin(), &all).unwrap()
    }

    /// Sets the number of replicas as a user does.
    pub(crate) fn scale(&self, plural: &str, name: &str, replicas: u32) {
        self.kubectl(&["scale", &format!("{plural}.{GROUP}/{name}"), &format!("--replicas={replicas}")]);
    }

    /// Names of the BedplateMachines and KubeadmConfigs of the namespace.
    pub(crate) fn clones(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let of = |kind: &str| names(&self.objects.list(kind, "").unwrap());
        (of("bpm"), of("kubeadmconfig"))
    }

    /// Forbids requests in the namespace, by a policy with this name, until the refusal is dropped. `probe`: a request that is refused.
    pub(crate) fn refuse(
        &self,
        rule: &Value,
        expression: &str,
        probe: impl Fn(&Objects) -> anyhow::Result<Value>,
    ) -> Refusal {
        let name = format!("{}-refusal", self.name);
        let policy = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": name },
            "spec": { "failurePolicy": "Fail", "matchConstraints": { "resourceRules": [rule] },
                "validations": [{ "expression": expression, "message": "the test refuses it" }] } });
        let selector = json!({ "matchLabels": { "kubernetes.io/metadata.name": self.name } });
        let binding = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": name },
            "spec": { "policyName": name, "validationActions": ["Deny"], "matchResources": { "namespaceSelector": selector } } });
        self.objects.apply(&policy).unwrap();
        self.objects.apply(&binding).unwrap();
        wait::until_asked("that the policy is in force", PATIENCE, || {
            Ok(is_refused(&probe(&self.objects)).then_some(()))
        })
        .unwrap();
        Refusal { name, objects: self.objects.clone() }
    }
}

/// Policy that forbids requests.
pub(crate) struct Refusal {
    name: String,
    objects: Objects,
}

impl Refusal {
    /// Permits the requests again. `probe`: a request that was refused. Its object may be gone: a controller, too, is permitted again.
    pub(crate) fn end(self, probe: impl Fn(&Objects) -> anyhow::Result<Value>) {
        self.objects.delete("validatingadmissionpolicybinding", &self.name).unwrap();
        wait::until_asked("that the policy is not in force", PATIENCE, || {
            let answer = probe(&self.objects);
            let is_missing = answer.as_ref().is_err_and(|error| error.to_string().contains("not found"));
            Ok((answer.is_ok() || is_missing).then_some(()))
        })
        .unwrap();
    }
}

fn is_refused(answer: &anyhow::Result<Value>) -> bool {
    answer.as_ref().is_err_and(|error| error.to_string().contains("the test refuses it"))
}

fn is_made_for(machine: &Value, owner: &str) -> bool {
    let labels = &machine["metadata"]["labels"];
    labels[SET_NAME] == owner || labels[DEPLOYMENT_NAME] == owner
}

/// Defines a kind of control planes, and creates one with these versions.
pub(crate) fn control_plane(objects: &Objects, name: &str, version: &str, status_version: Option<&str>) {
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let schema =
        json!({ "openAPIV3Schema": { "type": "object", "properties": { "spec": any, "status": any } } });
    let definition = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "kubeadmcontrolplanes.controlplane.cluster.x-k8s.io",
            "labels": { "cluster.x-k8s.io/v1beta2": "v1beta2" },
            "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/cluster-api" } },
        "spec": { "group": "controlplane.cluster.x-k8s.io", "scope": "Namespaced",
            "names": { "kind": "KubeadmControlPlane", "plural": "kubeadmcontrolplanes", "singular": "kubeadmcontrolplane",
                "listKind": "KubeadmControlPlaneList" },
            "versions": [{ "name": "v1beta2", "served": true, "storage": true, "schema": schema, "subresources": { "status": {} } }] } });
    objects.apply(&definition).unwrap();
    let is_served = |found: Option<&Value>| {
        let conditions = found?["status"]["conditions"].as_array()?;
        conditions.iter().any(|one| one["type"] == "Established" && one["status"] == "True").then_some(())
    };
    objects
        .until(("crd", "kubeadmcontrolplanes.controlplane.cluster.x-k8s.io"), PATIENCE, is_served)
        .unwrap();
    let plane = json!({ "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane",
        "metadata": { "name": name }, "spec": { "version": version } });
    wait::until_asked("that control planes are served", PATIENCE, || Ok(objects.apply(&plane).ok())).unwrap();
    let status = json!({ "version": status_version, "initialization": { "controlPlaneInitialized": true } });
    objects.merge_status("kcp", name, &status).unwrap();
}

/// Returns a template of BedplateMachines.
pub(crate) fn infrastructure_template(name: &str) -> Value {
    json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateMachineTemplate",
        "metadata": { "name": name },
        "spec": { "template": { "metadata": { "labels": { "from": "infrastructure" } },
            "spec": { "configurationRef": { "name": "workers" }, "releaseTimeoutSeconds": 1200 } } } })
}

/// Returns a template of KubeadmConfigs.
pub(crate) fn bootstrap_template(name: &str) -> Value {
    json!({ "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfigTemplate",
        "metadata": { "name": name },
        "spec": { "template": { "metadata": { "annotations": { "from": "bootstrap" } },
            "spec": { "preKubeadmCommands": ["echo workers"] } } } })
}

/// Adds fields to an object.
pub(crate) fn merge(object: &mut Value, more: &Value) {
    match (object, more) {
        (Value::Object(object), Value::Object(more)) => {
            for (key, value) in more {
                merge(object.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (object, more) => *object = more.clone(),
    }
}

/// Names of objects.
pub(crate) fn names<'a>(objects: impl IntoIterator<Item = &'a Value>) -> BTreeSet<String> {
    objects
        .into_iter()
        .map(|object| object["metadata"]["name"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// UIDs of objects.
pub(crate) fn uids<'a>(objects: impl IntoIterator<Item = &'a Value>) -> BTreeSet<String> {
    objects
        .into_iter()
        .map(|object| object["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Controller of an object: kind and name.
pub(crate) fn controller(object: &Value) -> Option<(&str, &str)> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    Some((owner["kind"].as_str()?, owner["name"].as_str()?))
}
