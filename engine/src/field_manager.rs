//! The field manager of a program, and the writes of the fields that it owns. Called by reconcilers.
//!
//! Several programs write different fields of one object, so each has a name of its own. Most writes are server-side applies. An apply of a
//! status is bound to UID and resource version of the object that was read, an apply of labels or annotations to the UID.

use std::collections::BTreeMap;
use std::fmt::Debug;

use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::object::send;
use crate::write::{WriteError, ask, called, called_of};

/// Name of a program in the `managedFields` of the objects that it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldManager(&'static str);

impl FieldManager {
    /// Makes the field manager of this name.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        self.0
    }

    /// Returns the parameters of a create or replace.
    pub fn post(self) -> PostParams {
        PostParams { field_manager: Some(self.0.to_owned()), ..PostParams::default() }
    }

    /// Returns the parameters of a patch that is not an apply.
    pub fn patch(self) -> PatchParams {
        PatchParams { field_manager: Some(self.0.to_owned()), ..PatchParams::default() }
    }

    /// Returns the parameters of an apply. It is forced: the fields belong to this program, even if another writer has set them.
    fn apply(self) -> PatchParams {
        PatchParams::apply(self.0).force()
    }

    /// Applies this program's fields of a status, if the object has not changed since it was read. Returns the object after the write.
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn apply_status<K>(
        self,
        api: &Api<K>,
        object: &K,
        status: &impl Serialize,
    ) -> Result<K, WriteError>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let mut body = identity(&(), object);
        body["metadata"]["resourceVersion"] = json!(object.resource_version());
        body["status"] = json!(status);
        let name = object.name_any();
        ask(
            &called(object),
            send(api, |request| {
                request.patch_subresource("status", &name, &self.apply(), &Patch::Apply(&body))
            }),
        )
        .await
    }

    /// Edits a status by a JSON Patch (RFC 6902), which is bound to its `test` operations only. The API server repeats the patch after a
    /// concurrent write.
    ///
    /// # Errors
    /// [`WriteError`]; a failed `test` is an error 422, like other rejections.
    pub async fn edit_status<K>(self, api: &Api<K>, object: &K, edits: &Value) -> Result<(), WriteError>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let what = called(object);
        let edits = serde_json::from_value(edits.clone())
            .map_err(|error| WriteError::Refused { what: what.clone(), why: error.to_string() })?;
        let name = object.name_any();
        ask(
            &what,
            send(api, |request| {
                request.patch_subresource("status", &name, &self.patch(), &Patch::<()>::Json(edits))
            }),
        )
        .await
        .map(drop)
    }

    /// Applies annotations of an existing object. Its other fields may have changed since it was read.
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn apply_annotations<K>(
        self,
        api: &Api<K>,
        object: &K,
        annotations: &Value,
    ) -> Result<(), WriteError>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let mut body = identity(&(), object);
        body["metadata"]["annotations"] = annotations.clone();
        let name = object.name_any();
        ask(&called(object), send(api, |request| request.patch(&name, &self.apply(), &Patch::Apply(&body))))
            .await
            .map(drop)
    }

    /// Applies all labels that this program sets on an existing object. Its other fields may have changed since it was read.
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn apply_labels<K>(
        self,
        api: &Api<K>,
        object: &K,
        labels: &BTreeMap<String, String>,
    ) -> Result<(), WriteError>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let mut body = identity(&(), object);
        body["metadata"]["labels"] = json!(labels);
        let name = object.name_any();
        ask(&called(object), send(api, |request| request.patch(&name, &self.apply(), &Patch::Apply(&body))))
            .await
            .map(drop)
    }

    /// Changes fields of an object by a merge patch (RFC 7386), if the object has not changed since it was read.
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn merge<K>(self, api: &Api<K>, object: &K, change: &Value) -> Result<(), WriteError>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        self.merge_of(api, &(), object, change).await
    }

    /// Changes fields of an object of a resource that is known at run time, like [`Self::merge`].
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn merge_of<K>(
        self,
        api: &Api<K>,
        resource: &K::DynamicType,
        object: &K,
        change: &Value,
    ) -> Result<(), WriteError>
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        self.merge_object(api, resource, object, change).await.map(drop)
    }

    /// Changes fields like [`Self::merge_of`]. Returns the object after the write.
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn merge_object<K>(
        self,
        api: &Api<K>,
        resource: &K::DynamicType,
        object: &K,
        change: &Value,
    ) -> Result<K, WriteError>
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        let mut body = change.clone();
        body["metadata"]["uid"] = json!(object.uid());
        body["metadata"]["resourceVersion"] = json!(object.resource_version());
        let name = object.name_any();
        ask(
            &called_of(resource, object),
            send(api, |request| request.patch(&name, &self.patch(), &Patch::Merge(&body))),
        )
        .await
    }

    /// Applies an object that no other program writes, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn apply_whole<K>(self, api: &Api<K>, object: &K) -> Result<(), WriteError>
    where
        K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + Debug,
    {
        let name = object.name_any();
        ask(&called(object), send(api, |request| request.patch(&name, &self.apply(), &Patch::Apply(object))))
            .await
            .map(drop)
    }

    /// Adds or removes one finalizer, if the object has not changed since it was read.
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn set_finalizer<K>(
        self,
        api: &Api<K>,
        object: &K,
        finalizer: &str,
        held: bool,
    ) -> Result<(), WriteError>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let others = object.finalizers().iter().filter(|other| *other != finalizer).cloned();
        let wanted: Vec<String> = others.chain(held.then(|| finalizer.to_owned())).collect();
        self.merge(api, object, &json!({ "metadata": { "finalizers": wanted } })).await
    }
}

