//! A management cluster with both bootstrap providers, and the API server of the workload clusters.

use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_tests::cluster_api::{Programs, Source, Upstream, authorities};
use bedplate_tests::guard::{Directory, Process, last_lines};
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::{pxed, wait};
use serde_json::json;

use super::inputs::{Input, Role};

/// Namespace of our provider.
pub(crate) const OURS: &str = "ours";
/// Namespace of upstream's provider.
pub(crate) const UPSTREAMS: &str = "upstreams";
/// Cluster of the machines that join.
const JOINED: &str = "joined";
/// Time until the user data of all inputs exists.
const LIMIT: Duration = Duration::from_secs(300);
const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";

/// Both providers.
pub(crate) struct Site {
    objects: Objects,
    provider: Process,
    upstream: Upstream,
    _place: Directory,
    workload: Kubernetes,
    _management: Kubernetes,
}

impl Site {
    /// Starts both providers, with a cluster that is initialized in each namespace.
    pub(crate) fn start() -> Self {
        let mut management = Kubernetes::installed().unwrap();
        management.start_controllers(&["clusterrole-aggregation-controller"]).unwrap();
        let workload = Kubernetes::start().unwrap();
        // The core and the control plane only check objects.
        let programs = Programs { core: Source::Within("none"), bootstrap: Source::Within(UPSTREAMS) };
        let upstream = Upstream::start(&management, programs).unwrap();
        let objects = management.objects().unwrap().clone();
        let place = Directory::new("bootstrap").unwrap();
        install(&management, &place);
        let kubeconfig = management.service_account("bedplate-system", "bedplate-bootstrap").unwrap();
        let mut command = Command::new(pxed::binary("bedplate-cluster").unwrap());
        command.args(["--controllers=bootstrap", "--listen=127.0.0.1:0", "--log-format=text"]);
        command.args(["--workload-networks=127.0.0.0/8", "--leader-elect=false"]);
        command.arg(format!("--namespace={OURS}")).arg("--kubeconfig").arg(kubeconfig);
        let log = place.path().join("provider.log");
        let provider = Process::spawn("bedplate-cluster", &mut command, &log).unwrap();
        let site = Self { objects, provider, upstream, _place: place, workload, _management: management };
        for namespace in [OURS, UPSTREAMS] {
            let object =
                json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
            site.objects.apply(&object).unwrap();
            let content = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "content" },
                "stringData": { "script": "#!/bin/sh\necho {{ x }}\n", "password": "$6$salt$hash" } });
            site.objects.within(namespace).apply(&content).unwrap();
            site.create_cluster(namespace, JOINED, true);
        }
        site
    }

    /// Creates a cluster with its authorities and its kubeconfig. `is_initialized`: its control plane accepts requests.
    fn create_cluster(&self, namespace: &str, name: &str, is_initialized: bool) {
        let team = self.objects.within(namespace);
        let mut secrets = authorities(name, &self.workload.pki()).unwrap();
        // The harness has no key of the authority of etcd. Any pair will do: no server uses it. The authority of an external etcd has none.
        let pair = secrets.iter().find(|secret| secret["metadata"]["name"] == format!("{name}-proxy"));
        let pair = pair.unwrap()["stringData"].clone();
        for secret in &mut secrets {
            if secret["metadata"]["name"] == format!("{name}-etcd") && !name.contains("external") {
                secret["stringData"] = pair.clone();
            }
            team.apply(secret).unwrap();
        }
        let kubeconfig = std::fs::read_to_string(self.workload.admin()).unwrap();
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": { "name": format!("{name}-kubeconfig"), "labels": { CLUSTER_LABEL: name } },
            "stringData": { "value": kubeconfig } });
        team.apply(&secret).unwrap();
        let infrastructure =
            json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateCluster", "name": name });
        let control_plane = json!({ "apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": name });
        let network = json!({ "pods": { "cidrBlocks": ["10.1.0.0/16"] }, "services": { "cidrBlocks": ["10.2.0.0/16"] },
            "serviceDomain": "cluster.local" });
        let cluster = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": { "name": name },
            "spec": { "infrastructureRef": infrastructure, "controlPlaneRef": control_plane, "clusterNetwork": network,
                "controlPlaneEndpoint": { "host": "127.0.0.1", "port": self.workload.address().port() } } });
        team.apply(&cluster).unwrap();
        let mut status = json!({ "initialization": { "infrastructureProvisioned": true } });
        if is_initialized {
            status["initialization"]["controlPlaneInitialized"] = true.into();
            let now = jiff::Timestamp::now().to_string();
            status["conditions"] = json!([{ "type": "ControlPlaneInitialized", "status": "True", "reason": "Initialized",
                "message": "", "lastTransitionTime": now }]);
        }
        team.merge_status("cluster", name, &status).unwrap();
    }

    /// Creates the objects of an input. A first control plane has a cluster of its own.
    pub(crate) fn create(&self, namespace: &str, input: &Input) {
        let (team, name) = (self.objects.within(namespace), &*input.name);
        let cluster = if input.role == Role::Init { name } else { JOINED };
        if input.role == Role::Init {
            self.create_cluster(namespace, name, false);
        }
        let mut labels = json!({ CLUSTER_LABEL: cluster });
        if input.role != Role::Worker {
            labels["cluster.x-k8s.io/control-plane"] = "".into();
        }
        let reference =
            json!({ "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": name });
        let infrastructure =
            json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateMachine", "name": name });
        let machine = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": { "name": name, "labels": labels },
            "spec": { "clusterName": cluster, "version": input.version, "bootstrap": { "configRef": reference },
                "infrastructureRef": infrastructure } });
        let machine = team.apply(&machine).unwrap();
        let owner = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name,
            "uid": machine["metadata"]["uid"], "controller": true });
        let config = json!({ "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfig",
            "metadata": { "name": name, "labels": labels, "ownerReferences": [owner] }, "spec": input.spec });
        team.apply(&config).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }

    /// Waits for the user data of an input.
    pub(crate) fn user_data(&self, namespace: &str, input: &Input) -> String {
        let team = self.objects.within(namespace);
        let is_ready = || {
            let config = team.get("kubeadmconfig", &input.name)?.unwrap_or_default();
            let Some(secret) = config["status"]["dataSecretName"].as_str() else { return Ok(None) };
            let secret = team.get("secret", secret)?.unwrap_or_default();
            let value = secret["data"]["value"].as_str().unwrap_or_default();
            Ok(Some(String::from_utf8(STANDARD.decode(value)?)?))
        };
        let what = format!("user data of {namespace}/{}", input.name);
        wait::until_asked(&what, LIMIT, is_ready).unwrap_or_else(|error| {
            let config = team.get("kubeadmconfig", &input.name).unwrap().unwrap_or_default();
            let said = last_lines(&self.provider.said(), 20);
            panic!("{error:#}\n{:#}\n{said}\n{}", config["status"], self.upstream.said())
        })
    }
}

/// Installs what our components have next to the definitions, which upstream's components have.
fn install(management: &Kubernetes, place: &Directory) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/cluster-api/bootstrap-components.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let is_definition = |document: &&str| document.contains("kind: CustomResourceDefinition\n");
    let rest: Vec<&str> = text.split("\n---\n").filter(|document| !is_definition(document)).collect();
    let path = place.path().join("components.yaml");
    std::fs::write(&path, rest.join("\n---\n")).unwrap();
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", &path.display().to_string()];
    management.kubectl(&management.admin(), &apply).unwrap();
}
