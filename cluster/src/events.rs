//! Events of the program, one for each decision. The writer is `process::events`.
//!
//! Published by the reconcilers after a write, so an object that stays as it is causes none.

use std::fmt;

use bedplate_api::reason::event::{EventReason, is_warning};
use bedplate_process::events::{EventWriter, Events, Occurrence, Queue, Source, channel};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Client, Resource};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use tokio::sync::watch;

use crate::group::Group;

/// Publishes Events. Clones share the queue.
#[derive(Debug, Clone)]
pub struct News(Events);

impl News {
    /// Returns both ends.
    pub fn channel() -> (Self, Queue) {
        let (events, queue) = channel();
        (Self(events), queue)
    }

    /// Makes the writer. `instance`: one of several processes of the group.
    pub fn writer(&self, queue: Queue, group: Group, instance: &str, client: Client) -> EventWriter {
        let (controller, field_manager) = (group.controller(), group.field_manager().name());
        let source = Source { controller, instance: instance.to_owned(), field_manager };
        EventWriter::new(source, self.0.clone(), queue, watch::channel(Some(client)).1)
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

impl Collector for News {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.0.counts().encode(&mut encoder, "bedplate_cluster_events")
    }
}
