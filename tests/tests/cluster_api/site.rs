//! A real API server with the provider of claims, namespaces with clusters, and hosts whose agents the tests play.

use std::path::Path;
use std::sync::{Once, OnceLock};
use std::time::Duration;

use bedplate_tests::cluster_api::{PROVIDER_TIMEOUT, Provider};
use bedplate_tests::guard::Process;
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::objects::{self, NODE_IMAGE};
use bedplate_tests::wait;
use http::Method;
use serde_json::{Value, json};

pub(crate) const PATIENCE: Duration = PROVIDER_TIMEOUT;

pub(crate) const PROVIDER: &str = "system:serviceaccount:bedplate-system:bedplate-infrastructure";

/// The cluster with its provider; both end with the test program.
pub(crate) struct Site {
    provider: Provider,
}

impl Site {
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Site> = OnceLock::new();
        SHARED.get_or_init(|| {
            install();
            Self { provider: Provider::start("infrastructure", &[]).unwrap() }
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
}

/// Starts the provider with the rights of this kubeconfig.
pub(crate) fn provider(kubeconfig: &Path, log: &Path, more: &[&str]) -> Process {
    Provider::spawn("infrastructure", kubeconfig, log, more).unwrap()
}

/// Installs the provider, and the two kinds of Cluster API that it reads. Later calls wait for the first one.
fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(apply_components);
}

fn apply_components() {
    let kubernetes = Kubernetes::shared();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for kind in ["Cluster", "Machine"] {
        let plural = format!("{}s", kind.to_lowercase());
        let schema = json!({ "openAPIV3Schema": { "type": "object", "properties": {
            "spec": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
            "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } } });
        let definition = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.cluster.x-k8s.io"),
                "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/cluster-api" } },
            "spec": { "group": "cluster.x-k8s.io", "scope": "Namespaced",
                "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List") },
                "versions": [{ "name": "v1beta2", "served": true, "storage": true, "schema": schema,
                    "subresources": { "status": {} } }] } });
        kubernetes.objects().unwrap().apply(&definition).unwrap();
    }
    let components = root.join("deploy/cluster-api/infrastructure-components.yaml").display().to_string();
    kubernetes.kubectl(&kubernetes.admin(), &["apply", "--server-side", "-f", &components]).unwrap();
    let crds = [
        "crd/clusters.cluster.x-k8s.io",
        "crd/machines.cluster.x-k8s.io",
        "crd/bedplatemachines.infrastructure.cluster.x-k8s.io",
        "crd/bedplateclusters.infrastructure.cluster.x-k8s.io",
    ];
    let mut established = vec!["wait", "--for=condition=Established", "--timeout=60s"];
    established.extend(crds);
    kubernetes.kubectl(&kubernetes.admin(), &established).unwrap();
}

/// Objects of one namespace, with a provisioned Cluster of the same name and a configuration for it.
pub(crate) struct Team {
    pub(crate) name: &'static str,
    pub(crate) objects: Objects,
}

impl Team {
    pub(crate) fn new(site: &Site, name: &'static str) -> Self {
        let objects = Kubernetes::shared().objects().unwrap().within(name);
        objects
            .apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }))
            .unwrap();
        let team = Self { name, objects };
        let configuration = objects::configuration(name, &objects::template(NODE_IMAGE)).pool(name);
        team.objects.apply(&configuration.json()).unwrap();
        let reference =
            json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateCluster", "name": name });
        let cluster = team.objects
            .apply(&json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": { "name": name },
                "spec": { "infrastructureRef": reference } }))
            .unwrap();
        team.infrastructure("BedplateCluster", name, &json!({}), &json!({}));
        site.until(&team, ("bpc", name), "that it waits for its owner", |found| {
            ready(found).1 == "WaitingForOwner"
        });
        let owner = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": name,
            "uid": cluster["metadata"]["uid"] });
        team.objects.merge("bpc", name, &json!({ "metadata": { "ownerReferences": [owner] } })).unwrap();
        site.until(&team, ("bpc", name), "that it waits for an endpoint", |found| {
            ready(found).1 == "EndpointMissing"
        });
        let endpoint = json!({ "controlPlaneEndpoint": { "host": "10.7.0.9", "port": 6443 } });
        team.objects.merge("bpc", name, &json!({ "spec": endpoint })).unwrap();
        let is_provisioned = |found: &Value| found["status"]["initialization"]["provisioned"] == true;
        let found = site.until(&team, ("bpc", name), "that it is provisioned", is_provisioned);
        assert_eq!(ready(&found).0, "True", "{found}");
        team
    }

    /// Does for the Cluster what the controller of Cluster API does once the infrastructure is provisioned.
    pub(crate) fn provision(&self) {
        let status = json!({ "initialization": { "infrastructureProvisioned": true } });
        self.objects.merge_status("cluster", self.name, &status).unwrap();
    }

    pub(crate) fn infrastructure(&self, kind: &str, name: &str, metadata: &Value, spec: &Value) -> Value {
        let mut object = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": kind,
            "metadata": { "labels": { "cluster.x-k8s.io/cluster-name": self.name } }, "spec": spec });
        object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        object["metadata"]["name"] = name.into();
        self.objects.apply(&object).unwrap()
    }

    fn machines(&self, name: &str) -> String {
        format!("/apis/cluster.x-k8s.io/v1beta2/namespaces/{}/machines{name}", self.name)
    }

    /// A Machine of Cluster API with its BedplateMachine. `data`: name of its bootstrap data.
    pub(crate) fn machine(&self, name: &str, data: Option<&str>) {
        self.machine_with(name, data, &json!({}));
    }

    /// A Machine as [`Self::machine`] makes, with more fields of the BedplateMachine.
    pub(crate) fn machine_with(&self, name: &str, data: Option<&str>, more: &Value) {
        let reference =
            json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateMachine", "name": name });
        let mut machine = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": { "name": name, "labels": { "cluster.x-k8s.io/cluster-name": self.name } },
            "spec": { "clusterName": self.name, "version": "v1.34.4", "infrastructureRef": reference, "bootstrap": {} } });
        if let Some(data) = data {
            machine["spec"]["bootstrap"]["dataSecretName"] = data.into();
        }
        let made =
            self.objects.request(&Method::POST, &self.machines(""), "application/json", &machine).unwrap();
        let owner = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name,
            "uid": made["metadata"]["uid"], "controller": true });
        let mut spec = json!({ "configurationRef": { "name": self.name } });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.infrastructure("BedplateMachine", name, &json!({ "ownerReferences": [owner] }), &spec);
    }

    pub(crate) fn bootstrap_data(&self, name: &str, data: &str) {
        self.change_machine(name, &json!({ "bootstrap": { "dataSecretName": data } }));
    }

    /// Changes the spec of a Machine of Cluster API.
    pub(crate) fn change_machine(&self, name: &str, spec: &Value) {
        let patch = json!({ "spec": spec });
        let path = self.machines(&format!("/{name}"));
        self.objects.request(&Method::PATCH, &path, "application/merge-patch+json", &patch).unwrap();
    }

    pub(crate) fn secret(&self, name: &str) {
        self.objects
            .apply(&json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
                "stringData": { "value": "#cloud-config", "format": "cloud-config" } }))
            .unwrap();
    }
}

