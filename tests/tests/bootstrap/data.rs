//! Bootstrap data of the first machine: when it is made, its Secret, its content, and the conditions of the KubeadmConfig (B1).

use bedplate_tests::kubernetes::Kubernetes;
use http::Method;
use serde_json::{Value, json};

use super::site::{Site, Team, account, condition, control_plane, decoded};

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
    // The mark of the success is written only if kubeadm has succeeded.
    let init = "kubeadm init --config /run/kubeadm/kubeadm.yaml  && echo success > /run/cluster-api/bootstrap-success.complete";
    let commands = data.commands();
    let place = |line: &str| commands.iter().position(|command| *command == line);
    let places = ["echo before", init, "echo after"].map(|line| place(line).expect(line));
    assert!(places.is_sorted(), "{commands:?}");
    let marks = commands.iter().filter(|command| command.contains("bootstrap-success"));
    assert_eq!(marks.count(), 1, "{commands:?}");
    for (path, mode, purpose, key) in PKI {
        let certificate = team.get("secret", &team.secret_name(purpose));
        assert_eq!((data.mode(path), data.owner(path)), (Some(mode), Some(("root", "root"))), "{path}");
        assert_eq!(data.file(path).trim_end(), decoded(&certificate, key).trim_end(), "{path}");
    }
    assert!(data.file("/run/kubeadm/kubeadm.yaml").contains("controlPlaneEndpoint: \"10.7.0.9:6443\""));
}

/// The commands of docs/reference/bootstrap.md and docs/troubleshooting/stuck.md.
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
fn b1_machine_gets_data_once_its_version_is_set() {
    let site = Site::shared();
    let team = Team::initialized("version");
    team.worker_with("w-0", &json!({}), &json!({ "version": null }));
    site.until_waiting(&team, "w-0", "Machine has no version; set spec.version of the Machine");
    assert!(!team.has_secret("w-0"));
    team.has_version("w-0", "v1.34.4");
    site.until_ready(&team, "w-0");
}

#[test]
fn b1_api_of_kubeadm_is_that_of_the_version_of_the_machine() {
    let site = Site::shared();
    let team = Team::initialized("versions");
    let arguments = json!([{ "name": "v", "value": "2" }]);
    let registration = json!({ "kubeletExtraArgs": arguments, "imagePullSerial": false });
    let spec = json!({ "joinConfiguration": { "nodeRegistration": registration } });
    for (name, version, api) in [
        ("old", "v1.22.17", "v1beta3"),
        ("last", "v1.30.14", "v1beta3"),
        ("early", "v1.31.0-rc.1", "v1beta4"),
        ("new", "v1.34.4", "v1beta4"),
    ] {
        team.worker_with(name, &spec, &json!({ "version": version }));
        site.until_ready(&team, name);
        let text = team.data(name).file("/run/kubeadm/kubeadm-join-config.yaml");
        assert!(text.contains(&format!("apiVersion: kubeadm.k8s.io/{api}\n")), "{version}: {text}");
        // v1beta3 has a map of arguments, and does not know the other field.
        let is_list = text.contains("- name: v\n");
        let is_new = api == "v1beta4";
        assert_eq!((is_list, text.contains("imagePullSerial")), (is_new, is_new), "{version}: {text}");
    }
    team.worker_with("ancient", &json!({}), &json!({ "version": "v1.21.14" }));
    site.until_waiting(&team, "ancient", "kubeadm must be v1.22.0 or newer");
    assert!(!team.has_secret("ancient"));
}

/// The provider reads Clusters and Machines, and asks neither an infrastructure nor a host.
#[test]
fn b2_data_is_made_for_a_machine_of_any_infrastructure() {
    let site = Site::shared();
    let team = Team::initialized("any");
    let infrastructure =
        json!({ "apiGroup": "infrastructure.example.com", "kind": "BladeMachine", "name": "blade" });
    team.worker_with("w-0", &json!({}), &json!({ "infrastructureRef": infrastructure }));
    site.until_ready(&team, "w-0");
    assert!(team.data("w-0").runs("kubeadm join"));
    let provider = Kubernetes::shared().objects_of(&account()).unwrap();
    for path in [
        "/apis/infrastructure.example.com/v1/namespaces/any/blademachines",
        "/apis/infrastructure.cluster.x-k8s.io/v1alpha1/namespaces/any/bedplatemachines",
        "/apis/bedplate.dev/v1alpha1/machines",
        "/api/v1/nodes",
    ] {
        let answer = provider.request(&Method::GET, path, "application/json", &Value::Null);
        let why = format!("{:#}", answer.expect_err(path));
        assert!(why.contains("cannot list"), "{path}: {why}");
    }
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
