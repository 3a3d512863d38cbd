//! Used takeover tokens in a cluster: in the statuses of Machines, where no pxed writes one over a newer object.

use std::time::Duration;

use async_trait::async_trait;
use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::id::MachineName;
use bedplate_api::machine::{Machine, MachineStatus, ObservedNodeState};
use bedplate_process::exit::chain;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::client::{Access, connected};
use crate::machines::KnownMachine;
use crate::power::machine::takeover::{Rows, Tokens, observed_node};
use crate::status::project::{Part, apply_body};
use crate::store::Store;

/// Maximum duration of one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Tokens in the statuses of the cluster's Machines. The row is for a Machine that was deleted and made again.
pub(crate) struct ClusterTokens {
    access: Access,
    rows: Rows,
}

impl ClusterTokens {
    /// Creates the record of tokens. The client may be connected later.
    pub(crate) fn new(access: Access, store: Store) -> Self {
        Self { access, rows: Rows(store) }
    }
}

#[async_trait]
impl Tokens for ClusterTokens {
    async fn is_used(&self, machine: &MachineName, token: &str) -> bool {
        self.rows.has(machine, token).await
    }

    async fn record(
        &self,
        machine: &KnownMachine,
        token: &str,
        status: &MachineStatus,
    ) -> Result<(), String> {
        let machines: Api<BoundedTimes<Machine>> = Api::all(connected(&self.access)?);
        let body = body(machine, status)?;
        let parameters = PatchParams::apply(Part::Power.field_manager()).force();
        let patch = Patch::Apply(&body);
        let write = machines.patch_status(machine.name.as_str(), &parameters, &patch);
        match tokio::time::timeout(WRITE_TIMEOUT, write).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(chain(&error)),
            Err(_) => return Err("the API server did not answer in time".to_owned()),
        }
        // After the object: a write that the API server refuses uses up nothing.
        self.rows.keep(&machine.name, token).await;
        Ok(())
    }

    async fn keep(&self, machine: &KnownMachine, named: Option<&str>) {
        if let Some(token) = named {
            self.rows.keep(&machine.name, token).await;
        }
    }

    fn observed_node(&self, object: &Machine) -> Option<ObservedNodeState> {
        observed_node(object)
    }
}

/// Pure: returns pxed's power fields for exactly this version of the object. The server refuses them for any other version.
fn body(machine: &KnownMachine, status: &MachineStatus) -> Result<Value, String> {
    let version = machine.machine.metadata.resource_version.as_deref().unwrap_or_default();
    if version.is_empty() {
        return Err("the Machine has no resourceVersion".to_owned());
    }
    let mut body = apply_body(machine.name.as_str(), &machine.uid, status, Part::Power)
        .map_err(|error| error.to_string())?;
    body["metadata"]["resourceVersion"] = json!(version);
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::Snapshot;
    use crate::machines::tests::machine;

    #[test]
    fn h2_a_token_is_written_to_the_version_that_was_read() {
        let power = json!({ "state": "On", "takeoverToken": "one" });
        let status = serde_json::from_value(json!({ "power": power, "phase": "Pending" })).unwrap();
        let mut object = machine("a", &["52:54:00:00:00:0a"]);
        object.metadata.uid = Some("u".to_owned());
        let known = |object: &Machine| {
            let snapshot = Snapshot::build(&"default".parse().unwrap(), [object.clone()]);
            snapshot.by_name(&"a".parse().unwrap()).unwrap().clone()
        };
        assert!(body(&known(&object), &status).is_err(), "no version was read");
        object.metadata.resource_version = Some("7".to_owned());
        let body = body(&known(&object), &status).unwrap();
        assert_eq!(body["metadata"], json!({ "name": "a", "uid": "u", "resourceVersion": "7" }));
        assert_eq!(body["status"]["power"]["takeoverToken"], "one");
        assert_eq!(body["status"].get("phase"), None, "of others' fields nothing is written");
    }
}
