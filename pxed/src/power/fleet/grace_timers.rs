//! Names that something is done about only when it has been so for a while.
//!
//! Pure: no clock. Callers: `deleted_machines`, `supervisor`.

use std::collections::BTreeMap;

use bedplate_api::id::MachineName;
use jiff::Timestamp;

/// Running and ended timers.
#[derive(Debug, Default)]
pub(crate) struct Ripening(BTreeMap<MachineName, Due>);

#[derive(Debug)]
struct Due {
    at: Timestamp,
    /// True if the end of the timer was reported.
    is_reported: bool,
}

impl Ripening {
    /// One waits until then, unless it does already.
    pub(crate) fn begin(&mut self, name: &MachineName, at: Timestamp) {
        if !self.0.contains_key(name) {
            self.0.insert(name.clone(), Due { at, is_reported: false });
        }
    }

    /// Forgets one.
    pub(crate) fn forget(&mut self, name: &MachineName) {
        self.0.remove(name);
    }

    /// Returns true if the timer of this Machine has ended.
    pub(crate) fn is_ripe(&self, name: &MachineName) -> bool {
        self.0.get(name).is_some_and(|due| due.is_reported)
    }

    /// Returns the next end of a grace period.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.0.values().filter(|due| !due.is_reported).map(|due| due.at).min()
    }

    /// Restarts all running timers, to end at this time.
    pub(crate) fn postpone(&mut self, at: Timestamp) {
        self.0.values_mut().filter(|due| !due.is_reported).for_each(|due| due.at = at);
    }

    /// Returns the Machines whose timer has ended since the last call.
    pub(crate) fn ripen(&mut self, now: Timestamp) -> Vec<MachineName> {
        let ripe = self.0.iter_mut().filter(|(_, due)| !due.is_reported && due.at <= now);
        ripe.map(|(name, due)| {
            due.is_reported = true;
            name.clone()
        })
        .collect()
    }
}
