//! A host in namespaces that is enrolled in a real cluster, with the real agent in its own unit and our node image: everything of a
//! node but a kubelet, which such a host cannot run. Its place, and kubeadm's, is taken by scripts that the version itself brings;
//! so is runc's, which needs control groups of its own.
//!
//! Its caller acts as the controller, and registers the Node. Called by `agent_node` and by the bench of the agent.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::guard::run;
use crate::host::Host;
use crate::kubernetes::{Credentials, Kubernetes, Objects};
use crate::netns::Namespace;
use crate::objects;
use crate::pxed::{binary, cache};
use crate::registry::Registry;

/// Maximum time to unpack layers and boot a container, on a busy machine.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(180);
/// Controllers that approve and sign the certificate of a kubelet, which an agent requests.
const CONTROLLERS: [&str; 2] = ["csrapproving", "csrsigning"];
/// The host's Machine and Node.
pub const NAME: &str = "node-1";
/// A kubeadm that is content: the kubelet's configuration, then the kubelet.
pub const JOINS: &str =
    "echo joined as a test says; touch /var/lib/kubelet/config.yaml; systemctl start kubelet.service";
/// File that the kubelet's stand-in writes when it listens, in the node.
pub const STARTED: &str = "var/lib/kubelet/started";

const UNIT: &str = include_str!("../../systemd/bedplate-agent.service");
const ENROLLMENT: &str = "/var/lib/bedplate/agent/enrollment.json";
const KEY: &str = "/var/lib/bedplate/agent/key.pem";
/// Takes the kubelet's place: says that it is well, on the loopback, and at the port where the API server would look for it.
const KUBELET: &str = r#"#!/usr/bin/perl
use IO::Socket::INET;
my ($address, $port) = fork ? ("127.0.0.1", 10248) : ("0.0.0.0", 10250);
my $server = IO::Socket::INET->new(LocalAddr => $address, LocalPort => $port, Listen => 5, ReuseAddr => 1) or die $!;
open my $started, ">", "/var/lib/kubelet/started" or die $!;
close $started;
while (my $client = $server->accept) { <$client>; print $client "HTTP/1.0 200 OK\r\n\r\nok"; close $client; }
"#;
const KUBELET_UNIT: &str =
    "[Service]\nExecStart=\nExecStart=/usr/local/sbin/kubelet-stand-in\nRestart=always\n";

/// Takes runc's place, for which there are no control groups here: a container is a process that sleeps. containerd, its shim and the
/// network plug-in are real.
const RUNC: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
        create|start|kill|delete|state) act=$1 ;;
        --pid-file) file=$2 && shift ;;
        --pid-file=*) file=${1#*=} ;;
        --root|--log|--log-format|--bundle|--console-socket) shift ;;
        -*) ;;
        *) [ -n "${id-}" ] || id=$1 ;;
    esac
    shift
done
mkdir -p /run/stand-in
pid=/run/stand-in/$id
case $act in
    create) setsid sleep infinity </dev/null >/dev/null 2>&1 & printf %s $! >"$pid" && cp "$pid" "$file" ;;
    kill|delete) kill -9 "$(cat "$pid")" 2>/dev/null; [ "$act" = kill ] || rm -f "$pid" ;;
    state) printf '{"ociVersion":"1.0.2","id":"%s","pid":%s,"status":"running"}' "$id" "$(cat "$pid")" ;;
esac
exit 0
"#;

/// A cluster and a host that is enrolled in it. The agent is not started yet.
#[derive(Debug)]
pub struct AgentHost {
    /// The host.
    pub host: Host,
    /// The API server, in the host's network.
    pub kubernetes: Kubernetes,
    registry: Registry,
    /// The host's network.
    pub network: Namespace,
}

impl AgentHost {
    /// Starts all of it; the agent will report each `heartbeat` seconds.
    ///
    /// # Errors
    /// Something is missing (the message has the remedy), or does not start.
    pub fn start(heartbeat: u32) -> Result<Self> {
        Self::start_in(Namespace::new("agentnode")?, None, heartbeat)
    }

