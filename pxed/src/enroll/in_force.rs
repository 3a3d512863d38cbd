//! Pure: decides which key of a Machine is in force, by the row in pxed's store and by `status.enrollment`.
//!
//! Each pxed of a site has the rows of the keys that it enrolled itself; the status is common to all of them. So the later of the two
//! counts: the one with the higher number, for the clocks of several pxed differ. A lost row makes no old key good again, and an API
//! server that was restored from a backup shuts no newer key out. Called by `record`, `takeover` and `cluster`.

use std::cmp::Ordering;

use bedplate_api::enrollment::KeyId;
use bedplate_api::id::Digest;
use bedplate_api::machine::{EnrollmentStatus, MachineStatus, Time, condition_type};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::identity::Identity;
use crate::status::conditions::is_true;

/// Row of a Machine's key in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Certified {
    /// The Machine's UID: a row of an earlier Machine of this name counts for nothing.
    pub(crate) uid: String,
    /// The key.
    #[serde(flatten)]
    pub(crate) enrolled: EnrolledKey,
}

/// Record of a key that was enrolled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EnrolledKey {
    /// SHA-256 of the SubjectPublicKeyInfo.
    pub(crate) key: Digest,
    /// Time at which the key was enrolled last, in whole seconds as in the status.
    pub(crate) time: Timestamp,
    /// Number of the key among those of its Machine. 0: a pxed of an earlier release enrolled it.
    #[serde(default)]
    pub(crate) generation: i64,
    /// Time of the last permission that is used up.
    #[serde(default)]
    pub(crate) permission: Option<Timestamp>,
}

impl EnrolledKey {
    /// Reads the record in a status; `None`: it names no key.
    pub(crate) fn of(enrollment: Option<&EnrollmentStatus>) -> Option<Self> {
        let enrollment = enrollment?;
        let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
        Some(Self {
            key: enrollment.key_fingerprint?,
            time: time(&enrollment.key_time).unwrap_or(Timestamp::MIN),
            generation: enrollment.generation.unwrap_or_default(),
            permission: time(&enrollment.permission_time),
        })
    }

    /// Compares the record of a status with one of a row, the later one is greater. A pxed of an earlier release writes no number into the
    /// status: then only the times are left.
    pub(crate) fn cmp_row(&self, row: &Self) -> Ordering {
        match self.generation {
            0 => self.time.cmp(&row.time),
            generation => (generation, self.time).cmp(&(row.generation, row.time)),
        }
    }

    /// Time of the last permission that is used up. An earlier release kept none: there the enrollment used each one before it.
    pub(crate) fn used_permission(&self) -> Option<Timestamp> {
        self.permission.or_else(|| (self.generation == 0).then_some(self.time))
    }
}

/// The key in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InForce {
    /// Key with this digest.
    Key(Digest),
    /// Known by its certificate alone: a pxed of an earlier release wrote the status.
    Certificate,
    /// A key was enrolled, and its record is lost.
    Lost,
    /// No key is known to have been enrolled.
    Nothing,
}

/// Returns the later one of two records: the row of this very Machine, and its status.
pub(crate) fn latest(row: Option<&Certified>, status: &MachineStatus) -> Option<EnrolledKey> {
    let row = row.map(|row| &row.enrolled);
    match (row, EnrolledKey::of(status.enrollment.as_ref())) {
        (Some(row), Some(recorded)) if recorded.cmp_row(row).is_gt() => Some(recorded),
        (row, recorded) => row.cloned().or(recorded),
    }
}

/// Returns the key in force, by the row of this very Machine and by its status. `lost`: rows and statuses were lost with a damaged store.
pub(crate) fn in_force(row: Option<&Certified>, status: &MachineStatus, lost: bool) -> InForce {
    let certificate = status.enrollment.as_ref().and_then(|enrollment| enrollment.certificate_fingerprint);
    match latest(row, status) {
        Some(enrolled) => InForce::Key(enrolled.key),
        None if certificate.is_some() => InForce::Certificate,
        None if lost || has_enrolled(status) => InForce::Lost,
        None => InForce::Nothing,
    }
}

/// Returns true if this identity holds the key in force. `Nothing`: a certificate without any record of its key does not count. Each one is
/// recorded before it is handed out, so that the record was lost, as by a restore of the API server.
pub(crate) fn is_held_by(in_force: InForce, identity: &Identity, status: &MachineStatus) -> bool {
    match in_force {
        InForce::Key(key) => key == identity.key,
        InForce::Certificate => {
            let recorded =
                status.enrollment.as_ref().and_then(|enrollment| enrollment.certificate_fingerprint);
            recorded == Some(identity.certificate)
        }
        InForce::Lost | InForce::Nothing => false,
    }
}

