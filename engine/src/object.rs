//! Reads and writes one object. Its answer may have times that programs cannot count ([`BoundedTimes`]). Called by reconcilers.

use std::fmt::Debug;

use bedplate_api::bounded_times::BoundedTimes;
use kube::api::{DeleteParams, GetParams};
use kube::core::{Request, request};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// Reads an object. None: it does not exist.
///
/// # Errors
/// The API server did not answer, or refused the request.
pub async fn get<K>(api: &Api<K>, name: &str) -> kube::Result<Option<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    match send(api, |request| request.get(name, &GetParams::default())).await {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends the request that `make` makes, and reads the object of the answer.
pub(crate) async fn send<K>(
    api: &Api<K>,
    make: impl FnOnce(&Request) -> Result<http::Request<Vec<u8>>, request::Error>,
) -> kube::Result<K>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let request = make(&Request::new(api.resource_url())).map_err(kube::Error::BuildRequest)?;
    let client = api.clone().into_client();
    client.request::<BoundedTimes<K>>(request).await.map(|BoundedTimes(object)| object)
}

/// Deletes an object. An object with a finalizer is the answer.
pub(crate) async fn delete<K>(api: &Api<K>, name: &str, parameters: &DeleteParams) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let request = Request::new(api.resource_url()).delete(name, parameters);
    let request = request.map_err(kube::Error::BuildRequest)?;
    let client = api.clone().into_client();
    client.request_status::<BoundedTimes<K>>(request).await.map(drop)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::FieldManager;

    #[tokio::test]
    async fn trust_4_object_with_an_uncountable_time_is_read_and_written() {
        let answer = json!({ "metadata": { "name": "a", "uid": "1", "resourceVersion": "7",
            "managedFields": [{ "manager": "user", "time": "9999-12-31T23:59:59Z" }] } });
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let answer = answer.to_string().into_bytes();
            async move { Ok::<_, kube::Error>(http::Response::new(Body::from(answer))) }
        });
        let nodes = Api::<Node>::all(Client::new(service, "default"));
        let node = get(&nodes, "a").await.unwrap().unwrap();
        let manager = FieldManager::new("bedplate-test");
        manager.set_finalizer(&nodes, &node, "bedplate.dev/test", true).await.unwrap();
        manager.apply_status(&nodes, &node, &json!({ "phase": "Running" })).await.unwrap();
        delete(&nodes, "a", &DeleteParams::default()).await.unwrap();
    }
}
