//! A host of a pool in a real cluster, claimed with user data as the kubeadm provider of the Cluster API writes it: the real agent, and the
//! slot's real kubeadm, kubelet, containerd and runc (see `control_plane` for what is omitted). The test is the provider and the controller.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_tests::agent_host::{AgentHost, NAME, paved};
use bedplate_tests::control_plane::{
    PARAMETERS, files, images, kubelet, registration, registry_files, version,
};
use bedplate_tests::guard::{Directory, run};
use bedplate_tests::kubernetes::{Objects, programs};
use bedplate_tests::netns::Namespace;
use bedplate_tests::registry::Registry;
use bedplate_tests::wait;
use bedplate_tests::worker::take_turn;
use serde_json::{Value, json};

/// On a busy machine; each takes seconds on an idle one.
const LIMIT: Duration = Duration::from_secs(300);
const RACK: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 21);
/// Namespace of the claimant.
const TENANT: &str = "team-a";
const PROVIDER: &str = "system:serviceaccount:bedplate-system:bedplate-infrastructure";
const PROVIDER_MANAGER: &str = "bedplate-cluster-infrastructure";
/// Rights that no role limits: the policies still hold.
const MASTERS: &str = "system:masters";
const FINALIZER: &str = "bedplate.dev/release";
/// Authorities that user data brings: path below `/etc/kubernetes/pki`, without extension.
const AUTHORITIES: [&str; 3] = ["ca", "etcd/ca", "front-proxy-ca"];

/// The rack with its services, and the host.
struct Pool {
    directory: Directory,
    images: Registry,
    host: AgentHost,
    rack: Namespace,
}

impl Pool {
    fn start() -> Self {
        take_turn().unwrap();
        let directory = Directory::new("claims").unwrap();
        let rack = Namespace::new("claims").unwrap();
        rack.add_bridge("br0", Some((RACK, 24))).unwrap();
        let layout = directory.path().join("images");
        images(&layout).unwrap();
        let images = Registry::start_tls(&layout, &rack, (RACK, 5001).into()).unwrap();
        let network = Namespace::new("claimed").unwrap();
        rack.add_veth("v21", &network, "eth0").unwrap();
        rack.ip("link set dev v21 master br0").unwrap();
        network.ip(&format!("address add {HOST}/24 dev eth0")).unwrap();
        network.ip(&format!("route add default via {RACK}")).unwrap();
        let host = AgentHost::start_in(network, Some((&rack, RACK)), 5).unwrap();
        let pool = Self { directory, images, host, rack };
        let policy = json!({ "spec": { "claimPolicy": { "namespaces": [TENANT] } } });
        pool.admin().merge("machine", NAME, &policy).unwrap();
        for namespace in [TENANT, "bedplate-system"] {
            let object =
                json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
            pool.admin().apply(&object).unwrap();
        }
        pool.configuration();
        pool.host.host.run("systemctl", &["start", "bedplate-agent.service"]).unwrap();
        pool
    }

    fn admin(&self) -> &Objects {
        self.host.objects().unwrap()
    }

    fn provider(&self) -> Objects {
        self.admin().impersonating(PROVIDER, &[MASTERS])
    }

