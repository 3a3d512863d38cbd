//! Sink of statuses in a cluster: one request each to the API server. `status::write` decides when.

use async_trait::async_trait;
use bedplate_api::id::MachineName;
use bedplate_api::machine::Machine;
use bedplate_process::exit::chain;
use kube::Api;
use kube::api::{Patch, PatchParams};

use super::client::Access;
use crate::status::project::{self, Part};
use crate::status::write::WriteOutcome;
use crate::status::{Kept, StatusSink};

/// The statuses of the cluster's Machines.
pub(crate) struct ClusterStatuses {
    access: Access,
}

impl ClusterStatuses {
    /// Makes the sink. The client may come later.
    pub(crate) fn new(access: Access) -> Self {
        Self { access }
    }
}

#[async_trait]
impl StatusSink for ClusterStatuses {
    async fn write(&self, machine: &MachineName, kept: &Kept, part: Part) -> WriteOutcome {
        let client = self.access.borrow().clone();
        let Some(client) = client else { return WriteOutcome::NotConnected };
        if kept.uid.is_empty() {
            return WriteOutcome::Gone;
        }
        let body = match project::apply_body(machine.as_str(), &kept.uid, &kept.status, part) {
            Ok(body) => body,
            Err(error) => return WriteOutcome::Rejected(error.to_string()),
        };
        let machines: Api<Machine> = Api::all(client);
        // Forced: these fields are pxed's, whatever other writer set them.
        let parameters = PatchParams::apply(part.field_manager()).force();
        match machines.patch_status(machine.as_str(), &parameters, &Patch::Apply(&body)).await {
            Ok(_) => WriteOutcome::Written,
            Err(kube::Error::Api(status)) => judge(status.code, status.message.clone()),
            Err(error) => WriteOutcome::Later(chain(&error)),
        }
    }
}

/// Interprets an answer of the API server to a status write.
pub(crate) fn judge(code: u16, message: String) -> WriteOutcome {
    match code {
        // Conflict: the write is forced, so the UID is that of another Machine of this name.
        404 | 409 => WriteOutcome::Gone,
        400 | 413 | 415 | 422 => WriteOutcome::Rejected(message),
        // 401 and 403 too: credentials are renewed, and roles are corrected.
        _ => WriteOutcome::Later(format!("{code}: {message}")),
    }
}
