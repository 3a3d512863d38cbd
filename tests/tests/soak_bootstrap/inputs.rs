//! KubeadmConfigs of the comparison: each role with each field, alone and together. All but the comments are upstream's v1beta2 form.

use serde_json::{Value, json};

/// Role of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// First control plane.
    Init,
    /// Control plane that joins.
    ControlPlane,
    /// Worker that joins.
    Worker,
}

/// A KubeadmConfig with its machine.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    /// Name of the KubeadmConfig, and of the cluster of a first control plane.
    pub(crate) name: String,
    pub(crate) role: Role,
    /// `spec.version` of the Machine.
    pub(crate) version: &'static str,
    /// Spec of the KubeadmConfig.
    pub(crate) spec: Value,
}

/// Newest version, of kubeadm's v1beta4.
const NEW: &str = "v1.34.1";
/// Newest version of kubeadm's v1beta3.
const OLD: &str = "v1.30.4";

/// Returns all inputs.
pub(crate) fn inputs() -> Vec<Input> {
    let mut inputs = Vec::new();
    let mut add = |name: &str, role: Role, version: &'static str, spec: Value| {
        inputs.push(Input { name: name.to_owned(), role, version, spec });
    };
    for version in [NEW, OLD, "v1.31.0", "v1.33.0-rc.1"] {
        let suffix = version.replace('.', "-");
        add(&format!("init-{suffix}"), Role::Init, version, init(&json!({})));
        add(&format!("join-{suffix}"), Role::Worker, version, join(&json!({})));
        add(&format!("control-{suffix}"), Role::ControlPlane, version, join(&json!({ "controlPlane": {} })));
        add(
            &format!("full-init-{suffix}"),
            Role::Init,
            version,
            with(init(&registration(version)), cluster(version)),
        );
        add(&format!("full-join-{suffix}"), Role::Worker, version, join(&registration(version)));
    }
    for (name, spec) in common() {
        add(&format!("init-{name}"), Role::Init, NEW, with(init(&json!({})), spec.clone()));
        add(&format!("join-{name}"), Role::Worker, NEW, with(join(&json!({})), spec));
    }
    for (name, part) in clusters() {
        add(
            &format!("cluster-{name}"),
            Role::Init,
            NEW,
            with(init(&json!({})), json!({ "clusterConfiguration": part })),
        );
    }
    for (name, part) in joins() {
        add(&format!("join-{name}"), Role::Worker, NEW, join(&part));
    }
    for (name, part) in control_planes() {
        add(&format!("control-{name}"), Role::ControlPlane, NEW, join(&part));
    }
    inputs
}

fn with(mut spec: Value, more: Value) -> Value {
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    spec
}

fn init(part: &Value) -> Value {
    let configuration = with(
        json!({ "nodeRegistration": { "kubeletExtraArgs": [{ "name": "v", "value": "2" }] } }),
        part.clone(),
    );
    json!({ "initConfiguration": configuration })
}

fn join(part: &Value) -> Value {
    let configuration = with(
        json!({ "nodeRegistration": { "kubeletExtraArgs": [{ "name": "v", "value": "2" }] } }),
        part.clone(),
    );
    json!({ "joinConfiguration": configuration })
}

/// Fields of a registration. Releases before 1.31 have no `imagePullSerial`, and one value for each argument.
fn registration(version: &str) -> Value {
    let mut registration = json!({
        "name": "{{ ds.meta_data.local_hostname }}",
        "criSocket": "unix:///run/containerd/containerd.sock",
        "taints": [{ "key": "example.com/gpu", "value": "yes", "effect": "NoSchedule" }, { "key": "plain", "effect": "NoExecute" }],
        "kubeletExtraArgs": [{ "name": "node-labels", "value": "a=b" }, { "name": "provider-id", "value": "x://{{ ds.meta_data.instance_id }}" }],
        "ignorePreflightErrors": ["Swap", "NumCPU"],
        "imagePullPolicy": "Never",
    });
    if version != OLD {
        registration["imagePullSerial"] = false.into();
        registration["kubeletExtraArgs"] =
            json!([{ "name": "v", "value": "4" }, { "name": "config-dir", "value": "/a" }]);
    }
    json!({ "nodeRegistration": registration, "patches": { "directory": "/etc/patches" }, "skipPhases": ["addon/kube-proxy"] })
}

