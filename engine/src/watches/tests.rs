//! Watches against an API server in memory.

mod limits;
mod writes;

use std::collections::BTreeMap;
use std::sync::Mutex;

use bedplate_process::counter::labels;
use kube::api::DynamicObject;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::counters::{Kinds, Names};

labels! {
    /// Kinds of this program.
    enum Kind in "kind" {
        /// Pods.
        Pod => "Pod",
    }
}

impl Kinds for Kind {
    const NAMES: Names = Names {
        reconciles: "reconciles",
        writes: "writes",
        watch_errors: "watch_errors",
        leader: "leader",
        queue_depth: "queue_depth",
        queue_oldest: "queue_oldest_seconds",
        watch_age: "watch_age_seconds",
        reconcile_duration: "reconcile_duration_seconds",
    };
}

/// Answer of the API server to a request for a kind.
#[derive(Clone)]
enum Answer {
    Is(u16, Value),
    /// The first request is answered, and no later one.
    Once(u16, Value),
    Never,
}

/// State of the API server.
#[derive(Default)]
struct State {
    /// Answers by the name of the definition, or by the plural of the list.
    answers: BTreeMap<String, Answer>,
    /// Numbers of reads of definitions and of lists and watches.
    requests: BTreeMap<String, usize>,
    /// Ends the watches of a kind, which then list again.
    expire: BTreeMap<String, Arc<Notify>>,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, kube::Error>(server.answer(request.uri()).await) }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, uri: &http::Uri) -> http::Response<Body> {
        let last = uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        let is_watch = uri.query().is_some_and(|query| query.contains("watch=true"));
        let line = if is_watch { format!("watch {last}") } else { last.clone() };
        let (answer, expire) = {
            let mut state = self.0.lock().unwrap();
            *state.requests.entry(line).or_default() += 1;
            let answer = state.answers.get(&last).cloned();
            if matches!(answer, Some(Answer::Once(..))) {
                state.answers.insert(last.clone(), Answer::Never);
            }
            (answer, Arc::clone(state.expire.entry(last).or_default()))
        };
        if is_watch {
            expire.notified().await;
            let event =
                json!({ "type": "ERROR", "object": { "code": 410, "reason": "Expired", "message": "" } });
            return http::Response::new(Body::from(format!("{event}\n").into_bytes()));
        }
        let (code, body) = match answer {
            Some(Answer::Is(code, body) | Answer::Once(code, body)) => (code, body),
            Some(Answer::Never) => std::future::pending().await,
            None => (404, failure(404, "NotFound", "not found")),
        };
        let answer = http::Response::builder().status(code);
        answer.body(Body::from(body.to_string().into_bytes())).unwrap()
    }

    fn set(&self, name: &str, answer: Answer) {
        self.0.lock().unwrap().answers.insert(name.to_owned(), answer);
    }

    /// Installs a kind whose list is answered by `list`.
    fn install(&self, kind: &GroupKind, list: Answer) {
        let plural = plural(kind);
        let labels = json!({ "test/contract": "v1" });
        let definition = json!({ "metadata": { "name": "d", "labels": labels } });
        self.set(&format!("{plural}.{}", kind.group), Answer::Is(200, definition));
        self.set(&plural, list);
    }

    fn expire(&self, kind: &GroupKind) {
        self.0.lock().unwrap().expire[&plural(kind)].notify_waiters();
    }

    fn requests(&self, name: &str) -> usize {
        self.0.lock().unwrap().requests.get(name).copied().unwrap_or_default()
    }
}

fn plural(kind: &GroupKind) -> String {
    format!("{}s", kind.kind.to_lowercase())
}

fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": message })
}

fn forbidden() -> Answer {
    Answer::Is(403, failure(403, "Forbidden", "no rights"))
}

/// A list of objects, each with its resource version.
fn list(objects: &[(&str, u32)]) -> Answer {
    let item = |(name, version): &(&str, u32)| {
        json!({ "apiVersion": "x/v1", "kind": "X", "metadata": { "name": name, "namespace": "team",
            "uid": name, "resourceVersion": version.to_string() } })
    };
    let items: Vec<Value> = objects.iter().map(item).collect();
    Answer::Is(
        200,
        json!({ "kind": "List", "apiVersion": "x/v1", "metadata": { "resourceVersion": "9" }, "items": items }),
    )
}

