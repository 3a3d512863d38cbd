//! Goldens for each form of kubeadm's configuration and each role, and rules.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::*;
use crate::configuration::tests::golden;
use crate::jinja::Facts;
use crate::user_data::{Plan, Unsupported, UserData as Input, plan_user_data};

/// A certificate that never changes, so that its hash does not.
const AUTHORITY: &str = include_str!("../../goldens/capi/ca.crt");

const FACTS: Facts<'static> = Facts {
    provider_id: "bedplate://rack-1/6f9c",
    node_name: "md-0-x2x",
    local_hostname: "md-0-x2x.example",
    instance_id: "6f9c",
    platform: "bedplate",
};

fn spec(value: &Value) -> KubeadmConfigSpec {
    serde_json::from_value(value.clone()).unwrap()
}

fn certificates() -> Vec<Certificate> {
    let certificate = |purpose: CertificatePurpose, text: &str| Certificate {
        purpose,
        certificate: text.as_bytes().to_vec(),
        key: Some(Zeroizing::new(format!("KEY OF {purpose:?}\n").into_bytes())),
    };
    vec![
        certificate(CertificatePurpose::ServiceAccount, "PUBLIC KEY\n"),
        certificate(CertificatePurpose::ClusterAuthority, AUTHORITY),
        certificate(CertificatePurpose::FrontProxyAuthority, "PROXY\n"),
        certificate(CertificatePurpose::EtcdAuthority, "ETCD\n"),
        certificate(CertificatePurpose::ApiServerEtcdClient, "CLIENT\n"),
    ]
}

/// Facts and Secrets of a test.
struct Site {
    endpoint: Endpoint,
    services: Vec<String>,
    pods: Vec<String>,
    certificates: Vec<Certificate>,
    secrets: BTreeMap<SecretKeyRef, Zeroizing<Vec<u8>>>,
    token: Token,
}

impl Site {
    fn new() -> Self {
        let secret = |name: &str, key: &str, value: &[u8]| {
            (SecretKeyRef { name: name.to_owned(), key: key.to_owned() }, Zeroizing::new(value.to_vec()))
        };
        Self {
            endpoint: Endpoint { host: "10.9.8.7".to_owned(), port: 6443 },
            services: vec!["10.2.0.0/16".to_owned(), "fd00:2::/108".to_owned()],
            pods: vec!["10.1.0.0/16".to_owned(), "fd00:1::/56".to_owned()],
            certificates: certificates(),
            secrets: BTreeMap::from([
                secret(
                    "files",
                    "script",
                    b"#!/bin/sh\necho \"$(hostname): {{ ds.meta_data.local_hostname }}\"\n",
                ),
                secret("files", "binary", b"\x00\x01\xff"),
                secret("users", "admin", b"$6$salt$SECRET\n"),
            ]),
            token: Token::parse("abcdef.0123456789abcdef").unwrap(),
        }
    }

    fn issue<'a>(&'a self, purpose: Purpose, spec: &'a KubeadmConfigSpec, version: &'a str) -> Issue<'a> {
        Issue {
            purpose,
            spec,
            cluster: ClusterFacts {
                name: "c1",
                endpoint: Some(&self.endpoint),
                services: &self.services,
                pods: &self.pods,
                service_domain: Some("cluster.local"),
            },
            version,
            certificates: &self.certificates,
            secrets: &self.secrets,
            token: Some(&self.token),
        }
    }
}

