//! Requests of the controller to the API server, their order, and the reaction to failures. No API server
//! runs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bedplate_api::machine::Machine;
use bedplate_engine::work;
use bedplate_engine::write::WriteError;
use bedplate_process::lease::Tenure;
use bedplate_process::liveness::{Liveness, SILENCE_TIMEOUT};
use bedplate_reconciler::metrics::Kind;
use bedplate_reconciler::{configuration, image, machine, version};
use kube::runtime::reflector::ObjectRef;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::server::{Asked, Objects, Server, body, machine_list, object, refusal};

const LOCK: &str = "PATCH /machineconfigurationversions/w-v1/status";
const SELECT: &str = "PATCH /machines/a/status";

/// One configuration with two versions, and a Machine for it.
fn objects(machine: Value) -> Objects {
    Objects {
        configurations: vec![server::configuration(2, &json!({ "latestVersion": 2 }))],
        versions: vec![server::version(1, &json!({})), server::version(2, &json!({}))],
        machines: vec![machine],
        nodes: Vec::new(),
        ..Objects::default()
    }
}

/// Answers writes with what was written, as if it was there.
fn written(asked: &Asked) -> (u16, Value) {
    let mut object = asked.body.clone();
    object["spec"] = match object["kind"].as_str() {
        Some("Machine") => server::machine(&json!({}))["spec"].clone(),
        Some("MachineConfiguration") => server::configuration(1, &json!({}))["spec"].clone(),
        _ => server::version(1, &json!({}))["spec"].clone(),
    };
    if object["metadata"]["name"].is_null() {
        object = server::version(1, &json!({}));
    }
    (200, object)
}

#[tokio::test]
async fn h4_version_is_locked_before_selection_and_not_selected_if_that_fails() {
    let pinned = |mut machine: Value| {
        machine["spec"]["configurationRef"]["version"] = json!(1);
        machine
    };
    let given = pinned(server::machine(&json!({})));
    let server = Server::default();
    let world = server.world(&objects(given.clone()), Tenure::always(), written);
    machine::reconcile(Arc::new(object(&given)), world).await.unwrap();
    assert_eq!(server.lines(), [LOCK, SELECT]);
    let asked = server.asked();
    assert_eq!(body(&asked, LOCK)["status"]["deployed"], true);
    assert_eq!(
        body(&asked, SELECT)["status"]["selected"],
        json!({ "name": "w", "version": 1, "source": "Reference" })
    );
    for asked in asked {
        assert_eq!(asked.body["metadata"]["resourceVersion"], "7", "bound to what was read");
    }
    for code in [403, 404, 409, 410, 422, 429, 500, 503] {
        let server = Server::default();
        let world = server.world(&objects(given.clone()), Tenure::always(), move |_| refusal(code, "no"));
        machine::reconcile(Arc::new(object(&given)), world).await.expect_err("it was refused");
        assert_eq!(server.lines(), [LOCK], "{code}: once, and nothing is selected");
    }
}

#[tokio::test]
async fn h6_next_choice_clears_node_ref_in_one_write_after_live_read_and_lock() {
    let selected = json!({ "name": "w", "version": 1, "source": "Reference" });
    let status = json!({ "selected": selected, "nodeRef": { "name": "a", "uid": "n1" },
        "applied": { "name": "w", "version": 1, "slot": "a", "nodeUID": "n1" } });
    let given = server::machine(&status);
    let server = Server::default();
    let world = server.world(&objects(given.clone()), Tenure::always(), |asked| {
        if asked.line.starts_with("GET") { refusal(404, "no such Node") } else { written(asked) }
    });
    machine::reconcile(Arc::new(object(&given)), world).await.unwrap();
    let lock = "PATCH /machineconfigurationversions/w-v2/status";
    assert_eq!(server.lines(), ["GET /api/v1/nodes/a", lock, SELECT]);
    let asked = server.asked();
    let status = &body(&asked, SELECT)["status"];
    assert_eq!((&status["selected"]["version"], status.get("nodeRef")), (&json!(2), None));
    // It is unknown whether the Node is gone: nothing is written.
    let server = Server::default();
    let world = server.world(&objects(given.clone()), Tenure::always(), |_| refusal(503, "away"));
    machine::reconcile(Arc::new(object(&given)), world).await.expect_err("away");
    assert_eq!(server.lines(), ["GET /api/v1/nodes/a"]);
}

