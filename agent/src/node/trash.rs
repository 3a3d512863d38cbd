//! Removes former contents of slots in the background: at each start of the agent, and whenever a slot was emptied.
//!
//! Only a slot that finds no space left on the disk waits for the removal. Contents that cannot be removed are reported, and the removal is
//! repeated. Called by `service::tasks` and `apply`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bedplate_api::machine::SlotName;
use bedplate_process::exit::chain;
use bedplate_process::liveness::{Beat, Pulse};
use bedplate_process::reconcile::{Activation, Reconcile, Task, Turn};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::effects::{Parts, Say};
use crate::slot::store::{KeepSlotError, Slots};

/// Interval between attempts to remove contents that could not be removed.
const RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// Removes former contents until `shutdown`. `wake` has the node's loop report the result.
pub(crate) async fn serve(slots: Slots, wake: Arc<Notify>, pulse: Pulse, shutdown: CancellationToken) {
    let mut removal = TrashRemoval { slots, wake, beat: pulse.handle() };
    Task::new(pulse).run(&mut removal, shutdown).await;
}

/// The removal of former contents.
struct TrashRemoval {
    slots: Slots,
    wake: Arc<Notify>,
    /// A large tree takes long: each of its entries is a pulse.
    beat: Beat,
}

impl Reconcile for TrashRemoval {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        self.slots.trash().more().await;
        Some(())
    }

    async fn turn(&mut self, _: Activation<()>) -> Turn {
        let is_stuck = remove(&self.slots, &self.beat).await;
        self.wake.notify_one();
        if is_stuck { Turn::At(Instant::now() + RETRY_INTERVAL) } else { Turn::Idle }
    }
}

/// Runs one round of the removal, with a pulse for each entry. Returns true if something cannot be removed.
pub(super) async fn remove(slots: &Slots, beat: &Beat) -> bool {
    let covers = slots.trash().put();
    let stop = StopOnDrop(Arc::default());
    let (work, stopped, beat) = (slots.clone(), Arc::clone(&stop.0), beat.clone());
    let is_stopped = move || {
        beat.beat();
        stopped.load(Ordering::Relaxed)
    };
    let removing = move || work.empty_trash(&is_stopped);
    let removed = match tokio::task::spawn_blocking(removing).await {
        Ok(removed) => removed,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    let stuck = removed.err().map(|error| format!("former contents of a slot: {}", chain(&error)));
    let is_known = stuck == slots.trash().removal().borrow().stuck;
    if let Some(error) = stuck.as_ref().filter(|_| !is_known) {
        tracing::warn!(error, "failed to remove former contents of a slot, retrying");
    }
    let is_stuck = stuck.is_some();
    slots.trash().finished(covers, stuck);
    is_stuck
}

/// Waits until former contents are removed, for a disk without space. Returns true if there were any: a second attempt may succeed.
///
/// # Errors
/// The trash cannot be read.
pub(super) async fn make_room(
    parts: &Parts,
    cancel: &CancellationToken,
    say: Say<'_>,
) -> Result<bool, KeepSlotError> {
    let mut removal = parts.slots.trash().removal();
    let mut waited = false;
    let put = parts.slots.trash().put();
    loop {
        // A round that began before the latest contents were put in does not tell whether they can be removed.
        let is_stuck = {
            let removal = removal.borrow_and_update();
            removal.stuck.is_some() && removal.covers >= put
        };
        let left = parts.on_disk(|slots| Ok(slots.has_trash(SlotName::A)? || slots.has_trash(SlotName::B)?));
        if is_stuck || !left.await? {
            return Ok(waited);
        }
        waited = true;
        say("no space is left; waiting until former contents of the slots are removed".to_owned());
        tokio::select! {
            changed = removal.changed() => if changed.is_err() { return Ok(false) },
            () = cancel.cancelled() => return Ok(false),
        }
    }
}

/// Stops the work of a blocking thread when the future that waits for it is dropped.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
