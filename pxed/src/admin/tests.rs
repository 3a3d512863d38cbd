//! The socket's promises: mode, replacement of what a killed pxed left, refusal of what is not ours, the routes.

use std::sync::Mutex;

use async_trait::async_trait;
use bedplate_api::operation::MachineOperation;
use bedplate_api::wire::Stage;
use bedplate_process::health::AlwaysReady;
use bedplate_process::listen::accept::UnixPeer;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::route::AllowKey;
use super::*;
use crate::enroll::permission::AllowKeyError;
use crate::enroll::token::IssueTokenError;
use crate::machines::discovered::Discovered;
use crate::machines::discovered::tests::query;
use crate::machines::source::SourcedConfiguration;
use crate::machines::tests::machine;
use crate::machines::{Machines, Snapshot};
use crate::power::{CreateOperationError, OperationDesk};
use crate::standalone::versions::NodeChoice;
use crate::status::{StatusRegistry, boot_mut};
use crate::store::Store;
use crate::system_of_record::SystemOfRecord;

const A: &str = "52:54:00:00:00:0a";

async fn get(path: &Path, route: &str) -> (u16, Value) {
    ask(path, &format!("GET {route}"), "").await
}

async fn post(path: &Path, body: &str) -> (u16, Value) {
    ask(path, "POST /v1/operations", body).await
}