#[tokio::test]
async fn h2_a_takeover_token_has_the_api_server_asked_for_the_node() {
    const ASK: &str = "GET /api/v1/nodes/a";
    let mut given = server::machine(&json!({}));
    given["spec"]["provider"] = json!("pxe");
    let interfaces = json!([{ "macAddress": "52:54:00:00:00:01" }]);
    given["spec"]["pxe"] = json!({ "interfaces": interfaces, "takeover": "one" });
    let node = |provider_id: &str| {
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "a", "uid": "n1" },
            "spec": { "providerID": provider_id } })
    };
    for (there, state) in [(None, "Absent"), (Some(node("")), "Foreign"), (Some(node("bedplate://a")), "Own")]
    {
        let server = Server::default();
        let world = server.world(&objects(given.clone()), Tenure::always(), move |asked| match &there {
            Some(node) if asked.line == ASK => (200, node.clone()),
            None if asked.line == ASK => refusal(404, "no such Node"),
            _ => written(asked),
        });
        machine::reconcile(Arc::new(object(&given)), world).await.unwrap();
        assert_eq!(server.lines()[0], ASK, "{state}: its cache does not have the Node");
        let observed = body(&server.asked(), SELECT)["status"]["observedNode"].clone();
        assert_eq!(observed, json!({ "state": state, "observedGeneration": 1 }));
    }
    let server = Server::default();
    let world = server.world(&objects(given.clone()), Tenure::always(), |_| refusal(503, "away"));
    machine::reconcile(Arc::new(object(&given)), world).await.expect_err("away");
    assert_eq!(server.lines(), [ASK], "without an answer nothing is written");
    // An observation of this generation is not repeated.
    given["status"]["observedNode"] = json!({ "state": "Absent", "observedGeneration": 1 });
    let server = Server::default();
    let world = server.world(&objects(given.clone()), Tenure::always(), written);
    machine::reconcile(Arc::new(object(&given)), world).await.unwrap();
    assert!(!server.lines().contains(&ASK.to_owned()), "{:?}", server.lines());
    let observed = body(&server.asked(), SELECT)["status"]["observedNode"].clone();
    assert_eq!(observed, given["status"]["observedNode"], "it stays");
}

#[tokio::test]
async fn refused_version_does_not_block_independent_writes() {
    let leaving = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let status = json!({ "latestVersion": 4, "machines": { "selected": 0, "applied": 0, "outdated": 0, "unavailable": 0 } });
    let used = json!({ "status": { "deployed": true, "machines": 5 } });
    let given = server::configuration(9, &status);
    let objects = Objects {
        configurations: vec![given.clone()],
        // A user deleted the first one, and another one whose number is not recorded elsewhere.
        versions: vec![
            server::version(1, &leaving),
            server::version(2, &used),
            server::version(3, &used),
            server::version(5, &leaving),
        ],
        ..Objects::default()
    };
    let answers = |asked: &Asked| match asked.line.as_str() {
        line if line.starts_with("POST") => refusal(422, "it is too large"),
        line if line.ends_with("w-v2/status") => refusal(500, "no"),
        "GET /machines" => machine_list(&[]),
        _ => written(asked),
    };
    let server = Server::default();
    let world = server.world(&objects, Tenure::always(), answers);
    let error = configuration::reconcile(Arc::new(object(&given)), world).await.expect_err("refused");
    let words = error.to_string();
    assert!(words.contains("it is too large") && words.contains("500: no"), "{words}");
    assert!(matches!(error, WriteError::Later { .. }), "{error:?}");
    assert_eq!(
        server.lines(),
        [
            "POST /machineconfigurationversions",
            "PATCH /machineconfigurationversions/w-v2/status",
            "PATCH /machineconfigurationversions/w-v3/status",
            "PATCH /machineconfigurations/w/status",
            "GET /machines",
            "PATCH /machineconfigurationversions/w-v1",
            "PATCH /machineconfigurationversions/w-v5",
        ],
        "what is there is counted and let go"
    );
    let asked = server.asked();
    let status = &body(&asked, "PATCH /machineconfigurations/w/status")["status"];
    assert_eq!(status["latestVersion"], 5, "no number that was not made");
    assert_eq!(condition(status, "Degraded"), ("True", "VersionInvalid"));
    let message = status["conditions"][1]["message"].as_str().unwrap();
    assert!(message.contains("w-v6: it is too large"), "{message}");
}

