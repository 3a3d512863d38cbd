//! What is answered to an agent: enrolment, renewal, report. Decides; `serve` has the socket, `signer` the key.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::id::{Digest, MachineName};
use bedplate_api::machine::{Address, AgentStatus, Hardware, MachineStatus, Time, condition_type};
use bedplate_api::wire::{EnrolRequest, EnrolResponse, RenewRequest, Report, Stage};
use bedplate_process::exit::chain;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::bounds;
use super::counters::{Counters, Enrolment, Reason, Renewal, Reported};
use super::identity::Identity;
use super::pace::{self, Asked, Paces};
use super::request::{CertificateRequest, ReadRequestError};
use super::signer::{SignError, Signed, Signer};
use super::standalone::StandIn;
use crate::boot::report::reason;
use crate::boot::seeds::CheckTokenError;
use crate::boot::{Boots, Owner, public_id};
use crate::counter::Label as _;
use crate::machine::Machines;
use crate::status::condition::condition;
use crate::status::{EventReason, StatusRegistry, set_condition};
use crate::store::{Store, Table};

/// Seconds between heartbeats.
pub const HEARTBEAT_SECONDS: u32 = 30;

/// Seconds before an agent asks again for a certificate that is not there yet.
const RETRY_SECONDS: u32 = 2;
/// The same of one that has a certificate yet: it is renewed long before it ends.
const RENEW_RETRY_SECONDS: u32 = 10;

/// By how much kube-controller-manager dates certificates back.
const CLUSTER_BACKDATES: SignedDuration = SignedDuration::from_mins(5);

/// What is kept of each Machine's certificate, so that one of a Machine that was made anew is not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Certified {
    uid: String,
    key: Digest,
    time: Timestamp,
}

/// A refusal.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub reason: Reason,
    /// The same for a person.
    pub message: String,
    /// How long to wait before the next try, where that is known.
    pub after: Option<Duration>,
}

pub(super) fn refused<T>(reason: Reason, message: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { reason, message: message.into(), after: None })
}

/// Answers agents.
pub struct Service {
    /// The index of Machines.
    pub machines: Machines,
    /// The boots, and the tokens of their seeds.
    pub boots: Boots,
    /// The statuses.
    pub registry: StatusRegistry,
    /// Where certificates are remembered.
    pub store: Store,
    /// What stands in for a cluster, where there is none.
    pub stand_in: Option<StandIn>,
    /// Who signs.
    pub signer: Arc<dyn Signer>,
    /// What is counted.
    pub counters: Arc<Counters>,
    /// How much each host may ask yet.
    pub paces: Paces,
}

impl Service {
    /// `POST /v1/enrol`.
    ///
    /// # Errors
    /// The refusal. A lost answer is no reason: the same token and key get it again.
    pub async fn enrol(&self, request: EnrolRequest, now: Timestamp) -> Result<EnrolResponse, Refused> {
        let decided = self.decide_enrolment(request, now).await;
        self.counters.enrolments.one(match &decided {
            Ok((how, _)) => *how,
            Err(_) => Enrolment::Refused,
        });
        decided.map(|(_, response)| response)
    }

