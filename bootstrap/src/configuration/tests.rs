//! Goldens for each format, and what a version may not say.

use bedplate_api::configuration::KubernetesSpec;
use bedplate_api::id::MachineName;
use serde_json::{Value, json};

use crate::{Discovery, InitInput, Input, JOIN_KUBECONFIG, KUBEADM_CONFIG, Rendered, init, join};

/// A version that says nothing more than it has to.
pub(crate) fn kubernetes(version: &str) -> KubernetesSpec {
    serde_json::from_value(json!({"version": version})).unwrap()
}

/// A worker whose version says what a version can say in this release.
fn worker(version: &str, more: &Value) -> KubernetesSpec {
    let mut value = json!({
        "version": version,
        "nodeLabels": {"example.com/rack": "r1", "node.kubernetes.io/pool": "gold"},
        "nodeAnnotations": {"example.com/note": "second row"},
        "taints": [{"key": "example.com/gpu", "value": "yes", "effect": "NoSchedule"}],
        "kubeletExtraArgs": [{"name": "v", "value": "3"}],
    });
    value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(value).unwrap()
}

fn node_name() -> MachineName {
    "server-1".parse().unwrap()
}

const FILE: Discovery<'_> = Discovery::File { kubeconfig_path: JOIN_KUBECONFIG };

fn join_as(kubernetes: &KubernetesSpec, discovery: Discovery<'_>) -> Result<Rendered, String> {
    let node_name = node_name();
    let provider_id = "bedplate://server-1";
    let cri_socket = "/run/containerd/containerd.sock";
    join(&Input { node_name: &node_name, provider_id, kubernetes, cri_socket, discovery })
        .map_err(|error| error.to_string())
}

fn init_as(kubernetes: &KubernetesSpec) -> Result<Rendered, String> {
    let node_name = node_name();
    let provider_id = "bedplate://server-1";
    let cri_socket = "unix:///run/containerd/containerd.sock";
    init(&InitInput { node_name: &node_name, provider_id, kubernetes, cri_socket })
        .map_err(|error| error.to_string())
}