/// Status and reason of a condition.
fn condition<'a>(status: &'a Value, type_: &str) -> (&'a str, &'a str) {
    let found = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == type_).unwrap();
    (found["status"].as_str().unwrap(), found["reason"].as_str().unwrap())
}

#[tokio::test]
async fn refused_edit_is_reported_once_and_cleared_when_it_is_accepted() {
    let answers = |code: u16| {
        move |asked: &Asked| match asked.line.as_str() {
            line if line.starts_with("POST") && code != 200 => refusal(code, "no"),
            _ => written(asked),
        }
    };
    for code in [413, 422, 403] {
        let mut given = server::configuration(9, &json!({ "latestVersion": 1 }));
        let used = json!({ "status": { "deployed": true, "machines": 0 } });
        let versions = vec![server::version(1, &used)];
        let objects = |given: &Value| Objects {
            configurations: vec![given.clone()],
            versions: versions.clone(),
            ..Objects::default()
        };
        let server = Server::default();
        let world = server.world(&objects(&given), Tenure::always(), answers(code));
        configuration::reconcile(Arc::new(object(&given)), world).await.expect_err("refused");
        let status = server.asked().pop().unwrap().body["status"].clone();
        assert_eq!(condition(&status, "Degraded"), ("True", "VersionInvalid"), "{code}");
        given["status"] = status;
        let server = Server::default();
        let world = server.world(&objects(&given), Tenure::always(), answers(code));
        configuration::reconcile(Arc::new(object(&given)), world).await.expect_err("refused");
        let lines = server.lines();
        let is_there = |line: &str| lines.iter().any(|asked| asked == line);
        assert!(is_there("POST /machineconfigurationversions"), "{code}: {lines:?}");
        assert!(!is_there("PATCH /machineconfigurations/w/status"), "{code}: nothing is new: {lines:?}");
        let server = Server::default();
        let world = server.world(&objects(&given), Tenure::always(), answers(200));
        configuration::reconcile(Arc::new(object(&given)), world).await.unwrap();
        let status = server.asked().pop().unwrap().body["status"].clone();
        assert_eq!(condition(&status, "Degraded"), ("False", "AsExpected"), "{code}");
        assert_eq!(status["latestVersion"], 2, "{code}");
    }
}

#[tokio::test]
async fn c2_edit_that_no_host_can_use_becomes_no_version_and_says_why() {
    let mut given = server::configuration(9, &json!({ "latestVersion": 1 }));
    given["spec"]["template"]["kubernetes"]["nodeLabels"] = json!({ "node-role.kubernetes.io/worker": "" });
    let used = json!({ "status": { "deployed": true, "machines": 0 } });
    let objects = Objects {
        configurations: vec![given.clone()],
        versions: vec![server::version(1, &used)],
        ..Objects::default()
    };
    let server = Server::default();
    let world = server.world(&objects, Tenure::always(), written);
    let error = configuration::reconcile(Arc::new(object(&given)), world).await.expect_err("refused");
    assert!(matches!(error, WriteError::Refused { .. }), "{error:?}");
    assert!(server.lines().iter().all(|line| !line.starts_with("POST")), "{:?}", server.lines());
    let status = server.asked().pop().unwrap().body["status"].clone();
    assert_eq!(condition(&status, "Degraded"), ("True", "InvalidTemplate"));
    assert_eq!(condition(&status, "Ready"), ("False", "InvalidTemplate"));
    assert_eq!(condition(&status, "Stalled"), ("True", "InvalidTemplate"));
    assert!(status.to_string().contains("spec.template.kubernetes: nodeLabels"), "{status}");
    assert_eq!(status["latestVersion"], 1);
}

