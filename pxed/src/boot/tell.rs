//! Receiver of boot progress: a trait, so that the boot path is tested without a status registry.
//!
//! Implemented in `report` for the daemon's registry. Calls come from one background task, never from the packet
//! path.

use std::net::IpAddr;

use bedplate_api::id::{BootId, MachineName};
use jiff::Timestamp;

use super::timeline::Timeline;

/// Receiver of boot progress.
pub trait Tell: Send + Sync + 'static {
    /// A machine's timeline has changed, or its boot has stopped.
    fn timeline(&self, machine: &MachineName, timeline: &Timeline, now: Timestamp);

    /// Returns true if the status shows this timeline. The timeline is written before the status, so a crash can separate them.
    fn is_shown(&self, _machine: &MachineName, _timeline: &Timeline) -> bool {
        true
    }

    /// Reports that an attempt of a machine has sent packets and fetched nothing yet. Called repeatedly in this state: whether the attempt is shown depends
    /// on what is heard of the host meanwhile.
    fn unproven(&self, _machine: &MachineName, _timeline: &Timeline, _now: Timestamp) {}

    /// Reports that the seed of a boot was requested again.
    fn seed_asked_again(&self, machine: &MachineName, boot: BootId, peer: IpAddr, now: Timestamp);
}

/// Receiver that ignores all reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Tell for Silent {
    fn timeline(&self, _: &MachineName, _: &Timeline, _: Timestamp) {}
    fn seed_asked_again(&self, _: &MachineName, _: BootId, _: IpAddr, _: Timestamp) {}
}
