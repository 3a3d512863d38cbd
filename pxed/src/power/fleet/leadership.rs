//! Decision whether this pxed controls power: it holds the site's Lease, and the source of Machines has answered.
//! Part of the loop of `supervisor`.

use bedplate_process::reconcile::{Activation, Reconcile, Turn};
use tokio::sync::watch;

use crate::machines::source::SourceState;
use crate::power::Tenure;

/// The loop.
pub(super) struct Leadership {
    tenure: Tenure,
    source: watch::Receiver<SourceState>,
    leads: watch::Sender<bool>,
}

impl Leadership {
    /// Makes the loop, and the receiver of its result.
    pub(super) fn new(tenure: Tenure, source: watch::Receiver<SourceState>) -> (Self, watch::Receiver<bool>) {
        let (leads, receiver) = watch::channel(false);
        (Self { tenure, source, leads }, receiver)
    }
}

impl Reconcile for Leadership {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        let leads = *self.leads.borrow();
        let mut lost = self.tenure.clone();
        tokio::select! {
            () = self.tenure.changed() => {}
            () = lost.lost(), if leads => {}
            Ok(()) = self.source.changed() => {}
        }
        Some(())
    }

    async fn turn(&mut self, _: Activation<()>) -> Turn {
        let is_synced = self.source.borrow_and_update().synced;
        let leads = self.tenure.leads() && is_synced;
        self.leads.send_if_modified(|before| std::mem::replace(before, leads) != leads);
        Turn::Idle
    }
}
