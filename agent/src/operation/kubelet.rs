//! The node's own way to the API server: as the kubelet of the slot that runs, with its kubeconfig.
//!
//! A kubelet may cordon its own Node and evict the Pods on it, and of no other (Node authorization, NodeRestriction). The agent's own
//! role has neither right: RBAC cannot name "the Pods of the Node of my name". Called by `evict`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use bedplate_api::configuration::Taint;
use bedplate_api::id::MachineName;
use bedplate_bootstrap::diff::Edit;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::{Value, json};

use super::drain::Pod;
use super::slot::{read_inside, root_of, running};
use crate::bus::{BusError, Machines};
use crate::service::ask::{AskError, builder};

/// Annotation of a Node that an operation has cordoned: the operation's UID.
pub const CORDONED_BY: &str = "bedplate.dev/cordoned-by";
/// The kubelet's kubeconfig, made by kubeadm.
const KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";
/// Annotation of the kubelet's own Pods.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Pods in one answer: each may have tens of KiB.
const PAGE: usize = 25;
/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Larger than any page.
const MOST_ANSWER: usize = 16 << 20;

/// What counts of our Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// No Pods are placed on it.
    pub cordoned: bool,
    /// The operation (UID) that has cordoned it, if one of ours has.
    pub cordoned_by: Option<String>,
    /// Its version.
    pub version: String,
    /// Its taints.
    pub taints: Vec<Taint>,
}

/// What became of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evicted {
    /// The Pod is ending.
    Accepted,
    /// Not now, because of a PodDisruptionBudget.
    Held {
        /// After so many seconds again, if the API server says.
        again: Option<u32>,
        /// In its words.
        why: String,
    },
    /// There is no such Pod any more.
    Gone,
}

/// Why the Node or its Pods could not be asked about.
#[derive(Debug, thiserror::Error)]
pub enum AskNodeError {
    /// machined could not be asked for the slot.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// A file of the slot's cannot be read.
    #[error("cannot read {path} of the slot")]
    File {
        /// The file.
        path: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The kubeconfig cannot be used.
    #[error("{KUBECONFIG} of the slot cannot be used: {0}")]
    Kubeconfig(String),
    /// The connection cannot be prepared.
    #[error(transparent)]
    Prepare(#[from] AskError),
    /// No answer, or one that broke off.
    #[error("no answer from {url}")]
    Transport {
        /// Who was asked.
        url: String,
        /// Why not.
        #[source]
        source: reqwest::Error,
    },
    /// An answer that makes no sense.
    #[error("the answer of {0} cannot be understood")]
    Answer(String),
    /// The API server refused.
    #[error("{url} refused the kubelet with status {status}: {message}")]
    Refused {
        /// Who was asked.
        url: String,
        /// HTTP status.
        status: u16,
        /// In its words.
        message: String,
        /// After so many seconds again, if it says.
        again: Option<u32>,
    },
}

impl AskNodeError {
    /// Whether trying again cannot help.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if (400..500).contains(status) && !matches!(status, 401 | 408 | 409 | 429))
    }
}

/// Our Node and the Pods on it.
#[async_trait]
pub trait NodeApi: Send + Sync {
    /// The Node; none: no slot runs, it has not joined, or there is no such Node.
    async fn node(&self) -> Result<Option<NodeView>, AskNodeError>;
    /// Cordons it for an operation (UID), or gives it free; only if nobody has changed it since it was seen.
    async fn cordon(&self, seen: &NodeView, by: Option<&str>) -> Result<(), AskNodeError>;
    /// Changes its labels and annotations. NodeRestriction lets a kubelet change those that are not Kubernetes' own.
    async fn edit(&self, labels: Option<&Edit>, annotations: Option<&Edit>) -> Result<(), AskNodeError>;
    /// The Pods on it.
    async fn pods(&self) -> Result<Vec<Pod>, AskNodeError>;
    /// Asks for the end of one, which may take so many seconds.
    async fn evict(&self, pod: &Pod, grace: Option<u32>) -> Result<Evicted, AskNodeError>;
}

/// The kubelet of the slot that runs.
pub struct SlotKubelet {
    machines: Arc<dyn Machines>,
    root: PathBuf,
    node: MachineName,
}

impl SlotKubelet {
    /// Of the host whose root directory is `root`; the Node has the Machine's name.
    pub fn new(machines: Arc<dyn Machines>, root: &Path, node: MachineName) -> Self {
        Self { machines, root: root.to_owned(), node }
    }

