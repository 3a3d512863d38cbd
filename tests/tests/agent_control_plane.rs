//! A cluster from nothing, without one: three empty hosts of systemd 252 in namespaces, the real agent and pxed with a directory of
//! manifests. One host makes the cluster by the real kubeadm with images of the real programs, one joins as a second control plane and one
//! as a worker, in networks of its own, with real kubelets, containerd and runc: see `control_plane` for the limits of such hosts.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use bedplate_api::machine::{NODE_CONFIGURATION, NODE_VERSION};
use bedplate_tests::agent_host::{has_applied, image, paved};
use bedplate_tests::control_plane::{
    Etcd, Member, PARAMETERS, files, images, kubelet, registration, registry_files, version,
};
use bedplate_tests::documents::examples;
use bedplate_tests::guard::{Directory, Process, run};
use bedplate_tests::host::Host;
use bedplate_tests::kubernetes::programs;
use bedplate_tests::netns::Namespace;
use bedplate_tests::nodes::is_ready;
use bedplate_tests::pxed::{ask, binary};
use bedplate_tests::registry::Registry;
use bedplate_tests::wait;
use bedplate_tests::worker::{Worker, take_turn};
use serde_json::{Value, json};

/// On a busy machine; each takes seconds on an idle one.
const LIMIT: Duration = Duration::from_secs(300);
const RACK: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
/// The first control plane's API server.
const SERVER: &str = "10.7.0.11:6443";
const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 11);
const CONTROL_PLANE: &str = "control-1";
const SECOND: &str = "control-2";
const WORKER: &str = "worker-1";
const PAGE: &str = include_str!("../../docs/getting-started/first-control-plane.md");
/// Shared files of control planes, as on the page: kubeadm's path of each, and its key in the Secret.
const SHARED: [(&str, &str); 8] = [
    ("ca.crt", "ca.crt"),
    ("ca.key", "ca.key"),
    ("sa.key", "sa.key"),
    ("sa.pub", "sa.pub"),
    ("front-proxy-ca.crt", "front-proxy-ca.crt"),
    ("front-proxy-ca.key", "front-proxy-ca.key"),
    ("etcd/ca.crt", "etcd-ca.crt"),
    ("etcd/ca.key", "etcd-ca.key"),
];
/// State of a slot of the first control plane, on its host.
const STATE: &str = "/var/lib/bedplate/slots/a/state";

/// pxed, two registries, and the network that all are in.
struct Site {
    directory: Directory,
    rack: Namespace,
    node: Registry,
    images: Registry,
    pxed: Option<Process>,
}

impl Site {
    fn start() -> Self {
        take_turn().unwrap();
        let directory = Directory::new("first").unwrap();
        let rack = Namespace::new("first").unwrap();
        rack.add_bridge("br0", Some((RACK, 24))).unwrap();
        run(rack.command("ip").args(["route", "add", "default", "dev", "br0"])).unwrap();
        let layout = directory.path().join("images");
        images(&layout).unwrap();
        let node = Registry::start_tls(&image().unwrap(), &rack, (RACK, 5000).into()).unwrap();
        let images = Registry::start_tls(&layout, &rack, (RACK, 5001).into()).unwrap();
        let mut site = Self { directory, rack, node, images, pxed: None };
        for folder in ["machines.d", "secrets", "cluster", "bin"] {
            std::fs::create_dir_all(site.path(folder)).unwrap();
        }
        for file in ["kernel", "initrd"] {
            std::fs::write(site.path(file), vec![1; 4096]).unwrap();
        }
        let at = |name: &str| site.path(name).display().to_string();
        let config = format!(
            "state-directory = {:?}\nsocket = {:?}\ndefault-image = \"host\"\n[source]\ndirectory = {:?}\nsecrets-directory = {:?}\n\
             [dhcp]\nmode = \"server\"\ninterfaces = [\"br0\"]\n[[dhcp.subnet]]\nnetwork = \"10.7.0.0/24\"\nranges = \
             [\"10.7.0.100-10.7.0.199\"]\nrouters = [\"{RACK}\"]\n[tftp]\nlisten = \"127.0.0.1:0\"\n[http]\nlisten = \"127.0.0.1:0\"\n[https]\nlisten = \
             \"{RACK}:8443\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n[images.host]\nkernel = {:?}\ninitrd = {:?}\n",
            at("state"),
            at("pxed.sock"),
            at("machines.d"),
            at("secrets"),
            at("kernel"),
            at("initrd"),
        );
        std::fs::write(site.path("pxed.toml"), config).unwrap();
        for name in [CONTROL_PLANE, SECOND, WORKER] {
            let metadata = json!({ "name": name, "labels": { "role": name } });
            site.manifest("Machine", &metadata, &json!({ "provider": "manual" }));
        }
        let mut command = site.rack.command(binary("pxed").unwrap());
        command.args(["run", "--config"]).arg(site.path("pxed.toml"));
        command.env("BEDPLATE_LOG", "info,pxed=debug");
        site.pxed = Some(Process::spawn("pxed", &mut command, &site.path("pxed.log")).unwrap());
        wait::until("the Machines at pxed", LIMIT, || Ok(ask(&site.socket(), "/v1/machines/worker-1").ok()))
            .unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("pxed.sock")
    }

