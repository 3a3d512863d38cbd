//! Answers of the API server of a workload cluster: discovery, Nodes, and empty lists of the other kinds that a drain reads.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::Cluster;
use super::nodes::{Refusal, line};

pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Duration of a watch without `timeoutSeconds`.
const WATCH_DURATION: Duration = Duration::from_secs(1800);
/// Served kinds: group and version, resource, kind, and whether it has namespaces.
const RESOURCES: [(&str, &str, &str, bool); 7] = [
    ("v1", "nodes", "Node", false),
    ("v1", "pods", "Pod", true),
    ("v1", "namespaces", "Namespace", false),
    ("v1", "persistentvolumes", "PersistentVolume", false),
    ("v1", "persistentvolumeclaims", "PersistentVolumeClaim", true),
    ("storage.k8s.io/v1", "volumeattachments", "VolumeAttachment", false),
    ("apps/v1", "daemonsets", "DaemonSet", true),
];

/// Returns the answer to a request.
pub(super) fn answer(parts: &Parts, body: &Bytes, cluster: &Arc<Cluster>) -> Response<Body> {
    let query = query(parts.uri.query().unwrap_or_default());
    let path: Vec<&str> = parts.uri.path().split('/').filter(|part| !part.is_empty()).collect();
    let is_get = parts.method == Method::GET;
    match path.as_slice() {
        ["api", "v1", "nodes", name] => node(&parts.method, name, body, cluster),
        ["api", "v1", "nodes"] if is_get => list(&query, ("v1", "Node"), cluster),
        _ if !is_get => failure(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
        [] | ["healthz" | "readyz" | "livez"] => success(&json!({})),
        ["version"] => success(&json!({ "major": "1", "minor": "34", "gitVersion": "v1.34.4" })),
        ["api"] => success(&json!({ "kind": "APIVersions", "versions": ["v1"] })),
        ["apis"] => success(&groups()),
        ["api", "v1"] => success(&resources("v1")),
        ["apis", group, version] => success(&resources(&format!("{group}/{version}"))),
        ["api", "v1", resource] | ["api", "v1", "namespaces", _, resource] => {
            empty(&query, "v1", resource, cluster)
        }
        ["apis", group, version, resource] | ["apis", group, version, "namespaces", _, resource] => {
            empty(&query, &format!("{group}/{version}"), resource, cluster)
        }
        _ => failure(StatusCode::NOT_FOUND, "NotFound"),
    }
}

fn query(text: &str) -> HashMap<&str, &str> {
    text.split('&').filter_map(|part| part.split_once('=')).collect()
}

fn node(method: &Method, name: &str, body: &Bytes, cluster: &Arc<Cluster>) -> Response<Body> {
    let done = match *method {
        Method::GET => cluster.nodes.get(name).ok_or(Refusal::Absent),
        Method::PATCH => {
            cluster.writes.fetch_add(1, Ordering::Relaxed);
            let Ok(change) = serde_json::from_slice(body) else {
                return failure(StatusCode::BAD_REQUEST, "BadRequest");
            };
            cluster.nodes.patch(name, &change)
        }
        Method::DELETE => {
            cluster.writes.fetch_add(1, Ordering::Relaxed);
            cluster.nodes.delete(name)
        }
        _ => return failure(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
    };
    match done {
        Ok(node) => success(&node),
        Err(Refusal::Absent) => failure(StatusCode::NOT_FOUND, "NotFound"),
        Err(Refusal::Conflict) => failure(StatusCode::CONFLICT, "Conflict"),
    }
}

/// Returns the list of Nodes, or a watch.
fn list(query: &HashMap<&str, &str>, kind: (&str, &str), cluster: &Arc<Cluster>) -> Response<Body> {
    let (items, version) = cluster.nodes.list();
    if query.get("watch").is_none_or(|watch| !["true", "1"].contains(watch)) {
        return success(&list_of(kind, &items, version));
    }
    let from = query.get("resourceVersion").and_then(|version| version.parse().ok());
    match from {
        Some(from) if !sends_all_first(query) => watch(query, Vec::new(), from, cluster),
        _ => watch(query, initial(kind, &items, version), version, cluster),
    }
}

/// Returns the list of a kind that has no objects, or its watch.
fn empty(
    query: &HashMap<&str, &str>,
    version: &str,
    resource: &str,
    cluster: &Arc<Cluster>,
) -> Response<Body> {
    let of = |(of, plural, ..): &&(&'static str, &'static str, &'static str, bool)| {
        *of == version && *plural == resource
    };
    let Some((version, _, kind, _)) = RESOURCES.iter().find(of) else {
        return failure(StatusCode::NOT_FOUND, "NotFound");
    };
    if query.get("watch").is_none_or(|watch| !["true", "1"].contains(watch)) {
        return success(&list_of((version, kind), &[], 1));
    }
    let events = if sends_all_first(query) { initial((version, kind), &[], 1) } else { Vec::new() };
    // No change of a Node is one of this kind.
    watch(query, events, u64::MAX, cluster)
}

/// Returns true if a watch must send all objects first (`sendInitialEvents`).
fn sends_all_first(query: &HashMap<&str, &str>) -> bool {
    query.get("sendInitialEvents") == Some(&"true")
}

fn list_of((version, kind): (&str, &str), items: &[Value], at: u64) -> Value {
    json!({ "apiVersion": version, "kind": format!("{kind}List"), "metadata": { "resourceVersion": at.to_string() },
        "items": items })
}

/// Returns the first events of a watch that sends all objects, and the bookmark after them.
fn initial((version, kind): (&str, &str), items: &[Value], at: u64) -> Vec<Bytes> {
    let end = json!({ "apiVersion": version, "kind": kind, "metadata": { "resourceVersion": at.to_string(),
        "annotations": { "k8s.io/initial-events-end": "true" } } });
    items.iter().map(|item| line("ADDED", item)).chain([line("BOOKMARK", &end)]).collect()
}

fn watch(
    query: &HashMap<&str, &str>,
    first: Vec<Bytes>,
    from: u64,
    cluster: &Arc<Cluster>,
) -> Response<Body> {
    let duration = query.get("timeoutSeconds").and_then(|seconds| seconds.parse().ok());
    let end = Instant::now() + duration.map_or(WATCH_DURATION, Duration::from_secs);
    let state = (cluster.clone(), cluster.nodes.version(), from);
    let later = stream::unfold(state, |(cluster, mut version, from)| async move {
        // Each pass reads the version before the events: a change meanwhile wakes the next pass.
        version.borrow_and_update();
        let (mut events, mut last) = cluster.nodes.since(from);
        while events.is_empty() {
            version.changed().await.ok()?;
            (events, last) = cluster.nodes.since(from);
        }
        cluster.answers().await;
        Some((stream::iter(events), (cluster, version, last)))
    });
    let events = stream::iter(first).chain(later.flatten()).take_until(sleep_until(end));
    let body = StreamBody::new(events.map(|event| Ok(Frame::data(event))));
    response(StatusCode::OK, BodyExt::boxed_unsync(body))
}

fn groups() -> Value {
    let group = |name: &str| {
        let version = json!({ "groupVersion": format!("{name}/v1"), "version": "v1" });
        json!({ "name": name, "versions": [version], "preferredVersion": version })
    };
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [group("apps"), group("storage.k8s.io")] })
}

fn resources(version: &str) -> Value {
    let of = RESOURCES.iter().filter(|(of, ..)| *of == version);
    let resource = |(_, plural, kind, namespaced): &(&str, &str, &str, bool)| {
        json!({ "name": plural, "singularName": kind.to_lowercase(), "kind": kind, "namespaced": namespaced,
            "verbs": ["delete", "get", "list", "patch", "watch"] })
    };
    let resources: Vec<Value> = of.map(resource).collect();
    json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources })
}

fn success(object: &Value) -> Response<Body> {
    response(StatusCode::OK, BodyExt::boxed_unsync(Full::from(object.to_string())))
}

fn failure(status: StatusCode, reason: &str) -> Response<Body> {
    let object = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "message": reason,
        "code": status.as_u16() });
    response(status, BodyExt::boxed_unsync(Full::from(object.to_string())))
}

fn response(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    response
}