/// Returns the record of a key for the status, without its certificate. Each certificate that is made now has the enrollment group of its key.
pub(crate) fn record(enrolled: &EnrolledKey) -> EnrollmentStatus {
    EnrollmentStatus {
        certificate_fingerprint: None,
        key_fingerprint: Some(enrolled.key),
        key_id: Some(KeyId::of_fingerprint(enrolled.key)),
        key_time: Some(Time(enrolled.time)),
        generation: (enrolled.generation > 0).then_some(enrolled.generation),
        permission_time: enrolled.permission.map(Time),
    }
}

/// Returns true if the status says that a host has enrolled.
fn has_enrolled(status: &MachineStatus) -> bool {
    status.agent.is_some() || is_true(status, condition_type::ENROLLED)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::enroll::csr::key_digest;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn key(name: &str) -> Digest {
        key_digest(name.as_bytes())
    }

    /// A key of an earlier release, which has no number.
    fn row(name: &str, second: i64) -> Certified {
        numbered(name, 0, second)
    }

    fn numbered(name: &str, generation: i64, second: i64) -> Certified {
        let enrolled = EnrolledKey { key: key(name), time: at(second), generation, permission: None };
        Certified { uid: "u".to_owned(), enrolled }
    }

    #[allow(clippy::needless_pass_by_value, reason = "rows of tables are written in place")]
    fn status(value: Value) -> MachineStatus {
        serde_json::from_value(value).unwrap()
    }

    #[allow(clippy::needless_pass_by_value, reason = "rows of tables are written in place")]
    fn status_with(certified: Certified) -> MachineStatus {
        MachineStatus { enrollment: Some(record(&certified.enrolled)), ..MachineStatus::default() }
    }

    #[test]
    fn trust_3_the_key_enrolled_last_is_in_force_at_every_pxed_of_the_site() {
        let fingerprint = || json!({ "enrollment": { "certificateFingerprint": key("certificate") } });
        let reports = || json!({ "agent": { "version": "1" } });
        for (row, status, expected) in [
            (Some(row("old", 10)), status_with(row("new", 20)), InForce::Key(key("new"))),
            (Some(row("new", 20)), status_with(row("old", 10)), InForce::Key(key("new"))),
            (Some(row("new", 20)), status_with(row("old", 20)), InForce::Key(key("new"))),
            (Some(row("own", 10)), MachineStatus::default(), InForce::Key(key("own"))),
            (Some(row("own", 10)), status(fingerprint()), InForce::Key(key("own"))),
            (None, status_with(row("new", 20)), InForce::Key(key("new"))),
            (None, status(fingerprint()), InForce::Certificate),
            (None, status(reports()), InForce::Lost),
            (None, MachineStatus::default(), InForce::Nothing),
        ] {
            assert_eq!(in_force(row.as_ref(), &status, false), expected, "{row:?} {status:?}");
        }
        assert_eq!(in_force(None, &MachineStatus::default(), true), InForce::Lost, "after a damaged store");
    }

    #[test]
    fn trust_3_a_new_key_counts_everywhere_whatever_the_clocks_say() {
        for (row, recorded_key, expected) in [
            // The pxed of the row was five minutes ahead.
            (numbered("old", 1, 300), numbered("new", 2, 180), "new"),
            (row("old", 300), numbered("new", 1, 180), "new"),
            // The API server was restored from a backup.
            (numbered("new", 2, 180), numbered("old", 1, 300), "new"),
            // A pxed of an earlier release writes no number: the times decide.
            (numbered("new", 2, 180), row("old", 100), "new"),
            (numbered("old", 2, 180), row("new", 300), "new"),
        ] {
            let status = status_with(recorded_key);
            let force = in_force(Some(&row), &status, false);
            assert_eq!(force, InForce::Key(key(expected)), "{row:?} {status:?}");
        }
    }

    #[test]
    fn rows_and_statuses_of_an_earlier_release_are_read() {
        let text = json!({ "uid": "u", "key": key("k"), "time": at(0).to_string() });
        assert_eq!(serde_json::from_value::<Certified>(text).unwrap(), row("k", 0));
        let kept = numbered("k", 7, 0);
        let text = serde_json::to_vec(&kept).unwrap();
        assert_eq!(serde_json::from_slice::<Certified>(&text).unwrap(), kept);
        let record = json!({ "keyFingerprint": key("k"), "keyTime": at(0).to_string() });
        let enrolled = EnrolledKey::of(Some(&serde_json::from_value(record).unwrap())).unwrap();
        assert_eq!(enrolled, row("k", 0).enrolled);
        assert_eq!(enrolled.used_permission(), Some(at(0)), "by its time");
        assert_eq!(kept.enrolled.used_permission(), None);
    }
}