    fn manifest(&self, kind: &str, metadata: &Value, spec: &Value) {
        let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec });
        let name = metadata["name"].as_str().unwrap();
        std::fs::write(self.path(&format!("machines.d/{kind}-{name}.json")), object.to_string()).unwrap();
    }

    /// A configuration for the Machine of that name.
    fn configuration(&self, machine: &str, kubernetes: &Value, network: &str, more: Vec<Value>) {
        let mut kubernetes = kubernetes.clone();
        kubernetes["version"] = json!(version().unwrap());
        kubernetes["kubeletConfiguration"] = kubelet();
        let template = json!({
            "image": { "reference": self.node.reference(), "caBundle": self.node.authority() },
            "kubernetes": kubernetes,
            "container": { "network": network },
            "files": files().into_iter().chain(more).collect::<Vec<_>>(),
            "preKubeadmCommands": [PARAMETERS],
            "healthGate": { "timeoutSeconds": 600, "minReadySeconds": 1 },
        });
        let spec = json!({ "machineSelector": { "matchLabels": { "role": machine } }, "template": template });
        self.manifest("MachineConfiguration", &json!({ "name": machine }), &spec);
    }

    /// A control plane that makes the cluster, with the certificates of its user.
    fn first_control_plane(&self) {
        let authority = self.images.authority().unwrap();
        let mut registration = registration();
        registration["taints"] = json!([]);
        let kubernetes = json!({
            "role": "ControlPlane",
            "apiServerEndpoint": SERVER,
            "clusterConfiguration": { "imageRepository": "10.7.0.1:5001", "encryptionAlgorithm": "ECDSA-P256",
                "dns": { "disabled": true }, "proxy": { "disabled": true } },
            "initConfiguration": { "localAPIEndpoint": { "advertiseAddress": "10.7.0.11" },
                "nodeRegistration": registration },
        });
        let files = registry_files("10.7.0.1:5001", authority).into_iter().chain(shared_files()).collect();
        self.configuration(CONTROL_PLANE, &kubernetes, "Host", files);
    }

    /// A control plane that joins as a worker does, and has what control planes share from a Secret.
    fn second_control_plane(&self, labels: &Value) {
        let mut files = registry_files("10.7.0.1:5001", self.images.authority().unwrap());
        files.push(from_secret(JOIN, "join", "kubeconfig"));
        files.extend(shared_files());
        let kubernetes = json!({ "role": "ControlPlane", "nodeLabels": labels, "joinConfiguration": {
            "discovery": { "file": { "kubeConfigPath": JOIN } }, "nodeRegistration": registration() } });
        self.configuration(SECOND, &kubernetes, "Host", files);
    }

    /// A worker that joins by a kubeconfig from a Secret.
    fn worker(&self, labels: &Value, network: &str) {
        let kubernetes = json!({ "nodeLabels": labels, "joinConfiguration": {
            "discovery": { "file": { "kubeConfigPath": JOIN } }, "nodeRegistration": registration() } });
        self.configuration(WORKER, &kubernetes, network, vec![from_secret(JOIN, "join", "kubeconfig")]);
    }

    /// Runs the commands of the page that begin with this line, with the paths and names of the test. pxed has the same user here.
    fn run_documented(&self, first_line: &str) {
        let (programs, version) = (programs().unwrap(), version().unwrap());
        let own = |name: &str| self.path(name).display().to_string();
        let commands = documented(PAGE, first_line);
        let mut secrets =
            commands.lines().filter(|line| line.contains("install") && line.contains("/etc/bedplate"));
        assert!(secrets.all(|line| line.contains(" -o bedplate ")), "pxed cannot read these:\n{commands}");
        let commands = commands
            .replace("~/.cache/bedplate/kubernetes/v1.34.4-*", &programs.display().to_string())
            .replace("/usr/local/bin", &own("bin"))
            .replace("/root/cluster", &own("cluster"))
            .replace("/etc/bedplate/secrets", &own("secrets"))
            .replace("api.example:6443", SERVER)
            .replace("v1.34.4", &version)
            .replace(" -o bedplate", "");
        let path = format!("{}:{}", own("bin"), std::env::var("PATH").unwrap());
        let mut shell = self.rack.command("sh");
        run(shell.args(["-e", "-c", &commands]).env("PATH", path)).unwrap();
    }

    /// An empty host with a network card on the rack, enrolled by hand.
    fn host(&self, name: &str, last: u8) -> Worker {
        Worker::enroll(&self.rack, &self.socket(), name, last).unwrap()
    }

    fn status(&self, name: &str) -> Value {
        ask(&self.socket(), &format!("/v1/machines/{name}")).unwrap_or_default()["status"].clone()
    }

    fn until(&self, what: &str, name: &str, host: &Worker, reached: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        // Some conditions query the cluster with kubectl.
        let status = || Ok(Some(self.status(name)).filter(|status| reached(status)));
        let found = wait::until_asked(what, LIMIT, status);
        println!("{what}: {:.1} s", started.elapsed().as_secs_f64());
        found.unwrap_or_else(|error| panic!("{error:#}\n{:#}\n{}", self.status(name), host.said()))
    }

    /// kubectl with the administrator's file that the page creates.
    fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut kubectl = self.rack.command(programs()?.join("kubectl"));
        run(kubectl.arg("--kubeconfig").arg(self.path("cluster/admin.conf")).args(arguments))
    }

    fn node(&self, name: &str) -> Value {
        let found = self.kubectl(&["get", "node", name, "-o", "json"]).unwrap_or_default();
        serde_json::from_str(&found).unwrap_or_default()
    }
}

