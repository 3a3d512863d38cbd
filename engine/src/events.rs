//! Events of a program that reconciles, one for each decision. The writer is `process::events`.
//!
//! Published by the reconcilers after a write, so an object that stays as it is causes none.

use bedplate_api::reason::event::{EventReason, is_warning};
use bedplate_process::events::{EventWriter, Events, Occurrence, Queue, Source, channel};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Client, Resource};
use prometheus_client::registry::Registry;
use tokio::sync::watch;

/// Publishes Events. Clones share the queue.
#[derive(Debug, Clone)]
pub struct News(Events);

impl News {
    /// Returns both ends.
    pub fn channel() -> (Self, Queue) {
        let (events, queue) = channel();
        (Self(events), queue)
    }

    /// Makes the writer.
    pub fn writer(&self, queue: Queue, source: Source, client: Client) -> EventWriter {
        EventWriter::new(source, self.0.clone(), queue, watch::channel(Some(client)).1)
    }

    /// Adds the counts to a registry, under this name.
    pub fn register(&self, registry: &mut Registry, name: &'static str) {
        self.0.register(registry, name);
    }

    /// Publishes an Event about an object. It never waits.
    pub fn publish<K: Resource<DynamicType = ()>>(&self, about: &K, reason: impl EventReason, note: &str) {
        self.publish_about(about.object_ref(&()), reason, note);
    }

    /// Publishes an Event about the object of a reference.
    pub fn publish_about(&self, about: ObjectReference, reason: impl EventReason, note: &str) {
        self.0.publish(Occurrence {
            about,
            reason: reason.as_str(),
            action: reason.action(),
            is_warning: is_warning(reason),
            note: note.to_owned(),
        });
    }
}
