//! Requests to one workload cluster for the Machines of its Cluster: one Node, Pods, evictions, volumes.
//!
//! Each list is read page by page, up to a limit. A failure has a fixed text or a status code: the server could repeat the credential of
//! the kubeconfig in its own text. Not here: decisions, retries, and the list of all
//! Nodes (`nodes`). Called by the pass over Machines.

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_engine::FieldManager;
use bedplate_process::lock::Lock;
use bedplate_rules::drain::{self, Evicted, Pod, PodApi, Rejection};
use bedplate_workload::{RequestError, Workload};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::{DeleteParams, GetParams, ListParams, Patch, Preconditions};
use kube::core::{Request, Status, request};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use crate::core::machine::deletion::Labels;

/// Number of VolumeAttachments or PersistentVolumes in a page.
const PAGE_SIZE: u32 = 500;
/// Number of Pods in a page. Each may have tens of KiB.
const POD_PAGE_SIZE: u32 = 100;
/// Maximum number of pages of a list: 10,000 volumes, 2,000 Pods of a Node.
pub(crate) const MAX_PAGES: usize = 20;
/// Maximum number of characters of the name of a PodDisruptionBudget that is shown.
const MAX_BUDGET_NAME: usize = 63;

/// Failure of a request to a workload cluster. Its text is safe for a condition.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RemoteError {
    /// The kubeconfig cannot be read or used.
    #[error("{0}")]
    Kubeconfig(String),
    /// The request failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A list has more objects than are read.
    #[error("workload cluster has too many {0} for one list")]
    TooMany(&'static str),
}

/// One workload cluster.
#[derive(Clone)]
pub struct Remote {
    workload: Workload,
    manager: FieldManager,
    /// End of the turn that sends the requests. None: they are those of a task.
    end: Option<Instant>,
}

/// Failure of the request for an eviction.
#[derive(Debug)]
pub struct EvictError {
    error: RequestError,
    rejection: Option<Rejection>,
}

/// Page of a list.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Page {
    /// Objects of the page.
    pub items: Vec<Value>,
    /// Token of the next page. Empty: this is the last one.
    pub next: String,
}

impl Remote {
    /// Makes the requests to a cluster. `manager`: the field manager of writes.
    pub fn new(workload: Workload, manager: FieldManager) -> Self {
        Self { workload, manager, end: None }
    }

    /// Sets the end of the turn that sends the requests. Later ones fail.
    pub fn until(self, end: Instant) -> Self {
        Self { end: Some(end), ..self }
    }

    /// Returns true if both send their requests by the same kubeconfig.
    pub fn is_same(&self, other: &Self) -> bool {
        self.workload.is_same(&other.workload)
    }

    /// Sends a request. None: the object does not exist.
    pub(super) async fn ask<T, F>(&self, request: impl FnOnce(Client) -> F) -> Result<Option<T>, RequestError>
    where
        F: Future<Output = kube::Result<T>>,
    {
        let asked = self.workload.ask(request);
        match self.end {
            Some(end) if end <= Instant::now() => Err(RequestError::Late),
            Some(end) => timeout_at(end, asked).await.unwrap_or(Err(RequestError::Late)),
            None => asked.await,
        }
    }

    /// Sends a request that was made before. None: the object does not exist.
    async fn send<T: DeserializeOwned>(
        &self,
        request: Result<http::Request<Vec<u8>>, request::Error>,
    ) -> Result<Option<T>, RequestError> {
        let send = |client: Client| async move {
            client.request::<T>(request.map_err(kube::Error::BuildRequest)?).await
        };
        self.ask(send).await
    }

    /// Reads a Node.
    ///
    /// # Errors
    /// [`RequestError`]
    pub async fn node(&self, name: &str) -> Result<Option<Node>, RequestError> {
        let found = self.send::<BoundedTimes<Node>>(nodes().get(name, &GetParams::default())).await?;
        Ok(found.map(|BoundedTimes(node)| node))
    }

    /// Changes a Node by a merge patch, which names its UID and, if it depends on the version, its resource version.
    ///
    /// # Errors
    /// [`RequestError`]
    pub(crate) async fn patch_node(&self, name: &str, change: &Value) -> Result<Option<Node>, RequestError> {
        let request = nodes().patch(name, &self.manager.patch(), &Patch::Merge(change));
        Ok(self.send::<BoundedTimes<Node>>(request).await?.map(|BoundedTimes(node)| node))
    }

    /// Cordons the Node with this UID. None: it does not exist.
    ///
    /// # Errors
    /// [`RequestError`]
    pub async fn cordon(&self, name: &str, uid: &str) -> Result<Option<Node>, RequestError> {
        let change = json!({ "metadata": { "uid": uid }, "spec": { "unschedulable": true } });
        self.patch_node(name, &change).await
    }

    /// Deletes the Node with this UID. Succeeds if the Node does not exist.
    ///
    /// # Errors
    /// [`RequestError`]
    pub async fn delete_node(&self, name: &str, uid: &str) -> Result<(), RequestError> {
        let preconditions = Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        self.send::<Value>(nodes().delete(name, &parameters)).await.map(drop)
    }