/// Path of a node's join configuration.
const JOIN: &str = "/etc/kubernetes/join.conf";
/// First line of the commands that make a bootstrap token in the new cluster, and a Secret of it.
const JOIN_COMMANDS: &str = "export KUBECONFIG=/root/cluster/admin.conf";

fn from_secret(path: &str, name: &str, key: &str) -> Value {
    let secret = json!({ "namespace": "nodes", "name": name, "key": key });
    json!({ "path": path, "permissions": "0600", "contentFrom": { "secret": secret } })
}

fn shared_files() -> impl Iterator<Item = Value> {
    SHARED
        .into_iter()
        .map(|(file, key)| from_secret(&format!("/etc/kubernetes/pki/{file}"), "control-plane", key))
}

/// Returns the commands of a page that begin with this line.
fn documented<'a>(page: &'a str, first_line: &str) -> &'a str {
    let mut blocks = page.split("\n\n");
    blocks.find(|block| block.trim_start().starts_with(first_line)).unwrap()
}

/// The address that a Node tells.
fn address(node: &Value) -> &str {
    let addresses = node["status"]["addresses"].as_array();
    let internal = addresses.and_then(|all| all.iter().find(|one| one["type"] == "InternalIP"));
    internal.and_then(|one| one["address"].as_str()).unwrap_or_default()
}

