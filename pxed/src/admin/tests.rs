//! The socket's promises: mode, replacement of what a killed pxed left, refusal of what is not ours, the routes.

use std::sync::Arc;

use bedplate_api::wire::Stage;
use bedplate_process::health::AlwaysReady;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::discovered::Discovered;
use crate::discovered::tests::query;
use crate::machine::tests::machine;
use crate::machine::{Machines, Snapshot};
use crate::status::{StatusRegistry, boot_mut};
use crate::store::Store;

const A: &str = "52:54:00:00:00:0a";

async fn get(path: &Path, route: &str) -> (u16, Value) {
    let mut stream = tokio::net::UnixStream::connect(path).await.unwrap();
    let request = format!("GET {route} HTTP/1.1\r\nHost: pxed\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[tokio::test]
async fn machines_are_shown_with_their_status() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run/pxed.sock");
    let store = Store::open(&directory.path().join("pxed.redb")).unwrap();
    let machines = Machines::default();
    let (registry, _events) = StatusRegistry::new(machines.clone(), &store, true).unwrap();
    machines.store(Snapshot::build(&"default".parse().unwrap(), [machine("a", &[A])]));
    registry.follow(&Snapshot::default(), &machines.load());
    registry.update(&"a".parse().unwrap(), |status| boot_mut(status).attempts = Some(2));
    let discovered = Discovered::load(store, 8).unwrap();
    for last in [0x0a, 0x0b] {
        discovered.record(&query(last), jiff::Timestamp::UNIX_EPOCH);
    }
    let state = AdminState {
        machines,
        registry,
        discovered,
        stage: Arc::new(|mac| (mac.octets()[5] == 0x0b).then_some(Stage::Userspace)),
        explain: Arc::new(|_| None),
        health: Arc::new(AlwaysReady),
        about: Arc::new(|| json!({ "site": "default" })),
    };
    let listener = bind(&path, None).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    let shutdown = CancellationToken::new();
    let server = tokio::spawn(serve(listener, path.clone(), state, shutdown.clone()));
    let (code, list) = get(&path, "/v1/machines").await;
    assert_eq!((code, list["kind"].as_str()), (200, Some("MachineList")));
    assert_eq!(list["items"][0]["kind"], "Machine");
    assert_eq!(list["items"][0]["status"]["boot"]["attempts"], 2);
    for name in ["a", "52-54-00-00-00-0A"] {
        assert_eq!(get(&path, &format!("/v1/machines/{name}")).await.1["metadata"]["name"], "a");
    }
    for missing in ["/v1/machines/b", "/v1/explain/b", "/nothing"] {
        let (code, refusal) = get(&path, missing).await;
        assert_eq!((code, refusal["reason"].as_str()), (404, Some("NotFound")), "{missing}");
    }
    let discovered = get(&path, "/v1/discovered").await.1["items"].clone();
    assert_eq!(discovered.as_array().map(Vec::len), Some(1), "one of the two is a Machine: {discovered}");
    assert_eq!(discovered[0]["macAddress"], "52:54:00:00:00:0b");
    assert_eq!(discovered[0]["stage"], "userspace");
    assert_eq!(get(&path, "/v1/status").await.1["ready"], true);
    shutdown.cancel();
    server.await.unwrap().unwrap();
    assert!(!path.exists(), "the socket is taken away");
}

#[tokio::test]
async fn a_socket_left_by_a_killed_pxed_is_replaced_and_a_living_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pxed.sock");
    let first = bind(&path, None).unwrap();
    assert!(matches!(bind(&path, None), Err(BindSocketError::InUse { .. })));
    drop(first);
    assert!(path.exists());
    bind(&path, None).unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(matches!(bind(&file, None), Err(BindSocketError::Occupied { .. })));
    assert!(matches!(
        bind(&directory.path().join("x"), Some("no-such-group")),
        Err(BindSocketError::NoGroup { .. })
    ));
}
