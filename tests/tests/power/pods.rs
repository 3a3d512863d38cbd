//! A site with a real API server, under the roles that `deploy/` gives, whose pxed's are pods of it on loopback.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bedplate_tests::bmc::service::{PASSWORD, USER};
use bedplate_tests::guard::{Directory, Process};
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::objects;
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
        self.start_with(pod, &Kubernetes::shared().service_account(NAMESPACE, "pxed").unwrap())
    }

    /// Starts a pxed as [`Self::start`] does, with this kubeconfig.
    pub(crate) fn start_with(&self, pod: &str, kubeconfig: &Path) -> Process {
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

    /// Waits for a state of several objects, which `state` reads with [`seen`] and [`all_seen`].
    pub(crate) fn until<T>(&self, what: &str, mut state: impl FnMut() -> Option<T>) -> T {
        let reached = wait::until(what, LIMIT, || Ok(state()));
        reached.unwrap_or_else(|error| panic!("{error:#}\n{}", self.story()))
    }

    /// Waits for a state of an object.
    pub(crate) fn until_of<T>(
        &self,
        (kind, name): (&str, &str),
        what: &str,
        look: impl Fn(&Value) -> Option<T>,
    ) -> T {
        let reached = objects().until((kind, name), LIMIT, |object| look(object?));
        reached.unwrap_or_else(|error| panic!("{what}: {error:#}: {:#}\n{}", get(kind, name), self.story()))
    }

    /// Returns the logs of the site's pxed instances.
    fn story(&self) -> String {
        let logs = ["one", "two"].map(|pod| std::fs::read_to_string(self.path(&format!("{pod}.log"))));
        logs.map(Result::unwrap_or_default).join("\n----\n")
    }

    /// Which pod holds the site's Lease.
    pub(crate) fn leader(&self) -> Option<String> {
        let lease = format!("bedplate-pxed-{}", self.name);
        leader_of(objects().within(NAMESPACE).get("lease", &lease).unwrap().as_ref())
    }

    /// Returns the `spec` of the site's Lease.
    pub(crate) fn lease(&self) -> Value {
        let lease = format!("bedplate-pxed-{}", self.name);
        objects().within(NAMESPACE).get("lease", &lease).unwrap().unwrap()["spec"].clone()
    }

    pub(crate) fn apply_all(&self, all: &[Value]) {
        for object in all {
            apply(object);
        }
    }

    /// Waits until that pod leads.
    pub(crate) fn led_by(&self, pod: &str) {
        let lease = format!("bedplate-pxed-{}", self.name);
        let leads = |lease: Option<&Value>| (leader_of(lease)? == pod).then_some(());
        let led = objects().within(NAMESPACE).until(("lease", &lease), LIMIT, leads);
        led.unwrap_or_else(|error| panic!("{pod} does not lead: {error:#}\n{}", self.story()));
    }

    pub(crate) fn machine(&self, name: &str, mac: &str, more: &Value) {
        apply(&self.machine_object(name, mac, more));
    }

    pub(crate) fn machine_object(&self, name: &str, mac: &str, more: &Value) -> Value {
        let mut object = objects::machine(name).pxe(mac).site(self.name).json();
        object["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object
    }

    pub(crate) fn operation(&self, name: &str, operation: &str, machine: &str) {
        apply(&objects::operation(name, operation).on(machine).json());
    }

    /// The status of an operation that has come to its end.
    pub(crate) fn ended(&self, name: &str) -> Value {
        self.until_of(("mop", name), "the end of the operation", |operation| {
            let status = &operation["status"];
            ["Complete", "Failed"].iter().any(|state| status["state"] == **state).then(|| status.clone())
        })
    }
}

/// Returns the pod that holds a Lease.
fn leader_of(lease: Option<&Value>) -> Option<String> {
    let (pod, _) = lease?["spec"]["holderIdentity"].as_str()?.split_once('_')?;
    Some(pod.to_owned())
}

pub(crate) fn objects() -> &'static Objects {
    Kubernetes::shared().objects().unwrap()
}

pub(crate) fn apply(object: &Value) {
    objects().apply(object).unwrap();
}

/// Merges a patch into the spec of a Machine.
pub(crate) fn patch(machine: &str, spec: &Value) {
    objects().merge("machine", machine, &json!({ "spec": spec })).unwrap();
}

pub(crate) fn get(kind: &str, name: &str) -> Value {
    objects().get(kind, name).unwrap().unwrap_or_default()
}

/// Returns the last state of an object from its watch; null if the object does not exist.
pub(crate) fn seen(kind: &str, name: &str) -> Value {
    objects().seen(kind, name).unwrap().map(|object| (*object).clone()).unwrap_or_default()
}

/// Returns the last state of all objects of a kind from their watch.
pub(crate) fn all_seen(kind: &str) -> Vec<Arc<Value>> {
    objects().all_seen(kind).unwrap()
}

pub(crate) fn secret(namespace: &str, name: &str) {
    secret_with(namespace, name, PASSWORD);
}

pub(crate) fn secret_with(namespace: &str, name: &str, password: &str) {
    secret_for(namespace, name, password, &json!({ "bedplate.dev/bmc-addresses": "127.0.0.0/8" }));
}

/// Creates credentials with these annotations.
pub(crate) fn secret_for(namespace: &str, name: &str, password: &str, annotations: &Value) {
    apply(&json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": name, "namespace": namespace, "annotations": annotations },
        "stringData": { "username": USER, "password": password },
    }));
}
