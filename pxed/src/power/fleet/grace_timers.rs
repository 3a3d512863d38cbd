//! Names that something is done about only when it has been so for a while.
//!
//! Pure: no clock. Callers: `departing`, `supervisor`.

use std::collections::BTreeMap;

use bedplate_api::id::MachineName;
use jiff::Timestamp;

/// Those that wait, and those whose time has come.
#[derive(Debug, Default)]
pub(crate) struct Ripening(BTreeMap<MachineName, Due>);

#[derive(Debug)]
struct Due {
    at: Timestamp,
    /// Its time has come, and that was told.
    told: bool,
}

impl Ripening {
    /// One waits until then, unless it does already.
    pub(crate) fn begin(&mut self, name: &MachineName, at: Timestamp) {
        if !self.0.contains_key(name) {
            self.0.insert(name.clone(), Due { at, told: false });
        }
    }

    /// Forgets one.
    pub(crate) fn forget(&mut self, name: &MachineName) {
        self.0.remove(name);
    }

    /// Whether one's time has come.
    pub(crate) fn is_ripe(&self, name: &MachineName) -> bool {
        self.0.get(name).is_some_and(|due| due.told)
    }

    /// When the next one's time comes.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.0.values().filter(|due| !due.told).map(|due| due.at).min()
    }

    /// Those whose time has not come wait until then.
    pub(crate) fn postpone(&mut self, at: Timestamp) {
        self.0.values_mut().filter(|due| !due.told).for_each(|due| due.at = at);
    }

    /// Those whose time has come since this was last asked.
    pub(crate) fn ripen(&mut self, now: Timestamp) -> Vec<MachineName> {
        let ripe = self.0.iter_mut().filter(|(_, due)| !due.told && due.at <= now);
        ripe.map(|(name, due)| {
            due.told = true;
            name.clone()
        })
        .collect()
    }
}
