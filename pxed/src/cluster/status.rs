//! One status write and one Event against the API server. When to write is `write`'s business.

use bedplate_api::id::MachineName;
use bedplate_api::machine::Machine;
use bedplate_api::reason::event::is_warning;
use bedplate_process::exit::chain;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{self, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource};

use crate::status::project::{self, Part};
use crate::status::{Event, Kept};

/// How a write ended.
#[derive(Debug)]
pub(crate) enum WriteOutcome {
    Written,
    /// There is no such Machine any more, or another one has its name.
    Gone,
    /// The server will never take this (a status that its schema refuses).
    Refused(String),
    /// The server is away, busy, or does not allow it now.
    Later(String),
}

/// Applies a part of pxed's fields of one Machine's status.
pub(crate) async fn write(client: &Client, name: &MachineName, kept: &Kept, part: Part) -> WriteOutcome {
    if kept.uid.is_empty() {
        return WriteOutcome::Gone;
    }
    let body = match project::apply_body(name.as_str(), &kept.uid, &kept.status, part) {
        Ok(body) => body,
        Err(error) => return WriteOutcome::Refused(error.to_string()),
    };
    let machines: Api<Machine> = Api::all(client.clone());
    // Forced: these fields are ours, whoever else wrote them.
    let parameters = PatchParams::apply(part.field_manager()).force();
    match machines.patch_status(name.as_str(), &parameters, &Patch::Apply(&body)).await {
        Ok(_) => WriteOutcome::Written,
        Err(kube::Error::Api(status)) => judge(status.code, status.message.clone()),
        Err(error) => WriteOutcome::Later(chain(&error)),
    }
}

/// What an answer of the API server means for a status write.
pub(crate) fn judge(code: u16, message: String) -> WriteOutcome {
    match code {
        // Conflict: forced, so it can only be the uid of another Machine of this name.
        404 | 409 => WriteOutcome::Gone,
        400 | 413 | 415 | 422 => WriteOutcome::Refused(message),
        // 401 and 403 too: credentials are renewed, roles are put right.
        _ => WriteOutcome::Later(format!("{code}: {message}")),
    }
}

/// Publishes an Event about a Machine.
pub(crate) async fn publish(client: &Client, event: &Event) -> Result<(), kube::Error> {
    // A recorder of its own: ours are not repeated (see `event`), and kube's would fold different messages into one.
    let recorder = Recorder::new(client.clone(), Reporter::from("bedplate.dev/pxed"));
    let reference = ObjectReference {
        api_version: Some(Machine::api_version(&()).into_owned()),
        kind: Some(Machine::kind(&()).into_owned()),
        name: Some(event.machine.to_string()),
        uid: event.uid.clone(),
        ..ObjectReference::default()
    };
    let body = events::Event {
        type_: if is_warning(event.reason) { EventType::Warning } else { EventType::Normal },
        reason: event.reason.as_str().to_owned(),
        note: Some(event.message.chars().take(1000).collect()),
        action: "Boot".to_owned(),
        secondary: None,
    };
    recorder.publish(&body, &reference).await
}
