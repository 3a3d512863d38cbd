//! Output of `bedplate-bootstrap` is accepted by the real kubeadm and kubelet: every golden is validated, init and join run
//! dry with the patches applied, against a real API server where one is needed, and labels are refused exactly where the
//! kubelet refuses them. Nothing is started or changed on this machine.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bedplate_api::configuration::KubernetesSpec;
use bedplate_api::id::MachineName;
use bedplate_bootstrap::{
    Discovery, File, InitInput, Input, KUBEADM_CONFIG, PATCHES, Rendered, ca_cert_hashes, init, join,
    reconfigure_kubelet,
};
use bedplate_tests::guard::Directory;
use bedplate_tests::kubernetes::{Kubernetes, programs};
use bedplate_tests::netns::Namespace;
use serde_json::json;

/// The version of the programs here; goldens name others, which only a kubeadm of their own would deploy.
fn version() -> String {
    let directory = programs().unwrap();
    directory.file_name().unwrap().to_str().unwrap().split_once("-etcd").unwrap().0.to_owned()
}

fn program(name: &str) -> Command {
    let programs = programs().unwrap();
    let mut command = Command::new(programs.join(name));
    // kubeadm asks the kubelet for its version.
    command.env("PATH", format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()));
    command
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Output of a command on both streams; it must succeed.
fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    said(&output)
}

fn validates(config: &Path) -> String {
    let mut kubeadm = program("kubeadm");
    succeeds(kubeadm.args(["config", "validate", "--config"]).arg(config))
}

#[test]
fn every_rendered_file_is_valid_for_the_real_kubeadm() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bootstrap/goldens");
    let place = Directory::new("kubeadm").unwrap();
    let (config, kubeconfig) = (place.path().join("kubeadm.yaml"), place.path().join("kubeconfig"));
    fs::write(&kubeconfig, "").unwrap();
    let mut seen = BTreeMap::new();
    for golden in fs::read_dir(goldens).unwrap() {
        let golden = golden.unwrap().path();
        if !golden.to_str().unwrap().ends_with("-kubeadm.yaml") {
            continue;
        }
        let text = fs::read_to_string(&golden).unwrap();
        let text = text.replace("/run/bedplate/kubeconfig", kubeconfig.to_str().unwrap());
        let line = |line: &str| match line.split_once(": ") {
            Some(("kubernetesVersion", _)) => format!("kubernetesVersion: {}", version()),
            _ => line.to_owned(),
        };
        fs::write(&config, text.lines().map(line).collect::<Vec<_>>().join("\n")).unwrap();
        // Unknown fields are errors here; v1beta3 is deprecated and read all the same.
        validates(&config);
        let api_version = text.lines().find(|line| line.starts_with("apiVersion: ")).unwrap().to_owned();
        *seen.entry(api_version).or_insert(0) += 1;
    }
    assert_eq!(
        seen,
        BTreeMap::from([
            ("apiVersion: kubeadm.k8s.io/v1beta3".to_owned(), 4),
            ("apiVersion: kubeadm.k8s.io/v1beta4".to_owned(), 4),
        ])
    );
}

/// Writes rendered files below a directory, where they name each other too, and gives the configuration.
fn write(files: &[File], root: &Path) -> PathBuf {
    let here = |text: &str| {
        let config = root.join("kubeadm.yaml").display().to_string();
        let patches = root.join("patches").display().to_string();
        text.replace(KUBEADM_CONFIG, &config).replace(PATCHES, &patches)
    };
    for file in files {
        let path = PathBuf::from(here(&file.path));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, here(&file.content)).unwrap();
    }
    root.join("kubeadm.yaml")
}

fn name() -> MachineName {
    "server-1".parse().unwrap()
}

fn spec(value: serde_json::Value) -> KubernetesSpec {
    serde_json::from_value(value).unwrap()
}

/// The kubelet's configuration and arguments of a dry run.
fn kubelet_files(dry_run: &Path) -> (serde_json::Value, String) {
    let read = |name: &str| fs::read_to_string(dry_run.join(name)).unwrap();
    (yaml(&read("config.yaml")), read("kubeadm-flags.env"))
}

/// YAML as kubectl reads it.
fn yaml(text: &str) -> serde_json::Value {
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines.map(|(name, value)| (name.to_owned(), json!(value.trim_matches('"')))).collect()
}

