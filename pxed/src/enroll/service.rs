//! Answers to agents: enrollment, renewal, report. Decides; `serve` owns the socket, `signer` the key.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::id::{BootId, Digest, MachineName};
use bedplate_api::machine::{Address, AgentStatus, Hardware, MachineStatus, Time};
use bedplate_api::reason::event::PxedEvent;
use bedplate_api::reason::machine::EnrolledReason;
use bedplate_api::reason::refusal::AgentRefusal;
use bedplate_api::wire::{EnrollRequest, EnrollResponse, RenewRequest, Report, Stage};
use bedplate_process::exit::chain;
use jiff::Timestamp;

use super::alarm::Alarm;
use super::counters::{Counters, Enrollment, Renewal, Reported};
use super::csr::{CertificateRequest, ReadRequestError};
use super::identity::Identity;
use super::in_force::InForce;
use super::plane::AgentPlane;
use super::rate_limit::{self, Asked, Paces};
use super::record::row_of;
use super::report_filter;
use super::signer::{Expected, SignError, Signed, Signer};
use super::takeover::{Admission, Candidate};
use super::turn::Turns;
use crate::boot::issued_seeds::{CheckTokenError, hash};
use crate::boot::report::tell_heard;
use crate::boot::{Boots, Owner};
use crate::heard::Heard;
use crate::machines::{KnownMachine, Machines};
use crate::status::{StatusRegistry, set_condition};
use crate::store::Store;

/// Seconds between heartbeats.
pub const HEARTBEAT_SECONDS: u32 = 30;

/// Seconds before an agent asks again for a certificate that is not there yet.
const RETRY_SECONDS: u32 = 2;
/// Seconds before an agent asks again for a renewed certificate: its present one is valid for a long time yet.
const RENEW_RETRY_SECONDS: u32 = 10;

/// A refusal.
#[derive(Debug)]
pub struct Refused {
    /// Reason of the refusal.
    pub reason: AgentRefusal,
    /// Human-readable form of the reason.
    pub message: String,
    /// Delay before the next attempt, if it is known.
    pub after: Option<Duration>,
}

pub(crate) fn refused<T>(reason: AgentRefusal, message: impl Into<String>) -> Result<T, Refused> {
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
    /// Store of certificates.
    pub store: Store,
    /// Agent API of the plane.
    pub plane: Arc<dyn AgentPlane>,
    /// Signer of certificates.
    pub signer: Arc<dyn Signer>,
    /// Counters of agents.
    pub counters: Arc<Counters>,
    /// Remaining allowance of each host.
    pub paces: Paces,
    /// Requests and heartbeats by the keys in force.
    pub heard: Heard,
    /// Machines whose key is being written.
    pub turns: Turns,
    /// True without a cluster if the store is younger than the authority: the record of a key that is in force may have been lost.
    pub listens_first: bool,
}

impl Service {
    /// Handles `POST /v1/enroll` of a host at `peer`.
    ///
    /// # Errors
    /// The refusal. After a lost answer the same token and key get the same answer again.
    pub async fn enroll(
        &self,
        request: EnrollRequest,
        peer: IpAddr,
        now: Timestamp,
    ) -> Result<EnrollResponse, Refused> {
        let decided = self.decide_enrollment(request, peer, now).await;
        self.counters.enrollments.one(match &decided {
            Ok((how, _)) => *how,
            Err(_) => Enrollment::Refused,
        });
        decided.map(|(_, response)| response)
    }

