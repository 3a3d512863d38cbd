//! Records of the keys in force: the row in the store and `status.enrollment`. Checks that a shown certificate is by the key in force.
//!
//! Part of [`Service`]. `in_force` interprets the records.

use bedplate_api::id::{BootId, Digest, MachineName};
use bedplate_api::machine::MachineStatus;
use bedplate_api::reason::event::PxedEvent;
use bedplate_api::reason::refusal::AgentRefusal;
use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;

use super::alarm::Alarm;
use super::authority::BACKDATED_PERIOD;
use super::identity::Identity;
use super::in_force::{Certified, EnrolledKey, InForce, in_force, is_held_by, latest, record};
use super::permission::{self, Allowed, permission_key};
use super::service::{Refused, Service, refused, store_failed};
use super::signer::{Expected, KeyRecord, SignError, Signed};
use crate::heard::is_ahead;
use crate::machines::KnownMachine;
use crate::store::{Change, Table};
use crate::system_of_record::SystemOfRecord;

/// Time by which kube-controller-manager dates certificates back.
const CLUSTER_BACKDATES: SignedDuration = SignedDuration::from_mins(5);

impl Service {
    /// Reads the row of a Machine's key. A row that cannot be read is an error: it may name a key that excludes this one.
    pub(super) async fn row(&self, name: &MachineName) -> Result<Option<Certified>, Refused> {
        self.read_row(name, certificate_key(name)).await
    }

    /// Reads the permission for another key of a Machine.
    pub(super) async fn permission(&self, name: &MachineName) -> Result<Option<Allowed>, Refused> {
        self.read_row(name, permission_key(name)).await
    }

