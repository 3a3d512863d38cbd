//! Resolves group and kind to the resource that is watched, by the metadata of its definition. Called by `kind`.

use std::collections::BTreeMap;
use std::time::Duration;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_process::exit::chain;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, GetParams};
use kube::core::{GroupVersionKind, Request};
use kube::{Client, Resource};
use serde::Deserialize;
use thiserror::Error;

use super::{GroupKind, MAX_NAMED_BY_NAMESPACE, MAX_WATCHED};

/// Timeout of the read of a definition.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum length of the cause in a message.
const MAX_CAUSE: usize = 256;

/// Maximum length of a group, and of a kind.
const MAX_GROUP: usize = 253;
const MAX_KIND: usize = 63;

/// Reason why a kind cannot be read, for a user.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unresolved {
    /// The names are not valid.
    #[error("the reference has no valid API group and kind; correct the reference")]
    InvalidName,
    /// The kind has no definition.
    #[error("CustomResourceDefinition {definition} does not exist; install the provider of the kind")]
    NotInstalled {
        /// Name of the definition.
        definition: String,
    },
    /// The definition does not name a version that the program can read.
    #[error(
        "CustomResourceDefinition {definition} has no label of a supported contract; update its provider"
    )]
    NoContract {
        /// Name of the definition.
        definition: String,
    },
    /// The program has no permission.
    #[error("{what} cannot be read: {why}; permit get, list and watch")]
    Forbidden {
        /// Definition or resource.
        what: String,
        /// Text of the API server.
        why: String,
    },
    /// The API server does not answer, or answers with a passing error.
    #[error("{what} cannot be read now: {why}")]
    Unavailable {
        /// Definition or resource.
        what: String,
        /// Cause.
        why: String,
    },
    /// More kinds are named than a program watches.
    #[error("more than {MAX_WATCHED} kinds are referenced; remove references to other kinds")]
    TooManyKinds,
    /// One namespace names more kinds than its limit.
    #[error(
        "objects of this namespace reference more than {MAX_NAMED_BY_NAMESPACE} kinds; remove references to other kinds"
    )]
    TooManyKindsOfNamespace,
}

impl Unresolved {
    /// Returns true if the kind has no version that can be watched, as its definition shows.
    pub(super) fn is_definite(&self) -> bool {
        match self {
            Self::InvalidName | Self::NotInstalled { .. } | Self::NoContract { .. } => true,
            Self::Forbidden { .. } | Self::Unavailable { .. } => false,
            Self::TooManyKinds | Self::TooManyKindsOfNamespace => false,
        }
    }

    /// Returns the reason of a failed request about `what`.
    pub(super) fn failed(what: &str, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => match status.code {
                403 => Self::forbidden(what, &status.message),
                code => Self::unavailable(what, &format!("{code}: {}", status.message)),
            },
            other => Self::unavailable(what, &chain(other)),
        }
    }

    pub(super) fn forbidden(what: &str, why: &str) -> Self {
        Self::Forbidden { what: what.to_owned(), why: why.chars().take(MAX_CAUSE).collect() }
    }

    pub(super) fn unavailable(what: &str, why: &str) -> Self {
        Self::Unavailable { what: what.to_owned(), why: why.chars().take(MAX_CAUSE).collect() }
    }
}

/// Resolver of kinds. It is asked again, with a backoff, until it finds a resource, and once a minute after that.
pub trait Resolve: Send + Sync + 'static {
    /// Returns the resource of a kind, or the reason why there is none.
    fn resolve(&self, kind: &GroupKind) -> impl Future<Output = Result<ApiResource, Unresolved>> + Send;
}

/// Resolver by CustomResourceDefinitions. `version` chooses the version by the labels of a definition.
pub struct Definitions<F> {
    client: Client,
    version: F,
}

impl<F: Fn(&BTreeMap<String, String>) -> Option<String> + Send + Sync + 'static> Definitions<F> {
    /// Makes a resolver.
    pub fn new(client: Client, version: F) -> Self {
        Self { client, version }
    }
}

/// Metadata of a definition.
#[derive(Debug, Deserialize)]
struct Definition {
    metadata: ObjectMeta,
}

impl<F: Fn(&BTreeMap<String, String>) -> Option<String> + Send + Sync + 'static> Resolve for Definitions<F> {
    async fn resolve(&self, kind: &GroupKind) -> Result<ApiResource, Unresolved> {
        if !is_valid(kind) {
            return Err(Unresolved::InvalidName);
        }
        let guess =
            |version: &str| ApiResource::from_gvk(&GroupVersionKind::gvk(&kind.group, version, &kind.kind));
        let definition = format!("{}.{}", guess("").plural, kind.group);
        let what = format!("CustomResourceDefinition {definition}");
        let answer = tokio::time::timeout(READ_TIMEOUT, read(&self.client, &definition)).await;
        let labels = match answer {
            Ok(Ok(found)) => found.metadata.labels.unwrap_or_default(),
            Ok(Err(kube::Error::Api(status))) if status.is_not_found() => {
                return Err(Unresolved::NotInstalled { definition });
            }
            Ok(Err(error)) => return Err(Unresolved::failed(&what, &error)),
            Err(_) => return Err(Unresolved::unavailable(&what, &silent(READ_TIMEOUT))),
        };
        let version = (self.version)(&labels).ok_or(Unresolved::NoContract { definition })?;
        Ok(guess(&version))
    }
}

/// Returns the cause of a request without an answer.
pub(super) fn silent(timeout: Duration) -> String {
    format!("the API server did not answer within {} s", timeout.as_secs())
}

async fn read(client: &Client, name: &str) -> kube::Result<Definition> {
    let request = Request::new(CustomResourceDefinition::url_path(&(), None));
    let request = request.get_metadata(name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
    client.request::<BoundedTimes<Definition>>(request).await.map(|BoundedTimes(definition)| definition)
}

/// Returns true if group and kind can be parts of the name of a definition. The names are inputs of users.
fn is_valid(kind: &GroupKind) -> bool {
    let is_group = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' || c == '-';
    let is_kind = |c: char| c.is_ascii_alphanumeric();
    // kube's plural of a kind of one letter panics.
    (1..=MAX_GROUP).contains(&kind.group.len())
        && kind.group.chars().all(is_group)
        && (2..=MAX_KIND).contains(&kind.kind.len())
        && kind.kind.chars().all(is_kind)
}
