//! Tests of the lists.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use kube::client::Body;
use kube::runtime::reflector;
use kube::runtime::watcher::Event;
use serde_json::{Value, from_value, json};

use super::*;
use crate::core::api_server::{ApiServer, CORE};

fn machine(name: &str, version: &str) -> Value {
    let fields = json!({ "f:spec": { "f:version": {} } });
    json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": { "name": name, "namespace": "ns", "uid": name, "resourceVersion": version,
            "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b" },
            "managedFields": [{ "manager": "m", "operation": "Update", "fieldsV1": fields }] },
        "spec": { "clusterName": "c", "infrastructureRef": { "apiGroup": "g", "kind": "K", "name": name } } })
}

fn store(objects: &[Value]) -> Store<Machine> {
    let (store, mut writer) = reflector::store();
    writer.apply_watcher_event(&Event::Init);
    for object in objects {
        writer.apply_watcher_event(&Event::InitApply(from_value(object.clone()).unwrap()));
    }
    writer.apply_watcher_event(&Event::InitDone);
    store
}

#[tokio::test]
async fn m12_list_keeps_no_managed_fields_of_any_page() {
    let server = ApiServer::default();
    server.put(&format!("{CORE}/machines/a"), machine("a", "1"));
    let client = &server.world().client;
    let machines: Vec<Machine> = pages(client, &format!("{CORE}/machines"), "machines").await.unwrap();
    assert_eq!(machines[0].metadata.managed_fields, None);
    assert_eq!(machines[0].annotations().keys().collect::<Vec<_>>(), ["a"]);
}

#[tokio::test]
async fn ms3_live_list_takes_unchanged_machines_from_the_store() {
    let store = store(&[machine("a", "1"), machine("b", "1")]);
    let (client, _) = client(&[machine("a", "1"), machine("b", "2"), machine("c", "3")]);
    let list = list_over(&client, "ns", &store).await.unwrap();
    let is_kept = |machine: &Arc<Machine>| {
        let known = store.get(&ObjectRef::from_obj(&**machine));
        known.is_some_and(|known| Arc::ptr_eq(&known, machine))
    };
    assert_eq!(list.iter().map(is_kept).collect::<Vec<_>>(), [true, false, false]);
    let versions: Vec<_> = list.iter().filter_map(|machine| machine.resource_version()).collect();
    assert_eq!(versions, ["1", "2", "3"]);
}

/// A client whose API server has these Machines, and the number of lists that were read.
fn client(machines: &[Value]) -> (Client, Arc<AtomicUsize>) {
    let list = json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": machines }).to_string();
    let read = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&read);
    let service = tower::service_fn(move |_: http::Request<Body>| {
        let (list, count) = (list.clone(), Arc::clone(&count));
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, kube::Error>(http::Response::new(Body::from(list.into_bytes())))
        }
    });
    (Client::new(service, "default"), read)
}

#[tokio::test(start_paused = true)]
async fn ms3_turns_share_a_list_that_begins_after_they_have_asked() {
    let (store, (client, read)) = (store(&[]), client(&[machine("a", "1")]));
    let lists = MachineLists::default();
    let list = || lists.read(&client, "ns", &store);
    let (first, others) = tokio::join!(list(), async {
        // These turns ask while the first list is read: it may lack their writes.
        tokio::time::sleep(Duration::from_millis(500)).await;
        tokio::join!(list(), list(), list())
    });
    assert_eq!(read.load(Ordering::SeqCst), 2);
    let (second, third, fourth) = (others.0.unwrap(), others.1.unwrap(), others.2.unwrap());
    assert!(!Arc::ptr_eq(&first.unwrap()[0], &second[0]));
    assert!(Arc::ptr_eq(&second[0], &third[0]) && Arc::ptr_eq(&third[0], &fourth[0]));
    list().await.unwrap();
    assert_eq!(read.load(Ordering::SeqCst), 3, "a later turn reads again");
    assert!(lists.latest.lock().unwrap().values().all(|latest| latest.strong_count() == 0));
}