    async fn read_row<T: DeserializeOwned>(
        &self,
        name: &MachineName,
        key: String,
    ) -> Result<Option<T>, Refused> {
        let bytes = match self.store.fetch(Table::Certificates, key.clone().into_bytes()).await {
            Ok(bytes) => bytes,
            Err(error) => return store_failed(name, &error),
        };
        let Some(bytes) = bytes else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).or_else(|error| {
            tracing::error!(machine = %name, row = key, %error, "failed to read a record of an enrollment");
            let message =
                format!("pxed's record of the key of Machine {name} is damaged; boot the host again");
            refused(AgentRefusal::StoreFailed, message)
        })
    }

    /// Returns the status with a Machine's enrollment: the object's in a cluster, otherwise pxed's own.
    pub(super) fn enrollment_status(&self, known: &KnownMachine) -> MachineStatus {
        let of = |status: &MachineStatus| MachineStatus {
            enrollment: status.enrollment.clone(),
            agent: status.agent.clone(),
            conditions: status.conditions.clone(),
            ..MachineStatus::default()
        };
        let status = match self.heard.record() {
            SystemOfRecord::Pxed => self.registry.read(&known.name, of),
            SystemOfRecord::Cluster => known.machine.status.as_ref().map(of),
        };
        status.unwrap_or_default()
    }

    /// Returns the Machine's UID if this is its agent: the Machine is the one that was enrolled, and the key is the one in force.
    pub(crate) async fn check_identity(&self, identity: &Identity) -> Result<String, Refused> {
        let name = &identity.machine;
        let known = self.check_machine(name, identity.uid.as_deref())?;
        let row = self.row(name).await?;
        let is_own = |row: &&Certified| row.uid == known.uid;
        let is_foreign = row.as_ref().is_some_and(|row| row.uid != known.uid);
        let status = self.enrollment_status(&known);
        let force = self.in_force(row.as_ref().filter(is_own), &status);
        if is_foreign && matches!(force, InForce::Nothing | InForce::Lost) {
            return self.machine_gone(name);
        }
        if identity.uid.is_none() && matches!(force, InForce::Nothing | InForce::Certificate) {
            self.check_age(identity, &known)?;
        }
        if !is_held_by(force, identity, &status) {
            return self.key_replaced(identity, force, row.map(|row| row.enrolled.time));
        }
        Ok(known.uid.clone())
    }

    /// The key in force. In a cluster the statuses outlive pxed's store.
    pub(super) fn in_force(&self, row: Option<&Certified>, status: &MachineStatus) -> InForce {
        in_force(row, status, self.heard.record().is_pxed() && self.store.was_lost())
    }

    /// [`Self::check_identity`] of an agent that asks now: its host is heard. It is heard, too, if it is refused because pxed has lost the
    /// record of its key.
    pub(crate) async fn hear(&self, identity: &Identity) -> Result<String, Refused> {
        let uid = self.check_identity(identity).await?;
        if let Some(known) = self.machines.load().by_name(&identity.machine) {
            self.heard.request(known, Timestamp::now());
        }
        Ok(uid)
    }

    /// Keeps other new keys out while a host of which pxed has no record asks with a certificate of pxed's own authority. The certificate
    /// gives no other right: it may be that of an earlier key.
    fn hear_unrecorded(&self, identity: &Identity) {
        let machines = self.machines.load();
        let known = machines.by_name(&identity.machine).filter(|_| self.heard.record().is_pxed());
        if let Some(known) = known {
            self.heard.unrecorded(known, identity.key, Timestamp::now());
        }
    }

    /// `recorded`: time of the key that the store names.
    fn key_replaced<T>(
        &self,
        identity: &Identity,
        force: InForce,
        recorded: Option<Timestamp>,
    ) -> Result<T, Refused> {
        let name = &identity.machine;
        // A certificate that is younger than the record: the store comes from a backup, and the host may be the Machine's.
        let made = identity.not_before.saturating_add(BACKDATED_PERIOD).unwrap_or(identity.not_before);
        if matches!(force, InForce::Key(_)) && recorded.is_some_and(|recorded| made > recorded) {
            self.hear_unrecorded(identity);
        }
        let (event, message) = match force {
            InForce::Lost | InForce::Nothing => {
                self.hear_unrecorded(identity);
                (
                    "a host reports or renews with a key of which pxed has no record, and is refused",
                    format!("pxed has lost its record of the key of Machine {name}: boot the host again"),
                )
            }
            InForce::Key(_) | InForce::Certificate => (
                "a host with an earlier key of this Machine reports or renews, and is refused",
                format!("another key was enrolled for Machine {name} since: boot the host again"),
            ),
        };
        self.alarm(&Alarm {
            event: PxedEvent::KeyReplaced,
            machine: Some(name),
            boot: None,
            peer: identity.peer,
            message: event.to_owned(),
        });
        refused(AgentRefusal::KeyReplaced, message)
    }

    /// Checks that the Machine existed when its certificate was made. Certificates of the cluster name no UID.
    fn check_age(&self, identity: &Identity, known: &KnownMachine) -> Result<(), Refused> {
        let created = known.machine.metadata.creation_timestamp.as_ref().map(|created| created.0);
        let made = identity.not_before.saturating_add(CLUSTER_BACKDATES).unwrap_or(identity.not_before);
        if created.is_none_or(|created| created <= made) { Ok(()) } else { self.machine_gone(&known.name) }
    }

    /// Returns the record of a key that is enrolled now, or again, by this boot. Without a boot it is a renewal: a key in force keeps its time,
    /// and no permission is used up.
    pub(super) async fn certified(
        &self,
        known: &KnownMachine,
        key: Digest,
        (boot, now): (Option<BootId>, Timestamp),
    ) -> Certified {
        // A damaged row is written again.
        let row = self.row(&known.name).await.ok().flatten().filter(|row| row.uid == known.uid);
        let before = latest(row.as_ref(), &self.enrollment_status(known));
        let time = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let enrolled = match before {
            Some(same) if same.key == key && boot.is_none() => same,
            Some(same) if same.key == key => {
                let permission = self.used_permission(known, Some(&same), (boot, now)).await;
                EnrolledKey { time, permission, ..same }
            }
            before => {
                let generation = before.as_ref().map_or(0, |before| before.generation).saturating_add(1);
                let permission = self.used_permission(known, before.as_ref(), (boot, now)).await;
                EnrolledKey { key, time, generation, permission }
            }
        };
        Certified { uid: known.uid.clone(), enrolled }
    }

    /// Returns the time of the last permission that is used up. An enrollment uses each permission up that is for its boot or for any boot,
    /// whether it needed one or not.
    async fn used_permission(
        &self,
        known: &KnownMachine,
        before: Option<&EnrolledKey>,
        (boot, now): (Option<BootId>, Timestamp),
    ) -> Option<Timestamp> {
        // One that cannot be read has permitted nothing.
        let kept = self.permission(&known.name).await.ok().flatten();
        let given = boot.and_then(|boot| permission::latest_for(known, kept, &boot.public_id().to_string()));
        let used = before.and_then(|before| before.permission);
        // One of the future was given before the clock was set back: it permits nothing now, and would use up all that come.
        [given, used].into_iter().flatten().filter(|at| !is_ahead(*at, now)).max()
    }

    /// Makes the signer put a key in force, before its agent has the certificate and before the row is written: the index may lag behind
    /// another pxed, and the cluster compares.
    pub(super) async fn put_in_force(
        &self,
        name: &MachineName,
        certified: &Certified,
        expected: Expected,
        certificate: String,
    ) -> Result<Signed, Refused> {
        let key = KeyRecord { enrollment: record(&certified.enrolled), expected };
        match self.signer.put_in_force((name, &certified.uid), key, certificate).await {
            Ok(signed) => Ok(signed),
            Err(error @ SignError::Replaced(_)) => refused(AgentRefusal::KeyReplaced, error.to_string()),
            Err(error) => self.signer_failed(name, &error),
        }
    }

    /// Tells the status of a key whose row is on disk.
    pub(super) fn tell_certified(&self, name: &MachineName, certified: &Certified) {
        if self.heard.record().is_pxed() {
            self.registry.update(name, |status| status.enrollment = Some(record(&certified.enrolled)));
        }
    }
}

/// The row of a Machine's key.
pub(super) fn row_of(name: &MachineName, certified: &Certified) -> Change {
    // Plain data with text keys: it always has a JSON form.
    let value = serde_json::to_vec(certified).unwrap_or_default();
    Change::Put(Table::Certificates, certificate_key(name).into_bytes(), value)
}

fn certificate_key(name: &MachineName) -> String {
    format!("machine/{name}")
}