    /// The kubelet's way; none: no slot runs, or it has not joined. Read anew each time: certificates rotate.
    async fn open(&self) -> Result<Option<Way>, AskNodeError> {
        let Some(container) = running(self.machines.as_ref()).await? else { return Ok(None) };
        let root = root_of(&self.root, container.leader);
        let read = |path: &str| {
            let text = read_inside(&root, path);
            text.map_err(|source| AskNodeError::File { path: path.to_owned(), source })
        };
        let Some(text) = read(KUBECONFIG)? else { return Ok(None) };
        Way::new(&text, &read).map(Some)
    }

    /// The way for what was seen through it a moment ago.
    async fn way(&self) -> Result<Way, AskNodeError> {
        self.open()
            .await?
            .ok_or_else(|| AskNodeError::Kubeconfig("it is gone, the slot has stopped".to_owned()))
    }
}

struct Way {
    https: reqwest::Client,
    server: String,
}

#[derive(Deserialize)]
struct Kubeconfig {
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedCluster {
    cluster: Cluster,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority_data: Option<String>,
    certificate_authority: Option<String>,
}

#[derive(Deserialize)]
struct NamedUser {
    user: User,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate_data: Option<String>,
    client_certificate: Option<String>,
    client_key_data: Option<String>,
    client_key: Option<String>,
}

impl Way {
    fn new(
        text: &str,
        read: &dyn Fn(&str) -> Result<Option<String>, AskNodeError>,
    ) -> Result<Self, AskNodeError> {
        let wrong = |problem: &str| AskNodeError::Kubeconfig(problem.to_owned());
        // kubeadm's has one cluster and one user.
        let config: Kubeconfig =
            serde_saphyr::from_str(text).map_err(|_| wrong("it is no kubeconfig with clusters and users"))?;
        let (Some(cluster), Some(user)) =
            (config.clusters.into_iter().next(), config.users.into_iter().next())
        else {
            return Err(wrong("it names no cluster or no user"));
        };
        let (cluster, user) = (cluster.cluster, user.user);
        let pem = |what: &str, data: Option<String>, path: Option<String>| match (data, path) {
            (Some(data), _) => {
                let bytes = base64::engine::general_purpose::STANDARD.decode(data.trim());
                let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
                text.ok_or_else(|| AskNodeError::Kubeconfig(format!("{what} is not PEM in base64")))
            }
            (None, Some(path)) => {
                read(&path)?.ok_or_else(|| AskNodeError::Kubeconfig(format!("{what} is not at {path}")))
            }
            (None, None) => Err(AskNodeError::Kubeconfig(format!("{what} is missing"))),
        };
        let ca = pem("the authority", cluster.certificate_authority_data, cluster.certificate_authority)?;
        let certificate =
            pem("the client certificate", user.client_certificate_data, user.client_certificate)?;
        let key = pem("the client key", user.client_key_data, user.client_key)?;
        let https = builder(&ca, Some((&certificate, &key)))?.timeout(PATIENCE).build();
        let https = https.map_err(|error| AskError::Prepare(error.to_string()))?;
        Ok(Self { https, server: cluster.server.trim_end_matches('/').to_owned() })
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Value)>,
    ) -> Result<Value, AskNodeError> {
        let url = format!("{}{path}", self.server);
        let transport = |source: reqwest::Error| AskNodeError::Transport {
            url: url.clone(),
            source: source.without_url(),
        };
        let mut request = self.https.request(method, &url);
        if let Some((kind, body)) = body {
            request = request.header(CONTENT_TYPE, kind).body(body.to_string());
        }
        let mut response = request.send().await.map_err(transport)?;
        let status = response.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(transport)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MOST_ANSWER {
                return Err(AskNodeError::Answer(url));
            }
        }
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if !status.is_success() {
            let message = answer["message"].as_str().unwrap_or("no reason given").chars().take(500).collect();
            let again = answer["details"]["retryAfterSeconds"]
                .as_u64()
                .and_then(|seconds| u32::try_from(seconds).ok());
            return Err(AskNodeError::Refused { url, status: status.as_u16(), message, again });
        }
        if answer.is_object() { Ok(answer) } else { Err(AskNodeError::Answer(url)) }
    }

