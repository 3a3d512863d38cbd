//! Bootstrap data of the first machine: when it is made, its Secret, its content, and the conditions of the KubeadmConfig (B1).

use bedplate_tests::kubernetes::Kubernetes;
use serde_json::{Value, json};

use super::site::{Site, Team, condition, control_plane, decoded};

/// Files of the certificates on a machine of the control plane: path, mode, Secret and key.
pub(super) const PKI: [(&str, u32, &str, &str); 8] = [
    ("/etc/kubernetes/pki/ca.crt", 0o640, "ca", "tls.crt"),
    ("/etc/kubernetes/pki/ca.key", 0o600, "ca", "tls.key"),
    ("/etc/kubernetes/pki/etcd/ca.crt", 0o640, "etcd", "tls.crt"),
    ("/etc/kubernetes/pki/etcd/ca.key", 0o600, "etcd", "tls.key"),
    ("/etc/kubernetes/pki/front-proxy-ca.crt", 0o640, "proxy", "tls.crt"),
    ("/etc/kubernetes/pki/front-proxy-ca.key", 0o600, "proxy", "tls.key"),
    ("/etc/kubernetes/pki/sa.pub", 0o640, "sa", "tls.crt"),
    ("/etc/kubernetes/pki/sa.key", 0o600, "sa", "tls.key"),
];

#[test]
fn b1_first_machine_gets_data_once_the_infrastructure_is_provisioned() {
    let site = Site::shared();
    let team = Team::new("first", &json!({}));
    let commands = json!({ "preKubeadmCommands": ["echo before"], "postKubeadmCommands": ["echo after"] });
    team.control_plane("cp-0", &commands);
    site.until_waiting(&team, "cp-0", "infrastructure");
    assert!(!team.has_secret("cp-0"));
    assert_eq!(team.objects.get("configmap", "first-lock").unwrap(), None);
    team.provision();
    let config = site.until_ready(&team, "cp-0");
    assert_eq!(config["status"]["dataSecretName"], "cp-0");
    assert_eq!(config["status"]["observedGeneration"], config["metadata"]["generation"]);
    for (kind, status) in [
        ("Ready", "True"),
        ("DataSecretAvailable", "True"),
        ("CertificatesAvailable", "True"),
        ("FieldsSupported", "True"),
        ("Paused", "False"),
    ] {
        assert_eq!(condition(&config, kind).0, status, "{kind}: {config:#}");
    }
    let secret = team.get("secret", "cp-0");
    assert_eq!(secret["type"], "cluster.x-k8s.io/secret");
    assert_eq!(secret["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"], "first");
    let owner = &secret["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["controller"]), (&json!("KubeadmConfig"), &json!(true)));
    assert_eq!(owner["uid"], config["metadata"]["uid"]);
    let keys: Vec<&str> = secret["data"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!((keys, decoded(&secret, "format").as_str()), (vec!["format", "value"], "cloud-config"));
    let data = team.data("cp-0");
    assert!(data.runs("kubeadm init --config /run/kubeadm/kubeadm.yaml"));
    assert!(data.runs("echo before") && data.runs("echo after"));
    for (path, mode, purpose, key) in PKI {
        let certificate = team.get("secret", &team.secret_name(purpose));
        assert_eq!(data.mode(path), Some(mode), "{path}");
        assert_eq!(data.file(path).trim_end(), decoded(&certificate, key).trim_end(), "{path}");
    }
    assert!(data.file("/run/kubeadm/kubeadm.yaml").contains("controlPlaneEndpoint: \"10.7.0.9:6443\""));
}

/// The commands of docs/bootstrap.md and docs/stuck.md.
#[test]
fn documented_commands_show_conditions_and_the_deployment() {
    const CONDITIONS: &str =
        r#"jsonpath={range .status.conditions[*]}{.type} {.status} {.message}{"\n"}{end}"#;
    let site = Site::shared();
    let team = Team::new("shown", &json!({}));
    team.control_plane("cp-0", &json!({}));
    site.until_waiting(&team, "cp-0", "infrastructure");
    let kubernetes = Kubernetes::shared();
    let kubectl = |arguments: &[&str]| kubernetes.kubectl(&kubernetes.admin(), arguments).unwrap();
    let kind = "kubeadmconfigs.bootstrap.cluster.x-k8s.io";
    let shown = kubectl(&["-n", "shown", "get", kind, "cp-0", "-o", CONDITIONS]);
    assert!(shown.lines().any(|line| line.starts_with("DataSecretAvailable False ")), "{shown}");
    kubectl(&["-n", "bedplate-system", "get", "deployment", "bedplate-bootstrap"]);
}

#[test]
fn b1_foreign_secret_of_the_same_name_is_not_overwritten() {
    let site = Site::shared();
    let team = Team::new("foreign", &json!({}));
    let secret = |value: &str| json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "cp-0" }, "stringData": { "value": value } });
    team.objects.apply(&secret("of another writer")).unwrap();
    team.provision();
    team.control_plane("cp-0", &json!({}));
    let config = site.until_waiting(&team, "cp-0", "Secret cp-0 exists");
    assert!(config["status"]["dataSecretName"].is_null(), "{config:#}");
    assert_eq!(decoded(&team.get("secret", "cp-0"), "value"), "of another writer");
    // Its KubeadmConfig does not hold the init lock meanwhile.
    assert_eq!(team.objects.get("configmap", "foreign-lock").unwrap(), None);
    team.objects.delete("secret", "cp-0").unwrap();
    site.until_ready(&team, "cp-0");
    assert!(team.data("cp-0").runs("kubeadm init"));
}

