//! Slots below a temporary directory and sample records, for unit tests.

use bedplate_api::id::Digest;
use bedplate_api::machine::VersionRef;
use tempfile::TempDir;

use super::paths::Places;
use super::store::Slots;
use crate::model::{Record, Stage};

/// Makes slots below a new directory, which is removed with the returned guard.
pub(crate) fn slots() -> (TempDir, Slots) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let below = |name: &str| directory.path().join(name);
    let places = Places { state: below("state"), run: below("run"), machines: below("machines") };
    (directory, Slots::new(places))
}

/// Returns a record of version 3 of `workers`.
pub(crate) fn record(stage: Stage) -> Record {
    Record {
        version: VersionRef { name: "workers".to_owned(), version: 3 },
        template: "hash".to_owned(),
        image_digest: Digest::from_sha256([1; 32]),
        machine_uid: "uid".to_owned(),
        timeout_seconds: 600,
        min_ready_seconds: 30,
        generation: 0,
        claim: None,
        stage,
    }
}
