//! One worker per Machine that has a BMC, while this pxed leads its site.
//!
//! Callers: `run`.

use std::sync::Arc;
use std::time::Duration;

use bedplate_process::liveness::Pulse;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::counters::Counters;
use super::{CredentialsSource, Dial, Holding, OperationUpdate, OperationWriter, Tenure};
use crate::machine::Machines;
use crate::status::StatusRegistry;
use crate::store::Store;

/// How much is asked of BMCs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// BMCs that are talked to at once.
    pub connections: usize,
    /// Between two looks at a machine that nothing is awaited of.
    pub poll: Duration,
}

/// What power is driven with.
pub struct Parts {
    /// The Machines of this site.
    pub machines: Machines,
    /// Their statuses.
    pub registry: StatusRegistry,
    /// Where departing Machines are kept.
    pub store: Store,
    /// Operations, whoever they are for.
    pub operations: mpsc::Receiver<OperationUpdate>,
    /// Where it is written how they go.
    pub writer: Arc<dyn OperationWriter>,
    /// Where credentials are read.
    pub credentials: Arc<dyn CredentialsSource>,
    /// What makes clients of BMCs.
    pub dial: Arc<dyn Dial>,
    /// What holds Machines back from being deleted; `None` without a cluster: they are kept in the store.
    pub holding: Option<Arc<dyn Holding>>,
    /// Whether this pxed leads.
    pub tenure: Tenure,
    /// How much is asked of BMCs.
    pub limits: Limits,
    /// Who writes operations: `pxed/<site>/<host name or pod name>`.
    pub instance: String,
    /// What is counted.
    pub counters: Arc<Counters>,
}

/// Drives power until `shutdown`.
pub async fn run(mut parts: Parts, pulse: Pulse, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            never = pulse.beating() => match never {},
            update = parts.operations.recv() => if update.is_none() { return },
        }
    }
}
