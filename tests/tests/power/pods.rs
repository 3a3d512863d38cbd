//! A site with a real API server, under the roles that `deploy/` gives, whose pxed's are pods of it on loopback.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use bedplate_tests::bmc::service::{PASSWORD, USER};
use bedplate_tests::guard::{Directory, Process};
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::pxed::{ask, binary};
use bedplate_tests::wait;
use serde_json::{Value, json};

pub(crate) const LIMIT: Duration = Duration::from_secs(90);
pub(crate) const NAMESPACE: &str = "bedplate-system";

/// A site with its pxed's.
pub(crate) struct Site {
    pub(crate) name: &'static str,
    directory: Directory,
}

impl Site {
    pub(crate) fn new(name: &'static str) -> Self {
        Kubernetes::shared();
        Self { name, directory: Directory::new(name).unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts a pxed with a state of its own, which is a pod of that name.
    pub(crate) fn start(&self, pod: &str) -> Process {
        let kubeconfig = Kubernetes::shared().service_account(NAMESPACE, "pxed").unwrap();
        for file in ["kernel", "initrd"] {
            std::fs::write(self.path(file), vec![1; 4096]).unwrap();
        }
        let at = |name: &str| self.path(name).display().to_string();
        let config = format!(
            "site = {:?}\nstate-directory = {:?}\nsocket = {:?}\ndefault-image = \"host\"\n[source]\nkubernetes = {{ \
             kubeconfig = {:?} }}\n[dhcp]\nmode = \"off\"\n[tftp]\nlisten = \"127.0.0.1:0\"\n[http]\nlisten = \
             \"127.0.0.1:0\"\n[https]\nlisten = \"127.0.0.1:0\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n\
             [bmc]\nallowed-networks = [\"127.0.0.0/8\"]\npoll-seconds = 5\n\
             [images.host]\nkernel = {:?}\ninitrd = {:?}\n",
            self.name,
            at(pod),
            at(&format!("{pod}.sock")),
            kubeconfig.display().to_string(),
            at("kernel"),
            at("initrd"),
        );
        let file = self.path(&format!("{pod}.toml"));
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(binary("pxed").unwrap());
        command
            .args(["run", "--config"])
            .arg(file)
            .env("BEDPLATE_LOG", "info,pxed=debug")
            .env("POD_NAME", pod);
        let log = self.path(&format!("{pod}.log"));
        let mut process = Process::spawn("pxed", &mut command, &log).unwrap();
        let socket = self.path(&format!("{pod}.sock"));
        wait::until("pxed's socket", LIMIT, || {
            assert!(process.is_running(), "{}", process.said());
            Ok(ask(&socket, "/v1/status").ok())
        })
        .unwrap();
        process
    }

    pub(crate) fn until<T>(&self, what: &str, mut state: impl FnMut() -> Option<T>) -> T {
        let reached = wait::until(what, LIMIT, || Ok(state()));
        reached.unwrap_or_else(|_| {
            let logs = ["one", "two"].map(|pod| std::fs::read_to_string(self.path(&format!("{pod}.log"))));
            panic!("not reached: {what}\n{}", logs.map(Result::unwrap_or_default).join("\n----\n"))
        })
    }

    /// Which pod holds the site's Lease.
    pub(crate) fn leader(&self) -> Option<String> {
        let lease = format!("lease/bedplate-pxed-{}", self.name);
        let holder = ["get", &lease, "-n", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}"];
        let holder = admin(&holder).ok()?;
        holder.split_once('_').map(|(pod, _)| pod.to_owned())
    }

    pub(crate) fn apply(&self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap_or("list");
        let file = self.path(&format!("{name}.json"));
        std::fs::write(&file, object.to_string()).unwrap();
        admin(&["apply", "-f", &file.display().to_string()]).unwrap();
    }

    /// Many at once.
    pub(crate) fn apply_all(&self, objects: &[Value]) {
        self.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": objects }));
    }

    /// Waits until that pod leads.
    pub(crate) fn led_by(&self, pod: &str) {
        self.until(&format!("{pod} leads"), || self.leader().filter(|leader| leader == pod));
    }

    pub(crate) fn machine(&self, name: &str, mac: &str, more: &Value) {
        self.apply(&self.machine_object(name, mac, more));
    }

    pub(crate) fn machine_object(&self, name: &str, mac: &str, more: &Value) -> Value {
        let mut object = json!({
            "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": name },
            "spec": { "provider": "pxe", "site": self.name, "pxe": { "interfaces": [{ "macAddress": mac }] } },
        });
        object["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object
    }

    pub(crate) fn operation(&self, name: &str, operation: &str, machine: &str) {
        self.apply(&operation_object(name, operation, machine, &json!({})));
    }

    /// The status of an operation that has come to its end.
    pub(crate) fn ended(&self, name: &str) -> Value {
        self.until(&format!("the end of {name}"), || {
            let status = get("machineoperation", name)["status"].clone();
            ["Complete", "Failed"].iter().any(|state| status["state"] == **state).then_some(status)
        })
    }
}

pub(crate) fn admin(arguments: &[&str]) -> anyhow::Result<String> {
    let kubernetes = Kubernetes::shared();
    kubernetes.kubectl(&kubernetes.admin(), arguments)
}

pub(crate) fn get(kind: &str, name: &str) -> Value {
    let text = admin(&["get", kind, name, "-o", "json", "--show-managed-fields"]).unwrap();
    serde_json::from_str(&text).unwrap()
}

pub(crate) fn get_all(kind: &str) -> Vec<Value> {
    let text = admin(&["get", kind, "-o", "json"]).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["items"].as_array().unwrap().clone()
}

pub(crate) fn operation_object(name: &str, operation: &str, machine: &str, more: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation", "metadata": { "name": name },
        "spec": { "operationName": operation, "machineRef": { "name": machine } },
    });
    object["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object
}

pub(crate) fn secret(site: &Site, namespace: &str, name: &str) {
    secret_with(site, namespace, name, PASSWORD);
}

pub(crate) fn secret_with(site: &Site, namespace: &str, name: &str, password: &str) {
    site.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": namespace },
        "stringData": { "username": USER, "password": password },
    }));
}