    async fn decide_enrolment(
        &self,
        request: EnrolRequest,
        now: Timestamp,
    ) -> Result<(Enrolment, EnrolResponse), Refused> {
        let csr = CertificateRequest::read(&request.csr_pem).or_else(|error| bad_request(&error))?;
        let seeds = self.boots.seeds();
        let seed =
            seeds.check(request.boot_id, &request.token, &csr.key, now).or_else(|error| bad_token(&error))?;
        let Owner::Machine { name, uid } = seed.owner.clone() else {
            return refused(
                Reason::NotAMachine,
                "an unknown machine cannot enrol: make a Machine of its MAC address and boot it again",
            );
        };
        // Not before its token was found to be good: nobody else's is used up.
        pace::admit(&self.paces, (&name, &csr.key), Asked::Enrolment)?;
        self.check_machine(&name, Some(&uid))?;
        csr.check_subject((&name, &uid), self.signer.needs_whole_subject())
            .or_else(|error| bad_request(&error))?;
        seeds.claim(request.boot_id, csr.key).await.or_else(|error| bad_token(&error))?;
        // A lost answer is given again; its key does not become the current one again.
        if let Some(certificate) = seed.claim.and_then(|claim| claim.certificate) {
            return Ok((Enrolment::Repeated, self.enrolled(certificate)));
        }
        let certificate = match self.signer.sign((&name, &uid), &csr, &request.boot_id.to_string()).await {
            Ok(Signed::Certificate(certificate)) => certificate,
            Ok(Signed::Pending(reason)) => {
                let pending = EnrolResponse::Pending { reason, retry_seconds: RETRY_SECONDS };
                return Ok((Enrolment::Pending, pending));
            }
            Err(error) => return signer_failed(&name, &error),
        };
        let certified = Certified { uid: uid.clone(), key: csr.key, time: now };
        let certificate = match self.put_in_force(&name, &certified, certificate).await? {
            Signed::Certificate(certificate) => certificate,
            Signed::Pending(reason) => {
                let pending = EnrolResponse::Pending { reason, retry_seconds: RETRY_SECONDS };
                return Ok((Enrolment::Pending, pending));
            }
        };
        if let Err(error) = seeds.answer(request.boot_id, &certificate).await {
            return store_failed(&name, &error);
        }
        tracing::info!(machine = %name, boot = %public_id(request.boot_id), "host enrolled");
        let owner = Owner::Machine { name: name.clone(), uid };
        self.boots.owner_reached(&owner, request.boot_id, Stage::Enrolled, now);
        self.enrolled_by_hand(&name, now);
        self.take_facts(&name, request.agent_version, Some(request.facts), now);
        Ok((Enrolment::Enrolled, self.enrolled(certificate)))
    }

    /// A host that pxed did not boot is enrolled: no boot's timeline says so.
    fn enrolled_by_hand(&self, name: &MachineName, now: Timestamp) {
        if self.machines.load().netbooted(name).is_some() {
            return;
        }
        let message = "the host is enrolled by a token of a person's";
        self.registry.update(name, |status| {
            set_condition(status, condition_type::ENROLLED, true, reason::ENROLLED, message, now);
        });
        self.registry.event(name, EventReason::Enrolled, message);
    }

    /// `POST /v1/renew`, by an agent that showed its certificate.
    ///
    /// # Errors
    /// The refusal.
    pub async fn renew(
        &self,
        identity: &Identity,
        request: RenewRequest,
        now: Timestamp,
    ) -> Result<EnrolResponse, Refused> {
        let decided = self.decide_renewal(identity, request, now).await;
        self.counters.renewals.one(match &decided {
            Ok(EnrolResponse::Pending { .. }) => Renewal::Pending,
            Ok(EnrolResponse::Enrolled { .. } | EnrolResponse::Challenge { .. }) => Renewal::Renewed,
            Err(_) => Renewal::Refused,
        });
        decided
    }

    async fn decide_renewal(
        &self,
        identity: &Identity,
        request: RenewRequest,
        now: Timestamp,
    ) -> Result<EnrolResponse, Refused> {
        let name = &identity.machine;
        let uid = self.check_identity(identity).await?;
        let csr = CertificateRequest::read(&request.csr_pem).or_else(|error| bad_request(&error))?;
        if csr.key != identity.key {
            return refused(
                Reason::OtherKey,
                "a certificate is renewed for the key that it has; a new key needs a new boot",
            );
        }
        csr.check_subject((name, &uid), self.signer.needs_whole_subject())
            .or_else(|error| bad_request(&error))?;
        let mut signed = match self.signer.sign((name, &uid), &csr, &identity.serial).await {
            Ok(signed) => signed,
            Err(error) => return signer_failed(name, &error),
        };
        if let Signed::Certificate(certificate) = signed {
            // The signer may have taken its time: another key may be enrolled by now.
            self.check_identity(identity).await?;
            let certified = Certified { uid, key: csr.key, time: now };
            signed = self.put_in_force(name, &certified, certificate).await?;
        }
        match signed {
            Signed::Certificate(certificate) => {
                tracing::info!(machine = %name, "certificate renewed");
                Ok(self.enrolled(certificate))
            }
            Signed::Pending(reason) => {
                Ok(EnrolResponse::Pending { reason, retry_seconds: RENEW_RETRY_SECONDS })
            }
        }
    }

