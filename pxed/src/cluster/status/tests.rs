//! Two pxed of one site on one Machine, against a stand-in for the API server (A3).

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_api::id::BootId;
use bedplate_api::wire::Stage;
use bedplate_process::liveness::Pulse;
use bedplate_process::lock::Lock;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::boot::Tell as _;
use crate::boot::report::Teller;
use crate::boot::timeline::Timeline;
use crate::heard::Heard;
use crate::http::tests::{machine, plain};
use crate::machines::{Machines, Snapshot};
use crate::status::write::Statuses;
use crate::status::{StatusRegistry, Writer};
use crate::store::Store;
use crate::system_of_record::SystemOfRecord;

/// The API server, with Machine node1.
struct Server {
    object: Lock<Value>,
    /// Requests to apply.
    applies: AtomicU64,
    /// Status that another pxed applies between the next read and the write that follows it.
    meanwhile: Lock<Option<Value>>,
}

impl Server {
    fn new() -> Arc<Self> {
        let mut object = serde_json::to_value(machine("node1", &plain())).unwrap();
        object["metadata"]["resourceVersion"] = json!("1");
        Arc::new(Self { object: Lock::new(object), applies: AtomicU64::new(0), meanwhile: Lock::default() })
    }

    fn machine(&self) -> Machine {
        serde_json::from_value(self.object.lock().clone()).unwrap()
    }

