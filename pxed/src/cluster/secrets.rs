//! Secrets of the cluster with the credentials of BMCs, read one at a time when they are needed.
//!
//! The Kubernetes client frees the text of an answer without zeroizing it.

use std::time::Duration;

use async_trait::async_trait;
use bedplate_api::secret::SecretReference;
use bedplate_process::exit::chain;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use zeroize::{Zeroize as _, Zeroizing};

use super::client::{Access, connected};
use crate::power::bmc::credentials::{Problem, check_namespace, credentials, failed};
use crate::power::bmc::destination::{self, Destinations};
use crate::power::{CredentialsError, CredentialsSource, CredentialsVersion, Issued};

/// Maximum duration of one read.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Secrets of the cluster.
pub(crate) struct ClusterSecrets {
    access: Access,
    namespaces: Vec<String>,
}

impl ClusterSecrets {
    /// Creates the reader of Secrets in these namespaces. The client may be connected later.
    pub(crate) fn new(access: Access, namespaces: Vec<String>) -> Self {
        Self { access, namespaces }
    }

    async fn get(&self, secret: &SecretReference) -> Result<Issued, Problem> {
        check_namespace(&self.namespaces, secret)?;
        let passing = |text: String| Problem { text, transient: true };
        let client = connected(&self.access).map_err(|why| passing(why.to_owned()))?;
        let secrets: Api<Secret> = Api::namespaced(client, &secret.namespace);
        let found = match tokio::time::timeout(READ_TIMEOUT, secrets.get_opt(&secret.name)).await {
            Err(_) => return Err(passing("the API server did not answer in time".to_owned())),
            Ok(Ok(found)) => found.ok_or_else(|| "the Secret does not exist; create it".to_owned())?,
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                let namespace = &secret.namespace;
                let text = format!(
                    "pxed may not read Secrets of the namespace {namespace}; bind the Role of deploy/pxed.yaml there"
                );
                return Err(text.into());
            }
            Ok(Err(error)) => return Err(passing(chain(&error))),
        };
        Ok(issue(found)?)
    }
}

/// Takes the credentials out of a Secret, whose bytes are zeroized.
fn issue(secret: Secret) -> Result<Issued, String> {
    let metadata = secret.metadata;
    let listed = metadata.annotations.as_ref().and_then(|all| all.get(destination::ANNOTATION));
    let destinations = Destinations::of_annotation(listed.map(String::as_str));
    let version =
        format!("{}/{}", metadata.uid.unwrap_or_default(), metadata.resource_version.unwrap_or_default());
    let mut data = secret.data.unwrap_or_default();
    let mut take = |key| data.remove(key).map(|ByteString(bytes)| Zeroizing::new(bytes));
    let (username, password) = (take("username"), take("password"));
    data.values_mut().for_each(|ByteString(bytes)| bytes.zeroize());
    let credentials = credentials(username, password, "key")?;
    Ok(Issued { credentials, version: CredentialsVersion(version), destinations })
}

#[async_trait]
impl CredentialsSource for ClusterSecrets {
    async fn read(&self, secret: &SecretReference) -> Result<Issued, CredentialsError> {
        self.get(secret).await.map_err(|problem| failed(secret, problem))
    }
}

#[cfg(test)]
mod tests {
    use bedplate_bmc::address::Host;

    use super::*;

    fn secret(namespace: &str, name: &str) -> SecretReference {
        SecretReference { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The host is allowed by what was read; the error is why not.
    fn allows(issued: &Issued, host: &str) -> Result<(), String> {
        issued.destinations.check(&Host::parse(host).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_secrets_annotation_says_where_its_credentials_may_go() {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let mut made = Secret {
            data: Some([("username", "u"), ("password", "p")].map(|(k, v)| (k.to_owned(), bytes(v))).into()),
            ..Secret::default()
        };
        let why = allows(&issue(made.clone()).unwrap(), "10.9.0.21").unwrap_err();
        assert!(why.contains("annotation bedplate.dev/bmc-addresses is missing"), "{why}");
        made.metadata.annotations =
            Some([(destination::ANNOTATION.to_owned(), "10.9.0.0/24".to_owned())].into());
        let issued = issue(made).unwrap();
        assert_eq!(allows(&issued, "10.9.0.21"), Ok(()));
        assert!(allows(&issued, "198.51.100.7").unwrap_err().contains("does not list 198.51.100.7"));
    }

    #[tokio::test]
    async fn that_the_api_server_cannot_be_asked_now_fails_no_operation_at_once() {
        let secrets =
            ClusterSecrets::new(tokio::sync::watch::channel(None).1, vec!["bedplate-system".to_owned()]);
        for (namespace, transient) in [("bedplate-system", true), ("kube-system", false)] {
            let error = secrets.read(&secret(namespace, "a")).await.unwrap_err();
            assert_eq!(error.transient, transient, "{error}");
            assert_eq!(
                crate::power::bmc::connection::NoAnswer::Credentials(error).failure().transient,
                transient
            );
        }
    }

    #[test]
    fn a_secret_without_its_keys_says_which() {
        let mut made = Secret::default();
        assert!(issue(made.clone()).unwrap_err().contains("no key username"));
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        made.data =
            Some([("username", "u"), ("password", "p")].map(|(k, v)| (k.to_owned(), bytes(v))).into());
        made.metadata.uid = Some("1".to_owned());
        made.metadata.resource_version = Some("2".to_owned());
        let issued = issue(made).unwrap();
        assert_eq!(issued.version.0, "1/2");
        assert!(!format!("{issued:?}").contains("\"p\""));
    }
}
