//! Follows the certificate authority by which the cluster verifies client certificates. pxed verifies agents by the same authority.

use std::sync::Arc;
use std::time::Duration;

use bedplate_process::reconcile::{Activation, Reconcile, Turn};
use tokio::time::Instant;

use super::client::Access;
use super::signer::ClusterSigner;
use crate::enroll::tls::Configurations;

/// Interval between two reads. The authority changes once in years.
const READ_INTERVAL: Duration = Duration::from_secs(600);

/// The loop.
pub(crate) struct ClientAuthority {
    access: Access,
    signer: Arc<ClusterSigner>,
    configurations: Arc<Configurations>,
}

impl ClientAuthority {
    /// Creates the loop. The client may be connected later.
    pub(crate) fn new(
        access: Access,
        signer: Arc<ClusterSigner>,
        configurations: Arc<Configurations>,
    ) -> Self {
        Self { access, signer, configurations }
    }
}

impl Reconcile for ClientAuthority {
    type Event = ();

    /// Waits for the client, which is connected once.
    async fn changed(&mut self) -> Option<()> {
        if self.access.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        Some(())
    }

    async fn urgent(&mut self) -> Option<()> {
        self.changed().await
    }

    async fn turn(&mut self, _: Activation<()>) -> Turn {
        // The source of Machines logs why there is no client.
        if self.access.borrow_and_update().is_none() {
            return Turn::Idle;
        }
        match self.signer.client_ca().await {
            Ok(pem) if self.configurations.believe(&pem) > 0 => Turn::At(Instant::now() + READ_INTERVAL),
            Ok(_) => Turn::Retry("the cluster's client authority has no certificate".into()),
            Err(error) => Turn::Retry(format!("cannot read the cluster's client authority: {error}").into()),
        }
    }
}
