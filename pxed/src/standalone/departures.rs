//! Deleted Machines whose machine is not off yet, if standalone: rows in the store. `power::fleet` writes them when a manifest is deleted.

use async_trait::async_trait;
use bedplate_api::id::MachineName;

use crate::power::Holding;
use crate::store::{Store, Table};

/// The rows.
pub(crate) struct StoredDepartures {
    store: Store,
}

impl StoredDepartures {
    /// Uses the rows of this store.
    pub(crate) fn new(store: Store) -> Self {
        Self { store }
    }
}

#[async_trait]
impl Holding for StoredDepartures {
    /// A manifest cannot be kept from being deleted.
    async fn hold(&self, _: &MachineName, _: &str, _: bool) -> Result<(), String> {
        Ok(())
    }

    async fn release(&self, machine: &MachineName, _: &str) -> Result<(), String> {
        let key = machine.as_str().as_bytes();
        self.store.delete(Table::Departing, key).await.map_err(|error| error.to_string())
    }
}