    async fn decide_enrollment(
        &self,
        request: EnrollRequest,
        peer: IpAddr,
        now: Timestamp,
    ) -> Result<(Enrollment, EnrollResponse), Refused> {
        let (seeds, boot) = (self.boots.seeds(), request.boot_id);
        // The token is checked first: a request is cheap for its client, and a signature is expensive for pxed.
        let seed = seeds.check(boot, &request.token, now);
        let seed = seed.or_else(|error| self.bad_token(boot, peer, &error))?;
        let csr = CertificateRequest::read(&request.csr_pem).or_else(|error| bad_request(&error))?;
        seed.check_key(&csr.key).or_else(|error| self.bad_token(boot, peer, &error))?;
        let Owner::Machine { name, uid } = seed.owner.clone() else {
            return refused(
                AgentRefusal::UnknownMachine,
                "an unknown machine cannot enroll; create a Machine with its MAC address, then boot it again",
            );
        };
        // Counted after the token was verified, so that a client without it cannot use up the allowance.
        rate_limit::admit(&self.paces, (&name, &hash(&boot.to_string())), Asked::Enrollment)?;
        let known = self.check_machine(&name, Some(&uid))?;
        csr.check_subject((&name, &uid), self.signer.needs_whole_subject())
            .or_else(|error| bad_request(&error))?;
        let candidate = Candidate { key: csr.key, boot, token: &request.token, seed: &seed, peer };
        // A token that is held back is not bound to a key.
        if let Admission::Later(how, wait) = self.admit_key(&known, &candidate, now).await? {
            return Ok((how, wait));
        }
        let claimed = seeds.claim(boot, csr.key).await;
        claimed.or_else(|error| self.bad_token(boot, peer, &error))?;
        // A lost answer is given again; its key does not become the current one again.
        if let Some(certificate) = seed.claim.as_ref().and_then(|claim| claim.certificate.clone()) {
            return Ok((Enrollment::Repeated, self.enrolled(certificate)));
        }
        let signed = match self.signer.sign((&name, &uid), &csr, &boot.to_string()).await {
            Ok(signed) => signed,
            Err(error) => return self.signer_failed(&name, &error),
        };
        let certificate = match signed {
            Signed::Certificate(certificate) => certificate,
            Signed::Pending(reason) => return Ok(pending(reason)),
        };
        let decided = self.put_in_force_now(&candidate, (&name, &uid), certificate).await?;
        if matches!(decided, (Enrollment::Enrolled, _)) {
            self.take_facts(&name, request.agent_version, Some(request.facts), Timestamp::now());
        }
        Ok(decided)
    }

    /// Puts the key of an enrollment in force. The signer may have taken its time: all that was found before is asked again.
    async fn put_in_force_now(
        &self,
        candidate: &Candidate<'_>,
        (name, uid): (&MachineName, &str),
        certificate: String,
    ) -> Result<(Enrollment, EnrollResponse), Refused> {
        let (seeds, boot, now) = (self.boots.seeds(), candidate.boot, Timestamp::now());
        let Some(_turn) = self.turns.take(name) else { return Ok(pending(busy(name))) };
        let seed = seeds.check(boot, candidate.token, now);
        let seed = seed.or_else(|error| self.bad_token(boot, candidate.peer, &error))?;
        if let Some(certificate) = seed.claim.and_then(|claim| claim.certificate) {
            return Ok((Enrollment::Repeated, self.enrolled(certificate)));
        }
        let known = self.check_machine(name, Some(uid))?;
        let former = match self.admit_key(&known, candidate, now).await? {
            Admission::Now(former) => former,
            Admission::Later(how, wait) => return Ok((how, wait)),
        };
        let ended = seeds.win(boot);
        let mut changes = ended.or_else(|error| self.bad_token(boot, candidate.peer, &error))?;
        let certified = self.certified(&known, candidate.key, (Some(boot), now)).await;
        let expected = Expected::Former { key: former.recorded, heartbeat: former.heartbeat };
        let certificate = match self.put_in_force(name, &certified, expected, certificate).await? {
            Signed::Certificate(certificate) => certificate,
            Signed::Pending(reason) => return Ok(pending(reason)),
        };
        changes.push(row_of(name, &certified));
        if let Err(error) = seeds.answer(boot, &certificate, changes).await {
            return store_failed(name, &error);
        }
        self.tell_certified(name, &certified);
        self.settle(&known, candidate, former.force, now);
        Ok((Enrollment::Enrolled, self.enrolled(certificate)))
    }

    /// Tells that the host of a candidate is enrolled; `former`: what was in force before.
    fn settle(&self, known: &KnownMachine, candidate: &Candidate<'_>, former: InForce, now: Timestamp) {
        let (boot, peer) = (candidate.boot, candidate.peer);
        let public = boot.public_id();
        let changed = key_changed(former, &candidate.key);
        tracing::info!(machine = %known.name, boot = %public, %peer, new_key = changed.is_some(), "host enrolled");
        if let Some(changed) = changed {
            let message = format!("{changed}, enrolled from {peer} by boot {public}");
            self.registry.event(&known.name, PxedEvent::KeyChanged, message);
        }
        self.heard.enrolled(known, now);
        let gone = |status: &mut MachineStatus| status.agent.get_or_insert_default().going_down_time = None;
        self.registry.update(&known.name, gone);
        let owner = Owner::Machine { name: known.name.clone(), uid: known.uid.clone() };
        self.boots.owner_reached(&owner, boot, Stage::Enrolled, now);
        if known.is_netbooted() {
            let message = format!("the host is enrolled, boot {public}");
            self.registry.event(&known.name, PxedEvent::Enrolled, message);
        } else {
            self.enrolled_by_hand(&known.name, now);
        }
        // Also if a later packet in its name has started another boot.
        tell_heard(&self.registry, &self.heard, known, now);
    }

