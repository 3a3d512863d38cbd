//! Permission for another key of a Machine whose key in force is still heard: `bedplate machine re-enroll`.
//!
//! Without a cluster pxed stores the permission. In a cluster it is an annotation, which agents and pxed cannot write. Either way it is
//! valid for one key and one hour (`heard::Evidence`). It may be for one boot alone. Called by the admin socket.

use bedplate_api::id::MachineName;
use bedplate_api::machine::RE_ENROLL_ANNOTATION;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::machines::{KnownMachine, Machines};
use crate::store::{Store, StoreError, Table};
use crate::system_of_record::SystemOfRecord;

/// Permission in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Allowed {
    /// UID of the Machine.
    pub(super) uid: String,
    /// Time of the permission.
    pub(super) time: Timestamp,
    /// Public ID of the only boot that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) boot: Option<String>,
}

/// Reason that no permission was given.
#[derive(Debug, Error)]
pub enum AllowKeyError {
    /// No such Machine.
    #[error("this pxed does not know a Machine {0:?} of this site")]
    NoMachine(String),
    /// The cluster's Machine has the permission.
    #[error("this pxed belongs to a cluster; write the permission to the Machine there")]
    UseKubernetesApi,
    /// The store failed.
    #[error("failed to store the permission")]
    Store(#[from] StoreError),
}

/// Gives permissions.
#[derive(Clone)]
pub struct Permissions {
    /// The index of Machines.
    pub machines: Machines,
    /// Store of permissions.
    pub store: Store,
    /// System with the permissions.
    pub record: SystemOfRecord,
}

impl Permissions {
    /// Allows another key to enroll for the Machine of this name, of a boot with this public ID if there is one. On disk when this returns.
    ///
    /// # Errors
    /// [`AllowKeyError`].
    pub async fn allow(&self, name: &str, boot: Option<String>, now: Timestamp) -> Result<(), AllowKeyError> {
        if !self.record.is_pxed() {
            return Err(AllowKeyError::UseKubernetesApi);
        }
        let known = name.parse().ok().and_then(|name| self.machines.load().by_name(&name).cloned());
        let known = known.ok_or_else(|| AllowKeyError::NoMachine(name.to_owned()))?;
        // Plain data with text keys: it always has a JSON form.
        let allowed = Allowed { uid: known.uid.clone(), time: now, boot };
        let value = serde_json::to_vec(&allowed).unwrap_or_default();
        self.store.put(Table::Certificates, permission_key(&known.name).as_bytes(), value).await?;
        tracing::info!(machine = %known.name, "another key allowed to enroll");
        Ok(())
    }
}

/// Returns the key of the permission's row.
pub(super) fn permission_key(name: &MachineName) -> String {
    format!("allowed/{name}")
}

/// Returns the time of the latest permission for this boot, by its public ID, or for any boot.
pub(super) fn latest_for(known: &KnownMachine, kept: Option<Allowed>, boot: &str) -> Option<Timestamp> {
    let is_for = |(_, only): &(Timestamp, Option<String>)| only.as_ref().is_none_or(|only| only == boot);
    given(known, kept).filter(is_for).map(|(time, _)| time).max()
}

/// Permissions: their times, and the boots that they are for. The annotation is a time, or time and public boot ID, in either
/// case, with a slash between them. Another text counts as no permission.
fn given(
    known: &KnownMachine,
    kept: Option<Allowed>,
) -> impl Iterator<Item = (Timestamp, Option<String>)> + use<> {
    let annotations = known.machine.metadata.annotations.as_ref();
    let annotated = annotations.and_then(|all| {
        let text = all.get(RE_ENROLL_ANNOTATION)?;
        let (time, boot) = match text.split_once('/') {
            Some((time, boot)) => (time, Some(boot.to_ascii_lowercase())),
            None => (text.as_str(), None),
        };
        Some((time.parse().ok()?, boot))
    });
    let kept = kept.filter(|kept| kept.uid == known.uid).map(|kept| (kept.time, kept.boot));
    annotated.into_iter().chain(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::Snapshot;
    use crate::machines::tests::machine;

    #[test]
    fn trust_6_annotation_names_its_boot_in_either_case() {
        let boot = "ab".repeat(16);
        for (named, is_for) in [
            (boot.clone(), true),
            (boot.to_ascii_uppercase(), true),
            ("cd".repeat(16), false),
            (String::new(), false),
        ] {
            let mut machine = machine("a", &["52:54:00:00:00:0a"]);
            let text = format!("2026-01-01T00:00:00Z/{named}");
            machine.metadata.annotations = Some([(RE_ENROLL_ANNOTATION.to_owned(), text)].into());
            let machines = Snapshot::build(&"default".parse().unwrap(), [machine]);
            let known = machines.by_name(&"a".parse().unwrap()).unwrap();
            assert_eq!(latest_for(known, None, &boot).is_some(), is_for, "{named}");
        }
    }
}
