//! Place of the host's state, and the request to make the state disk again with the next boot (D7).
//!
//! The request is on the state disk itself. Stage-1 reads it with the record of the claim
//! (`stage1::state_disk`), and the wipe removes it. Called by `observe_claim` and `apply`.

use std::path::{Path, PathBuf};

use bedplate_process::file::{FileError, read_json, remove_optional, write_json};

use crate::stage1::handover::{BOOT_FACTS, BootFacts, StateFacts};
use crate::stage1::new_root::STATE;
use crate::stage1::state_plan::{RequestedWipe, WIPE_REQUEST};

/// Place of the host's state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostState {
    /// State on a state disk. Stage-1 can make it again.
    Disk {
        /// Token of the wipe that made the disk. None: no wipe did.
        wipe_token: Option<String>,
    },
    /// State in memory: it ends with the boot.
    Memory,
    /// State on the disk of an installed host, which pxed does not boot.
    Installed,
}

impl HostState {
    /// Reads what stage-1 has left below `root`. Boot facts that cannot be read count as none: nothing is wiped then.
    pub fn read(root: &Path) -> Self {
        match read_json::<BootFacts>(&below(root, BOOT_FACTS)) {
            Ok(Some(BootFacts { state: StateFacts::Disk { wipe_token, .. }, .. })) => {
                Self::Disk { wipe_token }
            }
            Ok(Some(BootFacts { state: StateFacts::Memory, .. })) => Self::Memory,
            Ok(None) | Err(_) => Self::Installed,
        }
    }

    /// Returns true if this wipe has made the disk.
    pub(crate) fn has_used(&self, token: &str) -> bool {
        matches!(self, Self::Disk { wipe_token: Some(used) } if used == token)
    }
}

/// Requests that the next boot makes the state disk again. On return the request is on the disk.
///
/// # Errors
/// The file cannot be written.
pub fn request_wipe(root: &Path, token: &str) -> Result<(), FileError> {
    // A directory in its place would refuse the file.
    withdraw_wipe(root)?;
    let request = RequestedWipe { token: token.to_owned() };
    write_json(&below(root, STATE).join(WIPE_REQUEST), &request, 0o600)
}

