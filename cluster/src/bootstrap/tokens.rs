//! Bootstrap tokens in workload clusters: Secrets in `kube-system`, reached by Secret `<cluster>-kubeconfig`, which is read live.
//!
//! The secret of a token is never kept: a token is used by the turn that has made it. A workload cluster that does not answer is a state,
//! not an error. Called by the loop of [`config`](super::config).

use bedplate_api::cluster::full::Cluster;
use bedplate_bootstrap::token::{
    EXPIRATION_KEY, TOKEN_NAMESPACE, TOKEN_SECRET_TYPE, Token, expiration, secret_name,
};
use bedplate_workload::{ClusterKey, Connections, Networks, RequestError, Workload};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::config::plan::TokenState;
use crate::kubeconfig;

/// Access to the tokens of workload clusters.
#[derive(Clone)]
pub struct Tokens {
    client: Client,
    connections: Connections,
}

impl Tokens {
    /// Makes the access. `client`: that of the management cluster. `networks`: those of API servers of workload clusters.
    pub fn new(client: Client, networks: Networks) -> Self {
        Self { client, connections: Connections::new(networks) }
    }

    /// Reads the token of an ID.
    pub async fn read(&self, cluster: &Cluster, id: &str) -> TokenState {
        let found = async {
            let workload = self.connect(cluster).await?;
            get(&workload, id).await.map_err(|error| error.to_string())
        };
        match found.await {
            Ok(Some(secret)) => TokenState::There(expires(&secret)),
            Ok(None) => TokenState::Absent,
            Err(cause) => TokenState::Unknown(cause),
        }
    }

    /// Creates a token. One of its ID that exists is not changed.
    pub async fn make(&self, cluster: &Cluster, token: Token, now: Timestamp) -> TokenState {
        let workload = match self.connect(cluster).await {
            Ok(workload) => workload,
            Err(cause) => return TokenState::Unknown(cause),
        };
        let secret = secret(&token, now);
        let created =
            workload.ask(async |client| secrets(client).create(&PostParams::default(), &secret).await);
        match created.await {
            Ok(Some(_)) => TokenState::Made(token),
            Ok(None) => {
                TokenState::Unknown(format!("namespace {TOKEN_NAMESPACE} does not exist in the cluster"))
            }
            Err(RequestError::Conflict) => TokenState::There(None),
            Err(error) => TokenState::Unknown(error.to_string()),
        }
    }

    /// Extends the life of a token.
    pub async fn renew(&self, cluster: &Cluster, id: &str, now: Timestamp) -> TokenState {
        let workload = match self.connect(cluster).await {
            Ok(workload) => workload,
            Err(cause) => return TokenState::Unknown(cause),
        };
        let (name, expiration) = (secret_name(id), expiration(now));
        let change = json!({ "stringData": { EXPIRATION_KEY: expiration } });
        let patched = workload.ask(async |client| {
            secrets(client).patch(&name, &PatchParams::default(), &Patch::Merge(&change)).await
        });
        match patched.await {
            Ok(Some(secret)) => TokenState::There(expires(&secret)),
            Ok(None) => TokenState::Absent,
            Err(error) => TokenState::Unknown(error.to_string()),
        }
    }

    /// Forgets a Cluster that was deleted.
    pub fn forget(&self, cluster: &Cluster) {
        self.connections.forget(&kubeconfig::key(cluster));
    }

    /// Returns the workload cluster, or the cause for a user.
    async fn connect(&self, cluster: &Cluster) -> Result<Workload, String> {
        let connect = |key: &ClusterKey, text: &[u8]| {
            self.connections.connect(key, text).map_err(|error| error.to_string())
        };
        kubeconfig::connect(&self.client, &kubeconfig::key(cluster), connect).await
    }
}

fn secrets(client: Client) -> Api<Secret> {
    Api::namespaced(client, TOKEN_NAMESPACE)
}

async fn get(workload: &Workload, id: &str) -> Result<Option<Secret>, RequestError> {
    let name = secret_name(id);
    workload.ask(async |client| secrets(client).get(&name).await).await
}

fn expires(secret: &Secret) -> Option<String> {
    let value = secret.data.as_ref()?.get(EXPIRATION_KEY)?;
    String::from_utf8(value.0.clone()).ok()
}

fn secret(token: &Token, now: Timestamp) -> Secret {
    let bytes = |value: &str| ByteString(value.as_bytes().to_vec());
    let data = token.data(now).into_iter().map(|(key, value)| (key.to_owned(), bytes(&value))).collect();
    Secret {
        metadata: ObjectMeta {
            name: Some(secret_name(token.id())),
            namespace: Some(TOKEN_NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some(TOKEN_SECRET_TYPE.to_owned()),
        data: Some(data),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;

    use super::*;

    #[test]
    fn kb6_secret_of_a_token_is_in_kube_system() {
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        let secret = secret(&token, "2026-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(
            (secret.name_any().as_str(), secret.namespace().as_deref()),
            ("bootstrap-token-abcdef", Some("kube-system"))
        );
        assert_eq!(secret.type_.as_deref(), Some("bootstrap.kubernetes.io/token"));
        assert_eq!(expires(&secret).as_deref(), Some("2026-01-01T00:15:00Z"));
        assert_eq!(expires(&Secret::default()), None);
    }
}
