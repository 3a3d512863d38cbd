//! Events (events.k8s.io/v1): what a user looks for in `kubectl describe`. One writer for each program.
//!
//! ```text
//!   publish ─ gate ─┬─ new ────────────┐
//!                   ├─ known: count ───┴─► queue ─ rate ─► API server
//!                   └─ counted a moment ago, or above the share of its object
//! ```
//! [`Events::publish`] never waits. A full queue drops, and counts what it drops. The same note about an object is counted in its Event
//! (`series`), another note is another Event. The last repetitions within a minute may be missing from the count. Events wait while the
//! program has no client. At the end of the program the writer writes those that wait. An Event is in the namespace of its object. Called by
//! pxed and by the controller.

mod gate;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::gate::{Gate, Rate, Verdict};
use crate::counter::labels;
use crate::exit::chain;
use crate::family::register_family;
use crate::liveness::Pulse;
use crate::lock::Lock;
use crate::reconcile::{Activation, Reconcile, Task, Turn};

/// Namespace of Events about cluster-scoped objects. The API server accepts no other.
const CLUSTER_NAMESPACE: &str = "default";
/// Maximum number of Events that wait to be written.
const MAX_QUEUED: usize = 1024;
/// Maximum size of a note that the API server accepts.
const MAX_NOTE_BYTES: usize = 1024;
/// Maximum length of an object's name within the name of its Event.
const MAX_NAME_BYTES: usize = 200;
/// Maximum length of the instance that the API server accepts.
const MAX_INSTANCE_BYTES: usize = 128;
/// Maximum time of a write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time of the last writes.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum number of concurrent last writes.
const MAX_CONCURRENT_FLUSHES: usize = 8;

/// Something that happened to an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Occurrence {
    /// The object.
    pub about: ObjectReference,
    /// Reason, in PascalCase.
    pub reason: &'static str,
    /// Action of the program.
    pub action: &'static str,
    /// True if a user may have to act.
    pub is_warning: bool,
    /// Text for a user. It is cut at 1024 bytes.
    pub note: String,
}

impl Occurrence {
    /// Returns the namespace of the Event. The API server rejects an Event in another namespace than its object.
    fn namespace(&self) -> &str {
        self.about.namespace.as_deref().unwrap_or(CLUSTER_NAMESPACE)
    }
}

/// The program that publishes.
#[derive(Debug, Clone)]
pub struct Source {
    /// Name of the program in Events, such as `bedplate.dev/pxed`.
    pub controller: &'static str,
    /// Name of this process among several of the program.
    pub instance: String,
    /// Field manager of its writes.
    pub field_manager: &'static str,
}

labels! {
    /// Result of an Event.
    enum WriteResult in "result" {
        /// Written, or counted in one that was written.
        Written => "written",
        /// Not written because the queue was full, or because the program ended.
        Dropped => "dropped",
        /// The write failed.
        Failed => "failed",
    }
}

/// Publishes. Clones share gate, queue and counts.
#[derive(Clone)]
pub struct Events(Arc<Inner>);

struct Inner {
    gate: Lock<Gate>,
    queue: mpsc::Sender<Write>,
    counts: Family<WriteResult, Counter>,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("counts", &self.0.counts).finish_non_exhaustive()
    }
}

/// Request to the API server.
#[derive(Debug, Clone)]
struct Write {
    occurrence: Occurrence,
    /// Name of the Event.
    event: String,
    time: Timestamp,
    /// Number of occurrences. The first creates the Event.
    count: i32,
}

/// Writes that wait.
pub struct Queue(mpsc::Receiver<Write>);

impl Queue {
    /// Takes the next occurrence that is not a repetition, if one waits.
    pub fn try_next(&mut self) -> Option<Occurrence> {
        loop {
            let write = self.0.try_recv().ok()?;
            if write.count == 1 {
                return Some(write.occurrence);
            }
        }
    }
}

