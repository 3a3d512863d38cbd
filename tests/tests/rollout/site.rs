//! A cluster with its controllers and bedplate-controller, which all tests of the program share.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use bedplate_tests::guard::{Directory, Process};
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::{objects, pxed};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Site {
    kubernetes: Kubernetes,
    place: Directory,
    controller: Mutex<(Process, u32)>,
}

fn controller(kubernetes: &Kubernetes, place: &Directory, number: u32) -> Process {
    let kubeconfig = kubernetes.service_account("bedplate-system", "bedplate-controller").unwrap();
    let binary: PathBuf = pxed::binary("bedplate-controller").unwrap();
    let name = format!("controller-{number}");
    let mut command = Command::new(binary);
    command.arg("--kubeconfig").arg(kubeconfig);
    command.args(["--instance", &name, "--listen", "127.0.0.1:0", "--log-format", "text"]);
    Process::spawn("bedplate-controller", &mut command, &place.path().join(format!("{name}.log"))).unwrap()
}

impl Site {
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Site> = OnceLock::new();
        SHARED.get_or_init(|| {
            let mut kubernetes = Kubernetes::installed().unwrap();
            kubernetes.protect_versions().unwrap();
            kubernetes.start_controllers(&["disruption"]).unwrap();
            let place = Directory::new("rollout").unwrap();
            let controller = Mutex::new((controller(&kubernetes, &place, 0), 0));
            Self { kubernetes, place, controller }
        })
    }

    /// Runs `work` while no controller runs. The controller is terminated, not killed, so the next one need not wait for its Lease.
    pub(crate) fn without_controller(&self, work: impl FnOnce()) {
        let mut running = self.controller.lock().unwrap();
        running.0.terminate(PATIENCE).unwrap();
        work();
        let number = running.1 + 1;
        *running = (controller(&self.kubernetes, &self.place, number), number);
    }

    pub(crate) async fn client(&self) -> Client {
        let kubeconfig = Kubeconfig::read_from(self.kubernetes.admin()).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        Client::try_from(config).unwrap()
    }

    pub(crate) fn objects(&self) -> &Objects {
        self.kubernetes.objects().unwrap()
    }

    pub(crate) fn apply(&self, object: &Value) {
        self.objects().apply(object).unwrap();
    }

    /// Merges a patch into an object that has no namespace.
    pub(crate) fn merge(&self, kind: &str, name: &str, patch: &Value) {
        self.objects().merge(kind, name, patch).unwrap();
    }

    /// Requests a retry of a Node's drain, as described in docs/guides/rolling-updates.md.
    pub(crate) fn retry_drain(&self, node: &str) {
        self.merge(
            "node",
            node,
            &json!({ "metadata": { "annotations": { "bedplate.dev/drain-failed": null } } }),
        );
    }

    /// Cordons or uncordons a Node as kubectl does.
    pub(crate) fn cordon(&self, node: &str, cordoned: bool) {
        self.merge("node", node, &json!({ "spec": { "unschedulable": cordoned } }));
    }

    /// Deletes a namespace's disruption budget.
    pub(crate) fn without_budget(&self, namespace: &str) {
        self.objects().within(namespace).delete("pdb", namespace).unwrap();
    }

    pub(crate) fn configuration(&self, name: &str, spec: &Value, content: u32) {
        let mut spec = spec.clone();
        spec["template"] = json!(objects::numbered_template(content));
        self.apply(&json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration",
            "metadata": { "name": name }, "spec": spec }));
    }

    pub(crate) fn namespace(&self, name: &str) {
        self.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
        // Object that a controller would create in the namespace.
        let account = json!({ "name": "default", "namespace": name });
        self.apply(&json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": account }));
    }

    /// Creates a budget: at least `least` of a namespace's Pods must be available.
    pub(crate) fn budget(&self, namespace: &str, least: u32) {
        self.apply(&json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "name": namespace, "namespace": namespace },
            "spec": { "minAvailable": least, "selector": { "matchLabels": { "app": namespace } } } }));
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.objects().get(kind, name).unwrap()
    }

    /// Waits until an object is in a state.
    pub(crate) async fn until(&self, of: (&str, &str), what: &str, is: impl Fn(&Value) -> bool) -> Value {
        self.until_within("default", of, what, is).await
    }

    /// Waits until an object of a namespace is in a state.
    pub(crate) async fn until_within(
        &self,
        namespace: &str,
        (kind, name): (&str, &str),
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        let is_so = |object: Option<&Value>| object.filter(|object| is(object)).cloned();
        let found = self.objects().within(namespace).until((kind, name), PATIENCE, is_so);
        found.unwrap_or_else(|error| self.fails(&format!("{kind} {name}: {what}: {error:#}")))
    }

    /// Fails with the state of the objects and the controller's log.
    fn fails(&self, why: &str) -> ! {
        let all = ["mc", "machine", "node"].map(|kind| self.objects().list(kind, "").unwrap_or_default());
        panic!("{why}\n{all:#?}\n{}", self.controller.lock().unwrap().0.said())
    }

    pub(crate) async fn until_gone(&self, kind: &str, name: &str) {
        let gone = |object: Option<&Value>| object.is_none().then_some(());
        let ended = self.objects().until((kind, name), PATIENCE, gone);
        ended.unwrap_or_else(|error| self.fails(&format!("deletion of {kind} {name}: {error:#}")));
    }

    pub(crate) async fn until_pods(&self, namespace: &str, count: usize) {
        let there = |pods: &[&Value]| (pods.len() == count).then_some(());
        let there = self.objects().within(namespace).until_among("pod", PATIENCE, there);
        there.unwrap_or_else(|error| self.fails(&format!("{count} Pods in {namespace}: {error:#}")));
    }

    /// Waits until a Machine has a version, and its Node is there.
    pub(crate) async fn has(&self, machine: &str, version: u32) {
        self.until(("machine", machine), &format!("version {version}"), |machine| {
            let status = &machine["status"];
            status["applied"]["version"] == version
                && !status["nodeRef"].is_null()
                && status["nodeRef"]["uid"] == status["applied"]["nodeUID"]
        })
        .await;
    }
}

/// A configuration's spec with rolling updates.
pub(crate) fn rolling(settings: &Value) -> Value {
    json!({ "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": settings } })
}

pub(crate) fn is_cordoned(node: &Value) -> bool {
    node["spec"]["unschedulable"] == true
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == kind)
}

/// Reason of `Progressing` of a configuration.
pub(crate) fn progressing(configuration: &Value) -> &str {
    condition(configuration, "Progressing").and_then(|c| c["reason"].as_str()).unwrap_or_default()
}

/// Reason of `Degraded`; empty: it is not degraded.
pub(crate) fn degraded(configuration: &Value) -> &str {
    let found = condition(configuration, "Degraded").filter(|c| c["status"] == "True");
    found.and_then(|c| c["reason"].as_str()).unwrap_or_default()
}

pub(crate) fn reason<'a>(object: &'a Value, kind: &str) -> &'a str {
    condition(object, kind).and_then(|c| c["reason"].as_str()).unwrap_or_default()
}

pub(crate) fn message<'a>(object: &'a Value, kind: &str) -> &'a str {
    condition(object, kind).and_then(|c| c["message"].as_str()).unwrap_or_default()
}