/// A spec with every field that is carried out.
fn full() -> Value {
    let component = |name: &str| {
        json!({
            "extraArgs": [{ "name": "v", "value": "4" }, { "name": "feature-gates", "value": "A=true,B=false" }],
            "extraEnvs": [
                { "name": "HTTP_PROXY", "value": "http://proxy:3128" },
                { "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
            ],
            "extraVolumes": [{ "name": name, "hostPath": "/etc/x", "mountPath": "/x", "readOnly": true, "pathType": "File" }],
        })
    };
    let mut api_server = component("api");
    api_server["certSANs"] = json!(["api.example", "10.0.0.9"]);
    let registration = json!({
        "name": "{{ ds.meta_data.local_hostname }}",
        "criSocket": "unix:///run/containerd/containerd.sock",
        "taints": [{ "key": "example.com/gpu", "value": "yes", "effect": "NoSchedule" }],
        "kubeletExtraArgs": [{ "name": "node-labels", "value": "a=b" }, { "name": "provider-id", "value": "{{ ds.meta_data['provider_id'] }}" }],
        "ignorePreflightErrors": ["Swap"],
        "imagePullPolicy": "IfNotPresent",
        "imagePullSerial": false,
    });
    let timeouts = json!({
        "controlPlaneComponentHealthCheckSeconds": 90, "kubeletHealthCheckSeconds": 60, "kubernetesAPICallSeconds": 61,
        "etcdAPICallSeconds": 3600, "tlsBootstrapSeconds": 3661, "discoverySeconds": 0,
    });
    json!({
        "clusterConfiguration": {
            "apiServer": api_server, "controllerManager": component("cm"), "scheduler": component("s"),
            "etcd": { "local": {
                "dataDir": "/var/lib/etcd", "imageTag": "3.6.0-0", "serverCertSANs": ["etcd.example"],
                "extraArgs": [{ "name": "quota-backend-bytes", "value": "8589934592" }],
                "extraEnvs": [{ "name": "A", "value": "" }],
            } },
            "dns": { "imageRepository": "registry.example", "imageTag": "v1.12.0" },
            "imageRepository": "registry.example/k8s", "featureGates": { "ControlPlaneKubeletLocalMode": true },
            "certificateValidityPeriodDays": 100, "caCertificateValidityPeriodDays": 1000, "encryptionAlgorithm": "ECDSA-P256",
        },
        "initConfiguration": {
            "nodeRegistration": registration, "timeouts": timeouts, "skipPhases": ["addon/kube-proxy"],
            "patches": { "directory": "/etc/kubernetes/patches" },
            "localAPIEndpoint": { "advertiseAddress": "10.0.0.1", "bindPort": 6443 },
            "bootstrapTokens": [{ "token": "fedcba.fedcba9876543210", "ttlSeconds": 7200, "usages": ["signing"] }],
        },
        "joinConfiguration": {
            "nodeRegistration": registration, "timeouts": timeouts, "skipPhases": ["preflight"],
            "patches": { "directory": "/etc/kubernetes/patches" },
        },
        "files": [
            { "path": "/etc/motd", "owner": "root", "permissions": "0644", "content": "  a bed plate\n\n" },
            { "path": "/usr/local/bin/setup", "permissions": "0755", "contentFrom": { "secret": { "name": "files", "key": "script" } } },
            { "path": "/etc/binary", "contentFrom": { "secret": { "name": "files", "key": "binary" } } },
            { "path": "/etc/packed", "encoding": "gzip+base64", "content": "H4sIAAAAAAAAA0tKTQEA//xH5gMAAAA=", "append": false },
        ],
        "users": [{ "name": "admin", "gecos": "it's me", "groups": "sudo, adm", "shell": "/bin/bash", "lockPassword": false,
            "sudo": "ALL=(ALL) NOPASSWD:ALL", "sshAuthorizedKeys": ["ssh-ed25519 AAAA # me"],
            "passwdFrom": { "secret": { "name": "users", "key": "admin" } } }],
        "bootCommands": ["echo boot"],
        "preKubeadmCommands": ["echo \"a: 'b'\" # c", "yes", "hostnamectl set-hostname \"{{ ds.meta_data.hostname }}\""],
        "postKubeadmCommands": ["echo \u{e9} done"],
        "verbosity": 5,
    })
}

/// A spec whose parts only other infrastructure providers carry out.
fn disks() -> Value {
    json!({
        "ntp": { "enabled": true, "servers": ["0.pool.example"] },
        "diskSetup": {
            "partitions": [
                { "device": "/dev/sdb", "tableType": "gpt", "layout": true, "overwrite": false },
                { "device": "/dev/sdc", "diskLayout": [{ "percentage": 50, "partitionType": "LinuxSwap" }, { "percentage": 30, "partitionType": "NTFS" }, { "percentage": 20 }] },
            ],
            "filesystems": [{ "device": "/dev/sdb1", "filesystem": "ext4", "label": "data", "partition": "1", "extraOpts": ["-F", "-E"] }],
        },
        "mounts": [["data", "/var/lib/data"], ["/dev/sdc1", "/mnt", "auto", "defaults", "0", "2"]],
    })
}

const PURPOSES: [(Purpose, &str); 3] = [
    (Purpose::Init, "init"),
    (Purpose::JoinControlPlane, "join-control-plane"),
    (Purpose::JoinWorker, "join"),
];

#[test]
fn kb1_each_version_and_role_equals_its_golden() {
    let site = Site::new();
    let full = spec(&full());
    for (version, name) in
        [("v1.22.17", "1.22"), ("1.30.14", "1.30"), ("v1.31.0-alpha.1", "1.31"), ("v1.34.4", "1.34")]
    {
        for (purpose, role) in PURPOSES {
            let data = render(&site.issue(purpose, &full, version)).unwrap();
            golden(&format!("capi/{role}-{name}.yaml"), &data.text);
        }
    }
    let disks = spec(&disks());
    golden("capi/disks.yaml", &render(&site.issue(Purpose::JoinWorker, &disks, "v1.34.4")).unwrap().text);
}

fn rendered(site: &Site, purpose: Purpose, spec: &KubeadmConfigSpec, version: &str) -> Value {
    serde_saphyr::from_str(&render(&site.issue(purpose, spec, version)).unwrap().text).unwrap()
}

fn file(config: &Value, path: &str) -> Value {
    let files = config["write_files"].as_array().unwrap();
    files.iter().find(|file| file["path"] == path).unwrap_or_else(|| panic!("{path}")).clone()
}

/// The kubeadm documents of a machine.
fn kubeadm(site: &Site, purpose: Purpose, spec: &Value, version: &str) -> Vec<Value> {
    let config = rendered(site, purpose, &self::spec(spec), version);
    let path = if purpose == Purpose::Init { INIT_CONFIG } else { JOIN_CONFIG };
    let content = file(&config, path)["content"].as_str().unwrap().to_owned();
    content
        .split("---\n")
        .filter(|part| !part.is_empty())
        .map(|part| serde_saphyr::from_str(part).unwrap())
        .collect()
}

fn faults(site: &Site, purpose: Purpose, spec: &Value, version: &str) -> Vec<String> {
    let spec = self::spec(spec);
    render(&site.issue(purpose, &spec, version)).unwrap_err().faults.iter().map(ToString::to_string).collect()
}

#[test]
fn kb1_release_decides_v1beta3_or_v1beta4() {
    let site = Site::new();
    for (version, expected) in
        [("1.22.0", 3), ("v1.30.99", 3), ("v1.31.0-rc.1", 4), ("v1.31.0", 4), ("v1.99.0", 4)]
    {
        for (purpose, _) in PURPOSES {
            for document in kubeadm(&site, purpose, &json!({}), version) {
                assert_eq!(document["apiVersion"], format!("kubeadm.k8s.io/v1beta{expected}"), "{version}");
            }
        }
    }
    let refused = ["version \"v1.21.14\" is not supported; kubeadm must be v1.22.0 or newer"];
    assert_eq!(faults(&site, Purpose::Init, &json!({}), "1.21.14"), refused);
    assert_eq!(faults(&site, Purpose::Init, &json!({}), "latest").len(), 1);
}

#[test]
fn kb1_fields_that_kubeadm_does_not_have_are_named() {
    let site = Site::new();
    let full = spec(&full());
    let dropped = |purpose, version| render(&site.issue(purpose, &full, version)).unwrap().dropped;
    assert_eq!(dropped(Purpose::Init, "v1.34.4"), Vec::<String>::new());
    let init = dropped(Purpose::Init, "v1.30.14");
    for path in [
        "spec.clusterConfiguration.apiServer.extraEnvs",
        "spec.clusterConfiguration.etcd.local.extraEnvs",
        "spec.clusterConfiguration.encryptionAlgorithm",
        "spec.initConfiguration.nodeRegistration.imagePullSerial",
        "spec.initConfiguration.timeouts.kubeletHealthCheckSeconds",
    ] {
        assert!(init.contains(&path.to_owned()), "{path}: {init:?}");
    }
    let join = dropped(Purpose::JoinWorker, "v1.30.14");
    assert!(
        !join.iter().any(|path| path.contains("tlsBootstrap")),
        "v1beta3 has it in the discovery: {join:?}"
    );
}

#[test]
fn kb1_two_timeouts_have_another_place_in_v1beta3() {
    let site = Site::new();
    let old = kubeadm(&site, Purpose::Init, &full(), "v1.30.14");
    assert_eq!(old[0]["apiServer"]["timeoutForControlPlane"], "1m30s");
    assert_eq!(old[1].get("timeouts"), None);
    let new = kubeadm(&site, Purpose::Init, &full(), "v1.34.4");
    assert_eq!(new[0]["apiServer"].get("timeoutForControlPlane"), None);
    assert_eq!(new[1]["timeouts"]["controlPlaneComponentHealthCheck"], "1m30s");
    assert_eq!(kubeadm(&site, Purpose::JoinWorker, &full(), "v1.30.14")[0]["discovery"]["timeout"], "1h1m1s");
}

#[test]
fn defaults_fill_only_what_users_left_unset() {
    let site = Site::new();
    let cluster = &kubeadm(&site, Purpose::Init, &json!({}), "1.34.4")[0];
    assert_eq!(cluster["clusterName"], "c1");
    assert_eq!(cluster["kubernetesVersion"], "v1.34.4");
    assert_eq!(cluster["controlPlaneEndpoint"], "10.9.8.7:6443");
    let networking = json!({ "dnsDomain": "cluster.local", "podSubnet": "10.1.0.0/16,fd00:1::/56",
        "serviceSubnet": "10.2.0.0/16,fd00:2::/108" });
    assert_eq!(cluster["networking"], networking);
    let given = json!({ "clusterConfiguration": { "controlPlaneEndpoint": "api.example:443" } });
    assert_eq!(
        kubeadm(&site, Purpose::Init, &given, "v1.34.4")[0]["controlPlaneEndpoint"],
        "api.example:443"
    );
    let token = json!({ "token": "a.b", "apiServerEndpoint": "x:1", "caCertHashes": ["sha256:0"], "unsafeSkipCAVerification": false });
    let given = json!({ "joinConfiguration": { "discovery": { "bootstrapToken": token, "tlsBootstrapToken": "t" } } });
    let join = &kubeadm(&site, Purpose::JoinWorker, &given, "v1.34.4")[0];
    assert_eq!(join["discovery"], json!({ "bootstrapToken": token, "tlsBootstrapToken": "t" }));
}

#[test]
fn ipv6_endpoint_has_brackets() {
    let mut site = Site::new();
    site.endpoint.host = "fd00::1".to_owned();
    assert_eq!(
        kubeadm(&site, Purpose::Init, &json!({}), "v1.34.4")[0]["controlPlaneEndpoint"],
        "[fd00::1]:6443"
    );
}

#[test]
fn worker_is_tainted_until_its_node_is_initialized() {
    let site = Site::new();
    let ours = json!({ "key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule" });
    let taints = |purpose, taints: Value| {
        let mut spec = json!({ "joinConfiguration": { "nodeRegistration": { "name": "n" } } });
        if !taints.is_null() {
            spec["joinConfiguration"]["nodeRegistration"]["taints"] = taints;
        }
        kubeadm(&site, purpose, &spec, "v1.34.4")[0]["nodeRegistration"].get("taints").cloned()
    };
    assert_eq!(taints(Purpose::JoinWorker, json!(null)), Some(json!([ours])));
    assert_eq!(taints(Purpose::JoinWorker, json!([ours])), Some(json!([ours])));
    let theirs = json!({ "key": "a", "effect": "NoExecute" });
    assert_eq!(taints(Purpose::JoinWorker, json!([theirs])), Some(json!([theirs, ours])));
    // An empty list sets no taint, and an unset one leaves kubeadm's.
    assert_eq!(taints(Purpose::JoinControlPlane, json!([])), Some(json!([])));
    assert_eq!(taints(Purpose::JoinControlPlane, json!(null)), None);
}

#[test]
fn role_is_that_of_the_machine() {
    let site = Site::new();
    assert_eq!(
        kubeadm(&site, Purpose::JoinControlPlane, &json!({}), "v1.34.4")[0]["controlPlane"],
        json!({})
    );
    let given =
        json!({ "joinConfiguration": { "controlPlane": { "localAPIEndpoint": { "bindPort": 7443 } } } });
    let join = &kubeadm(&site, Purpose::JoinControlPlane, &given, "v1.34.4")[0];
    assert_eq!(join["controlPlane"]["localAPIEndpoint"]["bindPort"], 7443);
    let why = faults(&site, Purpose::JoinWorker, &given, "v1.34.4");
    assert_eq!(why, ["spec.joinConfiguration.controlPlane must not be set for a worker"]);
}

#[test]
fn kb3_control_planes_get_certificates_and_workers_get_no_key() {
    let site = Site::new();
    let paths = |purpose, spec: &Value| -> Vec<(String, String)> {
        let config = rendered(&site, purpose, &self::spec(spec), "v1.34.4");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let files = config["write_files"].as_array().unwrap();
        files.iter().map(|file| (text(&file["path"]), text(&file["permissions"]))).collect()
    };
    let expected = |directory: &str| {
        [
            ("ca", "crt"),
            ("ca", "key"),
            ("etcd/ca", "crt"),
            ("etcd/ca", "key"),
            ("front-proxy-ca", "crt"),
            ("front-proxy-ca", "key"),
            ("sa", "pub"),
            ("sa", "key"),
        ]
        .map(|(name, kind)| {
            (format!("{directory}/{name}.{kind}"), if kind == "key" { "0600" } else { "0640" }.to_owned())
        })
    };
    for purpose in [Purpose::Init, Purpose::JoinControlPlane] {
        assert_eq!(paths(purpose, &json!({}))[..8], expected("/etc/kubernetes/pki"));
        let moved = json!({ "clusterConfiguration": { "certificatesDir": "/pki/" } });
        assert_eq!(paths(purpose, &moved)[..8], expected("/pki"));
    }
    let worker: Vec<String> =
        paths(Purpose::JoinWorker, &json!({})).into_iter().map(|(path, _)| path).collect();
    assert_eq!(worker, [JOIN_CONFIG, PLACEHOLDER]);
    let text = render(&site.issue(Purpose::JoinWorker, &spec(&full()), "v1.34.4")).unwrap().text;
    assert!(!text.contains("KEY OF"));
}

#[test]
fn kb3_external_etcd_has_the_paths_of_the_user_and_no_authority_key() {
    let site = Site::new();
    let etcd = json!({ "endpoints": ["https://e:2379"], "caFile": "/e/ca", "certFile": "/e/crt", "keyFile": "/e/key" });
    let given = spec(&json!({ "clusterConfiguration": { "etcd": { "external": etcd } } }));
    let needed = certificates_needed(Purpose::Init, &given);
    let external: Vec<_> =
        needed.iter().filter(|needed| needed.is_external).map(|needed| needed.purpose).collect();
    assert_eq!(external, [CertificatePurpose::EtcdAuthority, CertificatePurpose::ApiServerEtcdClient]);
    assert_eq!(needed.len(), 5, "three that the provider makes");
    let config = rendered(&site, Purpose::Init, &given, "v1.34.4");
    for (path, content) in
        [("/e/ca", "ETCD\n"), ("/e/crt", "CLIENT\n"), ("/e/key", "KEY OF ApiServerEtcdClient\n")]
    {
        assert_eq!(file(&config, path)["content"], content);
    }
    assert!(!config["write_files"].to_string().contains("KEY OF EtcdAuthority"));
}

#[test]
fn kb3_missing_certificate_and_key_are_named_by_their_secret() {
    let mut site = Site::new();
    site.certificates.retain(|found| found.purpose != CertificatePurpose::EtcdAuthority);
    site.certificates
        .iter_mut()
        .filter(|found| found.purpose == CertificatePurpose::ServiceAccount)
        .for_each(|found| found.key = None);
    let why = faults(&site, Purpose::JoinControlPlane, &json!({}), "v1.34.4");
    assert_eq!(why, ["Secret \"c1-etcd\" does not exist", "Secret \"c1-sa\" has no tls.key"]);
    site.certificates.iter_mut().for_each(|found| found.certificate = b"no PEM".to_vec());
    let why = faults(&site, Purpose::JoinWorker, &json!({}), "v1.34.4");
    assert_eq!(why, ["Secret \"c1-ca\" has a tls.crt that is not a certificate in PEM"]);
}

#[test]
fn kb5_each_certificate_of_a_bundle_is_hashed() {
    let mut site = Site::new();
    let other = rcgen::generate_simple_self_signed(vec!["ca".to_owned()]).unwrap().cert.pem();
    for found in &mut site.certificates {
        found.certificate = format!("{AUTHORITY}{other}").into_bytes();
    }
    let join = &kubeadm(&site, Purpose::JoinWorker, &json!({}), "v1.34.4")[0];
    assert_eq!(join["discovery"]["bootstrapToken"]["caCertHashes"].as_array().unwrap().len(), 2);
}

#[test]
fn kb7_sentinel_follows_success_only() {
    let site = Site::new();
    let spec = spec(&json!({ "preKubeadmCommands": ["a"], "postKubeadmCommands": ["b"] }));
    let config = rendered(&site, Purpose::Init, &spec, "v1.34.4");
    let kubeadm = "kubeadm init --config /run/kubeadm/kubeadm.yaml  && echo success > /run/cluster-api/bootstrap-success.complete";
    assert_eq!(config["runcmd"], json!(["a", kubeadm, "b"]));
    let placeholder = file(&config, PLACEHOLDER);
    assert_eq!((&placeholder["owner"], &placeholder["permissions"]), (&json!("root:root"), &json!("0640")));
}

#[test]
fn discovery_by_file_writes_the_kubeconfig() {
    let mut site = Site::new();
    let exec =
        json!({ "exec": { "command": "get-token", "args": ["-a"], "env": [{ "name": "A", "value": "b" }] } });
    let given = |config: Value| json!({ "joinConfiguration": { "discovery": { "file": { "kubeConfigPath": "/etc/kubeconfig", "kubeConfig": config } } } });
    let config = rendered(&site, Purpose::JoinWorker, &spec(&given(json!({ "user": exec }))), "v1.34.4");
    let read: Value =
        serde_saphyr::from_str(file(&config, "/etc/kubeconfig")["content"].as_str().unwrap()).unwrap();
    let cluster = json!({ "server": "https://10.9.8.7:6443", "certificate-authority-data": STANDARD.encode(AUTHORITY) });
    assert_eq!(read["clusters"][0]["cluster"], cluster);
    let user = json!({ "exec": { "apiVersion": "client.authentication.k8s.io/v1", "command": "get-token", "args": ["-a"],
        "env": [{ "name": "A", "value": "b" }], "interactiveMode": "Never", "provideClusterInfo": false } });
    assert_eq!(read["users"][0]["user"], user);
    // kubeadm gets the path alone, and no token.
    let join = &kubeadm(&site, Purpose::JoinWorker, &given(json!({ "user": exec })), "v1.34.4")[0];
    assert_eq!(join["discovery"], json!({ "file": { "kubeConfigPath": "/etc/kubeconfig" } }));
    let own = spec(&json!({ "joinConfiguration": { "discovery": { "file": { "kubeConfigPath": "/k" } } } }));
    assert!(!token_needed(Purpose::JoinWorker, &own) && !endpoint_needed(Purpose::JoinWorker, &own));
    site.certificates.clear();
    let why = faults(&site, Purpose::JoinWorker, &given(json!({ "user": exec })), "v1.34.4");
    assert_eq!(why, ["Secret \"c1-ca\" does not exist"]);
}

#[test]
fn discovery_without_verification_has_no_authority() {
    let mut site = Site::new();
    let given = |cluster: Value| {
        json!({ "joinConfiguration": { "discovery": { "file": { "kubeConfigPath": "/etc/kubeconfig",
        "kubeConfig": { "cluster": cluster, "user": { "exec": { "command": "get-token" } } } } } } })
    };
    let insecure = given(json!({ "insecureSkipTLSVerify": true }));
    // Clients refuse a kubeconfig with both, so the Secret is not needed.
    site.certificates.clear();
    let config = rendered(&site, Purpose::JoinWorker, &spec(&insecure), "v1.34.4");
    let read: Value =
        serde_saphyr::from_str(file(&config, "/etc/kubeconfig")["content"].as_str().unwrap()).unwrap();
    let cluster = json!({ "server": "https://10.9.8.7:6443", "insecure-skip-tls-verify": true });
    assert_eq!(read["clusters"][0]["cluster"], cluster);
    let both = given(json!({ "insecureSkipTLSVerify": true, "certificateAuthorityData": "Q0E=" }));
    let path = "spec.joinConfiguration.discovery.file.kubeConfig.cluster.certificateAuthorityData";
    let why = faults(&site, Purpose::JoinWorker, &both, "v1.34.4");
    assert_eq!(why, [format!("{path} must not be set together with insecureSkipTLSVerify")]);
}

#[test]
fn kb10_discovery_by_file_and_token_makes_no_data() {
    let site = Site::new();
    let both = json!({ "joinConfiguration": { "discovery": { "file": { "kubeConfigPath": "/k" }, "bootstrapToken": { "token": "a.b" } } } });
    let why = faults(&site, Purpose::JoinWorker, &both, "v1.34.4");
    assert_eq!(why, ["spec.joinConfiguration.discovery.bootstrapToken must not be set together with file"]);
}

#[test]
fn kb10_unsupported_and_missing_parts_make_no_data() {
    let mut site = Site::new();
    let ignition =
        json!({ "format": "ignition", "ignition": { "containerLinuxConfig": { "strict": true } } });
    let why = faults(&site, Purpose::Init, &ignition, "v1.34.4");
    assert_eq!(why, ["spec.format is not supported", "spec.ignition is not supported"]);
    let twice = json!({ "diskSetup": { "partitions": [{ "device": "/a", "layout": true }, { "device": "/a", "layout": true }] } });
    assert_eq!(
        faults(&site, Purpose::Init, &twice, "v1.34.4"),
        ["spec.diskSetup.partitions[1].device is in the list twice"]
    );
    site.secrets.clear();
    let why = faults(&site, Purpose::Init, &full(), "v1.34.4");
    let secret = |path: &str, key: &str, name: &str| {
        format!("{path} names key {key:?} of Secret {name:?}, which does not exist")
    };
    let expected = [
        secret("spec.files[1].contentFrom", "script", "files"),
        secret("spec.files[2].contentFrom", "binary", "files"),
        secret("spec.users[0].passwdFrom", "admin", "users"),
    ];
    assert_eq!(why, expected);
    let spec = spec(&json!({}));
    let mut issue = site.issue(Purpose::JoinWorker, &spec, "v1.34.4");
    (issue.token, issue.cluster.endpoint) = (None, None);
    let error = render(&issue).unwrap_err().to_string();
    assert!(
        error.contains("apiServerEndpoint is missing; wait until") && error.contains("token is missing"),
        "{error}"
    );
}

#[test]
fn needed_secrets_and_token_are_those_of_the_spec() {
    let full = spec(&full());
    let needed: Vec<String> =
        secrets_needed(&full).into_iter().map(|secret| format!("{}/{}", secret.name, secret.key)).collect();
    assert_eq!(needed, ["files/binary", "files/script", "users/admin"]);
    assert!(token_needed(Purpose::JoinWorker, &full) && !token_needed(Purpose::Init, &full));
    let given =
        spec(&json!({ "joinConfiguration": { "discovery": { "bootstrapToken": { "token": "a.b" } } } }));
    assert!(
        !token_needed(Purpose::JoinControlPlane, &given)
            && endpoint_needed(Purpose::JoinControlPlane, &given)
    );
}

#[test]
fn no_debug_output_and_no_error_has_a_secret() {
    let site = Site::new();
    let full = spec(&full());
    let issue = site.issue(Purpose::JoinControlPlane, &full, "v1.34.4");
    let data = render(&issue).unwrap();
    let mut shown = format!("{data:?} {issue:?}");
    // Each part fails after Secrets were read.
    let faulty = json!({ "files": [{ "path": "/a", "encoding": "rot13", "contentFrom": { "secret": { "name": "files", "key": "script" } } }],
        "users": [{ "name": "u", "passwdFrom": { "secret": { "name": "files", "key": "binary" } } }],
        "joinConfiguration": { "discovery": { "bootstrapToken": { "token": "fedcba.fedcba9876543210" }, "file": { "kubeConfigPath": "/k" } } } });
    let faulty = spec(&faulty);
    let error = render(&site.issue(Purpose::JoinControlPlane, &faulty, "v1.34.4")).unwrap_err();
    assert_eq!(error.faults.len(), 3, "{error}");
    shown.push_str(&format!("{error} {error:?}"));
    for secret in ["KEY OF", "0123456789abcdef", "fedcba9876543210", "$6$salt", "hostname):"] {
        assert!(!shown.contains(secret), "{secret}: {shown}");
        // A list of bytes would show it too.
        let bytes = format!("{:?}", secret.as_bytes());
        assert!(!shown.contains(bytes.trim_matches(['[', ']'])), "{secret} as bytes: {shown}");
    }
}

/// Plans the data as an agent of Bedplate does.
fn planned(data: &UserData) -> Plan {
    let input = Input { value: data.text.as_bytes(), format: Some(data.format.as_bytes()) };
    plan_user_data(input, &FACTS, Unsupported::Refuse)
        .unwrap_or_else(|error| panic!("{error}\n{}", *data.text))
        .plan
}

#[test]
fn own_hosts_carry_out_every_form() {
    let site = Site::new();
    let full = spec(&full());
    for (purpose, _) in PURPOSES {
        let plan = planned(&render(&site.issue(purpose, &full, "v1.34.4")).unwrap());
        let content = |path: &str| {
            let file = plan.files.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("{path}"));
            String::from_utf8_lossy(&file.content).into_owned()
        };
        assert_eq!(content("/etc/motd"), "  a bed plate\n");
        assert_eq!(content("/etc/packed"), "bed");
        assert!(content("/usr/local/bin/setup").contains("$(hostname): md-0-x2x.example"));
        assert!(
            plan.run_script().contains("hostnamectl set-hostname \"md-0-x2x.example\""),
            "{}",
            *plan.run_script()
        );
        let path = if purpose == Purpose::Init { INIT_CONFIG } else { JOIN_CONFIG };
        let config = content(path);
        assert!(
            config.contains("name: \"md-0-x2x.example\"") && config.contains("bedplate://rack-1/6f9c"),
            "{config}"
        );
    }
}

