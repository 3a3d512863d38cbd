//! User data as the kubeadm provider of the Cluster API writes it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use bedplate_tests::control_plane::{PARAMETERS, kubelet, registration, version};
use bedplate_tests::guard::run;
use serde_json::{Value, json};

const HEADER: &str = "## template: jinja\n#cloud-config\n\nwrite_files:\n";
/// Authorities that control planes share: path below `/etc/kubernetes/pki`, without extension.
const AUTHORITIES: [&str; 3] = ["ca", "etcd/ca", "front-proxy-ca"];
const PORT: u16 = 6443;

/// A workload cluster: its authorities and its endpoint.
pub(crate) struct Cluster {
    directory: PathBuf,
    endpoint: Ipv4Addr,
}

impl Cluster {
    /// Creates the authorities in a directory.
    pub(crate) fn create(directory: PathBuf, endpoint: Ipv4Addr) -> Self {
        std::fs::create_dir_all(directory.join("etcd")).unwrap();
        for authority in AUTHORITIES {
            openssl(
                &directory,
                &format!(
                    "openssl ecparam -name prime256v1 -genkey -noout -out {authority}.key; openssl req -x509 -new -key {authority}.key -days 3650 \
                     -subj /CN={} -addext keyUsage=critical,digitalSignature,keyEncipherment,keyCertSign -out {authority}.crt",
                    authority.replace('/', "-")
                ),
            );
        }
        openssl(&directory, "openssl genrsa -out sa.key 2048; openssl rsa -in sa.key -pubout -out sa.pub");
        Self { directory, endpoint }
    }

    /// Returns the user data of the first control plane.
    pub(crate) fn init(&self) -> String {
        let cluster = json!({ "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration", "clusterName": "one",
            "kubernetesVersion": version().unwrap(), "controlPlaneEndpoint": format!("{}:{PORT}", self.endpoint),
            "imageRepository": "10.7.0.1:5001", "encryptionAlgorithm": "ECDSA-P256",
            "dns": { "disabled": true }, "proxy": { "disabled": true } });
        let init = json!({ "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "InitConfiguration",
            "localAPIEndpoint": { "advertiseAddress": self.endpoint, "bindPort": PORT },
            "nodeRegistration": node_registration() });
        let mut kubelet = kubelet();
        kubelet["apiVersion"] = json!("kubelet.config.k8s.io/v1beta1");
        kubelet["kind"] = json!("KubeletConfiguration");
        self.user_data("kubeadm.yaml", &[cluster, init, kubelet], "init")
    }

    /// Returns the user data of a control plane at this address, which joins with a bootstrap token.
    pub(crate) fn join(&self, address: Ipv4Addr, token: &str) -> String {
        let hash = openssl(
            &self.directory,
            "openssl x509 -in ca.crt -noout -pubkey | openssl pkey -pubin -outform der | sha256sum | cut -d' ' -f1",
        );
        let join = json!({ "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "JoinConfiguration",
            "controlPlane": { "localAPIEndpoint": { "advertiseAddress": address, "bindPort": PORT } },
            "discovery": { "bootstrapToken": { "apiServerEndpoint": format!("{}:{PORT}", self.endpoint),
                "caCertHashes": [format!("sha256:{}", hash.trim())], "token": token } },
            "nodeRegistration": node_registration() });
        self.user_data("kubeadm-join-config.yaml", &[join], "join")
    }

    fn user_data(&self, name: &str, documents: &[Value], command: &str) -> String {
        let document = |value: &Value| format!("      ---\n      {value}\n");
        let documents = documents.iter().map(document).collect::<String>();
        format!(
            "{HEADER}{}-   path: /run/kubeadm/{name}\n    owner: root:root\n    permissions: '0640'\n    content: |\n{documents}\
             -   path: /run/cluster-api/placeholder\n    owner: root:root\n    permissions: '0640'\n    content: \"placeholder\"\n\
             runcmd:\n  - {}\n  - 'kubeadm {command} --config /run/kubeadm/{name}  && echo success > /run/cluster-api/bootstrap-success.complete'\n",
            self.authorities(),
            json!(PARAMETERS.replace("|| exit 1", "|| true"))
        )
    }

    /// Entries of `write_files` for certificates and keys.
    fn authorities(&self) -> String {
        let pairs = AUTHORITIES.iter().flat_map(|authority| {
            [(format!("{authority}.crt"), "0640"), (format!("{authority}.key"), "0600")]
        });
        let accounts = [("sa.pub".to_owned(), "0640"), ("sa.key".to_owned(), "0600")];
        let entry = |(path, mode): (String, &str)| {
            let content = std::fs::read_to_string(self.directory.join(&path)).unwrap();
            let lines: String = content.lines().map(|line| format!("      {line}\n")).collect();
            format!(
                "-   path: /etc/kubernetes/pki/{path}\n    owner: root:root\n    permissions: '{mode}'\n    content: |\n{lines}\n"
            )
        };
        pairs.chain(accounts).map(entry).collect()
    }
}

fn node_registration() -> Value {
    let mut registration = registration();
    registration["taints"] = json!([]);
    registration["name"] = json!("{{ ds.meta_data.local_hostname }}");
    registration
}

fn openssl(directory: &Path, script: &str) -> String {
    run(Command::new("sh").args(["-ec", script]).current_dir(directory)).unwrap()
}