    /// The configuration of the pool, with its only version.
    fn configuration(&self) {
        let authority = self.images.authority().unwrap();
        let files = files().into_iter().chain(registry_files("10.7.0.1:5001", authority));
        let registry = self.host.registry();
        let template = json!({
            "image": { "reference": registry.reference(), "caBundle": registry.authority() },
            "kubernetes": { "version": version().unwrap() },
            "container": { "network": "Host" },
            "files": files.collect::<Vec<_>>(),
            "healthGate": { "timeoutSeconds": 600, "minReadySeconds": 1 },
        });
        let object = |kind: &str, name: &str, spec: &Value| json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec });
        let spec = json!({ "claimPolicy": { "namespaces": [TENANT] }, "template": template });
        self.admin().apply(&object("MachineConfiguration", "pool", &spec)).unwrap();
        let spec = json!({ "configurationName": "pool", "version": 1, "template": template });
        self.admin().apply(&object("MachineConfigurationVersion", "pool-v1", &spec)).unwrap();
    }

    /// Creates a claim as the provider does, and selects the version as the controller does.
    fn claim(&self, name: &str, has_user_data: bool) {
        let key_id = self.host.status().unwrap()["enrollment"]["keyID"].clone();
        let mut spec = json!({ "claimant": { "namespace": TENANT, "name": name, "uid": format!("uid-of-{name}") },
            "clusterName": "one", "role": "ControlPlane", "nodeName": name, "providerID": provider_id(name),
            "configurationRef": { "name": "pool" }, "release": "Empty" });
        if has_user_data {
            spec["bootstrapSecretName"] = json!(name);
        }
        let metadata = json!({ "name": NAME, "finalizers": [FINALIZER], "annotations": { "bedplate.dev/enrollment": key_id } });
        let claim = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineClaim", "metadata": metadata, "spec": spec });
        self.provider().apply_as(PROVIDER_MANAGER, "", &claim, "").unwrap();
        let selected =
            json!({ "name": "pool", "version": 1, "source": "Claim", "providerID": provider_id(name) });
        self.host.patch("machine", &json!({ "selected": selected })).unwrap();
    }

    fn grant(&self) {
        let condition = json!({ "type": "Granted", "status": "True", "reason": "Granted", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let status = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineClaim", "metadata": { "name": NAME },
            "status": { "conditions": [condition] } });
        self.provider().apply_as(PROVIDER_MANAGER, "/status", &status, "").unwrap();
    }

    /// Lets the host read one Secret, by its enrollment (D4).
    fn open_secret(&self, name: &str) {
        let tenant = self.admin().within(TENANT);
        let role = format!("bedplate-claim-{NAME}");
        let key_id = self.host.status().unwrap()["enrollment"]["keyID"].as_str().unwrap().to_owned();
        for object in [
            json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": { "name": role, "namespace": TENANT },
                "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": [name] }] }),
            json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                "metadata": { "name": role, "namespace": TENANT },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role },
                "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group",
                    "name": format!("bedplate:enrollment:{key_id}") }] }),
        ] {
            tenant.apply(&object).unwrap();
        }
    }

    /// Removes the Role and its binding, as the provider does once the host bootstraps.
    fn close_secret(&self) {
        let tenant = self.admin().within(TENANT);
        for kind in ["rolebinding", "role"] {
            tenant.delete(kind, &format!("bedplate-claim-{NAME}")).unwrap();
        }
    }

    fn claim_status(&self) -> Value {
        let claim = self.admin().get("mcl", NAME).unwrap().unwrap_or_default();
        claim["status"].clone()
    }

    /// Waits until the claim is in this state, and prints how long it took.
    fn until_state(&self, state: &str) -> Value {
        let started = Instant::now();
        let reached = || {
            let status = self.claim_status();
            assert!(state == "Failed" || status["state"] != "Failed", "{status:#}\n{}", self.said());
            Ok(Some(status).filter(|status| status["state"] == state))
        };
        let found = wait::until_asked(state, LIMIT, reached);
        println!("{state}: {:.1} s", started.elapsed().as_secs_f64());
        found.unwrap_or_else(|error| panic!("{error:#}\n{:#}\n{}", self.claim_status(), self.said()))
    }

    fn until_paved(&self, what: &str, reached: impl Fn(&Value) -> bool) {
        self.host.until(what, |status| reached(&paved(status))).unwrap();
    }

    /// Returns the ends of the logs of agent, user data and kubelet.
    fn said(&self) -> String {
        let host = &self.host.host;
        let log = "tail -n 60 /var/lib/bedplate/slots/*/state/log/bedplate/user-data.log; journalctl --no-pager -n 25 -u kubelet.service \
                   --directory=$(ls -d /var/lib/bedplate/slots/*/state/log/journal | head -n 1) | cut -c1-300";
        let journal = host.journal("bedplate-agent").unwrap_or_default();
        format!("{journal}\n{}", host.run("sh", &["-c", log]).unwrap_or_default())
    }

    /// Makes what the claimant's provider would: authorities, and the Secret with the user data.
    fn user_data(&self, name: &str) {
        let place = self.directory.path().join("pki");
        std::fs::create_dir_all(place.join("etcd")).unwrap();
        let openssl = |script: &str| {
            let mut shell = std::process::Command::new("sh");
            run(shell.args(["-ec", script]).current_dir(&place)).unwrap();
        };
        let mut written = String::new();
        let mut add = |path: &str, mode: &str| {
            let content = std::fs::read_to_string(place.join(path)).unwrap();
            let lines: String = content.lines().map(|line| format!("      {line}\n")).collect();
            written += &format!(
                "-   path: /etc/kubernetes/pki/{path}\n    owner: root:root\n    permissions: '{mode}'\n    content: |\n{lines}\n"
            );
        };
        for authority in AUTHORITIES {
            openssl(&format!(
                "openssl ecparam -name prime256v1 -genkey -noout -out {authority}.key; openssl req -x509 -new -key {authority}.key -days 3650 \
                 -subj /CN={} -addext keyUsage=critical,digitalSignature,keyEncipherment,keyCertSign -out {authority}.crt",
                authority.replace('/', "-")
            ));
            add(&format!("{authority}.crt"), "0640");
            add(&format!("{authority}.key"), "0600");
        }
        openssl("openssl genrsa -out sa.key 2048; openssl rsa -in sa.key -pubout -out sa.pub");
        add("sa.pub", "0640");
        add("sa.key", "0600");
        let data = format!("{HEADER}{written}{}", self.kubeadm());
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": { "name": name, "namespace": TENANT, "labels": { "cluster.x-k8s.io/cluster-name": "one" } },
            "data": { "value": STANDARD.encode(data), "format": STANDARD.encode("cloud-config") } });
        self.admin().within(TENANT).apply(&secret).unwrap();
    }

    /// Rest of the user data: configuration of kubeadm, and its command.
    fn kubeadm(&self) -> String {
        let mut registration = registration();
        registration["taints"] = json!([]);
        registration["name"] = json!("{{ ds.meta_data.local_hostname }}");
        let cluster = json!({ "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration", "clusterName": "one",
            "kubernetesVersion": version().unwrap(), "controlPlaneEndpoint": format!("{HOST}:6443"),
            "imageRepository": "10.7.0.1:5001", "encryptionAlgorithm": "ECDSA-P256",
            "dns": { "disabled": true }, "proxy": { "disabled": true } });
        let init = json!({ "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "InitConfiguration",
            "localAPIEndpoint": { "advertiseAddress": HOST, "bindPort": 6443 }, "nodeRegistration": registration });
        let mut kubelet = kubelet();
        kubelet["apiVersion"] = json!("kubelet.config.k8s.io/v1beta1");
        kubelet["kind"] = json!("KubeletConfiguration");
        let document = |value: &Value| format!("      ---\n      {value}\n");
        let documents = [&cluster, &init, &kubelet].map(document).concat();
        format!(
            "-   path: /run/kubeadm/kubeadm.yaml\n    owner: root:root\n    permissions: '0640'\n    content: |\n{documents}\
             -   path: /run/cluster-api/placeholder\n    owner: root:root\n    permissions: '0640'\n    content: \"placeholder\"\n\
             runcmd:\n  - {}\n  - 'kubeadm init --config /run/kubeadm/kubeadm.yaml  && echo success > /run/cluster-api/bootstrap-success.complete'\n",
            json!(PARAMETERS.replace("|| exit 1", "|| true"))
        )
    }

    /// kubectl with the administrator's file of the claimant's cluster.
    fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let path = self.directory.path().join("admin.conf");
        let config = self.host.host.read("/var/lib/bedplate/slots/a/state/kubernetes/admin.conf")?;
        std::fs::write(&path, config)?;
        let mut kubectl = self.rack.command(programs()?.join("kubectl"));
        run(kubectl.arg("--kubeconfig").arg(&path).args(arguments))
    }
}