/// One input for a comparison with the upstream provider. Nothing is compared yet: the test shows only that each input makes data.
#[derive(serde::Deserialize)]
struct Compared {
    name: String,
    role: String,
    version: String,
    spec: KubeadmConfigSpec,
}

#[test]
fn kb11_inputs_of_a_comparison_are_rendered() {
    let site = Site::new();
    let inputs: Vec<Compared> =
        serde_saphyr::from_str(include_str!("../../goldens/capi/inputs.yaml")).unwrap();
    assert!(inputs.len() > 60, "{}", inputs.len());
    for Compared { name, role, version, spec } in &inputs {
        let (purpose, _) = PURPOSES.into_iter().find(|(_, word)| word == role).unwrap();
        let data =
            render(&site.issue(purpose, spec, version)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let config: Value =
            serde_saphyr::from_str(&data.text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            config["runcmd"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|line| line.to_string().contains("success"))
                .count(),
            1
        );
        let path = if purpose == Purpose::Init { INIT_CONFIG } else { JOIN_CONFIG };
        let kubeadm = file(&config, path)["content"].as_str().unwrap().to_owned();
        let kinds = kubeadm.lines().filter(|line| line.starts_with("kind: ")).count();
        assert_eq!(kinds, if purpose == Purpose::Init { 2 } else { 1 }, "{name}");
    }
}