    /// Starts a host in a network of the caller's, with the API server and the registry at `elsewhere`: at this address of that network.
    ///
    /// # Errors
    /// As of [`Self::start`].
    pub fn start_in(
        network: Namespace,
        elsewhere: Option<(&Namespace, Ipv4Addr)>,
        heartbeat: u32,
    ) -> Result<Self> {
        let (services, address) = elsewhere.unwrap_or((&network, Ipv4Addr::LOCALHOST));
        let mut kubernetes = Kubernetes::installed_inside(services, IpAddr::V4(address))?;
        kubernetes.start_controllers(&CONTROLLERS)?;
        let image = image()?;
        let registry = Registry::start_tls(&image, services, (address, 5000).into())?;
        let host = start_host(NAME, &network)?;
        let site = Self { host, kubernetes, registry, network };
        // In the place of bedplate-controller. The policy of agents is in force.
        let nodeclient = "system:certificates.k8s.io:certificatesigningrequests:nodeclient";
        site.apply(&json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "approved" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": nodeclient },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "bedplate:machines" }] }))?;
        site.enroll(&site.host, NAME, "52:54:00:00:00:01", heartbeat)?;
        Ok(site)
    }

    fn apply(&self, object: &Value) -> Result<()> {
        self.objects()?.apply(object).map(drop)
    }

    /// Returns access to the cluster's objects with all permissions.
    ///
    /// # Errors
    /// The API server is still starting.
    pub fn objects(&self) -> Result<&Objects> {
        self.kubernetes.objects()
    }

    /// Returns the registry with the node image.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Merges into the status of the Machine or of the Node.
    ///
    /// # Errors
    /// It is refused.
    pub fn patch(&self, kind: &str, status: &Value) -> Result<()> {
        self.objects()?.merge_status(kind, NAME, status).map(drop)
    }

    /// Starts another host in this network and enrolls it in the same cluster. Its agent is not started yet.
    ///
    /// # Errors
    /// As of [`Self::start`].
    pub fn add_host(&self, name: &str, network: &Namespace, mac: &str, heartbeat: u32) -> Result<Host> {
        let host = start_host(name, network)?;
        self.enroll(&host, name, mac, heartbeat)?;
        Ok(host)
    }

    /// Creates the Machine of a host, and enrolls the host with a new key.
    fn enroll(&self, host: &Host, name: &str, mac: &str, heartbeat: u32) -> Result<()> {
        self.apply(&objects::machine(name).pxe(mac).json())?;
        let agent =
            self.kubernetes.certificate(&format!("bedplate:machine:{name}"), &["bedplate:machines"])?;
        let ca = std::fs::read_to_string(self.kubernetes.ca())?;
        let enrollment = json!({
            "machine": name, "site": "default", "bootId": "0".repeat(32), "endpoints": ["https://127.0.0.1:1"],
            "caPem": ca, "certificatePem": agent.certificate,
            "notBefore": "2020-01-01T00:00:00Z", "notAfter": "2099-01-01T00:00:00Z", "heartbeatSeconds": heartbeat,
            "kubernetes": { "server": format!("https://{}", self.kubernetes.address()), "caPem": ca },
        });
        for (file, content) in [(ENROLLMENT, enrollment.to_string()), (KEY, agent.key.clone())] {
            host.put(file, content.as_bytes(), 0o600)?;
        }
        let enrollment = self.kubernetes.enrollment(&agent)?;
        self.objects()?.merge_status("machine", name, &json!({ "enrollment": enrollment })).map(drop)
    }

    /// Creates a kubeconfig with the credential of an enrolled host, as a thief in its root file system has it.
    ///
    /// # Errors
    /// The host is not enrolled, or the file cannot be written.
    pub fn stolen_credential(&self, host: &Host, name: &str) -> Result<PathBuf> {
        let enrollment: Value = serde_json::from_str(&host.read(ENROLLMENT)?)?;
        let certificate = enrollment["certificatePem"].as_str().context("no certificate")?.to_owned();
        let credentials = Credentials { certificate, key: host.read(KEY)? };
        self.kubernetes.kubeconfig_with(&format!("stolen-{name}"), &credentials)
    }

    /// Makes a version whose kubeadm does this.
    ///
    /// # Errors
    /// The node image is missing, or the version is refused.
    pub fn version(&self, number: u32, kubeadm: &str) -> Result<()> {
        self.version_in(number, kubeadm, "Host")
    }

    /// Makes a version in a network of this kind: `Host`, `Macvlan`, `Veth`.
    ///
    /// # Errors
    /// As of [`Self::version`].
    pub fn version_in(&self, number: u32, kubeadm: &str, network: &str) -> Result<()> {
        let files = files(kubeadm);
        let files = files
            .iter()
            .map(|(path, content)| json!({ "path": path, "content": content, "permissions": "0755" }));
        let template = serde_json::from_value(json!({
            "image": { "reference": self.registry.reference(), "caBundle": self.registry.authority() },
            "kubernetes": { "version": "v1.34.4" },
            "files": files.collect::<Vec<_>>(),
            "units": [{ "name": "kubelet.service", "enabled": true,
                "dropins": [{ "name": "99-stand-in.conf", "contents": KUBELET_UNIT }] }],
            "container": { "network": network },
            "healthGate": { "timeoutSeconds": 60, "minReadySeconds": 1 },
        }))?;
        self.apply(&objects::version("workers", number, &template).json())
    }

    /// The agent's metrics, read as docs/guides/operations.md says.
    ///
    /// # Errors
    /// It does not answer, or its socket is open to others than root.
    pub fn metrics(&self) -> Result<String> {
        use std::os::unix::fs::PermissionsExt as _;
        let socket = self.host.root().join("run/bedplate/metrics.sock");
        let mode = std::fs::metadata(&socket)?.permissions().mode() & 0o777;
        ensure!(mode == 0o600, "the socket's mode is {mode:o}");
        let mut curl = Command::new("curl");
        run(curl.args(["-sS", "--fail", "--unix-socket"]).arg(&socket).arg("http://agent/metrics"))
    }

    /// Has the Machine run a version.
    ///
    /// # Errors
    /// It is refused.
    pub fn select(&self, number: u32) -> Result<()> {
        let selected = json!({ "name": "workers", "version": number, "source": "Reference" });
        self.patch("machine", &json!({ "selected": selected }))
    }

    /// The Machine's status.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn status(&self) -> Result<Value> {
        Ok(self.objects()?.get("machine", NAME)?.context("the Machine is gone")?["status"].clone())
    }