/// Runs the commands of the page that copy the files from the slot, and compares the files with those of the user.
fn has_the_shared_files(site: &Site, host: &Host) {
    host.run("sh", &["-e", "-c", documented(PAGE, "cd /var/lib/bedplate/slots/a/state/kubernetes/pki")])
        .unwrap();
    for (file, key) in SHARED {
        let expected = std::fs::read_to_string(site.path(&format!("cluster/pki/{file}"))).unwrap();
        assert_eq!(host.read(&format!("/root/control-plane/{key}")).unwrap(), expected, "{file}");
    }
}

fn members(control: &Worker) -> Vec<Member> {
    Etcd::of(&control.host, &control.network, SERVER_ADDRESS, "a").members().unwrap()
}

fn is_whole(members: &[Member]) -> bool {
    let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    names == [CONTROL_PLANE, SECOND] && members.iter().all(|member| !member.is_learner)
}

/// A second control plane joins, and is repaved once its Node is deleted: etcd has two members then as before.
fn joins_and_is_paved_again(site: &Site, control: &Worker) -> Worker {
    has_the_shared_files(site, &control.host);
    site.second_control_plane(&json!({}));
    let second = site.host(SECOND, 12);
    site.until("the second control plane is applied", SECOND, &second, |status| has_applied(status, 1, "a"));
    assert!(is_ready(&site.node(SECOND)));
    let before = members(control);
    assert!(is_whole(&before), "{before:?}");
    let own = ["--server", "https://10.7.0.12:6443", "get", "--raw", "/readyz"];
    assert_eq!(site.kubectl(&own).unwrap().trim(), "ok");
    let key = site.kubectl(&["get", "node", SECOND, "-o", "yaml"]).unwrap();
    assert!(key.contains("node-role.kubernetes.io/control-plane"), "{key}");

    // A user asks for it, and it is prepared: etcd can lose this member.
    site.second_control_plane(&json!({ "example.com/paved": "again" }));
    let metadata = json!({ "name": SECOND, "labels": { "role": SECOND } });
    let named = json!({ "provider": "manual", "configurationRef": { "name": SECOND, "version": 2 } });
    site.manifest("Machine", &metadata, &named);
    site.until("the next version is prepared", SECOND, &second, |status| {
        let slot = &status["slots"][1];
        slot["state"] == "Prepared" && slot["version"] == 2 && paved(status)["reason"] == "Applied"
    });
    site.kubectl(&["delete", "node", SECOND]).unwrap();
    let again = "the second control plane is paved again";
    site.until(again, SECOND, &second, |status| has_applied(status, 2, "b"));
    assert!(is_ready(&site.node(SECOND)));
    let after = members(control);
    assert!(is_whole(&after) && after[1].id != before[1].id, "{before:?}, {after:?}");
    assert_eq!(site.kubectl(&own).unwrap().trim(), "ok");
    second
}

/// The kubelet's directory is cleared, and the cluster kept by the commands of docs/concepts/node.md.
fn outlasts_its_kubelets_directory(site: &Site, control: &Worker) {
    let unit = "systemd-nspawn@bedplate-a.service";
    control.host.run("systemctl", &["stop", "bedplate-agent.service", unit]).unwrap();
    control.host.run("find", &[&format!("{STATE}/kubelet"), "-mindepth", "1", "-delete"]).unwrap();
    control.host.run("systemctl", &["start", "bedplate-agent.service"]).unwrap();
    let refused = || {
        let log = control.host.read(&format!("{STATE}/log/bedplate/kubeadm.log"))?;
        Ok(log.contains("existed before kubeadm ran; kubeadm is not started").then_some(()))
    };
    wait::until("kubeadm refuses to begin", LIMIT, refused).unwrap();
    // Kernel parameters of a host; these borrow them from a command before kubeadm, which is not run here.
    control.host.run_in_machine("bedplate-a", &["sh", "-c", PARAMETERS]).unwrap();
    let page = include_str!("../../docs/concepts/node.md");
    let commands = ["sh", "-e", "-c", documented(page, "rm /etc/kubernetes/kubelet.conf")];
    println!("{}", control.host.run_in_machine("bedplate-a", &commands).unwrap());
    wait::until_asked("kubeadm has nothing more to do", LIMIT, || {
        Ok(control.host.run("test", &["-e", &format!("{STATE}/kubelet/.bedplate-finished")]).ok())
    })
    .unwrap();
    site.until("the cluster is kept", CONTROL_PLANE, control, |status| {
        paved(status)["reason"] == "Applied" && is_ready(&site.node(CONTROL_PLANE))
    });
    let kubeconfig = control.host.read(&format!("{STATE}/kubernetes/kubelet.conf")).unwrap();
    assert!(kubeconfig.contains("kubelet-client-current.pem"), "its certificate is one that rotates");
    assert!(is_whole(&members(control)));
}

