//! Used takeover tokens if standalone: in pxed's own store.

use std::collections::HashSet;

use async_trait::async_trait;
use bedplate_api::id::MachineName;
use bedplate_api::machine::{Machine, MachineStatus, ObservedNodeState};
use bedplate_process::lock::Lock;

use crate::machines::KnownMachine;
use crate::power::machine::takeover::{Rows, Tokens, set};
use crate::store::Store;

/// Tokens in pxed's own store.
pub(crate) struct StoreTokens {
    rows: Rows,
    /// Machines that were seen after a loss of used tokens; `None`: none were lost.
    met: Option<Lock<HashSet<MachineName>>>,
}

impl StoreTokens {
    /// Makes the store of tokens. `lost`: a damaged store was moved aside at some time.
    pub(crate) fn new(store: Store, lost: bool) -> Self {
        Self { rows: Rows(store), met: lost.then(Lock::default) }
    }

    /// Returns true if used tokens were lost, and this pxed sees the Machine first. A token that is set later is a new one.
    fn may_have_lost(&self, machine: &MachineName) -> bool {
        self.met.as_ref().is_some_and(|met| met.lock().insert(machine.clone()))
    }
}

#[async_trait]
impl Tokens for StoreTokens {
    async fn is_used(&self, machine: &MachineName, token: &str) -> bool {
        self.rows.has(machine, token).await
    }

    async fn record(&self, machine: &KnownMachine, token: &str, _: &MachineStatus) -> Result<(), String> {
        self.rows.put(&machine.name, token).await
    }

    async fn keep(&self, machine: &KnownMachine, named: Option<&str>) {
        let lost = set(&machine.machine.spec).filter(|_| self.may_have_lost(&machine.name));
        for token in named.into_iter().chain(lost) {
            self.rows.keep(&machine.name, token).await;
        }
    }

    /// No controller observes Nodes. pxed keeps the status of a Machine itself, and no manifest that comes back loses it.
    fn observed_node(&self, _: &Machine) -> Option<ObservedNodeState> {
        Some(ObservedNodeState::Absent)
    }
}
