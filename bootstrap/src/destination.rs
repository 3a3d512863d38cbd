//! Pure: the API server that the node of a version joins, and the authorities that the join trusts, as far as
//! the version names them.
//!
//! In a cluster the agent compares both with its own cluster: a host must not become a Node of another one. Called by `bedplate-agent`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_api::configuration::KubernetesSpec;
use serde_json::{Map, Value};

use crate::again::current_cluster;
use crate::makes_a_cluster;
use crate::merge::at;

/// Place in which a version names the API server that its node joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination<'a> {
    /// The version names none, or makes a cluster.
    Unnamed,
    /// `apiServerEndpoint`: the agent's own kubeconfig with another server, so the join trusts the agent's
    /// authorities.
    Endpoint(&'a str),
    /// `joinConfiguration.discovery.bootstrapToken`.
    Token {
        /// API server as `host:port`; empty if the version names none.
        endpoint: &'a str,
        /// Hashes of the authorities, one of which the API server must have. None: kubeadm trusts any.
        hashes: Vec<&'a str>,
    },
    /// `joinConfiguration.discovery.file`: path of a kubeconfig in the slot, or its URL.
    File(&'a str),
}

/// Returns where the node of a version joins.
pub fn destination(kubernetes: &KubernetesSpec) -> Destination<'_> {
    if makes_a_cluster(kubernetes) {
        return Destination::Unnamed;
    }
    let join = kubernetes.join_configuration.as_ref();
    let found = |path: &str| join.and_then(|join| at(join, path));
    let text = |path: &str| found(path).and_then(Value::as_str).unwrap_or_default();
    if found("discovery.file").is_some() {
        return Destination::File(text("discovery.file.kubeConfigPath"));
    }
    if found("discovery.bootstrapToken").is_some() {
        let hashes = found("discovery.bootstrapToken.caCertHashes").and_then(Value::as_array);
        let hashes = hashes.into_iter().flatten().filter_map(Value::as_str).collect();
        return Destination::Token { endpoint: text("discovery.bootstrapToken.apiServerEndpoint"), hashes };
    }
    kubernetes.api_server_endpoint.as_deref().map_or(Destination::Unnamed, Destination::Endpoint)
}

/// Cluster that a kubeconfig means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedCluster {
    /// URL of the API server.
    pub server: String,
    /// Authorities that its certificate is verified by.
    pub authorities: Authorities,
}

/// Authorities of a kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authorities {
    /// The kubeconfig holds them (PEM).
    Held(String),
    /// Path of a file with them.
    File(String),
    /// The kubeconfig names none, or accepts any certificate.
    Unnamed,
}

/// Returns the cluster of a kubeconfig's current context, as kubeadm takes it from a discovery file. None: the text is not such a kubeconfig.
pub fn named_cluster(text: &str) -> Option<NamedCluster> {
    let config: Map<String, Value> = serde_saphyr::from_str(text).ok()?;
    let clusters = config.get("clusters")?.as_array()?;
    let name = current_cluster(&config).or_else(|| clusters.first()?.get("name")?.as_str());
    let named = clusters.iter().find(|cluster| cluster.get("name").and_then(Value::as_str) == name);
    let cluster = named?.get("cluster")?;
    let text = |field: &str| cluster.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    let authorities = match (text("certificate-authority-data"), text("certificate-authority")) {
        _ if cluster.get("insecure-skip-tls-verify") == Some(&Value::Bool(true)) => Authorities::Unnamed,
        (Some(data), _) => {
            let data: String = data.split_ascii_whitespace().collect();
            Authorities::Held(String::from_utf8(STANDARD.decode(data).ok()?).ok()?)
        }
        (None, Some(path)) => Authorities::File(path.to_owned()),
        (None, None) => Authorities::Unnamed,
    };
    Some(NamedCluster { server: text("server")?.to_owned(), authorities })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kubernetes(more: &Value) -> KubernetesSpec {
        let mut kubernetes = json!({ "version": "v1.34.4" });
        kubernetes.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(kubernetes).unwrap()
    }

    #[test]
    fn destination_is_the_discovery_before_the_endpoint() {
        let of = |more: Value| format!("{:?}", destination(&kubernetes(&more)));
        assert_eq!(of(json!({})), "Unnamed");
        assert_eq!(of(json!({ "apiServerEndpoint": "k:6443" })), "Endpoint(\"k:6443\")");
        assert_eq!(of(json!({ "role": "ControlPlane", "apiServerEndpoint": "k:6443" })), "Unnamed");
        let file = json!({ "discovery": { "file": { "kubeConfigPath": "/etc/join.conf" } } });
        let both = json!({ "apiServerEndpoint": "k:6443", "joinConfiguration": file });
        assert_eq!(of(both), "File(\"/etc/join.conf\")");
        let token = json!({ "apiServerEndpoint": "o:6443", "token": "a.b", "caCertHashes": ["sha256:1", 2] });
        let token = json!({ "joinConfiguration": { "discovery": { "bootstrapToken": token } } });
        assert_eq!(of(token), "Token { endpoint: \"o:6443\", hashes: [\"sha256:1\"] }");
        let odd = json!({ "joinConfiguration": { "discovery": { "file": 1 } } });
        assert_eq!(of(odd), "File(\"\")");
    }

    #[test]
    fn kubeconfig_names_the_cluster_of_its_context_with_its_authorities() {
        let of = |cluster: &str| {
            named_cluster(&format!(
                "clusters:\n- {{name: one, cluster: {{server: 'https://one'}}}}\n- {{name: two, cluster: {cluster}}}\n\
                 contexts:\n- {{name: c, context: {{cluster: two, user: u}}}}\ncurrent-context: c\n"
            ))
        };
        let with = |authorities| Some(NamedCluster { server: "https://two".to_owned(), authorities });
        let held =
            of("{server: 'https://two', certificate-authority-data: Q0E=, certificate-authority: /ca}");
        assert_eq!(held, with(Authorities::Held("CA".to_owned())));
        let file = of("{server: 'https://two', certificate-authority: ca.crt}");
        assert_eq!(file, with(Authorities::File("ca.crt".to_owned())));
        assert_eq!(of("{server: 'https://two'}"), with(Authorities::Unnamed));
        let any =
            of("{server: 'https://two', certificate-authority-data: Q0E=, insecure-skip-tls-verify: true}");
        assert_eq!(any, with(Authorities::Unnamed));
        for cluster in ["{}", "1", "{server: 'https://two', certificate-authority-data: '?'}"] {
            assert_eq!(of(cluster), None, "{cluster}");
        }
        for text in ["", "- 1", "kind: Config", "clusters: [1]"] {
            assert_eq!(named_cluster(text), None, "{text}");
        }
    }
}
