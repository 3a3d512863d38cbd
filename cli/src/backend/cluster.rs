//! Reads and edits objects in the cluster, and creates operations, with the kubeconfig and context that the
//! caller named or kubectl would use.

use std::borrow::Cow;
use std::fmt::Debug;
use std::path::PathBuf;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::machine::NodeRef;
use bedplate_api::operation::MachineOperation;
use bedplate_process::kubeconfig::{ConfigureError, configure};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
    Preconditions,
};
use kube::config::{Kubeconfig, KubeconfigError};
use kube::core::{NamespaceResourceScope, Status};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thiserror::Error;

use crate::arguments::Global;
use crate::backend::kubeconfig::{self, Fault};

/// Field manager of this program's changes.
pub(crate) const FIELD_MANAGER: &str = "bedplate";

/// Reason why the cluster gave no answer.
#[derive(Debug, Error)]
pub(crate) enum AskClusterError {
    #[error("cannot read the kubeconfig{}", .0.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    Kubeconfig(Option<PathBuf>, #[source] Fault),
    #[error("cannot use context {context:?} of the kubeconfig{}", .path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    Context { context: String, path: Option<PathBuf>, source: Fault },
    #[error("cannot use the proxy of the environment")]
    Proxy(#[source] ConfigureError),
    #[error("cannot create a client for the cluster of the kubeconfig")]
    Client(#[source] Box<kube::Error>),
    #[error("the cluster has no {kind} {name:?}")]
    NotFound { kind: String, name: String },
    /// `asked`: verb and resource, as `kubectl auth can-i` takes them.
    #[error("the cluster rejected the request: {message}")]
    Refused { code: u16, message: String, asked: String },
    #[error("cannot {asked} in the cluster")]
    Reach { asked: String, source: Box<dyn std::error::Error + Send + Sync> },
}

/// `list machines.bedplate.dev`
fn asked<K: Resource<DynamicType = ()>>(verb: &str) -> String {
    format!("{verb} {}.{}", K::plural(&()), K::group(&()))
}

/// Converts an error of kube, which would print a rejection three times.
pub(crate) fn failed(error: kube::Error, asked: String) -> AskClusterError {
    match error {
        kube::Error::Api(status) => refused(&status, asked),
        other => AskClusterError::Reach { asked, source: Box::new(other) },
    }
}

fn refused(status: &Status, asked: String) -> AskClusterError {
    let message = match asked.split_once(' ') {
        // For an unknown kind the API server only answers "404 page not found".
        Some((_, kind)) if is_unknown_kind(status) => format!("{kind} is not served"),
        _ => status.message.clone(),
    };
    AskClusterError::Refused { code: status.code, message, asked }
}

/// Returns true if the kind is missing, not an object of it. For a missing object the API server gives its
/// own message.
fn is_unknown_kind(status: &Status) -> bool {
    status.code == 404 && status.reason != "NotFound"
}

/// Converts an error of a watch on MachineOperations.
pub(crate) fn watched(error: watcher::Error) -> AskClusterError {
    let asked = asked::<MachineOperation>("watch");
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => failed(error, asked),
        watcher::Error::WatchError(status) => refused(&status, asked),
        other @ watcher::Error::NoResourceVersion => {
            AskClusterError::Reach { asked, source: Box::new(other) }
        }
    }
}

impl AskClusterError {
    pub(crate) fn hint(&self) -> Option<Cow<'static, str>> {
        let hint = match self {
            Self::Context { source, .. } | Self::Kubeconfig(Some(_), source) => source.remedy,
            Self::Kubeconfig(None, source) if !source.is_absent => source.remedy,
            Self::Kubeconfig(None, _) => {
                "pxed's socket does not exist either; check pxed with `systemctl status pxed`, or name its socket with --socket, or a cluster with --kubeconfig"
            }
            Self::NotFound { kind, .. } if kind == "Machine" => "see `bedplate machine list`",
            Self::NotFound { kind, .. } if kind == "MachineConfiguration" => "see `bedplate config list`",
            Self::NotFound { .. } => "see `bedplate operation list`",
            Self::Refused { code: 404, .. } => {
                "check that the kinds are installed; `bedplate install` installs them"
            }
            Self::Refused { code: 401 | 403, asked, .. } => {
                return Some(
                    format!("check the permission of this user: `kubectl auth can-i {asked}`").into(),
                );
            }
            Self::Reach { .. } => {
                "check the connection with `kubectl version` and the same kubeconfig and context; to ask a pxed, use --socket"
            }
            Self::Proxy(_) => "correct the variable, or add the API server to NO_PROXY",
            Self::Client(source) if matches!(**source, kube::Error::ProxyProtocolUnsupported { .. }) => {
                "set proxy-url in the kubeconfig, or HTTPS_PROXY, to a supported proxy: http://, https:// or socks5://"
            }
            Self::Client(_) => {
                "check users[].user in the kubeconfig: the program of exec.command must be installed, and the file of tokenFile must exist"
            }
            Self::Refused { .. } => return None,
        };
        Some(hint.into())
    }