    /// Records the enrollment of a host that pxed did not boot: no timeline of a boot shows it.
    fn enrolled_by_hand(&self, name: &MachineName, now: Timestamp) {
        if self.machines.load().netbooted(name).is_some() {
            return;
        }
        let message = "the host is enrolled by a token of `bedplate machine token`";
        self.registry.update(name, |status| {
            set_condition(status, true, EnrolledReason::Enrolled, message, None, now);
        });
        self.registry.event(name, PxedEvent::Enrolled, message);
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
    ) -> Result<EnrollResponse, Refused> {
        let decided = self.decide_renewal(identity, request, now).await;
        self.counters.renewals.one(match &decided {
            Ok(EnrollResponse::Pending { .. }) => Renewal::Pending,
            Ok(EnrollResponse::Enrolled { .. } | EnrollResponse::Challenge { .. }) => Renewal::Renewed,
            Err(_) => Renewal::Refused,
        });
        decided
    }

    async fn decide_renewal(
        &self,
        identity: &Identity,
        request: RenewRequest,
        now: Timestamp,
    ) -> Result<EnrollResponse, Refused> {
        let name = &identity.machine;
        let uid = self.hear(identity).await?;
        let csr = CertificateRequest::read(&request.csr_pem).or_else(|error| bad_request(&error))?;
        if csr.key != identity.key {
            return refused(
                AgentRefusal::KeyMismatch,
                "a certificate is renewed only for its own key; boot the host again to enroll another key",
            );
        }
        csr.check_subject((name, &uid), self.signer.needs_whole_subject())
            .or_else(|error| bad_request(&error))?;
        let mut signed = match self.signer.sign((name, &uid), &csr, &identity.serial).await {
            Ok(signed) => signed,
            Err(error) => return self.signer_failed(name, &error),
        };
        if let Signed::Certificate(certificate) = signed {
            signed = self.renew_now(identity, (&uid, certificate), now).await?;
        }
        match signed {
            Signed::Certificate(certificate) => {
                tracing::info!(machine = %name, "certificate renewed");
                Ok(self.enrolled(certificate))
            }
            Signed::Pending(message) => {
                Ok(EnrollResponse::Pending { message, retry_seconds: RENEW_RETRY_SECONDS })
            }
        }
    }

    /// Puts a renewed certificate in force. The signer may have taken its time: another key may be enrolled by now.
    async fn renew_now(
        &self,
        identity: &Identity,
        (uid, certificate): (&str, String),
        now: Timestamp,
    ) -> Result<Signed, Refused> {
        let name = &identity.machine;
        let Some(_turn) = self.turns.take(name) else { return Ok(Signed::Pending(busy(name))) };
        self.check_identity(identity).await?;
        let known = self.check_machine(name, Some(uid))?;
        let certified = self.certified(&known, identity.key, (None, now)).await;
        let signed = self.put_in_force(name, &certified, Expected::Earlier, certificate).await?;
        if let Signed::Certificate(_) = &signed {
            if let Err(error) = self.store.write(vec![row_of(name, &certified)]).await {
                return store_failed(name, &error);
            }
            self.tell_certified(name, &certified);
        }
        Ok(signed)
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
        let uid = self.hear(identity).await?;
        let known = self.check_machine(name, Some(&uid))?;
        if let Some(boot) = report.boot_id.filter(|_| !report.going_down) {
            let owner = Owner::Machine { name: name.clone(), uid };
            self.boots.owner_reached(&owner, boot, Stage::Enrolled, now);
        }
        let addresses = Address::of_host(name, &report.addresses);
        let kernel = report_filter::cut(report.kernel_boot_id, report_filter::MAX_WORD_LENGTH);
        let state_disk = report.state_disk.map(report_filter::state_disk);
        if !report.going_down {
            tell_heard(&self.registry, &self.heard, &known, now);
        }
        self.registry.update(name, |status| {
            status.addresses = addresses;
            status.state_disk = state_disk;
            let agent = status.agent.get_or_insert_default();
            agent.boot_id = Some(kernel);
            agent.going_down_time = report.going_down.then_some(Time(now));
        });
        self.take_facts(name, report.agent_version, report.facts, now);
        Ok(())
    }

    pub(super) fn signer_failed<T>(&self, name: &MachineName, error: &SignError) -> Result<T, Refused> {
        let (text, reason) = (chain(error), AgentRefusal::SignerFailed);
        let now = std::time::Instant::now();
        if let Some(omitted) = self.boots.log_pace().admit(reason.as_str(), Some(name.as_str()), now) {
            tracing::error!(machine = %name, error = text, omitted, "failed to sign a certificate");
        }
        refused(reason, text)
    }

