//! Readiness of the API server of a control plane's slot. It is asked directly, not through a load balancer.
//!
//! Its address is in the manifest that kubeadm wrote. The server must show a
//! certificate of the cluster's authority. Called by `health_gate`.

use std::path::Path;
use std::time::Duration;

use bedplate_api::configuration::NodeRole;
use bedplate_process::exit::chain;
use serde_json::Value;
use tokio::time::timeout;

use crate::bus::Leader;
use crate::kubelet::client::AskNodeError;
use crate::kubelet::connection::{KUBECONFIG, KubeletCredential, Way};
use crate::slot::confined_writer::Inside;
use crate::slot::fill_record::Filled;

/// The static Pod of the API server, made by kubeadm.
pub const MANIFEST: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";
/// Annotation in which kubeadm records the advertised address.
const ENDPOINT: &str = "kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint";
/// Timeout of its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks the API server in the container of this leader, on the host whose root directory is `host`. An
/// error is human-readable text.
pub(crate) async fn ask(host: &Path, leader: Leader, filled: &Filled) -> Result<(), String> {
    if filled.template.kubernetes.role == NodeRole::Worker {
        return Ok(());
    }
    let host = host.to_owned();
    let find = move || {
        let inside = leader.open_root(&host);
        credential(&inside.map_err(|error| format!("cannot open the root of the slot: {error}"))?)
    };
    let found = tokio::task::spawn_blocking(find).await;
    let credential = found.map_err(|error| error.to_string())??;
    let way = Way::new(&credential).map_err(|error| chain(&error))?;
    let asked = timeout(ANSWER_TIMEOUT, way.page("/readyz")).await;
    let server = &credential.server;
    match asked {
        Err(_) => Err(format!("no answer from {server}")),
        Ok(Err(error)) => Err(chain(&error)),
        Ok(Ok((200, _))) => Ok(()),
        // `fault::advice` relates the words "status 401" to the certificate of this host. The kubelet has another one.
        Ok(Ok((status, text))) => {
            Err(format!("{server} answered {status}: {}", text.trim().chars().take(300).collect::<String>()))
        }
    }
}

/// The kubelet's credential, for the slot's own API server.
fn credential(inside: &Inside) -> Result<KubeletCredential, String> {
    let text = |path: &str| {
        let text = inside.read_text(path).map_err(|error| format!("cannot read {path}: {error}"))?;
        text.ok_or_else(|| format!("{path} is missing"))
    };
    let endpoint = endpoint(&text(MANIFEST)?).ok_or_else(|| format!("{MANIFEST} has no {ENDPOINT}"))?;
    let read = |path: &str| {
        let read = inside.read_text(path);
        read.map_err(|source| AskNodeError::File { path: path.to_owned(), source })
    };
    let credential = KubeletCredential::read(&text(KUBECONFIG)?, &read).map_err(|error| chain(&error))?;
    Ok(KubeletCredential { server: format!("https://{endpoint}"), ..credential })
}

/// The address in the manifest.
fn endpoint(manifest: &str) -> Option<String> {
    let manifest: Value = serde_saphyr::from_str(manifest).ok()?;
    manifest["metadata"]["annotations"][ENDPOINT].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(role: &str) -> Filled {
        let template = json!({"image": {"reference": "r.example/node", "allowTag": true},
            "kubernetes": {"version": "v1.34.4", "role": role}});
        Filled {
            template: serde_json::from_value(template).unwrap(),
            layers: 1,
            cri_socket: String::new(),
            node_name: None,
        }
    }

    #[test]
    fn the_address_is_the_one_that_kubeadm_noted() {
        let manifest = "apiVersion: v1\nkind: Pod\nmetadata:\n  annotations:\n    \
                        kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint: 10.7.0.11:6443\n  name: kube-apiserver\n";
        assert_eq!(endpoint(manifest).as_deref(), Some("10.7.0.11:6443"));
        assert_eq!(endpoint("kind: Pod\nmetadata: {}\n"), None);
        assert_eq!(endpoint("- 1\n"), None);
    }

    #[tokio::test]
    async fn worker_waits_for_no_api_server_and_control_plane_names_the_missing() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/7/root")).unwrap();
        let leader = Leader::new(7).unwrap();
        assert_eq!(ask(root.path(), leader, &filled("Worker")).await, Ok(()));
        let said = ask(root.path(), leader, &filled("ControlPlane")).await.unwrap_err();
        assert!(said.contains("/etc/kubernetes/manifests/kube-apiserver.yaml is missing"), "{said}");
    }
}