/// A ClusterConfiguration with every field. Releases before 1.31 have no environment variables.
fn cluster(version: &str) -> Value {
    let component = |name: &str| {
        let mut component = json!({
            "extraArgs": [{ "name": "v", "value": "4" }, { "name": "feature-gates", "value": "A=true,B=false" }],
            "extraVolumes": [{ "name": name, "hostPath": "/etc/x", "mountPath": "/x", "readOnly": true, "pathType": "File" }],
        });
        if version != OLD {
            component["extraEnvs"] = json!([{ "name": "HTTP_PROXY", "value": "http://proxy:3128" }]);
        }
        component
    };
    let mut configuration = json!({
        "apiServer": with(component("api"), json!({ "certSANs": ["api.example", "10.0.0.9"] })),
        "controllerManager": component("manager"), "scheduler": component("scheduler"),
        "dns": { "imageRepository": "registry.example/dns", "imageTag": "v1.2.3" },
        "etcd": { "local": { "imageRepository": "registry.example/etcd", "imageTag": "3.6.0", "dataDir": "/var/lib/etcd",
            "extraArgs": [{ "name": "quota-backend-bytes", "value": "8589934592" }], "serverCertSANs": ["a"], "peerCertSANs": ["b"] } },
        "imageRepository": "registry.example", "featureGates": { "A": true, "B": false }, "certificatesDir": "/etc/kubernetes/pki",
    });
    if version != OLD {
        configuration["certificateValidityPeriodDays"] = 200.into();
        configuration["caCertificateValidityPeriodDays"] = 4000.into();
        configuration["encryptionAlgorithm"] = "ECDSA-P256".into();
    }
    json!({ "clusterConfiguration": configuration })
}

/// Parts that any role can have.
fn common() -> Vec<(&'static str, Value)> {
    let file = |more: Value| json!({ "files": [with(json!({ "path": "/etc/example" }), more)] });
    vec![
        ("file", file(json!({ "content": "a: 1\n\ttab \"quoted\" 'single' # comment\n" }))),
        ("file-empty", file(json!({ "content": "x", "owner": "root:root", "permissions": "0640" }))),
        ("file-base64", file(json!({ "content": "aGVsbG8K", "encoding": "base64" }))),
        (
            "file-gzip",
            file(json!({ "content": "H4sIAAAAAAAAA8tIzcnJ5wIAIDA6NgYAAAA=", "encoding": "gzip+base64" })),
        ),
        ("file-append", file(json!({ "content": "more\n", "append": true }))),
        ("file-secret", file(json!({ "contentFrom": { "secret": { "name": "content", "key": "script" } } }))),
        (
            "file-jinja",
            file(json!({ "content": "{{ ds.meta_data.hostname }} {% raw %}{{ no }}{% endraw %}\n" })),
        ),
        ("file-unicode", file(json!({ "content": "Grüße → 日本\n" }))),
        ("file-lines", file(json!({ "content": "first\n\n  indented\n\nlast without end" }))),
        (
            "commands",
            json!({ "bootCommands": ["echo boot"], "preKubeadmCommands": ["echo \"a: b\"", "sed -i 's/#//' /x", "true # x", "yes"],
            "postKubeadmCommands": ["echo 'post' > /x", "[ -e /y ] && exit 1", "{ true; }"] }),
        ),
        (
            "command-lines",
            json!({ "preKubeadmCommands": ["cat <<E >/x\n  a\nE\n", "- dash", "\"quoted\"", "*star", "&and", "@at", "%percent"] }),
        ),
        ("ntp", json!({ "ntp": { "servers": ["a.example", "b.example"], "enabled": true } })),
        ("ntp-off", json!({ "ntp": { "enabled": false } })),
        (
            "users",
            json!({ "users": [{ "name": "admin", "gecos": "A, B", "groups": "users, wheel", "homeDir": "/home/a", "inactive": false,
            "shell": "/bin/bash", "passwd": "$6$x$y", "primaryGroup": "users", "lockPassword": true, "sudo": "ALL=(ALL) NOPASSWD:ALL",
            "sshAuthorizedKeys": ["ssh-ed25519 AAAA a", "ssh-rsa BBBB"] }, { "name": "second" }] }),
        ),
        (
            "user-secret",
            json!({ "users": [{ "name": "admin", "passwdFrom": { "secret": { "name": "content", "key": "password" } } }] }),
        ),
        (
            "disks",
            json!({ "diskSetup": { "partitions": [{ "device": "/dev/vdb", "layout": true, "overwrite": false, "tableType": "gpt" }],
            "filesystems": [{ "device": "/dev/vdb1", "filesystem": "ext4", "label": "etcd", "partition": "auto", "overwrite": true,
                "replaceFS": "ext3", "extraOpts": ["-F", "-E"] }] }, "mounts": [["LABEL=etcd", "/var/lib/etcd"], ["/a", "/b", "none", "bind"]] }),
        ),
        ("verbosity", json!({ "verbosity": 9 })),
        ("format", json!({ "format": "cloud-config" })),
    ]
}