/// Watches that run.
struct World {
    server: Server,
    watches: Watches<DynamicObject>,
    changes: mpsc::UnboundedReceiver<String>,
    liveness: bedplate_process::liveness::Liveness,
    counters: Counters<Kind>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

fn world() -> World {
    let (server, watches, shutdown) = (Server::default(), Watches::default(), CancellationToken::new());
    let (sender, changes) = mpsc::unbounded_channel();
    let counters = Counters::<Kind>::default();
    let version = |labels: &BTreeMap<String, String>| labels.get("test/contract").cloned();
    let handle = move |change: Change<DynamicObject>| {
        let line = match change {
            Change::Kind(kind) => kind.to_string(),
            Change::Object { seen: Seen::There(object), .. } => {
                format!("{} {}", object.name_any(), object.resource_version().unwrap())
            }
            Change::Object { seen: Seen::Gone(object), .. } => format!("{} gone", object.name_any()),
        };
        let sent = sender.send(line);
        async move { sent.unwrap() }
    };
    let client = server.client();
    let resolve = Definitions::new(client.clone(), version);
    let setup = Setup { client, namespace: None, resolve, counters: counters.clone(), handle };
    let liveness = bedplate_process::liveness::Liveness::new(shutdown.clone());
    let task = tokio::spawn(watches.clone().run(setup, (liveness.clone(), shutdown.clone())));
    World { server, watches, changes, liveness, counters, shutdown, task }
}

impl World {
    fn get(&self, user: &str, kind: &GroupKind, name: &str) -> Lookup<DynamicObject> {
        self.watches.get(&user_of(user), Reference { kind, namespace: "team", name })
    }

    fn changes(&mut self) -> Vec<String> {
        let mut changes: Vec<String> = std::iter::from_fn(|| self.changes.try_recv().ok()).collect();
        changes.sort();
        changes
    }