#[test]
fn dry_run_of_init_applies_the_patch_and_the_arguments() {
    let namespace = Namespace::new("kubeadm").unwrap();
    // An address to advertise (192.0.2.0/24: RFC 5737).
    namespace.add_bridge("br0", Some(("192.0.2.1".parse().unwrap(), 24))).unwrap();
    let place = Directory::new("kubeadm").unwrap();
    let kubernetes = spec(json!({
        "version": version(), "role": "ControlPlane", "nodeLabels": {"example.com/rack": "r1"},
        "kubeletConfiguration": {"maxPods": 50},
        "initConfiguration": {
            "localAPIEndpoint": {"advertiseAddress": "192.0.2.1"},
            "nodeRegistration": {"ignorePreflightErrors": ["all"]},
        },
        "clusterConfiguration": {"encryptionAlgorithm": "ECDSA-P256"},
    }));
    let rendered = init(&InitInput {
        node_name: &name(),
        provider_id: "bedplate://server-1",
        kubernetes: &kubernetes,
        cri_socket: "/run/bedplate-test/containerd.sock",
    })
    .unwrap();
    let config = write(&rendered.files, place.path());
    validates(&config);
    let dry_run = place.path().join("dry-run");
    fs::create_dir(&dry_run).unwrap();
    let mut kubeadm = namespace.command(programs().unwrap().join("kubeadm"));
    kubeadm.env("PATH", path_with_programs()).env("KUBEADM_INIT_DRYRUN_DIR", &dry_run);
    succeeds(kubeadm.args(["init", "--dry-run", "--config"]).arg(&config));
    let (configuration, arguments) = kubelet_files(&dry_run);
    assert_eq!(
        (&configuration["maxPods"], &configuration["rotateCertificates"]),
        (&json!("50"), &json!("true"))
    );
    assert!(arguments.contains("--provider-id=bedplate://server-1"), "{arguments}");
    assert!(arguments.contains("--node-labels=example.com/rack=r1"), "{arguments}");
}

fn path_with_programs() -> String {
    format!("{}:{}", programs().unwrap().display(), std::env::var("PATH").unwrap())
}

/// A cluster that has what kubeadm init leaves in one, as far as a join reads it.
struct Cluster {
    kubernetes: Kubernetes,
    place: Directory,
}

const TOKEN: &str = "abcdef.0123456789abcdef";