const HEADER: &str = "## template: jinja\n#cloud-config\n\nwrite_files:\n";

fn provider_id(name: &str) -> String {
    format!("bedplate://{NAME}/uid-of-{name}")
}

/// The claim ends as the provider ends it. Both slots are empty then.
fn released(pool: &Pool) {
    pool.provider().begin_delete("mcl", NAME).unwrap();
    pool.until_state("Released");
    let host = &pool.host.host;
    for path in ["/var/lib/bedplate/slots/a", "/var/lib/bedplate/slots/b", "/run/bedplate/slots/a"] {
        assert!(host.run("test", &["!", "-e", path]).is_ok(), "{path} is there");
    }
    let left = host.run("find", &["/var/lib/bedplate/trash", "/run/bedplate/claim", "-type", "f"]);
    assert_eq!(left.unwrap_or_default().trim(), "");
    let machine = || {
        let status = pool.host.status()?;
        let is_empty = |slot: &Value| slot["state"] == "Empty";
        let slots = status["slots"].as_array().cloned().unwrap_or_default();
        let is_over =
            status["claim"]["state"] == "Released" && !slots.is_empty() && slots.iter().all(is_empty);
        Ok(is_over.then_some(()))
    };
    wait::until_asked("the Machine says so too", LIMIT, machine).unwrap();
    let finalizers = json!({ "metadata": { "finalizers": null } });
    pool.provider().merge("mcl", NAME, &finalizers).unwrap();
    pool.host.patch("machine", &json!({ "selected": null })).unwrap();
    pool.until_paved("the host is free", |paved| paved["reason"] == "AwaitingClaim");
}