    /// Returns true if the request may have been carried out despite the error.
    pub(crate) fn may_have_happened(&self) -> bool {
        match self {
            Self::Reach { source, .. } => !is_unconnected(&**source),
            // Sent by a proxy in front of the API server, or by a server that did not wait for the result.
            Self::Refused { code, .. } => matches!(code, 502 | 504),
            Self::Kubeconfig(..)
            | Self::Context { .. }
            | Self::Proxy(_)
            | Self::Client(_)
            | Self::NotFound { .. } => false,
        }
    }

    /// Returns true if a retry would fail too.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Refused { code: 401 | 403 | 404, .. })
    }
}

/// Returns true if nothing was sent because there was no connection.
fn is_unconnected(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref().is_some_and(hyper_util::client::legacy::Error::is_connect) {
            return true;
        }
        next = error.source();
    }
    false
}

fn kubeconfig_of(global: &Global) -> Result<Kubeconfig, KubeconfigError> {
    match &global.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    }
}

/// Returns the API server that the kubeconfig names.
pub(crate) fn server(global: &Global) -> Option<String> {
    let file = kubeconfig_of(global).ok()?;
    kubeconfig::server(&file, global.context.as_deref()).map(str::to_owned)
}

/// Returns a client for the cluster. Sends no request.
pub(crate) async fn client(global: &Global) -> Result<Client, AskClusterError> {
    let error = |error: KubeconfigError| {
        let (path, source) =
            (global.kubeconfig.clone(), kubeconfig::fault(&error, global.kubeconfig.as_deref()));
        match (global.context.clone(), error) {
            (Some(context), KubeconfigError::LoadContext(_)) => {
                AskClusterError::Context { context, path, source }
            }
            _ => AskClusterError::Kubeconfig(path, source),
        }
    };
    let file = kubeconfig_of(global).map_err(error)?;
    let config = configure(file, global.context.as_deref()).await.map_err(|problem| match problem {
        ConfigureError::Kubeconfig(problem) => error(problem),
        ConfigureError::Variable { .. } => AskClusterError::Proxy(problem),
    })?;
    // The programs that share this dependency may bring a second provider; the first one that is set counts.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Client::try_from(config).map_err(|error| AskClusterError::Client(Box::new(error)))
}

/// A kind of the cluster that the tool reads.
pub(crate) trait Kind:
    Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned
{
}

impl<K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned> Kind for K {}

/// Reads every object of a kind, also one with a time that programs cannot count.
pub(crate) async fn objects<K: Kind>(client: &Client) -> Result<Vec<K>, AskClusterError> {
    let found = Api::<BoundedTimes<K>>::all(client.clone()).list(&ListParams::default()).await;
    let found = found.map_err(|error| failed(error, asked::<K>("list")))?;
    Ok(found.items.into_iter().map(|BoundedTimes(object)| object).collect())
}

/// Returns every object of a kind, in the form of pxed's answer.
pub(crate) async fn list<K: Kind>(client: &Client) -> Result<Value, AskClusterError> {
    let items = objects::<K>(client).await?;
    let (version, kind) = (K::api_version(&()), format!("{}List", K::kind(&())));
    Ok(json!({ "apiVersion": version, "kind": kind, "items": items }))
}

/// Returns one object.
pub(crate) async fn get<K: Kind>(client: &Client, name: &str) -> Result<K, AskClusterError> {
    let found = Api::<BoundedTimes<K>>::all(client.clone()).get(name).await;
    found.map(|BoundedTimes(object)| object).map_err(|error| match error {
        kube::Error::Api(status) if status.code == 404 && !is_unknown_kind(&status) => {
            AskClusterError::NotFound { kind: K::kind(&()).into_owned(), name: name.to_owned() }
        }
        error => failed(error, asked::<K>("get")),
    })
}

