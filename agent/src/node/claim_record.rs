//! Record of the claim that this host holds, `claim.json` on the state disk: it survives agents and boots, and outlives the MachineClaim.
//!
//! ```text
//!   Preparing ──► Bootstrapping ──► Joined ──► Releasing ──► Released
//!       │               └─────► Failed ──────────►│ └──► Wiping ──► (no record: the disk is made again)
//!       └────────────────────────────────────────►│
//! ```
//! It is written before what it announces is done. Read and written by the node's loop; `plan::claim` decides by it.

use std::path::Path;

use bedplate_process::file::{FileError, read_json, write_json};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use crate::model::ProviderId;
pub use bedplate_api::claim::ReleasePolicy;

/// Name of the file, below `/var/lib/bedplate`.
const FILE: &str = "claim.json";

/// Claimant of the host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claimant {
    /// Namespace of the claimant.
    pub namespace: String,
    /// Name of the claimant.
    pub name: String,
}

/// The current or the last claim of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRecord {
    /// ID of the claim.
    #[serde(rename = "providerID")]
    pub provider_id: ProviderId,
    /// Claimant.
    pub claimant: Claimant,
    /// True if the claim names a Secret with user data.
    pub has_user_data: bool,
    /// UID of the claim object when it was accepted. Empty in a record of an earlier version.
    #[serde(default, rename = "claimUID", skip_serializing_if = "String::is_empty")]
    pub claim_uid: String,
    /// Cleanup at the release: the strongest one so far.
    #[serde(default)]
    pub release: ReleasePolicy,
    /// Time at which the stage was reached.
    pub since: Timestamp,
    /// Time at which the claim failed. It outlives the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Timestamp>,
    /// Parts of the user data that are not carried out, by their keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// Stage.
    pub stage: ClaimStage,
}

/// Stage of a claim on its host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum ClaimStage {
    /// The claim is accepted. Nothing of it has run.
    Preparing,
    /// The slot is filled, and may have been started.
    #[serde(rename_all = "camelCase")]
    Bootstrapping {
        /// The kernel's boot ID when the stage was reached.
        boot_id: String,
        /// Maximum time until the host has joined, in seconds.
        timeout_seconds: i64,
    },
    /// The host is a Node of the claimant's cluster, or its slot runs if there is no user data.
    #[serde(rename_all = "camelCase")]
    Joined {
        /// UID of the Node. None if there is no user data.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node_uid: Option<String>,
    },
    /// The host did not join. Its slot is stopped and kept.
    Failed {
        /// Cause.
        cause: FailureCause,
        /// Text for a user, with the end of the log. It has no secrets of the user data.
        message: String,
    },
    /// The claim has ended, by evidence.
    Releasing,
    /// Both slots are empty, and the host boots to be wiped. The record is lost with the disk, or with the
    /// boot.
    #[serde(rename_all = "camelCase")]
    Wiping {
        /// Token of the wipe.
        token: String,
        /// The kernel's boot ID when the stage was reached.
        boot_id: String,
    },
    /// Both slots are empty, and nothing else is due.
    Released,
}

/// Cause of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailureCause {
    /// The user data has a part that is not carried out. Nothing was started.
    UserDataRefused,
    /// The user data failed, or the host did not join in time.
    BootstrapFailed,
    /// The user data was started and did not end, or its result is lost.
    Interrupted,
}

impl ClaimRecord {
    /// Reads the record below `state`. None: this host has never held a claim.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged. It must not be taken for an absent record: its claim may have run.
    pub fn read(state: &Path) -> Result<Option<Self>, FileError> {
        read_json(&state.join(FILE))
    }

    /// Writes the record below `state`. On return it is on disk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, state: &Path) -> Result<(), FileError> {
        std::fs::create_dir_all(state).map_err(FileError::at("make", state))?;
        write_json(&state.join(FILE), self, 0o600)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(stage: ClaimStage) -> ClaimRecord {
        ClaimRecord {
            provider_id: "bedplate://host-1/u-1".to_owned().into(),
            claimant: Claimant { namespace: "team-a".to_owned(), name: "w-1".to_owned() },
            has_user_data: true,
            claim_uid: "c-1".to_owned(),
            release: ReleasePolicy::Wipe,
            since: Timestamp::UNIX_EPOCH,
            failed: None,
            refused: Vec::new(),
            stage,
        }
    }

    #[test]
    fn record_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("bedplate");
        assert_eq!(ClaimRecord::read(&state).unwrap(), None);
        for stage in [
            ClaimStage::Preparing,
            ClaimStage::Bootstrapping { boot_id: "b".to_owned(), timeout_seconds: 600 },
            ClaimStage::Joined { node_uid: Some("n".to_owned()) },
            ClaimStage::Joined { node_uid: None },
            ClaimStage::Failed { cause: FailureCause::Interrupted, message: "m".to_owned() },
            ClaimStage::Releasing,
            ClaimStage::Wiping { token: "c-1".to_owned(), boot_id: "b".to_owned() },
            ClaimStage::Released,
        ] {
            record(stage.clone()).write(&state).unwrap();
            assert_eq!(ClaimRecord::read(&state).unwrap(), Some(record(stage)));
        }
    }

    #[test]
    fn damaged_record_is_not_an_absent_one() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE), "{").unwrap();
        assert!(ClaimRecord::read(directory.path()).unwrap_err().is_damaged());
    }

    #[test]
    fn d1_failure_outlives_the_release() {
        let directory = tempfile::tempdir().unwrap();
        let failed = Some(Timestamp::UNIX_EPOCH);
        let released = ClaimRecord { failed, ..record(ClaimStage::Released) };
        released.write(directory.path()).unwrap();
        assert_eq!(ClaimRecord::read(directory.path()).unwrap(), Some(released));
    }

    #[test]
    fn record_has_the_fields_of_the_claim() {
        let value = serde_json::to_value(record(ClaimStage::Preparing)).unwrap();
        let expected = serde_json::json!({ "providerID": "bedplate://host-1/u-1", "hasUserData": true,
            "claimant": { "namespace": "team-a", "name": "w-1" }, "since": "1970-01-01T00:00:00Z", "stage": { "is": "preparing" },
            "claimUID": "c-1", "release": "Wipe" });
        assert_eq!(value, expected);
    }

    #[test]
    fn d7_record_of_an_earlier_version_is_emptied() {
        let earlier = serde_json::json!({ "providerID": "bedplate://host-1/u-1", "hasUserData": true, "since": "1970-01-01T00:00:00Z",
            "claimant": { "namespace": "team-a", "name": "w-1" }, "stage": { "is": "joined" } });
        let record: ClaimRecord = serde_json::from_value(earlier).unwrap();
        assert_eq!((record.claim_uid.as_str(), record.release), ("", ReleasePolicy::Empty));
    }
}