#[test]
fn d3_claimed_host_runs_kubeadm_init_and_is_claimed_again() {
    let pool = Pool::start();
    pool.until_paved("no claim holds the host", |paved| paved["reason"] == "AwaitingClaim");
    pool.user_data("w-1");
    pool.claim("w-1", true);
    pool.until_state("Preparing");
    pool.grant();
    // D4: the Role comes later. The host waits and does not fail.
    let waits = |paved: &Value| {
        paved["reason"] == "Preparing"
            && paved["message"].as_str().is_some_and(|text| text.contains("Secret team-a/w-1"))
    };
    pool.until_paved("the host waits for the Secret", waits);
    pool.open_secret("w-1");
    // D4: a certificate of the same Machine with another key, as an earlier tenant may have copied it.
    let (copied, _) = pool.host.kubernetes.agent(NAME).unwrap();
    let read = ["get", "secret", "--namespace", TENANT, "w-1"];
    let refused = pool.host.kubernetes.kubectl(&copied, &read).unwrap_err().to_string();
    assert!(refused.contains("forbidden"), "{refused}");
    pool.until_state("Bootstrapping");
    pool.close_secret();
    let status = pool.until_state("Joined");

    let node: Value =
        serde_json::from_str(&pool.kubectl(&["get", "node", "w-1", "-o", "json"]).unwrap()).unwrap();
    assert_eq!(node["spec"]["providerID"], provider_id("w-1"), "D5");
    assert_eq!(node["metadata"]["labels"]["bedplate.dev/machine"], NAME, "D5");
    assert_eq!(status["node"], json!({ "name": "w-1", "uid": node["metadata"]["uid"] }));
    let host = &pool.host.host;
    let log = host.read("/var/lib/bedplate/slots/a/state/log/bedplate/user-data.log").unwrap();
    assert_eq!(log.matches("bedplate: runcmd\n").count(), 1, "{log}");
    // D3: nothing of the user data is left in the memory of the host.
    let left = host.run("ls", &["-A", "/run/bedplate/claim", "/run/bedplate/slots/a"]).unwrap();
    assert!(!left.contains("user-data"), "{left}");
    pool.host.until("the Machine reports the claim", |status| status["claim"]["state"] == "Joined").unwrap();
    released(&pool);

    // Without user data the host has joined when its slot runs.
    pool.claim("w-2", false);
    pool.grant();
    let status = pool.until_state("Joined");
    assert_eq!(status["providerID"], provider_id("w-2"));
    assert_eq!(host.read("/var/lib/machines/bedplate-a/etc/hostname").unwrap(), "w-2\n");
    released(&pool);
}
