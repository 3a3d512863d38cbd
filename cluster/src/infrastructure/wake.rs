//! Wakes the claimants that wait for a host, once for a burst of hosts that come free or are heard again. The watches note such a host; the
//! task that [`spawn`](super::watch::spawn) spawns wakes.

use std::time::Duration;

use tokio::sync::watch::Sender;

use super::context::Stores;
use super::watch::{Queues, waiting};

/// Delay of a wake-up. Hosts that change within it wake each claimant once.
const WAKE_DELAY: Duration = Duration::from_millis(250);

/// Notes hosts that claimants may take. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Wake(Sender<()>);

impl Wake {
    /// Notes a host. Called once the store shows it.
    pub fn note(&self) {
        self.0.send_replace(());
    }
}

/// Queues each BedplateMachine that has no host, soon after a host was noted. Does not end.
pub async fn wake(queues: Queues, stores: Stores) {
    let mut noted = queues.wake.0.subscribe();
    while noted.changed().await.is_ok() {
        tokio::time::sleep(WAKE_DELAY).await;
        // A host that is noted from here on wakes them again.
        noted.mark_unchanged();
        waiting(&queues, &stores, |_| true).await;
    }
}