fn clusters() -> Vec<(&'static str, Value)> {
    vec![
        ("san", json!({ "apiServer": { "certSANs": ["127.0.0.1", "localhost"] } })),
        (
            "external-etcd",
            json!({ "etcd": { "external": { "endpoints": ["https://10.0.0.1:2379", "https://10.0.0.2:2379"],
            "caFile": "/etc/kubernetes/pki/etcd/ca.crt", "certFile": "/etc/kubernetes/pki/apiserver-etcd-client.crt",
            "keyFile": "/etc/kubernetes/pki/apiserver-etcd-client.key" } } }),
        ),
        ("directory", json!({ "certificatesDir": "/opt/pki" })),
        ("repository", json!({ "imageRepository": "registry.example" })),
        (
            "arguments",
            json!({ "apiServer": { "extraArgs": [{ "name": "cloud-provider", "value": "external" }] },
            "controllerManager": { "extraArgs": [{ "name": "cloud-provider", "value": "external" }] } }),
        ),
    ]
}

fn joins() -> Vec<(&'static str, Value)> {
    let hash = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let token = "abcdef.0123456789abcdef";
    vec![
        (
            "own-token",
            json!({ "discovery": { "bootstrapToken": { "token": token, "apiServerEndpoint": "10.9.8.7:6443", "caCertHashes": [hash] } } }),
        ),
        ("own-hash", json!({ "discovery": { "bootstrapToken": { "caCertHashes": [hash] } } })),
        (
            "own-endpoint",
            json!({ "discovery": { "bootstrapToken": { "apiServerEndpoint": "10.9.8.7:6443" } } }),
        ),
        (
            "unsafe",
            json!({ "discovery": { "bootstrapToken": { "token": token, "unsafeSkipCAVerification": true } } }),
        ),
        ("file", json!({ "discovery": { "file": { "kubeConfigPath": "/etc/join.conf" } } })),
        (
            "file-user",
            json!({ "discovery": { "file": { "kubeConfigPath": "/etc/join.conf", "kubeConfig": { "user": {
            "exec": { "apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/token", "args": ["a"], "env": [{ "name": "A", "value": "b" }] } } } } } }),
        ),
        (
            "file-cluster",
            json!({ "discovery": { "file": { "kubeConfigPath": "/etc/join.conf", "kubeConfig": {
            "cluster": { "server": "https://10.9.8.7:6443", "tlsServerName": "api.example" },
            "user": { "authProvider": { "name": "oidc", "config": { "a": "b" } } } } } } }),
        ),
        ("bootstrap-token", json!({ "discovery": { "tlsBootstrapToken": token } })),
        (
            "timeouts",
            json!({ "timeouts": { "controlPlaneComponentHealthCheckSeconds": 90, "kubeletHealthCheckSeconds": 60,
            "kubernetesAPICallSeconds": 61, "etcdAPICallSeconds": 62, "tlsBootstrapSeconds": 300, "discoverySeconds": 301 } }),
        ),
        ("ca", json!({ "caCertPath": "/etc/kubernetes/pki/other.crt" })),
        ("no-taints", json!({ "nodeRegistration": { "taints": [] } })),
        ("skip", json!({ "skipPhases": ["preflight"], "patches": { "directory": "/p" } })),
    ]
}

fn control_planes() -> Vec<(&'static str, Value)> {
    vec![
        (
            "endpoint",
            json!({ "controlPlane": { "localAPIEndpoint": { "advertiseAddress": "10.1.1.1", "bindPort": 7443 } } }),
        ),
        ("none", json!({})),
        ("no-taints", json!({ "controlPlane": {}, "nodeRegistration": { "taints": [] } })),
    ]
}
