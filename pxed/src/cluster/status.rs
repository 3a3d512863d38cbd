//! Sink of statuses in a cluster. `status::write` decides when.
//!
//! Power is written by the site's leader alone, in one request. The boot is shared by every pxed of the site: the newest object is read, compared by
//! the rule of `site_boot`, and written with its `resourceVersion`.

use async_trait::async_trait;
use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::id::MachineName;
use bedplate_api::machine::{Machine, MachineStatus};
use bedplate_process::exit::chain;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::client::Access;
use super::machines::newest;
use crate::status::project::{self, Part};
use crate::status::site_boot::{Verdict, judge as judge_boot};
use crate::status::write::WriteOutcome;
use crate::status::{Kept, StatusSink};

/// Maximum number of attempts of one write, if other writers change the object at the same time.
const MAX_ATTEMPTS: usize = 3;

/// The statuses of the cluster's Machines.
pub(crate) struct ClusterStatuses {
    access: Access,
}

impl ClusterStatuses {
    /// Creates the sink. The client may be connected later.
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
        let write = Write { client, machine, part };
        match part {
            Part::Power => match write.apply(&body).await {
                Ok(_) => WriteOutcome::Written(None),
                Err(error) => failed(error),
            },
            Part::Boot => write.compare_and_apply(kept, body).await,
        }
    }
}

/// One write.
struct Write<'a> {
    client: Client,
    machine: &'a MachineName,
    part: Part,
}

impl Write<'_> {
    async fn apply(&self, body: &Value) -> kube::Result<Machine> {
        // Forced: these fields are pxed's, whatever other writer set them.
        let parameters = PatchParams::apply(self.part.field_manager()).force();
        let machines: Api<BoundedTimes<Machine>> = Api::all(self.client.clone());
        let patch = Patch::Apply(body);
        let written = machines.patch_status(self.machine.as_str(), &parameters, &patch).await;
        written.map(|BoundedTimes(machine)| machine)
    }

    async fn compare_and_apply(&self, kept: &Kept, mut body: Value) -> WriteOutcome {
        for _ in 0..MAX_ATTEMPTS {
            let found = match newest(&self.client, self.machine, &kept.uid).await {
                Ok(Some(found)) => found,
                Ok(None) => return WriteOutcome::Gone,
                Err(error) => return failed(error),
            };
            let there = boot_of(&found);
            match judge_boot(&kept.status, &kept.base, &there) {
                Verdict::InSync => return WriteOutcome::Written(Some(Box::new(there))),
                Verdict::TakeOver => return WriteOutcome::TakenOver(Box::new(there)),
                Verdict::Write => {}
            }
            body["metadata"]["resourceVersion"] = json!(found.metadata.resource_version);
            match self.apply(&body).await {
                Ok(written) => return WriteOutcome::Written(Some(Box::new(boot_of(&written)))),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return failed(error),
            }
        }
        WriteOutcome::Later("other writers changed the Machine during each attempt".to_owned())
    }
}

/// Returns the boot's part of an object, as far as it is pxed's.
fn boot_of(machine: &Machine) -> MachineStatus {
    let status = machine.status.as_ref();
    status.map(|status| Part::Boot.of(&project::owned(machine, status))).unwrap_or_default()
}

fn failed(error: kube::Error) -> WriteOutcome {
    match error {
        kube::Error::Api(status) => judge(status.code, status.message.clone()),
        error => WriteOutcome::Later(chain(&error)),
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

#[cfg(test)]
mod tests;