/// Withdraws the request of a wipe, if there is one. Each record, and each start of a slot, ends the request of an earlier record. A directory in
/// its place, which a former tenant may have left, is removed.
///
/// # Errors
/// The file cannot be removed.
pub(crate) fn withdraw_wipe(root: &Path) -> Result<(), FileError> {
    let path = below(root, STATE).join(WIPE_REQUEST);
    if std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
        return std::fs::remove_dir_all(&path).map_err(FileError::at("remove", &path));
    }
    remove_optional(&path)
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use bedplate_api::wire::WipeRequest;
    use serde_json::json;

    use super::*;
    use crate::node::claim_record::{ClaimRecord, ClaimStage, Claimant, ReleasePolicy};
    use crate::stage1::state_disk::tests::Disk;
    use crate::stage1::state_plan::CLAIM_RECORD;

    #[test]
    fn d7_place_of_the_state_is_read_from_the_boot_facts() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(HostState::read(root.path()), HostState::Installed);
        let facts = below(root.path(), BOOT_FACTS);
        std::fs::create_dir_all(facts.parent().unwrap()).unwrap();
        let boot = |state: serde_json::Value| {
            let digest = format!("sha256:{}", "01".repeat(32));
            let boot = json!({ "machine": "node-1", "site": "default", "bootId": "ab".repeat(16), "bootUrl": "http://10.7.0.1/",
                "interface": "eth0", "mac": "52:54:00:00:00:01", "address": "10.7.0.9", "dhcpServer": "10.7.0.1", "rootfs": digest,
                "state": state, "failures": 0, "clockWasSet": false });
            std::fs::write(&facts, boot.to_string()).unwrap();
            HostState::read(root.path())
        };
        assert_eq!(boot(json!({ "kind": "memory" })), HostState::Memory);
        let disk = |token: serde_json::Value| json!({ "kind": "disk", "device": "/dev/vda", "made": false, "wipeToken": token });
        assert_eq!(boot(disk(json!(null))), HostState::Disk { wipe_token: None });
        let wiped = boot(disk(json!("claim-1")));
        assert_eq!(wiped, HostState::Disk { wipe_token: Some("claim-1".to_owned()) });
        assert!(wiped.has_used("claim-1") && !wiped.has_used("claim-2"));
        std::fs::write(&facts, "{").unwrap();
        assert_eq!(HostState::read(root.path()), HostState::Installed);
    }

    #[test]
    fn d7_request_of_a_wipe_lies_on_the_state_disk() {
        let root = tempfile::tempdir().unwrap();
        let disk = below(root.path(), STATE);
        assert!(request_wipe(root.path(), "claim-1").is_err(), "there is no state disk");
        std::fs::create_dir_all(&disk).unwrap();
        request_wipe(root.path(), "claim-1").unwrap();
        let request: RequestedWipe = read_json(&disk.join(WIPE_REQUEST)).unwrap().unwrap();
        assert_eq!(request.token, "claim-1");
        for _ in 0..2 {
            withdraw_wipe(root.path()).unwrap();
            assert!(!disk.join(WIPE_REQUEST).exists());
        }
    }

    #[test]
    fn d7_directory_in_place_of_a_request_is_withdrawn() {
        let root = tempfile::tempdir().unwrap();
        let path = below(root.path(), STATE).join(WIPE_REQUEST);
        std::fs::create_dir_all(path.join("nested")).unwrap();
        withdraw_wipe(root.path()).unwrap();
        assert!(!path.exists());
        std::fs::create_dir_all(path.join("nested")).unwrap();
        request_wipe(root.path(), "claim-1").unwrap();
        let request: RequestedWipe = read_json(&path).unwrap().unwrap();
        assert_eq!(request.token, "claim-1");
    }

    /// Writes the record as the agent does, below the bind mount of the state disk.
    fn record(disk: &Disk, stage: ClaimStage) {
        let record = ClaimRecord {
            provider_id: "bedplate://node-1/u-1".to_owned().into(),
            claimant: Claimant { namespace: "team-a".to_owned(), name: "w-1".to_owned() },
            has_user_data: true,
            claim_uid: "claim-1".to_owned(),
            release: ReleasePolicy::Wipe,
            since: jiff::Timestamp::UNIX_EPOCH,
            failed: None,
            refused: Vec::new(),
            stage,
        };
        record.write(&disk.target().join("bedplate")).unwrap();
    }

    /// Boots with the disk. Returns true if it was made, and the token that it remembers.
    fn boot(disk: &Disk) -> (bool, Option<String>) {
        let mounted = disk.prepare("node-1", WipeRequest::IfBlank).unwrap();
        (mounted.made, mounted.marker.wipe_token)
    }

    fn wiping() -> ClaimStage {
        ClaimStage::Wiping { token: "claim-1".to_owned(), boot_id: "b".to_owned() }
    }

    #[test]
    fn d7_disk_is_wiped_by_the_files_that_the_agent_writes() {
        let (disk, token) = (Disk::new(|_| {}), Some("claim-1".to_owned()));
        assert_eq!(boot(&disk), (true, None));
        std::fs::write(disk.target().join("left by a tenant"), "x").unwrap();
        record(&disk, wiping());
        disk.unmount();
        assert_eq!(boot(&disk), (false, None), "nothing is requested");
        request_wipe(disk.root(), "claim-1").unwrap();
        let lost_power = disk.bytes();
        disk.unmount();
        for disk in [disk, Disk::new(|path| std::fs::write(path, &lost_power).unwrap())] {
            for made in [true, false] {
                assert_eq!(boot(&disk), (made, token.clone()));
                for gone in ["left by a tenant", WIPE_REQUEST, CLAIM_RECORD] {
                    assert!(!disk.target().join(gone).exists(), "{gone}");
                }
                disk.unmount();
            }
        }
    }

    #[test]
    fn d7_disk_is_kept_once_the_agent_has_another_record_or_no_request() {
        let disk = Disk::new(|_| {});
        boot(&disk);
        std::fs::write(disk.target().join("kept"), "x").unwrap();
        for stage in [ClaimStage::Preparing, ClaimStage::Releasing, ClaimStage::Released] {
            record(&disk, wiping());
            request_wipe(disk.root(), "claim-1").unwrap();
            record(&disk, stage);
            disk.unmount();
            assert_eq!(boot(&disk), (false, None));
        }
        record(&disk, wiping());
        withdraw_wipe(disk.root()).unwrap();
        disk.unmount();
        assert_eq!(boot(&disk), (false, None));
        assert!(disk.target().join("kept").exists());
    }
}