/// Compares with a file; `BEDPLATE_UPDATE_GOLDENS=1 cargo test -p bedplate-bootstrap` writes it.
pub(crate) fn golden(name: &str, text: &str) {
    let path = format!("{}/goldens/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("BEDPLATE_UPDATE_GOLDENS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert_eq!(text, expected, "{path} differs; BEDPLATE_UPDATE_GOLDENS=1 writes it again");
}

/// All files of a rendering, each in a file `CASE-NAME`.
fn goldens(case: &str, rendered: &Rendered) {
    for file in &rendered.files {
        assert_eq!(file.mode, 0o600);
        golden(&format!("{case}-{}", file.path.rsplit('/').next().unwrap()), &file.content);
    }
}

#[test]
fn join_of_a_worker_is_rendered_for_each_release() {
    let join_configuration = json!({"joinConfiguration": {
        "nodeRegistration": {"imagePullPolicy": "IfNotPresent", "ignorePreflightErrors": ["NumCPU", "Mem"]},
    }});
    goldens("join-1.22", &join_as(&worker("v1.22.17", &join_configuration), FILE).unwrap());
    let configured =
        json!({"kubeletConfiguration": {"maxPods": 50, "evictionHard": {"memory.available": "5%"}}});
    goldens("join-1.30", &join_as(&worker("v1.30.14", &configured), FILE).unwrap());
    let hashes = [format!("sha256:{}", "0a".repeat(32))];
    let token = Discovery::Token {
        endpoint: "10.7.0.2:6443",
        token: "abcdef.0123456789abcdef",
        ca_cert_hashes: &hashes,
    };
    goldens("join-1.31-pre", &join_as(&worker("v1.31.0-alpha.1", &configured), token).unwrap());
    let all = json!({
        "kubeletConfiguration": {"maxPods": 50, "evictionHard": null},
        "joinConfiguration": {
            "nodeRegistration": {
                "imagePullSerial": false,
                "kubeletExtraArgs": [{"name": "feature-gates", "value": "A=true"}],
            },
            "timeouts": {"tlsBootstrap": "2m"},
        },
    });
    goldens("join-1.34", &join_as(&worker("v1.34.4", &all), FILE).unwrap());
}

fn control_plane(version: &str, more: &Value) -> KubernetesSpec {
    let mut value = json!({"version": version, "role": "ControlPlane", "apiServerEndpoint": "10.7.0.2:6443"});
    value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(value).unwrap()
}

#[test]
fn first_control_plane_is_rendered_for_each_release() {
    let maps = json!({
        "clusterConfiguration": {
            "networking": {"podSubnet": "10.244.0.0/16"},
            "apiServer": {"extraArgs": {"profiling": "false"}, "timeoutForControlPlane": "8m"},
        },
        "initConfiguration": {"localAPIEndpoint": {"advertiseAddress": "10.7.0.11"}},
        "kubeletConfiguration": {"maxPods": 50},
    });
    goldens("init-1.22", &init_as(&control_plane("v1.22.17", &maps)).unwrap());
    goldens("init-1.30", &init_as(&control_plane("v1.30.14", &maps)).unwrap());
    let lists = json!({
        "clusterConfiguration": {
            "networking": {"podSubnet": "10.244.0.0/16"},
            "apiServer": {"extraArgs": [{"name": "profiling", "value": "false"}]},
            "dns": {"disabled": true},
            "encryptionAlgorithm": "ECDSA-P256",
        },
        "initConfiguration": {
            "certificateKey": "00".repeat(32),
            "localAPIEndpoint": {"advertiseAddress": "10.7.0.11"},
            "nodeRegistration": {"taints": []},
            "timeouts": {"controlPlaneComponentHealthCheck": "8m"},
        },
        "kubeletConfiguration": {"maxPods": 50},
    });
    let rendered = init_as(&control_plane("v1.34.4", &lists)).unwrap();
    goldens("init-1.34", &rendered);
    assert_eq!(rendered.command.last().unwrap(), "--upload-certs");
    assert_eq!(rendered.credentials, ["/run/bedplate/kubeadm.yaml"], "it holds the certificate key");
}

#[test]
fn further_control_plane_joins_as_its_join_configuration_says() {
    let join_configuration = json!({"joinConfiguration": {"controlPlane": {
        "localAPIEndpoint": {"advertiseAddress": "10.7.0.12"}, "certificateKey": "00".repeat(32),
    }}});
    let kubernetes = control_plane("v1.34.4", &join_configuration);
    assert!(!crate::makes_a_cluster(&kubernetes));
    let rendered = join_as(&kubernetes, FILE).unwrap();
    goldens("join-control-plane-1.34", &rendered);
    assert_eq!(rendered.leftovers, [""; 0]);
    assert_eq!(rendered.credentials, ["/run/bedplate/kubeconfig", "/run/bedplate/kubeadm.yaml"]);
    assert!(crate::makes_a_cluster(&control_plane("v1.34.4", &json!({}))));
}

#[test]
fn kubeadm_is_run_with_the_rendered_configuration() {
    let worker = join_as(&kubernetes("v1.34.4"), FILE).unwrap();
    assert_eq!(worker.command, ["kubeadm", "join", "--config", KUBEADM_CONFIG]);
    let first = init_as(&control_plane("v1.34.4", &json!({}))).unwrap();
    assert_eq!(first.command, ["kubeadm", "init", "--config", KUBEADM_CONFIG]);
    for rendered in [worker, first] {
        assert_eq!(rendered.files[0].path, KUBEADM_CONFIG);
    }
}

#[test]
fn annotations_are_left_to_the_agent() {
    let rendered = join_as(&worker("v1.34.4", &json!({})), FILE).unwrap();
    assert_eq!(rendered.node_annotations["example.com/note"], "second row");
    assert!(rendered.files.iter().all(|file| !file.content.contains("second row")));
}

fn read(rendered: &Rendered) -> Value {
    serde_saphyr::from_str(&rendered.files[0].content).unwrap()
}

#[test]
fn preflight_errors_are_ignored_only_where_the_version_names_them() {
    let document = read(&join_as(&kubernetes("v1.34.4"), FILE).unwrap());
    assert_eq!(document["nodeRegistration"].get("ignorePreflightErrors"), None);
}

#[test]
fn worker_has_no_taint_and_control_plane_has_kubeadms() {
    let mut plain = kubernetes("v1.34.4");
    let taints = |kubernetes: &KubernetesSpec| {
        read(&join_as(kubernetes, FILE).unwrap())["nodeRegistration"].get("taints").cloned()
    };
    assert_eq!(taints(&plain), Some(json!([])));
    plain.join_configuration =
        Some(json!({"nodeRegistration": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}));
    assert_eq!(taints(&plain), Some(json!([{"key": "a", "effect": "NoSchedule"}])));
    let mut control = control_plane("v1.34.4", &json!({"joinConfiguration": {}}));
    assert_eq!(taints(&control), None);
    control.join_configuration = Some(json!({"nodeRegistration": {"taints": []}}));
    assert_eq!(taints(&control), Some(json!([])));
}

#[test]
fn discovery_that_the_version_names_is_taken_as_it_is() {
    let mut kubernetes = kubernetes("v1.34.4");
    let theirs = json!({"file": {"kubeConfigPath": "/etc/join.conf"}});
    kubernetes.join_configuration = Some(json!({"discovery": theirs}));
    let rendered = join_as(&kubernetes, FILE).unwrap();
    assert_eq!(read(&rendered)["discovery"], theirs);
    assert_eq!(rendered.credentials, [""; 0]);
    // The other cluster need not have an approver of serving certificates.
    assert!(rendered.files.iter().all(|file| !file.content.contains("serverTLSBootstrap")), "{rendered:?}");
    // A token for TLS alone goes with our file, and makes the configuration a secret.
    kubernetes.join_configuration =
        Some(json!({"discovery": {"tlsBootstrapToken": "abcdef.0123456789abcdef"}}));
    let rendered = join_as(&kubernetes, FILE).unwrap();
    assert_eq!(read(&rendered)["discovery"]["file"]["kubeConfigPath"], JOIN_KUBECONFIG);
    assert_eq!(rendered.credentials, [JOIN_KUBECONFIG, "/run/bedplate/kubeadm.yaml"]);
}

#[test]
fn discovery_by_token_names_an_api_server_that_kubeadm_accepts() {
    let said = |endpoint: &Value| {
        let mut kubernetes = kubernetes("v1.34.4");
        let token = json!({"token": "abcdef.0123456789abcdef", "apiServerEndpoint": endpoint});
        kubernetes.join_configuration = Some(json!({"discovery": {"bootstrapToken": token}}));
        join_as(&kubernetes, FILE).err().unwrap_or_default()
    };
    for endpoint in ["k.example:6443", "10.7.0.2:6443", "[fd00::2]:6443", "k.example", "fd00::2"] {
        assert_eq!(said(&json!(endpoint)), "", "{endpoint}");
    }
    let wrong = [
        "",
        "https://k.example:6443",
        "k.example:",
        "k.example:0",
        "k.example:65536",
        "k_1:6443",
        "k:6443/x",
    ];
    for endpoint in wrong.into_iter().map(Value::from).chain([Value::Null, json!(6443)]) {
        let said = said(&endpoint);
        let field = "joinConfiguration.discovery.bootstrapToken.apiServerEndpoint must be the API server as host:port";
        assert!(said.contains(field), "{endpoint}: {said}");
    }
}

#[test]
fn patches_go_into_the_directory_that_the_version_names() {
    let mut kubernetes = kubernetes("v1.34.4");
    kubernetes.join_configuration = Some(json!({"patches": {"directory": "/etc/kubernetes/patches/"}}));
    let rendered = join_as(&kubernetes, FILE).unwrap();
    assert_eq!(rendered.files[1].path, "/etc/kubernetes/patches/kubeletconfiguration50bedplate+merge.yaml");
    kubernetes.join_configuration = Some(json!({"patches": {"directory": "patches"}}));
    let said = join_as(&kubernetes, FILE).unwrap_err();
    assert!(said.contains("joinConfiguration.patches.directory"), "{said}");
}

#[test]
fn ca_certificate_of_a_worker_is_taken_away_before_a_second_try() {
    let mut kubernetes = kubernetes("v1.34.4");
    assert_eq!(join_as(&kubernetes, FILE).unwrap().leftovers, ["/etc/kubernetes/pki/ca.crt"]);
    kubernetes.join_configuration = Some(json!({"caCertPath": "/etc/ca.crt"}));
    assert_eq!(join_as(&kubernetes, FILE).unwrap().leftovers, ["/etc/ca.crt"]);
}

#[test]
fn required_fields_cannot_be_overridden() {
    for (theirs, field) in [
        (json!({"nodeRegistration": {"name": "other"}}), "joinConfiguration.nodeRegistration.name"),
        (
            json!({"nodeRegistration": {"criSocket": "unix:///x"}}),
            "joinConfiguration.nodeRegistration.criSocket",
        ),
        (json!({"nodeRegistration": {"taints": []}}), "joinConfiguration.nodeRegistration.taints"),
        (json!({"apiVersion": "kubeadm.k8s.io/v1beta3"}), "joinConfiguration.apiVersion"),
        (json!({"kind": "InitConfiguration"}), "joinConfiguration.kind"),
        (json!({"nodeRegistration": "x"}), "joinConfiguration.nodeRegistration"),
        (json!({"controlPlane": {}}), "joinConfiguration.controlPlane"),
        (json!([]), "joinConfiguration"),
    ] {
        let kubernetes = worker("v1.34.4", &json!({"joinConfiguration": theirs}));
        let said = join_as(&kubernetes, FILE).unwrap_err();
        assert!(said.starts_with(&format!("{field} ")), "{said}");
    }
    let same = json!({"nodeRegistration": {"name": "server-1"}, "kind": "JoinConfiguration"});
    assert!(join_as(&worker("v1.34.4", &json!({"joinConfiguration": same})), FILE).is_ok());
    let cluster = json!({"clusterConfiguration": {"kubernetesVersion": "v1.33.0"}});
    let said = init_as(&control_plane("v1.34.4", &cluster)).unwrap_err();
    assert!(said.starts_with("clusterConfiguration.kubernetesVersion "), "{said}");
}

#[test]
fn roles_do_not_mix() {
    assert!(init_as(&kubernetes("v1.34.4")).unwrap_err().contains("role"));
    let said = join_as(&worker("v1.34.4", &json!({"clusterConfiguration": {}})), FILE).unwrap_err();
    assert!(said.contains("clusterConfiguration") && said.contains("role is Worker"), "{said}");
}

#[test]
fn all_errors_are_reported_together() {
    let kubernetes = worker(
        "v1.30.14",
        &json!({
            "nodeLabels": {"node-role.kubernetes.io/worker": ""},
            "joinConfiguration": {"timeouts": {}, "nodeRegistration": {"name": "other"}},
        }),
    );
    let said = join_as(&kubernetes, FILE).unwrap_err();
    for part in ["node-role.kubernetes.io/worker", "joinConfiguration.timeouts", "nodeRegistration.name"] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn kubelet_configuration_of_a_join_needs_1_25() {
    let configured = json!({"kubeletConfiguration": {"maxPods": 50}});
    let said = join_as(&worker("v1.24.17", &configured), FILE).unwrap_err();
    assert!(said.contains("1.25"), "{said}");
    assert!(join_as(&worker("v1.25.0", &configured), FILE).is_ok());
    // Certificates rotate all the same.
    let document = read(&join_as(&worker("v1.24.17", &json!({})), FILE).unwrap());
    assert_eq!(document["nodeRegistration"]["kubeletExtraArgs"]["rotate-server-certificates"], "true");
    let own = json!({"kubeletExtraArgs": [{"name": "rotate-server-certificates", "value": "false"}]});
    let document = read(&join_as(&worker("v1.24.17", &own), FILE).unwrap());
    assert_eq!(document["nodeRegistration"]["kubeletExtraArgs"]["rotate-server-certificates"], "false");
}