/// Returns the start of an apply. The UID prevents that a deleted object is created again.
fn identity<K: Resource>(resource: &K::DynamicType, object: &K) -> Value {
    let mut body = json!({ "apiVersion": K::api_version(resource), "kind": K::kind(resource),
        "metadata": { "name": object.name_any(), "uid": object.uid() } });
    if let Some(namespace) = object.namespace() {
        body["metadata"]["namespace"] = namespace.into();
    }
    body
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::core::v1::{Node, Pod};
    use kube::Client;
    use kube::client::Body;

    use super::*;

    const MANAGER: FieldManager = FieldManager::new("bedplate-test");

    type Requests = Arc<Mutex<Vec<(String, Value)>>>;

    /// A client whose API server records requests, and answers each with its body.
    fn client() -> (Client, Requests) {
        let requests = Requests::default();
        let recorded = requests.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let recorded = recorded.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let sent = serde_json::from_slice(&body).unwrap();
                recorded.lock().unwrap().push((format!("{} {}", head.method, head.uri), sent));
                Ok::<_, kube::Error>(http::Response::new(Body::from(body.to_vec())))
            }
        });
        (Client::new(service, "default"), requests)
    }

    fn object<K: DeserializeOwned>(metadata: &Value) -> K {
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[tokio::test]
    async fn apply_names_the_manager_and_the_object_that_was_read() {
        let (client, requests) = client();
        let node: Node = object(&json!({ "name": "a", "uid": "1", "resourceVersion": "7" }));
        MANAGER.apply_status(&Api::all(client), &node, &json!({ "phase": "Running" })).await.unwrap();
        let expected = json!({ "apiVersion": "v1", "kind": "Node", "status": { "phase": "Running" },
            "metadata": { "name": "a", "uid": "1", "resourceVersion": "7" } });
        let line = "PATCH /api/v1/nodes/a/status?&force=true&fieldManager=bedplate-test";
        assert_eq!(*requests.lock().unwrap(), [(line.to_owned(), expected)]);
    }

    #[tokio::test]
    async fn merge_is_bound_to_the_object_that_was_read() {
        let (client, requests) = client();
        let node: Node = object(&json!({ "name": "a", "uid": "1", "resourceVersion": "7" }));
        let change =
            json!({ "metadata": { "annotations": { "note": "x" } }, "spec": { "unschedulable": null } });
        MANAGER.merge(&Api::all(client), &node, &change).await.unwrap();
        let expected = json!({ "spec": { "unschedulable": null },
            "metadata": { "uid": "1", "resourceVersion": "7", "annotations": { "note": "x" } } });
        let line = "PATCH /api/v1/nodes/a?&fieldManager=bedplate-test";
        assert_eq!(*requests.lock().unwrap(), [(line.to_owned(), expected)]);
    }

    #[tokio::test]
    async fn apply_to_a_namespaced_object_names_its_namespace() {
        let (client, requests) = client();
        let pod: Pod = object(&json!({ "name": "web", "namespace": "team", "uid": "1" }));
        let pods = Api::namespaced(client, "team");
        MANAGER.apply_annotations(&pods, &pod, &json!({ "note": "x" })).await.unwrap();
        let labels = BTreeMap::from([("tier".to_owned(), "front".to_owned())]);
        MANAGER.apply_labels(&pods, &pod, &labels).await.unwrap();
        for (line, body) in requests.lock().unwrap().iter() {
            assert!(line.starts_with("PATCH /api/v1/namespaces/team/pods/web?"), "{line}");
            assert_eq!(body["metadata"]["namespace"], "team");
        }
    }
}