    /// Reads a page of the Pods on a Node. `token`: that of the page before, empty for the first one.
    ///
    /// # Errors
    /// [`RequestError`]
    pub async fn pods(&self, node: &str, token: &str) -> Result<Page, RequestError> {
        let parameters = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(POD_PAGE_SIZE);
        self.page("/api/v1/pods", parameters, token).await
    }

    async fn page(&self, path: &str, list: ListParams, token: &str) -> Result<Page, RequestError> {
        let list = if token.is_empty() { list } else { list.continue_token(token) };
        let answer: Option<Value> = self.send(Request::new(path).list(&list)).await?;
        let mut answer = answer.ok_or(RequestError::Failed(404))?;
        let next = answer["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        match answer["items"].take() {
            Value::Array(items) => Ok(Page { items, next }),
            // An empty list may have null.
            Value::Null => Ok(Page { items: Vec::new(), next }),
            _ => Err(RequestError::Answer),
        }
    }

    /// Calls `take` with each VolumeAttachment.
    ///
    /// # Errors
    /// [`RemoteError`]. `take` may have been called.
    pub(crate) async fn each_attachment(&self, take: impl FnMut(&Value) + Send) -> Result<(), RemoteError> {
        self.each("/apis/storage.k8s.io/v1/volumeattachments", "VolumeAttachments", take).await
    }

    /// Calls `take` with each PersistentVolume.
    ///
    /// # Errors
    /// [`RemoteError`]. `take` may have been called.
    pub(crate) async fn each_volume(&self, take: impl FnMut(&Value) + Send) -> Result<(), RemoteError> {
        self.each("/api/v1/persistentvolumes", "PersistentVolumes", take).await
    }

    async fn each(
        &self,
        path: &str,
        what: &'static str,
        mut take: impl FnMut(&Value) + Send,
    ) -> Result<(), RemoteError> {
        let mut token = String::new();
        for _ in 0..MAX_PAGES {
            let page = self.page(path, ListParams::default().limit(PAGE_SIZE), &token).await?;
            page.items.iter().for_each(&mut take);
            if page.next.is_empty() {
                return Ok(());
            }
            token = page.next;
        }
        Err(RemoteError::TooMany(what))
    }

    /// Reads the labels of a namespace. None: it does not exist.
    ///
    /// # Errors
    /// [`RequestError`]
    pub(crate) async fn namespace_labels(&self, name: &str) -> Result<Option<Labels>, RequestError> {
        let request = Request::new(Namespace::url_path(&(), None)).get(name, &GetParams::default());
        let found = self.send::<BoundedTimes<Namespace>>(request).await?;
        Ok(found.map(|BoundedTimes(namespace)| namespace.metadata.labels.unwrap_or_default()))
    }

    /// Evicts a Pod (`policy/v1`). `grace`: time in seconds that the Pod has to end. None: its own.
    ///
    /// # Errors
    /// The eviction failed, and not because of a PodDisruptionBudget. The text is for a user.
    pub async fn evict(&self, pod: &Pod, grace: Option<u32>) -> Result<Evicted, String> {
        drain::evict(self, pod, grace).await.map_err(|failure| failure.error.to_string())
    }
}

/// Makes requests for Nodes.
pub(super) fn nodes() -> Request {
    Request::new(Node::url_path(&(), None))
}

impl PodApi for Remote {
    type Error = EvictError;

    async fn request(&self, path: &str, body: Option<Value>) -> Result<Value, EvictError> {
        let request = match body {
            Some(body) => http::Request::post(path)
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(body.to_string().into_bytes()),
            None => http::Request::get(path).body(Vec::new()),
        };
        let rejected = Lock::new(None);
        let send = |client: Client| {
            let rejected = &rejected;
            async move {
                let answer = client.request::<Value>(request.map_err(kube::Error::HttpError)?).await;
                answer.inspect_err(|error| *rejected.lock() = rejection(error))
            }
        };
        let answer = self.ask(send).await;
        let rejection = rejected.into_inner();
        match answer {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(EvictError { error: RequestError::Failed(404), rejection }),
            Err(error) => Err(EvictError { error, rejection }),
        }
    }

    fn rejection(failure: &EvictError) -> Option<Rejection> {
        failure.rejection.clone()
    }
}

/// Returns the answer of the API server in an error. Its text is not that of the server, apart from the name of a budget.
fn rejection(error: &kube::Error) -> Option<Rejection> {
    let kube::Error::Api(status) = error else { return None };
    let again = status.details.as_ref().map(|details| details.retry_after_seconds);
    let message = match budget(status) {
        Some(name) => format!("PodDisruptionBudget {name} does not allow the eviction"),
        None => format!("API server does not allow the eviction now (HTTP status {})", status.code),
    };
    Some(Rejection { status: status.code, message, again: again.filter(|seconds| *seconds > 0) })
}

/// Returns the name of the budget that holds an eviction. The API server says `The disruption budget NAME needs 2 healthy pods ...`.
fn budget(status: &Status) -> Option<&str> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let rest = causes.map(|cause| cause.message.as_str());
    let mut names = rest.filter_map(|text| text.strip_prefix("The disruption budget ")?.split(' ').next());
    let is_name = |name: &&str| {
        let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !name.is_empty() && name.len() <= MAX_BUDGET_NAME && name.bytes().all(is_part)
    };
    names.find(is_name)
}
