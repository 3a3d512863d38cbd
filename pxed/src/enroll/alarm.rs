//! Warnings about keys and tokens: a log line and an Event, with Machine, public boot ID and peer.
//!
//! Any client can cause them, so they have the pace of `Boots::log_pace`. Part of [`Service`].

use std::net::IpAddr;
use std::time::Instant;

use bedplate_api::id::{BootId, MachineName};
use bedplate_api::reason::event::PxedEvent;

use super::service::Service;

/// One warning.
pub(super) struct Alarm<'a> {
    /// Reason of its Event, and of its log line.
    pub(super) event: PxedEvent,
    /// The Machine; `None`: the boot is unknown, and there is no Event.
    pub(super) machine: Option<&'a MachineName>,
    /// The boot that was named.
    pub(super) boot: Option<BootId>,
    /// Address of the client.
    pub(super) peer: IpAddr,
    /// Cause, in one sentence without times. An equal sentence is published once.
    pub(super) message: String,
}

impl Service {
    /// Logs and publishes a warning, unless there was one of its reason and Machine in the last minute. Unknown boots count together.
    pub(super) fn alarm(&self, alarm: &Alarm<'_>) {
        let Alarm { event, machine, boot, peer, message } = alarm;
        let (name, reason) = (machine.map(MachineName::as_str), event.as_str());
        let Some(omitted) = self.boots.log_pace().admit(reason, name, Instant::now()) else { return };
        let boot = boot.map(BootId::public_id);
        let shown = boot.map(tracing::field::display);
        tracing::warn!(machine = name, boot = shown, %peer, reason, message, omitted, "host refused");
        if let Some(machine) = machine {
            let boot = boot.map(|boot| format!(", boot {boot}")).unwrap_or_default();
            self.registry.event(machine, *event, format!("{message}: from {peer}{boot}"));
        }
    }
}
