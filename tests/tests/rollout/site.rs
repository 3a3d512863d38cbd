//! A cluster with its controllers and bedplate-controller, which all tests of the program share.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use bedplate_tests::guard::{Directory, Process};
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::pxed;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(200);

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
            let mut kubernetes = Kubernetes::start().unwrap();
            kubernetes.install().unwrap();
            kubernetes.protect_versions().unwrap();
            kubernetes.start_controllers(&["disruption"]).unwrap();
            let place = Directory::new("rollout").unwrap();
            let controller = Mutex::new((controller(&kubernetes, &place, 0), 0));
            Self { kubernetes, place, controller }
        })
    }

    /// Kills the controller as SIGKILL does, and starts another one.
    pub(crate) fn restart_controller(&self) {
        self.without_controller(|| ());
    }

    /// The same, with something that is done while there is none.
    pub(crate) fn without_controller(&self, work: impl FnOnce()) {
        let mut running = self.controller.lock().unwrap();
        running.0.kill();
        work();
        let number = running.1 + 1;
        *running = (controller(&self.kubernetes, &self.place, number), number);
    }

    pub(crate) async fn client(&self) -> Client {
        let kubeconfig = Kubeconfig::read_from(self.kubernetes.admin()).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        Client::try_from(config).unwrap()
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.kubernetes.kubectl(&self.kubernetes.admin(), arguments)
    }

    pub(crate) fn apply(&self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        let path = self.place.path().join(format!("{}-{name}.json", object["kind"].as_str().unwrap()));
        std::fs::write(&path, object.to_string()).unwrap();
        self.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &path.display().to_string()])
            .unwrap();
    }

    pub(crate) fn configuration(&self, name: &str, spec: &Value, content: u32) {
        let mut spec = spec.clone();
        let digest = "0123456789abcdef".repeat(4);
        spec["template"] = json!({ "image": { "reference": format!("registry.example/node@sha256:{digest}") },
            "kubernetes": { "version": "v1.34.4" }, "sysctls": { "kernel.panic": content.to_string() } });
        self.apply(&object("MachineConfiguration", name, &spec));
    }

    pub(crate) fn machine(&self, name: &str, configuration: &str, more: &Value) {
        let mut spec = json!({ "provider": "manual", "configurationRef": { "name": configuration } });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.apply(&object("Machine", name, &spec));
    }

    pub(crate) fn namespace(&self, name: &str) {
        self.kubectl(&["create", "namespace", name]).unwrap();
        // What a controller would make of the namespace.
        self.kubectl(&["create", "serviceaccount", "default", "-n", name]).unwrap();
    }

    /// So many of a namespace's Pods have to be there.
    pub(crate) fn budget(&self, namespace: &str, least: u32) {
        self.apply(&json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "name": namespace, "namespace": namespace },
            "spec": { "minAvailable": least, "selector": { "matchLabels": { "app": namespace } } } }));
    }

    /// `kind` may have further arguments, such as `pdb -n a`.
    pub(crate) fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let mut words = kind.split(' ');
        let kind = words.next().unwrap();
        let mut arguments = vec!["get", kind, name, "--ignore-not-found", "-o", "json"];
        arguments.extend(words);
        serde_json::from_str(&self.kubectl(&arguments).unwrap()).ok()
    }

    /// Waits until an object is in a state.
    pub(crate) async fn until(
        &self,
        (kind, name): (&str, &str),
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        self.wait(&format!("{kind} {name}: {what}"), || self.get(kind, name).filter(|object| is(object)))
            .await
    }

    async fn wait<T>(&self, what: &str, found: impl Fn() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = found() {
                return found;
            }
            if begun.elapsed() > PATIENCE {
                let all = self
                    .kubectl(&["get", "mc,machines,nodes", "-o", "yaml", "--show-managed-fields=false"])
                    .unwrap();
                panic!("{what}: in vain\n{all}\n{}", self.controller.lock().unwrap().0.said());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    pub(crate) async fn until_gone(&self, kind: &str, name: &str) {
        self.wait(&format!("{kind} {name}: its end"), || self.get(kind, name).is_none().then_some(())).await;
    }

    pub(crate) async fn until_pods(&self, namespace: &str, count: usize) {
        let ready = |pods: &Value| pods["items"].as_array().unwrap().len();
        self.wait(&format!("{count} Pods in {namespace}"), || {
            let pods = self.kubectl(&["get", "pods", "-n", namespace, "-o", "json"]).unwrap();
            (ready(&serde_json::from_str(&pods).unwrap()) == count).then_some(())
        })
        .await;
    }

    /// Waits until a Machine has a version, and its Node is there.
    pub(crate) async fn has(&self, machine: &str, version: u32) {
        self.until(("machine", machine), &format!("version {version}"), |machine| {
            let status = &machine["status"];
            status["applied"]["version"] == version
                && !status["nodeRef"].is_null()
                && status["nodeRef"]["uid"] == status["applied"]["nodeUid"]
        })
        .await;
    }
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec })
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

/// Why a configuration progresses, or does not.
pub(crate) fn progressing(configuration: &Value) -> &str {
    condition(configuration, "Progressing").and_then(|c| c["reason"].as_str()).unwrap_or_default()
}

/// Why it is degraded; empty: it is not.
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
