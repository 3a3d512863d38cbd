//! Both ends over a client whose API server is a function.

use axum::http::{Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::*;
use crate::liveness::{Liveness, PULSE_INTERVAL};

fn source() -> Source {
    Source { controller: "bedplate.dev/test", instance: "test-1".to_owned(), field_manager: "test" }
}

fn occurrence(name: &str, note: &str) -> Occurrence {
    let about = ObjectReference {
        kind: Some("Machine".to_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    };
    Occurrence { about, reason: "BootStalled", action: "Boot", is_warning: true, note: note.to_owned() }
}

/// A client whose API server passes on what it receives, and answers with this status; without one it never answers.
fn client(status: Option<u16>) -> (Client, mpsc::UnboundedReceiver<(String, Value)>) {
    let (sender, received) = mpsc::unbounded_channel();
    let service = tower::service_fn(move |request: Request<Body>| {
        let sender = sender.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let _ = sender
                .send((format!("{} {}", head.method, head.uri), serde_json::from_slice(&body).unwrap()));
            let Some(status) = status else { return std::future::pending().await };
            let failed =
                json!({ "kind": "Status", "status": "Failure", "message": "refused", "code": status });
            let answer = if status < 300 { body.to_vec() } else { failed.to_string().into_bytes() };
            let answer = Response::builder().status(status).body(Body::from(answer));
            Ok::<_, kube::Error>(answer.unwrap())
        }
    });
    (Client::new(service, "default"), received)
}

fn counted(events: &Events) -> [u64; 3] {
    let results = [WriteResult::Written, WriteResult::Dropped, WriteResult::Failed];
    results.map(|result| events.0.counts.get_or_create(&result).get())
}

/// A writer that runs.
struct Running {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    events: Events,
    liveness: Liveness,
}

impl Running {
    fn start(access: watch::Receiver<Option<Client>>) -> Self {
        let (events, queue) = channel();
        let writer = EventWriter::new(source(), events.clone(), queue, access);
        let (stop, liveness) = (CancellationToken::new(), Liveness::new(CancellationToken::new()));
        let task = tokio::spawn(writer.run(liveness.part("events", PULSE_INTERVAL), stop.clone()));
        Self { stop, task, events, liveness }
    }

    fn with(client: Client) -> Self {
        Self::start(watch::channel(Some(client)).1)
    }

    async fn until(&self, expected: [u64; 3]) {
        let reached = async {
            while counted(&self.events) != expected {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let reached = tokio::time::timeout(Duration::from_secs(30), reached).await;
        assert_eq!((counted(&self.events), reached), (expected, Ok(())));
    }

    async fn end(self) -> [u64; 3] {
        self.stop.cancel();
        self.task.await.unwrap();
        counted(&self.events)
    }
}

#[tokio::test]
async fn event_is_written_once_with_the_fields_that_kubectl_shows() {
    let (client, mut received) = client(Some(201));
    let writer = Running::with(client);
    assert!(writer.events.publish(occurrence("node-1", "at kernel")));
    assert!(!writer.events.publish(occurrence("node-1", "at kernel")), "a repetition");
    let (request, body) = received.recv().await.unwrap();
    assert_eq!(request, "POST /apis/events.k8s.io/v1/namespaces/default/events?&fieldManager=test");
    let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
    assert!(body["metadata"]["name"].as_str().unwrap().starts_with("node-1."), "{body}");
    let fields = ["reason", "action", "type", "note", "reportingController", "reportingInstance"].map(text);
    assert_eq!(fields, ["BootStalled", "Boot", "Warning", "at kernel", "bedplate.dev/test", "test-1"]);
    assert_eq!(body["regarding"]["name"], "node-1");
    writer.until([1, 0, 0]).await;
    assert!(received.try_recv().is_err(), "the repetition is not written yet");
}

#[tokio::test]
async fn event_is_written_in_the_namespace_of_its_object() {
    let (client, mut received) = client(Some(201));
    let writer = Running::with(client);
    let mut repeated = repetition("web.17");
    repeated.occurrence.about.namespace = Some("team".to_owned());
    writer.events.publish(repeated.occurrence.clone());
    let (request, body) = received.recv().await.unwrap();
    assert_eq!(request, "POST /apis/events.k8s.io/v1/namespaces/team/events?&fieldManager=test");
    assert_eq!(
        (&body["metadata"]["namespace"], &body["regarding"]["namespace"]),
        (&json!("team"), &json!("team"))
    );
    writer.events.0.queue.send(repeated).await.unwrap();
    let (request, _) = received.recv().await.unwrap();
    assert_eq!(request, "PATCH /apis/events.k8s.io/v1/namespaces/team/events/web.17?&fieldManager=test");
}

/// A write of a repetition.
fn repetition(event: &str) -> Write {
    let (occurrence, time) = (occurrence("node-1", "at kernel"), Timestamp::now());
    Write { occurrence, event: event.to_owned(), time, count: 3 }
}

#[tokio::test]
async fn repetition_is_counted_in_the_series_of_its_event() {
    let (client, mut received) = client(Some(200));
    let writer = Running::with(client);
    writer.events.0.queue.send(repetition("node-1.17")).await.unwrap();
    let (request, body) = received.recv().await.unwrap();
    assert_eq!(
        request,
        "PATCH /apis/events.k8s.io/v1/namespaces/default/events/node-1.17?&fieldManager=test"
    );
    assert_eq!((&body["series"]["count"], body["series"]["lastObservedTime"].is_string()), (&json!(3), true));
}

#[tokio::test]
async fn event_that_was_refused_is_new_when_it_happens_again() {
    for status in [403, 500] {
        let (client, _received) = client(Some(status));
        let writer = Running::with(client);
        for failures in 1..=2 {
            assert!(writer.events.publish(occurrence("node-1", "at kernel")), "{status}");
            writer.until([0, 0, failures]).await;
        }
    }
}

#[tokio::test]
async fn event_that_the_api_server_deleted_is_new_when_it_happens_again() {
    let (client, _received) = client(Some(404));
    let writer = Running::with(client);
    let write = repetition("node-1.17");
    writer.events.0.gate.lock().admit(&write.occurrence, &write.event, Instant::now());
    assert!(!writer.events.publish(occurrence("node-1", "at kernel")));
    writer.events.0.queue.send(write).await.unwrap();
    writer.until([0, 0, 1]).await;
    assert!(writer.events.publish(occurrence("node-1", "at kernel")));
}

#[tokio::test]
async fn event_that_is_already_written_counts_as_written() {
    let (client, _received) = client(Some(409));
    let writer = Running::with(client);
    assert!(writer.events.publish(occurrence("node-1", "at kernel")));
    writer.until([1, 0, 0]).await;
}

#[tokio::test]
async fn publisher_never_waits_and_dropped_events_are_counted() {
    let (events, mut queue) = channel();
    for number in 0..MAX_QUEUED + 3 {
        events.publish(occurrence(&number.to_string(), "x"));
    }
    assert_eq!(counted(&events), [0, 3, 0]);
    assert_eq!(queue.try_next(), Some(occurrence("0", "x")));
    assert!(events.publish(occurrence(&MAX_QUEUED.to_string(), "x")), "it was dropped, so it is new");
}

#[tokio::test(start_paused = true)]
async fn write_without_an_answer_times_out_and_is_named_by_the_watchdog() {
    let (client, mut received) = client(None);
    let writer = Running::with(client);
    writer.events.publish(occurrence("node-1", "at kernel"));
    received.recv().await.unwrap();
    tokio::time::sleep(PULSE_INTERVAL + Duration::from_secs(1)).await;
    assert!(writer.liveness.check().unwrap_err().starts_with("events sent no"));
    tokio::time::sleep(WRITE_TIMEOUT).await;
    assert_eq!((writer.liveness.check(), counted(&writer.events)), (Ok(()), [0, 0, 1]));
}

#[tokio::test(start_paused = true)]
async fn events_wait_for_the_first_client_without_losing_the_pulse() {
    let (connect, access) = watch::channel(None);
    let writer = Running::start(access);
    for number in 0..3 {
        writer.events.publish(occurrence(&number.to_string(), "x"));
    }
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!((writer.liveness.check(), counted(&writer.events)), (Ok(()), [0, 0, 0]));
    let (client, _received) = client(Some(201));
    connect.send_replace(Some(client));
    writer.until([3, 0, 0]).await;
}

#[tokio::test]
async fn events_without_an_api_server_are_discarded() {
    let (events, queue) = channel();
    let writer = EventWriter::discarding(source(), events.clone(), queue);
    let stop = CancellationToken::new();
    let task = tokio::spawn(writer.run(Pulse::unwatched(), stop.clone()));
    for number in 0..3 * MAX_QUEUED {
        events.publish(occurrence(&number.to_string(), "x"));
        tokio::task::yield_now().await;
    }
    stop.cancel();
    task.await.unwrap();
    assert_eq!(counted(&events), [0, 0, 0]);
}

#[tokio::test]
async fn events_that_wait_at_the_end_are_written() {
    let (client, _received) = client(Some(201));
    let writer = Running::with(client);
    for number in 0..500 {
        writer.events.publish(occurrence(&number.to_string(), "x"));
    }
    assert_eq!(writer.end().await, [500, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn event_whose_write_is_under_way_at_the_end_is_written_again() {
    let (hanging, mut received) = client(None);
    let (connect, access) = watch::channel(Some(hanging));
    let writer = Running::start(access);
    writer.events.publish(occurrence("node-1", "at kernel"));
    let (_, first) = received.recv().await.unwrap();
    let (answering, mut received) = client(Some(409));
    connect.send_replace(Some(answering));
    assert_eq!(writer.end().await, [1, 0, 0]);
    assert_eq!(received.recv().await.unwrap().1["metadata"]["name"], first["metadata"]["name"]);
}

#[tokio::test(start_paused = true)]
async fn end_does_not_wait_for_a_silent_api_server() {
    let (client, mut received) = client(None);
    let (writer, start) = (Running::with(client), tokio::time::Instant::now());
    for number in 0..20 {
        writer.events.publish(occurrence(&number.to_string(), "x"));
    }
    received.recv().await.unwrap();
    assert_eq!(writer.end().await, [0, 20, 0]);
    assert!(start.elapsed() <= FLUSH_TIMEOUT + Duration::from_secs(1), "{:?}", start.elapsed());
}

#[test]
fn note_is_cut_between_characters() {
    assert_eq!((prefix("aé", 2), prefix("aé", 3), prefix("a", 100)), ("a", "aé", "a"));
}
