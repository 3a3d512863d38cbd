//! pxed's finalizer on a Machine, which keeps the object until its machine is off (`deletionPolicy: PowerOff`).
//!
//! The JSON patch tests the object's UID and version, so that no finalizer of another writer is lost and a later
//! Machine of the same name is not changed. An admission policy of deploy/ allows pxed no other change of a Machine.
//! Called by the supervisor.

use std::time::Duration;

use async_trait::async_trait;
use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::id::MachineName;
use bedplate_api::machine::{Machine, POWER_OFF_FINALIZER as FINALIZER};
use bedplate_process::exit::chain;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::client::{Access, connected};
use super::machines::newest;
use crate::power::Holding;

/// Timeout of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Tries while others write the object at the same time.
const MAX_CONFLICT_ATTEMPTS: usize = 3;

/// Finalizers of the cluster's Machines.
pub(crate) struct Finalizers {
    access: Access,
}

impl Finalizers {
    /// Creates the writer of finalizers. The client may be connected later.
    pub(crate) fn new(access: Access) -> Self {
        Self { access }
    }

    async fn change(&self, machine: &MachineName, uid: &str, held: bool) -> Result<(), String> {
        let client = connected(&self.access)?;
        let machines: Api<BoundedTimes<Machine>> = Api::all(client.clone());
        let parameters = PatchParams { field_manager: Some("pxed".to_owned()), ..PatchParams::default() };
        let mut why = String::new();
        for _ in 0..MAX_CONFLICT_ATTEMPTS {
            let found = newest(&client, machine, uid).await.map_err(|error| chain(&error))?;
            let Some(found) = found else {
                return if held { Err("the Machine does not exist any more".to_owned()) } else { Ok(()) };
            };
            let Some(operations) = plan_patch(&found, held)? else { return Ok(()) };
            let patch = serde_json::from_value(operations).map_err(|error| error.to_string())?;
            match machines.patch(machine.as_str(), &parameters, &Patch::Json::<()>(patch)).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 404 && !held => return Ok(()),
                // A failed `test` is 422; a concurrent write is 409.
                Err(kube::Error::Api(status)) if [409, 422].contains(&status.code) => {
                    why = status.message.clone();
                }
                Err(error) => return Err(chain(&error)),
            }
        }
        Err(why)
    }
}

/// Pure: the patch; none if there is nothing to change.
fn plan_patch(machine: &Machine, held: bool) -> Result<Option<Value>, String> {
    let metadata = &machine.metadata;
    let finalizers = metadata.finalizers.clone().unwrap_or_default();
    if finalizers.iter().any(|finalizer| finalizer == FINALIZER) == held {
        return Ok(None);
    }
    let change = if !held {
        let rest: Vec<_> = finalizers.iter().filter(|finalizer| *finalizer != FINALIZER).collect();
        json!({ "op": "replace", "path": "/metadata/finalizers", "value": rest })
    } else if metadata.deletion_timestamp.is_some() {
        return Err("the Machine is already being deleted".to_owned());
    } else if finalizers.is_empty() {
        json!({ "op": "add", "path": "/metadata/finalizers", "value": [FINALIZER] })
    } else {
        json!({ "op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER })
    };
    Ok(Some(json!([
        { "op": "test", "path": "/metadata/uid", "value": metadata.uid },
        { "op": "test", "path": "/metadata/resourceVersion", "value": metadata.resource_version },
        change
    ])))
}

#[async_trait]
impl Holding for Finalizers {
    async fn hold(&self, machine: &MachineName, uid: &str, held: bool) -> Result<(), String> {
        let change = tokio::time::timeout(ATTEMPT_TIMEOUT, self.change(machine, uid, held)).await;
        change.unwrap_or_else(|_| Err("the API server did not answer in time".to_owned()))
    }

    async fn release(&self, machine: &MachineName, uid: &str) -> Result<(), String> {
        self.hold(machine, uid, false).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::tests::machine;

    fn with(finalizers: &[&str]) -> Machine {
        let mut machine = machine("a", &["52:54:00:00:00:0a"]);
        machine.metadata.finalizers = Some(finalizers.iter().map(ToString::to_string).collect());
        machine.metadata.uid = Some("u".to_owned());
        machine.metadata.resource_version = Some("7".to_owned());
        machine
    }

    #[test]
    fn only_the_own_finalizer_is_added_or_taken_away_and_of_this_very_object() {
        let added = plan_patch(&with(&["other"]), true).unwrap().unwrap();
        assert_eq!(added[0], json!({ "op": "test", "path": "/metadata/uid", "value": "u" }));
        assert_eq!(added[1]["value"], "7");
        assert_eq!(added[2], json!({ "op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER }));
        let first = plan_patch(&with(&[]), true).unwrap().unwrap();
        assert_eq!(first[2]["value"], json!([FINALIZER]));
        let taken = plan_patch(&with(&["other", FINALIZER]), false).unwrap().unwrap();
        assert_eq!(taken[2], json!({ "op": "replace", "path": "/metadata/finalizers", "value": ["other"] }));
        assert_eq!(plan_patch(&with(&[FINALIZER]), true), Ok(None));
        assert_eq!(plan_patch(&with(&["other"]), false), Ok(None));
    }

    #[test]
    fn deleted_machine_gets_no_new_finalizer() {
        let mut going = with(&[]);
        going.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::now()));
        assert!(plan_patch(&going, true).is_err());
    }
}
