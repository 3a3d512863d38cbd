//! Events (events.k8s.io/v1): what a person looks for in `kubectl describe`, one for each decision.
//!
//! Told by the reconcilers once something is written, so nothing is told of what stays as it is. Nobody waits for it: a full queue
//! drops, and counts what it drops. What is told again is counted in the Event that is there (`series`, by `gate`); another text is
//! another Event.

mod gate;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bedplate_api::reason::event::{ControllerEvent, is_warning};
use bedplate_process::family::count_rows;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use serde_json::json;
use tokio::sync::mpsc;

use self::gate::{Gate, Telling};
use crate::engine::write::{FIELD_MANAGER, ask};

/// Who tells, in an Event.
const REPORTER: &str = "bedplate.dev/controller";
/// Where the Events of what is in no namespace are.
const NAMESPACE: &str = "default";
/// Events that wait to be written.
const QUEUE: usize = 1024;
/// Bytes of a note that the API server takes.
const LONGEST_NOTE: usize = 1024;
/// Characters of an object's name that are in the Event's.
const LONGEST_NAME: usize = 200;

/// One thing that happened to an object.
#[derive(Debug, Clone, PartialEq)]
struct Item {
    about: ObjectReference,
    reason: ControllerEvent,
    note: String,
}

/// What became of Events.
#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

/// Counts Events; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Counted(Arc<Counts>);

impl Collector for Counted {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let rows = [("written", &self.0.written), ("dropped", &self.0.dropped), ("failed", &self.0.failed)];
        let rows = rows.map(|(result, count)| (vec![("result", result)], count.load(Ordering::Relaxed)));
        count_rows(&mut encoder, "bedplate_controller_events", "Events of this controller", rows)
    }
}

/// Tells; clones share the queue.
#[derive(Debug, Clone)]
pub struct News {
    queue: Option<mpsc::Sender<Item>>,
    counted: Counted,
}

impl News {
    /// Where nobody listens.
    pub fn nowhere() -> Self {
        Self { queue: None, counted: Counted::default() }
    }

    /// Something has happened to an object. It is told as soon as there is time, or not at all.
    pub fn tell<K: Resource<DynamicType = ()>>(&self, about: &K, reason: ControllerEvent, note: &str) {
        let Some(queue) = &self.queue else { return };
        let item = Item { about: about.object_ref(&()), reason, note: cut(note, LONGEST_NOTE).to_owned() };
        if queue.try_send(item).is_err() {
            self.counted.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The longest beginning of a text that has at most so many bytes.
fn cut(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Writes what is told.
pub struct Teller {
    queue: mpsc::Receiver<Item>,
    client: Client,
    instance: String,
    counted: Counted,
}

/// Both ends, and the counts. `instance`: which of several controllers tells.
pub fn channel(client: Client, instance: &str) -> (News, Teller, Counted) {
    let (sender, queue) = mpsc::channel(QUEUE);
    let counted = Counted::default();
    let teller = Teller { queue, client, instance: cut(instance, 128).to_owned(), counted: counted.clone() };
    (News { queue: Some(sender), counted: counted.clone() }, teller, counted)
}

impl Teller {
    /// Writes until nobody tells any more.
    pub async fn run(mut self) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        let mut gate = Gate::new(Instant::now());
        while let Some(item) = self.queue.recv().await {
            let telling = gate.admit(&item, Instant::now());
            if matches!(telling, Telling::Counted) {
                continue;
            }
            tokio::time::sleep(gate.wait(Instant::now())).await;
            let written = match telling {
                Telling::Anew => {
                    let event = self.event(&item, Timestamp::now());
                    let name = event.metadata.name.clone().unwrap_or_default();
                    let parameters =
                        PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
                    let written = ask("an Event", events.create(&parameters, &event)).await.map(drop);
                    gate.told(&item, written.is_ok().then_some(name), Instant::now());
                    written
                }
                Telling::Again { event, count } => {
                    let now = MicroTime(Timestamp::now());
                    let series = json!({ "series": { "count": count, "lastObservedTime": now } });
                    let parameters = PatchParams::default();
                    ask("an Event", events.patch(&event, &parameters, &Patch::Merge(&series))).await.map(drop)
                }
                Telling::Counted => Ok(()),
            };
            let counter = if written.is_ok() { &self.counted.0.written } else { &self.counted.0.failed };
            counter.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = written {
                tracing::debug!(%error, reason = item.reason.as_str(), "an Event was not written");
            }
        }
    }

    fn event(&self, item: &Item, now: Timestamp) -> Event {
        let object = cut(item.about.name.as_deref().unwrap_or_default(), LONGEST_NAME);
        let name = format!("{}.{:x}", object.trim_end_matches(['.', '-']), now.as_nanosecond());
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            action: Some(item.reason.action().to_owned()),
            event_time: Some(MicroTime(now)),
            note: Some(item.note.clone()),
            reason: Some(item.reason.as_str().to_owned()),
            regarding: Some(item.about.clone()),
            reporting_controller: Some(REPORTER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(if is_warning(item.reason) { "Warning" } else { "Normal" }.to_owned()),
            ..Event::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;

    use super::*;

    #[test]
    fn a_note_is_cut_between_characters() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("aé", 3), "aé");
        assert_eq!(cut("a", 100), "a");
    }

    #[tokio::test]
    async fn who_tells_never_waits_and_what_is_dropped_is_counted() {
        let (sender, _queue) = mpsc::channel(2);
        let news = News { queue: Some(sender), counted: Counted::default() };
        for number in 0..5 {
            news.tell(&Node::default(), ControllerEvent::NodeDeleted, &number.to_string());
        }
        assert_eq!(news.counted.0.dropped.load(Ordering::Relaxed), 3);
    }
}