async fn ask(path: &Path, what: &str, body: &str) -> (u16, Value) {
    let mut stream = tokio::net::UnixStream::connect(path).await.unwrap();
    let length = body.len();
    let head = format!("{what} HTTP/1.1\r\nHost: pxed\r\nConnection: close\r\nContent-Length: {length}\r\n");
    let request = format!("{head}Content-Type: application/json\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

/// Desk that records what it gets and refuses the operations of a cluster.
#[derive(Default)]
struct Desk {
    kept: Mutex<Vec<Arc<MachineOperation>>>,
    of_cluster: bool,
}

#[async_trait]
impl OperationDesk for Desk {
    async fn create(&self, mut object: MachineOperation) -> Result<MachineOperation, CreateOperationError> {
        if self.of_cluster {
            return Err(CreateOperationError::UseKubernetesApi);
        }
        let machine = object.spec.machine_ref.as_ref().unwrap().name.to_string();
        if machine != "a" {
            return Err(CreateOperationError::NoMachine(machine));
        }
        let mut kept = self.kept.lock().unwrap();
        let made = object.metadata.generate_name.as_ref().map(|prefix| format!("{prefix}{}", kept.len()));
        let name = object.metadata.name.get_or_insert_with(|| made.unwrap()).clone();
        if kept.iter().any(|kept| kept.metadata.name.as_ref() == Some(&name)) {
            return Err(CreateOperationError::Exists(name));
        }
        kept.push(Arc::new(object.clone()));
        Ok(object)
    }

    fn list(&self) -> Vec<Arc<MachineOperation>> {
        self.kept.lock().unwrap().clone()
    }

    fn get(&self, name: &str) -> Option<Arc<MachineOperation>> {
        self.list().into_iter().find(|kept| kept.metadata.name.as_deref() == Some(name))
    }
}

/// A pxed of which only the desk matters.
fn serving(desk: Desk) -> (tempfile::TempDir, PathBuf, tokio::task::JoinHandle<()>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pxed.sock");
    let state = state(&directory, desk).0;
    let listener = bind(&path, None).unwrap();
    let server =
        tokio::spawn(serve(listener, path.clone(), state, Pulse::unwatched(), CancellationToken::new()));
    (directory, path, server)
}

fn state(directory: &tempfile::TempDir, desk: Desk) -> (AdminState, Store) {
    let store = Store::open(&directory.path().join("pxed.redb")).unwrap();
    let machines = Machines::default();
    let (registry, _events) = StatusRegistry::new(machines.clone(), &store, SystemOfRecord::Pxed).unwrap();
    let kept = store.clone();
    let state = AdminState {
        machines,
        registry,
        discovered: Discovered::load(store, 8).unwrap(),
        stage: Arc::new(|_| None),
        explain: Arc::new(|_| None),
        operations: Arc::new(desk),
        choice: None,
        token: Arc::new(|name| Box::pin(async { Err(IssueTokenError::NoMachine(name)) })),
        rights: rights(None).unwrap(),
        allow_key: Arc::new(|name, _| Box::pin(async { Err(AllowKeyError::NoMachine(name)) })),
        health: Arc::new(AlwaysReady),
        about: Arc::new(|| json!({})),
    };
    (state, kept)
}

fn operation(name: &Value, spec: &Value) -> Value {
    json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation", "metadata": name, "spec": spec })
}

#[tokio::test]
async fn an_operation_is_made_and_looked_at() {
    let (_directory, path, _server) = serving(Desk::default());
    let spec = json!({ "machineRef": { "name": "a" }, "operationName": "powerCycle" });
    let mut given = operation(
        &json!({ "generateName": "a-power-cycle-", "labels": { "by": "me" }, "uid": "forged", "finalizers": ["x"] }),
        &spec,
    );
    given["status"] = json!({ "state": "Complete" });
    let (code, made) = post(&path, &given.to_string()).await;
    assert_eq!((code, made["metadata"]["name"].as_str()), (201, Some("a-power-cycle-0")), "{made}");
    assert_eq!(made["metadata"]["labels"]["by"], "me");
    for forged in ["/metadata/uid", "/metadata/finalizers", "/status"] {
        assert!(made.pointer(forged).is_none_or(Value::is_null), "{forged}: {made}");
    }
    let (code, found) = get(&path, "/v1/operations/a-power-cycle-0").await;
    assert_eq!((code, &found), (200, &made));
    let list = get(&path, "/v1/operations").await.1;
    assert_eq!((list["kind"].as_str(), &list["items"]), (Some("MachineOperationList"), &json!([made])));
    let (code, refusal) = get(&path, "/v1/operations/b").await;
    assert_eq!((code, refusal["reason"].as_str()), (404, Some("OperationNotFound")));
}

#[tokio::test]
async fn invalid_operation_is_refused_with_its_errors() {
    let (_directory, path, _server) = serving(Desk::default());
    let name = json!({ "name": "x" });
    let on = json!({ "machineRef": { "name": "a" }, "operationName": "powerOn" });
    let with = |key: &str, value: Value| {
        let mut spec = on.clone();
        spec[key] = value;
        operation(&name, &spec).to_string()
    };
    assert_eq!(post(&path, &operation(&name, &on).to_string()).await.0, 201);
    let selector = json!({ "machineSelector": {}, "operationName": "powerOn" });
    let long = json!({ "name": "x".repeat(254) });
    for (body, expected, reason, says) in [
        ("{".to_owned(), 400, "Malformed", "not JSON"),
        (
            json!({ "apiVersion": "v1", "kind": "Secret" }).to_string(),
            400,
            "Malformed",
            "not a MachineOperation",
        ),
        (operation(&json!({}), &on).to_string(), 422, "Invalid", "generateName is required"),
        (operation(&json!({ "name": "../x" }), &on).to_string(), 422, "Invalid", "metadata.name is invalid"),
        (operation(&long, &on).to_string(), 422, "Invalid", "at most 253"),
        (operation(&json!({ "name": "x..y" }), &on).to_string(), 422, "Invalid", "metadata.name is invalid"),
        (operation(&json!({ "name": "x-.y" }), &on).to_string(), 422, "Invalid", "metadata.name is invalid"),
        (
            operation(&json!({ "generateName": "x.-" }), &on).to_string(),
            422,
            "Invalid",
            "metadata.generateName is invalid",
        ),
        (
            operation(&json!({ "generateName": "" }), &on).to_string(),
            422,
            "Invalid",
            "metadata.generateName is invalid",
        ),
        (operation(&json!({ "name": "y", "labels": 1 }), &on).to_string(), 422, "Invalid", "metadata.labels"),
        (operation(&name, &Value::Null).to_string(), 422, "Invalid", "spec"),
        (with("timeoutSeconds", json!("5")), 422, "Invalid", "spec.timeoutSeconds: "),
        (with("parameters", json!({ "force": true })), 422, "Invalid", "put it in quotes"),
        (with("operationName", json!("power on")), 422, "Invalid", "spec.operationName: "),
        (operation(&name, &selector).to_string(), 422, "Invalid", "at least one requirement"),
        (with("machineRef", json!({ "name": "b" })), 404, "MachineNotFound", "a Machine b of this site"),
        (operation(&name, &on).to_string(), 409, "AlreadyExists", "generateName"),
        (with("parameters", json!({ "x": "y".repeat(65 << 10) })), 413, "BodyTooLarge", "64 KiB"),
    ] {
        let (code, refusal) = post(&path, &body).await;
        assert_eq!((code, refusal["reason"].as_str()), (expected, Some(reason)), "{refusal}");
        assert!(refusal["message"].as_str().unwrap().contains(says), "{refusal}");
    }
    assert_eq!(ask(&path, "DELETE /v1/operations/x", "").await.0, 405);
    assert_eq!(get(&path, "/v1/operations").await.1["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn operations_of_a_cluster_are_not_made_here_and_the_refusal_says_where() {
    let (_directory, path, _server) = serving(Desk { of_cluster: true, ..Desk::default() });
    let on = json!({ "machineRef": { "name": "a" }, "operationName": "powerOn" });
    let (code, refusal) = post(&path, &operation(&json!({ "generateName": "a-" }), &on).to_string()).await;
    assert_eq!((code, refusal["reason"].as_str()), (409, Some("UseKubernetesAPI")));
    assert!(refusal["message"].as_str().unwrap().contains("--context"), "{refusal}");
}

#[tokio::test]
async fn permission_for_another_key_is_refused_without_a_machine() {
    let (_directory, path, _server) = serving(Desk::default());
    let (code, refusal) = ask(&path, "POST /v1/machines/nobody/re-enroll", "null").await;
    assert_eq!((code, refusal["reason"].as_str()), (404, Some("NotFound")), "{refusal}");
}

#[tokio::test]
async fn trust_6_answer_names_the_boot_that_a_permission_is_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pxed.sock");
    let given = Arc::new(Mutex::new(Vec::new()));
    let kept = given.clone();
    let allow_key: AllowKey = Arc::new(move |name, boot| {
        kept.lock().unwrap().push((name, boot));
        Box::pin(async { Ok(()) })
    });
    let state = AdminState { allow_key, ..state(&directory, Desk::default()).0 };
    let listener = bind(&path, None).unwrap();
    let _server =
        tokio::spawn(serve(listener, path.clone(), state, Pulse::unwatched(), CancellationToken::new()));
    let permit =
        async |query: &str| ask(&path, &format!("POST /v1/machines/a/re-enroll{query}"), "null").await;
    let (upper, boot) = ("AB".repeat(16), "ab".repeat(16));
    let answer = permit(&format!("?boot={upper}")).await;
    assert_eq!(answer, (201, json!({ "machine": "a", "boot": boot })));
    assert_eq!(permit("").await, (201, json!({ "machine": "a" })));
    assert_eq!(*given.lock().unwrap(), [("a".to_owned(), Some(boot.clone())), ("a".to_owned(), None)]);
    for query in ["?boot=ab", &format!("?bot={boot}"), &format!("?boot={boot}&boot={boot}"), "?boot=%FF"] {
        let (code, refusal) = permit(query).await;
        assert_eq!((code, refusal["reason"].as_str()), (400, Some("Malformed")), "{query}: {refusal}");
    }
    assert_eq!(given.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn machines_are_shown_with_their_status() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run/pxed.sock");
    let store = Store::open(&directory.path().join("pxed.redb")).unwrap();
    let machines = Machines::default();
    let (registry, _events) = StatusRegistry::new(machines.clone(), &store, SystemOfRecord::Pxed).unwrap();
    machines.store(Snapshot::build(
        &"default".parse().unwrap(),
        [machine("a", &[A]), machine("z", &["52:54:00:00:00:77"])],
    ));
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
        operations: Arc::new(Desk::default()),
        choice: None,
        token: Arc::new(|name| Box::pin(async { Err(IssueTokenError::NoMachine(name)) })),
        rights: rights(None).unwrap(),
        allow_key: Arc::new(|name, _| Box::pin(async { Err(AllowKeyError::NoMachine(name)) })),
        health: Arc::new(AlwaysReady),
        about: Arc::new(|| json!({ "site": "default" })),
    };
    let listener = bind(&path, None).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    let shutdown = CancellationToken::new();
    let server = tokio::spawn(serve(listener, path.clone(), state, Pulse::unwatched(), shutdown.clone()));
    let (code, list) = get(&path, "/v1/machines").await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(list["apiVersion"], "bedplate.dev/v1alpha1");
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
    assert_eq!(discovered[0]["stage"], "Userspace");
    assert_eq!(get(&path, "/v1/status").await.1["ready"], true);
    shutdown.cancel();
    server.await.unwrap();
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

#[tokio::test]
async fn configurations_of_a_cluster_are_the_clusters_to_show() {
    let (_directory, path, _server) = serving(Desk::default());
    for route in ["/v1/configurations", "/v1/configurations/w"] {
        let (code, refusal) = get(&path, route).await;
        assert_eq!((code, refusal["reason"].as_str()), (409, Some("UseKubernetesAPI")), "{route}");
    }
}

#[tokio::test]
async fn operations_and_tokens_need_the_admin_group_and_reading_does_not() {
    use axum::extract::connect_info::MockConnectInfo;
    use tower::ServiceExt as _;
    let directory = tempfile::tempdir().unwrap();
    let state = state(&directory, Desk::default()).0;
    let rights = Rights { own: 990, group: "bedplate-admin".to_owned(), group_id: Some(500) };
    let state = AdminState { rights, ..state };
    let ask = async |groups: &[u32], method: &str, route: &str| {
        let peer = UnixPeer { user: Some(1000), group: Some(1000), groups: groups.to_vec() };
        let router = router(state.clone()).layer(MockConnectInfo(peer));
        let request = axum::http::Request::builder().method(method).uri(route);
        let response = router.oneshot(request.body(axum::body::Body::empty()).unwrap()).await.unwrap();
        let code = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (code, String::from_utf8(body.to_vec()).unwrap())
    };
    for route in ["/v1/operations", "/v1/machines/a/token", "/v1/machines/a/re-enroll"] {
        let (code, refusal) = ask(&[4], "POST", route).await;
        assert_eq!(code, 403, "{route}: {refusal}");
        assert!(
            refusal.contains("\"Forbidden\"") && refusal.contains("usermod -aG bedplate-admin"),
            "{refusal}"
        );
        let (code, answer) = ask(&[4, 500], "POST", route).await;
        assert!([400, 404].contains(&code), "admitted, and then read: {answer}");
    }
    for route in ["/v1/operations", "/v1/machines", "/v1/status", "/v1/discovered"] {
        assert_eq!(ask(&[], "GET", route).await.0, 200, "{route}");
    }
    assert!(matches!(
        super::rights(Some("no-such-group")),
        Err(BindSocketError::NoGroup { key: "socket-admin-group", .. })
    ));
}

/// Without a cluster, with one configuration whose file holds this content.
async fn with_configuration(directory: &tempfile::TempDir, content: &str) -> AdminState {
    let (mut state, store) = state(directory, Desk::default());
    state.machines.store(Snapshot::default());
    let (choice, choosing) = NodeChoice::open(store, state.machines.clone(), state.registry.clone()).unwrap();
    tokio::spawn(choosing.run(Pulse::unwatched(), CancellationToken::new()));
    let template = json!({ "image": { "reference": "r.example/node:1", "allowTag": true }, "kubernetes": { "version": "v1.34.0" },
        "files": [{ "path": "/etc/a", "content": content }] });
    let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration", "metadata": { "name": "w" },
        "spec": { "template": template } });
    let configuration = Arc::new(serde_json::from_value(object).unwrap());
    let mut changes = choice.changes();
    choice
        .take(vec![SourcedConfiguration { origin: "w.yaml".to_owned(), line: 1, configuration }], true)
        .await;
    changes.wait_for(|state| !state.versions.is_empty()).await.unwrap();
    state.choice = Some(choice);
    state
}

#[tokio::test]
async fn configuration_contents_are_shown_only_to_readers_of_the_manifests() {
    use axum::extract::connect_info::MockConnectInfo;
    use tower::ServiceExt as _;
    let directory = tempfile::tempdir().unwrap();
    let state = with_configuration(&directory, "hunter2").await;
    let own = nix::unistd::Uid::effective().as_raw();
    let ask = async |user: Option<u32>, route: &str| {
        let peer = UnixPeer { user, group: None, groups: Vec::new() };
        let rights = Rights { own: 990, ..state.rights.clone() };
        let router = router(AdminState { rights, ..state.clone() }).layer(MockConnectInfo(peer));
        let request = axum::http::Request::get(route).body(axum::body::Body::empty()).unwrap();
        let body = router.oneshot(request).await.unwrap().into_body();
        String::from_utf8(axum::body::to_bytes(body, 1 << 20).await.unwrap().to_vec()).unwrap()
    };
    for (user, may_write) in [(Some(0), true), (Some(990), true), (Some(1000), false), (None, false)] {
        let one = ask(user, "/v1/configurations/w").await;
        assert_eq!(one.contains("hunter2"), may_write, "{user:?}: {one}");
        assert_eq!(one.contains("(concealed: 7 bytes, "), !may_write, "{user:?}: {one}");
        assert!(one.contains("/etc/a") && one.contains("w-v1"), "{one}");
        let all = ask(user, "/v1/configurations").await;
        assert!(all.contains("(concealed: 7 bytes, ") && !all.contains("hunter2"), "{user:?}: {all}");
    }
    // Over the socket it is the kernel that says who asks: here pxed's own user.
    let path = directory.path().join("pxed.sock");
    let listener = bind(&path, None).unwrap();
    let _server = tokio::spawn(serve(
        listener,
        path.clone(),
        state.clone(),
        Pulse::unwatched(),
        CancellationToken::new(),
    ));
    let (code, one) = get(&path, "/v1/configurations/w").await;
    let content = &one["versions"][0]["spec"]["template"]["files"][0]["content"];
    assert_eq!((code, content.as_str()), (200, Some("hunter2")), "as {own}: {one}");
}