    /// Remembers whose certificate it is, here and where else it is taken; nobody has it yet.
    async fn put_in_force(
        &self,
        name: &MachineName,
        certified: &Certified,
        certificate: String,
    ) -> Result<Signed, Refused> {
        self.remember(name, certified).await?;
        match self.signer.put_in_force((name, &certified.uid), certificate).await {
            Ok(signed) => Ok(signed),
            Err(error) => signer_failed(name, &error),
        }
    }

    /// `POST /v1/report`, by an agent that showed its certificate.
    ///
    /// # Errors
    /// The refusal.
    pub async fn report(&self, identity: &Identity, report: Report, now: Timestamp) -> Result<(), Refused> {
        let taken = self.take_report(identity, report, now).await;
        self.counters.reports.one(if taken.is_ok() { Reported::Taken } else { Reported::Refused });
        taken
    }

    async fn take_report(&self, identity: &Identity, report: Report, now: Timestamp) -> Result<(), Refused> {
        let name = &identity.machine;
        let uid = self.check_identity(identity).await?;
        if let Some(boot) = report.boot_id {
            let owner = Owner::Machine { name: name.clone(), uid };
            self.boots.owner_reached(&owner, boot, Stage::Enrolled, now);
        }
        let addresses = Address::of_host(name, &report.addresses);
        let kernel = bounds::cut(report.kernel_boot_id, bounds::WORD);
        let state_disk = report.state_disk.map(bounds::state_disk);
        self.heard(name, now);
        self.registry.update(name, |status| {
            status.addresses = addresses;
            status.state_disk = state_disk;
            status.agent.get_or_insert_default().boot_id = Some(kernel);
        });
        self.take_facts(name, report.agent_version, report.facts, now);
        Ok(())
    }

    /// A host that has its certificate is enrolled, also where nothing says so any more: its Machine was away for a while, or the store
    /// was lost. In a cluster the object says so.
    fn heard(&self, name: &MachineName, now: Timestamp) {
        let known = |status: &MachineStatus| condition(status, condition_type::ENROLLED).is_some();
        if self.stand_in.is_none() || self.registry.read(name, known) == Some(true) {
            return;
        }
        let message = "the host's agent reports by the certificate that it enrolled for";
        self.registry.update(name, |status| {
            set_condition(status, condition_type::ENROLLED, true, reason::ENROLLED, message, now);
        });
    }

    /// Lets an agent that showed its certificate ask for what is under this path.
    ///
    /// # Errors
    /// It asks too often.
    pub fn admit(&self, identity: &Identity, path: &str) -> Result<(), Refused> {
        pace::admit(&self.paces, (&identity.machine, &identity.key), Asked::by(path))
    }

    fn enrolled(&self, certificate_pem: String) -> EnrolResponse {
        EnrolResponse::Enrolled {
            certificate_pem,
            kubernetes: self.signer.kubernetes(),
            heartbeat_seconds: HEARTBEAT_SECONDS,
        }
    }

    /// The Machine's UID as it is now, if it is still the one that `uid` names.
    fn check_machine(&self, name: &MachineName, uid: Option<&str>) -> Result<String, Refused> {
        match self.machines.load().by_name(name) {
            Some(known) if uid.is_none_or(|uid| uid == known.uid) => Ok(known.uid.clone()),
            Some(_) | None => refused(
                Reason::MachineGone,
                format!("Machine {name} is no longer known here, or was made anew: boot the host again"),
            ),
        }
    }