    /// Applies the boot's part as field manager `pxed`.
    fn apply(&self, sent: &Value) -> (u16, Value) {
        let mut object = self.object.lock();
        let asked = &sent["metadata"]["resourceVersion"];
        if !asked.is_null() && *asked != object["metadata"]["resourceVersion"] {
            return (409, json!({ "status": "Failure", "message": "", "reason": "Conflict", "code": 409 }));
        }
        let before = object.clone();
        let status = object.as_object_mut().unwrap().entry("status").or_insert_with(|| json!({}));
        status["boot"] = sent["status"]["boot"].clone();
        status["conditions"] = sent["status"]["conditions"].clone();
        if *object != before {
            let version = before["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
            object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
        }
        (200, object.clone())
    }

    fn answer(&self, method: &hyper::Method, body: &[u8]) -> (u16, Value) {
        if *method == hyper::Method::PATCH {
            self.applies.fetch_add(1, Ordering::Relaxed);
            return self.apply(&serde_json::from_slice(body).unwrap());
        }
        let read = self.object.lock().clone();
        if let Some(status) = self.meanwhile.lock().take() {
            self.apply(&json!({ "metadata": {}, "status": status }));
        }
        (200, read)
    }

    fn client(self: &Arc<Self>) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
            let server = server.clone();
            async move {
                use http_body_util::BodyExt;
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let (status, value) = server.answer(&parts.method, &body);
                let body = kube::client::Body::from(serde_json::to_vec(&value).unwrap());
                Ok::<_, Infallible>(hyper::Response::builder().status(status).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// The boot that is shown and its stage, and the reason of `Booted`.
    fn shows(&self) -> (BootId, Stage, String) {
        let status = self.machine().status.unwrap();
        let boot = status.boot.unwrap();
        let booted = status.conditions.iter().find(|c| c.type_ == "Booted").unwrap();
        (boot.id.unwrap(), boot.stage.unwrap(), booted.reason.clone())
    }
}

/// The state directory of a pxed.
struct Disk {
    _directory: tempfile::TempDir,
    store: Store,
}

impl Disk {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("pxed.redb")).unwrap();
        Self { _directory: directory, store }
    }
}

/// A pxed that runs.
struct Pxed {
    server: Arc<Server>,
    machines: Machines,
    registry: StatusRegistry,
    teller: Teller,
    events: bedplate_process::events::Queue,
    statuses: Statuses,
    connection: watch::Sender<Option<Client>>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Pxed {
    async fn start(server: &Arc<Server>, disk: &Disk) -> Self {
        let machines = Machines::default();
        let (registry, events) =
            StatusRegistry::new(machines.clone(), &disk.store, SystemOfRecord::Cluster).unwrap();
        let (connection, access) = watch::channel(Some(server.client()));
        let sink = Arc::new(ClusterStatuses::new(access));
        let (writer, statuses) = Writer::new(registry.clone(), disk.store.clone(), sink, Arc::default());
        let stop = CancellationToken::new();
        let task = tokio::spawn(writer.run(Pulse::unwatched(), stop.clone()));
        let teller = Teller {
            registry: registry.clone(),
            machines: machines.clone(),
            heard: Heard::new(SystemOfRecord::Cluster),
        };
        let server = server.clone();
        let pxed = Self { server, machines, registry, teller, events, statuses, connection, stop, task };
        pxed.watch().await;
        pxed.registry.resync(&pxed.machines.load());
        pxed.statuses.idle().await;
        pxed
    }

    /// Receives the object by its watch.
    async fn watch(&self) {
        let before = self.machines.load();
        self.machines.store(Snapshot::build(&"default".parse().unwrap(), [self.server.machine()]));
        self.registry.follow(&before, &self.machines.load());
        self.statuses.idle().await;
    }

    async fn tell(&self, timeline: &Timeline, now: Timestamp) {
        self.teller.timeline(&"node1".parse().unwrap(), timeline, now);
        self.statuses.idle().await;
    }

    /// The host reaches a stage.
    async fn reached(&self, timeline: &mut Timeline, stage: Stage) {
        let now = Timestamp::now();
        timeline.reached(stage, now);
        self.tell(timeline, now).await;
    }

    fn shown(&self) -> (BootId, Stage) {
        let boot = self.registry.get(&"node1".parse().unwrap()).unwrap().boot.unwrap();
        (boot.id.unwrap(), boot.stage.unwrap())
    }

    fn events(&mut self) -> Vec<&'static str> {
        std::iter::from_fn(|| self.events.try_next()).map(|event| event.reason).collect()
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// An attempt that a DHCP packet opens now at the pxed with this number.
fn opened(number: u8) -> Timeline {
    Timeline::new(BootId::from_random([number; 16]), Timestamp::now())
}

fn minutes_later() -> Timestamp {
    Timestamp::now().checked_add(SignedDuration::from_mins(30)).unwrap()
}

#[tokio::test]
async fn a3_pxed_that_restarts_keeps_the_newer_boot_of_another_one() {
    let server = Server::new();
    let (disk, other) = (Disk::new(), Disk::new());
    let first = Pxed::start(&server, &disk).await;
    let mut old = opened(1);
    for stage in [Stage::Acknowledged, Stage::Script, Stage::Userspace, Stage::Enrolled] {
        first.reached(&mut old, stage).await;
    }
    assert_eq!(server.shows().0, old.id.public_id());
    first.end().await;
    let second = Pxed::start(&server, &other).await;
    let mut new = opened(2);
    for stage in [Stage::Acknowledged, Stage::Script] {
        second.reached(&mut new, stage).await;
    }
    let newer = (new.id.public_id(), Stage::Script, "Booting".to_owned());
    assert_eq!(server.shows(), newer);
    let first = Pxed::start(&server, &disk).await;
    assert_eq!(server.shows(), newer);
    assert_eq!(first.shown(), (newer.0, newer.1), "power looks at this boot, too");
    // The first instance's stored record of the old boot is not shown again.
    first.tell(&old, minutes_later()).await;
    assert_eq!(server.shows(), newer);
    first.end().await;
    second.end().await;
}

#[tokio::test]
async fn a3_boot_that_was_not_served_does_not_replace_the_served_one() {
    let server = Server::new();
    let (disk, other) = (Disk::new(), Disk::new());
    let mut idle = Pxed::start(&server, &disk).await;
    let serving = Pxed::start(&server, &other).await;
    // Each hears the broadcast.
    let (mut unserved, mut served) = (opened(1), opened(2));
    idle.tell(&unserved, Timestamp::now()).await;
    serving.tell(&served, Timestamp::now()).await;
    assert_eq!(server.shows().0, unserved.id.public_id(), "the first one is shown");
    idle.reached(&mut unserved, Stage::Offered).await;
    serving.reached(&mut served, Stage::Offered).await;
    for stage in [Stage::Acknowledged, Stage::Loader, Stage::Script, Stage::Kernel] {
        serving.reached(&mut served, stage).await;
        let shown = (served.id.public_id(), stage, "Booting".to_owned());
        assert_eq!(server.shows(), shown);
        idle.watch().await;
        assert_eq!(idle.shown(), (shown.0, shown.1));
    }
    let applies = server.applies.load(Ordering::Relaxed);
    idle.tell(&unserved, minutes_later()).await;
    assert_eq!(server.shows().2, "Booting");
    assert_eq!(idle.events(), Vec::<&str>::new(), "the host did not stop");
    assert_eq!(server.applies.load(Ordering::Relaxed), applies);
    serving.tell(&served, minutes_later()).await;
    assert_eq!(server.shows(), (served.id.public_id(), Stage::Kernel, "BootStalled".to_owned()));
    idle.end().await;
    serving.end().await;
}

#[tokio::test]
async fn a3_host_is_shown_with_the_pxed_that_it_chose_last() {
    let server = Server::new();
    let (disk, other) = (Disk::new(), Disk::new());
    let (first, second) = (Pxed::start(&server, &disk).await, Pxed::start(&server, &other).await);
    let (mut one, mut two) = (opened(1), opened(2));
    first.tell(&one, Timestamp::now()).await;
    second.tell(&two, Timestamp::now()).await;
    for stage in [Stage::Acknowledged, Stage::Loader] {
        first.reached(&mut one, stage).await;
    }
    // iPXE asks by DHCP again, and takes the address of the other one.
    second.watch().await;
    for stage in [Stage::Acknowledged, Stage::Script] {
        second.reached(&mut two, stage).await;
        assert_eq!(server.shows().0, two.id.public_id(), "{stage:?}");
    }
    // The next boot reaches only the first one: the other one is stopped.
    second.end().await;
    first.watch().await;
    let next = opened(3);
    first.tell(&next, Timestamp::now()).await;
    assert_eq!(server.shows(), (next.id.public_id(), Stage::Discover, "Booting".to_owned()));
    first.end().await;
}

#[tokio::test]
async fn a3_boot_that_was_stored_and_not_written_is_written_after_a_restart() {
    let server = Server::new();
    let (disk, other) = (Disk::new(), Disk::new());
    let pxed = Pxed::start(&server, &disk).await;
    let mut timeline = opened(1);
    pxed.reached(&mut timeline, Stage::Acknowledged).await;
    pxed.connection.send_replace(None);
    let now = Timestamp::now();
    timeline.reached(Stage::Script, now);
    pxed.teller.timeline(&"node1".parse().unwrap(), &timeline, now);
    pxed.end().await;
    assert_eq!(server.shows().1, Stage::Acknowledged);
    Pxed::start(&server, &disk).await.end().await;
    assert_eq!(server.shows(), (timeline.id.public_id(), Stage::Script, "Booting".to_owned()));
    // A pxed without a store begins with what the object says.
    let applies = server.applies.load(Ordering::Relaxed);
    Pxed::start(&server, &other).await.end().await;
    assert_eq!(server.applies.load(Ordering::Relaxed), applies);
}

#[tokio::test]
async fn a3_write_of_another_pxed_between_read_and_write_is_compared() {
    let server = Server::new();
    let disk = Disk::new();
    let pxed = Pxed::start(&server, &disk).await;
    let mut timeline = opened(1);
    pxed.reached(&mut timeline, Stage::Offered).await;
    let mut other = MachineStatus::default();
    let mut theirs = opened(2);
    theirs.reached(Stage::Script, Timestamp::now());
    crate::boot::report::apply_timeline(
        &mut other,
        &theirs,
        crate::boot::report::State::Disk,
        Timestamp::now(),
    );
    *server.meanwhile.lock() = Some(serde_json::to_value(&other).unwrap());
    pxed.reached(&mut timeline, Stage::Acknowledged).await;
    assert_eq!(server.shows().0, theirs.id.public_id(), "its host came further there");
    assert_eq!(pxed.shown().0, theirs.id.public_id());
    pxed.reached(&mut timeline, Stage::Script).await;
    assert_eq!(server.shows().0, timeline.id.public_id(), "the host chose this one later");
    pxed.end().await;
}
