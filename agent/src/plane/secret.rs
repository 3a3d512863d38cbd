//! Reads a Secret that a version names, one at a time by its name.
//!
//! Values are overwritten in memory when they are dropped, and are neither stored nor logged. The HTTP client
//! frees its copy of the answer without that. Called by `cluster`.

use std::collections::BTreeMap;
use std::fmt;

use bedplate_api::configuration::SecretRef;
use bedplate_api::reason::machine::PavedReason;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use thiserror::Error;
use zeroize::Zeroizing;

use super::error::{AskServerError, find};

/// Content of a Secret.
pub struct SecretData {
    /// Type of the Secret, such as `kubernetes.io/dockerconfigjson`.
    pub kind: String,
    /// Values of the Secret by key.
    pub data: BTreeMap<String, Zeroizing<Vec<u8>>>,
}

impl fmt::Debug for SecretData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretData").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Reason for which a Secret was not read.
#[derive(Debug, Error)]
pub enum ReadSecretError {
    /// No role permits the agent to read it.
    #[error("the agent may not read Secret {name} of namespace {namespace}; permit it: {remedy}")]
    Forbidden {
        /// The Secret's namespace.
        namespace: String,
        /// The Secret's name.
        name: String,
        /// The commands that make Role and RoleBinding.
        remedy: String,
    },
    /// There is no such Secret.
    #[error("Secret {name} does not exist in namespace {namespace}")]
    Missing {
        /// The Secret's namespace.
        namespace: String,
        /// The Secret's name.
        name: String,
    },
    /// The API server was not reached, or refused for another reason.
    #[error("cannot read a Secret")]
    Server(#[source] AskServerError),
}

impl ReadSecretError {
    /// Returns the reason for a condition.
    pub fn reason(&self) -> PavedReason {
        match self {
            Self::Forbidden { .. } => PavedReason::SecretForbidden,
            Self::Missing { .. } => PavedReason::SecretNotFound,
            Self::Server(_) => PavedReason::SecretInvalid,
        }
    }
}

pub(super) async fn read(client: &Client, secret: &SecretRef) -> Result<SecretData, ReadSecretError> {
    let SecretRef { namespace, name } = secret;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    match find(format!("Secret {namespace}/{name}"), ("", "secrets"), name, secrets.get(name)).await {
        Ok(Some(found)) => Ok(SecretData {
            kind: found.type_.unwrap_or_default(),
            data: found
                .data
                .unwrap_or_default()
                .into_iter()
                .map(|(key, ByteString(bytes))| (key, Zeroizing::new(bytes)))
                .collect(),
        }),
        Ok(None) => Err(ReadSecretError::Missing { namespace: namespace.clone(), name: name.clone() }),
        Err(AskServerError::Refused { status: 403, reason, .. }) if reason == "Forbidden" => {
            Err(ReadSecretError::Forbidden {
                namespace: namespace.clone(),
                name: name.clone(),
                remedy: remedy(secret),
            })
        }
        Err(error) => Err(ReadSecretError::Server(error)),
    }
}

/// The Role and the RoleBinding that let every agent read this Secret and no other.
fn remedy(SecretRef { namespace, name }: &SecretRef) -> String {
    format!(
        "kubectl -n {namespace} create role bedplate-agents-{name} --verb=get --resource=secrets --resource-name={name} && \
         kubectl -n {namespace} create rolebinding bedplate-agents-{name} --role=bedplate-agents-{name} --group=bedplate:machines"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plane::fake::fake;

    fn named() -> SecretRef {
        SecretRef { namespace: "images".to_owned(), name: "pull".to_owned() }
    }

    async fn answered(code: u16, body: Value) -> Result<SecretData, ReadSecretError> {
        read(&fake(vec![(code, body)]), &named()).await
    }

    #[tokio::test]
    async fn a_secret_is_read_and_not_shown() {
        let body =
            json!({ "type": "Opaque", "metadata": { "name": "pull" }, "data": { "key": "aHVudGVyMg==" } });
        let secret = answered(200, body).await.unwrap();
        assert_eq!(secret.data["key"].as_slice(), b"hunter2");
        assert!(!format!("{secret:?}").contains("hunter2") && !format!("{secret:?}").contains("104"));
    }

    #[tokio::test]
    async fn forbidden_secret_is_reported_with_the_role_to_create() {
        let body = json!({ "status": "Failure", "reason": "Forbidden", "code": 403, "message": "secrets \"pull\" is forbidden" });
        let error = answered(403, body).await.unwrap_err();
        assert_eq!(error.reason(), PavedReason::SecretForbidden);
        let text = error.to_string();
        for part in ["-n images create role", "--resource-name=pull", "--group=bedplate:machines"] {
            assert!(text.contains(part), "{text}");
        }
        let body = json!({ "status": "Failure", "reason": "NotFound", "code": 404, "details": { "kind": "secrets", "name": "pull" } });
        assert_eq!(answered(404, body).await.unwrap_err().reason(), PavedReason::SecretNotFound);
        assert_eq!(
            answered(404, json!({})).await.unwrap_err().reason(),
            PavedReason::SecretInvalid,
            "a proxy's 404"
        );
    }
}