/// A worker whose host was off for longer than its kubelet's certificate lasts.
fn outlasts_its_certificate(site: &Site, control: &Worker, worker: &Worker, slot: &str) {
    let uid = site.node(WORKER)["metadata"]["uid"].clone();
    worker.host.run("systemctl", &["stop", "bedplate-agent.service"]).unwrap();
    let machine = format!("bedplate-{slot}");
    worker.host.run_in_machine(&machine, &["systemctl", "stop", "kubelet.service"]).unwrap();
    let pki = |name: &str| control.host.root().join(&format!("{STATE}/kubernetes/pki/{name}")[1..]);
    let directory = format!("/var/lib/bedplate/slots/{slot}/state/kubelet/pki");
    let link = || worker.host.run("readlink", &[&format!("{directory}/kubelet-client-current.pem")]);
    let before = link().unwrap();
    let (_, current) = before.trim().rsplit_once('/').unwrap();
    let ended = site.path("ended.pem");
    let script = "set -e; echo keyUsage=digitalSignature >\"$1.ext\"; openssl ecparam -name prime256v1 -genkey -noout -out \"$1.key\"; openssl req -new -key \"$1.key\" -subj \
                  \"/O=system:nodes/CN=system:node:$4\" | openssl x509 -req -CA \"$2\" -CAkey \"$3\" -set_serial 7 -days 0 -extfile \"$1.ext\" -out \"$1\"; cat \"$1.key\" \
                  >>\"$1\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).args([&ended, &pki("ca.crt"), &pki("ca.key")]).arg(WORKER);
    run(&mut shell).unwrap();
    worker.host.put(&format!("{directory}/{current}"), &std::fs::read(&ended).unwrap(), 0o600).unwrap();
    worker.host.run_in_machine(&machine, &["systemctl", "start", "--no-block", "kubelet.service"]).unwrap();
    // The token in the slot's own file has expired, too. A user renewed the Secret.
    site.run_documented(JOIN_COMMANDS);
    let join = ["sh", "-c", &format!("sed -i 's/token: ....../token: aaaaaa/' {JOIN}")];
    worker.host.run_in_machine(&machine, &join).unwrap();
    worker.host.run("systemctl", &["start", "bedplate-agent.service"]).unwrap();
    site.until("the certificate is renewed", WORKER, worker, |status| {
        paved(status)["reason"] == "Applied" && link().is_ok_and(|link| link != before)
    });
    let node = wait::until_asked("the Node is Ready", LIMIT, || Ok(Some(site.node(WORKER)).filter(is_ready)))
        .unwrap();
    assert_eq!(node["metadata"]["uid"], uid, "it is the Node that it was");
    let left = worker.host.run("ls", &[&format!("/run/bedplate/slots/{slot}")]).unwrap();
    assert!(!left.contains("bootstrap"), "{left}");
}

