//! Writes of objects of any kind.

use super::*;

#[tokio::test]
async fn m5_metadata_of_any_kind_is_written_under_preconditions() {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let recorded = requests.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let recorded = recorded.clone();
        async move {
            let (head, body) = request.into_parts();
            let body: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap();
            recorded.lock().unwrap().push((format!("{} {}", head.method, head.uri.path()), body));
            let answer = json!({ "metadata": { "name": "a", "namespace": "team" } });
            Ok::<_, kube::Error>(http::Response::new(Body::from(answer.to_string().into_bytes())))
        }
    });
    let gvk = kube::core::GroupVersionKind::gvk("infra.test", "v1", "Rack");
    let resource = ApiResource::from_gvk(&gvk);
    let client = Client::new(service, "default");
    let api = kube::Api::<DynamicObject>::namespaced_with(client, "team", &resource);
    let object: DynamicObject = serde_json::from_value(
        json!({ "metadata": { "name": "a", "namespace": "team", "uid": "u", "resourceVersion": "7" } }),
    )
    .unwrap();
    let manager = crate::FieldManager::new("bedplate-test");
    let fields = json!({ "labels": { "x": "y" } });
    manager.merge_of(&api, &resource, &object, &json!({ "metadata": fields })).await.unwrap();
    crate::write::delete_of(&api, &resource, "a", object.uid(), object.resource_version()).await.unwrap();
    let requests = requests.lock().unwrap();
    let path = "/apis/infra.test/v1/namespaces/team/racks/a";
    let lines: Vec<&str> = requests.iter().map(|(line, _)| line.as_str()).collect();
    assert_eq!(lines, [format!("PATCH {path}"), format!("DELETE {path}")]);
    let merged = json!({ "metadata": { "uid": "u", "resourceVersion": "7", "labels": { "x": "y" } } });
    assert_eq!(requests[0].1, merged);
    assert_eq!(requests[1].1["preconditions"], json!({ "uid": "u", "resourceVersion": "7" }));
}