#[tokio::test]
async fn c2_non_joining_control_plane_gets_a_version_only_if_a_host_runs_it() {
    let plane = |content: u32, join: Value| {
        let mut given = server::configuration(content, &json!({}));
        given["spec"]["template"]["kubernetes"]["role"] = json!("ControlPlane");
        given["spec"]["template"]["kubernetes"]["joinConfiguration"] = join;
        given
    };
    let version = |join: Value| {
        let used = json!({ "status": { "deployed": true, "machines": 1 } });
        let mut version = server::version(1, &used);
        version["spec"]["template"] = plane(1, join)["spec"]["template"].clone();
        version
    };
    let applied = |name: &str| {
        let applied = json!({ "name": name, "version": 1, "slot": "a" });
        server::machine(&json!({ "applied": applied }))
    };
    for (what, versions, machines, is_made) in [
        ("no host runs it", vec![], vec![], false),
        ("a host runs another configuration", vec![], vec![applied("other")], false),
        ("a host brings it from its own cluster", vec![], vec![applied("w")], true),
        ("a host runs one that made its cluster", vec![version(Value::Null)], vec![applied("w")], true),
        ("hosts run one that joined", vec![version(json!({}))], vec![applied("w")], false),
    ] {
        let given = plane(9, Value::Null);
        let objects =
            Objects { configurations: vec![given.clone()], versions, machines, ..Objects::default() };
        let server = Server::default();
        let world = server.world(&objects, Tenure::always(), |asked| match asked.line.as_str() {
            "GET /machineconfigurationversions/w-v0" => refusal(404, "not there"),
            _ => written(asked),
        });
        let done = configuration::reconcile(Arc::new(object(&given)), world).await;
        let lines = server.lines();
        let is_created = lines.iter().any(|line| line == "POST /machineconfigurationversions");
        assert_eq!((is_created, done.is_ok()), (is_made, is_made), "{what}: {lines:?} {done:?}");
    }
}

#[tokio::test]
async fn v3_orphaned_deleted_version_is_released_unless_a_machine_holds_it() {
    const RELEASE: &str = "PATCH /machineconfigurationversions/w-v1";
    let leaving = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
    let orphaned = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": [] });
    let recreated = json!({ "metadata": { "uid": "uid-anew" } });
    let mut holder = server::machine(&json!({}));
    holder["spec"]["configurationRef"]["version"] = json!(1);
    let stranger =
        server::machine(&json!({ "selected": { "name": "w", "version": 2, "source": "Reference" } }));
    for (what, metadata, owner, machines, goes) in [
        ("its configuration is deleted", &leaving, None, vec![stranger], true),
        ("it was left behind", &orphaned, Some(json!({})), vec![], true),
        ("its configuration was re-created", &leaving, Some(recreated), vec![], true),
        ("a Machine holds it", &leaving, None, vec![holder], false),
        ("its configuration is there, and not seen yet", &leaving, Some(json!({})), vec![], false),
        ("it is not being deleted", &json!({}), None, vec![], false),
    ] {
        let given = server::version(1, &json!({ "metadata": metadata }));
        let owner = owner.map(|more| {
            let mut owner = server::configuration(1, &json!({}));
            owner["metadata"]
                .as_object_mut()
                .unwrap()
                .extend(more["metadata"].as_object().cloned().unwrap_or_default());
            owner
        });
        let server = Server::default();
        let objects = Objects { versions: vec![given.clone()], ..Objects::default() };
        let answers = move |asked: &Asked| match (asked.line.as_str(), &owner) {
            ("GET /machines", _) => machine_list(&machines),
            ("GET /machineconfigurations/w", Some(owner)) => (200, owner.clone()),
            ("GET /machineconfigurations/w", None) => refusal(404, "not there"),
            _ => written(asked),
        };
        let world = server.world(&objects, Tenure::always(), answers);
        version::reconcile(Arc::new(object(&given)), world).await.unwrap();
        let asked = server.asked();
        let release = asked.iter().find(|asked| asked.line == RELEASE);
        assert_eq!(release.is_some(), goes, "{what}: {:?}", server.lines());
        if let Some(release) = release {
            assert_eq!(release.body["metadata"]["finalizers"], json!([]), "{what}");
            assert_eq!(release.body["metadata"]["resourceVersion"], "7", "{what}");
        }
    }
}