impl Cluster {
    fn start() -> Self {
        let mut kubernetes = Kubernetes::start().unwrap();
        kubernetes.start_controllers(&["bootstrap-signer-controller"]).unwrap();
        let cluster = Self { kubernetes, place: Directory::new("kubeadm").unwrap() };
        // upload-config notes the container runtime on the first control plane's Node.
        let node = cluster.place.path().join("node.json");
        let metadata = json!({
            "name": "first",
            "labels": {"kubernetes.io/hostname": "first"},
            "annotations": {"kubeadm.alpha.kubernetes.io/cri-socket": "unix:///run/containerd/containerd.sock"},
        });
        let document = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
        fs::write(&node, document.to_string()).unwrap();
        cluster.kubectl(&["create", "-f", node.to_str().unwrap()]);
        let config = cluster.place.path().join("init.yaml");
        let documents = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: {{advertiseAddress: 192.0.2.1}}\n\
             nodeRegistration: {{name: first, criSocket: unix:///run/containerd/containerd.sock}}\n\
             bootstrapTokens: [{{token: {TOKEN}}}]\n---\n\
             apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: {}\ncontrolPlaneEndpoint: {}\n",
            version(),
            cluster.kubernetes.address(),
        );
        fs::write(&config, documents).unwrap();
        for phase in [["upload-config", "all"].as_slice(), &["bootstrap-token"]] {
            let mut kubeadm = program("kubeadm");
            kubeadm.args(["init", "phase"]).args(phase).arg("--config").arg(&config);
            succeeds(kubeadm.arg("--kubeconfig").arg(cluster.kubernetes.admin()));
        }
        cluster
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.kubernetes.kubectl(&self.kubernetes.admin(), arguments).unwrap()
    }

    fn rendered(&self, discovery: Discovery<'_>) -> Rendered {
        let kubernetes = spec(json!({
            "version": version(),
            "nodeLabels": {"example.com/rack": "r1"},
            "taints": [{"key": "example.com/gpu", "value": "yes", "effect": "NoSchedule"}],
            "kubeletConfiguration": {"maxPods": 50},
            "joinConfiguration": {
                "nodeRegistration": {"ignorePreflightErrors": ["all"]},
                "timeouts": {"discovery": "60s"},
            },
        }));
        join(&Input {
            node_name: &name(),
            provider_id: "bedplate://server-1",
            kubernetes: &kubernetes,
            cri_socket: "/run/bedplate-test/containerd.sock",
            discovery,
        })
        .unwrap()
    }

    /// Joins as a dry run, and checks the kubelet's files.
    fn joins(&self, discovery: Discovery<'_>, case: &str) {
        let root = self.place.path().join(case);
        let dry_run = root.join("dry-run");
        fs::create_dir_all(&dry_run).unwrap();
        let config = write(&self.rendered(discovery).files, &root);
        validates(&config);
        // Its checks find the API server, believe it and read the cluster's configuration, and change nothing.
        succeeds(program("kubeadm").args(["join", "phase", "preflight", "--config"]).arg(&config));
        let mut kubeadm = program("kubeadm");
        kubeadm.args(["join", "--dry-run", "--config"]).arg(&config).env("KUBEADM_JOIN_DRYRUN_DIR", &dry_run);
        let said = succeeds(&mut kubeadm);
        let (configuration, arguments) = kubelet_files(&dry_run);
        assert_eq!(
            (&configuration["maxPods"], &configuration["serverTLSBootstrap"]),
            (&json!("50"), &json!("true")),
            "{said}"
        );
        for argument in [
            "--provider-id=bedplate://server-1",
            "--node-labels=example.com/rack=r1",
            "--register-with-taints=example.com/gpu=yes:NoSchedule",
        ] {
            assert!(arguments.contains(argument), "{arguments}");
        }
    }
}

#[test]
fn dry_run_of_join_reads_the_cluster_by_file_and_by_token() {
    let cluster = Cluster::start();
    // Trust 5: a certificate of the kubelet, no token, and no rights but kubeadm's own for Nodes.
    let kubelet = cluster.kubernetes.user("system:node:server-1", &["system:nodes"]).unwrap();
    cluster.joins(Discovery::File { kubeconfig_path: kubelet.to_str().unwrap() }, "file");

    let hashes = ca_cert_hashes(&fs::read_to_string(cluster.kubernetes.ca()).unwrap()).unwrap();
    let endpoint = cluster.kubernetes.address().to_string();
    cluster.joins(Discovery::Token { endpoint: &endpoint, token: TOKEN, ca_cert_hashes: &hashes }, "token");

    // A hash of another CA: kubeadm does not believe the server.
    let hashes = [format!("sha256:{}", "0a".repeat(32))];
    let other = Discovery::Token { endpoint: &endpoint, token: TOKEN, ca_cert_hashes: &hashes };
    let mut rendered = cluster.rendered(other);
    rendered.files[0].content = rendered.files[0].content.replace("60s", "1s");
    let config = write(&rendered.files, &cluster.place.path().join("other"));
    let mut kubeadm = program("kubeadm");
    let output = kubeadm.args(["join", "phase", "preflight", "--config"]).arg(&config).output().unwrap();
    assert!(!output.status.success() && said(&output).contains("pinned"), "{}", said(&output));

    running_kubelet_gets_a_new_configuration(&cluster);
}

/// As the kubelet of a Node that has joined.
fn running_kubelet_gets_a_new_configuration(cluster: &Cluster) {
    let root = cluster.place.path().join("running");
    let kubernetes = spec(json!({"version": version(), "kubeletConfiguration": {"maxPods": 60}}));
    let how = reconfigure_kubelet(&kubernetes).unwrap();
    write(&[how.file], &root);
    let kubelet = cluster.kubernetes.user("system:node:first", &["system:nodes"]).unwrap();
    let patches = root.join("patches");
    let mut arguments: Vec<&OsStr> = how.command.iter().map(OsStr::new).collect();
    for argument in &mut arguments {
        match argument.to_str().unwrap() {
            "/etc/kubernetes/kubelet.conf" => *argument = kubelet.as_os_str(),
            PATCHES => *argument = patches.as_os_str(),
            _ => {}
        }
    }
    assert_eq!(arguments[0], "kubeadm");
    // kubeadm takes the host name for the Node's, as it is in a slot.
    let mut kubeadm = Command::new("unshare");
    kubeadm
        .args(["--uts", "sh", "-c", "hostname first && exec \"$@\"", "sh"])
        .env("PATH", path_with_programs());
    let said = succeeds(kubeadm.args(&arguments).arg("--dry-run"));
    assert!(said.contains("maxPods: 60"), "{said}");
}

#[test]
fn labels_are_refused_exactly_where_the_kubelet_refuses_them() {
    let long = "a".repeat(64);
    for (key, value) in [
        ("tier", "gold"),
        ("example.com/rack", ""),
        ("node.kubernetes.io/x", "x"),
        ("x.kubelet.kubernetes.io/x", "x"),
        ("kubernetes.io/hostname", "x"),
        ("beta.kubernetes.io/instance-type", "x"),
        ("notkubernetes.io/x", "x"),
        ("node-role.kubernetes.io/worker", "x"),
        ("node-restriction.kubernetes.io/x", "x"),
        ("kubernetes.io/x", "x"),
        ("a.k8s.io/x", "x"),
        ("a/b/c", "x"),
        ("Example.com/x", "x"),
        ("a_.", "x"),
        ("a", "-x"),
        (&long, "x"),
        ("a", &long),
    ] {
        let mut kubelet = program("kubelet");
        // Labels are checked first; then it ends, since there is no such file.
        kubelet.arg(format!("--node-labels={key}={value}")).arg("--config=/nonexistent/config.yaml");
        let said = said(&kubelet.output().unwrap());
        let refused = said.contains("validate kubelet flags");
        assert!(refused || said.contains("/nonexistent/config.yaml"), "{said}");

        let kubernetes = spec(json!({"version": version(), "nodeLabels": {key: value}}));
        let rendered = join(&Input {
            node_name: &name(),
            provider_id: "bedplate://server-1",
            kubernetes: &kubernetes,
            cri_socket: "/run/containerd/containerd.sock",
            discovery: Discovery::File { kubeconfig_path: "/run/bedplate/kubeconfig" },
        });
        assert_eq!(rendered.is_err(), refused, "{key}={value}: {said}");
    }
}