    /// Lets an agent that showed its certificate ask for what is under this path.
    ///
    /// # Errors
    /// The agent sends too many requests.
    pub fn admit(&self, identity: &Identity, path: &str) -> Result<(), Refused> {
        rate_limit::admit(&self.paces, (&identity.machine, &identity.key), Asked::by(path))
    }

    fn enrolled(&self, certificate_pem: String) -> EnrollResponse {
        EnrollResponse::Enrolled {
            certificate_pem,
            kubernetes: self.signer.kubernetes(),
            heartbeat_seconds: HEARTBEAT_SECONDS,
        }
    }

    /// Returns the current Machine, if it still has this `uid`.
    pub(super) fn check_machine(
        &self,
        name: &MachineName,
        uid: Option<&str>,
    ) -> Result<Arc<KnownMachine>, Refused> {
        match self.machines.load().by_name(name) {
            Some(known) if uid.is_none_or(|uid| uid == known.uid) => Ok(known.clone()),
            Some(_) | None => self.machine_gone(name),
        }
    }

    pub(super) fn machine_gone<T>(&self, name: &MachineName) -> Result<T, Refused> {
        let message = format!("Machine {name} was deleted or re-created; boot the host again");
        refused(AgentRefusal::MachineGone, message)
    }

    /// Refuses a token.
    pub(super) fn bad_token<T>(
        &self,
        boot: BootId,
        peer: IpAddr,
        error: &CheckTokenError,
    ) -> Result<T, Refused> {
        let reason = match error {
            CheckTokenError::UnknownBoot => AgentRefusal::UnknownBoot,
            CheckTokenError::WrongToken => AgentRefusal::WrongToken,
            CheckTokenError::Expired(_) => AgentRefusal::TokenExpired,
            CheckTokenError::Used => AgentRefusal::TokenUsed,
            CheckTokenError::Superseded => AgentRefusal::TokenSuperseded,
            CheckTokenError::Store(_) => AgentRefusal::StoreFailed,
        };
        let opened = || self.boots.get(boot, Timestamp::now()).map(|boot| boot.record().opening.owner);
        let owner = self.boots.seeds().owner(boot).or_else(opened);
        self.alarm(&Alarm {
            event: PxedEvent::TokenRefused,
            machine: owner.as_ref().and_then(Owner::machine),
            boot: Some(boot),
            peer,
            message: format!("enrollment token refused ({})", reason.as_str()),
        });
        refused(reason, format!("{}: boot the host again for a fresh token", chain(error)))
    }

    fn take_facts(&self, name: &MachineName, version: String, hardware: Option<Hardware>, now: Timestamp) {
        let version = report_filter::cut(version, report_filter::MAX_WORD_LENGTH);
        let hardware = hardware.map(report_filter::hardware);
        self.registry.update(name, |status| {
            let agent = status.agent.get_or_insert_with(AgentStatus::default);
            agent.version = Some(version);
            agent.last_heartbeat_time = Some(Time(now));
            if let Some(mut hardware) = hardware {
                // Only pxed reports the BMC.
                hardware.bmc = status.hardware.take().and_then(|before| before.bmc);
                status.hardware = Some(hardware);
            }
        });
    }
}

/// The answer to a host that should ask again.
fn pending(message: String) -> (Enrollment, EnrollResponse) {
    (Enrollment::Pending, EnrollResponse::Pending { message, retry_seconds: RETRY_SECONDS })
}

fn busy(name: &MachineName) -> String {
    format!("another request for the key of Machine {name} is being answered")
}

/// The Event about a key that is another one than before; `None`: it is not.
fn key_changed(former: InForce, key: &Digest) -> Option<&'static str> {
    match former {
        InForce::Key(former) if former == *key => None,
        InForce::Nothing => None,
        InForce::Key(_) | InForce::Certificate => Some("another key is in force"),
        InForce::Lost => Some("a key is in force, and pxed has no record of the key before it"),
    }
}

fn bad_request<T>(error: &ReadRequestError) -> Result<T, Refused> {
    refused(AgentRefusal::InvalidCertificateRequest, chain(error))
}

pub(super) fn store_failed<T>(name: &MachineName, error: &crate::store::StoreError) -> Result<T, Refused> {
    tracing::error!(machine = %name, error = chain(error), "store failed during enrollment");
    refused(AgentRefusal::StoreFailed, "pxed cannot write to its store; see its log")
}