#[tokio::test]
async fn unresolved_tag_is_reported_once_and_a_digest_survives_other_writes() {
    bedplate_process::tls::install_crypto_provider();
    let mut given = server::version(1, &json!({}));
    // No process listens there.
    given["spec"]["template"]["image"] = json!({ "reference": "127.0.0.1:1/node:1", "allowTag": true });
    let server = Server::default();
    let world = server.world(&Objects::default(), Tenure::always(), written);
    let error =
        image::reconcile(Arc::new(object(&given)), world.clone()).await.expect_err("no process answers");
    assert!(matches!(error, WriteError::Later { .. }), "{error:?}");
    assert_eq!(server.lines(), [LOCK]);
    let status = body(&server.asked(), LOCK)["status"].clone();
    assert_eq!(condition(&status, "Ready"), ("False", "ImageUnresolved"));
    assert_eq!(status["deployed"], false, "the rest is as it was");
    given["status"] = status;
    image::reconcile(Arc::new(object(&given)), world).await.expect_err("no process answers");
    assert_eq!(server.lines().len(), 1, "said already");
    // Later counts of the Machines keep the resolved image.
    given["status"]["imageReference"] = json!("127.0.0.1:1/node:1");
    given["status"]["imageDigest"] = json!(format!("sha256:{:064}", 1));
    given["status"]["machines"] = json!(5);
    let configuration = server::configuration(1, &json!({}));
    let server = Server::default();
    let objects = Objects {
        configurations: vec![configuration.clone()],
        versions: vec![given.clone()],
        ..Objects::default()
    };
    let world = server.world(&objects, Tenure::always(), written);
    configuration::reconcile(Arc::new(object(&configuration)), world).await.unwrap();
    let asked = server.asked();
    let counted = asked.iter().find(|asked| asked.line == LOCK).unwrap();
    assert_eq!(counted.body["status"]["imageDigest"], given["status"]["imageDigest"]);
}

/// A Machine whose Node has this UID. Its agent knows `n1`.
fn machine_with_node(uid: Option<&str>) -> Value {
    server::machine(&json!({ "selected": { "name": "w", "version": 2, "source": "Reference" },
        "applied": { "name": "w", "version": 2, "slot": "a", "nodeUID": "n1" },
        "nodeRef": uid.map(|uid| json!({ "name": "a", "uid": uid })) }))
}

#[tokio::test]
async fn c4_configuration_is_requeued_while_an_agent_does_not_know_its_node() {
    for (uid, again) in [(Some("n1"), None), (Some("n2"), Some(60)), (None, Some(60))] {
        let server = Server::default();
        let objects = objects(machine_with_node(uid));
        let given = object(&objects.configurations[0]);
        let world = server.world(&objects, Tenure::always(), written);
        let after = configuration::reconcile(Arc::new(given), world).await.unwrap();
        assert_eq!(after, again.map(Duration::from_secs), "{uid:?}");
    }
}