/// Reads one object of a namespace. None: it does not exist.
pub(crate) async fn get_within<K>(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<K>, AskClusterError>
where
    K: Kind + Resource<Scope = NamespaceResourceScope>,
{
    match Api::<BoundedTimes<K>>::namespaced(client.clone(), namespace).get(name).await {
        Ok(BoundedTimes(found)) => Ok(Some(found)),
        Err(kube::Error::Api(status)) if status.code == 404 && !is_unknown_kind(&status) => Ok(None),
        Err(error) => Err(failed(error, asked::<K>("get"))),
    }
}

/// Creates an object.
pub(crate) async fn create<K: Kind>(client: &Client, object: &K) -> Result<K, AskClusterError> {
    let made = Api::<K>::all(client.clone()).create(&PostParams::default(), object).await;
    made.map_err(|error| failed(error, asked::<K>("create")))
}

/// Sets one annotation of an object, which must exist.
pub(crate) async fn annotate<K: Kind>(
    client: &Client,
    name: &str,
    annotation: &str,
    value: &str,
) -> Result<K, AskClusterError> {
    let patch = serde_json::json!({ "metadata": { "annotations": { annotation: value } } });
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    patched(client, name, &parameters, &Patch::Merge(patch)).await
}

/// Sets one annotation of an object, if the object is still as it was read.
pub(crate) async fn annotate_as_read<K: Kind>(
    client: &Client,
    read: &K,
    (annotation, value): (&str, &str),
) -> Result<K, AskClusterError> {
    let patch = json!({ "metadata": { "uid": read.meta().uid, "resourceVersion": read.meta().resource_version,
        "annotations": { annotation: value } } });
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let name = read.meta().name.as_deref().unwrap_or_default();
    patched(client, name, &parameters, &Patch::Merge(patch)).await
}

/// Changes an object as a JSON patch (RFC 6902) says, all of it or nothing.
pub(crate) async fn edit<K: Kind>(client: &Client, name: &str, patch: Value) -> Result<K, AskClusterError> {
    let patch = serde_json::from_value(patch).expect("patches are written here, in the form of RFC 6902");
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    patched(client, name, &parameters, &Patch::Json::<Value>(patch)).await
}

async fn patched<K: Kind>(
    client: &Client,
    name: &str,
    parameters: &PatchParams,
    patch: &Patch<Value>,
) -> Result<K, AskClusterError> {
    let written = Api::<BoundedTimes<K>>::all(client.clone()).patch(name, parameters, patch).await;
    written.map(|BoundedTimes(object)| object).map_err(|error| failed(error, asked::<K>("patch")))
}

/// Deletes a Node, if it still is the one that was read. A Node that does not exist is not an error.
pub(crate) async fn delete_node(client: &Client, node: &NodeRef) -> Result<(), AskClusterError> {
    let kind = GroupVersionKind::gvk("", "v1", "Node");
    // The answer has a Node with a finalizer. Root of its host may have chosen the times in it.
    let api = Api::<BoundedTimes<DynamicObject>>::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let preconditions = Preconditions { uid: Some(node.uid.clone()), resource_version: None };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&node.name, &parameters).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(failed(error, "delete nodes".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::machine::Machine;
    use hyper::{Request, Response};
    use kube::client::Body;

    use super::*;

    #[tokio::test]
    async fn trust_4_machine_with_an_uncountable_time_hides_no_other() {
        let machine = |name: &str, time: &str| json!({ "metadata": { "name": name, "managedFields": [{ "time": time }] }, "spec": { "provider": "pxe" } });
        let items = [machine("a", "2026-01-01T00:00:00Z"), machine("b", "9999-12-31T23:59:59Z")];
        let answer = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineList",
            "metadata": { "resourceVersion": "1" }, "items": items });
        let service = tower::service_fn(move |_: Request<Body>| {
            let answer = Response::new(Body::from(answer.to_string().into_bytes()));
            std::future::ready(Ok::<_, kube::Error>(answer))
        });
        let listed = list::<Machine>(&Client::new(service, "default")).await.unwrap();
        let names = listed["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]);
        assert_eq!(names.collect::<Vec<_>>(), ["a", "b"]);
    }

    #[tokio::test]
    async fn trust_4_node_with_an_uncountable_time_is_deleted() {
        let metadata = json!({ "name": "n", "uid": "u", "finalizers": ["example.com/hold"],
            "deletionTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{ "time": "9999-12-31T23:59:59Z" }] });
        let answer = json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata });
        let service = tower::service_fn(move |_: Request<Body>| {
            let answer = Response::new(Body::from(answer.to_string().into_bytes()));
            std::future::ready(Ok::<_, kube::Error>(answer))
        });
        delete_node(&Client::new(service, "default"), &NodeRef::new("n", "u")).await.unwrap();
    }
}
