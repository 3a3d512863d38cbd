//! A node from nothing on a real host: systemd 252, machined and nspawn in namespaces, a real API server, our node image with its
//! real containerd, and the real agent in its own unit. No virtual machine, and therefore no kubelet: its place, and kubeadm's, is
//! taken by scripts that the version itself brings; so is runc's, which needs control groups of its own. The test is the controller,
//! and registers the Node.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "kubernetes/cluster.rs"]
mod cluster;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine as _;
use bedplate_tests::guard::{Directory, run};
use bedplate_tests::host::Host;
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::netns::Namespace;
use bedplate_tests::pxed::{binary, cache};
use bedplate_tests::wait;
use cluster::machine;
use serde_json::{Value, json};

/// Layers are unpacked and a container boots, on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);
const NAME: &str = "node-1";
const UNIT: &str = include_str!("../../systemd/bedplate-agent.service");
/// Takes the kubelet's place: says that it is well.
const KUBELET: &str = r#"#!/usr/bin/perl
use IO::Socket::INET;
my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 10248, Listen => 5, ReuseAddr => 1) or die $!;
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

/// A cluster and a host that is enrolled in it.
struct Site {
    host: Host,
    kubernetes: Kubernetes,
    directory: Directory,
    _network: Namespace,
}

impl Site {
    fn start() -> Self {
        let network = Namespace::new("agentnode").unwrap();
        let kubernetes = Kubernetes::start_inside(&network, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        kubernetes.install().unwrap();
        let image = cache().unwrap().join("images/node");
        assert!(image.is_dir(), "{} is missing: run `cargo xtask image node`", image.display());
        let host = Host::prepare(NAME)
            .unwrap()
            .network(&network)
            .bind(&binary("bedplate-agent").unwrap(), "/usr/bin/bedplate-agent")
            .bind(&image, "/srv/node-image")
            .file("/etc/systemd/system/bedplate-agent.service", UNIT.as_bytes(), 0o644)
            .unwrap()
            .file("/etc/resolv.conf", b"nameserver 192.0.2.1\n", 0o644)
            .unwrap()
            .file("/usr/lib/modules/none", b"", 0o644)
            .unwrap()
            .start()
            .unwrap();
        let site =
            Self { host, kubernetes, directory: Directory::new("agentnode").unwrap(), _network: network };
        site.apply(&machine(NAME));
        site.enrol();
        site
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.kubernetes.kubectl(&self.kubernetes.admin(), arguments).unwrap()
    }

    fn apply(&self, object: &Value) {
        let path = self.directory.path().join("object.json");
        std::fs::write(&path, object.to_string()).unwrap();
        self.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &path.display().to_string()]);
    }

    fn patch(&self, kind: &str, status: &Value) {
        let patch = json!({ "status": status }).to_string();
        self.kubectl(&["patch", kind, NAME, "--subresource=status", "--type=merge", "-p", &patch]);
    }

    fn enrol(&self) {
        let kubeconfig =
            self.kubernetes.user(&format!("bedplate:machine:{NAME}"), &["bedplate:machines"]).unwrap();
        let view = ["config", "view", "--raw", "-o", "json"];
        let config: Value =
            serde_json::from_str(&self.kubernetes.kubectl(&kubeconfig, &view).unwrap()).unwrap();
        let decode = |value: &Value| {
            let bytes = base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap()).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        let (user, server) = (&config["users"][0]["user"], &config["clusters"][0]["cluster"]);
        let ca = decode(&server["certificate-authority-data"]);
        let enrolment = json!({
            "machine": NAME, "site": "default", "bootId": "0".repeat(32), "endpoints": ["https://127.0.0.1:1"],
            "caPem": ca, "certificatePem": decode(&user["client-certificate-data"]),
            "notBefore": "2020-01-01T00:00:00Z", "notAfter": "2099-01-01T00:00:00Z", "heartbeatSeconds": 5,
            "kubernetes": { "server": server["server"], "caPem": ca },
        });
        let key = self.directory.path().join("key.pem");
        std::fs::write(&key, decode(&user["client-key-data"])).unwrap();
        let mut openssl = Command::new("openssl");
        let key = run(openssl.args(["pkcs8", "-topk8", "-nocrypt", "-in"]).arg(&key)).unwrap();
        for (name, content) in [("enrolment.json", enrolment.to_string()), ("key.pem", key)] {
            self.host.put(&format!("/var/lib/bedplate/agent/{name}"), content.as_bytes(), 0o600).unwrap();
        }
        let who = self.kubernetes.kubectl(&kubeconfig, &["auth", "whoami", "-o", "json"]).unwrap();
        let who: Value = serde_json::from_str(&who).unwrap();
        let id = who["status"]["userInfo"]["extra"]["authentication.kubernetes.io/credential-id"][0].clone();
        let fingerprint = id.as_str().and_then(|id| id.strip_prefix("X509SHA256=")).unwrap();
        self.patch("machine", &json!({ "enrolment": { "certificateFingerprint": fingerprint } }));
    }

    /// A version whose kubeadm does this.
    fn version(&self, number: u32, kubeadm: &str) {
        let index = std::fs::read(cache().unwrap().join("images/node/index.json")).unwrap();
        let index: Value = serde_json::from_slice(&index).unwrap();
        let digest = index["manifests"][0]["digest"].as_str().unwrap().to_owned();
        let script =
            |path: &str, content: &str| json!({ "path": path, "content": content, "permissions": "0755" });
        let network = json!({ "cniVersion": "0.4.0", "name": "pods", "type": "bridge", "bridge": "cni0", "isGateway": true,
            "ipam": { "type": "host-local", "subnet": "10.99.0.0/24" } }).to_string();
        let spec = json!({ "configurationName": "workers", "version": number, "template": {
            "image": { "reference": format!("oci:/srv/node-image@{digest}") },
            "kubernetes": { "version": "v1.34.4" },
            "files": [
                script("/usr/local/sbin/kubeadm", &format!("#!/bin/sh\n{kubeadm}\n")),
                script("/usr/local/sbin/kubelet-stand-in", KUBELET),
                script("/etc/cni/net.d/05-pods.conf", &network),
                script("/usr/local/sbin/runc", RUNC),
            ],
            "units": [{ "name": "kubelet.service", "enabled": true,
                "dropins": [{ "name": "99-stand-in.conf", "contents": KUBELET_UNIT }] }],
            "healthGate": { "timeoutSeconds": 60, "nodeReadySeconds": 1 },
        } });
        self.apply(&json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfigurationVersion",
            "metadata": { "name": format!("workers-v{number}") }, "spec": spec }));
    }

    fn select(&self, number: u32) {
        let selected = json!({ "name": "workers", "version": number, "by": "Reference" });
        self.patch("machine", &json!({ "selected": selected }));
    }

    fn status(&self) -> Value {
        let object = self.kubectl(&["get", "machine", NAME, "-o", "json"]);
        serde_json::from_str::<Value>(&object).unwrap()["status"].clone()
    }

    fn paved(&self) -> Value {
        let status = self.status();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == "Paved").unwrap_or_default()
    }

    /// What a kubelet would do.
    fn register_node(&self) {
        self.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NAME } }));
        let ready = json!([{ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "as a test says",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z" }]);
        self.patch("node", &json!({ "conditions": ready }));
    }

    fn until(&self, what: &str, reached: impl Fn(&Value) -> bool) {
        let started = Instant::now();
        let got = wait::until(what, LIMIT, || Ok(reached(&self.status()).then_some(())));
        if got.is_err() {
            let fields = "--output-fields=MESSAGE,BEDPLATE_STEP,BEDPLATE_SLOT,BEDPLATE_RESULT,BEDPLATE_ERROR,BEDPLATE_WHY,BEDPLATE_DURATION_MS";
            let arguments = ["--unit=bedplate-agent.service", "--no-pager", "--output=json", fields];
            let journal = self.host.run("journalctl", &arguments).unwrap_or_default();
            let slot = self
                .host
                .run("sh", &["-c", "tail -n 40 /var/lib/bedplate/slots/*/state/log/bedplate/kubeadm.log"]);
            panic!("not reached: {what}: {:#}\n{journal}\n{slot:?}", self.status());
        }
        println!("{what}: {:.1} s", started.elapsed().as_secs_f64());
    }

    /// Waits until the trial awaits its Node, and registers it.
    fn until_node_is_awaited(&self) {
        let awaited = |_: &Value| {
            let message = self.paved()["message"].as_str().unwrap_or_default().to_owned();
            message.contains("the Node has not registered")
        };
        self.until("kubeadm and kubelet have started, the container runtime is ready", awaited);
        self.register_node();
    }
}

fn has_applied(status: &Value, version: u32, slot: &str) -> bool {
    let applied = &status["applied"];
    applied["version"] == version && applied["slot"] == slot
}

#[test]
fn a_host_is_paved_repaved_and_rolled_back_by_an_agent_in_its_own_unit() {
    let site = Site::start();
    // As kubeadm does it: the kubelet's configuration, then the kubelet.
    let good =
        "echo joined as a test says; touch /var/lib/kubelet/config.yaml; systemctl start kubelet.service";
    site.version(1, good);
    site.version(2, "echo no such cluster >&2; exit 1");
    site.version(3, good);
    site.host.run("systemctl", &["start", "bedplate-agent.service"]).unwrap();
    site.until("nothing is selected", |_| site.paved()["reason"] == "NothingSelected");

    site.select(1);
    site.until_node_is_awaited();
    // The agent's umask is narrow; the node's users must get in nevertheless: its D-Bus is one of them.
    for path in ["/var/lib/machines/bedplate-a", "/var/lib/machines/bedplate-a/etc/cni/net.d"] {
        assert_eq!(site.host.run("stat", &["--format=%a", path]).unwrap().trim(), "755", "{path}");
    }
    site.until("the first version is applied", |status| has_applied(status, 1, "a"));
    let plan = site.host.run("bedplate-agent", &["plan"]).unwrap();
    assert!(plan.contains("Plan"), "{plan}");

    // The next one fails, and the first one runs again.
    site.select(2);
    site.until("the second version is prepared", |status| status["slots"][1]["state"] == "Prepared");
    site.kubectl(&["delete", "node", NAME]);
    site.until("the second version is taken back", |status| {
        status["rolledBack"]["from"]["version"] == 2 && status["slots"][0]["state"] == "Running"
    });
    let reason = site.status()["rolledBack"]["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("no such cluster"), "{reason}");
    site.register_node();

    // The third one, with an agent that is killed on the way.
    site.select(3);
    site.until("the third version is prepared", |status| {
        status["slots"][1]["state"] == "Prepared" && status["slots"][1]["version"] == 3
    });
    site.kubectl(&["delete", "node", NAME]);
    site.until("slot b runs", |status| status["slots"][1]["state"] == "Running");
    site.host.run("systemctl", &["kill", "--signal=KILL", "bedplate-agent.service"]).unwrap();
    site.until_node_is_awaited();
    site.until("the third version is applied", |status| has_applied(status, 3, "b"));
    let status = site.host.run("bedplate-agent", &["status"]).unwrap();
    assert!(status.contains("Slot b            workers-v3, running"), "{status}");
    assert!(Path::new(&site.host.root()).exists());
}