#[test]
fn empty_hosts_become_two_control_planes_and_a_worker_without_a_cluster() {
    let fences = examples("page", PAGE).unwrap();
    let first = fences.iter().find(|example| example.text.contains("kind: MachineConfiguration")).unwrap();
    let configuration: Value = serde_saphyr::from_str(first.text.split("---\n").nth(1).unwrap()).unwrap();
    let shared: Vec<Value> = shared_files().collect();
    assert_eq!(
        configuration["spec"]["template"]["files"],
        json!(shared),
        "the files of the page are those of the test"
    );
    let release = format!("kubernetes/{}-*/kubeadm", version().unwrap());
    assert!(PAGE.contains(&release), "the page names another release than {release}");

    let site = Site::start();
    site.run_documented("install -m 0755 ~/.cache/bedplate/kubernetes/");
    site.run_documented("install -d -m 0700 -o bedplate /etc/bedplate/secrets/nodes/control-plane");
    site.first_control_plane();
    let control = site.host(CONTROL_PLANE, 11);
    let status = site.until("the first control plane is applied", CONTROL_PLANE, &control, |status| {
        has_applied(status, 1, "a") && status["nodeRef"]["uid"].is_string()
    });
    assert_eq!(status["nodeRef"]["uid"], status["applied"]["nodeUID"], "{status}");
    site.run_documented(JOIN_COMMANDS);
    // The kubelet creates their mirrors in any order.
    wait::until_asked("the static Pods are in the API", LIMIT, || {
        let pods = site.kubectl(&["get", "pods", "-n", "kube-system", "-o", "name"])?;
        let is_there = |pod: &&str| pods.contains(&format!("{pod}-{CONTROL_PLANE}"));
        let pods = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
        Ok(pods.iter().all(is_there).then_some(()))
    })
    .unwrap();
    assert!(is_ready(&site.node(CONTROL_PLANE)));
    control.host.run("test", &["-d", &format!("{STATE}/etcd/member/wal")]).unwrap();
    control.host.run("test", &["-f", &format!("{STATE}/kubernetes/pki/ca.key")]).unwrap();

    let _second = joins_and_is_paved_again(&site, &control);

    site.worker(&json!({}), "Macvlan");
    let worker = site.host(WORKER, 13);
    let status = site.until("the worker is applied", WORKER, &worker, |status| has_applied(status, 1, "a"));
    let first = status["applied"]["nodeUID"].clone();
    let node = site.node(WORKER);
    assert!(
        is_ready(&node) && address(&node).starts_with("10.7.0.1") && address(&node).len() == 10,
        "{node}"
    );

    // H6: what is edited while the node runs is paved once its Node is gone.
    worker.host.run("systemctl", &["start", "systemd-networkd.service"]).unwrap();
    site.worker(&json!({ "example.com/paved": "again" }), "Veth");
    site.kubectl(&["delete", "node", WORKER]).unwrap();
    let status =
        site.until("the worker is paved again", WORKER, &worker, |status| has_applied(status, 2, "b"));
    let node = site.node(WORKER);
    assert!(is_ready(&node) && status["applied"]["nodeUID"] != first, "{node}");
    assert_eq!(node["metadata"]["labels"]["example.com/paved"], "again");
    // H5: here the agent names them, by its kubelet's right.
    site.until("the Node names its version", WORKER, &worker, |_| {
        let annotations = site.node(WORKER)["metadata"]["annotations"].clone();
        annotations[NODE_CONFIGURATION].is_string() && annotations[NODE_VERSION] == "2"
    });

    assert_eq!(address(&node), "10.7.0.13", "behind its host");
    outlasts_its_certificate(&site, &control, &worker, "b");

    // The cluster is in this slot: it outlives its Node, which its kubelet makes again.
    site.kubectl(&["delete", "node", CONTROL_PLANE]).unwrap();
    site.until("the control plane stays", CONTROL_PLANE, &control, |status| {
        paved(status)["reason"] == "ControlPlaneProtected"
    });
    control.host.run_in_machine("bedplate-a", &["systemctl", "restart", "kubelet.service"]).unwrap();
    site.until("the control plane has its Node again", CONTROL_PLANE, &control, |status| {
        let uid = &status["applied"]["nodeUID"];
        paved(status)["reason"] == "Applied" && *uid == site.node(CONTROL_PLANE)["metadata"]["uid"]
    });
    outlasts_its_kubelets_directory(&site, &control);
    assert!(site.kubectl(&["get", "node", WORKER]).is_ok(), "it is the cluster that it was");
}