#[test]
fn unsupported_field_is_reported_and_no_data_is_made() {
    let site = Site::shared();
    let team = Team::new("unsupported", &json!({}));
    team.provision();
    team.control_plane("cp-0", &json!({ "format": "ignition" }));
    let is_reported = |found: &Value| {
        let (status, reason, message) = condition(found, "FieldsSupported");
        (status, reason) == ("False", "UnsupportedFields") && message.contains("spec.format")
    };
    let config = site.until(&team, ("kubeadmconfig", "cp-0"), "the field", is_reported);
    assert_eq!(condition(&config, "Ready").0, "False", "{config:#}");
    assert!(!team.has_secret("cp-0") && !team.has_secret("unsupported-ca"));
    assert_eq!(team.objects.get("configmap", "unsupported-lock").unwrap(), None);
}

#[test]
fn paused_config_gets_no_data_until_it_is_unpaused() {
    let site = Site::shared();
    let team = Team::new("paused", &json!({ "paused": true }));
    team.provision();
    team.control_plane("cp-0", &json!({}));
    site.until(&team, ("kubeadmconfig", "cp-0"), "that it is paused", |found| {
        condition(found, "Paused").0 == "True"
    });
    assert!(!team.has_secret("cp-0"));
    team.objects.merge("cluster", &team.name, &json!({ "spec": { "paused": false } })).unwrap();
    let config = site.until_ready(&team, "cp-0");
    assert_eq!(condition(&config, "Paused").0, "False", "{config:#}");
}

/// Values of Secrets of users go into the data, and into no status and no Event.
#[test]
fn b1_file_gets_its_content_from_a_secret_of_the_namespace() {
    const CONTENT: &str = "token-of-a-registry";
    let site = Site::shared();
    let team = Team::new("content", &control_plane("content"));
    team.authorities();
    team.provision();
    let source = json!({ "secret": { "name": "registry", "key": "auth" } });
    let file = json!({ "path": "/etc/registry", "permissions": "0600", "contentFrom": source });
    team.control_plane("cp-0", &json!({ "files": [file] }));
    site.until_waiting(&team, "cp-0", "registry");
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "registry" },
        "stringData": { "auth": CONTENT } });
    team.objects.apply(&secret).unwrap();
    let config = site.until_ready(&team, "cp-0");
    let data = team.data("cp-0");
    assert_eq!((data.file("/etc/registry").trim_end(), data.mode("/etc/registry")), (CONTENT, Some(0o600)));
    let events = team.objects.list("event", "").unwrap();
    assert!(!format!("{config}{events:?}").contains(CONTENT));
}