    /// Does what a kubelet would do, and the controller after it.
    ///
    /// # Errors
    /// It is refused.
    pub fn register_node(&self) -> Result<()> {
        self.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NAME } }))?;
        self.set_ready("True")?;
        let node = self.objects()?.get("node", NAME)?.context("the Node is gone")?;
        self.patch("machine", &json!({ "nodeRef": { "name": NAME, "uid": node["metadata"]["uid"] } }))
    }

    /// Says of the Node whether it is Ready: `True`, or `Unknown` as when its kubelet is silent.
    ///
    /// # Errors
    /// It is refused.
    pub fn set_ready(&self, ready: &str) -> Result<()> {
        let condition = json!({ "type": "Ready", "status": ready, "reason": "Told", "message": "as a test says",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z" });
        self.patch("node", &json!({ "conditions": [condition] }))
    }

    /// Deletes the Node, and takes it back from the Machine as the controller does.
    ///
    /// # Errors
    /// There is none.
    pub fn delete_node(&self) -> Result<()> {
        self.objects()?.delete("node", NAME)?;
        self.patch("machine", &json!({ "nodeRef": null }))
    }

    /// Waits for a status, and prints how long it took.
    ///
    /// # Errors
    /// It does not come; what the agent and kubeadm said is in the message.
    pub fn until(&self, what: &str, reached: impl Fn(&Value) -> bool) -> Result<()> {
        let started = Instant::now();
        let is_reached = |machine: Option<&Value>| reached(&machine?["status"]).then_some(());
        self.objects()?.until(("machine", NAME), NODE_TIMEOUT, is_reached).with_context(|| {
            let fields = "--output-fields=MESSAGE,BEDPLATE_STEP,BEDPLATE_SLOT,BEDPLATE_RESULT,BEDPLATE_ERROR,BEDPLATE_WHY,BEDPLATE_DURATION_MS";
            let arguments = ["--unit=bedplate-agent.service", "--no-pager", "--output=json", fields];
            let journal = self.host.run("journalctl", &arguments).unwrap_or_default();
            let log = "tail -n 40 /var/lib/bedplate/slots/*/state/log/bedplate/kubeadm.log";
            let status = self.status().unwrap_or_default();
            format!("not reached: {what}: {status:#}\n{journal}\n{:?}", self.host.run("sh", &["-c", log]))
        })?;
        println!("{what}: {:.1} s", started.elapsed().as_secs_f64());
        Ok(())
    }

    /// Waits until the trial waits for its Node, and registers it.
    ///
    /// # Errors
    /// It does not come that far.
    pub fn until_node_is_pending(&self) -> Result<()> {
        let pending = |status: &Value| {
            let message = paved(status)["message"].as_str().unwrap_or_default().to_owned();
            message.contains("the Node has not registered")
        };
        self.until("kubeadm and kubelet have started, the container runtime is ready", pending)?;
        self.register_node()
    }
}

/// Starts a host with the agent's program and unit, and with the node image.
fn start_host(name: &str, network: &Namespace) -> Result<Host> {
    let host = Host::prepare(name)?
        .network(network)
        .bind(&binary("bedplate-agent")?, "/srv/bedplate-agent")
        .bind(&image()?, "/srv/node-image")
        .file("/etc/systemd/system/bedplate-agent.service", UNIT.as_bytes(), 0o644)?
        .file("/etc/resolv.conf", b"nameserver 192.0.2.1\n", 0o644)?
        .file("/usr/lib/modules/none", b"", 0o644)?
        .start()?;
    // In memory, as on a host that was netbooted: a disk's file system maps more of it than is used.
    host.run("install", &["/srv/bedplate-agent", "/usr/bin/bedplate-agent"])?;
    Ok(host)
}

/// The condition `Paved` of a status; null if there is none yet.
pub fn paved(status: &Value) -> Value {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == "Paved").unwrap_or_default()
}