/// Time of a heartbeat that does not count any more.
pub(crate) const LONG_AGO: &str = "2026-01-01T00:00:00Z";

/// Agent of a host of a pool.
pub(crate) struct Agent {
    pub(crate) name: String,
    pub(crate) objects: Objects,
}

impl Agent {
    /// Creates a Machine that this namespace may claim, with an enrolled agent.
    pub(crate) fn new(name: &str, namespace: &str) -> Self {
        let admin = Kubernetes::shared().objects().unwrap();
        admin.apply(&objects::machine(name).pool(namespace).json()).unwrap();
        let agent = Self::of(name, namespace);
        agent.heartbeat();
        agent
    }

    /// Enrolls the agent of a Machine that exists. It has reported long ago.
    pub(crate) fn of(name: &str, namespace: &str) -> Self {
        let kubernetes = Kubernetes::shared();
        let (kubeconfig, enrollment) = kubernetes.agent(name).unwrap();
        let agent = Self {
            name: name.to_owned(),
            objects: kubernetes.objects_of(&kubeconfig).unwrap().within(namespace),
        };
        agent.machine(&json!({ "enrollment": enrollment }));
        agent.heard(LONG_AGO);
        agent
    }

    pub(crate) fn machine(&self, status: &Value) {
        Kubernetes::shared().objects().unwrap().merge_status("machine", &self.name, status).unwrap();
    }

    pub(crate) fn heartbeat(&self) {
        // The API server counts in seconds: the heartbeat must not seem older than a claim of the same second.
        let now = jiff::Timestamp::now() + Duration::from_secs(1);
        self.heard(&now.to_string());
    }

    /// Reports as the agent of a host that was heard last at this time.
    pub(crate) fn heard(&self, time: &str) {
        let addresses = json!([{ "type": "InternalIP", "address": "10.7.0.5" }]);
        self.machine(&json!({ "agent": { "features": ["claims"], "lastHeartbeatTime": time }, "addresses": addresses }));
    }

    /// Reports a state of the claim, in the claim and in the Machine.
    pub(crate) fn report(&self, state: &str) {
        let claim = Kubernetes::shared().objects().unwrap().get("mcl", &self.name).unwrap().unwrap();
        let (id, claimant) = (&claim["spec"]["providerID"], &claim["spec"]["claimant"]);
        let since = "2026-01-01T00:00:00Z";
        let claimant = json!({ "namespace": claimant["namespace"], "name": claimant["name"] });
        self.machine(
            &json!({ "claim": { "providerID": id, "claimant": claimant, "state": state, "since": since } }),
        );
        let mut status = json!({ "providerID": id, "state": state, "since": since });
        if state == "Joined" {
            status["node"] = json!({ "name": claim["spec"]["nodeName"], "uid": "n" });
        }
        self.objects.apply_status("bedplate-agent", ("mcl", &self.name), &status).unwrap();
    }

    pub(crate) fn may_read(&self, secret: &str) -> bool {
        self.objects.get("secret", secret).is_ok()
    }

    pub(crate) fn until_may_read(&self, secret: &str, may: bool) {
        let what = format!("that {} may read the Secret: {may}", self.name);
        wait::until_asked(&what, PATIENCE, || Ok((self.may_read(secret) == may).then_some(()))).unwrap();
    }
}

/// Status and reason of a condition.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> (&'a str, &'a str, &'a str) {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|condition| condition["type"] == kind));
    let text = |field: &str| found.and_then(|condition| condition[field].as_str()).unwrap_or_default();
    (text("status"), text("reason"), text("message"))
}

pub(crate) fn ready(object: &Value) -> (&str, &str, &str) {
    condition(object, "Ready")
}

pub(crate) fn claims(object: &Value, reason: &str) -> bool {
    condition(object, "HostClaimed").1 == reason
}