    async fn get(&self, path: &str) -> Result<Value, AskNodeError> {
        self.ask(Method::GET, path, None).await
    }
}

#[async_trait]
impl NodeApi for SlotKubelet {
    async fn node(&self) -> Result<Option<NodeView>, AskNodeError> {
        let Some(way) = self.open().await? else { return Ok(None) };
        match way.get(&format!("/api/v1/nodes/{}", self.node)).await {
            Ok(node) => Ok(Some(node_view(&node))),
            Err(AskNodeError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn cordon(&self, seen: &NodeView, by: Option<&str>) -> Result<(), AskNodeError> {
        let way = self.way().await?;
        let unschedulable = by.map(|_| true);
        let body = json!({
            "metadata": { "resourceVersion": seen.version, "annotations": { CORDONED_BY: by } },
            "spec": { "unschedulable": unschedulable },
        });
        let path = format!("/api/v1/nodes/{}?fieldManager=bedplate-agent", self.node);
        way.ask(Method::PATCH, &path, Some(("application/merge-patch+json", body))).await.map(drop)
    }

    async fn edit(&self, labels: Option<&Edit>, annotations: Option<&Edit>) -> Result<(), AskNodeError> {
        let way = self.way().await?;
        let body = json!({ "metadata": { "labels": merged(labels), "annotations": merged(annotations) } });
        let path = format!("/api/v1/nodes/{}?fieldManager=bedplate-agent", self.node);
        way.ask(Method::PATCH, &path, Some(("application/merge-patch+json", body))).await.map(drop)
    }

    async fn pods(&self) -> Result<Vec<Pod>, AskNodeError> {
        let way = self.way().await?;
        let mut pods = Vec::new();
        let mut token = String::new();
        loop {
            // A selector of its own Node is what a kubelet may list by.
            let page = format!(
                "/api/v1/pods?fieldSelector=spec.nodeName%3D{}&limit={PAGE}&continue={token}",
                self.node
            );
            let list = way.get(&page).await?;
            pods.extend(list["items"].as_array().into_iter().flatten().map(pod));
            token = match list["metadata"]["continue"].as_str() {
                Some(next) if !next.is_empty() => {
                    next.replace('=', "%3D").replace('+', "%2B").replace('/', "%2F")
                }
                _ => return Ok(pods),
            };
        }
    }

    async fn evict(&self, pod: &Pod, grace: Option<u32>) -> Result<Evicted, AskNodeError> {
        let way = self.way().await?;
        let mut options = json!({ "preconditions": { "uid": pod.uid } });
        if let Some(grace) = grace {
            options["gracePeriodSeconds"] = grace.into();
        }
        let body = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": pod.name, "namespace": pod.namespace },
            "deleteOptions": options,
        });
        let path = format!("/api/v1/namespaces/{}/pods/{}/eviction", pod.namespace, pod.name);
        match way.ask(Method::POST, &path, Some(("application/json", body))).await {
            Ok(_) => Ok(Evicted::Accepted),
            Err(error) => outcome(error),
        }
    }
}

/// As a merge patch has it: null removes.
fn merged(edit: Option<&Edit>) -> Value {
    let Some(edit) = edit else { return json!({}) };
    let set = edit.set.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
    set.chain(edit.remove.iter().map(|name| (name.clone(), Value::Null)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// What a refused eviction means. 409: it is another Pod of that name by now. 500: more than one budget holds it.
fn outcome(error: AskNodeError) -> Result<Evicted, AskNodeError> {
    match error {
        AskNodeError::Refused { status: 404 | 409, .. } => Ok(Evicted::Gone),
        AskNodeError::Refused { status: 429 | 500, message, again, .. } => {
            Ok(Evicted::Held { again, why: message })
        }
        error => Err(error),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn node_view(node: &Value) -> NodeView {
    NodeView {
        cordoned: node["spec"]["unschedulable"].as_bool() == Some(true),
        cordoned_by: node["metadata"]["annotations"][CORDONED_BY].as_str().map(str::to_owned),
        version: text(&node["metadata"]["resourceVersion"]),
        taints: node["spec"]["taints"].as_array().into_iter().flatten().filter_map(taint).collect(),
    }
}

/// None if it is of an effect that nobody knows.
fn taint(object: &Value) -> Option<Taint> {
    let fields = json!({ "key": object["key"], "value": object["value"], "effect": object["effect"] });
    serde_json::from_value(fields).ok()
}

fn pod(object: &Value) -> Pod {
    let (metadata, spec) = (&object["metadata"], &object["spec"]);
    let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
    let controller =
        owners.filter(|owner| owner["controller"] == true).map(|owner| text(&owner["kind"])).next();
    let volumes = spec["volumes"].as_array();
    Pod {
        namespace: text(&metadata["namespace"]),
        name: text(&metadata["name"]),
        uid: text(&metadata["uid"]),
        controller,
        mirror: !metadata["annotations"][MIRROR].is_null(),
        empty_dir: volumes.is_some_and(|volumes| volumes.iter().any(|volume| !volume["emptyDir"].is_null())),
        finished: matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed")),
        leaving: !metadata["deletionTimestamp"].is_null(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_read_as_the_api_server_shows_it() {
        let object = json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {MIRROR: "x"},
                "ownerReferences": [{"kind": "Other"}, {"kind": "DaemonSet", "controller": true}]},
            "spec": {"volumes": [{"name": "t", "projected": {}}, {"name": "e", "emptyDir": {}}]},
            "status": {"phase": "Succeeded"},
        });
        let expected = Pod {
            namespace: "n".into(),
            name: "p".into(),
            uid: "u".into(),
            controller: Some("DaemonSet".into()),
            mirror: true,
            empty_dir: true,
            finished: true,
            leaving: true,
        };
        assert_eq!(pod(&object), expected);
        assert!(!pod(&json!({"metadata": {"name": "p"}})).empty_dir);
    }

    #[test]
    fn an_eviction_that_a_budget_holds_is_no_error_and_a_forbidden_one_is() {
        let refused = |status, again| AskNodeError::Refused {
            url: "u".into(),
            status,
            message: "budget".into(),
            again,
        };
        let held = Evicted::Held { again: Some(10), why: "budget".into() };
        assert_eq!(outcome(refused(429, Some(10))).unwrap(), held);
        assert_eq!(outcome(refused(404, None)).unwrap(), Evicted::Gone);
        assert!(outcome(refused(403, None)).unwrap_err().is_final());
        assert!(!outcome(refused(503, None)).unwrap_err().is_final());
    }

    #[test]
    fn kubeadms_kubeconfig_is_read_and_what_is_missing_is_said() {
        let read = |path: &str| match path {
            "/var/lib/kubelet/pki/kubelet-client-current.pem" => Ok(Some("no pem".to_owned())),
            _ => Ok(None),
        };
        let config = "apiVersion: v1\nkind: Config\nclusters:\n- cluster:\n    certificate-authority-data: Q0E=\n    \
                      server: https://k:6443\n  name: default-cluster\nusers:\n- name: default-auth\n  user:\n    \
                      client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem\n    client-key: /nothing\n";
        let problem = |config: &str| Way::new(config, &read).map(|_| ()).unwrap_err().to_string();
        assert!(problem(config).contains("the client key is not at /nothing"), "{}", problem(config));
        assert!(problem("users: []\nclusters: []\n").contains("no cluster"));
        assert!(problem("- 1\n").contains("no kubeconfig"));
    }
}
