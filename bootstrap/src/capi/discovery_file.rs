//! Pure: the kubeconfig of a discovery by file, if the user has given its parts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_api::cluster::kubeadm::join::{Exec, FileDiscovery, KubeConfig, KubeConfigUser};
use serde_json::{Value, json};

use super::defaults::host_and_port;
use super::{Fault, Issue, Purpose, root_file};
use crate::certificate::{self, CertificatePurpose};
use crate::cloud_init::{CloudFile, yaml};

/// Version of the API of a program that gives credentials, if the user has set none.
const EXEC_API: &str = "client.authentication.k8s.io/v1";

/// Renders the file. None if the machine does not join by a kubeconfig, or if the kubeconfig is there already.
pub(super) fn file(issue: &Issue<'_>, faults: &mut Vec<Fault>) -> Option<CloudFile> {
    if issue.purpose == Purpose::Init {
        return None;
    }
    let discovery = issue.spec.join_configuration.as_ref()?.discovery.as_ref()?;
    let FileDiscovery { kube_config_path, kube_config } = discovery.file.as_ref()?;
    let kube_config = kube_config.as_ref()?;
    let cluster = cluster(kube_config, issue, faults)?;
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "default", "cluster": cluster }],
        "users": [{ "name": "default", "user": user(&kube_config.user) }],
        "contexts": [{ "name": "default", "context": { "cluster": "default", "user": "default" } }],
        "current-context": "default",
    });
    Some(root_file(kube_config_path, yaml::document(&document)))
}

fn cluster(config: &KubeConfig, issue: &Issue<'_>, faults: &mut Vec<Fault>) -> Option<Value> {
    let given = config.cluster.clone().unwrap_or_default();
    let server =
        given.server.or_else(|| issue.cluster.endpoint.map(|at| format!("https://{}", host_and_port(at))));
    if server.is_none() {
        let path = "spec.joinConfiguration.discovery.file.kubeConfig.cluster.server".to_owned();
        faults.push(Fault::Missing { path, remedy: "wait until the Cluster has its endpoint" });
    }
    let mut cluster = if given.insecure_skip_tls_verify == Some(true) {
        // Clients refuse a kubeconfig with both. The upstream provider writes both.
        if given.certificate_authority_data.is_some() {
            let path = "spec.joinConfiguration.discovery.file.kubeConfig.cluster.certificateAuthorityData";
            let expected = "must not be set together with insecureSkipTLSVerify";
            faults.push(Fault::Invalid { path: path.to_owned(), expected });
        }
        json!({ "insecure-skip-tls-verify": true })
    } else {
        let authority = given.certificate_authority_data.or_else(|| {
            certificate::find(issue.certificates, CertificatePurpose::ClusterAuthority)
                .map(|found| STANDARD.encode(&found.certificate))
        });
        if authority.is_none() {
            let name = CertificatePurpose::ClusterAuthority.secret_name(issue.cluster.name);
            faults.push(Fault::Certificate { name, why: "does not exist" });
        }
        json!({ "certificate-authority-data": authority? })
    };
    cluster["server"] = json!(server?);
    for (field, value) in [("tls-server-name", given.tls_server_name), ("proxy-url", given.proxy_url)] {
        if let Some(value) = value {
            cluster[field] = json!(value);
        }
    }
    Some(cluster)
}

fn user(user: &KubeConfigUser) -> Value {
    let mut written = json!({});
    if let Some(provider) = &user.auth_provider {
        written["auth-provider"] = json!({ "name": provider.name });
        if !provider.config.is_empty() {
            written["auth-provider"]["config"] = json!(provider.config);
        }
    }
    if let Some(Exec { command, args, env, api_version, provide_cluster_info }) = &user.exec {
        written["exec"] = json!({
            "apiVersion": api_version.as_deref().unwrap_or(EXEC_API),
            "command": command,
            "interactiveMode": "Never",
            "provideClusterInfo": provide_cluster_info.unwrap_or_default(),
        });
        if !args.is_empty() {
            written["exec"]["args"] = json!(args);
        }
        if !env.is_empty() {
            written["exec"]["env"] = json!(env);
        }
    }
    written
}