    /// Looks an object up, waits, and returns the reason why it cannot be read.
    async fn reason(&self, kind: &GroupKind, seconds: u64) -> String {
        let _ = self.get("a", kind, "x");
        wait(seconds).await;
        match self.get("a", kind, "x") {
            Lookup::Unresolved(why) => why.to_string(),
            other => format!("{other:?}"),
        }
    }
}

fn user_of(name: &str) -> User {
    user_in("team", name)
}

fn user_in(namespace: &str, name: &str) -> User {
    User { kind: "Machine".to_owned(), namespace: Some(namespace.to_owned()), name: name.to_owned() }
}

fn kind(name: &str) -> GroupKind {
    GroupKind::new("infra.test", name)
}

async fn wait(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn is_found(found: &Lookup<DynamicObject>) -> bool {
    matches!(found, Lookup::Found { .. })
}

#[tokio::test(start_paused = true)]
async fn m5_kind_is_watched_once_for_many_users_with_a_pulse() {
    let (mut world, rack) = (world(), kind("Rack"));
    world.server.install(&rack, list(&[("a", 1), ("b", 1)]));
    for user in 0..100 {
        assert_eq!(world.get(&format!("m{user}"), &rack, "a"), Lookup::NotSynced);
    }
    wait(5).await;
    assert!(is_found(&world.get("m1", &rack, "a")));
    assert_eq!(world.get("m1", &rack, "z"), Lookup::Absent);
    let other = Reference { kind: &rack, namespace: "other", name: "a" };
    assert_eq!(world.watches.get(&user_of("m1"), other), Lookup::Absent);
    assert_eq!((world.server.requests("racks"), world.server.requests("watch racks")), (1, 1));
    assert_eq!(world.changes(), ["Rack.infra.test", "a 1", "b 1"]);
    assert_eq!(world.watches.users(&rack).len(), 100);
    assert_eq!(world.liveness.names(), [NAME, "watch racks.infra.test"]);
}

#[tokio::test(start_paused = true)]
async fn m5_watch_ends_10_minutes_after_the_last_use_and_not_before() {
    let (world, rack) = (world(), kind("Rack"));
    world.server.install(&rack, list(&[("a", 1)]));
    for user in ["m", "n"] {
        let _ = world.get(user, &rack, "a");
    }
    wait(1000).await;
    world.watches.keep(&user_of("m"), &[&rack]);
    world.watches.release(&user_of("n"));
    wait(1000).await;
    world.watches.release(&user_of("m"));
    wait(590).await;
    // A use in between keeps the watch.
    assert!(is_found(&world.get("m", &rack, "a")));
    wait(700).await;
    world.watches.keep(&user_of("m"), &[&kind("Other")]);
    wait(599).await;
    assert_eq!(world.liveness.names().len(), 2);
    assert!(world.counters.silent(NAME).is_some());
    wait(12).await;
    assert_eq!(world.liveness.names(), [NAME]);
    assert_eq!((world.liveness.check(), world.counters.silent(NAME)), (Ok(()), None));
    assert_eq!(world.server.requests("racks"), 1);
    assert_eq!(world.get("m", &rack, "a"), Lookup::NotSynced);
    wait(5).await;
    assert!(is_found(&world.get("m", &rack, "a")));
    assert_eq!(world.server.requests("racks"), 2);
}

#[tokio::test(start_paused = true)]
async fn m5_forbidden_kind_shows_its_reason_and_another_works() {
    let (mut world, rack, shelf) = (world(), kind("Rack"), kind("Shelf"));
    world.server.install(&rack, forbidden());
    world.server.install(&shelf, list(&[("x", 1)]));
    let _ = world.get("a", &shelf, "x");
    let why = world.reason(&rack, 5).await;
    assert_eq!(why, "racks.infra.test cannot be read: no rights; permit get, list and watch");
    assert!(is_found(&world.get("a", &shelf, "x")));
    assert_eq!(
        world.changes(),
        ["Rack.infra.test", "Shelf.infra.test", "x 1"],
        "the reason is reported once"
    );
    world.server.install(&rack, list(&[("x", 1)]));
    wait(60).await;
    assert!(is_found(&world.get("a", &rack, "x")));
}

#[tokio::test(start_paused = true)]
async fn m5_silent_kind_shows_its_reason_and_delays_no_other() {
    let (world, rack, shelf, bay) = (world(), kind("Rack"), kind("Shelf"), kind("Bay"));
    world.server.install(&rack, Answer::Never);
    world.server.set("bays.infra.test", Answer::Never);
    world.server.install(&shelf, list(&[("x", 1)]));
    for kind in [&rack, &bay, &shelf] {
        let _ = world.get("a", kind, "x");
    }
    wait(1).await;
    assert!(is_found(&world.get("a", &shelf, "x")));
    assert_eq!(world.get("a", &rack, "x"), Lookup::NotSynced);
    wait(30).await;
    assert!(world.reason(&rack, 0).await.ends_with("the API server did not answer within 30 s"));
    assert!(world.reason(&bay, 0).await.ends_with("the API server did not answer within 10 s"));
}

#[tokio::test(start_paused = true)]
async fn m5_later_list_yields_only_changes() {
    let (mut world, rack) = (world(), kind("Rack"));
    world.server.install(&rack, list(&[("a", 1), ("b", 1), ("c", 1)]));
    let _ = world.get("m", &rack, "a");
    wait(5).await;
    assert_eq!(world.changes().len(), 4);
    world.server.set("racks", list(&[("a", 1), ("b", 2), ("d", 3)]));
    world.server.expire(&rack);
    wait(60).await;
    assert_eq!(world.server.requests("racks"), 2);
    assert_eq!(world.changes(), ["b 2", "c gone", "d 3"]);
}

#[tokio::test(start_paused = true)]
async fn m5_kind_that_is_installed_later_is_found() {
    let (mut world, rack) = (world(), kind("Rack"));
    let why = world.reason(&rack, 300).await;
    let absent = "CustomResourceDefinition racks.infra.test does not exist; install the provider of the kind";
    assert_eq!(why, absent);
    assert!(world.server.requests("racks.infra.test") < 15, "backoff");
    assert_eq!(world.changes(), ["Rack.infra.test"]);
    let definition = json!({ "metadata": { "name": "d" } });
    world.server.set("racks.infra.test", Answer::Is(200, definition));
    assert!(world.reason(&rack, 80).await.contains("has no label of a supported contract"));
    world.server.install(&rack, list(&[("x", 1)]));
    wait(80).await;
    assert!(is_found(&world.get("a", &rack, "x")));
    assert_eq!(world.changes(), ["Rack.infra.test", "Rack.infra.test", "x 1"]);
    world.server.0.lock().unwrap().answers.remove("racks.infra.test");
    wait(80).await;
    assert_eq!(world.reason(&rack, 0).await, absent);
    assert_eq!(world.liveness.check(), Ok(()), "the pulse ended with the watch");
}

#[tokio::test(start_paused = true)]
async fn m5_other_contract_version_is_watched_after_an_upgrade() {
    let (world, rack) = (world(), kind("Rack"));
    world.server.install(&rack, list(&[("x", 1)]));
    let _ = world.get("a", &rack, "x");
    wait(5).await;
    let labels = json!({ "test/contract": "v2" });
    let definition = json!({ "metadata": { "name": "d", "labels": labels } });
    world.server.set("racks.infra.test", Answer::Is(200, definition));
    wait(80).await;
    let Lookup::Found { resource, .. } = world.get("a", &rack, "x") else { panic!("not found") };
    assert_eq!(resource.api_version, "infra.test/v2");
    assert_eq!(world.server.requests("racks"), 2);
}

/// Its store gets no changes any more, so an object in it may have been deleted.
#[tokio::test(start_paused = true)]
async fn m5_store_of_an_ended_watch_answers_nothing() {
    let (world, rack) = (world(), kind("Rack"));
    world.server.install(&rack, list(&[("x", 1)]));
    let _ = world.get("a", &rack, "x");
    wait(5).await;
    let labels = json!({ "test/contract": "v2" });
    let definition = json!({ "metadata": { "name": "d", "labels": labels } });
    world.server.set("racks.infra.test", Answer::Once(200, definition));
    let before = world.server.requests("racks.infra.test");
    while world.server.requests("racks.infra.test") < before + 2 {
        wait(1).await;
    }
    assert_eq!(world.get("a", &rack, "x"), Lookup::NotSynced);
    wait(20).await;
    assert!(world.reason(&rack, 0).await.contains("did not answer within 10 s"));
}