    /// The Machine's UID, if this is its agent of now: the Machine is the one that was enrolled, and so is the key.
    pub(super) async fn check_identity(&self, identity: &Identity) -> Result<String, Refused> {
        let key = certificate_key(&identity.machine).into_bytes();
        let kept = match self.store.fetch(Table::Certificates, key).await {
            Ok(kept) => kept.and_then(|bytes| serde_json::from_slice::<Certified>(&bytes).ok()),
            Err(error) => return store_failed(&identity.machine, &error),
        };
        // Without an entry (a store that was lost) the certificate alone counts.
        let uid = self.check_machine(&identity.machine, kept.as_ref().map(|kept| kept.uid.as_str()))?;
        self.check_machine(&identity.machine, identity.uid.as_deref())?;
        if kept.is_none() && identity.uid.is_none() {
            self.check_age(identity)?;
        }
        if kept.is_some_and(|kept| kept.key != identity.key) {
            return refused(
                Reason::KeyReplaced,
                format!(
                    "another key was enrolled for Machine {} since: boot the host again",
                    identity.machine
                ),
            );
        }
        Ok(uid)
    }

    /// Whether the Machine was there already when a certificate was made that names no UID, as the cluster's do.
    fn check_age(&self, identity: &Identity) -> Result<(), Refused> {
        let machines = self.machines.load();
        let created = machines.by_name(&identity.machine).and_then(|known| {
            let created = known.machine.metadata.creation_timestamp.as_ref()?;
            Some(created.0)
        });
        let made = identity.not_before.saturating_add(CLUSTER_BACKDATES).unwrap_or(identity.not_before);
        if created.is_none_or(|created| created <= made) {
            return Ok(());
        }
        refused(
            Reason::MachineGone,
            format!("Machine {} was made anew since: boot the host again", identity.machine),
        )
    }

    async fn remember(&self, name: &MachineName, certified: &Certified) -> Result<(), Refused> {
        // Plain data with text keys: it always has a JSON form.
        let value = serde_json::to_vec(certified).unwrap_or_default();
        let put = self.store.put(Table::Certificates, certificate_key(name).as_bytes(), value).await;
        put.or_else(|error| store_failed(name, &error))
    }

    fn take_facts(&self, name: &MachineName, version: String, hardware: Option<Hardware>, now: Timestamp) {
        let version = bounds::cut(version, bounds::WORD);
        let hardware = hardware.map(bounds::hardware);
        self.registry.update(name, |status| {
            let agent = status.agent.get_or_insert_with(AgentStatus::default);
            agent.version = Some(version);
            agent.last_heartbeat = Some(Time(now));
            if let Some(mut hardware) = hardware {
                // The BMC is pxed's own to tell.
                hardware.bmc = status.hardware.take().and_then(|before| before.bmc);
                status.hardware = Some(hardware);
            }
        });
    }
}

fn certificate_key(name: &MachineName) -> String {
    format!("machine/{name}")
}

fn bad_request<T>(error: &ReadRequestError) -> Result<T, Refused> {
    refused(Reason::BadCertificateRequest, chain(error))
}

fn bad_token<T>(error: &CheckTokenError) -> Result<T, Refused> {
    let reason = match error {
        CheckTokenError::UnknownBoot => Reason::UnknownBoot,
        CheckTokenError::WrongToken => Reason::WrongToken,
        CheckTokenError::Expired(_) => Reason::TokenExpired,
        CheckTokenError::Used => Reason::TokenUsed,
        CheckTokenError::Store(_) => Reason::StoreFailed,
    };
    tracing::warn!(reason = reason.word(), "an enrolment was refused");
    refused(reason, format!("{}: boot the host again for a fresh token", chain(error)))
}

fn signer_failed<T>(name: &MachineName, error: &SignError) -> Result<T, Refused> {
    let text = chain(error);
    tracing::error!(machine = %name, error = text, "a certificate could not be signed");
    refused(Reason::SignerFailed, text)
}

fn store_failed<T>(name: &MachineName, error: &crate::store::StoreError) -> Result<T, Refused> {
    tracing::error!(machine = %name, error = chain(error), "the store failed in an enrolment");
    refused(Reason::StoreFailed, "pxed cannot write to its store: see its log")
}