/// Returns true if a status says that this version is applied in this slot.
pub fn has_applied(status: &Value, version: u32, slot: &str) -> bool {
    let applied = &status["applied"];
    applied["version"] == version && applied["slot"] == slot
}

/// The node image of `cargo xtask image node`, as an OCI layout.
///
/// # Errors
/// It is not there.
pub fn image() -> Result<PathBuf> {
    let image = cache()?.join("images/node");
    ensure!(image.is_dir(), "{} is missing: run `cargo xtask image node`", image.display());
    Ok(image)
}

/// The programs and settings that a version brings into its node, with a kubeadm that does this; each is executable.
pub fn files(kubeadm: &str) -> [(&'static str, String); 4] {
    let network = json!({ "cniVersion": "0.4.0", "name": "pods", "type": "bridge", "bridge": "cni0", "isGateway": true,
        "ipam": { "type": "host-local", "subnet": "10.99.0.0/24" } });
    [
        ("/usr/local/sbin/kubeadm", format!("#!/bin/sh\n{kubeadm}\n")),
        ("/usr/local/sbin/kubelet-stand-in", KUBELET.to_owned()),
        ("/etc/cni/net.d/05-pods.conf", network.to_string()),
        ("/usr/local/sbin/runc", RUNC.to_owned()),
    ]
}

/// Makes the node by commands of the shell in a directory: the files, and a kubelet that starts by itself.
///
/// # Errors
/// A file cannot be written.
pub fn fill(root: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let put = |path: &str, content: &str| -> Result<()> {
        let path = root.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().context("a folder")?)?;
        std::fs::write(&path, content)?;
        Ok(std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?)
    };
    for (path, content) in files(JOINS) {
        put(path, &content)?;
    }
    put("/etc/systemd/system/kubelet.service.d/99-stand-in.conf", KUBELET_UNIT)?;
    // The image enables kubelet.service; it waits for a configuration only.
    put("/var/lib/kubelet/config.yaml", "")?;
    Ok(())
}