/// Makes both ends.
pub fn channel() -> (Events, Queue) {
    let (sender, queue) = mpsc::channel(MAX_QUEUED);
    let (gate, counts) = (Lock::default(), Family::default());
    (Events(Arc::new(Inner { gate, queue: sender, counts })), Queue(queue))
}

impl Events {
    /// Publishes an Event, unless the same one was published a moment ago. Returns true if it is new. Never waits.
    pub fn publish(&self, mut occurrence: Occurrence) -> bool {
        let length = prefix(&occurrence.note, MAX_NOTE_BYTES).len();
        occurrence.note.truncate(length);
        let time = Timestamp::now();
        let name = event_name(&occurrence, time);
        let verdict = self.0.gate.lock().admit(&occurrence, &name, Instant::now());
        let (event, count) = match verdict {
            Verdict::Create => (name, 1),
            Verdict::Count { event, count } => (event, count),
            Verdict::Omit => return false,
        };
        let write = Write { occurrence, event, time, count };
        if let Err(error) = self.0.queue.try_send(write) {
            self.count(WriteResult::Dropped, 1);
            self.forget_new(&error.into_inner());
        }
        count == 1
    }

    /// Adds the counts to a registry, under this name.
    pub fn register(&self, registry: &mut Registry, name: &'static str) {
        register_family(registry, name, "Events of this program", &self.0.counts);
    }

    fn count(&self, result: WriteResult, number: u64) {
        self.0.counts.get_or_create(&result).inc_by(number);
    }

    /// Forgets a new Event that was not written: the same occurrence is a new one.
    fn forget_new(&self, write: &Write) {
        if write.count == 1 {
            self.0.gate.lock().forget(&write.occurrence);
        }
    }
}

fn event_name(occurrence: &Occurrence, time: Timestamp) -> String {
    let object = prefix(occurrence.about.name.as_deref().unwrap_or_default(), MAX_NAME_BYTES);
    format!("{}.{:x}", object.trim_end_matches(['.', '-']), time.as_nanosecond())
}

/// Returns the longest prefix of a text that has at most this many bytes.
fn prefix(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Writes what is published, one after another.
pub struct EventWriter {
    requests: Requests,
    queue: Queue,
    rate: Rate,
    /// The program has no API server.
    access: Option<watch::Receiver<Option<Client>>>,
    /// Write that is under way.
    current: Option<Write>,
}

/// Requests of the writer.
struct Requests {
    source: Source,
    events: Events,
}

impl EventWriter {
    /// Makes the writer of a program that has a client once `access` has one.
    pub fn new(
        source: Source,
        events: Events,
        queue: Queue,
        access: watch::Receiver<Option<Client>>,
    ) -> Self {
        Self { access: Some(access), ..Self::discarding(source, events, queue) }
    }

    /// Makes the writer of a program without an API server. It discards Events.
    pub fn discarding(source: Source, events: Events, queue: Queue) -> Self {
        let rate = Rate::new(Instant::now());
        Self { requests: Requests { source, events }, queue, rate, access: None, current: None }
    }

    /// Writes until `stop`, then those that wait, for at most [`FLUSH_TIMEOUT`]. Stop it after the publishers.
    pub async fn run(mut self, pulse: Pulse, stop: CancellationToken) {
        Task::new(pulse).run(&mut self, stop).await;
        self.flush().await;
    }

    async fn write_current(&mut self) {
        let Some(client) = self.access.as_ref().and_then(|access| access.borrow().clone()) else {
            self.current = None;
            return;
        };
        tokio::time::sleep(self.rate.wait(Instant::now())).await;
        if let Some(write) = &self.current {
            self.requests.write(client, write).await;
        }
        // A write that is dropped before this point is repeated by the flush. Both requests may be repeated.
        self.current = None;
    }

    /// Writes those that wait, without regard to the rate: the capacity of the queue bounds them.
    async fn flush(&mut self) {
        let current = self.current.take();
        let waiting = std::iter::from_fn(|| self.queue.0.try_recv().ok());
        let all: Vec<Write> = current.into_iter().chain(waiting).collect();
        let Some(access) = self.access.as_ref().filter(|_| !all.is_empty()) else { return };
        let (client, total, requests) = (access.borrow().clone(), all.len(), &self.requests);
        let mut written = 0_usize;
        if let Some(client) = client {
            let writes = futures::stream::iter(all).map(|write| {
                let client = client.clone();
                async move { requests.write(client, &write).await }
            });
            let mut writes = std::pin::pin!(writes.buffer_unordered(MAX_CONCURRENT_FLUSHES));
            let all = async {
                while writes.next().await.is_some() {
                    written += 1;
                }
            };
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, all).await;
        }
        let dropped = total.saturating_sub(written);
        if dropped > 0 {
            self.requests.events.count(WriteResult::Dropped, dropped as u64);
            tracing::warn!(dropped, "Events not written before the end");
        }
    }
}