#[tokio::test]
async fn c4_missing_node_stays_reported_when_another_controller_starts() {
    for (reason, degraded) in
        [("NodeMissing", ("True", "NodeMissing")), ("AsExpected", ("False", "AsExpected"))]
    {
        let server = Server::default();
        let mut objects = objects(machine_with_node(None));
        objects.configurations[0]["status"]["conditions"] = json!([{ "type": "Degraded", "status": "True", "reason": reason,
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
        let given = object(&objects.configurations[0]);
        let world = server.world(&objects, Tenure::always(), written);
        configuration::reconcile(Arc::new(given), world).await.unwrap();
        let status = body(&server.asked(), "PATCH /machineconfigurations/w/status")["status"].clone();
        assert_eq!(condition(&status, "Degraded"), degraded);
    }
}

/// Reconciles a Machine by `work` under this tenure. `look` gives the result of a reconcile, by the number of
/// earlier ones.
async fn looked_at(
    tenure: watch::Receiver<Option<Instant>>,
    look: impl Fn(usize) -> Result<(), WriteError> + Send + Sync + 'static,
) -> Arc<AtomicUsize> {
    let (looks, look) = (Arc::new(AtomicUsize::new(0)), Arc::new(look));
    let world = Server::default().world(&objects(server::machine(&json!({}))), Tenure::new(tenure), written);
    let (sender, queue) = mpsc::channel(1);
    let shutdown = CancellationToken::new();
    let reconcile = {
        let looks = looks.clone();
        move |_: Arc<Machine>, _| {
            let (looks, look) = (looks.clone(), look.clone());
            async move { look(looks.fetch_add(1, Ordering::SeqCst)) }
        }
    };
    let life = (Liveness::new(shutdown.clone()).part("machines", SILENCE_TIMEOUT), shutdown);
    let store = world.stores.machines.clone();
    tokio::spawn(work(Kind::Machine, world, store, queue, reconcile, life));
    sender.send(ObjectRef::new("a")).await.unwrap();
    // It lives as long as the test.
    std::mem::forget(sender);
    looks
}

async fn until(looks: &AtomicUsize, wanted: usize) -> Duration {
    let started = Instant::now();
    while looks.load(Ordering::SeqCst) < wanted {
        assert!(started.elapsed() < Duration::from_secs(600), "it was forgotten");
        tokio::task::yield_now().await;
        tokio::time::advance(Duration::from_millis(50)).await;
    }
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn changes_during_a_short_lease_lapse_are_kept() {
    let (sender, tenure) = watch::channel(Some(Instant::now()));
    let looks = looked_at(tenure, |_| Ok(())).await;
    for _ in 0..10 {
        tokio::task::yield_now().await;
        tokio::time::advance(Duration::from_millis(50)).await;
    }
    assert_eq!(looks.load(Ordering::SeqCst), 0, "nothing is done without the lease");
    // Renewed: it never said that it was lost.
    sender.send_replace(Some(Instant::now() + Duration::from_secs(600)));
    assert!(until(&looks, 1).await < Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn work_interrupted_by_a_lease_lapse_is_repeated() {
    let (_sender, tenure) = watch::channel(Some(Instant::now() + Duration::from_secs(600)));
    let deposed = |looks| if looks == 0 { Err(WriteError::Deposed) } else { Ok(()) };
    let looks = looked_at(tenure, deposed).await;
    assert!(until(&looks, 2).await < Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn unreachable_api_server_is_retried_with_backoff() {
    let (_sender, tenure) = watch::channel(Some(Instant::now() + Duration::from_secs(6000)));
    let later =
        |_| Err(WriteError::Later { what: "Machine a".to_owned(), why: "away".to_owned(), again: None });
    let looks = looked_at(tenure, later).await;
    // 1, 2, 4, 8, 16, 32 s between them, and some chance.
    let first = until(&looks, 1).await;
    let seven = until(&looks, 7).await + first;
    assert!((45.0..=82.0).contains(&seven.as_secs_f64()), "{seven:?}");
}
