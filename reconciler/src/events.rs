//! Events of the controller, one for each decision. The writer is `process::events`.
//!
//! Published by the reconcilers after a write, so an object that stays as it is causes none.

use std::fmt;

use bedplate_api::reason::event::{ControllerEvent, is_warning};
use bedplate_process::events::{EventWriter, Events, Occurrence, Queue, Source, channel};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Client, Resource};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use tokio::sync::watch;

use crate::FIELD_MANAGER;

/// Name of the controller in an Event.
const CONTROLLER: &str = "bedplate.dev/controller";

/// Publishes Events. Clones share the queue.
#[derive(Debug, Clone)]
pub struct News(Events);

impl News {
    /// Returns both ends.
    pub fn channel() -> (Self, Queue) {
        let (events, queue) = channel();
        (Self(events), queue)
    }

    /// Returns an end that publishes nothing.
    pub fn nowhere() -> Self {
        Self::channel().0
    }

    /// Makes the writer. `instance`: one of several controllers.
    pub fn writer(&self, queue: Queue, instance: &str, client: Client) -> EventWriter {
        let instance = instance.to_owned();
        let source = Source { controller: CONTROLLER, instance, field_manager: FIELD_MANAGER.name() };
        EventWriter::new(source, self.0.clone(), queue, watch::channel(Some(client)).1)
    }

    /// Publishes what has happened to an object. It never waits.
    pub fn tell<K: Resource<DynamicType = ()>>(&self, about: &K, reason: ControllerEvent, note: &str) {
        self.about(about.object_ref(&()), reason, note);
    }

    /// Publishes what has happened to the object of this reference.
    pub fn about(&self, about: ObjectReference, reason: ControllerEvent, note: &str) {
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
        self.0.counts().encode(&mut encoder, "bedplate_controller_events")
    }
}