impl Requests {
    async fn write(&self, client: Client, write: &Write) {
        let api: Api<Event> = Api::namespaced(client, write.occurrence.namespace());
        let field_manager = Some(self.source.field_manager.to_owned());
        let written = if write.count == 1 {
            let parameters = PostParams { field_manager, ..PostParams::default() };
            in_time(api.create(&parameters, &self.event(write))).await
        } else {
            let series = json!({ "count": write.count, "lastObservedTime": MicroTime(write.time) });
            let patch = Patch::Merge(json!({ "series": series }));
            let parameters = PatchParams { field_manager, ..PatchParams::default() };
            in_time(api.patch(&write.event, &parameters, &patch)).await
        };
        match written {
            Ok(()) => self.events.count(WriteResult::Written, 1),
            Err(NotWritten { is_gone, error }) => {
                self.events.count(WriteResult::Failed, 1);
                tracing::debug!(error, "failed to write an Event");
                if is_gone {
                    self.events.0.gate.lock().forget(&write.occurrence);
                }
                self.events.forget_new(write);
            }
        }
    }

    fn event(&self, write: &Write) -> Event {
        let Write { occurrence, event, time, .. } = write;
        Event {
            metadata: ObjectMeta {
                name: Some(event.clone()),
                namespace: Some(occurrence.namespace().to_owned()),
                ..ObjectMeta::default()
            },
            action: Some(occurrence.action.to_owned()),
            event_time: Some(MicroTime(*time)),
            note: Some(occurrence.note.clone()),
            reason: Some(occurrence.reason.to_owned()),
            regarding: Some(occurrence.about.clone()),
            reporting_controller: Some(self.source.controller.to_owned()),
            reporting_instance: Some(prefix(&self.source.instance, MAX_INSTANCE_BYTES).to_owned()),
            type_: Some(if occurrence.is_warning { "Warning" } else { "Normal" }.to_owned()),
            ..Event::default()
        }
    }
}

/// Failed write.
struct NotWritten {
    /// True if the API server has no such Event.
    is_gone: bool,
    error: String,
}

async fn in_time(request: impl Future<Output = kube::Result<Event>>) -> Result<(), NotWritten> {
    let has_code = |error: &kube::Error, code| matches!(error, kube::Error::Api(s) if s.code == code);
    match tokio::time::timeout(WRITE_TIMEOUT, request).await {
        Ok(Ok(_)) => Ok(()),
        // The request was repeated: the name is unique.
        Ok(Err(error)) if has_code(&error, 409) => Ok(()),
        Ok(Err(error)) => Err(NotWritten { is_gone: has_code(&error, 404), error: chain(&error) }),
        Err(_) => {
            let error = format!("the API server did not answer within {} s", WRITE_TIMEOUT.as_secs());
            Err(NotWritten { is_gone: false, error })
        }
    }
}

impl Reconcile for EventWriter {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        if self.current.is_none() {
            self.current = Some(self.queue.0.recv().await?);
        }
        if let Some(access) = &mut self.access {
            access.wait_for(Option::is_some).await.ok()?;
        }
        Some(())
    }

    async fn turn(&mut self, _: Activation<()>) -> Turn {
        self.write_current().await;
        Turn::Idle
    }
}

#[cfg(test)]
mod tests;
