//! Sink of statuses if standalone: the store already has them.

use async_trait::async_trait;
use bedplate_api::id::MachineName;

use crate::status::project::Part;
use crate::status::write::WriteOutcome;
use crate::status::{Kept, StatusSink};

/// The sink that writes nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreOnly;

#[async_trait]
impl StatusSink for StoreOnly {
    async fn write(&self, _: &MachineName, _: &Kept, _: Part) -> WriteOutcome {
        WriteOutcome::Written(None)
    }
}
