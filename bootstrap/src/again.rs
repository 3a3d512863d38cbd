//! Pure: credential by which a joined kubelet requests a new certificate after its own has expired. It uses
//! the discovery of its version, like kubeadm at the join.

use std::fmt;

use bedplate_api::configuration::KubernetesSpec;
use serde_json::{Map, Value, json};

use crate::merge::at;

/// Names in a kubeconfig that is made here.
const USER: &str = "tls-bootstrap-token-user";
const CLUSTER: &str = "default-cluster";
const CONTEXT: &str = "default-context";

/// Credential with which a version's node joins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum JoinedBy<'a> {
    /// A kubeconfig of the slot's.
    File {
        /// Path of the kubeconfig in the slot.
        path: &'a str,
        /// Token that replaces the credential of the kubeconfig.
        token: Option<&'a str>,
    },
    /// A token without a CA. The node trusts the cluster's CA already.
    Token {
        /// The API server as `host:port`.
        endpoint: &'a str,
        /// The token.
        token: &'a str,
    },
}

/// Without the token.
impl fmt::Debug for JoinedBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => write!(f, "File({path})"),
            Self::Token { endpoint, .. } => write!(f, "Token({endpoint})"),
        }
    }
}

/// Returns the credential that the version itself names, if any.
pub fn joined_by(kubernetes: &KubernetesSpec) -> Option<JoinedBy<'_>> {
    let join = kubernetes.join_configuration.as_ref()?;
    let text = |path: &str| at(join, path).and_then(Value::as_str).filter(|text| !text.is_empty());
    let token = text("discovery.tlsBootstrapToken");
    if let Some(path) = text("discovery.file.kubeConfigPath") {
        return Some(JoinedBy::File { path, token });
    }
    let endpoint = text("discovery.bootstrapToken.apiServerEndpoint")?;
    let token = token.or_else(|| text("discovery.bootstrapToken.token"))?;
    Some(JoinedBy::Token { endpoint, token })
}

/// Returns a kubeconfig with this token, and with this API server (`host:port`) if one is given. Returns
/// `None` if the text is not a kubeconfig.
///
/// Only the cluster of a discovery file counts, as for kubeadm. A `cluster-info` has one cluster without a
/// name, no context and no user.
pub fn kubeconfig_with_token(text: &str, endpoint: Option<&str>, token: &str) -> Option<String> {
    let config: Map<String, Value> = serde_saphyr::from_str(text).ok()?;
    let clusters = config.get("clusters")?.as_array()?;
    let name = current_cluster(&config).or_else(|| clusters.first()?.get("name")?.as_str());
    let named = clusters.iter().find(|cluster| cluster.get("name").and_then(Value::as_str) == name);
    let mut cluster = named?.get("cluster")?.as_object()?.clone();
    if let Some(endpoint) = endpoint {
        cluster.insert("server".to_owned(), json!(format!("https://{endpoint}")));
    }
    let made = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": CLUSTER, "cluster": cluster }],
        "contexts": [{ "name": CONTEXT, "context": { "cluster": CLUSTER, "user": USER } }],
        "current-context": CONTEXT,
        "users": [{ "name": USER, "user": { "token": token } }],
    });
    Some(made.to_string())
}

/// Returns the name of the current cluster of a kubeconfig.
pub(crate) fn current_cluster(config: &Map<String, Value>) -> Option<&str> {
    let current = config.get("current-context")?.as_str()?;
    let contexts = config.get("contexts")?.as_array()?;
    let context =
        contexts.iter().find(|context| context.get("name").and_then(Value::as_str) == Some(current))?;
    context.get("context")?.get("cluster")?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubernetes(discovery: &Value) -> KubernetesSpec {
        let spec = json!({ "version": "v1.34.4", "joinConfiguration": { "discovery": discovery } });
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn a_node_asks_again_by_what_it_has_joined_by() {
        let path = "/etc/kubernetes/join.conf";
        let file = kubernetes(&json!({ "file": { "kubeConfigPath": path } }));
        assert_eq!(joined_by(&file), Some(JoinedBy::File { path, token: None }));
        let both = kubernetes(&json!({ "file": { "kubeConfigPath": path }, "tlsBootstrapToken": "a.b" }));
        assert_eq!(joined_by(&both), Some(JoinedBy::File { path, token: Some("a.b") }));
        let token = json!({ "bootstrapToken": { "apiServerEndpoint": "k:6443", "token": "c.d" } });
        let token = kubernetes(&token);
        assert_eq!(joined_by(&token), Some(JoinedBy::Token { endpoint: "k:6443", token: "c.d" }));
        assert!(!format!("{:?}", joined_by(&token)).contains("c.d"));
        assert_eq!(joined_by(&kubernetes(&json!({}))), None);
    }

    #[test]
    fn a_token_takes_the_place_of_the_user_and_the_cluster_stays() {
        let text = "apiVersion: v1\nkind: Config\nclusters:\n- name: default-cluster\n  cluster:\n    certificate-authority-data: Q0E=\n    \
                    server: https://own:6443\ncontexts:\n- name: c\n  context: {cluster: default-cluster, user: default-auth}\n\
                    current-context: c\nusers:\n- name: default-auth\n  user: {client-key: /key}\n";
        let made = |endpoint| -> Value {
            serde_json::from_str(&kubeconfig_with_token(text, endpoint, "a.b").unwrap()).unwrap()
        };
        assert_eq!(made(None)["clusters"][0]["cluster"]["server"], "https://own:6443");
        let other = made(Some("other:6443"));
        assert_eq!(other["clusters"][0]["cluster"]["server"], "https://other:6443");
        assert_eq!(other["clusters"][0]["cluster"]["certificate-authority-data"], "Q0E=");
        assert_eq!(other["contexts"][0]["context"]["user"], other["users"][0]["name"]);
        assert_eq!(other["users"], json!([{ "name": USER, "user": { "token": "a.b" } }]));
    }

    #[test]
    fn cluster_is_that_of_the_current_context_or_of_a_bare_cluster_info() {
        let made = |text: &str| -> Value {
            serde_json::from_str(&kubeconfig_with_token(text, None, "a.b").unwrap()).unwrap()
        };
        let info = "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: Q0E=\n    server: https://k:6443\n  \
                    name: \"\"\ncontexts: null\ncurrent-context: \"\"\nkind: Config\npreferences: {}\nusers: null\n";
        let config = made(info);
        assert_eq!(config["clusters"][0]["cluster"]["server"], "https://k:6443");
        let context = &config["contexts"][0];
        assert_eq!(config["current-context"], context["name"]);
        assert_eq!(context["context"]["cluster"], config["clusters"][0]["name"]);
        assert_eq!(context["context"]["user"], config["users"][0]["name"]);
        let two = "clusters:\n- {name: one, cluster: {server: 'https://one'}}\n- {name: two, cluster: {server: 'https://two'}}\n\
                   contexts:\n- {name: c, context: {cluster: two, user: u}}\ncurrent-context: c\n";
        assert_eq!(made(two)["clusters"][0]["cluster"]["server"], "https://two");
        for text in ["- 1", "kind: Config", "clusters: [1]"] {
            assert_eq!(kubeconfig_with_token(text, Some("k:1"), "a.b"), None, "{text}");
        }
    }
}
